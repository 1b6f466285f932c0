//! Forgotten snapshots of which something cannot be read that a collection needs to know what they
//! need. They hold collections back until their undelete window ends, and for ever while a list of
//! condemned packs is lost.
//!
//! Owns which ones a repair gives up, and what is said of it.

use bkfs_chunker::catalog::Place;
use bkfs_chunker::error::DepotError;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::seal::Keyring;

use super::check::{CheckOptions, Findings};
use super::collect::sightings::SightingsFile;
use super::collect::whole::Wholeness;
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotEntry;

/// Returns the forgotten snapshots that are given up: those of which nodes, segments or the commit
/// record cannot be read. While a list of condemned packs is lost these are also those of which a
/// chunk lies only in several packs that cannot be read, since which of them is live is not known.
/// What the store refuses to give, or gives in no usable form, is not known to be broken.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn broken(findings: &Findings) -> Result<Vec<SnapshotEntry>, RootError> {
    let is_known = findings.handle.is_some() && findings.indexed.lost.is_empty();
    if !is_known || findings.report.is_clean() {
        return Ok(Vec::new());
    }
    let is_in_doubt = !findings.listed.lost_condemned.is_empty();
    let is_there = |places: &[Place]| {
        let is_elsewhere = |place: &Place| place.pack != places[0].pack;
        let is_undecided = is_in_doubt && places.iter().any(is_elsewhere);
        !is_undecided || findings.damage.any_good(places)
    };
    let depot = &findings.depot;
    let mut wholeness = Wholeness::new(depot, is_there).keeping_unread();
    let mut broken = Vec::new();
    for entry in findings.listed.trash.iter().map(|entry| &entry.snapshot) {
        let has_record = match depot.read_blob(Kind::Commit, entry.commit).await {
            Ok(_) => true,
            Err(
                DepotError::Damaged { .. }
                | DepotError::Missing { .. }
                | DepotError::Unknown { .. }
                | DepotError::Unreadable { .. },
            ) => false,
            // It is not known to be broken: the store may give it again.
            Err(DepotError::Store(error)) if error.is_of_one_object() => true,
            Err(error) => return Err(error.into()),
        };
        let is_whole = match entry.tree {
            Some(tree) => has_record && wholeness.of(tree).await?,
            None => has_record,
        };
        if !is_whole {
            broken.push(entry.clone());
        }
    }
    Ok(broken)
}

/// What is said before these are given up; nothing if there are none.
pub(super) fn step(broken: &[SnapshotEntry]) -> Option<String> {
    let name = |entry: &SnapshotEntry| format!("{}/{}", entry.volume, entry.name);
    let names: Vec<String> = broken.iter().map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "give up {} forgotten snapshots of which something cannot be read that collections need, and that cannot be brought back then: {}",
            names.len(),
            names.join(", ")
        )
    })
}

/// Takes note that these commits were given up: the next collection on this machine does not report
/// their snapshots as vanished.
pub(super) async fn remember(options: &CheckOptions, keyring: &Keyring, commits: Vec<Id>) {
    if let Some((directory, _)) = options.seen.as_ref().filter(|_| !commits.is_empty()) {
        let memory = SightingsFile::new(Some(directory), keyring.repository());
        memory.give_up(commits).await;
    }
}
