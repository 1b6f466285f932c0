//! Replacements of the root whose answers are lost, and roots that are rolled back.

use super::support::*;
use crate::root::chain::RootMark;
use crate::root::error::{ErrorKind, RootError};
use crate::root::handle::{Applied, RootHandle, Transition};
use crate::root::memory::{FileMemory, GenerationMemory, VolatileMemory};
use crate::root::state::{ROOT_KEY, Root, SessionId};
use async_trait::async_trait;
use bkfs_store::{LocalStore, Store, StoreErrorKind, StoreOptions};
use std::sync::Arc;
use std::time::Duration;

/// Registers a session. It appears in the root exactly once, and a second registration is refused.
pub(super) struct Register(pub(super) SessionId);

#[async_trait]
impl Transition for Register {
    type Output = ();
    fn session(&self) -> Option<SessionId> {
        None
    }
    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        Ok(next.register(self.0, holder("h"))?)
    }
    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.sessions.contains_key(&self.0))
    }
}

async fn register(handle: &RootHandle, id: u64) -> Result<Applied<()>, RootError> {
    handle.update(&mut Register(SessionId(id))).await
}

const ANSWERS: [StoreErrorKind; 6] = [
    StoreErrorKind::OutcomeUnknown,
    StoreErrorKind::Conflict,
    StoreErrorKind::AlreadyExists,
    StoreErrorKind::Unreachable,
    StoreErrorKind::Throttled,
    StoreErrorKind::Other,
];

