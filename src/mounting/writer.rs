//! The writing side of a mount: session, volume and committer.
//!
//! Owns: the order in which they come up and go. Does not own: when they are replaced (`keeper`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::spool::Spool;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::mounting::base::BaseKeeper;
use crate::mounting::ending::{Deadline, KEEPING, LEAVING, keep_ahead, name_lost};
use crate::mounting::history::Snapshots;
use crate::mounting::publish::{IngestUploads, Journals, Publisher};
use crate::mounting::spooling::{SpoolNews, SpoolPlace};
use crate::mounting::{MountingError, format, spooling, takeover};
use crate::repository::Repository;
use crate::root::commit::Committer as RootCommitter;
use crate::root::error::RootError;
use crate::root::grounds::GROUNDS_MAX;
use crate::root::heartbeat::Standing;
use crate::root::journal::JournalWriter;
use crate::root::removal::give_up;
use crate::root::repository::{probe, probe_lock};
use crate::root::session::{KnownSpools, OpenSession, VolumeRequest};
use crate::root::state::{HolderInfo, Root, SessionId};
use crate::vfs::live::Live;
use crate::vfs::special::Owner;
use crate::volume::commit::{Committed, Committer, Request};
use crate::volume::error::VolumeError;
use crate::volume::journal::{Journaler, keep_everything};
use crate::volume::room::Limits;
use crate::volume::state::Totals;
use crate::volume::view::View;
use crate::volume::{Volume, VolumeParts};

/// A quarantine that could not be read is read again after so long.
const QUARANTINE_RETRY: Duration = Duration::from_secs(5);

/// A mount does not wait longer for grounds to leave the root.
const CLAIMING: Duration = Duration::from_secs(5);

/// What is written, and by whom.
pub(super) struct Writing {
    pub(super) repository: Arc<Repository>,
    /// The volume's name.
    pub(super) volume: String,
    /// Memory of the whole daemon, in bytes.
    pub(super) memory_bytes: u64,
    /// Where packs may wait on a disk.
    pub(super) spool: Option<SpoolPlace>,
    /// `fsync=local`.
    pub(super) is_local: bool,
    /// Owner of the root directory of a volume that is new.
    pub(super) owner: Owner,
    pub(super) holder: HolderInfo,
}

/// A session that writes.
pub(super) struct Writer {
    pub(super) open: OpenSession,
    tasks: Tasks,
}

/// What works for a session that writes.
struct Tasks {
    volume: Arc<Volume>,
    stop: Option<oneshot::Sender<()>>,
    committer: JoinHandle<Result<Committed, VolumeError>>,
    journaler: Option<JoinHandle<()>>,
    journals: Arc<JournalWriter>,
    spool: Option<Arc<Spool>>,
    _background: [Ended; 2],
}

