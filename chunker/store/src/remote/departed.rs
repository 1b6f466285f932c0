//! The mark of a request that has been sent.
//!
//! Owns the mark, and how a request of `object_store` carries it to the transport, which sets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::Extensions;

/// A flag that travels with a request to the store and is set when the request is sent. Requests
/// for credentials have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Departed(Arc<AtomicBool>);

impl Departed {
    /// Records that the request is sent.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns whether the request was sent.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Returns the extensions that a request carries to the transport.
pub(super) fn carrying(departed: Departed) -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(departed);
    extensions
}
