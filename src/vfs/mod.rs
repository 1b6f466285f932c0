//! The filesystem that the kernel sees: one volume, its snapshots, and the mount's own files.
//!
//! Owns: inode numbers, handles and lifetimes as the kernel has them, and the tree that a request
//! goes to. Does not own: the operations (`volume`), how requests arrive (the fuse crate).
//!
//! Every request becomes a future. It is polled once on the thread on which it arrives, which is
//! enough if all that it needs is in memory. If it must wait, it moves to the runtime, and the
//! kernel's thread is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bkfs_fuse::{Errno, Reply};
use tokio::runtime::Handle as Runtime;

use crate::trace::touches::Touches;
use crate::tree::item::Attributes;
use crate::vfs::ancestry::Ancestry;
use crate::vfs::cache_modes::Modes;
use crate::vfs::convert::Lifetimes;
use crate::vfs::handles::Handles;
use crate::vfs::hidden::Hidden;
use crate::vfs::live::Current;
use crate::vfs::numbers::Number;
use crate::vfs::observed::Observed;
use crate::vfs::recent_snapshots::Shelves;
use crate::vfs::special::{Control, History, Owner};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::view::View;

mod ancestry;
mod cache_modes;
pub mod convert;
mod directory;
pub mod errno;
mod file;
mod handles;
mod hidden;
pub mod live;
mod lookup;
mod mutations;
pub mod numbers;
pub mod observed;
pub mod readahead;
mod recent_snapshots;
mod requests;
pub mod special;

/// A mounted volume or snapshot.
pub struct Mount {
    runtime: Runtime,
    current: Arc<Current>,
    lifetimes: Lifetimes,
    control: Arc<dyn Control>,
    owner: Owner,
    close: CloseMode,
    dedup: DedupMode,
    shelves: Shelves,
    ancestry: Ancestry,
    handles: Handles,
    modes: Modes,
    hidden: Hidden,
    observed: Arc<Observed>,
    touches: Option<Arc<Touches>>,
    /// True if every request is answered with EIO.
    is_closed: AtomicBool,
}

/// The data for which close(2) waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// The data of files with more than 1 MiB unsent.
    Bounded,
    /// All data of the file.
    Durable,
    /// No data.
    Async,
}

/// The data with which writes of users other than the mount's owner and root are deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupMode {
    /// All stored data.
    Shared,
    /// No data: each write is stored anew.
    Private,
}

/// The parts of a mount.
pub struct MountParts {
    /// The runtime on which requests that wait continue.
    pub runtime: Runtime,
    /// The tree that the root of the mount shows.
    pub current: Arc<Current>,
    /// How long the kernel may keep answers about the tree.
    pub lifetimes: Lifetimes,
    /// Status, metrics and requests of `.bkfs`.
    pub control: Arc<dyn Control>,
    /// The user who mounted.
    pub owner: Owner,
    /// The data for which close(2) waits.
    pub close: CloseMode,
    /// The data with which writes of other users are deduplicated.
    pub dedup: DedupMode,
    /// Where reads and errors are counted.
    pub observed: Arc<Observed>,
    /// Where the order of first reads is recorded, if it is.
    pub touches: Option<Arc<Touches>>,
}

/// The [`Mount`] as the fuse crate calls it.
#[derive(Clone)]
pub struct BkfsVfs(Arc<Mount>);

impl BkfsVfs {
    /// Returns a filesystem to be mounted.
    pub fn new(parts: MountParts) -> Self {
        BkfsVfs(Arc::new(Mount {
            runtime: parts.runtime,
            current: parts.current,
            lifetimes: parts.lifetimes,
            control: parts.control,
            owner: parts.owner,
            close: parts.close,
            dedup: parts.dedup,
            shelves: Shelves::default(),
            ancestry: Ancestry::default(),
            handles: Handles::default(),
            modes: Modes::default(),
            hidden: Hidden::default(),
            observed: parts.observed,
            touches: parts.touches,
            is_closed: AtomicBool::new(false),
        }))
    }

    /// Returns the status and control of the mount, for use without a kernel.
    pub fn control(&self) -> &dyn Control {
        &*self.0.control
    }

    /// Answers every request with EIO from now on, including requests in progress. A reader of the
    /// volume after this call sees all changes that were ever acknowledged.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }

