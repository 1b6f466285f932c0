//! What a session has of a repository: store, keyring, local index, caches and workers, behind one cheap handle.
//!
//! Owns the configuration and the shared parts, and joins the index, the read path and the write path to them. Knows nothing of
//! roots, sessions or files: which index objects are current is told by the caller.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::budget::MemoryBudget;
use crate::cache::{DiskCache, make_directory};
use crate::catalog::{Catalog, IndexRef, Place, TableFiles};
use crate::codec::{Balance, Effort};
use crate::cut::{Cutter, Parameters};
use crate::entropy::Entropy;
use crate::error::DepotError;
use crate::extent::Piece;
use crate::gate::Reservation;
use crate::hydrate::{Reader, ReaderParts};
use crate::id::{Id, Kind, Prefix};
use crate::link::Link;
use crate::metrics::Metrics;
use crate::pace::Rates;
use crate::pack::PackName;
use crate::seal::Keyring;
use crate::store::Store;
use crate::verify::PackContents;
use crate::workers::Workers;

/// How hard new frames are compressed. Every choice is readable by everybody: the codec is recorded per frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As suits the content and what is slower, the workers or the store ([`Balance`]); skips what a probe finds incompressible.
    #[default]
    Auto,
    /// zstd at this level, skipping what a probe finds incompressible.
    Level(i32),
    /// Frames as they are.
    None,
}

/// How a depot uses the machine and the store.
#[derive(Debug, Clone)]
pub struct DepotConfig {
    /// Where fetched frames and index tables are kept across restarts; `None` keeps the index in memory and no frames.
    pub cache_dir: Option<PathBuf>,
    /// The most that frames on disk may take, in bytes.
    pub cache_bytes: u64,
    /// Whether to spend disk and processor time on fewer requests: frames that are fetched are kept on disk (those that are there are used either way), and
    /// small files are fetched together with what lies around them.
    pub saves_requests: bool,
    /// The most memory that each part may take.
    pub memory: MemoryBudget,
    /// How new frames are compressed.
    pub compression: Compression,
    /// What content is cut into: as the repository's config object says.
    pub parameters: Parameters,
    /// Packs sent at the same time.
    pub uploads: usize,
    /// Ranges fetched at the same time.
    pub downloads: usize,
    /// Threads for cutting, hashing, compressing and sealing; 0 does this in the calling task, for simulations.
    pub workers: usize,
    /// Packs are closed when they reach this many bytes.
    pub pack_bytes: u64,
    /// How long the store may make no progress at all before waiting calls give up.
    pub timeout_ms: u64,
    /// How many bytes of packs and index objects may go by in a second.
    pub rates: Rates,
}

impl Default for DepotConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_bytes: 10 << 30,
            saves_requests: true,
            memory: MemoryBudget::default(),
            compression: Compression::Auto,
            parameters: Parameters::default(),
            uploads: 8,
            downloads: 16,
            workers: std::thread::available_parallelism().map_or(2, usize::from),
            pack_bytes: 16 << 20,
            timeout_ms: 300_000,
            rates: Rates::default(),
        }
    }
}

/// Brings the index up to the newest root, when something is not where the index has it (rule 10).
#[async_trait]
pub trait Renew: Send + Sync + std::fmt::Debug {
    /// Loads the newest index into `depot`. False if that was not possible.
    async fn renew(&self, depot: &Depot) -> bool;
}

/// How often a read begins again with a newer index.
const RENEWALS_MAX: u32 = 3;

/// A repository as one process sees it. Cheap to clone; all clones share index, caches and workers.
#[derive(Clone, Debug)]
pub struct Depot(Arc<Shared>);

/// The parts.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: Arc<Link>,
    pub(crate) keyring: Keyring,
    pub(crate) cutter: Cutter,
    pub(crate) config: DepotConfig,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) reader: Arc<Reader>,
    renew: OnceLock<Arc<dyn Renew>>,
}

impl Shared {
    /// How hard to compress at this balance.
    pub(crate) fn effort(&self, balance: Balance) -> Effort {
        match self.config.compression {
            Compression::Auto => Effort::Auto(balance),
            Compression::Level(level) => Effort::Level(level),
            Compression::None => Effort::None,
        }
    }
}

impl Depot {
    /// The store answered a request that went another way: to those who wait for it here it is not
    /// silent.
    pub fn note_answer(&self) {
        self.0.link.progress.note();
    }

    /// From now on a store that refuses is waited for as long as one that is silent (`timeout_ms`):
    /// for who has accepted what must not be dropped.
    pub fn bear_refusals(&self) {
        self.0.link.bear_refusals();
    }

