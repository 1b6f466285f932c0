//! Directories and locks of one user on this machine, which other users can neither read nor block.
//!
//! This module owns their modes and the time that a lock is waited for. `places` knows their paths,
//! and the callers own their contents.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Time after which a lock that another process holds is given up. Its holders need milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Interval at which a lock that another process holds is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Number of draft names that [`replace`] tries beyond the first.
///
/// A process that died, or one in another container, can leave a draft under the same process id.
const DRAFTS_MAX: u32 = 1000;

/// Makes a directory of this user, and its missing parents, with mode 0700.
///
/// If the directory exists, belongs to this user and is open to others, its mode becomes 0700.
///
/// # Errors
/// The error of the system call that fails.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    tighten(path, 0o700)
}

/// Creates a file of this user with mode 0600, or opens it for writing.
///
/// If the file belongs to this user and is open to others, its mode becomes 0600.
///
/// # Errors
/// The error of the system call that fails.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    tighten(path, 0o600)?;
    Ok(file)
}

/// Replaces or creates a file of this user with mode 0600, in one step.
///
/// A reader finds all of `bytes`, or the old content.
///
/// # Errors
/// The error of the system call that fails.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (draft, mut file) = create_draft(path)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The draft holds nothing that is needed.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Creates a new file in the directory of `path`.
///
/// Its name has a number as well, because processes in containers that share a directory can have
/// equal process ids.
fn create_draft(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut number = 0;
    loop {
        let draft = path.with_extension(format!("{}-{number}.new", std::process::id()));
        match options.open(&draft) {
            Ok(file) => return Ok((draft, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < DRAFTS_MAX => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn tighten(path: &Path, mode: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && !found.is_symlink() && found.mode() & 0o777 & !mode != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Locks a file, which is created if needed.
///
/// If another process holds the lock, waits for [`LOCK_WAIT`] (5 s).
///
/// # Errors
/// `TimedOut`, with the id of the process that holds the lock if it can be found; otherwise the
/// error of the system call that fails.
pub fn lock(path: &Path) -> io::Result<File> {
    lock_within(path, LOCK_WAIT)
}

fn lock_within(path: &Path, wait: Duration) -> io::Result<File> {
    let file = open(path)?;
    let begin = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if begin.elapsed() < wait => {
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(held(path, &file)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn held(path: &Path, file: &File) -> io::Error {
    let by = match holder(file) {
        Some(process) => format!("process {process}"),
        None => "another process".to_owned(),
    };
    let text = format!(
        "{} has been locked by {by} for {} s: end that process",
        path.display(),
        LOCK_WAIT.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// Returns the id of the process that holds the lock, if this process may know it.
///
/// A line of /proc/locks reads `1: FLOCK  ADVISORY  READ 1234 08:01:5678 0 EOF`.
fn holder(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    let (major, minor) = (
        rustix::fs::major(found.dev()),
        rustix::fs::minor(found.dev()),
    );
    let place = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let table = fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, process) = (words.next()?, words.nth(2)?);
        (kind == "FLOCK" && words.next()? == place).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_that_is_replaced_is_this_users_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("memory");
        fs::write(&file, "what others may read").unwrap();
        replace(&file, b"new").unwrap();
        assert_eq!(
            (mode(&file), fs::read(&file).unwrap()),
            (0o600, b"new".to_vec())
        );
        assert_eq!(
            fs::read_dir(home.path()).unwrap().count(),
            1,
            "no draft stays"
        );
    }

    #[test]
    fn what_others_may_use_is_closed_to_them() {
        let home = tempfile::tempdir().unwrap();
        let (outer, inner) = (home.path().join("a"), home.path().join("a/b"));
        make_directory(&inner).unwrap();
        assert_eq!((mode(&outer), mode(&inner)), (0o700, 0o700));
        fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
        make_directory(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
        let file = inner.join("lock");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(lock(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        tighten(&file, 0o600).unwrap();
        assert_eq!(mode(&file), 0o400, "no mode is widened");
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_and_its_holder_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lock");
        let shared = open(&path).unwrap();
        flock(&shared, FlockOperation::LockShared).unwrap();
        let refused = lock_within(&path, Duration::from_millis(60)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        let process = format!("process {}", std::process::id());
        assert!(refused.to_string().contains(&process), "{refused}");
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            drop(shared);
        });
        lock(&path).unwrap();
        freed.join().unwrap();
    }
}
