//! The replacements of the root that a merge makes.
//!
//! Owns what each changes, and how it is told whether an unanswered one was made.

use async_trait::async_trait;
use bkfs_chunker::catalog::RunRef;

use crate::root::error::RootError;
use crate::root::handle::Transition;
use crate::root::run_group::{Building, IndexName, RunGroup};
use crate::root::state::{Root, SessionId};
use crate::root::transition::IndexChange;

/// The groups of a root that a replacement makes.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    pub(super) all: Vec<RunGroup>,
    /// False if groups have left because the root has no room for them.
    pub(super) have_room: bool,
}

impl Groups {
    /// Takes groups out of a root that has no room for them, and returns the others.
    fn leave_room(next: &mut Root) -> Self {
        let before = next.run_groups().len();
        next.leave_room();
        let all = next.run_groups().to_vec();
        Self {
            have_room: all.len() == before,
            all,
        }
    }
}

/// Takes groups out of the root.
pub(super) struct DropGroups {
    pub(super) session: SessionId,
    pub(super) groups: Vec<u64>,
}

#[async_trait]
impl Transition for DropGroups {
    type Output = Groups;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Groups, RootError> {
        for begun in &self.groups {
            next.drop_group(*begun);
        }
        Ok(Groups::leave_room(next))
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let mut groups = root.run_groups().iter();
        Ok(!groups.any(|group| self.groups.contains(&group.begun)))
    }
}

/// Begins a group, maybe of index objects that it puts in the place of others.
pub(super) struct BeginGroup {
    pub(super) session: SessionId,
    pub(super) index: IndexChange,
    pub(super) building: Building,
    pub(super) covers: Vec<IndexName>,
    /// The groups of the root in which the group was found, if this replacement had no answer.
    pub(super) other: Option<Groups>,
}

#[async_trait]
impl Transition for BeginGroup {
    type Output = Groups;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Groups, RootError> {
        next.change_index(&self.index)?;
        next.begin_group(self.building.clone(), self.covers.clone())?;
        Ok(Groups::leave_room(next))
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Another merge may have begun the same: it does not matter which.
        let is_it = |group: &RunGroup| {
            group.covers == self.covers && group.building.as_ref() == Some(&self.building)
        };
        let is_there = root.building_group().is_some_and(is_it);
        self.other = is_there.then(|| Groups {
            all: root.run_groups().to_vec(),
            have_room: true,
        });
        Ok(is_there)
    }
}

/// Names a run, which is in the bucket.
pub(super) struct AddRun {
    pub(super) session: SessionId,
    pub(super) begun: u64,
    pub(super) run: RunRef,
}

#[async_trait]
impl Transition for AddRun {
    type Output = Groups;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Groups, RootError> {
        next.add_run(self.begun, self.run)?;
        Ok(Groups::leave_room(next))
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.run_names().any(|name| name == self.run.name))
    }
}
