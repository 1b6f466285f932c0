//! A run of content becomes extents: cut, name, look up, gather what is new, list the chunks in segments.
//!
//! Owns the steps of one `store_run`. What is gathered is the ledger's business from then on.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::Profile;
use super::frame::{BlobKey, LARGEST_BLOB_BYTES};
use super::session::Session;
use crate::cut::segment::{self, SegmentChunk, SegmentEnds};
use crate::cut::{Cut, Cutter};
use crate::depot::Shared;
use crate::error::DepotError;
use crate::extent::{StoredExtent, StoredRun, Target};
use crate::id::{Id, Kind};
use crate::pack::PackName;

/// Content that one job cuts or names: large enough that handing it over costs nothing, small enough that several workers share a run.
const JOB_BYTES: usize = 512 << 10;

/// Up to so many bytes a hole extent may have.
const HOLE_BYTES: u32 = 1 << 30;

/// Bytes that a blob costs beside its content while it is under way.
const BLOB_OVERHEAD_BYTES: u64 = 64;

/// Stores a run; see [`Ingest::store_run`](super::Ingest::store_run).
pub(super) async fn store(
    session: &Arc<Session>,
    profile: Profile,
    file_offset: u64,
    run: Vec<Bytes>,
    end_of_data: bool,
) -> Result<StoredRun, DepotError> {
    let run = joined(run);
    let cuts = cut(session, profile, file_offset, &run, end_of_data).await?;
    let named = name(session, &run, cuts).await?;
    let plan = Plan {
        profile,
        file_offset,
        end_of_data: end_of_data.then_some(run.len()),
    };
    let parts = plan.divide(&session.shared.cutter, &named);
    let mut stored = StoredRun::default();
    let mut zero = 0;
    for part in parts {
        stored.consumed = part.end;
        let target = match part.chunks.as_slice() {
            [] => {
                zero += part.end - part.start;
                None
            }
            chunks => Some(store_part(session, profile, &run, chunks).await?),
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

/// One piece of memory: nothing is copied if it is one already.
fn joined(mut run: Vec<Bytes>) -> Bytes {
    if run.len() <= 1 {
        return run.pop().unwrap_or_default();
    }
    let length = run.iter().map(Bytes::len).sum();
    let mut whole = BytesMut::with_capacity(length);
    for part in run {
        whole.extend_from_slice(&part);
    }
    whole.freeze()
}

async fn cut(
    session: &Arc<Session>,
    profile: Profile,
    file_offset: u64,
    run: &Bytes,
    end_of_data: bool,
) -> Result<Vec<Cut>, DepotError> {
    let (shared, run) = (Arc::clone(&session.shared), run.clone());
    let job = session.shared.workers.run(move |_| {
        let mut cuts = Vec::new();
        shared
            .cutter
            .cut(profile, &run, file_offset, end_of_data, &mut cuts);
        cuts
    });
    job.await
}

/// A chunk with its name; holes have none.
#[derive(Debug, Clone)]
struct Named {
    cut: Cut,
    id: Option<Id>,
    /// The pack of the index that has it.
    known: Option<PackName>,
}

/// Names chunks and looks them up in the index, in as many jobs as it is worth.
async fn name(
    session: &Arc<Session>,
    run: &Bytes,
    cuts: Vec<Cut>,
) -> Result<Vec<Named>, DepotError> {
    let mut jobs = Vec::new();
    let mut rest = cuts.as_slice();
    while let Some(first) = rest.first() {
        let limit = first.range.start + JOB_BYTES;
        let count = rest.partition_point(|cut| cut.range.end <= limit).max(1);
        let (job, others) = rest.split_at(count);
        rest = others;
        let (shared, run, job) = (Arc::clone(&session.shared), run.clone(), job.to_vec());
        jobs.push(
            session
                .shared
                .workers
                .run(move |_| name_chunks(&shared, &run, job)),
        );
    }
    let named = futures::future::try_join_all(jobs).await?;
    Ok(named.into_iter().flatten().collect())
}

fn name_chunks(shared: &Shared, run: &[u8], cuts: Vec<Cut>) -> Vec<Named> {
    let name = |cut: Cut| {
        if cut.is_zero {
            return Named {
                cut,
                id: None,
                known: None,
            };
        }
        let id = shared.keyring.id(Kind::Chunk, &run[cut.range.clone()]);
        Named {
            cut,
            id: Some(id),
            known: shared.catalog.find_live(&id),
        }
    };
    cuts.into_iter().map(name).collect()
}

/// What decides where extents end.
struct Plan {
    profile: Profile,
    file_offset: u64,
    /// The length of the run, if the data ends with it.
    end_of_data: Option<usize>,
}

/// One extent to be: its chunks, or none for a hole.
struct Part<'a> {
    start: usize,
    end: usize,
    chunks: Vec<&'a Named>,
    open: bool,
}

impl Plan {
    /// Divides chunks into segments and holes. What remains incomplete is left out unless the data ends.
    fn divide<'a>(&self, cutter: &Cutter, named: &'a [Named]) -> Vec<Part<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        let fresh = || SegmentEnds::new(self.profile, cutter.parameters());
        let mut ends = fresh();
        let mut gathered: Vec<&'a Named> = Vec::new();
        for chunk in named {
            let range = chunk.cut.range.clone();
            let Some(id) = chunk.id else {
                parts.extend(Part::of(std::mem::take(&mut gathered), false));
                ends = fresh();
                Part::extend_hole(&mut parts, range);
                continue;
            };
            gathered.push(chunk);
            let listed = SegmentChunk {
                length: range.len() as u32,
                id,
            };
            if ends.push(&listed, self.file_offset + range.end as u64) {
                let open = self.is_cut_short(cutter, &range);
                parts.extend(Part::of(std::mem::take(&mut gathered), open));
            }
        }
        if self.end_of_data.is_some() {
            parts.extend(Part::of(gathered, true));
        }
        parts
    }

    /// Whether the end of the data may have cut this chunk short.
    fn is_cut_short(&self, cutter: &Cutter, range: &Range<usize>) -> bool {
        let longest = cutter.parameters().longest(self.profile);
        let ends_here = self.end_of_data == Some(range.end);
        let is_whole = match self.profile {
            Profile::Grid => {
                (self.file_offset + range.end as u64).is_multiple_of(u64::from(longest))
            }
            Profile::Content | Profile::Raw => range.len() as u32 == longest,
        };
        ends_here && !is_whole
    }
}

