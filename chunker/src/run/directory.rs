//! The directory of a run, at its end: where each part lies, and what range the run has.
//!
//! Owns the decoded form of the directory, the trailer, and the numbers of the boxes. All numbers
//! are little-endian. The directory is box 0xffffffff: `class of the packs u8 ‖ first prefix 16 ‖ last
//! prefix 16 ‖ records u64 ‖ packs u32`, then four tables, each with its count u32 before it:
//!
//! - fences: head of the first prefix u64, blocks u32, stored length of these blocks u64, stored
//!   length of the box u32;
//! - pack records: head of the first place u64, stored length u32;
//! - names: stored length u32;
//! - filters: level u8, number of the fences whose blocks it describes u32, stored length u32.
//!
//! The trailer, in the clear, is `stored length of the directory u32 ‖ stored length of all fences
//! u32 ‖ "bkfs-run"`. A reader checks it against the directory.

use super::fence::places;
use super::filter::LEVEL_MAX;
use super::packs::NAMES_PER_BOX;
use super::{
    BLOCK_RAW_MAX, BLOCKS_MAX, BLOCKS_PER_FENCE, BOX_RAW_MAX, Block, DIRECTORY_RAW_MAX,
    FILTER_BYTES_MAX, Fences, LevelFilter, Names, PACKS_MAX, PackFrames, PackFramesList,
    RUN_BYTES_MAX, RunDamage, require_end, take, take_u32, take_u64,
};
use crate::codec::{CODED_HEAD_LEN, Decoder};
use crate::crypto::{BOX_OVERHEAD, Class, HEADER_LEN, ObjectOpener};
use crate::id::Prefix;
use crate::pack::PackName;
use std::ops::{Range, RangeInclusive};

/// Length of the trailer, in bytes.
pub const TRAILER_LEN: usize = 16;

const MAGIC: &[u8; 8] = b"bkfs-run";

/// A part of a run. Each is one box of its own.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Section {
    /// The block of this number.
    Block(u32),
    /// The pack records of this number.
    PackFrames(u32),
    /// The names of this number.
    Names(u32),
    /// The filter of this number, in the order of levels.
    Filter(u32),
    /// The fences of this number.
    Fences(u32),
    /// The directory.
    Directory,
}

impl Section {
    /// Returns the number of the part among those of its kind.
    pub fn index(self) -> u32 {
        match self {
            Section::Block(number)
            | Section::PackFrames(number)
            | Section::Names(number)
            | Section::Filter(number)
            | Section::Fences(number) => number,
            Section::Directory => 0,
        }
    }

    /// Returns the number of the box.
    pub(super) fn number(self) -> u32 {
        match self {
            Section::Block(number) => number,
            Section::PackFrames(number) => 0x4000_0000 | number,
            Section::Names(number) => 0x5000_0000 | number,
            Section::Filter(number) => 0x6000_0000 | number,
            Section::Fences(number) => 0x7000_0000 | number,
            Section::Directory => u32::MAX,
        }
    }
}

/// The last bytes of a run. Not trusted before the directory confirms them.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Trailer {
    /// Stored length of the directory, which ends where the trailer begins.
    pub directory_length: u32,
    /// Stored length of all fences, which end where the directory begins.
    pub fences_length: u32,
}

impl Trailer {
    pub(super) fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..4].copy_from_slice(&self.directory_length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.fences_length.to_le_bytes());
        bytes[8..].copy_from_slice(MAGIC);
        bytes
    }

    /// Parses the last bytes of a run.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(bytes: &[u8; TRAILER_LEN]) -> Result<Self, RunDamage> {
        let mut rest = &bytes[..];
        let directory_length = take_u32(&mut rest)?;
        let fences_length = take_u32(&mut rest)?;
        if rest != MAGIC {
            return Err(RunDamage::Inconsistent("it does not end as a run"));
        }
        if u64::from(directory_length) > longest_box(DIRECTORY_RAW_MAX) {
            return Err(RunDamage::Inconsistent("the directory is too long"));
        }
        Ok(Self {
            directory_length,
            fences_length,
        })
    }
}

