//! The content store of one repository: store, keyring, local index, caches and workers, behind a
//! handle that is cheap to clone.
//!
//! Owns the opening of these parts, and connects the index and the read path to them. Does not know
//! roots, sessions or files: the caller says which index objects are current.

mod pinning;
mod prefetching;
mod read;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bkfs_store::Store;
use bkfs_store::entropy::Entropy;
use bkfs_store::urgency::Urgency;

use crate::cache::{DiskCache, make_directory};
use crate::catalog::{
    Catalog, IndexSources, ListedCopies, NewerIndex, OpenedRun, PackLocation, RunRef, TableFiles,
};
use crate::crypto::Keyring;
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::hydrate::{Reader, ReaderParts};
use crate::id::{Id, Prefix};
use crate::metrics::Metrics;
use crate::pack::PackName;
use crate::pins::Pins;
use crate::runtime::Runtime;
use crate::store_client::StoreClient;
use crate::verify::PackContents;
use crate::workers::Workers;

pub use crate::config::{Compression, ContentStoreConfig};
pub use pinning::{PinFacts, PinPlan, PinProgress};
pub use prefetching::{PrefetchCounts, PrefetchList};
pub use read::Prefetch;

/// Loads the newest root's index when an object is not where the current index says
/// (docs/PROTOCOL.md, rule 10).
#[async_trait]
pub trait Renew: Send + Sync + std::fmt::Debug {
    /// Loads the newest index into `content_store`. Returns false if that was not possible.
    async fn renew(&self, content_store: &ContentStore) -> bool;
}

/// A repository as one process sees it. Cheap to clone: all clones share index, caches and workers.
#[derive(Clone, Debug)]
pub struct ContentStore {
    shared: Arc<Runtime>,
    renew: Arc<OnceLock<Arc<dyn Renew>>>,
    /// How soon the callers of this handle need what they read.
    urgency: Urgency,
}

impl ContentStore {
    /// Records that the store answered a request that did not go through this depot. Callers that
    /// wait for the store here then see progress, and no silence.
    pub fn note_answer(&self) {
        self.shared.link.progress.note();
    }

    /// Makes waiting calls treat a refusing store like a silent one: they wait for up to
    /// `timeout_ms`. For callers that have accepted data which must not be dropped.
    pub fn bear_refusals(&self) {
        self.shared.link.bear_refusals();
    }

    /// Opens a content store over `store` with an empty index. Call [`ContentStore::load_index`]
    /// with the root's list before any read.
    ///
    /// # Errors
    /// - [`ContentError::CacheDirectory`] if the cache directory cannot be created or used.
    /// - [`ContentError::Internal`] if the operating system refuses a thread.
    pub fn open(
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        mut config: ContentStoreConfig,
    ) -> Result<Self, ContentError> {
        config.memory = config.memory.at_least_workable();
        let limits = (config.uploads, config.downloads);
        let timeout = Duration::from_millis(config.timeout_ms);
        let link = Arc::new(StoreClient::new(store, entropy, limits, timeout).at(config.rates));
        let workers = match config.workers {
            0 => Workers::inline(),
            threads => Workers::pool(threads)
                .map_err(|_| ContentError::Internal("the system gives no threads"))?,
        };
        let (mut files, mut disk, mut pins, mut decoded_in) = (None, None, None, None);
        if let Some(directory) = &config.cache_dir {
            let opened = open_cache(directory, &keyring, config.cache_bytes)?;
            link.counters.disk_cache_bytes.set(opened.disk.used());
            files = Some(opened.files);
            disk = Some(Arc::new(opened.disk));
            pins = Some(Arc::new(opened.pins));
            decoded_in = Some(opened.root);
        }
        let fetch_gate = Arc::new(ByteGate::new(config.memory.in_flight_bytes()));
        let catalog = Arc::new(Catalog::new(
            files,
            keyring.clone(),
            workers.clone(),
            Arc::clone(&link),
            Arc::clone(&fetch_gate),
        ));
        let reader = Arc::new(Reader::new(ReaderParts {
            link: Arc::clone(&link),
            keyring: keyring.clone(),
            workers: workers.clone(),
            catalog: Arc::clone(&catalog),
            disk,
            decoded_in,
            pins,
            saves_requests: config.saves_requests,
            fetch_gate,
            memory: config.memory,
        }));
        reader.heed_pins();
        let shared = Runtime {
            cutter: keyring.cutter(&config.parameters),
            link,
            keyring,
            config,
            workers,
            catalog,
            reader,
        };
        Ok(Self {
            shared: Arc::new(shared),
            renew: Arc::default(),
            urgency: Urgency::Now,
        })
    }

