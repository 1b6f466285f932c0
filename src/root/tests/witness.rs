//! The beginning of witnesses in a repository, and the contents of its chain of generations.

use super::support::*;
use crate::maintain::orphans::list_refs;
use crate::root::chain::{Chain, Descent, OWN_LEAST, OWN_MAX, RootMark};
use crate::root::commit::RootCommitter;
use crate::root::error::{ErrorKind, RootError};
use crate::root::form::SMALL_BYTES_MAX;
use crate::root::handle::{RootHandle, RootParts, Transition};
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::memory::{GenerationMemory, VolatileMemory};
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::shard::ListRef;
use crate::root::state::{HolderInfo, Root, SessionId};
use crate::root::view::RootView;
use async_trait::async_trait;
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::pack::PackName;
use bkfs_store::{Store, StoreError, StoreErrorKind, Version};
use std::sync::Arc;

pub(super) async fn enter(handle: &RootHandle, volume: &str) -> OpenSession {
    let request = VolumeRequest {
        name: volume.to_owned(),
        steal: false,
        accept_loss: false,
    };
    OpenSession::open(handle, holder("a"), Some(request), &SystemProcesses)
        .await
        .expect("the volume is free")
}

async fn commit(handle: &RootHandle, session: &OpenSession, number: u64) {
    let uploads = Fake::new(&Arc::new(Shelf::default()), handle, session.id());
    let lists = Lists::new(handle.store().clone(), keyring());
    let volume = session.volume().expect("it has one");
    let committer = RootCommitter::new(handle.clone(), lists, session.id(), volume, uploads);
    let committer = committer.expect("it holds the volume");
    committer.commit(tree(number)).await.expect("committed");
}

/// Whether the root in the bucket bears witness, and the covered journal of a session.
async fn standing(store: &Arc<dyn Store>, session: &OpenSession) -> (bool, Option<u64>) {
    let view = process(store.clone(), 99).await.current();
    let session = view.root.sessions.get(&session.id());
    let covered = session.and_then(|session| session.covered_journal);
    (view.features.bear_witness(), covered)
}

#[tokio::test(start_paused = true)]
async fn an_old_repository_bears_witness_once_a_session_is_alone() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    assert!(!handle.current().features.bear_witness());
    let alone = enter(&handle, "main").await;
    assert_eq!(standing(&store, &alone).await, (true, None));
    commit(&handle, &alone, 1).await;
    assert_eq!(standing(&store, &alone).await, (true, Some(2)));
}

/// Stores a root of a program that knows no witnesses, with one session.
async fn with_stranger(store: &Arc<dyn Store>) -> SessionId {
    let stranger = SessionId(1);
    let mut root = Root::new(keyring().repository(), [1; 16]);
    root.register(stranger, HolderInfo::default())
        .expect("room");
    let payload = root.encode().expect("small");
    let object = keyring().seal_object(Class::Root, "root", Features::NONE, [3; 32], &payload);
    store.put("root", vec![object]).await.expect("stored");
    stranger
}

#[tokio::test(start_paused = true)]
async fn an_old_repository_stays_as_it_is_while_another_session_stands() {
    let store = memory().await;
    let stranger = with_stranger(&store).await;
    let handle = process(store.clone(), 1).await;
    let session = enter(&handle, "main").await;
    commit(&handle, &session, 1).await;
    assert_eq!(standing(&store, &session).await, (false, None));
    struct Leave(SessionId);
    #[async_trait]
    impl Transition for Leave {
        type Output = ();
        fn session(&self) -> Option<SessionId> {
            Some(self.0)
        }
        async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
            Ok(next.end(self.0)?)
        }
        async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
            Ok(false)
        }
    }
    handle
        .update(&mut Leave(stranger))
        .await
        .expect("it stands");
    assert_eq!(standing(&store, &session).await, (false, None));
    commit(&handle, &session, 2).await;
    assert_eq!(standing(&store, &session).await, (true, Some(4)));
}

/// Raises the generation, and changes nothing else.
pub(super) struct Touch(pub(super) SessionId);

#[async_trait]
impl Transition for Touch {
    type Output = RootMark;
    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }
    async fn apply(&mut self, next: &mut Root) -> Result<RootMark, RootError> {
        Ok(next.mark())
    }
    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

pub(super) async fn touch(handle: &RootHandle, session: &OpenSession) -> RootMark {
    let mut touch = Touch(session.id());
    let applied = handle.update(&mut touch).await.expect("the root changes");
    applied.output
}

fn chain(handle: &RootHandle) -> Chain {
    let chain = handle.current().root.chain.clone();
    chain.expect("the root bears witness")
}

