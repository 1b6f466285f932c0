//! Supervises a writable mount, and recovers it after a loss of data.
//!
//! Owns the list of lost files, and the continuation from the last commit after an operator has
//! acknowledged the loss. Does not own the failures of a volume (`volume`), nor the start of a
//! writer (`writer`).
//!
//! A failed volume stays readable and refuses every change until `bkfs status --acknowledge`. Then
//! a new session succeeds the failed one and replays the operations that it acknowledged, and a new
//! volume replaces the old one.

use std::sync::Arc;

use bkfs_fuse::Ino;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::mounting::ending::{Deadline, LEAVING};
use crate::mounting::error::MountingError;
use crate::mounting::spooling::{self, SpoolNews};
use crate::mounting::writer::Writer;
use crate::mounting::writing::Writing;
use crate::vfs::live::Current;
use crate::volume::Volume;
use crate::volume::unsaved::{Changed, Unsaved};

/// Lost files that are listed by name; the others are counted.
const LOST_FILES_MAX: usize = 10_000;

/// `accept_loss` covers the losses at the first takeover, and no later ones.
const ACCEPTS_LOSS: bool = false;

/// Lost files that are logged by name.
const LOST_FILES_LOGGED: usize = 100;

/// Losses of a mount.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// Number of losses since the mount.
    pub count: u64,
    /// Lost files that are not acknowledged yet, sorted by path.
    pub files: Vec<Unsaved>,
    /// Lost files beyond that list.
    pub beyond: usize,
}

/// Supervisor of a writable mount.
pub(super) struct MountSupervisor {
    writing: Writing,
    current: Arc<Current>,
    writer: tokio::sync::Mutex<Option<Writer>>,
    losses: Arc<Mutex<Losses>>,
    /// Lists the lost files after the volume has failed.
    listing: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    news: Mutex<SpoolNews>,
}

impl MountSupervisor {
    /// Enters the root and starts to write.
    ///
    /// # Errors
    /// Those of [`Writing::enter`] and [`Writing::start`].
    pub(super) async fn begin(
        writing: Writing,
        steal: bool,
        accepts_loss: bool,
    ) -> Result<Arc<Self>, MountingError> {
        let (open, news) = writing.enter(steal, accepts_loss).await?;
        let (live, writer) = writing.start(open, None, accepts_loss).await?;
        let losses = Arc::new(Mutex::new(Losses::default()));
        let volume = live.volume.as_ref();
        let listing = volume.map(|volume| watch_losses(volume, &losses));
        Ok(Arc::new(MountSupervisor {
            writing,
            current: Current::new(live),
            writer: tokio::sync::Mutex::new(Some(writer)),
            losses,
            listing: tokio::sync::Mutex::new(listing),
            news: Mutex::new(news),
        }))
    }

    /// The present view of the mount.
    pub(super) fn current(&self) -> &Arc<Current> {
        &self.current
    }

    /// Returns the losses.
    pub(super) fn losses(&self) -> Losses {
        self.losses.lock().clone()
    }

    /// Spools of earlier mounts that could not simply be replayed.
    pub(super) fn news(&self) -> SpoolNews {
        self.news.lock().clone()
    }

    fn add_news(&self, more: SpoolNews) {
        let mut news = self.news.lock();
        news.recovered.extend(more.recovered);
        news.stranded.extend(more.stranded);
    }

