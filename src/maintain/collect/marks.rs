//! The needed blobs of packs: two bits for each blob.
//!
//! Owns the compact set that marking fills, keyed by pack and place, so that no id is kept. Pure.
//! Marks only grow: what one root needed stays marked, so a conflict with another session adds
//! marks and never starts them over.
//!
//! Memory: 2 bits for each blob, 4 bytes for each frame, about 120 bytes for each pack: 80 MB for
//! 100 million chunks of 16 KiB.

use std::collections::{BTreeMap, BTreeSet};

use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::PackContents;

/// A row of bits.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn of(count: u32) -> Self {
        Self(vec![0; (count as usize).div_ceil(64)])
    }

    fn get(&self, position: u32) -> bool {
        let word = self.0.get(position as usize / 64).copied().unwrap_or(0);
        word >> (position % 64) & 1 == 1
    }

    /// Sets a bit. Returns true if it was not set before.
    fn set(&mut self, position: u32) -> bool {
        let Some(word) = self.0.get_mut(position as usize / 64) else {
            return false;
        };
        let bit = 1 << (position % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// The marks of one pack.
#[derive(Clone, Debug)]
pub struct PackMarks {
    /// Whether it is a data pack or a metadata pack.
    pub class: Class,
    /// Its length in the bucket, in bytes.
    pub bytes: u64,
    /// Number of its blobs.
    pub blobs: u32,
    /// Number of its blobs that are needed.
    pub reached: u32,
    /// A part of it is known to be damaged.
    pub is_damaged: bool,
    /// The position of the first blob of each frame.
    starts: Box<[u32]>,
    needed: Bits,
    followed: Bits,
}

impl PackMarks {
    fn new(pack: &PackContents) -> Self {
        let mut starts = vec![0; pack.frame_count() + 1];
        for blob in pack.blobs() {
            starts[usize::from(blob.frame) + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let followed = match pack.class() {
            Class::MetadataPack => Bits::of(sum),
            _ => Bits::default(),
        };
        Self {
            class: pack.class(),
            bytes: pack.bytes(),
            blobs: sum,
            reached: 0,
            is_damaged: false,
            starts: starts.into(),
            needed: Bits::of(sum),
            followed,
        }
    }

    fn position(&self, frame: u16, slot: u16) -> Option<u32> {
        let start = self.starts.get(usize::from(frame))?;
        let end = self.starts.get(usize::from(frame) + 1)?;
        start
            .checked_add(u32::from(slot))
            .filter(|position| position < end)
    }

    /// Returns true if the blob `slot` of `frame` is needed.
    pub fn needs(&self, frame: u16, slot: u16) -> bool {
        self.position(frame, slot)
            .is_some_and(|position| self.needed.get(position))
    }

    /// Returns about how many of its bytes are needed, by the share of its blobs.
    pub fn needed_bytes(&self) -> u64 {
        match self.blobs {
            0 => 0,
            blobs => (u128::from(self.bytes) * u128::from(self.reached) / u128::from(blobs)) as u64,
        }
    }
}

/// The marks of all known packs.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    packs: BTreeMap<PackName, PackMarks>,
    /// Metadata packs with needed blobs whose references were not followed.
    open: BTreeSet<PackName>,
}

impl Marks {
    /// Records that a part of a pack is in quarantine. An unknown pack is ignored.
    pub fn note_damage(&mut self, pack: &PackName) {
        if let Some(pack) = self.packs.get_mut(pack) {
            pack.is_damaged = true;
        }
    }

    /// Adds a pack, unless it is known.
    pub fn know(&mut self, pack: &PackContents) {
        self.packs
            .entry(pack.name())
            .or_insert_with(|| PackMarks::new(pack));
    }

    /// Returns the marks of a pack.
    pub fn pack(&self, name: &PackName) -> Option<&PackMarks> {
        self.packs.get(name)
    }

    /// Returns all known packs.
    pub fn packs(&self) -> impl Iterator<Item = (&PackName, &PackMarks)> {
        self.packs.iter()
    }

    /// Marks a blob as needed. Returns false if there is no such place.
    pub fn need(&mut self, pack: PackName, frame: u16, slot: u16) -> bool {
        let mut is_there = false;
        let blob = std::iter::once(((), frame, slot));
        self.need_in(pack, blob, &mut |(), found| is_there = found);
        is_there
    }

    /// Marks blobs of one pack as needed, each by its frame and slot, and passes to `each` whether
    /// there is such a place.
    pub fn need_in<T>(
        &mut self,
        pack: PackName,
        blobs: impl Iterator<Item = (T, u16, u16)>,
        each: &mut dyn FnMut(T, bool),
    ) {
        let mut marks = self.packs.get_mut(&pack);
        for (blob, frame, slot) in blobs {
            let position = marks.as_ref().and_then(|marks| marks.position(frame, slot));
            let (Some(marks), Some(position)) = (marks.as_deref_mut(), position) else {
                each(blob, false);
                continue;
            };
            if marks.needed.set(position) {
                marks.reached += 1;
                if marks.class == Class::MetadataPack {
                    self.open.insert(pack);
                }
            }
            each(blob, true);
        }
    }

    /// Marks all blobs of a pack as needed. The pack stays as it is, so everything that its objects
    /// refer to, reachable or not, stays too (rule 3).
    pub fn need_all(&mut self, pack: PackName) {
        let Some(marks) = self.packs.get_mut(&pack) else {
            return;
        };
        for position in 0..marks.blobs {
            if marks.needed.set(position) {
                marks.reached += 1;
                // Chunks refer to nothing.
                if marks.class == Class::MetadataPack {
                    self.open.insert(pack);
                }
            }
        }
    }

    /// Returns a metadata pack whose references have to be followed. It stays the next one until
    /// [`Self::close`] removes it, so that a caller that fails half-way begins with it again.
    ///
    /// Of the packs of one session it is the one that was written last: objects refer to what was
    /// written before them, as a rule.
    pub fn next_open(&self) -> Option<PackName> {
        self.open().next()
    }

    /// Returns all metadata packs whose references have to be followed, the [next
    /// one](Self::next_open) first.
    pub fn open(&self) -> impl Iterator<Item = PackName> {
        self.open.iter().rev().copied()
    }

    /// Returns true if a blob is needed and its references have not been followed.
    pub fn is_due(&self, pack: PackName, frame: u16, slot: u16) -> bool {
        let Some(marks) = self.packs.get(&pack) else {
            return false;
        };
        let due = |position| marks.needed.get(position) && !marks.followed.get(position);
        marks.position(frame, slot).is_some_and(due)
    }

    /// Records that everything that a needed blob refers to is marked.
    pub fn followed(&mut self, pack: PackName, frame: u16, slot: u16) {
        if let Some(marks) = self.packs.get_mut(&pack)
            && let Some(position) = marks.position(frame, slot)
        {
            marks.followed.set(position);
        }
    }

    /// Removes a pack from the open ones if all of its needed blobs were followed. Returns true if
    /// so.
    pub fn close(&mut self, pack: PackName) -> bool {
        let is_followed = self.is_followed(&pack);
        if is_followed {
            self.open.remove(&pack);
        }
        is_followed
    }

    /// Removes a pack from the open ones although some of its needed blobs cannot be followed.
    pub fn leave(&mut self, pack: PackName) {
        self.open.remove(&pack);
    }

    /// Returns true if all needed blobs of a metadata pack were followed.
    fn is_followed(&self, pack: &PackName) -> bool {
        self.packs
            .get(pack)
            .is_none_or(|marks| marks.needed == marks.followed)
    }
}