    /// Answers `reply` with the result of `work`.
    fn answer<T, F>(&self, reply: Reply<T>, work: impl FnOnce(Arc<Mount>) -> F)
    where
        T: Send + 'static,
        F: Future<Output = Result<T, VolumeError>> + Send + 'static,
    {
        let future = work(self.0.clone());
        let mount = self.0.clone();
        self.run(async move {
            let result = future.await;
            match mount.is_closed.load(Ordering::SeqCst) {
                true => reply.err(Errno::EIO),
                false => reply.send(result.map_err(|error| mount.report(&error))),
            }
        });
    }

    /// Polls a future once here, and moves it to the runtime if it is not ready.
    fn run(&self, future: impl Future<Output = ()> + Send + 'static) {
        let mut future = Box::pin(future);
        let _inside = self.0.runtime.enter();
        let pending = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending();
        if pending {
            self.0.runtime.spawn(future);
        }
    }
}

impl Mount {
    /// Returns the errno of an error. EIO and ENOSPC are logged with their cause.
    fn report(&self, error: &VolumeError) -> Errno {
        let errno = errno::errno(error);
        if matches!(errno, Errno::EIO | Errno::ENOSPC) {
            tracing::error!("{errno:?}: {error}");
        }
        if errno == Errno::EIO {
            self.observed.note_error();
        }
        errno
    }

    /// Returns the view of a number's tree.
    async fn view_of(&self, number: Number) -> Result<View, VolumeError> {
        if number.snapshot == 0 {
            return Ok(self.current.view());
        }
        if let Some(view) = self.shelves.view(number.snapshot) {
            return Ok(view);
        }
        let shelf = self.history()?.numbered(number.snapshot).await?;
        let view = shelf.view.clone();
        self.shelves.keep(shelf);
        Ok(view)
    }

    /// Returns true if the mount shows a volume that another machine may change. An open file or
    /// directory then keeps showing the state with which it was opened.
    fn follows(&self) -> bool {
        self.current.follows()
    }

    /// Returns the volume, for a change of the inode with this number.
    fn volume_for(&self, number: Number) -> Result<Arc<Volume>, VolumeError> {
        if number.snapshot != 0 || number.is_special() {
            return Err(VolumeError::ReadOnly);
        }
        self.volume().ok_or(VolumeError::ReadOnly)
    }

    fn lifetimes_of(&self, number: Number) -> Lifetimes {
        if number.snapshot == 0 {
            self.lifetimes
        } else {
            Lifetimes::FROZEN
        }
    }

    /// Returns the lifetimes for attributes that are shown now. While dirty bytes may overlay
    /// stored ones, `st_blocks` changes when they are stored, so attributes live for 1 s at most. So
    /// do those of a file without a block: it may be one hole, or was stored and committed since its
    /// attributes were read. A write clears set-id bits without a notice to the kernel. Attributes
    /// with set-id bits therefore live for 0 s, and the kernel asks again before it executes the
    /// file.
    fn lifetimes_shown(&self, number: Number, attributes: &Attributes, dirty: u64) -> Lifetimes {
        let mut lifetimes = self.lifetimes_of(number);
        let is_overlaid = attributes.allocated_bytes > 0 && dirty > 0;
        let is_empty = attributes.allocated_bytes == 0 && dirty == 0 && attributes.size_bytes > 0;
        if is_overlaid || number.snapshot == 0 && is_empty && mode::is_regular(attributes.mode) {
            lifetimes.attributes = lifetimes.attributes.min(Lifetimes::FOLLOWING.attributes);
        }
        let is_privileged = mode::is_regular(attributes.mode)
            && mode::without_privileges(attributes.mode) != attributes.mode;
        if number.snapshot == 0 && is_privileged {
            lifetimes.attributes = Duration::ZERO;
        }
        lifetimes
    }

    fn volume(&self) -> Option<Arc<Volume>> {
        self.current.volume()
    }

    /// Returns the volume that an inode belongs to; none for inodes of snapshots, and if the mount
    /// is read-only.
    fn volume_of(&self, number: Number) -> Option<Arc<Volume>> {
        match number.snapshot {
            0 => self.volume(),
            _ => None,
        }
    }

    fn history(&self) -> Result<Arc<dyn History>, VolumeError> {
        self.current.history().ok_or(VolumeError::NotFound)
    }
}
