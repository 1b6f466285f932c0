//! The bucket: named objects, conditional writes, and nothing else.
//!
//! Owns: the trait [`Store`], its backends (a local directory, memory, and the remote services through
//! the crate `object_store`, which nothing else may import), the parsing of repository URLs, the
//! trial of a store's
//! conditional writes, and what tests need to hold every backend to one contract.
//!
//! Does not own: what objects hold, how they are named, when they are written or deleted, and what is done after an
//! outage. A store tries a request again a few times; it never decides that an outcome which it does not know was a success.
//!
//! # The contract
//!
//! - Reads and lists see every write that was acknowledged before they were sent.
//! - A write that was acknowledged survives the loss of power.
//! - [`Store::put_new`] and [`Store::replace`] are linearizable for one key: of several that race, exactly one succeeds.
//! - An object is seen whole or not at all.
//! - [`StoreErrorKind::Conflict`] and [`StoreErrorKind::AlreadyExists`] say that this very call changed nothing. Where that cannot be known the kind is
//!   [`StoreErrorKind::OutcomeUnknown`], and the write may still be applied later.

#[cfg(any(test, feature = "testing"))]
pub mod contract;
mod counting;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fault;
mod key;
mod layer;
mod local;
mod locking;
mod memory;
mod options;
mod probe;
mod remote;
mod signs;
mod url;
mod version;
mod watched;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::lock::Lock;

pub use counting::{Counters, CountingStore, Tally};
pub use error::{Operation, StoreError, StoreErrorKind};
pub use key::{KEY_BYTES_MAX, PART_BYTES_MAX, check_key, check_prefix};
pub use layer::Layer;
pub use local::LocalStore;
pub use locking::{Locking, LockingStore};
pub use memory::MemoryStore;
pub use options::{Notice, StoreOptions};
pub use probe::{PROBE_PREFIX, ProbeError, Races, probe_conditional_writes, probe_locks};
pub use remote::RemoteStore;
pub use signs::{Outage, Signs, TOLD_AFTER};
pub use url::{RepositoryUrl, UrlError, parse_url};
pub use version::Version;
pub use watched::WatchedStore;

/// The largest object that [`Store::get`] reads whole, in bytes. A bucket is not trusted, so a reader must not be made
/// to allocate without a bound. Everything that is read whole (root, lists, index objects, packs) is far smaller.
pub const WHOLE_OBJECT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// An object as [`Store::list`] and [`Store::head`] see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ObjectInfo {
    /// The object's key, without the repository's prefix.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// A bucket, or the part of one below a prefix.
///
/// Keys are relative to the repository: see [`check_key`] for what they may hold. All methods may be called at once from
/// many tasks. A future that is dropped may leave its request running: a write may then be applied later.
#[async_trait]
pub trait Store: Send + Sync + Debug + 'static {
    /// Reads a whole object, at most [`WHOLE_OBJECT_BYTES_MAX`].
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError>;

    /// Reads a whole object unless it still is at `known`; then `None`, at the price of a request without a body.
    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError>;

    /// Reads exactly the bytes `range`. A range that goes past the end of the object is
    /// [`StoreErrorKind::OutOfRange`]; an empty range of an existing object is empty.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads the last `bytes` bytes, or all of a shorter object; also returns the object's size in bytes.
    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError>;

    /// The object's size, without its bytes.
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError>;

    /// Creates an object. [`StoreErrorKind::AlreadyExists`] if there is one, whatever it holds.
    /// The body is the concatenation of its parts.
    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError>;

    /// Writes an object over whatever is there: for objects with one writer, such as heartbeats.
    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError>;

    /// Replaces an object if it still is at `expected`; else, or if it is absent, [`StoreErrorKind::Conflict`].
    /// Never sent a second time when the first may have been applied.
    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError>;

    /// Deletes an object. One that is absent is fine.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Lists objects whose key begins with `prefix` (any string; it need not end at a `/`) and comes after `after`, in the order of the
    /// keys' bytes. Returns `limit` of them, or fewer if there are no more: a page shorter than `limit` is the last.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError>;

    /// [`Store::put_new`], and the store itself keeps the object until the lock's end. Only where there are such locks ([`StoreErrorKind::Invalid`] elsewhere): in a versioned bucket of S3 with
    /// Object Lock switched on. There a lock binds this state of the object: who deletes or writes over it hides it, and it can be had again.
    async fn put_locked(
        &self,
        key: &str,
        _body: Vec<Bytes>,
        _lock: &Lock,
    ) -> Result<Version, StoreError> {
        Err(without_locks(Operation::PutNew, key))
    }

    /// The lock of the newest state of an object; none if it has none. One that has ended is still told.
    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        Err(without_locks(Operation::ReadLock, key))
    }

    /// Locks an object, or extends its lock. A lock is never shortened.
    async fn extend_lock(&self, key: &str, _lock: &Lock) -> Result<(), StoreError> {
        Err(without_locks(Operation::ExtendLock, key))
    }

    /// The repository's URL, without secrets.
    fn describe(&self) -> String;
}

/// Opens the store that a URL names. A local directory must exist unless the options say that it is to be made; whether a remote
/// bucket exists shows at the first request. A bare word is taken for a bucket of S3: look it up in the configuration file first.
pub async fn open_store(
    url: &RepositoryUrl,
    options: &StoreOptions,
) -> Result<Arc<dyn Store>, StoreError> {
    match url.clone().or_bucket() {
        RepositoryUrl::Local { path } => Ok(Arc::new(LocalStore::open(&path, options).await?)),
        remote => Ok(Arc::new(RemoteStore::open(&remote, options).await?)),
    }
}

fn without_locks(operation: Operation, key: &str) -> StoreError {
    let message = "this store has no locks (only S3 and what speaks it has Object Lock)";
    StoreError::new(StoreErrorKind::Invalid, operation, key, message)
}

/// The length of a body in bytes.
pub fn body_bytes(body: &[Bytes]) -> u64 {
    body.iter().map(|part| part.len() as u64).sum()
}

/// Whether `range` lies within an object of `size` bytes.
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
            "it has {size} bytes; nothing that bkfs reads whole has more than {WHOLE_OBJECT_BYTES_MAX}"
        ),
    )
}

#[cfg(test)]
mod tests;
