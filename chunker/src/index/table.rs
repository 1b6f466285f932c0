//! Sorted tables: look-ups by prefix in bytes that are not trusted, such as a file.
//!
//! Owns the look-ups. [`super::layout`] says where the parts of a table lie. Opening a table reads
//! its head. Each look-up reads the blocks that it needs and verifies each of them before it
//! believes it. So a look-up is right or fails, whatever happened to the bytes before or meanwhile.
//!
//! - Fences, names of packs and filters stay in memory once they are read, as copies. They take
//!   about 10 bits for each entry, and a look-up reads none of them again. So a look-up of new data
//!   reads nothing from the disk, however many tables there are.
//! - A block of entries is read and verified by each look-up that needs it: about 4 µs, one time in
//!   256 for an absent prefix.
//! - The blocks of packs and frames that were read last are kept, since readers ask for blobs of one
//!   pack in a row.
//!
//! A mapping would save the copy. But a file that is cut short, or a disk that cannot read a page,
//! ends a process that touches the mapping, and a page that was verified may be read again from the
//! disk later.
//!
//! A blob that is in several packs has one entry for each.

use super::block::{BLOCK_LEN, PAYLOAD_LEN, TableKey};
use super::error::TableError;
use super::filter::Filter;
use super::kept::{Kept, Recent};
use super::layout::{
    ENTRY_LEN, FENCE_LEN, FILTER_LEN, FRAME_LEN, LEAVES_PER_FILTER, Layout, NAME_LEN, PACK_LEN,
    per_block, u32_at, u64_at,
};
use super::read_at::ReadAt;
use super::{HEADER_LEN, PackName, Prefix};
use crate::crypto::Class;
use std::ops::Range;
use std::sync::Arc;

/// The number of a pack in a table: its position in the order of names.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct PackNumber(pub u32);

/// The position of a blob.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Location {
    /// The pack, as this table numbers it.
    pub pack: PackNumber,
    /// The number of the frame in the pack.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
}

/// A table's entry for a pack.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct PackEntry {
    /// The pack's name.
    pub name: PackName,
    /// Data or metadata pack.
    pub class: Class,
    /// The length of the pack in the bucket, in bytes.
    pub length: u64,
    /// The first bytes of the pack.
    pub header: [u8; HEADER_LEN],
}

/// The position of a frame in its pack.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct FrameLocation {
    /// Offset of the first byte, in bytes.
    pub offset: u32,
    /// The length of the frame in the pack, in bytes.
    pub stored_length: u32,
    /// The decoded length of the frame, in bytes.
    pub raw_length: u32,
}

/// A table over the bytes that hold it.
///
/// The bytes may change at any time: a look-up is right, or fails with [`TableError`].
#[derive(Debug)]
pub struct Table<B> {
    bytes: B,
    key: TableKey,
    layout: Layout,
    fences: Kept<Box<[u8]>>,
    names: Kept<Box<[u8]>>,
    filters: Kept<Filter>,
    recent: Recent,
}

impl<B: ReadAt> Table<B> {
    /// Opens the table that was made with `key`. Reads one block, however long the table is.
    ///
    /// # Errors
    /// [`TableError`] if the bytes are not a table of this version, if their number is not the one
    /// that the head implies, or if the head was made with another key.
    pub fn open(bytes: B, key: TableKey) -> Result<Self, TableError> {
        let mut head = [0; BLOCK_LEN];
        let read = bytes.read_at(0, &mut head);
        read.map_err(|error| TableError::Unreadable(error.kind()))?;
        let layout = Layout::of_head(&head)?;
        if !bytes.is_trusted() && !key.verify(0, &mut head) {
            return Err(TableError::Checksum { block: 0 });
        }
        if layout.length() != Some(bytes.length()) {
            return Err(TableError::WrongLength);
        }
        let count = |range: &Range<u64>| range.end - range.start;
        Ok(Self {
            fences: Kept::new(count(&layout.all_fences())),
            names: Kept::new(count(&layout.names)),
            filters: Kept::new(layout.filter_count()),
            recent: Recent::default(),
            bytes,
            key,
            layout,
        })
    }

