//! Sweeps: deletes condemned packs once no session can need them, and objects that no root will
//! ever name again (docs/PROTOCOL.md, rule 8, step 3).
//!
//! Owns the question whether an epoch may go, and the order. The packs are deleted, then found to
//! be gone. Then the epoch is forgotten, in the replacement that takes its packs out of the index.
//! A collector that dies in between leaves an epoch whose packs the next one deletes again.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_trait::async_trait;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, Verifier};
use bkfs_store::Store;
use futures::{StreamExt, TryStreamExt};

use super::mark::is_own;
use crate::maintain::layout::{NamedObject, place_of};
use crate::maintain::orphans::list_refs;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, Transition};
use crate::root::heartbeat::published_bases;
use crate::root::lists::{Lists, put_shard};
use crate::root::run_groups::CoveredChange;
use crate::root::snapshots::PackEntry;
use crate::root::state::{Condemned, HolderInfo, RecoveryBase, Root, SessionId};
use crate::root::transition::IndexChange;

/// Deletions that run at the same time.
const DELETES_AT_ONCE: usize = 16;

/// Index objects that a root has at most before those smaller than [`SMALL_INDEX_BYTES`] are
/// merged.
const INDEXES_MAX: usize = 48;

/// From this number on, free epochs of which every pack is locked are merged into one.
const LOCKED_EPOCHS_MAX: usize = 16;

/// Size in decoded bytes below which an index object is small.
const SMALL_INDEX_BYTES: u64 = 8 << 20;

/// A session that holds back deletion.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The session.
    pub session: SessionId,
    /// Its holder. Of a session that has ended only the host is known.
    pub holder: HolderInfo,
    /// The base that it has published. None if it has no readable heartbeat.
    pub base: Option<u64>,
    /// It has ended, and its spool may still hold what it acknowledged.
    pub has_ended: bool,
}

impl Holding {
    fn of_recovery_base(recovery_base: &RecoveryBase) -> Self {
        Self {
            session: recovery_base.session,
            holder: HolderInfo {
                host: recovery_base.host().to_owned(),
                ..HolderInfo::default()
            },
            base: Some(recovery_base.base()),
            has_ended: true,
        }
    }
}

/// Returns the condemned epochs that every session but `but`, and every recovery base, has reached
/// with its base, and the sessions that hold back the others.
///
/// # Errors
/// [`RootError::Store`] if a heartbeat cannot be read from the store.
pub async fn free_epochs(
    handle: &RootHandle,
    root: &Root,
    but: Option<SessionId>,
) -> Result<(Vec<Condemned>, Vec<Holding>), RootError> {
    let (mut least, mut holding) = (u64::MAX, Vec::new());
    let newest = root.condemned.iter().map(|condemned| condemned.epoch).max();
    let Some(newest) = newest else {
        return Ok((Vec::new(), Vec::new()));
    };
    // The first base of a session is the epoch of its registration. It binds only once a heartbeat
    // states it, so an absent heartbeat blocks deletion.
    let sessions = || root.sessions.iter().filter(|(id, _)| Some(**id) != but);
    let ids: Vec<SessionId> = sessions().map(|(id, _)| *id).collect();
    let bases = published_bases(handle, ids).await?;
    for ((id, session), base) in sessions().zip(bases) {
        if base.is_none_or(|base| base < newest) {
            holding.push(Holding {
                session: *id,
                holder: session.holder.clone(),
                base,
                has_ended: false,
            });
        }
        least = least.min(base.unwrap_or(0));
    }
    for recovery_base in root.recovery_bases() {
        if recovery_base.base() < newest {
            holding.push(Holding::of_recovery_base(recovery_base));
        }
        least = least.min(recovery_base.base());
    }
    let free = root
        .condemned
        .iter()
        .filter(|condemned| condemned.epoch <= least);
    Ok((free.copied().collect(), holding))
}

/// Returns the keys of objects other than packs that no root will name any more, with their sizes
/// in bytes. `bucket` must be listed before `root` is read: then the session that wrote such an
/// object has left the root, or its floor is past the object.
pub fn orphans(root: &Root, bucket: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let lists: HashSet<PackName> = list_refs(root).map(|list| list.name).collect();
    let indexes: HashSet<PackName> = root.index.iter().map(|index| index.name).collect();
    let runs: HashSet<PackName> = root.run_names().collect();
    let is_garbage = |key: &str| match place_of(key) {
        NamedObject::Named(Class::List, name) => !lists.contains(&name) && !is_own(root, &name),
        NamedObject::Named(Class::Index, name) => !indexes.contains(&name) && !is_own(root, &name),
        NamedObject::Named(Class::Run, name) => !runs.contains(&name) && !is_own(root, &name),
        NamedObject::Session(id) | NamedObject::Journal { session: id, .. } => {
            !root.sessions.contains_key(&id)
        }
        _ => false,
    };
    let found = bucket.iter().filter(|(key, _)| is_garbage(key));
    found.map(|(key, bytes)| (key.clone(), *bytes)).collect()
}

