//! The volumes of a repository of version 2 (rule 16), as a model of its own: names, ids, and where
//! an entry stands.
//!
//! A volume has a random id and a name. Its entry stands in the root while a session holds it or
//! an ended one has not been replayed, and in a list otherwise. It moves in the replacement that
//! gives or ends its holder. Journals are kept under the id. The content of a volume is the number of operations
//! of each session in it. Lists are written once; the root and its list change together.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Number of volumes that may be made. Volume 0 is there at the start.
const VOLUMES: usize = 2;
/// Number of sessions that mount a volume by its name.
const MOUNTS: usize = 3;
/// Number of administrators.
const ADMINISTRATORS: usize = 2;
/// Number of names.
const NAMES: u8 = 3;
/// Most operations of a session.
const OPERATIONS: u8 = 2;
/// Most times that the names are changed.
const RENAMES: u8 = 2;
const NONE: u8 = u8::MAX;

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    /// Journals are kept under the name of the volume at the time of the mount.
    JournalsByName,
    /// A commit looks its volume up by name.
    HolderByName,
    /// A volume that gets a holder is entered in the root by one replacement, and leaves its list
    /// by the next.
    MovedInTwo,
    /// Renaming takes an entry out by one replacement and enters it by the next.
    RenamedInTwo,
    /// A new list is made from the list of a root that was read before.
    ListOfOlderRoot,
    /// A name is looked for in a root that was read before.
    NameCheckedEarlier,
    /// A volume moves to a list although an ended session of it was not replayed.
    EndingMovedToList,
}

const ALL: &[Mutant] = &[
    Mutant::JournalsByName,
    Mutant::HolderByName,
    Mutant::MovedInTwo,
    Mutant::RenamedInTwo,
    Mutant::ListOfOlderRoot,
    Mutant::NameCheckedEarlier,
    Mutant::EndingMovedToList,
];

/// The entry of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Entry {
    name: u8,
    /// The session that holds it, or `NONE`.
    holder: u8,
    /// Sessions that were ended and not replayed yet, one bit each.
    ending: u8,
    /// The operations of each session in its tree.
    operations: [u8; MOUNTS],
}

type Entries = [Option<Entry>; VOLUMES];

/// How far a session is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Phase {
    #[default]
    Outside,
    /// Has read the root, and will take the volume.
    Read,
    /// Holds the volume, and has not replayed.
    Taken,
    Mounted,
    Left,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Mount {
    phase: Phase,
    /// The id of its volume, once it has taken it.
    volume: u8,
    /// The name of its volume when it took it.
    name: u8,
    /// Operations in its journals.
    journaled: u8,
    /// Only for `ListOfOlderRoot`: the list of the root that it has read.
    list: Entries,
}

/// An administrator: renames and makes volumes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Administrator {
    /// The name that was free in the root that it has read.
    wanted: Option<u8>,
    /// Only for `RenamedInTwo`: the entry that it has taken out.
    removed: Option<(u8, Entry)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    /// Entries in the root itself.
    root: Entries,
    /// Entries in the list that the root names.
    list: Entries,
    mounts: [Mount; MOUNTS],
    /// Volumes that were made, one bit each.
    made: u8,
    administrators: [Administrator; ADMINISTRATORS],
    /// How often names were looked for.
    changes: u8,
}

impl State {
    fn entry(&self, volume: usize) -> Option<&Entry> {
        self.root[volume].as_ref().or(self.list[volume].as_ref())
    }
    fn named(&self, name: u8) -> Option<usize> {
        (0..VOLUMES).find(|&v| self.entry(v).is_some_and(|entry| entry.name == name))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The session reads the root. It mounts the volume called 0.
    Read(usize),
    /// The volume's entry names the session, and moves to the root.
    TakeCas(usize),
    /// `MovedInTwo` only: the entry leaves its list.
    LeaveListCas(usize),
    /// The journals of the ended sessions are carried out.
    ReplayCas(usize),
    /// An operation is acknowledged by a journal.
    Journal(usize),
    /// The operations are committed.
    CommitCas(usize),
    /// The session leaves, and the entry moves to a list.
    LeaveCas(usize),
    /// An administrator reads the root, and finds that the name is free.
    Want(usize, u8),
    /// The volume gets the name.
    RenameCas(usize, usize),
    /// `RenamedInTwo` only: the entry is entered again.
    RenameEnterCas(usize),
    /// A volume is made.
    MakeCas(usize),
}

#[derive(Clone)]
struct Directory {
    mutants: &'static [Mutant],
    only: Option<&'static str>,
}

const STANDS_ONCE: &str = "each volume stands in the root or in one list";
const NAMES_DIFFER: &str = "no two volumes have one name";
const KEPT: &str = "acknowledged operations are in their volume or will be replayed";
const NOT_MIXED: &str = "no volume has operations of another one";
const RENAMING_FENCES_NOT: &str = "the holder of a volume can commit";
const PROPERTIES: &[&str] = &[
    STANDS_ONCE,
    NAMES_DIFFER,
    KEPT,
    NOT_MIXED,
    RENAMING_FENCES_NOT,
];

impl Directory {
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutants.contains(&mutant)
    }

