//! Locks that make compare-and-swap of a file atomic across processes and machines.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};
use rustix::io::Errno;

use crate::backoff::Backoff;

/// The number of lock files. `put`, `replace` and `delete` take one, for one rename or removal and
/// one flush.
pub(super) const LOCKS: usize = 64;

/// How long a lock is waited for, counted in sleeps. A holder does one rename and one flush. A
/// longer hold means a stopped process, or a file server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pauses between two looks at a lock that another holder has.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_micros(200),
    longest: Duration::from_millis(10),
};

/// Returns the number of a key's lock.
pub(super) fn lock_number(key: &str) -> usize {
    usize::from(blake3::hash(key.as_bytes()).as_bytes()[0]) % LOCKS
}

/// A held lock. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub(super) struct Lock {
    _file: OwnedFd,
}

/// Why a lock could not be taken.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another holder had it for the whole time.
    Busy,
    /// The filesystem has no working locks.
    Unsupported,
    /// The lock file cannot be opened.
    File(Errno),
}

/// Waits for lock `number` in the directory of lock files, and takes it.
pub(super) fn take_lock(locks: impl AsFd, number: usize) -> Result<Lock, LockError> {
    let mut waited = Duration::ZERO;
    loop {
        // Network filesystems grant an exclusive lock only on a file that is open for writing.
        let file = openat(
            &locks,
            format!("{number:02x}"),
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(LockError::File)?;
        wait_for(&file, &mut waited)?;
        // A lock on a file that was removed meanwhile excludes no other process.
        match fstat(&file) {
            Ok(status) if status.st_nlink > 0 => return Ok(Lock { _file: file }),
            Ok(_) => {}
            Err(error) => return Err(LockError::File(error)),
        }
    }
}

fn wait_for(file: &OwnedFd, waited: &mut Duration) -> Result<(), LockError> {
    let mut failures = 0;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if *waited < PATIENCE => {
                failures += 1;
                let pause = BACKOFF.limit(failures);
                std::thread::sleep(pause);
                *waited += pause;
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(LockError::Busy),
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Err(LockError::Unsupported);
            }
            Err(error) => return Err(LockError::File(error)),
        }
    }
}
