//! What a session takes from the machine that it runs on, as one argument.
//!
//! Owns: that this is all of it: the time of day, randomness, the table of processes, and who it is itself. (Intervals and deadlines are tokio's, which can be
//! paused.) Does not own: disks and stores, which are arguments of their own.

use std::sync::Arc;

use bkfs_chunker::entropy::{Entropy, SystemEntropy};

use crate::clock::{Clock, SystemClock};
use crate::root::holder::{Processes, SystemProcesses};
use crate::root::state::HolderInfo;

/// A machine, and a process on it. Cheap to clone.
#[derive(Clone)]
pub struct Machine {
    /// Tells the time of day.
    pub clock: Arc<dyn Clock>,
    /// Where ids, salts, nonces and the jitter of pauses come from.
    pub entropy: Arc<dyn Entropy>,
    /// Tells which processes run.
    pub processes: Arc<dyn Processes>,
    /// This process; the mount point is empty.
    pub process: HolderInfo,
}

impl Machine {
    /// The machine that this program runs on.
    pub fn this() -> Self {
        Machine {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            processes: Arc::new(SystemProcesses),
            process: HolderInfo::of_this_process(""),
        }
    }

    /// This process as the holder of a volume, for `mount_point` or a command of that name.
    pub fn holder(&self, mount_point: &str) -> HolderInfo {
        HolderInfo {
            mount_point: mount_point.to_owned(),
            ..self.process.clone()
        }
    }

    /// The time of day, for what is recorded.
    pub fn now(&self) -> jiff::Timestamp {
        let now = self.clock.now();
        jiff::Timestamp::new(now.seconds, now.nanoseconds as i32)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}
