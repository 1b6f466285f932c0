//! The steps of a mounted writer: accept operations, replace condemned references, publish bases,
//! commit (rules 2 to 5).

use crate::descriptions;
use crate::index::{self, Absorb};
use crate::journal;
use crate::learned;
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{
    JournalState, NONE, OWN_PACKS, Objects, Pack, PackSet, Pending, Phase, Session, Standing,
    State, named_by, own_pack,
};
use crate::world::Write;

/// Takes from R, which was just read, the outcome of commits whose answer was lost. Every step that
/// reads R does this first.
pub fn learn(model: &Protocol, state: &mut State, s: Session) {
    if state.root.sessions[s].covered > state.processes[s].covered {
        model.coverage.note(Event::LostCommitRecognised);
        absorb_commit(model, state, s);
    }
}

/// Processes a commit that is known to be in R: its operations are acknowledged, and packs that
/// only they needed are no longer held.
fn absorb_commit(model: &Protocol, state: &mut State, s: Session) {
    let covered = state.root.sessions[s].covered;
    let process = &mut state.processes[s];
    if let Some(pending) = process.pending.take() {
        process.uncommitted = process.uncommitted.without(pending.add);
    }
    process.covered = covered;
    process.acknowledged = process.acknowledged.max(covered);
    let rest = model.needed_by(state, s, covered + 1, state.processes[s].accepted);
    let (held, uncommitted) = (state.processes[s].held, state.processes[s].uncommitted);
    state.processes[s].held = state.store.holding(held, rest);
    state.processes[s].uncommitted = state.store.holding(uncommitted, rest);
}

/// Rule 4: reads the index of the present R.
pub fn refresh_index(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    learn(model, &mut next, s);
    learned::read_index(model, &mut next, s);
    (model.holds(state, s) && next != *state).then_some(next)
}

/// Sends a new own pack.
fn put_pack(
    model: &Protocol,
    state: &mut State,
    s: Session,
    objects: Objects,
    late: bool,
) -> Option<Pack> {
    let of_contents = model.lacks(Mutant::NamesOfContents);
    let alike = state.store.contents.iter().position(|c| *c == objects);
    let process = &mut state.processes[s];
    let pack = match alike.filter(|_| of_contents) {
        Some(pack) => pack,
        None if usize::from(process.next_pack) == OWN_PACKS => return None,
        None => {
            process.next_pack += 1;
            own_pack(s, process.next_pack - 1)
        }
    };
    process.held = process.held.and(PackSet::of(pack));
    state.store.contents[pack] = objects;
    if late {
        state.faults.packs = state.faults.packs.checked_sub(1)?;
        process.unresolved = process.unresolved.and(PackSet::of(pack));
        state.store.flying = state.store.flying.and(PackSet::of(pack));
    } else {
        process.uncommitted = process.uncommitted.and(PackSet::of(pack));
        state.store.stored = state.store.stored.and(PackSet::of(pack));
    }
    Some(pack)
}

