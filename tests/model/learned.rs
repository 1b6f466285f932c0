//! A writer that knows the footers of a few packs instead of the whole index (version 2, rule 13).
//!
//! A look-up in the index of the newest root known finds one object in a pack. The footer of that
//! pack is then read, and answers for all its objects. Its bytes may come from any cache, since a
//! pack never changes; that the pack is live must come from a look-up of this session.

use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Pack, PackSet, Root, Session, State};

/// Returns the packs that new data is matched with.
pub fn sources(model: &Protocol, state: &State, s: Session) -> PackSet {
    let process = &state.processes[s];
    let known = match (
        model.scenario.sampled,
        model.lacks(Mutant::MatchedOutsideLock),
    ) {
        (false, _) => process.index,
        (true, false) => process.learned,
        (true, true) => process.found,
    };
    known.and(process.uncommitted)
}

/// Rule 13: a look-up finds a pack in the index of the newest root known, and its footer is read.
pub fn learn_footer(model: &Protocol, state: &State, s: Session, p: Pack) -> Option<State> {
    let process = &state.processes[s];
    if process.learned.has(p) || !process.index.has(p) {
        return None;
    }
    let mut next = *state;
    next.processes[s].learned = process.learned.and(PackSet::of(p));
    model.coverage.note(Event::FooterLearned);
    Some(next)
}

/// Rules 4, 13: the session reads the index of R. Packs on one of R's lists are no longer matched.
/// A pack that this session has learned is on a list of some root that the session reads before it
/// is dropped from all: it is forgotten only after the session's base has passed its epoch, and to
/// raise its base the session reads R.
pub fn read_index(model: &Protocol, state: &mut State, s: Session) {
    let root = &state.root;
    let process = &mut state.processes[s];
    let left = process.learned.without(on_lists(root));
    if left != process.learned && !model.lacks(Mutant::LearnedKept) {
        process.learned = left;
        model.coverage.note(Event::FooterDropped);
    }
    process.read_index(root);
}

/// Rule 13: a session registers. In the mutant `CachedFooterTrusted` it takes over the footers that
/// its machine has from before, unless R lists their packs.
pub fn begin(model: &Protocol, next: &mut State, s: Session) {
    if model.lacks(Mutant::CachedFooterTrusted) {
        next.processes[s].learned = PackSet(model.scenario.cached).without(on_lists(&next.root));
    }
}

/// Returns the packs that R lists as condemned or gone.
fn on_lists(root: &Root) -> PackSet {
    root.all_condemned().and(root.index.gone)
}

/// Only in the mutant `MatchedOutsideLock`: finds packs for an operation that is recorded later.
pub fn find(state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    next.processes[s].found = state.processes[s].learned;
    (next != *state).then_some(next)
}
