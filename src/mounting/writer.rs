//! The writing part of a mount: session, volume and committer.
//!
//! Owns the order in which they start and stop. [`super::supervisor`] decides when they are
//! replaced.

use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::spool::Spool;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::mounting::base::BaseRaiser;
use crate::mounting::ending::{Deadline, KEEPING, LEAVING, keep_ahead, name_lost};
use crate::mounting::error::{MountingError, SpoolingError};
use crate::mounting::history::Snapshots;
use crate::mounting::writing::{Writing, limits};
use crate::mounting::{format, spooling, takeover};
use crate::repository::Repository;
use crate::root::commit::RootCommitter;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::heartbeat::Standing;
use crate::root::journal::JournalWriter;
use crate::root::removal::give_up;
use crate::root::request::KnownSpools;
use crate::root::session::OpenSession;
use crate::root::state::{RECOVERY_BASES_MAX, Root, SessionId};
use crate::vfs::live::Live;
use crate::volume::commit::Committer;
use crate::volume::commit_task::CommitTask;
use crate::volume::error::VolumeError;
use crate::volume::journal::{JournalTask, keep_everything};
use crate::volume::requests::CommitOutcome;
use crate::volume::requests::QueuedCommit;
use crate::volume::state::Totals;
use crate::volume::view::View;
use crate::volume::{Promise, Volume, VolumeParts};

/// Pause after which an unreadable quarantine is read again.
const QUARANTINE_RETRY: Duration = Duration::from_secs(5);

/// Longest time that a mount waits for recovery bases to leave the root.
const CLAIMING: Duration = Duration::from_secs(5);

/// A writing session.
pub(super) struct Writer {
    pub(super) open: OpenSession,
    /// Sessions of this mount that were to succeed this one and did not begin to write. One of them
    /// may still hold the volume.
    successors: Vec<SessionId>,
    tasks: Tasks,
}

/// Tasks and state of a writing session.
struct Tasks {
    volume: Arc<Volume>,
    /// Dropped before `stop`, which would ask it for a last commit.
    committer: AbortOnDropHandle<Result<CommitOutcome, VolumeError>>,
    stop: Option<oneshot::Sender<()>>,
    /// What stops the journaler, and its task.
    journaler: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    journals: Arc<JournalWriter>,
    spool: Option<Arc<Spool>>,
    _background: [AbortOnDropHandle<()>; 2],
}

impl Writing {
    /// Takes recovery bases of ended sessions out of the root whose spools on this machine are
    /// empty or absent, by a session of its own. Dropped, or after an error, it leaves them to the
    /// next mount.
    ///
    /// # Errors
    /// [`MountingError::Spool`] if the spools cannot be listed; errors of the root.
    pub(super) async fn claim_empty(&self) -> Result<(), MountingError> {
        let empty = self.empty_recovery_bases().await?;
        if empty.is_empty() {
            return Ok(());
        }
        let known = KnownSpools {
            empty,
            ..KnownSpools::default()
        };
        let handle = &self.repository.handle;
        let processes = self.repository.environment.processes.as_ref();
        let holder = self.holder.clone();
        let open = OpenSession::open_with(handle, holder, None, processes, known).await?;
        Ok(open.end().await?)
    }

    /// Same, by `open`, a session of this mount. It covers the recovery base of a session that
    /// could still commit when this mount listed the spools, and was killed before it had made its
    /// spool.
    async fn claim_left(&self, open: &OpenSession) -> Result<(), MountingError> {
        let empty = self.empty_recovery_bases().await?;
        if empty.is_empty() {
            return Ok(());
        }
        Ok(give_up(&self.repository.handle, open, &empty).await?)
    }

    /// Returns ended sessions with recovery bases whose spools would lie on this machine and are
    /// absent.
    async fn empty_recovery_bases(&self) -> Result<Vec<SessionId>, MountingError> {
        let view = self.repository.handle.current();
        let is_any = !view.root.recovery_bases().is_empty();
        let Some(place) = self.spool.as_ref().filter(|_| is_any) else {
            return Ok(Vec::new());
        };
        let mut empty = place.list(&self.holder).await?.empty(&view.root);
        empty.retain(|session| view.root.recovery_base_of(*session).is_some());
        Ok(empty)
    }