impl<'a> Part<'a> {
    fn of(chunks: Vec<&'a Named>, open: bool) -> Option<Self> {
        let start = chunks.first()?.cut.range.start;
        let end = chunks.last()?.cut.range.end;
        Some(Self {
            start,
            end,
            chunks,
            open,
        })
    }

    fn extend_hole(parts: &mut Vec<Self>, range: Range<usize>) {
        if let Some(last) = parts.last_mut()
            && last.chunks.is_empty()
            && range.end - last.start <= HOLE_BYTES as usize
        {
            last.end = range.end;
            return;
        }
        parts.push(Part {
            start: range.start,
            end: range.end,
            chunks: Vec::new(),
            open: false,
        });
    }
}

/// Stores the chunks of one extent and, if they are several, their list.
async fn store_part(
    session: &Arc<Session>,
    profile: Profile,
    run: &Bytes,
    chunks: &[&Named],
) -> Result<Target, DepotError> {
    let mut listed = Vec::with_capacity(chunks.len());
    let mut wanted = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let id = chunk
            .id
            .ok_or(DepotError::Internal("a hole in a segment"))?;
        let range = chunk.cut.range.clone();
        listed.push(SegmentChunk {
            length: range.len() as u32,
            id,
        });
        wanted.push(Wanted {
            key: BlobKey {
                kind: Kind::Chunk,
                prefix: id.prefix(),
            },
            bytes: run.slice(range),
            known: chunk.known,
        });
    }
    store_blobs(session, &wanted).await?;
    if let [single] = listed.as_slice() {
        return Ok(Target::Chunk(single.id));
    }
    let list = Bytes::from(segment::encode(profile, &listed));
    store_blob(session, Kind::Segment, list)
        .await
        .map(Target::Segment)
}

/// Stores one blob unless it is there.
pub(super) async fn store_blob(
    session: &Arc<Session>,
    kind: Kind,
    bytes: Bytes,
) -> Result<Id, DepotError> {
    if bytes.len() > LARGEST_BLOB_BYTES {
        return Err(DepotError::Invalid("a blob larger than a frame"));
    }
    let shared = Arc::clone(&session.shared);
    let hashed = bytes.clone();
    let job = session.shared.workers.run(move |_| {
        let id = shared.keyring.id(kind, &hashed);
        (id, shared.catalog.find_live(&id))
    });
    let (id, known) = job.await?;
    let wanted = Wanted {
        key: BlobKey {
            kind,
            prefix: id.prefix(),
        },
        bytes,
        known,
    };
    store_blobs(session, &[wanted]).await?;
    Ok(id)
}

/// Takes over a reference to a blob that must be live already.
pub(super) fn adopt(session: &Arc<Session>, kind: Kind, id: Id) -> Result<(), DepotError> {
    let key = BlobKey {
        kind,
        prefix: id.prefix(),
    };
    let known = session.shared.catalog.find_live(&id);
    let mut ledger = session.ledger();
    if let Some(pack) = session.still_live(known) {
        ledger.rely_on(pack);
        return Ok(());
    }
    match ledger.has(&key) {
        true => Ok(()),
        false => Err(DepotError::Unknown { kind, id }),
    }
}

/// A blob to be had in the bucket.
struct Wanted {
    key: BlobKey,
    bytes: Bytes,
    known: Option<PackName>,
}

/// Makes sure that each blob is in a live pack or on its way. Between the look-up and the taking there is no wait, so that of two that store the same blob one
/// takes it and the other finds it; and a caller that goes away leaves nothing half taken.
async fn store_blobs(session: &Arc<Session>, wanted: &[Wanted]) -> Result<(), DepotError> {
    let mut missing = Vec::new();
    let mut bytes = 0;
    {
        let mut ledger = session.ledger();
        if let Some(failure) = ledger.failure() {
            return Err(failure);
        }
        for blob in wanted {
            if let Some(pack) = session.still_live(blob.known) {
                ledger.rely_on(pack);
            } else if !ledger.has(&blob.key) {
                bytes += blob.bytes.len() as u64 + BLOB_OVERHEAD_BYTES;
                missing.push(blob);
            }
        }
    }
    let counters = &session.shared.link.counters;
    let total: usize = wanted.iter().map(|blob| blob.bytes.len()).sum();
    let mut new = 0;
    if !missing.is_empty() {
        let mut reservation = session.reserve(bytes).await?;
        let mut full = Vec::new();
        {
            let mut ledger = session.ledger();
            for blob in missing {
                let part = reservation.split(blob.bytes.len() as u64 + BLOB_OVERHEAD_BYTES);
                let gathered = ledger.gather(blob.key, &blob.bytes, part);
                full.extend(gathered.full);
                new += if gathered.new { blob.bytes.len() } else { 0 };
            }
        }
        session.process_all(full);
    }
    counters.bytes_new.add(new as u64);
    counters.bytes_deduplicated.add((total - new) as u64);
    Ok(())
}
