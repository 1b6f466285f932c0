//! What the root holds: the one mutable object of a repository, as plain data.
//!
//! Owns the types of the root's payload, their encoding and the conditions that hold in every root ([`Root::check`]). How one root follows another
//! is in [`super::transition`]; how it is read and replaced is in [`super::handle`]. Pure: no I/O, clock or randomness.
//!
//! The encoding is CBOR maps with small integer keys. Unknown keys are skipped, so that fields may be added; but whoever replaces a root drops what
//! it does not know, so a field that must survive comes with a read-only feature bit in the object's header, which keeps older programs from writing.
//!
//! A session names its volume and holds the number of its last covered operation; a volume names only its holder. Each fact stands in one place.

use super::chain::Chain;
use super::wire;
use crate::printable;
use bkfs_chunker::catalog::{IndexRef, name_bytes};
use bkfs_chunker::id::Id;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::RepositoryId;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::fmt;

/// Where the root lies in the bucket.
pub const ROOT_KEY: &str = "root";

/// Largest payload of a root in bytes: 64 KiB for the whole object, less its header (128) and box (28).
pub const ROOT_BYTES_MAX: usize = 64 * 1024 - 128 - 28;

/// Longest name of a volume or snapshot, in bytes (the longest name of a file, since they appear as directories).
pub const NAME_BYTES_MAX: usize = 255;

/// Longest mount point of a [`HolderInfo`] in bytes; longer ones are cut when a session registers.
pub const MOUNT_POINT_BYTES_MAX: usize = 255;

/// Longest of its other texts: what Linux allows the name of a host. Longer ones are cut.
pub const HOLDER_TEXT_BYTES_MAX: usize = 64;

/// The id of a session: random, registered in the root before its first upload, never reused.
#[derive(Copy, Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SessionId(#[n(0)] pub u64);

