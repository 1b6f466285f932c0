//! Writes a run: records in order, then pack records in order, then everything that leads to them.
//!
//! Owns the order of the parts and the bounds of one run. Its memory is one block, the keys of one
//! group of blocks, and the filters: about 2.3 bytes for each record.

use super::directory::{Contents, FencePart, FilterPart, PackPart, Section, Trailer};
use super::filter::LEVEL_MAX;
use super::packs::NAMES_PER_BOX;
use super::{
    BLOCKS_PER_FENCE, BOX_RAW_BYTES, Block, Fences, LevelFilter, Names, PackFrames, RECORD_LEN,
    RUN_BYTES_MAX, Record,
};
use crate::codec::{Effort, Encoder};
use crate::crypto::{Class, ObjectSealer};
use crate::id::Prefix;
use crate::pack::PackName;
use std::ops::RangeInclusive;

/// Reasons why something cannot be added to a run.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RunError {
    /// It does not come after what was added before it.
    #[error("records of a run must come in order, and before pack records")]
    Order,
    /// It is out of the range of the run, or names a pack that the run does not name.
    #[error("a record of another run")]
    Foreign,
    /// The run would be longer than it may be.
    #[error("more than {RUN_BYTES_MAX} bytes are too many for a run")]
    TooLarge,
}

/// How large the parts are.
#[derive(Copy, Clone, Debug)]
pub(super) struct Shape {
    pub(super) box_bytes: usize,
    pub(super) blocks_per_fence: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            box_bytes: BOX_RAW_BYTES,
            blocks_per_fence: BLOCKS_PER_FENCE,
        }
    }
}

/// Appends the parts of one run to a buffer, which the caller takes away in pieces.
#[derive(Debug)]
pub struct RunWriter {
    sealer: ObjectSealer,
    encoder: Encoder,
    effort: Effort,
    shape: Shape,
    names: Vec<PackName>,
    contents: Contents,
    /// Bytes that were made and not yet taken.
    out: Vec<u8>,
    /// Bytes that were made before those.
    taken: u64,
    last: Option<Record>,
    last_place: Option<Prefix>,
    block: Vec<Record>,
    /// First head and stored length of the blocks of the group that is not complete.
    group: Vec<(u64, u32)>,
    /// The prefixes of that group, by level.
    levels: Vec<Vec<Prefix>>,
    /// The complete groups' fences.
    fences: Vec<Vec<u8>>,
    /// The complete groups' filters, with level and number of the group.
    filters: Vec<(u8, u32, Vec<u8>)>,
    /// Pack records of the box that is not complete, and the place of the first.
    packs: Vec<u8>,
    packs_head: Option<u64>,
}

impl RunWriter {
    /// Returns the writer of a run of this range of prefixes. Its records name packs of `class`,
    /// which are a part of `names`.
    pub fn new(
        sealer: ObjectSealer,
        class: Class,
        range: RangeInclusive<Prefix>,
        names: impl IntoIterator<Item = PackName>,
        effort: Effort,
    ) -> Self {
        Self::with_shape(sealer, class, range, names, (effort, Shape::default()))
    }

    pub(super) fn with_shape(
        sealer: ObjectSealer,
        class: Class,
        range: RangeInclusive<Prefix>,
        names: impl IntoIterator<Item = PackName>,
        (effort, shape): (Effort, Shape),
    ) -> Self {
        let mut names: Vec<PackName> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        let contents = Contents {
            class,
            range,
            records: 0,
            packs: names.len() as u32,
            fences: Vec::new(),
            pack_parts: Vec::new(),
            names: Vec::new(),
            filters: Vec::new(),
        };
        Self {
            out: sealer.header().to_vec(),
            sealer,
            encoder: Encoder::new(),
            effort,
            shape,
            names,
            contents,
            taken: 0,
            last: None,
            last_place: None,
            block: Vec::new(),
            group: Vec::new(),
            levels: vec![Vec::new(); usize::from(LEVEL_MAX) + 1],
            fences: Vec::new(),
            filters: Vec::new(),
            packs: Vec::new(),
            packs_head: None,
        }
    }

    /// Returns the number that records give for a pack. None if the run does not name it.
    pub fn pack_number(&self, name: &PackName) -> Option<u32> {
        let found = self.names.binary_search(name).ok()?;
        Some(found as u32)
    }

    /// Returns the length of the run so far, in bytes, without filters, names and fences.
    pub fn length(&self) -> u64 {
        self.taken + self.out.len() as u64
    }

