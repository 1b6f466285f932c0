//! Merging of index objects and runs into runs (rule 12).
//!
//! A merge is a commit of maintenance, in a session of its own: the run is uploaded, and one
//! replacement of R names it in the place of what was merged. A merge that was interrupted needs no
//! steps of its own, since R says how far it came.

use crate::index::{self, INDEX_OBJECTS, IndexObject, Plane, RANGES, Run, RunState};
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{NONE, PackSet, Session, Standing, State};

/// A merge whose run was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Merge {
    /// The range.
    pub range: u8,
    /// The index objects that are merged; the other places are empty. In the mutant
    /// `ManifestOfOlderRoot` all index objects of the root that the merge read.
    pub objects: [IndexObject; INDEX_OBJECTS],
    /// The runs that are merged, one bit each.
    pub runs: u8,
    /// The number of the new run, or `NONE` if it would be empty.
    pub output: u8,
}

impl Merge {
    /// Whether this index object is merged.
    fn takes(&self, object: &IndexObject) -> bool {
        !object.packs.is_empty() && object.merged & 1 << self.range == 0
    }
}

/// Reads R, merges all index objects that this range does not have yet, and maybe the runs of the
/// range, and sends the run. It has neither packs that are gone nor those without a record in the
/// range. Condemned packs stay, since references into them are still looked up (rule 4).
pub fn prepare(
    model: &Protocol,
    state: &State,
    s: Session,
    range: u8,
    with_runs: bool,
    late: bool,
) -> Option<State> {
    let process = &state.processes[s];
    let is_live = state.root.sessions[s].standing == Standing::Live;
    let is_able = is_live && state.root.version_2;
    if process.merge.is_some() || !is_able || model.scenario.plane == Plane::Table {
        return None;
    }
    let index = &state.root.index;
    let mut merge = Merge {
        range,
        objects: index.objects,
        runs: 0,
        output: NONE,
    };
    let mut packs = PackSet::EMPTY;
    let mut inputs = 0;
    for object in index.objects.iter().filter(|o| merge.takes(o)) {
        packs = packs.and(object.packs);
        inputs += 1;
    }
    let objects = inputs;
    if with_runs {
        for (r, run) in state.store.runs.iter().enumerate() {
            if index.runs & 1 << r != 0 && run.range == range {
                merge.runs |= 1 << r;
                if !model.lacks(Mutant::UnreadableInputDropped) {
                    packs = packs.and(run.packs);
                }
                inputs += 1;
            }
        }
    }
    let packs = state.store.holding(packs, index::objects_of(range.into()));
    let drops_gone = !packs.common(index.gone).is_empty();
    let is_useless = inputs < 2 && objects == 0 && !drops_gone;
    if inputs == 0 || is_useless || with_runs != (merge.runs != 0) {
        return None;
    }
    let mut packs = packs.without(index.gone);
    if model.lacks(Mutant::MergeDropsCondemned) {
        packs = packs.without(state.root.all_condemned());
    }
    if !model.lacks(Mutant::ManifestOfOlderRoot) {
        for object in &mut merge.objects {
            let is_taken = !object.packs.is_empty() && object.merged & 1 << range == 0;
            if !is_taken {
                *object = IndexObject::default();
            }
        }
    }
    let mut next = *state;
    send(&mut next, s, merge, packs, late)?;
    let is_sent = |run: &&Run| run.state != RunState::Unsent;
    let sent = next.store.runs.iter().filter(is_sent).count();
    (sent <= model.scenario.runs_at_most).then_some(next)
}

/// Sends the run of a merge.
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
        range: merge.range,
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

/// Whether everything that was merged still stands in R.
fn inputs_stand(merge: &Merge, state: &State) -> bool {
    let index = &state.root.index;
    let stands = |(now, before): (&IndexObject, &IndexObject)| {
        !merge.takes(before) || (now.packs == before.packs && merge.takes(now))
    };
    merge.runs & !index.runs == 0 && index.objects.iter().zip(&merge.objects).all(stands)
}

