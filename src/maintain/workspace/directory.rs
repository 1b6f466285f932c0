//! Working data in a private directory on local disk.
//!
//! Owns the files. A file has no name from the moment on at which it is made, so the system frees it
//! however the process ends. All that a killed process leaves is an empty directory. Does not own the
//! directory (`own_directory`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use bkfs_store::entropy::Entropy;
use parking_lot::Mutex;

use super::medium::{Medium, WorkFile};
use crate::own_directory::OwnDirectory;

/// How the names of directories with working data begin.
const NAME: &str = "bkfs-check-";

/// A directory in which one command makes a directory of its own, with its first file.
#[derive(Debug)]
pub struct WorkDirectory {
    above: PathBuf,
    place: Arc<str>,
    entropy: Arc<dyn Entropy>,
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    made: Option<OwnDirectory>,
    files: u64,
}

impl WorkDirectory {
    /// Returns the place below `above`. Nothing is made or read before the first file.
    pub fn new(above: PathBuf, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            place: above.display().to_string().into(),
            above,
            entropy,
            own: Mutex::default(),
        }
    }
}

impl Medium for WorkDirectory {
    fn create(&self) -> io::Result<Arc<dyn WorkFile>> {
        let mut own = self.own.lock();
        own.files += 1;
        let number = own.files;
        let made = match &mut own.made {
            Some(made) => made,
            none => none.insert(OwnDirectory::make(&self.above, NAME, &*self.entropy)?),
        };
        let path = made.path().join(number.to_string());
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        fs::remove_file(&path)?;
        Ok(Arc::new(Nameless(file)))
    }

    fn place(&self) -> Arc<str> {
        Arc::clone(&self.place)
    }

    fn free_bytes(&self) -> Option<u64> {
        let there = self.above.ancestors().find(|path| path.is_dir())?;
        let system = rustix::fs::statvfs(there).ok()?;
        Some(system.f_bavail.saturating_mul(system.f_frsize))
    }
}

/// A file without a name.
#[derive(Debug)]
struct Nameless(File);

impl WorkFile for Nameless {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }
}
