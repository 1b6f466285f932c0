//! Sorted tables: look-ups by prefix in a byte slice, which may be a memory-mapped file.
//!
//! All numbers are little-endian:
//!
//! - head: magic 8, version u32, fence bits u32, entries u64, packs u32, bytes of the filter u32,
//!   frames u64, checksum 24;
//! - fence: (2^bits + 1) × u64, each the number of entries with a prefix whose leading bits are
//!   less than the index;
//! - entries, sorted: prefix 16, pack u32, frame u16, slot u16;
//! - packs, by name: name 16, header 128, length u64, first frame u64, class u8, zero 7;
//! - frames, by pack: offset u32, stored length u32, raw length u32;
//! - filter: the bytes of the [`Filter`] of the prefixes, none if it cannot be built.
//!
//! Prefixes are evenly distributed, because ids are hashes. The fence has one number for every 32
//! entries, so it narrows a look-up to about 32 entries. A look-up touches two or three places,
//! however large the table is. A blob that is in several packs has one entry for each.
//!
//! The filter is copied into memory, so a look-up of new data reads nothing from the disk, however
//! many tables there are.

use super::PackRecord;
use super::filter::Filter;
use crate::crypto::{Class, HEADER_LEN};
use crate::id::Prefix;
use crate::pack::PackName;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"bkfstab\0";
const VERSION: u32 = 2;
const HEAD_LEN: usize = 64;
const FILTER_BYTES: Range<usize> = 28..32;
const CHECKSUM: Range<usize> = 40..64;
const ENTRY_LEN: usize = Prefix::LEN + 8;
const PACK_LEN: usize = PackName::LEN + HEADER_LEN + 8 + 8 + 8;
const FRAME_LEN: usize = 12;
/// Entries for each number of the fence.
const ENTRIES_PER_FENCE: u64 = 32;
const FENCE_BITS_MAX: u32 = 40;

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

