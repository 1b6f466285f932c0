//! Upload of closed packs: directly from memory, or through the spool.
//!
//! Owns the tasks that finish and upload one pack each, both ways, and the change from one to the
//! other. After a transient error a task tries again, without a time limit. Direct upload is the
//! default. The spool uploads its packs in order of age, and releases them when a root names them.
//! Does not own the reasons to use the spool, nor the memory that each way may take ([`Overflow`]).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::overflow::Overflow;
use super::session::Session;
use crate::codec::Balance;
use crate::crypto::Class;
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::pack::FinishedPack;
use crate::pending::{OpenPack, SentPack};
use crate::spool::{SpoolError, Spooled};

/// A finished pack and the whole object, in consecutive parts.
struct Loaded {
    pack: FinishedPack,
    parts: Vec<Bytes>,
}

impl Session {
    /// Uploads closed packs, each in a task of its own.
    pub(super) fn send_all(self: &Arc<Self>, packs: impl IntoIterator<Item = OpenPack>) {
        for pack in packs {
            let session = Arc::clone(self);
            self.spawn(async move { session.send(pack).await });
        }
    }

    /// Uploads a pack. A metadata pack is uploaded only after all data that was accepted before the
    /// pack was closed (rule 1).
    async fn send(self: Arc<Self>, pack: OpenPack) -> Result<(), ContentError> {
        let is_metadata = pack.class == Class::MetadataPack;
        let after = is_metadata.then(|| self.cut(&[Class::DataPack]));
        let (builder, mut sent) = pack.into_parts();
        let effort = self.shared.effort(Balance::Even);
        let job = self
            .shared
            .workers
            .run(move |scratch| builder.finish(&mut scratch.frames, effort));
        let (pack, end) = job
            .await?
            .map_err(|_| ContentError::Internal("a pack does not end as it should"))?;
        let mut pack = Loaded::of(pack, &sent, end)?;
        self.ship(&mut pack, &mut sent, after).await?;
        self.shared.link.counters.packs_uploaded.one();
        let Loaded { pack, parts } = pack;
        let (name, whole) = (pack.name, is_metadata.then_some(parts));
        self.pending_index().acknowledge(&sent, pack);
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

    /// Uploads a finished pack.
    ///
    /// When this returns, the pack is in the bucket. If it was sent from the spool, `pack.parts` is
    /// empty and the reservation of `sent` was given back. A metadata pack is sent only after all
    /// data below `after` (rule 1); the spool may take it before.
    async fn ship(
        &self,
        pack: &mut Loaded,
        sent: &mut SentPack,
        after: Option<u64>,
    ) -> Result<(), ContentError> {
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
            self.send_back(overflow, &pack.pack, &spooled, after)
                .await?;
        }
        Ok(())
    }

    async fn send_straight(
        &self,
        loaded: &Loaded,
        after: Option<u64>,
        flight: Option<(&ByteGate, &AtomicBool)>,
    ) -> Result<(), ContentError> {
        if let Some(frontier) = after {
            self.acknowledged(Class::DataPack, frontier).await?;
        }
        let _room = match flight {
            None => None,
            Some((gate, is_sent)) => {
                let room = gate.reserve(loaded.pack.length).await;
                is_sent.store(true, Ordering::Relaxed);
                Some(room)
            }
        };
        let key = loaded.pack.name.key(loaded.pack.class);
        self.shared.link.create(&key, &loaded.parts).await
    }

    /// Sends a pack from memory, and writes it to the spool meanwhile if that is wanted.
    ///
    /// Returns `None` if the pack is in the bucket and not in the spool. Otherwise the caller must
    /// send the spooled pack, unless the spool records that it is in the bucket.
    async fn ship_or_spool(
        &self,
        overflow: &Overflow,
        loaded: &Loaded,
        sent: &SentPack,
        after: Option<u64>,
    ) -> Result<Option<Arc<Spooled>>, ContentError> {
        let pack = &loaded.pack;
        let is_sent = AtomicBool::new(false);
        let mut straight =
            pin!(self.send_straight(loaded, after, Some((&overflow.flight, &is_sent))));
        let key = pack.name.key(pack.class);
        let spooled = loop {
            tokio::select! {
                biased;
                sent = &mut straight => return sent.map(|()| None),
                () = overflow.wanted(pack, sent.first_frame(), &is_sent) => {}
            }
            // A put is given up once the store has answered: the spool removes what it has written.
            let put = tokio::select! {
                biased;
                sent = &mut straight => {
                    overflow.free_dropped();
                    return sent.map(|()| None);
                }
                put = overflow.spool.put(&key, &loaded.parts) => put,
            };
            match put {
                Ok(spooled) => break spooled,
                // The bytes are still in memory: they are sent directly, and writers wait.
                Err(SpoolError::Full { .. }) => {}
                Err(error) => tracing::warn!("a pack is not spooled: {error}"),
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
        overflow.hold(pack.name, Arc::clone(spooled), sent.end());
        self.shared.link.counters.bytes_spooled.add(pack.length);
        self.pending_index().spool(sent, pack, spooled);
        self.beat();
    }

    /// Uploads a pack from the spool.
    async fn send_back(
        &self,
        overflow: &Overflow,
        pack: &FinishedPack,
        spooled: &Spooled,
        after: Option<u64>,
    ) -> Result<(), ContentError> {
        if let Some(frontier) = after {
            self.acknowledged(Class::DataPack, frontier).await?;
        }
        // First come, first served: the oldest pack is sent first.
        let _room = overflow.read_back.reserve(pack.length).await;
        let bytes = spooled.read().await.map_err(ContentError::from)?;
        self.shared.link.create(spooled.key(), &[bytes]).await?;
        spooled.uploaded();
        Ok(())
    }
}

impl Loaded {
    /// Returns a pack with its bytes: the header, the frames, and `end`.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if a frame is not in memory.
    fn of(pack: FinishedPack, sent: &SentPack, end: Bytes) -> Result<Self, ContentError> {
        let mut parts = Vec::with_capacity(sent.frames.len() + 2);
        parts.push(Bytes::copy_from_slice(&pack.header));
        for (frame, entry) in sent.frames.iter().zip(pack.footer.frames()) {
            let sealed = frame.sealed(pack.name, &entry);
            parts.push(sealed.ok_or(ContentError::Internal("a frame is not in memory"))?);
        }
        parts.push(end);
        Ok(Self { pack, parts })
    }
}
