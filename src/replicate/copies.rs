//! Which snapshot is a copy of which, and which come too late to be copied.
//!
//! Owns: these questions. Does not own: what follows from the answer (`mod`). Pure.
//!
//! A copy notes where its snapshot was made, and a copy of a copy notes the same. Copies that an
//! older program made note nothing: those are told by their time, host, user and sizes.

use std::collections::HashSet;

use bkfs_chunker::crypto::RepositoryId;

use crate::root::snapshots::{Origin, SnapshotEntry, SnapshotList};

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
        there.origin.is_some_and(is_older)
    }

    /// Returns true if a snapshot of the source was made in the target.
    pub(super) fn is_of_target(self, here: &SnapshotEntry) -> bool {
        self.origin(here).repository == self.to
    }
}

/// Divides snapshots, in order of time, into those that are too old to follow the newest state of
/// the target's volume, unless the target has them, and the others. A recovered snapshot of the
/// target was no state of it.
pub(super) fn without_late(
    wanted: Vec<SnapshotEntry>,
    present: &HashSet<String>,
    (target, volume): (&SnapshotList, &str),
) -> Divided {
    let newest = target.latest(volume).map(|newest| newest.time);
    let late = |entry: &SnapshotEntry| {
        !present.contains(&entry.name) && newest.is_some_and(|newest| entry.time < newest)
    };
    let last_state = wanted.iter().rfind(|entry| !entry.recovered);
    let is_last_late = [last_state, wanted.last()].into_iter().flatten().any(late);
    let (late, wanted) = wanted.into_iter().partition(late);
    Divided {
        late,
        wanted,
        is_last_late,
    }
}

/// Snapshots of the source, in order of time.
pub(super) struct Divided {
    pub(super) late: Vec<SnapshotEntry>,
    pub(super) wanted: Vec<SnapshotEntry>,
    /// Whether the last state of the source's volume, or what was recovered after it, is late. Then
    /// all later ones may be: a clock was wrong, or the target has snapshots of its own.
    pub(super) is_last_late: bool,
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

    /// A machine whose clock was ahead has recovered a snapshot.
    #[test]
    fn a_recovered_snapshot_makes_no_other_late() {
        let at = |name: &str, second| SnapshotEntry {
            time: jiff::Timestamp::from_second(second).expect("in range"),
            ..SnapshotEntry::plain("main", name)
        };
        let recovered = SnapshotEntry {
            recovered: true,
            ..at("recovered", 100)
        };
        let list = |entries: &[&SnapshotEntry]| {
            let shard = entries.iter().map(|entry| (*entry).clone()).collect();
            SnapshotList::new(vec![std::sync::Arc::new(shard)])
        };
        let present: HashSet<String> = ["one", "recovered"].map(str::to_owned).into();
        let wanted = vec![at("one", 10), at("two", 50), recovered.clone()];
        let target = list(&[&at("one", 10), &recovered]);
        let divided = without_late(wanted.clone(), &present, (&target, "main"));
        assert_eq!(divided.wanted, wanted);
        assert!(divided.late.is_empty() && !divided.is_last_late);
        // The target has gone on by itself: the last state counts, whatever was recovered after it.
        let target = list(&[&at("one", 10), &at("own", 60), &recovered]);
        let divided = without_late(wanted.clone(), &present, (&target, "main"));
        assert_eq!(divided.late, [at("two", 50)]);
        assert!(divided.is_last_late);
        // Nothing but what was recovered is missing, and it would come too late.
        let present = ["one", "two"].map(str::to_owned).into();
        let target = list(&[&at("one", 10), &at("two", 50), &at("own", 200)]);
        let divided = without_late(wanted, &present, (&target, "main"));
        assert_eq!(divided.late, [recovered]);
        assert!(divided.is_last_late);
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
