//! The metrics of a repository: what an operator wants to be told about without a mount.
//!
//! Owns the choice of values, and what they count. They come from the root and the list of
//! snapshots alone. Pure.

use std::collections::BTreeMap;

use crate::exposition::{Exposition, Number};
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::Root;

/// Adds the values of a repository. `snapshots` are those that are kept.
pub fn expose(root: &Root, snapshots: &SnapshotList, text: &mut Exposition) {
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
    let held_back = root.sessions.values();
    let held_back = held_back.map(|session| root.epoch.saturating_sub(session.registered_epoch));
    text.gauge(
        "repository_held_back_epochs",
        "Collections since the oldest session began; what they condemned is not deleted before it \
         ends.",
        held_back.max().unwrap_or(0),
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