    /// Returns the bytes that hold the table.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Returns the number of entries: one for each blob in each pack.
    pub fn entry_count(&self) -> u64 {
        self.layout.counts.entries
    }

    /// Returns the number of packs.
    pub fn pack_count(&self) -> u32 {
        self.layout.counts.packs
    }

    /// Returns all entries in the order of prefixes. Reads them block by block.
    pub fn entries(&self) -> impl Iterator<Item = Result<(Prefix, Location), TableError>> + '_ {
        let leaves = self.layout.entries.end - self.layout.entries.start;
        (0..leaves).flat_map(|leaf| {
            let mut block = [0; BLOCK_LEN];
            let read = self.leaf(leaf, &mut block);
            let read = read.map(|entries| entries.iter().map(entry_of).collect::<Vec<_>>());
            let (entries, error) = match read {
                Ok(entries) => (entries, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            entries.into_iter().map(Ok).chain(error)
        })
    }

    /// Returns all positions of the blob with this prefix: none if no pack of this table holds it.
    ///
    /// # Errors
    /// [`TableError`] if a block that is needed does not verify.
    pub fn find(&self, prefix: &Prefix) -> Result<Vec<Location>, TableError> {
        let mut found = Vec::new();
        let Some(first) = self.first_leaf(prefix)? else {
            return Ok(found);
        };
        if !self.filter(first)?.lets_through(prefix) {
            return Ok(found);
        }
        let mut block = [0; BLOCK_LEN];
        for leaf in first..self.layout.entries.end - self.layout.entries.start {
            let entries = self.leaf(leaf, &mut block)?;
            let start = entries.partition_point(|entry| entry_of(entry).0 < *prefix);
            for entry in &entries[start..] {
                match entry_of(entry) {
                    (of, location) if of == *prefix => found.push(location),
                    _ => return Ok(found),
                }
            }
            // The block ends before an entry of a greater prefix: the next one may go on.
        }
        Ok(found)
    }

    /// Passes all positions of the blobs with these prefixes to `each`, with the position of the
    /// prefix in `asked`. `asked` is sorted and has each prefix once.
    ///
    /// Reads each block of entries at most once, in order, and those blocks only where one of the
    /// prefixes may be. So many prefixes cost no more than one pass over the entries.
    ///
    /// # Errors
    /// Those of [`Table::find`], after some positions may have been passed.
    pub fn find_all(
        &self,
        asked: &[Prefix],
        each: &mut dyn FnMut(usize, Location),
    ) -> Result<(), TableError> {
        let leaves = self.layout.entries.end - self.layout.entries.start;
        let mut block = [0; BLOCK_LEN];
        let (mut at, mut next_leaf) = (0, 0);
        while let Some(prefix) = asked.get(at) {
            let Some(leaf) = self.first_leaf(prefix)? else {
                return Ok(());
            };
            let leaf = leaf.max(next_leaf);
            if leaf >= leaves {
                return Ok(());
            }
            let entries = self.leaf(leaf, &mut block)?;
            let mut last = *prefix;
            let start = entries.partition_point(|entry| entry_of(entry).0 < *prefix);
            for entry in &entries[start..] {
                let (of, location) = entry_of(entry);
                at += ahead(&asked[at..], &of);
                if asked.get(at) == Some(&of) {
                    each(at, location);
                }
                last = of;
            }
            // The next block may go on with the prefix with which this one ends.
            at += ahead(&asked[at..], &last);
            next_leaf = leaf + 1;
        }
        Ok(())
    }

    /// Returns true if a pack of this table holds a blob with this prefix.
    ///
    /// # Errors
    /// Those of [`Table::find`].
    pub fn contains(&self, prefix: &Prefix) -> Result<bool, TableError> {
        Ok(!self.find(prefix)?.is_empty())
    }

    /// Returns the pack with this number. `None` if there is none.
    ///
    /// # Errors
    /// [`TableError`] if a block that is needed does not verify, or if the class is unknown.
    pub fn pack(&self, number: PackNumber) -> Result<Option<PackEntry>, TableError> {
        let Some(name) = self.pack_name(number)? else {
            return Ok(None);
        };
        let of_block = per_block(PACK_LEN);
        let block = self.recent(&self.layout.packs, u64::from(number.0) / of_block)?;
        let at = (u64::from(number.0) % of_block) as usize * PACK_LEN;
        let pack = &block[at..at + PACK_LEN];
        let (class, header) = (pack[8], pack.last_chunk());
        let wrong = TableError::Inconsistent("a pack of an unknown class");
        let (Some(class), Some(header)) = (Class::from_number(class), header) else {
            return Err(wrong);
        };
        Ok(Some(PackEntry {
            name,
            class,
            length: u64_at(pack, 0),
            header: *header,
        }))
    }

    /// Returns the name of the pack with this number. `None` if there is none.
    ///
    /// # Errors
    /// [`TableError`] if a block that is needed does not verify.
    pub fn pack_name(&self, number: PackNumber) -> Result<Option<PackName>, TableError> {
        let named = self.named(number)?;
        Ok(named.and_then(|named| Some(PackName::from_bytes(*named.first_chunk()?))))
    }

    /// Returns the number of the pack with this name. `None` if there is none.
    ///
    /// # Errors
    /// [`TableError`] if a block that is needed does not verify.
    pub fn number_of(&self, name: &PackName) -> Result<Option<PackNumber>, TableError> {
        let (mut low, mut high) = (0, self.pack_count());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.pack_name(PackNumber(middle))? {
                Some(found) if found == *name => return Ok(Some(PackNumber(middle))),
                Some(found) if found < *name => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(None)
    }

    /// Returns the position of a frame of a pack. `None` if there is none.
    ///
    /// # Errors
    /// [`TableError`] if a block that is needed does not verify.
    pub fn frame(
        &self,
        number: PackNumber,
        frame: u16,
    ) -> Result<Option<FrameLocation>, TableError> {
        let Some(first) = self.first_frame(number)? else {
            return Ok(None);
        };
        let next = match number.0.checked_add(1) {
            Some(next) => self.first_frame(PackNumber(next))?,
            None => None,
        };
        let end = next.unwrap_or(self.layout.counts.frames);
        let Some(frame) = first
            .checked_add(u64::from(frame))
            .filter(|frame| *frame < end)
        else {
            return Ok(None);
        };
        let block = self.recent(&self.layout.frames, frame / per_block(FRAME_LEN))?;
        let at = (frame % per_block(FRAME_LEN)) as usize * FRAME_LEN;
        Ok(Some(FrameLocation {
            offset: u32_at(&block, at),
            stored_length: u32_at(&block, at + 4),
            raw_length: u32_at(&block, at + 8),
        }))
    }

    /// Returns the block of entries where the first entry with this prefix is if there is one, or
    /// the one before that. `None` if the table is empty.
    fn first_leaf(&self, prefix: &Prefix) -> Result<Option<u64>, TableError> {
        let head = prefix.head();
        let of_block = per_block(FENCE_LEN);
        let mut at = 0;
        for (level, blocks) in self.layout.fences.iter().enumerate().rev() {
            let below = match level.checked_sub(1) {
                Some(below) => &self.layout.fences[below],
                None => &self.layout.entries,
            };
            let count = (below.end - below.start).saturating_sub(at * of_block);
            let number = blocks.start + at;
            let block = self
                .fences
                .get(number - self.layout.all_fences().start, || {
                    self.payload(number)
                })?;
            let (fences, _) = block.as_chunks::<FENCE_LEN>();
            let fences = &fences[..fences.len().min(count as usize)];
            // Entries with the same head may lie before the block that begins with it.
            let before = fences.partition_point(|fence| u64::from_le_bytes(*fence) < head);
            at = at * of_block + before.saturating_sub(1) as u64;
        }
        let leaves = self.layout.entries.end - self.layout.entries.start;
        Ok((at < leaves).then_some(at))
    }

    /// Returns the filter that has the prefixes of a block of entries.
    fn filter(&self, leaf: u64) -> Result<&Filter, TableError> {
        let number = leaf / LEAVES_PER_FILTER;
        self.filters.get(number, || {
            let mut blocks = vec![0; FILTER_LEN];
            self.read(self.layout.filter_block(number), &mut blocks)?;
            let length = u32_at(&blocks, 0) as usize;
            let bytes = blocks[4..].get(..length);
            bytes
                .and_then(Filter::open)
                .ok_or(TableError::Inconsistent("a filter is out of bounds"))
        })
    }

    /// Reads a block of entries, and returns its entries.
    fn leaf<'a>(
        &self,
        leaf: u64,
        block: &'a mut [u8; BLOCK_LEN],
    ) -> Result<&'a [[u8; ENTRY_LEN]], TableError> {
        self.read(self.layout.entries.start + leaf, block)?;
        let count = self.entry_count() - leaf * per_block(ENTRY_LEN);
        let (entries, _) = block[..PAYLOAD_LEN].as_chunks::<ENTRY_LEN>();
        Ok(&entries[..entries.len().min(count as usize)])
    }

