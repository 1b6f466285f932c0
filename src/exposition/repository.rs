//! The metrics of a repository: what an operator wants to be told about without a mount.
//!
//! Owns the choice of values, and what they count. They come from the root, the list of snapshots
//! and the bases of sessions. Pure.

use std::collections::BTreeMap;

use crate::exposition::{Exposition, Number};
use crate::root::snapshots::{Drill, SnapshotEntry, SnapshotList};
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
    expose_drills(&volumes, text);
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

/// Adds when the snapshots of each volume were drilled last, and whether that went well.
fn expose_drills(volumes: &BTreeMap<&str, Vec<&SnapshotEntry>>, text: &mut Exposition) {
    let seconds = |drill: &Drill| drill.time.as_millisecond() as f64 / 1e3;
    let drills = |made: &[&SnapshotEntry]| -> Vec<Drill> {
        made.iter()
            .filter_map(|entry| entry.drill.clone())
            .collect()
    };
    let good = volumes.iter().filter_map(|(volume, made)| {
        let drills = drills(made);
        let good = drills.iter().filter(|drill| drill.is_good);
        let last = good.max_by_key(|drill| drill.time)?;
        Some(((*volume).to_owned(), Number::Seconds(seconds(last))))
    });
    text.gauges(
        "repository_last_good_drill_timestamp_seconds",
        "Unix time of the last drill on a kept snapshot of a volume that went well.",
        "volume",
        good.collect(),
    );
    let last = volumes.iter().filter_map(|(volume, made)| {
        let drills = drills(made);
        let last = drills.iter().max_by_key(|drill| drill.time)?;
        let is_good = Number::Count(u64::from(last.is_good));
        Some(((*volume).to_owned(), is_good))
    });
    text.gauges(
        "repository_last_drill_good",
        "1 if the last drill on a kept snapshot of a volume went well, else 0.",
        "volume",
        last.collect(),
    );
}
