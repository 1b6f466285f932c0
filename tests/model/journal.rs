//! Journals and fsync (rule 6), and the order in which journals are read back.

use crate::fences;
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::rebuild;
use crate::state::{
    JOURNALS, Journal, JournalState, Objects, PackSet, Phase, Session, Standing, State,
};

/// Returns the last operation that is reached from `covered` without a gap through the journals in
/// `listed` (bit n is journal n). Journals whose operations are all covered, or that carry none,
/// have no effect.
pub fn contiguous(state: &State, s: Session, covered: u8, listed: u8) -> u8 {
    state.store.journals[s]
        .iter()
        .enumerate()
        .filter(|(n, _)| listed & 1 << n != 0)
        .fold(covered, |last, (_, journal)| {
            if journal.first <= last + 1 {
                last.max(journal.last)
            } else {
                last
            }
        })
}

/// Returns the journals of `s` that are in the store, one bit per number.
pub fn landed(state: &State, s: Session) -> u8 {
    let mut mask = 0;
    for (n, journal) in state.store.journals[s].iter().enumerate() {
        if journal.state == JournalState::Landed {
            mask |= 1 << n;
        }
    }
    mask
}

/// Returns the journals of `s` that a new holder finds, one bit per number.
pub fn there(state: &State, s: Session) -> u8 {
    landed(state, s) & !state.store.lost[s]
}

/// Whether one of the listed journals carries operation `op`.
pub fn carries(state: &State, s: Session, listed: u8, op: u8) -> bool {
    (0..JOURNALS)
        .filter(|n| listed & 1 << n != 0)
        .map(|n| &state.store.journals[s][n])
        .any(|journal| (journal.first..=journal.last).contains(&op))
}

/// Whether one of the listed journals carries operations that `contiguous` does not reach, because
/// one before it is missing. Where journals are sent in turn, only a loss leaves such a gap.
pub fn has_gap(state: &State, s: Session, covered: u8, listed: u8) -> bool {
    let reached = contiguous(state, s, covered, listed);
    (0..JOURNALS)
        .filter(|n| listed & 1 << n != 0)
        .any(|n| state.store.journals[s][n].last > reached)
}

/// Returns all packs named in the listed journals.
pub fn named(state: &State, s: Session, listed: u8) -> PackSet {
    (0..JOURNALS)
        .filter(|n| listed & 1 << n != 0)
        .fold(PackSet::EMPTY, |all, n| {
            all.and(state.store.journals[s][n].named)
        })
}

/// Returns the packs in which operation `op` of `s` can be looked up by its journals whose state is
/// at least `least`. A journal whose last operation is below `op` does not count, since it is
/// deleted once R covers that.
pub fn named_for(
    model: &Protocol,
    state: &State,
    s: Session,
    op: u8,
    least: JournalState,
) -> PackSet {
    let trusted = model.lacks(Mutant::CoveredJournalTrusted);
    state.store.journals[s]
        .iter()
        .filter(|j| j.state >= least && j.state != JournalState::Deleted)
        .filter(|j| j.last >= op || trusted)
        .fold(PackSet::EMPTY, |all, j| all.and(j.named))
}

/// Sends the next journal. It carries all operations whose packs are acknowledged, or, if there is
/// none, names the packs that replace condemned ones.
pub fn put(model: &Protocol, state: &State, s: Session, late: bool) -> Option<State> {
    if !rebuild::may_journal(model, state, s) {
        return None;
    }
    let process = &state.processes[s];
    let mut nameable = process.held;
    if !model.lacks(Mutant::UnacknowledgedNamed) {
        nameable = nameable.without(process.unresolved);
    }
    let arrived = if late {
        JournalState::Flying
    } else {
        JournalState::Landed
    };
    let (mut next, _) = settle(model, state, s, nameable, arrived)?;
    if late {
        next.faults.journals = next.faults.journals.checked_sub(1)?;
    } else {
        note_landing(model, &next, s);
    }
    Some(next)
}

