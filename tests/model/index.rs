//! The index of version 2: index objects, runs, and the packs that are gone (rule 12).
//!
//! This module owns what R says about the index and which packs are live by it. `runs` owns the
//! steps that merge.
//!
//! Every range of prefixes has runs of its own. The model has two ranges, one of the chunks and one
//! of the segments, which also stand for the runs of data and of metadata.

use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Objects, PackSet, Root, State, Store};

/// Number of ranges of prefixes.
pub const RANGES: usize = 2;
/// Most index objects that R names at a time.
pub const INDEX_OBJECTS: usize = 4;
/// Most runs that are ever written.
pub const RUNS: usize = 6;

/// How the scenario keeps the table of live packs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plane {
    /// R has the table itself: an abstraction of version 1.
    Table,
    /// Index objects and runs; the packs of the start are in an index object.
    Objects,
    /// Index objects and runs; the packs of the start are in runs.
    Runs,
}

/// An index object that R names: the footers of some packs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IndexObject {
    /// The packs; empty if R names no index object here.
    pub packs: PackSet,
    /// The ranges whose records are in runs already, one bit each.
    pub merged: u8,
}

/// The part of R that describes the index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Index {
    /// The index objects.
    pub objects: [IndexObject; INDEX_OBJECTS],
    /// The runs, one bit each.
    pub runs: u8,
    /// Packs that were deleted and forgotten, and that a run or an index object still names.
    pub gone: PackSet,
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
    /// The range of its records.
    pub range: u8,
    /// The packs of its records.
    pub packs: PackSet,
}

/// Returns the objects whose records belong to a range.
pub fn objects_of(range: usize) -> Objects {
    match range {
        0 => Objects(0x0F),
        _ => Objects(0xF0),
    }
}

/// Returns the runs of R.
pub fn runs<'a>(root: &'a Root, store: &'a Store) -> impl Iterator<Item = &'a Run> {
    let runs = store.runs.iter().enumerate();
    runs.filter(|(r, _)| root.index.runs & 1 << r != 0)
        .map(|(_, run)| run)
}

/// Returns the packs that an index object of R names.
pub fn in_objects(root: &Root) -> PackSet {
    let objects = root.index.objects.iter();
    objects.fold(PackSet::EMPTY, |all, object| all.and(object.packs))
}

/// Returns the packs that a run or an index object of R names.
pub fn named(root: &Root, store: &Store) -> PackSet {
    runs(root, store).fold(in_objects(root), |all, run| all.and(run.packs))
}

/// Returns the packs whose records of this range can be looked up.
pub fn named_in(root: &Root, store: &Store, range: usize) -> PackSet {
    runs(root, store)
        .filter(|run| usize::from(run.range) == range)
        .fold(in_objects(root), |all, run| all.and(run.packs))
}

/// Whether each of these packs can be looked up in each range in which it has objects.
pub fn finds(state: &State, packs: PackSet) -> bool {
    (0..RANGES).all(|range| {
        let with_records = state.store.holding(packs, objects_of(range));
        with_records.within(named_in(&state.root, &state.store, range))
    })
}

/// Rule 12: computes the live packs anew. Every replacement of R does this that changes the index,
/// the condemned packs or the gone ones.
pub fn settle(model: &Protocol, next: &mut State) {
    if model.scenario.plane != Plane::Table {
        next.root.live = named(&next.root, &next.store)
            .without(next.root.all_condemned())
            .without(next.root.index.gone);
    }
}

/// Returns the packs that a commit takes for live. In the mutant `LiveByListsOnly` these are all
/// that no list of R names.
pub fn judged_live(model: &Protocol, root: &Root) -> PackSet {
    if model.lacks(Mutant::LiveByListsOnly) {
        let lists = root.all_condemned().and(root.index.gone);
        PackSet(u16::MAX).without(lists)
    } else {
        root.live
    }
}

/// Whether a replacement that makes these packs live has a place for its index object.
pub fn has_room(model: &Protocol, state: &State, add: PackSet) -> bool {
    let free = |object: &IndexObject| object.packs.is_empty();
    model.scenario.plane == Plane::Table
        || add.is_empty()
        || state.root.index.objects.iter().any(free)
}

/// Makes packs live: an index object of the replacement names them.
pub fn enter(model: &Protocol, next: &mut State, add: PackSet) {
    if model.scenario.plane == Plane::Table {
        next.root.live = next.root.live.and(add);
        return;
    }
    let mut objects = next.root.index.objects.iter_mut();
    if let Some(object) = objects
        .find(|o| o.packs.is_empty())
        .filter(|_| !add.is_empty())
    {
        *object = IndexObject {
            packs: add,
            merged: without_records(&next.store, add),
        };
    }
    settle(model, next);
}

/// Returns the ranges in which none of the packs has a record, one bit each.
pub fn without_records(store: &Store, packs: PackSet) -> u8 {
    (0..RANGES)
        .filter(|&range| store.holding(packs, objects_of(range)).is_empty())
        .fold(0, |mask, range| mask | 1 << range)
}

/// Rule 12: an epoch is forgotten. Those of its packs that a run or an index object still names
/// become gone in the same replacement.
pub fn forget(model: &Protocol, next: &mut State, condemned: PackSet) {
    if model.scenario.plane == Plane::Table {
        return;
    }
    if !next.root.version_2 {
        // Version 1 writes its index objects anew.
        for object in &mut next.root.index.objects {
            object.packs = object.packs.without(condemned);
            if object.packs.is_empty() {
                *object = IndexObject::default();
            }
        }
    }
    let still_named = condemned.common(named(&next.root, &next.store));
    if !still_named.is_empty() {
        model.coverage.note(Event::BecameGone);
    }
    if !model.lacks(Mutant::ForgottenWhileNamed) {
        next.root.index.gone = next.root.index.gone.and(still_named);
    }
    settle(model, next);
}
