//! The one mutable object of a repository, and the protocol by which sessions change it.
//!
//! Owns everything that is decided by compare-and-swap on the object `root`: sessions, takeover, commits, and the list of snapshots (FORMAT.md has
//! the objects, tests/model the rules as an executable model, whose steps are named in the comments here). Knows nothing of trees, files or packs'
//! contents: it carries their ids and names.
//!
//! | module | |
//! |---|---|
//! | [`state`] | what a root holds, and when it is consistent (pure) |
//! | [`transition`] | who may change what in it (pure) |
//! | [`snapshots`], [`record`] | entries of lists; what a commit leaves behind (pure) |
//! | [`error`] | what can go wrong, by what the caller should do |

pub mod error;
pub mod record;
pub mod snapshots;
pub mod state;
pub mod transition;
mod wire;

pub use error::{ErrorKind, RootError};
pub use snapshots::{SnapshotEntry, SnapshotList, SnapshotReference, SnapshotRequest};
pub use state::{HolderInfo, ListRef, Root, Session, SessionId, SessionState, Volume};
pub use transition::{Claim, Refusal};
