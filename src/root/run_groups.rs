//! Groups of runs in the root, and every change of them (docs/PROTOCOL.md, rule 12).
//!
//! Owns which index objects a group covers, how a group is built slice by slice, and what becomes
//! of it when a covered index object leaves the root. Pure: no I/O. A group saves the download of
//! the index objects that it covers. Nothing else depends on it, so a group that contradicts the
//! root is dropped and not an error.

use super::refusal::Refusal;
use super::run_group::{Building, IndexName, RunGroup, Slice};
use super::shard::ListRef;
use super::state::{Root, StateError};
use super::transition::IndexChange;
use bkfs_chunker::catalog::{IndexRef, RunRef};
use bkfs_chunker::pack::PackName;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Bytes of a root that groups leave free. Below 2 KiB, a root gives up a part of its chain of
/// generations, and that is worth more.
const LEAST_ROOM_BYTES: usize = 4 << 10;

/// How the forgetting of packs changes the index objects that the same groups cover.
#[derive(Clone, Debug, Default)]
pub struct CoveredChange {
    /// The groups.
    pub groups: Vec<u64>,
    /// Index objects, in the place of which come others without the packs that are gone.
    pub index: IndexChange,
}

impl Root {
    /// Returns the groups, complete or not.
    pub fn run_groups(&self) -> &[RunGroup] {
        self.run_groups.as_deref().unwrap_or_default()
    }

    /// Returns the complete groups.
    pub fn complete_groups(&self) -> impl Iterator<Item = &RunGroup> {
        self.run_groups().iter().filter(|group| group.is_complete())
    }

    /// Returns the group that is being built, if there is one.
    pub fn building_group(&self) -> Option<&RunGroup> {
        self.run_groups().iter().find(|group| !group.is_complete())
    }

