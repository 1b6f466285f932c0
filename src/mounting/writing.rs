//! The parameters of a session that writes: what it writes, for whom and with what.
//!
//! Owns: the parameters and how the memory is divided. Does not own: the session (`writer`), nor
//! what is brought from spools with the same parameters (`spooling`, `recovery`).

use std::sync::Arc;

use crate::mounting::spool_place::SpoolPlace;
use crate::repository::Repository;
use crate::root::snapshots::SnapshotReference;
use crate::root::state::{HolderInfo, SessionId};
use crate::vfs::special::Owner;
use crate::volume::Promise;
use crate::volume::room::Limits;

/// The parameters of a session that writes.
pub(super) struct Writing {
    /// The repository.
    pub(super) repository: Arc<Repository>,
    /// The volume's name.
    pub(super) volume: String,
    /// Memory of the whole daemon, in bytes.
    pub(super) memory_bytes: u64,
    /// The directory on a disk where packs may wait for the store; none for memory only.
    pub(super) spool: Option<SpoolPlace>,
    /// The directory on a disk where dirty bytes may wait, of a volume that does not outlive the
    /// mount; none for memory only.
    pub(super) swap: Option<SpoolPlace>,
    /// `fsync=local`.
    pub(super) is_local: bool,
    /// What fsync and unmount promise.
    pub(super) promise: Promise,
    /// The snapshot that the volume becomes a clone of, before it is written; none for a volume
    /// that is there or is made empty.
    pub(super) clone_of: Option<CloneOf>,
    /// The id of the session, if the caller has drawn it. A clone draws its own.
    pub(super) session: Option<SessionId>,
    /// Owner of the root directory of a volume that is new.
    pub(super) owner: Owner,
    /// This process, as the root names the holder of a session.
    pub(super) holder: HolderInfo,
}

/// A snapshot to clone.
#[derive(Clone, Debug)]
pub struct CloneOf {
    /// Its volume.
    pub volume: String,
    /// The snapshot.
    pub snapshot: SnapshotReference,
}

/// Returns the limits of a volume: 1/6 of the memory for dirty bytes, half of what the chunker's
/// budget leaves; 1/12 for changed items.
pub(super) fn limits(memory_bytes: u64) -> Limits {
    Limits {
        data_bytes: memory_bytes / 6,
        item_bytes: memory_bytes / 12,
    }
}