    /// Starts to write for a session that has just taken the volume, and cleans up after an earlier
    /// mount. Files in use of a `former` volume of this mount stay, and no inode number of it is
    /// assigned again. With `accepts_loss`, operations that an earlier session of this machine sent
    /// and no commit covers are reported once more, and then forgotten.
    ///
    /// # Errors
    /// Errors of store, spool and root. The session has then left the root, if that was possible.
    /// Exception: [`OpenSession::end_unbegun`].
    pub(super) async fn start(
        &self,
        open: OpenSession,
        former: Option<&Volume>,
        accepts_loss: bool,
    ) -> Result<(Live, Writer), MountingError> {
        match self.begin(&open, former, accepts_loss).await {
            Ok((live, tasks)) => {
                self.repository.bear_refusals();
                let claimed = tokio::time::timeout(CLAIMING, self.claim_left(&open)).await;
                if let Ok(Err(error)) = claimed {
                    tracing::debug!("an empty spool is left to the next mount: {error}");
                }
                name_recovery_bases(&self.repository.handle.current().root);
                let successors = Vec::new();
                let writer = Writer {
                    open,
                    successors,
                    tasks,
                };
                Ok((live, writer))
            }
            Err(error) => {
                if let Err(left) = open.end_unbegun().await {
                    tracing::warn!("the session stays in the root: {left}");
                }
                Err(error)
            }
        }
    }

    /// Returns the volume as of its last commit, its commit requests, and whether it is new.
    async fn volume(
        &self,
        ingest: Arc<Ingest>,
        first_inode: u64,
    ) -> Result<(Arc<Volume>, mpsc::Receiver<QueuedCommit>, bool), MountingError> {
        let repository = &self.repository;
        repository.load_index_to_write().await?;
        let entry = repository.volume_entry(&self.volume);
        let (tree, totals, is_new) = match entry.tree {
            Some(tree) => {
                let totals = Totals {
                    inodes: entry.inodes,
                    bytes: entry.bytes,
                };
                (tree, totals, false)
            }
            None => {
                let tree = format::empty_tree(&ingest, &repository.nodes).await?;
                (tree, Totals::default(), true)
            }
        };
        let view = View::live(repository.nodes.clone(), tree, totals);
        let swap = match &self.swap {
            Some(place) => place.swap().await,
            None => None,
        };
        let (volume, requests) = Volume::new(VolumeParts {
            view,
            ingest,
            clock: repository.environment.clock.clone(),
            limits: limits(self.memory_bytes),
            next_inode: entry.next_inode.max(first_inode),
            promise: self.promise,
            swap,
        });
        Ok((volume, requests, is_new))
    }

    /// Returns the session's uploader, through a spool if there is a directory for one. Another
    /// mount on this machine may have taken the absent spool for an empty one. So the session must
    /// hold its volume in a root that is read after the spool was made.
    async fn ingest(&self, session: SessionId) -> Result<Arc<Ingest>, MountingError> {
        let spool = match &self.spool {
            Some(place) => place.create(session.0).await?,
            None => None,
        };
        if spool.is_some() {
            let view = self.repository.handle.refresh().await?;
            let held = view.root.require_holder(session, &self.volume);
            held.map_err(RootError::from)?;
        }
        let session = session.0;
        let content_store = self.repository.content_store.clone();
        Ok(Arc::new(Ingest::with_spool(content_store, session, spool)))
    }

    /// Returns the snapshots that the mount shows, and that `open` makes and forgets.
    fn history(&self, open: &OpenSession, ingest: &Arc<Ingest>) -> Arc<Snapshots> {
        let session = (open.id(), ingest.clone());
        let repository = self.repository.clone();
        Arc::new(Snapshots::new(
            repository,
            self.volume.clone(),
            Some(session),
        ))
    }

