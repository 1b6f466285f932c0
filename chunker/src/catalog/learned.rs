//! Packs that look-ups in runs have led to, and what their footers say.
//!
//! Owns the runs of the newest root, and the footers that were learned: the neighbours of a blob in
//! its pack are wanted next, and its footer answers for all of them. A learned pack is a table of
//! its own in memory. Does not know which packs are live: for reads it does not matter, since every
//! frame proves that it is the right one.
//!
//! A first read of a pack costs one block of each run that may have it and one footer. Then every
//! blob of the pack is found without a request.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use parking_lot::RwLock;

use super::describe::describe;
use super::files::TableBytes;
use super::loaded::{Candidate, Loaded};
use super::opened_run::{OpenedRun, RunRecord, RunRef, RunStore};
use super::reference::IndexRef;
use crate::cache::MemoryCache;
use crate::crypto::{Class, Keyring};
use crate::error::ContentError;
use crate::id::Prefix;
use crate::index::{PackRecord, Table, TableBuilder, TableKey};
use crate::pack::PackName;

/// Runs that are opened or asked concurrently.
const RUNS_AT_ONCE: usize = 8;

/// Bytes of memory for learned tables. The table of the largest pack takes less than a quarter.
const LEARNED_BYTES: u64 = 64 << 20;

/// How many packs are learned concurrently, at most.
const TURNS: usize = 16;

/// What a search for one blob has asked of runs.
#[derive(Debug, Default)]
pub(crate) struct RunSearch {
    /// Packs whose copies were tried.
    tried: HashSet<PackName>,
    /// Packs that the runs name, and that were not tried. `None` before the runs were asked.
    packs: Option<VecDeque<(PackName, Class)>>,
}

/// The runs of a root, and learned packs.
#[derive(Debug)]
pub(super) struct RunIndex {
    store: RunStore,
    runs: RwLock<Arc<Vec<Arc<OpenedRun>>>>,
    learned: MemoryCache<PackName, Arc<Loaded>>,
    /// One caller at a time learns a pack.
    turns: [tokio::sync::Mutex<()>; TURNS],
    loading: tokio::sync::Mutex<()>,
}

impl RunIndex {
    pub(super) fn new(store: RunStore) -> Self {
        Self {
            store,
            runs: RwLock::default(),
            learned: MemoryCache::new(LEARNED_BYTES),
            turns: [const { tokio::sync::Mutex::const_new(()) }; TURNS],
            loading: tokio::sync::Mutex::const_new(()),
        }
    }

    /// Opens a run that no root needs to list.
    pub(super) async fn open(&self, reference: RunRef) -> Result<OpenedRun, ContentError> {
        OpenedRun::open(self.store.clone(), reference).await
    }

