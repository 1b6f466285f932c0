//! Nodes kept in memory: for tests, benchmarks, and trees that are thrown away.
//!
//! Owns a map from id to node and counters of what was asked of it. Ids are plain BLAKE3, not those of any repository.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::id::Id;
use bytes::Bytes;
use parking_lot::Mutex;

use super::node::Node;
use super::source::{NodeSink, NodeSource, TreeError};

/// A source and sink of nodes in memory. Grows with every new node and forgets none.
#[derive(Default)]
pub struct MemoryNodes {
    nodes: Mutex<HashMap<Id, Arc<Node>>>,
    loads: AtomicU64,
    stores: AtomicU64,
    announced: AtomicU64,
}

impl MemoryNodes {
    /// No nodes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often a node was loaded.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// How often a node was stored, equal ones included.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Relaxed)
    }

    /// How many nodes were announced by [`NodeSource::prefetch`].
    pub fn announced(&self) -> u64 {
        self.announced.load(Ordering::Relaxed)
    }

    /// Different nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node under `id`, without being counted.
    pub fn peek(&self, id: Id) -> Option<Arc<Node>> {
        self.nodes.lock().get(&id).cloned()
    }

    /// Puts any bytes under any id, to see what happens.
    ///
    /// # Errors
    /// If the bytes are no node.
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