    /// Returns the volume that `m` holds, as a commit looks it up.
    fn held(&self, state: &State, m: usize) -> Option<usize> {
        let mount = &state.mounts[m];
        let volume = match self.lacks(Mutant::HolderByName) {
            true => state.named(mount.name)?,
            false => usize::from(mount.volume),
        };
        let entry = state.root[volume].as_ref()?;
        let is_in = matches!(mount.phase, Phase::Taken | Phase::Mounted);
        (is_in && usize::from(entry.holder) == m).then_some(volume)
    }

    /// Returns the operations of session `v` that a new holder of the volume finds in journals.
    fn found(&self, state: &State, volume: usize, name: u8, v: usize) -> u8 {
        let mount = &state.mounts[v];
        let is_found = match self.lacks(Mutant::JournalsByName) {
            true => mount.name == name,
            false => usize::from(mount.volume) == volume,
        };
        if is_found { mount.journaled } else { 0 }
    }

    fn take(&self, state: &State, m: usize) -> Option<State> {
        let mount = &state.mounts[m];
        if mount.phase != Phase::Read {
            return None;
        }
        let volume = state.named(0)?;
        let mut next = *state;
        let mut entry = *state.entry(volume)?;
        if entry.holder != NONE {
            entry.ending |= 1 << entry.holder;
        }
        entry.holder = m as u8;
        next.root[volume] = Some(entry);
        if self.lacks(Mutant::ListOfOlderRoot) {
            next.list = mount.list;
        }
        if !self.lacks(Mutant::MovedInTwo) {
            next.list[volume] = None;
        }
        let mount = &mut next.mounts[m];
        mount.volume = volume as u8;
        mount.name = entry.name;
        mount.list = Entries::default();
        mount.phase = match entry.ending {
            0 => Phase::Mounted,
            _ => Phase::Taken,
        };
        Some(next)
    }

    fn replay(&self, state: &State, m: usize) -> Option<State> {
        let volume = self.held(state, m)?;
        if state.mounts[m].phase != Phase::Taken {
            return None;
        }
        let mut next = *state;
        let entry = next.root[volume].as_mut()?;
        for v in (0..MOUNTS).filter(|v| entry.ending & 1 << v != 0) {
            let found = self.found(state, volume, entry.name, v);
            entry.operations[v] = entry.operations[v].max(found);
        }
        if self.lacks(Mutant::JournalsByName) {
            // Journals under the name belong to the volume for all that this mutant knows.
            for v in 0..MOUNTS {
                let found = self.found(state, volume, entry.name, v);
                entry.operations[v] = entry.operations[v].max(found);
            }
        }
        entry.ending = 0;
        next.mounts[m].phase = Phase::Mounted;
        Some(next)
    }

    fn leave(&self, state: &State, m: usize) -> Option<State> {
        let volume = self.held(state, m)?;
        let mut next = *state;
        let mut entry = next.root[volume].take()?;
        let early = self.lacks(Mutant::EndingMovedToList);
        let is_done = entry.operations[m] == state.mounts[m].journaled;
        if !is_done {
            return None;
        }
        entry.holder = NONE;
        next.mounts[m].phase = Phase::Left;
        if entry.ending != 0 && !early {
            // A new holder that has not replayed leaves the entry where the next one finds it.
            next.root[volume] = Some(entry);
            return Some(next);
        }
        // An entry in a list has no sessions.
        entry.ending = 0;
        next.list[volume] = Some(entry);
        Some(next)
    }

