//! Journal entries, and what their writer does with them (docs/PROTOCOL.md, rule 6).
//!
//! Owns: the trait [`JournalSink`]. Does not own: when entries are written (`journal`), nor their
//! objects and numbers (`root::journal`, behind the trait).

use async_trait::async_trait;
use bkfs_chunker::ingest::Delivered;

use crate::volume::publish::PublishError;

/// The entry for a journal to be written.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The first operation that it carries: the one after the last operation of the entry settled
    /// before it.
    pub first: u64,
    /// The last operation that it carries.
    pub last: u64,
    /// The packs that it refers to, transitively. They are in the bucket, or in the spool if the
    /// entry is only kept.
    pub packs: Delivered,
    /// [`Operations`](crate::volume::operations::Operations), encoded.
    pub operations: Vec<u8>,
}

/// The writer of a session's journals.
///
/// An entry is settled first, which waits for nothing. Only then may a future that stores it
/// anywhere be dropped: the entry stays settled, and the next call continues with it.
#[async_trait]
pub trait JournalSink: Send + Sync + 'static {
    /// Gives the entry its number and its final bytes. It goes before every entry that is settled
    /// later.
    ///
    /// # Errors
    /// [`PublishError::Refused`] if the entry does not follow the one before it.
    fn settle(&self, entry: Entry) -> Result<(), PublishError>;

    /// Keeps all settled entries in the spool. When this returns, they survive a crash of this
    /// machine. The packs that they name must survive it too.
    ///
    /// Cancel safety: dropped, it has kept some of them or none.
    ///
    /// # Errors
    /// [`PublishError::Again`] if the spool fails or stays full, [`PublishError::Refused`] if there
    /// is none.
    async fn keep(&self) -> Result<(), PublishError>;

    /// Returns the number of entries that were settled.
    fn settled(&self) -> u64;

    /// Sends the first `until` settled entries. When this returns, they are in the bucket. The
    /// packs that they name must be there; packs that later entries name need not.
    ///
    /// Cancel safety: dropped, it has sent some of them or none; an entry whose outcome is unknown
    /// is sent again.
    ///
    /// # Errors
    /// [`PublishError::Lost`] if the session was fenced, and otherwise the kind of the store's
    /// failure.
    async fn land(&self, until: u64) -> Result<(), PublishError>;

    /// Returns true if an entry was kept that is not known to have reached the bucket in time.
    fn is_behind(&self) -> bool;

    /// Returns true if a settled entry is in memory only.
    fn is_bare(&self) -> bool;

    /// Returns true if there is a spool, so that entries can be kept.
    fn can_keep(&self) -> bool;

    /// Returns true if all entries that are in the bucket, and were never kept, are known to have
    /// arrived while this session held the volume.
    fn is_in_time(&self) -> bool;

    /// Checks, by a request that is sent now, that this session still holds the volume. Only after
    /// that may anything be acknowledged.
    ///
    /// Cancel safety: dropped, it has confirmed nothing.
    ///
    /// # Errors
    /// [`PublishError::Lost`] if the volume is lost, and otherwise the kind of the store's failure.
    async fn confirm(&self) -> Result<(), PublishError>;
}