impl SessionId {
    /// Where the session's heartbeat lies in the bucket.
    pub fn key(self) -> String {
        format!("sessions/{self}")
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The place of one machine's spools: drawn at random, and kept where they lie.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SpoolId(#[n(0)] pub u64);

/// The payload of the root object.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Root {
    /// The repository this root belongs to; equals the id in the object's header.
    #[cbor(n(0), with = "wire::repository")]
    pub repository: RepositoryId,
    /// Counts the replacements of the root; the first root is generation 1.
    #[n(1)]
    pub generation: u64,
    /// Fresh randomness of every root ever written: with the generation it names this root among all that were attempted.
    #[cbor(n(2), with = "wire::bytes_16")]
    pub nonce: [u8; 16],
    /// The epoch of collection (rule 8): raised by each condemnation.
    #[n(3)]
    pub epoch: u64,
    /// The volumes by name.
    #[n(4)]
    pub volumes: BTreeMap<String, Volume>,
    /// The sessions that hold back deletion.
    #[n(5)]
    pub sessions: BTreeMap<SessionId, Session>,
    /// Shards of the list of kept snapshots.
    #[n(6)]
    pub snapshots: Vec<ListRef>,
    /// Shards of the list of forgotten snapshots, which are still restorable.
    #[n(7)]
    pub trash: Vec<ListRef>,
    /// The index objects: together they hold the footers of all live packs, and of condemned ones until they are deleted.
    #[n(8)]
    pub index: Vec<IndexRef>,
    /// The packs condemned at each epoch and not yet deleted.
    #[n(9)]
    pub condemned: Vec<Condemned>,
    /// Shards of the list of quarantined places (rule 11): frames of packs that could not be read.
    #[n(10)]
    pub quarantine: Vec<ListRef>,
    /// Where the search for a free snapshot number starts, so that numbers come back as late as possible.
    #[n(11)]
    pub next_snapshot: u16,
    /// When the first lock of an object that is needed may end, in seconds since 1970, by the collector that extended them last (`--lock-days`).
    #[n(12)]
    pub locked_until_s: Option<i64>,
    /// What it descends from. Present if and only if the header has the feature
    /// [`Features::WITNESS`](bkfs_chunker::seal::Features::WITNESS), and with it the fields below,
    /// [`Session::covered_journal`], [`Volume::building`], and the flags of recovered snapshots.
    #[n(13)]
    pub chain: Option<Chain>,
    /// Hashes of the rules of locks that the config may state: of one, or of two while one follows
    /// the other. Absent: not known.
    #[n(14)]
    pub lock_rules: Option<Vec<RuleHash>>,
    /// Where ended sessions stood whose spools may still hold what they acknowledged: at most
    /// [`GROUNDS_MAX`](super::grounds::GROUNDS_MAX).
    #[n(15)]
    pub grounds: Option<Vec<Ground>>,
}

/// The hash of a rule of locks.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(transparent)]
pub struct RuleHash(#[cbor(n(0), with = "wire::bytes_16")] pub [u8; 16]);

/// The last commit of an ended session, which what lies in its spool follows. It is kept until the
/// spool is claimed, or given up by name.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub struct Ground {
    /// The session.
    #[n(0)]
    pub session: SessionId,
    /// Its volume.
    #[n(1)]
    pub volume: String,
    /// The record of the commit; none before the volume's first.
    #[cbor(n(2), with = "wire::id_option", has_nil)]
    pub record: Option<Id>,
    /// The record of the commit that took the session out of the root and carried out its journals;
    /// none if there was nothing to carry out.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub after: Option<Id>,
    /// No pack that was condemned after this epoch is deleted while this stands. Absent: none is.
    #[n(4)]
    pub base: Option<u64>,
    /// Where the spool lies.
    #[n(5)]
    pub spool: Option<SpoolId>,
    /// The name of that host, for people.
    #[n(6)]
    pub host: Option<String>,
}

/// One tree that a single session at a time may write.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Volume {
    /// The root node of the tree as of the last commit; none before the first.
    #[cbor(n(0), with = "wire::id_option", has_nil)]
    pub tree: Option<Id>,
    /// The live session that may commit.
    #[n(1)]
    pub holder: Option<SessionId>,
    /// How many commits the volume has seen.
    #[n(2)]
    pub sequence: u64,
    /// The record of the last commit.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub commit: Option<Id>,
    /// The lowest inode number that was never given out.
    #[n(4)]
    pub next_inode: u64,
    /// Inodes in the tree.
    #[n(5)]
    pub inodes: u64,
    /// Bytes of file contents in the tree, before deduplication, holes not counted.
    #[n(6)]
    pub bytes: u64,
    /// Bytes that commits since the last snapshot added to the bucket.
    #[n(7)]
    pub unsnapshotted_bytes: u64,
    /// The root node of a tree that a copy is building: kept, and shown to nobody. The next commit
    /// of anyone else gives it up.
    #[cbor(n(8), with = "wire::id_option", has_nil)]
    pub building: Option<Id>,
}

/// Whether a session may still replace the root.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(index_only)]
pub enum SessionState {
    /// It may commit.
    #[n(0)]
    Live,
    /// It was taken over: it commits nothing more, but holds back deletion until its journal is replayed.
    #[n(1)]
    Ending,
}

/// One writer, taker or collector.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Session {
    /// Whether it may still replace the root.
    #[n(0)]
    pub state: SessionState,
    /// Objects it wrote with this sequence or a higher one are its own, and no garbage while it stands in the root.
    #[n(1)]
    pub floor: u32,
    /// The volume it writes, or wrote before it was taken over; none for a session of maintenance.
    #[n(2)]
    pub volume: Option<String>,
    /// The epoch of the root that registered it: its first base (rule 4).
    #[n(3)]
    pub registered_epoch: u64,
    /// The last of its operations that is in a commit (rule 5).
    #[n(4)]
    pub covered: u64,
    /// Who it is, for messages and for judging whether it lives.
    #[n(5)]
    pub holder: HolderInfo,
    /// The generation of the root that gave it its volume; zero without one. Orders the ended sessions of a volume without a clock: they are
    /// replayed oldest first (rule 7 ‡).
    #[n(6)]
    pub claimed_generation: u64,
    /// The number of its last journal that a commit covers.
    #[n(7)]
    pub covered_journal: Option<u64>,
    /// Where its spool lies, if it has one.
    #[n(8)]
    pub spool: Option<SpoolId>,
}

