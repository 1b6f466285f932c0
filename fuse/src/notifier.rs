//! Telling the kernel that something changed without it.
//!
//! Owns: invalidation of what the kernel caches.
//! Does not own: knowing when that is due.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use tracing::debug;

use crate::types::Ino;

/// Sends notices to the kernel of one mount. Cheap to clone.
///
/// A notice takes locks in the kernel that the requests on the same directory or file hold:
/// it must not be sent from inside a [`Vfs`](crate::Vfs) method, nor while a request on the same
/// directory or file waits for the sender.
#[derive(Clone, Debug)]
pub struct Notifier(fuser::Notifier);

impl Notifier {
    pub(crate) fn new(notifier: fuser::Notifier) -> Self {
        Self(notifier)
    }

    /// Drops what the kernel keeps of an inode: attributes, and pages of `length` bytes from
    /// `offset` (0 for all behind it).
    pub fn invalidate_inode(&self, ino: Ino, offset: u64, length: u64) {
        let clamp = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let result = self
            .0
            .inval_inode(fuser::INodeNo(ino.0), clamp(offset), clamp(length));
        report(result);
    }

    /// Drops what the kernel keeps of a name: where it leads, or that it is absent.
    pub fn invalidate_name(&self, parent: Ino, name: &[u8]) {
        report(
            self.0
                .inval_entry(fuser::INodeNo(parent.0), OsStr::from_bytes(name)),
        );
    }
}

/// The kernel need not know the inode or name, and the mount may be gone: neither matters.
fn report(result: std::io::Result<()>) {
    if let Err(error) = result {
        debug!(%error, "the kernel did not take a notice");
    }
}
