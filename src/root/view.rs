//! A root as it was read or written.
//!
//! Owns [`RootView`]. [`super::reading`] makes one from the bytes of a root; [`super::handle`]
//! keeps the newest one and replaces the root that it shows.

use super::state::Root;
use bkfs_chunker::crypto::Features;
use bkfs_store::Version;

/// A root as it was read or written, and the version that a replacement of it names.
#[derive(Clone, Debug)]
pub struct RootView {
    /// Contents of the root.
    pub root: Root,
    /// Version of the object in the store.
    pub version: Version,
    /// Feature bits of its header, which every later root carries as well.
    pub features: Features,
    /// Length of the object, in bytes.
    pub length: usize,
}
