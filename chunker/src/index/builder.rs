//! Making of tables.
//!
//! Owns the order of entries, and how records fill blocks. The layout is that of [`super::layout`].

use super::block::{BLOCK_LEN, PAYLOAD_LEN, TableKey};
use super::filter::Filter;
use super::layout::{
    Counts, ENTRY_LEN, FENCE_LEN, FILTER_LEN, FRAME_LEN, LEAVES_PER_FILTER, Layout, NAME_LEN,
    PACK_LEN, per_block,
};
use super::table::{FrameLocation, Location, PackEntry, PackNumber};
use super::{PackName, PackRecord, Prefix};
use std::collections::BTreeMap;

/// Builds a table from packs.
#[derive(Clone, Debug, Default)]
pub struct TableBuilder {
    packs: Vec<PackRecord>,
}

impl TableBuilder {
    /// Returns a builder without packs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pack. If two packs have the same name, the first one is kept.
    pub fn push(&mut self, record: PackRecord) {
        self.packs.push(record);
    }

    /// Returns the bytes of the table, with checksums under `key`.
    ///
    /// # Panics
    /// If there are 2^32 packs or more.
    pub fn finish(mut self, key: &TableKey) -> Vec<u8> {
        self.packs.sort_by_key(|record| record.name);
        self.packs.dedup_by_key(|record| record.name);
        let packs = self.packs.iter().map(|record| {
            let entry = PackEntry {
                name: record.name,
                class: record.class,
                length: record.length,
                header: record.header,
            };
            (entry, record.footer.frame_count())
        });
        let frames = self.packs.iter().flat_map(|record| record.footer.frames());
        let frames = frames.map(|frame| FrameLocation {
            offset: frame.offset,
            stored_length: frame.stored_length,
            raw_length: frame.raw_length,
        });
        assemble(key, &entries(&self.packs), packs, frames)
    }
}

/// A pack of which a table has some frames.
#[derive(Clone, Debug)]
pub struct PartialPack {
    /// The pack as it is in the bucket.
    pub pack: PackEntry,
    /// The frames, by their numbers.
    pub frames: BTreeMap<u16, FrameLocation>,
}

/// A blob of which a table has a copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct PartialEntry {
    /// The first bytes of the blob's id.
    pub prefix: Prefix,
    /// The pack.
    pub pack: PackName,
    /// The number of the frame in the pack.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
}

/// Returns the bytes of a table of parts of packs, with checksums under `key`. A frame that the
/// table does not have is listed with a length of 0 bytes, which no frame has.
///
/// `entries` is sorted. Entries of packs that `packs` does not have are left out.
///
/// # Panics
/// If there are 2^32 packs or more.
pub fn table_of_parts(
    packs: &BTreeMap<PackName, PartialPack>,
    entries: &[PartialEntry],
    key: &TableKey,
) -> Vec<u8> {
    let numbers: BTreeMap<PackName, u32> = packs.keys().copied().zip(0..).collect();
    let entries: Vec<(Prefix, Location)> = entries
        .iter()
        .filter_map(|entry| {
            let location = Location {
                pack: PackNumber(*numbers.get(&entry.pack)?),
                frame: entry.frame,
                slot: entry.slot,
            };
            Some((entry.prefix, location))
        })
        .collect();
    let count = |pack: &PartialPack| {
        let last = pack.frames.last_key_value();
        last.map_or(0, |(number, _)| usize::from(*number) + 1)
    };
    let listed = packs.values().map(|pack| (pack.pack, count(pack)));
    let frames = packs.values().flat_map(|pack| {
        (0..count(pack)).map(|number| {
            let frame = pack.frames.get(&(number as u16)).copied();
            frame.unwrap_or(FrameLocation {
                offset: 0,
                stored_length: 0,
                raw_length: 0,
            })
        })
    });
    assemble(key, &entries, listed, frames)
}

/// Returns the bytes of a table: of sorted entries, of packs in the order of their names, each with
/// its number of frames, and of all these frames.
fn assemble(
    key: &TableKey,
    entries: &[(Prefix, Location)],
    packs: impl Iterator<Item = (PackEntry, usize)> + Clone,
    frames: impl Iterator<Item = FrameLocation>,
) -> Vec<u8> {
    let counts = Counts {
        entries: entries.len() as u64,
        packs: u32::try_from(packs.clone().count()).expect("memory holds fewer packs"),
        frames: packs.clone().map(|(_, frames)| frames).sum::<usize>() as u64,
    };
    let layout = Layout::new(counts);
    let length = layout.filters.end as usize * BLOCK_LEN;
    let mut blocks = Blocks(Vec::with_capacity(length));
    blocks.put([Layout::head(&counts)].into_iter());
    put_fences(entries, &mut blocks);
    blocks.put(entries.iter().map(entry_bytes));
    put_packs(packs, frames, &mut blocks);
    let whole = blocks.0.len() / BLOCK_LEN;
    put_filters(entries, &mut blocks);
    let mut bytes = blocks.0;
    let (single, filters) = bytes.split_at_mut(whole * BLOCK_LEN);
    for (number, block) in single.chunks_exact_mut(BLOCK_LEN).enumerate() {
        key.seal(number as u64, block);
    }
    for (filter, blocks) in filters.chunks_exact_mut(FILTER_LEN).enumerate() {
        key.seal(layout.filter_block(filter as u64), blocks);
    }
    bytes
}

