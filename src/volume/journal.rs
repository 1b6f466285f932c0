//! fsync(2): what was done becomes durable without touching the root (protocol.md, rule 6).
//!
//! Owns: when a journal is written, what goes ahead of it, and who is told. Does not own: what it says (`capture`), its object and numbers (`root::journal`, behind
//! [`Journal`]).
//!
//! One task, the [`Journaler`], writes all journals of a volume, one after the other. All who wait at the same moment share one. Commits go on beside it: a
//! journal says what is not in the tree yet, whichever layer holds it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bkfs_chunker::ingest::Delivered;
use bkfs_chunker::store::WHOLE_OBJECT_BYTES_MAX;
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::volume::Volume;
use crate::volume::capture::{Capture, Captured};
use crate::volume::commit::PublishError;
use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::landing::{Aim, PATIENCE, bring, failed, land, send};
use crate::volume::operations::Content;

/// Small files are at most so long behind after close(2) (brief, promise 4): from then a journal begins.
pub const SOON: Duration = Duration::from_millis(500);

/// After a failed journal that nobody waits for, the next one.
const RETRY: Duration = Duration::from_secs(2);

/// After so long without anything acknowledged, a close is content with the spool.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// The longest journal, in bytes: what would be longer is committed.
const JOURNAL_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The longest journal of a mount that ends without a commit, in bytes: with its seal it is read
/// whole.
const LAST_JOURNAL_BYTES_MAX: usize = WHOLE_OBJECT_BYTES_MAX as usize - (1 << 20);

/// After so many journals, or bytes in them, a commit makes them superfluous: whoever takes the volume over reads them all, and holds them in memory.
const UNCOMMITTED_JOURNALS_MAX: u64 = 512;
const UNCOMMITTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A journal to be written.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The first operation that it carries: the one after the last of the entry settled before it.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The packs that it refers to, transitively; in the bucket already.
    pub packs: Delivered,
    /// [`Operations`](crate::volume::operations::Operations), encoded.
    pub operations: Vec<u8>,
}

/// Where journals go.
///
/// An entry is settled first, which waits for nothing. Only then may a future be dropped that
/// brings it anywhere: it leaves the entry settled, and the next call goes on with it.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// Gives the entry its number and its bytes, for good: it goes before every entry settled
    /// later.
    fn settle(&self, entry: Entry) -> Result<(), PublishError>;

    /// After this all that was settled survives a crash of this machine. What it names must do so
    /// too. Dropped, it has kept some of it or nothing.
    async fn keep(&self) -> Result<(), PublishError>;

    /// How many entries were settled.
    fn settled(&self) -> u64;

    /// After this the first `until` entries that were settled are in the bucket. What they name
    /// must be there; what later ones name need not be. Dropped, it has sent some of them or
    /// nothing; one of unknown fate is sent again.
    async fn land(&self, until: u64) -> Result<(), PublishError>;

    /// Whether something was kept that is not known to be in the bucket in time.
    fn is_behind(&self) -> bool;

    /// Whether something is settled that only memory holds.
    fn is_bare(&self) -> bool;

    /// Whether there is a spool, so that keeping is possible.
    fn can_keep(&self) -> bool;

    /// Whether all that is in the bucket, and was never kept, is known to have arrived while the volume was ours.
    fn is_in_time(&self) -> bool;

    /// Asks, by a request that is sent now, whether the volume is still ours: only then may anything be acknowledged.
    async fn confirm(&self) -> Result<(), PublishError>;
}

/// Somebody waits for a journal.
#[derive(Debug)]
pub struct Request(oneshot::Sender<Result<(), VolumeError>>);

impl Volume {
    /// Everything that was done before this call survives the loss of this machine when it returns.
    /// Dropped, it leaves its request, and the journal is written all the same.
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

