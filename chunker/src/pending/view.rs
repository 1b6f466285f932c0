//! The view that readers have of a session's pending data.
//!
//! Owns the one thing that a reader asks: where a blob can be read. Does not keep the session alive
//! and changes nothing.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::frame::{BlobKey, Pending};
use super::pending_index::PendingIndex;
use crate::id::{Kind, Prefix};

/// The pending blobs of one session, for readers.
#[derive(Debug)]
pub(crate) struct PendingBlobs(Weak<Mutex<PendingIndex>>);

impl PendingBlobs {
    /// Returns the blobs of this ledger.
    pub(crate) fn of(pending_index: &Arc<Mutex<PendingIndex>>) -> Self {
        Self(Arc::downgrade(pending_index))
    }

    /// Returns true until the session and all its tasks are dropped.
    pub(crate) fn exists(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the place where a blob of the session can be read.
    pub(crate) fn find(&self, kind: Kind, prefix: Prefix) -> Option<Pending> {
        let pending_index = self.0.upgrade()?;
        let pending_index = pending_index.lock();
        pending_index.find(&BlobKey { kind, prefix })
    }
}
