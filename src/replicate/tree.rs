//! A tree of one repository, item by item, as a tree of another.
//!
//! Owns: which items change and what they are in the target. Names lie under a keyed hash, and extents name contents by keyed ids; all else is the same on both sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_chunker::extent::Target;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::{Duration, Instant};

use super::{Progress, Replication};
use crate::repository::Repository;
use crate::tree::apply::apply;
use crate::tree::diff::Diff;
use crate::tree::item::{Extent, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::tree::map::{Cursor, Tree};
use crate::volume::error::VolumeError;
use crate::volume::nodes::{NewNodes, Nodes, decode_item};

/// Items that are translated together: bounds the memory of a step.
const STEP_ITEMS: usize = 8192;

/// Contents of a step, in bytes.
const STEP_BYTES: u64 = 256 << 20;

/// Contents under way at once; each of up to 2 MiB, read and stored.
const CONTENTS_AT_ONCE: usize = 16;

/// A commit is due after so long.
const COMMIT_INTERVAL: Duration = Duration::from_secs(60);

/// Or after so many blobs, which take memory until then.
const COMMIT_BLOBS: usize = 200_000;

/// What is to be changed: everything, or what differs.
enum Changes {
    All(Cursor),
    Differing(Diff),
}

impl Changes {
    /// The next key, and its new value.
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

/// A translation under way.
pub(super) struct Translation<'a> {
    from: &'a Repository,
    to: &'a Repository,
    ingest: Arc<Ingest>,
    changes: Changes,
    tree: Id,
    progress: &'a Progress,
    uncommitted_bytes: u64,
    commit_bytes: u64,
    last_commit: Instant,
}

impl<'a> Translation<'a> {
    /// From the tree `sources.1` of the source, of which the target has `sources.0` as `start`.
    pub(super) fn new(
        replication: &'a Replication<'a>,
        ingest: Arc<Ingest>,
        sources: (Option<Id>, Id),
        start: Id,
    ) -> Self {
        let source = Tree::new(sources.1);
        let changes = match sources.0 {
            Some(before) => {
                Changes::Differing(Diff::new(Tree::new(before), source, key::everything()))
            }
            None => Changes::All(source.range(key::everything())),
        };
        Translation {
            from: replication.from,
            to: replication.to,
            ingest,
            changes,
            tree: start,
            progress: replication.progress,
            uncommitted_bytes: 0,
            commit_bytes: replication.commit_bytes,
            last_commit: Instant::now(),
        }
    }

    /// The tree in the target, as far as it is.
    pub(super) fn tree(&self) -> Id {
        self.tree
    }

    /// Whether what was stored should be named by a commit before it goes on.
    pub(super) fn wants_commit(&self) -> bool {
        self.uncommitted_bytes >= self.commit_bytes
            || self.last_commit.elapsed() >= COMMIT_INTERVAL
            || self.ingest.uncommitted_blobs() >= COMMIT_BLOBS
    }

    /// It is named.
    pub(super) fn committed(&mut self) {
        self.uncommitted_bytes = 0;
        self.last_commit = Instant::now();
    }

    /// Translates some items; false if there are none left.
    pub(super) async fn step(&mut self) -> Result<bool, VolumeError> {
        let mut translated: BTreeMap<Key, Option<Bytes>> = BTreeMap::new();
        let mut contents: Vec<(Key, Extent)> = Vec::new();
        let mut bytes = 0;
        let mut items = 0;
        while items < STEP_ITEMS && bytes < STEP_BYTES.min(self.commit_bytes) {
            let Some((key, value)) = self.changes.next(&self.from.nodes).await? else {
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
        translated.extend(self.contents(contents).await?);
        let changes = translated.into_iter();
        let nodes = self.to.nodes.as_ref();
        let sink = NewNodes {
            ingest: &self.ingest,
            cache: nodes,
        };
        self.tree = apply(nodes, &sink, self.tree, changes).await?;
        self.uncommitted_bytes += bytes;
        self.progress
            .items
            .fetch_add(items as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// The key in the target: only names lie elsewhere there.
    fn key(&self, key: &Key) -> Result<Key, VolumeError> {
        let malformed = |error| VolumeError::Tree(format!("{key:?}: {error}"));
        Ok(match key.parse().map_err(malformed)? {
            KeyParts::Name {
                directory, name, ..
            } => Key::name(directory, self.to.nodes.names().cookie(name), name),
            _ => key.clone(),
        })
    }

    /// Stores the contents of extents in the target, each target once.
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
        // In the order of the files: what lies together there shall lie together here.
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
        let target = self.ingest.import(&self.from.depot, target).await?;
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
