//! Merges runs and index objects of one range of prefixes into a new run (docs/PROTOCOL.md, 12).
//!
//! Owns the order and the bounds of a merge: each input is read once, in order, a few requests
//! ahead. The memory is that of the reads, of the index objects among the inputs, of all names of
//! packs, and of the new run. Does not decide which runs are merged, and replaces no root.
//!
//! Condemned packs stay in the new run: a session that refers to one looks it up, in order to store
//! its contents again. Gone packs are left out.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, HashSet};
use std::ops::RangeInclusive;

use bytes::Bytes;
use futures::stream;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::opened_run::{OpenedRun, RunRecord};
use crate::codec::Effort;
use crate::crypto::{Class, ObjectSealer};
use crate::error::ContentError;
use crate::id::Prefix;
use crate::index::PackRecord;
use crate::pack::PackName;
use crate::run::{PackFrames, RUN_BYTES_MAX, Record, RunWriter};

/// What is merged.
#[derive(Debug)]
pub enum MergeInput<'a> {
    /// A run.
    Run(&'a OpenedRun),
    /// The packs of index objects.
    Packs(Vec<&'a PackRecord>),
}

/// The run that a merge makes.
#[derive(Debug)]
pub struct NewRun<'a> {
    /// Seals the run under its key.
    pub sealer: ObjectSealer,
    /// The class of the packs that it names: those of another class are left out.
    pub class: Class,
    /// Its range of prefixes.
    pub range: RangeInclusive<Prefix>,
    /// Packs that it leaves out.
    pub gone: &'a HashSet<PackName>,
    /// How hard its parts are compressed.
    pub effort: Effort,
}

/// A run that a merge has made.
#[derive(Debug)]
pub struct MergedRun {
    /// The bytes of the object, in parts.
    pub body: Vec<Bytes>,
    /// The number of its records.
    pub records: u64,
}

/// Merges all records of the range into one run.
///
/// Cancel safety: dropped, it has changed nothing.
///
/// # Errors
/// [`ContentError::Damaged`] if an input is damaged, those of a read, and
/// [`ContentError::Invalid`] if the range has more than one run may hold.
pub async fn merge(
    new: NewRun<'_>,
    inputs: Vec<MergeInput<'_>>,
) -> Result<MergedRun, ContentError> {
    let NewRun {
        sealer,
        class,
        range,
        gone,
        effort,
    } = new;
    let (mut records, mut packs) = (Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    for input in inputs {
        match input {
            MergeInput::Run(run) if run.directory().class() != class => {}
            MergeInput::Run(run) => {
                names.extend(run.pack_names().await?);
                records.push(run.records(range.clone()));
                packs.push(run.pack_frames());
            }
            MergeInput::Packs(mut listed) => {
                listed.retain(|pack| pack.class == class && is_in(pack, &range));
                names.extend(listed.iter().map(|pack| pack.name));
                records.push(in_memory(records_of(&listed, &range)));
                packs.push(in_memory(frames_of(&listed, &range)));
            }
        }
    }
    names.retain(|name| !gone.contains(name));
    let mut writer = RunWriter::new(sealer, class, range.clone(), names, effort);
    let (mut body, mut count) = (Vec::new(), 0);
    let mut records = Merged::of(records, |record: &RunRecord| *record).await?;
    while let Some(record) = records.next().await? {
        // Gone packs have no number.
        let Some(pack) = writer.pack_number(&record.pack) else {
            continue;
        };
        let added = writer.push(Record {
            prefix: record.prefix,
            pack,
            frame: record.frame,
            slot: record.slot,
            kind: record.kind,
        });
        added.map_err(|_| ContentError::Internal("a merge adds records out of order"))?;
        count += 1;
        take_from(&mut writer, &mut body)?;
    }
    let place = |pack: &PackFrames| PackFrames::place_of(&pack.name);
    let mut packs = Merged::of(packs, place).await?;
    while let Some(pack) = packs.next().await? {
        if !range.contains(&place(&pack)) || writer.pack_number(&pack.name).is_none() {
            continue;
        }
        let added = writer.push_pack(&pack);
        added.map_err(|_| ContentError::Internal("a merge adds packs out of order"))?;
        take_from(&mut writer, &mut body)?;
    }
    let ended = writer.finish();
    ended.map_err(|_| TOO_MUCH)?;
    take_from(&mut writer, &mut body)?;
    Ok(MergedRun {
        body,
        records: count,
    })
}

/// Takes what the writer has made, if it has made anything.
///
/// # Errors
/// [`ContentError::Invalid`] if the run has become too long.
fn take_from(writer: &mut RunWriter, body: &mut Vec<Bytes>) -> Result<(), ContentError> {
    let made = writer.take();
    if !made.is_empty() {
        body.push(Bytes::from(made));
    }
    match writer.length() <= RUN_BYTES_MAX {
        true => Ok(()),
        false => Err(TOO_MUCH),
    }
}

const TOO_MUCH: ContentError = ContentError::Invalid("a range with more than one run may hold");

/// Returns true if the pack has a record or its place in the range.
fn is_in(pack: &PackRecord, range: &RangeInclusive<Prefix>) -> bool {
    let mut blobs = pack.footer.blobs();
    range.contains(&PackFrames::place_of(&pack.name))
        || blobs.any(|blob| range.contains(&blob.prefix))
}

/// Returns the records of packs in a range, in order.
fn records_of(packs: &[&PackRecord], range: &RangeInclusive<Prefix>) -> Vec<RunRecord> {
    let of_pack = |pack: &&PackRecord| {
        let name = pack.name;
        let blobs = pack.footer.blobs().map(move |blob| RunRecord {
            prefix: blob.prefix,
            pack: name,
            frame: blob.frame,
            slot: blob.slot,
            kind: blob.kind,
        });
        let blobs = blobs.filter(|record| range.contains(&record.prefix));
        blobs.collect::<Vec<_>>()
    };
    let mut records: Vec<RunRecord> = packs.iter().flat_map(of_pack).collect();
    records.sort_unstable();
    records
}

/// Returns what a run keeps of the packs whose place is in its range, in the order of places.
fn frames_of(packs: &[&PackRecord], range: &RangeInclusive<Prefix>) -> Vec<PackFrames> {
    let is_here = |pack: &&&PackRecord| range.contains(&PackFrames::place_of(&pack.name));
    let frames = packs.iter().filter(is_here);
    let mut frames: Vec<PackFrames> = frames.map(|pack| PackFrames::from(*pack)).collect();
    frames.sort_by_key(|pack| PackFrames::place_of(&pack.name));
    frames
}

/// Entries in order, in batches.
type Batches<'a, T> = BoxStream<'a, Result<Vec<T>, ContentError>>;

fn in_memory<'a, T: Send + 'a>(entries: Vec<T>) -> Batches<'a, T> {
    stream::iter([Ok(entries)]).boxed()
}

