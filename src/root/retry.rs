//! How often and how long requests for the root are tried: pauses, deadlines, and which errors may pass.
//!
//! Owns the policy and its clock, and no request of its own. Time is tokio's, so that a paused clock works; the jitter of pauses is drawn from the injected randomness.

use super::error::RootError;
use async_trait::async_trait;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::store::{ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long, and how often, the root is tried.
#[derive(Copy, Clone, Debug)]
pub struct RetryPolicy {
    /// A single request that takes longer counts as unanswered. The root is at most 64 KiB.
    pub request_timeout: Duration,
    /// How long the store may fail to move before the caller is told (`timeout=`).
    pub stall_timeout: Duration,
    /// The upper bound of the first random pause; it doubles with every further try.
    pub first_pause: Duration,
    /// The upper bound that pauses stop growing at.
    pub longest_pause: Duration,
    /// How many conflicts with other writers a single change bears.
    pub conflicts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
            conflicts_max: 1000,
        }
    }
}

/// Whether an error may go away by itself: what asks for a person does not.
pub(super) fn may_pass(error: &StoreError) -> bool {
    !matches!(
        error.kind(),
        StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NotFound
            | StoreErrorKind::Invalid
            | StoreErrorKind::NoSpace
            | StoreErrorKind::OutOfRange
    )
}

/// Gives up on a request that is not answered in time; it may still be carried out.
pub(super) async fn bounded<T>(
    policy: &RetryPolicy,
    operation: Operation,
    key: &str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let kind = if operation.is_write() {
        StoreErrorKind::OutcomeUnknown
    } else {
        StoreErrorKind::Unreachable
    };
    let silent = |_| {
        StoreError::new(
            kind,
            operation,
            key,
            format!("no answer within {} s", policy.request_timeout.as_secs()),
        )
    };
    tokio::time::timeout(policy.request_timeout, request)
        .await
        .map_err(silent)?
}

/// `N` bytes of fresh randomness.
pub(crate) fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}

/// Random pauses that grow, until the store has stood still for too long.
pub(super) struct Pauses<'a> {
    policy: &'a RetryPolicy,
    entropy: &'a dyn Entropy,
    tries: u32,
    deadline: Instant,
}

impl<'a> Pauses<'a> {
    pub(super) fn new(policy: &'a RetryPolicy, entropy: &'a dyn Entropy) -> Self {
        Self {
            policy,
            entropy,
            tries: 0,
            deadline: Instant::now() + policy.stall_timeout,
        }
    }

    /// Pauses after `error`, or tells that the deadline has passed.
    pub(super) async fn pause(&mut self, error: &StoreError) -> Result<(), RootError> {
        if Instant::now() >= self.deadline {
            return Err(RootError::OutcomeUnknown {
                reason: error.to_string(),
            });
        }
        self.sleep().await;
        Ok(())
    }

    /// Pauses for a random time up to a bound that doubles with every call (full jitter, so that contenders spread out).
    pub(super) async fn sleep(&mut self) {
        let bound = self
            .policy
            .first_pause
            .saturating_mul(1 << self.tries.min(16))
            .min(self.policy.longest_pause);
        self.tries += 1;
        let fraction = u32::from_le_bytes(random(self.entropy));
        tokio::time::sleep(bound.mul_f64(f64::from(fraction) / f64::from(u32::MAX))).await;
    }
}

/// Asks again and again while the store does not answer: only for what changes nothing by being repeated.
pub(super) async fn patiently<T, R>(
    policy: &RetryPolicy,
    entropy: &dyn Entropy,
    operation: Operation,
    key: &str,
    request: impl Fn() -> R,
) -> Result<T, StoreError>
where
    R: Future<Output = Result<T, StoreError>>,
{
    let mut pauses = Pauses::new(policy, entropy);
    loop {
        match bounded(policy, operation, key, request()).await {
            Err(error) if may_pass(&error) => pauses.pause(&error).await.map_err(|_| error)?,
            answer => return answer,
        }
    }
}

/// A store whose reads and lists are asked for again while it does not answer. Writes are passed on as they are: whether they may be repeated is for their senders to know.
#[derive(Clone, Debug)]
pub(super) struct PatientReads {
    pub(super) store: Arc<dyn Store>,
    pub(super) policy: RetryPolicy,
    pub(super) entropy: Arc<dyn Entropy>,
}

impl PatientReads {
    async fn ask<T, R>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Fn() -> R + Send,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, StoreError>> + Send,
    {
        patiently(&self.policy, &*self.entropy, operation, key, request).await
    }
}

#[async_trait]
impl bkfs_chunker::store::Layer for PatientReads {
    fn below(&self) -> &dyn Store {
        &*self.store
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.ask(Operation::Get, key, || self.store.get(key)).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let request = || self.store.get_if_changed(key, known);
        self.ask(Operation::Get, key, request).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let request = || self.store.get_range(key, range.clone());
        self.ask(Operation::GetRange, key, request).await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let request = || self.store.get_tail(key, bytes);
        self.ask(Operation::GetTail, key, request).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let request = || self.store.head(key);
        self.ask(Operation::Head, key, request).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let request = || self.store.list(prefix, after, limit);
        self.ask(Operation::List, prefix, request).await
    }
}
