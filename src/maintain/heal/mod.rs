//! Brings back from another repository what is damaged or missing here.
//!
//! Owns the order: what is wanted is looked for where it can be found, stored by a session of maintenance, and made live by a replacement of the root. Decides nothing about what is damaged:
//! that is [`super::judge`]. Never writes into the other repository.
//!
//! Ids are keyed per repository, so a blob has another name there. The way to it is the place where a file has it: the same volume, snapshot, inode and offset, as `bkfs copy` keeps
//! them. What is read there is named under this repository's key and taken only if that name is one that is wanted: whatever the other repository holds, nothing wrong is ever stored.
//!
//! | module | |
//! |---|---|
//! | [`walk`] | from trees here down to what is lost, and to the same place there |
//! | [`builder`] | nodes from the items that they held (pure) |
//! | [`items`] | the items of a stretch of a tree there, as they are called here |
//! | [`publish`] | what was stored becomes live |
//!
//! Damaged places stay in quarantine until collection frees their packs; what lay in them is matched again, since it has another place now. Commit records are in no other repository: the
//! record of a snapshot is made anew from the list, beside the volume's chain of commits.

mod builder;
mod items;
mod publish;
mod walk;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_chunker::catalog::Place;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::{Class, Keyring};
use bkfs_chunker::store::Store;
use bkfs_chunker::verify::Verifier;
use jiff::Timestamp;

use super::check::{CheckOptions, Findings, open_depot};
use super::grounds;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::repository::probe;
use crate::root::session::OpenSession;
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::HolderInfo;
use publish::Publisher;
use walk::Healer;

/// What the session calls itself.
const MOUNT_POINT: &str = "bkfs check --repair --from";

/// Snapshots there that are looked into for what a tree here has lost.
const CANDIDATES_MAX: usize = 4;

/// What was brought back.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Healed {
    /// Chunks, segments and nodes that were stored again.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Commit records that were made anew.
    pub records: u64,
}

impl Healed {
    /// And these too.
    pub fn add(&mut self, more: &Self) {
        self.blobs += more.blobs;
        self.bytes += more.bytes;
        self.records += more.records;
    }

