//! Which snapshot is a copy of which.
//!
//! Owns: that question. Does not own: what follows from the answer (`mod`). Pure.
//!
//! A copy notes where its snapshot was made, and a copy of a copy notes the same. Copies that an
//! older program made note nothing: those are told by their time, host, user and sizes.

use bkfs_chunker::crypto::RepositoryId;

use crate::root::snapshots::{Origin, SnapshotEntry};

/// The repositories of a copy.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    pub(super) from: RepositoryId,
    pub(super) to: RepositoryId,
}

impl Sides {
    /// Returns where a snapshot of the source was made.
    pub(super) fn origin(self, here: &SnapshotEntry) -> Origin {
        origin_in(self.from, here)
    }

    /// Returns true if the snapshot `there` of the target is that of the source, or one is a copy
    /// of the other.
    pub(super) fn is_copy(self, here: &SnapshotEntry, there: &SnapshotEntry) -> bool {
        let (made, copied) = (self.origin(here), origin_in(self.to, there));
        let is_alike = facts(here) == facts(there);
        if made.repository != copied.repository {
            return is_alike;
        }
        // A repair that stores a lost record again gives the snapshot another commit, and one that
        // rebuilds a list may give it another generation.
        made.commit == copied.commit || (made.generation == copied.generation && is_alike)
    }

    /// Returns true if the target's snapshot notes that it is a copy of another snapshot than
    /// `here`, which was made before it in the same repository.
    pub(super) fn is_copy_of_older(self, here: &SnapshotEntry, there: &SnapshotEntry) -> bool {
        let made = self.origin(here);
        let is_older = |copied: Origin| {
            copied.repository == made.repository && copied.generation < made.generation
        };
        there.origin.is_some_and(is_older) && !self.is_copy(here, there)
    }
}

fn origin_in(repository: RepositoryId, entry: &SnapshotEntry) -> Origin {
    entry.origin.unwrap_or(Origin {
        repository,
        commit: entry.commit,
        generation: entry.generation,
    })
}

/// What a copy keeps.
fn facts(entry: &SnapshotEntry) -> impl PartialEq + '_ {
    (
        entry.time,
        &entry.host,
        &entry.user,
        entry.files,
        entry.bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_chunker::id::Id;

    const SIDES: Sides = Sides {
        from: RepositoryId([1; 16]),
        to: RepositoryId([2; 16]),
    };

    fn made(commit: u8, generation: u64) -> SnapshotEntry {
        SnapshotEntry {
            commit: Id([commit; 32]),
            generation,
            ..SnapshotEntry::plain("main", "day1")
        }
    }

    fn copied(here: &SnapshotEntry) -> SnapshotEntry {
        SnapshotEntry {
            origin: Some(SIDES.origin(here)),
            ..made(9, 90)
        }
    }

    #[test]
    fn a_snapshot_with_the_same_facts_is_another_one() {
        let (first, second) = (made(3, 30), made(4, 40));
        let copy = copied(&first);
        assert!(SIDES.is_copy(&first, &copy));
        assert!(!SIDES.is_copy(&second, &copy), "it was made anew");
        assert!(SIDES.is_copy_of_older(&second, &copy));
        assert!(!SIDES.is_copy_of_older(&first, &copy));
        assert!(!SIDES.is_copy_of_older(&first, &copied(&second)));
        // No program noted anything.
        let unnoted = made(9, 90);
        assert!(SIDES.is_copy(&second, &unnoted));
        assert!(!SIDES.is_copy_of_older(&second, &unnoted));
    }

    #[test]
    fn a_repaired_source_has_the_same_snapshot() {
        let first = made(3, 30);
        let copy = copied(&first);
        assert!(
            SIDES.is_copy(&made(5, 30), &copy),
            "its record was stored again"
        );
        assert!(SIDES.is_copy(&made(3, 31), &copy), "its list was rebuilt");
        let changed = SnapshotEntry {
            bytes: 7,
            ..made(5, 30)
        };
        assert!(!SIDES.is_copy(&changed, &copy));
    }

    #[test]
    fn a_copy_of_a_copy_is_known_at_its_origin() {
        let first = made(3, 30);
        let copy = copied(&first);
        let third = Sides {
            from: SIDES.to,
            to: RepositoryId([3; 16]),
        };
        let far = SnapshotEntry {
            origin: Some(third.origin(&copy)),
            ..made(8, 80)
        };
        assert!(third.is_copy(&copy, &far));
        let direct = Sides {
            from: SIDES.from,
            to: third.to,
        };
        assert!(direct.is_copy(&first, &far));
        assert!(!direct.is_copy(&made(4, 40), &far));
        // The other way round.
        let back = Sides {
            from: SIDES.to,
            to: SIDES.from,
        };
        assert!(back.is_copy(&copy, &first));
        assert!(!back.is_copy(&copy, &made(4, 40)));
    }
}
