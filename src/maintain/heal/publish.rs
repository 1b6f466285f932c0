//! Makes stored blobs live: a replacement of the root by the session that stored them
//! (docs/PROTOCOL.md, rules 1 to 3).
//!
//! Owns the replacement, and the check that precedes each attempt: packs that are live in the root
//! being replaced, damaged ones included, hold everything that the new packs refer to. The same
//! replacement puts the commit records that were made anew in place of lost ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::catalog::IndexSources;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Ingest, Mark};
use bkfs_chunker::pack::PackName;
use bytes::Bytes;

use crate::root::error::RootError;
use crate::root::finish::PackFinisher;
use crate::root::forget::rewrite;
use crate::root::handle::{RootHandle, Transition};
use crate::root::lists::Lists;
use crate::root::record::CommitRecord;
use crate::root::shard::{ListEntry, ListRef};
use crate::root::snapshots::{SnapshotEntry, TrashEntry};
use crate::root::state::{Root, SessionId};
use crate::root::transition::ListChange;

/// The blobs that something refers to.
type Leaning = HashSet<(Kind, Id)>;

/// Packs that are no longer live.
type Gone = Vec<PackName>;

/// Stores blobs for one session, and makes them live.
pub(super) struct Publisher {
    handle: RootHandle,
    lists: Lists,
    session: SessionId,
    ingest: Arc<Ingest>,
    /// Referenced blobs that only damaged packs hold.
    leaning: Leaning,
    /// Lost commit records of snapshots, each with the record in its place.
    of_snapshots: HashMap<Id, Id>,
    /// The same for volumes, by the name of the volume.
    of_volumes: HashMap<String, (Id, Id)>,
}

impl Publisher {
    pub(super) fn new(
        handle: RootHandle,
        lists: Lists,
        session: SessionId,
        ingest: Arc<Ingest>,
    ) -> Self {
        Self {
            handle,
            lists,
            session,
            ingest,
            leaning: HashSet::new(),
            of_snapshots: HashMap::new(),
            of_volumes: HashMap::new(),
        }
    }

    pub(super) fn ingest(&self) -> &Ingest {
        &self.ingest
    }

    /// Loads the index of this root.
    pub(super) async fn load(&self, root: &Root) -> Result<(), RootError> {
        let condemned = self.lists.condemned(root).await?;
        let content_store = self.ingest.content_store();
        Ok(content_store
            .load_index(&IndexSources::of_objects(&root.index), &condemned)
            .await?)
    }

    /// Records the references of a blob that is about to be stored. Returns false if no live pack,
    /// damaged or not, holds one of them.
    ///
    /// # Errors
    /// A table of the index is damaged, and cannot be made anew.
    pub(super) async fn lean_on(&mut self, blobs: Vec<(Kind, Id)>) -> Result<bool, RootError> {
        let content_store = self.ingest.content_store();
        let mut damaged = Vec::new();
        for (kind, id) in blobs {
            if self.ingest.adopt_blob(kind, id).await.is_ok() {
                continue;
            }
            if !is_live(content_store, &id).await? {
                return Ok(false);
            }
            damaged.push((kind, id));
        }
        self.leaning.extend(damaged);
        Ok(true)
    }

    /// Makes everything live that was stored so far. Cancel safety: dropped, it leaves that live or
    /// not; calling it again is safe.
    pub(super) async fn publish(&mut self) -> Result<(), RootError> {
        if self.ingest.uncommitted_blobs() == 0 {
            return Ok(());
        }
        let ingest = self.ingest.clone();
        let handle = self.handle.clone();
        let mut cas = HealCas {
            publisher: self,
            packs: PackFinisher::since(ingest.mark()),
        };
        let made = handle.update(&mut cas).await;
        cas.packs.settle(&*ingest, made.is_ok());
        made?;
        self.leaning.clear();
        self.of_snapshots.clear();
        self.of_volumes.clear();
        Ok(())
    }
}

