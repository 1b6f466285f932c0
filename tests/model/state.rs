//! The state of the modelled world: the root R, the objects in the store, and the knowledge of each
//! process.
//!
//! Every type is a small `Copy` value with a canonical form, so that states hash fast and equal
//! situations are equal bytes. One process owns one session (a restarted machine is another
//! process), so one number identifies both. A pack name is (session, sequence), and takes one bit
//! position of a [`PackSet`].

use std::fmt;
use std::hash::{Hash as _, Hasher as _};

use crate::clones::{Cloning, SNAPSHOTS, Snapshot};
use crate::conversion::Converting;
use crate::descriptions::Descriptions;
use crate::fences::Fences;
use crate::index::{Absorb, Index, RUNS, Run};
use crate::learned::Learned;
use crate::rebuild::Loss;
use crate::runs::Merge;

pub use crate::log::Log;

/// Number of processes, and so of sessions, in one world.
pub const SESSIONS: usize = 4;
/// Most operations that one session may accept. The log packs an operation into four bits, so at
/// most 3.
pub const OPERATIONS: usize = 3;
/// Most journal objects that one session may write.
pub const JOURNALS: usize = 3;
/// Most packs that one session may write.
pub const OWN_PACKS: usize = 3;
/// Number of packs that exist at the start; no session owns them.
pub const GIVEN_PACKS: usize = 4;
/// Number of all pack names.
pub const PACKS: usize = GIVEN_PACKS + SESSIONS * OWN_PACKS;
/// Number of epochs, 0..EPOCHS; a scenario may use fewer.
pub const EPOCHS: usize = 3;
/// Number of volumes in the root.
pub const VOLUMES: usize = 3;

/// Number of a process and of its session.
pub type Session = usize;
/// Number of a piece of content: a segment together with the one chunk that it refers to.
pub type Content = u8;

/// Marks an absent session, base or content in a `u8` field.
pub const NONE: u8 = u8::MAX;

/// A set of objects, by content address: bit k is chunk k, and bit 4 + k is the segment that refers
/// to chunk k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Objects(pub u8);

impl Objects {
    /// Returns the chunk of content `k`.
    pub const fn chunk(k: Content) -> Self {
        Self(1 << k)
    }
    /// Returns the segment of content `k`.
    pub const fn segment(k: Content) -> Self {
        Self(1 << (4 + k))
    }
    /// Returns segment and chunk of content `k`: everything that a tree with `k` reaches.
    pub const fn content(k: Content) -> Self {
        Self(Self::chunk(k).0 | Self::segment(k).0)
    }
    /// Returns the chunks that the segments of this set refer to.
    pub const fn references(self) -> Self {
        Self(self.0 >> 4)
    }
    /// Returns only the segments of this set.
    pub const fn segments(self) -> Self {
        Self(self.0 & 0xF0)
    }
    /// Returns the union of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Returns the intersection of both sets.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Returns this set without the other.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Returns each object as a set of its own.
    pub fn each(self) -> impl Iterator<Item = Self> {
        (0..8)
            .map(|bit| Self(1 << bit))
            .filter(move |o| self.0 & o.0 != 0)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for bit in 0..8u8 {
            if self.0 & (1 << bit) != 0 {
                let kind = if bit < 4 { 'c' } else { 'm' };
                set.entry(&format_args!("{kind}{}", bit % 4));
            }
        }
        set.finish()
    }
}

/// Number of a pack name: first the given packs, then `OWN_PACKS` names per session in the order of
/// their sequence numbers.
pub type Pack = usize;

/// Returns the name of the pack of session `s` with this sequence number.
pub const fn own_pack(s: Session, sequence: u8) -> Pack {
    GIVEN_PACKS + s * OWN_PACKS + sequence as usize
}

/// Returns the session and sequence number in a pack's name, or `None` for a given pack.
pub const fn named_by(p: Pack) -> Option<(Session, u8)> {
    if p < GIVEN_PACKS {
        None
    } else {
        let q = p - GIVEN_PACKS;
        Some((q / OWN_PACKS, (q % OWN_PACKS) as u8))
    }
}

/// A set of pack names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct PackSet(pub u16);

