//! The snapshots that a mount has used last.
//!
//! Owns: which of them are kept in memory. Does not own: finding a snapshot again (`History`).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::vfs::special::Shelf;
use crate::volume::view::View;

/// Number of snapshots that are kept in memory. Another one is found again by its number.
const SHELVES_MAX: usize = 64;

/// The snapshots used last, by number.
#[derive(Default)]
pub struct Shelves(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    uses: u64,
    shelves: HashMap<u16, (u64, Shelf)>,
}

impl Shelves {
    /// Keeps a snapshot. If there are too many, drops the least recently used one.
    pub fn keep(&self, shelf: Shelf) {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let used = kept.uses;
        kept.shelves.insert(shelf.number, (used, shelf));
        if kept.shelves.len() > SHELVES_MAX {
            let oldest = kept.shelves.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(number) = oldest.map(|(number, _)| *number) {
                kept.shelves.remove(&number);
            }
        }
    }

    /// Returns the tree of the snapshot with this number, if it is kept.
    pub fn view(&self, number: u16) -> Option<View> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let now = kept.uses;
        let (used, shelf) = kept.shelves.get_mut(&number)?;
        *used = now;
        Some(shelf.view.clone())
    }
}
