//! Which group is made next, and how large it is: pure.
//!
//! Owns the sizes of groups and of their runs, and the room that groups take in a root.

use std::collections::HashSet;

use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::pack::PackName;

use crate::root::run_group::{Building, IndexName, RunGroup, SLICES_MAX, Slice};
use crate::root::state::Root;

/// Index objects of less than this share of [`MergePolicy::least_blobs`] are in no group.
const ABSORBED_SHARE: u64 = 16;

/// The runs of the largest groups have this many times [`MergePolicy::run_records`], so that the root
/// has room for them: about 16 million, which take 350 MB.
const LARGE_RUNS: u64 = 4;

/// Groups of this many runs or more of each class have larger runs.
const FEW_SLICES: u64 = 64;

/// Bytes of a root that groups leave free, for sessions, volumes and lists, and for commits that add
/// index objects.
const SPARE_BYTES: usize = 16 << 10;

/// The most bytes that a root states a run with.
const RUN_REF_BYTES: usize = 80;

/// The most bytes that a root states a covered index object with.
const COVERED_BYTES: usize = 18;

/// The most bytes that a root states a group with, without its runs and what it covers.
const GROUP_BYTES: usize = 256;

/// Decoded bytes of an index object that is made of smaller ones: half of what fits into one.
const JOINED_BYTES: u64 = 16 << 20;

/// When groups are made, and how large they are.
#[derive(Clone, Copy, Debug)]
pub struct MergePolicy {
    /// Index objects become a group once they list this many blobs. Below that, their download costs
    /// less than a group saves.
    pub least_blobs: u64,
    /// A group is made of index objects of at most this many blobs, or of one.
    pub most_blobs: u64,
    /// About how many records a run has, unless the group is very large. A record takes 20 bytes.
    pub run_records: u64,
    /// Groups of fewer than `fan` times this many records are of the smallest size. Each further size
    /// is `fan` times as large.
    pub small_records: u64,
    /// So many groups of one size become one.
    pub fan: usize,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self {
            least_blobs: 1 << 20,
            most_blobs: 4 << 20,
            run_records: 4 << 20,
            small_records: 8 << 20,
            fan: 4,
        }
    }
}

/// What no new group is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Avoided {
    /// Index objects that cannot be read.
    pub(super) index: HashSet<PackName>,
    /// Groups that this program cannot read, and a newer one can: by name.
    pub(super) groups: HashSet<u64>,
}

/// A step of a merge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Begin a group of these index objects.
    Begin(Building, Vec<IndexName>),
    /// Write these index objects into few large ones, and begin a group of those.
    Join(Vec<IndexRef>),
    /// Write the first of these slices of the group.
    Write(Box<RunGroup>, Slice),
}

impl MergePolicy {
    /// Returns true if there is something to merge in a root.
    pub fn is_due(&self, root: &Root) -> bool {
        self.next(root, &Avoided::default()).is_some()
    }

    /// Returns the number of blobs in index objects of which groups can be made, and no complete one
    /// is.
    pub fn unmerged_blobs(&self, root: &Root) -> u64 {
        let of_objects = |group: &&RunGroup| {
            let building = group.building.as_ref();
            building.is_some_and(|building| building.from.is_empty())
        };
        let half_made = root.building_group().filter(of_objects);
        let half_made = half_made.map(|group| root.covered_by(group));
        let left = self.uncovered(root).into_iter();
        let left = left.chain(half_made.into_iter().flatten());
        left.map(|index| index.blobs).sum()
    }

    /// Returns the index objects that no group covers, without the smallest ones: commits absorb
    /// those.
    fn uncovered(&self, root: &Root) -> Vec<IndexRef> {
        let mut left = root.uncovered_index();
        left.retain(|index| index.blobs >= self.least_blobs / ABSORBED_SHARE);
        left
    }

    /// Returns the next step in a root, if there is one.
    pub(super) fn next(&self, root: &Root, avoided: &Avoided) -> Option<Step> {
        if let Some(group) = root.building_group() {
            if avoided.groups.contains(&group.begun) {
                return None;
            }
            let slice = group.missing().into_iter().next()?;
            return Some(Step::Write(Box::new(group.clone()), slice));
        }
        match self.of_groups(root, avoided) {
            Some((building, covers)) => Some(Step::Begin(building, covers)),
            None => self.of_objects(root, avoided),
        }
    }

    /// Returns true if the root has room for the group until it is complete: for that time its sources
    /// stand as well.
    fn has_room(&self, root: &Root, building: &Building, covers: usize) -> bool {
        let runs = 2 * usize::from(building.slices) * RUN_REF_BYTES;
        let group = GROUP_BYTES + runs + covers * COVERED_BYTES;
        root.room().is_ok_and(|room| room >= group + SPARE_BYTES)
    }

    /// Returns a group that is made of groups of one size.
    fn of_groups(&self, root: &Root, avoided: &Avoided) -> Option<(Building, Vec<IndexName>)> {
        let groups = root.complete_groups();
        let groups = groups.filter(|group| !avoided.groups.contains(&group.begun));
        let mut groups: Vec<&RunGroup> = groups.collect();
        groups.sort_by_key(|group| (group.records(), group.begun));
        let size = |group: &RunGroup| {
            let times = group.records() / self.small_records.max(1);
            times.max(1).ilog(self.fan.max(2) as u64)
        };
        let alike = groups.chunk_by(|one, other| size(one) == size(other));
        let alike = alike.filter(|alike| alike.len() >= self.fan);
        let merged = alike.map(|alike| {
            let building = Building {
                slices: self.slices(alike.iter().map(|group| group.records()).sum()),
                from: alike.iter().map(|group| group.begun).collect(),
            };
            let covers = alike.iter().flat_map(|group| group.covers.iter().copied());
            (building, covers.collect::<Vec<IndexName>>())
        });
        let mut merged = merged.collect::<Vec<_>>().into_iter();
        merged.find(|(building, covers)| self.has_room(root, building, covers.len()))
    }

    /// Returns the step to a group that is made of index objects. The smallest ones are left to
    /// commits, which absorb them.
    fn of_objects(&self, root: &Root, avoided: &Avoided) -> Option<Step> {
        let mut left = self.uncovered(root);
        left.retain(|index| !avoided.index.contains(&index.name));
        if left.iter().map(|index| index.blobs).sum::<u64>() < self.least_blobs {
            return None;
        }
        left.sort_by_key(|index| std::cmp::Reverse(index.blobs));
        let (mut blobs, mut taken) = (0_u64, Vec::new());
        for index in left {
            if !taken.is_empty() && blobs + index.blobs > self.most_blobs {
                break;
            }
            blobs += index.blobs;
            taken.push(index);
        }
        let building = Building {
            slices: self.slices(blobs),
            from: Vec::new(),
        };
        if !self.has_room(root, &building, taken.len()) {
            return None;
        }
        let bytes: u64 = taken.iter().map(|index| index.bytes).sum();
        // What a group covers is never absorbed, so the root would keep each small one for ever.
        if taken.len() as u64 > 1 + bytes.div_ceil(JOINED_BYTES) {
            return Some(Step::Join(taken));
        }
        let covers = taken.iter().map(|index| IndexName(index.name));
        Some(Step::Begin(building, covers.collect()))
    }

    /// Returns the number of slices of a group of so many records.
    pub(super) fn slices(&self, records: u64) -> u16 {
        let least = self.run_records.max(1);
        let of_run = (records / FEW_SLICES).clamp(least, least * LARGE_RUNS);
        let slices = records.div_ceil(of_run);
        slices.clamp(1, u64::from(SLICES_MAX)) as u16
    }
}
