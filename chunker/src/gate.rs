//! Bounded memory: reservations of bytes.
//!
//! Owns the accounting only. `ingest` reserves bytes from the moment a new chunk is accepted until
//! its pack is acknowledged. `hydrate` reserves bytes from the request for a range until the range
//! is decoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A semaphore that admits at most `capacity` bytes at a time, in the order of the calls.
#[derive(Debug)]
pub(crate) struct ByteGate {
    semaphore: Arc<Semaphore>,
    capacity: u64,
    peak: AtomicU64,
}

/// Bytes reserved at a [`ByteGate`]. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    permit: OwnedSemaphorePermit,
}

impl ByteGate {
    /// Returns a gate of `capacity` bytes, or of `u32::MAX` bytes if that is less.
    pub(crate) fn new(capacity: u64) -> Self {
        let capacity = capacity.min(u64::from(u32::MAX));
        Self {
            semaphore: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            peak: AtomicU64::new(0),
        }
    }

    /// Waits until `bytes` bytes are free. A request for more than the capacity waits for the whole
    /// capacity.
    pub(crate) async fn reserve(&self, bytes: u64) -> Reservation {
        let count = u32::try_from(bytes.min(self.capacity)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.semaphore)
            .acquire_many_owned(count)
            .await
            .expect("a byte gate is never closed");
        self.note_peak();
        Reservation { permit }
    }

    /// Reserves `bytes` bytes if they are free now.
    pub(crate) fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let count = u32::try_from(bytes.min(self.capacity)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.semaphore)
            .try_acquire_many_owned(count)
            .ok()?;
        self.note_peak();
        Some(Reservation { permit })
    }

    /// Returns the most bytes that can be reserved at once.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes that are reserved now.
    pub(crate) fn used(&self) -> u64 {
        self.capacity - self.semaphore.available_permits() as u64
    }

    /// Returns the most bytes that were ever reserved at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn note_peak(&self) {
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }
}

impl Reservation {
    /// Returns the number of bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.permit.num_permits() as u64
    }

    /// Releases all but `bytes` bytes.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let surplus = self.bytes().saturating_sub(bytes);
        drop(self.permit.split(surplus as usize));
    }

    /// Moves `bytes` bytes into a separate reservation, or all of them if there are fewer.
    pub(crate) fn split(&mut self, bytes: u64) -> Reservation {
        let count = bytes.min(self.bytes()) as usize;
        let permit = self
            .permit
            .split(count)
            .expect("no more is split off than is held");
        Reservation { permit }
    }

    /// Adds the bytes of `other`. Both must come from the same gate.
    pub(crate) fn merge(&mut self, other: Reservation) {
        self.permit.merge(other.permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gate_never_lets_more_through_than_it_holds() {
        let gate = ByteGate::new(100);
        let first = gate.reserve(60).await;
        assert!(gate.try_reserve(41).is_none());
        let mut second = gate.try_reserve(40).expect("40 are free");
        assert_eq!(gate.used(), 100);
        second.shrink_to(10);
        assert_eq!(gate.used(), 70);
        let third = second.split(4);
        assert_eq!((second.bytes(), third.bytes()), (6, 4));
        second.merge(third);
        assert_eq!(second.bytes(), 10);
        drop(first);
        drop(second);
        assert_eq!((gate.used(), gate.peak()), (0, 100));
        assert_eq!(gate.reserve(1000).await.bytes(), 100);
    }
}
