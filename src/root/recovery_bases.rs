//! The recovery bases that the root keeps for ended sessions whose spools have not
//! been examined yet.
//!
//! Owns when a recovery base is added, claimed and given up. Pure.
//! [`super::recovery_base`] finds the commit that the spool follows; collection must not delete the
//! packs that a recovery base needs.
//!
//! A session with a spool leaves a recovery base in the replacement that removes it from the root.
//! It leaves none if the session that removes it has uploaded that spool itself or found it empty.
//! A session that ends by itself has committed everything, and leaves none.

use super::refusal::{OldestRecoveryBases, Refusal};
use super::state::{
    RECOVERY_BASES_MAX, RecoveryBase, Root, SessionId, SessionState, SpoolId, StateError,
};
use bkfs_chunker::id::Id;

impl Root {
    /// Returns the recovery bases in this root.
    pub fn recovery_bases(&self) -> &[RecoveryBase] {
        self.recovery_bases.as_deref().unwrap_or_default()
    }

    /// Returns the recovery base of a session.
    pub fn recovery_base_of(&self, session: SessionId) -> Option<&RecoveryBase> {
        let mut recovery_bases = self.recovery_bases().iter();
        recovery_bases.find(|recovery_base| recovery_base.session == session)
    }

    /// Records where a session that was just registered has its spool. A root without a chain
    /// cannot hold this, and stays as it is.
    pub fn note_spool(&mut self, session: SessionId, spool: Option<SpoolId>) {
        let is_witnessed = self.chain.is_some();
        if let Some(session) = self.sessions.get_mut(&session) {
            session.spool = spool.filter(|_| is_witnessed);
        }
    }

    /// Adds a recovery base for each ended session in `leaving` that has a spool and is not in
    /// `claimed`. Call this before the sessions leave the root. `after` is the commit that carries
    /// out their journals.
    ///
    /// # Errors
    /// [`Refusal::RecoveryBasesFull`] if the root would hold more than [`RECOVERY_BASES_MAX`]
    /// recovery bases; it stays unchanged then.
    pub(super) fn leave_recovery_bases(
        &mut self,
        leaving: &[SessionId],
        claimed: &[SessionId],
        after: Option<Id>,
    ) -> Result<(), Refusal> {
        let mut left = Vec::new();
        for id in leaving.iter().filter(|id| !claimed.contains(id)) {
            let Some(session) = self.sessions.get(id) else {
                continue;
            };
            let (SessionState::Ending, Some(spool)) = (session.state, session.spool) else {
                continue;
            };
            let volume = session.volume.clone().unwrap_or_default();
            let record = self.volumes.get(&volume).and_then(|entry| entry.commit);
            left.push(RecoveryBase {
                session: *id,
                record,
                after,
                base: Some(session.registered_epoch),
                spool: Some(spool),
                host: Some(session.holder.host.clone()),
                volume,
            });
        }
        if left.is_empty() {
            return Ok(());
        }
        if self.recovery_bases().len() + left.len() > RECOVERY_BASES_MAX {
            return Err(Refusal::RecoveryBasesFull {
                oldest: OldestRecoveryBases::of(self.recovery_bases()),
            });
        }
        self.recovery_bases
            .get_or_insert_default()
            .append(&mut left);
        Ok(())
    }

    /// Removes the recovery bases of these sessions, whose spools were claimed or are given up.
    /// Returns whether the root held one of them.
    pub fn drop_recovery_bases(&mut self, sessions: &[SessionId]) -> bool {
        let Some(recovery_bases) = &mut self.recovery_bases else {
            return false;
        };
        let before = recovery_bases.len();
        recovery_bases.retain(|recovery_base| !sessions.contains(&recovery_base.session));
        let is_any = recovery_bases.len() < before;
        if recovery_bases.is_empty() {
            self.recovery_bases = None;
        }
        is_any
    }