#[tokio::test(start_paused = true)]
async fn an_applied_change_is_recognised_whatever_was_answered() {
    for kind in ANSWERS {
        let store = Faulty::new(memory().await);
        let handle = process(store.clone(), 1).await;
        store.plan([Fault::After(kind)]);
        let applied = register(&handle, 5).await.expect("it was made");
        assert!(store.is_spent());
        assert_eq!(applied.generation, 2);
        assert_eq!(handle.current().root.generation, 2, "{kind:?}: made once");
        assert_eq!(store.sent.lock().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_not_applied_is_sent_again_with_identical_bytes() {
    for kind in ANSWERS {
        let store = Faulty::new(memory().await);
        let handle = process(store.clone(), 1).await;
        store.plan([Fault::Before(kind), Fault::Before(kind), Fault::After(kind)]);
        register(&handle, 5).await.expect("the third was made");
        let sent = store.sent.lock();
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|body| *body == sent[0]), "{kind:?}");
        assert_eq!(handle.current().root.generation, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_answered_does_not_hang() {
    let store = Faulty::new(memory().await);
    let handle = process(store.clone(), 1).await;
    store.plan([Fault::Silent]);
    register(&handle, 5).await.expect("it was made");
    assert_eq!(handle.current().root.generation, 2);

    // The request is held back, sent again, and then delivered. The condition lets only one of the
    // two succeed.
    store.plan([Fault::Late]);
    register(&handle, 6).await.expect("made at the second try");
    assert_eq!(store.deliver().await, 0);
    assert_eq!(process(store, 2).await.current().root.generation, 3);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_stays_unknown_is_settled_by_the_next_change() {
    for deliver in [false, true] {
        let store = Faulty::new(memory().await);
        let handle = process(store.clone(), 1).await;
        store.plan([Fault::Late]);
        let changing = tokio::spawn({
            let handle = handle.clone();
            async move { register(&handle, 5).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        *store.outage.lock() = Some(StoreErrorKind::Unreachable);
        let error = changing
            .await
            .expect("no panic")
            .expect_err("the store was gone");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        // The store is still unreachable: the next change is not sent, and the error says so.
        let error = register(&handle, 6).await.expect_err("the store is gone");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

        *store.outage.lock() = None;
        if deliver {
            assert_eq!(store.deliver().await, 1);
        }
        register(&handle, 6).await.expect("the store is back");
        let root = &process(store, 2).await.current().root;
        assert_eq!(root.sessions.len(), 2, "the first was completed, once");
        assert_eq!(root.generation, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_change_is_void_once_another_root_stands() {
    let store = Faulty::new(memory().await);
    let mine = process(store.clone(), 1).await;
    let other = process(store.inner.clone(), 2).await;
    store.plan([Fault::Late]);
    let changing = tokio::spawn({
        let mine = mine.clone();
        async move { register(&mine, 5).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    register(&other, 6)
        .await
        .expect("no other writer is in the way");
    // The attempt gets no answer and is superseded, and the change is made anew on the newer root.
    assert_eq!(
        changing.await.expect("no panic").expect("made").generation,
        3
    );
    assert_eq!(store.deliver().await, 0);
    assert_eq!(mine.current().root.sessions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_others_built_upon_is_recognised() {
    let store = Faulty::new(memory().await);
    let mine = process(store.clone(), 1).await;
    let other = process(store.inner.clone(), 2).await;
    store.plan([Fault::Silent]);
    let changing = tokio::spawn({
        let mine = mine.clone();
        async move { register(&mine, 5).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    register(&other, 6)
        .await
        .expect("no other writer is in the way");
    assert_eq!(
        changing.await.expect("no panic").expect("made").generation,
        2
    );
    assert_eq!(mine.current().root.generation, 3);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_change_is_settled_by_the_next() {
    let store = Faulty::new(memory().await);
    let handle = process(store.clone(), 1).await;
    store.plan([Fault::Late]);
    tokio::time::timeout(Duration::from_secs(1), register(&handle, 5))
        .await
        .expect_err("never answered");
    assert_eq!(store.deliver().await, 1);
    register(&handle, 6).await.expect("made");
    assert_eq!(handle.current().root.sessions.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_at_once_and_leaves_nothing_behind() {
    let store = Faulty::new(memory().await);
    let handle = process(store.clone(), 1).await;
    store.plan([Fault::Before(StoreErrorKind::Denied)]);
    let error = register(&handle, 5).await.expect_err("denied");
    assert!(matches!(&error, RootError::Store(error) if error.kind() == StoreErrorKind::Denied));
    register(&handle, 6).await.expect("allowed by now");
    assert_eq!(
        handle
            .current()
            .root
            .sessions
            .keys()
            .copied()
            .collect::<Vec<_>>(),
        [SessionId(6)]
    );

    // The refusal follows an attempt that may have arrived, so it proves nothing.
    store.plan([Fault::Late, Fault::Before(StoreErrorKind::Denied)]);
    let changing = tokio::time::timeout(Duration::from_secs(30), register(&handle, 7)).await;
    assert!(matches!(changing, Ok(Ok(_))), "tried again: {changing:?}");
}

#[tokio::test(start_paused = true)]
async fn many_contenders_lose_nothing() {
    let store = memory().await;
    let tasks: Vec<_> = (0..8u64)
        .map(|contender| {
            let store = store.clone();
            tokio::spawn(async move {
                let faulty = Faulty::new(store);
                let handle = process(faulty.clone(), contender).await;
                for round in 0..8u64 {
                    if round % 3 == 0 {
                        faulty.plan([Fault::After(StoreErrorKind::Conflict)]);
                    }
                    register(&handle, contender * 100 + round)
                        .await
                        .expect("made");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let root = &process(store, 99).await.current().root;
    assert_eq!(root.sessions.len(), 64);
    assert_eq!(root.generation, 65, "every change was made once");
}

async fn rolled_back(store: Arc<dyn Store>, memory: Arc<dyn GenerationMemory>) {
    let handle = open(store.clone(), 1, memory.clone()).await.expect("there");
    register(&handle, 5).await.expect("made");
    let (old, _) = store.get(ROOT_KEY).await.expect("there");
    register(&handle, 6).await.expect("made");
    let (new, _) = store.get(ROOT_KEY).await.expect("there");

    store.put(ROOT_KEY, vec![old.clone()]).await.expect("put");
    let error = handle.refresh().await.expect_err("older");
    assert!(
        matches!(
            error,
            RootError::Rollback { known, found } if known.generation == 3 && found.generation == 2
        ),
        "{error}"
    );
    let error = open(store.clone(), 2, memory.clone())
        .await
        .expect_err("older");
    assert!(matches!(error, RootError::Rollback { .. }), "{error}");

    // A process that has seen nothing accepts the older root and writes on it. The result has the
    // same generation and another nonce.
    let fooled = process(store.clone(), 3).await;
    register(&fooled, 7).await.expect("made");
    assert_eq!(fooled.current().root.generation, 3);
    assert!(matches!(
        handle.refresh().await,
        Err(RootError::NotAtomic { .. })
    ));
    assert!(matches!(
        open(store.clone(), 4, memory.clone()).await,
        Err(RootError::Rollback { .. })
    ));

    store.put(ROOT_KEY, vec![new]).await.expect("put");
    open(store, 5, memory)
        .await
        .expect("the newest root is back");
}

#[tokio::test]
async fn an_older_root_is_noticed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    rolled_back(
        memory().await,
        Arc::new(FileMemory::new(directory.path(), "r")),
    )
    .await;
    rolled_back(memory().await, Arc::new(VolatileMemory::default())).await;
    let local = LocalStore::open(
        &directory.path().join("bucket"),
        &StoreOptions {
            create_directory: true,
            ..StoreOptions::default()
        },
    )
    .await
    .expect("made");
    create(&local).await;
    rolled_back(
        Arc::new(local),
        Arc::new(FileMemory::new(directory.path(), "l")),
    )
    .await;
}

#[tokio::test]
async fn memory_keeps_the_newest_mark_and_forgives_damage() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let memory = FileMemory::new(directory.path(), "r");
    assert_eq!(memory.recall().await.expect("readable"), None);
    let mark = |generation| RootMark {
        generation,
        nonce: [generation as u8; 16],
    };
    memory.remember(mark(5)).await.expect("written");
    memory.remember(mark(4)).await.expect("written");
    assert_eq!(
        FileMemory::new(directory.path(), "r")
            .recall()
            .await
            .expect("readable"),
        Some(mark(5))
    );
    for damage in ["", "5", "x y", "5 zz", "\u{0}\u{0}"] {
        std::fs::write(directory.path().join("r/generation"), damage).expect("written");
        assert_eq!(memory.recall().await.expect("readable"), None, "{damage:?}");
    }
    std::fs::write(directory.path().join("r/generation"), [0xff, 0xfe]).expect("written");
    assert_eq!(memory.recall().await.expect("readable"), None);
    memory.remember(mark(3)).await.expect("written");
    assert_eq!(memory.recall().await.expect("readable"), Some(mark(3)));
}

#[tokio::test(start_paused = true)]
async fn a_root_that_is_no_root_is_refused() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let (object, _) = store.get(ROOT_KEY).await.expect("there");
    for at in [0, 8, 60, 127, 130, object.len() - 1] {
        let mut damaged = object.to_vec();
        damaged[at] ^= 1;
        store
            .put(ROOT_KEY, vec![damaged.into()])
            .await
            .expect("put");
        let error = handle.refresh().await.expect_err("damaged");
        assert!(
            matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Refused),
            "byte {at}: {error}"
        );
        assert!(error.to_string().contains("root"), "{error}");
    }
    store
        .put(ROOT_KEY, vec![object.slice(..100)])
        .await
        .expect("put");
    assert_eq!(
        handle.refresh().await.expect_err("cut short").kind(),
        ErrorKind::Damaged
    );
    store.delete(ROOT_KEY).await.expect("deleted");
    assert_eq!(
        handle.refresh().await.expect_err("gone").kind(),
        ErrorKind::Damaged
    );
    store.put(ROOT_KEY, vec![object]).await.expect("put");
    handle.refresh().await.expect("the root is back");
}
