//! The input of a suite: directories, sizes, the program, the peers, and the report that it fills.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::disk::remove;
use crate::measure::Run;
use crate::peers::Peers;
use crate::program::Program;
use crate::report::{Record, Report};

/// The amount of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A few MiB, in seconds: to test the benchmark itself.
    Small,
    /// About a tenth: to see which step takes the time.
    Middle,
    /// The size of the published figures.
    Full,
}

impl Size {
    /// Returns the value for this size.
    pub fn choose<T>(self, small: T, middle: T, full: T) -> T {
        match self {
            Size::Small => small,
            Size::Middle => middle,
            Size::Full => full,
        }
    }
}

/// The input of a suite.
pub struct Context {
    /// A directory of the benchmark's own, on the disk that is measured.
    pub work: PathBuf,
    /// Number of runs of each step.
    pub repeat: usize,
    /// The amount of data.
    pub size: Size,
    /// The bkfs program.
    pub program: Program,
    /// The other systems.
    pub peers: Peers,
    /// The results.
    pub report: Report,
}

impl Context {
    /// Makes an empty directory of this name, and removes what was there.
    ///
    /// # Errors
    /// The I/O error of removing or making it.
    pub fn fresh(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.work.join(name);
        remove(&path)?;
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Makes `work` the benchmark's own directory, and lets the program keep its state there too.
    /// Returns the directory of before.
    pub fn move_to(&mut self, work: &Path) -> PathBuf {
        self.program = self.program.with_home(work.join("home"));
        std::mem::replace(&mut self.work, work.to_owned())
    }

    /// Adds a run of `system` at `step` to the report.
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

    /// Notes that a peer is absent.
    pub fn absent(&mut self, name: &str, reason: impl std::fmt::Display) {
        eprintln!("  {name} is absent: {reason}");
        self.report.absent(name, &reason.to_string());
    }

    /// Runs the part of one peer. An error is reported as an absence, and ends only this part.
    pub fn peer(&mut self, name: &str, part: impl FnOnce(&mut Self) -> Outcome<()>) {
        if let Err(error) = part(self) {
            self.absent(name, format!("failed: {error}"));
        }
    }
}