/// Bytes that are not a table of this version.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("damaged index table: {0}")]
pub struct TableError(&'static str);

/// A table over the bytes that hold it.
///
/// The bytes must not change while the table is in use. No content of the bytes makes a look-up
/// panic. The answers are correct only if [`Table::verify`] has succeeded.
#[derive(Clone, Debug)]
pub struct Table<B> {
    bytes: B,
    fence_bits: u32,
    fence: Range<usize>,
    entries: Range<usize>,
    packs: Range<usize>,
    frames: Range<usize>,
    filter: Filter,
}

impl<B: AsRef<[u8]>> Table<B> {
    /// Opens a table. Reads only its head and its filter.
    ///
    /// # Errors
    /// [`TableError`] if the bytes are not a table of this version, if their number is not the one
    /// that the head implies, or if the fence or the filter is out of bounds.
    pub fn open(bytes: B) -> Result<Self, TableError> {
        let all = bytes.as_ref();
        let head = all
            .get(..HEAD_LEN)
            .filter(|head| head[..8] == *MAGIC)
            .ok_or(TableError("not a table"))?;
        if u32_at(head, 8) != VERSION {
            return Err(TableError("another version"));
        }
        let fence_bits = u32_at(head, 12);
        if fence_bits > FENCE_BITS_MAX {
            return Err(TableError("the fence is out of bounds"));
        }
        let mut end = HEAD_LEN;
        let mut part = |count: u64, length: usize| {
            let start = end;
            let bytes = usize::try_from(count).ok()?.checked_mul(length)?;
            end = start.checked_add(bytes)?;
            Some(start..end)
        };
        let parts = (|| {
            let fence = part((1 << fence_bits) + 1, 8)?;
            let entries = part(u64_at(head, 16), ENTRY_LEN)?;
            let packs = part(u64::from(u32_at(head, 24)), PACK_LEN)?;
            let frames = part(u64_at(head, 32), FRAME_LEN)?;
            let filter = part(u64::from(u32_at(head, FILTER_BYTES.start)), 1)?;
            Some((fence, entries, packs, frames, filter))
        })();
        match parts {
            Some((fence, entries, packs, frames, filter)) if filter.end == all.len() => {
                let filter =
                    Filter::open(&all[filter]).ok_or(TableError("its filter is out of bounds"))?;
                Ok(Self {
                    bytes,
                    fence_bits,
                    fence,
                    entries,
                    packs,
                    frames,
                    filter,
                })
            }
            _ => Err(TableError("its length is wrong")),
        }
    }

    /// Reads the whole table and compares it with its checksum.
    ///
    /// # Errors
    /// [`TableError`] if the checksum does not match.
    pub fn verify(&self) -> Result<(), TableError> {
        let all = self.bytes.as_ref();
        if all[CHECKSUM] == checksum(all) {
            Ok(())
        } else {
            Err(TableError("its checksum is wrong"))
        }
    }

    /// Returns the number of entries: one for each blob in each pack.
    pub fn entry_count(&self) -> usize {
        self.entries.len() / ENTRY_LEN
    }

    /// Returns the number of packs.
    pub fn pack_count(&self) -> usize {
        self.packs.len() / PACK_LEN
    }

    /// Returns the packs in the order of their names, which is the order of their numbers.
    pub fn packs(&self) -> impl Iterator<Item = (PackNumber, PackEntry)> + '_ {
        (0..self.pack_count() as u32).filter_map(|number| {
            let number = PackNumber(number);
            Some((number, self.pack(number)?))
        })
    }

    /// Returns all entries in the order of prefixes.
    pub fn entries(&self) -> impl Iterator<Item = (Prefix, Location)> + '_ {
        self.part(&self.entries)
            .chunks_exact(ENTRY_LEN)
            .map(|entry| (prefix_at(entry), location_at(entry)))
    }

    /// Returns the pack with this number. `None` if there is none, or if its class is unknown.
    pub fn pack(&self, number: PackNumber) -> Option<PackEntry> {
        let pack = self.pack_bytes(number)?;
        let (name, rest) = pack.split_first_chunk()?;
        let (header, rest) = rest.split_first_chunk()?;
        Some(PackEntry {
            name: PackName::from_bytes(*name),
            class: Class::from_number(rest[16])?,
            length: u64_at(rest, 0),
            header: *header,
        })
    }

    /// Returns the position of a frame of a pack. `None` if there is none.
    pub fn frame(&self, number: PackNumber, frame: u16) -> Option<FrameLocation> {
        let first = self.first_frame(number)?;
        let end = match self.first_frame(PackNumber(number.0.checked_add(1)?)) {
            Some(next) => next,
            None => (self.frames.len() / FRAME_LEN) as u64,
        };
        let index = first.checked_add(u64::from(frame))?;
        if index >= end {
            return None;
        }
        let start = usize::try_from(index).ok()?.checked_mul(FRAME_LEN)?;
        let bytes = self
            .part(&self.frames)
            .get(start..start.checked_add(FRAME_LEN)?)?;
        Some(FrameLocation {
            offset: u32_at(bytes, 0),
            stored_length: u32_at(bytes, 4),
            raw_length: u32_at(bytes, 8),
        })
    }

    /// Returns all positions of the blob with this prefix: none if no pack of this table holds it.
    pub fn find(&self, prefix: &Prefix) -> impl Iterator<Item = Location> + '_ {
        let stretch = if self.filter.lets_through(prefix) {
            self.stretch(prefix)
        } else {
            &[]
        };
        let count = stretch.len() / ENTRY_LEN;
        // Binary search for the first entry whose prefix is not less than `prefix`.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if prefix_at(&stretch[middle * ENTRY_LEN..]) < *prefix {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let prefix = *prefix;
        stretch[low * ENTRY_LEN..]
            .chunks_exact(ENTRY_LEN)
            .take_while(move |entry| prefix_at(entry) == prefix)
            .map(location_at)
    }

    /// Returns true if a pack of this table holds a blob with this prefix.
    pub fn contains(&self, prefix: &Prefix) -> bool {
        self.find(prefix).next().is_some()
    }

    /// Returns the entries between the two numbers of the fence that enclose a prefix.
    fn stretch(&self, prefix: &Prefix) -> &[u8] {
        let fence = self.part(&self.fence);
        let index = fence_index(prefix, self.fence_bits) * 8;
        let bound = |index| usize::try_from(u64_at(fence, index)).unwrap_or(usize::MAX);
        let (start, end) = (bound(index), bound(index + 8));
        let bytes = start
            .checked_mul(ENTRY_LEN)
            .zip(end.checked_mul(ENTRY_LEN))
            .and_then(|(start, end)| self.part(&self.entries).get(start..end));
        bytes.unwrap_or_default()
    }

    fn pack_bytes(&self, number: PackNumber) -> Option<&[u8]> {
        let start = (number.0 as usize).checked_mul(PACK_LEN)?;
        self.part(&self.packs)
            .get(start..start.checked_add(PACK_LEN)?)
    }

    fn first_frame(&self, number: PackNumber) -> Option<u64> {
        let pack = self.pack_bytes(number)?;
        Some(u64_at(pack, PackName::LEN + HEADER_LEN + 8))
    }

    fn part(&self, range: &Range<usize>) -> &[u8] {
        // `open` has checked that the ranges are within the bytes. A shorter slice would mean that
        // the bytes have changed.
        self.bytes.as_ref().get(range.clone()).unwrap_or_default()
    }
}

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

    /// Returns the bytes of the table.
    ///
    /// # Panics
    /// If there are 2^32 packs or more.
    pub fn finish(mut self) -> Vec<u8> {
        self.packs.sort_by_key(|record| record.name);
        self.packs.dedup_by_key(|record| record.name);
        let pack_count = u32::try_from(self.packs.len()).expect("memory holds fewer packs");
        let count = |of: fn(&PackRecord) -> usize| self.packs.iter().map(of).sum::<usize>();
        let blobs = count(|record| record.footer.blob_count());
        let frames = count(|record| record.footer.frame_count());
        let mut entries = Vec::with_capacity(blobs);
        for (number, record) in self.packs.iter().enumerate() {
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
        let fence_bits = fence_bits(blobs as u64);
        let fence_len = ((1 << fence_bits) + 1) * 8;
        let packs_len = self.packs.len() * PACK_LEN;
        let length = HEAD_LEN + fence_len + blobs * ENTRY_LEN + packs_len + frames * FRAME_LEN;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&fence_bits.to_le_bytes());
        bytes.extend_from_slice(&(blobs as u64).to_le_bytes());
        bytes.extend_from_slice(&pack_count.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&(frames as u64).to_le_bytes());
        bytes.resize(HEAD_LEN, 0);
        put_fence(&entries, fence_bits, &mut bytes);
        for (prefix, location) in &entries {
            bytes.extend_from_slice(&prefix.0);
            bytes.extend_from_slice(&location.pack.0.to_le_bytes());
            bytes.extend_from_slice(&location.frame.to_le_bytes());
            bytes.extend_from_slice(&location.slot.to_le_bytes());
        }
        put_packs(&self.packs, &mut bytes);
        put_filter(entries, &mut bytes);
        let checksum = checksum(&bytes);
        bytes[CHECKSUM].copy_from_slice(&checksum);
        bytes
    }
}

