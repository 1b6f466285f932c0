//! Memory for fetches: for bytes that are on their way, and for frames that are being decoded.
//!
//! Owns the parts of it that no fetch may take for which no caller waits. So a read that a caller
//! waits for does not queue behind prefetches for memory. What is full borrows from writers: a
//! distant store is read as fast as the bytes on their way allow.

use std::pin::pin;
use std::sync::Weak;

use bkfs_store::urgency::{SharedUrgency, Urgency};

use super::reader::Reader;
use crate::gate::{ByteGate, Loan, Reservation};

/// Memory of one fetch. Dropping it releases it.
#[derive(Debug)]
pub(super) enum Room {
    /// Of the memory of fetches.
    Own {
        _ahead: Option<Reservation>,
        _all: Reservation,
    },
    /// Of the memory of a writer.
    Lent { _loan: Loan },
}

impl Reader {
    /// Waits for memory for a fetch, in bytes. A fetch that becomes urgent while it waits may take
    /// all that is free.
    pub(super) async fn room(&self, bytes: u64, urgency: &SharedUrgency) -> Room {
        let is_ahead = urgency.get() != Urgency::Now;
        let mut ahead = (is_ahead.then(|| self.ahead_gate.try_reserve(bytes))).flatten();
        if is_ahead && ahead.is_none() {
            if let Some(loan) = self.borrow(bytes) {
                return Room::Lent { _loan: loan };
            }
            ahead = self.ahead_part(&self.ahead_gate, bytes, urgency).await;
        }
        if let Some(all) = self.fetch_gate.try_reserve(bytes) {
            return Room::Own {
                _ahead: ahead,
                _all: all,
            };
        }
        if let Some(loan) = self.borrow(bytes) {
            return Room::Lent { _loan: loan };
        }
        Room::Own {
            _ahead: ahead,
            _all: self.fetch_gate.reserve(bytes).await,
        }
    }

    /// Borrows memory from the first writer, if it has some to spare. The memory of further ones
    /// is not counted on.
    fn borrow(&self, bytes: u64) -> Option<Loan> {
        let writer = self.writers.read().iter().find_map(Weak::upgrade);
        writer?.lend(bytes)
    }

    /// Waits for memory for frames that are decoded, in bytes, as [`Reader::room`] does.
    pub(super) async fn decoding_room(&self, bytes: u64, urgency: &SharedUrgency) -> Room {
        let ahead = self.ahead_part(&self.decode_ahead_gate, bytes, urgency);
        Room::Own {
            _ahead: ahead.await,
            _all: self.decode_gate.reserve(bytes).await,
        }
    }

    /// Waits for a part of the memory of fetches for which no caller waits. `None` once a caller
    /// waits for this one.
    async fn ahead_part(
        &self,
        gate: &ByteGate,
        bytes: u64,
        urgency: &SharedUrgency,
    ) -> Option<Reservation> {
        let mut part = pin!(gate.reserve(bytes));
        loop {
            let mut raised = pin!(self.raised.notified());
            // From here on no raise goes unnoticed.
            raised.as_mut().enable();
            if urgency.get() == Urgency::Now {
                return None;
            }
            tokio::select! {
                biased;
                part = &mut part => return Some(part),
                () = raised => {}
            }
        }
    }

    /// Lets fetches begin whose urgency was raised.
    pub(super) fn reconsider(&self) {
        self.raised.notify_waiters();
        self.link.reconsider_reads();
    }
}
