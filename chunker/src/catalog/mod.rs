//! The local index: which pack holds a blob.
//!
//! Owns the index objects that the root lists, as sorted tables on disk or in memory, and what is known of condemned and quarantined
//! things. Does not decide what is current: the root's list is given to it.

mod reference;

pub use reference::{IndexRef, name_bytes};
