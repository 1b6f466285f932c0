//! The state of the modelled world: the root, what lies in the store, and what each process knows.
//!
//! Everything is a small `Copy` value with a canonical form, so that states hash fast and equal situations are equal bytes. One process owns
//! one session (a restarted machine is another process), hence both are counted by the same number. Pack names are
//! (session, sequence), packed into one bit position each, see [`PackSet`].

use std::fmt;
use std::hash::{Hash as _, Hasher as _};

/// Processes, and therefore sessions, of one world.
pub const SESSIONS: usize = 4;
/// Operations one session may accept. The log packs an operation into four bits, so at most 3.
pub const OPERATIONS: usize = 3;
/// Journal objects one session may write.
pub const JOURNALS: usize = 3;
/// Packs one session may write.
pub const OWN_PACKS: usize = 3;
/// Packs that exist at the start; no session owns them.
pub const GIVEN_PACKS: usize = 4;
/// All pack names.
pub const PACKS: usize = GIVEN_PACKS + SESSIONS * OWN_PACKS;
/// Epochs are 0..EPOCHS; a scenario may use fewer.
pub const EPOCHS: usize = 3;
/// Volumes in the root.
pub const VOLUMES: usize = 2;

/// Number of a process and of its session.
pub type Session = usize;
/// Number of a piece of content: a segment together with the one chunk it refers to.
pub type Content = u8;

/// Marks an absent session, base or content in a `u8` field.
pub const NONE: u8 = u8::MAX;

/// A set of objects, by content address: bit k is chunk k, bit 4 + k is the segment that refers to chunk k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Objects(pub u8);

impl Objects {
    /// The chunk of content `k`.
    pub const fn chunk(k: Content) -> Self {
        Self(1 << k)
    }
    /// The segment of content `k`.
    pub const fn segment(k: Content) -> Self {
        Self(1 << (4 + k))
    }
    /// Segment and chunk of content `k`: all that a tree naming `k` reaches.
    pub const fn content(k: Content) -> Self {
        Self(Self::chunk(k).0 | Self::segment(k).0)
    }
    /// The chunks that the segments of this set refer to.
    pub const fn references(self) -> Self {
        Self(self.0 >> 4)
    }
    /// Only the segments of this set.
    pub const fn segments(self) -> Self {
        Self(self.0 & 0xF0)
    }
    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// What both sets have.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// This set without the other.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// No object at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Each object alone.
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

/// Number of a pack name: first the given packs, then `OWN_PACKS` names per session in the order of their sequence numbers.
pub type Pack = usize;

/// The name of session `s`'s pack with sequence number `sequence`.
pub const fn own_pack(s: Session, sequence: u8) -> Pack {
    GIVEN_PACKS + s * OWN_PACKS + sequence as usize
}

/// The session and sequence number in a pack's name, unless it was given.
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
    /// No pack.
    pub const EMPTY: Self = Self(0);
    /// Only `p`.
    pub const fn of(p: Pack) -> Self {
        Self(1 << p)
    }
    /// All packs with a lower number.
    pub const fn before(p: Pack) -> Self {
        Self((1 << p) - 1)
    }
    /// Every pack that session `s` may name, from sequence number `floor` on.
    pub const fn own(s: Session, floor: u8) -> Self {
        let all = ((1u32 << OWN_PACKS) - 1) << own_pack(s, 0);
        Self((all & !((1u32 << own_pack(s, floor)) - 1)) as u16)
    }
    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// What both sets have.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// This set without the other.
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
    /// The packs in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Pack> {
        (0..PACKS).filter(move |&p| self.has(p))
    }
    /// The pack with the lowest number.
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

/// The operations contained in a volume's tree, in the order in which they were applied. Every operation overwrites a file, so the tree
/// reaches the content of the last one for each file; the list itself exists to say what was lost, doubled or reordered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Log(u64);

impl Log {
    /// Appends operation `number` (from 1) of session `s`.
    pub fn push(&mut self, s: Session, number: u8) {
        assert!(
            self.0 >> 60 == 0,
            "the log of a volume holds sixteen operations"
        );
        self.0 = self.0 << 4 | (s as u64) << 2 | u64::from(number);
    }
    /// Oldest first: (session, number).
    pub fn iter(self) -> impl Iterator<Item = (Session, u8)> {
        (0..16)
            .rev()
            .map(move |i| self.0 >> (4 * i) & 0xF)
            .filter(|&op| op != 0)
            .map(|op| ((op >> 2) as Session, (op & 3) as u8))
    }
    /// Newest first: (session, number).
    pub fn newest(self) -> impl Iterator<Item = (Session, u8)> {
        (0..16)
            .map(move |i| self.0 >> (4 * i) & 0xF)
            .take_while(|&op| op != 0)
            .map(|op| ((op >> 2) as Session, (op & 3) as u8))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|(s, n)| format!("s{s}#{n}")))
            .finish()
    }
}