    /// Everything that was done before this call is in the bucket when it returns, whatever fsync is content with.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub async fn fsync_in_bucket(&self) -> Result<(), VolumeError> {
        match self.is_local.load(Ordering::Relaxed) {
            true => self.commit().await.map(|_| ()),
            false => self.fsync().await,
        }
    }

    /// A journal is wanted within [`SOON`]; nobody waits for it.
    pub fn fsync_within(&self) {
        self.soon.notify_one();
    }

    /// Everything written to a file before this call is stored in the bucket when it returns; in the spool is enough while the store does not answer. What names it there is not: see [`Volume::fsync_within`].
    ///
    /// Dropped, it leaves the bytes dirty, or on their way.
    ///
    /// # Errors
    /// If it could not be stored; it stays accepted.
    pub async fn deliver(&self, inode: u64) -> Result<(), VolumeError> {
        // Before the epoch: what a cut in between takes along counts as unsent until that lands.
        let sent = self.usage.uncut(inode);
        let epoch = self.view.state()?.lock().active.epoch;
        let stored = async {
            // Another one may be storing the file, and wait for the store as well.
            self.flush_file(inode, epoch, Reach::All).await?;
            self.ingest.deliver_or_keep(CLOSE_PATIENCE).await?;
            Ok::<_, VolumeError>(())
        };
        self.ingest.bound(stored).await??;
        self.usage.sent(inode, sent);
        Ok(())
    }
}

/// Writes all journals of one volume.
pub struct Journaler {
    volume: Arc<Volume>,
    journal: Arc<dyn Journal>,
    requests: mpsc::Receiver<Request>,
    /// The spool is enough for fsync.
    is_local: bool,
    /// Brings what was only kept into the bucket.
    landing: JoinSet<()>,
    /// Journals, and bytes in them, since a commit was last asked for.
    uncommitted: (u64, u64),
    /// The longest journal, in bytes.
    bytes_max: usize,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is where the aim is content with.
    Written,
    /// It is too much for a journal.
    TooMuch,
}

/// Everything done so far survives a crash of this machine when this returns, without a word to the store: for a mount that must end now. The volume must be frozen, and its
/// journaler gone.
///
/// A drop leaves in the spool what is there by then; what is not described there stays in the
/// volume.
///
/// # Errors
/// There is no spool, it fails, or the changes are more than journals can say.
pub async fn keep_everything(
    volume: Arc<Volume>,
    journal: Arc<dyn Journal>,
) -> Result<(), VolumeError> {
    let (_, requests) = mpsc::channel(1);
    let mut journaler = Journaler {
        volume: volume.clone(),
        journal,
        requests,
        is_local: true,
        landing: JoinSet::new(),
        uncommitted: (0, 0),
        bytes_max: LAST_JOURNAL_BYTES_MAX,
    };
    let too_much = || VolumeError::Commit("too much was changed for a journal".into());
    bring(&volume, &*journaler.journal, Aim::Local).await?;
    // What a failed volume has not settled in a journal cannot be told from what it has lost.
    if let Some(error) = volume.failure() {
        return Err(error);
    }
    let taken = match volume.capture_all().await? {
        Captured::Nothing => return Ok(()),
        Captured::TooMuch => return Err(too_much()),
        Captured::Changes(taken) => taken,
    };
    match journaler.write_captured(&taken, Aim::Local).await? {
        Outcome::TooMuch => Err(too_much()),
        Outcome::Written => {
            taken.written();
            Ok(())
        }
    }
}

impl Journaler {
    /// The journaler of `volume`; none if it has one already.
    pub fn new(volume: Arc<Volume>, journal: Arc<dyn Journal>) -> Option<Self> {
        let requests = volume.fsyncs_waiting.lock().take()?;
        Some(Journaler {
            volume,
            journal,
            requests,
            is_local: false,
            landing: JoinSet::new(),
            uncommitted: (0, 0),
            bytes_max: JOURNAL_BYTES_MAX,
        })
    }

    /// With `fsync=local`: the spool is enough, if there is one.
    pub fn locally(mut self, is_local: bool) -> Self {
        self.is_local = is_local && self.journal.can_keep();
        match (is_local, self.is_local) {
            (true, true) => tracing::warn!(
                "fsync=local: what is fsynced survives a crash of this machine, but not its loss until it is uploaded"
            ),
            (true, false) => tracing::warn!("fsync=local without a spool is fsync=bucket"),
            _ => {}
        }
        self.volume.is_local.store(self.is_local, Ordering::Relaxed);
        self
    }

