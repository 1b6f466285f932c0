//! The items of the layer of the cut, on their way into a tree.
//!
//! Owns: their order, and how long the state is locked for them. Does not own: the tree
//! (`tree::apply`), the time of the commit (`commit`).

use std::ops::Bound;

use bytes::Bytes;

use crate::tree::item::Item;
use crate::tree::key::Key;
use crate::volume::state_lock::StateLock;

/// Number of items that are encoded while the state is locked once.
const ENCODED_AT_ONCE: usize = 512;

/// The encoded items of the layer of the cut, in order.
///
/// The state is locked for a few items at a time. This is safe because the layer does not change
/// after all its dirty bytes are stored.
pub struct CutItems<'a> {
    state: &'a StateLock,
    /// Items up to this key have been taken.
    taken: Bound<Key>,
    ready: std::vec::IntoIter<Encoded>,
}

/// A change of the tree: the new value of a key; none removes the key.
pub type Encoded = (Key, Option<Bytes>);

impl<'a> CutItems<'a> {
    /// Returns the items of the layer of the cut.
    pub fn new(state: &'a StateLock) -> Self {
        CutItems {
            state,
            taken: Bound::Unbounded,
            ready: Vec::new().into_iter(),
        }
    }

    fn take_some(&self) -> Option<Vec<Encoded>> {
        let encode = |(key, item): (&Key, &Option<Item>)| {
            let value = item.as_ref().map(|item| Bytes::from(item.encode()));
            (key.clone(), value)
        };
        let state = self.state.lock();
        let rest = (self.taken.as_ref(), Bound::Unbounded);
        let items = state.committing.as_ref()?.items.range::<Key, _>(rest);
        Some(items.take(ENCODED_AT_ONCE).map(encode).collect())
    }
}

impl Iterator for CutItems<'_> {
    type Item = Encoded;

    fn next(&mut self) -> Option<Encoded> {
        if let Some(change) = self.ready.next() {
            return Some(change);
        }
        let ready = self.take_some()?;
        self.taken = Bound::Excluded(ready.last()?.0.clone());
        self.ready = ready.into_iter();
        self.ready.next()
    }
}

/// Returns the changes of `set`, and removals of the keys of `gone` that `set` does not contain.
/// Both inputs are in order, and so is the result.
pub fn without(
    gone: Vec<Key>,
    set: impl Iterator<Item = Encoded>,
) -> impl Iterator<Item = Encoded> {
    let (mut gone, mut set) = (gone.into_iter().peekable(), set.peekable());
    std::iter::from_fn(move || {
        let Some((next, _)) = set.peek() else {
            return gone.next().map(|key| (key, None));
        };
        match gone.next_if(|key| key <= next) {
            Some(key) if key < *next => Some((key, None)),
            _ => set.next(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::state::{Totals, VolumeState};
    use bkfs_chunker::id::Id;

    #[test]
    fn every_item_comes_once_and_in_order_and_the_state_is_free_between() {
        let mut state = VolumeState::new(Id([0; 32]), Totals::default());
        let count = 2 * ENCODED_AT_ONCE as u64 + 7;
        for inode in 0..count {
            let item = (inode % 3 > 0).then_some(Item::Orphan);
            state.active.set(Key::orphan(inode), item);
        }
        state.cut();
        let state = StateLock::new(state);
        let mut seen = 0;
        for (key, value) in CutItems::new(&state) {
            assert!(state.try_lock().is_some());
            assert_eq!(key, Key::orphan(seen));
            assert_eq!(value.is_some(), seen % 3 > 0);
            seen += 1;
        }
        assert_eq!(seen, count);
    }

    #[test]
    fn what_is_set_counts_more_than_what_is_gone() {
        let bytes = || Some(Bytes::from_static(b"set"));
        let gone = [1, 2, 5, 9].map(Key::orphan).to_vec();
        let set = [(2, bytes()), (3, None), (9, bytes())];
        let set = set.map(|(inode, value)| (Key::orphan(inode), value));
        let merged: Vec<_> = without(gone, set.into_iter()).collect();
        let expected = [(1, None), (2, bytes()), (3, None), (5, None), (9, bytes())];
        assert_eq!(
            merged,
            expected.map(|(inode, value)| (Key::orphan(inode), value))
        );
    }
}
