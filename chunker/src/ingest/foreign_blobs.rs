//! Storing the blobs of a foreign pack again that nothing protects any more: no root's index lists
//! it, and its session has left the root.
//!
//! Such a pack is garbage, even if it is whole, and may be deleted at any moment (docs/PROTOCOL.md,
//! rules 2 and 8). So it is never made live: the wanted blobs become this session's own. Owns
//! opening the pack and choosing its frames. Does not own where its bytes come from, nor which
//! blobs are wanted.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::run::{self, Manner};
use super::session::Session;
use crate::crypto::{Class, HEADER_LEN, ObjectOpener};
use crate::error::ContentError;
use crate::id::{Id, Kind, Prefix};
use crate::pack::{BlobEntry, Footer, FrameEntry, PackName};
use crate::verify::{Found, open_frame, read_footer};

/// An opened pack whose bytes are all in memory.
struct Whole {
    key: String,
    class: Class,
    object: Bytes,
    opener: Arc<ObjectOpener>,
    footer: Footer,
}

/// See [`Ingest::store_again`](super::Ingest::store_again).
pub(super) async fn store_again(
    session: &Arc<Session>,
    key: &str,
    object: Bytes,
    wanted: &HashSet<(Kind, Id)>,
) -> Result<Vec<Found>, ContentError> {
    let whole = open(session, key, object).await?;
    let prefixes: HashSet<(Kind, Prefix)> = wanted
        .iter()
        .map(|(kind, id)| (*kind, id.prefix()))
        .collect();
    let mut stored = Vec::new();
    let mut blobs = whole.footer.blobs().peekable();
    for frame in whole.footer.frames() {
        let mut listed = Vec::with_capacity(usize::from(frame.blob_count));
        while let Some(blob) = blobs.next_if(|blob| blob.frame == frame.number) {
            listed.push(blob);
        }
        let mut kinds = listed.iter().map(|blob| (blob.kind, blob.prefix));
        if !kinds.any(|named| prefixes.contains(&named)) {
            continue;
        }
        for mut found in blobs_of(session, &whole, frame, listed).await? {
            if !wanted.contains(&(found.kind, found.id)) {
                continue;
            }
            run::store_blob(session, found.kind, found.bytes.clone(), Manner::COPIED).await?;
            if whole.class == Class::DataPack {
                found.bytes = Bytes::new();
            }
            stored.push(found);
        }
    }
    Ok(stored)
}

async fn open(session: &Arc<Session>, key: &str, object: Bytes) -> Result<Whole, ContentError> {
    let (class, _) = PackName::from_key(key)
        .map_err(|_| ContentError::damaged(key, "this is not the name of a pack"))?;
    let header = object
        .first_chunk::<HEADER_LEN>()
        .ok_or_else(|| ContentError::damaged(key, "it is cut short"))?;
    let opener = session
        .shared
        .keyring
        .object_opener(class, key, header)
        .map_err(|error| ContentError::unopened(key, error))?;
    let opener = Arc::new(opener);
    let (footer_opener, whole) = (Arc::clone(&opener), object.clone());
    let job = move |scratch: &mut _| read_footer(&footer_opener, &whole, scratch);
    let footer = session.shared.workers.run(job).await?;
    Ok(Whole {
        footer: footer.map_err(|what| ContentError::damaged(key, what))?,
        key: key.to_owned(),
        class,
        object,
        opener,
    })
}

async fn blobs_of(
    session: &Arc<Session>,
    whole: &Whole,
    frame: FrameEntry,
    listed: Vec<BlobEntry>,
) -> Result<Vec<Found>, ContentError> {
    let damaged = |what| ContentError::damaged(&whole.key, what);
    let Range { start, end } = frame.range();
    let sealed = (start as usize)..(end as usize);
    if whole.object.get(sealed.clone()).is_none() {
        return Err(damaged("it ends before one of its frames".to_owned()));
    }
    let sealed = whole.object.slice(sealed);
    let opener = Arc::clone(&whole.opener);
    let keyring = session.shared.keyring.clone();
    let job = move |scratch: &mut _| {
        open_frame(&keyring, &opener, true, (&frame, &listed), &sealed, scratch)
    };
    let found = session.shared.workers.run(job).await?;
    found.map_err(damaged)
}
