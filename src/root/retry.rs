//! How often and how long requests for the root are tried: pauses, deadlines, and which errors may pass.
//!
//! Owns the policy and its clock, and no request of its own. Time is tokio's, so that a paused clock works; the jitter of pauses is drawn from the injected randomness.

use super::error::RootError;
use super::handle::RootHandle;
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
    /// Whether a store that refuses is waited for as long as one that is silent: for who has
    /// accepted what must not be dropped.
    pub bears_refusals: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            request_timeout: Self::REQUEST_MAX,
            stall_timeout: Duration::from_secs(300),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
            conflicts_max: 1000,
            bears_refusals: false,
        }
    }
}

/// The part of the time that a silent store is borne for, after which it is tried again at the
/// latest: an outage that ends in time is noticed in time.
const PAUSES_IN_TIMEOUT: u32 = 5;

impl RetryPolicy {
    /// The longest that a single request is waited for, however patient the caller is.
    const REQUEST_MAX: Duration = Duration::from_secs(60);

    /// The shortest time that a request is waited for, unless the caller has not twice as long: a
    /// busy store takes a while.
    const REQUEST_MIN: Duration = Duration::from_secs(4);

    /// For a caller who waits for `timeout` in all (`timeout=`): a request that is not answered is
    /// given up early enough to be sent again.
    pub fn within(timeout: Duration) -> Self {
        let usual = Self::default();
        let share = (timeout / 4).max(Self::REQUEST_MIN);
        Self {
            request_timeout: share.min(timeout / 2).min(Self::REQUEST_MAX),
            longest_pause: (timeout / PAUSES_IN_TIMEOUT).min(usual.longest_pause),
            stall_timeout: timeout,
            ..usual
        }
    }

    /// Whether a request that failed like this is made again.
    pub(super) fn bears(&self, error: &StoreError) -> bool {
        let is_answer = matches!(
            error.kind(),
            StoreErrorKind::NotFound | StoreErrorKind::OutOfRange
        );
        may_pass(error) || (self.bears_refusals && !is_answer)
    }
}

/// The slowest link that a large object is waited for.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 * 1024;

/// The shortest time that an answer is waited for.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Whether an answer says that nothing was applied, and why.
pub(super) fn is_refusal(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoSpace
            | StoreErrorKind::Invalid
    )
}

/// Whether an error may go away by itself: what asks for a person does not.
pub(super) fn may_pass(error: &StoreError) -> bool {
    !matches!(
        error.kind(),
        StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoServer
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
            format!("no answer within {:?}", policy.request_timeout),
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
    policy: RetryPolicy,
    entropy: &'a dyn Entropy,
    tries: u32,
    deadline: Instant,
}

impl<'a> Pauses<'a> {
    pub(super) fn new(policy: &RetryPolicy, entropy: &'a dyn Entropy) -> Self {
        Self {
            policy: *policy,
            entropy,
            tries: 0,
            deadline: Instant::now() + policy.stall_timeout,
        }
    }

    /// The policy for a request that begins now: it is given up at the deadline.
    pub(super) fn policy(&self) -> RetryPolicy {
        let left = self.deadline.saturating_duration_since(Instant::now());
        RetryPolicy {
            // The last one has its chance, too.
            request_timeout: self.policy.request_timeout.min(left.max(LAST_CHANCE)),
            ..self.policy
        }
    }

    /// The same for a request that carries so many bytes.
    pub(super) fn policy_for(&self, bytes: usize) -> RetryPolicy {
        let policy = self.policy();
        let carrying = Duration::from_secs(bytes as u64 / SLOWEST_BYTES_PER_SECOND);
        RetryPolicy {
            request_timeout: policy.request_timeout + carrying,
            ..policy
        }
    }

    /// Pauses after `error`, or tells that the deadline has passed.
    pub(super) async fn pause(&mut self, error: &StoreError) -> Result<(), RootError> {
        if Instant::now() >= self.deadline {
            return Err(RootError::OutcomeUnknown {
                reason: error.to_string(),
            });
        }
        let deadline = self.deadline;
        // Who waits is told at the deadline, or soon after the last attempt, which begins then.
        let _ = tokio::time::timeout_at(deadline, self.sleep()).await;
        Ok(())
    }

    /// Pauses for a random time up to a bound that doubles with every call (full jitter, so that contenders spread out).
    pub(super) async fn sleep(&mut self) {
        let (bound, fraction) = self.next();
        tokio::time::sleep(bound.mul_f64(fraction)).await;
    }

    /// The same, and at least half of the bound: for who waits for a store to change, and not for
    /// others to be out of its way.
    pub(super) async fn sleep_half(&mut self) {
        let (bound, fraction) = self.next();
        tokio::time::sleep(bound.mul_f64(0.5 + fraction / 2.0)).await;
    }

    /// The bound of the next pause, and a random fraction.
    fn next(&mut self) -> (Duration, f64) {
        let bound = self
            .policy
            .first_pause
            .saturating_mul(1 << self.tries.min(16))
            .min(self.policy.longest_pause);
        self.tries += 1;
        let fraction = u32::from_le_bytes(random(self.entropy));
        (bound, f64::from(fraction) / f64::from(u32::MAX))
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
        match bounded(&pauses.policy(), operation, key, request()).await {
            Err(error) if policy.bears(&error) => pauses.pause(&error).await.map_err(|_| error)?,
            answer => return answer,
        }
    }
}

/// Creates an object under a name that nothing else is ever written to, for as long as the store
/// may stand still: what lies there with these bytes is ours, and what is not there is
/// sent again, the same bytes under the same name.
///
/// Dropped, it leaves an object under that name, or none, or one that arrives later.
///
/// # Errors
/// `AlreadyExists` if something else lies there; what keeps it from being read; store errors that do
/// not pass in time, after which it may or may not be there.
pub(super) async fn create_surely(
    store: &dyn Store,
    policy: &RetryPolicy,
    entropy: &dyn Entropy,
    key: &str,
    body: &Bytes,
) -> Result<(), StoreError> {
    let mut pauses = Pauses::new(policy, entropy);
    loop {
        let sent = store.put_new(key, vec![body.clone()]);
        let error = match bounded(policy, Operation::PutNew, key, sent).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error.kind() == StoreErrorKind::AlreadyExists {
            let get = || store.get(key);
            return match patiently(policy, entropy, Operation::Get, key, get).await {
                Ok((found, _)) if found == *body => Ok(()),
                Err(unread) if !unread.is_not_found() => Err(unread),
                _ => Err(error),
            };
        }
        if !may_pass(&error) {
            return Err(error);
        }
        pauses.pause(&error).await.map_err(|_| error)?;
    }
}

/// A store whose reads and lists are asked for again while it does not answer. Writes are passed on as they are: whether they may be repeated is for their senders to know.
#[derive(Clone, Debug)]
pub(super) struct PatientReads {
    pub(super) store: Arc<dyn Store>,
    pub(super) policy: RetryPolicy,
    /// Whose refusals are borne, once it bears them, and for as long as it does.
    pub(super) handle: Option<RootHandle>,
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
        let handle = self.handle.as_ref().map(RootHandle::policy);
        let policy = handle.filter(|policy| policy.bears_refusals);
        let policy = policy.unwrap_or(self.policy);
        patiently(&policy, &*self.entropy, operation, key, request).await
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
