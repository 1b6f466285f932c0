//! Bounded memory: reservations of bytes.
//!
//! Owns the accounting only. `ingest` reserves bytes from the moment a new chunk is accepted until
//! its pack is acknowledged. `hydrate` reserves bytes from the request for a range until its frames
//! are decoded and cached. It borrows bytes of writers that have none to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A semaphore that admits at most `capacity` bytes at a time, in the order of the calls.
#[derive(Debug)]
pub(crate) struct ByteGate {
    semaphore: Arc<Semaphore>,
    capacity: u64,
    peak: AtomicU64,
    lent: Arc<AtomicU64>,
    lendable: u64,
}

/// Bytes that the owner of a [`ByteGate`] has lent. Dropping it returns them. It does not keep the
/// gate: one whose owner is gone lends no more.
#[derive(Debug)]
pub(crate) struct Loan {
    lent: Arc<AtomicU64>,
    bytes: u64,
    /// `None` once it is returned.
    reservation: Option<Reservation>,
}

/// Bytes reserved at a [`ByteGate`]. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    permit: OwnedSemaphorePermit,
}

impl ByteGate {
    /// The most bytes that a gate can hold.
    pub(crate) const LARGEST: u64 = u32::MAX as u64;

    /// Returns a gate of `capacity` bytes, or of [`Self::LARGEST`] if that is less.
    pub(crate) fn new(capacity: u64) -> Self {
        Self::lending(capacity, 0)
    }

    /// Same, of which `lendable` bytes may be lent.
    pub(crate) fn lending(capacity: u64, lendable: u64) -> Self {
        let capacity = capacity.min(Self::LARGEST);
        Self {
            semaphore: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            peak: AtomicU64::new(0),
            lent: Arc::default(),
            lendable: lendable.min(capacity),
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

    /// Lends `bytes` bytes, if all that may not be lent stays free. So the owner never waits for a
    /// loan before it has used that.
    pub(crate) fn lend(&self, bytes: u64) -> Option<Loan> {
        let count = u32::try_from(bytes).ok()?;
        let free = self.semaphore.available_permits() as u64;
        if free < (self.capacity - self.lendable).saturating_add(bytes) {
            return None;
        }
        // Counted before it is taken and until it is given back, so that no loan ever counts as
        // used by the owner.
        let lent = |lent: u64| Some(lent + bytes).filter(|lent| *lent <= self.lendable);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.lent.fetch_update(set, get, lent).ok()?;
        let mut loan = Loan {
            lent: Arc::clone(&self.lent),
            bytes,
            reservation: None,
        };
        let permit = Arc::clone(&self.semaphore).try_acquire_many_owned(count);
        loan.reservation = Some(Reservation {
            permit: permit.ok()?,
        });
        Some(loan)
    }

    /// Returns the most bytes that can be reserved at once.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the most bytes that may be lent, and those that are lent now.
    #[cfg(test)]
    pub(crate) fn lending_of(&self) -> (u64, u64) {
        (self.lendable, self.lent.load(Ordering::Relaxed))
    }

    /// Returns the bytes that are reserved now, without those that are lent. A loan that is returned
    /// at this moment may count.
    pub(crate) fn used(&self) -> u64 {
        let taken = self.capacity - self.semaphore.available_permits() as u64;
        taken.saturating_sub(self.lent.load(Ordering::Relaxed))
    }

    /// Returns the most bytes that were ever reserved at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn note_peak(&self) {
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        drop(self.reservation.take());
        self.lent.fetch_sub(self.bytes, Ordering::Relaxed);
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
    async fn a_gate_lends_what_it_may_lend() {
        let gate = ByteGate::lending(100, 50);
        let loan = gate.lend(30).expect("70 stay free");
        assert!(gate.lend(21).is_none(), "49 would stay free");
        assert_eq!((gate.used(), gate.peak()), (0, 0), "the owner has none");
        assert_eq!(gate.lending_of(), (50, 30));
        let own = gate.try_reserve(60).expect("70 are free");
        assert_eq!((gate.used(), gate.peak()), (60, 60));
        assert!(gate.lend(1).is_none(), "the owner needs it");
        assert!(gate.try_reserve(11).is_none(), "10 are free");
        drop(loan);
        assert_eq!(gate.used(), 60);
        drop(own);
        assert!(gate.lend(51).is_none());
        assert!(gate.lend(50).is_some());
        assert_eq!(gate.lending_of(), (50, 0));
        assert!(ByteGate::new(100).lend(1).is_none(), "it lends nothing");
        let gate = Arc::new(gate);
        let _loan = gate.lend(10).expect("90 stay free");
        let gone = Arc::downgrade(&gate);
        drop(gate);
        assert!(gone.upgrade().is_none(), "a loan keeps its gate");
    }

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