/// A task that ends with its owner.
struct Ended(JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Writing {
    /// Enters the root and takes the volume, which is made if it is new. `accepts_loss` is
    /// [`VolumeRequest::accept_loss`]: it counts for this takeover, and for no later one.
    pub(super) async fn enter(
        &self,
        steal: bool,
        accepts_loss: bool,
    ) -> Result<(OpenSession, SpoolNews), MountingError> {
        // Before anything is taken over: who cannot write leaves all as it is.
        self.repository.condemned().await?;
        let mut news = SpoolNews::default();
        let (left, known) = self.bring_spools(accepts_loss, &mut news).await?;
        let handle = &self.repository.handle;
        let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
        probe(store, entropy, &handle.policy()).await?;
        if let Some(rule) = self.repository.lock {
            probe_lock(store, entropy, rule, self.repository.now()).await?;
        }
        let request = VolumeRequest {
            name: self.volume.clone(),
            steal,
            accept_loss: accepts_loss,
        };
        let holder = self.holder.clone();
        let processes = self.repository.machine.processes.as_ref();
        let open = OpenSession::open_with(handle, holder, Some(request), processes, known).await?;
        if let Some(victim) = open.taken_from() {
            tracing::warn!("volume {} was taken over from {victim}", self.volume);
        }
        spooling::discard(left, &open, self, accepts_loss, &mut news).await;
        Ok((open, news))
    }

    /// Brings what dead sessions of this machine have left into the bucket: see [`SpoolPlace::replay`].
    pub(super) async fn bring_spools(
        &self,
        accepts_loss: bool,
        news: &mut SpoolNews,
    ) -> Result<(Vec<spooling::Brought>, KnownSpools), MountingError> {
        match &self.spool {
            Some(place) => Ok(place.replay(self, accepts_loss, news).await?),
            None => Ok(Default::default()),
        }
    }

    /// Sessions that have ended and of which the spools here hold nothing have nothing to keep: their
    /// grounds leave the root, by a session of its own. Dropped, or refused, that is left to the
    /// next mount.
    pub(super) async fn claim_empty(&self) -> Result<(), MountingError> {
        let empty = self.empty_grounds().await?;
        if empty.is_empty() {
            return Ok(());
        }
        let known = KnownSpools {
            empty,
            ..KnownSpools::default()
        };
        let handle = &self.repository.handle;
        let processes = self.repository.machine.processes.as_ref();
        let holder = self.holder.clone();
        let open = OpenSession::open_with(handle, holder, None, processes, known).await?;
        Ok(open.end().await?)
    }

    /// The same, by `open`, a session of this mount. One that was killed before it had made its spool
    /// could still commit when this mount listed the spools: its ground is left by the takeover.
    async fn claim_left(&self, open: &OpenSession) -> Result<(), MountingError> {
        let empty = self.empty_grounds().await?;
        if empty.is_empty() {
            return Ok(());
        }
        Ok(give_up(&self.repository.handle, open, &empty).await?)
    }

    /// Ended sessions with grounds whose spools would lie here, where they have none.
    async fn empty_grounds(&self) -> Result<Vec<SessionId>, MountingError> {
        let view = self.repository.handle.current();
        let is_any = !view.root.grounds().is_empty();
        let Some(place) = self.spool.as_ref().filter(|_| is_any) else {
            return Ok(Vec::new());
        };
        let mut empty = place.list(&self.holder).await?.empty(&view.root);
        empty.retain(|session| view.root.ground_of(*session).is_some());
        Ok(empty)
    }

    /// Starts to write for a session that has just taken the volume; cleans up what an earlier
    /// mount left. What users of a `former` volume of this mount hold stays, and no inode number
    /// that it gave out is given out again. With `accepts_loss` what an earlier session of this machine
    /// sent in vain is said once more, and then forgotten.
    ///
    /// # Errors
    /// The session has left the root again, if that was possible.
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
                name_grounds(&self.repository.handle.current().root);
                Ok((live, Writer { open, tasks }))
            }
            Err(error) => {
                if let Err(left) = open.end().await {
                    tracing::warn!("the session stays in the root: {left}");
                }
                Err(error)
            }
        }
    }

    /// The volume as of its last commit, the commits that will be asked for, and whether it is new.
    async fn volume(
        &self,
        ingest: Arc<Ingest>,
        first_inode: u64,
    ) -> Result<(Arc<Volume>, mpsc::Receiver<Request>, bool), MountingError> {
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
        let (volume, requests) = Volume::new(VolumeParts {
            view,
            ingest,
            clock: repository.machine.clock.clone(),
            limits: limits(self.memory_bytes),
            next_inode: entry.next_inode.max(first_inode),
        });
        Ok((volume, requests, is_new))
    }

    /// A way into the bucket for a session, by way of a spool if there is a place for one. Another
    /// mount on this machine may have taken a spool that was not there for an empty one: so the
    /// session must hold its volume in a root that is read after the spool was made.
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
        let depot = self.repository.depot.clone();
        Ok(Arc::new(Ingest::with_spool(depot, session, spool)))
    }

    /// The snapshots that the mount shows, and that `open` makes and forgets.
    fn history(&self, open: &OpenSession, uploads: &Arc<IngestUploads>) -> Arc<Snapshots> {
        let session = (open.id(), uploads.clone());
        let repository = self.repository.clone();
        Arc::new(Snapshots::new(
            repository,
            self.volume.clone(),
            Some(session),
        ))
    }

    /// Writes the journals of `open`.
    fn journals(&self, open: &OpenSession, spool: Option<Arc<Spool>>) -> Arc<JournalWriter> {
        let repository = &self.repository;
        let journals = JournalWriter::new(repository.handle.clone(), open.id(), &self.volume)
            .with_spool(spool)
            .reporting_to(&repository.depot);
        Arc::new(journals)
    }

    /// Says meanwhile what this machine sent and no commit covers.
    fn tell_uncarried(&self, accepts_loss: bool) -> Ended {
        let (handle, depot) = (&self.repository.handle, &self.repository.depot);
        let told = takeover::tell_uncarried(handle.clone(), depot.clone(), accepts_loss);
        Ended(tokio::spawn(told))
    }

    async fn begin(
        &self,
        open: &OpenSession,
        former: Option<&Volume>,
        accepts_loss: bool,
    ) -> Result<(Live, Tasks), MountingError> {
        let repository = &self.repository;
        let ingest = self.ingest(open.id()).await?;
        let spool = ingest.spool().cloned();
        let uploads = Arc::new(IngestUploads {
            ingest: ingest.clone(),
            lists: repository.lists.clone(),
        });
        let history = self.history(open, &uploads);
        let first_inode = former.map_or(0, Volume::inode_mark);
        let (volume, requests, is_new) = self.volume(ingest, first_inode).await?;
        let replayed = takeover::replay(&volume, open).await?;
        if is_new {
            format::make_root(&volume, self.owner).await?;
            volume.commit_soon();
        }
        format::reap_orphans(&volume, former.map(Volume::usage)).await?;
        let handle = &repository.handle;
        let lists = repository.lists.clone();
        let committer =
            RootCommitter::new(handle.clone(), lists, open.id(), &self.volume, uploads)?;
        let journals = self.journals(open, spool.clone());
        let publisher = Arc::new(Publisher {
            committer: committer
                .replaying(replayed)
                .claiming(open.claimed().to_vec()),
            holder: self.holder.clone(),
            history: history.clone(),
            clock: repository.machine.clock.clone(),
            journals: journals.clone(),
            ingest: volume.ingest().clone(),
            has_rescued: AtomicBool::new(false),
        });
        let base = BaseKeeper::new(repository, open, &volume, &publisher);
        let (stop, stopped) = oneshot::channel();
        let generation = repository.handle.current().root.generation;
        let committer = Committer::new(volume.clone(), publisher, requests, generation);
        let committer = tokio::spawn(committer.run(async {
            // A sender that is dropped means the same.
            let _ = stopped.await;
        }));
        takeover::commit_replayed(handle, &volume, open).await?;
        let journaler = Journaler::new(volume.clone(), Arc::new(Journals(journals.clone())));
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
                .map(|journaler| tokio::spawn(journaler.locally(self.is_local).run())),
            journals,
            spool,
            _background: [told, Ended(tokio::spawn(base.run()))],
        };
        Ok((live, tasks))
    }
}

