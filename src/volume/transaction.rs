//! Atomic changes of a live volume: an operation reads, decides and writes against one state.
//!
//! Owns: the retry loop between memory and the tree. Does not own: the meaning of the operations.
//!
//! An operation is a closure over a [`Transaction`]. It runs under the state's lock, so it never
//! waits. If it needs an item that only the tree has, it stops with [`Stop::Need`]. The item is
//! fetched without the lock, and the closure runs again from the start. Its writes are applied
//! together, and only when it succeeds. So operations need no locks of their own, and a cut lies
//! before or after each operation as a whole.

use std::collections::HashMap;
use std::ops::Range;

use bkfs_chunker::id::Id;

use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::capturing::LiveState;
use crate::volume::error::VolumeError;
use crate::volume::state::{Found, Scope, VolumeState};
use crate::volume::view::View;

/// The reason why a run of the closure ended without a result.
#[derive(Debug)]
pub enum Stop {
    /// An item must be fetched from the tree first.
    Need(Key),
    /// The operation fails.
    Fail(VolumeError),
}

impl From<VolumeError> for Stop {
    fn from(error: VolumeError) -> Self {
        Stop::Fail(error)
    }
}

/// The result of a closure.
pub type Step<T> = Result<T, Stop>;

#[derive(Debug)]
enum Effect {
    Set(Key, Option<Item>),
    Make(u64),
    Drop(u64),
    Zero { inode: u64, range: Range<u64> },
}

/// One run of an operation against the state.
pub struct Transaction<'a> {
    state: &'a VolumeState,
    fetched: &'a HashMap<Key, Option<Item>>,
    effects: Vec<Effect>,
    written: HashMap<Key, Option<Item>>,
    inodes: i64,
    bytes: i64,
}

