//! The filesystems that a restore writes to: other ones may be mounted below the target.
//!
//! Owns: one open directory of each. Does not own: when they are synced (`sync`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

/// An open directory of each filesystem, by device number. Opened before anything is written there,
/// so that a sync through it reports each failed write.
#[derive(Default)]
pub struct Filesystems(Mutex<BTreeMap<u64, Arc<OwnedFd>>>);

impl Filesystems {
    /// Notes the filesystem of a directory.
    ///
    /// # Errors
    /// The errno of asking for it, or of duplicating the descriptor.
    pub fn note(&self, directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let device = rustix::fs::fstat(directory)?.st_dev;
        let mut noted = self.0.lock();
        if let Entry::Vacant(new) = noted.entry(device) {
            new.insert(Arc::new(rustix::io::fcntl_dupfd_cloexec(directory, 0)?));
        }
        Ok(())
    }

    /// Writes everything to the disks. Blocks.
    ///
    /// # Errors
    /// The first errno; the others are synced all the same.
    pub fn sync(&self) -> rustix::io::Result<()> {
        let noted: Vec<Arc<OwnedFd>> = self.0.lock().values().cloned().collect();
        let synced = noted
            .iter()
            .map(|directory| rustix::fs::syncfs(directory.as_fd()));
        synced.fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filesystem_is_noted_once() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(home.path().join("below")).unwrap();
        let filesystems = Filesystems::default();
        for path in [home.path(), &home.path().join("below"), "/proc".as_ref()] {
            let directory = std::fs::File::open(path).unwrap();
            filesystems.note(directory.as_fd()).unwrap();
        }
        assert_eq!(filesystems.0.lock().len(), 2);
        filesystems.sync().unwrap();
    }
}
