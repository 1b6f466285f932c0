//! The filesystem and its history.

pub mod extents;
pub mod root;
pub mod tree;
