//! What every load takes and gives.

use std::path::PathBuf;

use crate::Outcome;
use crate::measure::{Run, verified};

/// The number of transactions or writes whose time a run tells.
pub(super) const UNIT: f64 = 1000.0;

/// What a load did.
pub(super) struct Done {
    /// Transactions or writes per second.
    pub(super) rate: f64,
    /// The 99th percentile of the time of one, in ms; `None` if the load does not tell it.
    pub(super) p99_ms: Option<f64>,
    /// Number of writes, if these are what the load is made of.
    pub(super) writes: usize,
    /// What the server says of the contents of each table at the end; empty if it does not.
    pub(super) checksums: String,
}

/// The data that the loads run on, at rest, and how long they run.
pub(super) struct Sources {
    pub(super) directory: PathBuf,
    pub(super) rows: u32,
    /// Bytes of the tables of MariaDB.
    pub(super) tables: u64,
    pub(super) seconds: u64,
}

impl Done {
    /// Returns the run, once what the load has left was checked.
    pub(super) fn checked(&self) -> Outcome<Run> {
        if self.rate <= 0.0 {
            return Err("nothing was done in the time of the load".into());
        }
        Ok(verified(Run {
            wall_s: UNIT / self.rate,
            p99_ms: self.p99_ms,
            ..Run::default()
        }))
    }
}
