//! Translation of a tree of one repository, item by item, into a tree of another.
//!
//! Owns: which items change, and their form in the target. Names are ordered by a keyed hash, and
//! extents refer to contents by keyed ids; all other items are equal on both sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_chunker::extent::Target;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::{Duration, Instant};

use super::progress::CopyProgress;
use crate::repository::Repository;
use crate::tree::apply::apply;
use crate::tree::diff::Diff;
use crate::tree::item::{Extent, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::tree::map::{Cursor, Tree};
use crate::volume::error::VolumeError;
use crate::volume::nodes::{NewNodes, Nodes, decode_item};

/// Items translated together, which bounds the memory of a step.
const STEP_ITEMS: usize = 8192;

/// Contents of a step, in bytes.
const STEP_BYTES: u64 = 256 << 20;

/// Contents read and stored concurrently; each has up to 2 MiB.
const CONTENTS_AT_ONCE: usize = 16;

/// When an early commit is due: it names what is translated so far.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes of contents. An interrupted copy sends at most about as many again.
    pub bytes: u64,
    /// Number of blobs that were found in the target. Their names take memory until the commit, and
    /// it must check them.
    pub found: usize,
}

impl Pace {
    /// Returns a pace of so many bytes. A million blobs that were found take about 60 MB, and are
    /// about 64 GiB of contents.
    pub fn every(bytes: u64) -> Self {
        Self {
            bytes,
            found: 1_000_000,
        }
    }
}

/// Time after which a commit is due.
const COMMIT_INTERVAL: Duration = Duration::from_secs(60);

/// Number of uncommitted blobs at which a commit is due; they take memory until then.
const COMMIT_BLOBS: usize = 200_000;

/// The items to translate: all of a tree, or those that differ.
enum Changes {
    All(Cursor),
    Differing(Diff),
}

impl Changes {
    /// Returns the next key and its new value; a value of `None` removes the key.
    async fn next(&mut self, nodes: &Nodes) -> Result<Option<(Key, Option<Bytes>)>, VolumeError> {
        match self {
            Changes::All(cursor) => {
                let entry = cursor.next(nodes).await?;
                Ok(entry.map(|(key, value)| (key, Some(value))))
            }
            Changes::Differing(diff) => {
                let difference = diff.next(nodes).await?;
                Ok(difference.map(|difference| (difference.key, difference.right)))
            }
        }
    }
}

/// The two repositories of a translation.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    /// The source.
    pub(super) from: &'a Repository,
    /// The target.
    pub(super) to: &'a Repository,
}

/// A translation in progress.
pub(super) struct Translation<'a> {
    ends: Ends<'a>,
    ingest: Arc<Ingest>,
    changes: Changes,
    tree: Id,
    progress: &'a CopyProgress,
    /// Bytes of contents since the last commit.
    uncommitted_bytes: u64,
    /// Those of steps in which anything was not found in the target.
    new_bytes: u64,
    pace: Pace,
    last_commit: Instant,
}

impl<'a> Translation<'a> {
    /// Returns a translation of the tree `sources.1` of the source. `start` is the target's tree
    /// for the source's tree `sources.0`.
    pub(super) fn new(
        ends: Ends<'a>,
        ingest: Arc<Ingest>,
        sources: (Option<Id>, Id),
        start: Id,
        pace: Pace,
        progress: &'a CopyProgress,
    ) -> Self {
        let source = Tree::new(sources.1);
        let changes = match sources.0 {
            Some(before) => {
                Changes::Differing(Diff::new(Tree::new(before), source, key::everything()))
            }
            None => Changes::All(source.range(key::everything())),
        };
        Translation {
            ends,
            ingest,
            changes,
            tree: start,
            progress,
            uncommitted_bytes: 0,
            new_bytes: 0,
            pace,
            last_commit: Instant::now(),
        }
    }

    /// Returns the tree in the target, as far as it is translated.
    pub(super) fn tree(&self) -> Id {
        self.tree
    }

