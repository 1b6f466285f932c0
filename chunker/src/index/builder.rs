//! Making of tables.
//!
//! Owns the order of entries, and how records fill blocks. The layout is that of [`super::layout`].

use super::block::{BLOCK_LEN, PAYLOAD_LEN, TableKey};
use super::filter::Filter;
use super::layout::{
    Counts, ENTRY_LEN, FENCE_LEN, FILTER_LEN, FRAME_LEN, LEAVES_PER_FILTER, Layout, NAME_LEN,
    PACK_LEN, per_block,
};
use super::table::{Location, PackNumber};
use super::{PackName, PackRecord, Prefix};

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
        let entries = entries(&self.packs);
        let frames = self.packs.iter().map(|record| record.footer.frame_count());
        let counts = Counts {
            entries: entries.len() as u64,
            packs: u32::try_from(self.packs.len()).expect("memory holds fewer packs"),
            frames: frames.sum::<usize>() as u64,
        };
        let layout = Layout::new(counts);
        let length = layout.filters.end as usize * BLOCK_LEN;
        let mut blocks = Blocks(Vec::with_capacity(length));
        blocks.put([Layout::head(&counts)].into_iter());
        put_fences(&entries, &mut blocks);
        blocks.put(entries.iter().map(entry_bytes));
        put_packs(&self.packs, &mut blocks);
        drop(self.packs);
        let whole = blocks.0.len() / BLOCK_LEN;
        put_filters(&entries, &mut blocks);
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

fn put_packs(packs: &[PackRecord], blocks: &mut Blocks) {
    let mut next_frame = 0u64;
    blocks.put(packs.iter().map(|record| {
        let mut bytes = [0; NAME_LEN];
        bytes[..PackName::LEN].copy_from_slice(&record.name.to_bytes());
        bytes[PackName::LEN..].copy_from_slice(&next_frame.to_le_bytes());
        next_frame += record.footer.frame_count() as u64;
        bytes
    }));
    blocks.put(packs.iter().map(|record| {
        let mut bytes = [0; PACK_LEN];
        bytes[..8].copy_from_slice(&record.length.to_le_bytes());
        bytes[8] = record.class as u8;
        bytes[9..].copy_from_slice(&record.header);
        bytes
    }));
    let frames = packs.iter().flat_map(|record| record.footer.frames());
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
