//! The groups that a merge has seen in the root: pure.
//!
//! Owns the judgement whether groups were lost. A group that became a part of another one was not.

use std::collections::{BTreeMap, HashSet};

use crate::root::run_group::{IndexName, RunGroup};

/// Groups by name, and the index objects that each covers.
#[derive(Debug, Default)]
pub(super) struct SeenGroups {
    groups: BTreeMap<u64, Vec<IndexName>>,
    is_any_lost: bool,
}

impl SeenGroups {
    /// Notes the groups of a root. One of those before is lost if it is not among them, and the
    /// complete ones do not answer for all that it covered.
    pub(super) fn note(&mut self, groups: &[RunGroup]) {
        let names: HashSet<u64> = groups.iter().map(|group| group.begun).collect();
        let complete = groups.iter().filter(|group| group.is_complete());
        let covered: HashSet<&IndexName> = complete.flat_map(|group| &group.covers).collect();
        self.is_any_lost |= self.groups.iter().any(|(begun, covers)| {
            !names.contains(begun) && !covers.iter().all(|name| covered.contains(name))
        });
        let groups = groups
            .iter()
            .map(|group| (group.begun, group.covers.clone()));
        self.groups = groups.collect();
    }

    /// Forgets groups that this merge takes out of the root.
    pub(super) fn forget(&mut self, groups: &[u64]) {
        self.groups.retain(|begun, _| !groups.contains(begun));
    }

    /// Returns true if a group was lost.
    pub(super) fn is_any_lost(&self) -> bool {
        self.is_any_lost
    }
}
