//! Collection (rule 8): mark, condemn, wait, delete.
//!
//! A collector's own base is not modelled. It is assumed to rise at once, which is the most
//! dangerous case: the check of the rewritten packs alone must then keep them right.

use crate::index::{self, Absorb};
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{
    NONE, OWN_PACKS, Objects, Pack, PackSet, Phase, RecoveryBase, SESSIONS, Session, Standing,
    State, own_pack,
};
use crate::world::Role;

/// Returns the packs at or above the floors of all sessions in R, which are never garbage.
fn protected(model: &Protocol, state: &State) -> PackSet {
    if model.lacks(Mutant::OwnPacksCollected) {
        return PackSet::EMPTY;
    }
    (0..SESSIONS).fold(PackSet::EMPTY, |all, s| all.and(state.root.own(s)))
}

/// Returns the objects for which a pack must stay. A pack outside the live table has none, because
/// no index leads to it. A pack in quarantine stays only for objects that no other live pack holds.
fn kept(model: &Protocol, state: &State, p: Pack, reachable: Objects) -> Objects {
    let live = state.root.live;
    if !live.has(p) {
        return Objects::default();
    }
    let others = if model.lacks(Mutant::FirstCopyKept) {
        live.common(PackSet::before(p))
    } else if state.root.quarantine.has(p) {
        live.without(state.root.quarantine)
    } else {
        PackSet::EMPTY
    };
    state.store.contents[p]
        .common(reachable)
        .without(state.store.objects(others))
}

/// Rule 8a: candidates = listed − reachable − protected. With `rewrite`, mixed metadata packs are
/// candidates too, and their reachable objects are rewritten. Without it such a pack stays, and
/// closing keeps the objects that it refers to.
pub fn mark(model: &Protocol, state: &State, s: Session, rewrite: bool) -> Option<State> {
    if state.root.sessions[s].standing != Standing::Live
        || state.root.epoch == model.scenario.last_epoch
    {
        return None;
    }
    let mut next = *state;
    let reachable = model.reachable(state);
    let process = &mut next.processes[s];
    let can_rewrite = usize::from(process.next_pack) < OWN_PACKS;
    let mut moved = Objects::default();
    for p in state
        .store
        .stored
        .without(protected(model, state))
        .without(state.root.all_condemned())
        .iter()
    {
        let objects = state.store.contents[p];
        let kept = kept(model, state, p, reachable);
        let mixed = !kept.is_empty() && !objects.segments().without(reachable).is_empty();
        let can_rewrite = can_rewrite && state.store.whole().has(p);
        if kept.is_empty() || (mixed && rewrite && can_rewrite) {
            process.candidates = process.candidates.and(PackSet::of(p));
            moved = moved.and(kept);
        }
    }
    if process.candidates.is_empty() || rewrite == moved.is_empty() {
        return None;
    }
    if rewrite {
        let pack = own_pack(s, process.next_pack);
        process.next_pack += 1;
        process.uncommitted = PackSet::of(pack);
        next.store.contents[pack] = moved;
        next.store.stored = next.store.stored.and(PackSet::of(pack));
    }
    process.phase = Phase::Marked;
    if model.lacks(Mutant::SweepBeforeSwap) {
        next.store.doomed = next.store.doomed.and(process.candidates);
    }
    Some(next)
}

/// Version 2: a collector that has lost several races sets a turn. The others wait for a while
/// before they replace R. They need not: the collector checks its candidates as before.
pub fn turn_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let is_live = state.root.sessions[s].standing == Standing::Live;
    if state.processes[s].phase != Phase::Marked || state.root.turn != NONE || !is_live {
        return None;
    }
    let mut next = *state;
    next.root.turn = s as u8;
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::TurnSet);
    Some(next)
}

