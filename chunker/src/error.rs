//! What can go wrong between a caller and the bucket, in as few kinds as there are things to do about it.
//!
//! Owns the error of the crate's edge (`depot`, `ingest`, `hydrate`, `catalog`). The pure pieces have errors of their own,
//! which arrive here with the name of the object they were found in.

use std::sync::Arc;

use crate::id::{Id, Kind};
use crate::seal::OpenError;
use crate::spool::SpoolError;
use crate::store::StoreError;

/// Why a depot could not do what it was asked. Cheap to clone: several readers may wait for one fetch.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DepotError {
    /// Bytes are not those that were written, in the bucket itself (the cache is never the cause). Other objects, and other
    /// ranges of this one, are not affected. Store the data again, or restore from elsewhere.
    #[error("{object} is damaged: {what}")]
    Damaged {
        /// Key in the bucket, or kind and id of a blob.
        object: String,
        /// What did not agree.
        what: String,
    },
    /// An object that an index or the root names is not in the bucket. It may have been collected: read the root again, load its
    /// index, and try again; if it is still named then, it is lost.
    #[error("{object} is missing from the bucket")]
    Missing {
        /// Key in the bucket.
        object: String,
    },
    /// No index object that is loaded knows the blob. As for `Missing`, a newer root may help.
    #[error("no pack of this index holds {kind:?} {id}")]
    Unknown {
        /// What was looked for.
        kind: Kind,
        /// Which one.
        id: Id,
    },
    /// An object cannot be read for a reason other than damage: a newer format, unknown features, or a key that is not there.
    #[error("{object}: {source}")]
    Unreadable {
        /// Key in the bucket.
        object: String,
        /// Why.
        source: Arc<OpenError>,
    },
    /// The store refused, and trying again would not help. Nothing was dropped yet by whoever sees this from a read; an
    /// [`Ingest`](crate::ingest::Ingest) that meets it while uploading fails for good (`Failed`).
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The store made no progress for so long that waiting was given up. Nothing was dropped: uploads go on in the background,
    /// and the same call may be made again.
    #[error("the store made no progress for {waited_ms} ms{}", last.as_ref().map(|error| format!(" ({error})")).unwrap_or_default())]
    Stalled {
        /// Milliseconds without any progress.
        waited_ms: u64,
        /// The last transient error that was seen meanwhile.
        last: Option<Arc<StoreError>>,
    },
    /// The writing session lost data that it had accepted, and refuses everything since. Only a new session helps.
    #[error("this session cannot store any more: {0}")]
    Failed(Arc<DepotError>),
    /// The caller asked for something impossible (a range outside of a blob, a blob that is too large).
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The cache directory cannot be used at all. Met only when a depot is opened.
    #[error("cache directory {path}: {source}")]
    CacheDirectory {
        /// Where.
        path: String,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// What only the spool had cannot be read back from it: it is lost.
    #[error("lost: {0}")]
    Spool(#[from] SpoolError),
    /// A mistake in this program.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl DepotError {
    /// True if reading the root again and loading its index may make the same call succeed.
    pub fn wants_newer_root(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Unknown { .. })
    }

    /// True if it is the way to the store that failed: it says nothing about what was asked for.
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Stalled { .. })
    }

    /// The innermost cause: what a `Failed` session failed with, otherwise the error itself.
    pub fn cause(&self) -> &DepotError {
        match self {
            Self::Failed(cause) => cause.cause(),
            other => other,
        }
    }

    /// Damage found in the object under `key`.
    pub(crate) fn damaged(key: impl Into<String>, what: impl ToString) -> Self {
        Self::Damaged {
            object: key.into(),
            what: what.to_string(),
        }
    }

    /// This error as the reason for which a session takes nothing any more.
    pub(crate) fn into_failed(self) -> Self {
        match self {
            Self::Failed(cause) => Self::Failed(cause),
            other => Self::Failed(Arc::new(other)),
        }
    }

    /// Why the object under `key` does not open: damage, or something that this program cannot know.
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

impl From<StoreError> for DepotError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
