//! The local index: which pack holds a blob.
//!
//! Owns the index objects that the root lists, as sorted tables on disk or in memory. Also owns the
//! sets of condemned packs, quarantined places and frames that were found damaged. Does not decide
//! which index objects are current: the caller passes the root's list. `lookup` owns what is asked
//! of the tables, and `many` the look-ups of many blobs at once.

mod by_runs;
mod describe;
mod files;
mod learned;
mod load;
mod loaded;
mod lookup;
mod many;
mod merge;
mod opened_run;
mod reference;
mod run_group;
mod run_searcher;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::cache::MemoryCache;
use crate::crypto::{Class, Keyring};
use crate::error::ContentError;
use crate::gate::{ByteGate, Reservation};
use crate::index::{self, PackRecord, Table, TableBuilder, TableKey};
use crate::pack::PackName;
use crate::store_client::StoreClient;
use crate::workers::{Scratch, Workers};

pub(crate) use by_runs::RunSearch;
pub(crate) use describe::describe;
pub(crate) use files::{TableBytes, TableFiles};
pub(crate) use loaded::{Candidate, Loaded, Location};
pub(crate) use lookup::Unsettled;
pub use many::{ListedCopies, ListedCopy};
pub use merge::{MergeInput, MergedRun, NewRun, merge};
pub use opened_run::{OpenedRun, Records, RunRecord};
use opened_run::{RunCaches, RunStore};
pub use reference::{IndexRef, IndexSources, RunGroup, RunRef, name_bytes};
use run_group::LoadedGroup;
use run_searcher::{Reason, RunSearcher};

/// Bytes of memory that loading takes for each byte of the decoded object: the object and its table
/// under construction.
const LOADING_FACTOR: u64 = 4;

/// Bytes of decoded index objects that are cached, so that the next seal absorbs them without a
/// fetch.
const RECENT_BYTES: u64 = 8 << 20;

/// Maximum number of damaged frames that are remembered. Reads find further ones again.
const DAMAGED_FRAMES: usize = 1 << 16;

/// A frame of a pack, or all frames of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackLocation {
    /// The pack.
    pub pack: PackName,
    /// The number of the frame. `None` stands for all frames.
    pub frame: Option<u16>,
}

/// Loads what the newest root says, for look-ups that miss an object of the loaded one.
#[async_trait]
pub(crate) trait NewerIndex: Send + Sync + std::fmt::Debug {
    /// Loads it. Does nothing if that is not possible.
    async fn load(&self);
}

/// A new index object that no root lists yet.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) records: Arc<Vec<PackRecord>>,
}

#[derive(Debug, Clone, Default)]
struct CatalogTables {
    tables: Vec<Arc<Loaded>>,
    /// Groups of runs that answer for index objects without a table.
    groups: Vec<Arc<LoadedGroup>>,
    /// All packs that were ever reported as condemned, about 30 bytes each.
    ///
    /// No pack ever becomes live again. A caller may load an older root after a newer one, or learn
    /// late that an earlier commit was applied. Neither may make a pack look live that the
    /// session's published base no longer protects.
    condemned: HashSet<PackName>,
}

/// All tables in use.
#[derive(Debug)]
pub(crate) struct Catalog {
    files: Option<TableFiles>,
    keyring: Keyring,
    workers: Workers,
    link: Arc<StoreClient>,
    /// Memory for what is fetched.
    fetch_gate: Arc<ByteGate>,
    state: RwLock<Arc<CatalogTables>>,
    /// Tables of pins, which are asked before all others.
    pinned: RwLock<Vec<Arc<Loaded>>>,
    quarantine: RwLock<HashSet<PackLocation>>,
    damaged: Mutex<HashSet<(PackName, u16)>>,
    recent: MemoryCache<PackName, Arc<Vec<PackRecord>>>,
    searcher: RunSearcher,
    /// Tables of new index objects that a root may list soon.
    staged: Mutex<Vec<Weak<Loaded>>>,
    loading: tokio::sync::Mutex<()>,
    /// Held while the tables of a group are loaded in its place.
    replacing: tokio::sync::Mutex<()>,
    /// Held while a newer root is read for a look-up. When that was done last.
    renewing: tokio::sync::Mutex<Option<Instant>>,
    newer: OnceLock<Box<dyn NewerIndex>>,
    /// Index objects whose tables were found damaged and made anew.
    mended: Mutex<HashSet<PackName>>,
}

/// Where a new table is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// In a file, if there is a cache directory.
    OnDisk,
    InMemory,
}