    fn rename(&self, state: &State, a: usize, volume: usize) -> Option<State> {
        let wanted = self.wanted(state, a)?;
        let mut next = *state;
        next.administrators[a].wanted = None;
        if self.lacks(Mutant::RenamedInTwo) {
            let entry = next.root[volume].take().or(next.list[volume].take())?;
            let entry = Entry {
                name: wanted,
                ..entry
            };
            next.administrators[a].removed = Some((volume as u8, entry));
            return Some(next);
        }
        let places = [&mut next.root[volume], &mut next.list[volume]];
        for entry in places.into_iter().flatten() {
            entry.name = wanted;
        }
        state.entry(volume).map(|_| next)
    }

    /// Returns the name that an administrator may give.
    fn wanted(&self, state: &State, a: usize) -> Option<u8> {
        let wanted = state.administrators[a].wanted?;
        let is_free = state.named(wanted).is_none();
        (is_free || self.lacks(Mutant::NameCheckedEarlier)).then_some(wanted)
    }

    fn make(&self, state: &State, a: usize) -> Option<State> {
        let wanted = self.wanted(state, a)?;
        let volume = (0..VOLUMES).find(|v| state.made & 1 << v == 0)?;
        let mut next = *state;
        next.administrators[a].wanted = None;
        next.made |= 1 << volume;
        next.list[volume] = Some(Entry {
            name: wanted,
            holder: NONE,
            ending: 0,
            operations: [0; MOUNTS],
        });
        Some(next)
    }
}

