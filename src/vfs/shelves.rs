//! The snapshots that a mount has been asked for, as many as are worth their memory.
//!
//! Owns: which are kept. Does not own: finding one again (`History`).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::vfs::special::Shelf;
use crate::volume::view::View;

/// Snapshots that are kept ready. One that is asked for again is found by its number.
const SHELVES_MAX: usize = 64;

/// Snapshots by number; those used last.
#[derive(Default)]
pub struct Shelves(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    uses: u64,
    shelves: HashMap<u16, (u64, Shelf)>,
}

impl Shelves {
    /// Keeps one, in place of that which was not used for longest.
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

    /// The tree of the snapshot with this number, if it is kept.
    pub fn view(&self, number: u16) -> Option<View> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let now = kept.uses;
        let (used, shelf) = kept.shelves.get_mut(&number)?;
        *used = now;
        Some(shelf.view.clone())
    }
}