/// Rule 8b: the candidates that are still garbage by the root being replaced become condemned in a
/// new epoch.
pub fn condemn_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    if state.root.epoch == model.scenario.last_epoch {
        return None;
    }
    if state.root.sessions[s].standing != Standing::Live
        && !model.lacks(Mutant::CasWithoutLiveSession)
    {
        model.coverage.note(Event::DeadSessionRefused);
        return None;
    }
    let (candidates, rewritten) = settle(model, state, s);
    let mut next = *state;
    let process = &mut next.processes[s];
    process.phase = Phase::Registered;
    process.candidates = PackSet::EMPTY;
    process.uncommitted = PackSet::EMPTY;
    if candidates.is_empty() {
        return Some(next);
    }
    if usize::from(next.root.turn) == s {
        next.root.turn = NONE;
    }
    next.root.epoch += 1;
    next.root.condemned[usize::from(next.root.epoch)] = candidates;
    if !index::has_room(model, state, rewritten, Absorb::No) {
        return None;
    }
    next.root.live = next.root.live.without(candidates);
    index::enter(model, &mut next, rewritten, Absorb::No);
    next.root.quarantine = state.root.quarantine.without(candidates);
    let reachable = model.reachable(state);
    let needed = |p: Pack| !state.store.contents[p].common(reachable).is_empty();
    if candidates.common(state.root.quarantine).iter().any(needed) {
        model.coverage.note(Event::DamagedCondemned);
    }
    if !rewritten.is_empty() {
        model.coverage.note(Event::Rewritten);
    }
    model.coverage.note(Event::Condemned);
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

/// Reduces the candidates to those that are garbage in this R too, and closes them again. Returns
/// them and the rewritten packs that become live.
fn settle(model: &Protocol, state: &State, s: Session) -> (PackSet, PackSet) {
    let process = &state.processes[s];
    let rewritten = process.uncommitted;
    let marked = process.candidates.without(state.root.all_condemned());
    let has_turn = usize::from(state.root.turn) == s;
    if model.lacks(Mutant::MarkFromOlderRoot) || (has_turn && model.lacks(Mutant::TurnTakenForLock))
    {
        return (marked, rewritten);
    }
    let reachable = model.reachable(state);
    let kept = |p: Pack| kept(model, state, p, reachable);
    let still = |p: &Pack| kept(*p).without(state.store.objects(rewritten)).is_empty();
    let candidates = marked
        .without(protected(model, state))
        .iter()
        .filter(still)
        .fold(PackSet::EMPTY, |all, p| all.and(PackSet::of(p)));
    if candidates != marked {
        model.coverage.note(Event::Shrunk);
    }
    let replaced = |from: PackSet| {
        from.iter()
            .filter(|&p| !kept(p).is_empty())
            .fold(PackSet::EMPTY, |all, p| all.and(PackSet::of(p)))
    };
    close(model, state, candidates, rewritten, replaced)
}

/// Rule 8b: packs that hold an object which an object in a remaining or new live pack refers to
/// leave the candidates. A rewritten pack becomes live if it still replaces a candidate and all
/// objects that it refers to are live.
fn close(
    model: &Protocol,
    state: &State,
    mut candidates: PackSet,
    mut rewritten: PackSet,
    replaced: impl Fn(PackSet) -> PackSet,
) -> (PackSet, PackSet) {
    let unchecked = model.lacks(Mutant::RewrittenPacksUnchecked);
    loop {
        let used = if replaced(candidates).is_empty() {
            PackSet::EMPTY
        } else {
            rewritten
        };
        let checked = if unchecked { PackSet::EMPTY } else { used };
        let stay = state.root.live.without(candidates).and(checked);
        let closing = if model.lacks(Mutant::NotClosedAgain) {
            checked
        } else {
            stay
        };
        let mut referring = state.store.objects(closing);
        if model.lacks(Mutant::MixedPackLeftOpen) {
            referring = referring.common(model.reachable(state));
        }
        let lacking = referring.references().without(state.store.objects(stay));
        let leaving = if model.lacks(Mutant::NotClosedAgain) {
            PackSet::EMPTY
        } else {
            state
                .store
                .holding(candidates.common(state.root.live), lacking)
        };
        if !leaving.is_empty() {
            candidates = candidates.without(leaving);
            model.coverage.note(Event::ClosedAgain);
        } else if !lacking.is_empty() && !rewritten.is_empty() {
            candidates = candidates.without(replaced(candidates));
            rewritten = PackSet::EMPTY;
            model.coverage.note(Event::RewriteRefused);
        } else {
            return (candidates, used);
        }
    }
}

