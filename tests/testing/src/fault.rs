//! A store that fails on purpose, by a plan.
//!
//! Owns the faults that a store and the connection to it can have, where they strike, and how often
//! they struck: a test whose faults never struck proves nothing. Without a plan it passes the same
//! contract as the store below it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bkfs_store::lock::Lock;
use bkfs_store::{ObjectInfo, Operation, Signs, Store, StoreError, StoreErrorKind, Version};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// A planned fault.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request fails with this kind of error and is not applied.
    FailBefore(StoreErrorKind),
    /// The request is applied and its answer is lost: the error has this kind.
    FailAfter(StoreErrorKind),
    /// A write's outcome is reported as unknown. The write is applied only when
    /// [`FaultStore::apply_late`] is called.
    Late,
    /// The request is sent after this delay.
    Delay(Duration),
    /// The request waits at a gate before it is applied.
    HoldBefore(Gate),
    /// The request is applied, and its answer waits at a gate.
    HoldAfter(Gate),
    /// The request is never answered and not applied.
    Hang,
    /// A read returns at most this many bytes.
    CutShort(usize),
    /// One bit of the bytes read is flipped: the bit of this number, modulo their number of bits.
    FlipBit(usize),
    /// An existing object is reported as absent.
    Missing,
}

/// A gate that holds requests back until it is opened.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    /// Returns a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all requests through, now and later.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        // The semaphore has no permits. The wait ends when it is closed, which opens the gate.
        let _ = self.0.acquire().await;
    }
}

/// Where a fault strikes: at the matching requests, from number `nth` on, for `times` requests.
#[derive(Clone, Debug)]
pub struct Strike {
    operation: Option<Operation>,
    writes_only: bool,
    key_prefix: String,
    nth: u64,
    times: u64,
    fault: Fault,
    /// The number of matching requests so far.
    matched: u64,
}

impl Strike {
    /// Returns a strike of the very first request with this fault.
    pub fn with(fault: Fault) -> Self {
        Self {
            operation: None,
            writes_only: false,
            key_prefix: String::new(),
            nth: 1,
            times: 1,
            fault,
            matched: 0,
        }
    }

    /// Restricts it to requests of this operation.
    pub fn on(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Restricts it to requests that change the bucket.
    pub fn on_writes(mut self) -> Self {
        self.writes_only = true;
        self
    }

    /// Restricts it to requests whose key begins with `prefix`.
    pub fn keys(mut self, prefix: &str) -> Self {
        self.key_prefix = prefix.to_owned();
        self
    }

    /// Strikes from the `nth` matching request on, counted from 1.
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// Strikes this many requests.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Strikes every request from there on.
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Counts a request. Returns whether the fault strikes it.
    fn strikes(&mut self, operation: Operation, key: &str) -> bool {
        let matches = self.operation.is_none_or(|only| only == operation)
            && (!self.writes_only || operation.is_write())
            && key.starts_with(&self.key_prefix);
        if !matches {
            return false;
        }
        self.matched += 1;
        self.matched >= self.nth && self.matched - self.nth < self.times
    }
}

/// A write that will be applied later.
struct LateWrite(BoxFuture<'static, ()>);

impl fmt::Debug for LateWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LateWrite")
    }
}

#[derive(Debug, Default)]
struct FaultPlan {
    strikes: Vec<Strike>,
    struck: u64,
    requests: u64,
    late: Vec<LateWrite>,
}

/// A store that fails on purpose. Clones share the plan.
#[derive(Clone, Debug)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<FaultPlan>>,
}

/// The faults of a request that concern its answer.
#[derive(Default)]
struct After {
    kind: Option<StoreErrorKind>,
    gate: Option<Gate>,
    cut: Option<usize>,
    flip: Option<usize>,
}

