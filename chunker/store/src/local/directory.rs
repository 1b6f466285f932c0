//! The open directory, and reading objects from it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat};
use rustix::io::{Errno, pread};

use super::identity::Identity;
use super::sync::Syncer;
use crate::direct::DirectBuffers;
use crate::{
    ObjectInfo, Operation, StoreError, StoreErrorKind, Version, WHOLE_OBJECT_BYTES_MAX,
    check_range, too_large,
};

/// A directory that is used as a bucket. All methods block on the disk.
#[derive(Debug)]
pub(super) struct Directory {
    root: OwnedFd,
    identity: Identity,
    pub(super) syncer: Syncer,
    pub(super) buffers: DirectBuffers,
}

/// An open object.
struct Object {
    file: OwnedFd,
    size: u64,
}

impl Directory {
    /// Opens the directory. With `create`, an absent directory is created with its parents.
    pub(super) fn open(path: &Path, create: bool) -> Result<Self, StoreError> {
        let fail = |errno| open_error(path, errno);
        if create {
            create_directories(path).map_err(fail)?;
        }
        let root = openat(
            CWD,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(fail)?;
        let identity = Identity::of_filesystem(&root).map_err(fail)?;
        let directory = Self {
            root,
            identity,
            syncer: Syncer::default(),
            buffers: DirectBuffers::default(),
        };
        directory.remove_leftovers();
        Ok(directory)
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    pub(super) fn has_exact_versions(&self) -> bool {
        self.identity == Identity::Handle
    }

    /// Returns a whole object that a writer may rely on. It is an error if this process cannot tell
    /// that the object's name is on disk.
    pub(super) fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.settle(Operation::Get, key)?;
        let object = self.open_object(Operation::Get, key)?;
        self.read_whole(key, &object)
    }

    pub(super) fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        self.settle(Operation::Get, key)?;
        let object = self.open_object(Operation::Get, key)?;
        let version = self
            .version_of(&object.file)
            .map_err(|errno| self.error(Operation::Get, key, errno))?;
        match version == *known {
            true => Ok(None),
            false => self.read_whole(key, &object).map(Some),
        }
    }

    fn read_whole(&self, key: &str, object: &Object) -> Result<(Bytes, Version), StoreError> {
        if object.size > WHOLE_OBJECT_BYTES_MAX {
            return Err(too_large(key, object.size));
        }
        let fail = |errno| self.error(Operation::Get, key, errno);
        let bytes = read_exact(&object.file, 0..object.size).map_err(fail)?;
        let version = self
            .identity
            .version(&object.file, || Ok::<_, Errno>(blake3::hash(&bytes)))
            .map_err(fail)?;
        Ok((bytes, version))
    }

