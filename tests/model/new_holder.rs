//! Registration, takeover and end of sessions (rules 2 and 7).

use crate::conversion;
use crate::descriptions;
use crate::fences;
use crate::index::{self, Absorb};
use crate::journal;
use crate::learned;
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{
    NONE, OWN_PACKS, Objects, PackSet, Phase, RecoveryBase, Session, Standing, State, named_by,
    own_pack,
};
use crate::world::Role;
use crate::writer::{learn, without_failing};

/// Rule 2: a session enters R. Rule 4: its index and its first base are those of the R that
/// registers it.
pub fn register(model: &Protocol, state: &State, s: Session) -> Option<State> {
    if state.root.sessions[s].standing != Standing::Absent {
        return None;
    }
    // New holders of the same kind are interchangeable, so they register in the order of their
    // numbers.
    let earlier = (0..s).any(|t| {
        matches!(model.scenario.roles[t], Role::Writer { .. })
            && conversion::is_old(model, t) == conversion::is_old(model, s)
            && state.root.sessions[t].standing == Standing::Absent
    });
    if earlier || !descriptions::may_register(model, state, s) {
        return None;
    }
    let mut next = *state;
    next.root.sessions[s].standing = Standing::Live;
    let process = &mut next.processes[s];
    process.phase = Phase::Registered;
    process.knows_version_2 = next.root.version_2;
    process.bound = next.root.epoch;
    if !model.lacks(Mutant::IndexOlderThanRegistration) {
        learned::begin(model, &mut next, s);
        learned::read_index(model, &mut next, s);
    }
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// Rule 7: takes the volume from its holder, if it has one.
pub fn take_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    if state.root.sessions[s].standing != Standing::Live
        && !model.lacks(Mutant::CasWithoutLiveSession)
    {
        model.coverage.note(Event::DeadSessionRefused);
        return None;
    }
    let listed_first = model.lacks(Mutant::ListBeforeTake);
    if listed_first && state.processes[s].early == 0 {
        return None;
    }
    let volume = model.scenario.volume(s)?;
    let mut next = *state;
    let entry = &mut next.root.volumes[volume];
    if !entry.exists {
        return None;
    }
    if entry.holder != NONE {
        let v = usize::from(entry.holder);
        if !descriptions::may_end(model, state, s, v) {
            return None;
        }
        next.ended_alive |= model.scenario.judged && !state.processes[v].dead;
        let ended = if model.lacks(Mutant::EndBeforeJournalCommitted) {
            Standing::Removed
        } else {
            Standing::Ending
        };
        next.root.sessions[usize::from(entry.holder)].standing = ended;
    }
    entry.holder = s as u8;
    entry.takes += 1;
    next.root.sessions[s].rank = entry.takes;
    next.processes[s].phase = if model.ending(&next, volume).is_empty() {
        Phase::Mounted
    } else if listed_first {
        Phase::Listed
    } else {
        Phase::Taken
    };
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// Rule 7: lists the journals of all ending sessions of the volume.
pub fn list(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let volume = model.scenario.volume(s)?;
    let mut next = *state;
    let mut ended_sessions = model.ending(state, volume);
    if state.processes[s].phase == Phase::Registered {
        // Only in the mutant that lists first.
        if state.processes[s].early != 0 {
            return None;
        }
        let holder = state.root.volumes[volume].holder;
        ended_sessions.extend((holder != NONE).then_some(usize::from(holder)));
        next.processes[s].early = 1;
    } else {
        if !model.holds(state, s) || !fences::complete(model, state, s, &ended_sessions) {
            return None;
        }
        next.processes[s].phase = Phase::Listed;
    }
    for v in ended_sessions {
        next.processes[s].listing[v] = journal::there(state, v);
    }
    Some(next)
}

/// The replay that a new holder derives from the journals that it listed.
pub struct Replay {
    /// (session, covered before, covered after), in the order of replay.
    pub ended_sessions: Vec<(Session, u8, u8)>,
    /// Packs named by the journals.
    pub named: PackSet,
}

/// Returns the last operation of any journal. Only in the mutant that carries out journals behind a
/// gap.
fn last_listed(state: &State, v: Session, covered: u8, listed: u8) -> u8 {
    state.store.journals[v]
        .iter()
        .enumerate()
        .filter(|(n, _)| listed & 1 << n != 0)
        .fold(covered, |last, (_, journal)| last.max(journal.last))
}

/// Reads the listed journals of the ending sessions.
pub fn replay(model: &Protocol, state: &State, s: Session, volume: usize) -> Replay {
    let mut order = model.ending(state, volume);
    if model.lacks(Mutant::ReplayNewestFirst) {
        order.reverse();
    }
    let mut replay = Replay {
        ended_sessions: Vec::new(),
        named: PackSet::EMPTY,
    };
    for v in order {
        let listed = state.processes[s].listing[v];
        let covered = if model.lacks(Mutant::CoveredNotInRoot) {
            0
        } else {
            state.root.sessions[v].covered
        };
        let reached = match model.lacks(Mutant::GapPassedOver) {
            true => last_listed(state, v, covered, listed),
            false => journal::contiguous(state, v, covered, listed),
        };
        replay.ended_sessions.push((v, covered, reached));
        replay.named = replay.named.and(journal::named(state, v, listed));
    }
    replay
}

/// Rule 7: commits the replayed operations and takes the replayed sessions out of R in the same
/// CAS. The packs of these sessions count as own. Objects that fail the check of rule 3 are copied.
pub fn replay_commit_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    if !model.holds(state, s) {
        return None;
    }
    let volume = model.scenario.volume(s)?;
    let replay = replay(model, state, s, volume);
    let mut next = *state;
    let missing = visibly_missing(model, state, s, &replay);
    if missing.any() && state.processes[s].accepts_loss {
        model.coverage.note(Event::LossAccepted);
    } else if missing.noticed(model) {
        return None;
    } else {
        next.lost_untold |= missing.any();
    }
    let mut needs = Objects::default();
    for &(v, before, after) in &replay.ended_sessions {
        let listed = state.processes[s].listing[v];
        for n in (before + 1..=after).filter(|&n| journal::carries(state, v, listed, n)) {
            next.root.volumes[volume].log.push(v, n);
            let content = Objects::content(state.processes[v].operations[usize::from(n) - 1]);
            needs = needs.and(content);
            model.coverage.note(Event::Replayed);
            if replay.ended_sessions.len() > 1 && v == replay.ended_sessions[0].0 {
                model.coverage.note(Event::ReplayedOlderSession);
            }
        }
        next.root.sessions[v].covered = after;
        if !model.lacks(Mutant::RemoveInLaterCas) {
            next.root.sessions[v].standing = Standing::Removed;
        }
    }
    for &(v, ..) in &replay.ended_sessions {
        leave_recovery_base(model, &mut next, s, v, volume);
    }
    let ended_sessions_own = replay
        .ended_sessions
        .iter()
        .fold(PackSet::EMPTY, |all, &(v, ..)| all.and(state.root.own(v)));
    let mut add = without_failing(
        model,
        state,
        state
            .store
            .holding(replay.named.common(ended_sessions_own), needs),
    );
    let reached = model.tree(state, volume, next.root.volumes[volume].log);
    let live = index::seen_live(model, &state.root, &state.store);
    let mut missing = reached.without(state.store.objects(live.and(add)));
    if !missing.is_empty() {
        model.coverage.note(Event::ReplayCopied);
    }
    if !model.lacks(Mutant::NewHolderReliesOnDamaged) {
        let healed = healed(&next, live, reached.common(needs), add, replay.named);
        if !healed.without(missing).is_empty() {
            model.coverage.note(Event::ReplayHealed);
        }
        missing = missing.and(healed);
    }
    if !missing.is_empty() {
        add = add.and(copy(&mut next, s, missing, replay.named)?);
    }
    if !index::has_room(model, state, add, Absorb::No) {
        return None;
    }
    index::enter(model, &mut next, add, Absorb::No);
    let process = &mut next.processes[s];
    let kept = process.unresolved.and(process.uncommitted);
    next.root.sessions[s].floor = kept
        .first()
        .and_then(named_by)
        .map_or(process.next_pack, |(_, sequence)| sequence);
    process.phase = Phase::Mounted;
    process.listing = Default::default();
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// Rule 11: returns the objects that replayed operations refer to, that are live in damaged packs
/// only, and that are whole in a pack that a journal names or in a condemned one.
fn healed(next: &State, live: PackSet, needs: Objects, add: PackSet, named: PackSet) -> Objects {
    let good = live.without(next.root.quarantine).and(add);
    let sources = named.and(next.root.all_condemned());
    let whole = sources
        .without(next.root.quarantine)
        .common(next.store.whole());
    needs
        .without(next.store.objects(good))
        .common(next.store.objects(whole))
}

/// Rule 7: records a session that leaves R although its spool may hold more than its journals in
/// the bucket. The tree that the spool follows and the objects that it refers to are kept until the
/// spool is claimed.
fn leave_recovery_base(model: &Protocol, next: &mut State, s: Session, v: Session, volume: usize) {
    let tree = model.tree(next, volume, next.root.volumes[volume].log);
    // A new holder has replayed a spool only if its owner is dead, and then knows its contents.
    let is_here = model.scenario.machines[s] == model.scenario.machines[v];
    let ignores = is_here && model.lacks(Mutant::SpoolIgnored);
    let is_claimed = is_here && next.processes[v].phase == Phase::Outside;
    if !model.scenario.spools || is_claimed || ignores {
        next.spool_ignored |= next.processes[v].kept > next.root.sessions[v].covered;
        return;
    }
    next.owed[v] = Some(tree);
    if model.lacks(Mutant::RecoveryBaseNotLeft) {
        return;
    }
    let published = next.store.published[v];
    let base = if published == NONE { 0 } else { published };
    next.root.recovery_bases[v] = Some(RecoveryBase { tree, base });
    model.coverage.note(Event::RecoveryBaseLeft);
}

/// Rule 7: a later session on the machine makes a snapshot of the spool's contents, and the
/// recovery base leaves R in the same CAS. The spool is locked while its owner lives, so its owner
/// is dead.
pub fn claim_recovery_base_cas(
    model: &Protocol,
    state: &State,
    s: Session,
    v: Session,
) -> Option<State> {
    let is_here = model.scenario.machines[s] == model.scenario.machines[v];
    if state.root.recovery_bases[v].is_none()
        || !is_here
        || state.root.sessions[s].standing != Standing::Live
    {
        return None;
    }
    let mut next = *state;
    next.root.recovery_bases[v] = None;
    next.owed[v] = None;
    if state.processes[v].kept > state.root.sessions[v].covered {
        model.coverage.note(Event::RecoveryBaseClaimed);
    }
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// The loss that a new holder can see among the operations that the ended sessions acknowledged.
pub struct Missing {
    /// A journal is there behind one that is missing.
    gap: bool,
    /// The machine remembers that it acknowledged more.
    remembered: bool,
}

impl Missing {
    /// Whether there is any loss.
    pub fn any(&self) -> bool {
        self.gap || self.remembered
    }
    /// Whether the new holder uses the evidence that it can see.
    fn noticed(&self, model: &Protocol) -> bool {
        (self.gap && !model.lacks(Mutant::GapTakenForEnd))
            || (self.remembered && !model.lacks(Mutant::MemoryIgnored))
    }
}

/// Rule 7: returns the loss that a new holder can see. A gap proves a loss only where each journal
/// is sent after the answer to the one before it.
pub fn visibly_missing(model: &Protocol, state: &State, s: Session, replay: &Replay) -> Missing {
    let ended_sessions = || replay.ended_sessions.iter();
    let gap = |&(v, before, _): &(Session, u8, u8)| {
        journal::has_gap(state, v, before, state.processes[s].listing[v])
    };
    let remembered = |&(v, before, after): &(Session, u8, u8)| {
        state.processes[v].acknowledged > after.max(before)
    };
    Missing {
        gap: model.scenario.in_turn && ended_sessions().any(gap),
        remembered: model.scenario.remembers && ended_sessions().any(remembered),
    }
}

/// Rule 7: the user of a new holder learns which journals are missing, and says to go on.
pub fn accept_loss(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let volume = model.scenario.volume(s)?;
    let missing = visibly_missing(model, state, s, &replay(model, state, s, volume));
    if !missing.any() || state.processes[s].accepts_loss || !model.holds(state, s) {
        return None;
    }
    let mut next = *state;
    next.processes[s].accepts_loss = true;
    Some(next)
}

/// Copies objects that a replayed journal refers to into a pack of the new holder. The sources are
/// the packs that the journal names, live packs and condemned packs.
fn copy(next: &mut State, s: Session, missing: Objects, named: PackSet) -> Option<PackSet> {
    let sources = named
        .and(next.root.live)
        .and(next.root.all_condemned())
        .common(next.store.whole());
    let process = &mut next.processes[s];
    if !missing.without(next.store.objects(sources)).is_empty()
        || usize::from(process.next_pack) == OWN_PACKS
    {
        return None;
    }
    let pack = own_pack(s, process.next_pack);
    process.next_pack += 1;
    next.store.contents[pack] = missing;
    next.store.stored = next.store.stored.and(PackSet::of(pack));
    Some(PackSet::of(pack))
}

/// Only in the mutant that removes replayed sessions later.
pub fn remove_replayed_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let ending = model.ending(state, model.scenario.volume(s)?);
    if !model.holds(state, s) || ending.is_empty() {
        return None;
    }
    let mut next = *state;
    for v in ending {
        next.root.sessions[v].standing = Standing::Removed;
    }
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// A clean unmount: everything is committed, and the session leaves R with its volume in one CAS. A
/// new holder may give up before it has replayed; the ending sessions then stay for the next one.
pub fn leave_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    learn(model, &mut next, s);
    let process = &next.processes[s];
    if !model.may_replace(state, s)
        || process.covered < process.accepted
        || process.pending.is_some()
    {
        return None;
    }
    next.root.volumes[model.scenario.volume(s)?].holder = NONE;
    next.root.sessions[s].standing = Standing::Removed;
    if model.scenario.fences {
        next.processes[s].phase = Phase::Outside;
    }
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::Left);
    Some(next)
}

/// Rule 7: ends a session that holds no volume: that of a collector, or one that registered and
/// went no further.
pub fn end_session_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let holds = state
        .root
        .volumes
        .iter()
        .any(|v| usize::from(v.holder) == s);
    if state.root.sessions[s].standing != Standing::Live || holds {
        return None;
    }
    let mut next = *state;
    next.root.sessions[s].standing = Standing::Removed;
    if usize::from(next.root.turn) == s {
        next.root.turn = NONE;
    }
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::SessionEnded);
    Some(next)
}
