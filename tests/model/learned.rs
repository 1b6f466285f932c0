//! Footers that a writer has learned, in the place of index objects (rule 13).
//!
//! A look-up in a run of a complete group finds one object in a pack. The footer of that pack is
//! then read, and answers for all its objects. Which run has named the pack is remembered with it,
//! on disk too. Index objects that no complete group covers are read whole.

use crate::index::{self, RUNS, RunState};
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Pack, PackSet, Root, Session, State, Store};

/// The packs whose footers a session has learned, by the run that named them.
pub type Learned = [PackSet; RUNS];

/// Returns the packs that new data is matched with.
pub fn sources(model: &Protocol, state: &State, s: Session) -> PackSet {
    let process = &state.processes[s];
    let known = match (
        model.scenario.sampled,
        model.lacks(Mutant::MatchedOutsideLock),
    ) {
        (false, _) => process.index,
        (true, false) => union(&process.learned).and(process.tables),
        (true, true) => process.found,
    };
    known.and(process.uncommitted)
}

fn union(learned: &Learned) -> PackSet {
    learned.iter().fold(PackSet::EMPTY, |all, &p| all.and(p))
}

/// Returns the runs of the complete groups of R, one bit each.
fn answering_runs(model: &Protocol, root: &Root) -> u8 {
    let answering = root.index.answering(model);
    let groups = root.index.groups.iter().enumerate();
    groups
        .filter(|(g, _)| answering & 1 << g != 0)
        .fold(0, |runs, (_, group)| runs | group.runs)
}

/// Rule 13: a look-up in a run of the loaded root finds a pack, and its footer is read.
pub fn learn_footer(
    model: &Protocol,
    state: &State,
    s: Session,
    r: usize,
    p: Pack,
) -> Option<State> {
    let process = &state.processes[s];
    let run = &state.store.runs[r];
    let is_asked = process.runs & 1 << r != 0 && run.state == RunState::Landed;
    if !is_asked || !run.packs.has(p) || !process.index.has(p) || process.learned[r].has(p) {
        return None;
    }
    let mut next = *state;
    next.processes[s].learned[r] = process.learned[r].and(PackSet::of(p));
    model.coverage.note(Event::FooterLearned);
    Some(next)
}

/// Returns what stays of learned footers by this root. The run that named the pack must belong to a
/// complete group, and the pack must be on no list.
fn staying(model: &Protocol, root: &Root, mut learned: Learned) -> Learned {
    let runs = answering_runs(model, root);
    let mut lists = PackSet::EMPTY;
    if !model.lacks(Mutant::CondemnedFooterMatched) {
        lists = lists.and(root.all_condemned());
    }
    if !model.lacks(Mutant::DroppedFooterMatched) {
        lists = lists.and(index::dropped(root));
    }
    for (r, packs) in learned.iter_mut().enumerate() {
        *packs = packs.without(lists);
        if runs & 1 << r == 0 && !model.lacks(Mutant::FooterOutlivesRun) {
            *packs = PackSet::EMPTY;
        }
    }
    learned
}

/// Rules 4, 13: the session reads the index of R.
pub fn read_index(model: &Protocol, state: &mut State, s: Session) {
    let (root, store) = (&state.root, &state.store);
    let process = &mut state.processes[s];
    process.quarantine = root.quarantine;
    process.index = index::seen_live(model, root, store);
    if !model.scenario.sampled {
        return;
    }
    process.tables = index::in_tables(model, root).without(root.all_condemned());
    process.runs = answering_runs(model, root);
    let left = staying(model, root, process.learned);
    if left != process.learned {
        process.learned = left;
        model.coverage.note(Event::FooterDropped);
    }
}

/// Rule 13: a session registers. It takes over the footers that its machine has from before, as far
/// as they stand by the root that registers it.
pub fn begin(model: &Protocol, next: &mut State, s: Session) {
    if model.scenario.sampled {
        let cached = PackSet(model.scenario.cached);
        let learned = cached_by_run(&next.store, cached);
        next.processes[s].learned = staying(model, &next.root, learned);
        if union(&next.processes[s].learned) != PackSet::EMPTY {
            model.coverage.note(Event::CachedFooterTaken);
        }
    }
}

/// Returns the cached footers by the runs of the start.
fn cached_by_run(store: &Store, cached: PackSet) -> Learned {
    let is_first = |r: usize| r < index::SLICES;
    std::array::from_fn(|r| match is_first(r) {
        true => store.runs[r].packs.common(cached),
        false => PackSet::EMPTY,
    })
}

/// Only in the mutant `MatchedOutsideLock`: finds packs for an operation that is recorded later.
pub fn find(state: &State, s: Session) -> Option<State> {
    let mut next = *state;
    next.processes[s].found = union(&state.processes[s].learned).and(state.processes[s].tables);
    (next != *state).then_some(next)
}
