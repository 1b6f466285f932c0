//! Telling the kernel that something changed without it.
//!
//! Owns: invalidation of what the kernel caches.
//! Does not own: knowing when that is due.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::debug;

use crate::types::Ino;

/// Sends notices to the kernel of one mount. Cheap to clone.
///
/// A notice takes locks in the kernel that the requests on the same directory or file hold:
/// it must not be sent from inside a [`Vfs`](crate::Vfs) method, nor while a request on the same
/// directory or file waits for the sender.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Mutex<Option<fuser::Notifier>>>);

impl Notifier {
    pub(crate) fn new(notifier: fuser::Notifier) -> Self {
        Self(Arc::new(Mutex::new(Some(notifier))))
    }

    /// Lets go of the connection, which lasts as long as anybody holds it.
    pub(crate) fn close(&self) {
        self.0.lock().take();
    }

    /// Drops what the kernel keeps of an inode: attributes, and pages of `length` bytes from
    /// `offset` (0 for all behind it).
    pub fn invalidate_inode(&self, ino: Ino, offset: u64, length: u64) {
        let clamp = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.send(|kernel| kernel.inval_inode(fuser::INodeNo(ino.0), clamp(offset), clamp(length)));
    }

    /// Drops what the kernel keeps of a name: where it leads, or that it is absent.
    pub fn invalidate_name(&self, parent: Ino, name: &[u8]) {
        self.send(|kernel| kernel.inval_entry(fuser::INodeNo(parent.0), OsStr::from_bytes(name)));
    }

    /// The kernel need not know the inode or name, and the mount may be gone: neither matters.
    fn send(&self, notice: impl FnOnce(&fuser::Notifier) -> std::io::Result<()>) {
        let kernel = self.0.lock().clone();
        if let Some(kernel) = kernel
            && let Err(error) = notice(&kernel)
        {
            debug!(%error, "the kernel did not take a notice");
        }
    }
}
