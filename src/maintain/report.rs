//! The result of a check. Pure.
//!
//! Owns its terms: problems, which are damage; orphans, which are not; and counts. [`super::judge`]
//! and [`super::scan`] decide which is which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

/// Problems that a report keeps. Further ones are only counted.
pub const PROBLEMS_MAX: usize = 10_000;

/// Files that one problem names. Further ones are only counted.
pub const FILES_MAX: usize = 100;

/// Notes that a report keeps. Further ones are only counted.
pub const NOTES_MAX: usize = 1_000;

/// The way in which an object is wrong.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum ProblemKind {
    /// It is not in the bucket.
    Missing,
    /// Its bytes are not those that were written.
    Damaged,
    /// The store gives other objects, and not this one.
    Refused,
    /// It contradicts the rest of the repository.
    Inconsistent,
    /// It refers to something that no live pack holds.
    Unresolved,
    /// It is older than what this machine has seen.
    RolledBack,
}

impl ProblemKind {
    /// Returns the kind as one word for scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Damaged => "damaged",
            Self::Refused => "refused",
            Self::Inconsistent => "inconsistent",
            Self::Unresolved => "unresolved",
            Self::RolledBack => "rolled-back",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// The object's key in the bucket.
    pub object: String,
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// A phrase that says what is wrong.
    pub what: String,
    /// Number of blobs that cannot be read any more because of it and that no other pack holds.
    pub lost_blobs: u64,
    /// Snapshots that need what is lost, as `VOLUME/NAME`; a volume's current state as `VOLUME`.
    pub snapshots: BTreeSet<String>,
    /// Files that need what is lost, as `VOLUME/NAME:/path`; at most [`FILES_MAX`].
    pub files: BTreeSet<String>,
    /// Number of files beyond those.
    pub more_files: u64,
}

impl Problem {
    /// Creates a problem that touches no snapshot or file, as far as is known.
    pub fn new(object: impl Into<String>, kind: ProblemKind, what: impl ToString) -> Self {
        Self {
            object: object.into(),
            kind,
            what: what.to_string(),
            lost_blobs: 0,
            snapshots: BTreeSet::new(),
            files: BTreeSet::new(),
            more_files: 0,
        }
    }

    /// Records that a file is touched.
    pub fn touch(&mut self, file: String) {
        if self.files.contains(&file) {
            return;
        }
        if self.files.len() < FILES_MAX {
            self.files.insert(file);
        } else {
            self.more_files += 1;
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}: {}", self.object, self.kind.name(), self.what)
    }
}

/// Something in a tree that commands leave out since they are bounded, and the tree is not. An
/// honest writer can make it, so it is no damage.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// The tree: a snapshot as `VOLUME/NAME`, a volume's current state as `VOLUME`.
    pub tree: String,
    /// A sentence that says what is left out, and why.
    pub what: String,
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.tree, self.what)
    }
}

/// Objects that no root needs: left by a crash, or written by sessions that are at work. They are
/// no damage.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Orphans {
    /// Packs that no index object lists, written by sessions that are gone.
    pub packs: u64,
    /// Index objects that the root does not name any more.
    pub indexes: u64,
    /// Lists that the root does not name any more.
    pub lists: u64,
    /// Heartbeats of sessions that are gone.
    pub sessions: u64,
    /// Journals of sessions that are gone.
    pub journals: u64,
    /// Objects that trials of the store's conditional writes have left.
    pub probes: u64,
    /// Objects that are not of bkfs.
    pub foreign: u64,
    /// Objects of sessions that are in the root.
    pub in_progress: u64,
    /// Bytes of all of these.
    pub bytes: u64,
}

impl Orphans {
    /// Returns how many there are, without those of sessions in the root.
    pub fn count(&self) -> u64 {
        self.packs
            + self.indexes
            + self.lists
            + self.sessions
            + self.journals
            + self.probes
            + self.foreign
    }
}

/// A commit that no root names. It is no damage: a crash may have left it before its root was
/// written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stray {
    /// The volume.
    pub volume: String,
    /// Its number among the volume's commits.
    pub sequence: u64,
    /// When it was made, by the clock of its host.
    pub time: Timestamp,
    /// The session that made it.
    pub session: String,
}

