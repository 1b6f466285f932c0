//! The operations in a tree.

use std::fmt;

use crate::state::Session;

/// The operations in a volume's tree, in the order in which they were applied.
///
/// Every operation overwrites a file, so the tree reaches the content of the last one for each
/// file. The list shows which operations were lost, applied twice or reordered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Log(u64);

impl Log {
    /// No operations.
    pub const EMPTY: Self = Self(0);

    /// Appends operation `number` (from 1) of session `s`.
    pub fn push(&mut self, s: Session, number: u8) {
        assert!(
            self.0 >> 60 == 0,
            "the log of a volume holds sixteen operations"
        );
        self.0 = self.0 << 4 | (s as u64) << 2 | u64::from(number);
    }
    /// Returns the operations as (session, number), oldest first.
    pub fn iter(self) -> impl Iterator<Item = (Session, u8)> {
        (0..16)
            .rev()
            .map(move |i| self.0 >> (4 * i) & 0xF)
            .filter(|&op| op != 0)
            .map(|op| ((op >> 2) as Session, (op & 3) as u8))
    }
    /// Returns the operations as (session, number), newest first.
    pub fn newest(self) -> impl Iterator<Item = (Session, u8)> {
        (0..16)
            .map(move |i| self.0 >> (4 * i) & 0xF)
            .take_while(|&op| op != 0)
            .map(|op| ((op >> 2) as Session, (op & 3) as u8))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|(s, n)| format!("s{s}#{n}")))
            .finish()
    }
}
