//! A replacement of the root that was or will be sent, and what becomes of it.
//!
//! Owns which answers end an attempt. Sending it, and looking at the root, is [`super::handle`]'s.

use super::error::RootError;
use super::handle::RootView;
use super::state::{ROOT_KEY, RootMark};
use bkfs_chunker::store::{Operation, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use std::sync::Arc;

/// A replacement that was or will be sent; its bytes never change.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// The root that it makes.
    pub(super) next: RootView,
    /// The root that it replaces.
    pub(super) base: RootMark,
    /// The store's name for that one.
    pub(super) expected: Version,
    /// What is sent.
    pub(super) body: Bytes,
}

/// What became of an attempt.
pub(super) enum Fate {
    /// The root is the one that it made, or descends from that.
    Made,
    /// Another root stands, and the attempt can never be made any more.
    Superseded(Arc<RootView>),
}

/// Returns whether the fate of an attempt is known, whatever was sent of it before: it was made or
/// superseded, or the store has lost it or the root that it was to replace.
pub(super) fn is_over(fate: &Result<Fate, RootError>) -> bool {
    let is_lost = |error: &RootError| matches!(error, RootError::NotAtomic { .. });
    fate.as_ref().err().is_none_or(is_lost)
}

/// Returns whether the fate of an attempt is known that was first sent by the call with this
/// result. The store may also have refused it: then no request of it is still on its way.
pub(super) fn is_decided(fate: &Result<Fate, RootError>) -> bool {
    is_over(fate) || matches!(fate, Err(RootError::Store(_)))
}

/// What an attempt that an earlier change left behind, and whose outcome stays unknown, is to the
/// change that comes now: that one was never sent.
pub(super) fn unsettled(error: RootError) -> RootError {
    match error {
        RootError::OutcomeUnknown { reason } => {
            let kind = StoreErrorKind::Unreachable;
            StoreError::new(kind, Operation::Replace, ROOT_KEY, reason).into()
        }
        error => error,
    }
}
