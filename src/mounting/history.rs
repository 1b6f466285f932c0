//! The snapshots of a volume, as a mount shows them.

use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::ingest::Ingest;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::repository::Repository;
use crate::root::forget::ListChanger;
use crate::root::shard::ListRef;
use crate::root::snapshots::{SnapshotEntry, SnapshotList, SnapshotReference};
use crate::root::state::SessionId;
use crate::vfs::special::{History, Shelf};
use crate::volume::error::VolumeError;

/// Age at which the list is read again: another machine may have made or removed snapshots.
const FRESH: Duration = Duration::from_secs(2);

/// How long a list that is older waits for the store before it counts as the present one. A snapshot
/// never changes, so a tree that is in the cache can be read below its name during an outage.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits if an outage is known.
const PATIENCE_IN_OUTAGE: Duration = Duration::from_millis(300);

/// A list of snapshots that was read.
struct Known {
    at: Instant,
    /// The lists of the newest known root before it was read.
    lists: Vec<ListRef>,
    list: SnapshotList,
}

/// The snapshots of one volume of a repository.
pub struct Snapshots {
    repository: Arc<Repository>,
    volume: String,
    /// Removes snapshots; none if the mount is read-only.
    writer: Option<(SessionId, Arc<Ingest>)>,
    known: Mutex<Option<Known>>,
}

impl Snapshots {
    /// Returns the snapshots of `volume`. `writer` is the session that removes snapshots, with its
    /// ingest; none for a read-only mount.
    pub fn new(
        repository: Arc<Repository>,
        volume: String,
        writer: Option<(SessionId, Arc<Ingest>)>,
    ) -> Self {
        Snapshots {
            repository,
            volume,
            writer,
            known: Mutex::new(None),
        }
    }

    /// Returns the list. It is at most [`FRESH`] old, and read again once this mount knows a root
    /// with other lists. While the store does not answer, the last list counts, unless this mount
    /// knows a root with other lists.
    async fn current(&self) -> Result<SnapshotList, VolumeError> {
        // Taken before the list is read: a root that is replaced meanwhile makes this list old.
        let lists = self.repository.handle.current().root.snapshots.clone();
        if let Some(known) = &*self.known.lock()
            && known.at.elapsed() < FRESH
            && known.lists == lists
        {
            return Ok(known.list.clone());
        }
        let older = self.older(&lists);
        let patience = match (&older, self.repository.signs.outage()) {
            (None, _) => Duration::MAX,
            (Some(_), None) => PATIENCE,
            (Some(_), Some(_)) => PATIENCE_IN_OUTAGE,
        };
        let read = tokio::time::timeout(patience, self.repository.snapshots()).await;
        let list = match (read, older) {
            (Ok(Ok(list)), _) => list,
            (Err(_), Some(older)) => older,
            (Ok(Err(error)), _) => return Err(VolumeError::Commit(error.to_string())),
            // No time is too long to wait for.
            (Err(_), None) => return Err(VolumeError::Commit("the list was not read".into())),
        };
        *self.known.lock() = Some(Known {
            at: Instant::now(),
            lists,
            list: list.clone(),
        });
        Ok(list)
    }

    /// Returns the last list that was read, if the newest root that this mount knows has the same.
    fn older(&self, lists: &[ListRef]) -> Option<SnapshotList> {
        let known = self.known.lock();
        let same = known.as_ref().filter(|known| known.lists == lists);
        same.map(|known| known.list.clone())
    }
}

#[async_trait]
impl History for Snapshots {
    async fn list(&self) -> Result<Vec<(String, u16)>, VolumeError> {
        let list = self.current().await?;
        let named = |entry: &&SnapshotEntry| (entry.name.clone(), entry.number);
        let mut names: Vec<(String, u16)> =
            list.of_volume(&self.volume).iter().map(named).collect();
        names.sort_by_key(|(_, number)| *number);
        Ok(names)
    }

    async fn find(&self, name: &str) -> Result<Shelf, VolumeError> {
        let list = self.current().await?;
        let reference = SnapshotReference::parse(name, self.repository.now())
            .map_err(|_| VolumeError::NotFound)?;
        let entry = list
            .resolve(&self.volume, &reference)
            .map_err(|_| VolumeError::NotFound)?;
        let view = self
            .repository
            .view(entry)
            .await
            .map_err(|error| VolumeError::Commit(error.to_string()))?;
        Ok(Shelf {
            number: entry.number,
            name: entry.name.clone(),
            view,
        })
    }

    async fn forget(&self, name: &str) -> Result<(), VolumeError> {
        let (session, ingest) = self.writer.as_ref().ok_or(VolumeError::ReadOnly)?;
        self.current()
            .await?
            .named(&self.volume, name)
            .ok_or(VolumeError::NotFound)?;
        let Repository { handle, lists, .. } = self.repository.as_ref();
        let changer = ListChanger {
            handle,
            lists,
            writer: ingest.as_ref(),
            session: *session,
        };
        let forgotten = changer
            .forget(&self.volume, &[name.to_owned()], self.repository.now())
            .await;
        // The snapshot may be forgotten although the answer says that this is unknown.
        *self.known.lock() = None;
        match forgotten {
            Ok(_) => Ok(()),
            Err(error) => Err(VolumeError::Commit(error.to_string())),
        }
    }
}
