//! The session that writes a copy, and the commits that it makes.
//!
//! Owns: what the volume shows until a snapshot is whole. Does not own: what is copied (`mod`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Ingest, Mark};
use parking_lot::Mutex;

use crate::repository::Repository;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::{CommitRequest, RootCommit};
use crate::root::error::RootError;
use crate::root::session::OpenSession;
use crate::root::snapshots::{NewSnapshot, SnapshotEntry};
use crate::volume::rescue::Rescues;
use crate::volume::state::Totals;

/// A tree of the target that is that of a snapshot, or empty.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) tree: Id,
    pub(super) totals: Totals,
    /// True for a volume that has no tree yet.
    pub(super) is_nothing: bool,
}

impl Whole {
    /// Returns the tree of a snapshot of the target.
    pub(super) fn of(tree: Id, snapshot: &SnapshotEntry) -> Whole {
        Whole {
            tree,
            totals: Totals {
                inodes: snapshot.files,
                bytes: snapshot.bytes,
            },
            is_nothing: false,
        }
    }
}

/// What a session writes with.
pub(super) struct Begun {
    pub(super) ingest: Arc<Ingest>,
    pub(super) committer: RootCommitter<Ingest>,
    /// The tree of the last snapshot that both sides have, or an empty one.
    pub(super) whole: Whole,
    /// What the volume shows until a snapshot is whole.
    pub(super) shown: Whole,
    pub(super) next_inode: u64,
    /// True if the volume's tree is no unfinished one.
    pub(super) is_whole: bool,
    /// What an interrupted copy has left.
    pub(super) left: Option<Id>,
}

impl Begun {
    /// Returns the writer of a session that writes a volume of the repository `to`.
    pub(super) fn with(self, open: OpenSession, to: Arc<Repository>, volume: &str) -> Writer {
        Writer {
            open,
            to,
            volume: volume.to_owned(),
            ingest: self.ingest,
            committer: self.committer,
            whole: Mutex::new(self.whole),
            shown: Mutex::new(self.shown),
            next_inode: AtomicU64::new(self.next_inode),
            is_whole: AtomicBool::new(self.is_whole),
            left: Mutex::new(self.left),
        }
    }
}

/// The session that writes.
pub(super) struct Writer {
    open: OpenSession,
    to: Arc<Repository>,
    volume: String,
    pub(super) ingest: Arc<Ingest>,
    committer: RootCommitter<Ingest>,
    /// The tree of the last snapshot that both sides have, or an empty one.
    whole: Mutex<Whole>,
    /// What the volume shows until a snapshot is whole.
    shown: Mutex<Whole>,
    next_inode: AtomicU64,
    /// True if the volume's tree is that of a snapshot, or empty.
    is_whole: AtomicBool,
    /// What an interrupted copy has left, until this session commits.
    left: Mutex<Option<Id>>,
}

impl Writer {
    pub(super) fn whole(&self) -> Whole {
        *self.whole.lock()
    }

    /// Returns true if the root can hold an unfinished tree in a field of its own, and marks of
    /// snapshots that never were a volume's state.
    pub(super) fn is_witnessed(&self) -> bool {
        self.to.handle.current().root.chain.is_some()
    }

    /// Returns the tree that an interrupted copy has left and that the next commit gives up.
    pub(super) fn unfinished(&self) -> Option<Id> {
        *self.left.lock()
    }

    /// Gives out no inode number below this one from the next commit on.
    pub(super) fn reserve_inodes(&self, next_inode: u64) {
        self.next_inode.fetch_max(next_inode, Ordering::Relaxed);
    }

    /// Commits a tree: with its snapshot, or unfinished.
    pub(super) async fn commit(
        &self,
        tree: Id,
        entry: &SnapshotEntry,
        snapshot: Option<NewSnapshot>,
    ) -> Result<RootCommit, RootError> {
        let made = Whole::of(tree, entry);
        let is_snapshot = snapshot.is_some();
        let is_apart = self.is_witnessed() && !is_snapshot;
        let shown = match is_apart {
            true => self.shown_and_live().await?,
            false => made,
        };
        let mut request = self.request(entry, tree, snapshot);
        request.tree = (!shown.is_nothing).then_some(shown.tree);
        request.building = is_apart.then_some(tree);
        (request.inodes, request.bytes) = (shown.totals.inodes, shown.totals.bytes);
        let is_whole = is_snapshot || is_apart;
        // Until the outcome of the commit is known, the volume counts as whole only if it was so
        // before and the commit keeps it so.
        self.is_whole.fetch_and(is_whole, Ordering::Relaxed);
        let committed = self.make(&self.committer, request).await?;
        self.is_whole.store(is_whole, Ordering::Relaxed);
        *self.left.lock() = None;
        if is_snapshot {
            *self.whole.lock() = made;
            *self.shown.lock() = made;
        }
        Ok(committed)
    }