impl Transaction<'_> {
    /// Returns the item at `key`, as this transaction would leave it.
    ///
    /// # Errors
    /// [`Stop::Need`] if the item must be fetched.
    pub fn get(&self, key: &Key) -> Step<Option<Item>> {
        if let Some(item) = self.written.get(key) {
            return Ok(item.clone());
        }
        match self.state.find(Scope::Live, key) {
            Found::Item(item) => Ok(Some(item)),
            Found::Absent => Ok(None),
            Found::Below(_) => match self.fetched.get(key) {
                Some(item) => Ok(item.clone()),
                None => Err(Stop::Need(key.clone())),
            },
        }
    }

    /// Sets or removes an item.
    pub fn set(&mut self, key: Key, item: Option<Item>) {
        self.written.insert(key.clone(), item.clone());
        self.effects.push(Effect::Set(key, item));
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Stop::Need`] if they must be fetched; [`VolumeError::Stale`] if there is no such inode,
    /// because the caller still held its number; [`VolumeError::Malformed`] if the item is not
    /// attributes.
    pub fn attributes(&self, inode: u64) -> Step<Attributes> {
        match self.get(&Key::attributes(inode))? {
            Some(Item::Attributes(attributes)) => Ok(attributes),
            Some(_) => Err(VolumeError::Malformed { inode }.into()),
            None => Err(VolumeError::Stale.into()),
        }
    }

    /// Sets the attributes of an inode.
    pub fn set_attributes(&mut self, inode: u64, attributes: Attributes) {
        self.set(Key::attributes(inode), Some(Item::Attributes(attributes)));
    }

    /// Notes a new inode.
    pub fn make_inode(&mut self, inode: u64) {
        self.inodes += 1;
        self.effects.push(Effect::Make(inode));
    }

    /// Counts a change of the allocated bytes.
    pub fn count_bytes(&mut self, bytes: i64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Drops an inode with everything that belongs to it.
    pub fn drop_inode(&mut self, inode: u64) {
        self.inodes -= 1;
        self.effects.push(Effect::Drop(inode));
    }

    /// Makes a range of a file, in bytes, read as zeroes. The caller sets the size.
    pub fn zero(&mut self, inode: u64, range: Range<u64>) {
        self.effects.push(Effect::Zero { inode, range });
    }
}

/// Applies the writes of a transaction to the active layer, after those that `first` makes there.
fn apply(
    state: &mut LiveState,
    first: impl FnOnce(&mut LiveState, u64),
    (effects, inodes, bytes): (Vec<Effect>, i64, i64),
) {
    let stamp = state.next_stamp();
    state.count(inodes, bytes);
    first(state, stamp);
    for effect in effects {
        match effect {
            Effect::Set(key, item) => state.change_item(key, item),
            Effect::Make(inode) => state.new_inodes.made(inode),
            Effect::Drop(inode) => state.drop_inode(inode),
            Effect::Zero { inode, range } => {
                let zeroes = range.clone();
                state.change_data(inode, range, |ranges| ranges.zero(zeroes, stamp));
            }
        }
    }
}

/// The outcome of one run: a result, or the item to fetch before the next run.
enum Outcome<T> {
    Done(Result<T, VolumeError>),
    Fetch(Key, Id),
}

impl View {
    /// Runs `operation` until it ends, and applies its writes if it succeeds.
    ///
    /// `operation` may run several times, and a run may be abandoned. Any side effect of its own
    /// must be harmless in that case.
    ///
    /// Cancel safety: dropped, it has applied nothing.
    ///
    /// # Errors
    /// - The errors of `operation`.
    /// - [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if an item cannot be fetched from
    ///   the tree.
    /// - [`VolumeError::Poisoned`] if the volume accepts nothing more, also if that happens during
    ///   a fetch.
    /// - [`VolumeError::ReadOnly`] if the view is frozen.
    pub async fn transact<T>(
        &self,
        operation: impl FnMut(&mut Transaction<'_>) -> Step<T>,
    ) -> Result<T, VolumeError> {
        self.transact_with(operation, |_, _, _| {}).await
    }

    /// Runs as [`View::transact`]. When `operation` succeeds, `write` puts bytes of files into the
    /// active layer in the same step: it gets the result, the state and the stamp of the
    /// transaction. So the bytes pass no run that is abandoned.
    ///
    /// Cancel safety: as [`View::transact`].
    ///
    /// # Errors
    /// As [`View::transact`].
    pub async fn transact_with<T>(
        &self,
        mut operation: impl FnMut(&mut Transaction<'_>) -> Step<T>,
        mut write: impl FnMut(&T, &mut LiveState, u64),
    ) -> Result<T, VolumeError> {
        let mut fetched: HashMap<Key, Option<Item>> = HashMap::new();
        let mut fetched_from: Option<Id> = None;
        loop {
            let from = (&mut fetched, &mut fetched_from);
            match self.attempt(&mut operation, &mut write, from)? {
                Outcome::Done(result) => return result,
                Outcome::Fetch(key, base) => {
                    let item = self.item_below(base, &key).await?;
                    fetched.insert(key, item);
                }
            }
        }
    }

    fn attempt<T>(
        &self,
        operation: &mut impl FnMut(&mut Transaction<'_>) -> Step<T>,
        write: &mut impl FnMut(&T, &mut LiveState, u64),
        (fetched, fetched_from): (&mut HashMap<Key, Option<Item>>, &mut Option<Id>),
    ) -> Result<Outcome<T>, VolumeError> {
        let mut state = self.state()?.lock();
        state.accepts()?;
        if *fetched_from != Some(state.base) {
            // A commit replaced the tree: items that were fetched from the old one may have changed
            // since.
            fetched.clear();
            *fetched_from = Some(state.base);
        }
        let mut run = Transaction {
            state: &state,
            fetched,
            effects: Vec::new(),
            written: HashMap::new(),
            inodes: 0,
            bytes: 0,
        };
        match operation(&mut run) {
            Ok(value) => {
                let effects = (run.effects, run.inodes, run.bytes);
                let first = |state: &mut LiveState, stamp| write(&value, state, stamp);
                apply(&mut state, first, effects);
                Ok(Outcome::Done(Ok(value)))
            }
            Err(Stop::Need(key)) => Ok(Outcome::Fetch(key, state.base)),
            Err(Stop::Fail(error)) => Ok(Outcome::Done(Err(error))),
        }
    }
}
