//! One request with its retries, and the meaning of its failure.
//!
//! Owns the pauses between attempts, the rules for what may be sent again, and how long a server
//! that was never reached is tried. `answer` owns the meaning of single answers.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::RemoteStore;
use super::answer::{Fault, fault_in, meaning, meaning_without_credentials};
use super::contact::{FIRST_CONTACT, QUIET};
use super::departed::Departed;
use crate::backoff::Backoff;
use crate::entropy::SystemEntropy;
use crate::{Operation, StoreError, StoreErrorKind};

/// The pauses before a request is sent again. The longest one also limits what a server asks for.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};

/// The most attempts at a read whose answers make no sense. A single such answer may come from a
/// proxy in front of the store; this many come from the store itself.
const SENSELESS_MAX: u32 = 3;

/// The outcome of a failed attempt.
struct Failed {
    error: StoreError,
    /// How long the server asks to be left alone.
    wanted: Duration,
    /// Whether the server answered in a way that the store's protocol does not allow.
    is_senseless: bool,
    /// Whether no connection to the server could be made.
    is_unmet: bool,
    /// When its body last moved, if it broke off before the server had all of it.
    moved: Option<Instant>,
}

impl RemoteStore {
    /// Sends a request, and sends it again where that does no harm, for `retry_for`.
    ///
    /// This time counts from when the body last moved, once: a transfer that breaks may have taken
    /// longer. A second one that breaks has no more time, so a store that breaks each of them is not
    /// tried without end.
    ///
    /// If the future is dropped, at most one request is left running, which may still be applied.
    ///
    /// # Errors
    /// Those of the last attempt; [`StoreErrorKind::NoServer`] if no server was ever reached.
    pub(super) async fn attempt<T, F>(
        &self,
        operation: Operation,
        key: &str,
        mut request: impl FnMut(Departed) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut start = Instant::now();
        let mut has_moved = false;
        let mut failures = 0;
        let mut senseless = 0;
        loop {
            let departed = Departed::default();
            let failed = match request(departed.clone()).await {
                Ok(answer) => {
                    self.contact.met();
                    return Ok(answer);
                }
                Err(error) => self.failed(operation, key, error, &departed),
            };
            if let (Some(moved), false) = (failed.moved, has_moved) {
                (start, has_moved) = (moved, true);
            }
            senseless += u32::from(failed.is_senseless);
            failures += 1;
            // Nothing but the moment of a repeated request depends on this randomness.
            let pause = BACKOFF.equal_jitter(failures, &SystemEntropy);
            let next = pause.max(failed.wanted.min(BACKOFF.longest));
            let mut patience = self.retry_for;
            if failed.is_unmet && self.contact.is_hasty() {
                patience = patience.min(FIRST_CONTACT);
                if !failed.error.is_transient() || start.elapsed() + next > patience {
                    return Err(failed.error.of_no_server());
                }
            }
            let is_harmless = failed.error.is_transient()
                || (failed.error.kind() == StoreErrorKind::OutcomeUnknown
                    && operation.is_repeatable())
                || (failed.is_senseless && !operation.is_write() && senseless < SENSELESS_MAX);
            if !is_harmless || start.elapsed() + next > patience {
                return Err(failed.error);
            }
            self.contact.refused(&failed.error);
            if start.elapsed() + next > QUIET {
                self.contact.trouble(&failed.error);
            }
            let failure = failed.error;
            tracing::debug!(
                %failure,
                pause_ms = next.as_millis(),
                "the request will be sent again"
            );
            sleep(next).await;
        }
    }

    /// Maps an error of `object_store` to its meaning.
    fn failed(
        &self,
        operation: Operation,
        key: &str,
        error: object_store::Error,
        departed: &Departed,
    ) -> Failed {
        // A deletion carries no flag, so its failure cannot be told from a failure to get
        // credentials. Repeating it does no harm.
        let gone = departed.is_set() || operation == Operation::Delete;
        let fault = fault_in(&error);
        let is_absent = matches!(error, object_store::Error::NotFound { .. });
        let (kind, message) = match (fault, gone) {
            (Some(fault), true) => meaning(operation, fault),
            (Some(fault), false) => meaning_without_credentials(fault),
            (None, _) if is_absent => (
                StoreErrorKind::NotFound,
                "there is no such object".to_owned(),
            ),
            (None, true) if operation.is_write() => {
                (StoreErrorKind::OutcomeUnknown, error.to_string())
            }
            (None, _) => (
                StoreErrorKind::Invalid,
                format!("the store's answer makes no sense: {error}"),
            ),
        };
        if gone && matches!(fault, Some(Fault::Answer(_) | Fault::Senseless(_))) {
            self.contact.met();
        }
        Failed {
            error: StoreError::new(kind, operation, key, message),
            wanted: match fault {
                Some(Fault::Answer(answer)) => answer.retry_after.unwrap_or_default(),
                _ => Duration::ZERO,
            },
            is_senseless: match fault {
                Some(fault) => matches!(fault, Fault::Senseless(_)),
                None => gone && !is_absent,
            },
            is_unmet: matches!(fault, Some(Fault::Broken(broken)) if !broken.connected)
                && kind != StoreErrorKind::Denied,
            moved: match fault {
                Some(Fault::Broken(broken)) if !broken.sent => broken.moved,
                _ => None,
            },
        }
    }
}
