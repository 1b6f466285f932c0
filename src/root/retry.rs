//! Back-off and deadlines of requests for the root, and the errors that are retried.
//!
//! Owns the policy and its clock, and no request of its own. Time is tokio's, so that tests can
//! pause the clock. The jitter comes from the injected source of randomness.

use super::error::RootError;
use bkfs_store::backoff::Backoff;
use bkfs_store::entropy::Entropy;
use bkfs_store::{Operation, Store, StoreError, StoreErrorKind};
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// Timeouts and back-off of requests for the root.
#[derive(Copy, Clone, Debug)]
pub struct RetryPolicy {
    /// Time after which a single request counts as unanswered. Requests for the root have as much
    /// more as a slow link takes for the newest one known. The bytes of a journal that move begin
    /// it again.
    pub request_timeout: Duration,
    /// How long the store may make no progress before the caller gets an error (`timeout=`).
    pub stall_timeout: Duration,
    /// The pauses between attempts.
    pub backoff: Backoff,
    /// Conflicts with other writers that a single change survives.
    pub conflicts_max: u32,
    /// Whether a store that refuses is retried as long as a silent one: for callers with
    /// acknowledged data that must not be dropped.
    pub bears_refusals: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            request_timeout: Self::REQUEST_MAX,
            stall_timeout: Duration::from_secs(300),
            backoff: Backoff {
                first: Duration::from_millis(50),
                longest: Duration::from_secs(5),
            },
            conflicts_max: 1000,
            bears_refusals: false,
        }
    }
}

/// Divisor of the stall timeout that gives the longest pause: an outage that ends in time is
/// noticed in time.
pub(super) const PAUSES_IN_TIMEOUT: u32 = 5;

impl RetryPolicy {
    /// Longest request timeout, however patient the caller is.
    const REQUEST_MAX: Duration = Duration::from_secs(60);

    /// Shortest request timeout, unless it exceeds half of the caller's timeout: a busy store takes
    /// a while.
    const REQUEST_MIN: Duration = Duration::from_secs(4);

    /// Returns the policy of a caller that waits for `timeout` in all (`timeout=`): an unanswered
    /// request is given up early enough to be sent again.
    pub fn within(timeout: Duration) -> Self {
        let usual = Self::default();
        let share = (timeout / 4).max(Self::REQUEST_MIN);
        Self {
            request_timeout: share.min(timeout / 2).min(Self::REQUEST_MAX),
            stall_timeout: timeout,
            backoff: Backoff {
                longest: (timeout / PAUSES_IN_TIMEOUT).min(usual.backoff.longest),
                ..usual.backoff
            },
            ..usual
        }
    }

    /// Whether a request with this error is sent again.
    pub(super) fn bears(&self, error: &StoreError) -> bool {
        match Meaning::of(error.kind()) {
            Meaning::Passing => true,
            Meaning::Refusal | Meaning::NoServer => self.bears_refusals,
            Meaning::Answer => false,
        }
    }
}

/// Slowest link for which the timeout of a large object suffices if no byte is seen moving.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 * 1024;

/// Shortest time to wait for an answer.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// What a failed request at an object of the protocol means for the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The store says what there is of the object. The same request gives the same answer.
    Answer,
    /// The request was refused and not applied. A person must act.
    Refusal,
    /// There is no server. A person must act.
    NoServer,
    /// The error may pass by itself, or after a look at the object.
    Passing,
}

impl Meaning {
    /// Decides for each kind: a new one does not compile until it is decided.
    fn of(kind: StoreErrorKind) -> Self {
        match kind {
            StoreErrorKind::NotFound | StoreErrorKind::OutOfRange => Self::Answer,
            StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoSpace
            | StoreErrorKind::Invalid => Self::Refusal,
            StoreErrorKind::NoServer => Self::NoServer,
            StoreErrorKind::AlreadyExists
            | StoreErrorKind::Conflict
            | StoreErrorKind::NotModified
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Throttled
            | StoreErrorKind::OutcomeUnknown
            | StoreErrorKind::Other => Self::Passing,
        }
    }
}

/// Whether the answer proves that the request was refused and not applied.
pub(super) fn is_refusal(kind: StoreErrorKind) -> bool {
    Meaning::of(kind) == Meaning::Refusal
}

/// Whether an error may pass without a person's action.
pub(super) fn may_pass(error: &StoreError) -> bool {
    Meaning::of(error.kind()) == Meaning::Passing
}

/// Bounds a request by the policy's timeout. The store may still carry out a request that timed
/// out.
///
/// # Errors
/// Errors of the request; after the timeout `OutcomeUnknown` for a write and `Unreachable` for a
/// read.
pub(super) async fn bounded<T>(
    policy: &RetryPolicy,
    operation: Operation,
    key: &str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    bounded_by_silence(policy, operation, key, || None, request).await
}

/// Bounds a request with a long body or answer by silence: the policy's timeout begins again when
/// bytes move. `moved` returns when they last did. The store ends a request below a least rate, so
/// bytes do not move without end.
///
/// # Errors
/// Those of [`bounded`].
pub(super) async fn bounded_by_silence<T>(
    policy: &RetryPolicy,
    operation: Operation,
    key: &str,
    moved: impl Fn() -> Option<Instant>,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let kind = if operation.is_write() {
        StoreErrorKind::OutcomeUnknown
    } else {
        StoreErrorKind::Unreachable
    };
    let silence = async {
        let mut heard = Instant::now();
        loop {
            tokio::time::sleep_until(heard + policy.request_timeout).await;
            match moved().filter(|moved| *moved > heard) {
                Some(moved) => heard = moved,
                None => return,
            }
        }
    };
    tokio::select! {
        biased;
        answer = request => answer,
        () = silence => Err(StoreError::new(
            kind,
            operation,
            key,
            format!("no answer within {:?}", policy.request_timeout),
        )),
    }
}