/// The entries of several sources, each in ascending order of keys, in one such order. Each key is
/// there once.
struct Merged<'a, T, K, F> {
    sources: Vec<Source<'a, T>>,
    /// The first entry of each source that has one, by its key.
    heads: BinaryHeap<Reverse<(K, usize)>>,
    key_of: F,
    last: Option<K>,
}

struct Source<'a, T> {
    batches: Batches<'a, T>,
    batch: std::vec::IntoIter<T>,
    head: Option<T>,
}

impl<T> Source<'_, T> {
    async fn advance(&mut self) -> Result<Option<&T>, ContentError> {
        loop {
            self.head = self.batch.next();
            if self.head.is_some() {
                return Ok(self.head.as_ref());
            }
            match self.batches.try_next().await? {
                Some(batch) => self.batch = batch.into_iter(),
                None => return Ok(None),
            }
        }
    }
}

impl<'a, T, K: Ord + Copy, F: Fn(&T) -> K> Merged<'a, T, K, F> {
    async fn of(sources: Vec<Batches<'a, T>>, key_of: F) -> Result<Self, ContentError> {
        let sources = sources.into_iter().map(|batches| Source {
            batches,
            batch: Vec::new().into_iter(),
            head: None,
        });
        let mut merged = Self {
            sources: sources.collect(),
            heads: BinaryHeap::new(),
            key_of,
            last: None,
        };
        for number in 0..merged.sources.len() {
            merged.advance(number).await?;
        }
        Ok(merged)
    }

    async fn advance(&mut self, number: usize) -> Result<(), ContentError> {
        if let Some(head) = self.sources[number].advance().await? {
            let key = (self.key_of)(head);
            self.heads.push(Reverse((key, number)));
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<T>, ContentError> {
        while let Some(Reverse((key, number))) = self.heads.pop() {
            let entry = self.sources[number].head.take();
            self.advance(number).await?;
            match self.last.map_or(Ordering::Greater, |last| key.cmp(&last)) {
                Ordering::Greater => {
                    self.last = Some(key);
                    return Ok(entry);
                }
                Ordering::Equal => {}
                Ordering::Less => {
                    return Err(ContentError::Internal("a merge reads out of order"));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
