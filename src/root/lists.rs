//! List objects: how they are loaded, cached and written.
//!
//! Owns the cache of decoded lists and the writing of lists by sessions that upload nothing else.
//! Lists are immutable, so a cache entry never goes stale. [`super::snapshots`] defines the
//! entries; the root says which lists are current.

use super::chain::NonceEntry;
use super::error::RootError;
use super::reading::open_root;
use super::refusal::Refusal;
use super::retry::{RetryPolicy, create_surely};
use super::shard::{ListEntry, ListRef, decode_shard, encode_shard};
use super::snapshots::{PackEntry, QuarantineEntry, SnapshotEntry, SnapshotList, TrashEntry};
use super::state::{ROOT_KEY, Root, SessionId};
use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexSources, PackLocation, RunGroup};
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_chunker::pack::PackName;
use bkfs_store::Store;
use bkfs_store::entropy::Entropy;
use lru::LruCache;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The number of decoded shards in the cache, per kind of list. Several roots fit, because one root
/// refers to fewer shards.
const CACHED_SHARDS: NonZeroUsize = match NonZeroUsize::new(64) {
    Some(count) => count,
    None => NonZeroUsize::MIN,
};

/// Writes list objects for a session, under names of that session. A root may only name a list
/// whose name was returned here.
#[async_trait]
pub trait ListWriter: Send + Sync {
    /// Stores a list with this payload, and returns its name once it is in the bucket.
    ///
    /// Cancel safety: dropped, it leaves nothing, or a list in the bucket that no root names.
    ///
    /// # Errors
    /// [`RootError::Store`] or [`RootError::Content`] if the store does not acknowledge the object.
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError>;
}

/// Loads the lists that roots refer to. Cheap to clone.
///
/// Cancel safety: every method only reads, and leaves nothing when dropped.
#[derive(Clone, Debug)]
pub struct Lists(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    keyring: Keyring,
    snapshots: Mutex<LruCache<PackName, Arc<Vec<SnapshotEntry>>>>,
    trash: Mutex<LruCache<PackName, Arc<Vec<TrashEntry>>>>,
    packs: Mutex<LruCache<PackName, Arc<Vec<PackEntry>>>>,
    quarantine: Mutex<LruCache<PackName, Arc<Vec<QuarantineEntry>>>>,
    nonces: Mutex<LruCache<PackName, Arc<Vec<NonceEntry>>>>,
    dropped: Mutex<LruCache<PackName, Arc<HashSet<PackName>>>>,
}

impl Lists {
    /// Returns a loader of lists from `store`, opened with `keyring`.
    pub fn new(store: Arc<dyn Store>, keyring: Keyring) -> Self {
        let inner = Inner {
            store,
            keyring,
            snapshots: Mutex::new(LruCache::new(CACHED_SHARDS)),
            trash: Mutex::new(LruCache::new(CACHED_SHARDS)),
            packs: Mutex::new(LruCache::new(CACHED_SHARDS)),
            quarantine: Mutex::new(LruCache::new(CACHED_SHARDS)),
            nonces: Mutex::new(LruCache::new(CACHED_SHARDS)),
            dropped: Mutex::new(LruCache::new(CACHED_SHARDS)),
        };
        Self(Arc::new(inner))
    }

    /// Returns the kept snapshots of `root`.
    ///
    /// # Errors
    /// - [`RootError::Store`] if a list cannot be fetched. A list that is not found means that the
    ///   root has been replaced since.
    /// - [`RootError::Unopenable`] if a list does not open with the keys of the repository.
    /// - [`RootError::Damaged`] if a list cannot be decoded, or has another number of entries than
    ///   the root says.
    pub async fn snapshots(&self, root: &Root) -> Result<SnapshotList, RootError> {
        Ok(SnapshotList::new(
            self.snapshot_shards(&root.snapshots).await?,
        ))
    }

