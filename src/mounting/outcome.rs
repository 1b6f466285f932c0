//! How a mount ended, for whoever unmounted it: the daemon is nobody's child, and its exit code is seen by none.
//!
//! Owns the file, one for each mount point, written over by the next mount there.

use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;

/// No outcome is longer, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// How a mount ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The process that served it.
    pub pid: u32,
    /// Why not everything accepted is in the bucket; none if it is.
    pub error: Option<String>,
}

/// Where the outcome of a mount is written, below the directory where this machine remembers things.
pub fn place(state: &Path, mount_point: &Path) -> PathBuf {
    let hash = blake3::hash(mount_point.as_os_str().as_bytes()).to_hex();
    state.join("outcomes").join(&hash[..16])
}

/// Forgets how an earlier mount of the same place ended, and makes sure that this one can say it.
pub fn prepare(place: &Path) -> io::Result<()> {
    if let Some(directory) = place.parent() {
        private::make_directory(directory)?;
    }
    match std::fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Says how it ended; in one step, so that no half of it is read.
pub fn write(place: &Path, outcome: &Outcome) -> io::Result<()> {
    private::replace(place, &serde_json::to_vec(outcome)?)
}

/// How the mount that process `pid` served ended; none if it has not said it.
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