    /// Makes the runs match a root's list. Runs that are open stay so.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    pub(super) async fn load(&self, list: &[RunRef]) -> Result<(), ContentError> {
        let _turn = self.loading.lock().await;
        let before = Arc::clone(&self.runs.read());
        let open: HashMap<PackName, &Arc<OpenedRun>> = before
            .iter()
            .map(|run| (run.reference().name, run))
            .collect();
        let opening = list.iter().map(|reference| {
            let (known, reference) = (open.get(&reference.name).cloned().cloned(), *reference);
            async move {
                match known {
                    Some(run) => Ok(run),
                    None => self.open(reference).await.map(Arc::new),
                }
            }
        });
        let runs: Vec<Arc<OpenedRun>> = futures::stream::iter(opening.collect::<Vec<_>>())
            .buffered(RUNS_AT_ONCE)
            .try_collect()
            .await?;
        *self.runs.write() = Arc::new(runs);
        Ok(())
    }

    /// Returns the next copies of a blob: those in a learned pack, or in one that the runs name and
    /// that is learned now. `None` if there is no further one. After an error there may be.
    ///
    /// # Errors
    /// [`ContentError::Index`] if a run or a footer is damaged or missing: what it says stays
    /// unknown. [`ContentError::Missing`] if a pack is gone; [`ContentError::Store`] or
    /// [`ContentError::Stalled`] if the store fails.
    pub(super) async fn next_copies(
        &self,
        prefix: &Prefix,
        search: &mut RunSearch,
    ) -> Result<Option<Vec<Candidate>>, ContentError> {
        for loaded in self.learned.values() {
            let pack = loaded.reference().name;
            let found = candidates(&loaded, prefix)?;
            if !found.is_empty() && search.tried.insert(pack) {
                return Ok(Some(found));
            }
        }
        if search.packs.is_none() {
            let (packs, failure) = self.packs_of(prefix).await;
            search.packs = Some(packs);
            if let Some(error) = failure {
                return Err(error.of_index());
            }
        }
        while let Some((pack, class)) = search.packs.as_mut().and_then(VecDeque::pop_front) {
            if !search.tried.insert(pack) {
                continue;
            }
            let loaded = self.learn(pack, class).await?;
            let found = candidates(&loaded, prefix)?;
            if found.is_empty() {
                let what = "it names a pack for a blob that the pack does not have";
                return Err(ContentError::damaged("an index run", what).of_index());
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Forgets a learned pack, which is gone.
    pub(super) fn forget(&self, pack: &PackName) {
        self.learned.remove(pack);
    }

    /// Returns the packs that have a blob by what the runs say, each once, and why a run could not
    /// be asked.
    async fn packs_of(
        &self,
        prefix: &Prefix,
    ) -> (VecDeque<(PackName, Class)>, Option<ContentError>) {
        let runs = Arc::clone(&self.runs.read());
        let asked = runs.iter().filter(|run| run.may_hold(prefix));
        let looks = asked.map(|run| records_of(run, prefix));
        let answers: Vec<Result<(Class, Vec<RunRecord>), ContentError>> =
            futures::stream::iter(looks.collect::<Vec<_>>())
                .buffered(RUNS_AT_ONCE)
                .collect()
                .await;
        let (mut packs, mut failure) = (BTreeSet::new(), None);
        for answer in answers {
            match answer {
                Ok((class, records)) => {
                    packs.extend(records.into_iter().map(|record| (record.pack, class)));
                }
                Err(error) => failure = Some(error),
            }
        }
        (packs.into_iter().collect(), failure)
    }

    /// Reads the footer of a pack, unless it is known.
    async fn learn(&self, pack: PackName, class: Class) -> Result<Arc<Loaded>, ContentError> {
        let _turn = self.turns[pack.random as usize % TURNS].lock().await;
        if let Some(loaded) = self.learned.get(&pack) {
            return Ok(loaded);
        }
        let described = match self.describe(pack, class).await {
            // An answer may be damaged on its way.
            Err(ContentError::Damaged { .. }) => self.describe(pack, class).await,
            described => described,
        };
        let loaded = match described {
            // The blobs may be whole all the same.
            Err(error @ ContentError::Damaged { .. }) => return Err(error.of_index()),
            described => Arc::new(described?),
        };
        let bytes = loaded.reference().bytes;
        self.learned.put(pack, bytes, Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Returns a table of one pack, from its own header and footer.
    async fn describe(&self, name: PackName, class: Class) -> Result<Loaded, ContentError> {
        let RunStore {
            link,
            keyring,
            workers,
            ..
        } = &self.store;
        let record = describe(link, workers, keyring, (name, class), None).await?;
        let keyring = keyring.clone();
        workers.run(move |_| table_of(record, &keyring)).await?
    }
}

/// Returns a table of one pack, in memory.
fn table_of(record: PackRecord, keyring: &Keyring) -> Result<Loaded, ContentError> {
    let (name, blobs) = (record.name, record.footer.blob_count() as u64);
    let mut builder = TableBuilder::new();
    builder.push(record);
    let key = TableKey::new(keyring, name);
    let bytes = builder.finish(&key);
    let reference = IndexRef {
        name,
        packs: 1,
        blobs,
        bytes: bytes.len() as u64,
    };
    let table = Table::open(TableBytes::memory(bytes), key);
    let table = table.map_err(|_| ContentError::Internal("a fresh table does not open"))?;
    Ok(Loaded::new(reference, table))
}

/// Returns the class of a run's packs, and its records of a blob.
async fn records_of(
    run: &OpenedRun,
    prefix: &Prefix,
) -> Result<(Class, Vec<RunRecord>), ContentError> {
    let records = run.find(&[*prefix]).await?;
    Ok((run.directory().class(), records))
}

fn candidates(loaded: &Arc<Loaded>, prefix: &Prefix) -> Result<Vec<Candidate>, ContentError> {
    let found = loaded.ask(|table| {
        let places = table.find(prefix)?;
        places
            .into_iter()
            .map(|place| loaded.candidate(place))
            .collect()
    });
    found.map_err(|_| ContentError::Internal("a table in memory contradicts itself"))
}
