//! Shared helpers of the tests: a repository without contents, a store that loses answers, and
//! uploads that keep only the names of packs.

use crate::root::commit_request::CommitRequest;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, RootParts};
use crate::root::lists::ListWriter;
use crate::root::memory::{GenerationMemory, VolatileMemory};
use crate::root::record::CommitRecord;
use crate::root::retry::RetryPolicy;
use crate::root::state::{HolderInfo, ROOT_KEY, Root, SessionId};
use crate::root::uploads::{FinishPacks, Uploads};
use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexRef, IndexSources};
use bkfs_chunker::content_store::{ContentStore, ContentStoreConfig};
use bkfs_chunker::crypto::{Class, Features, Keyring, RepositoryId, Secrets};
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{FinishedPacks, Ingest};
use bkfs_chunker::pack::PackName;
use bkfs_store::entropy::Entropy;
use bkfs_store::{MemoryStore, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Deterministic randomness from a seed.
#[derive(Debug)]
pub struct Seeded(Mutex<rand::rngs::StdRng>);

impl Seeded {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(rand::rngs::StdRng::seed_from_u64(seed))))
    }

    /// Returns randomness that no other call in the same test has returned, for one process among
    /// several.
    pub fn next() -> Arc<Self> {
        thread_local! {
            static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(1 << 32) };
        }
        Self::new(SEED.replace(SEED.get() + 1))
    }
}

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}

pub fn keyring() -> Keyring {
    Keyring::sealed(
        RepositoryId([7; 16]),
        Secrets::new([1; 32], [2; 32], [3; 32]),
    )
}

pub fn id(number: u64) -> Id {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Id(bytes)
}

pub fn holder(name: &str) -> HolderInfo {
    HolderInfo {
        host: name.to_owned(),
        boot_id: name.to_owned(),
        pid_namespace: 1,
        pid: 1,
        mount_point: format!("/{name}"),
        ..HolderInfo::default()
    }
}

pub fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("in range")
}

/// Puts the first root into `store`.
pub async fn create(store: &dyn Store) {
    let payload = Root::new(RepositoryId([7; 16]), [0; 16])
        .encode()
        .expect("small");
    let object = keyring().seal_object(Class::Root, ROOT_KEY, Features::NONE, [9; 32], &payload);
    store
        .put_new(ROOT_KEY, vec![object])
        .await
        .expect("nothing is there");
}

/// Returns one process: its own handle of the root in `store`.
pub async fn process(store: Arc<dyn Store>, seed: u64) -> RootHandle {
    open(store, seed, Arc::new(VolatileMemory::default()))
        .await
        .expect("the root is there")
}

/// Opens the root as a process of a machine with this memory.
///
/// # Errors
/// Those of [`RootHandle::open`].
pub async fn open(
    store: Arc<dyn Store>,
    seed: u64,
    memory: Arc<dyn GenerationMemory>,
) -> Result<RootHandle, RootError> {
    let policy = RetryPolicy {
        stall_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(10),
        ..RetryPolicy::default()
    };
    RootHandle::open(
        RootParts {
            store,
            keyring: keyring(),
            entropy: Seeded::new(seed),
            memory,
            policy,
            accept_rollback: false,
        },
        0,
    )
    .await
}

/// A fault of the next replacement of the root.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The replacement is not applied, and this error is returned.
    Before(StoreErrorKind),
    /// The replacement is applied, and this error is returned.
    After(StoreErrorKind),
    /// The replacement is held back, and no answer is returned; [`Faulty::deliver`] applies it.
    Late,
    /// The replacement is applied, and no answer is returned.
    Silent,
}