impl Catalog {
    pub(crate) fn new(
        files: Option<TableFiles>,
        keyring: Keyring,
        workers: Workers,
        link: Arc<StoreClient>,
        fetch_gate: Arc<ByteGate>,
    ) -> Self {
        let searcher = RunSearcher::new(RunStore {
            link: Arc::clone(&link),
            keyring: keyring.clone(),
            workers: workers.clone(),
            caches: Arc::new(RunCaches::new()),
        });
        Self {
            files,
            keyring,
            workers,
            link,
            fetch_gate,
            state: RwLock::default(),
            pinned: RwLock::default(),
            quarantine: RwLock::default(),
            damaged: Mutex::default(),
            recent: MemoryCache::new(RECENT_BYTES),
            searcher,
            staged: Mutex::default(),
            loading: tokio::sync::Mutex::new(()),
            replacing: tokio::sync::Mutex::new(()),
            renewing: tokio::sync::Mutex::new(None),
            newer: OnceLock::new(),
            mended: Mutex::default(),
        }
    }

    /// Sets the source of newer roots. Only the first call has an effect.
    pub(crate) fn renew_by(&self, newer: Box<dyn NewerIndex>) {
        // A repository has one source.
        let _ = self.newer.set(newer);
    }

    /// Opens a run, for look-ups in it alone.
    pub(crate) async fn open_run(&self, reference: RunRef) -> Result<OpenedRun, ContentError> {
        OpenedRun::open(self.searcher.store.clone(), reference).await
    }

    /// Replaces the tables of pins.
    pub(crate) fn set_pinned(&self, tables: Vec<Arc<Loaded>>) {
        *self.pinned.write() = tables;
    }

    fn state(&self) -> Arc<CatalogTables> {
        Arc::clone(&self.state.read())
    }

    /// Returns true if the pack is condemned, so that no new reference to it may be made.
    pub(crate) fn is_condemned(&self, pack: &PackName) -> bool {
        self.state.read().condemned.contains(pack)
    }

    /// Records that a frame could not be read, or has other bytes than were written. No new
    /// reference to it is made.
    pub(crate) fn note_damaged(&self, pack: PackName, frame: u16) {
        let mut damaged = self.damaged.lock();
        if damaged.len() < DAMAGED_FRAMES {
            damaged.insert((pack, frame));
        }
    }

    fn is_damaged(&self, pack: PackName, frame: u16) -> bool {
        if self.damaged.lock().contains(&(pack, frame)) {
            return true;
        }
        let quarantine = self.quarantine.read();
        let holds = |frame| quarantine.contains(&PackLocation { pack, frame });
        !quarantine.is_empty() && (holds(Some(frame)) || holds(None))
    }

    /// Returns true if any place is known to be damaged.
    pub(crate) fn knows_damage(&self) -> bool {
        !self.damaged.lock().is_empty() || !self.quarantine.read().is_empty()
    }

    pub(crate) fn set_quarantine(&self, places: HashSet<PackLocation>) {
        *self.quarantine.write() = places;
    }

    /// Replaces the whole index by these packs, whether an index object lists them or not; or adds
    /// them to it, if `keeps` is true.
    pub(crate) async fn load_records(
        &self,
        records: Vec<PackRecord>,
        keeps: bool,
    ) -> Result<(), ContentError> {
        let _turn = self.loading.lock().await;
        let name = PackName {
            session: 0,
            sequence: 0,
            random: 0,
        };
        let reference = IndexRef {
            name,
            packs: records.len() as u32,
            blobs: 0,
            bytes: 0,
        };
        let key = self.table_key(name);
        let build = move |_: &mut Scratch| {
            let mut builder = TableBuilder::new();
            records.into_iter().for_each(|record| builder.push(record));
            builder.finish(&key)
        };
        let bytes = self.workers.run(build).await?;
        let table = Table::open(TableBytes::memory(bytes), self.table_key(name))
            .map_err(|_| ContentError::Internal("a fresh table does not open"))?;
        let mut state = self.state.write();
        let mut tables = match keeps {
            true => CatalogTables::clone(&state),
            false => CatalogTables::default(),
        };
        tables.tables.push(Arc::new(Loaded::new(reference, table)));
        *state = Arc::new(tables);
        Ok(())
    }

    /// Waits for the memory that the making of a table takes.
    async fn room_for(&self, reference: IndexRef) -> Reservation {
        let bytes = reference.bytes.saturating_mul(LOADING_FACTOR);
        self.fetch_gate.reserve(bytes).await
    }

