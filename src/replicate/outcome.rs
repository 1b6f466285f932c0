//! What a copy of snapshots comes to.

use crate::root::error::{ErrorKind, RootError};
use crate::root::snapshots::SnapshotEntry;
use crate::volume::error::VolumeError;

/// Why snapshots were not copied.
#[derive(Debug, thiserror::Error)]
pub enum ReplicateError {
    /// The root of the source or of the target could not be read or changed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The source cannot be read, or the target cannot be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Both URLs lead to one repository.
    #[error("the source and the target are the same repository")]
    Same,
    /// The target's volume holds changes that no copy brought there, and no snapshot keeps.
    #[error("volume {volume:?} of the target holds changes that are in no snapshot")]
    Diverged {
        /// Name of the volume.
        volume: String,
    },
    /// A session of the target's volume acknowledged changes that are in no commit yet.
    #[error("volume {volume:?} of the target has acknowledged changes that are not committed yet")]
    Unreplayed {
        /// Name of the volume.
        volume: String,
    },
    /// A snapshot would have to be inserted before others of the target.
    #[error(
        "snapshot {name:?} is older than the newest snapshot of the target, and a copy adds only \
         newer ones"
    )]
    Older {
        /// Name of the snapshot.
        name: String,
    },
    /// The target has another snapshot of the same name.
    #[error("the target has a different snapshot with the name {name:?}")]
    Taken {
        /// Name of the snapshot.
        name: String,
    },
}

impl ReplicateError {
    /// Returns true if other volumes may be copied nevertheless. False if the store fails or shows
    /// another history, the outcome of a change is unknown, or there is nothing to copy between.
    pub fn is_of_volume(&self) -> bool {
        match self {
            Self::Diverged { .. }
            | Self::Unreplayed { .. }
            | Self::Older { .. }
            | Self::Taken { .. } => true,
            Self::Same => false,
            Self::Volume(error) => error.is_damage(),
            Self::Root(
                RootError::Rollback { .. }
                | RootError::NotDescended { .. }
                | RootError::Rebuilt { .. }
                | RootError::Replaced { .. }
                | RootError::OtherLockRule
                | RootError::NotAtomic { .. }
                | RootError::UnfitStore { .. }
                | RootError::ReadOnlyFeatures,
            ) => false,
            Self::Root(error) => matches!(
                error.kind(),
                ErrorKind::Held
                    | ErrorKind::Fenced
                    | ErrorKind::Damaged
                    | ErrorKind::Refused
                    | ErrorKind::Rebuild
            ),
        }
    }
}

/// The result for one snapshot.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The snapshot, as the source has it.
    pub snapshot: SnapshotEntry,
    /// False if the target had it before, or it is left out.
    pub is_new: bool,
    /// True if it is left out: it is older than the newest snapshot of the target, and a copy adds
    /// only newer ones.
    pub is_left_out: bool,
    /// Generation of the target's root that first has it, if this run copied it.
    pub generation: Option<u64>,
}

impl Outcome {
    /// Returns the result for a snapshot that the target has already.
    pub(super) fn of(snapshot: &SnapshotEntry) -> Outcome {
        Outcome {
            snapshot: snapshot.clone(),
            is_new: false,
            is_left_out: false,
            generation: None,
        }
    }
}