/// Accepts one operation. References are resolved in the session's copy of the index and in its own
/// acknowledged packs.
pub fn accept(
    model: &Protocol,
    state: &State,
    s: Session,
    write: Write,
    late: bool,
) -> Option<State> {
    let mut next = *state;
    let process = &mut next.processes[s];
    // Rule 11: new data is not matched with a damaged place.
    let sources = match model.lacks(Mutant::QuarantinedChunkMatched) {
        true => learned::sources(model, state, s),
        false => learned::sources(model, state, s).without(process.quarantine),
    };
    let find = |object| state.store.holding(sources, object).first();
    let mut reuse = |found: Option<Pack>| {
        let pack = found?;
        if state.root.all_condemned().has(pack) {
            model.coverage.note(Event::ReusedCondemned);
        }
        process.held = process.held.and(PackSet::of(pack));
        Some(())
    };
    let (content, upload) = match write {
        Write::Reuse(k) => {
            reuse(find(Objects::segment(k)))?;
            if !model.lacks(Mutant::ReusedSegmentAsProof) {
                let chunk = match model.lacks(Mutant::SegmentMatchedFirst) {
                    true => state
                        .store
                        .holding(process.index, Objects::chunk(k))
                        .first(),
                    false => find(Objects::chunk(k)),
                };
                reuse(chunk)?;
            }
            (k, Objects::default())
        }
        Write::NewSegment(k) => {
            reuse(find(Objects::chunk(k)))?;
            (k, Objects::segment(k))
        }
        Write::Fresh(k) => (k, Objects::content(k)),
        Write::FreshWith(k, other) => (k, Objects::content(k).and(Objects::content(other))),
        Write::Split(k) => (k, Objects::segment(k)),
        Write::SplitParentFirst(k) => (k, Objects::chunk(k)),
    };
    process.operations[usize::from(process.accepted)] = content;
    if !state.store.rotten.is_empty() && state.store.rotten.within(process.quarantine) {
        process.healing |= 1 << process.accepted;
        model.coverage.note(Event::AcceptedHealing);
    }
    process.accepted += 1;
    match write {
        Write::Split(k) => {
            put_pack(model, &mut next, s, Objects::chunk(k), false)?;
        }
        Write::SplitParentFirst(k) if late => {
            put_pack(model, &mut next, s, Objects::segment(k), false)?;
        }
        Write::SplitParentFirst(_) => return None,
        _ => {}
    }
    if !upload.is_empty() {
        put_pack(model, &mut next, s, upload, late)?;
    } else if late {
        return None;
    }
    Some(next)
}

/// A slow pack arrives, even if its sender is gone.
pub fn pack_land(model: &Protocol, state: &State, p: Pack) -> Option<State> {
    let mut next = *state;
    next.store.flying = next.store.flying.without(PackSet::of(p));
    next.store.stored = next.store.stored.and(PackSet::of(p));
    model.coverage.note(Event::LatePack);
    Some(next)
}

/// The answer to a slow PUT arrives, possibly long after the pack did.
pub fn pack_answer(state: &State, p: Pack) -> Option<State> {
    let (s, _) = named_by(p)?;
    if state.store.flying.has(p) {
        return None;
    }
    let mut next = *state;
    let process = &mut next.processes[s];
    process.unresolved = process.unresolved.without(PackSet::of(p));
    process.uncommitted = process.uncommitted.and(PackSet::of(p));
    Some(next)
}

/// The writer gives up on a PUT that gets no answer: the contents go into a pack of another name.
/// The first pack may arrive at any time, and is never named.
pub fn pack_give_up(model: &Protocol, state: &State, p: Pack) -> Option<State> {
    let (s, _) = named_by(p)?;
    if !model.holds(state, s) {
        return None;
    }
    let mut next = *state;
    let process = &mut next.processes[s];
    process.unresolved = process.unresolved.without(PackSet::of(p));
    if model.lacks(Mutant::FailedPackNamed) {
        process.uncommitted = process.uncommitted.and(PackSet::of(p));
        return Some(next);
    }
    process.held = process.held.without(PackSet::of(p));
    let contents = state.store.contents[p];
    put_pack(model, &mut next, s, contents, false)?;
    model.coverage.note(Event::StoredAgain);
    Some(next)
}