/// A store that injects planned faults into replacements of the root.
#[derive(Debug)]
pub struct Faulty {
    pub inner: Arc<dyn Store>,
    pub faults: Mutex<VecDeque<Fault>>,
    /// While this is set, every request fails with it before it is applied.
    pub outage: Mutex<Option<StoreErrorKind>>,
    late: Mutex<Vec<(Vec<Bytes>, Version)>>,
    /// The bodies of all replacements that were sent.
    pub sent: Mutex<Vec<Bytes>>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            outage: Mutex::default(),
            late: Mutex::default(),
            sent: Mutex::default(),
        })
    }

    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults);
    }

    /// Applies the replacements that were held back; returns how many of them succeeded.
    pub async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock());
        let mut applied = 0;
        for (body, expected) in late {
            applied += usize::from(self.inner.replace(ROOT_KEY, body, &expected).await.is_ok());
        }
        applied
    }

    pub fn is_spent(&self) -> bool {
        self.faults.lock().is_empty()
    }

    fn check(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        let outage = *self.outage.lock();
        outage.map_or(Ok(()), |kind| {
            Err(StoreError::new(kind, operation, key, "outage"))
        })
    }
}

#[async_trait]
impl bkfs_store::Layer for Faulty {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.check(Operation::Get, key)?;
        self.inner.get(key).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        self.check(Operation::Get, key)?;
        self.inner.get_if_changed(key, known).await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.check(Operation::PutNew, key)?;
        self.inner.put_new(key, body).await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.check(Operation::Put, key)?;
        self.inner.put(key, body).await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        self.sent.lock().push(body.concat().into());
        self.check(Operation::Replace, key)?;
        let fail = |kind| Err(StoreError::new(kind, Operation::Replace, key, "planned"));
        let fault = self.faults.lock().pop_front();
        match fault {
            None => self.inner.replace(key, body, expected).await,
            Some(Fault::Before(kind)) => fail(kind),
            Some(Fault::After(kind)) => {
                self.inner.replace(key, body, expected).await?;
                fail(kind)
            }
            Some(Fault::Late) => {
                self.late.lock().push((body, expected.clone()));
                std::future::pending().await
            }
            Some(Fault::Silent) => {
                self.inner.replace(key, body, expected).await?;
                std::future::pending().await
            }
        }
    }
}

/// All objects that the uploads of all sessions have put into the bucket, except lists.
#[derive(Debug, Default)]
pub struct Shelf {
    /// The packs that each index object holds.
    indexes: Mutex<BTreeMap<PackName, Vec<PackName>>>,
    records: Mutex<BTreeMap<Id, Bytes>>,
}

impl Shelf {
    /// Returns all commits that were recorded.
    pub fn records(&self) -> Vec<(Id, CommitRecord)> {
        let records = self.records.lock();
        let decoded = |record: &Bytes| CommitRecord::decode(record).expect("stored here");
        let records = records.iter();
        records.map(|(id, record)| (*id, decoded(record))).collect()
    }

    /// Returns the packs that `index` holds.
    pub fn live(&self, index: &[IndexRef]) -> HashSet<PackName> {
        let indexes = self.indexes.lock();
        index
            .iter()
            .flat_map(|index| indexes[&index.name].clone())
            .collect()
    }
}

/// The number of index objects from which an upload absorbs them all.
const ABSORBED_AT: usize = 4;

/// Returns the write path of a session that stores nothing, over a store of its own.
fn idle_ingest(session: SessionId) -> Ingest {
    let config = ContentStoreConfig {
        workers: 0,
        ..ContentStoreConfig::default()
    };
    let store = Arc::new(MemoryStore::new());
    let content_store =
        ContentStore::open(store, keyring(), Seeded::new(0), config).expect("it has no cache");
    Ingest::new(content_store, session.0)
}

/// Uploads that keep no contents: each call of `finish_since` makes one pack.
pub struct Fake {
    pub shelf: Arc<Shelf>,
    pub handle: RootHandle,
    pub session: SessionId,
    /// Stores nothing and makes the tokens.
    idle: Ingest,
    sequence: AtomicU32,
    /// Packs that were made and are in no root yet.
    pub uncommitted: Mutex<Vec<PackName>>,
    /// Foreign packs that the next commit refers to.
    pub relied_on: Mutex<HashSet<PackName>>,
    /// The number of commits that the root took; `conflicted` counts those that it did not take.
    pub committed: AtomicU32,
    pub conflicted: AtomicU32,
}

