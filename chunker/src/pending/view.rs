//! The view that readers have of a session's pending data.
//!
//! Owns the one thing that a reader asks: where a blob can be read. Does not keep the session alive
//! and changes nothing.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::frame::BlobKey;
use super::ledger::{Ledger, Pending};
use crate::id::{Kind, Prefix};

/// The pending blobs of one session, for readers.
#[derive(Debug)]
pub(crate) struct PendingBlobs(Weak<Mutex<Ledger>>);

impl PendingBlobs {
    /// Returns the blobs of this ledger.
    pub(crate) fn of(ledger: &Arc<Mutex<Ledger>>) -> Self {
        Self(Arc::downgrade(ledger))
    }

    /// Returns true until the session and all its tasks are dropped.
    pub(crate) fn exists(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the place where a blob of the session can be read.
    pub(crate) fn find(&self, kind: Kind, prefix: Prefix) -> Option<Pending> {
        let ledger = self.0.upgrade()?;
        let ledger = ledger.lock();
        ledger.find(&BlobKey { kind, prefix })
    }
}
