//! A root that is lost and rebuilt by a repair, where fsync reads fences (version 2, rule 6).
//!
//! In version 1 a session that the rebuilt root does not know learns this from its next fsync. In
//! version 2 that fsync finds no fence. So the rebuilt root must know every session that may
//! acknowledge. It knows those that have an object, and a session acknowledges only after a root
//! that was read after the answer to its object showed it live.

use crate::fences;
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{NONE, SESSIONS, Session, Standing, State};

/// What became of R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Loss {
    /// R was not lost.
    #[default]
    Whole,
    /// R is lost.
    Lost,
    /// A repair has found these sessions by their objects and journals, one bit each.
    Listed(u8),
    /// R was rebuilt.
    Rebuilt,
}

/// Whether R can be read.
pub fn is_there(state: &State) -> bool {
    matches!(state.loss, Loss::Whole | Loss::Rebuilt)
}

/// R is lost.
pub fn lose(state: &State) -> Option<State> {
    let mut next = *state;
    next.loss = Loss::Lost;
    (state.loss == Loss::Whole).then_some(next)
}

/// Rule 6: the session reads R after its object was answered, and finds itself live.
pub fn announce(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let is_written = state.store.published[s] != NONE && state.store.flying_bases[s] == 0;
    if state.processes[s].announced || !is_written {
        return None;
    }
    let is_live = is_there(state) && model.holds(state, s);
    if !is_live && !model.lacks(Mutant::AnnouncedWithoutReading) {
        return None;
    }
    let mut next = *state;
    next.processes[s].announced = true;
    Some(next)
}

/// Whether the session may send journals.
pub fn may_journal(model: &Protocol, state: &State, s: Session) -> bool {
    !model.scenario.rebuilds
        || state.processes[s].announced
        || model.lacks(Mutant::JournaledUnannounced)
}

/// A repair lists the objects and the journals of the sessions.
pub fn list(state: &State) -> Option<State> {
    if state.loss != Loss::Lost {
        return None;
    }
    let is_found =
        |&s: &Session| state.store.published[s] != NONE || crate::journal::there(state, s) != 0;
    let listed = (0..SESSIONS).filter(is_found);
    let mut next = *state;
    next.loss = Loss::Listed(listed.fold(0, |mask, s| mask | 1 << s));
    Some(next)
}

/// A repair rebuilds R from commit records. Every session that it has found is ending, with or
/// without journals. No session holds a volume, and there are no groups.
pub fn rebuild_cas(model: &Protocol, state: &State) -> Option<State> {
    let Loss::Listed(listed) = state.loss else {
        return None;
    };
    let mut next = *state;
    next.loss = Loss::Rebuilt;
    for s in (0..SESSIONS).filter(|&s| state.root.stands(s)) {
        let is_idle = crate::journal::there(state, s) == 0;
        let is_known = listed & 1 << s != 0;
        let stays = is_known && !(is_idle && model.lacks(Mutant::RebuiltWithoutIdle));
        next.root.sessions[s].standing = match stays {
            true => Standing::Ending,
            false => Standing::Removed,
        };
    }
    next.root.index.lose_groups();
    for volume in &mut next.root.volumes {
        volume.holder = NONE;
    }
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::Rebuilt);
    Some(next)
}

/// Whether a session that fsync acknowledges was unknown to the rebuilt root until now.
pub fn note_acknowledged(model: &Protocol, state: &State, s: Session) {
    let is_ending = state.root.sessions[s].standing == Standing::Ending;
    if state.loss == Loss::Rebuilt && is_ending && !fences::stands(state, s) {
        model.coverage.note(Event::AcknowledgedAfterRebuild);
    }
}