/// Says which spools elsewhere may hold what no bucket has.
fn name_grounds(root: &Root) {
    let grounds = root.grounds();
    let Some(first) = grounds.first() else { return };
    let (session, host) = (first.session, first.host());
    tracing::warn!(
        "{} spools of ended sessions (of at most {GROUNDS_MAX}) may hold what was acknowledged, and keep collection from freeing what that may need; the first, of session {session}, is on host {host}: mount there, or see bkfs session list",
        grounds.len()
    );
}

impl Writer {
    /// The spool as a dead session's, for whoever replays it: nothing more is written to it.
    pub(super) async fn abandon_spool(&self) {
        if let Some(journaler) = &self.tasks.journaler {
            journaler.abort();
        }
        if let Some(spool) = &self.tasks.spool {
            spool.end().await;
        }
    }

    /// What a successor has taken the place of: its volume refuses everything, and its session is
    /// gone.
    pub(super) fn retire(self) {
        self.tasks.volume.freeze(false);
    }

    /// The last commit, and the end of the session. What the store has not taken by `deadline`, or
    /// refuses, goes to the spool, and the session stays in the root for the next mount on this
    /// machine: that is an error, which says so. What does not fit there is named in the log.
    ///
    /// # Errors
    /// Not everything that was accepted is in the bucket.
    pub(super) async fn finish(self, deadline: &Deadline) -> Result<(), MountingError> {
        let Writer { open, mut tasks } = self;
        tasks.volume.freeze(false);
        let committed = match tasks.commit(deadline).await {
            Ok(committed) => Ok(committed),
            Err(error) => Err(tasks.keep(error, deadline).await),
        };
        let leave = async {
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
                tracing::warn!("the session stays in the root: the next mount on this machine ends it");
                Ok(())
            }
        };
        committed?;
        Ok(ended?)
    }
}

impl Tasks {
    /// The last commit. When this returns, no task works for the volume any more.
    async fn commit(&mut self, deadline: &Deadline) -> Result<Committed, VolumeError> {
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
        // Up to here it kept in the spool what had been closed. What it was about to describe comes
        // back to the volume.
        if let Some(journaler) = self.journaler.take() {
            journaler.abort();
            let _ = journaler.await;
        }
        match ended {
            Ok(committed) => committed,
            Err(error) if error.is_cancelled() => Err(VolumeError::Commit(
                "the store did not take everything in time".into(),
            )),
            Err(error) => Err(VolumeError::Commit(format!("the committer ended: {error}"))),
        }
    }

    /// What the store did not take goes to the spool. Returns an error that says what has become of
    /// it.
    async fn keep(&self, error: VolumeError, deadline: &Deadline) -> VolumeError {
        let journal = Arc::new(Journals(self.journals.clone()));
        let kept = match &self.spool {
            None => Err(error.clone()),
            Some(_) => tokio::select! {
                biased;
                kept = keep_everything(self.volume.clone(), journal) => kept,
                () = deadline.passed_by(KEEPING) => {
                    Err(VolumeError::Commit("the spool did not take everything in time".into()))
                }
            },
        };
        match kept {
            Ok(()) => VolumeError::Commit(format!(
                "{error}: the rest stays in the spool, and the next mount on this machine brings it to the bucket"
            )),
            Err(error) => {
                name_lost(&self.volume, &error).await;
                error
            }
        }
    }
}

/// What others put into quarantine while the volume is written is not matched any more, from the moment a root that says so is known (protocol.md, rule 11).
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

/// Half of the memory that is not the chunker's (see its budget) is for dirty bytes, and a part for changed items.
pub(super) fn limits(memory_bytes: u64) -> Limits {
    Limits {
        data_bytes: memory_bytes / 6,
        item_bytes: memory_bytes / 12,
    }
}

/// A volume whose way into the bucket has lost something accepts nothing more, from that moment on.
fn watch_session(volume: &Arc<Volume>) {
    let lost = volume.ingest().lost();
    let volume = Arc::downgrade(volume);
    tokio::spawn(async move {
        if let (Some(cause), Some(volume)) = (lost.await, volume.upgrade()) {
            volume.poison(cause.into());
        }
    });
}

/// A session that was taken over accepts nothing more, from the moment it knows.
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