    /// Commits a snapshot that never was the volume's state. The volume shows what it did before.
    ///
    /// A commit of the volume comes first. It gives up what is to be shown no more, which such a
    /// snapshot cannot, and is what the snapshot's record follows. Killed between the two, the next
    /// copy still finds the snapshot missing.
    pub(super) async fn commit_apart(
        &self,
        tree: Id,
        entry: &SnapshotEntry,
        snapshot: NewSnapshot,
    ) -> Result<RootCommit, RootError> {
        let before = self.commit(tree, entry, None).await?;
        let committer = RootCommitter::snapshot_only(
            self.to.handle.clone(),
            self.to.lists.clone(),
            self.open.id(),
            &self.volume,
            self.ingest.clone(),
            Some(before.record),
        );
        let request = self.request(entry, tree, Some(snapshot));
        let committed = self.make(&committer, request).await?;
        *self.whole.lock() = Whole::of(tree, entry);
        Ok(committed)
    }

    /// Returns what the volume shows, once the next commit is sure to check that it is live: its
    /// snapshot may be forgotten meanwhile (rule 3). What the volume holds is live as it is.
    async fn shown_and_live(&self) -> Result<Whole, RootError> {
        let shown = *self.shown.lock();
        let held = self.to.volume_entry(&self.volume).tree;
        if !shown.is_nothing && held != Some(shown.tree) {
            self.ingest.adopt_blob(Kind::Node, shown.tree).await?;
        }
        Ok(shown)
    }

    fn request(
        &self,
        entry: &SnapshotEntry,
        tree: Id,
        snapshot: Option<NewSnapshot>,
    ) -> CommitRequest<Mark> {
        CommitRequest {
            // The tree holds every reference made so far, and no other reference is made during the
            // commit.
            mark: self.ingest.mark(),
            tree: Some(tree),
            building: None,
            covered: 0,
            covered_journal: None,
            next_inode: self.next_inode.load(Ordering::Relaxed),
            inodes: entry.files,
            bytes: entry.bytes,
            clock: entry.time,
            snapshot,
        }
    }

    async fn make(
        &self,
        committer: &RootCommitter<Ingest>,
        request: CommitRequest<Mark>,
    ) -> Result<RootCommit, RootError> {
        let mut rescues = Rescues::new(&self.ingest);
        loop {
            match committer.commit(request.clone()).await {
                Err(error) if rescues.has_helped(&error).await => {}
                committed => return committed,
            }
        }
    }

    /// After a failure, commits the last whole snapshot again, if its tree is still live and the
    /// store can be reached. What an interrupted copy has left stays, if the root can hold both.
    pub(super) async fn go_back(&self, entry: &SnapshotEntry) {
        let tree = self.whole().tree;
        if self.is_whole.load(Ordering::Relaxed)
            || self.ingest.adopt_blob(Kind::Node, tree).await.is_err()
        {
            return;
        }
        let held = self.to.volume_entry(&self.volume).building;
        let mut left = self.unfinished().filter(|left| held == Some(*left));
        if let Some(tree) = left {
            // The next commit checks that it is live: one that is not known to be made may have
            // given it up.
            let adopted = self.ingest.adopt_blob(Kind::Node, tree).await;
            left = left.filter(|_| adopted.is_ok());
        }
        match self.commit(left.unwrap_or(tree), entry, None).await {
            Ok(_) => self.is_whole.store(true, Ordering::Relaxed),
            Err(error) => tracing::debug!("the volume stays as far as the copy came: {error}"),
        }
    }

    /// Ends the session, unless the volume shows an unfinished tree. Then the session stays in the
    /// root, so that the next copy finds out that a copy left it so.
    pub(super) async fn leave(self) {
        if !self.is_whole.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.open.end().await {
            tracing::warn!("the session stays in the root: {error}");
        }
    }
}
