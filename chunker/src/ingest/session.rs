//! The tasks of a writing session: they pass frames through the workers into packs, upload the
//! packs, and wake all callers that wait for them.
//!
//! Owns the ledger's lock, the budget of accepted bytes, and the background tasks, which end with
//! the session. Each task processes its frame or pack even if the call that stored it is dropped.
//! An error that loses accepted bytes fails the session. After a transient error the task tries
//! again, without a time limit.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::backlog::Backlog;
use super::ship::Overflow;
use crate::codec::Balance;
use crate::entropy::{number, salt};
use crate::error::DepotError;
use crate::gate::{ByteGate, Reservation};
use crate::pack::{FrameTicket, PackBuilder, PackName};
use crate::pending::{FullFrame, Ledger, NewPack, OpenPack, PendingBlobs};
use crate::runtime::Runtime;
use crate::seal::{Class, Features};
use crate::spool::Spool;
use crate::workers::Scratch;

/// The write budget is at least this many times the target size of a pack: two open packs and their
/// frames must never fill it.
const PACKS_IN_BUDGET: u64 = 6;

/// A session, shared by its tasks.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) shared: Arc<Runtime>,
    ledger: Arc<Mutex<Ledger>>,
    gate: ByteGate,
    /// The spool and the state of its use, if the session has one.
    pub(super) overflow: Option<Overflow>,
    /// Number of callers that wait for the write budget.
    waiting: AtomicUsize,
    backlog: Backlog,
    pulse: watch::Sender<Pulse>,
}