/// Deletes objects, and returns how many. An object that is already gone is no error. Cancel
/// safety: dropped, it leaves some of them deleted.
///
/// # Errors
/// [`RootError::Store`] if the store refuses a deletion.
pub async fn delete(
    store: &dyn Store,
    keys: impl IntoIterator<Item = String>,
) -> Result<u64, RootError> {
    let deletions = keys.into_iter().map(|key| async move {
        match store.delete(&key).await {
            Ok(()) => Ok(1),
            Err(error) if error.is_not_found() => Ok(0),
            Err(error) => Err(RootError::from(error)),
        }
    });
    let deletions: Vec<_> = deletions.collect();
    futures::stream::iter(deletions)
        .buffer_unordered(DELETES_AT_ONCE)
        .try_fold(0, |sum, count| async move { Ok(sum + count) })
        .await
}

/// A sweep, and what it works with.
pub struct Sweeper<'a> {
    /// The root.
    pub handle: &'a RootHandle,
    /// Reads index objects.
    pub verifier: &'a Verifier,
    /// Writes index objects and lists.
    pub ingest: &'a Ingest,
    /// The collector's session.
    pub session: SessionId,
}

impl Sweeper<'_> {
    /// Carries out steps `Sweep` and `ForgetEpoch` of the model, for epochs that [`free_epochs`]
    /// has found free. Returns the number of deleted packs.
    ///
    /// `keys` are the keys of all packs of these epochs that may be in the bucket, but for the
    /// packs in `kept`. A lock protects those: they stay condemned, in the newest of these epochs.
    ///
    /// Cancel safety: dropped half-way, it leaves deleted packs whose epoch is still in the root,
    /// and the next collection deletes them again.
    ///
    /// # Errors
    /// [`RootError::Store`] or [`RootError::Content`] if the store fails, [`RootError::Damaged`] or
    /// [`RootError::Unopenable`] if a list of condemned packs cannot be read, and those of
    /// [`RootHandle::update`]. No epoch is forgotten then, unless it is
    /// [`RootError::OutcomeUnknown`].
    pub async fn sweep(
        &self,
        free: &[Condemned],
        keys: Vec<String>,
        kept: BTreeSet<PackName>,
    ) -> Result<u64, RootError> {
        let handle = self.handle;
        let refs: Vec<_> = free.iter().map(|condemned| condemned.list).collect();
        let lists = Lists::new(handle.store().clone(), handle.keyring().clone());
        let shards = lists.pack_shards(&refs).await?;
        let names = shards
            .iter()
            .flat_map(|shard| shard.iter())
            .map(|entry| entry.0);
        let (kept, gone): (BTreeSet<_>, BTreeSet<_>) = names.partition(|name| kept.contains(name));
        let store = handle.store();
        let deleted = delete(&**store, keys.iter().cloned()).await?;
        let heads = keys.iter().map(|key| async move { store.head(key).await });
        let heads: Vec<_> = futures::stream::iter(heads.collect::<Vec<_>>())
            .buffer_unordered(DELETES_AT_ONCE)
            .collect()
            .await;
        if !heads
            .iter()
            .all(|head| head.as_ref().is_err_and(|error| error.is_not_found()))
        {
            tracing::warn!("some condemned packs are still there: their epoch is not forgotten");
            return Ok(deleted);
        }
        if gone.is_empty() && free.len() < LOCKED_EPOCHS_MAX {
            return Ok(deleted);
        }
        let newest = free.iter().map(|condemned| condemned.epoch).max();
        let left = match newest.filter(|_| !kept.is_empty()) {
            None => None,
            Some(epoch) => {
                let entries = kept.into_iter().map(PackEntry).collect();
                let list = put_shard(self.ingest, entries).await?;
                Some(Condemned { epoch, list })
            }
        };
        let mut forget = ForgetEpochs {
            handle,
            session: self.session,
            verifier: self.verifier,
            ingest: self.ingest,
            free,
            gone,
            left,
        };
        handle.update(&mut forget).await?;
        Ok(deleted)
    }
}

/// Index objects that are written anew without gone packs.
#[derive(Default)]
struct Leaving {
    absorbed: Vec<IndexRef>,
    kept: Vec<PackContents>,
    /// The gone packs that they named.
    gone: BTreeSet<PackName>,
    known: BTreeSet<PackName>,
}