    /// Returns the keys that name, seal and open the repository's objects.
    pub fn keyring(&self) -> &Keyring {
        &self.shared.keyring
    }

    /// Returns the object store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.link.store
    }

    /// Returns the source of salts and of the random part of names.
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.shared.link.entropy
    }

    /// Returns the configuration of this content store, with the memory limits raised to their
    /// workable minimum.
    pub fn config(&self) -> &ContentStoreConfig {
        &self.shared.config
    }

    /// Returns the counters of this content store so far.
    pub fn metrics(&self) -> Metrics {
        self.shared.link.counters.snapshot()
    }

    /// Makes the local index match what the root says: downloads missing index objects and drops
    /// those that are no longer listed. Index objects that a group of runs answers for are not
    /// downloaded: the runs are asked when a look-up needs them.
    ///
    /// Cheap if nothing has changed. Readers still find blobs in `condemned` packs, but no new
    /// reference to them is made.
    ///
    /// All or nothing: after an error the previous index stays in use.
    ///
    /// # Errors
    /// - [`ContentError::Missing`] if an index object does not exist any more, because the list is
    ///   outdated.
    /// - [`ContentError::Damaged`] or [`ContentError::Unreadable`] if an index object cannot be
    ///   opened.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    /// - [`ContentError::Internal`] if a worker's job panics or a new table does not open.
    pub async fn load_index(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
    ) -> Result<(), ContentError> {
        self.shared.catalog.load(sources, condemned).await
    }

    /// Prepares for matching new data with what runs have: from the next
    /// [`ContentStore::load_index`] on, filters of the runs are read into memory, as far as
    /// [`MemoryBudget::filter_bytes`](crate::budget::MemoryBudget::filter_bytes) allows. If they need
    /// more, a sample of the blobs is looked up, and the footers of the packs that hold these answer
    /// for their neighbours.
    pub fn match_new_data(&self) {
        self.shared
            .catalog
            .match_within(self.config().memory.filter_bytes());
    }

    /// Returns those of `packs` that no loaded index object lists or that are condemned.
    ///
    /// Rule 3 requires this check of everything that a commit relies on, after
    /// [`ContentStore::load_index`] with the list of the root that is replaced.
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn not_live<'a>(
        &self,
        packs: impl IntoIterator<Item = &'a PackName>,
    ) -> Result<Vec<PackName>, ContentError> {
        let mut packs: Vec<PackName> = packs.into_iter().copied().collect();
        let mut is_live = Vec::with_capacity(packs.len());
        for pack in &packs {
            is_live.push(self.is_live(pack).await?);
        }
        let mut is_live = is_live.into_iter();
        packs.retain(|_| is_live.next() == Some(false));
        Ok(packs)
    }

    /// Returns a pack that new data may refer to for a blob, if there is one: it is live, and its copy
    /// is not known to be damaged. What is in memory is asked first, and then the runs.
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn live_pack(&self, id: &Id) -> Result<Option<PackName>, ContentError> {
        let catalog = &self.shared.catalog;
        match catalog.find_live_now(id) {
            Ok(found) => Ok(found),
            Err(_) => catalog.find_live(id).await,
        }
    }

    /// Returns true if a loaded index object lists the pack and it is not condemned
    /// (docs/PROTOCOL.md, rule 3).
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn is_live(&self, pack: &PackName) -> Result<bool, ContentError> {
        self.shared.catalog.is_live(pack).await
    }

    /// Returns true if a loaded index object lists the pack, condemned or not.
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn is_listed(&self, pack: &PackName) -> Result<bool, ContentError> {
        self.shared.catalog.is_listed(pack).await
    }

    /// Returns true if any place is known to be damaged: it is in quarantine, or a read found
    /// damage there.
    pub fn knows_damage(&self) -> bool {
        self.shared.catalog.knows_damage()
    }

    /// Replaces the set of quarantined places (docs/PROTOCOL.md, rule 11).
    ///
    /// New data is never deduplicated against a quarantined place, so the data is stored again.
    /// Readers try every other copy first.
    pub fn set_quarantine(&self, places: HashSet<PackLocation>) {
        self.shared.catalog.set_quarantine(places);
    }

    /// Returns all copies of a blob in the loaded index, those in condemned packs and damaged
    /// frames included.
    ///
    /// # Errors
    /// If a table of the local index is damaged, and its index object cannot be fetched again:
    /// - [`ContentError::Index`] if the index object does not exist any more or cannot be opened.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    /// - [`ContentError::Internal`] if a worker's job panics or a new table does not open.
    pub async fn places(&self, id: &Id) -> Result<Vec<PackLocation>, ContentError> {
        self.shared.catalog.places(&id.prefix()).await
    }

    /// Returns all copies of a blob as (pack, frame, slot in the frame) in the loaded index, those
    /// in condemned packs included.
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn slots_of(
        &self,
        prefix: &Prefix,
    ) -> Result<Vec<(PackName, u16, u16)>, ContentError> {
        self.shared.catalog.slots(prefix).await
    }

    /// Returns all copies of many blobs in the loaded index, by index object, those in condemned
    /// packs included. One pass over each table answers for all of them.
    ///
    /// `asked` is sorted, has each prefix once, and has fewer than 2³² of them.
    ///
    /// # Errors
    /// Those of [`ContentStore::places`].
    pub async fn copies_of(
        &self,
        asked: &Arc<[Prefix]>,
    ) -> Result<Vec<ListedCopies>, ContentError> {
        self.shared.catalog.copies_of(asked).await
    }

    /// Opens a run of the bucket, for look-ups in it. The loaded index does not change.
    ///
    /// # Errors
    /// [`ContentError::Damaged`] if its header or directory does not open.
    /// [`ContentError::Missing`], [`ContentError::Store`] or [`ContentError::Stalled`] if it cannot
    /// be read.
    pub async fn open_run(&self, reference: RunRef) -> Result<OpenedRun, ContentError> {
        self.shared.catalog.open_run(reference).await
    }

    /// Returns all copies of the blob with this prefix in the packs of
    /// [`ContentStore::load_packs`], which are in memory. An index that
    /// [`ContentStore::load_index`] has loaded from files is not asked.
    pub fn places_in_memory(&self, prefix: &Prefix) -> Vec<PackLocation> {
        self.shared.catalog.places_in_memory(prefix)
    }

    /// Makes exactly these packs the index, whatever the root lists: for inspection of a damaged
    /// repository. About 24 bytes of memory for each blob stay in use.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if a worker's job panics or the new table does not open.
    pub async fn load_packs(&self, packs: &[PackContents]) -> Result<(), ContentError> {
        let records = packs.iter().map(|pack| pack.0.clone()).collect();
        self.shared.catalog.load_records(records, false).await
    }

    /// Adds packs to those of [`ContentStore::load_packs`], which must not hold them yet. Takes as
    /// much memory, and while it runs twice as much for the packs that it adds.
    ///
    /// # Errors
    /// As [`ContentStore::load_packs`].
    pub async fn add_packs(&self, packs: Vec<PackContents>) -> Result<(), ContentError> {
        let records = packs.into_iter().map(|pack| pack.0).collect();
        self.shared.catalog.load_records(records, true).await
    }

    /// Sets the source of newer indexes. From then on, a read that does not find a blob or its pack
    /// loads a newer index and starts again. Only the first call has an effect.
    pub fn renew_by(&self, renew: Arc<dyn Renew>) {
        self.shared.catalog.renew_by(Box::new(NewestIndex {
            shared: Arc::downgrade(&self.shared),
            renew: Arc::clone(&renew),
        }));
        // A repository has one source.
        let _ = self.renew.set(renew);
    }

    pub(crate) fn shared(&self) -> &Arc<Runtime> {
        &self.shared
    }
}

