//! Assembles a mount, and takes it down.
//!
//! Owns the order in which repository, session, volume, committer and kernel start and stop. Owns
//! none of them.
//!
//! ```text
//!   up:    repository → replay of spools → session (root) → index → volume (→ replay)
//!          → committer, journaler → kernel
//!   down:  kernel → committer (last commit) → session leaves the root
//! ```

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bkfs_fuse::{MountConfig, MountOptions, Session};
use tokio::runtime::{Handle, Runtime};

use crate::mounting::control::MountControl;
use crate::mounting::ending::{Deadline, KEEPING, LEAVING, keep_ahead};
use crate::mounting::error::MountingError;
use crate::mounting::following::Following;
use crate::mounting::history::Snapshots;
use crate::mounting::hydrating::Hydrating;
use crate::mounting::jobs::Jobs;
use crate::mounting::placing::Shown;
use crate::mounting::scrubbing::Scrubbing;
use crate::mounting::settings::Settings;
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::supervisor::MountSupervisor;
use crate::mounting::traces::Traces;
use crate::mounting::writing::{CloneOf, Writing};
use crate::repository::Repository;
use crate::root::state::HolderInfo;
use crate::root::volumes::is_scratch;
use crate::trace::touches::Touches;
use crate::vfs::convert::Lifetimes;
use crate::vfs::live::{Current, Live};
use crate::vfs::observed::Observed;
use crate::vfs::special::Owner;
use crate::vfs::{BkfsVfs, CloseMode, MountParts};
use crate::volume::error::VolumeError;
use crate::volume::view::View;
use crate::volume::{Promise, Volume};

mod advice;
pub mod alone;
mod base;
pub mod control;
mod departing;
pub mod ending;
mod entering;
pub mod error;
mod following;
pub(crate) mod format;
pub mod history;
mod hydrating;
mod jobs;
pub mod outcome;
mod placing;
mod recording;
pub mod recovered;
pub mod recovery;
mod scrubbing;
pub mod settings;
mod spool_id;
pub mod spool_place;
pub mod spooling;
mod supervisor;
mod survey;
pub mod takeover;
pub mod trace_store;
mod traces;
mod waiting;
mod writer;
pub mod writing;

/// Mount point in the root of a session that only ends another one.
pub const SESSION_END: &str = "(bkfs session end)";

/// Plan of a mount.
pub struct MountPlan {
    /// The repository.
    pub repository: Arc<Repository>,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Options for the kernel.
    pub options: MountOptions,
    /// bkfs's own options.
    pub settings: Settings,
    /// The volume's name.
    pub volume: String,
    /// Take the volume over from its holder.
    pub steal: bool,
    /// Directory of spools, and of swap files; `None` for memory only.
    pub spool: Option<SpoolPlace>,
    /// The snapshot of which the volume is made; none for a volume that is there.
    pub clone_of: Option<CloneOf>,
    /// Where reads and errors are counted.
    pub observed: Arc<Observed>,
}

/// A running mount.
pub struct Mounted {
    session: Arc<Session>,
    assembled: Assembled,
    ending: Ending,
}

/// Ends a mount. Clones end the same mount.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    drain: Duration,
    deadline: Deadline,
}

impl Ending {
    /// From now on the mount waits for the store no longer than `drain=`. Then it ends, even while
    /// processes use it.
    pub fn told(&self) {
        self.deadline.draw_to(self.drain);
    }

    /// Ends the mount now: data that is not in the bucket goes to the spool.
    pub fn at_once(&self) {
        self.deadline.end();
    }

    /// Whether [`Ending::at_once`] was called.
    pub fn is_at_once(&self) -> bool {
        self.deadline.is_over()
    }
}

/// A filesystem that is ready for requests, mounted or not.
pub struct Assembled {
    /// Serves requests.
    pub vfs: BkfsVfs,
    supervisor: Option<Arc<MountSupervisor>>,
    /// Follows new commits, in a read-only mount of a volume. Ends with the mount.
    following: Option<Following>,
    scrubbing: Option<Arc<Scrubbing>>,
    control: Arc<Jobs>,
}