    async fn load_one(
        &self,
        reference: IndexRef,
        reason: Reason,
    ) -> Result<Arc<Loaded>, ContentError> {
        if let Some(files) = &self.files
            && let Some(table) = files
                .open(reference.name, self.table_key(reference.name))
                .await
        {
            return Ok(Arc::new(Loaded::new(reference, table)));
        }
        let _room = self.room_for(reference).await;
        let charge = match reason {
            Reason::Unknown(_) => Some(self.searcher.charge_unknown(reference.bytes)),
            Reason::Listed => None,
        };
        let records = self.fetch(reference.name).await?;
        if let Some(charge) = charge {
            charge.spend();
        }
        let (loaded, _) = self.tabulate(reference, records, Keep::OnDisk).await?;
        Ok(loaded)
    }

    /// Makes a table anew whose file is damaged.
    async fn make_anew(&self, reference: IndexRef) -> Result<Arc<Loaded>, ContentError> {
        if let Some(files) = &self.files {
            files.remove(reference.name).await;
        }
        // Not before: reads of what is cached would wait for the store with it.
        let records = self.fetch(reference.name).await?;
        let _room = self.room_for(reference).await;
        let keep = match self.mended.lock().contains(&reference.name) {
            false => Keep::OnDisk,
            true => Keep::InMemory,
        };
        let (loaded, _) = self.tabulate(reference, records, keep).await?;
        Ok(loaded)
    }

    fn table_key(&self, name: PackName) -> TableKey {
        TableKey::new(&self.keyring, name)
    }

    /// Reads an index object from the bucket.
    async fn fetch(&self, name: PackName) -> Result<Vec<PackRecord>, ContentError> {
        let key = name.key(Class::Index);
        let object = self.link.get(&key).await?;
        let keyring = self.keyring.clone();
        let job = self.workers.run(move |scratch| {
            let payload = keyring
                .open_object(Class::Index, &key, &object)
                .map_err(|error| ContentError::unopened(&key, error))?;
            drop(object);
            index::decode(&payload, scratch.frame_decoder.decoder())
                .map_err(|error| ContentError::damaged(&key, error))
        });
        job.await?
    }

    /// Returns the packs of an index object that a new one absorbs.
    pub(crate) async fn records(
        &self,
        name: PackName,
    ) -> Result<Arc<Vec<PackRecord>>, ContentError> {
        match self.recent.get(&name) {
            Some(records) => Ok(records),
            None => self.fetch(name).await.map(Arc::new),
        }
    }

    /// Builds the table of an index object that was just written and that a root may list soon.
    pub(crate) async fn stage(
        &self,
        reference: IndexRef,
        records: Vec<PackRecord>,
    ) -> Result<Staged, ContentError> {
        let (loaded, records) = self.tabulate(reference, records, Keep::OnDisk).await?;
        let mut staged = self.staged.lock();
        staged.retain(|loaded| loaded.strong_count() > 0);
        staged.push(Arc::downgrade(&loaded));
        Ok(Staged {
            loaded,
            records: Arc::new(records),
        })
    }

    fn staged(&self) -> Vec<Arc<Loaded>> {
        self.staged
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    async fn tabulate(
        &self,
        reference: IndexRef,
        records: Vec<PackRecord>,
        keep: Keep,
    ) -> Result<(Arc<Loaded>, Vec<PackRecord>), ContentError> {
        let key = self.table_key(reference.name);
        let of_job = key.clone();
        let job = self.workers.run(move |_: &mut Scratch| {
            let mut builder = TableBuilder::new();
            for record in &records {
                builder.push(record.clone());
            }
            (builder.finish(&of_job), records)
        });
        let (bytes, records) = job.await?;
        let table = match (&self.files, keep) {
            (Some(files), Keep::OnDisk) => files.keep(reference.name, key, bytes).await,
            _ => Table::open(TableBytes::memory(bytes), key),
        };
        let table = table.map_err(|_| ContentError::Internal("a fresh table does not open"))?;
        Ok((Arc::new(Loaded::new(reference, table)), records))
    }

    /// Records that the root lists new index objects in place of the absorbed ones.
    pub(crate) fn adopt(&self, staged: &[Staged], absorbed: &[PackName]) {
        let mut state = self.state.write();
        let gone = |loaded: &Arc<Loaded>| {
            let name = loaded.reference().name;
            let is_new = staged
                .iter()
                .any(|staged| staged.loaded.reference().name == name);
            is_new || absorbed.contains(&name)
        };
        let kept = state.tables.iter().filter(|loaded| !gone(loaded)).cloned();
        let new = staged.iter().map(|staged| Arc::clone(&staged.loaded));
        *state = Arc::new(CatalogTables {
            tables: kept.chain(new).collect(),
            ..CatalogTables::clone(&state)
        });
        for name in absorbed {
            self.recent.remove(name);
        }
        for staged in staged {
            let reference = staged.loaded.reference();
            self.recent
                .put(reference.name, reference.bytes, Arc::clone(&staged.records));
        }
    }
}
