//! The one mutable object of a repository, and the protocol by which sessions change it.
//!
//! Owns everything that is decided by compare-and-swap on the object `root`: sessions, takeover,
//! commits, and the list of snapshots. FORMAT.md describes the objects. tests/model has the rules
//! as an executable model; comments here name its steps. Knows nothing of trees, files or the
//! contents of packs: it carries their ids and names.
//!
//! | module | |
//! |---|---|
//! | [`state`] | contents of a root, and when they are consistent (pure) |
//! | [`transition`] | who may change what in it (pure) |
//! | [`refusal`] | reasons why a root does not admit a change (pure) |
//! | [`snapshots`], [`record`] | entries of lists; the record of a commit (pure) |
//! | [`shard`] | form of a list object, and the reference to one (pure) |
//! | [`chain`] | ancestors of a root (pure) |
//! | [`ancestry`] | older parts of the chain; whether a root descends from one seen before |
//! | [`error`] | errors, by the caller's action |
//! | `doubt` | whether the root can be read |
//! | [`change`] | what a change of the root says of itself |
//! | `contention` | when a change that has lost a race for the root is tried again |
//! | `attempt` | answers that end a replacement of the root |
//! | [`parts`] | what a handle of the root needs |
//! | [`handle`] | reads the root, replaces it, and decides the fate of unanswered replacements |
//! | [`view`] | a root as it was read or written |
//! | [`reading`] | decodes the bytes of a root |
//! | [`retry`] | back-off and deadlines |
//! | `patient_reads` | a store that repeats reads |
//! | [`memory`] | the newest root that this machine has seen, to detect a rollback of the bucket |
//! | [`listing`] | pages through keys of the bucket |
//! | [`lists`] | loads, caches and writes the lists that a root refers to |
//! | `root_lists` | the same for the root that a handle reads |
//! | [`holder`], [`heartbeat`] | identity of a session, and whether it lives |
//! | `fence` | objects by which sessions of a large root learn that they have ended |
//! | [`session`], [`request`] | taking over, leaving; what a new session asks for |
//! | [`entering`], `leaving` | the replacements by which a session enters and leaves the root |
//! | [`recovery_bases`] | entries of the root for ended sessions with spools (pure) |
//! | [`recovery_base`] | the commit that the journals in an ended session's spool follow |
//! | [`journal`], [`journal_entry`], `journal_put` | the operations that fsync acknowledges before a commit |
//! | [`padding`] | lengths of journals and heartbeats in the bucket (pure) |
//! | `blocking` | runs short file operations apart from async tasks |
//! | [`sent`] | journals that this machine has sent, to detect that the newest were deleted |
//! | [`kept`] | journals in a spool, before they are sent |
//! | [`gap`] | operations that a session acknowledged and whose journals are missing |
//! | [`ended_sessions`] | journals of ended sessions, read back |
//! | [`commit`], [`commit_request`] | the order of a commit's writes; snapshots |
//! | `relied` | whether packs that a replacement relies on are live in the root to be replaced |
//! | [`volumes`] | clones, and the removal of volumes (pure) |
//! | [`cloning`], [`removing`] | the replacements that make a clone and remove a volume |
//! | [`finish`] | packs that are finished for the index of the root to be replaced |
//! | [`uploads`] | what a commit needs of the session that stores its contents |
//! | `adding` | adds a snapshot to the lists, in place of an older one |
//! | [`forget`] | moves snapshots to the trash, and back |
//! | `drills` | notes the result of a drill on a snapshot |
//! | [`repository`] | creates and opens a repository |
//! | `force` | how a key stands to the master key that the root states |
//! | [`unlock`] | key slots of a sealed repository that a password opens |
//! | [`choice`] | key slots to try first |
//! | [`slot_facts`], [`slot_error`] | what users see of key slots, and why one is not changed |
//! | [`slots`], [`slot_removal`] | adds and removes key slots |
//! | [`put_back`], [`rotation`] | puts removed slots back; a new master key |
//! | [`carried`] | operations that this machine sent and no commit covers |
//! | [`removal`] | takes recovery bases of spools that are given up out of the root |
//! | [`lock_rule`] | lock period of objects, as the config and the root state it |
//! | [`rule`] | changes the lock period of objects |
//! | [`upgrade`] | turns a small root into a large one |

mod adding;
pub mod ancestry;
mod attempt;
pub(crate) mod blocking;
pub mod carried;
pub mod chain;
pub mod change;
pub mod choice;
pub mod cloning;
pub mod commit;
pub mod commit_request;
mod contention;
mod doubt;
mod drills;
mod early;
mod encoding;
pub mod ended_sessions;
mod entering;
pub mod error;
pub(crate) mod fence;
pub mod finish;
mod force;
pub mod forget;
pub mod form;
pub mod gap;
pub mod handle;
pub mod heartbeat;
pub mod holder;
pub mod journal;
pub mod journal_entry;
mod journal_put;
pub mod kept;
pub mod key_change;
mod leaving;
pub mod listing;
pub mod lists;
pub mod lock_rule;
mod loss;
pub mod memory;
pub mod padding;
pub mod parts;
pub mod passed_over;
mod patient_reads;
pub mod put_back;
pub mod reading;
pub mod record;
pub mod recovery_base;
pub mod recovery_bases;
pub mod refusal;
mod relied;
pub mod removal;
pub mod removing;
pub mod repository;
pub mod request;
pub mod retry;
mod root_lists;
pub mod rotation;
pub mod rule;
pub mod run_group;
pub mod run_groups;
pub mod sent;
pub mod session;
pub mod shard;
mod slot_copy;
pub mod slot_error;
pub mod slot_facts;
pub mod slot_removal;
pub mod slots;
pub mod snapshots;
mod start;
pub mod state;
pub mod transition;
pub mod uncovered;
pub(crate) mod unlock;
pub mod upgrade;
pub mod uploads;
pub mod view;
pub mod volumes;
mod wire;

pub use commit::RootCommitter;
pub use commit_request::{CommitRequest, RootCommit};
pub use ended_sessions::EndedSession;
pub use error::{ErrorKind, RootError};
pub use forget::ListChanger;
pub use gap::Gap;
pub use handle::{Applied, RootHandle, RootParts, Transition};
pub use heartbeat::{Heartbeat, Standing};
pub use holder::{Processes, SystemProcesses};
pub use journal::{JournalEntry, JournalWriter};
pub use lists::{DirectLists, ListWriter, Lists};
pub use memory::{FileMemory, GenerationMemory, VolatileMemory};
pub use refusal::Refusal;
pub use repository::{NewRepository, OpenOptions, Passwords, Repository};
pub use request::VolumeRequest;
pub use retry::RetryPolicy;
pub use session::OpenSession;
pub use shard::ListRef;
pub use snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, SnapshotReference};
pub use state::{HolderInfo, Root, Session, SessionId, SessionState, Volume};
pub use transition::Claim;
pub use uploads::Uploads;
pub use view::RootView;

#[cfg(test)]
mod tests;
