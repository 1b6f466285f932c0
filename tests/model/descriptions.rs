//! Who a session is (version 2, rule 2): host, process and mount point stand in the object of the
//! session, `sessions/ID`, and no longer in R.
//!
//! The object is written after registration, whole with every heartbeat. A collector deletes the
//! objects of sessions that are not in R, so an object that was written before could be deleted.
//! While the object is absent, the session counts as alive on another machine.

use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{NONE, Phase, Session, Standing, State};

/// What the objects of the sessions say in addition to the bases, one bit for each session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Descriptions {
    /// The object is there, and says who the session is.
    pub there: u8,
    /// A collector has decided to delete the object.
    pub doomed: u8,
    /// Only for the mutant `SweptByOlderRoot`: sessions that were not in R when a collector
    /// read it.
    pub unregistered: u8,
}

/// A process ends without a word.
pub fn crash(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    next.processes[s].dead = true;
    model.coverage.note(Event::Crashed);
    (!state.processes[s].dead && state.root.stands(s)).then_some(next)
}

/// Writes the object, as part of a heartbeat.
pub fn write(model: &Protocol, next: &mut State, s: Session) {
    if model.scenario.judged && !model.lacks(Mutant::DescribedOnce) {
        next.store.descriptions.there |= 1 << s;
    }
}

/// Only in the mutant `DescribedOnce`: writes the object before registration.
pub fn write_early(state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    next.store.descriptions.there |= 1 << s;
    (state.processes[s].phase == Phase::Outside && next != *state).then_some(next)
}

/// Whether the session may register: in the mutant `DescribedOnce` only once it has written its
/// object.
pub fn may_register(model: &Protocol, state: &State, s: Session) -> bool {
    let is_written = state.store.descriptions.there & 1 << s != 0;
    let was_swept = state.store.descriptions.doomed & 1 << s != 0;
    !model.lacks(Mutant::DescribedOnce) || is_written || was_swept
}

/// Whether the process of `s` may end the session `v` without being told to by its user: the object
/// says that the session ran on the machine of `s`, and its process is dead.
pub fn may_end(model: &Protocol, state: &State, s: Session, v: Session) -> bool {
    if !model.scenario.judged {
        return true;
    }
    if state.store.descriptions.there & 1 << v == 0 {
        if model.scenario.machines[s] == model.scenario.machines[v] {
            model.coverage.note(Event::TakenForAlive);
        }
        return model.lacks(Mutant::AbsentTakenForDead);
    }
    let is_here = model.scenario.machines[s] == model.scenario.machines[v];
    is_here && state.processes[v].dead
}

/// Rule 8: a collector lists the objects, then reads R, and decides to delete those of sessions that
/// are not in R.
pub fn sweep(model: &Protocol, state: &State, v: Session) -> Option<State> {
    let bit = 1 << v;
    let descriptions = &state.store.descriptions;
    let is_there = descriptions.there & bit != 0 || state.store.published[v] != NONE;
    let older = model.lacks(Mutant::SweptByOlderRoot) && descriptions.unregistered & bit != 0;
    if !is_there || descriptions.doomed & bit != 0 || (state.root.stands(v) && !older) {
        return None;
    }
    let mut next = *state;
    next.store.descriptions.doomed |= bit;
    Some(next)
}

/// Only in the mutant `SweptByOlderRoot`: a collector reads R before it lists the objects.
pub fn sweep_read(state: &State, v: Session) -> Option<State> {
    let mut next = *state;
    next.store.descriptions.unregistered |= 1 << v;
    let absent = state.root.sessions[v].standing == Standing::Absent;
    (absent && next != *state).then_some(next)
}

/// The DELETE of an object arrives, however late.
pub fn delete_land(model: &Protocol, state: &State, v: Session) -> Option<State> {
    let bit = 1 << v;
    if state.store.descriptions.doomed & bit == 0 {
        return None;
    }
    let mut next = *state;
    next.store.descriptions.doomed &= !bit;
    next.store.descriptions.there &= !bit;
    next.store.published[v] = NONE;
    model.coverage.note(Event::ObjectDeleted);
    Some(next)
}

/// Whether each dead session whose object is there can be recognised as dead on its machine.
pub fn dead_are_known(state: &State) -> bool {
    (0..state.processes.len()).all(|s| {
        let is_there = state.store.published[s] != NONE;
        let waits = state.processes[s].dead && state.root.stands(s) && is_there;
        !waits || state.store.descriptions.there & 1 << s != 0
    })
}