/// The fences of one group of blocks.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct FencePart {
    pub(super) head: u64,
    pub(super) blocks: u32,
    /// Stored length of the blocks.
    pub(super) blocks_length: u64,
    pub(super) length: u32,
}

/// A box of pack records.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct PackPart {
    pub(super) head: u64,
    pub(super) length: u32,
}

/// A filter.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct FilterPart {
    pub(super) level: u8,
    pub(super) fences: u32,
    pub(super) length: u32,
}

/// What a directory says. Reads nothing, and opens nothing: see [`Directory`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Contents {
    pub(super) class: Class,
    pub(super) range: RangeInclusive<Prefix>,
    pub(super) records: u64,
    pub(super) packs: u32,
    pub(super) fences: Vec<FencePart>,
    pub(super) pack_parts: Vec<PackPart>,
    pub(super) names: Vec<u32>,
    pub(super) filters: Vec<FilterPart>,
}

impl Contents {
    /// Returns the decoded form.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = vec![self.class as u8];
        raw.extend_from_slice(&self.range.start().0);
        raw.extend_from_slice(&self.range.end().0);
        raw.extend_from_slice(&self.records.to_le_bytes());
        raw.extend_from_slice(&self.packs.to_le_bytes());
        let count = |raw: &mut Vec<u8>, count: usize| raw.extend((count as u32).to_le_bytes());
        count(&mut raw, self.fences.len());
        for part in &self.fences {
            raw.extend_from_slice(&part.head.to_le_bytes());
            raw.extend_from_slice(&part.blocks.to_le_bytes());
            raw.extend_from_slice(&part.blocks_length.to_le_bytes());
            raw.extend_from_slice(&part.length.to_le_bytes());
        }
        count(&mut raw, self.pack_parts.len());
        for part in &self.pack_parts {
            raw.extend_from_slice(&part.head.to_le_bytes());
            raw.extend_from_slice(&part.length.to_le_bytes());
        }
        count(&mut raw, self.names.len());
        raw.extend(self.names.iter().flat_map(|length| length.to_le_bytes()));
        count(&mut raw, self.filters.len());
        for part in &self.filters {
            raw.push(part.level);
            raw.extend_from_slice(&part.fences.to_le_bytes());
            raw.extend_from_slice(&part.length.to_le_bytes());
        }
        raw
    }

    /// Parses the decoded form, and checks that its parts agree.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(raw: &[u8]) -> Result<Self, RunDamage> {
        let mut rest = raw;
        let [class] = take(&mut rest)?;
        let class = Class::from_number(class)
            .filter(|class| matches!(class, Class::DataPack | Class::MetadataPack))
            .ok_or(RunDamage::Inconsistent("a run of a wrong class"))?;
        let range = Prefix(take(&mut rest)?)..=Prefix(take(&mut rest)?);
        let records = take_u64(&mut rest)?;
        let packs = take_u32(&mut rest)?;
        let fences = table(&mut rest, |rest| {
            Ok(FencePart {
                head: take_u64(rest)?,
                blocks: take_u32(rest)?,
                blocks_length: take_u64(rest)?,
                length: take_u32(rest)?,
            })
        })?;
        let pack_parts = table(&mut rest, |rest| {
            Ok(PackPart {
                head: take_u64(rest)?,
                length: take_u32(rest)?,
            })
        })?;
        let names = table(&mut rest, take_u32)?;
        let filters = table(&mut rest, |rest| {
            let [level] = take(rest)?;
            Ok(FilterPart {
                level,
                fences: take_u32(rest)?,
                length: take_u32(rest)?,
            })
        })?;
        require_end(rest)?;
        let contents = Self {
            class,
            range,
            records,
            packs,
            fences,
            pack_parts,
            names,
            filters,
        };
        match contents.agrees() {
            true => Ok(contents),
            false => Err(RunDamage::Inconsistent("the directory contradicts itself")),
        }
    }

    fn agrees(&self) -> bool {
        let blocks = self.fences.iter().map(|part| part.blocks as usize);
        let lies_in =
            |first: u64| (self.range.start().head()..=self.range.end().head()).contains(&first);
        let order = |part: &FilterPart| (part.level, part.fences);
        !self.range.is_empty()
            && self.packs <= PACKS_MAX
            && blocks.clone().map(|blocks| blocks as u64).sum::<u64>() <= BLOCKS_MAX
            && blocks
                .clone()
                .all(|blocks| (1..=BLOCKS_PER_FENCE).contains(&blocks))
            && (self.records == 0) == self.fences.is_empty()
            && self.fences.is_sorted_by_key(|part| part.head)
            && self.fences.iter().all(|part| lies_in(part.head))
            && self.pack_parts.is_sorted_by_key(|part| part.head)
            && self.pack_parts.iter().all(|part| lies_in(part.head))
            && (self.packs as usize).div_ceil(NAMES_PER_BOX) == self.names.len()
            && self
                .filters
                .is_sorted_by(|one, other| order(one) < order(other))
            && self
                .filters
                .iter()
                .all(|part| part.level <= LEVEL_MAX && (part.fences as usize) < self.fences.len())
    }

    /// Returns the stored length of everything before the directory, in bytes. None if it is more
    /// than a run may have.
    fn length(&self) -> Option<u64> {
        let blocks = self.fences.iter().map(|part| part.blocks_length);
        let fences = self.fences.iter().map(|part| part.length);
        let packs = self.pack_parts.iter().map(|part| part.length);
        let filters = self.filters.iter().map(|part| part.length);
        let boxes = fences.chain(packs).chain(filters);
        let boxes = boxes.chain(self.names.iter().copied()).map(u64::from);
        let mut lengths = blocks.chain(boxes);
        lengths.try_fold(HEADER_LEN as u64, |sum, length| {
            sum.checked_add(length).filter(|sum| *sum <= RUN_BYTES_MAX)
        })
    }
}

