//! The contents of the root, the one mutable object of a repository, as plain data.
//!
//! Owns the types of the root's payload, and the invariants of every root ([`Root::check`]).
//! [`super::encoding`] makes bytes of them. [`super::transition`] defines how one root follows
//! another; [`super::handle`] reads and replaces it. Pure: no I/O, clock or randomness.
//!
//! The encoding is CBOR maps with small integer keys. Unknown keys are skipped, so fields may be
//! added. But a program that replaces a root drops the fields that it does not know. So a field
//! that must survive comes with a read-only feature bit in the object's header, which keeps older
//! programs from writing.
//!
//! A session names its volume and holds the number of its last covered operation; a volume names
//! only its holder. Each fact is stored once.

use super::chain::{Chain, ChainGap, RootMark};
use super::form::Form;
use super::run_group::RunGroup;
use super::shard::ListRef;
use super::wire;
use crate::printable;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::fmt;

/// The key of the root in the bucket.
pub const ROOT_KEY: &str = "root";

/// The longest name of a volume or snapshot, in bytes. It equals the longest file name, because
/// volumes and snapshots appear as directories.
pub const NAME_BYTES_MAX: usize = 255;

/// The largest value of a number that counts one by one: generations, epochs, commits, operations
/// and journals. No repository reaches it, and each count has a successor.
pub const COUNTER_MAX: u64 = i64::MAX as u64;

/// The longest mount point of a [`HolderInfo`], in bytes. Longer ones are cut when a session
/// registers.
pub const MOUNT_POINT_BYTES_MAX: usize = 255;

/// The longest other text of a [`HolderInfo`], in bytes: the limit of Linux for a host name. Longer
/// ones are cut when a session registers.
pub const HOLDER_TEXT_BYTES_MAX: usize = 64;

/// The largest number of recovery bases that a root holds.
pub const RECOVERY_BASES_MAX: usize = 32;

/// The id of a session: random, registered in the root before its first upload, never reused.
#[derive(Copy, Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SessionId(#[n(0)] pub u64);

impl SessionId {
    /// Returns the key of the session's heartbeat in the bucket.
    pub fn key(self) -> String {
        format!("sessions/{self}")
    }

    /// Returns the key of the session's fence in the bucket.
    pub fn fence_key(self) -> String {
        format!("fence/{self}")
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

/// The identity of the directory that holds a machine's spools: drawn at random, and stored in that
/// directory.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct SpoolId(#[n(0)] pub u64);

/// The payload of the root object.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Root {
    /// The repository of this root; equals the id in the object's header.
    #[cbor(n(0), with = "wire::repository")]
    pub repository: RepositoryId,
    /// Counts the replacements of the root; the first root is generation 1.
    #[n(1)]
    pub generation: u64,
    /// Random bytes, fresh for every root ever written. Together with the generation they identify
    /// this root among all that were attempted.
    #[cbor(n(2), with = "wire::bytes_16")]
    pub nonce: [u8; 16],
    /// The epoch of collection (rule 8), which each condemnation raises.
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
    /// Shards of the list of forgotten snapshots, which can still be restored.
    #[n(7)]
    pub trash: Vec<ListRef>,
    /// The index objects. Together they hold the footers of all live packs, and of condemned packs
    /// until these are deleted.
    #[n(8)]
    pub index: Vec<IndexRef>,
    /// The packs that were condemned in each epoch and are not yet deleted.
    #[n(9)]
    pub condemned: Vec<Condemned>,
    /// Shards of the list of quarantined places (rule 11): frames of packs that could not be read.
    #[n(10)]
    pub quarantine: Vec<ListRef>,
    /// The number at which the search for a free snapshot number starts, so that numbers are reused
    /// as late as possible.
    #[n(11)]
    pub next_snapshot: u16,
    /// When the first lock of a needed object may end, in seconds since 1970. The collector that
    /// last extended the locks set it (`--lock-days`). Absent: not known.
    #[n(12)]
    pub locked_until_s: Option<i64>,
    /// The roots that this root descends from. Present if and only if the header has the feature
    /// [`Features::WITNESS`](bkfs_chunker::crypto::Features::WITNESS). Only then may the fields
    /// below, [`Session::covered_journal`], [`Volume::building`], and the flags of recovered
    /// snapshots be present.
    #[n(13)]
    pub chain: Option<Chain>,
    /// Hashes of the lock rules that the config may state: one, or several while the rule is being
    /// changed. Absent: not known.
    #[n(14)]
    pub lock_rules: Option<Vec<RuleHash>>,
    /// The recovery bases of ended sessions whose spools may still hold operations that they
    /// acknowledged; at most [`RECOVERY_BASES_MAX`].
    #[n(15)]
    pub recovery_bases: Option<Vec<RecoveryBase>>,
    /// Groups of runs (rule 12). Programs that do not know them lose them, and lose no data.
    #[n(16)]
    pub run_groups: Option<Vec<RunGroup>>,
    /// The form of its payload, which the header tells.
    #[cbor(skip)]
    pub form: Form,
}

/// The hash of a lock rule.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(transparent)]
pub struct RuleHash(#[cbor(n(0), with = "wire::bytes_16")] pub [u8; 16]);

/// The recovery base of an ended session. It names the session's last commit,
/// which the journals in its spool follow. It stays in the root until the spool is claimed, or
/// given up by name.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub struct RecoveryBase {
    /// The session.
    #[n(0)]
    pub session: SessionId,
    /// Its volume.
    #[n(1)]
    pub volume: String,
    /// The id of the record of that commit; none before the volume's first commit.
    #[cbor(n(2), with = "wire::id_option", has_nil)]
    pub record: Option<Id>,
    /// The id of the record of the commit that removed the session from the root and carried out
    /// its journals; none if there was nothing to carry out.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub after: Option<Id>,
    /// No pack that was condemned after this epoch is deleted while the recovery base is in the
    /// root. Absent: epoch 0, so no condemned pack is deleted at all.
    #[n(4)]
    pub base: Option<u64>,
    /// The directory that holds the spool.
    #[n(5)]
    pub spool: Option<SpoolId>,
    /// The name of the spool's host, for display.
    #[n(6)]
    pub host: Option<String>,
}

impl RecoveryBase {
    /// Returns the epoch up to which (inclusive) condemned packs may be deleted while the recovery
    /// base is in the root.
    pub fn base(&self) -> u64 {
        self.base.unwrap_or(0)
    }

