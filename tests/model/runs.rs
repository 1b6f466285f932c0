//! Merging of index objects and groups into a new group of runs (rule 12).
//!
//! A merge is maintenance, in a session of its own. One replacement of R begins the group and names
//! what it is made of. Then each slice is uploaded, and named by a replacement. The last
//! replacement makes the group complete. A merge that was interrupted needs no steps of its own,
//! since R says how far it came, and any session may go on.

use crate::index::{self, GROUPS, Group, Plane, Progress, Run, RunState, SLICES};
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{NONE, PackSet, Session, Standing, State};

/// A slice whose run was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Merge {
    /// The group that it was made for, or `NONE` in the mutant `SliceOfOlderRoot`.
    pub group: u8,
    /// The slice.
    pub slice: u8,
    /// The number of the run, or `NONE` if it would be empty.
    pub output: u8,
    /// Only for the mutant `GroupsOfOlderRoot`: the groups of the root that was read.
    pub groups: [Group; GROUPS],
}

const ALL_SLICES: u8 = (1 << SLICES) - 1;

fn is_live(state: &State, s: Session) -> bool {
    state.root.sessions[s].standing == Standing::Live
}

/// Returns the complete groups, one bit each.
fn complete(state: &State) -> u8 {
    let groups = state.root.index.groups.iter().enumerate();
    groups
        .filter(|(_, group)| group.progress == Progress::Complete)
        .fold(0, |mask, (g, _)| mask | 1 << g)
}

/// Rule 12: a group is begun, of all index objects that no group covers, and maybe of all complete
/// groups. It covers what these cover.
pub fn begin_cas(model: &Protocol, state: &State, s: Session, with_groups: bool) -> Option<State> {
    let index = &state.root.index;
    let is_able = is_live(state, s) && model.scenario.plane != Plane::Table;
    let is_free = index.building().is_none() || model.lacks(Mutant::SecondGroupBegun);
    if !is_able || !is_free {
        return None;
    }
    let sources = if with_groups { complete(state) } else { 0 };
    let is_uncovered = |o: &&index::IndexObject| !o.packs.is_empty() && o.groups == 0;
    let uncovered = index.objects.iter().filter(is_uncovered).count();
    let has_sources = uncovered > 0 || sources != 0;
    if !has_sources || with_groups != (sources != 0) {
        return None;
    }
    let unbegun = |group: &Group| group.progress == Progress::Unbegun;
    let g = index.groups.iter().position(unbegun)?;
    if g >= model.scenario.groups_at_most {
        return None;
    }
    let mut next = *state;
    next.root.index.groups[g] = Group {
        progress: Progress::Building,
        sources,
        ..Group::default()
    };
    for object in &mut next.root.index.objects {
        let is_covered = object.groups & sources != 0 || object.groups == 0;
        if is_covered && !object.packs.is_empty() {
            object.groups |= 1 << g;
        }
    }
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::GroupBegun);
    Some(next)
}

/// Returns the packs of a slice of a group: those of its sources, without the ones that a source
/// has dropped. Condemned packs stay, since references into them are still looked up (rule 4). What
/// a source covered that is no longer in R is read from index objects.
fn packs_of(model: &Protocol, state: &State, group: &Group, g: usize, slice: usize) -> PackSet {
    let index = &state.root.index;
    let mut packs = PackSet::EMPTY;
    let is_source = |h: &usize| group.sources & 1 << h != 0 && index.groups[*h].stands();
    let sources = (0..GROUPS).filter(is_source).fold(0, |all, h| all | 1 << h);
    for source in (0..GROUPS).filter(is_source).map(|h| &index.groups[h]) {
        let named = index::named_by_runs(&state.store, source, slice);
        packs = packs.and(match model.lacks(Mutant::SliceNamesDropped) {
            true => named,
            false => named.without(source.dropped),
        });
    }
    if model.lacks(Mutant::UnreadableSourceSkipped) {
        packs = PackSet::EMPTY;
    }
    let is_covered = |o: &index::IndexObject| match g < GROUPS {
        true => o.groups & 1 << g != 0,
        false => true,
    };
    for object in &index.objects {
        if is_covered(object) && object.groups & sources == 0 {
            packs = packs.and(object.packs);
        }
    }
    if !model.lacks(Mutant::SliceNamesOwnDropped) {
        packs = packs.without(group.dropped);
    }
    if model.lacks(Mutant::MergeDropsCondemned) {
        packs = packs.without(state.root.all_condemned());
    }
    state.store.holding(packs, index::objects_of(slice))
}

