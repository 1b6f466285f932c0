//! The state of a writing session: its pending index, its budget of accepted bytes, its spool, and
//! the callers that wait for any of them.
//!
//! Owns the pending index's lock, the waits for acknowledgements, the life of background tasks,
//! which end with the session, and its failure: an error that loses accepted bytes fails the
//! session. Does not own what the tasks do (pipeline, upload).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::frame_queue::Backlog;
use super::overflow::{Demand, Overflow};
use crate::crypto::Class;
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::pack::PackName;
use crate::pending::{PendingBlobs, PendingIndex};
use crate::runtime::Runtime;
use crate::spool::Spool;

/// The write budget is at least this many times the target size of a pack: two open packs and their
/// frames must never fill it.
const PACKS_IN_BUDGET: u64 = 6;

/// What may be on its way into open packs, in bytes: the batch of a caller that waits, a frame of
/// metadata and one of data. The largest blob has 4 MiB, so this is more than they take.
const GATHERED_BYTES: u64 = 16 << 20;

/// A session, shared by its tasks.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) shared: Arc<Runtime>,
    pending_index: Arc<Mutex<PendingIndex>>,
    /// The budget of accepted bytes.
    pub(super) gate: Arc<ByteGate>,
    /// The spool and the state of its use, if the session has one.
    pub(super) overflow: Option<Overflow>,
    /// The callers that wait for the write budget. The spool acts on them.
    pub(super) demand: Arc<watch::Sender<Demand>>,
    pub(super) backlog: Backlog,
    pulse: watch::Sender<Pulse>,
    /// What this session has added to the gauge of pending bytes, which all sessions share.
    noted_bytes: Mutex<u64>,
}

