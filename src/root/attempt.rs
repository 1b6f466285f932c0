//! A replacement of the root that was or will be sent, and its fate.
//!
//! Owns which answers end an attempt. [`super::handle`] sends it, and reads the root.

use super::chain::RootMark;
use super::error::RootError;
use super::state::ROOT_KEY;
use super::view::RootView;
use bkfs_store::{Operation, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use std::sync::Arc;

/// A replacement that was or will be sent; its bytes never change.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// The root that it makes.
    pub(super) next: RootView,
    /// The root that it replaces.
    pub(super) base: RootMark,
    /// Version of that one in the store.
    pub(super) expected: Version,
    /// The bytes that are sent.
    pub(super) body: Bytes,
}

/// The roots that this process made.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// The last one that the store acknowledged.
    pub(super) last: Option<RootMark>,
    /// Whether that one followed the one before it.
    is_next: bool,
}

impl Made {
    /// Notes that the store acknowledged an attempt.
    pub(super) fn note(&mut self, attempt: &Attempt) {
        let before = self.last.replace(attempt.next.root.mark());
        self.is_next = before == Some(attempt.base);
    }

    /// Returns true if only this process changed the root since its last change but one. `known` is
    /// the newest root known.
    pub(super) fn is_alone(&self, known: RootMark) -> bool {
        self.is_next && self.last == Some(known)
    }
}

/// Fate of an attempt.
pub(super) enum Fate {
    /// The root is the one that it made, or a descendant of that.
    Made,
    /// Another root is in the bucket, and the attempt can never be made any more.
    Superseded(Arc<RootView>),
}

/// Returns whether the fate of an attempt is known, whatever earlier requests of it were sent: it
/// was made or superseded, or the store has lost it or the root that it was to replace.
pub(super) fn is_over(fate: &Result<Fate, RootError>) -> bool {
    let is_lost = |error: &RootError| matches!(error, RootError::NotAtomic { .. });
    fate.as_ref().err().is_none_or(is_lost)
}

/// Returns whether the fate of an attempt is known that was first sent by the call with this
/// result. The store may also have refused it: then no request of it is in flight.
pub(super) fn is_decided(fate: &Result<Fate, RootError>) -> bool {
    is_over(fate) || matches!(fate, Err(RootError::Store(_)))
}

/// Converts the error of an unsettled earlier attempt to one of the present change, which was never
/// sent.
pub(super) fn unsettled(error: RootError) -> RootError {
    match error {
        RootError::OutcomeUnknown { reason } => {
            let kind = StoreErrorKind::Unreachable;
            StoreError::new(kind, Operation::Replace, ROOT_KEY, reason).into()
        }
        error => error,
    }
}
