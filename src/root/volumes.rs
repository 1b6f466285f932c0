//! Clones and the removal of volumes, as pure functions of the root (docs/PROTOCOL.md, rule 14).
//!
//! Owns the conditions under which a clone enters a root and a volume leaves one, and the names of
//! scratch clones. [`super::cloning`] and [`super::removing`] make the replacements. Pure.

use super::error::RootError;
use super::refusal::Refusal;
use super::snapshots::{SnapshotEntry, SnapshotList};
use super::state::{Root, SessionId, SessionState, StateError, Volume, check_new_name};
use bkfs_chunker::id::Id;

/// The start of the names of scratch clones: volumes that end with the session that holds them.
/// Users cannot make other volumes with such names.
pub const SCRATCH_PREFIX: &str = "scratch~";

/// How many bytes of the root a new clone leaves free. The sessions of a few commands need them, and
/// without a session no volume can be removed.
const ROOM_AFTER_CLONE: usize = 4096;

/// Returns whether a volume of this name is a scratch clone.
pub fn is_scratch(name: &str) -> bool {
    name.starts_with(SCRATCH_PREFIX)
}

/// The changes that a clone makes in the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CloneChange {
    /// The session that makes it, which has no volume.
    pub session: SessionId,
    /// Its name.
    pub volume: String,
    /// The id of its commit record, the first of the volume.
    pub commit: Id,
    /// The lowest inode number that the tree of the snapshot never used.
    pub next_inode: u64,
    /// The number of its first commit, as the record says.
    pub sequence: u64,
    /// Whether the session goes on as the holder of the clone. Otherwise it leaves the root.
    pub is_held: bool,
}

/// A condition for the removal of a volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Leaving {
    /// No session stands for it.
    Unheld,
    /// As [`Leaving::Unheld`], or this session holds it, or held it last: the one that removes the
    /// volume, or one that was judged dead. Only scratch clones leave the root like that.
    With(SessionId),
}

