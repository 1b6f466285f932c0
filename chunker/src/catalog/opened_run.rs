//! Look-ups in a run of the bucket, by ranged reads (FORMAT.md, "Runs").
//!
//! Owns which bytes of a run are fetched, how they are joined into requests, and what of them stays
//! in memory. The form of a run is owned by [`crate::run`]. Does not know which packs are live.
//!
//! A run is opened by its header and its end, which are fetched concurrently. The end of most runs
//! holds the directory and all fences, so a look-up then costs one request for each group of blocks
//! that lie close together. Filters stay in memory; blocks, fences and names are cached.

mod caches;
mod requests;
mod scan;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::reference::RunRef;
use crate::codec::Decoder;
use crate::crypto::{Class, HEADER_LEN, Keyring};
use crate::error::ContentError;
use crate::id::{Kind, Prefix};
use crate::pack::PackName;
use crate::run::{
    Block, Directory, Fences, LevelFilter, Names, PackFrames, RUN_BYTES_MAX, Record, RunDamage,
    Section, TRAILER_LEN, Trailer,
};
use crate::store_client::StoreClient;
use crate::workers::{Scratch, Workers};

pub(super) use caches::RunCaches;
use caches::{Identity, InMemory, Parts};
use requests::{joined, part};
pub use scan::Records;

/// How many bytes at the end of a run are fetched first. The directory and the fences of a run of
/// [`RUN_BYTES_MAX`] take about 120 KiB.
const END_BYTES: u64 = 256 << 10;

/// How many requests of one look-up wait for their answers concurrently.
const REQUESTS_AT_ONCE: usize = 8;

/// The most blocks that have records of one prefix: about 20,000 copies of a blob.
const BLOCKS_PER_PREFIX: usize = 8;

/// What the filters in memory tell of a prefix.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Told {
    /// The run has no record of it.
    Nothing,
    /// The run has a record of it, but for one in 65,536 cases.
    Maybe,
    /// The filter of its level is not in memory.
    Unknown,
}

/// Where a pack holds a blob.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct RunRecord {
    /// The first bytes of the blob's id.
    pub prefix: Prefix,
    /// The pack.
    pub pack: PackName,
    /// The number of the frame in the pack.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The kind of the blob.
    pub kind: Kind,
}

/// What all look-ups in runs share.
#[derive(Clone, Debug)]
pub(super) struct RunStore {
    pub(crate) link: Arc<StoreClient>,
    pub(crate) keyring: Keyring,
    pub(crate) workers: Workers,
    pub(crate) caches: Arc<RunCaches>,
}

/// A run whose directory was read.
#[derive(Debug)]
pub struct OpenedRun {
    reference: RunRef,
    key: String,
    identity: Identity,
    store: RunStore,
    directory: Arc<Directory>,
    filters: Mutex<Filters>,
}

/// Parts of a run, by number.
type Held<T> = BTreeMap<u32, Arc<T>>;

/// The filters in memory.
#[derive(Debug, Default)]
struct Filters {
    /// The lowest level of which all filters are in memory, if any is.
    from: Option<u8>,
    /// Level, number of the fences, filter. In the order of the directory.
    all: Vec<(u8, u32, LevelFilter)>,
}

/// Prefixes, by their places in a list, that a block may hold.
#[derive(Clone, Debug)]
struct Wanted {
    section: Section,
    bytes: Range<u64>,
    /// The first 8 bytes of the first prefix, as the fences say.
    head: u64,
    prefixes: Range<usize>,
}

impl OpenedRun {
    /// Reads the header and the directory of a run. What does not open is read once more.
    ///
    /// # Errors
    /// [`ContentError::Damaged`] or [`ContentError::Unreadable`] if they do not open, and those of
    /// [`StoreClient::get_range`].
    pub(super) async fn open(store: RunStore, reference: RunRef) -> Result<Self, ContentError> {
        twice(|| Self::open_once(store.clone(), reference)).await
    }

