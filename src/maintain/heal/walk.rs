//! Walks from trees of this repository down to lost blobs, and to the same place in a tree of the
//! other repository.
//!
//! Owns the walk and the taking. A blob is stored only if it is wanted and live packs hold all that
//! it refers to (rule 3). A part of a tree is skipped once nothing below it is lost any more. Nodes
//! are made again from the items that a tree of the other repository has in their place.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::Range;

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::extent::Target;
use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_chunker::ingest::{Translated, translate};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use lru::LruCache;

use super::builder::Builder;
use super::counts::Healed;
use super::items::Items;
use super::publish::Publisher;
use crate::maintain::judge::Damage;
use crate::maintain::options::CheckProgress;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::tree::item::{Extent, Item};
use crate::tree::key::{Key, everything};
use crate::tree::map::Tree;
use crate::tree::node::Node;
use crate::volume::error::VolumeError;
use crate::volume::names::Names;
use crate::volume::nodes::decode_item;
use crate::volume::rescue::below;

/// Contents that are read at the same time, each of up to 2 MiB.
const CONTENTS_AT_ONCE: usize = 8;

/// Items of a node that are translated together.
const ITEMS_AT_ONCE: usize = 64;

/// Trees of the other repository in which a lost node is looked for. Each costs reading the
/// contents of all files in the node.
const NODE_CANDIDATES_MAX: usize = 2;

/// Targets of the other repository whose target here is remembered: about 100 bytes each.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("not zero");

/// Number of stored blobs after which they are made live. Each takes some memory until then.
const PUBLISH_BLOBS: usize = 50_000;

/// The search for wanted blobs.
pub(super) struct Healer<'a> {
    publisher: Publisher,
    damage: &'a Damage,
    from: &'a Repository,
    progress: &'a CheckProgress,
    /// Blobs that have not been found yet.
    wanted: HashSet<Prefix>,
    /// Targets of which everything is stored again.
    done: HashSet<Id>,
    /// Nodes that are whole, with everything below them.
    clean: HashSet<Id>,
    /// Number of places that could not be mended.
    failures: u64,
    /// The targets here of targets of the other repository.
    known: LruCache<Target, Target>,
    healed: Healed,
}

/// A node that has to be visited.
struct Step {
    id: Id,
    /// Its level by its parent. None for a root node.
    level: Option<u8>,
    range: Range<Key>,
}

enum Work {
    Look(Step),
    /// Everything below the node was visited. The number is that of the failures before.
    Leave(Id, u64),
}

impl<'a> Healer<'a> {
    pub(super) fn new(
        publisher: Publisher,
        damage: &'a Damage,
        from: &'a Repository,
        progress: &'a CheckProgress,
    ) -> Self {
        Self {
            publisher,
            damage,
            from,
            progress,
            wanted: damage.wanted().clone(),
            done: HashSet::new(),
            clean: HashSet::new(),
            failures: 0,
            known: LruCache::new(KNOWN_MAX),
            healed: Healed::default(),
        }
    }

    /// Reads blobs of this repository, those that were stored again included.
    pub(super) fn content_store(&self) -> ContentStore {
        self.publisher.ingest().content_store().clone()
    }

    /// Returns true if a blob has not been found yet.
    pub(super) fn wants(&self, id: &Id) -> bool {
        self.wanted.contains(&id.prefix())
    }

