//! The filesystem that the kernel sees: one volume, its snapshots, and the mount's own files.
//!
//! Owns: inode numbers, handles and lifetimes as the kernel has them, and which tree a request goes to. Does not own: what operations do (`volume`), how requests
//! arrive (the fuse crate).
//!
//! Every request becomes a future. It is polled once where it arrives, which is enough when everything it needs is in memory; if it must wait it moves to
//! the runtime, and the kernel's thread is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bkfs_fuse::{Errno, Reply};
use tokio::runtime::Handle as Runtime;

use crate::tree::item::Attributes;
use crate::vfs::ancestry::Ancestry;
use crate::vfs::convert::Lifetimes;
use crate::vfs::handles::Handles;
use crate::vfs::live::Current;
use crate::vfs::modes::Modes;
use crate::vfs::numbers::Number;
use crate::vfs::shelves::Shelves;
use crate::vfs::special::{Control, History, Owner};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::view::View;

mod ancestry;
mod change;
pub mod convert;
mod directory;
pub mod errno;
mod file;
mod handles;
pub mod live;
mod look;
mod modes;
pub mod numbers;
pub mod readahead;
mod requests;
mod shelves;
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
    /// Nothing is answered any more but EIO.
    is_closed: AtomicBool,
}

/// What close(2) waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// For the data of files with more than 1 MiB unsent.
    Bounded,
    /// For everything the file holds.
    Durable,
    /// For nothing.
    Async,
}

/// What the writes of users other than the mount's owner and root are matched with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupMode {
    /// With everything that is stored.
    Shared,
    /// With nothing: they are stored anew.
    Private,
}

/// What a mount is made of.
pub struct MountParts {
    /// Where requests that wait go on.
    pub runtime: Runtime,
    /// What the root of the mount shows.
    pub current: Arc<Current>,
    /// How long the kernel may keep what it learns of the tree.
    pub lifetimes: Lifetimes,
    /// Status and requests.
    pub control: Arc<dyn Control>,
    /// Who mounted.
    pub owner: Owner,
    /// What close(2) waits for.
    pub close: CloseMode,
    /// What the writes of other users are matched with.
    pub dedup: DedupMode,
}

/// The [`Mount`] behind the kernel door.
#[derive(Clone)]
pub struct BkfsVfs(Arc<Mount>);

impl BkfsVfs {
    /// A filesystem to be mounted.
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
            is_closed: AtomicBool::new(false),
        }))
    }

    /// What the mount says of itself, without a kernel.
    pub fn control(&self) -> &dyn Control {
        &*self.0.control
    }

    /// From now on every request is answered with EIO, also those that are under way: what is
    /// looked at after this holds all that was ever acknowledged.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
    }

    /// Answers `reply` with what `work` comes to.
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
                false => reply.send(result.map_err(|error| report(&error))),
            }
        });
    }

    /// Polls once here, and goes on in the runtime if that is not enough.
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

/// The errno of an error; what is no everyday answer is logged with its cause.
fn report(error: &VolumeError) -> Errno {
    let errno = errno::errno(error);
    if matches!(errno, Errno::EIO | Errno::ENOSPC) {
        tracing::error!("{errno:?}: {error}");
    }
    errno
}

impl Mount {
    /// What a number's tree is read through.
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

    /// Whether the mount shows a volume that another machine may change: then an open file or
    /// directory goes on showing the state that it was opened with.
    fn follows(&self) -> bool {
        self.volume().is_none() && self.current.history().is_some()
    }

    /// The volume, for a change of the inode with this number.
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

    /// The same for attributes that are shown now. Where dirty bytes may lie over stored ones,
    /// `st_blocks` is counted anew once they are stored. Set-id bits go with a write, of which the
    /// kernel is told nothing else: it asks again before it lets the file be run.
    fn lifetimes_shown(&self, number: Number, attributes: &Attributes) -> Lifetimes {
        let mut lifetimes = self.lifetimes_of(number);
        if let (Some(volume), 0) = (self.volume(), number.snapshot)
            && attributes.allocated_bytes > 0
            && volume.dirty_bytes(number.inode) > 0
        {
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

    fn history(&self) -> Result<Arc<dyn History>, VolumeError> {
        self.current.history().ok_or(VolumeError::NotFound)
    }
}
