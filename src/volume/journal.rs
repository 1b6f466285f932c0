//! fsync(2): makes changes durable without touching the root (docs/PROTOCOL.md, rule 6).
//!
//! Owns: when a journal is written, the uploads before it, and the answers to its callers. Does not
//! own: its contents (`capture`), its object and numbers (`root::journal`, behind [`JournalWriter`]).
//!
//! One task, the [`JournalTask`], writes all journals of a volume, one after the other. Callers
//! that wait at the same moment share one journal. Commits run concurrently: a journal carries the
//! changes that are not in the tree yet, from either layer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bkfs_chunker::ingest::Delivered;
use bkfs_store::WHOLE_OBJECT_BYTES_MAX;
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::root::error::RootError;
use crate::root::journal::{JournalEntry, JournalWriter};
use crate::volume::Volume;
use crate::volume::capture::{Capture, Captured};
use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::landing::{Aim, COMMIT_PATIENCE, PATIENCE, bring, failed, land, send};
use crate::volume::operations::Content;
use crate::volume::requests::QueuedFsync;

/// Maximum time between close(2) of a small file and the start of the journal that names it
/// (SEMANTICS.md, close-is-bounded).
pub const SOON: Duration = Duration::from_millis(500);

/// Time after which a failed journal is repeated, if no caller waits for it.
const RETRY: Duration = Duration::from_secs(2);

/// Time without an acknowledgement of the store after which the spool is enough for a close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum length of a journal, in bytes. A commit replaces a longer one.
const JOURNAL_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum length of a journal of a mount that ends without a commit, in bytes. The object with its
/// seal is read as a whole, so it has room for both.
const LAST_JOURNAL_BYTES_MAX: usize = WHOLE_OBJECT_BYTES_MAX as usize - (1 << 20);

/// Number of journals after which a commit is requested that makes them superfluous. A new holder
/// of the volume reads all of them before it begins.
const UNCOMMITTED_JOURNALS_MAX: u64 = 512;
/// Number of bytes in journals after which such a commit is requested.
const UNCOMMITTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

impl Volume {
    /// Makes everything that was done before this call durable. When it returns, the changes
    /// survive the loss of this machine, or with `fsync=local` its crash.
    ///
    /// Cancel safety: dropped, it leaves its request, and the journal is written all the same.
    ///
    /// # Errors
    /// [`VolumeError::Poisoned`] if the volume accepts nothing more; [`VolumeError::ContentStore`],
    /// [`VolumeError::Tree`] or [`VolumeError::Malformed`] if data could not be stored;
    /// [`VolumeError::Commit`] if the journal could not be written, or the volume is closing. If a
    /// commit is made instead, as [`Volume::commit`]. Except for a poisoned volume the changes stay
    /// accepted, and are tried again.
    pub async fn fsync(&self) -> Result<(), VolumeError> {
        match self.failure() {
            Some(error) => return Err(error),
            None if self.promise.is_scratch() => return Ok(()),
            None => {}
        }
        if self.fsyncs_waiting.lock().is_some() {
            // No journaler serves this volume.
            return self.commit().await.map(|_| ());
        }
        let (done, answer) = oneshot::channel();
        let stopped = || VolumeError::Commit("the volume is closing".into());
        self.fsyncs
            .send(QueuedFsync(done))
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Stores everything that was done before this call in the bucket, also with `fsync=local`.
    ///
    /// Cancel safety: dropped, it leaves its request; the journal or commit is made all the same.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub async fn fsync_in_bucket(&self) -> Result<(), VolumeError> {
        match self.is_local.load(Ordering::Relaxed) && !self.promise.is_scratch() {
            true => self.commit().await.map(|_| ()),
            false => self.fsync().await,
        }
    }

