//! The state that a volume shows while another is built (`apart`).

use bkfs_chunker::id::Id;

use crate::volume::state::Totals;

/// The state that a volume shows while another is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// The root node of its tree.
    pub tree: Id,
    /// Its inodes and bytes.
    pub totals: Totals,
}
