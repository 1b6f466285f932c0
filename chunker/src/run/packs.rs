//! The packs of a run: their names by number, and what is needed to read a pack whose footer is
//! damaged.
//!
//! Owns the decoded forms. A box of names is up to 4,096 names of 16 bytes, in order. A box of pack
//! records is one record after the other: `name 16 ‖ class u8 ‖ bytes in the bucket u64 ‖ header 128 ‖
//! frame count u32 ‖ stored length of each frame u32…`.
//!
//! Every run has the names of all packs that its records name. The record of a pack is in one run of
//! a level only: the one whose range has the pack's *place*, a hash of its name.

use super::{RunDamage, take, take_u32, take_u64};
use crate::crypto::{Class, HEADER_LEN};
use crate::id::Prefix;
use crate::index::PackRecord;
use crate::pack::{PACK_BYTES_MAX, PACK_FRAMES_MAX, PackName};

/// Number of names in one box.
pub(super) const NAMES_PER_BOX: usize = 4096;

/// The names of up to 4,096 packs with adjacent numbers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Names(Vec<PackName>);

impl Names {
    pub(super) fn encode(names: &[PackName]) -> Vec<u8> {
        names.iter().flat_map(|name| name.to_bytes()).collect()
    }

    /// Parses the decoded form.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(raw: &[u8]) -> Result<Self, RunDamage> {
        let (names, []) = raw.as_chunks::<{ PackName::LEN }>() else {
            return Err(super::SHORT);
        };
        let names: Vec<PackName> = names
            .iter()
            .map(|name| PackName::from_bytes(*name))
            .collect();
        match names.is_sorted_by(|one, other| one < other) && names.len() <= NAMES_PER_BOX {
            true => Ok(Self(names)),
            false => Err(RunDamage::Inconsistent("the names are not in order")),
        }
    }

    /// Returns the names, in order.
    pub fn names(&self) -> &[PackName] {
        &self.0
    }
}

/// What a run keeps of a pack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackFrames {
    /// The pack's name.
    pub name: PackName,
    /// Data or metadata pack.
    pub class: Class,
    /// The length of the pack in the bucket, in bytes.
    pub length: u64,
    /// The first bytes of the pack.
    pub header: [u8; HEADER_LEN],
    /// The stored lengths of its frames, in bytes.
    pub frames: Vec<u32>,
}

impl From<&PackRecord> for PackFrames {
    fn from(pack: &PackRecord) -> Self {
        let frames = pack.footer.frames();
        Self {
            name: pack.name,
            class: pack.class,
            length: pack.length,
            header: pack.header,
            frames: frames.map(|frame| frame.stored_length).collect(),
        }
    }
}

impl PackFrames {
    /// Returns the place among the prefixes where a pack's record is: the first 16 bytes of BLAKE3
    /// of its name.
    pub fn place_of(name: &PackName) -> Prefix {
        let mut place = [0; Prefix::LEN];
        place.copy_from_slice(&blake3::hash(&name.to_bytes()).as_bytes()[..Prefix::LEN]);
        Prefix(place)
    }

    pub(super) fn append_to(&self, raw: &mut Vec<u8>) {
        raw.extend_from_slice(&self.name.to_bytes());
        raw.push(self.class as u8);
        raw.extend_from_slice(&self.length.to_le_bytes());
        raw.extend_from_slice(&self.header);
        raw.extend_from_slice(&(self.frames.len() as u32).to_le_bytes());
        raw.extend(self.frames.iter().flat_map(|length| length.to_le_bytes()));
    }

    fn take(rest: &mut &[u8]) -> Result<Self, RunDamage> {
        let name = PackName::from_bytes(take(rest)?);
        let [class] = take(rest)?;
        let class = Class::from_number(class)
            .filter(|class| matches!(class, Class::DataPack | Class::MetadataPack))
            .ok_or(RunDamage::Inconsistent("a pack of a wrong class"))?;
        let length = take_u64(rest)?;
        let header = take(rest)?;
        let count = take_u32(rest)? as usize;
        if count > PACK_FRAMES_MAX {
            return Err(RunDamage::Inconsistent("a pack of too many frames"));
        }
        let frames = rest.split_at_checked(count * 4).ok_or(super::SHORT)?;
        *rest = frames.1;
        let (frames, _) = frames.0.as_chunks::<4>();
        let frames: Vec<u32> = frames
            .iter()
            .map(|length| u32::from_le_bytes(*length))
            .collect();
        let stored: u64 = frames.iter().map(|length| u64::from(*length)).sum();
        if length > PACK_BYTES_MAX || HEADER_LEN as u64 + stored > length {
            return Err(RunDamage::Inconsistent("a pack of a wrong length"));
        }
        Ok(Self {
            name,
            class,
            length,
            header,
            frames,
        })
    }
}

/// The pack records of one box, in the order of their places.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackFramesList(Vec<PackFrames>);

impl PackFramesList {
    /// Parses the decoded form.
    ///
    /// # Errors
    /// [`RunDamage::Inconsistent`].
    pub fn decode(raw: &[u8]) -> Result<Self, RunDamage> {
        let mut rest = raw;
        let mut packs: Vec<PackFrames> = Vec::new();
        while !rest.is_empty() {
            packs.push(PackFrames::take(&mut rest)?);
        }
        let places = packs.iter().map(|pack| PackFrames::place_of(&pack.name));
        match places.is_sorted_by(|one, other| one < other) {
            true => Ok(Self(packs)),
            false => Err(RunDamage::Inconsistent("the pack records are not in order")),
        }
    }

    /// Returns the records, in the order of their places.
    pub fn packs(&self) -> &[PackFrames] {
        &self.0
    }

    /// Returns the record of a pack, if it is here.
    pub fn find(&self, name: &PackName) -> Option<&PackFrames> {
        self.0.iter().find(|pack| pack.name == *name)
    }
}
