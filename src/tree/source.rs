//! The interfaces to the store of nodes, and the errors of a tree.
//!
//! This module owns the two traits that the store of a tree implements, and the errors of the tree
//! itself. It does not load or store anything itself.

use std::future::Future;
use std::sync::Arc;

use bkfs_chunker::id::Id;
use thiserror::Error;

use super::item::{Extent, Item, ItemError, Target};
use super::key::{ItemKind, Key, KeyError};
use super::node::{Child, Node, NodeError};

/// An error in a tree, or in a request to a tree.
#[derive(Clone, Debug, Eq, PartialEq, Error)]
pub enum TreeError {
    /// The bytes under an id are not a node.
    #[error("tree node {id}: {error}")]
    BadNode {
        /// The node's id.
        id: Id,
        /// The error in its bytes.
        error: NodeError,
    },
    /// There is no node under an id.
    #[error("tree node {id} is missing")]
    Absent {
        /// The node's id.
        id: Id,
    },
    /// A node does not match its parent's entry: it has another level, another first key or another
    /// item count, or is empty. A root that is too low for the level asked for is misplaced as
    /// well.
    #[error("tree node {id} does not match the entry of its parent")]
    Misplaced {
        /// The node's id.
        id: Id,
    },
    /// Changes were not given in strictly increasing order of keys.
    #[error("changes are not sorted: {key:?} does not come after the one before it")]
    Unsorted {
        /// First key that is not above the key before it.
        key: Key,
    },
    /// A key or value is longer than the tree accepts.
    #[error("entry {key:?} with a value of {value_bytes} bytes is too large")]
    TooLarge {
        /// The key.
        key: Key,
        /// Length of the value, in bytes.
        value_bytes: usize,
    },
    /// The tree has more levels than a tree may have. No honest tree reaches this limit.
    #[error("tree is too deep")]
    TooDeep,
    /// The key of an entry is not a key of a filesystem.
    #[error("entry {key:?}: {error}")]
    BadKey {
        /// The key.
        key: Key,
        /// The error in the key.
        error: KeyError,
    },
    /// The value of an entry does not have the form of its key's kind.
    #[error("entry {key:?}: {error}")]
    BadItem {
        /// The entry's key.
        key: Key,
        /// The error in the value.
        error: ItemError,
    },
}

/// A source of nodes by id.
///
/// An implementation verifies ids, keeps a cache, and joins simultaneous loads of one node into
/// one.
pub trait NodeSource: Send + Sync {
    /// Error of a load.
    type Error: From<TreeError> + Send;

    /// Loads the node with `id`, decoded by [`Node::decode`].
    ///
    /// # Errors
    /// The error of the implementation: its store fails, or, as a [`TreeError`], the node is absent
    /// ([`TreeError::Absent`]) or its bytes are not a node ([`TreeError::BadNode`]).
    fn load(&self, id: Id) -> impl Future<Output = Result<Arc<Node>, Self::Error>> + Send;

    /// Says that these nodes will probably be loaded soon, in this order.
    ///
    /// An implementation must return at once and bound the loads that it starts. It may do nothing.
    fn prefetch(&self, ids: &[Id]) {
        let _ = ids;
    }
}

/// A sink that stores nodes and returns their ids.
pub trait NodeSink: Send + Sync {
    /// Error of a store.
    type Error: From<TreeError> + Send;

    /// Stores an encoded node of `level` and returns its id, which depends on the bytes alone.
    ///
    /// # Errors
    /// The error of the implementation.
    fn store(
        &self,
        level: u8,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<Id, Self::Error>> + Send;
}

impl<S: NodeSource> NodeSource for &S {
    type Error = S::Error;

    fn load(&self, id: Id) -> impl Future<Output = Result<Arc<Node>, S::Error>> + Send {
        (*self).load(id)
    }

    fn prefetch(&self, ids: &[Id]) {
        (*self).prefetch(ids);
    }
}

impl<S: NodeSource> NodeSource for Arc<S> {
    type Error = S::Error;

    fn load(&self, id: Id) -> impl Future<Output = Result<Arc<Node>, S::Error>> + Send {
        (**self).load(id)
    }

    fn prefetch(&self, ids: &[Id]) {
        (**self).prefetch(ids);
    }
}

impl<S: NodeSink> NodeSink for &S {
    type Error = S::Error;

    fn store(
        &self,
        level: u8,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<Id, S::Error>> + Send {
        (*self).store(level, bytes)
    }
}

impl<S: NodeSink> NodeSink for Arc<S> {
    type Error = S::Error;

    fn store(
        &self,
        level: u8,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<Id, S::Error>> + Send {
        (**self).store(level, bytes)
    }
}

/// A blob that a node refers to. It must be live, or the node is of no use.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Reference {
    /// A node one level below.
    Node(Id),
    /// A segment or chunk of file data.
    Target(Target),
}

/// Returns all blobs that `node` itself refers to, in the order of its entries, repetitions
/// included.
///
/// # Errors
/// An item of the iterator is [`TreeError::BadItem`] for an extent that does not decode, and
/// [`TreeError::BadKey`] for a key that does not have a known kind. In both cases it is unknown
/// which blob the entry refers to.
pub fn references(node: &Node) -> impl Iterator<Item = Result<Reference, TreeError>> + '_ {
    (0..node.len()).filter_map(move |index| match node.child(index) {
        Some(child) => Some(Ok(Reference::Node(child.id))),
        None => leaf_reference(node, index).transpose(),
    })
}

fn leaf_reference(node: &Node, index: usize) -> Result<Option<Reference>, TreeError> {
    let key = node.key(index);
    match key.kind() {
        Ok(ItemKind::Extent) => match Item::decode(ItemKind::Extent, &node.value_bytes(index)) {
            Ok(Item::Extent(Extent { target, .. })) => Ok(Some(Reference::Target(target))),
            Ok(_) => Ok(None),
            Err(error) => Err(TreeError::BadItem { key, error }),
        },
        Ok(_) => Ok(None),
        Err(error) => Err(TreeError::BadKey { key, error }),
    }
}

/// Loads the child at `index` of `parent` and checks that it matches the parent's entry.
pub(super) async fn load_child<S: NodeSource>(
    source: &S,
    parent: &Node,
    index: usize,
) -> Result<Arc<Node>, S::Error> {
    let Some(Child { id, items }) = parent.child(index) else {
        return Err(TreeError::TooDeep.into());
    };
    let child = source.load(id).await?;
    let belongs = child.level() + 1 == parent.level()
        && !child.is_empty()
        && parent.compare_entry(index, &child, 0).is_eq()
        && child.items() == items;
    if !belongs {
        return Err(TreeError::Misplaced { id }.into());
    }
    Ok(child)
}
