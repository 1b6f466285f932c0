//! The chain of a root: the first 8 bytes of the nonce of each generation that the root descends
//! from.
//!
//! Owns the identity of a root ([`RootMark`]), the encoding of the chain, how it grows, how it is
//! kept short, and whether it holds a given root. Pure: the older parts of the chain lie in list
//! objects, which [`super::ancestry`] reads and writes.
//!
//! A generation alone does not identify a root: a bucket that was rolled back grows past every
//! generation that a machine remembers. A root enters the chain when another root is made on top of
//! it, so an attempt that the store never accepted is in no chain.

use super::shard::{ListEntry, ListRef};
use minicbor::{Decode, Encode};

/// The largest number of nonces in the root itself, where there is room. With more, all but the
/// newest half of this number go into a list.
pub const OWN_MAX: usize = 1024;

/// The number of nonces that stay in the root itself when the root has no room for more.
pub const OWN_LEAST: usize = 64;

/// The number of nonces in the root above which the oldest are given up if no list can be written.
pub const OWN_LIMIT: usize = 2 * OWN_MAX;

/// The largest number of nonces in one list. A short list is written again together with the nonces
/// that follow it.
pub const PART_MAX: u32 = 1 << 17;

/// The first eight bytes of a nonce.
pub type Short = [u8; 8];

/// The identity of one root among all that were ever written or attempted.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RootMark {
    /// Its generation.
    pub generation: u64,
    /// Its random nonce.
    pub nonce: [u8; 16],
}

/// A nonce in a list.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(transparent)]
pub struct NonceEntry(#[cbor(n(0), with = "minicbor::bytes")] pub Short);
impl ListEntry for NonceEntry {}

/// The generations that a root descends from.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Chain {
    /// The generation of the first entry in `nonces`.
    #[n(0)]
    pub first: u64,
    /// Eight bytes for each generation from `first` to the one before the root's own.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub nonces: Vec<u8>,
    /// Lists of the generations before `first`, oldest first and without a gap.
    #[n(2)]
    pub older: Vec<OlderPart>,
    /// The highest generation that was known when an earlier chain was lost. Absent: the chain
    /// reaches back to the root in which the repository got it.
    #[n(3)]
    pub lost: Option<u64>,
}

/// A part of a chain in a list of [`NonceEntry`].
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct OlderPart {
    /// The generation of its first entry.
    #[n(0)]
    pub first: u64,
    /// The list object that holds the entries.
    #[n(1)]
    pub list: ListRef,
}

impl OlderPart {
    /// Returns the generation after its last one (exclusive end).
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.list.count))
    }
}

/// The violation of the invariant of a chain.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("its chain of generations has a gap")]
pub struct ChainGap;

/// Evidence of a chain about a root that was seen before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Descent {
    /// That root is an ancestor, or it is older than the chain of the repository and nothing
    /// contradicts it.
    Holds,
    /// Another root is in its place.
    Denied,
    /// The part of the chain that would show it was lost.
    Lost,
    /// The entry with this index (from 0) in this part decides.
    In(OlderPart, usize),
}

/// Returns the first eight bytes of a nonce.
pub fn short(nonce: &[u8; 16]) -> Short {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&nonce[..8]);
    bytes
}

impl Chain {
    /// Returns the chain of a root of `generation` without any known ancestor.
    pub fn new(generation: u64, lost: Option<u64>) -> Self {
        Self {
            first: generation,
            nonces: Vec::new(),
            older: Vec::new(),
            lost,
        }
    }

    /// Returns the number of nonces in the root itself.
    pub fn len(&self) -> usize {
        self.nonces.len() / size_of::<Short>()
    }

    /// Returns whether the root itself holds no nonce.
    pub fn is_empty(&self) -> bool {
        self.nonces.is_empty()
    }

    /// Appends the root `mark`, on top of which another root is made.
    pub fn enter(&mut self, mark: RootMark) {
        self.nonces.extend_from_slice(&short(&mark.nonce));
    }

    /// Returns what the chain shows about `mark`, a root of a lower generation than the chain's
    /// own.
    pub fn descent(&self, mark: RootMark) -> Descent {
        let place = |first: u64| usize::try_from(mark.generation - first).unwrap_or(usize::MAX);
        if mark.generation >= self.first {
            let mut own = self.nonces.chunks_exact(size_of::<Short>());
            return match own.nth(place(self.first)) {
                Some(nonce) if nonce == short(&mark.nonce) => Descent::Holds,
                _ => Descent::Denied,
            };
        }
        let part = self
            .older
            .iter()
            .find(|part| (part.first..part.end()).contains(&mark.generation));
        match part {
            Some(part) => Descent::In(*part, place(part.first)),
            None if self.lost.is_some() => Descent::Lost,
            None => Descent::Holds,
        }
    }

    /// Returns the nonces in the root except the newest `keep`, oldest first.
    pub fn oldest(&self, keep: usize) -> Vec<NonceEntry> {
        let leaving = self.len().saturating_sub(keep);
        let own = self.nonces.chunks_exact(size_of::<Short>()).take(leaving);
        own.map(|nonce| {
            let mut entry = NonceEntry([0; 8]);
            entry.0.copy_from_slice(nonce);
            entry
        })
        .collect()
    }

