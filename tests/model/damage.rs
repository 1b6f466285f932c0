//! Damage and quarantine (rule 11).

use crate::protocol::{Event, Protocol};
use crate::state::{Pack, PackSet, Session, Standing, State};

/// Damages the bytes of a live pack. No process knows this yet.
pub fn rot(state: &State, p: Pack) -> Option<State> {
    let mut next = *state;
    next.faults.rots = next.faults.rots.checked_sub(1)?;
    next.store.rotten = next.store.rotten.and(PackSet::of(p));
    Some(next)
}

/// Rule 11: a session reads the live packs, and puts the damaged ones in quarantine. This raises no
/// epoch: a process that does not know of the damage yet goes on.
pub fn quarantine_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let found = state.store.rotten.common(state.root.live);
    if state.root.sessions[s].standing != Standing::Live || found.within(state.root.quarantine) {
        return None;
    }
    let mut next = *state;
    next.root.quarantine = next.root.quarantine.and(found);
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::Quarantined);
    Some(next)
}