    pub(super) fn wants_nothing(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Stores a blob if it is wanted and live packs hold all that it refers to. `id` must be the id
    /// of these bytes.
    pub(super) async fn take(&mut self, kind: Kind, id: Id, bytes: Bytes) -> Result<(), RootError> {
        let below = below(kind, &bytes).unwrap_or_default();
        if !self.wants(&id) || !self.publisher.lean_on(below).await? {
            return Ok(());
        }
        let length = bytes.len() as u64;
        let stored = self.publisher.ingest().store_blob(kind, bytes).await?;
        if stored != id {
            return Err(ContentError::Internal("a blob that is called otherwise").into());
        }
        self.wanted.remove(&id.prefix());
        self.healed.blobs += 1;
        self.healed.bytes += length;
        self.progress.healed(length);
        if self.publisher.ingest().uncommitted_blobs() >= PUBLISH_BLOBS {
            self.publisher.publish().await?;
        }
        Ok(())
    }

    /// Looks through a tree of this repository for wanted blobs, and for those in `candidates`,
    /// trees of the other one.
    pub(super) async fn tree(&mut self, tree: Id, candidates: &[Id]) -> Result<(), RootError> {
        let mut stack = vec![Work::Look(Step {
            id: tree,
            level: None,
            range: everything(),
        })];
        while let Some(work) = stack.pop() {
            let step = match work {
                Work::Look(step) => step,
                Work::Leave(id, failures) => {
                    if failures == self.failures {
                        self.clean.insert(id);
                    }
                    continue;
                }
            };
            if self.clean.contains(&step.id) {
                continue;
            }
            let Some(node) = self.node_or_rebuilt(&step, candidates).await? else {
                self.failures += 1;
                continue;
            };
            stack.push(Work::Leave(step.id, self.failures));
            match node.level() {
                0 => self.leaf(&node, candidates).await?,
                _ => stack.extend(children(&node, &step.range)),
            }
        }
        Ok(())
    }

    async fn node_or_rebuilt(
        &mut self,
        step: &Step,
        candidates: &[Id],
    ) -> Result<Option<Node>, RootError> {
        if let Some(node) = self.node(step.id).await? {
            return Ok(Some(node));
        }
        for tree in candidates.iter().take(NODE_CANDIDATES_MAX) {
            if self.wants(&step.id) {
                self.rebuild(step, *tree).await?;
            }
        }
        match self.wants(&step.id) {
            true => Ok(None),
            false => self.node(step.id).await,
        }
    }

    async fn node(&self, id: Id) -> Result<Option<Node>, RootError> {
        let read = self.content_store().read_blob(Kind::Node, id).await;
        let bytes = readable(read.map_err(VolumeError::from))?;
        Ok(bytes.and_then(|bytes| Node::decode(bytes).ok()))
    }

    /// Stores the lost contents of a leaf again, as far as the candidates have them.
    async fn leaf(&mut self, node: &Node, candidates: &[Id]) -> Result<(), RootError> {
        let mut touched: Vec<(Key, Target)> = Vec::new();
        for index in 0..node.len() {
            let (key, value) = (node.key(index), node.value_bytes(index));
            let Ok(Item::Extent(extent)) = decode_item(&key, &value) else {
                continue;
            };
            let target = extent.target;
            let is_lost =
                self.damage.culprit(&target.id().prefix()).is_some() || self.wants(&target.id());
            if is_lost && !self.done.contains(&target.id()) {
                touched.push((key, target));
            }
        }
        for tree in candidates {
            let mut left = Vec::new();
            for group in touched.chunks(CONTENTS_AT_ONCE) {
                for ((key, target), translated) in
                    group.iter().zip(self.same_place(group, *tree).await?)
                {
                    let is_same = translated.target == Some(*target);
                    for (kind, id, bytes) in translated.blobs {
                        self.take(kind, id, bytes).await?;
                    }
                    if is_same && !self.wants(&target.id()) {
                        self.done.insert(target.id());
                    } else {
                        left.push((key.clone(), *target));
                    }
                }
            }
            touched = left;
        }
        self.failures += touched.len() as u64;
        Ok(())
    }

    /// Reads what `tree` of the other repository has at the places of these extents.
    async fn same_place(
        &self,
        extents: &[(Key, Target)],
        tree: Id,
    ) -> Result<Vec<Translated>, RootError> {
        let content_store = self.content_store();
        let keyring = content_store.keyring();
        let work = extents.iter().map(|(key, _)| async move {
            let nodes = self.from.nodes.as_ref();
            let Some(Some(value)) = readable(Tree::new(tree).get(nodes, key).await)? else {
                return Ok(Translated::default());
            };
            match decode_item(key, &value) {
                Ok(Item::Extent(extent)) => Ok::<_, RootError>(
                    translate(keyring, &self.from.content_store, extent.target).await?,
                ),
                _ => Ok(Translated::default()),
            }
        });
        let work = futures::stream::iter(work.collect::<Vec<_>>());
        work.buffered(CONTENTS_AT_ONCE).try_collect().await
    }

    /// Makes a node, and everything below it, again from the items that `tree` has in its place.
    /// What comes out of another version of a file is not wanted, and is dropped.
    async fn rebuild(&mut self, step: &Step, tree: Id) -> Result<(), RootError> {
        let content_store = self.content_store();
        let keyring = content_store.keyring().clone();
        let from = self.from;
        let names = Names::new(keyring.clone());
        let mut builder = Builder::new(|bytes: &[u8]| keyring.id(Kind::Node, bytes));
        let mut items = Items::new(&from.nodes, tree, names, step.range.clone());
        loop {
            let mut group: Vec<(Key, Bytes, Option<Extent>)> = Vec::new();
            while group.len() < ITEMS_AT_ONCE {
                let Some(next) = readable(items.next().await)? else {
                    return Ok(());
                };
                let Some((key, value)) = next else {
                    break;
                };
                match decode_item(&key, &value) {
                    Ok(Item::Extent(extent)) => group.push((key, value, Some(extent))),
                    Ok(_) => group.push((key, value, None)),
                    Err(_) => return Ok(()),
                }
            }
            if group.is_empty() {
                break;
            }
            let Some(group) = self.here(group).await? else {
                return Ok(());
            };
            for (key, value) in group {
                self.take_nodes(builder.push(&key, &value)).await?;
            }
        }
        self.take_nodes(builder.finish(step.level)).await
    }

    async fn take_nodes(&mut self, made: Vec<super::builder::Made>) -> Result<(), RootError> {
        for (id, bytes) in made {
            self.take(Kind::Node, id, Bytes::from(bytes)).await?;
        }
        Ok(())
    }

    /// Translates items of the other repository to this one. Returns none if the contents of one
    /// cannot be read there. Stores contents that are wanted.
    async fn here(
        &mut self,
        group: Vec<(Key, Bytes, Option<Extent>)>,
    ) -> Result<Option<Vec<(Key, Bytes)>>, RootError> {
        let extents = group.iter().filter_map(|(_, _, extent)| *extent);
        let mut unknown: Vec<Target> = extents.map(|extent| extent.target).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.retain(|target| !self.known.contains(target));
        let content_store = self.content_store();
        let (keyring, from) = (content_store.keyring().clone(), &self.from.content_store);
        let work = unknown
            .iter()
            .map(|target| translate(&keyring, from, *target));
        let mut work = futures::stream::iter(work.collect::<Vec<_>>()).buffered(CONTENTS_AT_ONCE);
        let mut next = 0;
        while let Some(translated) = work.try_next().await? {
            for (kind, id, bytes) in translated.blobs {
                self.take(kind, id, bytes).await?;
            }
            if let Some(target) = translated.target {
                self.known.put(unknown[next], target);
            }
            next += 1;
        }
        let mut items = Vec::with_capacity(group.len());
        for (key, value, extent) in group {
            let value = match extent {
                None => value,
                Some(extent) => match self.known.get(&extent.target) {
                    Some(&target) => {
                        Bytes::from(Item::Extent(Extent { target, ..extent }).encode())
                    }
                    None => return Ok(None),
                },
            };
            items.push((key, value));
        }
        Ok(Some(items))
    }

    /// Makes the rest live. Returns the counts of all that was brought back.
    pub(super) async fn finish(mut self) -> Result<Healed, RootError> {
        self.publisher.publish().await?;
        Ok(self.healed)
    }

    /// Returns the publisher, which makes stored blobs live.
    pub(super) fn publisher(&mut self) -> &mut Publisher {
        &mut self.publisher
    }

    /// Records that a commit record was made in place of a lost one.
    pub(super) fn replaced(&mut self, lost: &Id) {
        self.wanted.remove(&lost.prefix());
        self.healed.records += 1;
    }
}

fn children(node: &Node, range: &Range<Key>) -> Vec<Work> {
    let child = |index| {
        let child = node.child(index)?;
        let is_last = index + 1 == node.len();
        let end = match is_last {
            true => range.end.clone(),
            false => node.key(index + 1),
        };
        Some(Work::Look(Step {
            id: child.id,
            level: node.level().checked_sub(1),
            range: node.key(index)..end,
        }))
    };
    (0..node.len()).filter_map(child).collect()
}

/// Returns the value that was read; none if it is damaged or missing. An error of the store stays
/// one.
fn readable<T>(read: Result<T, VolumeError>) -> Result<Option<T>, RootError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(VolumeError::ContentStore(error)) if error.leaves_open() => {
            Err(ContentError::clone(&error).into())
        }
        Err(_) => Ok(None),
    }
}
