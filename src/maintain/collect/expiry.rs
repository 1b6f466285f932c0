//! When forgotten snapshots expire, by their own dates and by this machine's sightings. Pure.

use std::sync::Arc;

use bkfs_chunker::id::Id;
use jiff::Timestamp;

use super::sightings::Sightings;
use crate::root::snapshots::TrashEntry;

/// Decides when forgotten snapshots expire.
#[derive(Clone, Debug)]
pub struct Expiry {
    /// The beginning of the undelete window.
    pub before: Timestamp,
    /// Its end: the time when the trash was read.
    pub now: Timestamp,
    /// Sightings of the trash, then and earlier.
    pub seen: Sightings,
}

impl Expiry {
    /// Whether this snapshot was forgotten before the window, by its own date and by the sightings.
    pub fn has_come(&self, entry: &TrashEntry) -> bool {
        let since = self.seen.since(entry).unwrap_or(self.now);
        entry.forgotten <= self.before && since <= self.before
    }

    /// Returns the commits of such snapshots in the trash, and how many more there would be by
    /// their own dates alone.
    pub fn of_trash(&self, trash: &[Arc<Vec<TrashEntry>>]) -> (Vec<Id>, u64) {
        let old = trash.iter().flat_map(|shard| shard.iter());
        let old = old.filter(|entry| entry.forgotten <= self.before);
        let (expired, dated_back): (Vec<_>, Vec<_>) = old.partition(|entry| self.has_come(entry));
        let commits = expired.into_iter().map(|entry| entry.snapshot.commit);
        (commits.collect(), dated_back.len() as u64)
    }
}
