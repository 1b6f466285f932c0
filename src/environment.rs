//! Everything that a session takes from its machine, as one argument.
//!
//! This module owns the list: the time of day, randomness, the table of processes, and the identity
//! of this process. Intervals and deadlines come from tokio, whose clock can be paused. Disks and
//! stores are arguments of their own.

use std::sync::Arc;

use bkfs_store::entropy::{Entropy, SystemEntropy};

use crate::clock::{Clock, SystemClock};
use crate::root::holder::{Processes, SystemProcesses};
use crate::root::state::HolderInfo;

/// A machine, and a process on it. Cheap to clone.
#[derive(Clone)]
pub struct Environment {
    /// The clock for the time of day.
    pub clock: Arc<dyn Clock>,
    /// The source of ids, salts, nonces and the jitter of pauses.
    pub entropy: Arc<dyn Entropy>,
    /// The table of running processes.
    pub processes: Arc<dyn Processes>,
    /// This process, with an empty mount point.
    pub process: HolderInfo,
}

impl Environment {
    /// Returns the machine that this program runs on.
    pub fn this() -> Self {
        Environment {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            processes: Arc::new(SystemProcesses),
            process: HolderInfo::of_this_process(""),
        }
    }

    /// Returns this process as the holder of a volume, for `mount_point` or for a command of that
    /// name.
    pub fn holder(&self, mount_point: &str) -> HolderInfo {
        HolderInfo {
            mount_point: mount_point.to_owned(),
            ..self.process.clone()
        }
    }

    /// Returns the time of day, for records.
    pub fn now(&self) -> jiff::Timestamp {
        let now = self.clock.now();
        jiff::Timestamp::new(now.seconds, now.nanoseconds as i32)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}
