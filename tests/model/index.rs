//! The index: index objects, and the groups of runs that are derived from them (rule 12).
//!
//! This module owns what R says about the index, which packs are live by it, and what a program
//! sees of that which asks complete groups instead of the index objects that they cover. `runs`
//! owns the steps that merge.
//!
//! The model cuts the prefixes into two slices, one of the chunks and one of the segments, which
//! also stand for the two classes of packs.

use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Objects, PackSet, Root, State, Store};

/// Number of slices of the prefixes.
pub const SLICES: usize = 2;
/// Most index objects that R names at a time.
pub const INDEX_OBJECTS: usize = 4;
/// Most runs that are ever written.
pub const RUNS: usize = 6;
/// Most groups that are ever begun. A group's number stands for its name: it is never used again.
pub const GROUPS: usize = 3;

/// How the scenario keeps the table of live packs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plane {
    /// R has the table itself: an abstraction.
    Table,
    /// Index objects; no group covers them at the start.
    Objects,
    /// Index objects; a complete group covers them at the start.
    Groups,
}

/// An index object that R names: the footers of some packs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IndexObject {
    /// The packs; empty if R names no index object here.
    pub packs: PackSet,
    /// The groups that cover it, one bit each.
    pub groups: u8,
}

/// How far a group is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Progress {
    /// Not begun.
    #[default]
    Unbegun,
    /// Some slices may be missing. It answers nothing.
    Building,
    /// Answers for the index objects that it covers.
    Complete,
    /// No longer in R.
    Left,
}

/// A group of runs. What it covers stands in the index objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Group {
    /// Whether it stands in R, and whether it answers.
    pub progress: Progress,
    /// The slices that it has, one bit each. A slice without records has no run.
    pub slices: u8,
    /// Its runs, one bit each.
    pub runs: u8,
    /// The groups that it is merged from, one bit each, while it is built.
    pub sources: u8,
    /// Packs that its runs may name, and that left the index objects which it covers.
    pub dropped: PackSet,
}

impl Group {
    /// A group that is no longer in R.
    pub const LEFT: Self = Self {
        progress: Progress::Left,
        slices: 0,
        runs: 0,
        sources: 0,
        dropped: PackSet::EMPTY,
    };

    /// Whether it stands in R.
    pub fn stands(&self) -> bool {
        matches!(self.progress, Progress::Building | Progress::Complete)
    }
}

/// The part of R that describes the index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Index {
    /// The index objects.
    pub objects: [IndexObject; INDEX_OBJECTS],
    /// The groups.
    pub groups: [Group; GROUPS],
}

impl Index {
    /// Returns the runs that R names, one bit each.
    pub fn runs(&self) -> u8 {
        let standing = self.groups.iter().filter(|group| group.stands());
        standing.fold(0, |all, group| all | group.runs)
    }
    /// Returns the group that is being built.
    pub fn building(&self) -> Option<usize> {
        let is_built = |group: &Group| group.progress == Progress::Building;
        self.groups.iter().position(is_built)
    }
    /// Returns the groups that answer, one bit each. Those that are built answer nothing.
    pub fn answering(&self, model: &Protocol) -> u8 {
        let answers = |group: &Group| {
            let is_half = group.progress == Progress::Building;
            group.progress == Progress::Complete
                || (is_half && model.lacks(Mutant::BuildingGroupAnswers))
        };
        (0..GROUPS)
            .filter(|&g| answers(&self.groups[g]))
            .fold(0, |mask, g| mask | 1 << g)
    }
    /// Returns the packs of the index objects that a group covers.
    pub fn covered(&self, g: usize) -> PackSet {
        let objects = self.objects.iter().filter(|o| o.groups & 1 << g != 0);
        objects.fold(PackSet::EMPTY, |all, object| all.and(object.packs))
    }
    /// Takes a group out of R.
    pub fn leave(&mut self, g: usize) {
        if self.groups[g].stands() {
            self.groups[g] = Group::LEFT;
        }
        for object in &mut self.objects {
            object.groups &= !(1 << g);
        }
    }
    /// Takes all groups out of R.
    pub fn lose_groups(&mut self) {
        (0..GROUPS).for_each(|g| self.leave(g));
    }
}

/// The state of the object of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RunState {
    /// Not written.
    #[default]
    Unsent,
    /// The PUT was sent and has no answer.
    Flying,
    /// In the store.
    Landed,
    /// Deleted.
    Deleted,
}

