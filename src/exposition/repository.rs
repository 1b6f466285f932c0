//! The metrics of a repository: what an operator wants to be told about without a mount.
//!
//! Owns the choice of values, and what they count. They come from the root, the list of snapshots
//! and the bases of sessions. Pure.

use std::collections::BTreeMap;

use crate::exposition::{Exposition, Number};
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::Root;

/// Adds the values of a repository. `snapshots` are those that are kept, and `holding` is the number
/// of sessions that hold back deletion.
pub fn expose(root: &Root, snapshots: &SnapshotList, holding: u64, text: &mut Exposition) {
    let mut volumes: BTreeMap<&str, Vec<&SnapshotEntry>> = BTreeMap::new();
    for volume in root.volumes.keys() {
        volumes.entry(volume).or_default();
    }
    for snapshot in snapshots.iter() {
        volumes.entry(&snapshot.volume).or_default().push(snapshot);
    }
    let counts = volumes
        .iter()
        .map(|(volume, made)| ((*volume).to_owned(), Number::Count(made.len() as u64)));
    text.gauges(
        "repository_snapshots",
        "Snapshots of a volume that are kept.",
        "volume",
        counts.collect(),
    );
    let newest = volumes.iter().filter_map(|(volume, made)| {
        let time = made.iter().map(|snapshot| snapshot.time).max()?;
        let seconds = time.as_millisecond() as f64 / 1e3;
        Some(((*volume).to_owned(), Number::Seconds(seconds)))
    });
    text.gauges(
        "repository_newest_snapshot_timestamp_seconds",
        "Unix time of the newest snapshot of a volume.",
        "volume",
        newest.collect(),
    );
    text.gauge(
        "repository_generation",
        "Replacements of the root so far.",
        root.generation,
    );
    text.gauge(
        "repository_sessions",
        "Sessions in the root: mounts and commands at work, and dead ones that were not ended.",
        root.sessions.len() as u64,
    );
    text.gauge(
        "repository_holding_sessions",
        "Sessions, and spools of ended ones, that now hold back the deletion of what is condemned.",
        holding,
    );
    text.gauge(
        "repository_condemned_lists",
        "Lists of condemned packs, which are still in the bucket.",
        root.condemned.len() as u64,
    );
    if let Some(until_s) = root.locked_until_s {
        text.gauge(
            "repository_lock_end_timestamp_seconds",
            "Unix time at which the first lock of a needed object may end.",
            until_s as f64,
        );
    }
}