    /// Returns the writer of the journals of `open`.
    fn journals(&self, open: &OpenSession, spool: Option<Arc<Spool>>) -> Arc<JournalWriter> {
        let repository = &self.repository;
        let journals = JournalWriter::new(repository.handle.clone(), open.id(), &self.volume)
            .with_spool(spool)
            .reporting_to(&repository.content_store);
        Arc::new(journals)
    }

    /// Reports in the background the operations that this machine sent and no commit covers.
    fn tell_uncarried(&self, accepts_loss: bool) -> AbortOnDropHandle<()> {
        let (handle, content_store) = (&self.repository.handle, &self.repository.content_store);
        let told = takeover::tell_uncarried(handle.clone(), content_store.clone(), accepts_loss);
        AbortOnDropHandle::new(tokio::spawn(told))
    }

    /// Makes the volume, carries out what ended sessions acknowledged, and starts the tasks.
    ///
    /// Cancel safety: dropped, or after an error, it begins no further commit. One that was on its
    /// way is settled by the handle before its next change, and may be made then.
    async fn begin(
        &self,
        open: &OpenSession,
        former: Option<&Volume>,
        accepts_loss: bool,
    ) -> Result<(Live, Tasks), MountingError> {
        let repository = &self.repository;
        let ingest = self.ingest(open.id()).await?;
        let spool = ingest.spool().cloned();
        let history = self.history(open, &ingest);
        let first_inode = former.map_or(0, Volume::inode_mark);
        let (volume, requests, is_new) = self.volume(ingest.clone(), first_inode).await?;
        let replayed = takeover::replay(&repository.handle, &volume, open).await?;
        if is_new {
            format::make_root(&volume, self.owner).await?;
        }
        format::reap_orphans(&volume, former.map(Volume::usage)).await?;
        let handle = &repository.handle;
        let lists = repository.lists.clone();
        let root = RootCommitter::new(handle.clone(), lists, open.id(), &self.volume, ingest)?
            .replaying(replayed)
            .claiming(open.claimed().to_vec());
        let journals = self.journals(open, spool.clone());
        let (holder, written) = (self.holder.clone(), journals.clone());
        let committer = Committer::new(volume.clone(), root, holder, written);
        let base = BaseRaiser::new(repository, open, &volume);
        let (stop, stopped) = oneshot::channel();
        let committer = CommitTask::new(committer, requests);
        let committer = AbortOnDropHandle::new(tokio::spawn(committer.run(async {
            // A sender that is dropped means the same.
            let _ = stopped.await;
        })));
        if let Err(error) = first_commit(handle, &volume, open, is_new).await {
            committer.abort();
            let _ = committer.await;
            return Err(error);
        }
        let journaler = JournalTask::new(volume.clone(), journals.clone());
        watch_standing(&volume, open);
        watch_session(&volume);
        watch_quarantine(&volume, repository);
        let live = Live {
            view: volume.view.clone(),
            volume: Some(volume.clone()),
            history: Some(history),
        };
        let told = self.tell_uncarried(accepts_loss);
        let tasks = Tasks {
            volume,
            stop: Some(stop),
            committer,
            journaler: journaler
                .filter(|_| !self.promise.is_scratch())
                .map(|journaler| start(journaler.locally(self.is_local))),
            journals,
            spool,
            _background: [told, AbortOnDropHandle::new(tokio::spawn(base.run()))],
        };
        Ok((live, tasks))
    }
}

/// Commits what was replayed, and a new volume. A root that is rebuilt knows a volume by its commits:
/// without one it would forget the journals of the volume.
async fn first_commit(
    handle: &RootHandle,
    volume: &Volume,
    open: &OpenSession,
    is_new: bool,
) -> Result<(), MountingError> {
    takeover::commit_replayed(handle, volume, open).await?;
    if is_new {
        volume.commit().await?;
    }
    Ok(())
}

/// Starts the task of a journaler. It ends when the sender is dropped.
fn start(journaler: JournalTask) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let run = journaler.run(async {
        let _ = stopped.await;
    });
    (stop, tokio::spawn(run))
}

