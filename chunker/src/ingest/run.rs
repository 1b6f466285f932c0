//! Storing a run of content as extents: chunk, name, look up, gather the new chunks, list the
//! chunks in segments.
//!
//! Owns the calls that store content of this repository, and the steps of each. `pending` owns the
//! gathered blobs from then on.

use std::sync::Arc;

use bytes::Bytes;

use super::Profile;
use super::handle::{Ingest, Operation};
use super::segments::{Listed, SplitParameters};
use super::session::Session;
use crate::catalog::Unsettled;
use crate::chunking::Chunk;
use crate::chunking::segment::{self, SegmentChunk};
use crate::error::ContentError;
use crate::extent::{StoredExtent, StoredRun, Target};
use crate::id::{Id, Kind};
use crate::pack::PackName;
use crate::pending::{LARGEST_BLOB_BYTES, Matching};
use crate::runtime::Runtime;

/// Bytes of content that one job names: so many that the hand-over costs next to nothing, and so
/// few that several workers share a run.
const JOB_BYTES: usize = 1 << 20;

/// Bytes of memory that a blob takes in addition to its content while it is under way.
const BLOB_OVERHEAD_BYTES: u64 = 128;

/// Blobs that are accepted under one lock: neighbours stay together, and no other caller waits long
/// for the lock.
const TAKEN_AT_ONCE: usize = 8;

/// Number of chunks for which runs are asked concurrently: as many packs are learned at the same time.
const ASKED_AT_ONCE: usize = 16;

/// How the blobs of a run are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) hold: Hold,
    pub(super) matching: Matching,
}

impl Manner {
    /// Copied, and compared with all stored blobs.
    pub(super) const COPIED: Self = Self {
        hold: Hold::Copied,
        matching: Matching::Everything,
    };
}

/// How a frame holds the bytes that it takes from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// In the memory of the run, which lives until the last frame with a part of it is sealed.
    Shared,
    /// In a copy, because most of the run's memory would be kept for no use.
    Copied,
}

impl Hold {
    /// Returns [`Hold::Shared`] if at least half of `length` bytes are `new`, otherwise
    /// [`Hold::Copied`].
    fn of(new: usize, length: usize) -> Self {
        match new >= length / 2 {
            true => Self::Shared,
            false => Self::Copied,
        }
    }

    fn take(self, bytes: &Bytes) -> Bytes {
        match self {
            Self::Shared => bytes.clone(),
            Self::Copied => Bytes::copy_from_slice(bytes),
        }
    }
}

impl Ingest {
    /// Stores a run of a file's content.
    ///
    /// New chunks are compressed, sealed and uploaded in the background. The call waits while more
    /// accepted bytes are under way than the write budget allows. The content can be read at once,
    /// and is in the bucket after the next [`Ingest::finish`].
    ///
    /// `run` begins at a segment boundary of `profile`; for page files that is a multiple of 1 MiB
    /// of the file. `file_offset` is its offset in the file in bytes. With `end_of_data` the whole
    /// run is stored. Without it the last incomplete segment is not, and `consumed` tells how many
    /// bytes were stored.
    ///
    /// If the future is dropped, complete blobs that nothing refers to are still uploaded, and the
    /// unused part of the budget reservation is given back.
    ///
    /// # Errors
    /// - [`ContentError::Stalled`] if the store makes no progress: call again.
    /// - [`ContentError::Failed`] if this session has lost data: use another session.
    /// - [`ContentError::Internal`] if a worker's job panics.
    pub async fn store_run(
        &self,
        profile: Profile,
        file_offset: u64,
        run: Vec<Bytes>,
        end_of_data: bool,
    ) -> Result<StoredRun, ContentError> {
        let _operation = Operation::begin(&self.session);
        let (session, matching) = (&self.session, Matching::Everything);
        store(session, matching, profile, file_offset, run, end_of_data).await
    }

