//! The time of day, as an argument.

use crate::tree::item::Timestamp;

/// Tells the time. Nothing is ever deleted because of it.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
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