/// Loads what the newest root says into the content store that has the index.
#[derive(Debug)]
struct NewestIndex {
    shared: Weak<Runtime>,
    renew: Arc<dyn Renew>,
}

#[async_trait]
impl NewerIndex for NewestIndex {
    async fn load(&self) {
        if let Some(shared) = self.shared.upgrade() {
            let content_store = ContentStore {
                shared,
                renew: Arc::default(),
                urgency: Urgency::Now,
            };
            self.renew.renew(&content_store).await;
        }
    }
}

/// What a cache directory has of one repository.
struct OpenedCache {
    root: PathBuf,
    files: TableFiles,
    disk: DiskCache,
    pins: Pins,
}

/// Opens the on-disk index tables, frame cache and pins of one repository.
fn open_cache(
    directory: &Path,
    keyring: &Keyring,
    bytes: u64,
) -> Result<OpenedCache, ContentError> {
    let root = directory.join(keyring.repository().to_string());
    let open = || {
        make_directory(&root)?;
        let files = TableFiles::open_directory(&root)?;
        let pins = Pins::open(&root, keyring.clone())?;
        let disk = DiskCache::open(&root, bytes.saturating_sub(pins.disk_bytes()))?;
        disk.limit_to(bytes);
        let root = root.clone();
        Ok(OpenedCache {
            root,
            files,
            disk,
            pins,
        })
    };
    open().map_err(|error: std::io::Error| ContentError::CacheDirectory {
        path: root.display().to_string(),
        source: Arc::new(error),
    })
}

#[cfg(test)]
mod tests;
