//! Where nodes come from and go to, and what can go wrong with them.
//!
//! Owns the two traits that the store behind a tree implements, and the errors of the tree itself. Does no loading or storing.

use std::future::Future;
use std::sync::Arc;

use bkfs_chunker::id::Id;
use thiserror::Error;

use super::item::{Extent, Item, ItemError, Target};
use super::key::{ItemKind, Key, KeyError};
use super::node::{Child, Node, NodeError};

/// What is wrong with a tree, or with what was asked of it.
#[derive(Clone, Debug, Eq, PartialEq, Error)]
pub enum TreeError {
    /// The bytes under an id are no node.
    #[error("tree node {id}: {error}")]
    BadNode {
        /// Which node.
        id: Id,
        /// What is wrong with it.
        error: NodeError,
    },
    /// There is no node under an id.
    #[error("tree node {id} is missing")]
    Absent {
        /// Which node.
        id: Id,
    },
    /// A node is not what its parent says: another level, another first key, or empty.
    #[error("tree node {id} does not belong where its parent has it")]
    Misplaced {
        /// Which node.
        id: Id,
    },
    /// Changes were not given in strictly increasing order.
    #[error("changes are not sorted: {key:?} does not come after the one before it")]
    Unsorted {
        /// First key that is not above the one before it.
        key: Key,
    },
    /// A key or value is longer than the tree takes.
    #[error("entry {key:?} with a value of {value_bytes} bytes is too large")]
    TooLarge {
        /// The key.
        key: Key,
        /// Length of the value.
        value_bytes: usize,
    },
    /// More levels than a tree may have; no honest tree gets there.
    #[error("tree is too deep")]
    TooDeep,
    /// An entry lies under a key that no filesystem makes.
    #[error("entry {key:?}: {error}")]
    BadKey {
        /// The key.
        key: Key,
        /// What is wrong with it.
        error: KeyError,
    },
    /// An entry is not what its key says.
    #[error("entry {key:?}: {error}")]
    BadItem {
        /// Its key.
        key: Key,
        /// What is wrong with it.
        error: ItemError,
    },
}

/// Gives nodes by id. Whoever implements it verifies ids, keeps a cache, and joins simultaneous loads of one node into one.
pub trait NodeSource: Send + Sync {
    /// What loading may end in.
    type Error: From<TreeError> + Send;

    /// The node under `id`, decoded by [`Node::decode`].
    fn load(&self, id: Id) -> impl Future<Output = Result<Arc<Node>, Self::Error>> + Send;

    /// Says that these nodes will probably be loaded soon, in this order. Must return at once and bound what it starts; doing nothing is right
    /// too.
    fn prefetch(&self, ids: &[Id]) {
        let _ = ids;
    }
}

/// Takes nodes and names them.
pub trait NodeSink: Send + Sync {
    /// What storing may end in.
    type Error: From<TreeError> + Send;

    /// Keeps an encoded node of `level` and returns its id, which depends on the bytes alone.
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

/// A blob that a node refers to: what has to be live for the node to be of use.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Reference {
    /// A node one level down.
    Node(Id),
    /// Stored bytes of a file.
    Target(Target),
}

/// Everything that `node` itself refers to, in the order of its entries, repetitions included.
///
/// # Errors
/// For an entry of a leaf that is not what its key says, since what it refers to cannot be known. Kinds of keys that are unknown to
/// this version are errors for the same reason.
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

/// Loads the child at `index` of `parent` and checks that it is what the parent says.
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
