//! Snapshots that repairs list from their commit records while it is not known which packs are
//! condemned.
//!
//! Owns which of them a renewal finds whole, and the change of the lists that says so. Until then
//! what they need may lie in condemned packs (docs/PROTOCOL.md, rule 3), and they bear a mark.

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::Ingest;

use super::mark::Marker;
use super::whole::Wholeness;
use crate::root::error::RootError;
use crate::root::forget::rewrite;
use crate::root::shard::{ListEntry, ListRef};
use crate::root::snapshots::{SnapshotEntry, TrashEntry};
use crate::root::state::Root;
use crate::root::transition::ListChange;

/// The tree and the commit record of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The root node of its tree.
    pub tree: Option<Id>,
    /// The record of its commit.
    pub commit: Id,
}

impl Head {
    /// Returns those of a snapshot.
    pub fn of(entry: &SnapshotEntry) -> Self {
        Self {
            tree: entry.tree,
            commit: entry.commit,
        }
    }

    /// Returns what is to be marked.
    pub(super) fn blobs(&self) -> impl Iterator<Item = (Kind, Id)> {
        let tree = self.tree.map(|tree| (Kind::Node, tree));
        tree.into_iter().chain([(Kind::Commit, self.commit)])
    }
}

/// What stands in for lists of snapshots, kept or forgotten, that cannot be read.
#[derive(Clone, Debug, Default)]
pub struct Rebuilt {
    /// The lists.
    pub lost: Vec<ListRef>,
    /// The snapshots that will be listed in place of them.
    pub heads: Vec<Head>,
}

/// Returns the commits of the snapshots of which everything lies in packs that can be read and are
/// not known to be condemned: of `others`, and of those that bear the mark in `root`, which the
/// marker has marked last. The renewal leaves these packs live, or stores again what is needed of
/// them.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn whole(
    marker: &Marker,
    root: &Root,
    others: &[Head],
) -> Result<HashSet<Id>, RootError> {
    let (lists, content_store) = (&marker.lists, &marker.content_store);
    let refs = marker.readable(&root.snapshots);
    let kept = lists.snapshot_shards(&refs).await?;
    let refs = marker.readable(&root.trash);
    let trash = lists.trash_shards(&refs).await?;
    let mut heads = others.to_vec();
    let listed = kept.iter().flat_map(|shard| shard.iter());
    heads.extend(listed.filter(|entry| entry.rebuilt).map(Head::of));
    let trash = trash.iter().flat_map(|shard| shard.iter());
    let trash = trash.map(|entry| &entry.snapshot);
    heads.extend(trash.filter(|entry| entry.rebuilt).map(Head::of));
    let is_there = |places: &[PackLocation]| {
        let is_gone = |place: &PackLocation| {
            let doubt = marker.doubt.as_ref();
            doubt.is_some_and(|doubt| doubt.gone.contains(&place.pack))
        };
        let is_live = |place: &PackLocation| marker.live.contains(&place.pack);
        places.iter().any(|place| is_live(place) && !is_gone(place))
    };
    whole_of(content_store, &heads, is_there).await
}

/// Returns the commits of those of `heads` of which `is_there` returns true for the places of
/// everything, and of which all nodes and segments can be read.
///
/// # Errors
/// The store cannot be read.
pub(in crate::maintain) async fn whole_of(
    content_store: &ContentStore,
    heads: &[Head],
    is_there: impl Fn(&[PackLocation]) -> bool,
) -> Result<HashSet<Id>, RootError> {
    let mut trees = Wholeness::new(content_store, &is_there);
    let mut whole = HashSet::new();
    for head in heads {
        let has_tree = match head.tree {
            Some(tree) => trees.of(tree).await?,
            None => true,
        };
        if has_tree && is_there(&content_store.places(&head.commit).await?) {
            whole.insert(head.commit);
        }
    }
    Ok(whole)
}

/// Returns the changes of the lists of kept and of forgotten snapshots of `root` by which those of
/// `commits` lose the mark. Lists that are known to be lost stay as they are.
///
/// # Errors
/// A list cannot be read or stored.
pub(super) async fn without_mark(
    marker: &Marker,
    ingest: &Ingest,
    root: &Root,
    commits: &HashSet<Id>,
) -> Result<(ListChange, ListChange), RootError> {
    if commits.is_empty() {
        return Ok(Default::default());
    }
    let bears = |entry: &SnapshotEntry| entry.rebuilt && commits.contains(&entry.commit);
    let refs = marker.readable(&root.snapshots);
    let shards = marker.lists.snapshot_shards(&refs).await?;
    let clear = |entry: &SnapshotEntry| SnapshotEntry {
        rebuilt: false,
        ..entry.clone()
    };
    let kept = replaced(ingest, (&refs[..], &shards[..]), bears, clear).await?;
    let refs = marker.readable(&root.trash);
    let shards = marker.lists.trash_shards(&refs).await?;
    let forgotten_bears = |entry: &TrashEntry| bears(&entry.snapshot);
    let forgotten_clear = |entry: &TrashEntry| TrashEntry {
        snapshot: clear(&entry.snapshot),
        forgotten: entry.forgotten,
    };
    let trash = (&refs[..], &shards[..]);
    let trash = replaced(ingest, trash, forgotten_bears, forgotten_clear).await?;
    Ok((kept, trash))
}

/// Returns the change of a list by which the entries for which `leaves` returns true are replaced.
async fn replaced<T: ListEntry>(
    ingest: &Ingest,
    (refs, shards): (&[ListRef], &[Arc<Vec<T>>]),
    leaves: impl Fn(&T) -> bool,
    by: impl Fn(&T) -> T,
) -> Result<ListChange, RootError> {
    let entries = shards.iter().flat_map(|shard| shard.iter());
    let joining: Vec<T> = entries.filter(|entry| leaves(entry)).map(by).collect();
    if joining.is_empty() {
        return Ok(ListChange::default());
    }
    rewrite(ingest, refs, shards, leaves, joining).await
}