/// Logs how many spools of ended sessions may hold data that is in no bucket.
fn name_recovery_bases(root: &Root) {
    let recovery_bases = root.recovery_bases();
    let Some(first) = recovery_bases.first() else {
        return;
    };
    let (session, host) = (first.session, first.host());
    tracing::warn!(
        "{} spools of ended sessions (of at most {RECOVERY_BASES_MAX}) may hold what was \
         acknowledged, and keep collection from freeing what that may need; the first, of session \
         {session}, is on host {host}: mount there, or see bkfs session list",
        recovery_bases.len()
    );
}

impl Writer {
    /// Ends the spool as if its session were dead, so that a replay can take it. Nothing more is
    /// written to it.
    ///
    /// # Errors
    /// [`MountingError::Spool`] if the disk does not answer: a replay would pass the spool over.
    pub(super) async fn abandon_spool(&mut self) -> Result<(), MountingError> {
        self.tasks.end_journaler().await;
        // What arrived in the bucket too late for another holder is nowhere else.
        let keeping = tokio::time::timeout(KEEPING, self.tasks.journals.keep_arrived());
        match keeping.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the spool does not take the last journals: {error}"),
            Err(_) => tracing::warn!("the spool did not take the last journals in time"),
        }
        let Some(spool) = &self.tasks.spool else {
            return Ok(());
        };
        let ended = tokio::time::timeout(KEEPING, spool.end()).await;
        ended.map(drop).map_err(|_| {
            let path = spool.directory().display().to_string();
            MountingError::Spool(SpoolingError::Silent { path })
        })
    }

    /// Lets a new session of the same mount take the volume over: see [`OpenSession::succeed`].
    ///
    /// # Errors
    /// [`MountingError::Root`], as there.
    pub(super) async fn succeed(
        &mut self,
        writing: &Writing,
        known: KnownSpools,
        accepts_loss: bool,
    ) -> Result<OpenSession, MountingError> {
        let holder = writing.holder.clone();
        let processes = writing.repository.environment.processes.as_ref();
        let successors = &mut self.successors;
        let succeeded = (self.open).succeed(successors, holder, processes, known, accepts_loss);
        Ok(succeeded.await?)
    }

    /// Ends a writer whose session was succeeded: its volume refuses every change.
    pub(super) fn retire(self) {
        self.tasks.volume.freeze(false);
        drop(self.tasks.committer.detach());
    }

    /// Makes the last commit and ends the session. Data that the store does not accept by
    /// `deadline`, or refuses, goes to the spool, and the session stays in the root for the next
    /// mount on this machine. That is an error. Files that do not fit in the spool are named in the
    /// log.
    ///
    /// # Errors
    /// [`MountingError::Volume`] if accepted data is not in the bucket; [`MountingError::Root`] if
    /// the session could not be ended.
    pub(super) async fn finish(self, deadline: &Deadline) -> Result<(), MountingError> {
        let Writer {
            open, mut tasks, ..
        } = self;
        tasks.volume.freeze(false);
        let is_thrown_away = tasks.volume.promise() == Promise::ThrownAway;
        let committed = match is_thrown_away {
            true => {
                tasks.throw_away().await;
                Ok(())
            }
            false => match tasks.commit(deadline).await {
                Ok(_) => Ok(()),
                Err(error) => Err(tasks.keep(error, deadline).await),
            },
        };
        let leave = async {
            if is_thrown_away {
                return open.drop_held_scratch().await;
            }
            let ended = takeover::end(open, &tasks.journals, committed.is_ok()).await;
            if let Some(spool) = &tasks.spool {
                spooling::end(spool).await;
            }
            ended
        };
        let ended = tokio::select! {
            biased;
            ended = leave => ended,
            () = deadline.passed_by(KEEPING + LEAVING) => {
                tracing::warn!(
                    "the session stays in the root: the next mount on this machine ends it");
                Ok(())
            }
        };
        committed?;
        Ok(ended?)
    }
}

impl Tasks {
    /// Ends the tasks without a commit, also in the middle of one that only lets the base rise.
    async fn throw_away(&mut self) {
        self.committer.abort();
        let _ = (&mut self.committer).await;
        self.end_journaler().await;
    }