impl Assembled {
    /// Returns the volume, if the mount is writable.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.supervisor.as_ref()?.current().volume()
    }

    /// Fate of spools whose sessions another machine had ended.
    pub fn spool_news(&self) -> spooling::SpoolNews {
        self.supervisor
            .as_ref()
            .map(|supervisor| supervisor.news())
            .unwrap_or_default()
    }

    /// Makes the last commit and ends the session. After success, all accepted data is in the
    /// bucket.
    ///
    /// # Errors
    /// As [`Self::finish_by`].
    pub async fn finish(self) -> Result<(), MountingError> {
        self.finish_within(None).await
    }

    /// Same, but data that the store does not accept within `limit` stays in the spool, if there is
    /// one, for the next mount on this machine. That is an error.
    ///
    /// # Errors
    /// As [`Self::finish_by`].
    pub async fn finish_within(self, limit: Option<Duration>) -> Result<(), MountingError> {
        self.finish_by(&Deadline::after(limit)).await
    }

    /// Same, with a deadline that can be moved earlier. Returns at most a few seconds after the
    /// deadline, whatever store and disk do.
    ///
    /// # Errors
    /// [`MountingError::Volume`] or [`MountingError::Root`] if accepted data is not in the bucket.
    pub async fn finish_by(self, deadline: &Deadline) -> Result<(), MountingError> {
        if let Some(scrubbing) = &self.scrubbing {
            scrubbing.stop();
        }
        // The last commit has the store for itself, apart from a trace that is asked for.
        self.control.stop_prefetches();
        let Some(supervisor) = self.supervisor else {
            return Ok(());
        };
        let recording = self.control.recording();
        let finished = async {
            let finished = supervisor.finish(deadline);
            let (finished, ()) = tokio::join!(finished, recording.end(deadline));
            recording.leave(deadline).await;
            finished
        };
        tokio::select! {
            biased;
            finished = finished => finished,
            () = deadline.passed_by(KEEPING + 2 * LEAVING) => Err(VolumeError::Commit(
                "the mount did not end in time: what is not in the bucket may be lost".into(),
            )
            .into()),
        }
    }

    /// From the deadline's start on, moves data that the store does not accept to the spool. Never
    /// returns.
    async fn keep_ahead(&self, deadline: &Deadline) -> Infallible {
        deadline.is_set().await;
        match self.volume() {
            Some(volume) => keep_ahead(&volume).await,
            None => std::future::pending().await,
        }
    }
}

impl MountPlan {
    /// Returns the plan of `bkfs session end`: bring the spools of dead sessions into the bucket,
    /// take the volume, and replay the operations that its session had acknowledged. A place of 0
    /// bytes keeps no new data.
    pub fn to_end(
        repository: Arc<Repository>,
        volume: String,
        steal: bool,
        spool: Option<SpoolPlace>,
    ) -> MountPlan {
        MountPlan {
            repository,
            mount_point: PathBuf::from(SESSION_END),
            options: MountOptions::default(),
            settings: Settings::default(),
            volume,
            steal,
            spool,
            clone_of: None,
            observed: Arc::default(),
        }
    }

    /// What the volume promises: less only for a clone that is to be thrown away, or that the user
    /// says it of.
    fn promise(&self) -> Promise {
        match (is_scratch(&self.volume), self.settings.scratch) {
            (true, _) => Promise::ThrownAway,
            (false, true) => Promise::Scratch,
            (false, false) => Promise::Durable,
        }
    }

    /// Whether the mount takes no changes.
    pub fn is_read_only(&self) -> bool {
        self.options.flags.read_only || self.settings.snapshot.is_some()
    }

