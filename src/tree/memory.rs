//! Nodes in memory, for tests, benchmarks and temporary trees.
//!
//! This module owns a map from id to node and counters of the requests to it. Ids are plain BLAKE3,
//! not the keyed ids of a repository.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::id::Id;
use bytes::Bytes;
use parking_lot::Mutex;

use super::node::Node;
use super::source::{NodeSink, NodeSource, TreeError};

/// A source and sink of nodes in memory. It grows with every new node and never drops one.
#[derive(Default)]
pub struct MemoryNodes {
    nodes: Mutex<HashMap<Id, Arc<Node>>>,
    loads: AtomicU64,
    stores: AtomicU64,
    announced: AtomicU64,
}

impl MemoryNodes {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of loads so far.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Returns the number of stores so far, repeated stores of equal nodes included.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Relaxed)
    }

    /// Returns the number of nodes announced by [`NodeSource::prefetch`] so far.
    pub fn announced(&self) -> u64 {
        self.announced.load(Ordering::Relaxed)
    }

    /// Returns the number of different nodes.
    pub fn len(&self) -> usize {
        self.nodes.lock().len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the node with `id`, without counting a load.
    pub fn peek(&self, id: Id) -> Option<Arc<Node>> {
        self.nodes.lock().get(&id).cloned()
    }

    /// Stores a node under an id that need not be the id of its bytes, for tests of damage.
    ///
    /// # Errors
    /// [`TreeError::BadNode`] if the bytes are not a node.
    pub fn plant(&self, id: Id, bytes: Bytes) -> Result<(), TreeError> {
        let node = Node::decode(bytes).map_err(|error| TreeError::BadNode { id, error })?;
        self.nodes.lock().insert(id, Arc::new(node));
        Ok(())
    }
}

impl NodeSource for MemoryNodes {
    type Error = TreeError;

    async fn load(&self, id: Id) -> Result<Arc<Node>, TreeError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.peek(id).ok_or(TreeError::Absent { id })
    }

    fn prefetch(&self, ids: &[Id]) {
        self.announced
            .fetch_add(ids.len() as u64, Ordering::Relaxed);
    }
}

impl NodeSink for MemoryNodes {
    type Error = TreeError;

    async fn store(&self, _level: u8, bytes: Vec<u8>) -> Result<Id, TreeError> {
        self.stores.fetch_add(1, Ordering::Relaxed);
        let id = Id(*blake3::hash(&bytes).as_bytes());
        if self.peek(id).is_none() {
            self.plant(id, Bytes::from(bytes))?;
        }
        Ok(id)
    }
}
