//! The object store: named objects, conditional writes, and nothing else.
//!
//! Owns the trait [`Store`] and its backends: a local directory, memory, and the remote services.
//! The remote services use the crate `object_store`, which no other crate may import. Owns also the
//! parsing of repository URLs, the test of a store's conditional writes, the terms of locks
//! ([`lock`]), the limits on requests and rates ([`rate_limit`]), their urgency ([`urgency`]), the local disk below a spool
//! ([`disk`]), writes that bypass the page cache ([`direct`]), the source of randomness
//! ([`entropy`]) and the pauses between attempts ([`backoff`]).
//!
//! Does not own what objects hold, how they are named, when they are written or deleted, and what
//! happens after an outage. A store sends a request again a few times. It never reports an unknown
//! outcome as a success. The contract suite that every backend passes is in
//! `bkfs_testing::contract`.
//!
//! # The contract
//!
//! - Reads and lists see every write that was acknowledged before they were sent.
//! - An acknowledged write survives a power loss.
//! - [`Store::put_new`] and [`Store::replace`] are linearizable for one key: of several concurrent
//!   requests exactly one succeeds.
//! - A reader sees an object whole or not at all.
//! - [`StoreErrorKind::Conflict`] and [`StoreErrorKind::AlreadyExists`] say that this call changed
//!   nothing. Where the store cannot know that, the kind is [`StoreErrorKind::OutcomeUnknown`], and
//!   the write may still be applied later.

pub mod backoff;
pub mod direct;
pub mod disk;
pub mod entropy;
mod error;
mod guarded;
mod key;
mod layer;
mod local;
pub mod lock;
mod locking;
mod memory;
mod open;
mod options;
mod probe;
pub mod rate_limit;
mod remote;
mod signs;
pub mod urgency;
mod url;
mod version;

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use crate::lock::Lock;

pub use error::{Operation, StoreError, StoreErrorKind};
pub use guarded::GuardedStore;
pub use key::{KEY_BYTES_MAX, PART_BYTES_MAX, check_key, check_prefix};
pub use layer::Layer;
pub use local::LocalStore;
pub use locking::Locking;
pub use memory::MemoryStore;
pub use open::open_store;
pub use options::{Notice, StoreOptions};
pub use probe::{PROBE_PREFIX, ProbeError, Races, probe_conditional_writes, probe_locks};
pub use remote::{RemoteStore, Said};
pub use signs::{Outage, Signs, TOLD_AFTER};
pub use url::{RepositoryUrl, UrlError, parse_url};
pub use version::Version;

/// The largest object that [`Store::get`] reads whole, in bytes. A bucket is not trusted, so it
/// must not make a reader allocate without a bound. Every object that is read whole (root, lists,
/// index objects, packs) is far smaller.
pub const WHOLE_OBJECT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// An object as [`Store::list`] and [`Store::head`] report it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ObjectInfo {
    /// The object's key, without the repository's prefix.
    pub key: String,
    /// The object's size in bytes.
    pub size: u64,
}