/// Which process of which machine a session is.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct HolderInfo {
    /// Name of the host, for people.
    #[n(0)]
    pub host: String,
    /// `/etc/machine-id`; empty if there is none.
    #[n(1)]
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`: says which boot of which machine; empty if unknown.
    #[n(2)]
    pub boot_id: String,
    /// Inode number of the pid namespace, zero if unknown. Process numbers mean nothing outside it.
    #[n(3)]
    pub pid_namespace: u64,
    /// The process within that namespace.
    #[n(4)]
    pub pid: u32,
    /// When the process started, in clock ticks after boot: tells a process from a later one with the same number.
    #[n(5)]
    pub process_start_ticks: u64,
    /// Name of the user the process runs as, for people.
    #[n(6)]
    pub user: String,
    /// Where it is mounted, or which command it runs, for people.
    #[n(7)]
    pub mount_point: String,
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            pid,
            user,
            mount_point,
            ..
        } = self;
        write!(
            formatter,
            "host {host}, process {pid}, user {user}, at {mount_point}"
        )
    }
}

/// A list object that a root refers to.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct ListRef {
    /// Names the object `lists/NAME`.
    #[cbor(n(0), with = "name_bytes")]
    pub name: PackName,
    /// Entries in it.
    #[n(1)]
    pub count: u32,
    /// Bytes of its payload.
    #[n(2)]
    pub bytes: u64,
}

/// A list of packs that left the live set together.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Condemned {
    /// The epoch that condemned them: they may be deleted when every session's base has reached it.
    #[n(0)]
    pub epoch: u64,
    /// The list of their names.
    #[n(1)]
    pub list: ListRef,
}

/// Why bytes are no root that this program can work with.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StateError {
    /// The bytes are no encoded root.
    #[error("not a root: {0}")]
    Malformed(String),
    /// The root contradicts itself.
    #[error("the root contradicts itself: {0}")]
    Inconsistent(String),
    /// The root would be larger than a root may be.
    #[error(
        "the root would need {bytes} bytes of at most {ROOT_BYTES_MAX}: end unused sessions, merge lists or remove volumes"
    )]
    TooLarge {
        /// What it would need.
        bytes: usize,
    },
}

impl Root {
    /// The root of a new repository: no volumes, sessions or snapshots.
    pub fn new(repository: RepositoryId, nonce: [u8; 16]) -> Self {
        Self {
            repository,
            generation: 1,
            nonce,
            epoch: 1,
            volumes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            snapshots: Vec::new(),
            trash: Vec::new(),
            index: Vec::new(),
            condemned: Vec::new(),
            quarantine: Vec::new(),
            next_snapshot: 1,
            locked_until_s: None,
            chain: None,
            lock_rules: None,
            grounds: None,
        }
    }

    /// The root of a new repository, with a chain that begins with it.
    pub fn witnessed(repository: RepositoryId, nonce: [u8; 16]) -> Self {
        let root = Self::new(repository, nonce);
        Self {
            chain: Some(Chain::new(root.generation, None)),
            ..root
        }
    }

    /// Becomes the root that follows it: the next generation, with a nonce of its own.
    pub fn follow(&mut self, nonce: [u8; 16]) {
        let mark = self.mark();
        if let Some(chain) = &mut self.chain {
            chain.enter(mark);
        }
        self.generation += 1;
        self.nonce = nonce;
    }

    /// The payload of the root object. Errors if it would be too large or contradicts itself.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        self.check()?;
        let bytes = minicbor::to_vec(self).expect("writing plain fields to memory cannot fail");
        if bytes.len() > ROOT_BYTES_MAX {
            return Err(StateError::TooLarge { bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// The inverse of [`Root::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.len() > ROOT_BYTES_MAX {
            return Err(StateError::TooLarge { bytes: bytes.len() });
        }
        let root: Self =
            minicbor::decode(bytes).map_err(|error| StateError::Malformed(error.to_string()))?;
        root.check()?;
        Ok(root)
    }

    /// What names this root among all that were ever attempted.
    pub fn mark(&self) -> RootMark {
        RootMark {
            generation: self.generation,
            nonce: self.nonce,
        }
    }

    /// What holds in every root: a volume's holder is a live session that names the volume, a live session with a volume is its holder, and names
    /// are valid. Programs that break it are caught before they write, and roots that break it are not worked on.
    pub fn check(&self) -> Result<(), StateError> {
        let inconsistent = |text: String| Err(StateError::Inconsistent(text));
        for (name, volume) in &self.volumes {
            if let Err(error) = check_name(name) {
                return inconsistent(format!("volume {name:?}: {error}"));
            }
            if let Some(holder) = volume.holder {
                let session = self.sessions.get(&holder);
                if !session.is_some_and(|session| {
                    session.state == SessionState::Live && session.volume.as_deref() == Some(name)
                }) {
                    return inconsistent(format!(
                        "volume {name:?} names holder {holder}, which is no live session of it"
                    ));
                }
            }
            if volume.commit.is_none() != (volume.sequence == 0) {
                return inconsistent(format!(
                    "volume {name:?} has {} commits and their last is {:?}",
                    volume.sequence, volume.commit
                ));
            }
        }
        if let Some(chain) = &self.chain {
            chain.check(self.generation)?;
        }
        self.check_grounds()?;
        for (id, session) in &self.sessions {
            let Some(name) = &session.volume else {
                continue;
            };
            let Some(volume) = self.volumes.get(name) else {
                return inconsistent(format!(
                    "session {id} names the volume {name:?}, which is not there"
                ));
            };
            if session.state == SessionState::Live && volume.holder != Some(*id) {
                return inconsistent(format!(
                    "live session {id} does not hold its volume {name:?}"
                ));
            }
        }
        Ok(())
    }

    /// The sessions of `volume` that were taken over and whose journals are not yet replayed, oldest first.
    pub fn ending_sessions(&self, volume: &str) -> Vec<SessionId> {
        let ending = |session: &Session| {
            session.state == SessionState::Ending && session.volume.as_deref() == Some(volume)
        };
        let mut found: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| ending(session))
            .map(|(id, session)| (session.claimed_generation, *id))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }
}