fn put_fence(entries: &[(Prefix, Location)], bits: u32, bytes: &mut Vec<u8>) {
    let mut entries = entries.iter().peekable();
    let mut before = 0u64;
    for index in 0..=1usize << bits {
        while entries
            .next_if(|(prefix, _)| fence_index(prefix, bits) < index)
            .is_some()
        {
            before += 1;
        }
        bytes.extend_from_slice(&before.to_le_bytes());
    }
}

fn put_packs(packs: &[PackRecord], bytes: &mut Vec<u8>) {
    let mut first_frame = 0u64;
    for record in packs {
        bytes.extend_from_slice(&record.name.to_bytes());
        bytes.extend_from_slice(&record.header);
        bytes.extend_from_slice(&record.length.to_le_bytes());
        bytes.extend_from_slice(&first_frame.to_le_bytes());
        bytes.push(record.class as u8);
        bytes.extend_from_slice(&[0; 7]);
        first_frame += record.footer.frame_count() as u64;
    }
    for frame in packs.iter().flat_map(|record| record.footer.frames()) {
        bytes.extend_from_slice(&frame.offset.to_le_bytes());
        bytes.extend_from_slice(&frame.stored_length.to_le_bytes());
        bytes.extend_from_slice(&frame.raw_length.to_le_bytes());
    }
}

/// Appends the filter, and writes its length into the head. A filter whose length does not fit into
/// 32 bits is left out.
fn put_filter(entries: Vec<(Prefix, Location)>, bytes: &mut Vec<u8>) {
    let filter = Filter::bytes_of(entries.into_iter().map(|(prefix, _)| prefix));
    if let Ok(length) = u32::try_from(filter.len()) {
        bytes[FILTER_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&filter);
    }
}

/// Returns how many leading bits of a prefix the fence distinguishes, for this number of entries.
fn fence_bits(entries: u64) -> u32 {
    (entries / ENTRIES_PER_FENCE)
        .checked_ilog2()
        .unwrap_or(0)
        .min(FENCE_BITS_MAX)
}

/// Returns the first `bits` bits of a prefix as a number.
fn fence_index(prefix: &Prefix, bits: u32) -> usize {
    let mut head = [0; 8];
    head.copy_from_slice(&prefix.0[..8]);
    // With no bits the shift would be by all 64 bits, which overflows.
    u64::from_be_bytes(head).checked_shr(64 - bits).unwrap_or(0) as usize
}

/// Returns the checksum over all bytes but the checksum itself.
fn checksum(all: &[u8]) -> [u8; 24] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&all[..CHECKSUM.start]);
    hasher.update(&all[CHECKSUM.end..]);
    let mut sum = [0; 24];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

fn prefix_at(entry: &[u8]) -> Prefix {
    let mut prefix = [0; Prefix::LEN];
    prefix.copy_from_slice(&entry[..Prefix::LEN]);
    Prefix(prefix)
}

fn location_at(entry: &[u8]) -> Location {
    Location {
        pack: PackNumber(u32_at(entry, 16)),
        frame: u16::from_le_bytes([entry[20], entry[21]]),
        slot: u16::from_le_bytes([entry[22], entry[23]]),
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(number)
}
