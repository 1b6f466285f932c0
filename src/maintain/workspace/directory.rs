//! Working data in a private directory on local disk.
//!
//! Owns the directory: its random name, its mode, and that nothing of it stays. A file has no name
//! from the moment on at which it is made, so the system frees it however the process ends. All
//! that a killed process leaves is an empty directory, which the next command of the same
//! user removes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bkfs_store::entropy::Entropy;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::medium::{Medium, WorkFile};

/// How the names of directories with working data begin.
const NAME: &str = "bkfs-check-";

/// Names that are tried. Another one is tried if a sweep removes the directory before it is locked.
const NAMES_MAX: usize = 16;

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
    made: Option<Made>,
    files: u64,
}

#[derive(Debug)]
struct Made {
    path: PathBuf,
    /// Tells other processes that it is in use.
    _lock: File,
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

    fn make(&self) -> io::Result<Made> {
        let mut directories = DirBuilder::new();
        directories.mode(0o700);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.above)?;
        sweep(&self.above);
        for _ in 0..NAMES_MAX {
            let mut random = [0; 8];
            self.entropy.fill(&mut random);
            let path = self.above.join(format!("{NAME}{}", hex::encode(random)));
            match directories.create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            if let Some(lock) = take(&path) {
                return Ok(Made { path, _lock: lock });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Medium for WorkDirectory {
    fn create(&self) -> io::Result<Arc<dyn WorkFile>> {
        let mut own = self.own.lock();
        own.files += 1;
        let number = own.files;
        let made = match &mut own.made {
            Some(made) => made,
            none => none.insert(self.make()?),
        };
        let path = made.path.join(number.to_string());
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

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        if let Some(made) = self.own.get_mut().made.take() {
            // The next check removes what is left.
            let _ = fs::remove_dir(made.path);
        }
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

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Locks a directory that was just made. `None` if another process is about to remove it. A
/// filesystem without locks has none that could be swept.
fn take(path: &Path) -> Option<File> {
    let lock = open(path).ok()?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => return None,
        _ => {}
    }
    let (there, locked) = (fs::symlink_metadata(path).ok()?, lock.metadata().ok()?);
    (there.ino() == locked.ino() && there.dev() == locked.dev()).then_some(lock)
}

/// Removes directories of this user that killed processes have left.
fn sweep(above: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_named = entry.file_name().to_string_lossy().starts_with(NAME);
        let is_own = || {
            let found = fs::symlink_metadata(&path);
            found.is_ok_and(|found| found.is_dir() && found.uid() == user)
        };
        if !is_named || !is_own() {
            continue;
        }
        if let Ok(left) = open(&path)
            && flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}
