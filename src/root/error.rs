//! Errors of the root and of all modules above it, in few kinds that say what the caller should do.
//!
//! Owns [`RootError`] and [`ErrorKind`]. The command line maps kinds to exit codes, and the errno
//! table maps them to errno values.

use super::chain::RootMark;
use super::gap::{Gap, told};
use super::refusal::Refusal;
use super::state::{HolderInfo, NameError, StateError};
use crate::acquaintance::Acquaintance;
use bkfs_chunker::crypto::{OpenError, SlotError, SlotName};
use bkfs_chunker::error::ContentError;
use bkfs_chunker::pack::PackName;
use bkfs_store::{StoreError, StoreErrorKind};

/// Action that a [`RootError`] asks of the caller.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum ErrorKind {
    /// There is no repository here: check the URL, or create one. Exit code 10.
    NoRepository,
    /// Another session writes: use another volume, read only, or take over. Exit code 11.
    Held,
    /// The password opens no key slot: ask again. Exit code 12.
    WrongPassword,
    /// The repository is damaged, or an older state of it is shown: check, repair. Exit code 13.
    Damaged,
    /// A change may or may not have been made: look before repeating it. Exit code 14.
    OutcomeUnknown,
    /// This session has lost its volume: stop writing, mount anew.
    Fenced,
    /// Store the named packs' contents again, then repeat: they are no longer live.
    Rebuild,
    /// The request cannot be carried out here: ask for something else.
    Refused,
    /// The store fails: wait, or repair it.
    Unavailable,
}

