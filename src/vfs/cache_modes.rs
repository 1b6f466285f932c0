//! Which open files bypass the kernel's page cache.
//!
//! Owns: one mode for all handles that a file has at the same time. A cached and a direct handle on
//! one file could show different bytes, because pages that a reader fetches during a direct write
//! stay in the cache.
//! Does not own: what a mode means to the kernel (the fuse crate), nor handles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bkfs_fuse::OpenFlags;
use parking_lot::Mutex;

use crate::vfs::numbers::Number;

#[derive(Debug)]
struct Mode {
    is_direct: bool,
    handles: u32,
}

/// The modes of open files.
#[derive(Debug, Default)]
pub struct Modes {
    /// The kernel can map files with direct handles. Without that no handle is direct, because the
    /// next opener of the file may map it.
    is_mappable: AtomicBool,
    open: Mutex<HashMap<Number, Mode>>,
}

impl Modes {
    /// Sets whether the kernel can map files that bypass its cache.
    pub fn mappable(&self, is_mappable: bool) {
        self.is_mappable.store(is_mappable, Ordering::Relaxed);
    }

    /// Returns true if the kernel can map a file that bypasses the page cache.
    pub fn is_mappable(&self) -> bool {
        self.is_mappable.load(Ordering::Relaxed)
    }

    /// Counts one more handle of a file; returns true if this handle bypasses the page cache.
    ///
    /// The first handle decides. A handle that only writes gains by going direct: each write(2) is
    /// one request either way, and the copy into the cache is saved. A handle that also reads, or
    /// that is mapped, is better served by the cache.
    pub fn opened(&self, number: Number, flags: &OpenFlags) -> bool {
        let wants_direct = flags.write && !flags.read && self.is_mappable();
        let mut open = self.open.lock();
        let mode = open.entry(number).or_insert(Mode {
            is_direct: wants_direct,
            handles: 0,
        });
        mode.handles += 1;
        mode.is_direct
    }

    /// Counts that one of the file's handles has ended.
    pub fn closed(&self, number: Number) {
        let mut open = self.open.lock();
        if let Some(mode) = open.get_mut(&number) {
            mode.handles -= 1;
            if mode.handles == 0 {
                open.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: Number = Number {
        snapshot: 0,
        inode: 7,
    };

    fn flags(read: bool, write: bool) -> OpenFlags {
        OpenFlags {
            read,
            write,
            ..OpenFlags::default()
        }
    }

    #[test]
    fn all_handles_of_a_file_are_of_one_kind() {
        let modes = Modes::default();
        modes.mappable(true);
        assert!(modes.opened(NUMBER, &flags(false, true)));
        assert!(modes.opened(NUMBER, &flags(true, false)), "joins a writer");
        modes.closed(NUMBER);
        assert!(modes.opened(NUMBER, &flags(true, true)), "still open");
        modes.closed(NUMBER);
        modes.closed(NUMBER);
        assert!(!modes.opened(NUMBER, &flags(true, true)));
        assert!(!modes.opened(NUMBER, &flags(false, true)), "joins a reader");
        modes.closed(NUMBER);
        modes.closed(NUMBER);
        assert!(modes.open.lock().is_empty());
    }

    #[test]
    fn nothing_is_direct_that_could_not_be_mapped() {
        let modes = Modes::default();
        assert!(!modes.opened(NUMBER, &flags(false, true)));
    }
}