impl Root {
    /// Checks that a new volume may have this name: it is a valid one, no volume of this root has
    /// it, and no kept snapshot is of another volume that had it.
    ///
    /// # Errors
    /// [`Refusal::BadName`]; [`Refusal::VolumeTaken`].
    pub fn require_free(
        &self,
        name: &str,
        source: Option<&str>,
        kept: &SnapshotList,
    ) -> Result<(), Refusal> {
        check_new_name(name).map_err(|source| Refusal::BadName {
            name: name.to_owned(),
            source,
        })?;
        let mut kept = kept.iter();
        let is_of_snapshots = source != Some(name) && kept.any(|entry| entry.volume == name);
        match self.volumes.contains_key(name) || is_of_snapshots {
            true => Err(Refusal::VolumeTaken {
                name: name.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Adds a volume whose tree is that of the snapshot `source` (step `CloneCas`). The list `kept`
    /// is the one of this root.
    ///
    /// # Errors
    /// - [`RootError::NoSnapshot`] if the snapshot is not in the list ‡: only then is all that its
    ///   tree reaches known to be live.
    /// - Those of [`Root::require_free`] ‡.
    /// - [`Refusal::Fenced`] if the session is not live, and [`Refusal::Full`] if it has a volume.
    pub fn add_clone(
        &mut self,
        change: &CloneChange,
        source: &SnapshotEntry,
        kept: &SnapshotList,
    ) -> Result<(), RootError> {
        let session = self.require_live(change.session)?;
        if session.volume.is_some() {
            let what = "volumes of one session";
            return Err(Refusal::Full { what }.into());
        }
        let is_source = |entry: &&SnapshotEntry| {
            entry.volume == source.volume
                && entry.commit == source.commit
                && entry.tree == source.tree
        };
        if kept.iter().find(is_source).is_none() {
            return Err(RootError::NoSnapshot {
                name: source.name.clone(),
                volume: source.volume.clone(),
            });
        }
        self.require_free(&change.volume, Some(&source.volume), kept)?;
        let volume = Volume {
            tree: source.tree,
            holder: change.is_held.then_some(change.session),
            sequence: change.sequence,
            commit: Some(change.commit),
            next_inode: change.next_inode,
            inodes: source.files,
            bytes: source.bytes,
            unsnapshotted_bytes: 0,
            building: None,
        };
        self.volumes.insert(change.volume.clone(), volume);
        let generation = self.generation;
        match self.sessions.get_mut(&change.session) {
            Some(session) if change.is_held => {
                session.volume = Some(change.volume.clone());
                session.claimed_generation = generation;
            }
            _ => self.end(change.session)?,
        }
        self.require_room_after_clone()
    }

    /// Checks that a root with a new clone has room for the sessions that remove volumes. Groups of
    /// runs do not count, since they leave a root that is full.
    fn require_room_after_clone(&self) -> Result<(), RootError> {
        let without_groups = Self {
            run_groups: None,
            ..self.clone()
        };
        match without_groups.room() {
            Ok(room) if room >= ROOM_AFTER_CLONE => Ok(()),
            Ok(_) | Err(StateError::TooLarge { .. }) => {
                Err(Refusal::Full { what: "volumes" }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that no session stands for the volume, live or ending, and that no spool may hold
    /// more of it. Returns its entry.
    ///
    /// # Errors
    /// [`Refusal::NoVolume`]; [`Refusal::Held`]; [`Refusal::Unfinished`].
    pub fn require_unheld(&self, name: &str) -> Result<&Volume, Refusal> {
        let entry = self.volumes.get(name).ok_or_else(|| Refusal::NoVolume {
            name: name.to_owned(),
        })?;
        if let Some(session) = entry.holder {
            return Err(self.held(name, session));
        }
        let mut sessions = self.ending_sessions(name);
        let bases = self.recovery_bases().iter();
        let of_spools = bases.filter(|base| base.volume == name);
        sessions.extend(of_spools.map(|base| base.session));
        match sessions.is_empty() {
            true => Ok(entry),
            false => Err(Refusal::Unfinished {
                volume: name.to_owned(),
                sessions,
            }),
        }
    }

    /// Takes a volume out of this root. A scratch clone leaves with the sessions that stand for it,
    /// if the condition permits that.
    ///
    /// # Errors
    /// Those of [`Root::require_unheld`]; [`Refusal::Held`] if another session than that of the
    /// condition holds the scratch clone ‡.
    pub fn take_out(&mut self, name: &str, leaving: Leaving) -> Result<Volume, Refusal> {
        if let Leaving::With(session) = leaving
            && is_scratch(name)
        {
            self.release_scratch(name, session)?;
        }
        self.require_unheld(name)?;
        self.volumes.remove(name).ok_or_else(|| Refusal::NoVolume {
            name: name.to_owned(),
        })
    }

    /// Removes the sessions of a scratch clone, which promise nothing, if `session` is its holder
    /// or it has none.
    fn release_scratch(&mut self, name: &str, session: SessionId) -> Result<(), Refusal> {
        let Some(entry) = self.volumes.get_mut(name) else {
            return Ok(());
        };
        if let Some(other) = entry.holder.filter(|holder| *holder != session) {
            return Err(self.held(name, other));
        }
        entry.holder = None;
        self.sessions.retain(|id, other| {
            let is_of_it = other.volume.as_deref() == Some(name);
            !(is_of_it && (*id == session || other.state == SessionState::Ending))
        });
        let bases = self.recovery_bases().iter();
        let of_it: Vec<SessionId> = bases
            .filter(|base| base.volume == name)
            .map(|base| base.session)
            .collect();
        self.drop_recovery_bases(&of_it);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bkfs_chunker::crypto::RepositoryId;

    use super::*;
    use crate::root::state::{HolderInfo, RecoveryBase};
    use crate::root::transition::Claim;

    const CLONER: SessionId = SessionId(1);
    const HOLDER: SessionId = SessionId(2);

    fn id(number: u8) -> Id {
        Id([number; 32])
    }

    /// Returns a root with the volume `main` and the session of a cloner, and its snapshot.
    fn world() -> (Root, SnapshotEntry, SnapshotList) {
        let mut root = Root::witnessed(RepositoryId([7; 16]), [0; 16]);
        let volume = Volume {
            tree: Some(id(9)),
            sequence: 5,
            commit: Some(id(5)),
            next_inode: 900,
            ..Volume::default()
        };
        root.volumes.insert("main".to_owned(), volume);
        let holder = HolderInfo::default;
        root.register(CLONER, holder()).expect("room");
        root.register(HOLDER, holder()).expect("room");
        let entry = SnapshotEntry {
            tree: Some(id(8)),
            commit: id(4),
            files: 3,
            bytes: 70,
            ..SnapshotEntry::plain("main", "one")
        };
        let kept = SnapshotList::new(vec![Arc::new(vec![entry.clone()])]);
        (root, entry, kept)
    }

    fn change(volume: &str, is_held: bool) -> CloneChange {
        CloneChange {
            session: CLONER,
            volume: volume.to_owned(),
            commit: id(1),
            next_inode: 64,
            sequence: 9,
            is_held,
        }
    }

    #[test]
    fn a_clone_is_an_ordinary_volume() {
        for is_held in [false, true] {
            let (mut root, entry, kept) = world();
            let change = change("try", is_held);
            root.add_clone(&change, &entry, &kept).expect("made");
            root.check().expect("consistent");
            let clone = &root.volumes["try"];
            assert_eq!((clone.tree, clone.commit), (entry.tree, Some(id(1))));
            assert_eq!((clone.sequence, clone.next_inode), (9, 64));
            assert_eq!((clone.inodes, clone.bytes), (3, 70));
            assert_eq!(clone.holder, is_held.then_some(CLONER));
            assert_eq!(root.sessions.contains_key(&CLONER), is_held);
        }
    }

    #[test]
    fn clones_leave_room_for_sessions() {
        let (mut root, entry, kept) = world();
        let sessions = root.sessions.clone();
        let refused = (0..10_000).find_map(|number| {
            root.sessions.clone_from(&sessions);
            let next = change(&format!("clone-{number}"), false);
            let mut made = root.clone();
            let refused = made.add_clone(&next, &entry, &kept).err();
            match refused {
                None => root = made,
                Some(_) => return refused.map(|error| (number, error)),
            }
            None
        });
        let (number, refused) = refused.expect("the root has an end");
        let is_full = matches!(
            refused,
            RootError::Refused(Refusal::Full { what: "volumes" })
        );
        assert!(is_full, "{refused}");
        assert!(number > 300, "only {number} clones");
        root.end(CLONER).expect("left");
        for number in 3..13 {
            let holder = HolderInfo {
                host: "h".repeat(64),
                ..HolderInfo::default()
            };
            root.register(SessionId(number), holder).expect("room");
        }
        root.encode().expect("ten sessions have room");
    }

    #[test]
    fn a_clone_is_refused_without_its_snapshot_or_its_name() {
        let (mut root, entry, kept) = world();
        let before = root.clone();
        let none = SnapshotList::default();
        let refused = root.add_clone(&change("try", false), &entry, &none);
        assert!(matches!(refused, Err(RootError::NoSnapshot { .. })));
        // Another snapshot of the same name is not the one that was read.
        let other = SnapshotEntry {
            tree: Some(id(7)),
            commit: id(3),
            ..entry.clone()
        };
        let other = SnapshotList::new(vec![Arc::new(vec![other])]);
        let refused = root.add_clone(&change("try", false), &entry, &other);
        assert!(matches!(refused, Err(RootError::NoSnapshot { .. })));
        for name in ["main", "", ".hidden", "a/b", "a\nb"] {
            let refused = root.add_clone(&change(name, false), &entry, &kept);
            assert!(matches!(refused, Err(RootError::Refused(_))), "{name:?}");
        }
        let of_snapshots = SnapshotList::new(vec![Arc::new(vec![
            entry.clone(),
            SnapshotEntry::plain("gone", "its snapshot"),
        ])]);
        let refused = root.add_clone(&change("gone", false), &entry, &of_snapshots);
        assert!(matches!(refused, Err(RootError::Refused(_))));
        root.remove_dead(CLONER).expect("no volume");
        let refused = root.add_clone(&change("try", false), &entry, &kept);
        assert!(matches!(
            refused,
            Err(RootError::Refused(Refusal::Fenced { .. }))
        ));
        root.register(CLONER, HolderInfo::default()).expect("room");
        assert_eq!(root.volumes, before.volumes);
    }

    #[test]
    fn a_volume_leaves_only_if_nothing_stands_for_it() {
        let (mut root, ..) = world();
        assert!(matches!(
            root.take_out("absent", Leaving::Unheld),
            Err(Refusal::NoVolume { .. })
        ));
        root.claim(HOLDER, "main", Claim::Free).expect("free");
        for leaving in [
            Leaving::Unheld,
            Leaving::With(HOLDER),
            Leaving::With(CLONER),
        ] {
            let refused = root.take_out("main", leaving);
            assert!(matches!(refused, Err(Refusal::Held { .. })), "{refused:?}");
        }
        root.claim(CLONER, "main", Claim::Steal).expect("taken");
        root.end(CLONER).expect("live");
        let refused = root.take_out("main", Leaving::Unheld);
        assert!(matches!(refused, Err(Refusal::Unfinished { .. })));
        root.sessions.clear();
        root.recovery_bases = Some(vec![RecoveryBase {
            session: HOLDER,
            volume: "main".to_owned(),
            ..RecoveryBase::default()
        }]);
        let refused = root.take_out("main", Leaving::Unheld);
        assert!(matches!(refused, Err(Refusal::Unfinished { .. })));
        root.recovery_bases = None;
        root.take_out("main", Leaving::Unheld).expect("removed");
        root.check().expect("consistent");
        assert!(root.volumes.is_empty());
    }

    #[test]
    fn a_scratch_clone_leaves_with_its_own_holder() {
        let (mut root, entry, kept) = world();
        let name = format!("{SCRATCH_PREFIX}1");
        root.add_clone(&change(&name, true), &entry, &kept)
            .expect("made");
        let refused = root.take_out(&name, Leaving::Unheld);
        assert!(matches!(refused, Err(Refusal::Held { .. })));
        let refused = root.take_out(&name, Leaving::With(HOLDER));
        assert!(matches!(refused, Err(Refusal::Held { .. })));
        root.take_out(&name, Leaving::With(CLONER))
            .expect("removed");
        root.check().expect("consistent");
        assert!(!root.volumes.contains_key(&name) && !root.sessions.contains_key(&CLONER));
        // Only a clone makes a volume of such a name.
        let refused = root.claim(HOLDER, &name, Claim::Free);
        assert!(matches!(refused, Err(Refusal::NoVolume { .. })));
    }
}