    pub(super) fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let object = self.open_object(Operation::GetRange, key)?;
        check_range(key, &range, object.size)?;
        read_exact(&object.file, range).map_err(|errno| self.error(Operation::GetRange, key, errno))
    }

    pub(super) fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let object = self.open_object(Operation::GetTail, key)?;
        let start = object.size.saturating_sub(bytes);
        if object.size - start > WHOLE_OBJECT_BYTES_MAX {
            return Err(too_large(key, object.size - start));
        }
        let tail = read_exact(&object.file, start..object.size)
            .map_err(|errno| self.error(Operation::GetTail, key, errno))?;
        Ok((tail, object.size))
    }

    pub(super) fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let object = self.open_object(Operation::Head, key)?;
        Ok(ObjectInfo {
            key: key.to_owned(),
            size: object.size,
        })
    }

    /// Returns the version of the open object `file`.
    pub(super) fn version_of(&self, file: impl AsFd) -> Result<Version, Errno> {
        self.identity.version(&file, || hash_content(file.as_fd()))
    }

    /// Returns the version of the object at `key`, or `None` if there is none.
    pub(super) fn version_at(&self, key: &str) -> Result<Option<Version>, Errno> {
        match open_file(self.root(), key) {
            Ok((file, status)) if is_regular(&status) => self.version_of(file).map(Some),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn open_object(&self, operation: Operation, key: &str) -> Result<Object, StoreError> {
        match open_file(self.root(), key) {
            Ok((file, status)) if is_regular(&status) => Ok(Object {
                file,
                // A file's size is never negative.
                size: status.st_size as u64,
            }),
            Ok(_) => Err(absent(operation, key)),
            Err(errno) => Err(self.error(operation, key, errno)),
        }
    }

    /// Maps a system error on an object to a store error. An object counts as absent only while the
    /// bucket itself exists.
    pub(super) fn error(&self, operation: Operation, key: &str, errno: Errno) -> StoreError {
        use StoreErrorKind as Kind;
        let bucket_lives = || fstat(&self.root).is_ok_and(|status| status.st_nlink > 0);
        let (kind, message) = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP if !bucket_lives() => (
                Kind::NoBucket,
                "the directory of the repository has been removed".to_owned(),
            ),
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP if !operation.is_write() => {
                return absent(operation, key);
            }
            Errno::NOTDIR | Errno::ISDIR => (
                Kind::Invalid,
                "a file and a directory of the repository have the same name".to_owned(),
            ),
            Errno::ACCESS | Errno::PERM => (
                Kind::Denied,
                format!("{errno}: look at the owner and the mode of the repository's directory"),
            ),
            Errno::ROFS => (
                Kind::Denied,
                "the filesystem of the repository is mounted read-only".to_owned(),
            ),
            Errno::NOSPC | Errno::DQUOT => (
                Kind::NoSpace,
                format!("{errno}: make room on the filesystem of the repository"),
            ),
            Errno::XDEV => (
                Kind::Invalid,
                "a repository's directory must be on one filesystem".to_owned(),
            ),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => {
                (Kind::Throttled, errno.to_string())
            }
            Errno::TIMEDOUT | Errno::HOSTDOWN | Errno::HOSTUNREACH | Errno::STALE => {
                (Kind::Unreachable, errno.to_string())
            }
            _ => (Kind::Other, errno.to_string()),
        };
        StoreError::new(kind, operation, key, message)
    }
}

fn absent(operation: Operation, key: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::NotFound,
        operation,
        key,
        "there is no such object",
    )
}

fn open_error(path: &Path, errno: Errno) -> StoreError {
    let shown = path.display();
    let (kind, message) = match errno {
        Errno::NOENT => (
            StoreErrorKind::NoBucket,
            format!("there is no directory {shown}"),
        ),
        Errno::NOTDIR => (
            StoreErrorKind::NoBucket,
            format!("{shown} is not a directory"),
        ),
        Errno::ACCESS | Errno::PERM => (
            StoreErrorKind::Denied,
            format!("no permission for the directory {shown}"),
        ),
        Errno::NOSPC | Errno::DQUOT => (
            StoreErrorKind::NoSpace,
            format!("no room for the directory {shown}"),
        ),
        _ => (StoreErrorKind::Other, format!("{shown}: {errno}")),
    };
    StoreError::new(kind, Operation::Open, "", message)
}

/// Opens `path` below `root`, without following a link and without waiting for the other end of a
/// pipe.
fn open_file(root: BorrowedFd<'_>, path: &str) -> Result<(OwnedFd, Stat), Errno> {
    let file = openat(
        root,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY,
        Mode::empty(),
    )?;
    let status = fstat(&file)?;
    Ok((file, status))
}

fn is_regular(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
}

/// Reads exactly `range`, which lies within the file.
fn read_exact(file: impl AsFd, range: Range<u64>) -> Result<Bytes, Errno> {
    let length = usize::try_from(range.end - range.start).map_err(|_| Errno::FBIG)?;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let offset = range.start + bytes.len() as u64;
        match pread(&file, spare_capacity(&mut bytes), offset) {
            // An object never changes, so a file that ends early was damaged from outside.
            Ok(0) => return Err(Errno::IO),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    // The allocator may have provided more room than requested.
    bytes.truncate(length);
    Ok(Bytes::from(bytes))
}

fn hash_content(file: BorrowedFd<'_>) -> Result<blake3::Hash, Errno> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut offset = 0;
    loop {
        match pread(file, &mut buffer[..], offset) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Creates a directory and its parents, each with access for its owner only, and flushes their
/// names.
fn create_directories(path: &Path) -> Result<(), Errno> {
    match mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(Errno::NOENT) => {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            create_directories(parent.ok_or(Errno::NOENT)?)?;
            match mkdirat(CWD, path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(errno) => return Err(errno),
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = openat(
        CWD,
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    fsync(parent)
}
