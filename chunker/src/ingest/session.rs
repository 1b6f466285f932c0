//! The tasks of a writing session: frames through the workers into packs, packs to the store, and everybody who waits for them.
//!
//! Owns the ledger's lock, the budget of accepted bytes, and the background tasks, which end with it. Each task passes its frame or pack on whatever becomes of the
//! caller that stored it. An error that loses accepted bytes fails the session; one that may pass is tried again for as long as it takes.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::backlog::Backlog;
use super::frame::{BlobKey, FullFrame};
use super::lane::{NewPack, OpenPack};
use super::ledger::{Ledger, Pending};
use super::ship::Overflow;
use crate::codec::Balance;
use crate::depot::Shared;
use crate::entropy::{number, salt};
use crate::error::DepotError;
use crate::gate::{ByteGate, Reservation};
use crate::id::{Kind, Prefix};
use crate::pack::{FrameTicket, PackBuilder, PackName};
use crate::seal::{Class, Features};
use crate::spool::Spool;
use crate::workers::Scratch;

/// The accepted bytes that may be under way are at least this many times the size of a pack: two open ones and their frames must never fill it.
const PACKS_IN_BUDGET: u64 = 6;

/// One session, shared by its tasks.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) shared: Arc<Shared>,
    ledger: Mutex<Ledger>,
    gate: ByteGate,
    /// The spool, if there is one.
    pub(super) overflow: Option<Overflow>,
    /// Callers that wait at the gate.
    waiting: AtomicUsize,
    backlog: Backlog,
    pulse: watch::Sender<Pulse>,
}

/// Changes with everything somebody may wait for.
#[derive(Debug, Default, Clone, Copy)]
struct Pulse {
    beat: u64,
    ended: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, session: u64, spool: Option<Arc<Spool>>) -> Arc<Self> {
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
            ledger: Mutex::new(Ledger::new(session, target)),
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

    /// Ends all tasks: what is not in the bucket yet does not get there.
    pub(super) fn end(&self) {
        self.pulse.send_modify(|pulse| pulse.ended = true);
        self.backlog.close();
    }

    /// Where a blob of this session can be read.
    pub(crate) fn find(&self, kind: Kind, prefix: Prefix) -> Option<Pending> {
        self.ledger().find(&BlobKey { kind, prefix })
    }

    /// A pack found by an earlier look-up, unless it was condemned meanwhile. Asked under the ledger's lock: a base epoch is published only after the condemned packs
    /// were made known and the ledger was asked what is relied on, so no reference slips between.
    pub(super) fn still_live(&self, found: Option<PackName>) -> Option<PackName> {
        found.filter(|pack| !self.shared.catalog.is_condemned(pack))
    }

    /// The session has lost something: nothing is taken any more.
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

    /// Waits until `done` says so of the ledger; however long that takes.
    ///
    /// # Errors
    /// The session failed.
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

    /// Reserves room for bytes that are about to be accepted; the caller is held back here when too many are under way.
    ///
    /// # Errors
    /// `Stalled` if the store does not move, or the session failed.
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

    /// Lets the spool know of a caller that waits at the gate. Never ends.
    async fn press(&self) {
        match &self.overflow {
            Some(overflow) => overflow.press().await,
            None => std::future::pending().await,
        }
    }

    /// If callers wait at the gate and nothing would open it by itself, sends what rests in open packs.
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

    /// Sends everything accepted so far on its way, whether frames and packs are full or not. Returns the number below which frames then are on their way.
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

    /// Sends full frames through the workers into packs.
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

    /// Seals one frame and puts it into its pack. Returns the packs that are complete now.
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

    /// Where the workers stand. The store counts first: what it has to take is what all others wait for in the end. It is the store that is waited for when the
    /// budget is nearly taken, since the backlog keeps what is with the workers to a small part of it.
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

    /// Brings a pack into the bucket. A metadata pack waits until all data that was accepted before it was closed is there (rule 1).
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
            // What was written of a tree is read soon. The room is given back when it is kept.
            self.shared.reader.keep_pack(name, parts).await;
        }
        // The reservation goes with it, before anybody is told.
        drop(sent);
        self.beat();
        self.make_room();
        Ok(())
    }

    /// A root took these packs: the spool need not keep them.
    pub(super) fn release(self: &Arc<Self>, packs: &[PackName]) {
        let Some(overflow) = &self.overflow else {
            return;
        };
        overflow.release(packs);
        let session = Arc::clone(self);
        // Not one of the session's tasks: it ends well even if the session does not.
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

/// Counts a caller that waits at the gate.
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