    async fn open_once(store: RunStore, reference: RunRef) -> Result<Self, ContentError> {
        let key = reference.name.key(Class::Run);
        let damaged = |error: RunDamage| ContentError::damaged(&key, error);
        let total = reference.bytes;
        if !(((HEADER_LEN + TRAILER_LEN) as u64)..=RUN_BYTES_MAX).contains(&total) {
            return Err(ContentError::damaged(&key, "no run has such a length"));
        }
        let end_bytes = END_BYTES.min(total - HEADER_LEN as u64);
        let (header, mut end) = tokio::try_join!(
            store.link.get_range(&key, 0..HEADER_LEN as u64),
            store.link.get_range(&key, total - end_bytes..total)
        )?;
        // First: another form of run may end otherwise.
        let header = header.first_chunk::<HEADER_LEN>();
        let header = header.ok_or_else(|| ContentError::damaged(&key, "truncated"))?;
        let identity = *blake3::hash(header).as_bytes();
        let opener = store.keyring.object_opener(Class::Run, &key, header);
        let opener = opener.map_err(|error| ContentError::unopened(&key, error))?;
        let trailer = end.last_chunk::<TRAILER_LEN>().map(Trailer::decode);
        let trailer = trailer
            .ok_or(RunDamage::Inconsistent("truncated"))
            .flatten()
            .map_err(damaged)?;
        let directory_bytes = u64::from(trailer.directory_length);
        let mut start = total - end_bytes;
        let directory_end = total - TRAILER_LEN as u64;
        let directory_start = directory_end
            .checked_sub(directory_bytes)
            .filter(|start| *start >= HEADER_LEN as u64)
            .ok_or_else(|| ContentError::damaged(&key, "its directory is longer than the run"))?;
        if directory_start < start {
            end = store.link.get_range(&key, directory_start..total).await?;
            start = directory_start;
        }
        let sealed = part(&end, start, directory_start..directory_end);
        let mut decoder = Decoder::new();
        let directory = Directory::open(opener, &trailer, &sealed, total, &mut decoder);
        let directory = directory.map_err(damaged)?;
        let is_it = directory.class() == reference.class
            && *directory.prefixes() == reference.prefixes()
            && directory.record_count() == reference.records;
        if !is_it {
            return Err(ContentError::damaged(&key, "it is not what the root says"));
        }
        for number in 0..directory.fences_count() {
            let range = directory.range(Section::Fences(number));
            let Some(range) = range.filter(|range| range.start >= start) else {
                continue;
            };
            let sealed = part(&end, start, range);
            let fences = directory.open_fences(number, &sealed, &mut decoder);
            let fences = fences.map_err(damaged)?;
            let bytes = fences.bytes_in_memory();
            (store.caches.fences).put((identity, number), bytes, Arc::new(fences));
        }
        Ok(Self {
            reference,
            identity,
            store,
            directory: Arc::new(directory),
            filters: Mutex::default(),
            key,
        })
    }

    /// Returns the reference by which a root names the run.
    pub fn reference(&self) -> RunRef {
        self.reference
    }

    /// Returns what the run says of itself.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Reads the filters of this level and of all higher ones: 18 bits for each of their prefixes.
    /// Half of the prefixes are of level 0, a quarter of level 1.
    ///
    /// # Errors
    /// [`ContentError::Damaged`] if a filter does not open, and those of
    /// [`StoreClient::get_range`].
    pub async fn load_filters(&self, from: u8) -> Result<(), ContentError> {
        if self.filters.lock().from.is_some_and(|have| have <= from) {
            return Ok(());
        }
        let listed: Vec<(u8, u32)> = self.directory.filters().collect();
        let first = listed.partition_point(|(level, _)| *level < from);
        let sections = (first as u32..listed.len() as u32).map(Section::Filter);
        let all = self
            .read(sections.collect(), |directory, section, sealed, _| {
                directory.open_filter(section.index(), sealed)
            })
            .await?;
        let all = listed[first..].iter().zip(all);
        let all = all.map(|((level, fences), filter)| (*level, *fences, filter));
        let all: Vec<(u8, u32, LevelFilter)> = all.collect();
        let mut filters = self.filters.lock();
        // Another caller may have read more meanwhile.
        if filters.from.is_none_or(|have| from < have) {
            let from = Some(from);
            *filters = Filters { from, all };
        }
        Ok(())
    }

    /// Returns false if the run has no record of this prefix. True says nothing: the filter of its
    /// level is not in memory, or lets it through.
    pub fn may_hold(&self, prefix: &Prefix) -> bool {
        self.tell(prefix) != Told::Nothing
    }

