//! Snapshots of a repository that collections on this machine have seen.
//!
//! Owns the file `STATE_DIR/REPOSITORY/sightings` and the rules that follow from it. Every writer
//! can put any date on an entry of the trash, and can take snapshots out of all lists. So the
//! undelete window counts from when this machine first saw a snapshot forgotten, or gone. Losing
//! the file delays what expires, and loses an alarm, never data.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::private;
use crate::root::blocking::blocking;
use crate::root::snapshots::{SnapshotEntry, TrashEntry};

/// The name of the file.
const FILE: &str = "sightings";

/// The sighting of one snapshot.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct Sighting {
    volume: String,
    name: String,
    /// The root node of its tree, in hexadecimal digits.
    tree: Option<String>,
    /// Since when it is known not to be kept, in seconds since 1970. None while it is kept.
    since_s: Option<i64>,
}

/// A snapshot that is in no list any more, and was not in the trash for the whole window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vanished {
    /// Its volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The root node of its tree.
    pub tree: Option<Id>,
    /// The record of its commit.
    pub commit: Id,
    /// Since when it is known to be gone, or forgotten.
    pub since: Timestamp,
}

/// All snapshots that were seen, by the ids of their commit records in hexadecimal digits.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Sightings(BTreeMap<String, Sighting>);

impl Sightings {
    /// Records what the lists of a root hold at `now`. Returns the snapshots that have vanished.
    /// Those that were gone or forgotten `before` are dropped from the memory.
    ///
    /// A clock that was ahead once does not count: no snapshot is gone since later than `now`.
    pub fn note<'a>(
        &mut self,
        kept: impl Iterator<Item = &'a SnapshotEntry>,
        trash: impl Iterator<Item = &'a TrashEntry>,
        now: Timestamp,
        before: Timestamp,
    ) -> Vec<Vanished> {
        let mut listed = BTreeSet::new();
        let kept: Vec<_> = kept
            .map(|entry| (hex::encode(entry.commit.0), entry))
            .collect();
        let kept_commits: BTreeSet<&String> = kept.iter().map(|(commit, _)| commit).collect();
        for entry in trash.map(|entry| &entry.snapshot) {
            let commit = hex::encode(entry.commit.0);
            if kept_commits.contains(&commit) {
                continue;
            }
            let sighting = self.0.entry(commit.clone());
            let sighting = sighting.or_insert_with(|| Sighting::of(entry));
            sighting.note_gone(now);
            listed.insert(commit);
        }
        for (commit, entry) in &kept {
            self.0.insert(commit.clone(), Sighting::of(entry));
        }
        listed.extend(kept.into_iter().map(|(commit, _)| commit));
        let mut vanished = Vec::new();
        self.0.retain(|commit, sighting| {
            if listed.contains(commit) {
                return true;
            }
            let since = sighting.note_gone(now);
            let known = parse_id(commit).filter(|_| since > before);
            vanished.extend(known.map(|commit| sighting.vanished(commit, since)));
            known.is_some()
        });
        vanished
    }

    /// Forgets snapshots that were given up: they do not count as vanished.
    pub fn give_up(&mut self, commits: &[Id]) {
        for commit in commits {
            self.0.remove(&hex::encode(commit.0));
        }
    }

    /// Returns since when a forgotten snapshot is known to be forgotten; `None` if this machine has
    /// not seen that so far.
    pub fn since(&self, entry: &TrashEntry) -> Option<Timestamp> {
        let sighting = self.0.get(&hex::encode(entry.snapshot.commit.0))?;
        Timestamp::from_second(sighting.since_s?).ok()
    }
}

impl Sighting {
    fn of(entry: &SnapshotEntry) -> Self {
        Self {
            volume: entry.volume.clone(),
            name: entry.name.clone(),
            tree: entry.tree.map(|tree| hex::encode(tree.0)),
            since_s: None,
        }
    }

    fn note_gone(&mut self, now: Timestamp) -> Timestamp {
        let now_s = now.as_second();
        let since_s = self.since_s.map_or(now_s, |since_s| since_s.min(now_s));
        self.since_s = Some(since_s);
        Timestamp::from_second(since_s).unwrap_or(now)
    }

