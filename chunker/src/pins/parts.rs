//! Frames that are or will be pinned: pure.
//!
//! Owns the choice of a copy of each blob, and how much the frames are: their stored bytes, and the
//! blocks of the disk that they take.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::catalog::Candidate;
use crate::id::Prefix;
use crate::index::{FrameLocation, PackEntry, PartialEntry, PartialPack};
use crate::pack::PackName;

/// The unit in which file systems allocate, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Entries after which repeated ones are dropped for the first time.
const ENTRIES_AT_FIRST: usize = 1 << 16;

/// Packs, with those of their frames that are pinned.
pub(crate) type Packs = BTreeMap<PackName, PartialPack>;

/// Blobs and the frames that hold them.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) packs: Packs,
    /// Sorted up to some point, and repeated after it.
    entries: Vec<PartialEntry>,
    sorted: usize,
}

impl Parts {
    /// Returns true if the frame of a candidate is among the parts.
    pub(crate) fn has(&self, candidate: &Candidate) -> bool {
        let (name, number) = candidate.location.key();
        let pack = self.packs.get(&name);
        pack.is_some_and(|pack| pack.frames.contains_key(&number))
    }

    /// Adds a blob and its frame.
    pub(crate) fn add(&mut self, prefix: Prefix, candidate: &Candidate) {
        let location = &candidate.location;
        let (name, number) = location.key();
        let pack = self.packs.entry(name).or_insert_with(|| PartialPack {
            pack: PackEntry {
                name,
                class: location.class,
                length: 0,
                header: candidate.header,
            },
            frames: BTreeMap::new(),
        });
        pack.pack.length = pack.pack.length.max(location.range().end);
        pack.frames.entry(number).or_insert(FrameLocation {
            offset: location.offset as u32,
            stored_length: location.length,
            raw_length: location.raw_length,
        });
        self.entries.push(PartialEntry {
            prefix,
            pack: name,
            frame: number,
            slot: location.slot,
        });
        if self.entries.len() >= ENTRIES_AT_FIRST.max(2 * self.sorted) {
            self.settle();
        }
    }

    /// Sorts the entries, and drops repeated ones.
    pub(crate) fn settle(&mut self) {
        self.entries.sort_unstable();
        self.entries.dedup();
        self.sorted = self.entries.len();
    }

    /// Returns the entries: after [`Parts::settle`] sorted, and each once.
    pub(crate) fn entries(&self) -> &[PartialEntry] {
        &self.entries
    }

    /// Returns the number of frames.
    pub(crate) fn frames(&self) -> u64 {
        let frames = self.packs.values().map(|pack| pack.frames.len() as u64);
        frames.sum()
    }

    /// Returns the length of the frames, in bytes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let frames = self.packs.values().flat_map(|pack| pack.frames.values());
        frames.map(|frame| u64::from(frame.stored_length)).sum()
    }
}

/// Returns the bytes of the pack that a frame occupies.
pub(crate) fn range_of(frame: &FrameLocation) -> Range<u64> {
    let start = u64::from(frame.offset);
    start..start + u64::from(frame.stored_length)
}

/// Adds the frames of `more` to `packs`.
pub(crate) fn unite(packs: &mut Packs, more: &Packs) {
    for (name, pack) in more {
        match packs.get_mut(name) {
            Some(known) => known.frames.extend(&pack.frames),
            None => drop(packs.insert(*name, pack.clone())),
        }
    }
}

/// Returns what the frames take on disk, in bytes of whole blocks.
pub(crate) fn disk_bytes(packs: &Packs) -> u64 {
    let blocks = packs.values().map(|pack| {
        let ranges = pack.frames.values().map(range_of).collect();
        blocks_of(ranges)
            .iter()
            .map(|blocks| blocks.end - blocks.start)
            .sum::<u64>()
    });
    blocks.sum::<u64>() * BLOCK_BYTES
}

/// Returns the blocks that ranges of a file lie in, in order and without overlap.
fn blocks_of(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        match all.last_mut() {
            Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
            _ => all.push(blocks),
        }
    }
    all
}

/// Returns the ranges of one pack's file, in bytes of whole blocks, that hold frames of `gone` and
/// none of `kept`.
pub(crate) fn freed(gone: &PartialPack, kept: &PartialPack) -> Vec<Range<u64>> {
    let blocks = |pack: &PartialPack| blocks_of(pack.frames.values().map(range_of).collect());
    let kept = blocks(kept);
    let mut free = Vec::new();
    for blocks in blocks(gone) {
        let mut at = blocks.start;
        let first = kept.partition_point(|kept| kept.end <= at);
        for kept in &kept[first..] {
            if kept.start >= blocks.end {
                break;
            }
            if at < kept.start {
                free.push(at * BLOCK_BYTES..kept.start * BLOCK_BYTES);
            }
            at = at.max(kept.end);
        }
        if at < blocks.end {
            free.push(at * BLOCK_BYTES..blocks.end * BLOCK_BYTES);
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{Class, HEADER_LEN};

    fn pack(frames: &[(u16, u32, u32)]) -> PartialPack {
        let frames = frames.iter().map(|(number, offset, length)| {
            let location = FrameLocation {
                offset: *offset,
                stored_length: *length,
                raw_length: *length,
            };
            (*number, location)
        });
        PartialPack {
            pack: PackEntry {
                name: PackName::from_bytes([1; 16]),
                class: Class::DataPack,
                length: 0,
                header: [0; HEADER_LEN],
            },
            frames: frames.collect(),
        }
    }

    #[test]
    fn the_disk_has_whole_blocks_of_which_frames_share_some() {
        let bytes = |frames: &[(u16, u32, u32)]| {
            let pack = pack(frames);
            disk_bytes(&Packs::from([(pack.pack.name, pack)]))
        };
        assert_eq!(bytes(&[]), 0);
        assert_eq!(bytes(&[(0, 128, 10)]), 4096);
        assert_eq!(bytes(&[(0, 128, 10), (1, 138, 10)]), 4096);
        assert_eq!(bytes(&[(0, 4095, 2)]), 8192);
        assert_eq!(
            bytes(&[(0, 4095, 2), (1, 4097, 4095), (9, 40960, 4096)]),
            12288
        );
    }

    #[test]
    fn what_is_freed_is_in_no_block_that_stays() {
        let gone = pack(&[(0, 100, 3000), (1, 3100, 9000), (5, 40960, 100)]);
        assert_eq!(freed(&gone, &pack(&[])), [0..12288, 40960..45056]);
        assert_eq!(
            freed(&gone, &pack(&[(2, 12100, 5000)])),
            [0..8192, 40960..45056]
        );
        assert_eq!(
            freed(&gone, &pack(&[(0, 100, 3000)])),
            [4096..12288, 40960..45056]
        );
        assert_eq!(
            freed(&gone, &pack(&[(7, 5000, 10), (8, 40000, 2000)])),
            [0..4096, 8192..12288]
        );
    }

    #[test]
    fn united_packs_have_the_frames_of_both() {
        let (one, two) = (pack(&[(0, 128, 10)]), pack(&[(0, 128, 10), (3, 8192, 10)]));
        let name = one.pack.name;
        let mut packs = Packs::from([(name, one)]);
        unite(&mut packs, &Packs::from([(name, two)]));
        assert_eq!(disk_bytes(&packs), 8192);
    }
}