/// Rule 4: references whose pack is no longer live are looked up again, or copied into an own pack
/// with all objects that they refer to.
pub fn replace_condemned(model: &Protocol, state: &State, s: Session) -> Option<State> {
    if !model.holds(state, s) {
        return None;
    }
    let mut next = *state;
    learn(model, &mut next, s);
    let process = next.processes[s];
    let good = model.good(&next, s);
    let needs = model.needed_by(&next, s, process.covered + 1, process.accepted);
    let mut missing = needs.without(standing(model, &next, process.held, good));
    if missing.is_empty() {
        return None;
    }
    let live = match model.lacks(Mutant::QuarantinedPlaceTaken) {
        true => index::seen_live(model, &next.root, &next.store),
        false => index::seen_live(model, &next.root, &next.store).without(next.root.quarantine),
    };
    for object in missing.each() {
        if let Some(p) = next.store.holding(live, object).first() {
            next.processes[s].held = next.processes[s].held.and(PackSet::of(p));
            missing = missing.without(object);
            model.coverage.note(Event::FoundElsewhere);
        }
    }
    if !missing.is_empty() {
        let readable = next.store.whole().and(process.unresolved);
        if !missing
            .without(next.store.objects(process.held.common(readable)))
            .is_empty()
        {
            return None;
        }
        put_pack(model, &mut next, s, missing, false)?;
        model.coverage.note(Event::CopiedCondemned);
    }
    Some(next)
}

/// Rule 4: whether every reference of `s` that is not yet in R names a live or own pack. References
/// are in memory, and in every journal that was sent.
fn references_stand(model: &Protocol, state: &State, s: Session) -> bool {
    let process = &state.processes[s];
    let good = model.good(state, s);
    let first = process.covered + 1;
    let in_memory = model.needed_by(state, s, first, process.accepted);
    if !in_memory
        .without(standing(model, state, process.held, good))
        .is_empty()
    {
        return false;
    }
    if model.lacks(Mutant::BaseBeforeReplacement) {
        return true;
    }
    let least = if model.lacks(Mutant::UnresolvedJournalIgnored) {
        JournalState::Landed
    } else if model.lacks(Mutant::KeptJournalIgnored) {
        JournalState::Flying
    } else {
        JournalState::Kept
    };
    state.store.journals[s]
        .iter()
        .filter(|j| j.state >= least)
        .all(|j| {
            (first.max(j.first)..=j.last).all(|op| {
                let landed = journal::named_for(model, state, s, op, JournalState::Landed);
                let stands = standing(model, state, j.named.and(landed), good);
                let needs = model.needed_by(state, s, op, op);
                needs.without(stands).is_empty()
            })
        })
}

/// Rules 4, 11: returns the objects of `places` that stand when only the packs in `good` stay. An
/// object stands if it is in a good place, unless that place is damaged and a whole one goes.
fn standing(model: &Protocol, state: &State, places: PackSet, good: PackSet) -> Objects {
    let damaged = match model.lacks(Mutant::DamagedPlaceStands) {
        true => PackSet::EMPTY,
        false => state.root.quarantine,
    };
    let whole = state.store.objects(places.common(good).without(damaged));
    let going = state.store.objects(places.without(good).without(damaged));
    let poor = state.store.objects(places.common(good).common(damaged));
    whole.and(poor.without(going))
}

/// Rule 4: publishes the first base, or a higher one after reading R. The base binds at once: from
/// here on the index is at least as new as the base.
pub fn base_send(model: &Protocol, state: &State, s: Session, late: bool) -> Option<State> {
    let mut next = *state;
    let first = state.store.published[s] == NONE && state.store.flying_bases[s] == 0;
    let base = if first {
        if model.lacks(Mutant::FirstBaseOfLaterRoot) {
            state.root.epoch
        } else {
            state.processes[s].bound
        }
    } else {
        raise_base(model, &mut next, s, late)?
    };
    if late {
        next.faults.heartbeats = next.faults.heartbeats.checked_sub(1)?;
        next.store.flying_bases[s] |= 1 << base;
    } else {
        next.store.published[s] = base;
        descriptions::write(model, &mut next, s);
    }
    Some(next)
}

