//! Small files of one directory that are read together.
//!
//! Owns: when there are enough of them. Does not own: how they are read (`file`).

use crate::put_tree::file::{BATCH_BYTES, FileEntry};

/// Files that are read together.
const FILES_MAX: usize = 64;

/// Files that wait to be read together. A task for each would cost more than the file itself.
#[derive(Default)]
pub(super) struct Batch {
    files: Vec<FileEntry>,
    bytes: u64,
}

impl Batch {
    /// Adds a file of so many bytes. Returns true if it is time to take them all.
    pub(super) fn add(&mut self, file: FileEntry, bytes: u64) -> bool {
        self.files.push(file);
        self.bytes += bytes;
        self.files.len() >= FILES_MAX || self.bytes >= BATCH_BYTES
    }

    /// Returns the files, in the order in which they were added; none waits any more.
    pub(super) fn take(&mut self) -> Vec<FileEntry> {
        std::mem::take(self).files
    }
}