impl Fake {
    pub fn new(shelf: &Arc<Shelf>, handle: &RootHandle, session: SessionId) -> Arc<Self> {
        Arc::new(Self {
            shelf: shelf.clone(),
            handle: handle.clone(),
            session,
            idle: idle_ingest(session),
            sequence: AtomicU32::new(0),
            uncommitted: Mutex::default(),
            relied_on: Mutex::default(),
            committed: AtomicU32::new(0),
            conflicted: AtomicU32::new(0),
        })
    }

    pub fn name(&self) -> PackName {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        PackName {
            session: self.session.0,
            sequence,
            random: 0,
        }
    }
}

#[async_trait]
impl ListWriter for Fake {
    async fn put_list(&self, payload: Vec<u8>) -> Result<PackName, RootError> {
        let name = self.name();
        let key = name.key(Class::List);
        let object =
            self.handle
                .keyring()
                .seal_object(Class::List, &key, Features::NONE, [5; 32], &payload);
        self.handle.store().put_new(&key, vec![object]).await?;
        Ok(name)
    }
}

#[async_trait]
impl Uploads for Fake {
    async fn store_record(&self, record: Vec<u8>) -> Result<Id, RootError> {
        let id = self.handle.keyring().id(Kind::Commit, &record);
        self.shelf.records.lock().insert(id, record.into());
        Ok(id)
    }

    async fn read_record(
        &self,
        _: &IndexSources,
        _: &HashSet<PackName>,
        id: Id,
    ) -> Result<Bytes, RootError> {
        self.shelf
            .records
            .lock()
            .get(&id)
            .cloned()
            .ok_or_else(|| RootError::damaged("record", id))
    }

    async fn not_live(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
        packs: &[PackName],
    ) -> Result<Vec<PackName>, RootError> {
        let live = self.shelf.live(&sources.objects);
        Ok(packs
            .iter()
            .filter(|pack| !live.contains(pack) || condemned.contains(pack))
            .copied()
            .collect())
    }
}

#[async_trait]
impl FinishPacks for Fake {
    type Mark = ();

    async fn finish_since(&self, (): (), current: &[IndexRef]) -> Result<FinishedPacks, RootError> {
        let pack = self.name();
        self.uncommitted.lock().push(pack);
        let packs = self.uncommitted.lock().clone();
        let absorbed: Vec<_> = if current.len() >= ABSORBED_AT {
            current.to_vec()
        } else {
            Vec::new()
        };
        let held: Vec<_> = packs
            .iter()
            .copied()
            .chain(self.shelf.live(&absorbed))
            .collect();
        let name = self.name();
        let added = IndexRef {
            name,
            packs: held.len() as u32,
            blobs: 0,
            bytes: 0,
        };
        self.shelf.indexes.lock().insert(name, held);
        let index = current
            .iter()
            .filter(|index| !absorbed.contains(index))
            .copied()
            .chain([added])
            .collect();
        let absorbed = absorbed.iter().map(|index| index.name).collect();
        let mut finished = self
            .idle
            .finish(&[])
            .await
            .expect("there is nothing to write");
        finished.index = index;
        finished.absorbed = absorbed;
        finished.packs = packs;
        finished.relied_on = self.relied_on.lock().clone();
        finished.floor = name.sequence + 1;
        finished.new_bytes = 10;
        Ok(finished)
    }

    fn committed(&self, finished: FinishedPacks) {
        self.uncommitted
            .lock()
            .retain(|pack| !finished.packs.contains(pack));
        self.committed.fetch_add(1, Ordering::Relaxed);
    }

    fn conflicted(&self, _: FinishedPacks) {
        self.conflicted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a commit of a tree that is named by a number.
pub fn tree(number: u64) -> CommitRequest<()> {
    CommitRequest {
        mark: (),
        tree: Some(id(number)),
        building: None,
        covered: number,
        covered_journal: Some(2 * number),
        next_inode: 100 + number,
        inodes: number,
        bytes: 1000 * number,
        clock: time(1_000_000 + number as i64),
        snapshot: None,
    }
}

/// Returns a bucket in memory with a first root.
pub async fn memory() -> Arc<dyn Store> {
    let store = Arc::new(MemoryStore::new());
    create(&*store).await;
    store
}