    fn vanished(&self, commit: Id, since: Timestamp) -> Vanished {
        Vanished {
            volume: self.volume.clone(),
            name: self.name.clone(),
            tree: self.tree.as_deref().and_then(parse_id),
            commit,
            since,
        }
    }
}

fn parse_id(text: &str) -> Option<Id> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(Id(bytes))
}

/// The file that keeps sightings across processes. Without a state directory nothing is kept.
#[derive(Clone, Debug)]
pub struct SightingsFile {
    directory: Option<PathBuf>,
}

impl SightingsFile {
    /// Creates the memory of `repository` below `state_dir`. Does no I/O.
    pub fn new(state_dir: Option<&Path>, repository: RepositoryId) -> Self {
        Self {
            directory: state_dir.map(|directory| directory.join(repository.to_string())),
        }
    }

    /// Records as [`Sightings::note`] does, and writes the file. A file that cannot be read counts
    /// as nothing seen. The log has a warning then, and also if the file cannot be written. Cancel
    /// safety: dropped, it leaves the file changed or not.
    pub async fn note(
        &self,
        kept: Vec<SnapshotEntry>,
        trash: Vec<TrashEntry>,
        now: Timestamp,
        before: Timestamp,
    ) -> (Sightings, Vec<Vanished>) {
        let mut seen = Sightings::default();
        if let Some(directory) = self.directory.clone() {
            let (kept, trash) = (kept.clone(), trash.clone());
            let note =
                move |seen: &mut Sightings| seen.note(kept.iter(), trash.iter(), now, before);
            let noted = blocking(move || change(&directory, FILE, note));
            match noted.await {
                Ok(noted) => return noted,
                Err(error) => tracing::warn!(
                    %error,
                    "cannot remember which snapshots were seen: those that are forgotten expire \
                     later, and one that vanishes goes unnoticed"
                ),
            }
        }
        let vanished = seen.note(kept.iter(), trash.iter(), now, before);
        (seen, vanished)
    }

    /// Forgets snapshots that were given up, as [`Sightings::give_up`] does. If the file cannot be
    /// written, the log has a warning. Cancel safety: dropped, it leaves the file changed or not.
    pub async fn give_up(&self, commits: Vec<Id>) {
        let Some(directory) = self.directory.clone() else {
            return;
        };
        let give_up = move |seen: &mut Sightings| seen.give_up(&commits);
        let changed = blocking(move || change(&directory, FILE, give_up));
        if let Err(error) = changed.await {
            tracing::warn!(%error,
                "the next collection reports snapshots as vanished that this one gave up");
        }
    }
}

/// Changes a file in a repository's directory. A rename replaces the file, under a lock, so that of
/// two collections none loses what the other wrote. Returns the new contents, and the result of
/// `change`.
pub(super) fn change<S: Default + Serialize + DeserializeOwned, T>(
    directory: &Path,
    name: &str,
    change: impl FnOnce(&mut S) -> T,
) -> io::Result<(S, T)> {
    if let Some(state) = directory.parent() {
        private::make_directory(state)?;
    }
    private::make_directory(directory)?;
    let _lock = private::lock(&directory.join(format!("{name}.lock")))?;
    let mut said = read(directory, name)?;
    let changed = change(&mut said);
    let fresh = directory.join(format!("{name}.new"));
    let mut output = private::open(&fresh)?;
    output.set_len(0)?;
    io::Write::write_all(&mut output, &serde_json::to_vec(&said)?)?;
    std::fs::rename(&fresh, directory.join(name))?;
    Ok((said, changed))
}

/// Reads a file in a repository's directory. One that is absent or malformed counts as empty.
pub(super) fn read<S: Default + DeserializeOwned>(directory: &Path, name: &str) -> io::Result<S> {
    let file = directory.join(name);
    let text = match std::fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(S::default()),
        read => read?,
    };
    Ok(serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%error,
            "what an earlier collection remembered cannot be read: {}", file.display());
        S::default()
    }))
}
