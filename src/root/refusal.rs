//! Refusals: the reasons why a root does not admit a change.
//!
//! Owns the reasons and their texts. Pure. [`super::transition`] and [`super::recovery_bases`]
//! decide which change is refused; [`super::error`] says what the caller should do about it.

use super::state::{HolderInfo, NameError, RECOVERY_BASES_MAX, RecoveryBase, SessionId};
use bkfs_chunker::crypto::SlotName;

/// The reasons why a root does not admit a change.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The session is no longer live or no longer holds the volume, or another machine with its
    /// identity has committed.
    #[error("this session was fenced: it lost the volume{}", by_whom(by))]
    Fenced {
        /// The holder of the volume now, if there is one.
        by: Option<Box<HolderInfo>>,
    },
    /// Another session holds the volume.
    #[error("volume {volume:?} is being written by {by}")]
    Held {
        /// The volume.
        volume: String,
        /// The session that holds it.
        session: SessionId,
        /// The process behind that session.
        by: Box<HolderInfo>,
    },
    /// The id of a new session is already registered.
    #[error("session {0} is already registered")]
    SessionTaken(SessionId),
    /// The root has no room for one more entry of this kind.
    #[error("the repository has the maximum number of {what}")]
    Full {
        /// The kind of entry.
        what: &'static str,
    },
    /// A session with a spool would leave the root, and the root has no room for its recovery base.
    #[error(
        "the repository has recorded the maximum number ({RECOVERY_BASES_MAX}) of spools that may \
         hold acknowledged data; the oldest: {oldest}. Mount once on such a host, or give up for \
         good what only those spools may hold: bkfs session end URL --give-up {}",
        by_id(oldest)
    )]
    RecoveryBasesFull {
        /// The oldest recovery bases in the root.
        oldest: OldestRecoveryBases,
    },
    /// The volume's ended sessions have to be replayed first (rule 7).
    #[error("ended sessions of the volume are not yet replayed: {0:?}")]
    Unreplayed(Vec<SessionId>),
    /// A volume cannot leave the root, since ended sessions may have acknowledged more of it.
    #[error(
        "volume {volume:?} has ended sessions whose changes are not in it yet: {}",
        listed(sessions)
    )]
    Unfinished {
        /// The volume.
        volume: String,
        /// The sessions, in the root or only with a recovery base.
        sessions: Vec<SessionId>,
    },
    /// The root has no volume of the name.
    #[error("there is no volume {name:?}")]
    NoVolume {
        /// The name.
        name: String,
    },
    /// A volume with snapshots is removed only if the user says so.
    #[error("volume {volume:?} has {count} snapshots")]
    HasSnapshots {
        /// The volume.
        volume: String,
        /// The number of its kept snapshots.
        count: usize,
    },
    /// A new volume would have the name of another one, or of one that has snapshots.
    #[error("there is a volume {name:?} already, or there are snapshots of one")]
    VolumeTaken {
        /// The name.
        name: String,
    },
    /// The change requires a root without sessions, and the root has some.
    #[error("the root has sessions, live or ending: {}", by_name(sessions))]
    Busy {
        /// All of them, with their processes.
        sessions: Vec<(SessionId, HolderInfo)>,
    },
    /// A key slot was added after the slots were read.
    #[error("key {0} was added meanwhile: check the keys (bkfs key list), and repeat the command")]
    KeysChanged(SlotName),
    /// The key slot by which the keys are changed was removed after the slots were read.
    #[error(
        "key {0}, which opened the repository for this command, was removed meanwhile: nothing \
         was changed"
    )]
    KeyRemoved(SlotName),
    /// The key slot of a rotation was removed before the rotation was made.
    #[error(
        "key {0}, which this rotation has made, was removed meanwhile: the master key was not \
         rotated; check the keys (bkfs key list), and repeat the command"
    )]
    NewKeyRemoved(SlotName),
    /// A list or index object that the change depends on has been replaced meanwhile.
    #[error("the lists of the root have changed meanwhile")]
    ListsChanged,
    /// The name is invalid for a volume.
    #[error("{name:?} is not a valid volume name: {source}")]
    BadName {
        /// The name.
        name: String,
        /// The reason.
        source: NameError,
    },
}

