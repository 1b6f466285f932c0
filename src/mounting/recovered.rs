//! The snapshots that recoveries make of spools: `recovered-SESSION` of the spool of this machine,
//! and `recovered-SESSION-copy` of a copy, whose machine may hold more.
//!
//! Owns: their names and tags, and which of them has all that a spool holds. Does not own: making
//! them (`recovery`).
//!
//! Copies of one spool can hold more or less of its session, and after a fork other things. A
//! snapshot stands for the spools that end where it ends. That of another copy gets a further name.

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::recovery_base::{KeptJournal, KeptJournals};

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

/// How far the journals of a session go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Extent {
    /// The last operation, or 0 if there are none.
    pub(super) last: u64,
    /// The start of the hash of the journal that ends with it. Two machines that go on from one
    /// image of a running machine's memory use the same numbers.
    digest: String,
}

impl Extent {
    /// Returns the extent of journals.
    pub(super) fn of(kept: &KeptJournals) -> Self {
        Self::by(kept.journals.last())
    }

    /// Returns the extent of the part of journals that ends with the operation `last`, if one does.
    pub(super) fn up_to(kept: &KeptJournals, last: u64) -> Option<Self> {
        let mut journals = kept.journals.iter();
        let journal = journals.find(|journal| journal.entry.last == last);
        journal.map(|journal| Self::by(Some(journal)))
    }

    fn by(journal: Option<&KeptJournal>) -> Self {
        Self {
            last: journal.map_or(0, |journal| journal.entry.last),
            digest: journal.map_or_else(String::new, |journal| journal.digest.clone()),
        }
    }

    /// Returns the tags of a snapshot that has the operations of a session up to here.
    pub(super) fn tags(&self) -> Vec<String> {
        vec![TAG.to_owned(), self.tag()]
    }

    fn tag(&self) -> String {
        format!("through-{}-{}", self.last, self.digest)
    }
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

/// Looks for a snapshot of a session that ends with one of the extents in `wanted`. One in the
/// trash counts.
///
/// # Errors
/// Those of reading the lists of snapshots.
pub(super) async fn find(
    repository: &Repository,
    kept: &KeptJournals,
    wanted: &[Extent],
    is_ours: bool,
) -> Result<Named, RootError> {
    let snapshots = repository.snapshots().await?;
    let root = repository.handle.current().root.clone();
    let trash = repository.lists.known_trash(&root.trash).await?;
    let trash = || trash.iter().flat_map(|shard| shard.iter());
    let volume = &kept.volume;
    let last = Extent::of(kept).last;
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
        let is_tagged = |extent: &Extent| found.tags.contains(&extent.tag());
        if found.recovered && wanted.iter().any(is_tagged) {
            return Ok(Named::Made(Recovered {
                volume: volume.clone(),
                snapshot: name,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::journal_entry::JournalEntry;
    use crate::root::state::SessionId;

    fn kept(journals: &[(u64, &'static [u8])]) -> KeptJournals {
        let journal = |(last, operations): &(u64, &'static [u8])| {
            let entry = JournalEntry::new(*last..=*last, Default::default(), operations.to_vec());
            KeptJournal::of(String::new(), entry)
        };
        KeptJournals {
            session: SessionId(1),
            volume: "main".into(),
            journals: journals.iter().map(journal).collect(),
        }
    }

    #[test]
    fn journals_of_the_same_number_and_other_operations_are_others() {
        let one = kept(&[(1, b"same"), (2, b"one")]);
        let other = kept(&[(1, b"same"), (2, b"other"), (3, b"more")]);
        assert_ne!(Extent::of(&one), Extent::up_to(&other, 2).unwrap());
        assert_eq!(Extent::up_to(&one, 1), Extent::up_to(&other, 1));
        assert_eq!(Extent::up_to(&one, 3), None);
        assert_ne!(Extent::of(&one).tags(), Extent::of(&other).tags());
    }
}
