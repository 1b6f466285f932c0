//! Forgotten snapshots of which something cannot be read that a collection needs to know what they
//! need. They hold collections back until their undelete window ends, and for ever while a list of
//! condemned packs is lost.
//!
//! Owns which ones a repair gives up if it is told to, and what is said of them. What a store hides
//! for a while, or a later backup stores again, makes them whole: so nothing is given up unasked.

use std::collections::HashSet;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};

use super::check::Findings;
use super::collect::sightings::SightingsFile;
use super::collect::whole::Wholeness;
use super::options::CheckOptions;
use super::recovery_bases;
use super::repair_plan::RepairPlan;
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotEntry;

/// Forgotten snapshots of which something cannot be read.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// Those of which something cannot be read that nothing kept needs.
    alone: Vec<SnapshotEntry>,
    /// Those of which only that cannot be read which something kept needs too.
    shared: Vec<SnapshotEntry>,
}

/// The tree and the commit record of a snapshot or a volume.
type Head = (Option<Id>, Option<Id>);

/// Returns the forgotten snapshots of which nodes, segments or the commit record cannot be read, or
/// a chunk is in no pack. While a list of condemned packs is lost these are also those of which a
/// chunk lies only in several packs that cannot be read, since which of them is live is not known.
/// What the store refuses to give, or gives in no usable form, is not known to be broken.
///
/// Returns none before the index and the lists of snapshots are whole.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn find(findings: &Findings) -> Result<Broken, RootError> {
    let (listed, indexed) = (&findings.listed, &findings.indexed);
    let is_known = indexed.lost.is_empty() && listed.lost.is_empty();
    let Some(handle) = findings.handle.as_ref().filter(|_| is_known) else {
        return Ok(Broken::default());
    };
    if findings.report.is_clean() || listed.trash.is_empty() {
        return Ok(Broken::default());
    }
    let is_in_doubt = !listed.lost_condemned.is_empty();
    let is_there = |places: &[PackLocation]| {
        let is_elsewhere = |place: &PackLocation| place.pack != places[0].pack;
        let is_undecided = is_in_doubt && places.iter().any(is_elsewhere);
        !places.is_empty() && (!is_undecided || findings.damage.any_good(places))
    };
    let content_store = &findings.content_store;
    let head = |entry: &SnapshotEntry| (entry.tree, Some(entry.commit));
    let mut trees = Wholeness::new(content_store, is_there).keeping_unread();
    let mut broken = Vec::new();
    for entry in listed.trash.iter().map(|entry| &entry.snapshot) {
        if !is_whole(content_store, head(entry), &mut trees, &mut HashSet::new()).await? {
            broken.push(entry.clone());
        }
    }
    if broken.is_empty() {
        return Ok(Broken::default());
    }
    let mut kept: Vec<Head> = listed.snapshots.iter().map(head).collect();
    let view = handle.current();
    for volume in view.root.volumes.values() {
        kept.extend([(volume.tree, volume.commit), (volume.building, None)]);
    }
    for recovery_base in view.root.recovery_bases() {
        for id in recovery_base.records() {
            let record = recovery_bases::record_of(content_store, id).await?;
            kept.push((record.and_then(|record| record.tree), Some(id)));
        }
    }
    let mut trees = Wholeness::new(content_store, is_there).keeping_unread();
    let mut records = HashSet::new();
    for head in kept {
        is_whole(content_store, head, &mut trees, &mut records).await?;
    }
    let mut trees = Wholeness::but(content_store, is_there, trees.into_lacking()).keeping_unread();
    let mut found = Broken::default();
    for entry in broken {
        match is_whole(
            content_store,
            head(&entry),
            &mut trees,
            &mut records.clone(),
        )
        .await?
        {
            true => found.shared.push(entry),
            false => found.alone.push(entry),
        }
    }
    Ok(found)
}

/// Returns true if all that a head needs is there. Commit records in `lacking` count as there; one
/// that cannot be read is added to them.
async fn is_whole<F: Fn(&[PackLocation]) -> bool>(
    content_store: &ContentStore,
    (tree, commit): Head,
    trees: &mut Wholeness<'_, F>,
    lacking: &mut HashSet<Id>,
) -> Result<bool, RootError> {
    let mut has_record = true;
    if let Some(commit) = commit.filter(|commit| !lacking.contains(commit)) {
        has_record = match content_store.read_blob(Kind::Commit, commit).await {
            Ok(_) => true,
            Err(
                ContentError::Damaged { .. }
                | ContentError::Missing { .. }
                | ContentError::Unknown { .. }
                | ContentError::Unreadable { .. },
            ) => false,
            // It is not known to be broken: the store may give it again.
            Err(ContentError::Store(error)) if error.is_of_one_object() => true,
            Err(error) => return Err(error.into()),
        };
        if !has_record {
            lacking.insert(commit);
        }
    }
    // The tree is walked all the same: what it lacks is asked for.
    let has_tree = match tree {
        Some(tree) => trees.of(tree).await?,
        None => true,
    };
    Ok(has_record && has_tree)
}

impl Broken {
    /// Returns one of `commits` of which all that it alone needs can be read, if any.
    pub(super) fn whole_of(&self, commits: &[Id]) -> Option<Id> {
        let is_broken = |id: &Id| self.alone.iter().any(|entry| entry.commit == *id);
        commits.iter().find(|id| !is_broken(id)).copied()
    }

    /// Adds to a plan what is given up, and what is said of the rest.
    pub(super) fn plan(&self, gives_up: bool, plan: &mut RepairPlan) {
        let name = |entry: &SnapshotEntry| format!("{}/{}", entry.volume, entry.name);
        let names = |of: &[SnapshotEntry]| of.iter().map(name).collect::<Vec<_>>().join(", ");
        let (alone, shared) = (self.alone.len(), self.shared.len());
        if alone > 0 && gives_up {
            plan.steps.push(format!(
                "give up {alone} forgotten snapshots of which something cannot be read that \
                 collections need, and that cannot be brought back then: {}",
                names(&self.alone)
            ));
            plan.abandoned = self.alone.iter().map(|entry| entry.commit).collect();
        } else if alone > 0 {
            plan.remarks.push(format!(
                "something cannot be read of {alone} forgotten snapshots, which holds bkfs gc \
                 back: {}; if nothing brings it back, bkfs check --repair --give-up-forgotten \
                 gives these snapshots up for good",
                names(&self.alone)
            ));
        }
        if shared > 0 && gives_up {
            plan.remarks.push(format!(
                "giving up {shared} forgotten snapshots gains nothing, since what cannot be read \
                 of them is needed by snapshots or volumes that are kept: {}; forget the \
                 snapshots that are named with the damage first",
                names(&self.shared)
            ));
        }
    }
}

/// Takes note that these commits were given up: the next collection on this machine does not report
/// their snapshots as vanished.
pub(super) async fn remember(options: &CheckOptions, keyring: &Keyring, commits: Vec<Id>) {
    if let Some((directory, _)) = options.seen.as_ref().filter(|_| !commits.is_empty()) {
        let memory = SightingsFile::new(Some(directory), keyring.repository());
        memory.give_up(commits).await;
    }
}
