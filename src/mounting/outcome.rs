//! The outcome of a mount, as a file that the unmounting process reads. The daemon has no parent
//! process that could see its exit code.
//!
//! Owns: the file. Each mount point has one; the next mount there overwrites it.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;

/// Maximum length of an outcome file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The outcome of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Process id of the daemon that served the mount.
    pub pid: u32,
    /// The reason why not all accepted data is in the bucket; none if all of it is.
    pub error: Option<String>,
}

/// Returns the path of the outcome file of a mount, below `state`, this machine's state directory.
pub fn place(state: &Path, mount_point: &Path) -> PathBuf {
    let hash = blake3::hash(mount_point.as_os_str().as_bytes()).to_hex();
    state.join("outcomes").join(&hash[..16])
}

/// Removes the outcome of an earlier mount at the same place, and makes sure that the directory
/// exists.
///
/// # Errors
/// The system's error if the directory cannot be made or the old file cannot be removed.
pub fn prepare(place: &Path) -> io::Result<()> {
    if let Some(directory) = place.parent() {
        private::make_directory(directory)?;
    }
    match std::fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes the outcome in one atomic step, so that a reader never sees half of it.
///
/// # Errors
/// The system's error if the file cannot be replaced.
pub fn write(place: &Path, outcome: &Outcome) -> io::Result<()> {
    private::replace(place, &serde_json::to_vec(outcome)?)
}

/// Returns the outcome of the mount that process `pid` served; none if that process has not written
/// one.
pub fn read(place: &Path, pid: i64) -> Option<Outcome> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(place).ok()?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let outcome: Outcome = serde_json::from_slice(&bytes).ok()?;
    (i64::from(outcome.pid) == pid).then_some(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outcome_of_that_mount_counts() {
        let state = tempfile::TempDir::new().unwrap();
        let place = place(state.path(), Path::new("/mnt/backup"));
        prepare(&place).unwrap();
        assert_eq!(read(&place, 7), None);
        let outcome = Outcome {
            pid: 7,
            error: Some("no room".to_owned()),
        };
        write(&place, &outcome).unwrap();
        assert_eq!(read(&place, 7), Some(outcome));
        assert_eq!(read(&place, 8), None, "it is another mount's");
        prepare(&place).unwrap();
        assert_eq!(read(&place, 7), None);
        std::fs::write(&place, "{").unwrap();
        assert_eq!(read(&place, 7), None);
    }
}