    /// As [`Ingest::store_run`], but without deduplication: everything is stored again. Neither the
    /// duration nor the number of bytes sent reveals which data is stored or in flight already.
    ///
    /// # Errors
    /// As [`Ingest::store_run`].
    pub async fn store_run_anew(
        &self,
        profile: Profile,
        file_offset: u64,
        run: Vec<Bytes>,
        end_of_data: bool,
    ) -> Result<StoredRun, ContentError> {
        let _operation = Operation::begin(&self.session);
        let (session, matching) = (&self.session, Matching::Nothing);
        store(session, matching, profile, file_offset, run, end_of_data).await
    }

    /// Stores one blob (a node, a segment, a commit record) unless it is stored already, and
    /// returns its id. If the future is dropped, the blob may or may not be stored.
    ///
    /// # Errors
    /// As [`Ingest::store_run`], and [`ContentError::Invalid`] for a blob larger than a frame.
    pub async fn store_blob(&self, kind: Kind, bytes: Bytes) -> Result<Id, ContentError> {
        let _operation = Operation::begin(&self.session);
        store_blob(&self.session, kind, bytes, Manner::COPIED).await
    }

    /// Adopts a reference that this session did not make, for instance an extent that is shared
    /// with a snapshot. The blob is checked to be live, and its pack joins [`Ingest::relied_on`].
    ///
    /// # Errors
    /// - [`ContentError::Unknown`] if no live pack holds it. The content must then be stored again.
    /// - Those of [`ContentStore::places`](crate::content_store::ContentStore::places).
    pub async fn adopt(&self, target: Target) -> Result<(), ContentError> {
        let (kind, id) = match target {
            Target::Chunk(id) => (Kind::Chunk, id),
            Target::Segment(id) => (Kind::Segment, id),
        };
        self.adopt_blob(kind, id).await
    }

    /// As [`Ingest::adopt`], for any blob. The live set is closed, so everything that the blob
    /// refers to is live as well (docs/PROTOCOL.md, rule 3).
    ///
    /// # Errors
    /// As [`Ingest::adopt`].
    pub async fn adopt_blob(&self, kind: Kind, id: Id) -> Result<(), ContentError> {
        let _operation = Operation::begin(&self.session);
        adopt(&self.session, kind, id).await
    }
}

/// A chunk of a run, and what naming it gave.
#[derive(Debug)]
pub(super) struct Named {
    chunk: Chunk,
    /// `None` for a hole, and until the chunk is named.
    id: Option<Id>,
    /// The pack in which the index look-up found the chunk.
    known: Option<PackName>,
}

impl Named {
    /// Returns a chunk that is to be named.
    pub(super) fn new(chunk: Chunk) -> Self {
        Self {
            chunk,
            id: None,
            known: None,
        }
    }

    fn length(&self) -> usize {
        self.chunk.bytes.len()
    }

    fn listed(&self) -> Listed {
        Listed {
            start: self.chunk.start,
            length: self.length() as u32,
            id: self.id,
        }
    }
}

/// Stores a run; see [`Ingest::store_run`].
async fn store(
    session: &Arc<Session>,
    matching: Matching,
    profile: Profile,
    file_offset: u64,
    run: Vec<Bytes>,
    end_of_data: bool,
) -> Result<StoredRun, ContentError> {
    let length = run.iter().map(Bytes::len).sum();
    let plan = SplitParameters {
        profile,
        file_offset,
        end_of_data: end_of_data.then_some(length),
    };
    let chunks = cut(session, &plan, run).await?;
    let named = name(session, chunks, matching).await?;
    let unknown = named
        .iter()
        .filter(|named| !named.chunk.is_zero && named.known.is_none());
    let manner = Manner {
        hold: Hold::of(unknown.map(Named::length).sum(), length),
        matching,
    };
    let parts = plan.divide(
        session.shared.cutter.parameters(),
        named.iter().map(Named::listed),
    );
    let mut stored = StoredRun::default();
    let mut zero = 0;
    for part in parts {
        stored.consumed = part.end;
        let target = match &named[part.chunks] {
            [] => {
                zero += part.end - part.start;
                None
            }
            chunks => Some(store_part(session, profile, chunks, manner).await?),
        };
        stored.extents.push(StoredExtent {
            offset: file_offset + part.start as u64,
            length: (part.end - part.start) as u32,
            target,
            open: part.open,
        });
    }
    let counters = &session.shared.link.counters;
    counters.bytes_in.add(stored.consumed as u64);
    counters.bytes_zero.add(zero as u64);
    Ok(stored)
}

