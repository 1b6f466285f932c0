//! Packs: the objects that hold frames of blobs.

mod name;

pub use name::{BadName, PackName};