    /// Assembles everything but the kernel. Runs within `runtime`. Dropped after the session
    /// entered the root, it leaves the session there, which begins no further commit.
    ///
    /// # Errors
    /// [`MountingError::Root`], [`MountingError::Volume`], [`MountingError::Spool`] from the start
    /// of a writer; [`MountingError::Root`] from that of a reader.
    pub async fn assemble(&self, runtime: &Handle) -> Result<Assembled, MountingError> {
        let (current, supervisor, snapshot) = if self.is_read_only() {
            let (reader, snapshot) = self.reader().await?;
            self.repository.bear_refusals();
            (Current::new(reader), None, snapshot)
        } else {
            let supervisor =
                MountSupervisor::begin(self.writing(), self.steal, self.settings.accept_loss)
                    .await?;
            (supervisor.current().clone(), Some(supervisor), None)
        };
        let scrubbing = self.scrubbing(runtime).map(Arc::new);
        let is_followed = supervisor.is_none() && self.settings.snapshot.is_none();
        let following = is_followed.then(|| {
            let (repository, volume) = (self.repository.clone(), self.volume.clone());
            Following::begin(repository, volume, current.clone())
        });
        let shown = Shown {
            volume: self.volume.clone(),
            snapshot,
            current,
        };
        let touches = self.clone_of.is_some().then(Arc::<Touches>::default);
        let current = shown.current.clone();
        let (supervised, scrubbed) = (supervisor.clone(), scrubbing.clone());
        let control = self.control(shown, supervised, scrubbed, touches.clone());
        let parts = self.parts(runtime, current, control.clone(), touches);
        Ok(Assembled {
            vfs: BkfsVfs::new(parts),
            supervisor,
            following,
            scrubbing,
            control,
        })
    }

    /// Starts scrubbing. A failure to start it does not fail the mount.
    fn scrubbing(&self, runtime: &Handle) -> Option<Scrubbing> {
        let settings = &self.settings;
        let begun = Scrubbing::begin(
            &self.repository,
            settings.scrub?,
            settings.state_dir.as_deref(),
            self.is_read_only(),
            runtime,
        );
        begun
            .inspect_err(|error| tracing::error!("nothing is scrubbed: {error}"))
            .ok()
    }

    /// Mounts. When this returns, the mount serves requests.
    ///
    /// # Errors
    /// Those of [`Self::assemble`]; [`MountingError::Kernel`] if the kernel refuses.
    pub fn mount(self, runtime: &Runtime) -> Result<Mounted, MountingError> {
        let assembled = runtime.block_on(self.assemble(runtime.handle()))?;
        let mut config = MountConfig::new(self.repository.url.clone());
        config.options = self.options.clone();
        config.options.flags.read_only = self.is_read_only();
        match bkfs_fuse::mount(Arc::new(assembled.vfs.clone()), &self.mount_point, &config) {
            Ok(session) => {
                if let Some(supervisor) = &assembled.supervisor {
                    supervisor.current().tell_kernel_by(session.notifier());
                }
                if let Some(following) = &assembled.following {
                    following.tell_kernel_by(session.notifier());
                }
                Ok(Mounted {
                    session: Arc::new(session),
                    assembled,
                    ending: Ending {
                        drain: self.settings.drain,
                        deadline: Deadline::default(),
                    },
                })
            }
            Err(error) => {
                // No data was written, so the volume is given up.
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
            since: self.repository.environment.clock.now(),
        }
    }

    /// Returns what answers requests to the control files.
    fn control(
        &self,
        shown: Shown,
        supervisor: Option<Arc<MountSupervisor>>,
        scrubbing: Option<Arc<Scrubbing>>,
        touches: Option<Arc<Touches>>,
    ) -> Arc<Jobs> {
        let current = shown.current.clone();
        let traces = self.traces(&current, touches);
        Arc::new(Jobs::new(MountControl {
            repository: self.repository.clone(),
            volume_name: self.volume.clone(),
            current,
            supervisor,
            shown,
            hydrating: Hydrating::new(self.repository.content_store.clone()),
            traces,
            scrubbing,
            holder: self.holder(),
            since: control::time_text(self.repository.environment.clock.now()),
            outcome: self.settings.outcome.clone(),
            drains: Arc::default(),
        }))
    }

    fn parts(
        &self,
        runtime: &Handle,
        current: Arc<Current>,
        control: Arc<Jobs>,
        touches: Option<Arc<Touches>>,
    ) -> MountParts {
        let lifetimes = match (self.is_read_only(), &self.settings.snapshot) {
            (false, _) => Lifetimes::OWNED,
            (true, Some(_)) => Lifetimes::FROZEN,
            (true, None) => Lifetimes::FOLLOWING,
        };
        MountParts {
            runtime: runtime.clone(),
            current,
            lifetimes,
            control,
            owner: self.owner(),
            close: match self.promise().is_scratch() {
                true => CloseMode::Async,
                false => self.settings.close,
            },
            dedup: self.settings.dedup,
            observed: self.observed.clone(),
            touches,
        }
    }

    /// Returns the traces of the mount, and begins the replay that its options choose.
    fn traces(&self, current: &Arc<Current>, touches: Option<Arc<Touches>>) -> Traces {
        let source = self.clone_of.as_ref().map(|source| &source.volume);
        let volume = source.unwrap_or(&self.volume).clone();
        let traces = Traces::new(self.repository.clone(), volume, current.clone(), touches);
        traces.begin_at_mount(self.settings.trace.as_deref());
        traces
    }

    fn writing(&self) -> Writing {
        Writing {
            repository: self.repository.clone(),
            volume: self.volume.clone(),
            memory_bytes: self.settings.memory_bytes,
            // What may be lost need not be kept.
            spool: self.spool.clone().filter(|_| !self.promise().is_scratch()),
            // What stays after the unmount must not wait for it on this disk.
            swap: (self.spool.clone()).filter(|_| self.promise() == Promise::ThrownAway),
            is_local: self.settings.fsync_local,
            promise: self.promise(),
            clone_of: self.clone_of.clone(),
            session: None,
            owner: self.owner(),
            holder: self.holder(),
        }
    }

    fn holder(&self) -> HolderInfo {
        let mount_point =
            std::path::absolute(&self.mount_point).unwrap_or_else(|_| self.mount_point.clone());
        self.repository
            .environment
            .holder(&mount_point.to_string_lossy())
    }

    /// Returns a read-only view: one snapshot with its name, or the volume as of its last commit.
    async fn reader(&self) -> Result<(Live, Option<String>), MountingError> {
        let repository = &self.repository;
        if let Some(name) = &self.settings.snapshot {
            let (entry, view) = repository.snapshot(&self.volume, name).await?;
            let live = Live {
                view,
                volume: None,
                history: None,
            };
            return Ok((live, Some(entry.name)));
        }
        let (tree, totals) = repository.volume_tree(&self.volume).await?;
        let view = View::frozen(repository.nodes.clone(), tree, totals);
        let history = Snapshots::new(repository.clone(), self.volume.clone(), None);
        let live = Live {
            view,
            volume: None,
            history: Some(Arc::new(history)),
        };
        Ok((live, None))
    }
}

impl Mounted {
    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        self.session.mount_point()
    }

