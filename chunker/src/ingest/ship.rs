//! Upload of a finished pack: directly from memory, or through the spool.
//!
//! Owns the choice between the two, and how much memory each may take. Direct upload is the
//! default. A pack goes to the spool in two cases. First, callers have waited for memory for a
//! while, because the uplink is slower than the writer, and the pack is not being sent yet. Second,
//! a caller wants the pack to survive a crash ([`Overflow::demand`]). The spool uploads its packs
//! in order of age, and releases them when a root names them.
//!
//! Memory: 1/6 of the write budget is for packs that are read back from the spool. Of the rest, at
//! most half is for packs that are being sent from memory. So packs that go to the spool always
//! have room, however long the store does not answer. No holder of memory waits for the memory of
//! another holder.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::delivery::NamedPack;
use super::session::Session;
use crate::error::DepotError;
use crate::gate::ByteGate;
use crate::pack::{FinishedPack, PackName};
use crate::pending::SentPack;
use crate::seal::Class;
use crate::spool::{Spool, SpoolError, SpoolUsage, Spooled};

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
    flight: ByteGate,
    /// Bounds the packs that are read back from the spool, in bytes.
    read_back: ByteGate,
    demand: watch::Sender<Demand>,
    /// Packs in the spool that no root names yet.
    kept: Mutex<HashMap<PackName, Kept>>,
}

/// A pack in the spool.
#[derive(Debug)]
struct Kept {
    spooled: Arc<Spooled>,
    /// One more than the highest number of its frames.
    end: u64,
}

/// The reasons to put packs into the spool.
#[derive(Debug, Default)]
struct Demand {
    /// Number of callers that wait for memory.
    waiting: usize,
    /// True from the moment that a caller has waited for [`PATIENCE`] until neither a pack in the
    /// spool waits for its upload nor a caller for memory.
    is_pressed: bool,
    /// Frames below this number must survive a crash.
    frontier: u64,
}

impl Demand {
    fn wants(&self, first_frame: u64, is_sent: bool) -> bool {
        first_frame < self.frontier || (self.is_pressed && self.waiting > 0 && !is_sent)
    }
}

impl Overflow {
    /// Divides a write budget of `budget_bytes` bytes. Returns also the part that is left for
    /// accepted data, in bytes.
    pub(super) fn new(spool: Arc<Spool>, budget_bytes: u64) -> (Self, u64) {
        let read_back = budget_bytes / READ_BACK_SHARE;
        let accepted = budget_bytes - read_back;
        let overflow = Self {
            spool,
            flight: ByteGate::new(accepted / FLIGHT_SHARE),
            read_back: ByteGate::new(read_back),
            demand: watch::Sender::new(Demand::default()),
            kept: Mutex::default(),
        };
        (overflow, accepted)
    }

    /// Counts the caller as waiting for memory for as long as the future is held, and requests the
    /// use of the spool after [`PATIENCE`]. Never completes.
    pub(super) async fn press(&self) {
        struct Waiter<'a>(&'a Overflow);
        impl Drop for Waiter<'_> {
            fn drop(&mut self) {
                let demand = &self.0.demand;
                demand.send_modify(|demand| demand.waiting -= 1);
            }
        }
        self.demand.send_modify(|demand| demand.waiting += 1);
        let _waiter = Waiter(self);
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
    async fn wanted(&self, pack: &FinishedPack, first_frame: u64, is_sent: &AtomicBool) {
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
    pub(super) fn kept(&self, frontier: u64) -> Vec<NamedPack> {
        let kept = self.kept.lock();
        let below = kept.iter().filter(|(_, kept)| kept.end <= frontier);
        let packs = below.map(|(name, kept)| NamedPack {
            name: *name,
            is_metadata: PackName::from_key(kept.spooled.key())
                .is_ok_and(|(class, _)| class == Class::MetadataPack),
            length: kept.spooled.length(),
        });
        packs.collect()
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
            if usage.waiting_files == 0 && demand.waiting == 0 {
                demand.is_pressed = false;
            }
            // No task waits for the end of the pressure, so none is notified.
            false
        });
        usage
    }
}

