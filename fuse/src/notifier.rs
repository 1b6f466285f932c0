//! Notices to the kernel about changes that did not come through it.
//!
//! Owns: invalidation of what the kernel caches.
//! Does not own: when an invalidation is due.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::debug;

use crate::types::Ino;

/// Sends notices to the kernel of one mount. Cheap to clone.
///
/// A notice takes kernel locks that the requests on the same directory or file hold. Do not send it
/// from inside a [`Vfs`](crate::Vfs) method, or while a request on the same directory or file waits
/// for the sender.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Mutex<Option<fuser::Notifier>>>);

impl Notifier {
    pub(crate) fn new(notifier: fuser::Notifier) -> Self {
        Self(Arc::new(Mutex::new(Some(notifier))))
    }

    /// Drops the connection, which lasts as long as any holder of it.
    pub(crate) fn close(&self) {
        self.0.lock().take();
    }

    /// Drops the kernel's cache of an inode: its attributes, and the pages of `length` bytes from
    /// `offset`. A `length` of 0 means all pages from `offset` on.
    pub fn invalidate_inode(&self, ino: Ino, offset: u64, length: u64) {
        let clamp = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.send(|kernel| kernel.inval_inode(fuser::INodeNo(ino.0), clamp(offset), clamp(length)));
    }

    /// Drops the kernel's cache of a name: the inode that it leads to, or its absence.
    pub fn invalidate_name(&self, parent: Ino, name: &[u8]) {
        self.send(|kernel| kernel.inval_entry(fuser::INodeNo(parent.0), OsStr::from_bytes(name)));
    }

    /// Sends a notice and only logs an error: the kernel may not know the inode or name, or the
    /// mount may be gone.
    fn send(&self, notice: impl FnOnce(&fuser::Notifier) -> std::io::Result<()>) {
        let kernel = self.0.lock().clone();
        if let Some(kernel) = kernel
            && let Err(error) = notice(&kernel)
        {
            debug!(%error, "the kernel did not take a notice");
        }
    }
}