    /// Takes the bytes that were made since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        self.taken += self.out.len() as u64;
        std::mem::take(&mut self.out)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`RunError::Order`], [`RunError::Foreign`].
    pub fn push(&mut self, record: Record) -> Result<(), RunError> {
        let comes_last = self.last.is_none_or(|last| last < record);
        if !comes_last || self.last_place.is_some() {
            return Err(RunError::Order);
        }
        if !self.contents.range.contains(&record.prefix) || record.pack >= self.contents.packs {
            return Err(RunError::Foreign);
        }
        self.last = Some(record);
        self.contents.records += 1;
        self.block.push(record);
        self.levels[usize::from(LevelFilter::level_of(&record.prefix))].push(record.prefix);
        if self.block.len() * RECORD_LEN >= self.shape.box_bytes {
            self.end_block();
        }
        Ok(())
    }

    /// Adds what is known of a pack. Comes after all records, in the order of places.
    ///
    /// # Errors
    /// [`RunError::Order`], [`RunError::Foreign`].
    pub fn push_pack(&mut self, pack: &PackFrames) -> Result<(), RunError> {
        let place = PackFrames::place_of(&pack.name);
        if self.last_place.is_some_and(|last| last >= place) {
            return Err(RunError::Order);
        }
        if !self.contents.range.contains(&place) || pack.class != self.contents.class {
            return Err(RunError::Foreign);
        }
        if self.last_place.replace(place).is_none() {
            self.end_block();
            self.end_group();
        }
        self.packs_head.get_or_insert(place.head());
        pack.append_to(&mut self.packs);
        if self.packs.len() >= self.shape.box_bytes {
            self.end_packs();
        }
        Ok(())
    }

    /// Adds everything that leads to the records. [`RunWriter::take`] then returns the rest of the
    /// run.
    ///
    /// # Errors
    /// [`RunError::TooLarge`].
    pub fn finish(&mut self) -> Result<(), RunError> {
        self.end_block();
        self.end_group();
        self.end_packs();
        let names = std::mem::take(&mut self.names);
        for (number, names) in names.chunks(NAMES_PER_BOX).enumerate() {
            let length = self.seal(Section::Names(number as u32), &Names::encode(names));
            self.contents.names.push(length);
        }
        let mut filters = std::mem::take(&mut self.filters);
        filters.sort_unstable_by_key(|(level, fences, _)| (*level, *fences));
        for (number, (level, fences, filter)) in filters.into_iter().enumerate() {
            let before = self.out.len();
            let section = Section::Filter(number as u32).number();
            self.sealer.seal_box(section, &filter, &mut self.out);
            let length = (self.out.len() - before) as u32;
            self.contents.filters.push(FilterPart {
                level,
                fences,
                length,
            });
        }
        let mut fences_length = 0;
        for (number, raw) in std::mem::take(&mut self.fences).into_iter().enumerate() {
            let length = self.seal(Section::Fences(number as u32), &raw);
            self.contents.fences[number].length = length;
            fences_length += length;
        }
        let raw = self.contents.encode();
        let directory_length = self.seal(Section::Directory, &raw);
        let trailer = Trailer {
            directory_length,
            fences_length,
        };
        self.out.extend_from_slice(&trailer.encode());
        match self.length() <= RUN_BYTES_MAX {
            true => Ok(()),
            false => Err(RunError::TooLarge),
        }
    }

    /// Appends a box with the coded form of `raw`, and returns its length.
    fn seal(&mut self, section: Section, raw: &[u8]) -> u32 {
        let mut payload = Vec::new();
        self.encoder.encode(raw, self.effort, &mut payload);
        let before = self.out.len();
        self.sealer
            .seal_box(section.number(), &payload, &mut self.out);
        (self.out.len() - before) as u32
    }

    fn end_block(&mut self) {
        let Some(first) = self.block.first() else {
            return;
        };
        let head = first.prefix.head();
        let blocks = self.contents.fences.iter().map(|part| part.blocks);
        let number = blocks.sum::<u32>() + self.group.len() as u32;
        let raw = Block::encode(&self.block);
        self.block.clear();
        let length = self.seal(Section::Block(number), &raw);
        self.group.push((head, length));
        if self.group.len() == self.shape.blocks_per_fence {
            self.end_group();
        }
    }

    fn end_group(&mut self) {
        let Some((head, _)) = self.group.first() else {
            return;
        };
        let number = self.contents.fences.len() as u32;
        self.contents.fences.push(FencePart {
            head: *head,
            blocks: self.group.len() as u32,
            blocks_length: self
                .group
                .iter()
                .map(|(_, length)| u64::from(*length))
                .sum(),
            length: 0,
        });
        self.fences.push(Fences::encode(&self.group));
        self.group.clear();
        for (level, prefixes) in self.levels.iter_mut().enumerate() {
            // A level without a filter has no prefix in these blocks.
            if !prefixes.is_empty() {
                let filter = LevelFilter::encode(prefixes.drain(..));
                self.filters.push((level as u8, number, filter));
            }
        }
    }

    fn end_packs(&mut self) {
        let Some(head) = self.packs_head.take() else {
            return;
        };
        let raw = std::mem::take(&mut self.packs);
        let number = self.contents.pack_parts.len() as u32;
        let length = self.seal(Section::PackFrames(number), &raw);
        self.contents.pack_parts.push(PackPart { head, length });
    }
}
