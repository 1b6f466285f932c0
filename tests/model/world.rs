//! The parameters of a scenario: the processes, the operations that they may do, and the faults
//! that may happen.

use crate::index::{
    self, GROUPS, Group, IndexObject, Plane, Progress, RUNS, Run, RunState, SLICES,
};
use crate::protocol::Event;
use crate::state::{
    Content, EPOCHS, Faults, GIVEN_PACKS, NONE, Objects, PACKS, PackSet, Phase, Process, Root,
    SESSIONS, Session, SessionEntry, Standing, State, Store, VOLUMES, Volume,
};

/// How an accepted operation stores its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Write {
    /// Segment and chunk are found in the index: nothing is uploaded.
    Reuse(Content),
    /// The chunk is found in the index, the segment is new.
    NewSegment(Content),
    /// Both are new and go into one pack, which keeps the world small.
    Fresh(Content),
    /// Both contents are new and share one pack. A later operation can reuse the second.
    FreshWith(Content, Content),
    /// Both are new. The segment's pack is sent after the chunk's pack was acknowledged.
    Split(Content),
    /// Both are new and are sent at the same time. The segment's pack is acknowledged while the
    /// chunk's pack is still under way.
    SplitParentFirst(Content),
}

/// The role of a process.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// No process.
    Unused,
    /// A writer of a volume: `menu[n]` has the choices for its operation n + 1.
    Writer {
        /// The volume that it writes, or takes over.
        volume: usize,
        /// Whether it holds the volume from the start; otherwise it must register and take it.
        mounted: bool,
        /// The operations that it may do.
        menu: &'static [&'static [Write]],
    },
    /// A collector, registered from the start.
    Collector,
    /// A session that merges index objects and groups, registered from the start.
    Merger,
    /// Version 2: a session that makes clones, registered from the start.
    Cloner,
}

/// A bounded world.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name for reports.
    pub name: &'static str,
    /// The processes.
    pub roles: [Role; SESSIONS],
    /// Packs that are live at the start.
    pub given: [Objects; GIVEN_PACKS],
    /// How many files a volume has, 1 or 2. Content k is written to file k modulo this number,
    /// which fixes the contents that overwrite each other.
    pub files: u8,
    /// The content that each volume's tree names at the start, or `NONE`.
    pub trees: [Content; VOLUMES],
    /// The last epoch that a collection may reach.
    pub last_epoch: u8,
    /// Faults that may happen.
    pub faults: Faults,
    /// Whether the bucket locks the packs that are live at the start.
    pub locks: bool,
    /// Whether sessions that hold no volume may be ended.
    pub end_sessions: bool,
    /// Whether covered journals are deleted.
    pub delete_journals: bool,
    /// Whether writers give up on packs that get no answer, and store their contents again.
    pub give_up: bool,
    /// Whether a session sends a journal only after the answer to the one before it, as the product
    /// does. A gap between the journals in the store is then damage.
    pub in_turn: bool,
    /// Whether writers acknowledge operations that are on the disk of their machine
    /// (`fsync=local`).
    pub spools: bool,
    /// The machine of each process.
    pub machines: [u8; SESSIONS],
    /// Whether new holders run on the machine of the sessions that they take over from, and so
    /// remember the operations that these acknowledged.
    pub remembers: bool,
    /// Whether holders may give up their volume cleanly.
    pub leave: bool,
    /// Whether writers refresh their index without need.
    pub refresh: bool,
    /// A variant of rule 7: new holders accept and journal before they have replayed, but commit
    /// only after.
    pub early_accept: bool,
    /// Version 2: fsync reads the session's fence instead of R.
    pub fences: bool,
    /// How R keeps the table of live packs.
    pub plane: Plane,
    /// How many runs are written at most, with those of the start.
    pub runs_at_most: usize,
    /// How many groups are begun at most, with that of the start.
    pub groups_at_most: usize,
    /// Whether replacements take groups out of R, for whatever reason.
    pub groups_leave: bool,
    /// Whether commits absorb index objects.
    pub absorbs: bool,
    /// Version 2: collectors that lose races set a turn.
    pub turns: bool,
    /// Version 2: processes crash, and a new holder ends only sessions that it takes for dead.
    pub judged: bool,
    /// Writers match new data only with index objects that no complete group covers, and with packs
    /// whose footers they have learned.
    pub sampled: bool,
    /// Packs whose footers the machines have from before, one bit each. The runs of the start have
    /// named them.
    pub cached: u16,
    /// Version 2: volumes other than the first are clones, made of snapshots.
    pub clones: bool,
    /// R is lost once, and rebuilt.
    pub rebuilds: bool,
    /// The repository begins as one of version 1, and may be converted.
    pub converts: bool,
    /// Processes whose program knows version 1 only, one bit each.
    pub old: u8,
    /// Sessions of maintenance that are not registered at the start, one bit each.
    pub absent: u8,
    /// The events that a search under all rules must meet, or else it proves little.
    pub reaches: &'static [Event],
}