/// The greatest stored length of a box whose decoded form has at most this length, in bytes.
fn longest_box(raw_max: u32) -> u64 {
    u64::from(raw_max) + (CODED_HEAD_LEN + BOX_OVERHEAD) as u64
}

/// Removes a table with its count from `rest`.
fn table<T>(
    rest: &mut &[u8],
    entry: impl Fn(&mut &[u8]) -> Result<T, RunDamage>,
) -> Result<Vec<T>, RunDamage> {
    let count = take_u32(rest)?;
    // A false count ends at the end of the bytes, before it costs memory.
    (0..count).map(|_| entry(rest)).collect()
}

/// An opened and checked directory, and the means to open the other parts of its run. Reads nothing:
/// it says which bytes to fetch.
#[derive(Clone, Debug)]
pub struct Directory {
    opener: ObjectOpener,
    contents: Contents,
    starts: Starts,
}

/// Where each part of a run begins, and where the last one ends. In bytes from the start of the
/// object.
#[derive(Clone, Debug)]
struct Starts {
    /// The first block of each group: its number, and where it begins.
    groups: Vec<(u32, u64)>,
    pack_parts: Vec<u64>,
    names: Vec<u64>,
    filters: Vec<u64>,
    fences: Vec<u64>,
}

impl Starts {
    fn of(contents: &Contents) -> Self {
        let mut end = HEADER_LEN as u64;
        let mut number = 0;
        let mut groups = Vec::with_capacity(contents.fences.len());
        for part in &contents.fences {
            groups.push((number, end));
            number += part.blocks;
            end += part.blocks_length;
        }
        let mut starts_of = |lengths: &mut dyn Iterator<Item = u32>| {
            let mut starts = vec![end];
            for length in lengths {
                end += u64::from(length);
                starts.push(end);
            }
            starts
        };
        Self {
            groups,
            pack_parts: starts_of(&mut contents.pack_parts.iter().map(|part| part.length)),
            names: starts_of(&mut contents.names.iter().copied()),
            filters: starts_of(&mut contents.filters.iter().map(|part| part.length)),
            fences: starts_of(&mut contents.fences.iter().map(|part| part.length)),
        }
    }
}

