//! Brings back from another repository the blobs that are damaged or missing in this one.
//!
//! Owns the order. Wanted blobs are looked for where they can be found, stored by a session of
//! maintenance, and made live by a replacement of the root. [`super::judge`] decides which are
//! damaged. The other repository is never written.
//!
//! Ids are keyed per repository, so a blob has another id in the other one. It is found by its
//! place in a file: the same volume, snapshot, inode and offset, which `bkfs copy` keeps. A blob
//! that is read there gets an id under this repository's key, and is taken only if that id is
//! wanted. So whatever the other repository holds, nothing wrong is ever stored.
//!
//! | module | |
//! |---|---|
//! | [`walk`] | from trees of this repository to lost blobs, and to their place in the other one |
//! | [`builder`] | makes nodes again from the items that they held (pure) |
//! | [`items`] | items of a tree of the other repository, with the keys of this one |
//! | [`publish`] | makes stored blobs live |
//! | [`records`] | makes lost commit records anew |
//! | [`counts`] | how much was brought back |
//!
//! Damaged places stay in quarantine until collection frees their packs. A blob that was in one is
//! matched again, since it has another place now. No other repository has the commit records of
//! this one: the record of a snapshot is made anew from the list, outside the volume's chain of
//! commits.

mod builder;
pub mod counts;
mod items;
mod publish;
mod records;
mod walk;

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::verify::Verifier;
use bkfs_store::Store;
use jiff::Timestamp;

use super::check::{Findings, open_content_store};
use super::options::CheckOptions;
use super::recovery_bases;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::repository::probe;
use crate::root::session::OpenSession;
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::HolderInfo;
use counts::Healed;
use publish::Publisher;
use walk::Healer;

/// The mount point that the session states.
const MOUNT_POINT: &str = "bkfs check --repair --from";

/// Snapshots of the other repository in which the lost parts of one tree are looked for.
const CANDIDATES_MAX: usize = 4;

/// Stores again what `findings` says is damaged or missing, as far as `from` has it or it can still
/// be read here. The root must have the damaged places in quarantine already. Does nothing while a
/// part of the index or of the lists is lost: that has to be repaired first.
///
/// Cancel safety: dropped half-way, it leaves its session in the root. What it has stored is live
/// or in packs that no root names.
///
/// # Errors
/// [`RootError::Store`] or [`RootError::Content`] if one of the stores fails, those of
/// [`OpenSession::open`] and of [`RootHandle::update`], and [`RootError::Rebuild`] if a pack that
/// it relies on was collected meanwhile. Calling it again is safe.
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
        let content_store = open_content_store(store, keyring, options)?;
        let ingest = Arc::new(Ingest::new(content_store, session.id().0));
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
    // The session must not use an index that is older than its registration (rule 4).
    let root = handle.current().root.clone();
    publisher.load(&root).await?;
    let mut quarantine: HashSet<PackLocation> = findings.damage.places();
    quarantine.extend(&findings.listed.quarantine);
    let content_store = publisher.ingest().content_store().clone();
    content_store.set_quarantine(quarantine);
    let mut healer = Healer::new(publisher, &findings.damage, from, &options.progress);
    still_readable(&mut healer, options, findings).await?;
    let mut trees = heads(findings, there);
    trees.extend(heads_of_recovery_bases(findings, there).await?);
    for head in trees {
        if healer.wants_nothing() {
            break;
        }
        healer.tree(head.tree, &head.candidates).await?;
    }
    records::replace_lost(&mut healer, findings).await?;
    healer.finish().await
}

/// Stores again what can still be read in packs that no longer describe themselves.
async fn still_readable(
    healer: &mut Healer<'_>,
    options: &CheckOptions,
    findings: &Findings,
) -> Result<(), RootError> {
    let mut packs = findings.damage.untrusted();
    if packs.is_empty() {
        return Ok(());
    }
    let content_store = healer.content_store();
    let verifier = Verifier::new(
        content_store.store().clone(),
        content_store.keyring().clone(),
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

/// A tree of this repository, and trees of the other one that may hold its lost parts.
struct Head {
    tree: Id,
    /// The best candidate first.
    candidates: Vec<Id>,
}

/// Returns every tree that a user can see or bring back.
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

/// Returns the trees that the spools of ended sessions are based on.
async fn heads_of_recovery_bases(
    findings: &Findings,
    there: &SnapshotList,
) -> Result<Vec<Head>, RootError> {
    let mut heads = Vec::new();
    let Some(handle) = &findings.handle else {
        return Ok(heads);
    };
    let view = handle.current();
    for recovery_base in view.root.recovery_bases() {
        for id in recovery_base.records() {
            let record = recovery_bases::record_of(&findings.content_store, id).await?;
            heads.extend(record.and_then(|record| {
                Some(Head {
                    tree: record.tree?,
                    candidates: candidates(there, &recovery_base.volume, None, record.time),
                })
            }));
        }
    }
    Ok(heads)
}

/// Returns the copy of the snapshot, then the snapshots whose times are nearest.
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