/// Blocks under construction, without checksums.
struct Blocks(Vec<u8>);

impl Blocks {
    /// Appends records, as many to a block as it holds.
    fn put<const N: usize>(&mut self, records: impl Iterator<Item = [u8; N]>) {
        for (number, record) in records.enumerate() {
            if (number as u64).is_multiple_of(per_block(N)) {
                self.end_block();
            }
            self.0.extend_from_slice(&record);
        }
        self.end_block();
    }

    fn end_block(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(BLOCK_LEN), 0);
    }
}

/// Returns the entries of all packs, sorted.
fn entries(packs: &[PackRecord]) -> Vec<(Prefix, Location)> {
    let blobs = packs.iter().map(|record| record.footer.blob_count());
    let mut entries = Vec::with_capacity(blobs.sum());
    for (number, record) in packs.iter().enumerate() {
        entries.extend(record.footer.blobs().map(|blob| {
            let location = Location {
                pack: PackNumber(number as u32),
                frame: blob.frame,
                slot: blob.slot,
            };
            (blob.prefix, location)
        }));
    }
    entries.sort_unstable();
    entries
}

fn entry_bytes((prefix, location): &(Prefix, Location)) -> [u8; ENTRY_LEN] {
    let mut bytes = [0; ENTRY_LEN];
    bytes[..16].copy_from_slice(&prefix.0);
    bytes[16..20].copy_from_slice(&location.pack.0.to_le_bytes());
    bytes[20..22].copy_from_slice(&location.frame.to_le_bytes());
    bytes[22..24].copy_from_slice(&location.slot.to_le_bytes());
    bytes
}

fn put_fences(entries: &[(Prefix, Location)], blocks: &mut Blocks) {
    let leaves = entries.chunks(per_block(ENTRY_LEN) as usize);
    let mut level: Vec<u64> = leaves.map(|leaf| leaf[0].0.head()).collect();
    while level.len() > 1 {
        blocks.put(level.iter().map(|head| head.to_le_bytes()));
        let above = level.chunks(per_block(FENCE_LEN) as usize);
        level = above.map(|block| block[0]).collect();
    }
}

fn put_packs(
    packs: impl Iterator<Item = (PackEntry, usize)> + Clone,
    frames: impl Iterator<Item = FrameLocation>,
    blocks: &mut Blocks,
) {
    let mut next_frame = 0u64;
    blocks.put(packs.clone().map(|(pack, frames)| {
        let mut bytes = [0; NAME_LEN];
        bytes[..PackName::LEN].copy_from_slice(&pack.name.to_bytes());
        bytes[PackName::LEN..].copy_from_slice(&next_frame.to_le_bytes());
        next_frame += frames as u64;
        bytes
    }));
    blocks.put(packs.map(|(pack, _)| {
        let mut bytes = [0; PACK_LEN];
        bytes[..8].copy_from_slice(&pack.length.to_le_bytes());
        bytes[8] = pack.class as u8;
        bytes[9..].copy_from_slice(&pack.header);
        bytes
    }));
    blocks.put(frames.map(|frame| {
        let mut bytes = [0; FRAME_LEN];
        bytes[..4].copy_from_slice(&frame.offset.to_le_bytes());
        bytes[4..8].copy_from_slice(&frame.stored_length.to_le_bytes());
        bytes[8..].copy_from_slice(&frame.raw_length.to_le_bytes());
        bytes
    }));
}

/// Appends the filters. A filter that does not fit is left out.
///
/// A filter also has the first prefix behind its blocks. A look-up of that prefix begins one block
/// before it, because others with the same head may lie there, and asks the filter of that block.
fn put_filters(entries: &[(Prefix, Location)], blocks: &mut Blocks) {
    let each = (LEAVES_PER_FILTER * per_block(ENTRY_LEN)) as usize;
    for start in (0..entries.len()).step_by(each) {
        let end = entries.len().min(start + each + 1);
        let prefixes = entries[start..end].iter().map(|(prefix, _)| *prefix);
        let mut filter = Filter::bytes_of(prefixes);
        if filter.len() > FILTER_LEN - (BLOCK_LEN - PAYLOAD_LEN) - 4 {
            filter.clear();
        }
        let from = blocks.0.len();
        let length = filter.len() as u32;
        blocks.0.extend_from_slice(&length.to_le_bytes());
        blocks.0.extend_from_slice(&filter);
        blocks.0.resize(from + FILTER_LEN, 0);
    }
}