impl Model for Directory {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut list = Entries::default();
        list[0] = Some(Entry {
            name: 0,
            holder: NONE,
            ending: 0,
            operations: [0; MOUNTS],
        });
        vec![State {
            root: Entries::default(),
            list,
            mounts: Default::default(),
            made: 1,
            administrators: Default::default(),
            changes: 0,
        }]
    }

    fn actions(&self, _: &State, steps: &mut Vec<Step>) {
        for m in 0..MOUNTS {
            steps.extend([Step::Read(m), Step::TakeCas(m), Step::ReplayCas(m)]);
            steps.extend([Step::Journal(m), Step::CommitCas(m), Step::LeaveCas(m)]);
            steps.push(Step::LeaveListCas(m));
        }
        for a in 0..ADMINISTRATORS {
            steps.extend((0..NAMES).map(|name| Step::Want(a, name)));
            steps.extend((0..VOLUMES).map(|volume| Step::RenameCas(a, volume)));
            steps.extend([Step::RenameEnterCas(a), Step::MakeCas(a)]);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        match step {
            Step::Read(m) => {
                // Sessions are alike, so they begin in the order of their numbers.
                let earlier = state.mounts[..m].iter().any(|m| m.phase == Phase::Outside);
                if state.mounts[m].phase != Phase::Outside || earlier {
                    return None;
                }
                next.mounts[m].phase = Phase::Read;
                if self.lacks(Mutant::ListOfOlderRoot) {
                    next.mounts[m].list = state.list;
                }
            }
            Step::TakeCas(m) => return self.take(state, m),
            Step::LeaveListCas(m) => {
                let volume = self.held(state, m)?;
                next.list[volume].take()?;
            }
            Step::ReplayCas(m) => return self.replay(state, m),
            Step::Journal(m) => {
                // The session reads its fence or the root, which know it by its id.
                let mount = &mut next.mounts[m];
                let entry = state.root[usize::from(mount.volume)].as_ref()?;
                let is_held = usize::from(entry.holder) == m;
                if mount.phase != Phase::Mounted || !is_held || mount.journaled == OPERATIONS {
                    return None;
                }
                mount.journaled += 1;
            }
            Step::CommitCas(m) => {
                let volume = self.held(state, m)?;
                let entry = next.root[volume].as_mut()?;
                let is_new = entry.operations[m] < state.mounts[m].journaled;
                if state.mounts[m].phase != Phase::Mounted || !is_new {
                    return None;
                }
                entry.operations[m] = state.mounts[m].journaled;
            }
            Step::LeaveCas(m) => return self.leave(state, m),
            Step::Want(a, name) => {
                let administrator = &mut next.administrators[a];
                let is_idle = administrator.wanted.is_none() && administrator.removed.is_none();
                if state.changes == RENAMES || !is_idle || state.named(name).is_some() {
                    return None;
                }
                administrator.wanted = Some(name);
                next.changes += 1;
            }
            Step::RenameCas(a, volume) => return self.rename(state, a, volume),
            Step::RenameEnterCas(a) => {
                let (volume, entry) = next.administrators[a].removed.take()?;
                next.list[usize::from(volume)] = Some(entry);
            }
            Step::MakeCas(a) => return self.make(state, a),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = vec![
            Property::always(STANDS_ONCE, stands_once),
            Property::always(NAMES_DIFFER, names_differ),
            Property::always(KEPT, kept),
            Property::always(NOT_MIXED, not_mixed),
            Property::always(RENAMING_FENCES_NOT, holders_commit),
        ];
        let is_wanted = |name| self.only.is_none_or(|only| only == name);
        all.into_iter().filter(|p| is_wanted(p.name)).collect()
    }
}

fn stands_once(_: &Directory, state: &State) -> bool {
    (0..VOLUMES)
        .filter(|v| state.made & 1 << v != 0)
        .all(|v| state.root[v].is_some() != state.list[v].is_some())
}

fn names_differ(_: &Directory, state: &State) -> bool {
    match (state.entry(0), state.entry(1)) {
        (Some(a), Some(b)) => a.name != b.name,
        _ => true,
    }
}

fn kept(model: &Directory, state: &State) -> bool {
    (0..MOUNTS)
        .filter(|&m| state.mounts[m].journaled > 0)
        .all(|m| {
            let volume = usize::from(state.mounts[m].volume);
            state.entry(volume).is_some_and(|entry| {
                let stands = usize::from(entry.holder) == m || entry.ending & 1 << m != 0;
                let found = match stands {
                    true => model.found(state, volume, entry.name, m),
                    false => 0,
                };
                entry.operations[m].max(found) >= state.mounts[m].journaled
            })
        })
}

fn not_mixed(_: &Directory, state: &State) -> bool {
    (0..VOLUMES).all(|v| {
        state.entry(v).is_none_or(|entry| {
            (0..MOUNTS)
                .all(|m| entry.operations[m] == 0 || usize::from(state.mounts[m].volume) == v)
        })
    })
}

fn holders_commit(model: &Directory, state: &State) -> bool {
    (0..MOUNTS)
        .filter(|&m| state.mounts[m].phase == Phase::Mounted)
        .all(|m| {
            let volume = usize::from(state.mounts[m].volume);
            let is_holder = state.root[volume]
                .as_ref()
                .is_some_and(|entry| usize::from(entry.holder) == m);
            !is_holder || model.held(state, m) == Some(volume)
        })
}

/// Asserts that the property fails without the rules, and prints how.
fn refute(mutants: &'static [Mutant], property: &'static str) {
    let only = Some(property);
    let checker = Directory { mutants, only }
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(property) else {
        panic!("directory without {mutants:?}: “{property}” holds");
    };
    println!(
        "directory without {mutants:?}: {} unique states\n    violates: {property}",
        checker.unique_state_count()
    );
    for step in path.into_actions() {
        println!("    {step:?}");
    }
}

/// Each mutant, and a property that it violates.
const REFUTED: &[(&[Mutant], &str)] = &[
    (&[Mutant::JournalsByName], KEPT),
    (&[Mutant::JournalsByName], NOT_MIXED),
    (&[Mutant::HolderByName], RENAMING_FENCES_NOT),
    (&[Mutant::MovedInTwo], STANDS_ONCE),
    (&[Mutant::RenamedInTwo], STANDS_ONCE),
    (&[Mutant::RenamedInTwo], KEPT),
    (&[Mutant::ListOfOlderRoot], STANDS_ONCE),
    (&[Mutant::NameCheckedEarlier], NAMES_DIFFER),
    (&[Mutant::EndingMovedToList], KEPT),
];

#[test]
fn mutants_of_the_directory_are_refuted() {
    for &(mutants, property) in REFUTED {
        refute(mutants, property);
    }
    let is_refuted = |m: &&Mutant| REFUTED.iter().any(|(set, _)| set.contains(m));
    assert!(ALL.iter().all(|m| is_refuted(&m)), "not all are refuted");
    let can_fail = |p: &&str| REFUTED.iter().any(|(_, violated)| violated == p);
    assert!(PROPERTIES.iter().all(can_fail), "not all can fail");
}

#[test]
fn the_directory_holds() {
    let model = Directory {
        mutants: &[],
        only: None,
    };
    let checker = model.checker().spawn_bfs().join();
    println!(
        "directory: {} unique states, {} generated, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}
