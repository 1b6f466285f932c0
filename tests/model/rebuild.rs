//! A root that is lost and rebuilt by a repair, where fsync reads fences (version 2, rule 6).
//!
//! In version 1 a session that the rebuilt root does not know learns this from its next fsync. In
//! version 2 that fsync asks for a fence. So the repair writes the fence of every session that may
//! acknowledge, and lists the journals after that. It finds such a session by its object, and a
//! session acknowledges only after a root that was read after the answer to its object showed it
//! live.

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
    /// A repair has found these sessions by their objects and journals, and these by journals alone,
    /// one bit each.
    Listed(u8, u8),
    /// It has written their fences.
    Fenced(u8),
    /// After that it has found journals of these.
    Relisted(u8),
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
    let objects = (0..SESSIONS).filter(|&s| state.store.published[s] != NONE);
    let journals = with_journals(state);
    let mut next = *state;
    next.loss = Loss::Listed(objects.fold(journals, |mask, s| mask | 1 << s), journals);
    Some(next)
}

fn with_journals(state: &State) -> u8 {
    let found = (0..SESSIONS).filter(|&s| crate::journal::there(state, s) != 0);
    found.fold(0, |mask, s| mask | 1 << s)
}

/// The repair writes the fences of the sessions that it has found.
pub fn fence(model: &Protocol, state: &State) -> Option<State> {
    let Loss::Listed(found, journals) = state.loss else {
        return None;
    };
    let mut next = *state;
    next.loss = Loss::Fenced(journals);
    if !model.lacks(Mutant::RebuiltUnfenced) {
        next.store.fences.written |= found;
    }
    Some(next)
}

/// The repair lists the journals, since no session that it has found acknowledges any more.
pub fn list_again(model: &Protocol, state: &State) -> Option<State> {
    let Loss::Fenced(before) = state.loss else {
        return None;
    };
    let mut next = *state;
    next.loss = Loss::Relisted(match model.lacks(Mutant::RebuiltListedBeforeFence) {
        true => before,
        false => with_journals(state),
    });
    Some(next)
}

/// A repair rebuilds R from commit records. Every session that has journals is ending. No session
/// holds a volume, and there are no groups.
pub fn rebuild_cas(model: &Protocol, state: &State) -> Option<State> {
    let Loss::Relisted(listed) = state.loss else {
        return None;
    };
    let mut next = *state;
    next.loss = Loss::Rebuilt;
    for s in (0..SESSIONS).filter(|&s| state.root.stands(s)) {
        next.root.sessions[s].standing = match listed & 1 << s != 0 {
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

/// Whether fsync acknowledges while there is no R.
pub fn note_acknowledged(model: &Protocol, state: &State) {
    if !is_there(state) {
        model.coverage.note(Event::AcknowledgedWhileLost);
    }
}
