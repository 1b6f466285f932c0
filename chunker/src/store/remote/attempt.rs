//! One request, sent again where that cannot do harm, and what its failure means.
//!
//! Owns the pauses between attempts, what may be sent again, and how long a server that was never
//! met is tried. What single answers mean is in `answer`.

use std::time::Duration;

use object_store::Extensions;
use tokio::time::{Instant, sleep};

use super::RemoteStore;
use super::answer::{Fault, fault_in, meaning, meaning_without_credentials};
use super::contact::{FIRST_CONTACT, QUIET};
use super::transport::Departed;
use crate::store::{Operation, StoreError, StoreErrorKind};

/// The first pause before a request is sent again; each further one is twice as long, up to
/// [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause before a request is sent again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often a read is sent whose answer makes no sense: one may come from what stands between here
/// and the store, and as many are the store's own.
const SENSELESS_MAX: u32 = 3;

/// What an attempt came to.
struct Failed {
    error: StoreError,
    /// The server's wish to be left alone for so long.
    wanted: Duration,
    /// There was an answer, and none that the store may give.
    is_senseless: bool,
    /// No connection to the server could be made.
    is_unmet: bool,
}

impl RemoteStore {
    /// Sends a request, and again where that cannot do harm.
    ///
    /// Dropped, it leaves at most one request under way, which may still be applied.
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
        let start = Instant::now();
        let mut pause = PAUSE;
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
            senseless += u32::from(failed.is_senseless);
            let next = jittered(pause).max(failed.wanted.min(PAUSE_MAX));
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
            tracing::debug!(%failure, pause_ms = next.as_millis(), "the request will be sent again");
            sleep(next).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What an error of `object_store` means.
    fn failed(
        &self,
        operation: Operation,
        key: &str,
        error: object_store::Error,
        departed: &Departed,
    ) -> Failed {
        // A deletion cannot be told from the request for its credentials; it does no harm.
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
        }
    }
}

/// What a request carries to the transport.
pub(super) fn carrying(departed: Departed) -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(departed);
    extensions
}

/// Between half of a pause and all of it, so that those who failed together do not come back
/// together.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing but the moment of a repeated request depends on it"
)]
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}
