//! The note of a drill on a snapshot.
//!
//! Owns the replacement of the root that writes it. Does not own the drill.

use super::error::RootError;
use super::forget::{ListChanger, rewrite};
use super::handle::Transition;
use super::snapshots::{Drill, SnapshotEntry, SnapshotList};
use super::state::{Root, SessionId};
use async_trait::async_trait;

impl ListChanger<'_> {
    /// Writes the result of a drill on the snapshot `of`, in the place of an earlier one.
    ///
    /// Cancel safety: dropped, it leaves the root unchanged, or the change sent with an unknown
    /// outcome, and maybe a list that no root names.
    ///
    /// # Errors
    /// [`RootError::NoSnapshot`] if the snapshot is not kept any more; the errors of
    /// [`ListChanger::forget`].
    pub async fn note_drill(&self, of: &SnapshotEntry, drill: &Drill) -> Result<(), RootError> {
        let mut change = NoteDrill {
            changer: self,
            of,
            drill,
        };
        self.handle.update(&mut change).await?;
        Ok(())
    }
}

struct NoteDrill<'a> {
    changer: &'a ListChanger<'a>,
    of: &'a SnapshotEntry,
    drill: &'a Drill,
}

#[async_trait]
impl Transition for NoteDrill<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.changer.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let shards = self.changer.lists.snapshot_shards(&next.snapshots).await?;
        let is_it = |entry: &SnapshotEntry| {
            entry.volume == self.of.volume && entry.commit == self.of.commit
        };
        let kept = SnapshotList::new(shards.clone());
        let entry = kept.iter().find(|entry| is_it(entry));
        let entry = entry.ok_or_else(|| RootError::NoSnapshot {
            name: self.of.name.clone(),
            volume: self.of.volume.clone(),
        })?;
        let noted = SnapshotEntry {
            drill: Some(self.drill.clone()),
            ..entry.clone()
        };
        let writer = self.changer.writer;
        let leaves = |other: &SnapshotEntry| is_it(other) && other.number == entry.number;
        let change = rewrite(writer, &next.snapshots, &shards, leaves, vec![noted]).await?;
        Ok(next.change_snapshots(&change)?)
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        // Written twice, it says the same.
        Ok(false)
    }
}
