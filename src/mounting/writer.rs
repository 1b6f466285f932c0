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
use crate::mounting::history::Snapshots;
use crate::mounting::publish::{IngestUploads, Journals, Publisher};
use crate::mounting::spooling::{SpoolNews, SpoolPlace};
use crate::mounting::{MountingError, format, spooling, takeover};
use crate::repository::Repository;
use crate::root::commit::Committer as RootCommitter;
use crate::root::heartbeat::Standing;
use crate::root::journal::JournalWriter;
use crate::root::repository::{probe, probe_lock};
use crate::root::session::{OpenSession, VolumeRequest};
use crate::root::state::HolderInfo;
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
    stop: oneshot::Sender<()>,
    committer: JoinHandle<Result<Committed, VolumeError>>,
    journaler: Option<JoinHandle<()>>,
    journals: Arc<JournalWriter>,
    spool: Option<Arc<Spool>>,
    _base: Ended,
}

/// A task that ends with its owner.
struct Ended(JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Writing {
    /// Enters the root and takes the volume, which is made if it is new.
    pub(super) async fn enter(
        &self,
        steal: bool,
    ) -> Result<(OpenSession, SpoolNews), MountingError> {
        let mut news = SpoolNews::default();
        let left = self.bring_spools(&mut news).await?;
        let handle = &self.repository.handle;
        let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
        probe(store, entropy, handle.policy()).await?;
        if let Some(rule) = self.repository.lock {
            probe_lock(store, entropy, rule, self.repository.now()).await?;
        }
        let request = VolumeRequest {
            name: self.volume.clone(),
            steal,
        };
        let holder = self.holder.clone();
        let open = OpenSession::open(
            handle,
            holder,
            Some(request),
            self.repository.machine.processes.as_ref(),
        )
        .await?;
        if let Some(victim) = open.taken_from() {
            tracing::warn!("volume {} was taken over from {victim}", self.volume);
        }
        spooling::discard(left, &open, self, &mut news).await;
        Ok((open, news))
    }

    /// Brings what dead sessions of this machine have left into the bucket: see [`SpoolPlace::replay`].
    pub(super) async fn bring_spools(
        &self,
        news: &mut SpoolNews,
    ) -> Result<Vec<spooling::Brought>, MountingError> {
        match &self.spool {
            Some(place) => Ok(place.replay(self, news).await?),
            None => Ok(Vec::new()),
        }
    }

    /// Starts to write for a session that has just taken the volume; cleans up what an earlier mount left. No inode below `first_inode` is given out.
    ///
    /// # Errors
    /// The session has left the root again, if that was possible.
    pub(super) async fn start(
        &self,
        open: OpenSession,
        first_inode: u64,
    ) -> Result<(Live, Writer), MountingError> {
        match self.begin(&open, first_inode).await {
            Ok((live, tasks)) => Ok((live, Writer { open, tasks })),
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
        repository.load_index().await?;
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

    /// A way into the bucket for a session, by way of a spool if there is a place for one.
    async fn ingest(&self, session: u64) -> Result<Arc<Ingest>, MountingError> {
        let spool = match &self.spool {
            Some(place) => place.create(session).await?,
            None => None,
        };
        let depot = self.repository.depot.clone();
        Ok(Arc::new(Ingest::with_spool(depot, session, spool)))
    }

    async fn begin(
        &self,
        open: &OpenSession,
        first_inode: u64,
    ) -> Result<(Live, Tasks), MountingError> {
        let repository = &self.repository;
        let ingest = self.ingest(open.id().0).await?;
        let spool = ingest.spool().cloned();
        let uploads = Arc::new(IngestUploads {
            ingest: ingest.clone(),
            lists: repository.lists.clone(),
        });
        let history = Arc::new(Snapshots::new(
            repository.clone(),
            self.volume.clone(),
            Some((open.id(), uploads.clone())),
        ));
        let (volume, requests, is_new) = self.volume(ingest, first_inode).await?;
        let replayed = takeover::replay(&volume, open).await?;
        if is_new {
            format::make_root(&volume, self.owner).await?;
            volume.commit_soon();
        }
        format::reap_orphans(&volume).await?;
        let handle = &repository.handle;
        let lists = repository.lists.clone();
        let committer =
            RootCommitter::new(handle.clone(), lists, open.id(), &self.volume, uploads)?;
        let journals = JournalWriter::new(handle.clone(), open.id(), &self.volume);
        let journals = Arc::new(journals.with_spool(spool.clone()));
        let publisher = Arc::new(Publisher {
            committer: committer.replaying(replayed),
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
        watch_quarantine(&volume, repository);
        let live = Live {
            view: volume.view.clone(),
            volume: Some(volume.clone()),
            history: Some(history),
        };
        let tasks = Tasks {
            volume,
            stop,
            committer,
            journaler: journaler
                .map(|journaler| tokio::spawn(journaler.locally(self.is_local).run())),
            journals,
            spool,
            _base: Ended(tokio::spawn(base.run())),
        };
        Ok((live, tasks))
    }
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

    /// The last commit, and the end of the session. With a spool and a `limit` for it, what is not in the bucket then stays in the spool, and the session in the root, for the
    /// next mount on this machine: that is an error, which says so.
    pub(super) async fn finish(self, limit: Option<Duration>) -> Result<(), MountingError> {
        let Writer { open, tasks } = self;
        tasks.volume.freeze(false);
        // The last commit carries what a journal under way would.
        if let Some(journaler) = tasks.journaler {
            journaler.abort();
        }
        // The committer ends by itself if it is gone already.
        let _ = tasks.stop.send(());
        let limit = limit.filter(|_| tasks.spool.is_some());
        let mut committer = tasks.committer;
        let ended = match limit {
            Some(limit) => tokio::time::timeout(limit, &mut committer).await.ok(),
            None => Some((&mut committer).await),
        };
        let committed = match ended {
            Some(Ok(committed)) => committed,
            Some(Err(error)) => Err(VolumeError::Commit(format!("the committer ended: {error}"))),
            None => {
                committer.abort();
                let journal = Arc::new(Journals(tasks.journals.clone()));
                Err(match keep_everything(tasks.volume.clone(), journal).await {
                    Ok(()) => VolumeError::Commit(
                        "the store did not take everything in time: the rest stays in the spool, and the next mount on this machine brings it to the bucket".into(),
                    ),
                    Err(error) => error,
                })
            }
        };
        let ended = takeover::end(open, &tasks.journals, committed.is_ok()).await;
        if let Some(spool) = &tasks.spool {
            spooling::end(spool).await;
        }
        committed?;
        Ok(ended?)
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