/// With `fsync=local`: settles the next journal on the disk of its machine. The packs that it names
/// and that have no answer yet are on that disk as well, which is enough to acknowledge it.
pub fn keep(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let held = state.processes[s].held;
    let (mut next, last) = settle(model, state, s, held, JournalState::Kept)?;
    next.processes[s].kept = last;
    model.coverage.note(Event::KeptAcknowledged);
    Some(next)
}

/// Sends a kept journal once the packs that it names are acknowledged, and after the journals
/// before it.
pub fn send_kept(model: &Protocol, state: &State, s: Session, n: usize) -> Option<State> {
    let journals = &state.store.journals[s];
    let waits = |j: &Journal| matches!(j.state, JournalState::Kept | JournalState::Flying);
    let named = journals[n].named;
    if journals[n].state != JournalState::Kept
        || journals[..n].iter().any(waits)
        || !named.common(state.processes[s].unresolved).is_empty()
    {
        return None;
    }
    let mut next = *state;
    next.store.journals[s][n].state = JournalState::Landed;
    note_landing(model, &next, s);
    Some(next)
}

/// A new holder on the machine of an ended session, whose process is dead, sends the contents of
/// its spool: packs, then journals, under the names that they were settled under. These packs are
/// still the session's own.
pub fn replay_spool(
    model: &Protocol,
    state: &State,
    new_holder: Session,
    v: Session,
) -> Option<State> {
    let is_here = model.scenario.machines[new_holder] == model.scenario.machines[v];
    let is_new = state.processes[v].phase == Phase::Mounted;
    if !is_here || !is_new || state.root.sessions[v].standing != Standing::Ending {
        return None;
    }
    let mut next = *state;
    // The lock of the spool shows that its owner is dead.
    next.processes[v].phase = Phase::Outside;
    // A pack with two PUTs under way arrives once (see `main.rs`).
    let unresolved = state.processes[v].unresolved;
    next.store.stored = next.store.stored.and(unresolved);
    next.store.flying = next.store.flying.without(unresolved);
    for journal in &mut next.store.journals[v] {
        if journal.state == JournalState::Kept {
            journal.state = JournalState::Landed;
            model.coverage.note(Event::SpoolReplayed);
        }
    }
    Some(next)
}

/// Returns the next journal, which names only packs of `nameable`, and its last operation.
fn settle(
    model: &Protocol,
    state: &State,
    s: Session,
    nameable: PackSet,
    as_what: JournalState,
) -> Option<(State, u8)> {
    let process = &state.processes[s];
    let journals = &state.store.journals[s];
    let n = journals
        .iter()
        .position(|j| j.state == JournalState::Unsent)?;
    let in_turn = model.scenario.in_turn && !model.lacks(Mutant::SentOutOfTurn);
    let waits = |j: &Journal| match j.state {
        JournalState::Flying => in_turn,
        JournalState::Kept => as_what != JournalState::Kept,
        _ => false,
    };
    if journals[..n].iter().any(waits) {
        return None;
    }
    let sent = journals[..n].iter().map(|j| j.last).max().unwrap_or(0);
    let there = state.store.objects(nameable);
    let first = sent.max(process.covered) + 1;
    let parents_only = model.lacks(Mutant::ParentNamedAlone);
    let wanted = |needs: Objects| match parents_only {
        true => needs.segments(),
        false => needs,
    };
    let ready = |&op: &u8| {
        let needs = wanted(model.needed_by(state, s, op, op));
        needs.without(there).is_empty()
    };
    let last = (first..=process.accepted)
        .take_while(ready)
        .last()
        .unwrap_or(first - 1);
    let mut refers = model.needed_by(state, s, process.covered + 1, last);
    if model.lacks(Mutant::NamesNotTransitive) {
        refers = refers.segments();
    }
    let named = state.store.holding(nameable, refers);
    let renames = |op: u8| {
        let places = state
            .store
            .holding(nameable, model.needed_by(state, s, op, op));
        !places.within(named_for(model, state, s, op, JournalState::Kept))
    };
    if last < first && !(process.covered + 1..=last).any(renames) {
        return None;
    }
    let mut next = *state;
    next.store.journals[s][n] = Journal {
        state: as_what,
        first,
        last,
        named,
    };
    Some((next, last))
}

