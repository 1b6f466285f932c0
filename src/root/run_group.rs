//! A group of runs, as the root states it: plain data, and how a group is cut into slices.
//!
//! Owns the encoding of a group, and what makes its runs whole. Knows no root:
//! [`super::run_groups`] has the changes of groups.

use super::shard::ListRef;
use bkfs_chunker::catalog::{RunRef, name_bytes};
use bkfs_chunker::crypto::Class;
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;
use minicbor::{Decode, Encode};
use std::ops::RangeInclusive;

/// The largest number of slices of a group. As many runs of 128 MiB hold about 2·10⁹ records.
pub const SLICES_MAX: u16 = 512;

/// The classes of packs that have runs.
pub const RUN_CLASSES: [Class; 2] = [Class::DataPack, Class::MetadataPack];

/// The name of an index object.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct IndexName(#[cbor(n(0), with = "name_bytes")] pub PackName);

/// A group of runs, as the root states it.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct RunGroup {
    /// The generation of the root that began the group. It names the group.
    #[n(0)]
    pub begun: u64,
    /// The index objects whose records the runs have.
    #[n(1)]
    pub covers: Vec<IndexName>,
    /// The runs so far.
    #[n(2)]
    pub runs: Vec<RunRef>,
    /// Packs that the runs may name, and that none of these index objects names any more.
    #[n(3)]
    pub dropped: Option<ListRef>,
    /// How the group is built. Absent once it is complete.
    #[n(4)]
    pub building: Option<Building>,
}

/// What is left to do until a group is complete.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Building {
    /// The number of slices of all prefixes. The group gets a run of each class for each slice.
    #[n(0)]
    pub slices: u16,
    /// The groups that it is merged from, which it replaces. Empty if it is made of index objects.
    #[n(1)]
    pub from: Vec<u64>,
}

/// A slice of all prefixes, for one class of packs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Slice {
    /// The class.
    pub class: Class,
    /// The prefixes.
    pub prefixes: RangeInclusive<Prefix>,
}

/// Returns the prefixes of slice `number` of `slices`.
pub fn prefixes_of(number: u16, slices: u16) -> RangeInclusive<Prefix> {
    let begin = |number: u16| (u128::from(number) << 64) / u128::from(slices.max(1));
    let prefix = |head: u64, rest: u8| {
        let mut bytes = [rest; Prefix::LEN];
        bytes[..8].copy_from_slice(&head.to_be_bytes());
        Prefix(bytes)
    };
    let last = (begin(number + 1) - 1) as u64;
    prefix(begin(number) as u64, 0)..=prefix(last, 0xff)
}

impl RunGroup {
    /// Returns true if the group answers for the index objects that it covers.
    pub fn is_complete(&self) -> bool {
        self.building.is_none()
    }

    /// Returns the number of records of all runs.
    pub fn records(&self) -> u64 {
        self.runs.iter().map(|run| run.records).sum()
    }

    /// Returns the slices that have no run yet.
    pub fn missing(&self) -> Vec<Slice> {
        let slices = self.building.as_ref().map_or(0, |building| building.slices);
        let of_class = |class: Class| {
            let slices = (0..slices).map(move |number| Slice {
                class,
                prefixes: prefixes_of(number, slices),
            });
            slices.filter(|slice| !self.has(slice))
        };
        RUN_CLASSES.into_iter().flat_map(of_class).collect()
    }

    pub(super) fn has(&self, slice: &Slice) -> bool {
        let mut runs = self.runs.iter();
        runs.any(|run| run.class == slice.class && run.prefixes() == slice.prefixes)
    }

    /// Returns true if the runs have no gap and do not overlap: those of a complete group have all
    /// prefixes.
    pub(super) fn is_sound(&self) -> bool {
        let is_bounded = match &self.building {
            Some(building) => (1..=SLICES_MAX).contains(&building.slices),
            None => true,
        };
        is_bounded
            && !self.covers.is_empty()
            && RUN_CLASSES.iter().all(|class| {
                let mut runs: Vec<_> = self.runs.iter().filter(|run| run.class == *class).collect();
                runs.sort_by_key(|run| run.first);
                let overlap = |pair: &[&RunRef]| pair[0].last >= pair[1].first;
                let joins = |pair: &[&RunRef]| next_of(pair[0].last) == Some(pair[1].first);
                let ends = runs.first().map(|run| run.first) == Some(Prefix([0; Prefix::LEN]))
                    && runs.last().map(|run| run.last) == Some(Prefix([0xff; Prefix::LEN]));
                runs.iter().all(|run| run.first <= run.last)
                    && match self.is_complete() {
                        true => ends && runs.windows(2).all(joins),
                        false => !runs.windows(2).any(overlap),
                    }
            })
    }

    pub(super) fn covers(&self, name: &PackName) -> bool {
        self.covers.iter().any(|covered| covered.0 == *name)
    }
}

/// Returns the prefix after this one.
fn next_of(prefix: Prefix) -> Option<Prefix> {
    let next = u128::from_be_bytes(prefix.0).checked_add(1)?;
    Some(Prefix(next.to_be_bytes()))
}
