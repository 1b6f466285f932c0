//! Temporary names of files that are not whole yet, and the removal of such files that an
//! interrupted restore has left.

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_store::entropy::Entropy;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::tree::item::Timestamp;

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

/// The age at which a draft counts as left behind that cannot be locked, because it is no file. A
/// restore renames such a draft right after it has made it.
const AGE_SECONDS: i64 = 600;

/// Removes the drafts that earlier restores have left in a directory. A file that a running restore
/// holds is locked, and stays.
///
/// # Errors
/// The error of listing the directory, or the last one of opening, locking or removing a draft: the
/// others are removed all the same.
pub fn sweep(directory: BorrowedFd<'_>, now: Timestamp) -> rustix::io::Result<()> {
    let mut swept = Ok(());
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if !is_draft(name.as_bytes()) {
            continue;
        }
        match sweep_one(directory, name, now) {
            // Its restore has given it its own name.
            Ok(()) | Err(Errno::NOENT) => {}
            failed => swept = failed,
        }
    }
    swept
}

fn sweep_one(directory: BorrowedFd<'_>, name: &OsStr, now: Timestamp) -> rustix::io::Result<()> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => remove(directory, name),
        FileType::Directory => Ok(()),
        _ if now.seconds - found.st_ctime < AGE_SECONDS => Ok(()),
        _ => rustix::fs::unlinkat(directory, name, AtFlags::empty()),
    }
}

/// Holds a file while it has a draft as a further name, so that no other restore removes that name.
/// Returns none if it is no file, or cannot be held.
pub fn hold(directory: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    locked.ok().map(|()| file)
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
    use crate::clock::{Clock, SystemClock};

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
        sweep(directory.as_fd(), SystemClock.now()).unwrap();
        let left = |name: &str| home.path().join(name).exists();
        assert!(!left(".bkfs-restore-1-0"));
        assert!(left("kept") && left(".bkfs-restore-00ff-7"));
    }

    #[test]
    fn a_draft_that_is_no_file_is_removed_once_it_is_old() {
        let home = tempfile::TempDir::new().unwrap();
        let draft = home.path().join(".bkfs-restore-1-0");
        std::os::unix::fs::symlink("nowhere", &draft).unwrap();
        let directory = std::fs::File::open(home.path()).unwrap();
        let mut now = SystemClock.now();
        sweep(directory.as_fd(), now).unwrap();
        assert!(draft.symlink_metadata().is_ok(), "a restore may be at it");
        now.seconds += AGE_SECONDS + 1;
        sweep(directory.as_fd(), now).unwrap();
        assert!(draft.symlink_metadata().is_err());
    }

    #[test]
    fn a_further_name_stays_while_its_file_is_held() {
        let home = tempfile::TempDir::new().unwrap();
        let draft = home.path().join(".bkfs-restore-1-0");
        std::fs::write(home.path().join("file"), "x").unwrap();
        std::fs::hard_link(home.path().join("file"), &draft).unwrap();
        let directory = std::fs::File::open(home.path()).unwrap();
        let held = hold(directory.as_fd(), "file".as_ref());
        assert!(held.is_some());
        sweep(directory.as_fd(), SystemClock.now()).unwrap();
        assert!(draft.exists());
        drop(held);
        sweep(directory.as_fd(), SystemClock.now()).unwrap();
        assert!(!draft.exists() && home.path().join("file").exists());
    }
}
