//! The blobs that all reads below a place need.
//!
//! Owns the walk over a tree, which reads nodes and segments and no contents. Of a whole tree, all
//! nodes are needed. Of a part of it, those that look-ups on the way to it and reads below it meet:
//! the walk makes the same look-ups and notes what they load. No symbolic link is followed.

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_chunker::content_store::{ContentStore, PinPlan};
use bkfs_chunker::id::{Id, Kind};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::hydration::place::Planted;
use crate::tree::item::{Item, Target};
use crate::tree::key::{self, ItemKind, Key};
use crate::tree::map::Tree;
use crate::tree::node::Node;
use crate::tree::source::{NodeSource, Reference, references};
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::nodes::{Nodes, decode_item};

/// Nodes that are loaded concurrently.
const NODES_AT_ONCE: usize = 16;

/// Nodes of one level that are read before their children are, and segments that are read together.
const BATCH: usize = 256;

/// Adds everything below places to a plan.
pub struct Collector {
    content_store: ContentStore,
    plan: PinPlan,
    nodes: Recorded,
    segments: HashSet<Id>,
    waiting: Vec<Id>,
}

/// Nodes, and which of them were loaded.
struct Recorded {
    nodes: Nodes,
    /// Loaded and not in the plan yet.
    fresh: Mutex<Vec<Id>>,
    seen: Mutex<HashSet<Id>>,
}

impl NodeSource for Recorded {
    type Error = VolumeError;

    async fn load(&self, id: Id) -> Result<Arc<Node>, VolumeError> {
        let node = self.nodes.load(id).await?;
        if self.seen.lock().insert(id) {
            self.fresh.lock().push(id);
        }
        Ok(node)
    }
}

impl Collector {
    /// Returns a collector without places. Its reads give way to all others.
    pub fn new(content_store: &ContentStore) -> Collector {
        let content_store = content_store.in_background();
        Collector {
            plan: content_store.plan_pin(),
            nodes: Recorded {
                nodes: Nodes::new(content_store.clone()),
                fresh: Mutex::default(),
                seen: Mutex::default(),
            },
            content_store,
            segments: HashSet::new(),
            waiting: Vec::new(),
        }
    }

    /// Adds everything below a place. Returns false if the tree has no such place.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if something cannot be read; [`VolumeError::Tree`] if the tree
    /// is damaged.
    pub async fn add(&mut self, planted: &Planted) -> Result<bool, VolumeError> {
        let Some(root) = planted.tree() else {
            return Ok(false);
        };
        if planted.place.names.is_empty() {
            self.add_tree(root).await?;
            return Ok(true);
        }
        let tree = Tree::new(root);
        match self.resolve(&tree, &planted.place.names).await? {
            Some(inode) => self.add_below(&tree, inode).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the plan of all places.
    ///
    /// # Errors
    /// As [`Collector::add`].
    pub async fn finish(mut self) -> Result<PinPlan, VolumeError> {
        self.settle().await?;
        Ok(self.plan)
    }

    /// Adds a whole tree, from the root down. The nodes of the levels above the one in process wait
    /// on a stack.
    async fn add_tree(&mut self, root: Id) -> Result<(), VolumeError> {
        let mut stack = vec![root];
        while !stack.is_empty() {
            let batch = stack.split_off(stack.len().saturating_sub(BATCH));
            let loads = batch.into_iter().map(|id| self.nodes.load(id));
            let loads = futures::stream::iter(loads.collect::<Vec<_>>());
            let loaded: Vec<Arc<Node>> = loads.buffered(NODES_AT_ONCE).try_collect().await?;
            for node in loaded {
                for reference in references(&node) {
                    match reference? {
                        Reference::Node(id) => stack.push(id),
                        Reference::Target(target) => self.want(target).await?,
                    }
                }
            }
            self.add_nodes().await?;
        }
        Ok(())
    }

    /// Returns the inode at the end of these names. `None` if there is none.
    async fn resolve(&self, tree: &Tree, names: &[Vec<u8>]) -> Result<Option<u64>, VolumeError> {
        let mut inode = ROOT_INODE;
        for name in names {
            self.look_at(tree, inode).await?;
            let cookie = self.nodes.nodes.names().cookie(name);
            let key = Key::name(inode, cookie, name);
            let value = tree.get(&self.nodes, &key).await?;
            match value.map(|value| decode_item(&key, &value)).transpose()? {
                Some(Item::Name { inode: found, .. }) => inode = found,
                _ => return Ok(None),
            }
        }
        Ok(Some(inode))
    }

    /// Loads what the kernel asks of a directory on the way: attributes and extended attributes.
    async fn look_at(&self, tree: &Tree, inode: u64) -> Result<(), VolumeError> {
        tree.get(&self.nodes, &Key::attributes(inode)).await?;
        let mut cursor = tree.range(key::of_kind(inode, ItemKind::Xattr));
        while cursor.next(&self.nodes).await?.is_some() {}
        Ok(())
    }

    /// Adds everything below an inode of a tree.
    async fn add_below(&mut self, tree: &Tree, inode: u64) -> Result<(), VolumeError> {
        let mut stack = vec![inode];
        let mut seen = HashSet::from([inode]);
        while let Some(inode) = stack.pop() {
            let mut cursor = tree.range(key::of_inode(inode));
            while let Some((key, value)) = cursor.next(&self.nodes).await? {
                match decode_item(&key, &value)? {
                    Item::Name { inode, .. } if seen.insert(inode) => stack.push(inode),
                    Item::Extent(extent) => self.want(extent.target).await?,
                    _ => {}
                }
            }
            self.add_nodes().await?;
        }
        Ok(())
    }

    /// Adds contents of a file.
    async fn want(&mut self, target: Target) -> Result<(), VolumeError> {
        match target {
            Target::Chunk(id) => self.plan.add(&[(Kind::Chunk, id)]).await?,
            Target::Segment(id) if self.segments.insert(id) => self.waiting.push(id),
            Target::Segment(_) => {}
        }
        if self.waiting.len() >= BATCH {
            self.settle().await?;
        }
        Ok(())
    }

    async fn add_nodes(&mut self) -> Result<(), VolumeError> {
        let fresh = std::mem::take(&mut *self.nodes.fresh.lock());
        let blobs: Vec<(Kind, Id)> = fresh.into_iter().map(|id| (Kind::Node, id)).collect();
        Ok(self.plan.add(&blobs).await?)
    }

    /// Adds the segments that wait, and their chunks.
    async fn settle(&mut self) -> Result<(), VolumeError> {
        self.add_nodes().await?;
        let waiting = std::mem::take(&mut self.waiting);
        let blobs: Vec<(Kind, Id)> = waiting.iter().map(|id| (Kind::Segment, *id)).collect();
        self.plan.add(&blobs).await?;
        let chunks = self.content_store.chunks_of(&waiting).await?;
        let blobs: Vec<(Kind, Id)> = chunks.into_iter().map(|id| (Kind::Chunk, id)).collect();
        Ok(self.plan.add(&blobs).await?)
    }
}