impl fmt::Display for Stray {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            volume,
            sequence,
            time,
            session,
        } = self;
        write!(
            out,
            "commit {sequence} of volume {volume:?}, of {time}, by session {session}"
        )
    }
}

/// How much was checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Kept snapshots.
    pub snapshots: u64,
    /// Snapshots in the trash.
    pub trash: u64,
    /// Volumes.
    pub volumes: u64,
    /// Index objects.
    pub indexes: u64,
    /// Live packs.
    pub packs: u64,
    /// Live packs that were read whole.
    pub packs_read: u64,
    /// Blobs in live packs.
    pub blobs: u64,
    /// References from nodes and segments that were followed.
    pub references: u64,
    /// Bytes of live packs.
    pub bytes: u64,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// Sessions in the root that have no heartbeat object. They only hold back deletion.
    pub silent_sessions: u64,
    /// Damaged frames in quarantine of which everything has been stored again.
    pub healed: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Report {
    /// The generation of the root that was checked; none if there is no readable root.
    pub generation: Option<u64>,
    /// What is wrong, up to [`PROBLEMS_MAX`]. Empty if nothing is. What decides something asks
    /// [`Self::has`] and [`Self::refused`] instead, which know all.
    pub problems: Vec<Problem>,
    /// Number of problems beyond [`PROBLEMS_MAX`].
    pub more_problems: u64,
    /// Objects that no root needs.
    pub orphans: Orphans,
    /// How much was checked.
    pub counts: Counts,
    /// Commits that no root names.
    pub strays: Vec<Stray>,
    /// What commands leave out of trees in which nothing is wrong.
    pub notes: Vec<Note>,
    /// Number of notes beyond [`NOTES_MAX`].
    pub more_notes: u64,
    /// The seed of the sample, if only a part of the data was read.
    pub seed: Option<u64>,
    /// The kinds of all problems, those beyond [`PROBLEMS_MAX`] included.
    kinds: BTreeSet<ProblemKind>,
    /// All objects that the store refuses, each with a phrase that says what is wrong.
    refused: BTreeMap<String, String>,
}

impl Report {
    /// Creates a report of nothing yet, with the seed of the sample, if there is one.
    pub fn new(seed: Option<u64>) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Returns true if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns true if there is damage, all of it in packs, and no snapshot or volume is known to
    /// need any of it.
    pub fn touches_nothing(&self) -> bool {
        let is_idle = |problem: &Problem| {
            let is_pack = ["data/", "meta/"]
                .iter()
                .any(|class| problem.object.starts_with(class));
            let is_lost = matches!(problem.kind, ProblemKind::Damaged | ProblemKind::Missing);
            is_pack && is_lost && problem.snapshots.is_empty() && problem.files.is_empty()
        };
        !self.is_clean() && self.more_problems == 0 && self.problems.iter().all(is_idle)
    }

    /// Returns true if there is a problem of this kind, however many problems there are.
    pub fn has(&self, kind: ProblemKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Returns the keys of all objects that the store refuses, in order, each with a phrase that
    /// says what is wrong.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &str)> {
        let refused = self.refused.iter();
        refused.map(|(object, what)| (object.as_str(), what.as_str()))
    }

    /// Adds a problem. Returns its number. All problems beyond [`PROBLEMS_MAX`] have that number,
    /// and are not in [`Self::problems`].
    pub fn add(&mut self, problem: Problem) -> usize {
        self.kinds.insert(problem.kind);
        if problem.kind == ProblemKind::Refused {
            let what = || problem.what.clone();
            self.refused
                .entry(problem.object.clone())
                .or_insert_with(what);
        }
        if self.problems.len() >= PROBLEMS_MAX {
            self.more_problems += 1;
            return PROBLEMS_MAX;
        }
        self.problems.push(problem);
        self.problems.len() - 1
    }

    /// Adds a note, which is no problem.
    pub fn note(&mut self, note: Note) {
        match self.notes.len() < NOTES_MAX {
            true => self.notes.push(note),
            false => self.more_notes += 1,
        }
    }

    /// Returns true if a problem names this object, as its key or in its phrase.
    pub fn names(&self, object: &str) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.object == object || problem.what.contains(object))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(out, "{problem}")?;
        }
        let count = self.problems.len() as u64 + self.more_problems;
        write!(out, "{count} problems")
    }
}
