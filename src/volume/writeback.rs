//! Background storing of dirty bytes: while a file is written, and when memory runs short.
//!
//! Owns: which files are stored then, and how many at once. Does not own: the storing (`flush`),
//! what is swapped out instead (`swap`), the limits of memory (`room`), nor the storing before a
//! commit (`commit`) or a journal (`capture`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream::{self, StreamExt, TryStreamExt};

use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::room::Pressure;
use crate::volume::state::{Layer, Scope, VolumeState};
use crate::volume::{Promise, Volume};

/// Number of files that are stored concurrently when memory runs short.
const RELIEVED_AT_ONCE: usize = 8;

/// Dirty bytes in memory of a long file: these are stored first when memory runs short.
const LONG_BYTES: u64 = 1 << 20;

impl Volume {
    /// Starts a flush of a file in the background, unless such a flush is running.
    pub(super) fn flush_soon(self: &Arc<Self>, inode: u64, epoch: u64, reach: Reach) {
        if !self.streaming.lock().insert(inode) {
            return;
        }
        let volume = self.clone();
        tokio::spawn(async move {
            let result = volume.flush_file(inode, epoch, reach).await;
            volume.streaming.lock().remove(&inode);
            match result {
                Ok(()) => {
                    volume.room.notify();
                    // A streaming flush leaves the ends of its runs. They may be the data that
                    // fills the memory.
                    volume.relieve();
                }
                Err(error) => volume.storing_failed(error),
            }
        });
    }

    /// Reports that data could not be stored. The data is still accepted, unless the ingest has
    /// failed; then the volume is poisoned. Tasks that wait for room get the error.
    pub(super) fn storing_failed(&self, error: VolumeError) {
        self.note_failure(&error);
        self.room.failed(error);
    }

    /// Reports that a commit that items asked for was not made, and may be asked for again. Tasks
    /// that wait for room get the error, after [`Volume::note_failure`]. On a clone that is thrown
    /// away, they get it only if they wait for a commit: the others wait for data to be stored,
    /// which the commit was not for.
    pub(super) fn commit_failed(&self, error: VolumeError) {
        // Before the report: a task that begins to wait after it asks again.
        self.commit_asked.store(false, Ordering::Relaxed);
        let is_full = || {
            let state = self.view.state();
            state.is_ok_and(|state| self.room.item_pressure(&state.lock()) == Pressure::Full)
        };
        match self.promise != Promise::ThrownAway || is_full() {
            true => self.room.failed(error),
            // There may be room for tasks that waited for a commit.
            false => self.room.notify(),
        }
    }

    /// Notes that something could not be stored, and poisons the volume if it never can be.
    pub(super) fn note_failure(&self, error: &VolumeError) {
        // What cannot be read back can never be stored.
        if let VolumeError::Swap(_) = error {
            return self.poison(error.clone());
        }
        tracing::warn!("not stored, will be tried again: {error}");
        if let Some(cause) = self.ingest.failure() {
            self.poison(cause.into());
        }
    }

    /// Stores files until there is room, if dirty bytes fill the memory. Only one task
    /// at a time does this.
    pub(super) fn relieve(self: &Arc<Self>) {
        if !self.is_pressed() {
            return;
        }
        if self.relieving.swap(true, Ordering::AcqRel) {
            if let Some(swapping) = &self.swapping {
                swapping.wanted();
            }
            return;
        }
        let volume = self.clone();
        tokio::spawn(async move {
            loop {
                let result = volume.make_room().await;
                volume.relieving.store(false, Ordering::Release);
                if let Err(error) = result {
                    volume.storing_failed(error);
                    return;
                }
                // A request that came before the flag was reset found this task running and
                // returned.
                let is_left = volume.is_pressed() && volume.has_dirty_files();
                if !is_left {
                    // What made room may have been a removal, which tells no one.
                    return volume.room.notify();
                }
                if volume.relieving.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    async fn make_room(&self) -> Result<(), VolumeError> {
        let reach = match self.swapping {
            None => Reach::All,
            Some(_) => Reach::Relief,
        };
        loop {
            self.swap_out().await;
            if !self.is_pressed() {
                return Ok(());
            }
            let files = self.files_to_store();
            if files.is_empty() {
                return Ok(());
            }
            let flushes = files
                .into_iter()
                .map(|(inode, epoch)| self.flush_file(inode, epoch, reach));
            let stored = stream::iter(flushes)
                .buffer_unordered(RELIEVED_AT_ONCE)
                .try_for_each(|()| {
                    self.room.notify();
                    std::future::ready(Ok(()))
                });
            self.swapping_during(stored).await?;
        }
    }

    pub(super) fn is_pressed(&self) -> bool {
        let Ok(state) = self.view.state() else {
            return false;
        };
        self.room.data_pressure(&state.lock()) != Pressure::None
    }

    fn has_dirty_files(&self) -> bool {
        let state = self.view.state();
        state.is_ok_and(|state| dirty_layer(&state.lock()).is_some())
    }

    /// Returns files of one layer that are to be stored, with that layer's epoch: the long ones,
    /// longest first, then others in the order in which they were made, from where the last call
    /// ended. So files that were made together lie together, and one that is written again and again
    /// does not keep the others of its layer from being stored. There are so many of them that
    /// finding them costs little compared with storing them.
    fn files_to_store(&self) -> Vec<(u64, u64)> {
        let Ok(state) = self.view.state() else {
            return Vec::new();
        };
        let state = state.lock();
        let Some(layer) = dirty_layer(&state) else {
            return Vec::new();
        };
        let count = RELIEVED_AT_ONCE.max(layer.data.len() / 16);
        let costs = (layer.data.iter()).map(|(inode, ranges)| (ranges.cost(), *inode));
        let mut long: Vec<(u64, u64)> = costs.filter(|(cost, _)| *cost >= LONG_BYTES).collect();
        if count < long.len() {
            long.select_nth_unstable_by(count, |one, other| other.cmp(one));
            long.truncate(count);
        }
        long.sort_unstable_by(|one, other| other.cmp(one));
        let from = self.stored_to.load(Ordering::Relaxed);
        let others = layer.data.range(from..).chain(layer.data.range(..from));
        let others = others.filter(|(_, ranges)| ranges.cost() < LONG_BYTES);
        let others: Vec<u64> = (others.map(|(inode, _)| *inode))
            .take(count - long.len())
            .collect();
        if let Some(last) = others.last() {
            self.stored_to.store(last + 1, Ordering::Relaxed);
        }
        let long = long.into_iter().map(|(_, inode)| inode);
        let files = long.chain(others);
        files.map(|inode| (inode, layer.epoch)).collect()
    }
}

/// Returns the layer whose files are stored next when memory runs short; none if no file is dirty.
/// It is the active one, or else the one that a commit has cut: if the commit fails, it may hold all
/// that fills the memory.
fn dirty_layer(state: &VolumeState) -> Option<&Layer> {
    let mut layers = state.layers(Scope::Live);
    layers.find(|layer| !layer.data.is_empty())
}
