//! Open files and directories.
//!
//! Owns: what the kernel's handles stand for. Does not own: the files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bkfs_fuse::Handle;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::vfs::numbers::Number;
use crate::vfs::readahead::ReadAhead;
use crate::volume::view::View;

/// What a handle stands for.
pub enum Open {
    /// A file of a tree.
    File(OpenFile),
    /// A directory, or anything else that needs no state.
    Plain,
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
    /// Opened with `O_APPEND`.
    pub append: bool,
    /// Something was written through this handle.
    pub wrote: AtomicBool,
    /// How it is read.
    pub readahead: Mutex<ReadAhead>,
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

    /// The handle ends.
    pub fn remove(&self, handle: Handle) -> Option<Arc<Open>> {
        self.open.lock().remove(&handle.0)
    }
}
