//! Open files and directories.
//!
//! Owns: the open file, directory or answer that each handle of the kernel stands for. Does not
//! own: the files.

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

/// An open file, directory or answer.
pub enum Open {
    /// A file of a tree.
    File(OpenFile),
    /// A directory.
    Directory(OpenDirectory),
    /// Another file of the mount's own, with its text at the time of the open.
    Text(Bytes),
    /// `.bkfs/control`, with the answer to the last request.
    Control(Mutex<Bytes>),
}

/// An open file.
pub struct OpenFile {
    /// The view through which it is read.
    pub view: View,
    /// Number of the file.
    pub number: Number,
    /// Turn at which it was opened.
    pub since: Turn,
    /// Opened with `O_APPEND`.
    pub append: bool,
    /// Opened for writing.
    pub writes: bool,
    /// Changes of contents through this handle, with truncations and the creation of the file. Each
    /// change is counted when it begins and when it ends.
    pub written: AtomicU64,
    /// Value of `written` for which a close(2) has waited successfully.
    pub closed: AtomicU64,
    /// State of its read-ahead.
    pub readahead: Mutex<ReadAhead>,
}

/// An open directory.
pub struct OpenDirectory {
    /// Number of the directory.
    pub number: Number,
    /// Turn at which it was opened.
    pub since: Turn,
    /// The view through which it is listed, if the mount's view may change while it is open.
    pub view: Option<View>,
}

/// All handles of a mount.
#[derive(Default)]
pub struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Open>>>,
}

impl Handles {
    /// Adds an open file, directory or answer, and returns its handle.
    pub fn insert(&self, open: Open) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(handle, Arc::new(open));
        Handle(handle)
    }

    /// Returns what a handle stands for, or `None` for a handle that does not exist.
    pub fn get(&self, handle: Handle) -> Option<Arc<Open>> {
        self.open.lock().get(&handle.0).cloned()
    }

    /// Counts a change of contents through a handle; close(2) waits for it.
    pub fn wrote(&self, handle: Handle) {
        if let Some(Open::File(file)) = self.get(handle).as_deref() {
            file.written.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts a change of contents for which the kernel names no handle, or any: by a mapping, or by
    /// a truncation that may be part of an open(2). Counts it for every handle that may write to
    /// the file. Visits every handle of the mount.
    pub fn wrote_by_any(&self, number: Number) {
        for open in self.open.lock().values() {
            if let Open::File(file) = open.as_ref()
                && file.number == number
                && file.writes
            {
                file.written.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Returns true if a handle that may write to the file was opened before a turn. Visits every
    /// handle of the mount.
    pub fn any_writes_from_before(&self, number: Number, turn: Turn) -> bool {
        self.open.lock().values().any(|open| match open.as_ref() {
            Open::File(file) => file.writes && file.number == number && file.since < turn,
            _ => false,
        })
    }

    /// Returns the view of an open file with this number, if there is one.
    pub fn view_of(&self, number: Number) -> Option<View> {
        let open = self.open.lock();
        open.values().find_map(|open| match open.as_ref() {
            Open::File(file) if file.number == number => Some(file.view.clone()),
            _ => None,
        })
    }

    /// Removes a handle, and returns what it stood for.
    pub fn remove(&self, handle: Handle) -> Option<Arc<Open>> {
        self.open.lock().remove(&handle.0)
    }
}