    /// Whether nothing was.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Stores again what `findings` says is damaged or missing, as far as it lies in `from` or can still be read here. The quarantine of the damaged places must be in the root
/// already. Nothing is done while a part of the index or of the lists is lost: mend that first.
///
/// # Errors
/// Store errors of either repository, and those of a session's entry; [`RootError::Rebuild`] if somebody collected garbage meanwhile. Doing it again is safe.
pub async fn heal(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    from: &Repository,
) -> Result<Healed, RootError> {
    let listed = &findings.listed;
    let nothing_lost = findings.indexed.lost.is_empty()
        && listed.lost.is_empty()
        && listed.lost_condemned.is_empty();
    let (Some(handle), true) = (&findings.handle, nothing_lost) else {
        return Ok(Healed::default());
    };
    if findings.damage.wanted().is_empty() {
        return Ok(Healed::default());
    }
    let there = from.snapshots().await?;
    probe(&**store, &*options.entropy, &options.policy).await?;
    let holder = HolderInfo::of_this_process(MOUNT_POINT);
    let session = OpenSession::open(handle, holder, None, &SystemProcesses).await?;
    let healed = async {
        let depot = open_depot(store, keyring, options)?;
        let ingest = Arc::new(Ingest::new(depot, session.id().0));
        let lists = Lists::new(store.clone(), keyring.clone());
        let publisher = Publisher::new(handle.clone(), lists, session.id(), ingest);
        work(handle, options, findings, from, &there, publisher).await
    };
    let healed = healed.await;
    if let Err(left) = session.end().await {
        tracing::warn!(error = %left, "the session of the repair stays in the root");
    }
    healed
}

async fn work(
    handle: &RootHandle,
    options: &CheckOptions,
    findings: &Findings,
    from: &Repository,
    there: &SnapshotList,
    publisher: Publisher,
) -> Result<Healed, RootError> {
    // The session must not count on an index older than itself (rule 4).
    let root = handle.current().root.clone();
    publisher.load(&root).await?;
    let mut quarantine: HashSet<Place> = findings.damage.places();
    quarantine.extend(&findings.listed.quarantine);
    let depot = publisher.ingest().depot().clone();
    depot.set_quarantine(quarantine);
    let mut healer = Healer::new(publisher, &findings.damage, from, &options.progress);
    still_readable(&mut healer, options, findings).await?;
    let mut trees = heads(findings, there);
    trees.extend(heads_of_grounds(findings, there).await?);
    for head in trees {
        if healer.wants_nothing() {
            break;
        }
        healer.tree(head.tree, &head.candidates).await?;
    }
    records(&mut healer, findings).await?;
    healer.finish().await
}

/// What can still be read in packs that do not describe themselves any more.
async fn still_readable(
    healer: &mut Healer<'_>,
    options: &CheckOptions,
    findings: &Findings,
) -> Result<(), RootError> {
    let mut packs = findings.damage.untrusted();
    if packs.is_empty() {
        return Ok(());
    }
    let depot = healer.depot();
    let verifier = Verifier::new(
        depot.store().clone(),
        depot.keyring().clone(),
        options.entropy.clone(),
        &options.verifier,
    )?;
    // Chunks before the segments that list them.
    packs.sort_by_key(|pack| (pack.class() == Class::MetadataPack, pack.name()));
    for pack in packs {
        let mut found = Vec::new();
        let mut visit = |blob: bkfs_chunker::verify::Found| {
            if healer.wants(&blob.id) {
                found.push((blob.kind, blob.id, blob.bytes));
            }
        };
        verifier.walk(&pack, &mut visit).await?;
        for (kind, id, bytes) in found {
            healer.take(kind, id, bytes).await?;
        }
    }
    Ok(())
}

/// A tree here, and where it may be found there.
struct Head {
    tree: Id,
    /// Best first.
    candidates: Vec<Id>,
}

/// Every tree that somebody can see or bring back.
fn heads(findings: &Findings, there: &SnapshotList) -> Vec<Head> {
    let trash = findings.listed.trash.iter().map(|entry| &entry.snapshot);
    let snapshots = findings.listed.snapshots.iter().chain(trash);
    let mut heads: Vec<Head> = snapshots
        .filter_map(|entry| {
            Some(Head {
                tree: entry.tree?,
                candidates: candidates(there, &entry.volume, Some(&entry.name), entry.time),
            })
        })
        .collect();
    if let Some(handle) = &findings.handle {
        let view = handle.current();
        for (name, volume) in &view.root.volumes {
            heads.extend(volume.tree.map(|tree| Head {
                tree,
                candidates: candidates(there, name, None, Timestamp::MAX),
            }));
        }
    }
    heads
}

/// Those that spools of ended sessions stand on.
async fn heads_of_grounds(
    findings: &Findings,
    there: &SnapshotList,
) -> Result<Vec<Head>, RootError> {
    let mut heads = Vec::new();
    let Some(handle) = &findings.handle else {
        return Ok(heads);
    };
    let view = handle.current();
    for ground in view.root.grounds() {
        for id in ground.records() {
            let record = grounds::record_of(&findings.depot, id).await?;
            heads.extend(record.and_then(|record| {
                Some(Head {
                    tree: record.tree?,
                    candidates: candidates(there, &ground.volume, None, record.time),
                })
            }));
        }
    }
    Ok(heads)
}

/// The snapshot's copy, then those that were made next to it.
fn candidates(there: &SnapshotList, volume: &str, name: Option<&str>, time: Timestamp) -> Vec<Id> {
    let mut entries: Vec<&SnapshotEntry> = there.of_volume(volume);
    entries.sort_by_key(|entry| {
        let is_copy = Some(entry.name.as_str()) == name && entry.time == time;
        let distance = entry.time.as_second().abs_diff(time.as_second());
        (!is_copy, distance, entry.generation)
    });
    let mut trees: Vec<Id> = Vec::new();
    for tree in entries.into_iter().filter_map(|entry| entry.tree) {
        if !trees.contains(&tree) && trees.len() < CANDIDATES_MAX {
            trees.push(tree);
        }
    }
    trees
}

/// Commit records that snapshots and volumes name and nobody has any more.
async fn records(healer: &mut Healer<'_>, findings: &Findings) -> Result<(), RootError> {
    let Some(handle) = &findings.handle else {
        return Ok(());
    };
    let trash = findings.listed.trash.iter().map(|entry| &entry.snapshot);
    let snapshots: Vec<&SnapshotEntry> = findings.listed.snapshots.iter().chain(trash).collect();
    let root = handle.current().root.clone();
    for (name, volume) in &root.volumes {
        // Whoever holds it makes another record with the next commit.
        let commit = volume.commit.filter(|_| volume.holder.is_none());
        if commit.is_some_and(|commit| healer.wants(&commit)) {
            healer.record_of_volume(name, volume, &snapshots).await?;
        }
    }
    for entry in snapshots {
        if healer.wants(&entry.commit) {
            healer.record_of_snapshot(entry).await?;
        }
    }
    Ok(())
}

/// What something refers to.
type Leaning = HashSet<(Kind, Id)>;

/// Packs that are gone.
type Gone = Vec<PackName>;

/// Something was stored again.
fn count(progress: &super::check::CheckProgress, bytes: u64) {
    progress.healed_blobs.fetch_add(1, Ordering::Relaxed);
    progress.healed_bytes.fetch_add(bytes, Ordering::Relaxed);
}
