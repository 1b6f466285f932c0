//! The disk below a spool: a few operations on whole files, and the guarantees of each.
//!
//! Owns the trait, so that tests and simulations can lose and tear unsynced data, and its
//! implementation on the real filesystem. Does not own contents or names of files.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Held until it is dropped, or until the process ends.
pub type DiskLock = Box<dyn Debug + Send + Sync>;

/// An entry of a directory.
#[derive(Debug)]
pub struct DiskEntry {
    /// Its name in the directory.
    pub name: String,
    /// What it is, or why the disk does not say that. It may have been removed since the listing.
    pub data: io::Result<EntryData>,
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryData {
    /// Its length in bytes; meaningless for a directory.
    pub bytes: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// A filesystem, as far as a spool needs one.
///
/// A file survives a power loss after [`Disk::write_new`] and then [`Disk::sync_directory`] for its
/// directory have returned without an error. Any other file may be there afterwards, whole, in
/// part, or not at all; a removed file may be there again.
///
/// After an error of a method that changes the disk, the change may have been made in part.
#[async_trait]
pub trait Disk: Send + Sync + Debug + 'static {
    /// Makes a directory and its parents, private to the user (0700) and durable. An existing one
    /// must belong to the user, and is made private.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if the directory belongs to another user; otherwise the
    /// error of the disk.
    async fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Lists a directory, in no order. Names that are not UTF-8 are left out. An entry that cannot
    /// be looked at is listed with that error.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such directory; otherwise the error of the disk.
    async fn list(&self, directory: &Path) -> io::Result<Vec<DiskEntry>>;

    /// Creates a file that must not exist (0600), writes all of it, and flushes it by the same
    /// descriptor: the kernel reports a failed flush once, and never again.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the file exists; otherwise the error of the disk, such
    /// as [`io::ErrorKind::StorageFull`]. A part of the file may then be there.
    async fn write_new(&self, path: &Path, parts: &[Bytes]) -> io::Result<()>;

    /// Renames a file or a directory in the same directory to a name that no entry may have. After
    /// a power loss it may have the old name or the new one, until [`Disk::sync_directory`].
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if an entry has the name; otherwise the error of the disk.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The error of the disk. It is not known then which names are durable.
    async fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Reads exactly `length` bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before that; otherwise the error of the
    /// disk.
    async fn read(&self, path: &Path, offset: u64, length: usize) -> io::Result<Bytes>;

    /// Removes a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file; otherwise the error of the disk.
    async fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::DirectoryNotEmpty`] if it has entries; otherwise the error of the disk.
    async fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes a file without a name on the filesystem of a directory, to read and to write. It is gone
    /// once it is closed, and after a crash.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the filesystem has no such files; otherwise the error of
    /// the disk.
    async fn make_unnamed(&self, directory: &Path) -> io::Result<File>;

    /// Creates a file if it is absent, and locks it; `None` if another process holds the lock.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the file was removed before it was locked; the error of the
    /// disk, if the file can be neither opened nor created, or not be locked.
    async fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>>;
}

/// The machine's own filesystem. Every call runs on a blocking thread.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemDisk;

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(job)
        .await
        .map_err(io::Error::other)?
}

#[async_trait]
impl Disk for SystemDisk {
    async fn make_directory(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || make_private(&path)).await
    }

    async fn list(&self, directory: &Path) -> io::Result<Vec<DiskEntry>> {
        let directory = directory.to_owned();
        blocking(move || list(&directory)).await
    }

    async fn write_new(&self, path: &Path, parts: &[Bytes]) -> io::Result<()> {
        let (path, parts) = (path.to_owned(), parts.to_vec());
        blocking(move || {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            for part in parts {
                file.write_all(&part)?;
            }
            file.sync_all()
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || {
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            let renamed = rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
            match renamed {
                // A filesystem without this flag.
                Err(Errno::INVAL | Errno::NOSYS) => match fs::symlink_metadata(&to) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(_) => fs::rename(&from, &to),
                },
                renamed => Ok(renamed?),
            }
        })
        .await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || File::open(path)?.sync_all()).await
    }

    async fn read(&self, path: &Path, offset: u64, length: usize) -> io::Result<Bytes> {
        let path = path.to_owned();
        blocking(move || {
            let file = File::open(path)?;
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(Bytes::from(bytes))
        })
        .await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || fs::remove_file(path)).await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || fs::remove_dir(path)).await
    }

    async fn make_unnamed(&self, directory: &Path) -> io::Result<File> {
        let directory = directory.to_owned();
        blocking(move || {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(CWD, &directory, flags, Mode::RUSR | Mode::WUSR) {
                Ok(made) => Ok(File::from(made)),
                // EISDIR: of filesystems that do not know the flag.
                Err(Errno::OPNOTSUPP | Errno::ISDIR) => Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "its filesystem has no files without names",
                )),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let path = path.to_owned();
        blocking(move || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let (locked, named) = (file.metadata()?, fs::metadata(&path)?);
                    match (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
                        true => Ok(Some(Box::new(file) as DiskLock)),
                        false => Err(io::ErrorKind::NotFound.into()),
                    }
                }
                Err(error) if error == Errno::WOULDBLOCK => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }
}

fn list(directory: &Path) -> io::Result<Vec<DiskEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let data = entry.metadata().map(|data| EntryData {
            bytes: data.len(),
            is_directory: data.is_dir(),
        });
        entries.push(DiskEntry { name, data });
    }
    Ok(entries)
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut next = Some(path);
    while let Some(directory) = next.filter(|directory| !directory.as_os_str().is_empty()) {
        match fs::metadata(directory) {
            Ok(data) if data.is_dir() => break,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(directory.to_owned());
                next = directory.parent();
            }
            Err(error) => return Err(error),
        }
    }
    for directory in missing.iter().rev() {
        match DirBuilder::new().mode(0o700).create(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if let Some(above) = directory.parent() {
            File::open(above)?.sync_all()?;
        }
    }
    let data = fs::metadata(path)?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        let reason = "it belongs to another user";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    if data.mode() & 0o777 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_without_a_name_is_in_no_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let made = SystemDisk.make_unnamed(directory.path()).await;
        let file = made.expect("the filesystem has such files");
        file.write_all_at(b"contents", 3).expect("written");
        let mut back = [0; 8];
        file.read_exact_at(&mut back, 3).expect("read");
        assert_eq!(&back, b"contents");
        assert_eq!(file.metadata().expect("it is open").mode() & 0o777, 0o600);
        assert!(
            SystemDisk
                .list(directory.path())
                .await
                .expect("listed")
                .is_empty()
        );
        let absent = SystemDisk
            .make_unnamed(&directory.path().join("absent"))
            .await;
        assert_eq!(
            absent.expect_err("no directory").kind(),
            io::ErrorKind::NotFound
        );
        let without = SystemDisk.make_unnamed(Path::new("/proc")).await;
        let without = without.expect_err("processes, no files");
        // Only root gets as far as to hear that there are none.
        if without.kind() != io::ErrorKind::PermissionDenied {
            assert_eq!(without.kind(), io::ErrorKind::Unsupported);
            assert!(without.to_string().contains("files without names"));
        }
    }

    #[tokio::test]
    async fn directories_and_files_are_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("a/b");
        SystemDisk.make_directory(&place).await.expect("makes it");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("chmod");
        SystemDisk.make_directory(&place).await.expect("mends it");
        let mode = |path: &Path| fs::metadata(path).expect("is there").mode() & 0o777;
        assert_eq!(
            (mode(&place), mode(place.parent().expect("a"))),
            (0o700, 0o700)
        );
        let file = place.join("file");
        let parts = [Bytes::from_static(b"ab"), Bytes::from_static(b"cde")];
        SystemDisk.write_new(&file, &parts).await.expect("writes");
        assert_eq!(mode(&file), 0o600);
        assert_eq!(
            SystemDisk.read(&file, 1, 3).await.expect("reads"),
            Bytes::from_static(b"bcd")
        );
        assert!(SystemDisk.read(&file, 3, 3).await.is_err(), "past the end");
        let again = SystemDisk.write_new(&file, &parts).await;
        assert_eq!(
            again.expect_err("is there").kind(),
            io::ErrorKind::AlreadyExists
        );
        let other = place.join("other");
        SystemDisk.rename(&file, &other).await.expect("renames");
        assert!(!file.exists());
        SystemDisk.write_new(&file, &parts).await.expect("writes");
        let taken = SystemDisk.rename(&file, &other).await;
        assert_eq!(
            taken.expect_err("is there").kind(),
            io::ErrorKind::AlreadyExists
        );
    }

    /// A directory may be listed by one who may not look at what is in it. Here, root has given
    /// up the right to do so, in a thread of its own.
    #[test]
    fn what_cannot_be_looked_at_hides_nothing_else() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("place");
        fs::create_dir(&place).expect("made");
        fs::write(place.join("file"), b"abc").expect("written");
        let look = |mode: u32| {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).expect("chmod");
            let looking = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut held = capabilities(None).expect("known");
                    held.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                    set_capabilities(None, held).expect("given up");
                    list(&place)
                });
                thread.join().expect("no panic")
            });
            let mut listed = looking.expect("listed");
            let entry = listed.pop().expect("one");
            assert!(listed.is_empty() && entry.name == "file");
            entry.data
        };
        let file = EntryData {
            bytes: 3,
            is_directory: false,
        };
        assert_eq!(look(0o700).expect("may be looked at"), file);
        let refused = look(0o400).expect_err("may not");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).expect("chmod");
    }

    #[tokio::test]
    async fn a_lock_has_one_holder() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lock");
        let first = SystemDisk.lock(&path).await.expect("locks");
        assert!(first.is_some());
        assert!(SystemDisk.lock(&path).await.expect("looks").is_none());
        drop(first);
        assert!(SystemDisk.lock(&path).await.expect("locks").is_some());
    }

    /// The holder of the lock may remove the file. What another process opened before that is then no
    /// longer the file of that name.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_is_that_of_the_file_with_the_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lock");
        let contend = || {
            let path = path.clone();
            tokio::spawn(async move {
                for _ in 0..3_000 {
                    let locked = match SystemDisk.lock(&path).await {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        locked => locked.expect("locks"),
                    };
                    if locked.is_some() {
                        SystemDisk
                            .remove(&path)
                            .await
                            .expect("only its holder removes it");
                    }
                }
            })
        };
        let (one, other) = (contend(), contend());
        one.await.expect("no panic");
        other.await.expect("no panic");
    }
}