    /// Returns true if a commit should name the stored blobs before the translation continues.
    /// `gives_up` says that it would give up the tree that an interrupted copy has left. That one
    /// names more as long as everything is found.
    pub(super) fn wants_commit(&self, gives_up: bool) -> bool {
        let bytes = match gives_up {
            true => self.new_bytes,
            false => self.uncommitted_bytes,
        };
        let is_late = self.last_commit.elapsed() >= COMMIT_INTERVAL;
        bytes >= self.pace.bytes
            || is_late && !(gives_up && self.new_bytes == 0)
            || self.ingest.uncommitted_blobs() >= COMMIT_BLOBS
            || self.ingest.uncommitted_references() >= self.pace.found
    }

    /// Notes that a commit has named the stored blobs.
    pub(super) fn committed(&mut self) {
        (self.uncommitted_bytes, self.new_bytes) = (0, 0);
        self.last_commit = Instant::now();
    }

    /// Translates some items; returns false if none are left.
    pub(super) async fn step(&mut self) -> Result<bool, VolumeError> {
        let mut translated: BTreeMap<Key, Option<Bytes>> = BTreeMap::new();
        let mut contents: Vec<(Key, Extent)> = Vec::new();
        let mut bytes = 0;
        let mut items = 0;
        while items < STEP_ITEMS && bytes < STEP_BYTES.min(self.pace.bytes) {
            let Some((key, value)) = self.changes.next(&self.ends.from.nodes).await? else {
                break;
            };
            items += 1;
            let new_key = self.key(&key)?;
            let value = match value {
                None => None,
                Some(value) => match decode_item(&key, &value)? {
                    Item::Extent(extent) => {
                        bytes += u64::from(extent.length);
                        contents.push((new_key, extent));
                        continue;
                    }
                    _ => Some(value),
                },
            };
            translated.insert(new_key, value);
        }
        if items == 0 {
            return Ok(false);
        }
        let known_blobs = self.ingest.uncommitted_blobs();
        translated.extend(self.contents(contents).await?);
        let is_any_new = self.ingest.uncommitted_blobs() > known_blobs;
        let changes = translated.into_iter();
        let nodes = self.ends.to.nodes.as_ref();
        let sink = NewNodes {
            ingest: &self.ingest,
            cache: nodes,
        };
        self.tree = apply(nodes, &sink, self.tree, changes).await?;
        self.uncommitted_bytes += bytes;
        self.new_bytes += if is_any_new { bytes } else { 0 };
        self.progress
            .items
            .fetch_add(items as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Returns the key in the target. Only the keys of names differ there.
    fn key(&self, key: &Key) -> Result<Key, VolumeError> {
        let malformed = |error| VolumeError::Tree(format!("{key:?}: {error}"));
        Ok(match key.parse().map_err(malformed)? {
            KeyParts::Name {
                directory, name, ..
            } => Key::name(directory, self.ends.to.nodes.names().cookie(name), name),
            _ => key.clone(),
        })
    }

    /// Stores the contents of extents in the target, each of them once.
    async fn contents(
        &self,
        extents: Vec<(Key, Extent)>,
    ) -> Result<Vec<(Key, Option<Bytes>)>, VolumeError> {
        let mut groups: BTreeMap<Target, Vec<(Key, Extent)>> = BTreeMap::new();
        let mut order = Vec::new();
        for (key, extent) in extents {
            let group = groups.entry(extent.target).or_default();
            if group.is_empty() {
                order.push(extent.target);
            }
            group.push((key, extent));
        }
        // In the order of the files, so that contents that are adjacent in the source stay adjacent
        // in the target.
        let groups = order
            .into_iter()
            .filter_map(|target| Some((target, groups.remove(&target)?)));
        let imports = groups.map(|(target, group)| self.import(target, group));
        let done: Vec<Vec<(Key, Option<Bytes>)>> = stream::iter(imports.collect::<Vec<_>>())
            .buffered(CONTENTS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(done.into_iter().flatten().collect())
    }

    async fn import(
        &self,
        target: Target,
        group: Vec<(Key, Extent)>,
    ) -> Result<Vec<(Key, Option<Bytes>)>, VolumeError> {
        let target = self
            .ingest
            .import(&self.ends.from.content_store, target)
            .await?;
        let bytes: u64 = group
            .iter()
            .map(|(_, extent)| u64::from(extent.length))
            .sum();
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        let translated = group.into_iter().map(|(key, extent)| {
            let item = Item::Extent(Extent { target, ..extent });
            (key, Some(Bytes::from(item.encode())))
        });
        Ok(translated.collect())
    }
}
