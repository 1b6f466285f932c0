//! Putting a mount together, and taking it down.
//!
//! Owns: the order in which repository, session, volume, committer and kernel come up and go. Does not own: any of them.
//!
//! ```text
//!   up:    repository → session (root) → index → volume → committer → kernel
//!   down:  kernel → committer (last commit) → session leaves the root
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::ingest::Ingest;
use bkfs_fuse::{MountConfig, MountOptions, Session};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::mounting::control::MountControl;
use crate::mounting::history::Snapshots;
use crate::mounting::publish::{IngestUploads, Publisher};
use crate::mounting::settings::Settings;
use crate::repository::Repository;
use crate::root::commit::Committer as RootCommitter;
use crate::root::error::RootError;
use crate::root::heartbeat::Standing;
use crate::root::repository::probe;
use crate::root::session::{OpenSession, VolumeRequest};
use crate::root::state::HolderInfo;
use crate::vfs::convert::Lifetimes;
use crate::vfs::special::{Control, History, Owner};
use crate::vfs::{BkfsVfs, MountParts};
use crate::volume::commit::{Committed, Committer};
use crate::volume::error::VolumeError;
use crate::volume::room::Limits;
use crate::volume::state::Totals;
use crate::volume::view::View;
use crate::volume::{Volume, VolumeParts};

pub mod control;
mod format;
pub mod history;
pub mod publish;
pub mod settings;

/// How often a read-only mount looks for a newer commit.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);

/// What to mount, and how.
pub struct Plan {
    /// The repository.
    pub repository: Arc<Repository>,
    /// Where.
    pub mount_point: PathBuf,
    /// What the kernel is told.
    pub options: MountOptions,
    /// bkfs's own options.
    pub settings: Settings,
    /// The volume.
    pub volume: String,
    /// Take the volume over from whoever holds it.
    pub steal: bool,
}

/// Why a mount did not come up, or did not go down well.
#[derive(Debug, thiserror::Error)]
pub enum MountingError {
    /// The root refused.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The volume could not be read or stored.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] bkfs_fuse::MountError),
    /// The connection to the kernel broke.
    #[error(transparent)]
    Broken(#[from] bkfs_fuse::SessionError),
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
}

/// A mount that is up.
pub struct Mounted {
    session: Arc<Session>,
    assembled: Assembled,
}

/// What a writable mount has to finish.
struct Writer {
    open: OpenSession,
    volume: Arc<Volume>,
    stop: oneshot::Sender<()>,
    committer: JoinHandle<Result<Committed, VolumeError>>,
}

/// A filesystem that is ready for requests, mounted or not.
pub struct Assembled {
    /// Takes requests.
    pub vfs: BkfsVfs,
    writer: Option<Writer>,
}

impl Assembled {
    /// The volume, if it can be changed.
    pub fn volume(&self) -> Option<&Arc<Volume>> {
        self.writer.as_ref().map(|writer| &writer.volume)
    }

    /// The last commit, and the end of the session: everything accepted is in the bucket when this returns well.
    pub async fn finish(self) -> Result<(), MountingError> {
        match self.writer {
            Some(writer) => writer.finish().await,
            None => Ok(()),
        }
    }
}

impl Plan {
    fn is_read_only(&self) -> bool {
        self.options.flags.read_only || self.settings.snapshot.is_some()
    }

    /// Everything but the kernel. Must be called within `runtime`.
    pub async fn assemble(&self, runtime: &Handle) -> Result<Assembled, MountingError> {
        let (parts, writer) = match self.is_read_only() {
            true => (self.reader(runtime).await?, None),
            false => {
                let (parts, writer) = self.writer(runtime).await?;
                (parts, Some(writer))
            }
        };
        Ok(Assembled {
            vfs: BkfsVfs::new(parts),
            writer,
        })
    }

