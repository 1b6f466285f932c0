//! Fences (version 2, rules 6 and 7): an object for each session that R has ended, which fsync
//! reads instead of R.

use crate::conversion;
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Phase, Session, Standing, State};

/// The objects `fence/SESSION`, one bit for each session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fences {
    /// In the store.
    pub written: u8,
    /// The PUT is under way and may still arrive.
    pub flying: u8,
}

/// Whether fsync of `s` goes by the fence and not by R. In a root of version 1 it goes by R, since a
/// new holder of version 1 writes no fences.
pub fn are_used(model: &Protocol, state: &State, s: Session) -> bool {
    let knows = state.processes[s].knows_version_2 || model.lacks(Mutant::FenceReadInVersion1);
    model.scenario.fences && knows
}

/// Whether fsync reads the fence once its journal is answered.
pub fn is_read(model: &Protocol, state: &State, s: Session) -> bool {
    let leaves_out = [Mutant::GetBeforeAnswer, Mutant::FsyncWithoutRereading];
    are_used(model, state, s) && !leaves_out.iter().any(|&m| model.lacks(m))
}

/// Whether the fence of `v` is in the store.
pub fn stands(state: &State, v: Session) -> bool {
    state.store.fences.written & 1 << v != 0
}

/// Rule 7: writes the fence of a session that R has ended. Every new holder writes the fences of
/// all ending sessions of the volume, since it does not know how far an earlier one came. A PUT
/// without an answer is sent again.
pub fn put(model: &Protocol, state: &State, s: Session, v: Session, late: bool) -> Option<State> {
    let volume = model.scenario.volume(s)?;
    let bit = 1 << v;
    if state.processes[s].fenced & bit != 0 {
        return None;
    }
    let is_ended = state.root.version_2
        && !conversion::is_old(model, s)
        && model.holds(state, s)
        && model.ending(state, volume).contains(&v);
    let early = model.lacks(Mutant::FenceBeforeReplacement)
        && usize::from(state.root.volumes[volume].holder) == v;
    if !is_ended && !early {
        return None;
    }
    let mut next = *state;
    if late {
        next.faults.fences = next.faults.fences.checked_sub(1)?;
        next.store.fences.flying |= bit;
    } else {
        next.store.fences.written |= bit;
    }
    if !late || model.lacks(Mutant::UnansweredFenceTrusted) {
        next.processes[s].fenced |= bit;
    }
    if is_ended
        && usize::from(state.root.sessions[s].rank) > usize::from(state.root.sessions[v].rank) + 1
    {
        model.coverage.note(Event::FencedAgain);
    }
    Some(next)
}

/// A slow fence arrives, even if its sender is gone.
pub fn land(model: &Protocol, state: &State, v: Session) -> Option<State> {
    let bit = 1 << v;
    if state.store.fences.flying & bit == 0 {
        return None;
    }
    let mut next = *state;
    next.store.fences.flying &= !bit;
    next.store.fences.written |= bit;
    model.coverage.note(Event::LateFence);
    Some(next)
}

/// Rule 7: whether the new holder knows that the fences of all these sessions stand.
pub fn complete(model: &Protocol, state: &State, s: Session, ended_sessions: &[Session]) -> bool {
    let is_old = conversion::is_old(model, s);
    let are_written = model.scenario.fences && state.root.version_2 && !is_old;
    if !are_written || model.lacks(Mutant::ListBeforeFence) {
        return true;
    }
    let needed = match model.lacks(Mutant::EarlierFenceAssumed) {
        true => ended_sessions.last().into_iter().collect::<Vec<_>>(),
        false => ended_sessions.iter().collect(),
    };
    let fenced = state.processes[s].fenced;
    needed.into_iter().all(|&v| fenced & 1 << v != 0)
}

/// Rule 6: the writer reads its fence. From here on it does nothing more.
pub fn refuse(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    next.processes[s].phase = Phase::Outside;
    model.coverage.note(Event::FsyncRefused);
    Some(next)
}

/// The writer acknowledges an operation, since it has found no fence. Returns whether the operation
/// can no longer be replayed.
pub fn acknowledged(model: &Protocol, state: &State, s: Session) -> bool {
    if state.root.sessions[s].standing == Standing::Ending {
        model.coverage.note(Event::AcknowledgedUnfenced);
    }
    state.root.sessions[s].standing == Standing::Removed
}

/// Deletes a fence. Only its own session can say that it will not read the fence again: it has read
/// it, or its lock shows that its process is dead. That the session is no longer in R is not enough.
pub fn delete(model: &Protocol, state: &State, v: Session) -> Option<State> {
    let has_stopped = state.processes[v].phase == Phase::Outside;
    let allowed = has_stopped || model.lacks(Mutant::FenceDeletedWithSession);
    if !stands(state, v) || state.root.stands(v) || !allowed {
        return None;
    }
    let mut next = *state;
    next.store.fences.written &= !(1 << v);
    model.coverage.note(Event::FenceDeleted);
    Some(next)
}
