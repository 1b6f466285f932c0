//! What look-ups by runs share, and what one of them has asked.
//!
//! Owns which runs are given up, and for how long a writer asks none.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::learned::Learned;
use super::opened_run::RunStore;
use crate::crypto::Class;
use crate::pack::PackName;

/// Bytes of memory for learned packs: those of about 20 GiB of pages.
const LEARNED_BYTES: u64 = 64 << 20;

/// How long a writer asks no runs after it has waited for them in vain.
const UNASKED_FOR: Duration = Duration::from_secs(10);

/// What look-ups by runs share.
#[derive(Debug)]
pub(super) struct RunSearcher {
    pub(super) store: RunStore,
    pub(super) learned: Learned,
    /// Runs that could not be read. Their groups are not asked any more.
    given_up: Mutex<HashSet<PackName>>,
    /// Until when a writer asks no runs.
    unasked_until: Mutex<Option<Instant>>,
    /// The memory for the filters of a writer, in bytes. `None` if nothing is matched.
    filter_bytes: Mutex<Option<u64>>,
}

/// What a search for one blob has asked of runs.
#[derive(Debug, Default)]
pub(crate) struct RunSearch {
    /// Packs whose copies were tried.
    pub(super) tried: HashSet<PackName>,
    /// Packs that the runs name and that were not tried, with the run that named each. `None` before
    /// the runs were asked.
    pub(super) packs: Option<VecDeque<(PackName, Class, PackName)>>,
}

impl RunSearch {
    /// Records a pack whose copies of the blob are tried.
    pub(crate) fn note_tried(&mut self, pack: PackName) {
        self.tried.insert(pack);
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
        }
    }

    /// Returns true if the group has a run that could not be read.
    pub(super) fn has_given_up(&self, runs: impl IntoIterator<Item = PackName>) -> bool {
        let given_up = self.given_up.lock();
        !given_up.is_empty() && runs.into_iter().any(|run| given_up.contains(&run))
    }

    /// Returns true if no run was given up.
    pub(super) fn has_all(&self) -> bool {
        self.given_up.lock().is_empty()
    }

    /// Gives runs up, which could not be read.
    pub(super) fn give_up(&self, runs: impl Iterator<Item = PackName>) {
        self.given_up.lock().extend(runs);
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