/// The object of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Run {
    /// Whether it was sent, and whether it arrived.
    pub state: RunState,
    /// The session in its name.
    pub maker: u8,
    /// The sequence number in its name.
    pub sequence: u8,
    /// The slice of its records.
    pub slice: u8,
    /// The packs of its records.
    pub packs: PackSet,
}

/// Returns the objects whose records belong to a slice.
pub fn objects_of(slice: usize) -> Objects {
    match slice {
        0 => Objects(0x0F),
        _ => Objects(0xF0),
    }
}

/// Returns the packs that the runs of a group name in a slice, whether or not they were dropped.
pub fn named_by_runs(store: &Store, group: &Group, slice: usize) -> PackSet {
    let runs = store.runs.iter().enumerate();
    runs.filter(|(r, run)| group.runs & 1 << r != 0 && usize::from(run.slice) == slice)
        .fold(PackSet::EMPTY, |all, (_, run)| all.and(run.packs))
}

/// Returns the packs that an index object of R names.
pub fn in_objects(root: &Root) -> PackSet {
    let objects = root.index.objects.iter();
    objects.fold(PackSet::EMPTY, |all, object| all.and(object.packs))
}

/// Returns the packs of the index objects that no answering group covers. Programs read these whole.
pub fn in_tables(model: &Protocol, root: &Root) -> PackSet {
    let answering = root.index.answering(model);
    let objects = root.index.objects.iter();
    objects
        .filter(|object| object.groups & answering == 0)
        .fold(PackSet::EMPTY, |all, object| all.and(object.packs))
}

/// Returns the packs on the dropped lists of the groups of R.
pub fn dropped(root: &Root) -> PackSet {
    let groups = root.index.groups.iter();
    groups.fold(PackSet::EMPTY, |all, group| all.and(group.dropped))
}

/// Rule 12: returns the packs whose records of this slice are found: those in index objects that no
/// complete group covers, and those that a run of a complete group names and its dropped list does
/// not have.
pub fn found_in(model: &Protocol, root: &Root, store: &Store, slice: usize) -> PackSet {
    let answering = root.index.answering(model);
    let groups = root.index.groups.iter().enumerate();
    let answers = groups.filter(|(g, _)| answering & 1 << g != 0);
    answers.fold(in_tables(model, root), |all, (_, group)| {
        let named = named_by_runs(store, group, slice);
        all.and(match model.lacks(Mutant::DroppedIgnored) {
            true => named,
            false => named.without(group.dropped),
        })
    })
}

/// Whether each of these packs can be looked up in each slice in which it has objects.
pub fn finds(model: &Protocol, state: &State, packs: PackSet) -> bool {
    (0..SLICES).all(|slice| {
        let with_records = state.store.holding(packs, objects_of(slice));
        with_records.within(found_in(model, &state.root, &state.store, slice))
    })
}

/// Returns the packs that a program takes for live which asks complete groups instead of the index
/// objects that these cover. In the mutant `LiveByListsOnly` these are all that no list names.
pub fn seen_live(model: &Protocol, root: &Root, store: &Store) -> PackSet {
    if model.scenario.plane == Plane::Table {
        return root.live;
    }
    if model.lacks(Mutant::LiveByListsOnly) {
        return PackSet(u16::MAX).without(root.all_condemned().and(dropped(root)));
    }
    let slices = 0..SLICES;
    let found = |slice| found_in(model, root, store, slice);
    slices
        .fold(PackSet::EMPTY, |all, slice| all.and(found(slice)))
        .without(root.all_condemned())
}

/// Whether a group says what the index objects say that it covers, for the slices that it has.
pub fn is_true(state: &State, g: usize) -> bool {
    let index = &state.root.index;
    let group = &index.groups[g];
    let covered = index.covered(g);
    let slices = (0..SLICES).filter(|slice| group.slices & 1 << slice != 0);
    group.dropped.common(covered).is_empty()
        && slices.into_iter().all(|slice| {
            let named = named_by_runs(&state.store, group, slice);
            named.without(group.dropped) == state.store.holding(covered, objects_of(slice))
        })
}

/// Computes the live packs anew. Every replacement of R does this that changes the index objects or
/// the condemned packs.
pub fn settle(model: &Protocol, next: &mut State) {
    if model.scenario.plane != Plane::Table {
        next.root.live = in_objects(&next.root).without(next.root.all_condemned());
    }
}