/// A slow journal arrives, even if its sender is gone.
pub fn land(model: &Protocol, state: &State, s: Session, n: usize) -> Option<State> {
    if state.store.journals[s][n].state != JournalState::Flying {
        return None;
    }
    let mut next = *state;
    next.store.journals[s][n].state = JournalState::Landed;
    note_landing(model, &next, s);
    Some(next)
}

/// Deletes a journal whose operations R covers. The packs that it names again are needed only for
/// operations up to its last.
pub fn delete(model: &Protocol, state: &State, s: Session, n: usize) -> Option<State> {
    let journal = &state.store.journals[s][n];
    let covered = state.root.sessions[s].covered;
    if journal.state != JournalState::Landed || journal.last > covered || !state.root.stands(s) {
        return None;
    }
    let mut next = *state;
    next.store.journals[s][n].state = JournalState::Deleted;
    model.coverage.note(Event::JournalDeleted);
    Some(next)
}

fn note_landing(model: &Protocol, state: &State, s: Session) {
    let holder = model.scenario.volume(s).and_then(|v| {
        state
            .processes
            .get(usize::from(state.root.volumes[v].holder))
    });
    let listed = holder.is_some_and(|holder| holder.phase == Phase::Listed);
    if listed && state.root.sessions[s].standing == Standing::Ending {
        model.coverage.note(Event::JournalLandedAfterListing);
    }
}

/// Reads R after the answers of the journals that count. Acknowledges the operations that these
/// journals and R's covered operation reach without a gap.
pub fn fsync_get(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let mine = model.holds(state, s);
    let by_fence = fences::are_used(model, state, s);
    let mut counted = landed(state, s);
    if counted == 0 {
        return None;
    }
    if fences::is_read(model, state, s) && fences::stands(state, s) {
        return fences::refuse(model, state, s);
    }
    if model.lacks(Mutant::GetBeforeAnswer) {
        counted &= (1 << state.processes[s].early) - 1;
    } else if !mine && !by_fence && !model.lacks(Mutant::FsyncWithoutRereading) {
        model.coverage.note(Event::FsyncRefused);
        return None;
    }
    let mut next = *state;
    if mine && !by_fence {
        super::writer::learn(model, &mut next, s);
    }
    let process = &mut next.processes[s];
    let mut reached = contiguous(state, s, process.covered, counted);
    if model.lacks(Mutant::AcknowledgedWithGap) {
        let last = (0..JOURNALS)
            .filter(|n| counted & 1 << n != 0)
            .map(|n| state.store.journals[s][n].last)
            .max();
        reached = reached.max(last.unwrap_or(0));
    }
    if reached > process.acknowledged {
        process.acknowledged = reached;
        next.fenced_acknowledged |= match by_fence {
            true => {
                rebuild::note_acknowledged(model, state);
                fences::acknowledged(model, state, s)
            }
            false => !mine,
        };
        model.coverage.note(Event::FsyncAcknowledged);
    }
    (next != *state).then_some(next)
}

/// Only in the mutant that reads R at the same time as the PUT: remembers that the session still
/// held the volume when the journals so far had been sent.
pub fn early_get(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let sent = state.store.journals[s]
        .iter()
        .filter(|j| j.state != JournalState::Unsent)
        .count() as u8;
    let seems_mine = match fences::are_used(model, state, s) {
        true => !fences::stands(state, s),
        false => model.holds(state, s),
    };
    if !seems_mine || sent <= state.processes[s].early {
        return None;
    }
    let mut next = *state;
    next.processes[s].early = sent;
    Some(next)
}

/// The bucket loses a journal, or its bytes change, after it was answered. Its writer is not told.
pub fn lose(model: &Protocol, state: &State, s: Session, n: usize) -> Option<State> {
    let bit = 1 << n;
    let is_there = there(state, s) & bit != 0;
    if !is_there || !state.root.stands(s) {
        return None;
    }
    let mut next = *state;
    next.faults.losses = next.faults.losses.checked_sub(1)?;
    next.store.lost[s] |= bit;
    model.coverage.note(Event::JournalLost);
    Some(next)
}
