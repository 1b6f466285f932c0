//! What every load takes and gives.

use std::path::PathBuf;

use crate::measure::{Run, verified};

/// The number of transactions or writes whose time a run tells.
pub(super) const UNIT: f64 = 1000.0;

/// What a load did.
pub(super) struct Done {
    /// Transactions or writes per second.
    pub(super) rate: f64,
    /// The 99th percentile of the time of one, in ms; `None` if the load does not tell it.
    pub(super) p99_ms: Option<f64>,
}

/// The data that the loads run on, at rest, and how long they run.
pub(super) struct Sources {
    pub(super) directory: PathBuf,
    pub(super) rows: u32,
    /// Bytes of the tables of MariaDB.
    pub(super) tables: u64,
    pub(super) seconds: u64,
}

/// Returns the run of a load of which `done` is known.
pub(super) fn run_of(done: &Done, run: Run) -> Run {
    verified(Run {
        wall_s: UNIT / done.rate,
        p99_ms: done.p99_ms,
        ..run
    })
}