#[tokio::test(start_paused = true)]
async fn every_generation_is_in_the_root_or_in_its_lists() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let session = enter(&handle, "main").await;
    let mut marks = vec![handle.current().root.mark()];
    for _ in 0..OWN_MAX + OWN_MAX / 2 + 10 {
        marks.push(touch(&handle, &session).await);
    }
    let (chain, root) = (chain(&handle), &handle.current().root);
    assert!(chain.len() <= OWN_MAX + 1 && chain.len() >= OWN_MAX / 2);
    assert_eq!(chain.older.len(), 1, "the second list holds the first");
    let lists: Vec<PackName> = list_refs(root).map(|list| list.name).collect();
    assert!(lists.contains(&chain.older[0].list.name), "no garbage");
    let lists = Lists::new(store, keyring());
    for mark in &marks[..marks.len() - 1] {
        match chain.descent(*mark) {
            Descent::Holds => {}
            Descent::In(part, place) => {
                let shards = lists.nonce_shards(&[part.list]).await.expect("readable");
                assert_eq!(shards[0][place].0, mark.nonce[..8]);
            }
            other => panic!("{mark:?}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_never_made_is_in_no_chain() {
    let store = Faulty::new(memory().await);
    let (ours, theirs) = (
        process(store.clone(), 1).await,
        process(store.clone(), 2).await,
    );
    let session = enter(&ours, "main").await;
    store.plan([Fault::Late]);
    let late = tokio::spawn({
        let (ours, session) = (ours.clone(), session.id());
        async move { ours.update(&mut Touch(session)).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    let other = enter(&theirs, "other").await;
    let stands = theirs.current().root.mark();
    late.await
        .expect("no panic")
        .expect("made on top of the other");
    assert_eq!(store.deliver().await, 0);
    touch(&theirs, &other).await;
    assert_eq!(chain(&theirs).descent(stands), Descent::Holds);
}

/// Fills the root, except for room for a few changes.
struct Crowd(SessionId);
#[async_trait]
impl Transition for Crowd {
    type Output = ();
    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }
    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        while next.encode()?.len() + 4096 < SMALL_BYTES_MAX {
            let sequence = next.quarantine.len() as u32;
            let name = PackName {
                session: 1,
                sequence,
                random: 0,
            };
            next.quarantine.push(ListRef {
                name,
                count: 1,
                bytes: 1,
            });
        }
        Ok(())
    }
    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_leaves_room_in_a_crowded_root() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let session = enter(&handle, "main").await;
    let first = touch(&handle, &session).await;
    handle
        .update(&mut Crowd(session.id()))
        .await
        .expect("it fits");
    for _ in 0..600 {
        touch(&handle, &session).await;
    }
    assert!(handle.current().root.encode().expect("it fits").len() <= SMALL_BYTES_MAX);
    assert!(matches!(chain(&handle).descent(first), Descent::In(..)));
}

/// A session that registers cannot write a list yet; its next change does.
#[tokio::test(start_paused = true)]
async fn a_session_that_registers_in_a_crowded_root_gives_up_no_part_of_the_chain() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let session = enter(&handle, "main").await;
    let first = touch(&handle, &session).await;
    for _ in 0..3 * OWN_LEAST {
        touch(&handle, &session).await;
    }
    let crowded = handle.update(&mut Crowd(session.id())).await;
    crowded.expect("it fits");
    let other = process(store.clone(), 2).await;
    let session = enter(&other, "other").await;
    assert_eq!(chain(&other).descent(first), Descent::Holds);
    touch(&other, &session).await;
    assert!(matches!(chain(&other).descent(first), Descent::In(..)));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_written_leaves_the_chain_longer() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let session = enter(&handle, "main").await;
    // This machine can replace the root and store nothing else.
    let denied = Arc::new(NoLists(store.clone()));
    let handle = process(denied, 2).await;
    let mut first = None;
    for _ in 0..OWN_MAX + 100 {
        first.get_or_insert(touch(&handle, &session).await);
    }
    let chain = chain(&handle);
    assert!(chain.older.is_empty() && chain.len() > OWN_MAX);
    assert_eq!(chain.descent(first.expect("some")), Descent::Holds);
}

/// A store that refuses lists.
#[derive(Debug)]
struct NoLists(Arc<dyn Store>);

#[async_trait]
impl bkfs_store::Layer for NoLists {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn put_new(&self, key: &str, _: Vec<bytes::Bytes>) -> Result<Version, StoreError> {
        let (kind, operation) = (StoreErrorKind::Denied, bkfs_store::Operation::PutNew);
        Err(StoreError::new(kind, operation, key, "no"))
    }
}

/// Returns the error of a machine with this `memory` when it opens the repository.
async fn judged(store: &Arc<dyn Store>, memory: &Arc<VolatileMemory>) -> Option<RootError> {
    open(store.clone(), 50, memory.clone()).await.err()
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_was_written_on_is_found_out() {
    let store = memory().await;
    let remembering = Arc::new(VolatileMemory::default());
    let handle = open(store.clone(), 1, remembering.clone())
        .await
        .expect("there");
    let session = enter(&handle, "main").await;
    let (old, _) = store.get("root").await.expect("there");
    commit(&handle, &session, 1).await;
    let seen = handle.current().root.mark();
    assert_eq!(remembering.recall().await.expect("kept"), Some(seen));
    let (new, _) = store.get("root").await.expect("there");

    // The older root comes back, and a machine without a memory makes it grow past the newest one.
    store.put("root", vec![old]).await.expect("put");
    let fooled = process(store.clone(), 2).await;
    for number in 0..OWN_MAX as u64 * 2 {
        let other = OpenSession::open(&fooled, holder("b"), None, &SystemProcesses).await;
        let other = other.expect("room");
        if number == 5 || number + 1 == OWN_MAX as u64 * 2 {
            let error = judged(&store, &remembering).await.expect("it is another");
            assert!(
                matches!(error, RootError::NotDescended { known, .. } if known == seen),
                "{error}"
            );
            assert_eq!(error.kind(), ErrorKind::Damaged);
            assert!(
                error
                    .hint()
                    .unwrap_or_default()
                    .contains("--accept-rollback")
            );
        }
        other.end().await.expect("live");
    }
    // The running process detects it as well.
    assert!(handle.refresh().await.is_err());

    let accepting = RootParts {
        store: store.clone(),
        keyring: keyring(),
        entropy: Seeded::new(4),
        memory: remembering.clone(),
        policy: handle.policy(),
        accept_rollback: true,
    };
    RootHandle::open(accepting, 0).await.expect("accepted");
    assert!(judged(&store, &remembering).await.is_none(), "asked once");
    store.put("root", vec![new]).await.expect("put");
    assert!(judged(&store, &remembering).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_rebuilt_root_is_asked_about_once() {
    let store = memory().await;
    let remembering = Arc::new(VolatileMemory::default());
    let handle = open(store.clone(), 1, remembering.clone())
        .await
        .expect("there");
    let session = enter(&handle, "main").await;
    touch(&handle, &session).await;
    let mut root = Root::new(keyring().repository(), [8; 16]);
    root.generation = 1_000_000;
    root.chain = Some(Chain::new(root.generation, Some(2)));
    let features = Features::NONE.with_witness();
    let payload = root.encode().expect("small");
    let object = keyring().seal_object(Class::Root, "root", features, [3; 32], &payload);
    store.put("root", vec![object]).await.expect("put");
    let error = judged(&store, &remembering).await.expect("it asks");
    assert!(
        matches!(error, RootError::Rebuilt { known, lost: 2 } if known.generation == 3),
        "{error}"
    );
    // An earlier session finds itself out of the root, as always.
    handle.refresh().await.expect("the root is taken as it is");
    let fenced = handle.update(&mut Touch(session.id())).await;
    assert_eq!(fenced.expect_err("out of it").kind(), ErrorKind::Fenced);
    // The process does not consent for its machine, and registers no new session.
    let again = OpenSession::open(&handle, holder("a"), None, &SystemProcesses).await;
    let refused = again.expect_err("not accepted here");
    assert!(
        matches!(refused, RootError::Rebuilt { lost: 2, .. }),
        "{refused}"
    );
    let asked = judged(&store, &remembering).await;
    assert!(
        matches!(asked, Some(RootError::Rebuilt { .. })),
        "still asked: {asked:?}"
    );
    remembering.accept(root.mark()).await.expect("kept");
    assert!(judged(&store, &remembering).await.is_none());
}

/// Returns the object of a root that another writer makes of `base`.
pub(super) fn other_root(base: &RootView) -> bytes::Bytes {
    let mut other = base.root.clone();
    other.follow([9; 16]);
    let payload = other.encode().expect("small");
    keyring().seal_object(Class::Root, "root", base.features, [3; 32], &payload)
}

/// Overwrites the root by a successor of `base`.
pub(super) async fn store_blindly(store: &dyn Store, base: &RootView) {
    store
        .put("root", vec![other_root(base)])
        .await
        .expect("put");
}

/// A process that lost a race reports it, whether it reads the root at once, at its next change, or
/// at its next start. The survivor cannot detect it.
#[tokio::test(start_paused = true)]
async fn a_lost_commit_is_blamed_on_the_store() {
    let store = memory().await;
    let remembering = Arc::new(VolatileMemory::default());
    let ended_session = open(store.clone(), 1, remembering.clone())
        .await
        .expect("there");
    let survivor = process(store.clone(), 2).await;
    let mine = enter(&ended_session, "main").await;
    let theirs = enter(&survivor, "other").await;
    ended_session.refresh().await.expect("both know one root");
    let late = survivor.current();

    commit(&ended_session, &mine, 1).await;
    // The survivor decided on the older root, and overwrites the newer one.
    store_blindly(&*store, &late).await;

    let mut change = Touch(mine.id());
    let error = ended_session
        .update(&mut change)
        .await
        .expect_err("it is lost");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
    assert!(error.to_string().contains("not atomic"));
    survivor.refresh().await.expect("it sees no wrong");
    let later = process(store.clone(), 5).await;
    touch(&later, &theirs).await;
    let error = ended_session
        .refresh()
        .await
        .expect_err("it is lost for good");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
    let error = judged(&store, &remembering).await.expect("remembered");
    assert!(matches!(error, RootError::NotDescended { .. }), "{error}");
}
