//! How objects come into the directory and leave it: write aside, flush, move into place, flush the names.

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
use crate::store::{Operation, StoreError, StoreErrorKind, Version};

/// Our own corner of the directory.
const CORNER: &str = ".bkfs";
const TEMPORARY: &str = ".bkfs/tmp";
const LOCKS: &str = ".bkfs/locks";

/// How often a write is made again because a cleaner on another machine took its temporary file for a leftover.
const ATTEMPTS_MAX: usize = 4;

/// An object that is written and flushed, and has no name among the objects yet.
struct Draft {
    name: String,
    file: OwnedFd,
    version: Version,
}

/// How a draft came to its place.
enum Placed {
    Yes,
    /// Something else has the name.
    Occupied,
    /// The draft was taken away: write it again.
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

    /// Writes over whatever is at `key`, if it is `expected`.
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
                    // Flushed before the lock ends, so that whoever replaces it next does so on top of what is on disk.
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
                // Absent is fine, as long as the bucket is there.
                let error = self.error(operation, key, Errno::NOENT);
                return match error.kind() {
                    StoreErrorKind::NoBucket => Err(error),
                    // An earlier attempt may have removed it without its absence having come to disk.
                    _ => self.settle(operation, key),
                };
            }
            Err(errno) => return Err(self.error(operation, key, errno)),
        }
        self.flush_name(operation, key)?;
        self.remove_if_empty(key);
        Ok(())
    }

    /// A directory two levels down or deeper (a finished session's journal) goes with its last object.
    fn remove_if_empty(&self, key: &str) {
        let directory = parent_of(key);
        if !directory.contains('/') {
            return;
        }
        // Not empty, or gone already: either is right. A writer that loses its directory makes it again.
        if unlinkat(self.root(), directory, AtFlags::REMOVEDIR).is_ok() {
            self.syncer.forget(directory);
        }
    }

    /// That a name is taken is an answer about an object that stays: whoever made it may not have flushed it, an earlier attempt of this process included.
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

    /// Before what is at `key`, or is not, is believed to stay so.
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

    /// Puts the name of `key`, or its absence, on disk. A failure leaves open which of the two a crash would show.
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
        // Says that the write is in progress, as long as this process lives. Where there are no locks, a cleaner may take
        // the file away; that is noticed when it is to be moved.
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
                // After a failed flush nothing is known of the file's content: it is never flushed again, only dropped.
                let _ = unlinkat(self.root(), &name, AtFlags::empty());
                Err(errno)
            }
        }
    }

    fn discard(&self, draft: &Draft) {
        // What cannot be removed now is removed as a leftover.
        let _ = unlinkat(self.root(), &draft.name, AtFlags::empty());
    }

    /// Gives a draft its name, if nothing has that name.
    fn place_new(&self, draft: &Draft, key: &str) -> Result<Placed, Errno> {
        let root = self.root();
        let moved = self.with_parents(key, || {
            renameat_with(root, &draft.name, root, key, RenameFlags::NOREPLACE)
        });
        let result = match moved {
            // Not every filesystem knows this flag (NFS does not): a second name is refused as well where there is one.
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
                // A file server that was asked twice refuses the second time, though the first succeeded.
                tracing::debug!(key, %errno, "the name was given in spite of the error");
                self.discard(draft);
                Ok(Placed::Yes)
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(Placed::Occupied),
            Err(Errno::NOENT) if self.is_lost(draft) => Ok(Placed::Lost),
            Err(errno) => Err(errno),
        }
    }

    /// Gives a draft its name, whatever has it.
    fn place_over(&self, draft: &Draft, key: &str) -> Result<Placed, Errno> {
        let root = self.root();
        match self.with_parents(key, || renameat(root, &draft.name, root, key)) {
            Ok(()) => Ok(Placed::Yes),
            Err(_) if self.is_at(draft, key) => Ok(Placed::Yes),
            Err(Errno::NOENT) if self.is_lost(draft) => Ok(Placed::Lost),
            Err(errno) => Err(errno),
        }
    }

    /// Does `work`, and again after making the key's directories if that was missing.
    fn with_parents(
        &self,
        key: &str,
        mut work: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut result = work();
        // Again, since a directory that became empty may be removed between the two.
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

    /// Nothing in there has to survive a crash, so it is not flushed.
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
                format!("another process holds the lock {LOCKS}/{number:02x} of the repository and does not let go"),
            ),
            LockError::Unsupported => StoreError::new(
                StoreErrorKind::Invalid,
                operation,
                key,
                "the filesystem of the repository has no working flock(2), without which it cannot be a bucket",
            ),
        })
    }

    /// Removes what writes that were cut off by a crash left behind: temporary files that no process holds. No clock is asked.
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

/// A name that no write ever had or will have: a draft that was taken away must not be mistaken for another one.
#[expect(
    clippy::disallowed_methods,
    reason = "names of temporary files are seen by nobody, and must differ between machines"
)]
fn fresh_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}