    /// Drops the lost files and continues from the last commit. Returns the losses, empty if the
    /// volume has not failed, and the fate of spools. Acknowledged fsyncs are not among the losses:
    /// if their data is missing from the bucket or damaged in the spool, only a new mount can
    /// accept that.
    ///
    /// # Errors
    /// The volume belongs to another session by now, the store or the disk of the spool does not
    /// answer, or acknowledged data is missing. What the mount shows is then unchanged, and the call
    /// can be repeated.
    pub(super) async fn acknowledge(&self) -> Result<(Losses, SpoolNews), MountingError> {
        let mut slot = self.writer.lock().await;
        let (Some(failed), Some(writer)) = (self.current.volume(), slot.as_mut()) else {
            return Ok(Default::default());
        };
        if failed.failure().is_none() {
            return Ok(Default::default());
        }
        // Without this wait the answer could be empty while the list is still being made.
        let mut listing = self.listing.lock().await;
        if let Some(made) = listing.as_mut() {
            // It is never aborted, so it ends well.
            let _ = made.await;
            *listing = None;
        }
        // Data that fsync=local acknowledged is not lost: it goes to the bucket, where the
        // successor finds it.
        writer.abandon_spool().await?;
        let mut news = SpoolNews::default();
        let (brought, known) = self.writing.bring_spools(ACCEPTS_LOSS, &mut news).await?;
        let open = writer.succeed(&self.writing, known, ACCEPTS_LOSS).await?;
        spooling::discard(brought, &open, &self.writing, ACCEPTS_LOSS, &mut news).await;
        self.add_news(news.clone());
        // The kernel still has the inode numbers of lost files.
        let (live, writer) = self
            .writing
            .start(open, Some(&failed), ACCEPTS_LOSS)
            .await?;
        let changed = failed.view.changed();
        let broken = failed.lost_to(&live.view, &changed).await;
        if let Some(volume) = &live.volume {
            // The kernel continues to use open files and lookups.
            volume.usage().adopt_users(failed.usage());
            *listing = Some(watch_losses(volume, &self.losses));
        }
        let turn = self.current.replace(live, broken);
        let lost = {
            let mut losses = self.losses.lock();
            let count = losses.count;
            std::mem::replace(
                &mut *losses,
                Losses {
                    count,
                    ..Losses::default()
                },
            )
        };
        if let Some(old) = slot.replace(writer) {
            old.retire();
        }
        drop(slot);
        self.make_kernel_forget(changed).await;
        self.current.settle(turn);
        tracing::warn!(
            "{} lost files were acknowledged; the volume goes on from its last commit",
            lost.files.len() + lost.beyond
        );
        Ok((lost, news))
    }

    async fn make_kernel_forget(&self, changed: Changed) {
        let Some(kernel) = self.current.kernel().cloned() else {
            return;
        };
        let forget = move || {
            for (directory, name) in changed.names.keys() {
                kernel.invalidate_name(Ino(*directory), name);
            }
            for inode in changed.inodes.keys() {
                kernel.invalidate_inode(Ino(*inode), 0, 0);
            }
        };
        // The kernel's locks may make it wait for other requests.
        if let Err(error) = tokio::task::spawn_blocking(forget).await {
            tracing::warn!("the kernel may still show lost files: {error}");
        }
    }

    /// Makes the last commit and ends the session: see [`Writer::finish`].
    ///
    /// # Errors
    /// Those of [`Writer::finish`].
    pub(super) async fn finish(&self, deadline: &Deadline) -> Result<(), MountingError> {
        let Some(writer) = self.writer.lock().await.take() else {
            return Ok(());
        };
        let finished = writer.finish(deadline).await;
        // A recovery base that is not claimed in time delays one mount, no more.
        let claimed = tokio::time::timeout(LEAVING, self.writing.claim_empty()).await;
        if let Ok(Err(error)) = claimed {
            tracing::debug!("an empty spool is left to the next mount: {error}");
        }
        finished
    }
}

/// Lists the lost files once the volume fails.
fn watch_losses(volume: &Arc<Volume>, losses: &Arc<Mutex<Losses>>) -> JoinHandle<()> {
    let mut health = volume.health();
    let volume = Arc::downgrade(volume);
    let losses = losses.clone();
    tokio::spawn(async move {
        let failed = health.wait_for(Option::is_some).await.is_ok();
        let (Some(volume), true) = (volume.upgrade(), failed) else {
            return;
        };
        losses.lock().count += 1;
        let (files, beyond) = volume.unsaved(LOST_FILES_MAX).await;
        for file in files.iter().take(LOST_FILES_LOGGED) {
            tracing::error!(
                inode = file.inode,
                bytes = file.bytes,
                "not in the bucket, and lost with this mount: {}",
                file.path
            );
        }
        if beyond > 0 || files.len() > LOST_FILES_LOGGED {
            tracing::error!("… {} files in all", files.len() + beyond);
        }
        let mut losses = losses.lock();
        losses.files = files;
        losses.beyond = beyond;
    })
}