    /// Returns the names of the runs of all groups, complete or not.
    pub fn run_names(&self) -> impl Iterator<Item = PackName> + '_ {
        let runs = self.run_groups().iter().flat_map(|group| &group.runs);
        runs.map(|run| run.name)
    }

    /// Returns the groups, complete or not, that cover an index object.
    pub fn groups_of(&self, index: &PackName) -> Vec<u64> {
        let groups = self.run_groups().iter().filter(|group| group.covers(index));
        groups.map(|group| group.begun).collect()
    }

    /// Returns the index objects that a group covers.
    pub fn covered_by(&self, group: &RunGroup) -> Vec<IndexRef> {
        let covered = self.index.iter().filter(|index| group.covers(&index.name));
        covered.copied().collect()
    }

    /// Returns the index objects that no group covers, complete or not. Only these are absorbed by
    /// later ones, so that groups last.
    pub fn uncovered_index(&self) -> Vec<IndexRef> {
        let groups = self.run_groups().iter();
        let covered: HashSet<PackName> = groups
            .flat_map(|group| group.covers.iter().map(|name| name.0))
            .collect();
        let uncovered = self
            .index
            .iter()
            .filter(|index| !covered.contains(&index.name));
        uncovered.copied().collect()
    }

    /// Begins a group of the sources that it names.
    ///
    /// # Errors
    /// [`Refusal::ListsChanged`] if another group is being built, or if a source is not there or is
    /// covered otherwise.
    pub fn begin_group(
        &mut self,
        building: Building,
        covers: Vec<IndexName>,
    ) -> Result<(), Refusal> {
        let expected: BTreeSet<IndexName> = match building.from.is_empty() {
            true => {
                let uncovered = self.uncovered_index().into_iter();
                let uncovered: HashSet<PackName> = uncovered.map(|index| index.name).collect();
                match covers.iter().all(|name| uncovered.contains(&name.0)) {
                    true => covers.iter().copied().collect(),
                    false => return Err(Refusal::ListsChanged),
                }
            }
            false => {
                let from = self
                    .complete_groups()
                    .filter(|group| building.from.contains(&group.begun));
                let from: Vec<&RunGroup> = from.collect();
                match from.len() == building.from.len() {
                    true => from
                        .iter()
                        .flat_map(|group| group.covers.iter().copied())
                        .collect(),
                    false => return Err(Refusal::ListsChanged),
                }
            }
        };
        let is_free = self.building_group().is_none() && !covers.is_empty();
        if !is_free || !expected.iter().eq(sorted(&covers).iter()) {
            return Err(Refusal::ListsChanged);
        }
        let group = RunGroup {
            begun: self.generation,
            covers,
            runs: Vec::new(),
            dropped: None,
            building: Some(building),
        };
        self.change_groups(|groups| groups.push(group));
        Ok(())
    }

    /// Adds the run of a slice to the group that is being built. With the last one the group is
    /// complete, and the groups that it was merged from leave the root. Does nothing if the slice
    /// has a run already.
    ///
    /// # Errors
    /// [`Refusal::ListsChanged`] if this group is not being built, or has no such slice.
    pub fn add_run(&mut self, begun: u64, run: RunRef) -> Result<(), Refusal> {
        let mut left = Vec::new();
        let mut outcome = Err(Refusal::ListsChanged);
        self.change_groups(|groups| {
            let mut groups = groups.iter_mut();
            let Some(group) = groups.find(|group| group.begun == begun && !group.is_complete())
            else {
                return;
            };
            let slice = Slice {
                class: run.class,
                prefixes: run.prefixes(),
            };
            if group.missing().contains(&slice) {
                group.runs.push(run);
            } else if !group.has(&slice) {
                return;
            }
            if group.missing().is_empty() {
                left = group
                    .building
                    .take()
                    .map_or(Vec::new(), |building| building.from);
            }
            outcome = Ok(());
        });
        self.change_groups(|groups| groups.retain(|group| !left.contains(&group.begun)));
        outcome
    }

    /// Takes a group out of the root.
    pub fn drop_group(&mut self, begun: u64) {
        self.change_groups(|groups| groups.retain(|group| group.begun != begun));
        self.drop_unfounded_groups();
    }

    /// Replaces covered index objects by others without packs that are gone. The groups cover the
    /// new ones, and `dropped` has the lists of packs that each group may name in vain.
    ///
    /// # Errors
    /// [`Refusal::ListsChanged`] if an index object is not in the root, or a group is not, or does
    /// not cover it.
    pub fn forget_covered(
        &mut self,
        changes: &[CoveredChange],
        dropped: &BTreeMap<u64, ListRef>,
    ) -> Result<(), Refusal> {
        let mut groups = self.run_groups().to_vec();
        for change in changes {
            for begun in &change.groups {
                let group = groups.iter_mut().find(|group| group.begun == *begun);
                let group = group.ok_or(Refusal::ListsChanged)?;
                let absorbed = &change.index.absorbed;
                if !absorbed.iter().all(|index| group.covers(&index.name)) {
                    return Err(Refusal::ListsChanged);
                }
                let leaves = |name: &PackName| absorbed.iter().any(|index| index.name == *name);
                group.covers.retain(|covered| !leaves(&covered.0));
                let added = change.index.added.iter();
                group
                    .covers
                    .extend(added.map(|index| IndexName(index.name)));
                group.dropped = dropped.get(begun).copied().or(group.dropped);
            }
        }
        for change in changes {
            self.replace_index(&change.index)?;
        }
        self.run_groups = Some(groups).filter(|groups| !groups.is_empty());
        self.drop_unfounded_groups();
        Ok(())
    }

    /// Takes out of the root what groups cannot stand on: those of which a covered index object or a
    /// source is not there, and those whose runs contradict each other.
    pub(super) fn drop_unfounded_groups(&mut self) {
        let index: HashSet<PackName> = self.index.iter().map(|index| index.name).collect();
        let is_founded = |group: &RunGroup| {
            group.is_sound() && group.covers.iter().all(|name| index.contains(&name.0))
        };
        let groups = self.run_groups();
        if groups.is_empty() {
            self.run_groups = None;
            return;
        }
        let mut covered = HashSet::new();
        let mut stays: Vec<RunGroup> = Vec::new();
        for group in groups
            .iter()
            .filter(|group| group.is_complete() && is_founded(group))
        {
            // An index object has one complete group.
            if group.covers.iter().all(|name| covered.insert(name.0)) {
                stays.push(group.clone());
            }
        }
        let building = groups
            .iter()
            .filter(|group| !group.is_complete() && is_founded(group));
        for group in building.take(1) {
            let of = |begun: &u64| stays.iter().find(|source| source.begun == *begun);
            let from = group.building.iter().flat_map(|building| &building.from);
            let from: Option<Vec<&RunGroup>> = from.map(of).collect();
            let is_of_sources = from.is_some_and(|from| match from.is_empty() {
                true => group.covers.iter().all(|name| !covered.contains(&name.0)),
                false => {
                    let sources = from.iter().flat_map(|source| source.covers.iter().copied());
                    sources.collect::<BTreeSet<_>>() == sorted(&group.covers)
                }
            });
            if is_of_sources {
                stays.push(group.clone());
            }
        }
        self.run_groups = Some(stays).filter(|groups| !groups.is_empty());
    }

    /// Takes groups out of a root that has no room for them: first the one that is being built, then
    /// those with the fewest records.
    pub fn leave_room(&mut self) {
        while self.run_groups.is_some() && !self.has_room() {
            let smallest = |group: &&RunGroup| (group.records(), group.begun);
            let leaving = match self.building_group() {
                Some(building) => Some(building),
                None => self.complete_groups().min_by_key(smallest),
            };
            match leaving.map(|group| group.begun) {
                Some(begun) => self.drop_group(begun),
                None => self.run_groups = None,
            }
        }
    }

    fn has_room(&self) -> bool {
        match self.room() {
            Ok(room) => room >= LEAST_ROOM_BYTES,
            Err(StateError::TooLarge { .. }) => false,
            // Another error is not of the groups.
            Err(_) => true,
        }
    }

    fn change_groups(&mut self, change: impl FnOnce(&mut Vec<RunGroup>)) {
        let mut groups = self.run_groups.take().unwrap_or_default();
        change(&mut groups);
        self.run_groups = Some(groups).filter(|groups| !groups.is_empty());
    }
}

fn sorted(names: &[IndexName]) -> BTreeSet<IndexName> {
    names.iter().copied().collect()
}
