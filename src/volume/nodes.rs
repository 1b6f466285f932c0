//! Tree nodes, between the tree and the depot.
//!
//! Owns: a bounded cache of decoded nodes, and the storing of new ones. Does not own: the meaning
//! of nodes.

use std::num::NonZeroUsize;
use std::sync::Arc;

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::Ingest;
use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;

use crate::tree::item::Item;
use crate::tree::key::Key;
use crate::tree::node::Node;
use crate::tree::source::{NodeSink, NodeSource};
use crate::volume::error::VolumeError;
use crate::volume::names::Names;

/// Maximum number of cached nodes: about 32 KiB each, so about 48 MiB.
const CACHED_NODES: NonZeroUsize = NonZeroUsize::new(1536).expect("not zero");

/// Reads the nodes of all trees of the repository.
pub struct Nodes {
    content_store: ContentStore,
    names: Names,
    cache: Arc<Mutex<LruCache<Id, Arc<Node>>>>,
}

impl Nodes {
    /// Returns a reader of the nodes of `content_store`.
    pub fn new(content_store: ContentStore) -> Self {
        let names = Names::new(content_store.keyring().clone());
        Nodes {
            content_store,
            names,
            cache: Arc::new(Mutex::new(LruCache::new(CACHED_NODES))),
        }
    }

    /// Returns a reader with the same cache, which reads by another handle of the content store.
    pub fn reading_by(&self, content_store: ContentStore) -> Self {
        Nodes {
            names: Names::new(content_store.keyring().clone()),
            content_store,
            cache: self.cache.clone(),
        }
    }

    /// Returns the cookies of names, which keys contain.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the content store that nodes are read from.
    pub fn content_store(&self) -> &ContentStore {
        &self.content_store
    }

    /// Decodes a node and caches it.
    fn keep(&self, id: Id, bytes: Bytes) -> Result<Arc<Node>, VolumeError> {
        let node = Node::decode(bytes)
            .map_err(|error| VolumeError::Tree(format!("node {id}: {error}")))?;
        let node = Arc::new(node);
        self.cache.lock().put(id, node.clone());
        Ok(node)
    }
}

impl NodeSource for Nodes {
    type Error = VolumeError;

    async fn load(&self, id: Id) -> Result<Arc<Node>, VolumeError> {
        if let Some(node) = self.cache.lock().get(&id) {
            return Ok(node.clone());
        }
        let bytes = self.content_store.read_blob(Kind::Node, id).await?;
        self.keep(id, bytes)
    }
}

/// Stores new nodes through a session's ingest.
pub struct NewNodes<'a> {
    /// The ingest that stores them.
    pub ingest: &'a Ingest,
    /// The cache that keeps them, because they are read next: after a commit a volume must not wait
    /// for the bucket to read nodes that it has just written.
    pub cache: &'a Nodes,
}

impl NodeSink for NewNodes<'_> {
    type Error = VolumeError;

    async fn store(&self, _level: u8, bytes: Vec<u8>) -> Result<Id, VolumeError> {
        let bytes = Bytes::from(bytes);
        let id = self.ingest.store_blob(Kind::Node, bytes.clone()).await?;
        self.cache.keep(id, bytes)?;
        Ok(id)
    }
}

/// Decodes the item at `key` from its value in a tree.
///
/// # Errors
/// [`VolumeError::Tree`] if the key or the value is malformed.
pub fn decode_item(key: &Key, value: &Bytes) -> Result<Item, VolumeError> {
    let kind = key
        .kind()
        .map_err(|error| VolumeError::Tree(format!("{key:?}: {error}")))?;
    Item::decode(kind, value).map_err(|error| VolumeError::Tree(format!("{key:?}: {error}")))
}