fn raise_base(model: &Protocol, next: &mut State, s: Session, late: bool) -> Option<u8> {
    let base = next.root.epoch;
    if base <= next.processes[s].bound || next.store.flying_bases[s] & 1 << base != 0 {
        return None;
    }
    if !model.lacks(Mutant::BaseWithoutRereading) {
        let mine = match next.processes[s].phase {
            Phase::Registered => next.root.sessions[s].standing == Standing::Live,
            _ => model.holds(next, s),
        };
        if !mine {
            return None;
        }
        learn(model, next, s);
    }
    if !references_stand(model, next, s) {
        model.coverage.note(Event::BaseHeldBack);
        return None;
    }
    let good = model.good(next, s);
    if next.processes[s].accepted > next.processes[s].covered {
        model.coverage.note(Event::BaseRaisedHolding);
    }
    if !(late && model.lacks(Mutant::BaseBindsWhenAnswered)) {
        learned::read_index(model, next, s);
        let process = &mut next.processes[s];
        process.bound = base;
        // A place that is no longer good must not stay next to the good one: a later journal could
        // name it.
        if !model.lacks(Mutant::StalePlaceKept) {
            process.held = process.held.common(good);
        }
    }
    Some(base)
}

/// A slow heartbeat arrives, maybe after a newer one.
pub fn base_land(model: &Protocol, state: &State, s: Session, base: u8) -> Option<State> {
    let mut next = *state;
    next.store.flying_bases[s] &= !(1 << base);
    next.store.published[s] = base;
    descriptions::write(model, &mut next, s);
    model.coverage.note(Event::LateHeartbeat);
    Some(next)
}

/// Only in the mutant that binds a base when its PUT is answered.
pub fn base_answer(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let base = state.store.published[s];
    if base == NONE || base <= state.processes[s].bound {
        return None;
    }
    let mut next = *state;
    next.processes[s].bound = base;
    learned::read_index(model, &mut next, s);
    Some(next)
}

/// Rule 3: leaves out of `add` every pack with an object, reachable or not, that refers to an
/// object that is neither live nor added with it.
pub fn without_failing(model: &Protocol, state: &State, mut add: PackSet) -> PackSet {
    loop {
        let live = index::seen_live(model, &state.root, &state.store);
        let there = state.store.objects(live.and(add));
        let failing = add.iter().find(|&p| {
            !state.store.contents[p]
                .references()
                .without(there)
                .is_empty()
        });
        let Some(p) = failing else { return add };
        model.coverage.note(Event::FailingPackLeftOut);
        add = add.without(PackSet::of(p));
    }
}

/// Rule 5: commits the operations up to `last`. Own packs that hold any object of them become live,
/// even if the tree no longer reaches it.
pub fn commit_cas(
    model: &Protocol,
    state: &State,
    s: Session,
    last: u8,
    late: bool,
    absorb: Absorb,
) -> Option<State> {
    let blind = model.lacks(Mutant::CommitWithoutRereading);
    if state.root.turn != NONE && model.lacks(Mutant::TurnObeyedForEver) {
        return None;
    }
    if state.root.turn != NONE {
        model.coverage.note(Event::TurnIgnored);
    }
    if !blind && !model.may_replace(state, s) {
        return None;
    }
    let mut next = *state;
    learn(model, &mut next, s);
    let process = next.processes[s];
    if process.pending.is_some() || last <= process.covered || last > process.accepted {
        return None;
    }
    let mut mine = process.uncommitted;
    if model.lacks(Mutant::UnacknowledgedNamed) {
        mine = mine.and(process.unresolved);
    }
    // A commit whose answer was lost may have left out a pack and set a floor above it, and later
    // operations may use that pack nevertheless.
    mine = mine.common(model.own(&next, s));
    let needs = model.needed_by(&next, s, process.covered + 1, last);
    let unanswered = process.unresolved.without(mine);
    let places = process.held.without(unanswered);
    if !needs.without(next.store.objects(places)).is_empty() {
        return None;
    }
    let mut add = next.store.holding(mine, needs);
    if !blind && !model.lacks(Mutant::CommitTrustsMatches) {
        if !model.lacks(Mutant::CommitChecksReachableOnly) {
            add = without_failing(model, &next, add);
        }
        let live = index::seen_live(model, &next.root, &next.store).and(add);
        let reached = tree_after(model, &next, s, last)?;
        if !reached.without(next.store.objects(live)).is_empty() {
            return None;
        }
        // It is not enough that another live pack holds the same object, since that pack may be
        // damaged.
        let leaning = standing(model, &next, places, live);
        let named = needs.common(reached);
        if !model.lacks(Mutant::LeansOnAnyCopy) && !named.without(leaning).is_empty() {
            return None;
        }
    }
    if !index::has_room(model, &next, add, absorb) {
        return None;
    }
    let floor = floor_after(model, &next, s, last, add);
    let pending = Pending {
        applied: false,
        last,
        add,
        floor,
        absorb,
        base: match model.lacks(Mutant::UnchangedEtagTrusted) {
            true => next.root.etag(),
            false => 0,
        },
        given_up: false,
    };
    if late {
        next.faults.commits = next.faults.commits.checked_sub(1)?;
        next.processes[s].pending = Some(pending);
    } else {
        next.fenced_acknowledged |= !model.holds(&next, s);
        apply_commit(model, &mut next, s, pending);
        next.processes[s].pending = Some(pending);
        absorb_commit(model, &mut next, s);
    }
    Some(next)
}