/// A bucket, or the part of a bucket below a prefix.
///
/// Keys are relative to the repository; [`check_key`] states their rules. Many tasks may call all
/// methods concurrently. A dropped future may leave its request running: a write may then be
/// applied later.
///
/// # Errors
/// Every method may fail with these kinds of [`StoreError`], and each method lists its own:
///
/// - [`Unreachable`](StoreErrorKind::Unreachable) or [`Throttled`](StoreErrorKind::Throttled) if
///   the store does not answer or asks for fewer requests, after the store's own attempts.
/// - [`Denied`](StoreErrorKind::Denied), [`NoBucket`](StoreErrorKind::NoBucket) or
///   [`NoServer`](StoreErrorKind::NoServer) if a person must act.
/// - [`Invalid`](StoreErrorKind::Invalid) for a bad key or prefix, and for an answer that breaks
///   the store's protocol.
/// - [`OutcomeUnknown`](StoreErrorKind::OutcomeUnknown) for a write that may have been applied, and
///   [`NoSpace`](StoreErrorKind::NoSpace) for a full store.
/// - [`Other`](StoreErrorKind::Other) for everything else.
#[async_trait]
pub trait Store: Send + Sync + Debug + 'static {
    /// Reads a whole object of at most [`WHOLE_OBJECT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if it is absent, [`StoreErrorKind::Invalid`] if it is larger,
    /// and those of every method.
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError>;

    /// Reads a whole object unless its version still is `known`. Then it returns `None`, which
    /// costs a request without a body.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError>;

    /// Reads exactly the bytes `range`, whose end is exclusive. An empty range of an existing
    /// object yields no bytes.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if the object is absent, [`StoreErrorKind::OutOfRange`] if the
    /// range goes past the end of the object, and those of every method.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads the last `bytes` bytes, or all of a shorter object. Returns them and the object's size
    /// in bytes.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if the object is absent, [`StoreErrorKind::Invalid`] if the
    /// answer would be larger than [`WHOLE_OBJECT_BYTES_MAX`], and those of every method.
    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError>;

    /// Returns the object's key and size, without its bytes.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if the object is absent, and those of every method.
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError>;

    /// Creates an object. The body is the concatenation of its parts.
    ///
    /// # Errors
    /// [`StoreErrorKind::AlreadyExists`] if an object of that name exists, whatever it holds;
    /// [`StoreErrorKind::OutcomeUnknown`] if the write may have been applied; and those of every
    /// method.
    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError>;

    /// Writes an object over any existing one. It is meant for objects with one writer, such as
    /// heartbeats.
    ///
    /// # Errors
    /// [`StoreErrorKind::OutcomeUnknown`] if the request may have been applied, and those of every
    /// method.
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError>;

    /// Replaces an object if its version still is `expected`. The request is never sent a second
    /// time when the first may have been applied.
    ///
    /// # Errors
    /// [`StoreErrorKind::Conflict`] if the object has another version or is absent;
    /// [`StoreErrorKind::OutcomeUnknown`] if the write may have been applied; and those of every
    /// method.
    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError>;

    /// Deletes an object. Deleting an absent object succeeds.
    ///
    /// # Errors
    /// [`StoreErrorKind::OutcomeUnknown`] if the request may have been applied, and those of every
    /// method.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Lists objects in the byte order of their keys: those whose key begins with `prefix` and
    /// comes after `after`. `prefix` is any string and need not end with a `/`. Returns `limit`
    /// objects, or fewer if there are no more: a page shorter than `limit` is the last.
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`] if the store lists out of order or without end, and those of
    /// every method.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError>;

    /// Creates an object as [`Store::put_new`] does, and the store itself keeps it until the lock's
    /// end.
    ///
    /// Only a versioned bucket of S3 with Object Lock has such locks. There a lock protects this
    /// state of the object: a delete or an overwrite only hides it, and it can be recovered.
    ///
    /// # Errors
    /// Those of [`Store::put_new`]; [`StoreErrorKind::Invalid`] if the store has no locks.
    async fn put_locked(
        &self,
        key: &str,
        _body: Vec<Bytes>,
        _lock: &Lock,
    ) -> Result<Version, StoreError> {
        Err(without_locks(Operation::PutNew, key))
    }

    /// Returns the lock of the newest state of an object, or `None` if it has none. A lock that has
    /// ended is still returned.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if the object is absent, [`StoreErrorKind::Invalid`] if the
    /// store has no locks, and those of every method.
    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        Err(without_locks(Operation::ReadLock, key))
    }

    /// Locks an object, or extends its lock. A lock is never shortened.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`] if the object is absent, [`StoreErrorKind::Denied`] if the lock
    /// would become shorter, [`StoreErrorKind::Invalid`] if the store has no locks,
    /// [`StoreErrorKind::OutcomeUnknown`] if the request may have been applied, and those of every
    /// method.
    async fn extend_lock(&self, key: &str, _lock: &Lock) -> Result<(), StoreError> {
        Err(without_locks(Operation::ExtendLock, key))
    }

    /// Returns the repository's URL, without secrets.
    fn describe(&self) -> String;

    /// Returns the health record that shows when bytes moved. A store whose requests take no time
    /// on a wire has one in which nothing moves.
    fn signs(&self) -> Signs {
        Signs::default()
    }
}

fn without_locks(operation: Operation, key: &str) -> StoreError {
    let message = "this store has no locks (only S3 and what speaks it has Object Lock)";
    StoreError::new(StoreErrorKind::Invalid, operation, key, message)
}

/// Returns the length of a body in bytes.
pub fn body_bytes(body: &[Bytes]) -> u64 {
    body.iter().map(|part| part.len() as u64).sum()
}

/// Checks that `range` lies within an object of `size` bytes.
fn check_range(key: &str, range: &Range<u64>, size: u64) -> Result<(), StoreError> {
    if range.start <= range.end && range.end <= size {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::OutOfRange,
        Operation::GetRange,
        key,
        format!(
            "bytes {} to {} were asked for, and the object has {size}",
            range.start, range.end
        ),
    ))
}

fn too_large(key: &str, size: u64) -> StoreError {
    StoreError::new(
        StoreErrorKind::Invalid,
        Operation::Get,
        key,
        format!(
            "it has {size} bytes; nothing that bkfs reads whole has more than \
             {WHOLE_OBJECT_BYTES_MAX}"
        ),
    )
}

#[cfg(test)]
mod tests;
