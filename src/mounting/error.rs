//! The errors of putting a mount together and taking it down.
//!
//! Owns: the kinds and their texts. Does not own: exit codes (`cli`), nor the errors of the parts
//! of a mount (`root`, `volume`, the chunker, the kernel).

use std::io;

use bkfs_chunker::error::ContentError;
use bkfs_chunker::spool::SpoolError;

use crate::root::error::RootError;
use crate::volume::error::VolumeError;

/// Reasons why a mount failed to start, or to end well.
#[derive(Debug, thiserror::Error)]
pub enum MountingError {
    /// The root refused, or could not be read.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The volume could not be read or stored.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] bkfs_fuse::MountError),
    /// The connection to the kernel broke.
    #[error(transparent)]
    Broken(#[from] bkfs_fuse::SessionError),
    /// The spool cannot be used, or an old one cannot be replayed.
    #[error(transparent)]
    Spool(#[from] SpoolingError),
    /// Contradictory options.
    #[error("{0}")]
    Options(String),
}

/// Reasons why a mount has no spool, or cannot empty an old one.
#[derive(Debug, thiserror::Error)]
pub enum SpoolingError {
    /// The spool would lie on the mount and block its own packs.
    #[error(
        "the spool {spool} would lie on the mount {mount} itself: set XDG_STATE_HOME to a \
         directory on a local disk, or give -o spool_size=0"
    )]
    OnMount {
        /// Path of the spool.
        spool: String,
        /// The mount point.
        mount: String,
    },
    /// The directory cannot be determined or used.
    #[error("cannot use the spool {path}: {source}; -o spool_size=0 mounts without a spool")]
    Unusable {
        /// The directory.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The disk does not answer.
    #[error(
        "the disk does not answer on which the spool {path} lies, and the spool may hold what was \
         acknowledged: repeat the command once the disk works"
    )]
    Silent {
        /// The spool.
        path: String,
    },
    /// The disk failed.
    #[error("{0}; -o spool_size=0 mounts without a spool")]
    Spool(#[from] SpoolError),
    /// The objects of a spool could not be brought into the bucket; they are still in the spool.
    #[error("cannot replay what an earlier mount left in the spool {path}: {source}")]
    Replay {
        /// The spool.
        path: String,
        /// The cause.
        source: ContentError,
    },
    /// Acknowledged data is damaged in a spool, and is nowhere else. No object of it was sent.
    #[error(
        "the spool {path} of volume {volume} has lost acknowledged data: {damage}; bkfs sent \
         nothing of it, and left it unchanged"
    )]
    Damaged {
        /// The spool.
        path: String,
        /// The volume of its session.
        volume: String,
        /// The first damage.
        damage: String,
    },
    /// A spool or a file in it cannot be read, so what it has of acknowledged data is unknown.
    #[error(
        "the spool {path} of {owner} may hold what was acknowledged, and cannot be read: \
         {why}; nothing of it was sent, and it stays as it is"
    )]
    Unreadable {
        /// The spool.
        path: String,
        /// Its volume, or that its session is in the root no more.
        owner: String,
        /// The answer of the disk.
        why: String,
    },
    /// This machine lacks something, so that a spool cannot be read now. That says nothing of the
    /// data in it. No object of it was sent.
    #[error(
        "the spool {path} of {owner} may hold what was acknowledged, and this machine cannot read \
         it now: {why}; that is no damage: nothing of it was sent, and it stays as it is"
    )]
    MachineCondition {
        /// The spool.
        path: String,
        /// Its volume, or that its session is in the root no more.
        owner: String,
        /// The answer of the disk.
        why: String,
    },
    /// The directory of spools cannot be listed, so it is unknown of which volumes there are any.
    #[error(
        "cannot list the spools that earlier mounts left in {path}, and they may hold what was \
         acknowledged: {why}"
    )]
    Unlisted {
        /// The directory.
        path: String,
        /// The answer of the disk.
        why: String,
    },
    /// Commits of a session went on while its spool was judged, so it is not known what of it they
    /// cover. No object of it was sent.
    #[error(
        "the spool {path} of volume {volume} lacks something that a commit may cover, and commits \
         of its session arrived each of the {looks} times that bkfs looked: is there a copy of \
         this machine? bkfs sent nothing of it, and left it unchanged; try again"
    )]
    Unsettled {
        /// The spool.
        path: String,
        /// The volume of its session.
        volume: String,
        /// How often the spool and the root were read.
        looks: u32,
    },
    /// The root could not be read.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl SpoolingError {
    /// Returns the error for the spool `path` of `owner` that the disk answers with `source`.
    pub(super) fn unread(path: String, owner: String, source: &SpoolError) -> Self {
        let why = source.to_string();
        match source.is_of_machine() {
            true => Self::MachineCondition { path, owner, why },
            false => Self::Unreadable { path, owner, why },
        }
    }

    /// Whether acknowledged data is damaged, or cannot be read.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Unreadable { .. } => true,
            Self::Replay { source, .. } => {
                matches!(source, ContentError::Spool(error) if is_damaged(error))
            }
            _ => false,
        }
    }

    /// Returns a line of advice for the command line, if a user can do something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unreadable { .. } => Some(
                "make it readable and try again; to go on without what it holds, give \
                 --accept-loss once (bkfs mount, put, copy or session end; mount -o accept_loss): \
                 the directory stays, and once it can be read a mount makes a snapshot of it",
            ),
            Self::MachineCondition { .. } => Some(
                "give the machine what it lacks (a filesystem that can be written to, open files, \
                 memory, room) and try again; nothing is lost, so there is no loss to accept",
            ),
            Self::Unlisted { .. } => Some(
                "make the directory readable and try again; to go on without it, set \
                 XDG_STATE_HOME to another directory, and keep this one: once it can be read, a \
                 mount with it makes snapshots of what it holds",
            ),
            error => error.is_damage().then_some(
                "bring the file back and try again; to go on without what it held and what \
                 follows it, give --accept-loss once (bkfs mount, put, copy or session end; mount \
                 -o accept_loss): what comes before it is carried out, and the spool is set aside",
            ),
        }
    }
}

/// Whether a spool's file is damaged or unreadable.
fn is_damaged(error: &SpoolError) -> bool {
    match error {
        SpoolError::Damaged { .. } => true,
        SpoolError::Disk { .. } => !error.is_of_machine(),
        _ => false,
    }
}