    /// The session with the kernel, for an unmount on a signal.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the handle that ends the mount.
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// Waits for the unmount, and finishes: after success all accepted data is in the bucket. A
    /// mount that is still in use at its deadline answers EIO from then on.
    ///
    /// # Errors
    /// As [`Assembled::finish_by`]; [`MountingError::Broken`] if the connection to the kernel
    /// broke.
    pub fn wait(self, runtime: &Runtime) -> Result<(), MountingError> {
        let (gone, mut is_gone) = tokio::sync::oneshot::channel();
        let Mounted {
            session,
            assembled,
            ending,
        } = self;
        let waiting = session.clone();
        // It may wait for ever, and then ends with the process.
        std::thread::spawn(move || gone.send(waiting.wait()));
        runtime.block_on(async {
            let deadline = &ending.deadline;
            let ended = tokio::select! {
                biased;
                ended = &mut is_gone => Some(ended),
                () = deadline.passed_by(Duration::ZERO) => None,
                never = assembled.keep_ahead(deadline) => match never {},
            };
            match ended {
                Some(ended) => {
                    assembled.finish_by(deadline).await?;
                    // The thread tells before it ends.
                    Ok(ended.unwrap_or(Ok(()))?)
                }
                None => {
                    tracing::warn!("the mount is still in use, and ends all the same");
                    assembled.vfs.close();
                    // The end of the process leaves a dead mount otherwise.
                    let gone = tokio::task::spawn_blocking(move || session.unmount(true));
                    let grace = deadline.grace();
                    let finished = assembled.finish_by(&grace).await;
                    tokio::select! {
                        _ = gone => {}
                        () = grace.passed_by(Duration::ZERO) => {}
                    }
                    finished
                }
            }
        })
    }
}
