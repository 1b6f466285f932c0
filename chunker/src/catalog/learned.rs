//! Packs that look-ups in runs have led to, and what their footers say.
//!
//! Owns the footers that were learned: the neighbours of a blob in its pack are wanted next, and the
//! pack's footer answers for all of them. A learned pack is a table of its own in memory. Which run
//! named the pack is kept with it: what is known of the pack holds only while that run answers
//! (docs/PROTOCOL.md, rule 13). Does not know which packs are live.

use std::collections::HashMap;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::describe::describe;
use super::files::TableBytes;
use super::loaded::{Candidate, Loaded};
use super::opened_run::{RunStore, twice};
use super::reference::IndexRef;
use crate::crypto::{Class, Keyring};
use crate::error::ContentError;
use crate::id::Prefix;
use crate::index::{PackRecord, Table, TableBuilder, TableError, TableKey};
use crate::pack::PackName;

/// Bytes of memory that a blob of a learned pack takes in addition to its entry in the pack's table.
const BLOB_BYTES: u64 = 20;

/// How many packs are learned concurrently, at most.
const TURNS: usize = 16;

/// A pack whose footer is known.
#[derive(Debug)]
pub(super) struct LearnedPack {
    pub(super) loaded: Arc<Loaded>,
    /// The run that named the pack.
    pub(super) run: PackName,
}

/// Learned packs, bounded in bytes. The least recently used leave first.
#[derive(Debug)]
pub(super) struct Learned {
    limit: u64,
    state: Mutex<LearnedState>,
    /// One caller at a time learns a pack.
    turns: [tokio::sync::Mutex<()>; TURNS],
}

#[derive(Debug)]
struct LearnedState {
    packs: LruCache<PackName, Entry>,
    /// The pack that has a blob, by the first 8 bytes of the blob's prefix.
    by_blob: HashMap<u64, PackName>,
    used: u64,
}

#[derive(Debug)]
struct Entry {
    pack: Arc<LearnedPack>,
    heads: Arc<[u64]>,
    bytes: u64,
}

impl Learned {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            state: Mutex::new(LearnedState {
                packs: LruCache::unbounded(),
                by_blob: HashMap::new(),
                used: 0,
            }),
            turns: [const { tokio::sync::Mutex::const_new(()) }; TURNS],
        }
    }

    /// Returns a learned pack that has the blob.
    pub(super) fn find(&self, prefix: &Prefix) -> Option<Arc<LearnedPack>> {
        let mut state = self.state.lock();
        let name = *state.by_blob.get(&prefix.head())?;
        let entry = state.packs.get(&name)?;
        Some(Arc::clone(&entry.pack))
    }

    /// Returns the pack of this name, if it was learned.
    pub(super) fn get(&self, pack: &PackName) -> Option<Arc<LearnedPack>> {
        let mut state = self.state.lock();
        state.packs.get(pack).map(|entry| Arc::clone(&entry.pack))
    }

    /// Forgets a pack.
    pub(super) fn forget(&self, pack: &PackName) {
        self.state.lock().remove(pack);
    }

    /// Forgets all packs but those that `stays` keeps.
    pub(super) fn retain(&self, stays: impl Fn(&LearnedPack) -> bool) {
        let mut state = self.state.lock();
        let leaving = state.packs.iter().filter(|(_, entry)| !stays(&entry.pack));
        let leaving: Vec<PackName> = leaving.map(|(name, _)| *name).collect();
        for name in leaving {
            state.remove(&name);
        }
    }

    /// Reads the footer of a pack that `run` has named, unless it is known by that run. `is_loaded`
    /// says whether the run still answers.
    ///
    /// Cancel safety: dropped, it has learned nothing.
    ///
    /// # Errors
    /// [`ContentError::Index`] if the footer is damaged; [`ContentError::Missing`] if the pack is
    /// gone; [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    pub(super) async fn learn(
        &self,
        store: &RunStore,
        (pack, class): (PackName, Class),
        run: PackName,
        is_loaded: impl Fn() -> bool,
    ) -> Result<Arc<LearnedPack>, ContentError> {
        let _turn = self.turns[pack.random as usize % TURNS].lock().await;
        let known = self.get(&pack);
        if let Some(known) = known.as_ref().filter(|known| known.run == run) {
            return Ok(Arc::clone(known));
        }
        // A pack never changes: what its footer says holds under another run as well.
        let loaded = match known {
            Some(known) => Arc::clone(&known.loaded),
            None => Arc::new(read(store, pack, class).await?),
        };
        let learned = Arc::new(LearnedPack { loaded, run });
        let heads = heads_of(&learned.loaded)?;
        let mut state = self.state.lock();
        // Checked under the lock that `retain` takes after it has changed what is loaded.
        if is_loaded() {
            state.put(pack, Arc::clone(&learned), heads, self.limit);
        }
        Ok(learned)
    }
}

impl LearnedState {
    fn put(&mut self, name: PackName, pack: Arc<LearnedPack>, heads: Arc<[u64]>, limit: u64) {
        let bytes = pack.loaded.reference().bytes + heads.len() as u64 * (BLOB_BYTES + 8);
        if bytes > limit / 2 {
            return;
        }
        self.remove(&name);
        for head in heads.iter() {
            self.by_blob.insert(*head, name);
        }
        self.used += bytes;
        self.packs.put(name, Entry { pack, heads, bytes });
        while self.used > limit {
            let Some((name, _)) = self.packs.peek_lru() else {
                break;
            };
            let name = *name;
            self.remove(&name);
        }
    }

    fn remove(&mut self, name: &PackName) {
        let Some(entry) = self.packs.pop(name) else {
            return;
        };
        self.used -= entry.bytes;
        for head in entry.heads.iter() {
            if self.by_blob.get(head) == Some(name) {
                self.by_blob.remove(head);
            }
        }
    }
}

/// Reads the header and the footer of a pack.
async fn read(store: &RunStore, pack: PackName, class: Class) -> Result<Loaded, ContentError> {
    let RunStore {
        link,
        keyring,
        workers,
        ..
    } = store;
    let described = twice(|| describe(link, workers, keyring, (pack, class), None));
    let record = match described.await {
        // The blobs may be whole all the same.
        Err(error @ ContentError::Damaged { .. }) => return Err(error.of_index()),
        described => described?,
    };
    let keyring = keyring.clone();
    workers.run(move |_| table_of(record, &keyring)).await?
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

/// Returns the first 8 bytes of the prefixes of all blobs of a learned pack.
fn heads_of(loaded: &Arc<Loaded>) -> Result<Arc<[u64]>, ContentError> {
    let heads = loaded.ask(|table| {
        let entries = table.entries();
        entries
            .map(|entry| Ok(entry?.0.head()))
            .collect::<Result<Vec<u64>, TableError>>()
    });
    let heads = heads.map_err(|_| CONTRADICTION)?;
    Ok(heads.into())
}

/// Returns the copies of a blob in a learned pack.
pub(super) fn candidates(
    loaded: &Arc<Loaded>,
    prefix: &Prefix,
) -> Result<Vec<Candidate>, ContentError> {
    let found = loaded.ask(|table| {
        let places = table.find(prefix)?;
        places
            .into_iter()
            .map(|place| loaded.candidate(place))
            .collect()
    });
    found.map_err(|_| CONTRADICTION)
}

const CONTRADICTION: ContentError = ContentError::Internal("a table in memory contradicts itself");