/// Divides the run into chunks without names.
async fn cut(
    session: &Arc<Session>,
    plan: &SplitParameters,
    run: Vec<Bytes>,
) -> Result<Vec<Named>, ContentError> {
    let shared = Arc::clone(&session.shared);
    let plan = *plan;
    let length = run.iter().map(Bytes::len).sum();
    let job = move || {
        let mut chunks = Vec::new();
        let is_end = plan.end_of_data.is_some();
        let each = |chunk| chunks.push(Named::new(chunk));
        shared
            .cutter
            .cut_pieces(plan.profile, run, plan.file_offset, is_end, each);
        chunks
    };
    session.shared.workers.run_sized(length, job).await
}

/// Names chunks and, with [`Matching::Everything`], looks them up in the index, in jobs of about
/// [`JOB_BYTES`] each.
pub(super) async fn name(
    session: &Arc<Session>,
    chunks: Vec<Named>,
    matching: Matching,
) -> Result<Vec<Named>, ContentError> {
    let mut jobs = Vec::new();
    let mut rest = chunks;
    while let Some(first) = rest.first() {
        let limit = first.chunk.start + JOB_BYTES;
        let is_within = |named: &Named| named.chunk.start + named.length() <= limit;
        let count = rest.partition_point(is_within).max(1);
        let others = rest.split_off(count);
        let mut batch = std::mem::replace(&mut rest, others);
        let bytes = batch.iter().map(Named::length).sum();
        let shared = Arc::clone(&session.shared);
        let job = move || {
            let each = batch.iter_mut();
            let found: Vec<_> = each
                .map(|named| name_chunk(&shared, named, matching))
                .collect();
            (batch, found)
        };
        jobs.push(session.shared.workers.run_sized(bytes, job));
    }
    let (mut all, mut asked) = (Vec::new(), Vec::new());
    for (batch, found) in futures::future::try_join_all(jobs).await? {
        for (mut named, found) in batch.into_iter().zip(found) {
            match (named.id, found) {
                (Some(_), Err(Unsettled::Runs)) => asked.push(all.len()),
                (Some(id), found) => named.known = settle(&session.shared, &id, found).await,
                (None, _) => {}
            }
            all.push(named);
        }
    }
    if !asked.is_empty() {
        Box::pin(ask_runs(&session.shared, &mut all, asked)).await;
    }
    Ok(all)
}

/// Asks the runs for the chunks at these positions: for [`ASKED_AT_ONCE`] of them at a time, which lie
/// far from each other. What is learned with each answers for its neighbours.
async fn ask_runs(shared: &Runtime, all: &mut [Named], mut positions: Vec<usize>) {
    while !positions.is_empty() {
        let apart = positions.len().div_ceil(ASKED_AT_ONCE);
        let asks = positions.iter().step_by(apart).map(|position| {
            let (position, id) = (*position, all[*position].id);
            async move {
                let known = match id {
                    Some(id) => settle(shared, &id, Err(Unsettled::Runs)).await,
                    None => None,
                };
                (position, known)
            }
        });
        let answers = futures::future::join_all(asks.collect::<Vec<_>>()).await;
        for (position, known) in answers {
            all[position].known = known;
        }
        let mut place = 0;
        positions.retain(|position| {
            let was_asked = place % apart == 0;
            place += 1;
            !was_asked && look_again(shared, &mut all[*position]).is_err()
        });
    }
    // The filters may have only a sample of the blobs. What was learned tells of the others.
    for named in all.iter_mut().filter(|named| named.known.is_none()) {
        let _ = look_again(shared, named);
    }
}

