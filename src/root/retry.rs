//! How often and how long requests for the root are tried: pauses, deadlines, and which errors may pass.
//!
//! Owns the policy and its clock, and no request. Time is tokio's, so that a paused clock works; the jitter of pauses is drawn from the injected randomness.

use super::error::RootError;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::store::{Operation, StoreError, StoreErrorKind};
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
