//! Open files and directories.
//!
//! Owns: what the kernel's handles stand for. Does not own: the files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_fuse::Handle;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::vfs::live::Turn;
use crate::vfs::numbers::Number;
use crate::vfs::readahead::ReadAhead;
use crate::volume::view::View;

/// What a handle stands for.
pub enum Open {
    /// A file of a tree.
    File(OpenFile),
    /// A directory.
    Directory(OpenDirectory),
    /// One of the mount's own files, as it was when it was opened.
    Text(Bytes),
    /// `.bkfs/control`: the answer to the last request.
    Control(Mutex<Bytes>),
}

/// An open file.
pub struct OpenFile {
    /// What it is read through.
    pub view: View,
    /// Which file.
    pub number: Number,
    /// When it was opened.
    pub since: Turn,
    /// Opened with `O_APPEND`.
    pub append: bool,
    /// Opened for writing.
    pub writes: bool,
    /// Changes of contents through this handle, truncations and the making of the file included,
    /// each counted as it begins and as it ends.
    pub written: AtomicU64,
    /// Those of them that a close(2) has waited for.
    pub closed: AtomicU64,
    /// How it is read.
    pub readahead: Mutex<ReadAhead>,
}

/// An open directory.
pub struct OpenDirectory {
    /// Which directory.
    pub number: Number,
    /// When it was opened.
    pub since: Turn,
    /// What it is listed through, if that may change while it is open.
    pub view: Option<View>,
}

/// All handles of a mount.
#[derive(Default)]
pub struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Open>>>,
}

impl Handles {
    /// A handle for something that was opened.
    pub fn insert(&self, open: Open) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(handle, Arc::new(open));
        Handle(handle)
    }

    /// What a handle stands for; none for a handle that was never given out.
    pub fn get(&self, handle: Handle) -> Option<Arc<Open>> {
        self.open.lock().get(&handle.0).cloned()
    }

    /// Counts a change of contents through a handle, which close(2) will wait for.
    pub fn wrote(&self, handle: Handle) {
        if let Some(Open::File(file)) = self.get(handle).as_deref() {
            file.written.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts a change of contents through a mapping, for every handle that may write to the file:
    /// the kernel writes through any of them. Looks at every handle.
    pub fn wrote_by_mapping(&self, number: Number) {
        for open in self.open.lock().values() {
            if let Open::File(file) = open.as_ref()
                && file.number == number
                && file.writes
            {
                file.written.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// True if a handle that may write to the file was opened before a turn. Looks at every handle.
    pub fn any_writes_from_before(&self, number: Number, turn: Turn) -> bool {
        self.open.lock().values().any(|open| match open.as_ref() {
            Open::File(file) => file.writes && file.number == number && file.since < turn,
            _ => false,
        })
    }

    /// What an open file is read through, if one with this number is open.
    pub fn view_of(&self, number: Number) -> Option<View> {
        let open = self.open.lock();
        open.values().find_map(|open| match open.as_ref() {
            Open::File(file) if file.number == number => Some(file.view.clone()),
            _ => None,
        })
    }

    /// The handle ends.
    pub fn remove(&self, handle: Handle) -> Option<Arc<Open>> {
        self.open.lock().remove(&handle.0)
    }
}