/// The name of one root among all that were ever written or attempted.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RootMark {
    /// Its generation.
    pub generation: u64,
    /// Its random nonce.
    pub nonce: [u8; 16],
}

/// Why a text cannot name a volume or snapshot.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than [`NAME_BYTES_MAX`].
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes")]
    Length,
    /// It starts with `.` or `@`.
    #[error("a name starts neither with '.' nor with '@'")]
    Start,
    /// It has a `/` or a zero byte, which no name of a directory can have.
    #[error("a name has no '/' and no zero byte")]
    Byte,
    /// It has a character that a terminal obeys.
    #[error("a name has no control characters")]
    Control,
    /// `latest` means the newest snapshot wherever a name is read.
    #[error("'latest' means the newest snapshot")]
    Reserved,
}

/// Checks the name of a volume or snapshot: 1–255 bytes, no `/`, not starting with `.` or `@`.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        Err(NameError::Length)
    } else if name.starts_with(['.', '@']) {
        Err(NameError::Start)
    } else if name.contains(['/', '\0']) {
        Err(NameError::Byte)
    } else {
        Ok(())
    }
}

/// Checks the name of a new volume or snapshot, or a tag: [`check_name`] and no character that a
/// terminal obeys. Those that were made before stay readable.
///
/// # Errors
/// What is wrong with it.
pub fn check_new_name(name: &str) -> Result<(), NameError> {
    check_name(name)?;
    check_printable(name)
}

/// Checks that a word has no character that a terminal obeys.
///
/// # Errors
/// [`NameError::Control`].
pub fn check_printable(word: &str) -> Result<(), NameError> {
    match printable::line(word) == word {
        true => Ok(()),
        false => Err(NameError::Control),
    }
}