impl Leaving {
    fn take(&mut self, index: IndexRef, packs: Vec<PackContents>, gone: &BTreeSet<PackName>) {
        self.absorbed.push(index);
        for pack in packs {
            let name = pack.name();
            if gone.contains(&name) {
                self.gone.insert(name);
            } else if self.known.insert(name) {
                self.kept.push(pack);
            }
        }
    }
}

/// The replacement of the root: step `ForgetEpoch` of the model.
struct ForgetEpochs<'a> {
    handle: &'a RootHandle,
    session: SessionId,
    verifier: &'a Verifier,
    ingest: &'a Ingest,
    free: &'a [Condemned],
    gone: BTreeSet<PackName>,
    /// The locked packs, condemned in the newest of the epochs. All bases have reached it, so they
    /// are as free as before.
    left: Option<Condemned>,
}

impl ForgetEpochs<'_> {
    /// Writes index objects anew.
    async fn rewritten(&self, leaving: Leaving) -> Result<IndexChange, RootError> {
        let added = match leaving.kept.is_empty() {
            true => Vec::new(),
            false => self.ingest.put_index(&leaving.kept).await?,
        };
        Ok(IndexChange {
            absorbed: leaving.absorbed,
            added,
        })
    }

    /// Writes index objects anew that groups of runs cover. The groups cover the new ones, and know
    /// that their runs may name the gone packs in vain (docs/PROTOCOL.md, rule 12). A group whose
    /// list of such packs cannot be read leaves the root.
    async fn forget_covered(
        &self,
        next: &mut Root,
        leaving: BTreeMap<Vec<u64>, Leaving>,
    ) -> Result<(), RootError> {
        let mut gone: BTreeMap<u64, BTreeSet<PackName>> = BTreeMap::new();
        for (groups, leaving) in &leaving {
            for begun in groups {
                gone.entry(*begun).or_default().extend(&leaving.gone);
            }
        }
        let lists = Lists::new(self.handle.store().clone(), self.handle.keyring().clone());
        let (mut dropped, mut unreadable) = (BTreeMap::new(), Vec::new());
        for (begun, mut gone) in gone {
            let groups = next.run_groups();
            let group = groups.iter().find(|group| group.begun == begun);
            let before = group.and_then(|group| group.dropped);
            match lists.dropped(before).await {
                Ok(before) => gone.extend(before.iter()),
                Err(error) if error.is_of_one_object() => {
                    tracing::warn!(%error, "a group of runs is given up");
                    unreadable.push(begun);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let entries = gone.into_iter().map(PackEntry).collect();
            dropped.insert(begun, put_shard(self.ingest, entries).await?);
        }
        let mut changes = Vec::new();
        for (groups, leaving) in leaving {
            let index = self.rewritten(leaving).await?;
            changes.push(CoveredChange { groups, index });
        }
        next.forget_covered(&changes, &dropped)?;
        for begun in unreadable {
            next.drop_group(begun);
        }
        Ok(())
    }
}

#[async_trait]
impl Transition for ForgetEpochs<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        // The packs of an epoch that another collector has forgotten are gone, and left the index
        // with it.
        let before = next.condemned.len();
        next.condemned
            .retain(|condemned| !self.free.contains(condemned));
        // If another collector has forgotten all of them, a list of its own holds the locked packs.
        if next.condemned.len() < before {
            next.condemned.extend(self.left);
            next.condemned.sort_by_key(|condemned| condemned.epoch);
        }
        let merges = next.index.len() > INDEXES_MAX;
        // Index objects that the same groups of runs cover become one, so that they cover that.
        let mut leaving: BTreeMap<Vec<u64>, Leaving> = BTreeMap::new();
        for index in next.index.clone() {
            let packs = self.verifier.index(index).await?;
            let groups = next.groups_of(&index.name);
            let holds_gone = packs.iter().any(|pack| self.gone.contains(&pack.name()));
            let is_small = merges && groups.is_empty() && index.bytes < SMALL_INDEX_BYTES;
            if holds_gone || is_small {
                let leaving = leaving.entry(groups).or_default();
                leaving.take(index, packs, &self.gone);
            }
        }
        let uncovered = leaving.remove(&Vec::new()).unwrap_or_default();
        self.forget_covered(next, leaving).await?;
        let change = self.rewritten(uncovered).await?;
        Ok(next.change_index(&change)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let stands = |condemned: &Condemned| root.condemned.contains(condemned);
        Ok(!self.free.iter().any(stands))
    }
}