/// Reads R, merges a slice that the group which is built does not have, and sends the run.
pub fn prepare(
    model: &Protocol,
    state: &State,
    s: Session,
    slice: u8,
    late: bool,
) -> Option<State> {
    let process = &state.processes[s];
    let is_able = is_live(state, s) && model.scenario.plane != Plane::Table;
    if process.merge.is_some() || !is_able {
        return None;
    }
    let index = &state.root.index;
    let (g, group) = match index.building() {
        Some(g) => (g, index.groups[g]),
        None if model.lacks(Mutant::SliceOfOlderRoot) => {
            let sources = complete(state);
            let group = Group {
                sources,
                ..Group::default()
            };
            (usize::from(NONE), group)
        }
        None => return None,
    };
    if group.slices & 1 << slice != 0 && !model.lacks(Mutant::SliceAddedTwice) {
        return None;
    }
    let packs = packs_of(model, state, &group, g, usize::from(slice));
    let groups = match model.lacks(Mutant::GroupsOfOlderRoot) {
        true => index.groups,
        false => Default::default(),
    };
    let merge = Merge {
        group: g as u8,
        slice,
        output: NONE,
        groups,
    };
    let mut next = *state;
    send(&mut next, s, merge, packs, late)?;
    let is_sent = |run: &&Run| run.state != RunState::Unsent;
    let sent = next.store.runs.iter().filter(is_sent).count();
    (sent <= model.scenario.runs_at_most).then_some(next)
}

/// Sends the run of a slice.
fn send(next: &mut State, s: Session, mut merge: Merge, packs: PackSet, late: bool) -> Option<()> {
    if packs.is_empty() {
        next.processes[s].merge = Some(merge);
        return (!late).then_some(());
    }
    let mut runs = next.store.runs.iter();
    let number = runs.position(|run| run.state == RunState::Unsent)?;
    if late {
        next.faults.packs = next.faults.packs.checked_sub(1)?;
    }
    let process = &mut next.processes[s];
    next.store.runs[number] = Run {
        state: if late {
            RunState::Flying
        } else {
            RunState::Landed
        },
        maker: s as u8,
        sequence: process.next_pack,
        slice: merge.slice,
        packs,
    };
    process.next_pack += 1;
    merge.output = number as u8;
    process.merge = Some(merge);
    Some(())
}

/// A slow run arrives, even if its sender is gone.
pub fn land(state: &State, number: usize) -> Option<State> {
    if state.store.runs[number].state != RunState::Flying {
        return None;
    }
    let mut next = *state;
    next.store.runs[number].state = RunState::Landed;
    Some(next)
}

/// Returns the group of this R that the slice goes into: the one that it was made for, if that is
/// still being built.
fn target(model: &Protocol, state: &State, merge: &Merge) -> Option<usize> {
    let index = &state.root.index;
    let mut target = index.building();
    let any = [Mutant::AnotherGroupTaken, Mutant::SliceOfOlderRoot];
    if !any.iter().any(|&m| model.lacks(m)) {
        target = Some(usize::from(merge.group));
    }
    if model.lacks(Mutant::GroupsOfOlderRoot) {
        return target;
    }
    target.filter(|&g| {
        let group = &index.groups[g];
        let is_there = group.slices & 1 << merge.slice != 0;
        let is_new = !is_there || model.lacks(Mutant::SliceAddedTwice);
        group.progress == Progress::Building && is_new
    })
}