/// A world in which nothing happens; scenarios fill in the parts that they need.
pub const QUIET: Scenario = Scenario {
    name: "quiet",
    roles: [Role::Unused; SESSIONS],
    given: [Objects(0); GIVEN_PACKS],
    files: 1,
    trees: [NONE; VOLUMES],
    last_epoch: 0,
    faults: Faults {
        packs: 0,
        journals: 0,
        heartbeats: 0,
        commits: 0,
        rots: 0,
        losses: 0,
        fences: 0,
    },
    locks: false,
    end_sessions: false,
    leave: false,
    delete_journals: false,
    give_up: false,
    in_turn: false,
    spools: false,
    machines: [0; SESSIONS],
    remembers: false,
    refresh: false,
    early_accept: false,
    fences: false,
    plane: Plane::Table,
    runs_at_most: RUNS,
    groups_at_most: GROUPS,
    groups_leave: false,
    absorbs: false,
    turns: false,
    judged: false,
    sampled: false,
    cached: 0,
    clones: false,
    rebuilds: false,
    converts: false,
    old: 0,
    absent: 0,
    reaches: &[],
};

impl Scenario {
    /// Returns the volume that a process writes.
    pub fn volume(&self, s: Session) -> Option<usize> {
        match self.roles[s] {
            Role::Writer { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// Whether the repository begins as one of version 1: it is converted, or old programs work on
    /// it.
    fn begins_old(&self) -> bool {
        self.converts || self.old != 0
    }

    /// Puts the packs of the start into an index object, and maybe into a group too.
    fn fill_index(&self, state: &mut State, given: PackSet) {
        let index = &mut state.root.index;
        if self.plane != Plane::Table {
            index.objects[0] = IndexObject {
                packs: given,
                groups: u8::from(self.plane == Plane::Groups),
            };
        }
        if self.plane == Plane::Groups {
            index.groups[0] = Group {
                progress: Progress::Complete,
                slices: (1 << SLICES) - 1,
                runs: (1 << SLICES) - 1,
                ..Group::default()
            };
            for slice in 0..SLICES {
                state.store.runs[slice] = Run {
                    state: RunState::Landed,
                    maker: 0,
                    sequence: 0,
                    slice: slice as u8,
                    packs: state.store.holding(given, index::objects_of(slice)),
                };
            }
        }
    }

    /// Returns the first state.
    pub fn initial(&self) -> State {
        let mut contents = [Objects::default(); PACKS];
        let mut given = PackSet::EMPTY;
        for (p, &objects) in self.given.iter().enumerate() {
            contents[p] = objects;
            if !objects.is_empty() {
                given = given.and(PackSet::of(p));
            }
        }
        let mut state = State {
            root: Root {
                epoch: 0,
                live: given,
                quarantine: PackSet::EMPTY,
                condemned: [PackSet::EMPTY; EPOCHS],
                recovery_bases: [None; SESSIONS],
                volumes: std::array::from_fn(|v| Volume {
                    exists: v == 0 || !self.clones,
                    start: self.trees[v],
                    ..Volume::EMPTY
                }),
                snapshots: Default::default(),
                sessions: [SessionEntry::default(); SESSIONS],
                index: Default::default(),
                version_2: !self.begins_old(),
                turn: NONE,
            },
            store: Store {
                stored: given,
                locked: match self.locks {
                    true => given,
                    false => PackSet::EMPTY,
                },
                rotten: PackSet::EMPTY,
                flying: PackSet::EMPTY,
                doomed: PackSet::EMPTY,
                contents,
                published: [NONE; SESSIONS],
                flying_bases: [0; SESSIONS],
                journals: Default::default(),
                lost: [0; SESSIONS],
                fences: Default::default(),
                runs: Default::default(),
                descriptions: Default::default(),
            },
            processes: [Process {
                phase: Phase::Outside,
                index: PackSet::EMPTY,
                quarantine: PackSet::EMPTY,
                bound: 0,
                accepted: 0,
                operations: Default::default(),
                covered: 0,
                acknowledged: 0,
                kept: 0,
                healing: 0,
                held: PackSet::EMPTY,
                next_pack: 0,
                unresolved: PackSet::EMPTY,
                uncommitted: PackSet::EMPTY,
                pending: None,
                listing: [0; SESSIONS],
                accepts_loss: false,
                candidates: PackSet::EMPTY,
                knows_version_2: !self.begins_old(),
                fenced: 0,
                merge: None,
                dead: false,
                cloning: None,
                converting: None,
                announced: false,
                learned: Default::default(),
                tables: PackSet::EMPTY,
                runs: 0,
                found: PackSet::EMPTY,
                early: 0,
            }; SESSIONS],
            faults: self.faults,
            fenced_acknowledged: false,
            failed_made: false,
            owed: [None; SESSIONS],
            spool_ignored: false,
            lost_untold: false,
            loss: Default::default(),
            ended_alive: false,
        };
        self.fill_index(&mut state, given);
        for s in 0..SESSIONS {
            let process = &mut state.processes[s];
            match self.roles[s] {
                Role::Unused => {}
                _ if self.absent & 1 << s != 0 => {}
                Role::Collector | Role::Merger | Role::Cloner => {
                    process.phase = Phase::Registered;
                    state.root.sessions[s].standing = Standing::Live;
                }
                Role::Writer {
                    volume, mounted, ..
                } => {
                    // Every writer has read the first root. By rule 4, one that registers later
                    // reads the root that registers it.
                    process.index = given;
                    if self.sampled && self.plane == Plane::Groups {
                        process.runs = (1 << SLICES) - 1;
                    } else if self.sampled {
                        process.tables = given;
                    }
                    if mounted {
                        process.phase = Phase::Mounted;
                        state.root.sessions[s].standing = Standing::Live;
                        state.root.volumes[volume].holder = s as u8;
                        state.store.published[s] = 0;
                        process.announced = self.rebuilds;
                        if self.judged {
                            state.store.descriptions.there |= 1 << s;
                        }
                    }
                }
            }
        }
        state
    }
}
