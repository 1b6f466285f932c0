//! The filesystem as one ordered map, kept as a tree of content-addressed nodes.
//!
//! Owns keys, items, nodes, where nodes end, looking up, batch changes, differences and merges of whole trees. Pure: nodes come and go
//! through [`NodeSource`] and [`NodeSink`]; there is no I/O, clock or randomness here. Does not own what a file or directory *means*: that
//! is the volume's.
//!
//! Equal content gives an equal tree, byte by byte, whatever the history; so one id stands for a whole state of the filesystem.

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
mod varint;

pub use apply::{apply, empty};
pub use diff::{Diff, Difference};
pub use item::{Attributes, Extent, Item, Target, Timestamp};
pub use key::{ItemKind, Key, KeyParts};
pub use map::{Cursor, Tree};
pub use merge::{Merge, Merged};
pub use node::Node;
pub use source::{NodeSink, NodeSource, TreeError};
