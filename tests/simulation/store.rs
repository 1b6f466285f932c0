//! The bucket as one machine of a run reaches it.
//!
//! The bucket itself is linearizable and loses nothing; all faults happen on the way to it. A
//! request runs in a task of its own, as on a network: it arrives even if its caller no longer
//! waits, or no longer lives.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bkfs::root::state::ROOT_KEY;
use bkfs_store::disk::DiskLock;
use bkfs_store::{MemoryStore, ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::bugs::Bug;
use crate::faults::{Fate, Faults, Way};
use crate::trace::Trace;

/// Time for which requests must go as they should after trouble, before the store counts as
/// working. In this time back-offs end, and requests that were given up are sent again.
const RECOVERED_WITHIN: Duration = Duration::from_secs(75);

/// The state that all machines of a run share.
pub struct Shared {
    /// The bucket.
    pub bucket: MemoryStore,
    /// The faults.
    pub faults: Faults,
    /// The record of the run.
    pub trace: Trace,
}

/// The power of a machine. A dead machine sends nothing, receives nothing, and writes nothing to
/// its disk.
#[derive(Debug)]
pub struct Power {
    /// The machine's number in the run.
    pub machine: u64,
    dead: AtomicBool,
    /// Steps of requests until the machine dies.
    left: AtomicU64,
    died: Notify,
    locks: Mutex<Vec<HeldLock>>,
    vitals: Mutex<Vitals>,
    /// Number of requests under way that do not go as they should.
    troubled: AtomicU64,
    /// Number of uploads that are held.
    held: AtomicU64,
}

/// How the store has treated a machine.
#[derive(Clone, Copy, Debug)]
pub struct Vitals {
    /// The time of this observation: now, or the machine's death.
    pub at: Instant,
    /// Since when the store counts as working, or `None` while a request does not go as it should.
    pub well_since: Option<Instant>,
    /// When a write was last acknowledged, or else when the machine was turned on.
    pub acknowledged: Instant,
}

/// Counts a request that does not go as it should, while it lives.
struct Troubled<'a>(&'a Power);

impl Drop for Troubled<'_> {
    fn drop(&mut self) {
        self.0.troubled.fetch_sub(1, Ordering::Relaxed);
        if !self.0.is_dead() {
            self.0.vitals.lock().well_since = Some(Instant::now() + RECOVERED_WITHIN);
        }
    }
}

/// Counts an upload that is held, while it lives.
struct HeldUpload<'a>(&'a Power);

impl Drop for HeldUpload<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A lock on a disk that is released when its holder dies.
pub type HeldLock = Arc<Mutex<Option<DiskLock>>>;

impl Power {
    /// Returns a machine that runs until it is cut off, or for this many steps of requests.
    pub fn new(machine: u64, steps: u64) -> Arc<Self> {
        Arc::new(Self {
            machine,
            dead: AtomicBool::new(false),
            left: AtomicU64::new(steps),
            died: Notify::new(),
            locks: Mutex::default(),
            vitals: Mutex::new(Vitals {
                at: Instant::now(),
                well_since: Some(Instant::now()),
                acknowledged: Instant::now(),
            }),
            troubled: AtomicU64::new(0),
            held: AtomicU64::new(0),
        })
    }

    /// Returns how the store treats the machine, or treated it when it died.
    pub fn vitals(&self) -> Vitals {
        let mut vitals = *self.vitals.lock();
        if !self.is_dead() {
            vitals.at = Instant::now();
            if self.troubled.load(Ordering::Relaxed) > 0 {
                vitals.well_since = None;
            }
        }
        vitals
    }

    /// Counts a request that is sent on this way.
    fn goes(&self, way: &Way) -> Option<Troubled<'_>> {
        (!way.is_well()).then(|| {
            self.troubled.fetch_add(1, Ordering::Relaxed);
            Troubled(self)
        })
    }

    /// Counts an upload that is held on this way.
    fn holds(&self, way: &Way) -> Option<HeldUpload<'_>> {
        way.is_held.then(|| {
            self.held.fetch_add(1, Ordering::Relaxed);
            HeldUpload(self)
        })
    }

    /// Whether an upload of the machine is held.
    pub fn is_holding(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Whether the machine is dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Cuts the machine off.
    pub fn cut(&self) {
        if !self.is_dead() {
            let vitals = self.vitals();
            *self.vitals.lock() = vitals;
        }
        self.dead.store(true, Ordering::Relaxed);
        for lock in self.locks.lock().drain(..) {
            lock.lock().take();
        }
        self.died.notify_waiters();
    }

    /// Records a lock that the machine holds for as long as it lives.
    pub fn held(&self, lock: HeldLock) {
        self.locks.lock().push(lock);
    }

    /// Waits for the machine's death.
    pub async fn death(&self) {
        let died = self.died.notified();
        if !self.is_dead() {
            died.await;
        }
    }

    /// Counts one step: a request, or an operation on a disk, is about to be sent, to be carried
    /// out, or to be answered.
    pub fn step(&self) {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left == 1 {
            self.cut();
        }
    }
}