/// Looks a chunk up by what is in memory.
fn look_again(shared: &Runtime, named: &mut Named) -> Result<(), Unsettled> {
    if let Some(id) = named.id {
        named.known = shared.catalog.find_live_now(&id)?;
    }
    Ok(())
}

fn name_chunk(shared: &Runtime, named: &mut Named, matching: Matching) -> Found {
    if named.chunk.is_zero {
        return Ok(None);
    }
    let id = shared.keyring.id(Kind::Chunk, &named.chunk.bytes);
    named.id = Some(id);
    look_up(shared, &id, matching)
}

/// The pack in which the index look-up found a blob, or what must be done first.
type Found = Result<Option<PackName>, Unsettled>;

fn look_up(shared: &Runtime, id: &Id, matching: Matching) -> Found {
    match matching {
        Matching::Everything => shared.catalog.find_live_now(id),
        Matching::Nothing => Ok(None),
    }
}

/// Returns the pack of a blob that was looked up. If a table was damaged, has it made anew and
/// looks again. If that fails, the table is not asked: what only it lists is stored once more. If
/// runs must be asked, asks them: so the neighbours of the blob are known at once.
async fn settle(shared: &Runtime, id: &Id, mut found: Found) -> Option<PackName> {
    let mut is_repeated = false;
    loop {
        let damaged = match found {
            Ok(found) => return found,
            Err(Unsettled::Runs) if is_repeated => {
                return Box::pin(shared.catalog.ask_briefly(id)).await;
            }
            Err(Unsettled::Runs) => {
                // Another blob may have led to the pack of this one meanwhile.
                is_repeated = true;
                found = shared.catalog.find_live_now(id);
                continue;
            }
            Err(Unsettled::Table(damaged)) => damaged,
        };
        // Other blobs were looked up before an attempt failed.
        if !damaged.is_given_up() {
            // After a failure the table is not asked again, so this ends.
            let _ = shared.catalog.mend(damaged).await;
        }
        found = shared.catalog.find_live_now(id);
    }
}

/// Stores the chunks of one extent and, if there are several, the segment that lists them.
pub(super) async fn store_part(
    session: &Arc<Session>,
    profile: Profile,
    chunks: &[Named],
    manner: Manner,
) -> Result<Target, ContentError> {
    let mut listed = Vec::with_capacity(chunks.len());
    let mut wanted = Vec::with_capacity(chunks.len());
    for named in chunks {
        let id = named
            .id
            .ok_or(ContentError::Internal("a hole in a segment"))?;
        listed.push(SegmentChunk {
            length: named.length() as u32,
            id,
        });
        wanted.push(Wanted {
            kind: Kind::Chunk,
            id,
            bytes: named.chunk.bytes.clone(),
            known: named.known,
        });
    }
    store_blobs(session, &wanted, manner).await?;
    if let [single] = listed.as_slice() {
        return Ok(Target::Chunk(single.id));
    }
    let list = Bytes::from(segment::encode(profile, &listed));
    let manner = Manner {
        hold: Hold::Copied,
        ..manner
    };
    store_blob(session, Kind::Segment, list, manner)
        .await
        .map(Target::Segment)
}

/// Stores one blob, unless it is compared with stored blobs and found. Returns its id.
pub(super) async fn store_blob(
    session: &Arc<Session>,
    kind: Kind,
    bytes: Bytes,
    manner: Manner,
) -> Result<Id, ContentError> {
    if bytes.len() > LARGEST_BLOB_BYTES {
        return Err(ContentError::Invalid("a blob larger than a frame"));
    }
    let shared = Arc::clone(&session.shared);
    let hashed = bytes.clone();
    let job = move || {
        let id = shared.keyring.id(kind, &hashed);
        (id, look_up(&shared, &id, manner.matching))
    };
    let workers = &session.shared.workers;
    let (id, found) = workers.run_sized(bytes.len(), job).await?;
    let known = settle(&session.shared, &id, found).await;
    let wanted = Wanted {
        kind,
        id,
        bytes,
        known,
    };
    store_blobs(session, &[wanted], manner).await?;
    Ok(id)
}

