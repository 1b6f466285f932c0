//! What is known of the server that a store talks to, shared by all requests to it.
//!
//! Owns whether it was ever reached, and telling who waits why, not too often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::{Notice, Signs, StoreError, StoreOptions};

/// How long a server that was never reached is tried: its name, its address or its certificate is
/// probably wrong.
pub(super) const FIRST_CONTACT: Duration = Duration::from_secs(6);

/// Who waits is told why after this time.
pub(super) const QUIET: Duration = Duration::from_secs(4);

/// And again after this time.
const SAID_AGAIN: Duration = Duration::from_secs(30);

/// What is known of a server.
#[derive(Debug)]
pub(super) struct Contact {
    is_met: AtomicBool,
    /// Whether it is waited for even if it was never reached.
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

    /// It has answered.
    pub(super) fn met(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// Whether a failure to connect to it is told soon instead of being waited out.
    pub(super) fn is_hasty(&self) -> bool {
        !self.waits && !self.is_met.load(Ordering::Relaxed)
    }

    /// Bytes went by, in either direction.
    pub(super) fn moved(&self) {
        self.signs.moved();
    }

    /// A request failed like this, and is sent again.
    pub(super) fn refused(&self, error: &StoreError) {
        self.signs.refused(error);
    }

    /// Something keeps a request waiting. Told unless there is another who tells it.
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