/// What a commit does with an older index object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Absorb {
    /// Nothing.
    #[default]
    No,
    /// The new index object has its packs too, and it leaves R.
    Take,
    /// The new index object has its packs too, and it stays, since a group covers it by now.
    Copy,
}

/// Returns the index object that a commit absorbs.
fn absorbed(state: &State, absorb: Absorb) -> Option<usize> {
    match absorb {
        Absorb::No => None,
        _ => {
            let mut objects = state.root.index.objects.iter();
            objects.position(|object| !object.packs.is_empty())
        }
    }
}

/// Whether a replacement that makes these packs live has a place for its index object.
pub fn has_room(model: &Protocol, state: &State, add: PackSet, absorb: Absorb) -> bool {
    let free = |object: &IndexObject| object.packs.is_empty();
    let objects = &state.root.index.objects;
    match absorb {
        _ if model.scenario.plane == Plane::Table => absorb == Absorb::No,
        Absorb::No => add.is_empty() || objects.iter().any(free),
        _ if add.is_empty() => false,
        Absorb::Take => absorbed(state, absorb).is_some(),
        Absorb::Copy => {
            let covered = absorbed(state, absorb).filter(|&o| objects[o].groups != 0);
            covered.is_some() && objects.iter().any(free)
        }
    }
}

/// Makes packs live: an index object of the replacement names them. A group leaves R with an index
/// object that it covers.
pub fn enter(model: &Protocol, next: &mut State, add: PackSet, absorb: Absorb) {
    if model.scenario.plane == Plane::Table {
        next.root.live = next.root.live.and(add);
        return;
    }
    let mut packs = add;
    if let Some(o) = absorbed(next, absorb).filter(|_| !add.is_empty()) {
        let object = next.root.index.objects[o];
        packs = packs.and(object.packs);
        if absorb == Absorb::Take {
            next.root.index.objects[o] = IndexObject::default();
            if object.groups != 0 {
                model.coverage.note(Event::GroupLeftWithObject);
            }
            if !model.lacks(Mutant::GroupOutlivesObject) {
                let covering = (0..GROUPS).filter(|g| object.groups & 1 << g != 0);
                covering.for_each(|g| next.root.index.leave(g));
            }
        }
    }
    let mut objects = next.root.index.objects.iter_mut();
    if let Some(object) = objects.find(|o| o.packs.is_empty() && !packs.is_empty()) {
        *object = IndexObject { packs, groups: 0 };
    }
    settle(model, next);
}

/// Rules 8, 12: an epoch is forgotten. Index objects that name its packs are written anew without
/// these. What leaves an index object enters the dropped lists of the groups that cover it.
pub fn forget(model: &Protocol, next: &mut State, condemned: PackSet, old: bool) {
    if model.scenario.plane == Plane::Table {
        return;
    }
    let before = next.root.index;
    let index = &mut next.root.index;
    if old && !model.lacks(Mutant::UnknownFieldKept) {
        index.lose_groups();
    }
    for object in &mut index.objects {
        let leaving = object.packs.common(condemned);
        if leaving.is_empty() {
            continue;
        }
        object.packs = object.packs.without(leaving);
        let covering = (0..GROUPS).filter(|g| object.groups & 1 << g != 0 && !old);
        for g in covering {
            let group = &mut index.groups[g];
            let skips = match group.progress {
                Progress::Building => Mutant::BuildingGroupKeepsDropped,
                _ => Mutant::CompleteGroupKeepsDropped,
            };
            if !model.lacks(skips) {
                group.dropped = group.dropped.and(leaving);
                model.coverage.note(match group.progress {
                    Progress::Building => Event::DroppedWhileBuilt,
                    _ => Event::Dropped,
                });
            }
        }
        if object.packs.is_empty() {
            *object = IndexObject::default();
        }
    }
    if index.objects != before.objects && model.lacks(Mutant::WrittenTogether) {
        write_together(&mut index.objects);
    }
    settle(model, next);
}

/// Only in the mutant `WrittenTogether`: all index objects become one.
fn write_together(objects: &mut [IndexObject; INDEX_OBJECTS]) {
    let all = objects
        .iter()
        .fold(IndexObject::default(), |all, object| IndexObject {
            packs: all.packs.and(object.packs),
            groups: all.groups | object.groups,
        });
    *objects = Default::default();
    if !all.packs.is_empty() {
        objects[0] = all;
    }
}