    /// Returns the parts that are written again together with `joining` more nonces. These are the
    /// last parts, from the end while each is no longer than all that follows it and one list has
    /// room for all.
    pub fn parts_to_join(&self, joining: usize) -> Vec<OlderPart> {
        let mut count = u32::try_from(joining).unwrap_or(u32::MAX);
        let fits = |part: &&OlderPart| {
            let all = count.saturating_add(part.list.count);
            let fits = part.list.count <= count && all <= PART_MAX;
            count = all;
            fits
        };
        let mut parts: Vec<_> = self.older.iter().rev().take_while(fits).copied().collect();
        parts.reverse();
        parts
    }

    /// Records that `list` now holds the entries of `joined`, which are the last parts, and then
    /// all nonces of the root except the newest `keep`.
    pub fn moved(&mut self, keep: usize, joined: &[OlderPart], list: ListRef) {
        let first = joined.first().map_or(self.first, |part| part.first);
        self.older.truncate(self.older.len() - joined.len());
        self.older.push(OlderPart { first, list });
        self.cut(keep);
    }

    /// Drops everything except the newest `keep` nonces of the root, unless the root holds no more
    /// than these.
    pub fn give_up(&mut self, keep: usize) {
        if self.len() > keep {
            self.cut(keep);
            self.lose_older();
        }
    }

    /// Drops all parts in lists: the known chain now begins with the nonces in the root itself.
    pub fn lose_older(&mut self) {
        self.older.clear();
        self.lost = self.lost.max(Some(self.first.saturating_sub(1)));
    }

    fn cut(&mut self, keep: usize) {
        let leaving = self.len().saturating_sub(keep);
        self.nonces.drain(..leaving * size_of::<Short>());
        self.first += leaving as u64;
    }

    /// Checks the invariant of the chain of a root of `generation`: no gap up to that generation.
    ///
    /// # Errors
    /// [`ChainGap`] if the chain has a gap or a nonce is not whole.
    pub fn check(&self, generation: u64) -> Result<(), ChainGap> {
        let whole = self.nonces.len().is_multiple_of(size_of::<Short>());
        let mut ends: Vec<u64> = self.older.iter().map(OlderPart::end).collect();
        ends.push(self.first.saturating_add(self.len() as u64));
        let begins = self.older.iter().map(|part| part.first);
        let begins: Vec<u64> = begins.chain([self.first, generation]).collect();
        if !whole || ends != begins[1..] {
            return Err(ChainGap);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_chunker::pack::PackName;

    fn mark(generation: u64) -> RootMark {
        RootMark {
            generation,
            nonce: u128::from(generation).to_le_bytes(),
        }
    }

    fn chain(generations: std::ops::Range<u64>) -> Chain {
        let mut chain = Chain::new(generations.start, None);
        generations.for_each(|generation| chain.enter(mark(generation)));
        chain
    }

    fn list(count: usize) -> ListRef {
        ListRef {
            name: PackName {
                session: 1,
                sequence: 2,
                random: 3,
            },
            count: count as u32,
            bytes: 0,
        }
    }

    #[test]
    fn ancestors_are_told_from_others_of_their_generation() {
        let chain = chain(5..9);
        chain.check(9).unwrap();
        assert_eq!(chain.descent(mark(5)), Descent::Holds);
        assert_eq!(chain.descent(mark(8)), Descent::Holds);
        let other = RootMark {
            nonce: [9; 16],
            ..mark(8)
        };
        assert_eq!(chain.descent(other), Descent::Denied);
        // No generation before the chain began is known, unless an earlier chain was lost.
        assert_eq!(chain.descent(mark(4)), Descent::Holds);
        let repaired = Chain {
            lost: Some(3),
            ..chain
        };
        assert_eq!(repaired.descent(mark(4)), Descent::Lost);
    }

    #[test]
    fn parts_are_joined_so_that_few_are_left_and_none_is_written_often() {
        let (mut chain, mut written) = (Chain::new(1, None), 0);
        for generation in 1..200_000 {
            chain.enter(mark(generation));
            if chain.len() > OWN_MAX {
                let moving = chain.oldest(OWN_MAX / 2);
                let joined = chain.parts_to_join(moving.len());
                let before: u32 = joined.iter().map(|part| part.list.count).sum();
                let all = before as usize + moving.len();
                written += all;
                chain.moved(OWN_MAX / 2, &joined, list(all));
                chain.check(generation + 1).unwrap();
            }
        }
        assert!(chain.older.len() <= 10, "{} parts", chain.older.len());
        assert!(written < 200_000 * 10, "{written} nonces were written");
        let Descent::In(part, place) = chain.descent(mark(150_000)) else {
            panic!("it is not in a list");
        };
        assert_eq!(part.first + place as u64, 150_000);
    }

    #[test]
    fn what_is_given_up_is_asked_about() {
        let mut chain = chain(1..100);
        chain.give_up(10);
        chain.check(100).unwrap();
        assert_eq!((chain.len(), chain.lost), (10, Some(89)));
        assert_eq!(chain.descent(mark(89)), Descent::Lost);
        assert_eq!(chain.descent(mark(90)), Descent::Holds);
    }

    #[test]
    fn a_gap_is_found() {
        let mut chain = chain(5..9);
        assert!(chain.check(10).is_err());
        chain.nonces.pop();
        assert!(chain.check(9).is_err());
    }
}