/// How a session stands in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Standing {
    /// Not registered yet.
    #[default]
    Absent,
    /// Registered; may replace R.
    Live,
    /// Lost its volume; still holds back deletion.
    Ending,
    /// Taken out of R. (R itself just has no entry; the rest of the entry stays for the properties.)
    Removed,
}

/// A session's entry in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SessionEntry {
    /// Live, ending, or not there.
    pub standing: Standing,
    /// How often the volume had been taken when this session took it: the order of replay.
    pub rank: u8,
    /// Own packs from this sequence number on are never garbage while the entry stands.
    pub floor: u8,
    /// Number of this session's last operation that R's tree contains.
    pub covered: u8,
}

/// A volume's entry in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Volume {
    /// The session that may commit, or `NONE`.
    pub holder: u8,
    /// How often it was taken.
    pub takes: u8,
    /// What the tree contains.
    pub log: Log,
}

/// R. Its generation and nonce are not modelled: a CAS that was prepared from an older R is dropped when R changes, see [`Process::pending`].
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
    /// Grounds: sessions that left R while their spools may hold what they alone had acknowledged.
    pub grounds: [Option<Ground>; SESSIONS],
    /// The volumes.
    pub volumes: [Volume; VOLUMES],
    /// The sessions.
    pub sessions: [SessionEntry; SESSIONS],
}

impl Root {
    /// Whether the session stands in R.
    pub fn stands(&self, s: Session) -> bool {
        matches!(self.sessions[s].standing, Standing::Live | Standing::Ending)
    }
    /// The packs that are the session's own by this root.
    pub fn own(&self, s: Session) -> PackSet {
        if self.stands(s) {
            PackSet::own(s, self.sessions[s].floor)
        } else {
            PackSet::EMPTY
        }
    }
    /// What the store would call these bytes if nothing in them told one R from another: only what stands in R counts.
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
    /// The packs condemned in any epoch.
    pub fn all_condemned(&self) -> PackSet {
        self.condemned
            .iter()
            .fold(PackSet::EMPTY, |all, &c| all.and(c))
    }
}

/// Where a session stood that left R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ground {
    /// What the tree reached that its spool follows.
    pub tree: Objects,
    /// Its base: nothing that was condemned later is deleted.
    pub base: u8,
}

/// Where a journal object is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum JournalState {
    /// Not written.
    #[default]
    Unsent,
    /// On the disk of its machine, as it will be sent. Its number and bytes are settled.
    Kept,
    /// The PUT was sent and has no answer; it may arrive at any time, also after its sender is gone.
    Flying,
    /// In the store.
    Landed,
    /// Deleted, since R covers all its operations. Its number is not used again.
    Deleted,
}

/// One object `journal/VOLUME/SESSION/N`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Journal {
    /// Sent, or there.
    pub state: JournalState,
    /// First operation carried.
    pub first: u8,
    /// Last operation carried; below `first` for a journal that only names packs anew.
    pub last: u8,
    /// The packs named.
    pub named: PackSet,
}

/// What lies in the store besides R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Store {
    /// Packs that are there.
    pub stored: PackSet,
    /// Packs that the bucket refuses to delete for now.
    pub locked: PackSet,
    /// Packs whose bytes are not what was stored.
    pub rotten: PackSet,
    /// Packs whose PUT is under way and may still arrive.
    pub flying: PackSet,
    /// Packs that some collector has decided to delete: a DELETE may arrive at any time.
    pub doomed: PackSet,
    /// What each pack holds.
    pub contents: [Objects; PACKS],
    /// The base in `sessions/ID`, or `NONE` while the object is absent.
    pub published: [u8; SESSIONS],
    /// Bases whose PUT is under way, one bit per epoch.
    pub flying_bases: [u8; SESSIONS],
    /// The journals, in the order of their numbers.
    pub journals: [[Journal; JOURNALS]; SESSIONS],
    /// Journals that the bucket has lost or damaged since they landed, one bit per number. Writers
    /// do not know of it: they heard that these had landed.
    pub lost: [u8; SESSIONS],
}

