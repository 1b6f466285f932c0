//! Packs that a journal names: their upload without an index object, and the takeover of those of
//! an ended session.
//!
//! Owns the two sides of one promise (docs/PROTOCOL.md, rules 1 and 6). The packs that a journal
//! names are acknowledged before the journal is sent. The new holder that replays it finds every
//! blob in these packs. Does not own journals, nor the decision which session may replay one.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use super::session::Session;
use crate::crypto::{Class, HEADER_LEN};
use crate::error::ContentError;
use crate::pack::{FinishedPack, Footer, PackName, TRAILER_LEN, Trailer};
use crate::spool::Spooled;

/// Maximum number of packs whose footers are read concurrently.
const READ_AT_ONCE: usize = 8;

/// Bytes at the end of a pack that are read first: nearly every footer is shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A pack that no root lists yet, as a journal names it: enough to find its footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedPack {
    /// The name of the pack.
    pub name: PackName,
    /// True for a metadata pack, false for a data pack.
    pub is_metadata: bool,
    /// The length of the pack in the bucket, in bytes.
    pub length: u64,
}

impl NamedPack {
    /// Returns the key in the bucket.
    pub fn key(&self) -> String {
        self.name.key(self.class())
    }

    /// Returns the class: data or metadata pack.
    pub fn class(&self) -> Class {
        match self.is_metadata {
            true => Class::MetadataPack,
            false => Class::DataPack,
        }
    }
}

/// The packs that hold everything stored before a call, except those that a root lists already.
///
/// After [`Ingest::deliver`](super::Ingest::deliver) all are in the bucket. After
/// [`Ingest::keep`](super::Ingest::keep) each is in the bucket or in the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The session's own packs that no root lists yet.
    pub own: Vec<NamedPack>,
    /// Other packs that uncommitted references name.
    pub relied_on: Vec<PackName>,
}

/// See [`Ingest::deliver`](super::Ingest::deliver). If the future is dropped, all packs are still
/// uploaded.
pub(super) async fn deliver(session: &Arc<Session>) -> Result<Delivered, ContentError> {
    let frontier = session.cut(&[Class::DataPack, Class::MetadataPack]);
    let sent = async {
        session.acknowledged(Class::DataPack, frontier).await?;
        session.acknowledged(Class::MetadataPack, frontier).await
    };
    session.shared.link.progress.watch(sent).await??;
    Ok(delivered(session, frontier, Vec::new()))
}

/// See [`Ingest::keep`](super::Ingest::keep). If the future is dropped, the demanded packs are
/// still written to the spool.
pub(super) async fn keep(session: &Arc<Session>) -> Result<Delivered, ContentError> {
    let Some(overflow) = &session.overflow else {
        return deliver(session).await;
    };
    let frontier = session.cut(&[Class::DataPack, Class::MetadataPack]);
    overflow.demand(frontier);
    let progress = &session.shared.link.progress;
    progress.watch(session.kept(frontier)).await??;
    let kept = overflow.kept(frontier).into_iter().map(named);
    Ok(delivered(session, frontier, kept.collect()))
}

/// Returns a pack in the spool as a journal names it.
fn named((name, spooled): (PackName, Arc<Spooled>)) -> NamedPack {
    NamedPack {
        name,
        is_metadata: PackName::from_key(spooled.key())
            .is_ok_and(|(class, _)| class == Class::MetadataPack),
        length: spooled.length(),
    }
}

/// Returns the packs that uncommitted references may name: those in the bucket, and those in
/// `kept`, all of them below `frontier`.
///
/// Packs finish in any order, so a pack above the frontier may be in the bucket before a pack that
/// it refers to. All packs below the frontier are there, and they refer to nothing above it. The
/// reason is that a blob is accepted after all blobs that it refers to, and that the frontier is
/// drawn between two blobs in both classes at once.
fn delivered(session: &Arc<Session>, frontier: u64, kept: Vec<NamedPack>) -> Delivered {
    let pending_index = session.pending_index();
    let waiting = pending_index.waiting(frontier);
    let mut own: Vec<NamedPack> = waiting
        .iter()
        .map(|stored| NamedPack {
            name: stored.pack.name,
            is_metadata: stored.pack.class == Class::MetadataPack,
            length: stored.pack.length,
        })
        .collect();
    // A pack in `kept` may have reached the bucket, or have been committed, meanwhile.
    own.extend(kept);
    own.sort_unstable_by_key(|pack| pack.name);
    own.dedup_by_key(|pack| pack.name);
    let mut relied_on: Vec<PackName> = pending_index.relied_on().into_iter().collect();
    relied_on.sort_unstable();
    Delivered { own, relied_on }
}

/// See [`Ingest::take_over`](super::Ingest::take_over).
pub(super) async fn take_over(
    session: &Arc<Session>,
    delivered: &Delivered,
) -> Result<(), ContentError> {
    let catalog = &session.shared.catalog;
    // A pack that was listed since then and is condemned by now is not this session's own. The
    // blobs that are needed of it are stored again.
    let mut unlisted = Vec::new();
    for pack in &delivered.own {
        if !catalog.is_listed(&pack.name).await? {
            unlisted.push(*pack);
        }
    }
    let reads = unlisted.into_iter().map(|pack| read(session, pack));
    let packs: Vec<FinishedPack> = futures::stream::iter(reads.collect::<Vec<_>>())
        .buffered(READ_AT_ONCE)
        .try_collect()
        .await?;
    let mut pending_index = session.pending_index();
    for pack in packs {
        pending_index.adopt(pack);
    }
    Ok(())
}

/// Reads the header and footer of a pack.
async fn read(session: &Arc<Session>, pack: NamedPack) -> Result<FinishedPack, ContentError> {
    let class = pack.class();
    let key = pack.name.key(class);
    let link = &session.shared.link;
    let damaged = |error: crate::pack::PackError| ContentError::damaged(&key, error);
    let least = (HEADER_LEN + TRAILER_LEN) as u64;
    if pack.length < least || pack.length > crate::pack::PACK_BYTES_MAX {
        return Err(ContentError::damaged(
            &key,
            "a pack cannot have that length",
        ));
    }
    let head = link.get_range(&key, 0..HEADER_LEN as u64).await?;
    let header = *head
        .first_chunk::<HEADER_LEN>()
        .ok_or_else(|| ContentError::damaged(&key, "it is cut short"))?;
    let opener = session
        .shared
        .keyring
        .object_opener(class, &key, &header)
        .map_err(|error| ContentError::unopened(&key, error))?;
    let from = |length: u64| pack.length - length.min(pack.length)..pack.length;
    let mut tail = link.get_range(&key, from(TAIL_BYTES)).await?;
    let trailer = Trailer::decode(&tail).map_err(damaged)?;
    if trailer.tail_length() > pack.length {
        return Err(ContentError::damaged(
            &key,
            "its footer is longer than itself",
        ));
    }
    if trailer.tail_length() > tail.len() as u64 {
        tail = link.get_range(&key, from(trailer.tail_length())).await?;
    }
    let start = tail.len() - trailer.tail_length() as usize;
    let sealed: Bytes = tail.slice(start..tail.len() - TRAILER_LEN);
    let length = pack.length;
    let job = session.shared.workers.run(move |scratch| {
        let decoder = scratch.frame_decoder.decoder();
        Footer::open(&opener, &trailer, &sealed, length, decoder)
    });
    let footer = job.await?.map_err(damaged)?;
    Ok(FinishedPack {
        name: pack.name,
        class,
        header,
        footer,
        length,
    })
}