    /// Checks the invariant of the recovery bases of every root: no recovery base belongs to a
    /// session that is in the root, or names a volume that is not.
    ///
    /// # Errors
    /// [`StateError::Inconsistent`], which names the first violation.
    pub(super) fn check_recovery_bases(&self) -> Result<(), StateError> {
        for recovery_base in self.recovery_bases() {
            let session = recovery_base.session;
            if self.sessions.contains_key(&session) {
                let text = format!("session {session} stands in it and has left a recovery base");
                return Err(StateError::Inconsistent(text));
            }
            if !self.volumes.contains_key(&recovery_base.volume) {
                let text = format!(
                    "the recovery base of session {session} names the volume {:?}, which is not \
                     there",
                    recovery_base.volume
                );
                return Err(StateError::Inconsistent(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::state::HolderInfo;
    use crate::root::transition::{Claim, CommitChange};
    use bkfs_chunker::crypto::RepositoryId;

    const ENDED: SessionId = SessionId(1);
    const NEW_HOLDER: SessionId = SessionId(2);
    const SPOOL: SpoolId = SpoolId(77);

    fn id(number: u8) -> Id {
        Id([number; 32])
    }

    fn commit_by(session: SessionId, number: u8, claimed: Vec<SessionId>) -> CommitChange {
        CommitChange {
            session,
            volume: "main".to_owned(),
            parent: (number > 1).then(|| id(number - 1)),
            sequence: u64::from(number),
            commit: id(number),
            tree: Some(id(number + 100)),
            building: None,
            covered: 0,
            covered_journal: None,
            floor: 0,
            next_inode: 64,
            inodes: 1,
            bytes: 0,
            new_bytes: 0,
            replayed: vec![ENDED],
            claimed,
        }
    }

    /// Returns a root in which the new holder has taken the volume over from an ended session with
    /// a spool and one commit. Three epochs passed in between.
    fn taken(mut root: Root) -> Root {
        let enter = |root: &mut Root, id, claim| {
            let holder = HolderInfo {
                host: format!("host {}", id),
                ..HolderInfo::default()
            };
            root.register(id, holder).expect("new");
            root.note_spool(id, Some(SPOOL));
            root.claim(id, "main", claim).expect("claimed");
        };
        enter(&mut root, ENDED, Claim::Free);
        root.commit(&commit_by(ENDED, 1, Vec::new()))
            .expect("holds it");
        root.epoch += 3;
        enter(&mut root, NEW_HOLDER, Claim::Steal);
        root
    }

    fn witnessed() -> Root {
        taken(Root::witnessed(RepositoryId([7; 16]), [1; 16]))
    }

    #[test]
    fn a_session_with_a_spool_leaves_a_recovery_base_with_the_commit_that_carries_it_out() {
        let mut root = witnessed();
        root.commit(&commit_by(NEW_HOLDER, 2, Vec::new()))
            .expect("made");
        let recovery_base = root.recovery_base_of(ENDED).expect("left");
        assert_eq!(recovery_base.record, Some(id(1)));
        assert_eq!(recovery_base.after, Some(id(2)));
        assert_eq!(recovery_base.base(), 1, "the epoch that it entered at");
        assert_eq!(recovery_base.spool, Some(SPOOL));
        assert_eq!(recovery_base.host(), "host 0000000000000001");
        assert_eq!(recovery_base.volume, "main");
        let bytes = root.encode().expect("small and consistent");
        assert_eq!(Root::decode(&bytes).expect("decodes"), root);
        root.end(NEW_HOLDER).expect("live");
        assert_eq!(
            root.recovery_bases().len(),
            1,
            "who ends by itself leaves none"
        );
        assert!(root.drop_recovery_bases(&[ENDED]) && root.recovery_bases.is_none());
        assert!(!root.drop_recovery_bases(&[ENDED]));
    }

    #[test]
    fn it_leaves_one_where_nothing_is_to_be_carried_out() {
        let mut root = witnessed();
        root.remove_replayed(NEW_HOLDER, "main", &[ENDED], &[])
            .expect("holder");
        let recovery_base = root.recovery_base_of(ENDED).expect("left");
        assert_eq!(
            (recovery_base.record, recovery_base.after),
            (Some(id(1)), None)
        );
    }

    #[test]
    fn a_spool_that_its_new_holder_has_brought_leaves_none() {
        let mut root = witnessed();
        let mut other = root.clone();
        root.commit(&commit_by(NEW_HOLDER, 2, vec![ENDED]))
            .expect("made");
        assert_eq!(root.recovery_bases, None);
        other
            .remove_replayed(NEW_HOLDER, "main", &[ENDED], &[ENDED])
            .expect("holder");
        assert_eq!(other.recovery_bases, None);
    }

    #[test]
    fn without_a_spool_or_a_chain_there_is_none() {
        let mut root = witnessed();
        root.note_spool(ENDED, None);
        root.commit(&commit_by(NEW_HOLDER, 2, Vec::new()))
            .expect("made");
        assert_eq!(root.recovery_bases, None);
        let mut old = taken(Root::new(RepositoryId([7; 16]), [1; 16]));
        assert_eq!(old.sessions[&ENDED].spool, None);
        old.commit(&commit_by(NEW_HOLDER, 2, Vec::new()))
            .expect("made");
        assert_eq!(old.recovery_bases, None);
    }

    #[test]
    fn a_full_root_takes_no_session_out_of_it() {
        let mut root = witnessed();
        let other = |number| RecoveryBase {
            session: SessionId(1000 + number),
            volume: "main".to_owned(),
            ..RecoveryBase::default()
        };
        root.recovery_bases = Some((0..RECOVERY_BASES_MAX as u64).map(other).collect());
        let before = root.clone();
        let refused = root.commit(&commit_by(NEW_HOLDER, 2, Vec::new()));
        let error = refused.expect_err("no room");
        assert!(
            matches!(error, Refusal::RecoveryBasesFull { .. }),
            "{error}"
        );
        // The error names the command to type.
        let text = error.to_string();
        let ids: Vec<String> = (1000..1004).map(|id| SessionId(id).to_string()).collect();
        let typed = format!("bkfs session end URL --give-up {}", ids.join(" "));
        assert!(text.ends_with(&typed), "{text}");
        assert!(
            text.contains(&format!("session {} on host ", ids[0])),
            "{text}"
        );
        let refused = root.remove_replayed(NEW_HOLDER, "main", &[ENDED], &[]);
        assert_eq!(refused, Err(error));
        assert_eq!(root, before, "no traces");
        root.drop_recovery_bases(&[SessionId(1000)]);
        root.commit(&commit_by(NEW_HOLDER, 2, Vec::new()))
            .expect("room");
    }

    #[test]
    fn recovery_bases_that_contradict_the_root_are_refused() {
        for (session, volume) in [(ENDED, "main"), (SessionId(9), "other")] {
            let mut root = witnessed();
            root.recovery_bases = Some(vec![RecoveryBase {
                session,
                volume: volume.to_owned(),
                ..RecoveryBase::default()
            }]);
            assert!(matches!(root.check(), Err(StateError::Inconsistent(_))));
        }
    }
}