    /// Returns the name of the host that has the spool, for display.
    pub fn host(&self) -> &str {
        self.host.as_deref().unwrap_or("(unknown)")
    }

    /// Returns the commits that the spool's journals may follow.
    pub fn records(&self) -> impl Iterator<Item = Id> {
        [self.record, self.after].into_iter().flatten()
    }
}

/// A tree that one session at a time may write.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Volume {
    /// The root node of the tree in the last commit; none while the tree is empty.
    #[cbor(n(0), with = "wire::id_option", has_nil)]
    pub tree: Option<Id>,
    /// The live session that may commit.
    #[n(1)]
    pub holder: Option<SessionId>,
    /// The number of the last commit; 0 before the first.
    #[n(2)]
    pub sequence: u64,
    /// The id of the record of the last commit; none before the first.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub commit: Option<Id>,
    /// The lowest inode number that was never given out.
    #[n(4)]
    pub next_inode: u64,
    /// The number of inodes in the tree.
    #[n(5)]
    pub inodes: u64,
    /// Allocated bytes of file contents in the tree, before deduplication and without holes.
    #[n(6)]
    pub bytes: u64,
    /// Bytes that commits have added to the bucket since the last snapshot.
    #[n(7)]
    pub unsnapshotted_bytes: u64,
    /// The root node of a tree that a copy is building: collection keeps it, and nothing shows it.
    /// The next commit that does not set it removes it.
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
    /// It was taken over. It can commit nothing more, but holds back deletion until its journal is
    /// replayed.
    #[n(1)]
    Ending,
}

/// A writer, a new holder, a collector, or another maintenance command.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Session {
    /// Whether it may still replace the root.
    #[n(0)]
    pub state: SessionState,
    /// Objects that the session wrote with this sequence number or a higher one are its own. They
    /// are no garbage while it is in the root.
    #[n(1)]
    pub floor: u32,
    /// The volume that it writes, or wrote before it was taken over; none for a maintenance
    /// session.
    #[n(2)]
    pub volume: Option<String>,
    /// The epoch of the root that registered it: its first base (rule 4).
    #[n(3)]
    pub registered_epoch: u64,
    /// The last of its operations that is in a commit (rule 5).
    #[n(4)]
    pub covered: u64,
    /// The process behind it, for messages and for judging whether it is alive.
    #[n(5)]
    pub holder: HolderInfo,
    /// The generation of the root that gave it its volume; zero without one. It orders the ended
    /// sessions of a volume without a clock: they are replayed oldest first (rule 7 ‡).
    #[n(6)]
    pub claimed_generation: u64,
    /// The number of its last journal that a commit covers.
    #[n(7)]
    pub covered_journal: Option<u64>,
    /// The directory that holds its spool, if it has one.
    #[n(8)]
    pub spool: Option<SpoolId>,
}