/// Rule 12: the run enters the group. The group must be the one that the run was made for, and must
/// still be built in the R that is replaced. `late`: the answer is lost, so the session goes on as
/// before.
pub fn merge_cas(model: &Protocol, state: &State, s: Session, late: bool) -> Option<State> {
    let merge = state.processes[s].merge?;
    if !is_live(state, s) && !model.lacks(Mutant::CasWithoutLiveSession) {
        model.coverage.note(Event::DeadSessionRefused);
        return None;
    }
    let Some(g) = target(model, state, &merge) else {
        model.coverage.note(Event::MergeRefused);
        return None;
    };
    let output = state.store.runs.get(usize::from(merge.output));
    let is_answered = output.is_none_or(|run| run.state != RunState::Flying);
    if !is_answered && !model.lacks(Mutant::UnacknowledgedNamed) {
        return None;
    }
    let mut next = *state;
    if late {
        next.faults.commits = next.faults.commits.checked_sub(1)?;
    } else {
        next.processes[s].merge = None;
    }
    let packs = output.map_or(PackSet::EMPTY, |run| run.packs);
    if !packs.common(state.root.all_condemned()).is_empty() {
        model.coverage.note(Event::MergedCondemned);
    }
    if !packs.common(state.root.index.groups[g].dropped).is_empty() {
        model.coverage.note(Event::MergedDropped);
    }
    if model.lacks(Mutant::GroupsOfOlderRoot) {
        next.root.index.groups = merge.groups;
    }
    let group = &mut next.root.index.groups[g];
    group.slices |= 1 << merge.slice;
    if merge.output != NONE {
        group.runs |= 1 << merge.output;
    }
    next.root.sessions[s].floor = state.processes[s].next_pack;
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::SliceNamed);
    Some(next)
}

/// Rule 12: the group has all slices, becomes complete, and takes the place of its sources. What
/// these had dropped before is in no slice.
pub fn complete_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let g = state.root.index.building()?;
    let group = state.root.index.groups[g];
    let has_all = group.slices == ALL_SLICES || model.lacks(Mutant::CompletedEarly);
    if !is_live(state, s) || !has_all {
        return None;
    }
    let mut next = *state;
    next.root.index.groups[g].progress = Progress::Complete;
    next.root.index.groups[g].sources = 0;
    if !model.lacks(Mutant::SourcesStay) {
        let sources = (0..GROUPS).filter(|h| group.sources & 1 << h != 0);
        sources.for_each(|h| next.root.index.leave(h));
    }
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(match group.sources {
        0 => Event::GroupCompleted,
        _ => Event::GroupsMerged,
    });
    Some(next)
}

/// The session finds that its group is no longer built, or that its own replacement was applied.
/// Its run, if R does not name it, is garbage.
pub fn abandon(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let merge = state.processes[s].merge?;
    if target(model, state, &merge).is_some() {
        return None;
    }
    let mut next = *state;
    next.processes[s].merge = None;
    Some(next)
}

/// A replacement takes a group out of R, whatever for: a repair that found it wrong, a program that
/// writes index objects anew. A group that is merged from it goes on, with what the index objects
/// say.
pub fn leave_cas(model: &Protocol, state: &State, g: usize) -> Option<State> {
    if !state.root.index.groups[g].stands() {
        return None;
    }
    let mut next = *state;
    next.root.index.leave(g);
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::GroupLeft);
    Some(next)
}

/// Rule 12: a run that R does not name, and that is not at or above the floor of a session in R, is
/// deleted without waiting. Only R and its own session can refer to it.
pub fn delete(model: &Protocol, state: &State, number: usize) -> Option<State> {
    let run = &state.store.runs[number];
    let maker = usize::from(run.maker);
    let is_own = state.root.sessions[maker].floor <= run.sequence
        && state.root.stands(maker)
        && !model.lacks(Mutant::OwnRunsSwept);
    let seen_absent = state.store.descriptions.unregistered & 1 << maker != 0;
    let is_own = is_own && !(seen_absent && model.lacks(Mutant::SweptByOlderRoot));
    if run.state != RunState::Landed || state.root.index.runs() & 1 << number != 0 || is_own {
        return None;
    }
    let mut next = *state;
    next.store.runs[number].state = RunState::Deleted;
    model.coverage.note(Event::RunDeleted);
    Some(next)
}