impl Session {
    /// Uploads a finished pack.
    ///
    /// When this returns, the pack is in the bucket. If it was sent from the spool, `pack.parts` is
    /// empty and the reservation of `sent` was given back. A metadata pack is sent only after all
    /// data below `after` (rule 1); the spool may take it before.
    pub(super) async fn ship(
        &self,
        pack: &mut FinishedPack,
        sent: &mut SentPack,
        after: Option<u64>,
    ) -> Result<(), DepotError> {
        let Some(overflow) = &self.overflow else {
            return self.send_straight(pack, after, None).await;
        };
        let Some(spooled) = self.ship_or_spool(overflow, pack, sent, after).await? else {
            return Ok(());
        };
        if !spooled.is_in_bucket() {
            pack.parts.clear();
            sent.release();
            self.beat();
            self.send_back(overflow, pack, &spooled, after).await?;
        }
        Ok(())
    }

    async fn send_straight(
        &self,
        pack: &FinishedPack,
        after: Option<u64>,
        flight: Option<(&ByteGate, &AtomicBool)>,
    ) -> Result<(), DepotError> {
        if let Some(frontier) = after {
            self.acknowledged(Class::DataPack, frontier).await?;
        }
        let _room = match flight {
            None => None,
            Some((gate, is_sent)) => {
                let room = gate.reserve(pack.length).await;
                is_sent.store(true, Ordering::Relaxed);
                Some(room)
            }
        };
        let key = pack.name.key(pack.class);
        self.shared.link.create(&key, &pack.parts).await
    }

    /// Sends a pack from memory, and writes it to the spool meanwhile if that is wanted.
    ///
    /// Returns `None` if the pack is in the bucket and not in the spool. Otherwise the caller must
    /// send the spooled pack, unless the spool records that it is in the bucket.
    async fn ship_or_spool(
        &self,
        overflow: &Overflow,
        pack: &FinishedPack,
        sent: &SentPack,
        after: Option<u64>,
    ) -> Result<Option<Arc<Spooled>>, DepotError> {
        let is_sent = AtomicBool::new(false);
        let mut straight =
            pin!(self.send_straight(pack, after, Some((&overflow.flight, &is_sent))));
        let key = pack.name.key(pack.class);
        let spooled = loop {
            tokio::select! {
                biased;
                sent = &mut straight => return sent.map(|()| None),
                () = overflow.wanted(pack, sent.first_frame(), &is_sent) => {}
            }
            let mut put = pin!(overflow.spool.put(&key, &pack.parts));
            let mut answer = None;
            // A write that has begun is not abandoned: the spool must know the contents of its
            // disk.
            let put = loop {
                tokio::select! {
                    biased;
                    sent = &mut straight, if answer.is_none() => answer = Some(sent),
                    put = &mut put => break put,
                }
            };
            match (put, answer) {
                (Ok(spooled), Some(answer)) => {
                    answer?;
                    self.keep(overflow, pack, sent, &spooled);
                    spooled.uploaded();
                    return Ok(Some(spooled));
                }
                (Ok(spooled), None) => break spooled,
                (Err(error), answer) => {
                    // The bytes are still in memory: they are sent directly, and writers wait.
                    if !matches!(error, SpoolError::Full { .. }) {
                        tracing::warn!("a pack is not spooled: {error}");
                    }
                    if let Some(answer) = answer {
                        return answer.map(|()| None);
                    }
                }
            }
        };
        self.keep(overflow, pack, sent, &spooled);
        if is_sent.load(Ordering::Relaxed) {
            straight.await?;
            spooled.uploaded();
        }
        Ok(Some(spooled))
    }

    /// Records that a pack is in the spool: it can be read there, and survives a crash.
    fn keep(
        &self,
        overflow: &Overflow,
        pack: &FinishedPack,
        sent: &SentPack,
        spooled: &Arc<Spooled>,
    ) {
        let kept = Kept {
            spooled: Arc::clone(spooled),
            end: sent.end(),
        };
        overflow.kept.lock().insert(pack.name, kept);
        self.shared.link.counters.bytes_spooled.add(pack.length);
        self.ledger().spool(sent, pack, spooled);
        self.beat();
    }

    /// Uploads a pack from the spool.
    async fn send_back(
        &self,
        overflow: &Overflow,
        pack: &FinishedPack,
        spooled: &Spooled,
        after: Option<u64>,
    ) -> Result<(), DepotError> {
        if let Some(frontier) = after {
            self.acknowledged(Class::DataPack, frontier).await?;
        }
        // First come, first served: the oldest pack is sent first.
        let _room = overflow.read_back.reserve(pack.length).await;
        let bytes = spooled.read().await.map_err(DepotError::from)?;
        self.shared.link.create(spooled.key(), &[bytes]).await?;
        spooled.uploaded();
        Ok(())
    }
}