    /// A depot over `store` with an empty index: call [`Depot::load_index`] with the root's list before anything is read.
    ///
    /// # Errors
    /// [`DepotError::CacheDirectory`] if the cache directory cannot be made or used; [`DepotError::Internal`] without threads.
    pub fn open(
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        mut config: DepotConfig,
    ) -> Result<Self, DepotError> {
        config.memory = config.memory.at_least_workable();
        let limits = (config.uploads, config.downloads);
        let timeout = Duration::from_millis(config.timeout_ms);
        let link = Arc::new(Link::new(store, entropy, limits, timeout).at(config.rates));
        let workers = match config.workers {
            0 => Workers::inline(),
            threads => Workers::pool(threads)
                .map_err(|_| DepotError::Internal("the system gives no threads"))?,
        };
        let (files, disk) = match &config.cache_dir {
            None => (None, None),
            Some(directory) => {
                let (files, disk) = open_cache(directory, &keyring, config.cache_bytes)?;
                link.counters.disk_cache_bytes.set(disk.used());
                (Some(files), Some(Arc::new(disk)))
            }
        };
        let catalog = Arc::new(Catalog::new(
            files,
            keyring.clone(),
            workers.clone(),
            Arc::clone(&link),
        ));
        let reader = Arc::new(Reader::new(ReaderParts {
            link: Arc::clone(&link),
            keyring: keyring.clone(),
            workers: workers.clone(),
            catalog: Arc::clone(&catalog),
            disk,
            saves_requests: config.saves_requests,
            fetch_bytes: config.memory.fetch_bytes,
            cache_bytes: config.memory.cache_bytes,
        }));
        Ok(Self(Arc::new(Shared {
            cutter: keyring.cutter(&config.parameters),
            link,
            keyring,
            config,
            workers,
            catalog,
            reader,
            renew: OnceLock::new(),
        })))
    }

    /// What names, seals and opens the repository's objects.
    pub fn keyring(&self) -> &Keyring {
        &self.0.keyring
    }