    fn named(&self, number: PackNumber) -> Result<Option<&[u8]>, TableError> {
        if number.0 >= self.pack_count() {
            return Ok(None);
        }
        let of_block = per_block(NAME_LEN);
        let block = u64::from(number.0) / of_block;
        let names = self
            .names
            .get(block, || self.payload(self.layout.names.start + block))?;
        let at = (u64::from(number.0) % of_block) as usize * NAME_LEN;
        Ok(names.get(at..at + NAME_LEN))
    }

    fn first_frame(&self, number: PackNumber) -> Result<Option<u64>, TableError> {
        let named = self.named(number)?;
        Ok(named.map(|named| u64_at(named, PackName::LEN)))
    }

    /// Returns a block of a part.
    fn recent(&self, part: &Range<u64>, block: u64) -> Result<Arc<[u8]>, TableError> {
        let number = part.start.saturating_add(block);
        if number >= part.end {
            return Err(TableError::Inconsistent("a record is out of bounds"));
        }
        let read = || self.payload(number).map(Arc::from);
        self.recent.get(number, read)
    }

    fn payload(&self, number: u64) -> Result<Box<[u8]>, TableError> {
        let mut block = [0; BLOCK_LEN];
        self.read(number, &mut block)?;
        Ok(block[..PAYLOAD_LEN].into())
    }