impl Store {
    /// Packs that are there, as they were stored.
    pub fn whole(&self) -> PackSet {
        self.stored.without(self.rotten)
    }
    /// All objects in the given packs.
    pub fn objects(&self, packs: PackSet) -> Objects {
        packs
            .iter()
            .fold(Objects::default(), |all, p| all.and(self.contents[p]))
    }
    /// Those of the packs that hold at least one of the objects.
    pub fn holding(&self, packs: PackSet, objects: Objects) -> PackSet {
        packs
            .iter()
            .filter(|&p| !self.contents[p].common(objects).is_empty())
            .fold(PackSet::EMPTY, |all, p| all.and(PackSet::of(p)))
    }
}

/// How far a process has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Not registered.
    #[default]
    Outside,
    /// Registered; a collector stays here between two collections.
    Registered,
    /// Holds its volume, has not listed its victims' journals.
    Taken,
    /// Has listed them.
    Listed,
    /// Accepts operations.
    Mounted,
    /// Collector with a set of candidates.
    Marked,
}

impl Process {
    /// Takes index and quarantine from R.
    pub fn read_index(&mut self, root: &Root) {
        (self.index, self.quarantine) = (root.live, root.quarantine);
    }
    /// The packs in which what is to be stored is looked for (rule 11).
    pub fn matched(&self) -> PackSet {
        self.index.and(self.uncommitted).without(self.quarantine)
    }
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
    /// Only for the mutant `UnchangedEtagTrusted`: the ETag of the R that it is to replace.
    pub base: u32,
    /// Another R was seen since, without it.
    pub given_up: bool,
}

/// What one process knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    /// How far it has come.
    pub phase: Phase,
    /// Packs in its copy of the index.
    pub index: PackSet,
    /// The quarantine in the R that it took its index from.
    pub quarantine: PackSet,
    /// The base that binds it.
    pub bound: u8,
    /// Operations accepted so far.
    pub accepted: u8,
    /// Their contents.
    pub operations: [Content; OPERATIONS],
    /// Last operation that it knows to be in R.
    pub covered: u8,
    /// Last operation acknowledged to the user. A ghost: no rule reads it.
    pub acknowledged: u8,
    /// Last operation that its machine's disk acknowledged to the user. A ghost, too.
    pub kept: u8,
    /// Operations, one bit each from the first, that were accepted when all damage there is was known to be damage. A ghost, too.
    pub healing: u8,
    /// Packs named by references that it does not know to be in R.
    pub held: PackSet,
    /// Sequence number of its next pack.
    pub next_pack: u8,
    /// Own packs whose PUT has no answer yet.
    pub unresolved: PackSet,
    /// Own acknowledged packs not known to be live.
    pub uncommitted: PackSet,
    /// The commit under way. Dropped when somebody else replaces R before it arrives, since its condition can then never hold.
    pub pending: Option<Pending>,
    /// Taker: the journals found, one bit per number, per session.
    pub listing: [u8; SESSIONS],
    /// Taker: its user was told that journals are missing, and goes on without them.
    pub accepts_loss: bool,
    /// Collector: what it would condemn.
    pub candidates: PackSet,
    /// Only for the mutant `GetBeforeAnswer`: how many journals had been sent when R was read.
    pub early: u8,
}

/// How many more requests may be slow. A slow request arrives at any later time or never; all others arrive at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// PUTs of packs.
    pub packs: u8,
    /// PUTs of journals.
    pub journals: u8,
    /// PUTs of heartbeats.
    pub heartbeats: u8,
    /// Commits whose answer is lost.
    pub commits: u8,
    /// Packs that rot.
    pub rots: u8,
    /// Journals that the bucket loses or damages after they landed.
    pub losses: u8,
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
    /// Ghost: something was acknowledged on the word of an R in which the writer was already fenced.
    pub fenced_acknowledged: bool,
    /// Ghost: a commit was made that its writer was free to take for failed.
    pub failed_made: bool,
    /// Ghost: what the trees reached that the spools of sessions follow which left R with more than
    /// R has of them.
    pub owed: [Option<Objects>; SESSIONS],
    /// Ghost: a session left R by a taker on its own machine, and its spool has more than R.
    pub spool_ignored: bool,
    /// Ghost: a taker went on without an acknowledged operation whose loss it could see, and told
    /// nobody.
    pub lost_untold: bool,
}