/// Changes with every event that a task or caller may wait for.
#[derive(Debug, Default, Clone, Copy)]
struct Pulse {
    beat: u64,
    ended: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.note_bytes(0);
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Runtime>, session: u64, spool: Option<Arc<Spool>>) -> Arc<Self> {
        // What the gate cannot hold is in no part of the budget.
        let budget = shared.config.memory.write_bytes.min(ByteGate::LARGEST);
        let demand = Arc::new(watch::Sender::new(Demand::default()));
        let (overflow, budget) = match spool {
            None => (None, budget),
            Some(spool) => {
                let (overflow, left) = Overflow::new(spool, budget, Arc::clone(&demand));
                (Some(overflow), left)
            }
        };
        let target = shared.config.pack_bytes.min(budget / PACKS_IN_BUDGET);
        let lendable = match &overflow {
            None => budget / 2,
            // A store that does not answer gives no loan back, and the spool takes only packs that
            // are closed. So what is being sent, two open packs of each class (one is full, and the
            // next has begun), and what is on its way into them must fit nevertheless.
            Some(overflow) => {
                let kept = overflow.flight.capacity() + 4 * target + GATHERED_BYTES;
                budget.saturating_sub(kept)
            }
        };
        let backlog = Backlog::new(shared.workers.threads(), budget);
        Arc::new(Self {
            shared,
            pending_index: Arc::new(Mutex::new(PendingIndex::new(session, target))),
            gate: Arc::new(ByteGate::lending(budget, lendable)),
            overflow,
            demand,
            backlog,
            pulse: watch::Sender::new(Pulse::default()),
            noted_bytes: Mutex::default(),
        })
    }

    pub(super) fn pending_index(&self) -> MutexGuard<'_, PendingIndex> {
        self.pending_index.lock()
    }

    /// Ends all tasks. Data that is not in the bucket yet is not uploaded.
    pub(super) fn end(&self) {
        self.pulse.send_modify(|pulse| pulse.ended = true);
        self.backlog.close();
    }

    /// Returns the pending blobs of this session, for readers.
    pub(super) fn blobs(&self) -> PendingBlobs {
        PendingBlobs::of(&self.pending_index)
    }

    /// Returns a pack that an earlier look-up found, unless it was condemned meanwhile.
    ///
    /// Must be called under the pending index's lock. A base epoch is published only after the
    /// catalog was told about the condemned packs and the pending index was asked which packs it
    /// relies on. So no reference to a condemned pack escapes both.
    pub(super) fn still_live(&self, found: Option<PackName>) -> Option<PackName> {
        found.filter(|pack| !self.shared.catalog.is_condemned(pack))
    }

    /// Records that the session has lost data: it accepts nothing any more.
    fn fail(&self, error: ContentError) {
        tracing::error!("the session cannot store any more: {error}");
        self.pending_index().fail(error);
        self.backlog.close();
        self.beat();
    }

    pub(super) fn beat(&self) {
        self.note_pending();
        self.pulse
            .send_modify(|pulse| pulse.beat = pulse.beat.wrapping_add(1));
    }

    /// Counts what is pending, for display.
    pub(super) fn note_pending(&self) {
        let counters = &self.shared.link.counters;
        self.note_bytes(self.gate.used());
        counters.pending_peak_bytes.raise(self.gate.peak());
        if let Some(overflow) = &self.overflow {
            let usage = overflow.usage();
            counters.spool_bytes.set(usage.bytes);
            counters.spool_files.set(usage.files);
            counters.spool_waiting_bytes.set(usage.waiting_bytes);
        }
    }

    /// Replaces what this session has added to the gauge of pending bytes.
    fn note_bytes(&self, bytes: u64) {
        let counters = &self.shared.link.counters;
        let mut noted = self.noted_bytes.lock();
        counters.pending_bytes.change(*noted, bytes);
        *noted = bytes;
    }

    /// Waits until `done` returns true for the pending index, without a time limit.
    ///
    /// # Errors
    /// [`ContentError::Failed`] if the session fails.
    pub(super) async fn wait(
        &self,
        done: impl Fn(&mut PendingIndex) -> bool,
    ) -> Result<(), ContentError> {
        let mut pulse = self.pulse.subscribe();
        loop {
            {
                let mut pending_index = self.pending_index();
                if let Some(failure) = pending_index.failure() {
                    return Err(failure);
                }
                if done(&mut pending_index) {
                    return Ok(());
                }
            }
            if pulse.changed().await.is_err() {
                return Err(ContentError::Internal("a session outlives its waiters"));
            }
        }
    }

    /// Waits until every frame of `class` below `frontier` is in the bucket.
    pub(super) async fn acknowledged(
        &self,
        class: Class,
        frontier: u64,
    ) -> Result<(), ContentError> {
        self.wait(|pending_index| pending_index.pack_writer(class).is_acknowledged(frontier))
            .await
    }

    /// Waits until every frame below `frontier` is in the bucket or in the spool.
    pub(super) async fn kept(&self, frontier: u64) -> Result<(), ContentError> {
        self.wait(|pending_index| {
            let mut is_kept = |class| pending_index.pack_writer(class).is_kept(frontier);
            is_kept(Class::DataPack) && is_kept(Class::MetadataPack)
        })
        .await
    }

    /// Starts a background task that ends with the session.
    pub(super) fn spawn(
        self: &Arc<Self>,
        task: impl Future<Output = Result<(), ContentError>> + Send + 'static,
    ) {
        let session = Arc::clone(self);
        let mut pulse = self.pulse.subscribe();
        tokio::spawn(async move {
            let outcome = tokio::select! {
                biased;
                _ = pulse.wait_for(|pulse| pulse.ended) => return,
                outcome = AssertUnwindSafe(task).catch_unwind() => outcome,
            };
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => session.fail(error),
                Err(_) => session.fail(ContentError::Internal("a background task panicked")),
            }
        });
    }

    /// Records that a root took these packs. The spool need not keep them.
    pub(super) fn release(self: &Arc<Self>, packs: &[PackName]) {
        let Some(overflow) = &self.overflow else {
            return;
        };
        overflow.release(packs);
        let session = Arc::clone(self);
        // Not a background task of the session: it runs to its end even if the session ends first.
        tokio::spawn(async move {
            if let Some(overflow) = &session.overflow {
                overflow.spool.sweep().await;
                session.beat();
            }
        });
    }
}

/// See [`Ingest::lost`](super::Ingest::lost).
pub(super) fn lost(session: &Arc<Session>) -> impl Future<Output = Option<ContentError>> + use<> {
    let (mut pulse, session) = (session.pulse.subscribe(), Arc::downgrade(session));
    async move {
        loop {
            let failure = session.upgrade()?.pending_index().failure();
            if failure.is_some() {
                return failure;
            }
            pulse.changed().await.ok()?;
        }
    }
}
