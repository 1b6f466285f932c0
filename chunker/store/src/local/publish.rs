//! How objects are created and removed: write to a temporary file, flush it, move it into place,
//! flush the names.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, fsync, linkat, mkdirat,
    openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::directory::Directory;
use super::fill::fill;
use super::lock::{Lock, LockError, lock_number, take_lock};
use super::sync::{open_directory, parent_of};
use crate::{Operation, StoreError, StoreErrorKind, Version};

/// The part of the directory that holds no objects.
const CORNER: &str = ".bkfs";
const TEMPORARY: &str = ".bkfs/tmp";
const LOCKS: &str = ".bkfs/locks";

/// How often a write is attempted when cleaners on other machines remove its temporary file as a
/// leftover.
const ATTEMPTS_MAX: usize = 4;

/// An object that is written and flushed, but has no name among the objects yet.
struct Draft {
    name: String,
    file: OwnedFd,
    version: Version,
}

/// The outcome of giving a draft its name.
enum Placed {
    Yes,
    /// Another object has the name.
    Occupied,
    /// The draft was removed by a cleaner and must be written again.
    Lost,
}

impl Directory {
    pub(super) fn put_new(&self, key: &str, body: &[Bytes]) -> Result<Version, StoreError> {
        let operation = Operation::PutNew;
        let fail = |errno| self.error(operation, key, errno);
        if statat(self.root(), key, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(self.occupied(key));
        }
        for _ in 0..ATTEMPTS_MAX {
            let draft = self.write_draft(body).map_err(fail)?;
            match self.place_new(&draft, key) {
                Ok(Placed::Yes) => return self.acknowledge(operation, key, draft.version),
                Ok(Placed::Occupied) => {
                    self.discard(&draft);
                    return Err(self.occupied(key));
                }
                Ok(Placed::Lost) => {}
                Err(errno) => {
                    self.discard(&draft);
                    return Err(fail(errno));
                }
            }
        }
        Err(fail(Errno::NOENT))
    }

    pub(super) fn put(&self, key: &str, body: &[Bytes]) -> Result<Version, StoreError> {
        self.write_over(Operation::Put, key, body, None)
    }

    pub(super) fn replace(
        &self,
        key: &str,
        body: &[Bytes],
        expected: &Version,
    ) -> Result<Version, StoreError> {
        self.write_over(Operation::Replace, key, body, Some(expected))
    }

    /// Replaces the object at `key` if its version is `expected`, or in any case if `expected` is
    /// `None`.
    fn write_over(
        &self,
        operation: Operation,
        key: &str,
        body: &[Bytes],
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        let fail = |errno| self.error(operation, key, errno);
        for _ in 0..ATTEMPTS_MAX {
            let draft = self.write_draft(body).map_err(fail)?;
            let lock = match self.lock(operation, key) {
                Ok(lock) => lock,
                Err(error) => {
                    self.discard(&draft);
                    return Err(error);
                }
            };
            let found = match expected {
                Some(_) => self.version_at(key),
                None => Ok(None),
            };
            let placed = match found {
                Ok(found) if found.as_ref() == expected => self.place_over(&draft, key),
                Ok(found) => {
                    self.discard(&draft);
                    return Err(conflict(key, found.is_some()));
                }
                Err(errno) => Err(errno),
            };
            match placed {
                Ok(Placed::Lost) => {}
                Ok(_) => {
                    // Flush before the lock ends, so that the next replacement builds on a state
                    // that is on disk.
                    let result = self.acknowledge(operation, key, draft.version);
                    drop(lock);
                    return result;
                }
                Err(errno) => {
                    self.discard(&draft);
                    return Err(fail(errno));
                }
            }
        }
        Err(fail(Errno::NOENT))
    }