/// Reasons why an operation on the root failed.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A request to the store failed. The root was not changed by it.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Contents could not be stored or read.
    #[error("{0}")]
    Content(#[from] ContentError),
    /// A change was sent, and it is not known whether it was made.
    #[error(
        "it is not known whether the change to the repository was made: {reason}; check the \
         repository before you repeat the change"
    )]
    OutcomeUnknown {
        /// The store's last error.
        reason: String,
    },
    /// The root does not admit the change.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Other writers replaced the root before every attempt of this change. Nothing was changed.
    #[error("other writers replaced the root during each of {attempts} attempts: try again")]
    Contended {
        /// Number of attempts.
        attempts: u32,
    },
    /// Packs that the commit relies on have left the live set (rule 3): store their contents again.
    #[error("{} packs that this commit relies on are no longer live", packs.len())]
    Rebuild {
        /// The packs.
        packs: Vec<PackName>,
    },
    /// An object is damaged.
    #[error("{key} is damaged: {reason}")]
    Damaged {
        /// Its key in the bucket.
        key: String,
        /// The damage.
        reason: String,
    },
    /// Something that a check could not read can be read now: a repair would give up what is whole.
    #[error(
        "did not give up {object}: it was damaged or missing during the check, and is not now. \
         The store gave different answers, or another program has changed the repository since. \
         {}: run the check again",
        match changed {
            true => "What was repaired before that stands, and nothing else was changed",
            false => "Nothing was changed",
        }
    )]
    NoLongerLost {
        /// The key of the object in the bucket, or the name of the snapshot.
        object: String,
        /// Whether the repair had changed something before it looked at the object.
        changed: bool,
    },
    /// A list of condemned packs cannot be read: what a collection may delete is not known.
    #[error(
        "cannot read {key}, a list of packs that a collection has condemned ({reason}): it is not \
         known which packs may be deleted, so bkfs writes nothing that relies on them"
    )]
    CondemnedUnknown {
        /// The key of the list in the bucket.
        key: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// A collection would keep less than is plausible.
    #[error(
        "the collection would free {gone_bytes} of the {held_bytes} bytes that the repository \
         held: nothing was condemned or deleted"
    )]
    TooMuch {
        /// Bytes that are no longer needed.
        gone_bytes: u64,
        /// Bytes that were needed at any time of the undelete window.
        held_bytes: u64,
    },
    /// An object cannot be opened with this repository's keys.
    #[error("{key}: {source}")]
    Unopenable {
        /// Its key in the bucket.
        key: String,
        /// The reason.
        source: OpenError,
    },
    /// The root would be too large, or contradicts itself.
    #[error("{0}")]
    State(#[from] StateError),
    /// The bucket shows an older root than this machine has seen, or another one of the same
    /// generation.
    #[error(
        "the repository shows generation {}, but generation {} was seen before: the bucket was \
         rolled back",
        found.generation,
        known.generation
    )]
    Rollback {
        /// The newest root that this machine has seen, or the oldest that the user accepts.
        known: RootMark,
        /// The root in the bucket now.
        found: RootMark,
    },
    /// The bucket shows a newer root than this machine has seen, which does not descend from that
    /// one.
    #[error(
        "the repository shows generation {}, which does not descend from generation {} as it was \
         seen before: the bucket was rolled back and written to since, or its store's conditional \
         writes are not atomic",
        found.generation,
        known.generation
    )]
    NotDescended {
        /// The newest root that this machine has seen.
        known: RootMark,
        /// The root in the bucket now.
        found: RootMark,
    },
    /// The root was lost and rebuilt since this machine has seen it.
    #[error(
        "the repository was rebuilt after its root was lost; the repair knew generations up to \
         {lost}, and this machine has seen generation {} before: commits up to then may be \
         missing",
        known.generation
    )]
    Rebuilt {
        /// The newest root that this machine has seen.
        known: RootMark,
        /// The highest generation that the repair knew of.
        lost: u64,
    },
    /// Journals with acknowledged operations are not in the bucket.
    #[error("{}", told(gaps))]
    JournalsMissing {
        /// Sessions and missing journals.
        gaps: Vec<Gap>,
    },
    /// The bucket has another repository than this machine knows.
    #[error(
        "this machine knows {known} at this address, and found {found}: the repository was replaced"
    )]
    Replaced {
        /// The repository that this machine knows.
        known: Acquaintance,
        /// The identity that its config states now; not verified.
        found: Acquaintance,
    },
    /// The config states another lock rule than the root does.
    #[error(
        "the object config does not match the root: its lock rule is not that of the repository; \
         an older config may have been put back"
    )]
    OtherLockRule,
    /// A root that the store acknowledged is no ancestor of the present root.
    #[error(
        "this store's conditional writes are not atomic: it acknowledged generation {} of the \
         root, and then accepted a replacement of an older root; what this session committed \
         since then is in no root",
        made.generation
    )]
    NotAtomic {
        /// The root that was acknowledged.
        made: RootMark,
    },
    /// The repository's format asks for a newer program before anything is written.
    #[error(
        "this repository has features unknown to this program: it can be read, but a newer bkfs \
         is needed to write"
    )]
    ReadOnlyFeatures,
    /// A snapshot of that name exists in the volume.
    #[error("snapshot {name:?} already exists")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such snapshot.
    #[error("there is no snapshot {name:?} in volume {volume:?}")]
    NoSnapshot {
        /// The name or time that was asked for.
        name: String,
        /// Its volume.
        volume: String,
    },
    /// A name that is not allowed.
    #[error("{name:?} is not a valid name: {source}")]
    BadName {
        /// The name.
        name: String,
        /// The reason.
        source: NameError,
    },
    /// `@TIME` that is no valid time.
    #[error("{text:?} is not a time: write @ and {}", crate::when::FORMS)]
    BadTime {
        /// The text that was given.
        text: String,
    },
    /// There is no repository at the URL.
    #[error("{location}: no bkfs repository here (create one with: bkfs init)")]
    NoRepository {
        /// The URL.
        location: String,
    },
    /// There is a repository, or something else, at the URL.
    #[error("{location}: {found}")]
    NotEmpty {
        /// The URL.
        location: String,
        /// The object that was found.
        found: String,
    },
    /// No key slot opens with the password.
    #[error("wrong password")]
    WrongPassword,
    /// No undamaged key slot opens with the password, and another one is damaged.
    #[error(
        "no undamaged key opens with this password, and {reason}: the password is wrong, or it is \
         that of the damaged key"
    )]
    WrongPasswordOrDamaged {
        /// The slot, and its damage.
        reason: String,
    },
    /// A key slot that opened the repository on this machine is damaged, and the password opens no
    /// other one.
    #[error(
        "a key that opened the repository on this machine before cannot be used ({reason}), and \
         the password opens no other one: it is that of the damaged key, or wrong"
    )]
    OwnKeyDamaged {
        /// The slot, and its damage.
        reason: String,
    },
    /// No key slot that was tried opens with the password, and others were not tried.
    #[error(
        "no key opens with this password, and {untried} keys were not tried: they ask for more \
         work or memory than all trials of one password may take; an attacker may have put them \
         there"
    )]
    KeysUntried {
        /// Number of slots that were not tried.
        untried: usize,
    },
    /// The password opens a key slot, and the root is sealed under a newer master key than that
    /// holds.
    #[error(
        "the password opens key {slot} of epoch {held}, and the root is sealed under master key \
         {needed}: the master key was rotated since, and this key was dropped, or put back"
    )]
    OlderKey {
        /// The slot.
        slot: SlotName,
        /// The epoch of its newest master key.
        held: u32,
        /// The epoch that the root states.
        needed: u32,
    },
    /// The password opens two key slots of which each holds a master key that the other does not
    /// hold, and no root tells which one is in force.
    #[error(
        "the password opens keys {first} and {second}, which hold different master keys of \
         one epoch, and no root tells which of them is in force: two rotations of the master \
         key were begun, and the root was lost since"
    )]
    KeysConflict {
        /// One of them.
        first: SlotName,
        /// The other one.
        second: SlotName,
    },
    /// There is no key slot of the name that the user gives.
    #[error("there is no key {slot}")]
    NoSuchKey {
        /// The name that was given.
        slot: SlotName,
    },
    /// The repository is sealed, and no password was given.
    #[error("this repository is encrypted: a password is needed")]
    PasswordNeeded,
    /// A password was given for a repository that is not sealed: an attacker may have put it in the
    /// place of a sealed one.
    #[error(
        "a password was given, but this repository is not encrypted: anyone who can write to the \
         bucket could have put it there"
    )]
    NotEncrypted,
    /// The store's conditional writes are faulty, so that two writers could destroy each other's
    /// work.
    #[error("{reason}")]
    UnfitStore {
        /// The fault.
        reason: String,
    },
    /// A local operation failed.
    #[error("{what}: {source}")]
    Local {
        /// The operation.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl RootError {
    /// True if an object that a root names is absent or damaged. A newer root may not name it any
    /// more, and the same change may succeed on that root (rule 10).
    pub fn wants_newer_root(&self) -> bool {
        match self {
            Self::Store(error) => error.is_not_found(),
            Self::Content(error) => error.wants_newer_root(),
            Self::Damaged { .. } | Self::CondemnedUnknown { .. } => true,
            _ => false,
        }
    }

    /// True if the error is about one object that is absent or damaged, and not about the rest of
    /// the store.
    pub(crate) fn is_of_one_object(&self) -> bool {
        match self {
            Self::Store(error) => error.is_not_found() || error.is_of_one_object(),
            Self::Damaged { .. } | Self::CondemnedUnknown { .. } | Self::Unopenable { .. } => true,
            _ => false,
        }
    }

    /// Returns the key of the object that the error is about, if it is about one.
    fn object(&self) -> Option<&str> {
        match self {
            Self::Store(error) if self.is_of_one_object() => Some(error.key()),
            Self::Damaged { key, .. } | Self::Unopenable { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns the action that the error asks of the caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => of_store(error),
            Self::Content(error) => match error.cause() {
                ContentError::Store(error) => of_store(error),
                ContentError::Stalled { .. }
                | ContentError::CacheDirectory { .. }
                | ContentError::Spool(_) => ErrorKind::Unavailable,
                ContentError::Invalid(_) | ContentError::Internal(_) | ContentError::Failed(_) => {
                    ErrorKind::Refused
                }
                ContentError::Damaged { .. }
                | ContentError::Missing { .. }
                | ContentError::Unknown { .. }
                | ContentError::Index(_)
                | ContentError::Unreadable { .. } => ErrorKind::Damaged,
            },
            Self::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
            Self::Refused(Refusal::Fenced { .. }) => ErrorKind::Fenced,
            Self::Refused(Refusal::Held { .. }) => ErrorKind::Held,
            Self::Contended { .. } | Self::NoLongerLost { .. } => ErrorKind::Unavailable,
            Self::Rebuild { .. } => ErrorKind::Rebuild,
            Self::Damaged { .. }
            | Self::CondemnedUnknown { .. }
            | Self::Rollback { .. }
            | Self::NotDescended { .. }
            | Self::Rebuilt { .. }
            | Self::JournalsMissing { .. }
            | Self::Replaced { .. }
            | Self::OtherLockRule
            | Self::KeysConflict { .. }
            | Self::OwnKeyDamaged { .. }
            | Self::NotAtomic { .. } => ErrorKind::Damaged,
            Self::Unopenable { source, .. } => match source {
                OpenError::OtherFormat { .. } | OpenError::UnknownFeatures { .. } => {
                    ErrorKind::Refused
                }
                _ => ErrorKind::Damaged,
            },
            Self::State(StateError::TooLarge { .. }) => ErrorKind::Refused,
            Self::State(_) => ErrorKind::Damaged,
            Self::NoRepository { .. } => ErrorKind::NoRepository,
            Self::WrongPassword
            | Self::WrongPasswordOrDamaged { .. }
            | Self::KeysUntried { .. }
            | Self::OlderKey { .. } => ErrorKind::WrongPassword,
            Self::Refused(Refusal::Busy { .. } | Refusal::Unfinished { .. }) => ErrorKind::Held,
            Self::Refused(_)
            | Self::TooMuch { .. }
            | Self::ReadOnlyFeatures
            | Self::NameTaken { .. }
            | Self::NoSnapshot { .. }
            | Self::BadName { .. }
            | Self::BadTime { .. }
            | Self::NotEmpty { .. }
            | Self::PasswordNeeded
            | Self::NotEncrypted
            | Self::NoSuchKey { .. }
            | Self::UnfitStore { .. } => ErrorKind::Refused,
            Self::Local { .. } => ErrorKind::Unavailable,
        }
    }

    /// Returns a line of advice for the command line, if a user can do something.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Rollback { .. } | Self::NotDescended { .. } => Some(
                "bring the newest state of the bucket back; if you know and accept what was lost, \
                 accept the older one once on this machine: bkfs --accept-rollback snapshots URL",
            ),
            Self::Rebuilt { .. } => Some(
                "check which snapshots are there; the option is needed once on this machine: bkfs \
                 --accept-rollback snapshots URL",
            ),
            Self::JournalsMissing { .. } => Some(
                "nothing was deleted or replayed; bring the journals back, for example from older \
                 versions in the bucket, and mount again; to go on without them, give \
                 --accept-loss once (bkfs mount, put, copy or session end; mount -o accept_loss)",
            ),
            Self::Replaced { .. } => Some(
                "no password was asked for or used; if you expect the other repository at this \
                 address, accept it once on this machine: bkfs --accept-replaced snapshots URL",
            ),
            Self::OtherLockRule => Some(
                "bring the newest version of the object config back, or set the rule again: bkfs \
                 lock URL --days N",
            ),
            Self::NotAtomic { .. } => Some(
                "use another store, or write to this one from a single machine; bkfs check finds \
                 what was committed and lost, and docs/check.md says how to bring it back",
            ),
            Self::Store(error) if error.kind() == StoreErrorKind::NoServer => Some(
                "check the address, and that the server runs; with --wait bkfs waits for the \
                 server for up to timeout= seconds",
            ),
            Self::CondemnedUnknown { .. } => Some(
                "bkfs check --repair condemns again what the list may have named; until then the \
                 repository can be read (-o ro), but not written or collected",
            ),
            _ if self.object().is_some_and(|key| key.starts_with("lists/")) => {
                Some("bkfs check --repair writes lost lists again")
            }
            Self::OutcomeUnknown { .. } => Some("see bkfs snapshots"),
            Self::Refused(refusal) => refusal.hint(),
            _ => self.key_hint(),
        }
    }

    /// Returns a line of advice if no key opens the repository.
    fn key_hint(&self) -> Option<&'static str> {
        match self {
            Self::WrongPasswordOrDamaged { .. } | Self::OwnKeyDamaged { .. } => Some(
                "bring the object back from an older version in the bucket or from another copy; \
                 or give the password of another key: with it, bkfs key remove removes the \
                 damaged key, and bkfs key add makes one for this password",
            ),
            Self::KeysUntried { .. } => Some(
                "name the key of the password with --key, so that it is tried before all others; \
                 then remove the objects below keys/ that belong to no user (bkfs key list, bkfs \
                 key remove)",
            ),
            Self::KeysConflict { .. } => Some(
                "bring the newest root back; without one, give --key for the key whose objects \
                 can be read (bkfs check --key NAME), and keep the other one",
            ),
            Self::NoSuchKey { .. } => Some("bkfs key list shows the keys"),
            Self::OlderKey { .. } => Some(
                "give the password of a key of the newest epoch; with it, bkfs key add adds a key \
                 for this password again",
            ),
            _ => None,
        }
    }

    /// Returns the error as it is said after an earlier step of the same repair.
    pub fn after_changes(self) -> Self {
        match self {
            Self::NoLongerLost { object, .. } => Self::NoLongerLost {
                object,
                changed: true,
            },
            error => error,
        }
    }

    /// The error of an object that is damaged.
    pub(crate) fn damaged(key: &str, reason: impl std::fmt::Display) -> Self {
        Self::Damaged {
            key: key.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// Returns the present holder of the volume, if the error names it.
    pub fn holder(&self) -> Option<&HolderInfo> {
        match self {
            Self::Refused(Refusal::Held { by, .. })
            | Self::Refused(Refusal::Fenced { by: Some(by) }) => Some(by),
            _ => None,
        }
    }
}

/// Returns the action that a store's error at an object of the protocol asks of the caller.
fn of_store(error: &StoreError) -> ErrorKind {
    match error.kind() {
        StoreErrorKind::NoBucket => ErrorKind::NoRepository,
        StoreErrorKind::NotFound | StoreErrorKind::OutOfRange => ErrorKind::Damaged,
        StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::Denied
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::NoSpace
        | StoreErrorKind::Invalid
        | StoreErrorKind::Other => ErrorKind::Unavailable,
    }
}

/// Returns the error of an object that does not open.
pub(super) fn unopenable(key: &str, source: OpenError) -> RootError {
    RootError::Unopenable {
        key: key.to_owned(),
        source,
    }
}

/// Returns the error of a key slot that cannot be made or opened.
pub(super) fn of_slot(error: SlotError, key: &str) -> RootError {
    match error {
        SlotError::WrongPassword => RootError::WrongPassword,
        SlotError::NoMemory { .. } => RootError::Local {
            what: key.to_owned(),
            source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error.to_string()),
        },
        SlotError::EmptyPassword | SlotError::UnreasonableCost(_) | SlotError::LabelTooLong => {
            RootError::Local {
                what: key.to_owned(),
                source: std::io::Error::new(std::io::ErrorKind::InvalidInput, error.to_string()),
            }
        }
        SlotError::Damaged => RootError::damaged(key, error),
    }
}
