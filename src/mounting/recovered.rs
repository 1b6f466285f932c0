//! The snapshots that recoveries make of spools: `recovered-SESSION` of the spool of this machine,
//! and `recovered-SESSION-copy` of a copy, whose machine may hold more.
//!
//! Owns: their names and tags, and which of them has all that a spool holds. Does not own: making
//! them (`recovery`).
//!
//! Copies of one spool can hold more or less of its session. A snapshot that has less than another
//! copy holds does not stand for it. That of the other copy gets a further name.

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::recovery_base::KeptJournals;

/// The tag of such snapshots.
const TAG: &str = "recovered";

/// A snapshot made of what a spool held.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// Its volume.
    pub volume: String,
    /// Its name.
    pub snapshot: String,
}

/// Whether there is a snapshot of a spool.
#[derive(Debug)]
pub(super) enum Named {
    /// An earlier recovery made it.
    Made(Recovered),
    /// There is none. This is its name.
    Free(String),
}

/// Returns the last operation of journals, or 0 if there are none.
pub(super) fn last_of(kept: &KeptJournals) -> u64 {
    kept.entries.last().map_or(0, |entry| entry.last)
}

/// Returns the tags of a snapshot that has the operations of a session up to `last`.
pub(super) fn tags(last: u64) -> Vec<String> {
    vec![TAG.to_owned(), format!("through-{last}")]
}

/// Returns the last operation that a snapshot with these tags has; none if it does not say.
fn extent_of(tags: &[String]) -> Option<u64> {
    let mut stated = tags.iter().filter_map(|tag| tag.strip_prefix("through-"));
    stated.find_map(|last| last.parse().ok())
}

/// Returns a name for the snapshot of a spool whose journals end with `last`: the first one, or, if
/// others have that, a further one.
fn name_of(first: &str, last: u64, number: u64) -> String {
    match number {
        0 => first.to_owned(),
        1 => format!("{first}-{last}"),
        _ => format!("{first}-{last}-{number}"),
    }
}

/// Looks for a snapshot that has the journals of a spool, or their part up to `replayed_through`.
/// One in the trash counts.
///
/// # Errors
/// Those of reading the lists of snapshots.
pub(super) async fn find(
    repository: &Repository,
    kept: &KeptJournals,
    replayed_through: Option<u64>,
    is_ours: bool,
) -> Result<Named, RootError> {
    let snapshots = repository.snapshots().await?;
    let root = repository.handle.current().root.clone();
    let trash = repository.lists.known_trash(&root.trash).await?;
    let trash = || trash.iter().flat_map(|shard| shard.iter());
    let volume = &kept.volume;
    let last = last_of(kept);
    let wanted = replayed_through.map_or(last, |cut| cut.min(last));
    let first = match is_ours {
        true => format!("recovered-{}", kept.session),
        false => format!("recovered-{}-copy", kept.session),
    };
    let mut number = 0;
    loop {
        let name = name_of(&first, last, number);
        number += 1;
        let is_it = |its: &str, other: &str| its == volume && other == name;
        let forgotten = trash().find(|entry| is_it(&entry.snapshot.volume, &entry.snapshot.name));
        let found = snapshots.named(volume, &name);
        let Some(found) = found.or(forgotten.map(|entry| &entry.snapshot)) else {
            return Ok(Named::Free(name));
        };
        if extent_of(&found.tags).is_some_and(|extent| extent >= wanted) {
            return Ok(Named::Made(Recovered {
                volume: volume.clone(),
                snapshot: name,
            }));
        }
    }
}