/// Returns the objects that the volume's tree reaches once the operations of `s` up to `last` are
/// in it.
fn tree_after(model: &Protocol, state: &State, s: Session, last: u8) -> Option<Objects> {
    let volume = model.scenario.volume(s)?;
    let mut log = state.root.volumes[volume].log;
    for n in state.root.sessions[s].covered + 1..=last {
        log.push(s, n);
    }
    Some(model.tree(state, volume, log))
}

/// Rule 2: returns the sequence number of the lowest own pack that must stay own after a commit up
/// to `last`. Such a pack has an unresolved PUT, or later operations need it and this commit does
/// not make it live.
fn floor_after(model: &Protocol, state: &State, s: Session, last: u8, add: PackSet) -> u8 {
    let process = &state.processes[s];
    let later = model.needed_by(state, s, last + 1, process.accepted);
    let mut keep = PackSet::EMPTY;
    if !model.lacks(Mutant::FloorPastUnresolved) {
        keep = keep.and(process.unresolved);
    }
    if !model.lacks(Mutant::FloorPastUncommitted) {
        keep = keep.and(state.store.holding(process.uncommitted.without(add), later));
    }
    keep.without(add)
        .first()
        .and_then(named_by)
        .map_or(process.next_pack, |(_, sequence)| sequence)
}

/// The commit replaces R.
fn apply_commit(model: &Protocol, next: &mut State, s: Session, pending: Pending) {
    let Some(volume) = model.scenario.volume(s) else {
        return;
    };
    let entry = &mut next.root.sessions[s];
    for n in entry.covered + 1..=pending.last {
        next.root.volumes[volume].log.push(s, n);
    }
    entry.covered = pending.last;
    // A floor never goes down: the packs that it has passed may be condemned.
    entry.floor = entry.floor.max(pending.floor);
    index::enter(model, next, pending.add, pending.absorb);
    next.root.volumes[volume].holder = s as u8;
    model.root_replaced(next, Some(s));
    model.coverage.note(Event::Committed);
}

/// A slow commit arrives while R is still the one that it was prepared from. Its writer does not
/// know this.
pub fn commit_land(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let pending = state.processes[s].pending.filter(|p| !p.applied)?;
    if pending.given_up && pending.base != state.root.etag() {
        return None;
    }
    let mut next = *state;
    next.failed_made |= pending.given_up;
    apply_commit(model, &mut next, s, pending);
    next.processes[s].pending = Some(Pending {
        applied: true,
        ..pending
    });
    Some(next)
}