impl Refusal {
    /// Returns a line of advice for the command line, if a user can do something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Held { .. } => Some(
                "mount with -o ro to read, with -o volume=NAME,create to write another volume, or \
                 with --steal to take this volume over (unsent writes of its holder then fail)",
            ),
            Self::Fenced { .. } => Some("unmount, and mount again: this mount can no longer write"),
            Self::Busy { .. } => Some(
                "unmount, or wait until the commands end; bkfs session list shows the sessions, \
                 bkfs session end ends dead ones",
            ),
            Self::Full { what: "sessions" } => Some(
                "see bkfs session list; end dead ones with bkfs session end; if the repository has \
                 64 sessions, bkfs upgrade makes room for 4,096",
            ),
            Self::Full { what: "volumes" } => Some(
                "see bkfs volume list, and remove those that nothing needs; bkfs session list \
                     shows sessions, which take room as well; bkfs upgrade makes room for 10,000",
            ),
            Self::Full { what: "snapshots" } => Some(
                "forget some (bkfs forget), let bkfs gc empty the trash, and mount again: numbers \
                 that mounts have shown are given anew; or bkfs upgrade makes room for 65,535 in \
                 each volume",
            ),
            Self::Full {
                what: "snapshots in one volume",
            } => Some(
                "forget some (bkfs forget), let bkfs gc empty the trash, and mount again: numbers \
                 that mounts have shown are given anew",
            ),
            Self::RecoveryBasesFull { .. } => {
                Some("nothing is lost; bkfs session list names all of the spools")
            }
            Self::Unfinished { .. } => Some(
                "bkfs session list shows them; mount the volume once on the host of each spool, or \
                 end the sessions with bkfs session end (--give-up for what only a spool holds)",
            ),
            Self::HasSnapshots { .. } => Some(
                "--yes-delete removes it with its snapshots, which stay in the trash until bkfs gc \
                 empties it",
            ),
            Self::NoVolume { .. } | Self::VolumeTaken { .. } => {
                Some("bkfs volume list shows the volumes")
            }
            _ => None,
        }
    }
}

/// Returns the end of the message about a fenced session: the holder, if known.
fn by_whom(by: &Option<Box<HolderInfo>>) -> String {
    by.as_ref()
        .map(|by| format!(" to {by}"))
        .unwrap_or_default()
}

/// Returns the sessions and their processes as text for display.
fn by_name(sessions: &[(SessionId, HolderInfo)]) -> String {
    let names: Vec<_> = sessions
        .iter()
        .map(|(id, holder)| format!("session {id} ({holder})"))
        .collect();
    names.join("; ")
}

/// Returns the ids of sessions as text for display.
fn listed(sessions: &[SessionId]) -> String {
    let ids: Vec<_> = sessions.iter().map(SessionId::to_string).collect();
    ids.join(", ")
}

/// The number of recovery bases that the message of [`Refusal::RecoveryBasesFull`] names.
const NAMED_RECOVERY_BASES: usize = 4;

/// Ended sessions, each with the host of its spool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OldestRecoveryBases(Vec<(SessionId, String)>);

impl OldestRecoveryBases {
    /// Returns the first [`NAMED_RECOVERY_BASES`] of these.
    pub(super) fn of(recovery_bases: &[RecoveryBase]) -> Self {
        let first = recovery_bases.iter().take(NAMED_RECOVERY_BASES);
        let named =
            first.map(|recovery_base| (recovery_base.session, recovery_base.host().to_owned()));
        Self(named.collect())
    }
}

impl std::fmt::Display for OldestRecoveryBases {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = self.0.iter();
        let named = named.map(|(id, host)| format!("session {id} on host {host}"));
        formatter.write_str(&named.collect::<Vec<_>>().join(", "))
    }
}

/// Returns the ids of these sessions as arguments of a command.
fn by_id(recovery_bases: &OldestRecoveryBases) -> String {
    let ids = recovery_bases.0.iter().map(|(id, _)| id.to_string());
    ids.collect::<Vec<_>>().join(" ")
}