/// Rule 12: the new run replaces what was merged. A race that was lost to a replacement which left
/// the inputs in R costs no upload. `late`: the answer is lost, so the session goes on as before.
pub fn merge_cas(model: &Protocol, state: &State, s: Session, late: bool) -> Option<State> {
    let merge = state.processes[s].merge?;
    let is_live = state.root.sessions[s].standing == Standing::Live;
    if !is_live && !model.lacks(Mutant::CasWithoutLiveSession) {
        model.coverage.note(Event::DeadSessionRefused);
        return None;
    }
    if !inputs_stand(&merge, state) && !model.lacks(Mutant::MergeInputsUnchecked) {
        model.coverage.note(Event::MergeRefused);
        return None;
    }
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
    note(model, state, output);
    apply(model, &mut next, &merge);
    next.root.sessions[s].floor = state.processes[s].next_pack;
    model.root_replaced(&mut next, Some(s));
    Some(next)
}

fn note(model: &Protocol, state: &State, output: Option<&Run>) {
    let packs = output.map_or(PackSet::EMPTY, |run| run.packs);
    model.coverage.note(Event::Merged);
    if !packs.common(state.root.all_condemned()).is_empty() {
        model.coverage.note(Event::MergedCondemned);
    }
    if !packs.common(state.root.index.gone).is_empty() {
        model.coverage.note(Event::MergedGone);
    }
}

/// Changes the index of R. An index object leaves R once every range has its records.
fn apply(model: &Protocol, next: &mut State, merge: &Merge) {
    const ALL: u8 = (1 << RANGES) - 1;
    let was_named = index::named(&next.root, &next.store);
    let index = &mut next.root.index;
    if model.lacks(Mutant::ManifestOfOlderRoot) {
        index.objects = merge.objects;
    }
    for (now, before) in index.objects.iter_mut().zip(&merge.objects) {
        if !merge.takes(before) || now.packs != before.packs {
            continue;
        }
        now.merged |= 1 << merge.range;
        if now.merged == ALL || model.lacks(Mutant::AbsorbedEarly) {
            *now = IndexObject::default();
            model.coverage.note(Event::Absorbed);
        }
    }
    index.runs &= !merge.runs;
    let mut output = PackSet::EMPTY;
    if merge.output != NONE {
        index.runs |= 1 << merge.output;
        output = next.store.runs[usize::from(merge.output)].packs;
    }
    let named = match model.lacks(Mutant::GoneLeavesEarly) {
        true => output,
        false => index::named(&next.root, &next.store),
    };
    if !model.lacks(Mutant::GoneStays) {
        let gone = &mut next.root.index.gone;
        if !gone.within(named) && gone.within(was_named) {
            model.coverage.note(Event::LeftGone);
        }
        *gone = gone.common(named);
    }
    index::settle(model, next);
}

/// The session finds that another merge has taken its inputs, or that its own replacement was
/// applied. Its run, if R does not name it, is garbage.
pub fn abandon(state: &State, s: Session) -> Option<State> {
    let merge = state.processes[s].merge?;
    if inputs_stand(&merge, state) {
        return None;
    }
    let mut next = *state;
    next.processes[s].merge = None;
    Some(next)
}

/// Rule 8: a run that R does not name, and that is not at or above the floor of a session in R, is
/// deleted without waiting. Only R and its own session can refer to it.
pub fn delete(model: &Protocol, state: &State, number: usize) -> Option<State> {
    let run = &state.store.runs[number];
    let maker = usize::from(run.maker);
    let is_own = state.root.sessions[maker].floor <= run.sequence
        && state.root.stands(maker)
        && !model.lacks(Mutant::OwnRunsSwept);
    let seen_absent = state.store.descriptions.unregistered & 1 << maker != 0;
    let is_own = is_own && !(seen_absent && model.lacks(Mutant::SweptByOlderRoot));
    if run.state != RunState::Landed || state.root.index.runs & 1 << number != 0 || is_own {
        return None;
    }
    let mut next = *state;
    next.store.runs[number].state = RunState::Deleted;
    model.coverage.note(Event::RunDeleted);
    Some(next)
}