    /// Brings the mount up. When this returns, it answers.
    pub fn mount(self, runtime: &Runtime) -> Result<Mounted, MountingError> {
        let assembled = runtime.block_on(self.assemble(runtime.handle()))?;
        let mut config = MountConfig::new(self.repository.url.clone());
        config.options = self.options.clone();
        config.options.flags.read_only = self.is_read_only();
        match bkfs_fuse::mount(Arc::new(assembled.vfs.clone()), &self.mount_point, &config) {
            Ok(session) => Ok(Mounted {
                session: Arc::new(session),
                assembled,
            }),
            Err(error) => {
                // Nothing was written: the volume shall not stay held.
                if let Err(left) = runtime.block_on(assembled.finish()) {
                    tracing::warn!("the session stays in the root: {left}");
                }
                Err(error.into())
            }
        }
    }

    fn owner(&self) -> Owner {
        Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: self.repository.machine.clock.now(),
        }
    }

    fn parts(
        &self,
        runtime: &Handle,
        view: View,
        volume: Option<Arc<Volume>>,
        history: Option<Arc<dyn History>>,
        holder: HolderInfo,
    ) -> MountParts {
        let control: Arc<dyn Control> = Arc::new(MountControl {
            repository: self.repository.clone(),
            volume_name: self.volume.clone(),
            volume: volume.clone(),
            holder,
            since: control::time_text(self.repository.machine.clock.now()),
        });
        let lifetimes = match (&volume, &self.settings.snapshot) {
            (Some(_), _) => Lifetimes::OWNED,
            (None, Some(_)) => Lifetimes::FROZEN,
            (None, None) => Lifetimes::FOLLOWING,
        };
        MountParts {
            runtime: runtime.clone(),
            view,
            volume,
            lifetimes,
            history,
            control,
            owner: self.owner(),
            close: self.settings.close,
        }
    }

    fn holder(&self) -> HolderInfo {
        let mount_point =
            std::path::absolute(&self.mount_point).unwrap_or_else(|_| self.mount_point.clone());
        self.repository
            .machine
            .holder(&mount_point.to_string_lossy())
    }

    /// A mount that changes nothing: one snapshot, or the volume as of its last commit.
    async fn reader(&self, runtime: &Handle) -> Result<MountParts, MountingError> {
        let repository = &self.repository;
        if let Some(name) = &self.settings.snapshot {
            let (_, view) = repository.snapshot(&self.volume, name).await?;
            return Ok(self.parts(runtime, view, None, None, self.holder()));
        }
        let (tree, totals) = repository.volume_tree(&self.volume).await?;
        let view = View::frozen(repository.nodes.clone(), tree, totals);
        tokio::spawn(follow(
            repository.clone(),
            self.volume.clone(),
            view.clone(),
        ));
        let history: Arc<dyn History> = Arc::new(Snapshots::new(
            repository.clone(),
            self.volume.clone(),
            None,
        ));
        Ok(self.parts(runtime, view, None, Some(history), self.holder()))
    }

    /// A writable mount: the volume is taken, made if it is new, and cleared of what an earlier mount left.
    async fn writer(&self, runtime: &Handle) -> Result<(MountParts, Writer), MountingError> {
        let repository = &self.repository;
        let holder = self.holder();
        let request = VolumeRequest {
            name: self.volume.clone(),
            steal: self.steal,
        };
        let entropy = repository.handle.entropy();
        probe(repository.handle.store().as_ref(), entropy.as_ref()).await?;
        let open = OpenSession::open(
            &repository.handle,
            holder.clone(),
            Some(request),
            repository.machine.processes.as_ref(),
        )
        .await?;
        if let Some(victim) = open.taken_from() {
            tracing::warn!("volume {} was taken over from {victim}", self.volume);
        }
        match self.start(runtime, holder, &open).await {
            Ok((parts, volume, stop, committer)) => Ok((
                parts,
                Writer {
                    open,
                    volume,
                    stop,
                    committer,
                },
            )),
            Err(error) => {
                if let Err(left) = open.end().await {
                    tracing::warn!("the session stays in the root: {left}");
                }
                Err(error)
            }
        }
    }

