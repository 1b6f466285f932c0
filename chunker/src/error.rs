//! Errors between a caller and the bucket, in as few kinds as there are ways to react.
//!
//! Owns the error of the crate's interface (`content_store`, `ingest`, `hydrate`, `catalog`). The
//! pure modules have errors of their own, which are converted here together with the name of the
//! object.

use std::sync::Arc;

use bkfs_store::StoreError;

use crate::crypto::OpenError;
use crate::id::{Id, Kind};
use crate::spool::SpoolError;

/// Why a content store could not serve a call. Clones are cheap, since several readers may wait for
/// one fetch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ContentError {
    /// The bytes in the bucket are not those that were written (the cache is never the cause).
    /// Other objects, and other ranges of this object, are not affected. Store the data again, or
    /// restore it from elsewhere.
    #[error("{object} is damaged: {what}")]
    Damaged {
        /// Key in the bucket, or kind and id of a blob.
        object: String,
        /// The check that failed.
        what: String,
    },
    /// An object that an index or the root names is not in the bucket. It may have been collected:
    /// read the root again, load its index, and try again. If the object is still named then, it is
    /// lost.
    #[error("{object} is missing from the bucket")]
    Missing {
        /// Key in the bucket.
        object: String,
    },
    /// No loaded index object lists the blob. As for `Missing`, a newer root may help.
    #[error("no pack of this index holds {kind:?} {id}")]
    Unknown {
        /// The kind of the blob.
        kind: Kind,
        /// The id of the blob.
        id: Id,
    },
    /// A table of the local index is damaged, and its index object cannot be read either: nothing is
    /// known of what it lists. If it is missing, a newer root may help, as for `Missing`.
    #[error("the local index is damaged, and cannot be made again: {0}")]
    Index(Arc<ContentError>),
    /// An object cannot be read for a reason other than damage: a newer format, unknown features,
    /// or a missing key.
    #[error("{object}: {source}")]
    Unreadable {
        /// Key in the bucket.
        object: String,
        /// Why it cannot be opened.
        source: Arc<OpenError>,
    },
    /// The store refused, and another attempt would not help. A read that fails this way has
    /// dropped no data. An [`Ingest`](crate::ingest::Ingest) that fails this way in an upload fails
    /// for good (`Failed`).
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The store made no progress for so long that the call gave up. No data was dropped: uploads
    /// go on in the background, and the caller may repeat the call.
    #[error(
        "the store made no progress for {waited_ms} ms{}",
        last.as_ref().map(|error| format!(" ({error})")).unwrap_or_default()
    )]
    Stalled {
        /// Milliseconds without any progress.
        waited_ms: u64,
        /// The last transient error during the wait.
        last: Option<Arc<StoreError>>,
    },
    /// The writing session lost data that it had accepted, and refuses all further calls. Only a
    /// new session helps.
    #[error("this session can no longer store anything: {0}")]
    Failed(Arc<ContentError>),
    /// The caller asked for something impossible (a range outside a blob, a blob that is too
    /// large).
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The cache directory cannot be used at all. Occurs only when a content store is opened.
    #[error("cache directory {path}: {source}")]
    CacheDirectory {
        /// The path of the directory.
        path: String,
        /// The error of the operating system.
        source: Arc<std::io::Error>,
    },
    /// Data that only the spool held cannot be read back from it: it is lost.
    #[error("lost: {0}")]
    Spool(#[from] SpoolError),
    /// A fault in this program.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl ContentError {
    /// Returns whether the same call may succeed after reading the root again and loading its
    /// index.
    pub fn wants_newer_root(&self) -> bool {
        match self {
            Self::Index(cause) => cause.wants_newer_root(),
            _ => matches!(self, Self::Missing { .. } | Self::Unknown { .. }),
        }
    }

    /// Returns whether the requested blob or object is known to be damaged or absent, by the index
    /// that is loaded.
    pub fn is_lost(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Missing { .. } | Self::Unknown { .. }
        )
    }

    /// Returns whether the request to the store failed. Such an error says nothing about the
    /// requested object.
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Stalled { .. })
    }

    /// Returns whether the error says nothing about the requested object: the request to the store
    /// failed, or the index does not tell where the object is.
    pub fn leaves_open(&self) -> bool {
        self.is_of_the_store() || matches!(self, Self::Index(_))
    }

    /// Returns the innermost cause: the error of a `Failed` session, otherwise the error itself.
    pub fn cause(&self) -> &ContentError {
        match self {
            Self::Failed(cause) => cause.cause(),
            other => other,
        }
    }

    /// Returns the error of a look-up that needed an index object, which failed with this error.
    pub(crate) fn of_index(self) -> Self {
        match self {
            Self::Damaged { .. } | Self::Missing { .. } | Self::Unreadable { .. } => {
                Self::Index(Arc::new(self))
            }
            other => other,
        }
    }

    /// Returns the error for damage in the object under `key`.
    pub(crate) fn damaged(key: impl Into<String>, what: impl ToString) -> Self {
        Self::Damaged {
            object: key.into(),
            what: what.to_string(),
        }
    }

    /// Returns this error as the reason for which a session refuses all further calls.
    pub(crate) fn into_failed(self) -> Self {
        match self {
            Self::Failed(cause) => Self::Failed(cause),
            other => Self::Failed(Arc::new(other)),
        }
    }

    /// Returns why the object under `key` does not open: damage, or something that this program
    /// cannot read.
    pub(crate) fn unopened(key: &str, error: OpenError) -> Self {
        match error {
            OpenError::Damaged { .. }
            | OpenError::NotBkfs
            | OpenError::WrongClass { .. }
            | OpenError::WrongRepository { .. }
            | OpenError::WrongAlgorithm { .. } => Self::damaged(key, error),
            OpenError::OtherFormat { .. }
            | OpenError::UnknownFeatures { .. }
            | OpenError::NoKeyEpoch { .. }
            | OpenError::OlderKeyEpoch { .. } => Self::Unreadable {
                object: key.to_owned(),
                source: Arc::new(error),
            },
        }
    }
}

impl From<StoreError> for ContentError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
