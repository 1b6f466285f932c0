//! What a suite is given: places, sizes, the program, the peers, and the report that it fills.

use std::fs;
use std::path::{Path, PathBuf};

use crate::measure::Run;
use crate::peers::Peers;
use crate::program::Program;
use crate::report::{Record, Report};
use crate::{Failure, Outcome};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// To see that it works: a few MiB, in seconds.
    Small,
    /// To see where the time goes: a tenth.
    Middle,
    /// As the figures are published.
    Full,
}

impl Size {
    /// One of three.
    pub fn choose<T>(self, small: T, middle: T, full: T) -> T {
        match self {
            Size::Small => small,
            Size::Middle => middle,
            Size::Full => full,
        }
    }
}

/// What a suite works with.
pub struct Context {
    /// A directory of the benchmark's own, on the disk that is measured.
    pub work: PathBuf,
    /// Runs of each step.
    pub repeat: usize,
    /// How much.
    pub size: Size,
    /// bkfs.
    pub program: Program,
    /// Everybody else.
    pub peers: Peers,
    /// What was measured.
    pub report: Report,
}

impl Context {
    /// An empty directory of this name, in place of whatever was there.
    ///
    /// # Errors
    /// The disk's.
    pub fn fresh(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.work.join(name);
        remove(&path)?;
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Notes a run of `system` at `step`.
    pub fn note(&mut self, suite: &'static str, step: &str, system: &str, run: Run) {
        eprintln!(
            "  {suite} · {step} · {system}: {:.2} s{}",
            run.wall_s,
            if run.verified { ", verified" } else { "" }
        );
        self.report.add(
            Record {
                suite,
                step: step.to_owned(),
                system: system.to_owned(),
                runs: Vec::new(),
            },
            run,
        );
    }

    /// Notes that a peer could not take part.
    pub fn absent(&mut self, name: &str, reason: impl std::fmt::Display) {
        eprintln!("  {name} is absent: {reason}");
        self.report.absent(name, &reason.to_string());
    }

    /// Runs a peer's part: what fails in a peer is reported and ends its part alone.
    pub fn peer(&mut self, name: &str, part: impl FnOnce(&mut Self) -> Outcome<()>) {
        if let Err(error) = part(self) {
            self.absent(name, format!("failed: {error}"));
        }
    }
}

/// Removes a file or tree, if it is there.
///
/// # Errors
/// The disk's.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let removed = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|error| format!("{}: {error}", path.display()).into())
}