/// Does the work of [`Ingest::adopt_blob`].
async fn adopt(session: &Arc<Session>, kind: Kind, id: Id) -> Result<(), ContentError> {
    let found = session.shared.catalog.find_live(&id).await;
    let (known, error) = match found {
        Ok(known) => (known, ContentError::Unknown { kind, id }),
        // The session's own blobs are in no table.
        Err(error) => (None, error),
    };
    let mut pending_index = session.pending_index();
    if let Some(pack) = session.still_live(known) {
        pending_index.rely_on(pack, kind, id);
        return Ok(());
    }
    match pending_index.has(kind, id) {
        true => Ok(()),
        false => Err(error),
    }
}

/// A blob that must be in the bucket at the end.
struct Wanted {
    kind: Kind,
    id: Id,
    bytes: Bytes,
    known: Option<PackName>,
}

/// Ensures that each blob is in a live pack or in flight.
///
/// [`PendingIndex::gather`](crate::pending::PendingIndex::gather) looks a blob up and accepts it
/// without a wait in between. So of two callers that store the same blob, one stores it and the
/// other finds it. A caller that is dropped leaves no blob half accepted.
async fn store_blobs(
    session: &Arc<Session>,
    wanted: &[Wanted],
    manner: Manner,
) -> Result<(), ContentError> {
    let mut missing = Vec::new();
    let mut bytes = 0;
    {
        let mut pending_index = session.pending_index();
        if let Some(failure) = pending_index.failure() {
            return Err(failure);
        }
        for blob in wanted {
            if let Some(pack) = session.still_live(blob.known) {
                pending_index.rely_on(pack, blob.kind, blob.id);
            } else if !pending_index.matches(blob.kind, blob.id, manner.matching) {
                bytes += blob.bytes.len() as u64 + BLOB_OVERHEAD_BYTES;
                missing.push(blob);
            }
        }
    }
    let counters = &session.shared.link.counters;
    let total: usize = wanted.iter().map(|blob| blob.bytes.len()).sum();
    let hold = match manner.hold {
        Hold::Shared => Hold::of(bytes as usize, total),
        Hold::Copied => Hold::Copied,
    };
    let mut stored = 0;
    if !missing.is_empty() {
        let mut reservation = session.reserve(bytes).await?;
        for group in missing.chunks(TAKEN_AT_ONCE) {
            let mut full = Vec::new();
            {
                let mut pending_index = session.pending_index();
                for blob in group {
                    let part = reservation.split(blob.bytes.len() as u64 + BLOB_OVERHEAD_BYTES);
                    let (name, length) = ((blob.kind, blob.id), blob.bytes.len());
                    let gathered = pending_index.gather(name, length, part, manner.matching);
                    full.extend(gathered.full);
                    if let Some(new) = gathered.new {
                        new.fill(hold.take(&blob.bytes));
                        stored += length;
                    }
                }
            }
            session.process_all(full);
        }
    }
    counters.bytes_new.add(stored as u64);
    counters.bytes_deduplicated.add((total - stored) as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_where_half_of_it_is_new() {
        assert_eq!(Hold::of(8, 16), Hold::Shared);
        assert_eq!(Hold::of(7, 16), Hold::Copied);
        let bytes = Bytes::from(vec![7; 100]);
        let [shared, copied] = [Hold::Shared, Hold::Copied].map(|hold| hold.take(&bytes));
        assert!(shared.as_ptr() == bytes.as_ptr() && copied.as_ptr() != bytes.as_ptr());
        assert_eq!([shared, copied], [bytes.clone(), bytes]);
    }
}
