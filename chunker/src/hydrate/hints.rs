//! Where the chunks of frames in memory are. A read of such a chunk need not ask the index, whose
//! blocks are read and verified at each look-up: a database reads a few pages again and again.
//!
//! Owns a table that may forget or be wrong: the frame tells whether it has the chunk.

use std::fmt;

use parking_lot::Mutex;

use crate::id::Id;
use crate::pack::PackName;

/// Chunks that are known: about as many pages of a database as fit into 256 MiB. Each takes 56
/// bytes.
const HINTS: usize = 1 << 14;

#[derive(Clone, Copy)]
struct Hint {
    id: Id,
    frame: (PackName, u16),
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
    pub(super) fn new() -> Self {
        Self(Mutex::new(vec![None; HINTS]))
    }

    /// Notes the chunks of a frame, each with its slot.
    pub(super) fn note(&self, frame: (PackName, u16), chunks: impl Iterator<Item = (u16, Id)>) {
        let mut hints = self.0.lock();
        for (slot, id) in chunks {
            hints[place(&id)] = Some(Hint { id, frame, slot });
        }
    }

    /// Returns the frame that had the chunk, and its slot there.
    pub(super) fn find(&self, id: &Id) -> Option<((PackName, u16), u16)> {
        let hint = self.0.lock()[place(id)]?;
        (hint.id == *id).then_some((hint.frame, hint.slot))
    }
}

/// Ids are spread evenly.
fn place(id: &Id) -> usize {
    let head = [id.0[0], id.0[1], id.0[2], id.0[3]];
    u32::from_le_bytes(head) as usize % HINTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_chunk_of_a_place_is_known() {
        let hints = Hints::new();
        let pack = PackName {
            session: 1,
            sequence: 2,
            random: 3,
        };
        let (one, mut two) = (Id([1; 32]), Id([1; 32]));
        two.0[31] = 2;
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