    /// Returns the shards `refs` of a list of snapshots.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn snapshot_shards(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<SnapshotEntry>>>, RootError> {
        self.load(&self.0.snapshots, refs).await
    }

    /// Keeps a shard that this process has stored, so that the next snapshot need not fetch it.
    pub(super) fn keep_snapshots(&self, list: &ListRef, entries: Vec<SnapshotEntry>) {
        self.0.snapshots.lock().put(list.name, Arc::new(entries));
    }

    /// Returns the shards `refs` of a list of forgotten snapshots.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn trash_shards(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<TrashEntry>>>, RootError> {
        self.load(&self.0.trash, refs).await
    }

    /// Returns all packs that `root` names as condemned. Every caller that stores, collects or
    /// deletes needs all of them.
    ///
    /// # Errors
    /// [`RootError::CondemnedUnknown`] if one of the lists is missing or cannot be read;
    /// [`RootError::Store`] for every other failure of the store.
    pub async fn condemned(&self, root: &Root) -> Result<HashSet<PackName>, RootError> {
        self.condemned_but(root, &HashSet::new()).await
    }

    /// Same as [`Lists::condemned`], without the lists named in `lost`.
    ///
    /// # Errors
    /// Those of [`Lists::condemned`], for the other lists.
    pub async fn condemned_but(
        &self,
        root: &Root,
        lost: &HashSet<PackName>,
    ) -> Result<HashSet<PackName>, RootError> {
        let mut found = HashSet::new();
        for condemned in &root.condemned {
            let list = condemned.list;
            if lost.contains(&list.name) {
                continue;
            }
            match self.pack_shards(&[list]).await {
                Ok(shards) => found.extend(names(&shards)),
                Err(error) if error.is_of_one_object() => {
                    return Err(RootError::CondemnedUnknown {
                        key: list.name.key(Class::List),
                        reason: error.to_string(),
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the packs that `root` names as condemned, from the lists that can be read. This is
    /// enough for readers, which only prefer other copies to those that may be deleted at any time.
    ///
    /// # Errors
    /// [`RootError::Store`] if the store fails in a way that does not concern one list alone.
    pub async fn known_condemned(&self, root: &Root) -> Result<HashSet<PackName>, RootError> {
        let mut found = HashSet::new();
        for condemned in &root.condemned {
            match self.pack_shards(&[condemned.list]).await {
                Ok(shards) => found.extend(names(&shards)),
                Err(error) if error.is_of_one_object() => {
                    tracing::warn!(%error,
                        "a list of condemned packs cannot be read, which reading does not need");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns those shards `refs` of a list of forgotten snapshots that can be read.
    ///
    /// # Errors
    /// [`RootError::Store`] if the store fails in a way that does not concern one list alone.
    pub async fn known_trash(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<TrashEntry>>>, RootError> {
        let mut found = Vec::new();
        for list in refs {
            match self.trash_shards(&[*list]).await {
                Ok(shards) => found.extend(shards),
                Err(error) if error.is_of_one_object() => {
                    tracing::warn!(%error, "a list of forgotten snapshots cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the shards `refs` of a list of packs.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn pack_shards(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<PackEntry>>>, RootError> {
        self.load(&self.0.packs, refs).await
    }

    /// Returns the shards `refs` of a list of quarantined places.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn quarantine_shards(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<QuarantineEntry>>>, RootError> {
        self.load(&self.0.quarantine, refs).await
    }

    /// Returns the parts `refs` of a chain of generations.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn nonce_shards(
        &self,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<NonceEntry>>>, RootError> {
        self.load(&self.0.nonces, refs).await
    }

    /// Returns all places that `root` has in quarantine.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn quarantine(&self, root: &Root) -> Result<HashSet<PackLocation>, RootError> {
        let shards = self.quarantine_shards(&root.quarantine).await?;
        let entries = shards.iter().flat_map(|shard| shard.iter());
        Ok(entries
            .map(|entry| PackLocation {
                pack: entry.pack,
                frame: entry.frame,
            })
            .collect())
    }

    /// Returns where `root` says that blobs are: by the groups of runs, and by the index objects that
    /// no group covers. A group whose list of dropped packs cannot be read is left out, and the index
    /// objects that it covers are not.
    ///
    /// # Errors
    /// [`RootError::Store`] if the store fails in a way that does not concern one list alone, or if a
    /// list is not found and the newest root does not name it: a collection has deleted it.
    pub async fn sources(&self, root: &Root) -> Result<IndexSources, RootError> {
        let mut sources = IndexSources::of_objects(&root.index);
        for group in root.complete_groups() {
            let dropped = match self.dropped(group.dropped).await {
                Ok(dropped) => dropped,
                Err(error)
                    if error.wants_newer_root() && self.is_named_no_more(group.dropped).await =>
                {
                    return Err(error);
                }
                Err(error) if error.is_of_one_object() => {
                    tracing::warn!(%error, "a group of runs is not used");
                    continue;
                }
                Err(error) => return Err(error),
            };
            let covers = root.covered_by(group);
            sources.objects.retain(|index| !covers.contains(index));
            sources.groups.push(RunGroup {
                covers,
                runs: group.runs.clone(),
                dropped,
            });
        }
        Ok(sources)
    }

    /// Returns true if the newest root has no group with this list of dropped packs. False if that
    /// cannot be found out now.
    async fn is_named_no_more(&self, dropped: Option<ListRef>) -> bool {
        let Ok((object, version)) = self.0.store.get(ROOT_KEY).await else {
            return false;
        };
        let newest = open_root(&self.0.keyring, &object, version);
        newest.is_ok_and(|newest| {
            let mut groups = newest.root.run_groups().iter();
            groups.all(|group| group.dropped != dropped)
        })
    }

    /// Returns the packs in a list of dropped packs. A list that does not open or decode is read once
    /// more, since an answer may be damaged on its way.
    ///
    /// # Errors
    /// Those of [`Lists::snapshots`].
    pub async fn dropped(
        &self,
        list: Option<ListRef>,
    ) -> Result<Arc<HashSet<PackName>>, RootError> {
        let Some(list) = list else {
            return Ok(Arc::default());
        };
        if let Some(known) = self.0.dropped.lock().get(&list.name) {
            return Ok(known.clone());
        }
        let shards = match self.pack_shards(&[list]).await {
            Err(RootError::Damaged { .. } | RootError::Unopenable { .. }) => {
                self.pack_shards(&[list]).await?
            }
            read => read?,
        };
        let dropped: Arc<HashSet<PackName>> = Arc::new(names(&shards).collect());
        self.0.dropped.lock().put(list.name, dropped.clone());
        Ok(dropped)
    }

    async fn load<T: ListEntry>(
        &self,
        cache: &Mutex<LruCache<PackName, Arc<Vec<T>>>>,
        refs: &[ListRef],
    ) -> Result<Vec<Arc<Vec<T>>>, RootError> {
        let loads = refs.iter().map(async |list| {
            let cached = cache.lock().get(&list.name).cloned();
            match cached {
                Some(shard) => Ok(shard),
                None => self.load_one(cache, list).await,
            }
        });
        // A list has few shards, and each is small.
        futures::future::try_join_all(loads).await
    }

    async fn load_one<T: ListEntry>(
        &self,
        cache: &Mutex<LruCache<PackName, Arc<Vec<T>>>>,
        list: &ListRef,
    ) -> Result<Arc<Vec<T>>, RootError> {
        let key = list.name.key(Class::List);
        let (object, _) = self.0.store.get(&key).await?;
        let payload = self
            .0
            .keyring
            .open_object(Class::List, &key, &object)
            .map_err(|source| RootError::Unopenable {
                key: key.clone(),
                source,
            })?;
        let entries =
            decode_shard::<T>(&payload).map_err(|reason| RootError::damaged(&key, reason))?;
        if entries.len() != list.count as usize {
            return Err(RootError::damaged(
                &key,
                format!(
                    "{} entries where the root says {}",
                    entries.len(),
                    list.count
                ),
            ));
        }
        let shard = Arc::new(entries);
        cache.lock().put(list.name, shard.clone());
        Ok(shard)
    }
}

/// Returns the packs that these shards name.
fn names(shards: &[Arc<Vec<PackEntry>>]) -> impl Iterator<Item = PackName> + '_ {
    let entries = shards.iter().flat_map(|shard| shard.iter());
    entries.map(|entry| entry.0)
}

/// Stores one list of these entries. Returns none if there are no entries.
///
/// Cancel safety: as [`put_shard`].
///
/// # Errors
/// As [`put_shard`].
pub(crate) async fn put_entries<T: ListEntry>(
    writer: &dyn ListWriter,
    entries: Vec<T>,
) -> Result<Option<ListRef>, RootError> {
    match entries.is_empty() {
        true => Ok(None),
        false => Ok(Some(put_shard(writer, entries).await?)),
    }
}

/// Stores entries as a new list object, and returns the reference by which a root names it.
///
/// Cancel safety: dropped, it leaves nothing, or a list in the bucket that no root names.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Full`] if there are more than `u32::MAX` entries; the
/// errors of [`ListWriter::put_list`].
pub(crate) async fn put_shard<T: ListEntry>(
    writer: &dyn ListWriter,
    entries: Vec<T>,
) -> Result<ListRef, RootError> {
    let count = u32::try_from(entries.len()).map_err(|_| Refusal::Full {
        what: "entries of a list",
    })?;
    let payload = encode_shard(entries);
    let bytes = payload.len() as u64;
    Ok(ListRef {
        name: writer.put_list(payload).await?,
        count,
        bytes,
    })
}

/// Writes lists for a session that uploads nothing else, such as one that forgets snapshots. It
/// numbers the lists itself.
#[derive(Debug)]
pub struct DirectLists {
    store: Arc<dyn Store>,
    keyring: Keyring,
    entropy: Arc<dyn Entropy>,
    policy: RetryPolicy,
    session: SessionId,
    sequence: AtomicU32,
}

impl DirectLists {
    /// Returns the writer of `session`, which is registered in the root and has written nothing
    /// yet.
    pub(super) fn of(
        session: SessionId,
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        policy: RetryPolicy,
    ) -> Self {
        Self {
            store,
            keyring,
            entropy,
            policy,
            session,
            sequence: AtomicU32::new(0),
        }
    }

    /// Returns the writer of one list that is independent of everything else that the session
    /// writes. Its sequence number is the highest, so no floor passes it.
    pub(super) fn last(self) -> Self {
        Self {
            sequence: AtomicU32::new(u32::MAX),
            ..self
        }
    }

    /// Returns a loader of the lists in the same store.
    pub(super) fn loader(&self) -> Lists {
        Lists::new(self.store.clone(), self.keyring.clone())
    }

    /// Returns the time after which a single request counts as unanswered.
    pub(super) fn request_timeout(&self) -> Duration {
        self.policy.request_timeout
    }
}

#[async_trait]
impl ListWriter for DirectLists {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        let mut salt = [0; 32];
        self.entropy.fill(&mut salt);
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let name = PackName {
            session: self.session.0,
            sequence,
            random: u32::from_le_bytes(random),
        };
        let key = name.key(Class::List);
        let object = self
            .keyring
            .seal_object(Class::List, &key, Features::NONE, salt, &payload);
        create_surely(&*self.store, &self.policy, &*self.entropy, &key, &object).await?;
        Ok(name)
    }
}
