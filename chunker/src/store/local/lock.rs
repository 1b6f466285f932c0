//! The locks that make compare-and-swap of a file one step, across processes and machines.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;

/// How many lock files there are. Only writes over existing objects take one, and only for the moment of the rename.
pub(super) const LOCKS: usize = 64;

/// How long a lock is waited for, counted in sleeps. Whoever holds one does a rename and a flush; longer means a process that was
/// stopped, or a file server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of the lock that belongs to a key.
pub(super) fn lock_number(key: &str) -> usize {
    usize::from(blake3::hash(key.as_bytes()).as_bytes()[0]) % LOCKS
}

/// A held lock; it ends when this is dropped, or with the process.
#[derive(Debug)]
pub(super) struct Lock {
    _file: OwnedFd,
}

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process held it all the time.
    Busy,
    /// The filesystem has no locks that work.
    Unsupported,
    /// The lock file cannot be opened.
    File(Errno),
}

/// Takes lock `number` of the directory of lock files, waiting for it.
pub(super) fn take_lock(locks: impl AsFd, number: usize) -> Result<Lock, LockError> {
    let mut waited = Duration::ZERO;
    loop {
        // Network filesystems give an exclusive lock only on a file that is open for writing.
        let file = openat(
            &locks,
            format!("{number:02x}"),
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(LockError::File)?;
        wait_for(&file, &mut waited)?;
        // A lock on a file that somebody removed meanwhile excludes nobody.
        match fstat(&file) {
            Ok(status) if status.st_nlink > 0 => return Ok(Lock { _file: file }),
            Ok(_) => {}
            Err(error) => return Err(LockError::File(error)),
        }
    }
}

fn wait_for(file: &OwnedFd, waited: &mut Duration) -> Result<(), LockError> {
    let mut pause = Duration::from_micros(200);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if *waited < PATIENCE => {
                std::thread::sleep(pause);
                *waited += pause;
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(LockError::Busy),
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Err(LockError::Unsupported);
            }
            Err(error) => return Err(LockError::File(error)),
        }
    }
}
