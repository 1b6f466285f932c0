//! Memory that accepted changes may take, and waiting for it.
//!
//! Owns: the limits and who waits. Does not own: the changes, nor how they leave memory (`flush`, `commit`).

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::volume::error::VolumeError;
use crate::volume::state::State;

/// How much memory the layers may take, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Dirty bytes of files. Writers wait beyond it; half of it starts storing without being asked.
    pub data_bytes: u64,
    /// Changed items. Changes wait beyond it; half of it starts a commit.
    pub item_bytes: u64,
}

/// What the layers' size asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// Nothing.
    None,
    /// Storing should start.
    Some,
    /// Whoever brings more must wait.
    Full,
}

/// Lets changes in as long as there is room.
#[derive(Debug)]
pub struct Room {
    limits: Limits,
    freed: Notify,
    closed: AtomicBool,
    /// How often storing came to nothing, and why the last time.
    failures: Mutex<(u64, Option<VolumeError>)>,
}

impl Room {
    /// Room within `limits`.
    pub fn new(limits: Limits) -> Self {
        Room {
            limits,
            freed: Notify::new(),
            closed: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// How full it is with dirty bytes.
    pub fn data_pressure(&self, state: &State) -> Pressure {
        pressure(state.data_cost(), self.limits.data_bytes)
    }

    /// How full it is with items.
    pub fn item_pressure(&self, state: &State) -> Pressure {
        pressure(state.item_cost(), self.limits.item_bytes)
    }

    /// Something was stored.
    pub fn notify(&self) {
        self.freed.notify_waiters();
    }

    /// Nobody need wait any more: nothing will be stored.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.freed.notify_waiters();
    }

    /// Storing came to nothing: whoever waits now need not wait for it any longer.
    pub fn failed(&self, error: VolumeError) {
        let mut failures = self.failures.lock();
        failures.0 += 1;
        failures.1 = Some(error);
        drop(failures);
        self.freed.notify_waiters();
    }

    /// Waits until `full` says no, or the room is closed. `full` is asked again whenever something was stored.
    ///
    /// # Errors
    /// Why storing came to nothing meanwhile: the store made no progress for as long as anybody may wait for it.
    pub async fn wait(&self, mut full: impl FnMut() -> bool) -> Result<(), VolumeError> {
        let before = self.failures.lock().0;
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.closed.load(Ordering::Acquire) || !full() {
                return Ok(());
            }
            let failures = self.failures.lock().clone();
            if let (true, Some(error)) = (failures.0 != before, failures.1) {
                return Err(error);
            }
            freed.await;
        }
    }
}

fn pressure(cost: u64, limit: u64) -> Pressure {
    if cost >= limit {
        Pressure::Full
    } else if cost >= limit / 2 {
        Pressure::Some
    } else {
        Pressure::None
    }
}