/// Changes with every event that a task or caller may wait for.
#[derive(Debug, Default, Clone, Copy)]
struct Pulse {
    beat: u64,
    ended: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Runtime>, session: u64, spool: Option<Arc<Spool>>) -> Arc<Self> {
        let budget = shared.config.memory.write_bytes;
        let (overflow, budget) = match spool {
            None => (None, budget),
            Some(spool) => {
                let (overflow, left) = Overflow::new(spool, budget);
                (Some(overflow), left)
            }
        };
        let target = shared.config.pack_bytes.min(budget / PACKS_IN_BUDGET);
        let backlog = Backlog::new(shared.workers.threads(), budget);
        Arc::new(Self {
            shared,
            ledger: Arc::new(Mutex::new(Ledger::new(session, target))),
            gate: ByteGate::new(budget),
            overflow,
            waiting: AtomicUsize::new(0),
            backlog,
            pulse: watch::Sender::new(Pulse::default()),
        })
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Ends all tasks. Data that is not in the bucket yet is not uploaded.
    pub(super) fn end(&self) {
        self.pulse.send_modify(|pulse| pulse.ended = true);
        self.backlog.close();
    }

    /// Returns the pending blobs of this session, for readers.
    pub(super) fn blobs(&self) -> PendingBlobs {
        PendingBlobs::of(&self.ledger)
    }

    /// Returns a pack that an earlier look-up found, unless it was condemned meanwhile.
    ///
    /// Must be called under the ledger's lock. A base epoch is published only after the catalog was
    /// told about the condemned packs and the ledger was asked which packs it relies on. So no
    /// reference to a condemned pack escapes both.
    pub(super) fn still_live(&self, found: Option<PackName>) -> Option<PackName> {
        found.filter(|pack| !self.shared.catalog.is_condemned(pack))
    }

    /// Records that the session has lost data: it accepts nothing any more.
    fn fail(&self, error: DepotError) {
        tracing::error!("the session cannot store any more: {error}");
        self.ledger().fail(error);
        self.backlog.close();
        self.beat();
    }

    pub(super) fn beat(&self) {
        self.note_pending();
        self.pulse
            .send_modify(|pulse| pulse.beat = pulse.beat.wrapping_add(1));
    }

    fn note_pending(&self) {
        let counters = &self.shared.link.counters;
        counters.pending_bytes.set(self.gate.used());
        counters.pending_peak_bytes.set(self.gate.peak());
        if let Some(overflow) = &self.overflow {
            let usage = overflow.usage();
            counters.spool_bytes.set(usage.bytes);
            counters.spool_files.set(usage.files);
            counters.spool_waiting_bytes.set(usage.waiting_bytes);
        }
    }

    /// Waits until `done` returns true for the ledger, without a time limit.
    ///
    /// # Errors
    /// [`DepotError::Failed`] if the session fails.
    async fn wait(&self, done: impl Fn(&mut Ledger) -> bool) -> Result<(), DepotError> {
        let mut pulse = self.pulse.subscribe();
        loop {
            {
                let mut ledger = self.ledger();
                if let Some(failure) = ledger.failure() {
                    return Err(failure);
                }
                if done(&mut ledger) {
                    return Ok(());
                }
            }
            if pulse.changed().await.is_err() {
                return Err(DepotError::Internal("a session outlives its waiters"));
            }
        }
    }

    /// Reserves budget for bytes that are about to be accepted. The caller waits here while too
    /// many bytes are in flight.
    ///
    /// # Errors
    /// [`DepotError::Stalled`] if the store makes no progress, or [`DepotError::Failed`] if the
    /// session fails.
    pub(super) async fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, DepotError> {
        self.backlog.room().await;
        if let Some(failure) = self.ledger().failure() {
            return Err(failure);
        }
        let reservation = match self.gate.try_reserve(bytes) {
            Some(reservation) => reservation,
            None => {
                let waiter = Waiter::new(&self.waiting);
                self.make_room();
                let granted = self.shared.link.progress.watch(async {
                    tokio::select! {
                        biased;
                        failed = self.wait(|_| false) => Err(failed.err()),
                        granted = self.gate.reserve(bytes) => Ok(granted),
                        () = self.press() => Err(None),
                    }
                });
                let granted = granted.await?;
                drop(waiter);
                granted.map_err(|failed| {
                    failed.unwrap_or(DepotError::Internal("waited for nothing"))
                })?
            }
        };
        self.note_pending();
        Ok(reservation)
    }

    /// Tells the spool about a caller that waits for the write budget. Never completes.
    async fn press(&self) {
        match &self.overflow {
            Some(overflow) => overflow.press().await,
            None => std::future::pending().await,
        }
    }

    /// If callers wait for the write budget and nothing in flight would free it, sends the data
    /// that rests in open packs.
    fn make_room(self: &Arc<Self>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let is_moving = {
            let mut ledger = self.ledger();
            ledger.lane(Class::DataPack).is_moving() || ledger.lane(Class::MetadataPack).is_moving()
        };
        if !is_moving {
            self.cut(&[Class::DataPack, Class::MetadataPack]);
        }
    }

    /// Closes all frames and packs of `classes` that were accepted so far, full or not, and sends
    /// them. Returns the frontier: all frames with lower numbers are then in flight.
    pub(super) fn cut(self: &Arc<Self>, classes: &[Class]) -> u64 {
        let mut ended = Vec::new();
        let frontier = {
            let mut ledger = self.ledger();
            let frontier = ledger.frontier();
            for &class in classes {
                let lane = ledger.lane(class);
                ended.push((lane.take_gathering(), lane.cut(frontier)));
            }
            frontier
        };
        for (full, packs) in ended {
            self.process_all(full);
            self.send_all(packs);
        }
        frontier
    }

    /// Waits until every frame of `class` below `frontier` is in the bucket.
    pub(super) async fn acknowledged(&self, class: Class, frontier: u64) -> Result<(), DepotError> {
        self.wait(|ledger| ledger.lane(class).is_acknowledged(frontier))
            .await
    }

    /// Starts a background task that ends with the session.
    fn spawn(
        self: &Arc<Self>,
        task: impl Future<Output = Result<(), DepotError>> + Send + 'static,
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
                Err(_) => session.fail(DepotError::Internal("a background task panicked")),
            }
        });
    }

    /// Passes full frames through the workers into packs.
    pub(super) fn process_all(self: &Arc<Self>, frames: impl IntoIterator<Item = FullFrame>) {
        for full in frames {
            if self.backlog.push(full) {
                let session = Arc::clone(self);
                self.spawn(async move { session.work_off().await });
            }
        }
    }

    async fn work_off(self: Arc<Self>) -> Result<(), DepotError> {
        while let Some(frames) = self.backlog.take() {
            let session = Arc::clone(&self);
            let job = self.shared.workers.run(move |scratch| {
                frames
                    .into_iter()
                    .map(|full| session.process(full, scratch))
                    .collect::<Result<Vec<_>, DepotError>>()
            });
            let packs = job.await??;
            self.send_all(packs.into_iter().flatten());
            self.make_room();
        }
        Ok(())
    }

    /// Seals one frame and places it in its pack. Returns the packs that are complete now.
    fn process(&self, full: FullFrame, scratch: &mut Scratch) -> Result<Vec<OpenPack>, DepotError> {
        let class = full.frame.class;
        let ticket = self.ticket(&full)?;
        let blobs = full.raw.blobs();
        let effort = self.shared.effort(self.balance());
        let sealed = ticket
            .seal(&mut scratch.frames, &blobs, effort)
            .map_err(|_| DepotError::Internal("a frame takes less than it should"))?;
        drop(blobs);
        let counters = &self.shared.link.counters;
        counters.bytes_compressed.add(sealed.bytes().len() as u64);
        self.ledger().lane(class).deliver(full, sealed)
    }

    /// Returns the balance of the workers.
    ///
    /// The store is tested first, because in the end all other stages wait for it. A nearly full
    /// budget means that the store is the bottleneck, because the backlog limits the bytes at the
    /// workers to a small part of the budget.
    fn balance(&self) -> Balance {
        if self.gate.used() > self.gate.capacity() / 4 * 3 {
            return Balance::Ahead;
        }
        match self.backlog.is_behind() {
            true => Balance::Behind,
            false => Balance::Even,
        }
    }

    fn ticket(&self, full: &FullFrame) -> Result<FrameTicket, DepotError> {
        let class = full.frame.class;
        let mut ledger = self.ledger();
        let (names, lane) = ledger.names_and_lane(class);
        lane.ticket(full, || {
            let entropy = &*self.shared.link.entropy;
            let name = names.draw(number(entropy))?;
            let keyring = &self.shared.keyring;
            let builder = PackBuilder::new(keyring, class, name, Features::NONE, salt(entropy));
            let opener = keyring
                .object_opener(class, &name.key(class), builder.header())
                .map_err(|_| DepotError::Internal("a fresh header does not open"))?;
            Ok(NewPack {
                builder,
                opener: Arc::new(opener),
            })
        })
    }

    fn send_all(self: &Arc<Self>, packs: impl IntoIterator<Item = OpenPack>) {
        for pack in packs {
            let session = Arc::clone(self);
            self.spawn(async move { session.send(pack).await });
        }
    }

    /// Waits until every frame below `frontier` is in the bucket or in the spool.
    pub(super) async fn kept(&self, frontier: u64) -> Result<(), DepotError> {
        self.wait(|ledger| {
            let mut is_kept = |class| ledger.lane(class).is_kept(frontier);
            is_kept(Class::DataPack) && is_kept(Class::MetadataPack)
        })
        .await
    }

    /// Uploads a pack. A metadata pack is uploaded only after all data that was accepted before the
    /// pack was closed (rule 1).
    async fn send(self: Arc<Self>, pack: OpenPack) -> Result<(), DepotError> {
        let is_metadata = pack.class == Class::MetadataPack;
        let after = is_metadata.then(|| self.cut(&[Class::DataPack]));
        let (builder, mut sent) = pack.into_parts();
        let effort = self.shared.effort(Balance::Even);
        let job = self
            .shared
            .workers
            .run(move |scratch| builder.finish(&mut scratch.frames, effort));
        let mut pack = job
            .await?
            .map_err(|_| DepotError::Internal("a pack does not end as it should"))?;
        self.ship(&mut pack, &mut sent, after).await?;
        self.shared.link.counters.packs_uploaded.one();
        let whole = is_metadata.then(|| pack.parts.clone());
        let name = pack.name;
        self.ledger().acknowledge(&sent, pack);
        self.beat();
        if let Some(parts) = whole {
            // Trees are usually read soon after they are written. The reservation is given back
            // after the pack is in the disk cache.
            self.shared.reader.keep_pack(name, parts).await;
        }
        // Gives the reservation back before the next beat reports the budget.
        drop(sent);
        self.beat();
        self.make_room();
        Ok(())
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
pub(super) fn lost(session: &Arc<Session>) -> impl Future<Output = Option<DepotError>> + use<> {
    let (mut pulse, session) = (session.pulse.subscribe(), Arc::downgrade(session));
    async move {
        loop {
            let failure = session.upgrade()?.ledger().failure();
            if failure.is_some() {
                return failure;
            }
            pulse.changed().await.ok()?;
        }
    }
}

/// Counts a caller that waits for the write budget.
struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
