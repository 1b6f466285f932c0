//! Temporary names of files that are not whole yet, and the removal of such files that an
//! interrupted restore has left.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_store::entropy::Entropy;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Prefix of all temporary names.
const PREFIX: &[u8] = b".bkfs-restore-";

/// A generator of names that no other restore generates. A random salt tells restores apart,
/// because process ids repeat, and in containers are always the same.
#[derive(Debug)]
pub struct Drafts {
    salt: u64,
    next: AtomicU64,
}

impl Drafts {
    /// Returns a generator for one restore.
    pub fn new(entropy: &dyn Entropy) -> Drafts {
        let mut salt = [0; 8];
        entropy.fill(&mut salt);
        Drafts {
            salt: u64::from_le_bytes(salt),
            next: AtomicU64::new(0),
        }
    }

    /// Returns the next name.
    pub fn next(&self) -> OsString {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!(".bkfs-restore-{:016x}-{number}", self.salt).into()
    }
}

/// Returns true if a restore has generated this name. Older versions used the process id as the
/// salt; their names count too.
fn is_draft(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return false;
    };
    let mut parts = rest.split(|byte| *byte == b'-');
    let all = |part: Option<&[u8]>, is_digit: fn(&u8) -> bool| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(is_digit))
    };
    all(parts.next(), u8::is_ascii_hexdigit)
        && all(parts.next(), u8::is_ascii_digit)
        && parts.next().is_none()
}

/// Removes the temporary files that earlier restores have left in a directory. A file that a
/// running restore holds is locked, and stays.
///
/// # Errors
/// The error of listing the directory, of opening or locking a temporary file, or of removing it.
pub fn sweep(directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let is_file = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
        if is_file && is_draft(name.as_bytes()) {
            remove(directory, name)?;
        }
    }
    Ok(())
}

fn remove(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => rustix::fs::unlinkat(directory, name, AtFlags::empty()),
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bkfs_testing::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn names_of_drafts_are_known_and_no_others() {
        let drafts = Drafts::new(&SeededEntropy::new(1));
        let (one, other) = (drafts.next(), drafts.next());
        assert_ne!(one, other);
        assert!(is_draft(one.as_bytes()) && is_draft(b".bkfs-restore-1-0"));
        for name in [
            &b".bkfs-restore-"[..],
            b".bkfs-restore-1",
            b".bkfs-restore-1-x",
            b".bkfs-restore-1-2-3",
            b".bkfs-restore-x-2",
            b"a.bkfs-restore-1-2",
        ] {
            assert!(!is_draft(name), "{name:?}");
        }
    }

    #[test]
    fn no_two_restores_give_out_the_same_names() {
        let salt = |seed| Drafts::new(&SeededEntropy::new(seed)).next();
        assert_ne!(salt(1), salt(2));
    }

    #[test]
    fn what_was_left_behind_is_removed_and_what_is_held_stays() {
        let home = tempfile::TempDir::new().unwrap();
        let file = |name: &str| std::fs::File::create(home.path().join(name)).unwrap();
        file(".bkfs-restore-1-0");
        file("kept");
        let held = file(".bkfs-restore-00ff-7");
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        let directory = std::fs::File::open(home.path()).unwrap();
        sweep(directory.as_fd()).unwrap();
        let left = |name: &str| home.path().join(name).exists();
        assert!(!left(".bkfs-restore-1-0"));
        assert!(left("kept") && left(".bkfs-restore-00ff-7"));
    }
}