    /// The bucket.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.link.store
    }

    /// Where salts and names come from.
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.0.link.entropy
    }

    /// How it was opened.
    pub fn config(&self) -> &DepotConfig {
        &self.0.config
    }

    /// What was done so far.
    pub fn metrics(&self) -> Metrics {
        self.0.link.counters.snapshot()
    }

    /// Makes the local index agree with the root's list: downloads what is missing, forgets what left. Cheap when nothing changed.
    /// Blobs in `condemned` packs are still found by readers, but nothing new is made to refer to them.
    ///
    /// All or nothing: after an error the former index is still in use.
    ///
    /// # Errors
    /// `Missing` if an index object is gone (the list is old), `Damaged`, `Unreadable`, `Store`, `Stalled`.
    pub async fn load_index(
        &self,
        index: &[IndexRef],
        condemned: &HashSet<PackName>,
    ) -> Result<(), DepotError> {
        let shared = &self.0;
        let memory = &shared.reader.fetch_gate;
        shared.catalog.load(index, condemned, memory).await
    }

    /// Which of `packs` no index object that is loaded holds, or the condemned ones it was given name: rule 3 asks this of everything that a commit relies on, after
    /// [`Depot::load_index`] with the list of the root being replaced.
    pub fn not_live<'a>(&self, packs: impl IntoIterator<Item = &'a PackName>) -> Vec<PackName> {
        let catalog = &self.0.catalog;
        let packs = packs.into_iter().copied();
        packs.filter(|pack| !catalog.is_live(pack)).collect()
    }

    /// True if an index object that is loaded holds the pack, and it is not condemned: the table of live packs (protocol.md, rule 3).
    pub fn is_live(&self, pack: &PackName) -> bool {
        self.0.catalog.is_live(pack)
    }

    /// True if an index object that is loaded holds the pack, condemned or not.
    pub fn is_listed(&self, pack: &PackName) -> bool {
        self.0.catalog.is_listed(pack)
    }

    /// True if any place is known to be damaged: in quarantine, or found so by a read.
    pub fn knows_damage(&self) -> bool {
        self.0.catalog.knows_damage()
    }

    /// Replaces the set of quarantined frames (protocol.md, rule 11): new data is never matched with what lies in them, so that it is stored again, and
    /// readers try every other copy before.
    pub fn set_quarantine(&self, places: HashSet<Place>) {
        self.0.catalog.set_quarantine(places);
    }

    /// All copies of a blob in the index that is loaded, condemned packs and damaged frames included.
    pub fn places(&self, id: &Id) -> Vec<Place> {
        self.0.catalog.places(&id.prefix())
    }

    /// All copies of a blob by pack, frame and number in the frame, in the index that is loaded; those in condemned packs too.
    pub fn slots_of(&self, prefix: &Prefix) -> Vec<(PackName, u16, u16)> {
        self.0.catalog.slots(prefix)
    }

    /// The same for what a footer calls it.
    pub fn places_of(&self, prefix: &Prefix) -> Vec<Place> {
        self.0.catalog.places(prefix)
    }

    /// Makes exactly these packs the index, whatever the root lists: for looking at a damaged repository. About 24 bytes of memory per blob stay in use.
    ///
    /// # Errors
    /// [`DepotError::Internal`] only.
    pub async fn load_packs(&self, packs: &[PackContents]) -> Result<(), DepotError> {
        let records = packs.iter().map(|pack| pack.0.clone()).collect();
        self.0.catalog.load_records(records).await
    }

    /// A blob, verified against its id. Fetched at most once for all that ask at the same time, then cached. For nodes, segments and commit
    /// records; chunks are better read by [`Depot::read`].
    ///
    /// # Errors
    /// `Unknown` or `Missing` (a newer root may help), `Damaged`, `Unreadable`, `Store`, `Stalled`.
    pub async fn read_blob(&self, kind: Kind, id: Id) -> Result<Bytes, DepotError> {
        let mut renewals = 0;
        loop {
            let mut answers = self.0.reader.blobs(&[(kind, id)]).await;
            let answer = answers.pop();
            let answer = answer.unwrap_or(Err(DepotError::Unknown { kind, id }));
            match answer {
                Err(error) if self.renewed(&error, &mut renewals).await => {}
                answer => return answer,
            }
        }
    }

    /// Reads begin again with a newer index when a pack has gone: from now on that is got by this.
    pub fn renew_by(&self, renew: Arc<dyn Renew>) {
        // There is one for a repository.
        let _ = self.0.renew.set(renew);
    }

    async fn renewed(&self, error: &DepotError, renewals: &mut u32) -> bool {
        let Some(renew) = self.0.renew.get() else {
            return false;
        };
        *renewals += 1;
        error.wants_newer_root() && *renewals <= RENEWALS_MAX && renew.renew(self).await
    }

    /// Reads pieces of a file, in file order: one answer of exactly `length` bytes for each, in parts that follow one another. What lies together is
    /// fetched together; everything is verified. The first error ends it; see [`Depot::read_each`].
    ///
    /// # Errors
    /// As [`Depot::read_blob`]; `Invalid` for a piece that goes past its target.
    pub async fn read(&self, pieces: &[Piece]) -> Result<Vec<Vec<Bytes>>, DepotError> {
        self.read_each(pieces).await.into_iter().collect()
    }

    /// The same, with an answer or an error for each piece: damage to one does not keep the others from being read.
    pub async fn read_each(&self, pieces: &[Piece]) -> Vec<Result<Vec<Bytes>, DepotError>> {
        let mut renewals = 0;
        loop {
            let answers = self.0.reader.read_each(pieces).await;
            let mut failed = answers.iter().filter_map(|answer| answer.as_ref().err());
            let stale = failed.find(|error| error.wants_newer_root()).cloned();
            match stale {
                Some(error) if self.renewed(&error, &mut renewals).await => {}
                _ => return answers,
            }
        }
    }

    /// Room for `bytes` of files to be fetched before anybody asks for them; none while too much is on its way like that.
    pub fn prefetch(&self, bytes: u64) -> Option<Prefetch> {
        let reader = Arc::clone(&self.0.reader);
        let room = reader.prefetch_gate.try_reserve(bytes)?;
        Some(Prefetch {
            reader,
            _room: room,
        })
    }

    /// The most bytes of files that may be on their way by prefetches at once.
    pub fn prefetch_bytes_max(&self) -> u64 {
        self.0.reader.prefetch_gate.capacity()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

/// Room to fetch something ahead; given back when dropped.
#[derive(Debug)]
pub struct Prefetch {
    reader: Arc<Reader>,
    _room: Reservation,
}

impl Prefetch {
    /// Brings what pieces need into the caches. A hint: errors are left to whoever reads the same, and meets them again.
    pub async fn bring(self, pieces: &[Piece]) {
        self.reader.warm(pieces).await;
    }
}

/// Opens what is kept on disk for one repository.
fn open_cache(
    directory: &Path,
    keyring: &Keyring,
    bytes: u64,
) -> Result<(TableFiles, DiskCache), DepotError> {
    let root = directory.join(keyring.repository().to_string());
    let open = || {
        make_directory(&root)?;
        Ok((
            TableFiles::open_directory(&root)?,
            DiskCache::open(&root, bytes)?,
        ))
    };
    open().map_err(|error: std::io::Error| DepotError::CacheDirectory {
        path: root.display().to_string(),
        source: Arc::new(error),
    })
}

#[cfg(test)]
mod tests;