/// The process and the machine behind a session.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct HolderInfo {
    /// Name of the host, for display.
    #[n(0)]
    pub host: String,
    /// `/etc/machine-id`; empty if there is none.
    #[n(1)]
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`, which identifies a boot of a machine; empty if unknown.
    #[n(2)]
    pub boot_id: String,
    /// Inode number of the pid namespace, zero if unknown. Process ids are meaningless outside it.
    #[n(3)]
    pub pid_namespace: u64,
    /// The process id within that namespace.
    #[n(4)]
    pub pid: u32,
    /// When the process started, in clock ticks after boot. It distinguishes the process from a
    /// later one with the same id.
    #[n(5)]
    pub process_start_ticks: u64,
    /// Name of the user that the process runs as, for display.
    #[n(6)]
    pub user: String,
    /// The mount point, or the name of the command that the process runs, for display.
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

/// A list of packs that left the live set together.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Condemned {
    /// The epoch that condemned them. They may be deleted once every session's base has reached it.
    #[n(0)]
    pub epoch: u64,
    /// The list of their names.
    #[n(1)]
    pub list: ListRef,
}

/// The reasons why bytes are not a root that this program can use.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StateError {
    /// The bytes cannot be decoded as a root.
    #[error("not a root: {0}")]
    Malformed(String),
    /// The root violates an invariant.
    #[error("the root contradicts itself: {0}")]
    Inconsistent(String),
    /// The root would be larger than its form permits.
    #[error(
        "the root would need {bytes} bytes, and {bytes_max} is the maximum: end unused sessions, \
         merge lists or remove volumes"
    )]
    TooLarge {
        /// The length that it would need, in bytes.
        bytes: usize,
        /// The largest length, in bytes.
        bytes_max: usize,
    },
}

impl Root {
    /// Returns the first root of a repository: no volumes, sessions, snapshots or chain.
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
            recovery_bases: None,
            run_groups: None,
            form: Form::Small,
        }
    }

    /// Returns the first root of a repository, with a chain that begins with it.
    pub fn witnessed(repository: RepositoryId, nonce: [u8; 16]) -> Self {
        let root = Self::new(repository, nonce);
        Self {
            chain: Some(Chain::new(root.generation, None)),
            ..root
        }
    }

    /// Turns this root into its successor: the next generation, with its own nonce.
    pub fn follow(&mut self, nonce: [u8; 16]) {
        let mark = self.mark();
        if let Some(chain) = &mut self.chain {
            chain.enter(mark);
        }
        self.generation += 1;
        self.nonce = nonce;
    }

    /// Returns what identifies this root among all that were ever attempted.
    pub fn mark(&self) -> RootMark {
        RootMark {
            generation: self.generation,
            nonce: self.nonce,
        }
    }

    /// Checks the invariants of every root, so that a faulty program is stopped before it writes,
    /// and no program works on a root that violates them.
    ///
    /// - A volume's holder is a live session that names the volume, and a live session with a
    ///   volume is its holder.
    /// - Each volume that a session names exists, and names of volumes are valid.
    /// - A volume has a last commit if and only if its number of commits is not zero.
    /// - The chain has no gap, and the recovery bases do not contradict the root.
    /// - No count exceeds [`COUNTER_MAX`].
    ///
    /// # Errors
    /// [`StateError::Inconsistent`], which names the first violation.
    pub fn check(&self) -> Result<(), StateError> {
        let inconsistent = |text: String| Err(StateError::Inconsistent(text));
        self.check_counts()?;
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
            let gap = |gap: ChainGap| StateError::Inconsistent(gap.to_string());
            chain.check(self.generation).map_err(gap)?;
        }
        self.check_recovery_bases()?;
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

    fn check_counts(&self) -> Result<(), StateError> {
        let commits = self.volumes.values().map(|volume| volume.sequence);
        let covered = self.sessions.values().flat_map(|session| {
            let journals = session.covered_journal.unwrap_or_default();
            [session.covered, journals]
        });
        let mut counts = [self.generation, self.epoch]
            .into_iter()
            .chain(commits)
            .chain(covered);
        match counts.find(|count| *count > COUNTER_MAX) {
            None => Ok(()),
            Some(count) => Err(StateError::Inconsistent(format!(
                "it counts to {count}, and no root counts beyond {COUNTER_MAX}"
            ))),
        }
    }

    /// Returns the sessions of `volume` that were taken over and whose journals are not yet
    /// replayed, oldest first.
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

/// The reasons why a text cannot name a volume or snapshot.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than [`NAME_BYTES_MAX`].
    #[error("a name must have 1 to {NAME_BYTES_MAX} bytes")]
    Length,
    /// It starts with `.` or `@`.
    #[error("a name must not start with '.' or '@'")]
    Start,
    /// It has a `/` or a zero byte, which no file name can have.
    #[error("a name must not contain '/' or a zero byte")]
    Byte,
    /// It has a control character, which a terminal would obey.
    #[error("a name must not contain control characters")]
    Control,
    /// It is `latest`, which stands for the newest snapshot wherever a name is read.
    #[error("the name 'latest' is reserved: it means the newest snapshot")]
    Reserved,
    /// It starts as the names of scratch clones do, which bkfs makes itself.
    #[error("the name is reserved for scratch clones")]
    Scratch,
}

/// Checks the name of a volume or snapshot: 1 to 255 bytes, no `/` or zero byte, not starting with
/// `.` or `@`.
///
/// # Errors
/// [`NameError::Length`], [`NameError::Start`] or [`NameError::Byte`], in this order.
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

/// Checks the name of a new volume: [`check_name`], and no control character. Older names with
/// control characters remain readable.
///
/// # Errors
/// Those of [`check_name`] and [`check_printable`].
pub fn check_new_name(name: &str) -> Result<(), NameError> {
    check_name(name)?;
    check_printable(name)
}

/// Checks that a word has no control character, which a terminal would obey.
///
/// # Errors
/// [`NameError::Control`] if it has one.
pub fn check_printable(word: &str) -> Result<(), NameError> {
    match printable::line(word) == word {
        true => Ok(()),
        false => Err(NameError::Control),
    }
}
