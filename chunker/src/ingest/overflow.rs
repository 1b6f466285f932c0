//! The spool of a session: which packs should go there, which lie there, and how much memory the
//! packs under way may take.
//!
//! Owns the two reasons to spool a pack. First, callers have waited for memory for a while, because
//! the uplink is slower than the writer, and the pack is not being sent yet. Second, a caller wants
//! the pack to survive a crash ([`Overflow::demand`]). Does not own the upload (upload), nor the
//! files (`spool`).
//!
//! Memory: 1/6 of the write budget is for packs that are read back from the spool. Of the rest, at
//! most half is for packs that are being sent from memory. So packs that go to the spool always
//! have room, however long the store does not answer. No holder of memory waits for the memory of
//! another holder.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::gate::ByteGate;
use crate::pack::{FinishedPack, PackName};
use crate::spool::{Spool, SpoolUsage, Spooled};

/// How long a caller waits for memory before the uplink counts as slower than the writer: the time
/// that a pack of 16 MiB takes at 80 MB/s.
const PATIENCE: Duration = Duration::from_millis(200);

/// Divisor of the write budget: this part is for packs that are read back from the spool.
const READ_BACK_SHARE: u64 = 6;

/// Divisor of the rest of the write budget: this part is for packs that are being sent from memory.
const FLIGHT_SHARE: u64 = 2;

/// The additional state of a session with a spool.
#[derive(Debug)]
pub(super) struct Overflow {
    pub(super) spool: Arc<Spool>,
    /// Bounds the packs that are being sent from memory, in bytes.
    pub(super) flight: ByteGate,
    /// Bounds the packs that are read back from the spool, in bytes.
    pub(super) read_back: ByteGate,
    demand: Arc<watch::Sender<Demand>>,
    /// Packs in the spool that no root names yet.
    kept: Mutex<HashMap<PackName, Kept>>,
    /// Whether a task frees the memory of dropped puts.
    is_freeing: Arc<AtomicBool>,
}

/// A pack in the spool.
#[derive(Debug)]
struct Kept {
    spooled: Arc<Spooled>,
    /// One more than the highest number of its frames.
    end: u64,
}

/// The callers that wait for memory, and the reasons to put packs into the spool.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Number of callers that wait for memory.
    waiting: usize,
    /// True from the moment that a caller has waited for [`PATIENCE`] until neither a pack in the
    /// spool waits for its upload nor a caller for memory.
    is_pressed: bool,
    /// Frames below this number must survive a crash.
    frontier: u64,
}

/// A caller that waits for memory, while this is held.
#[derive(Debug)]
pub(super) struct Waiter<'a>(&'a watch::Sender<Demand>);

impl<'a> Waiter<'a> {
    pub(super) fn new(demand: &'a watch::Sender<Demand>) -> Self {
        demand.send_modify(|demand| demand.waiting += 1);
        Self(demand)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|demand| demand.waiting -= 1);
    }
}

impl Demand {
    /// Whether any caller waits for memory.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting > 0
    }

    fn wants(&self, first_frame: u64, is_sent: bool) -> bool {
        first_frame < self.frontier || (self.is_pressed && self.is_awaited() && !is_sent)
    }
}

impl Overflow {
    /// Divides a write budget of `budget_bytes` bytes, for which the callers in `demand` wait.
    /// Returns also the part that is left for accepted data, in bytes.
    pub(super) fn new(
        spool: Arc<Spool>,
        budget_bytes: u64,
        demand: Arc<watch::Sender<Demand>>,
    ) -> (Self, u64) {
        let read_back = budget_bytes / READ_BACK_SHARE;
        let accepted = budget_bytes - read_back;
        let overflow = Self {
            spool,
            flight: ByteGate::new(accepted / FLIGHT_SHARE),
            read_back: ByteGate::new(read_back),
            demand,
            kept: Mutex::default(),
            is_freeing: Arc::default(),
        };
        (overflow, accepted)
    }

    /// Requests the use of the spool if a [`Waiter`] holds this future for [`PATIENCE`]. Never
    /// completes.
    pub(super) async fn press(&self) {
        tokio::time::sleep(PATIENCE).await;
        self.demand.send_modify(|demand| demand.is_pressed = true);
        std::future::pending().await
    }

    /// Requests that frames below this number go into the spool, unless they reach the bucket
    /// first.
    pub(super) fn demand(&self, frontier: u64) {
        self.demand
            .send_modify(|demand| demand.frontier = demand.frontier.max(frontier));
    }

    /// Waits until a pack should go into the spool and the spool has room for it.
    pub(super) async fn wanted(&self, pack: &FinishedPack, first_frame: u64, is_sent: &AtomicBool) {
        let mut demand = self.demand.subscribe();
        let wants = |demand: &Demand| demand.wants(first_frame, is_sent.load(Ordering::Relaxed));
        loop {
            if demand.wait_for(wants).await.is_err() {
                return std::future::pending().await;
            }
            self.spool.room(pack.length).await;
            if wants(&self.demand.borrow()) {
                return;
            }
        }
    }

    /// Returns the packs in the spool that no root names yet and that hold only data accepted
    /// before `frontier`.
    pub(super) fn kept(&self, frontier: u64) -> Vec<(PackName, Arc<Spooled>)> {
        let kept = self.kept.lock();
        let below = kept.iter().filter(|(_, kept)| kept.end <= frontier);
        let packs = below.map(|(name, kept)| (*name, Arc::clone(&kept.spooled)));
        packs.collect()
    }

    /// Records that a pack is in the spool. `end` is one more than the highest number of its
    /// frames.
    pub(super) fn hold(&self, pack: PackName, spooled: Arc<Spooled>, end: u64) {
        self.kept.lock().insert(pack, Kept { spooled, end });
    }

    /// Frees the memory of puts that were dropped, once the disk has answered. One task does that
    /// for all, however many are dropped while the disk hangs.
    pub(super) fn free_dropped(&self) {
        if self.is_freeing.swap(true, Ordering::SeqCst) {
            return;
        }
        let (spool, is_freeing) = (Arc::clone(&self.spool), Arc::clone(&self.is_freeing));
        // Not a background task of the session: it runs to its end even if the session ends first.
        tokio::spawn(async move {
            loop {
                spool.remove_dropped().await;
                is_freeing.store(false, Ordering::SeqCst);
                // A put may have been dropped after the last look.
                if !spool.has_dropped() || is_freeing.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// Releases packs that roots or acknowledged journals name.
    pub(super) fn release(&self, packs: &[PackName]) {
        let mut kept = self.kept.lock();
        for pack in packs {
            if let Some(kept) = kept.remove(pack) {
                self.spool.release(&kept.spooled);
            }
        }
    }

    /// Returns the usage of the spool, for display. Ends the pressure if the uplink has caught up:
    /// no pack in the spool waits for its upload, and no caller waits for memory.
    pub(super) fn usage(&self) -> SpoolUsage {
        let usage = self.spool.usage();
        self.demand.send_if_modified(|demand| {
            if usage.waiting_files == 0 && !demand.is_awaited() {
                demand.is_pressed = false;
            }
            // No task waits for the end of the pressure, so none is notified.
            false
        });
        usage
    }
}
