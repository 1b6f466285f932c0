//! Credentials that stay valid while their source fails for a short time.
//!
//! Owns the last known credentials. `object_store` renews credentials minutes before they expire,
//! and fails the request if the source of new ones does not answer. The known credentials are then
//! probably still valid; the store decides.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

/// How long the source may take to give new credentials while others are known.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time after a failure in which the source is not asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

type Source<T> = Arc<dyn CredentialProvider<Credential = T>>;

/// Credentials from a source, or the last ones that it gave.
pub(super) struct Steady<T> {
    source: Source<T>,
    state: Mutex<CredentialState<T>>,
}

struct CredentialState<T> {
    known: Option<Arc<T>>,
    failed: Option<Instant>,
}

impl<T> Steady<T> {
    pub(super) fn new(source: &Source<T>) -> Arc<Self> {
        let state = CredentialState {
            known: None,
            failed: None,
        };
        Arc::new(Self {
            source: Arc::clone(source),
            state: Mutex::new(state),
        })
    }

    fn note(&self, known: &Arc<T>, failed: Option<Instant>) {
        *self.state.lock() = CredentialState {
            known: Some(Arc::clone(known)),
            failed,
        };
    }
}

impl<T> fmt::Debug for Steady<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Steady")
    }
}

#[async_trait]
impl<T: fmt::Debug + Send + Sync + 'static> CredentialProvider for Steady<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let (known, failed) = {
            let state = self.state.lock();
            (state.known.clone(), state.failed)
        };
        let Some(known) = known else {
            let first = self.source.get_credential().await?;
            self.note(&first, None);
            return Ok(first);
        };
        if failed.is_some_and(|failed| failed.elapsed() < ASKED_AGAIN) {
            return Ok(known);
        }
        let reason = match timeout(PATIENCE, self.source.get_credential()).await {
            Ok(Ok(fresh)) => {
                self.note(&fresh, None);
                return Ok(fresh);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        tracing::warn!(
            "the credentials cannot be renewed, and those that are known are used on: {reason}"
        );
        self.note(&known, Some(Instant::now()));
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source that gives numbers, fails, or hangs.
    #[derive(Debug, Default)]
    struct Shaky {
        given: Mutex<u32>,
        trouble: Mutex<Option<bool>>,
    }

    #[async_trait]
    impl CredentialProvider for Shaky {
        type Credential = u32;

        async fn get_credential(&self) -> object_store::Result<Arc<u32>> {
            let trouble = *self.trouble.lock();
            match trouble {
                Some(true) => std::future::pending().await,
                Some(false) => Err(object_store::Error::NotImplemented {
                    operation: "token".into(),
                    implementer: "test".into(),
                }),
                None => {
                    *self.given.lock() += 1;
                    Ok(Arc::new(*self.given.lock()))
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_stays_while_the_source_has_a_hiccup() {
        let shaky = Arc::new(Shaky::default());
        let source: Source<u32> = shaky.clone();
        let steady = Steady::new(&source);
        *shaky.trouble.lock() = Some(false);
        assert!(steady.get_credential().await.is_err(), "none is known");
        *shaky.trouble.lock() = None;
        assert_eq!(*steady.get_credential().await.unwrap(), 1);
        for hangs in [false, true] {
            *shaky.trouble.lock() = Some(hangs);
            let begin = Instant::now();
            for _ in 0..100 {
                assert_eq!(*steady.get_credential().await.unwrap(), 1);
            }
            assert!(begin.elapsed() <= PATIENCE, "it is asked once");
            tokio::time::advance(ASKED_AGAIN).await;
        }
        *shaky.trouble.lock() = None;
        assert_eq!(*steady.get_credential().await.unwrap(), 2, "and renewed");
    }
}