/// Returns `N` fresh random bytes.
pub(crate) fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}

/// Random pauses that grow, until the store made no progress for too long.
pub(super) struct Pauses<'a> {
    policy: RetryPolicy,
    entropy: &'a dyn Entropy,
    failures: u32,
    deadline: Instant,
}

impl<'a> Pauses<'a> {
    pub(super) fn new(policy: &RetryPolicy, entropy: &'a dyn Entropy) -> Self {
        Self {
            policy: *policy,
            entropy,
            failures: 0,
            deadline: Instant::now() + policy.stall_timeout,
        }
    }

    /// Begins the time without progress again, since the store made some.
    pub(super) fn restart(&mut self) {
        self.deadline = Instant::now() + self.policy.stall_timeout;
    }

    /// Returns when the last request may begin.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the policy for a request that begins now: it times out at the deadline.
    pub(super) fn policy(&self) -> RetryPolicy {
        let left = self.deadline.saturating_duration_since(Instant::now());
        RetryPolicy {
            // Even the last request gets a minimum of time.
            request_timeout: self.policy.request_timeout.min(left.max(LAST_CHANCE)),
            ..self.policy
        }
    }

    /// Same, for a request with a body or an answer of this many bytes.
    pub(super) fn policy_for(&self, bytes: usize) -> RetryPolicy {
        let policy = self.policy();
        let carrying = Duration::from_secs(bytes as u64 / SLOWEST_BYTES_PER_SECOND);
        RetryPolicy {
            request_timeout: policy.request_timeout + carrying,
            ..policy
        }
    }

    /// Pauses after `error`.
    ///
    /// # Errors
    /// [`RootError::OutcomeUnknown`] with the text of `error` once the deadline has passed.
    pub(super) async fn pause(&mut self, error: &StoreError) -> Result<(), RootError> {
        if Instant::now() >= self.deadline {
            return Err(RootError::OutcomeUnknown {
                reason: error.to_string(),
            });
        }
        let deadline = self.deadline;
        // The caller gets its error at the deadline, or soon after the last attempt, which begins
        // then.
        let _ = tokio::time::timeout_at(deadline, self.sleep()).await;
        Ok(())
    }

    /// Pauses with full jitter, which spreads contenders out.
    pub(super) async fn sleep(&mut self) {
        self.failures += 1;
        let backoff = self.policy.backoff;
        tokio::time::sleep(backoff.full_jitter(self.failures, self.entropy)).await;
    }

    /// Pauses with equal jitter: for callers that wait for a change of the store, and not for
    /// contenders.
    pub(super) async fn sleep_half(&mut self) {
        self.failures += 1;
        let backoff = self.policy.backoff;
        tokio::time::sleep(backoff.equal_jitter(self.failures, self.entropy)).await;
    }
}

/// Repeats a request while the store does not answer. Only for requests that are safe to repeat.
///
/// # Errors
/// The first error that the policy does not retry, or the last one at the deadline.
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

/// Creates an object under a name that no other object ever gets. Retries until the stall timeout
/// with the same bytes and the same name; an object with these bytes under that name is its own
/// earlier request's.
///
/// Dropped, it leaves an object under that name, or none, or one that arrives later.
///
/// # Errors
/// `AlreadyExists` if another object has that name; errors of reading it; store errors that do not
/// pass in time, after which the object may or may not be there.
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

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_store::Signs;

    /// Returns how many seconds a request lasts that is answered after so many, while bytes move for
    /// so many, and whether it was answered.
    async fn request(answered: u64, moving: u64) -> (u64, Result<(), StoreErrorKind>) {
        let policy = RetryPolicy {
            request_timeout: Duration::from_secs(10),
            ..RetryPolicy::default()
        };
        let signs = Signs::default();
        let begin = Instant::now();
        let moves = async {
            for _ in 0..moving {
                tokio::time::sleep(Duration::from_secs(1)).await;
                signs.sent(begin);
            }
        };
        let answer = async {
            tokio::time::sleep(Duration::from_secs(answered)).await;
            Ok(())
        };
        let moved = || signs.sent_at();
        let bound = bounded_by_silence(&policy, Operation::PutNew, "journal/1", moved, answer);
        let timed = async {
            let answer = bound.await;
            (begin.elapsed().as_secs(), answer)
        };
        let ((), (took, answer)) = tokio::join!(moves, timed);
        (took, answer.map_err(|error| error.kind()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_takes_as_long_as_its_bytes_move_and_no_longer_than_silence() {
        assert_eq!(request(309, 300).await, (309, Ok(())));
        let silent = Err(StoreErrorKind::OutcomeUnknown);
        assert_eq!(request(400, 300).await, (310, silent));
        assert_eq!(request(400, 0).await, (10, silent));
        // Bytes that moved before the request begins do not shorten its time.
        let signs = Signs::default();
        signs.sent(Instant::now() - Duration::from_secs(5));
        tokio::time::sleep(Duration::from_secs(8)).await;
        let begin = Instant::now();
        let policy = RetryPolicy {
            request_timeout: Duration::from_secs(10),
            ..RetryPolicy::default()
        };
        let never = std::future::pending::<Result<(), StoreError>>();
        let moved = || signs.sent_at();
        let bound = bounded_by_silence(&policy, Operation::Get, "journal/1", moved, never);
        let error = bound.await.expect_err("silent");
        assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        assert_eq!(begin.elapsed().as_secs(), 10);
    }
}