impl PackSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// Returns the set of `p` alone.
    pub const fn of(p: Pack) -> Self {
        Self(1 << p)
    }
    /// Returns all packs with a lower number than `p`.
    pub const fn before(p: Pack) -> Self {
        Self((1 << p) - 1)
    }
    /// Returns every pack that session `s` may name, from sequence number `floor` on.
    pub const fn own(s: Session, floor: u8) -> Self {
        let all = ((1u32 << OWN_PACKS) - 1) << own_pack(s, 0);
        Self((all & !((1u32 << own_pack(s, floor)) - 1)) as u16)
    }
    /// Returns the union of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Returns the intersection of both sets.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Returns this set without the other.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Whether `p` is in the set.
    pub const fn has(self, p: Pack) -> bool {
        self.0 & (1 << p) != 0
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Whether every pack of this set is in the other.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
    /// Returns the packs in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Pack> {
        (0..PACKS).filter(move |&p| self.has(p))
    }
    /// Returns the pack with the lowest number.
    pub fn first(self) -> Option<Pack> {
        self.iter().next()
    }
}

impl fmt::Debug for PackSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for p in self.iter() {
            match named_by(p) {
                None => set.entry(&format_args!("g{p}")),
                Some((s, sequence)) => set.entry(&format_args!("s{s}.{sequence}")),
            };
        }
        set.finish()
    }
}

/// The state of a session in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Standing {
    /// Not registered yet.
    #[default]
    Absent,
    /// Registered; may replace R.
    Live,
    /// Lost its volume; still holds back deletion.
    Ending,
    /// Taken out of R. R itself has no entry any more; the rest of the entry stays for the
    /// properties.
    Removed,
}

/// The entry of a session in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SessionEntry {
    /// Live, ending, or absent.
    pub standing: Standing,
    /// How often the volume had been taken when this session took it. This is the order of replay.
    pub rank: u8,
    /// Sequence number from which the session's own packs are never garbage while the entry stands.
    pub floor: u8,
    /// Number of this session's last operation that the tree in R contains.
    pub covered: u8,
}

/// The entry of a volume in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Volume {
    /// The session that may commit, or `NONE`.
    pub holder: u8,
    /// How often the volume was taken.
    pub takes: u8,
    /// The operations in the tree.
    pub log: Log,
    /// Whether the volume stands in R.
    pub exists: bool,
    /// The content that the tree names from the start, or `NONE`.
    pub start: Content,
    /// Version 2, clones: the operations in the tree of the snapshot that it began as.
    pub origin: Log,
}

impl Volume {
    /// An entry with an empty tree, that does not stand in R.
    pub const EMPTY: Self = Self {
        holder: NONE,
        takes: 0,
        log: Log::EMPTY,
        exists: false,
        start: NONE,
        origin: Log::EMPTY,
    };
}

/// R, the root. Its generation and nonce are not modelled. Instead, a CAS that was prepared from an
/// older R is dropped when R changes, see [`Process::pending`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Root {
    /// Epoch E.
    pub epoch: u8,
    /// The table of live packs.
    pub live: PackSet,
    /// Live packs that are known to be damaged.
    pub quarantine: PackSet,
    /// Condemned packs per epoch.
    pub condemned: [PackSet; EPOCHS],
    /// Recovery bases: sessions that left R although their spools may hold operations that only the
    /// spool acknowledged.
    pub recovery_bases: [Option<RecoveryBase>; SESSIONS],
    /// The volumes.
    pub volumes: [Volume; VOLUMES],
    /// The sessions.
    pub sessions: [SessionEntry; SESSIONS],
    /// Index objects and groups of runs. `live` then follows from the index objects.
    pub index: Index,
    /// Whether R is one of version 2; only scenarios that convert begin with one of version 1.
    pub version_2: bool,
    /// Version 2: the collector that has lost often and asks the others to wait, or `NONE`.
    pub turn: u8,
    /// Version 2: the snapshots. Snapshot k is one of volume k.
    pub snapshots: [Snapshot; SNAPSHOTS],
}

impl Root {
    /// Whether the session stands in R.
    pub fn stands(&self, s: Session) -> bool {
        matches!(self.sessions[s].standing, Standing::Live | Standing::Ending)
    }
    /// Returns the packs that are the session's own by this root.
    pub fn own(&self, s: Session) -> PackSet {
        if self.stands(s) {
            PackSet::own(s, self.sessions[s].floor)
        } else {
            PackSet::EMPTY
        }
    }
    /// Returns the ETag of R for a store in which nothing tells equal bytes apart. Only entries
    /// that stand in R count.
    pub fn etag(&self) -> u32 {
        let mut bytes = *self;
        for entry in &mut bytes.sessions {
            if entry.standing == Standing::Removed {
                *entry = SessionEntry::default();
            }
        }
        let mut hasher = std::hash::DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish() as u32
    }
    /// Returns the packs that are condemned in any epoch.
    pub fn all_condemned(&self) -> PackSet {
        self.condemned
            .iter()
            .fold(PackSet::EMPTY, |all, &c| all.and(c))
    }
}

