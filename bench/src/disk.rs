//! Files and trees on the disk that is measured.
//!
//! Owns: their removal, the wait until they are durable, and their paths as arguments of commands.
//! Does not own: their contents (`data`) and their comparison (`verify`).

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Failure, Outcome, measure};

/// Removes a file or tree, if it exists.
///
/// # Errors
/// The I/O error, with the path.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let removed = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Waits until the filesystem of `path` has everything on disk. Returns the time, in seconds.
///
/// # Errors
/// As [`measure::command`].
pub fn flush(path: &Path) -> Outcome<f64> {
    let run = measure::command(Command::new("sync").arg("-f").arg(path))?;
    Ok(run.wall_s)
}

/// Returns a path as an argument. All paths here are the benchmark's own and need no quoting.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
