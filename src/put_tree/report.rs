//! What a put of directories did: counters for its progress, and the files that it names.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::stream::StreamProgress;

/// Most files that a list names. Of further ones only the number is kept.
const NAMED_MAX: usize = 1_000;

/// Counters of a put in progress.
#[derive(Debug, Default)]
pub struct Report {
    /// Bytes of contents that were read.
    pub read: StreamProgress,
    /// Bytes of files that were taken over unread.
    pub unchanged_bytes: AtomicU64,
    /// Inodes that were stored.
    pub stored: AtomicU64,
    /// Inodes, other than directories, that were taken over.
    pub unchanged: AtomicU64,
    /// Directories.
    pub directories: AtomicU64,
    /// Names that the put removed from the volume.
    pub removed: AtomicU64,
    /// Sockets, which are left out.
    pub sockets: AtomicU64,
    /// Files that were gone before they were read.
    pub vanished: AtomicU64,
    /// Access control lists that are not stored.
    pub lists: AtomicU64,
    /// Files that could not be read.
    pub unread: Mutex<NamedFiles>,
    /// Files that changed while they were read.
    pub changing: Mutex<NamedFiles>,
    /// Directories whose contents are left out, with the reason.
    pub passed: Mutex<NamedFiles>,
}

/// Files, each with a text.
#[derive(Debug, Default)]
pub struct NamedFiles {
    /// Paths with the texts, the first ones only.
    pub listed: Vec<(Vec<u8>, String)>,
    /// The number of files that are not listed.
    pub more: u64,
}

impl NamedFiles {
    /// Adds a file.
    pub fn add(&mut self, path: &[u8], text: impl Into<String>) {
        match self.listed.len() < NAMED_MAX {
            true => self.listed.push((path.to_vec(), text.into())),
            false => self.more += 1,
        }
    }

    /// Returns the number of files.
    pub fn count(&self) -> u64 {
        self.listed.len() as u64 + self.more
    }
}

impl Report {
    /// Adds one to a counter.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes that are read or taken over.
    pub fn bytes(&self) -> u64 {
        let read = self.read.bytes.load(Ordering::Relaxed);
        read + self.unchanged_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of inodes that are stored or taken over, without directories.
    pub fn inodes(&self) -> u64 {
        self.stored.load(Ordering::Relaxed) + self.unchanged.load(Ordering::Relaxed)
    }

    /// Names a file that could not be read. One that is gone is only counted.
    ///
    /// # Errors
    /// The same error if this process lacks descriptors or memory. It says nothing of the file, and
    /// a snapshot without that file would be wrong.
    pub fn problem(&self, path: &[u8], error: &io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(code @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(io::Error::from_raw_os_error(code));
            }
            _ if error.kind() == io::ErrorKind::NotFound => Report::count(&self.vanished),
            _ => self.unread.lock().add(path, error.to_string()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_with_a_file_counts_as_its_problem() {
        let report = Report::default();
        let problem = |code| report.problem(b"/file", &io::Error::from_raw_os_error(code));
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(problem(code).unwrap_err().raw_os_error(), Some(code));
        }
        assert_eq!(report.unread.lock().count(), 0);
        problem(libc::EACCES).unwrap();
        problem(libc::ENOENT).unwrap();
        assert_eq!(report.unread.lock().count(), 1);
        assert_eq!(report.vanished.load(Ordering::Relaxed), 1);
    }
}