    /// Stores everything written to a file before this call in the bucket. While the store does not
    /// answer, the spool is enough. The journal that names the data is not written: see
    /// [`Volume::fsync_within`].
    ///
    /// Cancel safety: dropped, it leaves the bytes dirty, or on their way to the bucket.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if the bytes could not be stored, or the store made no
    /// progress for its whole timeout. As [`Volume::flush_file`]. The bytes stay accepted.
    pub async fn deliver(&self, inode: u64) -> Result<(), VolumeError> {
        // Read before the epoch: bytes that a cut in between takes along count as unsent until that
        // cut is in the bucket.
        let sent = self.usage.uncut(inode);
        let epoch = self.view.state()?.lock().active.epoch;
        let stored = async {
            // Another task may be storing the file, and may wait for the store as well.
            self.flush_file(inode, epoch, Reach::All).await?;
            self.ingest.deliver_or_keep(CLOSE_PATIENCE).await?;
            Ok::<_, VolumeError>(())
        };
        self.ingest.bound(stored).await??;
        self.usage.sent(inode, sent);
        Ok(())
    }
}

/// The task that writes all journals of one volume.
pub struct JournalTask {
    volume: Arc<Volume>,
    journal: Arc<JournalWriter>,
    requests: mpsc::Receiver<QueuedFsync>,
    /// True if the spool is enough for fsync.
    is_local: bool,
    /// The task that sends entries that were only kept.
    landing: JoinSet<()>,
    /// The number of journals, and of bytes in them, since a commit was last requested.
    uncommitted: (u64, u64),
}

/// The outcome of writing a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The journal is where its aim demands.
    Written,
    /// The changes are too much for a journal.
    TooMuch,
}

/// Keeps everything done so far in the spool, without any request to the store. When this returns,
/// it survives a crash of this machine. It is for a mount that must end now: the volume must be
/// frozen, and its journaler must have ended.
///
/// Cancel safety: dropped, it removes nothing from the spool; changes that are not described there
/// stay in the volume.
///
/// # Errors
/// [`VolumeError::ContentStore`] or [`VolumeError::Commit`] if there is no spool, it fails, or the
/// changes are too much for a journal; [`VolumeError::Poisoned`] if the volume has failed. Those of
/// [`Volume::flush_file`].
pub async fn keep_everything(
    volume: Arc<Volume>,
    journal: Arc<JournalWriter>,
) -> Result<(), VolumeError> {
    let (_, requests) = mpsc::channel(1);
    let mut journaler = JournalTask {
        volume: volume.clone(),
        journal,
        requests,
        is_local: true,
        landing: JoinSet::new(),
        uncommitted: (0, 0),
    };
    bring(&volume, &journaler.journal, Aim::Local).await?;
    // Changes of a failed volume that no journal entry carries cannot be told from the changes that
    // it has lost.
    if let Some(error) = volume.failure() {
        return Err(error);
    }
    let is_kept = journaler.keep_all().await?;
    let too_much = || VolumeError::Commit("too much changed for a journal".into());
    is_kept.then_some(()).ok_or_else(too_much)
}

impl JournalTask {
    /// Returns the journaler of `volume`; none if it has one already.
    pub fn new(volume: Arc<Volume>, journal: Arc<JournalWriter>) -> Option<Self> {
        let requests = volume.fsyncs_waiting.lock().take()?;
        Some(JournalTask {
            volume,
            journal,
            requests,
            is_local: false,
            landing: JoinSet::new(),
            uncommitted: (0, 0),
        })
    }

    /// Sets `fsync=local`: the spool is enough for fsync, if there is one.
    pub fn locally(mut self, is_local: bool) -> Self {
        self.is_local = is_local && self.journal.has_spool();
        match (is_local, self.is_local) {
            (true, true) => tracing::warn!(
                "fsync=local: what is fsynced survives a crash of this machine, but not its loss \
                 until it is uploaded"
            ),
            (true, false) => tracing::warn!("fsync=local without a spool is fsync=bucket"),
            _ => {}
        }
        self.volume.is_local.store(self.is_local, Ordering::Relaxed);
        self
    }

