//! What single transitions refuse, and what they never undo.

use super::support::*;
use crate::root::error::RootError;
use crate::root::form::SMALL_SESSIONS_MAX;
use crate::root::handle::{RootHandle, Transition};
use crate::root::holder::SystemProcesses;
use crate::root::refusal::Refusal;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::shard::ListRef;
use crate::root::state::*;
use crate::root::transition::*;
use async_trait::async_trait;
use bkfs_chunker::crypto::{Class, Features, RepositoryId};
use bkfs_chunker::pack::PackName;

/// Returns a root with these live sessions, each the holder of its volume.
fn root_of(sessions: &[(u64, &str)]) -> Root {
    let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
    for (session, volume) in sessions {
        let session = SessionId(*session);
        root.register(session, holder("a")).expect("new");
        root.claim(session, volume, Claim::Free).expect("free");
    }
    root
}

/// Returns a commit whose values all derive from `number`.
fn commit_by(session: u64, volume: &str, parent: Option<u64>, number: u64) -> CommitChange {
    CommitChange {
        session: SessionId(session),
        volume: volume.to_owned(),
        parent: parent.map(id),
        sequence: number,
        commit: id(number),
        tree: Some(id(number + 100)),
        building: None,
        covered: number,
        covered_journal: Some(number),
        floor: number as u32,
        next_inode: 20 + number,
        inodes: 1,
        bytes: 2,
        new_bytes: 3,
        replayed: Vec::new(),
        claimed: Vec::new(),
    }
}

#[test]
fn a_live_session_commits_to_no_volume_of_another() {
    let mut root = root_of(&[(1, "main"), (2, "other")]);
    let before = root.clone();
    let refused = root.commit(&commit_by(2, "main", None, 1));
    assert!(matches!(refused, Err(Refusal::Fenced { .. })));
    assert_eq!(root, before);
}

#[test]
fn a_commit_takes_nothing_back() {
    let mut root = root_of(&[(1, "main")]);
    root.commit(&commit_by(1, "main", None, 9)).expect("first");
    root.commit(&commit_by(1, "main", Some(9), 5))
        .expect("second");
    let session = &root.sessions[&SessionId(1)];
    assert_eq!((session.floor, session.covered), (9, 9));
    assert_eq!(session.covered_journal, Some(9));
    assert_eq!(root.volumes["main"].next_inode, 29);
}

#[test]
fn only_ended_sessions_leave_as_replayed() {
    let mut root = root_of(&[(1, "main"), (2, "other")]);
    let change = CommitChange {
        replayed: vec![SessionId(2)],
        ..commit_by(1, "main", None, 1)
    };
    root.commit(&change).expect("it holds its volume");
    assert!(root.sessions.contains_key(&SessionId(2)), "it is live");
    root.check().expect("consistent");
}

#[test]
fn ended_sessions_of_other_volumes_stay() {
    let mut root = root_of(&[(1, "main"), (2, "other")]);
    root.register(SessionId(3), holder("b")).expect("new");
    root.claim(SessionId(3), "other", Claim::Steal)
        .expect("stolen");
    root.remove_replayed(SessionId(1), "main", &[SessionId(2)], &[])
        .expect("it holds its volume");
    assert_eq!(root.ending_sessions("other"), [SessionId(2)]);
}

/// A takeover that could not begin has left the volume free, and its former holder ending.
#[test]
fn a_volume_with_ended_sessions_has_a_place_in_a_full_root() {
    let mut root = root_of(&[(1, "main"), (2, "other")]);
    assert_eq!(root.places_to_take("new"), SMALL_SESSIONS_MAX);
    root.register(SessionId(3), holder("b")).expect("new");
    root.claim(SessionId(3), "main", Claim::Steal)
        .expect("stolen");
    assert!(root.places_to_take("main") > SMALL_SESSIONS_MAX);
    root.end(SessionId(3)).expect("live");
    assert!(root.volumes["main"].holder.is_none());
    assert!(root.places_to_take("main") > SMALL_SESSIONS_MAX);
}

#[test]
fn a_list_that_is_not_there_is_not_replaced() {
    let list = |session| ListRef {
        name: PackName {
            session,
            sequence: 1,
            random: 2,
        },
        count: 1,
        bytes: 1,
    };
    let mut root = root_of(&[(1, "main")]);
    root.snapshots = vec![list(1)];
    let refused = root.change_snapshots(&ListChange {
        removed: vec![list(1), list(2)],
        added: vec![list(3)],
    });
    assert_eq!(refused, Err(Refusal::ListsChanged));
    assert_eq!(root.snapshots, [list(1)]);
}

/// Raises the generation without a condition of its own.
struct Touch(SessionId);

#[async_trait]
impl Transition for Touch {
    type Output = ();
    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }
    async fn apply(&mut self, _: &mut Root) -> Result<(), RootError> {
        Ok(())
    }
    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

async fn enter(handle: &RootHandle, steal: bool) -> OpenSession {
    let request = VolumeRequest {
        name: "main".to_owned(),
        steal,
        accept_loss: false,
    };
    OpenSession::open(handle, holder("a"), Some(request), &SystemProcesses)
        .await
        .expect("entered")
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_taken_over_changes_nothing_in_the_root() {
    let store = memory().await;
    let ended_session = process(store.clone(), 1).await;
    let mine = enter(&ended_session, false).await;
    ended_session
        .update(&mut Touch(mine.id()))
        .await
        .expect("it is live");
    let new_holder = process(store.clone(), 2).await;
    enter(&new_holder, true).await;
    let error = ended_session.update(&mut Touch(mine.id())).await;
    let error = error.expect_err("it was taken over");
    assert!(
        matches!(error, RootError::Refused(Refusal::Fenced { .. })),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_root_with_a_feature_that_is_not_known_is_read_and_not_written() {
    let store = memory().await;
    let mut root = Root::witnessed(keyring().repository(), [1; 16]);
    root.register(SessionId(1), holder("a")).expect("room");
    let features = Features {
        read_only: Features::WITNESS | 1 << 40,
        ..Features::NONE
    };
    let payload = root.encode().expect("small");
    let object = keyring().seal_object(Class::Root, ROOT_KEY, features, [3; 32], &payload);
    store.put(ROOT_KEY, vec![object]).await.expect("stored");
    let handle = process(store.clone(), 1).await;
    assert_eq!(handle.current().root, root);
    let error = handle.update(&mut Touch(SessionId(1))).await;
    let error = error.expect_err("a newer program knows what must not be changed");
    assert!(matches!(error, RootError::ReadOnlyFeatures), "{error}");
}