    /// Serves requests until it is dropped. That leaves what was taken for a journal and is not
    /// written to the layers, and what is settled to the [`Journal`].
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
                    // Those who have closed a file by now are served by this.
                    let _ = volume.soon.notified().now_or_never();
                    due = match self.write_soon().await {
                        Ok(()) => None,
                        Err(error) if self.volume.failure().is_none() => {
                            self.tell_waiting(&error);
                            tracing::warn!("closed files are not in the bucket yet, will be tried again: {error}");
                            Some(Instant::now() + RETRY)
                        }
                        Err(_) => None,
                    };
                    self.land_behind().await;
                }
                // What was kept meanwhile goes now; after a failure, with the next journal.
                Some(landed) = self.landing.join_next() => {
                    if landed.is_ok() && self.volume.failure().is_none() {
                        self.land_behind().await;
                    }
                }
                // Once is enough: to be woken for each file that is closed would cost as much as closing it.
                () = volume.soon.notified(), if due.is_none() => {
                    due = Some(Instant::now() + SOON);
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
        if let Err(error) = &result {
            self.tell_waiting(error);
        }
        self.land_behind().await;
        for Request(done) in waiting {
            let _ = done.send(result.clone());
        }
        result.is_ok()
    }

    /// Those who have come while a journal failed have waited for the same store: they are told so,
    /// and do not wait as long once more.
    fn tell_waiting(&mut self, error: &VolumeError) {
        while let Ok(Request(done)) = self.requests.try_recv() {
            let _ = done.send(Err(error.clone()));
        }
    }

    /// What a journal is written for that nobody waits for, where the spool is not enough.
    fn soon(&self) -> Aim {
        match self.journal.can_keep() {
            true => Aim::Soon,
            false => Aim::Bucket,
        }
    }

    /// Sends what was only kept, beside everything else, until it has arrived.
    async fn land_behind(&mut self) {
        if !self.landing.is_empty() || !self.journal.is_behind() {
            return;
        }
        let (volume, journal) = (self.volume.clone(), self.journal.clone());
        self.landing.spawn(async move {
            while volume.failure().is_none() {
                match land(&volume, &*journal).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!("kept on this machine, not in the bucket yet: {error}")
                    }
                }
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    /// Dropped, or failed, it has acknowledged nothing.
    async fn acknowledge(&mut self) -> Result<(), VolumeError> {
        let is_kept = self.is_local && self.write_locally().await?;
        // What the spool did not take before counts no sooner than it would in the bucket.
        if is_kept && self.journal.is_in_time() {
            return Ok(());
        }
        if !is_kept {
            self.write_for_bucket().await?;
        }
        let (volume, journal) = (self.volume.clone(), self.journal.clone());
        let confirmed = async move {
            if !is_kept && journal.is_behind() {
                land(&volume, &*journal).await?;
            }
            // Also if there was nothing to write: what was written before may belong to another's volume by now.
            let confirmed = journal.confirm().await;
            confirmed.map_err(|error| failed(&volume, error))
        };
        self.keep_meanwhile(confirmed).await
    }

    /// Writes what is to be in the bucket. If the store does not answer, the spool has it after
    /// [`PATIENCE`]: it is left to the caller to wait until it has landed.
    async fn write_for_bucket(&mut self) -> Result<(), VolumeError> {
        match self.write(self.soon()).await {
            Err(error) if self.journal.can_keep() && self.is_of_the_spool(&error) => {
                tracing::warn!("what the spool does not take goes to the bucket: {error}");
                self.write(Aim::Bucket).await
            }
            written => written,
        }
    }

    /// Whether the bucket may take what failed with `error`. A store that was waited for already is
    /// not waited for as long once more.
    fn is_of_the_spool(&self, error: &VolumeError) -> bool {
        let is_of_the_store = match error {
            VolumeError::Depot(error) => error.is_of_the_store(),
            _ => false,
        };
        self.volume.failure().is_none() && !is_of_the_store
    }

    /// Waits for `confirmed`, which may wait for the store as long as `timeout=`. Files that are
    /// closed meanwhile are kept in the spool after [`PATIENCE`]. Dropped, it leaves them to the
    /// next journal.
    async fn keep_meanwhile(
        &mut self,
        confirmed: impl Future<Output = Result<(), VolumeError>>,
    ) -> Result<(), VolumeError> {
        let volume = self.volume.clone();
        let can_keep = self.journal.can_keep();
        let mut confirmed = pin!(confirmed);
        let mut due: Option<Instant> = None;
        loop {
            let sleep = tokio::time::sleep_until(due.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                confirmed = &mut confirmed => {
                    // Those that are not kept yet have the next journal.
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
                            tracing::warn!("closed files are not in the spool yet, will be tried again: {error}");
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

    /// Keeps everything done so far in the spool. False if the spool does not take it, and the volume is well: then the bucket must.
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

    /// Writes what nobody waits for.
    async fn write_soon(&mut self) -> Result<(), VolumeError> {
        if self.is_local && self.write_locally().await? {
            return Ok(());
        }
        self.write(self.soon()).await
    }

    /// Brings everything done so far into the bucket, or to where `aim` is content with. Dropped,
    /// or failed, it leaves what no entry carries to the next one.
    async fn write(&mut self, aim: Aim) -> Result<(), VolumeError> {
        if let Some(error) = self.volume.failure() {
            return Err(error);
        }
        // At most one entry is in memory alone, however often this fails.
        if self.journal.is_bare() {
            bring(&self.volume, &*self.journal, aim).await?;
        }
        let taken = match self.volume.capture().await? {
            Captured::Nothing => return Ok(()),
            Captured::TooMuch => return self.volume.commit().await.map(|_| ()),
            Captured::Changes(taken) => taken,
        };
        match self.write_captured(&taken, aim).await? {
            Outcome::Written => {
                taken.written();
                Ok(())
            }
            Outcome::TooMuch => {
                drop(taken);
                self.volume.commit().await.map(|_| ())
            }
        }
    }

    /// Describes what was taken, settles that as an entry, and brings it to where `aim` is content
    /// with. The entry is settled before anything here can give up on the store. Dropped while it
    /// waits for the store or the disk, it leaves that to the next call of [`bring`].
    async fn write_captured(
        &mut self,
        capture: &Capture,
        aim: Aim,
    ) -> Result<Outcome, VolumeError> {
        let Some(operations) = self.volume.describe(capture).await? else {
            return Ok(Outcome::TooMuch);
        };
        let is_stored = |content: &Content| matches!(content, Content::Stored(_));
        let contents = &operations.contents;
        let refers = contents.iter().any(|piece| is_stored(&piece.content));
        let ingest = &self.volume.ingest;
        // What was kept before goes to the bucket first, and what it names before that.
        let (packs, is_there) = match (refers || self.journal.is_behind(), aim) {
            (false, _) => (Delivered::default(), aim != Aim::Local),
            (true, Aim::Bucket) => (ingest.deliver().await?, true),
            (true, Aim::Soon) => ingest.deliver_or_keep(PATIENCE).await?,
            (true, Aim::Local) => (ingest.keep().await?, false),
        };
        let operations = operations.encode();
        if operations.len() > self.bytes_max {
            return Ok(Outcome::TooMuch);
        }
        let length = operations.len() as u64;
        let entry = Entry {
            first: capture.first,
            last: capture.last,
            packs,
            operations,
        };
        let settled = self.journal.settle(entry);
        settled.map_err(|error| self.failed(error))?;
        self.volume.is_settled(capture)?;
        self.count(length);
        let aim = if is_there { aim } else { Aim::Local };
        let (volume, journal) = (&*self.volume, &*self.journal);
        // What it names is in the bucket; and so is what those before it name.
        let until = journal.settled();
        let landing = async {
            let landed = journal.land(until).await;
            landed.map_err(|error| failed(volume, error))
        };
        send(volume, journal, landing, aim).await?;
        Ok(Outcome::Written)
    }

    /// Asks for a commit before journals become many.
    fn count(&mut self, bytes: u64) {
        self.uncommitted.0 += 1;
        self.uncommitted.1 += bytes;
        let (journals, bytes) = self.uncommitted;
        if journals >= UNCOMMITTED_JOURNALS_MAX || bytes >= UNCOMMITTED_BYTES_MAX {
            self.uncommitted = (0, 0);
            self.volume.commit_soon();
        }
    }

    fn failed(&self, error: PublishError) -> VolumeError {
        failed(&self.volume, error)
    }
}
