//! Snapshots and writable clones of them (version 2, rule 14).
//!
//! A clone is a volume whose tree begins as that of a snapshot. One replacement of R makes it,
//! whatever its size, and it needs its source no more. Snapshot k is one of volume k, and its clone
//! is volume k + 1, so that clones of clones arise.

use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Content, Log, NONE, Session, Standing, State, VOLUMES, Volume};

/// Number of snapshots.
pub const SNAPSHOTS: usize = VOLUMES - 1;

/// A tree that R keeps: the operations in it, oldest first, on the content from the start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    /// The operations.
    pub log: Log,
    /// The content from the start, or `NONE`.
    pub start: Content,
}

/// A snapshot's place in R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Snapshot {
    /// Not made.
    #[default]
    Absent,
    /// In R.
    Kept(Tree),
    /// Forgotten.
    Forgotten,
}

impl Snapshot {
    /// Returns the tree of a snapshot that is in R.
    pub fn tree(self) -> Option<Tree> {
        match self {
            Self::Kept(tree) => Some(tree),
            _ => None,
        }
    }
}

/// A clone that a session is about to make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cloning {
    /// The number of the snapshot.
    pub snapshot: u8,
    /// Its tree, which the commit record of the clone names.
    pub tree: Tree,
}

/// Makes snapshot `k` of volume `k`.
pub fn snapshot_cas(model: &Protocol, state: &State, k: usize) -> Option<State> {
    let volume = state.root.volumes[k];
    if !volume.exists || state.root.snapshots[k] != Snapshot::Absent {
        return None;
    }
    let mut log = volume.origin;
    for (s, n) in volume.log.iter() {
        log.push(s, n);
    }
    let mut next = *state;
    next.root.snapshots[k] = Snapshot::Kept(Tree {
        log,
        start: volume.start,
    });
    model.root_replaced(&mut next, None);
    Some(next)
}

/// Forgets snapshot `k`.
pub fn forget_cas(model: &Protocol, state: &State, k: usize) -> Option<State> {
    state.root.snapshots[k].tree()?;
    let mut next = *state;
    next.root.snapshots[k] = Snapshot::Forgotten;
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::SnapshotForgotten);
    Some(next)
}

/// Removes volume 0, the first source, if no session stands for it.
pub fn remove_cas(model: &Protocol, state: &State) -> Option<State> {
    let volume = state.root.volumes[0];
    if !volume.exists || volume.holder != NONE || !model.ending(state, 0).is_empty() {
        return None;
    }
    let mut next = *state;
    next.root.volumes[0] = Volume::EMPTY;
    model.root_replaced(&mut next, None);
    model.coverage.note(Event::SourceRemoved);
    Some(next)
}

/// Whether snapshot `k` may be cloned, by the present R: it is there, and the name is free.
fn may_clone(state: &State, k: usize) -> bool {
    state.root.snapshots[k].tree().is_some() && !state.root.volumes[k + 1].exists
}

/// The session reads R, and uploads the commit record of the clone.
pub fn prepare(state: &State, s: Session, k: usize) -> Option<State> {
    let tree = state.root.snapshots[k].tree()?;
    let is_live = state.root.sessions[s].standing == Standing::Live;
    if state.processes[s].cloning.is_some() || !is_live || !may_clone(state, k) {
        return None;
    }
    let mut next = *state;
    next.processes[s].cloning = Some(Cloning {
        snapshot: k as u8,
        tree,
    });
    Some(next)
}

/// Rule 14: the clone enters R. The snapshot must be in the R that is replaced, since only then is
/// all that its tree reaches live, and no volume may have the name.
pub fn clone_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let cloning = state.processes[s].cloning?;
    let k = usize::from(cloning.snapshot);
    let mut next = *state;
    next.processes[s].cloning = None;
    let source_stands = state.root.snapshots[k].tree().is_some();
    let name_is_free = !state.root.volumes[k + 1].exists;
    if (!source_stands && !model.lacks(Mutant::ForgottenCloned))
        || (!name_is_free && !model.lacks(Mutant::CloneOverwrites))
        || state.root.sessions[s].standing != Standing::Live
    {
        model.coverage.note(Event::CloneRefused);
        return Some(next);
    }
    next.root.volumes[k + 1] = Volume {
        exists: true,
        origin: cloning.tree.log,
        start: cloning.tree.start,
        ..Volume::EMPTY
    };
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(match k {
        0 => Event::Cloned,
        _ => Event::CloneCloned,
    });
    Some(next)
}
