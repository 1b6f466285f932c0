//! Adapters from a volume to the root.
//!
//! - [`Publisher`]: the volume's [`Publish`] over the root's committer.
//! - [`SessionJournals`]: the volume's [`JournalSink`] over the root's journal writer.
//!
//! The way from the root to the chunker is `uploads`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bkfs_chunker::ingest::{Ingest, Mark};

use crate::clock::Clock;
use crate::mounting::history::Snapshots;
use crate::mounting::uploads::IngestUploads;
use crate::root::commit::{CommitRequest, RootCommit as Decided, RootCommitter};
use crate::root::error::{ErrorKind, RootError};
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::root::snapshots::NewSnapshot;
use crate::root::state::HolderInfo;
use crate::volume::entry::{Entry, JournalSink};
use crate::volume::publish::{CommitOutcome, Publication, Publish, PublishError};
use crate::volume::rescue::rescue;

/// Time limit for finding out the outcome of a commit whose answer was lost. By then the store has
/// already been silent for its whole timeout.
const SETTLING: Duration = Duration::from_secs(3);

/// Maximum number of times that one commit stores condemned blobs again before it fails.
pub const RESCUES_MAX: u32 = 8;

/// Publishes the commits of one volume.
pub struct Publisher {
    /// Makes the commits of the session that holds the volume.
    pub committer: RootCommitter<IngestUploads>,
    /// The holder of the session: snapshots carry its host and user.
    pub holder: HolderInfo,
    /// The snapshots that the mount shows.
    pub history: Arc<Snapshots>,
    /// The clock that gives commits their time.
    pub clock: Arc<dyn Clock>,
    /// The journals of the session, which commits make superfluous.
    pub journals: Arc<JournalWriter>,
    /// The ingest in which condemned blobs are stored again.
    pub ingest: Arc<Ingest>,
    /// True if blobs were stored again that no root holds yet. A journal may refer to such a blob
    /// without naming its pack.
    pub has_rescued: AtomicBool,
}

#[async_trait]
impl Publish for Publisher {
    async fn publish(&self, publication: Publication) -> Result<CommitOutcome, PublishError> {
        let now = self.clock.now();
        let clock = jiff::Timestamp::new(now.seconds, now.nanoseconds as i32)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let snapshot = publication.snapshot.map(|request| NewSnapshot {
            name: request.name,
            host: self.holder.host.clone(),
            user: self.holder.user.clone(),
            tags: request.tags,
            clock,
            recovered: false,
        });
        let wants_snapshot = snapshot.is_some();
        let request = CommitRequest {
            mark: publication.mark,
            tree: Some(publication.tree),
            building: None,
            covered: publication.covered,
            covered_journal: Some(self.journals.number_covered(publication.covered)),
            next_inode: publication.next_inode,
            inodes: publication.totals.inodes,
            bytes: publication.totals.bytes,
            clock,
            snapshot,
        };
        let committed = match self.commit(request).await {
            Err(RootError::OutcomeUnknown { reason }) => self.settle(reason).await?,
            result => result.map_err(classify)?,
        };
        self.has_rescued.store(false, Ordering::SeqCst);
        let journals = self.journals.clone();
        let covered = publication.covered;
        tokio::spawn(async move { journals.covered(covered).await });
        if wants_snapshot {
            self.history.changed();
        }
        Ok(CommitOutcome {
            generation: committed.generation,
            snapshot: committed.snapshot.map(|entry| entry.name),
        })
    }
}

impl Publisher {
    /// Performs the step `CommitCas`. If the check of rule 3 finds condemned packs, stores their
    /// blobs again and repeats the check, up to [`RESCUES_MAX`] times.
    async fn commit(&self, request: CommitRequest<Mark>) -> Result<Decided, RootError> {
        let mut rescues = 0;
        loop {
            match self.committer.commit(request.clone()).await {
                Err(RootError::Rebuild { packs }) if rescues < RESCUES_MAX => {
                    rescues += 1;
                    self.has_rescued.store(true, Ordering::SeqCst);
                    if let Err(error) = rescue(&self.ingest, &packs).await {
                        tracing::error!(
                            "what was condemned meanwhile cannot be stored again: {error}"
                        );
                        return Err(RootError::Rebuild { packs });
                    }
                }
                result => return result,
            }
        }
    }

    /// Looks once more for a commit whose answer was lost, so that its callers learn the known
    /// outcome.
    async fn settle(&self, reason: String) -> Result<Decided, PublishError> {
        match tokio::time::timeout(SETTLING, self.committer.settle_pending()).await {
            Ok(Ok(Some(committed))) => Ok(committed),
            Ok(Ok(None)) => Err(PublishError::Again(reason)),
            Ok(Err(_)) | Err(_) => Err(PublishError::Unknown(reason)),
        }
    }
}

/// The journals of one session, as a volume writes them.
pub struct SessionJournals(pub Arc<JournalWriter>);

#[async_trait]
impl JournalSink for SessionJournals {
    fn settle(&self, entry: Entry) -> Result<(), PublishError> {
        let operations = entry.first..=entry.last;
        let entry = JournalEntry::new(operations, entry.packs, entry.operations);
        self.0.settle(entry).map_err(classify)
    }

    async fn keep(&self) -> Result<(), PublishError> {
        self.0.keep().await.map_err(classify)
    }

    fn settled(&self) -> u64 {
        self.0.settled()
    }

    async fn land(&self, until: u64) -> Result<(), PublishError> {
        self.0.land(until).await.map_err(classify)
    }

    fn is_behind(&self) -> bool {
        self.0.is_behind()
    }

    fn is_bare(&self) -> bool {
        self.0.is_bare()
    }

    fn can_keep(&self) -> bool {
        self.0.has_spool()
    }

    fn is_in_time(&self) -> bool {
        self.0.is_in_time()
    }

    async fn confirm(&self) -> Result<(), PublishError> {
        self.0.confirm().await.map_err(classify)
    }
}

pub(super) fn classify(error: RootError) -> PublishError {
    let text = error.to_string();
    if matches!(
        error,
        RootError::Rollback { .. } | RootError::NotDescended { .. } | RootError::NotAtomic { .. }
    ) {
        return PublishError::Lost(text);
    }
    match error.kind() {
        // A damaged list of snapshots refuses only the snapshot. A damaged root refuses every
        // commit until it is repaired.
        ErrorKind::Refused | ErrorKind::Damaged => PublishError::Refused(text),
        ErrorKind::Fenced | ErrorKind::Held | ErrorKind::WrongPassword => PublishError::Lost(text),
        ErrorKind::OutcomeUnknown => PublishError::Unknown(text),
        // A bucket may be unavailable for a moment: one answer that it does not exist is not final.
        ErrorKind::Rebuild | ErrorKind::Unavailable | ErrorKind::NoRepository => {
            PublishError::Again(text)
        }
    }
}
