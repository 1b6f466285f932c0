//! The order in which accepted frames reach the workers and join packs.
//!
//! Owns the budget that callers wait for, the cut that sends what rests, and the tasks that process
//! full frames, even if the call that stored them is dropped. Works with frames and packs by their
//! numbers and lengths. Does not own their bytes (`pending`), what becomes of closed packs (upload),
//! nor the state of the session.

use std::sync::Arc;

use super::overflow::Waiter;
use super::session::Session;
use crate::codec::Balance;
use crate::crypto::{Class, Features};
use crate::error::ContentError;
use crate::gate::Reservation;
use crate::pack::{PackBuilder, PackError};
use crate::pending::{FramePlace, FullFrame, NewPack, OpenPack};
use crate::workers::Scratch;
use bkfs_store::entropy::{number, salt};

impl Session {
    /// Reserves budget for bytes that are about to be accepted. The caller waits here while too
    /// many bytes are in flight.
    ///
    /// # Errors
    /// [`ContentError::Stalled`] if the store makes no progress, or [`ContentError::Failed`] if the
    /// session fails.
    pub(super) async fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, ContentError> {
        self.backlog.room().await;
        if let Some(failure) = self.pending_index().failure() {
            return Err(failure);
        }
        let reservation = match self.gate.try_reserve(bytes) {
            Some(reservation) => reservation,
            None => {
                let waiter = Waiter::new(&self.demand);
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
                    failed.unwrap_or(ContentError::Internal("waited for nothing"))
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
    pub(super) fn make_room(self: &Arc<Self>) {
        if !self.demand.borrow().is_awaited() {
            return;
        }
        let is_moving = {
            let mut pending_index = self.pending_index();
            pending_index.pack_writer(Class::DataPack).is_moving()
                || pending_index.pack_writer(Class::MetadataPack).is_moving()
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
            let mut pending_index = self.pending_index();
            let frontier = pending_index.frontier();
            for &class in classes {
                let pack_writer = pending_index.pack_writer(class);
                ended.push((pack_writer.take_gathering(), pack_writer.cut(frontier)));
            }
            frontier
        };
        for (full, packs) in ended {
            self.process_all(full);
            self.send_all(packs);
        }
        frontier
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

    async fn work_off(self: Arc<Self>) -> Result<(), ContentError> {
        while let Some(frames) = self.backlog.take() {
            let session = Arc::clone(&self);
            let job = self.shared.workers.run(move |scratch| {
                frames
                    .into_iter()
                    .map(|full| session.process(full, scratch))
                    .collect::<Result<Vec<_>, ContentError>>()
            });
            let packs = job.await??;
            self.send_all(packs.into_iter().flatten());
            self.make_room();
        }
        Ok(())
    }

    /// Seals one frame and places it in its pack. Returns the packs that are complete now.
    fn process(
        &self,
        full: FullFrame,
        scratch: &mut Scratch,
    ) -> Result<Vec<OpenPack>, ContentError> {
        let class = full.frame.class;
        let place = self.place(&full)?;
        let effort = self.shared.effort(self.balance());
        let sealed = full
            .frame
            .seal(place, &mut scratch.frames, effort)
            .map_err(|error| match error {
                PackError::Inconsistent(reason) => ContentError::Internal(reason),
                _ => ContentError::Internal("a frame takes less than it should"),
            })?;
        let counters = &self.shared.link.counters;
        counters
            .bytes_compressed
            .add(u64::from(sealed.stored_length()));
        self.pending_index()
            .pack_writer(class)
            .deliver(full, sealed)
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

    fn place(&self, full: &FullFrame) -> Result<FramePlace, ContentError> {
        let class = full.frame.class;
        let mut pending_index = self.pending_index();
        let (names, pack_writer) = pending_index.names_and_pack_writer(class);
        pack_writer.ticket(full, || {
            let entropy = &*self.shared.link.entropy;
            let name = names.draw(number(entropy))?;
            let keyring = &self.shared.keyring;
            let builder = PackBuilder::new(keyring, class, name, Features::NONE, salt(entropy));
            let opener = keyring
                .object_opener(class, &name.key(class), builder.header())
                .map_err(|_| ContentError::Internal("a fresh header does not open"))?;
            Ok(NewPack {
                builder,
                opener: Arc::new(opener),
            })
        })
    }
}