/// The bucket as one machine reaches it.
#[derive(Clone)]
pub struct SimStore {
    /// The state that all machines share.
    pub shared: Arc<Shared>,
    /// The machine.
    pub power: Arc<Power>,
    /// A mistake that is planted on the way.
    pub bug: Option<Bug>,
}

impl std::fmt::Debug for SimStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SimStore({})", self.power.machine)
    }
}

fn error(kind: StoreErrorKind, operation: Operation, key: &str) -> StoreError {
    StoreError::new(kind, operation, key, "a fault of the simulation")
}

/// Returns the name of a body in a trace.
fn digest(parts: &[Bytes]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..8].to_owned()
}

impl SimStore {
    fn note(&self, operation: Operation, key: &str, way: &Way, what: &str) {
        let (machine, name) = (self.power.machine, operation.name());
        match way.fate {
            Fate::Fine => self
                .shared
                .trace
                .note(format_args!("m{machine} {name} {key} {what}")),
            fate => self
                .shared
                .trace
                .note(format_args!("m{machine} {name} {key} {what} {fate:?}")),
        }
    }

    /// Sends a request that changes the bucket.
    async fn write<T, F>(
        &self,
        operation: Operation,
        key: &str,
        (body, bytes): (&str, usize),
        apply: impl FnOnce(MemoryStore) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        self.power.step();
        if self.power.is_dead() {
            return std::future::pending().await;
        }
        let way = self.shared.faults.draw(operation, key, bytes);
        let _troubled = self.power.goes(&way);
        self.note(operation, key, &way, body);
        let (answer, answered) = oneshot::channel();
        let (this, key) = (self.clone(), key.to_owned());
        tokio::spawn(async move {
            if let Some(result) = this.carry_out(operation, &key, way, apply).await {
                // A caller that gave up does not receive the answer.
                let _ = answer.send(result);
            }
        });
        self.wait(answered, operation, way).await
    }

    /// Waits for the answer as the caller of a request under way.
    async fn wait<T>(
        &self,
        answered: oneshot::Receiver<Result<T, StoreError>>,
        operation: Operation,
        way: Way,
    ) -> Result<T, StoreError> {
        let patience = match way.fate {
            Fate::Late(_) => way.there,
            _ => self.shared.faults.silence() + way.moving,
        };
        let answer = async {
            match answered.await {
                Ok(result) => result,
                Err(_) => std::future::pending().await,
            }
        };
        match tokio::time::timeout(patience, answer).await {
            _ if self.power.is_dead() => std::future::pending().await,
            Ok(result) => {
                if result.is_ok() {
                    self.power.vitals.lock().acknowledged = Instant::now();
                }
                result
            }
            Err(_) => Err(error(StoreErrorKind::OutcomeUnknown, operation, "(late)")),
        }
    }

    /// Carries out a write as the network and the bucket. Returns its answer, if one arrives.
    async fn carry_out<T, F>(
        &self,
        operation: Operation,
        key: &str,
        way: Way,
        apply: impl FnOnce(MemoryStore) -> F,
    ) -> Option<Result<T, StoreError>>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let held = self.power.holds(&way);
        tokio::time::sleep(way.there).await;
        drop(held);
        if let Fate::Late(later) = way.fate {
            tokio::time::sleep(later).await;
        }
        let alive = !self.power.is_dead();
        if alive {
            self.power.step();
        }
        if self.power.is_dead() && !way.sent {
            self.note(operation, key, &way, "died with its machine");
            return None;
        }
        let result = match way.fate {
            Fate::Refused(kind) | Fate::Turned(kind) => Err(error(kind, operation, key)),
            Fate::Hung { applied: false } | Fate::Still { dead: true } => return None,
            _ => apply(self.shared.bucket.clone()).await,
        };
        let shown = match &result {
            Ok(_) => "done".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        };
        self.note(operation, key, &way, &shown);
        tokio::time::sleep(way.back).await;
        if self.power.is_dead() || matches!(way.fate, Fate::Hung { .. }) {
            return None;
        }
        self.power.step();
        if self.power.is_dead() {
            return None;
        }
        Some(match way.fate {
            Fate::Lost(kind) => result.and(Err(error(kind, operation, key))),
            _ => result,
        })
    }

    /// Sends a request that reads.
    async fn read<T>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(T, Way), StoreError> {
        self.power.step();
        if self.power.is_dead() {
            return std::future::pending().await;
        }
        let way = self.shared.faults.draw(operation, key, 0);
        let _troubled = self.power.goes(&way);
        let silence = self.shared.faults.silence();
        if way.there > silence + way.moving || way.fate == (Fate::Still { dead: true }) {
            tokio::time::sleep(silence).await;
            return match self.power.is_dead() {
                true => std::future::pending().await,
                false => Err(error(StoreErrorKind::Unreachable, operation, key)),
            };
        }
        tokio::time::sleep(way.there).await;
        let answer = match way.fate {
            Fate::Refused(kind) | Fate::Turned(kind) => Err(error(kind, operation, key)),
            _ => request.await,
        };
        let shown = match &answer {
            Ok(_) => "read".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        };
        self.note(operation, key, &way, &shown);
        tokio::time::sleep(way.back).await;
        if let Fate::Hung { .. } = way.fate {
            tokio::time::sleep(silence).await;
        }
        if self.power.is_dead() {
            return std::future::pending().await;
        }
        match way.fate {
            Fate::Hung { .. } => Err(error(StoreErrorKind::Unreachable, operation, key)),
            _ => Ok((answer?, way)),
        }
    }
}