    /// Returns what the filters in memory tell of a prefix.
    pub(super) fn tell(&self, prefix: &Prefix) -> Told {
        if !self.directory.prefixes().contains(prefix) {
            return Told::Nothing;
        }
        let level = LevelFilter::level_of(prefix);
        let filters = self.filters.lock();
        if filters.from.is_none_or(|from| level < from) {
            return Told::Unknown;
        }
        // Blocks without a filter of this level have no such prefix.
        let is_there = self.directory.fences_of(prefix).any(|fences| {
            let all = &filters.all;
            let found =
                all.binary_search_by_key(&(level, fences), |(level, fences, _)| (*level, *fences));
            found.is_ok_and(|found| all[found].2.lets_through(prefix))
        });
        match is_there {
            true => Told::Maybe,
            false => Told::Nothing,
        }
    }

    /// Returns true if the run has the record of this pack, whose place is in its range.
    ///
    /// # Errors
    /// Those of [`OpenedRun::find`].
    pub(super) async fn has_pack(&self, name: &PackName) -> Result<bool, ContentError> {
        if !(self.directory.prefixes()).contains(&PackFrames::place_of(name)) {
            return Ok(false);
        }
        let sections = self.directory.pack_frames_of(name).map(Section::PackFrames);
        let lists = self
            .read(sections.collect(), |directory, section, sealed, decoder| {
                directory.open_pack_frames(section.index(), sealed, decoder)
            })
            .await?;
        Ok(lists.iter().any(|list| list.find(name).is_some()))
    }

    /// Returns all records of these prefixes, in order. `prefixes` are in ascending order. Prefixes
    /// that a filter in memory excludes cost no request.
    ///
    /// # Errors
    /// [`ContentError::Damaged`] if a part of the run does not open, and those of
    /// [`StoreClient::get_range`].
    pub async fn find(&self, prefixes: &[Prefix]) -> Result<Vec<RunRecord>, ContentError> {
        debug_assert!(prefixes.is_sorted(), "look-ups are in order");
        let asked: Vec<Prefix> = prefixes
            .iter()
            .filter(|prefix| self.may_hold(prefix))
            .copied()
            .collect();
        let numbers = asked
            .iter()
            .flat_map(|prefix| self.directory.fences_of(prefix));
        let fences = self.hold_fences(numbers).await?;
        let requests = joined(self.wanted(&fences, &asked)?, |wanted| wanted.bytes.clone());
        let asked = &asked;
        let looks = requests
            .into_iter()
            .map(|wanted| self.look_up(wanted, asked));
        let found: Vec<Vec<Record>> = futures::stream::iter(looks.collect::<Vec<_>>())
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        let mut found = found.concat();
        // A prefix whose records two blocks share is looked up in both.
        found.sort_unstable();
        found.dedup();
        let numbers = found.iter().map(|record| self.names_of(record).0);
        let names = self.hold_names(numbers).await?;
        self.named(&names, found)
    }

    /// Returns the fences of these numbers. Reads those that are not in memory.
    async fn hold_fences(
        &self,
        numbers: impl Iterator<Item = u32>,
    ) -> Result<Held<Fences>, ContentError> {
        let parts = &self.store.caches.fences;
        self.hold(parts, numbers.map(Section::Fences), Directory::open_fences)
            .await
    }

    /// Returns the names of these numbers. Reads those that are not in memory.
    async fn hold_names(
        &self,
        numbers: impl Iterator<Item = u32>,
    ) -> Result<Held<Names>, ContentError> {
        let parts = &self.store.caches.names;
        self.hold(parts, numbers.map(Section::Names), Directory::open_names)
            .await
    }

