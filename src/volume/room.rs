//! The memory limits of accepted changes, and waiting for room.
//!
//! Owns: the limits, and the tasks that wait. Does not own: the changes, how they leave memory
//! (`flush`, `commit`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::volume::error::VolumeError;
use crate::volume::state::VolumeState;

/// The memory limits of the layers, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Limit for dirty bytes of files. Writers wait beyond it; from half of it on, storing starts
    /// without a request.
    pub data_bytes: u64,
    /// Limit for changed items. Changes wait beyond it; from half of it on, a commit starts.
    pub item_bytes: u64,
}

/// The action that the size of the layers demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// None.
    None,
    /// Storing should start.
    Some,
    /// New changes must wait.
    Full,
}

/// Admits changes while there is room.
#[derive(Debug)]
pub struct Room {
    limits: Limits,
    freed: Notify,
    /// Bytes that writers hold while they wait, and copies that are being stored.
    waiting_bytes: AtomicU64,
    closed: AtomicBool,
    /// The number of failures to store, and the last error.
    failures: Mutex<(u64, Option<VolumeError>)>,
}

impl Room {
    /// Returns room within `limits`.
    pub fn new(limits: Limits) -> Self {
        Room {
            limits,
            freed: Notify::new(),
            waiting_bytes: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// Returns the pressure of dirty bytes. Bytes that wait to be written use the same memory, but
    /// at least a quarter of the limit stays for dirty bytes, so that waiting writers need not wait
    /// for themselves.
    pub fn data_pressure(&self, state: &VolumeState) -> Pressure {
        let limit = self.limits.data_bytes;
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        let left = limit.saturating_sub(waiting).max(limit / 4);
        pressure(state.data_cost(), left)
    }

    /// Returns the bytes held in addition to the layers: see [`Room::hold`].
    pub fn held_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that a waiting writer holds, or that are copied to be stored, until the result
    /// is dropped.
    pub fn hold(&self, bytes: u64) -> Held<'_> {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        Held { room: self, bytes }
    }

    /// Returns the pressure of items.
    pub fn item_pressure(&self, state: &VolumeState) -> Pressure {
        pressure(state.item_cost(), self.limits.item_bytes)
    }

    /// Wakes waiting tasks after something was stored.
    pub fn notify(&self) {
        self.freed.notify_waiters();
    }

    /// Ends all waits, because nothing will be stored any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.freed.notify_waiters();
    }

    /// Reports that storing failed. Tasks that wait now get the error.
    pub fn failed(&self, error: VolumeError) {
        let mut failures = self.failures.lock();
        failures.0 += 1;
        failures.1 = Some(error);
        drop(failures);
        self.freed.notify_waiters();
    }

    /// Waits until `full` returns false, or the room is closed. `full` is called again each time
    /// that something was stored, and `make_room` each time before it waits.
    ///
    /// # Errors
    /// The error of a flush or commit that failed while this waited.
    pub async fn wait(
        &self,
        mut full: impl FnMut() -> bool,
        mut make_room: impl FnMut(),
    ) -> Result<(), VolumeError> {
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
            make_room();
            // What made room may have been a removal, which tells no one.
            if full() {
                freed.await;
            }
        }
    }
}

/// Bytes that count as used until this is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.room
            .waiting_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        self.room.notify();
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::volume::state::Totals;
    use bkfs_chunker::id::Id;
    use futures::FutureExt;

    /// A removal makes room after it was asked for, and tells no one.
    #[test]
    fn room_that_was_made_silently_is_found() {
        let room = Room::new(Limits {
            data_bytes: 1 << 20,
            item_bytes: 1 << 20,
        });
        let is_full = Cell::new(true);
        let waited = room.wait(|| is_full.get(), || is_full.set(false));
        assert!(waited.now_or_never().is_some_and(|waited| waited.is_ok()));
    }

    #[test]
    fn what_waits_takes_room_until_it_waits_no_longer() {
        let room = Room::new(Limits {
            data_bytes: 1 << 20,
            item_bytes: 1 << 20,
        });
        let mut state = VolumeState::new(Id([0; 32]), Totals::default());
        let dirty = vec![1; 400 << 10];
        state
            .active
            .with_data(7, |ranges| ranges.write(0, &dirty, 1));
        assert_eq!(room.data_pressure(&state), Pressure::None);
        let held = room.hold(700 << 10);
        assert_eq!(room.data_pressure(&state), Pressure::Full);
        drop(held);
        assert_eq!(room.data_pressure(&state), Pressure::None);
        let _held = room.hold(1 << 30);
        let empty = VolumeState::new(Id([0; 32]), Totals::default());
        assert_eq!(
            room.data_pressure(&empty),
            Pressure::None,
            "writers wait for what is stored, not for each other"
        );
    }
}
