//! The time of day, as an argument.

use crate::tree::item::Timestamp;

/// A source of the time of day.
///
/// A wrong clock can shorten the undelete window of forgotten snapshots (docs/PROTOCOL.md, rule 9).
/// Sessions, journals and snapshots that are kept do not depend on the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp {
            seconds: now.tv_sec,
            nanoseconds: now.tv_nsec as u32,
        }
    }
}