    pub(super) fn delete(&self, key: &str) -> Result<(), StoreError> {
        let operation = Operation::Delete;
        let _lock = self.lock(operation, key)?;
        match unlinkat(self.root(), key, AtFlags::empty()) {
            Ok(()) => {}
            // A directory is no object.
            Err(Errno::ISDIR) => return Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                // An absent object is deleted already, as long as the bucket exists.
                let error = self.error(operation, key, Errno::NOENT);
                return match error.kind() {
                    StoreErrorKind::NoBucket => Err(error),
                    // An earlier attempt may have removed the object without its absence being on
                    // disk.
                    _ => self.settle(operation, key),
                };
            }
            Err(errno) => return Err(self.error(operation, key, errno)),
        }
        self.flush_name(operation, key)?;
        self.remove_if_empty(key);
        Ok(())
    }

    /// Removes the directory of the last object if it is two levels down or deeper (the journal of
    /// a finished session).
    fn remove_if_empty(&self, key: &str) {
        let directory = parent_of(key);
        if !directory.contains('/') {
            return;
        }
        // The directory may have new objects or be gone already; both are fine. A writer that loses
        // its directory creates it again.
        if unlinkat(self.root(), directory, AtFlags::REMOVEDIR).is_ok() {
            self.syncer.forget(directory);
        }
    }

    /// Returns the error for a taken name. It says that the object stays, so the name is flushed
    /// first: its creator, possibly an earlier attempt of this process, may not have flushed it.
    fn occupied(&self, key: &str) -> StoreError {
        let operation = Operation::PutNew;
        let taken = StoreError::new(
            StoreErrorKind::AlreadyExists,
            operation,
            key,
            "there is an object of that name",
        );
        self.flush_name(operation, key).err().unwrap_or(taken)
    }

    /// Flushes the name of `key` again if an earlier flush did not succeed. Called before the
    /// presence or absence of the object is trusted.
    pub(super) fn settle(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        self.syncer
            .settle(self.root(), parent_of(key))
            .map_err(|errno| not_flushed(operation, key, errno))
    }

    fn acknowledge(
        &self,
        operation: Operation,
        key: &str,
        version: Version,
    ) -> Result<Version, StoreError> {
        self.flush_name(operation, key)?;
        Ok(version)
    }

    /// Flushes the name of `key`, or its absence. After a failure a crash may show either.
    fn flush_name(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        self.syncer
            .sync(self.root(), parent_of(key))
            .map_err(|errno| not_flushed(operation, key, errno))
    }

    fn write_draft(&self, body: &[Bytes]) -> Result<Draft, Errno> {
        let name = format!("{TEMPORARY}/{}", fresh_name());
        let create = || {
            openat(
                self.root(),
                &name,
                OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
                Mode::RUSR | Mode::WUSR,
            )
        };
        let file = match create() {
            Err(Errno::NOENT) => {
                self.make_corner()?;
                create()?
            }
            other => other?,
        };
        // The lock says that the write is in progress while this process lives. Without locks, a
        // cleaner may remove the file. The rename detects that.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let written = fill(&file, body, &self.buffers)
            .and_then(|()| fsync(&file))
            .and_then(|()| self.version_of(&file));
        match written {
            Ok(version) => Ok(Draft {
                name,
                file,
                version,
            }),
            Err(errno) => {
                // After a failed flush the file's content is unknown. It is never flushed again,
                // only removed.
                let _ = unlinkat(self.root(), &name, AtFlags::empty());
                Err(errno)
            }
        }
    }

    fn discard(&self, draft: &Draft) {
        // A file that cannot be removed now is removed later as a leftover.
        let _ = unlinkat(self.root(), &draft.name, AtFlags::empty());
    }

    /// Gives a draft its name, unless the name is taken.
    fn place_new(&self, draft: &Draft, key: &str) -> Result<Placed, Errno> {
        let root = self.root();
        let moved = self.with_parents(key, || {
            renameat_with(root, &draft.name, root, key, RenameFlags::NOREPLACE)
        });
        let result = match moved {
            // Some filesystems do not have this flag (NFS does not). There link(2) also refuses a
            // taken name.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self
                .with_parents(key, || {
                    linkat(root, &draft.name, root, key, AtFlags::empty())
                })
                .inspect(|()| self.discard(draft)),
            other => other,
        };
        match result {
            Ok(()) => Ok(Placed::Yes),
            Err(errno) if self.is_at(draft, key) => {
                // A file server that receives a request twice refuses the second one although the
                // first succeeded.
                tracing::debug!(key, %errno, "the name was given in spite of the error");
                self.discard(draft);
                Ok(Placed::Yes)
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(Placed::Occupied),
            Err(Errno::NOENT) if self.is_lost(draft) => Ok(Placed::Lost),
            Err(errno) => Err(errno),
        }
    }

    /// Gives a draft its name, and replaces an object that has it.
    fn place_over(&self, draft: &Draft, key: &str) -> Result<Placed, Errno> {
        let root = self.root();
        match self.with_parents(key, || renameat(root, &draft.name, root, key)) {
            Ok(()) => Ok(Placed::Yes),
            Err(_) if self.is_at(draft, key) => Ok(Placed::Yes),
            Err(Errno::NOENT) if self.is_lost(draft) => Ok(Placed::Lost),
            Err(errno) => Err(errno),
        }
    }

    /// Runs `work`, and runs it again after creating the key's directories if they were missing.
    fn with_parents(
        &self,
        key: &str,
        mut work: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut result = work();
        // Repeats, because a directory that became empty may be removed in between.
        for _ in 0..ATTEMPTS_MAX {
            match result {
                Err(Errno::NOENT) if key.contains('/') => {
                    self.make_directories(parent_of(key))?;
                    result = work();
                }
                _ => break,
            }
        }
        result
    }

    fn is_at(&self, draft: &Draft, key: &str) -> bool {
        let found = statat(self.root(), key, AtFlags::SYMLINK_NOFOLLOW);
        match (found, fstat(&draft.file)) {
            (Ok(found), Ok(own)) => (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino),
            _ => false,
        }
    }

    fn is_lost(&self, draft: &Draft) -> bool {
        let found = statat(self.root(), &draft.name, AtFlags::SYMLINK_NOFOLLOW);
        matches!(found, Err(Errno::NOENT))
    }

    fn make_directories(&self, directory: &str) -> Result<(), Errno> {
        match mkdirat(self.root(), directory, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(Errno::NOENT) if directory.contains('/') => {
                self.make_directories(parent_of(directory))?;
                match mkdirat(self.root(), directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno),
                }
            }
            Err(errno) => Err(errno),
        }
    }

    /// Creates the directories for temporary files and locks. They need not survive a crash, so
    /// they are not flushed.
    fn make_corner(&self) -> Result<(), Errno> {
        for directory in [CORNER, TEMPORARY, LOCKS] {
            self.make_directories(directory)?;
        }
        Ok(())
    }

    fn lock(&self, operation: Operation, key: &str) -> Result<Lock, StoreError> {
        let locks = match open_directory(self.root(), LOCKS) {
            Err(Errno::NOENT) => self
                .make_corner()
                .and_then(|()| open_directory(self.root(), LOCKS)),
            other => other,
        };
        let locks = locks.map_err(|errno| self.error(operation, key, errno))?;
        let number = lock_number(key);
        take_lock(locks, number).map_err(|error| match error {
            LockError::File(errno) => self.error(operation, key, errno),
            LockError::Busy => StoreError::new(
                StoreErrorKind::Unreachable,
                operation,
                key,
                format!(
                    "another process holds the lock {LOCKS}/{number:02x} of the repository and \
                     does not let go"
                ),
            ),
            LockError::Unsupported => StoreError::new(
                StoreErrorKind::Invalid,
                operation,
                key,
                "the filesystem of the repository has no working flock(2), without which it \
                 cannot be a bucket",
            ),
        })
    }

    /// Removes the temporary files that writes left behind in a crash: those that no process has
    /// locked. Reads no clock.
    pub(super) fn remove_leftovers(&self) {
        let Ok(temporary) = open_directory(self.root(), TEMPORARY) else {
            return;
        };
        let Ok(entries) = Dir::read_from(&temporary) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_bytes().starts_with(b".") {
                continue;
            }
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let Ok(file) = openat(&temporary, name, flags, Mode::empty()) else {
                continue;
            };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = unlinkat(&temporary, name, AtFlags::empty());
            }
        }
    }
}

fn not_flushed(operation: Operation, key: &str, errno: Errno) -> StoreError {
    let kind = match operation.is_write() {
        true => StoreErrorKind::OutcomeUnknown,
        false => StoreErrorKind::Other,
    };
    let message = format!("its directory could not be flushed: {errno}");
    StoreError::new(kind, operation, key, message)
}

fn conflict(key: &str, exists: bool) -> StoreError {
    let message = match exists {
        true => "it has been replaced meanwhile",
        false => "it is no longer there",
    };
    StoreError::new(StoreErrorKind::Conflict, Operation::Replace, key, message)
}

/// Returns a name that no other write ever has, so that a removed draft is never mistaken for
/// another one.
#[expect(
    clippy::disallowed_methods,
    reason = "names of temporary files must differ between machines, and no output depends on them"
)]
fn fresh_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}