    /// Serves requests until `stop`. When this returns, no task of it works for the volume any more.
    ///
    /// Cancel safety: stopped or dropped, it returns the changes that it took for an unwritten journal
    /// to the layers; settled entries stay with the [`JournalWriter`]. Dropped, it does not wait for
    /// the task that sends entries.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = stop => {}
            () = self.serve_all() => {}
        }
        self.landing.shutdown().await;
    }

    async fn serve_all(&mut self) {
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
                    // This journal serves all files that are closed by now.
                    let _ = volume.soon.notified().now_or_never();
                    due = match self.write_soon().await {
                        Ok(()) => None,
                        Err(error) if self.volume.failure().is_none() => {
                            self.tell_waiting(&error);
                            tracing::warn!(
                                "closed files are not in the bucket yet, will be tried again: \
                                 {error}");
                            Some(Instant::now() + RETRY)
                        }
                        Err(_) => None,
                    };
                    self.land_behind().await;
                }
                // Entries that were kept meanwhile are sent now. After a failure they wait for the
                // next journal.
                Some(landed) = self.landing.join_next() => {
                    if landed.is_ok() && self.volume.failure().is_none() {
                        self.land_behind().await;
                    }
                }
                // One wake-up is enough: to wake up for each closed file would cost as much as the
                // close.
                () = volume.soon.notified(), if due.is_none() => {
                    due = Some(Instant::now() + SOON);
                }
            }
        }
    }

    /// Serves a request and all others that wait by now. Returns false if it failed.
    async fn serve(&mut self, first: QueuedFsync) -> bool {
        let mut waiting = vec![first];
        while let Ok(request) = self.requests.try_recv() {
            waiting.push(request);
        }
        let result = self.acknowledge().await;
        if let Err(error) = &result {
            self.tell_waiting(error);
        }
        self.land_behind().await;
        for QueuedFsync(done) in waiting {
            let _ = done.send(result.clone());
        }
        result.is_ok()
    }

    /// Answers the requests that arrived while a journal failed. They have waited for the same
    /// store, so they do not wait as long once more.
    fn tell_waiting(&mut self, error: &VolumeError) {
        while let Ok(QueuedFsync(done)) = self.requests.try_recv() {
            let _ = done.send(Err(error.clone()));
        }
    }

    /// Returns the aim of a journal for which the spool alone is not enough.
    fn soon(&self) -> Aim {
        match self.journal.has_spool() {
            true => Aim::Soon,
            false => Aim::Bucket,
        }
    }

    /// Starts a task that sends the entries that were only kept, until they are in the bucket. It
    /// runs concurrently with everything else.
    async fn land_behind(&mut self) {
        if !self.landing.is_empty() || !self.journal.is_behind() {
            return;
        }
        let (volume, journal) = (self.volume.clone(), self.journal.clone());
        self.landing.spawn(async move {
            while volume.failure().is_none() {
                match land(&volume, &journal).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!("kept on this machine, not in the bucket yet: {error}")
                    }
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    /// Makes everything done so far durable, and confirms it.
    ///
    /// Cancel safety: dropped or failed, it has acknowledged nothing.
    async fn acknowledge(&mut self) -> Result<(), VolumeError> {
        let is_kept = self.is_local && self.write_locally().await?;
        // An entry that the spool refused earlier counts only once the spool has taken it, or it is
        // confirmed in the bucket. A later entry in the spool does not change that.
        if is_kept && (self.journal.is_in_time() || self.keeps_arrived().await) {
            return Ok(());
        }
        if !is_kept {
            self.write_for_bucket().await?;
        }
        let (volume, journal) = (self.volume.clone(), self.journal.clone());
        let confirmed = async move {
            if !is_kept && journal.is_behind() {
                land(&volume, &journal).await?;
            }
            // Confirms also if there was nothing to write: the volume of an earlier journal may
            // have another holder by now.
            let confirmed = journal.confirm().await;
            confirmed.map_err(|error| failed(&volume, error))
        };
        self.keep_meanwhile(confirmed).await
    }

    /// Returns whether the spool now has every entry that is not known to have arrived in time.
    async fn keeps_arrived(&self) -> bool {
        let kept = self.journal.keep_arrived().await;
        kept.is_ok() && self.journal.is_in_time()
    }

    /// Writes a journal that must reach the bucket. If the store acknowledges nothing for
    /// [`PATIENCE`], the journal is in the spool when this returns; the caller waits until it has
    /// landed.
    async fn write_for_bucket(&mut self) -> Result<(), VolumeError> {
        match self.write(self.soon()).await {
            Err(error) if self.journal.has_spool() && self.is_of_the_spool(&error) => {
                tracing::warn!("what the spool does not take goes to the bucket: {error}");
                self.write(Aim::Bucket).await
            }
            written => written,
        }
    }

    /// Returns true if the bucket may take the journal that failed with `error`: the volume has not
    /// failed, and the store did not cause the error. A store that was already waited for is not
    /// waited for as long once more.
    fn is_of_the_spool(&self, error: &VolumeError) -> bool {
        let is_of_the_store = match error {
            VolumeError::ContentStore(error) => error.is_of_the_store(),
            _ => false,
        };
        self.volume.failure().is_none() && !is_of_the_store
    }

    /// Waits for `confirmed`, which may wait for the store for the whole `timeout=`. Files that are
    /// closed meanwhile are kept in the spool after [`PATIENCE`].
    ///
    /// Cancel safety: dropped, it leaves those files to the next journal.
    async fn keep_meanwhile(
        &mut self,
        confirmed: impl Future<Output = Result<(), VolumeError>>,
    ) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let can_keep = self.journal.has_spool();
        let mut confirmed = pin!(confirmed);
        let mut due: Option<Instant> = None;
        loop {
            let sleep = tokio::time::sleep_until(due.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                confirmed = &mut confirmed => {
                    // Files that are not kept yet wait for the next journal.
                    if due.is_some() {
                        volume.fsync_within();
                    }
                    return confirmed;
                }
                () = sleep, if due.is_some() => {
                    let _ = volume.soon.notified().now_or_never();
                    let kept = tokio::select! {
                        biased;
                        confirmed = &mut confirmed => {
                            volume.fsync_within();
                            return confirmed;
                        }
                        kept = self.write(Aim::Local) => kept,
                    };
                    due = match kept {
                        Err(error) if volume.failure().is_none() => {
                            tracing::warn!(
                                "closed files are not in the spool yet, will be tried again: \
                                 {error}");
                            Some(Instant::now() + RETRY)
                        }
                        _ => None,
                    };
                }
                () = volume.soon.notified(), if can_keep && due.is_none() => {
                    due = Some(Instant::now() + PATIENCE);
                }
            }
        }
    }

    /// Keeps everything done so far in the spool. Returns false if the spool refuses and the volume
    /// has not failed: then the bucket must take it.
    async fn write_locally(&mut self) -> Result<bool, VolumeError> {
        match self.write(Aim::Local).await {
            Ok(()) => Ok(true),
            Err(error) if self.is_of_the_spool(&error) => {
                tracing::warn!("what the spool does not take goes to the bucket: {error}");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a journal that no caller waits for.
    async fn write_soon(&mut self) -> Result<(), VolumeError> {
        if self.is_local && self.write_locally().await? {
            return Ok(());
        }
        self.write(self.soon()).await
    }

    /// Writes a journal of everything done so far to where `aim` demands.
    ///
    /// Cancel safety: dropped or failed, it leaves the changes that no entry carries to the next
    /// journal.
    async fn write(&mut self, aim: Aim) -> Result<(), VolumeError> {
        if let Some(error) = self.volume.failure() {
            return Err(error);
        }
        // So at most one entry is only in memory, and there is little in memory of what arrived and
        // is not confirmed, however often this fails.
        if self.journal.is_bare() || self.journal.is_overfull() {
            bring(&self.volume, &self.journal, aim).await?;
        }
        let taken = match self.volume.capture().await? {
            Captured::Nothing => return Ok(()),
            Captured::TooMuch => return self.commit_or_keep(aim).await,
            Captured::Changes(taken) => taken,
        };
        match self
            .write_captured(&taken, (aim, JOURNAL_BYTES_MAX))
            .await?
        {
            Outcome::Written => {
                taken.written();
                Ok(())
            }
            Outcome::TooMuch => {
                drop(taken);
                self.commit_or_keep(aim).await
            }
        }
    }

    /// Commits what is too much for a journal. While the store acknowledges nothing, or if it fails,
    /// the spool takes it, in a journal without limits, unless `aim` is the bucket.
    ///
    /// Cancel safety: as [`JournalTask::write`].
    async fn commit_or_keep(&mut self, aim: Aim) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let mut committed = Box::pin(async { volume.commit().await.map(drop) });
        if !self.journal.has_spool() || aim == Aim::Bucket {
            return committed.await;
        }
        let failed = tokio::select! {
            biased;
            committed = &mut committed => match committed {
                Err(error) if volume.failure().is_none() => Some(error),
                committed => return committed,
            },
            () = volume.ingest.idle(COMMIT_PATIENCE) => None,
        };
        // The volume may have failed meanwhile: then nothing that it holds may be acknowledged.
        if let Some(error) = volume.failure() {
            return Err(error);
        }
        let is_kept = self.keep_all().await;
        match (is_kept, failed) {
            (Ok(true), _) => Ok(()),
            (_, Some(error)) => Err(error),
            (Ok(false) | Err(_), None) => committed.await,
        }
    }

    /// Keeps all changes in the spool. Returns false if they are too much for one object.
    ///
    /// Cancel safety: as [`JournalTask::write`].
    async fn keep_all(&mut self) -> Result<bool, VolumeError> {
        let taken = match self.volume.capture_all().await? {
            Captured::Nothing => return Ok(true),
            Captured::TooMuch => return Ok(false),
            Captured::Changes(taken) => taken,
        };
        // An entry that never fits would keep all later ones out. Padding adds 3 % to a large one.
        let spool = self.volume.ingest.spool();
        let room = spool.map_or(usize::MAX, |spool| (spool.limit_bytes() / 16 * 15) as usize);
        let how = (Aim::Local, LAST_JOURNAL_BYTES_MAX.min(room));
        let is_written = self.write_captured(&taken, how).await? == Outcome::Written;
        if is_written {
            taken.written();
        }
        Ok(is_written)
    }

    /// Describes the captured changes, settles the description as an entry, and sends the entry to
    /// where `aim` demands. The entry is settled before any step here can give up on the store.
    ///
    /// Cancel safety: dropped while it waits for the store or the disk, it leaves the entry to the
    /// next call of [`bring`].
    async fn write_captured(
        &mut self,
        capture: &Capture,
        (aim, bytes_max): (Aim, usize),
    ) -> Result<Outcome, VolumeError> {
        let Some(operations) = self.volume.describe(capture).await? else {
            return Ok(Outcome::TooMuch);
        };
        let is_stored = |content: &Content| matches!(content, Content::Stored(_));
        let contents = &operations.contents;
        let refers = contents.iter().any(|piece| is_stored(&piece.content));
        let ingest = &self.volume.ingest;
        // Entries that were kept before go to the bucket first, and the packs that they name before
        // them.
        let (packs, is_there) = match (refers || self.journal.is_behind(), aim) {
            (false, _) => (Delivered::default(), aim != Aim::Local),
            (true, Aim::Bucket) => (ingest.deliver().await?, true),
            (true, Aim::Soon) => ingest.deliver_or_keep(PATIENCE).await?,
            (true, Aim::Local) => (ingest.keep().await?, false),
        };
        let operations = operations.encode();
        if operations.len() > bytes_max {
            return Ok(Outcome::TooMuch);
        }
        let length = operations.len() as u64;
        let moment = &capture.moment;
        let entry = JournalEntry::new(moment.first..=moment.last, packs, operations);
        let settled = self.journal.settle(entry);
        settled.map_err(|error| self.failed(error))?;
        self.volume.is_settled(capture)?;
        self.count(length);
        let aim = if is_there { aim } else { Aim::Local };
        let (volume, journal) = (&*self.volume, &*self.journal);
        // The packs that this entry and the entries before it name are in the bucket.
        let until = journal.settled();
        let landing = async {
            let landed = journal.land(until).await;
            landed.map_err(|error| failed(volume, error))
        };
        send(volume, journal, landing, aim).await?;
        Ok(Outcome::Written)
    }

    /// Requests a commit before there are too many journals.
    fn count(&mut self, bytes: u64) {
        self.uncommitted.0 += 1;
        self.uncommitted.1 += bytes;
        let (journals, bytes) = self.uncommitted;
        if journals >= UNCOMMITTED_JOURNALS_MAX || bytes >= UNCOMMITTED_BYTES_MAX {
            self.uncommitted = (0, 0);
            self.volume.commit_soon();
        }
    }

    fn failed(&self, error: RootError) -> VolumeError {
        failed(&self.volume, error)
    }
}
