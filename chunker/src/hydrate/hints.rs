//! Where the chunks of frames in memory are. A read of such a chunk need not ask the index, whose
//! blocks are read and verified at each look-up: a database reads a few pages again and again.
//!
//! Owns a table that may forget or be wrong: the frame tells whether it has the chunk.

use std::fmt;

use parking_lot::Mutex;

use crate::id::Id;
use crate::pack::PackName;

/// Where a chunk is, if it is that one.
#[derive(Clone, Copy)]
struct Hint {
    pack: PackName,
    /// A part of the chunk's id.
    tag: u32,
    frame: u16,
    slot: u16,
}

/// The places of the chunks that were decoded last.
pub(crate) struct Hints(Mutex<Vec<Option<Hint>>>);

impl fmt::Debug for Hints {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hints(..)")
    }
}

impl Hints {
    /// Returns a table that takes `bytes` bytes, or a place.
    pub(super) fn new(bytes: u64) -> Self {
        let places = bytes as usize / size_of::<Option<Hint>>();
        Self(Mutex::new(vec![None; places.max(1)]))
    }

    /// Notes the chunks of a frame, each with its slot.
    pub(super) fn note(
        &self,
        (pack, frame): (PackName, u16),
        chunks: impl Iterator<Item = (u16, Id)>,
    ) {
        let mut hints = self.0.lock();
        let places = hints.len();
        for (slot, id) in chunks {
            let (place, tag) = part(&id, places);
            hints[place] = Some(Hint {
                pack,
                tag,
                frame,
                slot,
            });
        }
    }

    /// Returns the frame that probably has the chunk, and its slot there.
    pub(super) fn find(&self, id: &Id) -> Option<((PackName, u16), u16)> {
        let hints = self.0.lock();
        let (place, tag) = part(id, hints.len());
        let hint = hints[place].filter(|hint| hint.tag == tag)?;
        Some(((hint.pack, hint.frame), hint.slot))
    }
}

/// Returns the place of a chunk, and what tells it from others there. Ids are spread evenly.
fn part(id: &Id, places: usize) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    let place = u32::from_le_bytes([a, b, c, d]) as usize % places;
    (place, u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_chunk_of_a_place_is_known() {
        let hints = Hints::new(1 << 20);
        let pack = PackName {
            session: 1,
            sequence: 2,
            random: 3,
        };
        let (one, mut two) = (Id([1; 32]), Id([1; 32]));
        two.0[7] = 2;
        assert_eq!(size_of::<Option<Hint>>(), 32);
        assert_eq!(hints.find(&one), None);
        hints.note((pack, 4), [(0, Id([9; 32])), (1, one)].into_iter());
        assert_eq!(hints.find(&one), Some(((pack, 4), 1)));
        assert_eq!(hints.find(&two), None, "another one of the same place");
        hints.note((pack, 5), [(0, two)].into_iter());
        assert_eq!(
            (hints.find(&one), hints.find(&two)),
            (None, Some(((pack, 5), 0)))
        );
    }
}
