//! Forgetting snapshots and bringing them back, without a mount.
//!
//! Owns the session of such a change. Does not own the change itself (`root::forget`), nor which
//! snapshots go (`retain`).

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::forget::ListChanger;
use crate::root::holder::{LocalVerdict, ProcessState, Processes};
use crate::root::lists::DirectLists;
use crate::root::session::OpenSession;
use crate::root::snapshots::{Drill, SnapshotEntry, TrashEntry};
use crate::root::state::HolderInfo;

/// Changes the lists of a repository. A process makes one change of a repository at a time.
#[derive(Clone, Copy)]
pub struct Changer<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// What the root names as the holder of the session.
    pub command: &'a str,
}

/// The processes of this machine. This one counts as ended: it makes one change at a time, so
/// another session of its own is left from an earlier change.
#[derive(Debug)]
struct WithoutThis<'a> {
    this: u32,
    /// None if no other process is to be judged.
    others: Option<&'a dyn Processes>,
}

impl Processes for WithoutThis<'_> {
    fn state(&self, pid: u32) -> ProcessState {
        match self.others {
            _ if pid == self.this => ProcessState::Gone,
            Some(others) => others.state(pid),
            None => ProcessState::Unknown,
        }
    }
}

impl Changer<'_> {
    /// Moves snapshots of a volume to the trash.
    ///
    /// Cancel safety: dropped, it leaves the snapshots listed or forgotten, and maybe a session in
    /// the root, which the next change of this process removes.
    ///
    /// # Errors
    /// Those of [`ListChanger::forget`], and of opening a session.
    pub async fn forget(&self, volume: &str, names: &[String]) -> Result<(), RootError> {
        self.change(async |changer: ListChanger<'_>| {
            changer.forget(volume, names, self.repository.now()).await
        })
        .await?;
        Ok(())
    }

    /// Moves these snapshots of a volume to the trash, and none that was made since under the name of
    /// one of them.
    ///
    /// Cancel safety: that of [`Self::forget`].
    ///
    /// # Errors
    /// Those of [`ListChanger::forget_planned`], and of opening a session.
    pub async fn forget_planned(
        &self,
        volume: &str,
        snapshots: &[SnapshotEntry],
    ) -> Result<(), RootError> {
        self.change(async |changer: ListChanger<'_>| {
            let now = self.repository.now();
            changer.forget_planned(volume, snapshots, now).await
        })
        .await?;
        Ok(())
    }

    /// Brings the newest forgotten snapshot of a volume named `name` back. Returns its entry.
    ///
    /// Cancel safety: that of [`Self::forget`].
    ///
    /// # Errors
    /// Those of [`ListChanger::restore_forgotten`], and of opening a session.
    pub async fn bring_back(&self, volume: &str, name: &str) -> Result<SnapshotEntry, RootError> {
        let restored = self
            .change(async |changer: ListChanger<'_>| changer.restore_forgotten(volume, name).await);
        Ok(restored.await?.output)
    }

    /// Writes the result of a drill on a snapshot.
    ///
    /// Cancel safety: that of [`Self::forget`].
    ///
    /// # Errors
    /// Those of [`ListChanger::note_drill`], and of opening a session.
    pub async fn note_drill(&self, of: &SnapshotEntry, drill: &Drill) -> Result<(), RootError> {
        self.change(async |changer: ListChanger<'_>| changer.note_drill(of, drill).await)
            .await
    }

    /// Removes the sessions of this process that an earlier change has left in the root. While one
    /// stays there, no collection deletes anything.
    ///
    /// Cancel safety: that of [`Self::forget`].
    ///
    /// # Errors
    /// Those of reading the root, and of opening and ending a session.
    pub async fn end_leftovers(&self) -> Result<(), RootError> {
        let view = self.repository.handle.settle().await?;
        let holder = self.holder();
        let this = WithoutThis {
            this: holder.pid,
            others: None,
        };
        let mut sessions = view.root.sessions.values();
        let is_ours = |verdict| verdict == LocalVerdict::Dead;
        match sessions.any(|session| is_ours(session.judge_locally(&holder, &this))) {
            true => self.open().await?.end().await,
            false => Ok(()),
        }
    }

    fn holder(&self) -> HolderInfo {
        self.repository.environment.holder(self.command)
    }

    async fn open(&self) -> Result<OpenSession, RootError> {
        let holder = self.holder();
        let processes = WithoutThis {
            this: holder.pid,
            others: Some(&*self.repository.environment.processes),
        };
        OpenSession::open(&self.repository.handle, holder, None, &processes).await
    }

    /// Changes the lists, as a session of its own.
    async fn change<T>(
        &self,
        work: impl AsyncFnOnce(ListChanger<'_>) -> Result<T, RootError>,
    ) -> Result<T, RootError> {
        let session = self.open().await?;
        let handle = &self.repository.handle;
        let writer = DirectLists::new(handle, session.id());
        let done = work(ListChanger {
            handle,
            lists: &self.repository.lists,
            writer: &writer,
            session: session.id(),
        })
        .await;
        if let Err(error) = session.end().await {
            tracing::warn!(
                "could not remove the session of this change from the root: {error}; a later \
                 command on this machine removes it"
            );
        }
        done
    }
}

/// Returns the forgotten snapshots of a volume that can be brought back by name, those forgotten
/// last first.
///
/// # Errors
/// Those of reading the root and its lists.
pub async fn forgotten(
    repository: &Repository,
    volume: &str,
) -> Result<Vec<TrashEntry>, RootError> {
    let (view, _) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let shards = repository.lists.known_trash(&view.root.trash).await?;
    let entries = shards.iter().flat_map(|shard| shard.iter());
    let ours = entries.filter(|entry| entry.snapshot.volume == volume);
    Ok(by_name(ours.cloned().collect()))
}

/// Returns the entry of each name that [`Changer::bring_back`] means: the newest one.
fn by_name(mut forgotten: Vec<TrashEntry>) -> Vec<TrashEntry> {
    let name = |entry: &TrashEntry| entry.snapshot.name.clone();
    let generation = |entry: &TrashEntry| std::cmp::Reverse(entry.snapshot.generation);
    forgotten.sort_by_cached_key(|entry| (name(entry), generation(entry)));
    forgotten.dedup_by(|later, first| later.snapshot.name == first.snapshot.name);
    forgotten.sort_by_key(|entry| std::cmp::Reverse(entry.forgotten));
    forgotten
}
