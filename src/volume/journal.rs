//! fsync(2): what was done becomes durable without touching the root (protocol.md, rule 6).
//!
//! Owns: when a journal is written, what goes ahead of it, and who is told. Does not own: what it says (`capture`), its object and numbers (`root::journal`, behind
//! [`Journal`]).
//!
//! One task, the [`Journaler`], writes all journals of a volume, one after the other. All who wait at the same moment share one. Commits go on beside it: a
//! journal says what is not in the tree yet, whichever layer holds it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bkfs_chunker::ingest::Delivered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::volume::Volume;
use crate::volume::capture::{Capture, Captured};
use crate::volume::commit::PublishError;
use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::operations::Content;

/// Small files are at most so long behind after close(2) (brief, promise 4): from then a journal begins.
pub const SOON: Duration = Duration::from_millis(500);

/// After a failed journal that nobody waits for, the next one.
const RETRY: Duration = Duration::from_secs(2);

/// The longest journal, in bytes: what would be longer is committed.
const JOURNAL_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A journal to be written.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The number of the operation that it carries; earlier ones that no entry carried belong to it as well.
    pub operation: u64,
    /// The packs that it refers to, transitively; in the bucket already.
    pub packs: Delivered,
    /// [`Operations`](crate::volume::operations::Operations), encoded.
    pub operations: Vec<u8>,
}

/// Where journals go.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// After this the entry and all before it are in the bucket.
    async fn write(&self, entry: Entry) -> Result<(), PublishError>;

    /// Asks, by a request that is sent now, whether the volume is still ours: only then may anything be acknowledged.
    async fn confirm(&self) -> Result<(), PublishError>;
}

/// Somebody waits for a journal.
#[derive(Debug)]
pub struct Request(oneshot::Sender<Result<(), VolumeError>>);

impl Volume {
    /// Everything that was done before this call survives the loss of this machine when it returns.
    ///
    /// # Errors
    /// If it may not; it is still accepted and will be tried again, unless the volume is poisoned.
    pub async fn fsync(&self) -> Result<(), VolumeError> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        if self.fsyncs_waiting.lock().is_some() {
            // Nobody writes journals.
            return self.commit().await.map(|_| ());
        }
        let (done, answer) = oneshot::channel();
        let stopped = || VolumeError::Commit("the volume is closing".into());
        self.fsyncs
            .send(Request(done))
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// A journal is wanted within [`SOON`]; nobody waits for it.
    pub fn fsync_within(&self) {
        self.soon.notify_one();
    }

    /// Everything written to a file before this call is stored in the bucket when it returns. What names it there is not: see [`Volume::fsync_within`].
    ///
    /// # Errors
    /// If it could not be stored; it stays accepted.
    pub async fn deliver(&self, inode: u64) -> Result<(), VolumeError> {
        let epoch = self.view.state()?.lock().active.epoch;
        let sent = self.usage.unsent_bytes(inode);
        self.flush_file(inode, epoch, Reach::All).await?;
        self.ingest.deliver().await?;
        self.usage.sent(inode, sent);
        Ok(())
    }
}

/// Writes all journals of one volume.
pub struct Journaler {
    volume: Arc<Volume>,
    journal: Arc<dyn Journal>,
    requests: mpsc::Receiver<Request>,
}

impl Journaler {
    /// The journaler of `volume`; none if it has one already.
    pub fn new(volume: Arc<Volume>, journal: Arc<dyn Journal>) -> Option<Self> {
        let requests = volume.fsyncs_waiting.lock().take()?;
        Some(Journaler {
            volume,
            journal,
            requests,
        })
    }

    /// Serves requests until it is dropped.
    pub async fn run(mut self) {
        let volume = self.volume.clone();
        let mut due: Option<Instant> = None;
        loop {
            let sleep = tokio::time::sleep_until(due.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => {
                        if self.serve(request).await {
                            due = None;
                        }
                    }
                    None => return,
                },
                () = sleep, if due.is_some() => {
                    due = match self.write().await {
                        Ok(()) => None,
                        Err(error) if self.volume.failure().is_none() => {
                            tracing::warn!("closed files are not in the bucket yet, will be tried again: {error}");
                            Some(Instant::now() + RETRY)
                        }
                        Err(_) => None,
                    };
                }
                () = volume.soon.notified() => {
                    due = due.or_else(|| Some(Instant::now() + SOON));
                }
            }
        }
    }

    /// Serves a request and all others that wait by now; false if it came to nothing.
    async fn serve(&mut self, first: Request) -> bool {
        let mut waiting = vec![first];
        while let Ok(request) = self.requests.try_recv() {
            waiting.push(request);
        }
        let result = self.acknowledge().await;
        for Request(done) in waiting {
            let _ = done.send(result.clone());
        }
        result.is_ok()
    }

    async fn acknowledge(&self) -> Result<(), VolumeError> {
        self.write().await?;
        // Also if there was nothing to write: what was written before may belong to another's volume by now.
        self.journal
            .confirm()
            .await
            .map_err(|error| self.failed(error))
    }

    /// Brings everything done so far into the bucket.
    async fn write(&self) -> Result<(), VolumeError> {
        if let Some(error) = self.volume.failure() {
            return Err(error);
        }
        let capture = match self.volume.capture().await? {
            Captured::Nothing => return Ok(()),
            Captured::TooMuch => return self.volume.commit().await.map(|_| ()),
            Captured::Changes(capture) => capture,
        };
        match self.write_captured(&capture).await {
            Ok(true) => Ok(()),
            unwritten => {
                self.volume.give_back(*capture)?;
                unwritten?;
                self.volume.commit().await.map(|_| ())
            }
        }
    }

    /// False if it is too much for a journal.
    async fn write_captured(&self, capture: &Capture) -> Result<bool, VolumeError> {
        let operations = self.volume.describe(capture).await?;
        let is_stored = |content: &Content| matches!(content, Content::Stored(_));
        let refers = operations
            .contents
            .iter()
            .any(|piece| is_stored(&piece.content));
        let packs = match refers {
            true => self.volume.ingest.deliver().await?,
            false => Delivered::default(),
        };
        let operations = operations.encode();
        if operations.len() > JOURNAL_BYTES_MAX {
            return Ok(false);
        }
        let entry = Entry {
            operation: capture.operation,
            packs,
            operations,
        };
        self.journal
            .write(entry)
            .await
            .map_err(|error| self.failed(error))?;
        Ok(true)
    }

    fn failed(&self, error: PublishError) -> VolumeError {
        match error {
            PublishError::Lost(why) => {
                let error = VolumeError::Commit(why);
                self.volume.poison(error.clone());
                error
            }
            PublishError::Again(why) | PublishError::Refused(why) | PublishError::Unknown(why) => {
                VolumeError::Commit(why)
            }
        }
    }
}