/// Rule 8c: marks an epoch for deletion if every session in R, live or ending, has published a base
/// that is at least as high. From here on DELETEs may arrive at any time, since a base never goes
/// back in effect.
pub fn decide(model: &Protocol, state: &State, epoch: u8) -> Option<State> {
    let condemned = state.root.condemned[usize::from(epoch)];
    if condemned.within(state.store.doomed) {
        return None;
    }
    let holds_back = |s: &Session| {
        let writer = matches!(model.scenario.roles[*s], Role::Writer { .. });
        let ignored = model.lacks(Mutant::EndingSessionsIgnored)
            && state.root.sessions[*s].standing == Standing::Ending;
        let base = state.store.published[*s];
        let absent_ignored = model.lacks(Mutant::AbsentHeartbeatIgnored) && base == NONE;
        writer
            && state.root.stands(*s)
            && !ignored
            && !absent_ignored
            && (base == NONE || base < epoch)
    };
    if !model.lacks(Mutant::DeleteWithoutWaiting) && (0..SESSIONS).any(|s| holds_back(&s)) {
        model.coverage.note(Event::DeletionHeldBack);
        return None;
    }
    let stands_below = |recovery_base: &RecoveryBase| recovery_base.base < epoch;
    let recovery_bases = state.root.recovery_bases.iter().flatten();
    if !model.lacks(Mutant::RecoveryBaseWithoutCommit)
        && recovery_bases.into_iter().any(stands_below)
    {
        model.coverage.note(Event::RecoveryBaseHeldBack);
        return None;
    }
    let mut next = *state;
    next.store.doomed = next.store.doomed.and(condemned);
    Some(next)
}

/// Rule 8c: packs that a lock still protects move to a newer epoch that every base has reached as
/// well, once the other packs of their own epoch are gone.
pub fn move_locked_cas(model: &Protocol, state: &State, from: u8, to: u8) -> Option<State> {
    let condemned = |epoch: u8| state.root.condemned[usize::from(epoch)];
    let may_be_deleted = |epoch| condemned(epoch).within(state.store.doomed);
    let there = condemned(from).common(state.store.stored);
    if from == to || there.is_empty() || condemned(to).is_empty() || !may_be_deleted(to) {
        return None;
    }
    let early = to < from || !may_be_deleted(from) || !there.within(state.store.locked);
    if early && !model.lacks(Mutant::LockedPackMovedEarly) {
        return None;
    }
    let mut next = *state;
    next.root.condemned[usize::from(from)] = PackSet::EMPTY;
    next.root.condemned[usize::from(to)] = condemned(to).and(there);
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::LockedMoved);
    Some(next)
}

/// Rule 8: an epoch is forgotten when all its packs are gone.
pub fn forget_epoch_cas(model: &Protocol, state: &State, epoch: u8, old: bool) -> Option<State> {
    let condemned = state.root.condemned[usize::from(epoch)];
    let is_gone = match model.lacks(Mutant::LockedPackForgotten) {
        true => condemned.within(state.store.doomed),
        false => condemned.common(state.store.stored).is_empty(),
    };
    if condemned.is_empty() || !is_gone {
        return None;
    }
    let mut next = *state;
    next.root.condemned[usize::from(epoch)] = PackSet::EMPTY;
    index::forget(model, &mut next, condemned, old);
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::EpochForgotten);
    Some(next)
}

/// A lock ends. Collectors extend the locks of live packs; the end of such a lock makes no
/// difference before the pack is condemned.
pub fn lock_end(state: &State, p: Pack) -> Option<State> {
    if !state.root.all_condemned().has(p) {
        return None;
    }
    let mut next = *state;
    next.store.locked = next.store.locked.without(PackSet::of(p));
    Some(next)
}

/// A DELETE arrives. The bucket refuses it while a lock protects the pack.
pub fn delete_land(model: &Protocol, state: &State, p: Pack) -> Option<State> {
    if state.store.locked.has(p) {
        model.coverage.note(Event::LockHeld);
        return None;
    }
    let mut next = *state;
    next.store.stored = next.store.stored.without(PackSet::of(p));
    model.coverage.note(Event::Deleted);
    Some(next)
}