    async fn start(
        &self,
        runtime: &Handle,
        holder: HolderInfo,
        open: &OpenSession,
    ) -> Result<Started, MountingError> {
        let repository = &self.repository;
        let ingest = Arc::new(Ingest::new(repository.depot.clone(), open.id().0));
        let uploads = Arc::new(IngestUploads {
            ingest: ingest.clone(),
            lists: repository.lists.clone(),
        });
        let writer = Some((open.id(), uploads.clone()));
        let history = Arc::new(Snapshots::new(
            repository.clone(),
            self.volume.clone(),
            writer,
        ));
        repository.load_index().await?;
        let entry = repository.volume_entry(&self.volume);
        let (tree, totals, is_new) = match entry.tree {
            Some(tree) => (
                tree,
                Totals {
                    inodes: entry.inodes,
                    bytes: entry.bytes,
                },
                false,
            ),
            None => (format::empty_tree(&ingest).await?, Totals::default(), true),
        };
        let clock = repository.machine.clock.clone();
        let view = View::live(repository.nodes.clone(), tree, totals);
        let (volume, requests) = Volume::new(VolumeParts {
            view: view.clone(),
            ingest,
            clock: clock.clone(),
            limits: limits(self.settings.memory_bytes),
            next_inode: entry.next_inode,
        });
        if is_new {
            format::make_root(&volume, self.owner()).await?;
            volume.commit_soon();
        }
        format::reap_orphans(&volume).await?;
        let committer = RootCommitter::new(
            repository.handle.clone(),
            repository.lists.clone(),
            open.id(),
            &self.volume,
            uploads,
        )?;
        let publisher = Arc::new(Publisher {
            committer,
            holder: holder.clone(),
            history: history.clone(),
            clock,
        });
        let (stop, stopped) = oneshot::channel();
        let generation = repository.handle.current().root.generation;
        let committer = Committer::new(volume.clone(), publisher, requests, generation);
        let committer = tokio::spawn(committer.run(async {
            // A sender that is dropped means the same.
            let _ = stopped.await;
        }));
        watch_standing(&volume, open);
        let history: Arc<dyn History> = history;
        let parts = self.parts(runtime, view, Some(volume.clone()), Some(history), holder);
        Ok((parts, volume, stop, committer))
    }
}

type Started = (
    MountParts,
    Arc<Volume>,
    oneshot::Sender<()>,
    JoinHandle<Result<Committed, VolumeError>>,
);

/// Half of the memory that is not the chunker's (see its budget) is for dirty bytes, and a part for changed items.
fn limits(memory_bytes: u64) -> Limits {
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

/// Keeps a read-only view at the volume's last commit.
async fn follow(repository: Arc<Repository>, volume: String, view: View) {
    loop {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        match repository.volume_tree(&volume).await {
            Ok((tree, totals)) if tree != view.base() => view.replace_base(tree, totals),
            Ok(_) => {}
            Err(error) => tracing::warn!("cannot look for a newer commit: {error}"),
        }
    }
}

impl Mounted {
    /// Where.
    pub fn mount_point(&self) -> &Path {
        self.session.mount_point()
    }

    /// The session with the kernel, for whoever must unmount on a signal.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Waits until the mount is gone, and finishes: everything accepted is in the bucket when this returns well.
    pub fn wait(self, runtime: &Runtime) -> Result<(), MountingError> {
        let ended = self.session.wait();
        runtime.block_on(self.assembled.finish())?;
        Ok(ended?)
    }
}

impl Writer {
    /// The last commit, and the end of the session.
    async fn finish(self) -> Result<(), MountingError> {
        self.volume.freeze(false);
        // The committer ends by itself if it is gone already.
        let _ = self.stop.send(());
        let committed = match self.committer.await {
            Ok(committed) => committed,
            Err(error) => Err(VolumeError::Commit(format!("the committer ended: {error}"))),
        };
        let ended = self.open.end().await;
        committed?;
        Ok(ended?)
    }
}