/// The position of a session that left R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RecoveryBase {
    /// The objects reached by the tree that the spool of the session follows.
    pub tree: Objects,
    /// The base of the session. No pack that was condemned in a later epoch is deleted.
    pub base: u8,
}

/// The state of a journal object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum JournalState {
    /// Not written.
    #[default]
    Unsent,
    /// On the disk of its machine, in the form in which it will be sent. Its number and bytes are
    /// settled.
    Kept,
    /// The PUT was sent and has no answer. It may arrive at any time, also after its sender is
    /// gone.
    Flying,
    /// In the store.
    Landed,
    /// Deleted, since R covers all its operations. Its number is not used again.
    Deleted,
}

/// One object `journal/VOLUME/SESSION/N`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Journal {
    /// Whether it was sent, and whether it arrived.
    pub state: JournalState,
    /// First operation carried.
    pub first: u8,
    /// Last operation carried. It is below `first` in a journal that only names packs again.
    pub last: u8,
    /// The packs that it names.
    pub named: PackSet,
}

/// The content of the store in addition to R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Store {
    /// Packs in the store.
    pub stored: PackSet,
    /// Packs that the bucket refuses to delete for now.
    pub locked: PackSet,
    /// Packs whose bytes differ from those that were stored.
    pub rotten: PackSet,
    /// Packs whose PUT is under way and may still arrive.
    pub flying: PackSet,
    /// Packs that some collector has decided to delete: a DELETE may arrive at any time.
    pub doomed: PackSet,
    /// The objects in each pack.
    pub contents: [Objects; PACKS],
    /// The base in `sessions/ID`, or `NONE` while the object is absent.
    pub published: [u8; SESSIONS],
    /// Bases whose PUT is under way, one bit per epoch.
    pub flying_bases: [u8; SESSIONS],
    /// The journals, in the order of their numbers.
    pub journals: [[Journal; JOURNALS]; SESSIONS],
    /// Journals that the bucket has lost or damaged since they arrived, one bit per number. Their
    /// writers do not know this, since they received the answers.
    pub lost: [u8; SESSIONS],
    /// Version 2: fences of sessions, written and under way.
    pub fences: Fences,
    /// The runs.
    pub runs: [Run; RUNS],
    /// Version 2: what the objects of the sessions say in addition to the bases.
    pub descriptions: Descriptions,
}

impl Store {
    /// Returns the packs in the store whose bytes are as they were stored.
    pub fn whole(&self) -> PackSet {
        self.stored.without(self.rotten)
    }
    /// Returns all objects in the given packs.
    pub fn objects(&self, packs: PackSet) -> Objects {
        packs
            .iter()
            .fold(Objects::default(), |all, p| all.and(self.contents[p]))
    }
    /// Returns those of the packs that hold at least one of the objects.
    pub fn holding(&self, packs: PackSet, objects: Objects) -> PackSet {
        packs
            .iter()
            .filter(|&p| !self.contents[p].common(objects).is_empty())
            .fold(PackSet::EMPTY, |all, p| all.and(PackSet::of(p)))
    }
}

/// The progress of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Not registered.
    #[default]
    Outside,
    /// Registered; a collector stays here between two collections.
    Registered,
    /// Holds its volume, and has not listed the journals of the ended sessions.
    Taken,
    /// Has listed the journals.
    Listed,
    /// Accepts operations.
    Mounted,
    /// A collector with a set of candidates.
    Marked,
}

/// A commit whose CAS was sent and whose answer is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pending {
    /// Whether the CAS was applied.
    pub applied: bool,
    /// Last operation covered.
    pub last: u8,
    /// Packs that it makes live.
    pub add: PackSet,
    /// Floor that it sets.
    pub floor: u8,
    /// What it does with an older index object.
    pub absorb: Absorb,
    /// Only for the mutant `UnchangedEtagTrusted`: the ETag of the R that it replaces.
    pub base: u32,
    /// Whether the writer has seen another R since then that does not hold the commit.
    pub given_up: bool,
}