    /// Returns these parts. Reads those that are not in memory.
    async fn hold<T: InMemory + Send + Sync + 'static>(
        &self,
        parts: &Parts<T>,
        sections: impl Iterator<Item = Section>,
        open: fn(&Directory, u32, &[u8], &mut Decoder) -> Result<T, RunDamage>,
    ) -> Result<Held<T>, ContentError> {
        let sections = sections.map(|section| (section.index(), section));
        let (mut held, mut missing) = (BTreeMap::new(), Vec::new());
        for (index, section) in sections.collect::<BTreeMap<u32, Section>>() {
            match parts.get(&(self.identity, index)) {
                Some(part) => drop(held.insert(index, part)),
                None => missing.push(section),
            }
        }
        let read = self
            .read(
                missing.clone(),
                move |directory, section, sealed, decoder| {
                    open(directory, section.index(), sealed, decoder)
                },
            )
            .await?;
        for (section, part) in missing.into_iter().zip(read) {
            let (bytes, part) = (part.bytes_in_memory(), Arc::new(part));
            parts.put((self.identity, section.index()), bytes, Arc::clone(&part));
            held.insert(section.index(), part);
        }
        Ok(held)
    }

    /// Returns the blocks that may hold these prefixes, in order, by the fences of all of them.
    fn wanted(
        &self,
        fences: &Held<Fences>,
        prefixes: &[Prefix],
    ) -> Result<Vec<Wanted>, ContentError> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for (place, prefix) in prefixes.iter().enumerate() {
            // Blocks of a prefix are in order, and begin at the last block of the one before it or
            // later.
            let mut known = wanted.len().saturating_sub(BLOCKS_PER_PREFIX);
            let mut blocks = 0;
            for number in self.directory.fences_of(prefix) {
                let Some(part) = fences.get(&number) else {
                    continue;
                };
                for block in part.blocks_of(prefix) {
                    blocks += 1;
                    if blocks > BLOCKS_PER_PREFIX {
                        let what = "one blob has too many copies";
                        return Err(ContentError::damaged(&self.key, what));
                    }
                    let Some(mut one) = self.block(number, part, block) else {
                        continue;
                    };
                    while known < wanted.len() && wanted[known].bytes.start < one.bytes.start {
                        known += 1;
                    }
                    debug_assert!(
                        (wanted.last()).is_none_or(|last| last.bytes.start <= one.bytes.start),
                        "blocks are in order"
                    );
                    match wanted.get_mut(known) {
                        Some(one) => one.prefixes.end = place + 1,
                        None => {
                            one.prefixes = place..place + 1;
                            wanted.push(one);
                        }
                    }
                }
            }
        }
        Ok(wanted)
    }

    /// Returns a block of these fences, wanted for no prefix.
    fn block(&self, number: u32, fences: &Fences, block: usize) -> Option<Wanted> {
        let (section, bytes) = self.directory.block_range(number, fences, block)?;
        Some(Wanted {
            section,
            bytes,
            head: fences.head(block)?,
            prefixes: 0..0,
        })
    }

    /// Returns the records that these blocks, which lie close together, have of the prefixes.
    async fn look_up(
        &self,
        wanted: Vec<Wanted>,
        prefixes: &[Prefix],
    ) -> Result<Vec<Record>, ContentError> {
        let blocks = self.read_blocks(&wanted).await?;
        let found = wanted.iter().zip(&blocks).flat_map(|(wanted, block)| {
            let prefixes = &prefixes[wanted.prefixes.clone()];
            prefixes.iter().flat_map(|prefix| block.find(prefix))
        });
        Ok(found.copied().collect())
    }

    /// Returns these blocks, from the cache or by one request.
    async fn read_blocks(&self, wanted: &[Wanted]) -> Result<Vec<Arc<Block>>, ContentError> {
        let key = |wanted: &Wanted| match wanted.section {
            Section::Block(number) => (self.identity, number),
            _ => (self.identity, u32::MAX),
        };
        let cached = |wanted: &Wanted| self.store.caches.blocks.get(&key(wanted));
        let mut blocks: Vec<Option<Arc<Block>>> = wanted.iter().map(cached).collect();
        let missing = || {
            wanted
                .iter()
                .zip(&blocks)
                .filter(|(_, block)| block.is_none())
        };
        let missing: Vec<Wanted> = missing().map(|(wanted, _)| wanted.clone()).collect();
        let mut fresh = self.fetch_blocks(missing).await?.into_iter();
        for (wanted, block) in wanted.iter().zip(&mut blocks) {
            if block.is_none() {
                let read = fresh.next().map(Arc::new);
                if let Some(read) = &read {
                    let blocks = &self.store.caches.blocks;
                    blocks.put(key(wanted), read.bytes_in_memory(), Arc::clone(read));
                }
                *block = read;
            }
        }
        Ok(blocks.into_iter().flatten().collect())
    }

    /// Reads these blocks by one request.
    async fn fetch_blocks(&self, wanted: Vec<Wanted>) -> Result<Vec<Block>, ContentError> {
        let parts = wanted
            .iter()
            .map(|wanted| (wanted.section, wanted.bytes.clone()));
        let blocks = self
            .fetch(parts.collect(), |directory, section, sealed, decoder| {
                directory.open_block(section, sealed, decoder)
            })
            .await?;
        let head_of = |block: &Block| block.records().first().map(|record| record.prefix.head());
        let mut pairs = wanted.iter().zip(&blocks);
        match pairs.all(|(wanted, block)| head_of(block) == Some(wanted.head)) {
            true => Ok(blocks),
            false => Err(ContentError::damaged(
                &self.key,
                "a block begins with another prefix than its fences say",
            )),
        }
    }

    /// Returns the number of the names where the pack of a record is, and its place among them.
    fn names_of(&self, record: &Record) -> (u32, usize) {
        let (section, place) = self.directory.name_of(record.pack);
        (section.index(), place)
    }

    /// Gives records the names of their packs, which are all among these.
    fn named(
        &self,
        names: &Held<Names>,
        records: Vec<Record>,
    ) -> Result<Vec<RunRecord>, ContentError> {
        let named = records.iter().map(|record| {
            let (number, place) = self.names_of(record);
            Some(RunRecord {
                prefix: record.prefix,
                pack: *names.get(&number)?.names().get(place)?,
                frame: record.frame,
                slot: record.slot,
                kind: record.kind,
            })
        });
        let named: Option<Vec<RunRecord>> = named.collect();
        named.ok_or_else(|| ContentError::damaged(&self.key, "a record of a pack without a name"))
    }

    /// Reads parts other than blocks, in order, by as few requests as possible, and opens them.
    async fn read<T: Send + 'static>(
        &self,
        sections: Vec<Section>,
        open: impl Fn(&Directory, Section, &[u8], &mut Decoder) -> Result<T, RunDamage>
        + Copy
        + Send
        + 'static,
    ) -> Result<Vec<T>, ContentError> {
        let parts = sections.into_iter().filter_map(|section| {
            let range = self.directory.range(section)?;
            Some((section, range))
        });
        let requests = joined(parts.collect(), |(_, range)| range.clone());
        let reads = requests.into_iter().map(|parts| self.fetch(parts, open));
        let read: Vec<Vec<T>> = futures::stream::iter(reads.collect::<Vec<_>>())
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Reads parts that lie close together by one request, and opens them on a worker. What does not
    /// open is read once more.
    async fn fetch<T: Send + 'static>(
        &self,
        parts: Vec<(Section, Range<u64>)>,
        open: impl Fn(&Directory, Section, &[u8], &mut Decoder) -> Result<T, RunDamage>
        + Copy
        + Send
        + 'static,
    ) -> Result<Vec<T>, ContentError> {
        let (Some((_, first)), Some((_, last))) = (parts.first(), parts.last()) else {
            return Ok(Vec::new());
        };
        let span = first.start..last.end;
        twice(|| self.fetch_once(span.clone(), &parts, open)).await
    }

    async fn fetch_once<T: Send + 'static>(
        &self,
        span: Range<u64>,
        parts: &[(Section, Range<u64>)],
        open: impl Fn(&Directory, Section, &[u8], &mut Decoder) -> Result<T, RunDamage>
        + Copy
        + Send
        + 'static,
    ) -> Result<Vec<T>, ContentError> {
        let start = span.start;
        let bytes = self.store.link.get_range(&self.key, span).await?;
        let (directory, parts) = (Arc::clone(&self.directory), parts.to_vec());
        let job = move |scratch: &mut Scratch| {
            let decoder = scratch.frame_decoder.decoder();
            let opened = parts.into_iter().map(|(section, range)| {
                open(&directory, section, &part(&bytes, start, range), decoder)
            });
            opened.collect::<Result<Vec<T>, RunDamage>>()
        };
        let opened = self.store.workers.run(job).await?;
        opened.map_err(|error| ContentError::damaged(&self.key, error))
    }
}

/// Reads again what does not open: an answer may be damaged on its way, its header included. The
/// second answer counts.
pub(super) async fn twice<T, R>(read: impl Fn() -> R) -> Result<T, ContentError>
where
    R: Future<Output = Result<T, ContentError>>,
{
    match read().await {
        Err(ContentError::Damaged { .. } | ContentError::Unreadable { .. }) => read().await,
        answer => answer,
    }
}

#[cfg(test)]
pub(super) mod tests;
