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
//! | [`chain`] | what a root descends from (pure) |
//! | [`ancestry`] | its older parts: written, and read to judge what a machine remembers |
//! | [`error`] | what can go wrong, by what the caller should do |
//! | `attempt` | which answers end a replacement of it |
//! | [`handle`] | reads the root and replaces it; decides what became of a replacement whose answer was lost |
//! | [`reading`] | from the bytes of a root to what it holds |
//! | [`retry`] | pauses and deadlines |
//! | [`memory`] | what this machine remembers, to notice a bucket that was rolled back |
//! | [`listing`] | keys of the bucket, to the end of a list |
//! | [`lists`] | loads, caches and writes the lists that a root refers to |
//! | [`holder`], [`heartbeat`], [`session`] | who a session is, whether it lives; entering, taking over, leaving |
//! | [`grounds`] | what the root keeps of ended sessions with spools (pure) |
//! | [`ground`] | which commit the journals follow that an ended session kept on its own machine |
//! | [`journal`] | what fsync acknowledges before a commit |
//! | [`padding`] | how long a journal is in the bucket (pure) |
//! | [`sent`] | which of them this machine has sent, to notice that the newest were deleted |
//! | [`kept`] | what journals in a spool say, before they are sent |
//! | [`victims`] | the same of sessions that ended, read back |
//! | [`commit`] | the order of a commit's writes; snapshots |
//! | [`forget`] | to the trash, and back |
//! | [`repository`] | creating and opening one |
//! | [`unlock`] | what a password opens of a sealed one |
//! | [`choice`] | which key slots are tried first |
//! | [`slots`], [`slot_removal`], [`put_back`], [`rotation`] | its keys: adding, removing; a new master key |
//! | [`carried`] | whether what this machine sent was carried out |
//! | [`removal`] | taking what is dead out of the root |
//! | [`rule`] | changing for how long its objects are locked |

pub mod ancestry;
mod attempt;
pub mod carried;
pub mod chain;
pub mod choice;
pub mod commit;
pub mod error;
pub mod forget;
pub mod ground;
pub mod grounds;
pub mod handle;
pub mod heartbeat;
pub mod holder;
pub mod journal;
pub mod kept;
pub mod listing;
pub mod lists;
pub mod memory;
pub mod padding;
pub mod put_back;
pub mod reading;
pub mod record;
pub mod removal;
pub mod repository;
pub mod retry;
pub mod rotation;
pub mod rule;
pub mod sent;
pub mod session;
pub mod slot_removal;
pub mod slots;
pub mod snapshots;
pub mod state;
pub mod transition;
pub(crate) mod unlock;
pub mod victims;
mod wire;

pub use commit::{CommitRequest, Committed, Committer, Uploads};
pub use error::{ErrorKind, RootError};
pub use forget::ListChanger;
pub use handle::{Applied, RootHandle, RootParts, RootView, Transition};
pub use heartbeat::{Heartbeat, Standing};
pub use holder::{Processes, SystemProcesses};
pub use journal::{JournalEntry, JournalWriter};
pub use lists::{DirectLists, ListWriter, Lists};
pub use memory::{FileMemory, GenerationMemory, VolatileMemory};
pub use repository::{NewRepository, OpenOptions, Passwords, Repository};
pub use retry::RetryPolicy;
pub use session::{OpenSession, VolumeRequest};
pub use snapshots::{SnapshotEntry, SnapshotList, SnapshotReference, SnapshotRequest};
pub use state::{HolderInfo, ListRef, Root, Session, SessionId, SessionState, Volume};
pub use transition::{Claim, Refusal};
pub use victims::{Gap, Victim};

#[cfg(test)]
mod tests;