/// The knowledge of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    /// Its progress.
    pub phase: Phase,
    /// Packs in its copy of the index.
    pub index: PackSet,
    /// The quarantine in the R that it took its index from.
    pub quarantine: PackSet,
    /// The base that binds it.
    pub bound: u8,
    /// Number of operations accepted so far.
    pub accepted: u8,
    /// The contents of these operations.
    pub operations: [Content; OPERATIONS],
    /// Last operation that the process knows to be in R.
    pub covered: u8,
    /// Last operation acknowledged to the user. A ghost: no rule reads it.
    pub acknowledged: u8,
    /// Last operation that its machine's disk acknowledged to the user. A ghost, too.
    pub kept: u8,
    /// Operations that were accepted while all damage was known to the process, one bit each from
    /// the first. A ghost, too.
    pub healing: u8,
    /// Packs named by references that the process does not know to be in R.
    pub held: PackSet,
    /// Sequence number of its next pack.
    pub next_pack: u8,
    /// Own packs whose PUT has no answer yet.
    pub unresolved: PackSet,
    /// Own acknowledged packs that are not known to be live.
    pub uncommitted: PackSet,
    /// The commit under way. It is dropped when another process replaces R before it arrives, since
    /// its condition can then never hold.
    pub pending: Option<Pending>,
    /// New holder: the journals found, one bit per number, per session.
    pub listing: [u8; SESSIONS],
    /// New holder: its user was told that journals are missing, and goes on without them.
    pub accepts_loss: bool,
    /// Collector: the packs that it would condemn.
    pub candidates: PackSet,
    /// The root that registered the session, or that it has made, is one of version 2.
    pub knows_version_2: bool,
    /// Version 2, new holder: the sessions of which it knows that their fence stands, one bit each.
    pub fenced: u8,
    /// Merging session: the slice under way.
    pub merge: Option<Merge>,
    /// The process has ended.
    pub dead: bool,
    /// Version 2: the clone that the session is about to make.
    pub cloning: Option<Cloning>,
    /// The conversion to version 2 that the session is about to make.
    pub converting: Option<Converting>,
    /// Version 2: a root that was read after the answer to the session's object showed it live.
    pub announced: bool,
    /// Sampled writer: the packs whose footers the session has learned.
    pub learned: Learned,
    /// Sampled writer: the packs of the index objects that no complete group of the loaded root
    /// covers.
    pub tables: PackSet,
    /// Sampled writer: the runs of the complete groups of the loaded root, one bit each.
    pub runs: u8,
    /// Only for the mutant `MatchedOutsideLock`: packs that were found for the next operation.
    pub found: PackSet,
    /// Only for the mutant `GetBeforeAnswer`: how many journals had been sent when R was read.
    pub early: u8,
}

/// How many more faults may happen. A slow request arrives at any later time or never; all others
/// arrive at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Slow PUTs of packs.
    pub packs: u8,
    /// Slow PUTs of journals.
    pub journals: u8,
    /// Slow PUTs of heartbeats.
    pub heartbeats: u8,
    /// Commits whose answer is lost.
    pub commits: u8,
    /// Packs whose bytes become damaged.
    pub rots: u8,
    /// Journals that the bucket loses or damages after they arrived.
    pub losses: u8,
    /// Slow PUTs of fences.
    pub fences: u8,
}

/// The world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// R.
    pub root: Root,
    /// The rest of the bucket.
    pub store: Store,
    /// The processes.
    pub processes: [Process; SESSIONS],
    /// Faults left.
    pub faults: Faults,
    /// Ghost: an operation was acknowledged on the evidence of an R in which the writer was already
    /// fenced.
    pub fenced_acknowledged: bool,
    /// Ghost: a commit was made although its writer had reason to take it for failed.
    pub failed_made: bool,
    /// Ghost: for each session that left R while its spool had more than R, the objects reached by
    /// the tree that the spool follows.
    pub owed: [Option<Objects>; SESSIONS],
    /// Ghost: a new holder on the session's own machine took the session out of R, although the
    /// spool has more than R.
    pub spool_ignored: bool,
    /// Ghost: a new holder went on without an acknowledged operation whose loss it could see, and
    /// did not tell its user.
    pub lost_untold: bool,
    /// Whether R is lost.
    pub loss: Loss,
    /// Ghost: a session was ended without its user's word while its process was alive.
    pub ended_alive: bool,
}
