//! The caller's handle of a writing session, and the calls under way on it.
//!
//! Owns the beginning and the end of a session. The calls themselves stand with what they do: in
//! the root of this module, and `run` for those that store content.

use std::sync::Arc;

use super::session::Session;
use crate::content_store::ContentStore;
use crate::spool::Spool;

/// The write path of one session. Dropping it ends its uploads.
#[derive(Debug)]
pub struct Ingest {
    pub(super) content_store: ContentStore,
    pub(super) name: u64,
    pub(super) session: Arc<Session>,
    /// Held while packs are finished: one index object at a time.
    pub(super) finishing: tokio::sync::Mutex<()>,
}

impl Ingest {
    /// Returns the write path of `session`, which must be registered in the root already and must
    /// not have written anything yet.
    pub fn new(content_store: ContentStore, session: u64) -> Self {
        Self::with_spool(content_store, session, None)
    }

    /// As [`Ingest::new`], with a spool of this session. Packs go there while the store is slower
    /// than the writer.
    pub fn with_spool(
        content_store: ContentStore,
        session: u64,
        spool: Option<Arc<Spool>>,
    ) -> Self {
        let shared = Arc::clone(content_store.shared());
        let inner = Session::new(shared, session, spool);
        content_store
            .shared()
            .reader
            .register(inner.blobs(), &inner.gate);
        Self {
            content_store,
            name: session,
            session: inner,
            finishing: tokio::sync::Mutex::new(()),
        }
    }
}

#[cfg(test)]
impl Ingest {
    /// Returns the memory of the session, and the part of it for packs that are being sent while it
    /// has a spool, in bytes.
    pub(crate) fn memory(&self) -> (&crate::gate::ByteGate, u64) {
        let overflow = self.session.overflow.as_ref();
        let flight = overflow.map_or(0, |overflow| overflow.flight.capacity());
        (&self.session.gate, flight)
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.session.end();
    }
}

/// A call in progress, whose references its caller does not have yet. A mark drawn meanwhile treats
/// these references as made after it.
pub(super) struct Operation<'a> {
    session: &'a Session,
    number: u64,
}

impl<'a> Operation<'a> {
    pub(super) fn begin(session: &'a Session) -> Self {
        let number = session.pending_index().begin_operation();
        Self { session, number }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.session.pending_index().end_operation(self.number);
    }
}