    /// Makes the last commit. When this returns, no task works for the volume any more.
    async fn commit(&mut self, deadline: &Deadline) -> Result<CommitOutcome, VolumeError> {
        // A receiver that is gone has ended by itself.
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let ended = tokio::select! {
            biased;
            ended = &mut self.committer => ended,
            () = deadline.passed_by(Duration::ZERO) => {
                self.committer.abort();
                (&mut self.committer).await
            }
            never = keep_ahead(&self.volume) => match never {},
        };
        // Until here it stored closed files in the spool.
        self.end_journaler().await;
        match ended {
            Ok(committed) => committed,
            Err(error) if error.is_cancelled() => Err(VolumeError::Commit(
                "the store did not take everything in time".into(),
            )),
            Err(error) => Err(VolumeError::Commit(format!("the committer ended: {error}"))),
        }
    }

    /// Ends the task that writes journals by itself. When this returns, the files that it was about
    /// to describe are in the volume again.
    async fn end_journaler(&mut self) {
        if let Some((stop, journaler)) = self.journaler.take() {
            drop(stop);
            let _ = journaler.await;
        }
    }

    /// Moves data that the store did not accept to the spool. Returns an error that says where the
    /// data is.
    async fn keep(&self, error: VolumeError, deadline: &Deadline) -> VolumeError {
        let journals = self.journals.clone();
        let kept = match &self.spool {
            None => Err(error.clone()),
            Some(_) => tokio::select! {
                biased;
                kept = keep_everything(self.volume.clone(), journals) => kept,
                () = deadline.passed_by(KEEPING) => {
                    Err(VolumeError::Commit("the spool did not take everything in time".into()))
                }
            },
        };
        match kept {
            Ok(()) => VolumeError::Commit(format!(
                "{error}: the rest stays in the spool, and the next mount on this machine brings \
                 it to the bucket"
            )),
            Err(error) => {
                name_lost(&self.volume, &error).await;
                error
            }
        }
    }
}

/// Stops deduplication against packs that others put into quarantine, as soon as a root that says
/// so is known (docs/PROTOCOL.md, rule 11).
fn watch_quarantine(volume: &Arc<Volume>, repository: &Arc<Repository>) {
    let mut roots = repository.handle.subscribe();
    let (volume, repository) = (Arc::downgrade(volume), Arc::downgrade(repository));
    let mut heeded = Vec::new();
    tokio::spawn(async move {
        loop {
            let view = roots.borrow_and_update().clone();
            let (Some(_), Some(repository)) = (volume.upgrade(), repository.upgrade()) else {
                return;
            };
            if view.root.quarantine != heeded {
                if let Err(error) = repository.heed_quarantine(&view).await {
                    tracing::warn!(%error, "the quarantine cannot be read, will be tried again");
                    drop(repository);
                    tokio::time::sleep(QUARANTINE_RETRY).await;
                    continue;
                }
                heeded.clone_from(&view.root.quarantine);
            }
            drop(repository);
            if roots.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Poisons the volume as soon as its uploader has lost data.
fn watch_session(volume: &Arc<Volume>) {
    let lost = volume.ingest().lost();
    let volume = Arc::downgrade(volume);
    tokio::spawn(async move {
        if let (Some(cause), Some(volume)) = (lost.await, volume.upgrade()) {
            volume.poison(cause.into());
        }
    });
}

/// Poisons the volume as soon as its session knows that it was fenced.
fn watch_standing(volume: &Arc<Volume>, open: &OpenSession) {
    let mut standing = open.heartbeat().standing();
    let volume = Arc::downgrade(volume);
    tokio::spawn(async move {
        let fenced = standing
            .wait_for(|standing| matches!(standing, Standing::Fenced(_)))
            .await;
        let Ok(standing) = fenced.map(|standing| standing.clone()) else {
            return;
        };
        if let (Standing::Fenced(refusal), Some(volume)) = (standing, volume.upgrade()) {
            volume.poison(VolumeError::Commit(refusal.to_string()));
        }
    });
}