/// Returns the body that arrives in the end.
fn arrived(bytes: Bytes, way: Way) -> Bytes {
    match way.fate {
        Fate::Cut(thousandths) => {
            let length = bytes.len() * usize::from(thousandths) / 1000;
            bytes.slice(..length)
        }
        Fate::Flipped(number) if !bytes.is_empty() => {
            let bit = number as usize % (bytes.len() * 8);
            let mut damaged = BytesMut::from(bytes.as_ref());
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged.freeze()
        }
        _ => bytes,
    }
}

#[async_trait]
impl Store for SimStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let request = self.shared.bucket.get(key);
        let ((bytes, version), way) = self.read(Operation::Get, key, request).await?;
        if self.bug == Some(Bug::FenceUnread) && key.starts_with("fence/") {
            let absent = StoreErrorKind::NotFound;
            return Err(StoreError::new(absent, Operation::Get, key, "not shown"));
        }
        Ok((self.arrive(bytes, way).await, version))
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let request = self.shared.bucket.get_if_changed(key, known);
        let (changed, way) = self.read(Operation::Get, key, request).await?;
        if self.bug == Some(Bug::RootNotReadAgain) && key == ROOT_KEY {
            return Ok(None);
        }
        Ok(match changed {
            Some((bytes, version)) => Some((self.arrive(bytes, way).await, version)),
            None => None,
        })
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let request = self.shared.bucket.get_range(key, range);
        let (bytes, way) = self.read(Operation::GetRange, key, request).await?;
        Ok(self.arrive(bytes, way).await)
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let request = self.shared.bucket.get_tail(key, bytes);
        let ((bytes, size), way) = self.read(Operation::GetTail, key, request).await?;
        Ok((self.arrive(bytes, way).await, size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let request = self.shared.bucket.head(key);
        Ok(self.read(Operation::Head, key, request).await?.0)
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        if self.bug == Some(Bug::PackAfterIndex) && key.starts_with("data/") {
            return self.acknowledge_early(key, body).await;
        }
        let (name, shown) = (key.to_owned(), digest(&body));
        let bytes = body.iter().map(Bytes::len).sum();
        let apply = move |bucket: MemoryStore| async move { bucket.put_new(&name, body).await };
        self.write(Operation::PutNew, key, (&shown, bytes), apply)
            .await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let (name, shown) = (key.to_owned(), digest(&body));
        let bytes = body.iter().map(Bytes::len).sum();
        let apply = move |bucket: MemoryStore| async move { bucket.put(&name, body).await };
        self.write(Operation::Put, key, (&shown, bytes), apply)
            .await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let (name, shown, expected) = (key.to_owned(), digest(&body), expected.clone());
        let bytes = body.iter().map(Bytes::len).sum();
        let blind = self.bug == Some(Bug::RootNotReadAgain) && key == ROOT_KEY;
        let apply = move |bucket: MemoryStore| async move {
            let expected = match blind {
                true => bucket.get(&name).await?.1,
                false => expected,
            };
            bucket.replace(&name, body, &expected).await
        };
        let done = self
            .write(Operation::Replace, key, (&shown, bytes), apply)
            .await;
        match done {
            Err(error)
                if self.bug == Some(Bug::UnknownIsSuccess)
                    && key == ROOT_KEY
                    && error.kind() == StoreErrorKind::OutcomeUnknown =>
            {
                Ok(self.shared.bucket.get(key).await?.1)
            }
            done => done,
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let name = key.to_owned();
        let apply = move |bucket: MemoryStore| async move { bucket.delete(&name).await };
        self.write(Operation::Delete, key, ("", 0), apply).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let request = self.shared.bucket.list(prefix, after, limit);
        Ok(self.read(Operation::List, prefix, request).await?.0)
    }

    fn describe(&self) -> String {
        "simulation".to_owned()
    }
}

impl SimStore {
    /// Returns the body that arrives, at the rate of its connection.
    async fn arrive(&self, bytes: Bytes, way: Way) -> Bytes {
        let moving = self.shared.faults.moving(bytes.len());
        if !moving.is_zero() {
            tokio::time::sleep(moving).await;
        }
        arrived(bytes, way)
    }

    /// [`Bug::PackAfterIndex`]: reports success before the object is stored, which takes long.
    async fn acknowledge_early(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let (bucket, power, key) = (
            self.shared.bucket.clone(),
            self.power.clone(),
            key.to_owned(),
        );
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            if !power.is_dead() {
                let _ = bucket.put_new(&key, body).await;
            }
        });
        // Any version will do, since packs are never replaced.
        Ok(self.shared.bucket.get(ROOT_KEY).await?.1)
    }
}