impl FaultStore {
    /// Returns a store that behaves as `inner` does until a fault is planned.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
        }
    }

    /// Adds a strike to the plan. It counts requests from now on.
    pub fn plan(&self, strike: Strike) {
        self.plan.lock().strikes.push(strike);
    }

    /// Removes all strikes. The counts stay.
    pub fn heal(&self) {
        self.plan.lock().strikes.clear();
    }

    /// Returns how often a fault struck.
    pub fn struck(&self) -> u64 {
        self.plan.lock().struck
    }

    /// Returns the number of requests so far, whatever their outcome: the bound for a test that
    /// fails each request in turn.
    pub fn requests(&self) -> u64 {
        self.plan.lock().requests
    }

    /// Applies the writes that were held back as [`Fault::Late`], the oldest first. Returns their
    /// number.
    pub async fn apply_late(&self) -> usize {
        let late = std::mem::take(&mut self.plan.lock().late);
        let count = late.len();
        for LateWrite(write) in late {
            write.await;
        }
        count
    }

    /// Counts a request and returns the faults that strike it.
    fn faults(&self, operation: Operation, key: &str) -> Vec<Fault> {
        let mut plan = self.plan.lock();
        plan.requests += 1;
        let mut faults = Vec::new();
        for strike in &mut plan.strikes {
            if strike.strikes(operation, key) {
                faults.push(strike.fault.clone());
            }
        }
        plan.struck += faults.len() as u64;
        faults
    }

    /// Applies the faults that strike a request before it reaches the store. Returns those that
    /// concern its answer.
    async fn before(
        &self,
        operation: Operation,
        key: &str,
        late: impl FnOnce() -> LateWrite,
    ) -> Result<After, StoreError> {
        let fail = |kind| {
            Err(StoreError::new(
                kind,
                operation,
                key,
                "a fault that was planned",
            ))
        };
        let mut late = Some(late);
        let mut after = After::default();
        for fault in self.faults(operation, key) {
            match fault {
                Fault::FailBefore(kind) => return fail(kind),
                Fault::Missing => return fail(StoreErrorKind::NotFound),
                Fault::FailAfter(kind) => after.kind = Some(kind),
                Fault::Late if operation.is_write() => {
                    if let Some(late) = late.take() {
                        self.plan.lock().late.push(late());
                    }
                    return fail(StoreErrorKind::OutcomeUnknown);
                }
                Fault::Late => return fail(StoreErrorKind::Unreachable),
                Fault::Delay(duration) => tokio::time::sleep(duration).await,
                Fault::HoldBefore(gate) => gate.pass().await,
                Fault::HoldAfter(gate) => after.gate = Some(gate),
                Fault::Hang => std::future::pending().await,
                Fault::CutShort(bytes) => after.cut = Some(bytes),
                Fault::FlipBit(bit) => after.flip = Some(bit),
            }
        }
        Ok(after)
    }

    async fn write<T: Send + 'static>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Fn(Arc<dyn Store>) -> BoxFuture<'static, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = || {
            let write = request(Arc::clone(&self.inner));
            LateWrite(Box::pin(async move {
                // No caller waits for the outcome.
                let _ = write.await;
            }))
        };
        let after = self.before(operation, key, late).await?;
        let answer = request(Arc::clone(&self.inner)).await;
        after.answer(operation, key, answer).await
    }

    async fn read<T>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(T, After), StoreError> {
        let nothing = || LateWrite(Box::pin(std::future::ready(())));
        let mut after = self.before(operation, key, nothing).await?;
        let answer = request.await;
        let (cut, flip) = (after.cut.take(), after.flip.take());
        let answer = after.answer(operation, key, answer).await?;
        let rest = After {
            cut,
            flip,
            ..After::default()
        };
        Ok((answer, rest))
    }
}

impl After {
    async fn answer<T>(
        self,
        operation: Operation,
        key: &str,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(gate) = self.gate {
            gate.pass().await;
        }
        match self.kind {
            Some(kind) => Err(StoreError::new(
                kind,
                operation,
                key,
                "an answer that was lost as planned",
            )),
            None => answer,
        }
    }

    /// Applies the planned damage to the bytes read.
    fn damage(&self, bytes: Bytes) -> Bytes {
        let mut bytes = match self.cut {
            Some(length) => bytes.slice(..length.min(bytes.len())),
            None => bytes,
        };
        if let Some(bit) = self.flip
            && !bytes.is_empty()
        {
            let bit = bit % (bytes.len() * 8);
            let mut damaged = BytesMut::from(bytes.as_ref());
            damaged[bit / 8] ^= 1 << (bit % 8);
            bytes = damaged.freeze();
        }
        bytes
    }
}

#[async_trait]
impl Store for FaultStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let request = self.inner.get(key);
        let ((bytes, version), after) = self.read(Operation::Get, key, request).await?;
        Ok((after.damage(bytes), version))
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let request = self.inner.get_if_changed(key, known);
        let (changed, after) = self.read(Operation::Get, key, request).await?;
        Ok(changed.map(|(bytes, version)| (after.damage(bytes), version)))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let request = self.inner.get_range(key, range);
        let (bytes, after) = self.read(Operation::GetRange, key, request).await?;
        Ok(after.damage(bytes))
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let request = self.inner.get_tail(key, bytes);
        let ((bytes, size), after) = self.read(Operation::GetTail, key, request).await?;
        Ok((after.damage(bytes), size))
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let request = self.inner.head(key);
        let (info, _) = self.read(Operation::Head, key, request).await?;
        Ok(info)
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.write(Operation::PutNew, key, |inner| {
            let (key, body) = (key.to_owned(), body.clone());
            Box::pin(async move { inner.put_new(&key, body).await })
        })
        .await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.write(Operation::Put, key, |inner| {
            let (key, body) = (key.to_owned(), body.clone());
            Box::pin(async move { inner.put(&key, body).await })
        })
        .await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        self.write(Operation::Replace, key, |inner| {
            let (key, body, expected) = (key.to_owned(), body.clone(), expected.clone());
            Box::pin(async move { inner.replace(&key, body, &expected).await })
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.write(Operation::Delete, key, |inner| {
            let key = key.to_owned();
            Box::pin(async move { inner.delete(&key).await })
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let request = self.inner.list(prefix, after, limit);
        let (listed, _) = self.read(Operation::List, prefix, request).await?;
        Ok(listed)
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        let lock = *lock;
        self.write(Operation::PutNew, key, |inner| {
            let (key, body) = (key.to_owned(), body.clone());
            Box::pin(async move { inner.put_locked(&key, body, &lock).await })
        })
        .await
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        let request = self.inner.lock(key);
        let (lock, _) = self.read(Operation::ReadLock, key, request).await?;
        Ok(lock)
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        let lock = *lock;
        self.write(Operation::ExtendLock, key, |inner| {
            let key = key.to_owned();
            Box::pin(async move { inner.extend_lock(&key, &lock).await })
        })
        .await
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn signs(&self) -> Signs {
        self.inner.signs()
    }
}

#[cfg(test)]
mod tests;