impl Directory {
    /// Opens the directory of a run of `length` bytes. `sealed` is the box as it is stored: the bytes
    /// before the trailer, as many as that states.
    ///
    /// # Errors
    /// [`RunDamage`] if it does not open or decode, or disagrees with itself, the trailer or the
    /// length.
    pub fn open(
        opener: ObjectOpener,
        trailer: &Trailer,
        sealed: &[u8],
        length: u64,
        decoder: &mut Decoder,
    ) -> Result<Self, RunDamage> {
        let mut room = Vec::new();
        let payload = opener.open_box(Section::Directory.number(), sealed, &mut room)?;
        let contents = Contents::decode(&decoder.decode(payload, DIRECTORY_RAW_MAX)?)?;
        let fences: u64 = contents
            .fences
            .iter()
            .map(|part| u64::from(part.length))
            .sum();
        let ends = contents
            .length()
            .map(|before| before + (sealed.len() + TRAILER_LEN) as u64);
        let agrees = trailer.directory_length as usize == sealed.len()
            && u64::from(trailer.fences_length) == fences
            && ends == Some(length);
        match agrees {
            true => Ok(Self {
                opener,
                starts: Starts::of(&contents),
                contents,
            }),
            false => Err(RunDamage::Inconsistent(
                "the directory and the length of the run disagree",
            )),
        }
    }

    /// Returns what the directory says.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the class of the packs that the run names.
    pub fn class(&self) -> Class {
        self.contents.class
    }

    /// Returns the range of prefixes that the run is responsible for.
    pub fn prefixes(&self) -> &RangeInclusive<Prefix> {
        &self.contents.range
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> u64 {
        self.contents.records
    }

    /// Returns the number of packs that the run names.
    pub fn pack_count(&self) -> u32 {
        self.contents.packs
    }

    /// Returns the number of boxes of fences.
    pub fn fences_count(&self) -> u32 {
        self.contents.fences.len() as u32
    }

    /// Returns the number of boxes of pack records.
    pub fn pack_frames_count(&self) -> u32 {
        self.contents.pack_parts.len() as u32
    }

    /// Returns the number of boxes of names.
    pub fn names_count(&self) -> u32 {
        self.contents.names.len() as u32
    }

    /// Returns the filters: the level of each, and the number of the fences whose blocks it
    /// describes. The filters from one level on lie side by side. Without a filter of some level,
    /// blocks have no prefix of that level.
    pub fn filters(&self) -> impl ExactSizeIterator<Item = (u8, u32)> + '_ {
        let filters = self.contents.filters.iter();
        filters.map(|part| (part.level, part.fences))
    }

    /// Returns the bytes of the object that a part other than a block occupies. None if there is no
    /// such part. [`Directory::block_range`] has those of blocks.
    pub fn range(&self, section: Section) -> Option<Range<u64>> {
        let (starts, number) = match section {
            Section::Block(_) | Section::Directory => return None,
            Section::PackFrames(number) => (&self.starts.pack_parts, number),
            Section::Names(number) => (&self.starts.names, number),
            Section::Filter(number) => (&self.starts.filters, number),
            Section::Fences(number) => (&self.starts.fences, number),
        };
        let number = number as usize;
        Some(*starts.get(number)?..*starts.get(number + 1)?)
    }

    /// Returns the numbers of the fences whose blocks may hold a prefix.
    pub fn fences_of(&self, prefix: &Prefix) -> Range<u32> {
        let found = places(&self.contents.fences, |part| part.head, prefix.head());
        found.start as u32..found.end as u32
    }

    /// Returns the number of the first block of these fences, and the bytes of one of their blocks,
    /// by its number among them. None if there is no such block.
    pub fn block_range(
        &self,
        number: u32,
        fences: &Fences,
        block: usize,
    ) -> Option<(Section, Range<u64>)> {
        let (first, start) = *self.starts.groups.get(number as usize)?;
        let range = fences.range(block)?;
        let section = Section::Block(first + block as u32);
        Some((section, start + range.start..start + range.end))
    }

    /// Returns the numbers of the boxes that may hold the record of a pack.
    pub fn pack_frames_of(&self, name: &PackName) -> Range<u32> {
        let place = PackFrames::place_of(name).head();
        let found = places(&self.contents.pack_parts, |part| part.head, place);
        found.start as u32..found.end as u32
    }

    /// Returns the box of names that has the name of a pack, and its place there.
    pub fn name_of(&self, pack: u32) -> (Section, usize) {
        let per_box = NAMES_PER_BOX as u32;
        (Section::Names(pack / per_box), (pack % per_box) as usize)
    }