    /// Reads blocks from `number` on, and verifies them.
    fn read(&self, number: u64, blocks: &mut [u8]) -> Result<(), TableError> {
        let read = self.bytes.read_at(number * BLOCK_LEN as u64, blocks);
        read.map_err(|error| TableError::Unreadable(error.kind()))?;
        match self.bytes.is_trusted() || self.key.verify(number, blocks) {
            true => Ok(()),
            false => Err(TableError::Checksum { block: number }),
        }
    }
}

/// Returns how many of these sorted prefixes come before `prefix`. Looks at the first ones first.
fn ahead(sorted: &[Prefix], prefix: &Prefix) -> usize {
    let mut step = 1;
    while sorted.get(step - 1).is_some_and(|other| other < prefix) {
        step *= 2;
    }
    let (from, to) = (step / 2, sorted.len().min(step));
    from + sorted[from..to].partition_point(|other| other < prefix)
}

fn entry_of(entry: &[u8; ENTRY_LEN]) -> (Prefix, Location) {
    let mut prefix = [0; Prefix::LEN];
    prefix.copy_from_slice(&entry[..Prefix::LEN]);
    let location = Location {
        pack: PackNumber(u32_at(entry, 16)),
        frame: u16::from_le_bytes([entry[20], entry[21]]),
        slot: u16::from_le_bytes([entry[22], entry[23]]),
    };
    (Prefix(prefix), location)
}
