//! What look-ups by runs share.
//!
//! Owns which runs are given up and for how long, for how long a writer asks none, and how much of
//! the index is read for blobs that no run has.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::learned::Learned;
use super::opened_run::RunStore;
use crate::id::Id;
use crate::pack::PackName;

/// Bytes of memory for learned packs: those of about 20 GiB of pages.
const LEARNED_BYTES: u64 = 64 << 20;

/// How long a writer asks no runs after it has waited for them in vain.
const UNASKED_FOR: Duration = Duration::from_secs(10);

/// How long a run that could not be read is given up. An answer may have been damaged on its way, and
/// a refusal may pass.
const GIVEN_UP_FOR: Duration = Duration::from_secs(600);

/// Decoded bytes of index objects that are read in all for blobs that no run has. They list about 12
/// million blobs.
const UNKNOWN_BYTES_MAX: u64 = 256 << 20;

/// Why an index object is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    /// What is loaded lists it, and nothing answers in its place.
    Listed,
    /// No run has this blob. So many bytes may be read for all such blobs.
    Unknown(Id),
}

/// What look-ups by runs share.
#[derive(Debug)]
pub(super) struct RunSearcher {
    pub(super) store: RunStore,
    pub(super) learned: Learned,
    /// Runs that could not be read, and when that was last found.
    given_up: Mutex<HashMap<PackName, Instant>>,
    /// Until when a writer asks no runs.
    unasked_until: Mutex<Option<Instant>>,
    /// The memory for the filters of a writer, in bytes. `None` if nothing is matched.
    filter_bytes: Mutex<Option<u64>>,
    /// Bytes of index objects that may still be read for blobs that no run has.
    unknown_bytes: Mutex<u64>,
}

/// Bytes that are being read for a blob that no run has. They are given back when it is dropped,
/// unless they were read.
#[derive(Debug)]
pub(super) struct UnknownCharge<'a> {
    searcher: &'a RunSearcher,
    bytes: u64,
}

impl UnknownCharge<'_> {
    /// Spends the bytes: they were read.
    pub(super) fn spend(mut self) {
        self.bytes = 0;
    }
}

impl Drop for UnknownCharge<'_> {
    fn drop(&mut self) {
        *self.searcher.unknown_bytes.lock() += self.bytes;
    }
}

impl RunSearcher {
    pub(super) fn new(store: RunStore) -> Self {
        Self {
            store,
            learned: Learned::new(LEARNED_BYTES),
            given_up: Mutex::default(),
            unasked_until: Mutex::default(),
            filter_bytes: Mutex::default(),
            unknown_bytes: Mutex::new(UNKNOWN_BYTES_MAX),
        }
    }

    /// Returns true if one of these runs is given up.
    pub(super) fn has_given_up(&self, runs: impl IntoIterator<Item = PackName>) -> bool {
        let given_up = self.given_up.lock();
        let lasts = |run: PackName| {
            (given_up.get(&run)).is_some_and(|since| since.elapsed() < GIVEN_UP_FOR)
        };
        !given_up.is_empty() && runs.into_iter().any(lasts)
    }

    /// Gives runs up, which could not be read.
    pub(super) fn give_up(&self, runs: impl Iterator<Item = PackName>) {
        let mut given_up = self.given_up.lock();
        given_up.retain(|_, since| since.elapsed() < GIVEN_UP_FOR);
        given_up.extend(runs.map(|run| (run, Instant::now())));
    }

    /// Returns true if so many bytes of index objects may still be read for blobs that no run has.
    pub(super) fn permits_unknown(&self, bytes: u64) -> bool {
        *self.unknown_bytes.lock() >= bytes
    }

    /// Takes `bytes` from those that may be read for blobs that no run has: they are asked for now.
    pub(super) fn charge_unknown(&self, bytes: u64) -> UnknownCharge<'_> {
        let mut left = self.unknown_bytes.lock();
        let taken = bytes.min(*left);
        *left -= taken;
        UnknownCharge {
            searcher: self,
            bytes: taken,
        }
    }

    /// Forgets learned packs of which `answers` is false, for the run that named each and the pack.
    pub(super) fn forget_others(&self, answers: impl Fn(&PackName, &PackName) -> bool) {
        self.learned
            .retain(|pack| answers(&pack.run, &pack.loaded.reference().name));
    }

    /// Returns true while a writer asks no runs.
    pub(super) fn is_unasked(&self) -> bool {
        let until = *self.unasked_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Lets a writer ask no runs for a while.
    pub(super) fn pause_asking(&self) {
        *self.unasked_until.lock() = Some(Instant::now() + UNASKED_FOR);
    }

    /// Returns the memory for the filters of a writer, in bytes. `None` if nothing is matched.
    pub(super) fn filter_bytes(&self) -> Option<u64> {
        *self.filter_bytes.lock()
    }

    /// Sets the memory for the filters of a writer.
    pub(super) fn set_filter_bytes(&self, bytes: u64) {
        *self.filter_bytes.lock() = Some(bytes);
    }
}
