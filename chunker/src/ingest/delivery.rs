//! Packs that a journal names: bringing them into the bucket without an index object, and taking over those of a session that has ended.
//!
//! Owns the two ends of one promise (protocol.md, rules 1 and 6): what a journal names is acknowledged before the journal is sent, and whoever replays it
//! finds every blob again in the packs named. Does not own journals, nor who may replay one.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use super::session::Session;
use crate::error::DepotError;
use crate::pack::{FinishedPack, Footer, PackName, TRAILER_LEN, Trailer};
use crate::seal::{Class, HEADER_LEN};

/// Packs whose footers are read at the same time.
const READ_AT_ONCE: usize = 8;

/// What is read of a pack's end at first, in bytes: nearly every footer is shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// A pack that no root lists yet, as a journal names it: enough to find its footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedPack {
    /// Its name.
    pub name: PackName,
    /// True for a metadata pack, false for a data pack.
    pub is_metadata: bool,
    /// Its length in the bucket, in bytes.
    pub length: u64,
}

impl NamedPack {
    /// Its key in the bucket.
    pub fn key(&self) -> String {
        self.name.key(self.class())
    }

    /// Data or metadata.
    pub fn class(&self) -> Class {
        match self.is_metadata {
            true => Class::MetadataPack,
            false => Class::DataPack,
        }
    }
}

/// Acknowledged: every pack that holds what was stored before, but for what a root lists already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The session's own packs that no root lists yet.
    pub own: Vec<NamedPack>,
    /// Other packs that uncommitted references name.
    pub relied_on: Vec<PackName>,
}

/// See [`Ingest::deliver`](super::Ingest::deliver). Dropped, it leaves everything on its way, as it
/// found it.
pub(super) async fn deliver(session: &Arc<Session>) -> Result<Delivered, DepotError> {
    let frontier = session.cut(&[Class::DataPack, Class::MetadataPack]);
    let sent = async {
        session.acknowledged(Class::DataPack, frontier).await?;
        session.acknowledged(Class::MetadataPack, frontier).await
    };
    session.shared.link.progress.watch(sent).await??;
    Ok(delivered(session, frontier, Vec::new()))
}

/// See [`Ingest::keep`](super::Ingest::keep). Dropped, it leaves what it demanded on its way to the
/// spool.
pub(super) async fn keep(session: &Arc<Session>) -> Result<Delivered, DepotError> {
    let Some(overflow) = &session.overflow else {
        return deliver(session).await;
    };
    let frontier = session.cut(&[Class::DataPack, Class::MetadataPack]);
    overflow.demand(frontier);
    let progress = &session.shared.link.progress;
    progress.watch(session.kept(frontier)).await??;
    Ok(delivered(session, frontier, overflow.kept(frontier)))
}

/// What uncommitted references may name: packs in the bucket, and `kept` ones, all of them below
/// `frontier`.
///
/// A pack above it may be there already while what it refers to is not, since packs finish in any
/// order. Below it everything is there, and what is there refers to nothing above it: a blob is
/// accepted after all that it refers to, and the frontier is drawn between two blobs in both
/// classes at once.
fn delivered(session: &Arc<Session>, frontier: u64, kept: Vec<NamedPack>) -> Delivered {
    let ledger = session.ledger();
    let waiting = ledger.waiting(frontier);
    let mut own: Vec<NamedPack> = waiting
        .iter()
        .map(|stored| NamedPack {
            name: stored.pack.name,
            is_metadata: stored.pack.class == Class::MetadataPack,
            length: stored.pack.length,
        })
        .collect();
    // A kept one may have arrived, or been committed, meanwhile.
    own.extend(kept);
    own.sort_unstable_by_key(|pack| pack.name);
    own.dedup_by_key(|pack| pack.name);
    let mut relied_on: Vec<PackName> = ledger.relied_on().into_iter().collect();
    relied_on.sort_unstable();
    Delivered { own, relied_on }
}

/// See [`Ingest::take_over`](super::Ingest::take_over).
pub(super) async fn take_over(
    session: &Arc<Session>,
    delivered: &Delivered,
) -> Result<(), DepotError> {
    let catalog = &session.shared.catalog;
    // One that was listed since and is condemned by now is no more the session's than any other: what is needed of it is stored again.
    let unlisted = delivered
        .own
        .iter()
        .filter(|pack| !catalog.is_listed(&pack.name));
    let reads = unlisted.map(|pack| read(session, *pack));
    let packs: Vec<FinishedPack> = futures::stream::iter(reads.collect::<Vec<_>>())
        .buffered(READ_AT_ONCE)
        .try_collect()
        .await?;
    let mut ledger = session.ledger();
    for pack in packs {
        ledger.adopt(pack);
    }
    Ok(())
}

/// Reads header and footer of a pack.
async fn read(session: &Arc<Session>, pack: NamedPack) -> Result<FinishedPack, DepotError> {
    let class = pack.class();
    let key = pack.name.key(class);
    let link = &session.shared.link;
    let damaged = |error: crate::pack::PackError| DepotError::damaged(&key, error);
    let least = (HEADER_LEN + TRAILER_LEN) as u64;
    if pack.length < least || pack.length > crate::pack::PACK_BYTES_MAX {
        return Err(DepotError::damaged(&key, "a pack cannot have that length"));
    }
    let head = link.get_range(&key, 0..HEADER_LEN as u64).await?;
    let header = *head
        .first_chunk::<HEADER_LEN>()
        .ok_or_else(|| DepotError::damaged(&key, "it is cut short"))?;
    let opener = session
        .shared
        .keyring
        .object_opener(class, &key, &header)
        .map_err(|error| DepotError::unopened(&key, error))?;
    let from = |length: u64| pack.length - length.min(pack.length)..pack.length;
    let mut tail = link.get_range(&key, from(TAIL_BYTES)).await?;
    let trailer = Trailer::decode(&tail).map_err(damaged)?;
    if trailer.tail_length() > pack.length {
        return Err(DepotError::damaged(
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
        parts: Vec::new(),
    })
}
