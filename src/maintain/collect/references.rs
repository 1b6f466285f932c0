//! References of the objects in metadata packs, kept from the reading of their pack until the
//! objects are needed themselves.
//!
//! Owns that memory and its bound. Pure. Packs lead to each other in any order: without it, a pack
//! would be read again each time another one leads to more of it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::pack::PackName;

/// References that are kept at most: about 40 MB of them. The pack that was read last is kept even
/// if it has more. A pack whose references were dropped is read again if more of it is needed.
const KEPT_MAX: usize = 1 << 20;

/// The references of one object, or why it does not decode.
pub type Below = Result<Vec<(Kind, Id)>, String>;

/// The references of the objects of one metadata pack, by frame and slot.
pub type PackReferences = BTreeMap<(u16, u16), Below>;

/// The references of metadata packs that were read.
#[derive(Debug)]
pub struct References {
    packs: HashMap<PackName, PackReferences>,
    /// The packs in the order in which they were read.
    order: VecDeque<PackName>,
    kept: usize,
    kept_max: usize,
}

impl Default for References {
    fn default() -> Self {
        Self::bounded(KEPT_MAX)
    }
}

impl References {
    fn bounded(kept_max: usize) -> Self {
        Self {
            packs: HashMap::new(),
            order: VecDeque::new(),
            kept: 0,
            kept_max,
        }
    }

    /// Keeps the references of a pack's objects. If they are too many, the packs that were read
    /// first are dropped. The pack that is kept last stays, whatever its size.
    pub fn keep(&mut self, pack: PackName, found: PackReferences) {
        self.forget(&pack);
        self.kept += found.values().map(weight).sum::<usize>();
        self.packs.insert(pack, found);
        self.order.push_back(pack);
        while self.kept > self.kept_max && self.order.len() > 1 {
            if let Some(first) = self.order.front().copied() {
                self.forget(&first);
            }
        }
    }

    /// Returns true if the pack was read and its references are still kept.
    pub fn holds(&self, pack: &PackName) -> bool {
        self.packs.contains_key(pack)
    }

    /// Returns the first object of the pack, at or after this frame and slot, for which `is_due`
    /// returns true, and its references.
    pub fn next_due(
        &self,
        pack: &PackName,
        from: (u16, u16),
        is_due: impl Fn(u16, u16) -> bool,
    ) -> Option<((u16, u16), &Below)> {
        let mut objects = self.packs.get(pack)?.range(from..);
        objects
            .find(|(place, _)| is_due(place.0, place.1))
            .map(|(place, below)| (*place, below))
    }

    /// Drops the references of an object that was followed: they are not asked for again.
    pub fn followed(&mut self, pack: &PackName, place: (u16, u16)) {
        let below = self
            .packs
            .get_mut(pack)
            .and_then(|found| found.remove(&place));
        self.kept -= below.as_ref().map_or(0, weight);
    }

    fn forget(&mut self, pack: &PackName) {
        if let Some(found) = self.packs.remove(pack) {
            self.kept -= found.values().map(weight).sum::<usize>();
            self.order.retain(|other| other != pack);
        }
    }
}

/// Returns how much an object counts towards the bound: 1, and 1 for each reference.
fn weight(below: &Below) -> usize {
    1 + below.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(sequence: u32) -> PackName {
        PackName {
            session: 1,
            sequence,
            random: 7,
        }
    }

    /// Returns `objects` objects that refer to `each` chunks.
    fn found(objects: u16, each: usize) -> PackReferences {
        let below = vec![(Kind::Chunk, Id([3; 32])); each];
        (0..objects)
            .map(|slot| ((0, slot), Ok(below.clone())))
            .collect()
    }

    #[test]
    fn what_was_read_first_goes_first_and_what_was_read_last_stays() {
        let mut references = References::bounded(20);
        references.keep(name(1), found(2, 4));
        references.keep(name(2), found(2, 4));
        assert!(references.holds(&name(1)) && references.holds(&name(2)));
        references.keep(name(3), found(1, 0));
        assert!(!references.holds(&name(1)), "21 of 20 were kept");
        assert!(references.holds(&name(2)) && references.holds(&name(3)));
        references.keep(name(4), found(10, 10));
        assert!(references.holds(&name(4)), "the last one is never too much");
        assert!(!references.holds(&name(2)) && !references.holds(&name(3)));
        assert_eq!((references.kept, references.order.len()), (110, 1));
    }

    #[test]
    fn what_was_followed_makes_room() {
        let mut references = References::bounded(20);
        references.keep(name(1), found(2, 4));
        references.keep(name(1), found(2, 4));
        assert_eq!(references.kept, 10, "the same pack again replaces itself");
        for slot in 0..2 {
            let due = references.next_due(&name(1), (0, 0), |_, due| due == slot);
            assert_eq!(due.map(|(place, _)| place), Some((0, slot)));
            references.followed(&name(1), (0, slot));
        }
        assert_eq!(references.kept, 0);
        let due = references.next_due(&name(1), (0, 0), |_, _| true);
        assert!(due.is_none());
        references.keep(name(2), found(4, 4));
        assert!(
            references.holds(&name(1)),
            "it has nothing left to give up room for"
        );
    }
}
