//! State of the server that a store talks to, shared by all requests.
//!
//! Owns whether the server was ever reached, and tells waiting callers the reason, not too often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Notice, Signs, StoreError, StoreOptions};

/// How long a server that was never reached is tried. Its name, address or certificate is probably
/// wrong.
pub(super) const FIRST_CONTACT: Duration = Duration::from_secs(6);

/// The time after which a waiting caller is told the reason.
pub(super) const QUIET: Duration = Duration::from_secs(4);

/// The time after which the caller is told again.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// State of a server, shared by all requests.
#[derive(Debug)]
pub(super) struct Contact {
    is_met: AtomicBool,
    /// Whether to wait for the server even if it was never reached.
    waits: bool,
    notice: Notice,
    signs: Signs,
    said: Mutex<Option<Instant>>,
}

impl Contact {
    pub(super) fn new(options: &StoreOptions) -> Self {
        Self {
            is_met: AtomicBool::new(false),
            waits: options.wait,
            notice: options.notice.clone(),
            signs: options.signs.clone(),
            said: Mutex::new(None),
        }
    }

    /// Records that the server has answered.
    pub(super) fn met(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// Returns whether a failure to connect is reported soon instead of being retried for the whole
    /// time.
    pub(super) fn is_hasty(&self) -> bool {
        !self.waits && !self.is_met.load(Ordering::Relaxed)
    }

    /// Returns the health record of the store.
    pub(super) fn signs(&self) -> &Signs {
        &self.signs
    }

    /// Records that bytes of an answer arrived, the first of them not before `first`.
    pub(super) fn received(&self, first: Instant) {
        self.signs.received(first);
    }

    /// Records that bytes of a request's body went out, the first of them at `first`.
    pub(super) fn sent(&self, first: Instant) {
        self.signs.sent(first);
    }

    /// Records that a request failed with this error and will be sent again.
    pub(super) fn refused(&self, error: &StoreError) {
        self.signs.refused(error);
    }

    /// Tells the caller why a request waits, at most once every 30 s, unless a reporter of
    /// [`Signs`] reports it.
    pub(super) fn trouble(&self, cause: &dyn std::fmt::Display) {
        if self.signs.is_told() {
            return;
        }
        let now = Instant::now();
        let mut said = self.said.lock();
        if said.is_none_or(|said| now >= said + SAID_AGAIN) {
            *said = Some(now);
            drop(said);
            self.notice.tell(&cause.to_string());
        }
    }
}
