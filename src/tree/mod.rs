//! The filesystem as one ordered map, stored as a tree of content-addressed nodes.
//!
//! This module owns keys, items, nodes, the rule that says where nodes end, look-ups, batch
//! changes, and differences and merges of whole trees. It is pure: nodes are read and stored
//! through [`NodeSource`] and [`NodeSink`], and the module does no I/O, reads no clock and draws no
//! randomness. It does not own the meaning of files and directories; `volume` does.
//!
//! Equal content gives an equal tree, byte by byte, whatever its history. One root id therefore
//! identifies a whole state of the filesystem.

pub mod apply;
pub mod boundary;
pub mod diff;
pub mod item;
pub mod key;
pub mod map;
pub mod memory;
pub mod merge;
pub mod node;
mod path;
pub mod source;
pub(crate) mod varint;

pub use apply::{apply, empty};
pub use diff::{Diff, Difference};
pub use item::{Attributes, Extent, Item, Target, Timestamp};
pub use key::{ItemKind, Key, KeyParts};
pub use map::{Cursor, Tree};
pub use merge::{Merge, Merged};
pub use node::Node;
pub use source::{NodeSink, NodeSource, TreeError};