async fn is_live(content_store: &ContentStore, id: &Id) -> Result<bool, RootError> {
    for place in content_store.places(id).await? {
        if content_store.is_live(&place.pack).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The replacement of the root.
struct HealCas<'a> {
    publisher: &'a Publisher,
    packs: PackFinisher<Mark>,
}

#[async_trait]
impl Transition for HealCas<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.publisher.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let ingest = &*self.publisher.ingest;
        let change = self
            .packs
            .finish_for(ingest, &next.uncovered_index())
            .await?;
        self.publisher.load(next).await?;
        self.check_relied_on().await?;
        next.change_index(&change)?;
        self.publisher.replace_records(next).await
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        self.publisher.load(root).await?;
        let content_store = self.publisher.ingest.content_store();
        let packs = self.packs.finished().map(|finished| &finished.packs);
        for pack in packs.into_iter().flatten() {
            if content_store.is_listed(pack).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl HealCas<'_> {
    /// Checks rule 3 against the root whose index was just loaded. What becomes live is the
    /// session's own, since no floor was ever raised past it.
    async fn check_relied_on(&self) -> Result<(), RootError> {
        let content_store = self.publisher.ingest.content_store();
        let session = self.publisher.session;
        let relied = self.packs.finished().map(|finished| &finished.relied_on);
        let foreign = relied
            .into_iter()
            .flatten()
            .filter(|pack| pack.session != session.0);
        let mut gone: Gone = content_store.not_live(foreign).await?;
        for (kind, id) in &self.publisher.leaning {
            // A damaged pack held it. Since then it may have been stored again.
            let ingest = &self.publisher.ingest;
            if !is_live(content_store, id).await? && ingest.adopt_blob(*kind, *id).await.is_err() {
                let places = content_store.places(id).await?;
                gone.extend(places.first().map(|place| place.pack));
                return Err(RootError::Rebuild { packs: gone });
            }
        }
        match gone.is_empty() {
            true => Ok(()),
            false => Err(RootError::Rebuild { packs: gone }),
        }
    }
}

impl Publisher {
    async fn replace_records(&self, next: &mut Root) -> Result<(), RootError> {
        for (name, (lost, record)) in &self.of_volumes {
            if let Some(volume) = next.volumes.get_mut(name)
                && volume.holder.is_none()
                && volume.commit == Some(*lost)
            {
                volume.commit = Some(*record);
            }
        }
        if self.of_snapshots.is_empty() {
            return Ok(());
        }
        let kept = self.lists.snapshot_shards(&next.snapshots).await?;
        let trash = self.lists.trash_shards(&next.trash).await?;
        let kept = self.renamed(&next.snapshots, &kept, |entry: &SnapshotEntry| {
            let commit = *self.of_snapshots.get(&entry.commit)?;
            Some(SnapshotEntry {
                commit,
                ..entry.clone()
            })
        });
        let kept = kept.await?;
        let trash = self.renamed(&next.trash, &trash, |entry: &TrashEntry| {
            let commit = *self.of_snapshots.get(&entry.snapshot.commit)?;
            let snapshot = SnapshotEntry {
                commit,
                ..entry.snapshot.clone()
            };
            Some(TrashEntry {
                snapshot,
                ..entry.clone()
            })
        });
        let trash = trash.await?;
        next.change_snapshots(&kept)?;
        Ok(next.change_trash(&trash)?)
    }

    /// Rewrites a list: each entry for which `renew` returns another one is replaced by that.
    async fn renamed<T: ListEntry>(
        &self,
        refs: &[ListRef],
        shards: &[Arc<Vec<T>>],
        renew: impl Fn(&T) -> Option<T>,
    ) -> Result<ListChange, RootError> {
        let joining: Vec<T> = shards
            .iter()
            .flat_map(|shard| shard.iter())
            .filter_map(&renew)
            .collect();
        if joining.is_empty() {
            return Ok(ListChange::default());
        }
        let leaves = |entry: &T| renew(entry).is_some();
        rewrite(&*self.ingest, refs, shards, leaves, joining).await
    }

    /// Returns the session that stores.
    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    /// Stores a commit record.
    pub(super) async fn store_record(&self, record: &CommitRecord) -> Result<Id, RootError> {
        let bytes = Bytes::from(record.encode());
        Ok(self.ingest.store_blob(Kind::Commit, bytes).await?)
    }

    /// Puts a stored record in place of a lost one, in the snapshots that name it.
    pub(super) fn replace_in_snapshots(&mut self, lost: Id, record: Id) {
        self.of_snapshots.insert(lost, record);
    }

    /// Puts a stored record in place of a lost one, in the volume of this name.
    pub(super) fn replace_in_volume(&mut self, name: &str, lost: Id, record: Id) {
        self.of_volumes.insert(name.to_owned(), (lost, record));
    }
}