    /// Opens the fences of this number, as they are stored.
    ///
    /// # Errors
    /// [`RunDamage`].
    pub fn open_fences(
        &self,
        number: u32,
        sealed: &[u8],
        decoder: &mut Decoder,
    ) -> Result<Fences, RunDamage> {
        let raw = self.open_box(Section::Fences(number), sealed, (BOX_RAW_MAX, decoder))?;
        let fences = Fences::decode(&raw)?;
        let part = self.contents.fences.get(number as usize);
        let agrees = |part: &FencePart| {
            part.blocks as usize == fences.count()
                && part.blocks_length == fences.bytes()
                && fences.first() == Some(part.head)
        };
        match part.is_some_and(agrees) {
            true => Ok(fences),
            false => Err(RunDamage::Inconsistent(
                "the fences and the directory disagree",
            )),
        }
    }

    /// Opens a block, as it is stored. `section` is what [`Directory::block_range`] returned.
    ///
    /// # Errors
    /// [`RunDamage`], also if a record is out of the run's range, or names no pack of it.
    pub fn open_block(
        &self,
        section: Section,
        sealed: &[u8],
        decoder: &mut Decoder,
    ) -> Result<Block, RunDamage> {
        let raw = self.open_box(section, sealed, (BLOCK_RAW_MAX, decoder))?;
        let block = Block::decode(&raw)?;
        let fits = |record: &super::Record| {
            self.contents.range.contains(&record.prefix) && record.pack < self.contents.packs
        };
        match block.records().iter().all(fits) {
            true => Ok(block),
            false => Err(RunDamage::Inconsistent("a record of another run")),
        }
    }

    /// Opens the names of this number, as they are stored.
    ///
    /// # Errors
    /// [`RunDamage`].
    pub fn open_names(
        &self,
        number: u32,
        sealed: &[u8],
        decoder: &mut Decoder,
    ) -> Result<Names, RunDamage> {
        let names = Names::decode(&self.open_box(
            Section::Names(number),
            sealed,
            (BOX_RAW_MAX, decoder),
        )?)?;
        let before = number as usize * NAMES_PER_BOX;
        let expected = (self.contents.packs as usize)
            .saturating_sub(before)
            .min(NAMES_PER_BOX);
        match names.names().len() == expected {
            true => Ok(names),
            false => Err(RunDamage::Inconsistent(
                "the names and the directory disagree",
            )),
        }
    }

    /// Opens the pack records of this number, as they are stored.
    ///
    /// # Errors
    /// [`RunDamage`].
    pub fn open_pack_frames(
        &self,
        number: u32,
        sealed: &[u8],
        decoder: &mut Decoder,
    ) -> Result<PackFramesList, RunDamage> {
        PackFramesList::decode(&self.open_box(
            Section::PackFrames(number),
            sealed,
            (BOX_RAW_MAX, decoder),
        )?)
    }

    /// Opens the filter of this number, as it is stored.
    ///
    /// # Errors
    /// [`RunDamage`].
    pub fn open_filter(&self, number: u32, sealed: &[u8]) -> Result<LevelFilter, RunDamage> {
        if sealed.len() > FILTER_BYTES_MAX + BOX_OVERHEAD {
            return Err(RunDamage::Inconsistent("a filter is too long"));
        }
        let mut room = Vec::new();
        let opened = (self.opener).open_box(Section::Filter(number).number(), sealed, &mut room)?;
        LevelFilter::open(opened).ok_or(RunDamage::Inconsistent("a filter leads out of bounds"))
    }

    fn open_box(
        &self,
        section: Section,
        sealed: &[u8],
        (raw_max, decoder): (u32, &mut Decoder),
    ) -> Result<Vec<u8>, RunDamage> {
        if sealed.len() as u64 > longest_box(raw_max) {
            return Err(RunDamage::Inconsistent("a part is too long"));
        }
        let mut room = Vec::new();
        let payload = self.opener.open_box(section.number(), sealed, &mut room)?;
        Ok(decoder.decode(payload, raw_max)?)
    }
}
