//! Tests that each fault does what its description says, and is counted.

use bkfs_store::MemoryStore;

use super::*;
use crate::contract::{CASES, Subject};

fn new() -> (FaultStore, MemoryStore) {
    let memory = MemoryStore::new();
    (FaultStore::new(Arc::new(memory.clone())), memory)
}

fn body(text: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(text.as_bytes())]
}

#[tokio::test]
async fn without_a_plan_it_keeps_the_contract() {
    let (store, _) = new();
    let subject = Subject {
        open: Arc::new({
            let store = store.clone();
            move || {
                let store: Arc<dyn Store> = Arc::new(store.clone());
                Box::pin(async { store })
            }
        }),
        exact_versions: true,
        orderly_deletion: true,
        rounds: 3,
        salt: "fault".to_owned(),
    };
    for (_, case) in CASES {
        case(subject.clone()).await;
    }
    assert_eq!(store.struck(), 0);
    assert!(store.requests() > 1000);
}

#[tokio::test]
async fn a_request_fails_before_or_after_it_is_applied() {
    let (store, memory) = new();
    store.plan(Strike::with(Fault::FailBefore(StoreErrorKind::Throttled)).on(Operation::PutNew));
    let error = store.put_new("a", body("1")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Throttled);
    assert_eq!(memory.object_count(), 0);
    store.put_new("a", body("1")).await.unwrap();
    store.plan(Strike::with(Fault::FailAfter(StoreErrorKind::OutcomeUnknown)).on_writes());
    store.get("a").await.unwrap();
    let error = store.put_new("b", body("1")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown);
    assert_eq!(memory.object_count(), 2);
    assert_eq!((store.struck(), store.requests()), (2, 4));
}

#[tokio::test]
async fn the_nth_matching_request_is_struck_so_many_times() {
    let (store, _) = new();
    store.put_new("data/a", body("1")).await.unwrap();
    let fault = Fault::FailBefore(StoreErrorKind::Unreachable);
    store.plan(
        Strike::with(fault)
            .on(Operation::Get)
            .keys("data/")
            .nth(2)
            .times(2),
    );
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        store.head("data/a").await.unwrap();
        assert!(store.get("other").await.unwrap_err().is_not_found());
        outcomes.push(store.get("data/a").await.is_ok());
    }
    assert_eq!(outcomes, [true, false, false, true, true]);
    assert_eq!(store.struck(), 2);
    store.plan(Strike::with(Fault::Missing).always());
    for _ in 0..3 {
        assert!(store.get("data/a").await.unwrap_err().is_not_found());
    }
    store.heal();
    store.get("data/a").await.unwrap();
}

#[tokio::test]
async fn a_late_write_is_applied_when_it_is_called_for() {
    let (store, _) = new();
    let version = store.put_new("root", body("1")).await.unwrap();
    store.plan(Strike::with(Fault::Late).on(Operation::Replace));
    let error = store.replace("root", body("late"), &version).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::OutcomeUnknown);
    assert_eq!(store.get("root").await.unwrap().0, "1");
    assert_eq!(store.apply_late().await, 1);
    assert_eq!(store.get("root").await.unwrap().0, "late");
    // A late write with an outdated version changes nothing.
    let (_, version) = store.get("root").await.unwrap();
    store.plan(Strike::with(Fault::Late).on(Operation::Replace));
    store
        .replace("root", body("later"), &version)
        .await
        .unwrap_err();
    store.replace("root", body("2"), &version).await.unwrap();
    assert_eq!(store.apply_late().await, 1);
    assert_eq!(store.get("root").await.unwrap().0, "2");
    assert_eq!(store.apply_late().await, 0);
}

#[tokio::test]
async fn a_gate_holds_a_request_before_or_after_it_is_applied() {
    let (store, memory) = new();
    for (number, is_before) in [(0, true), (1, false)] {
        let gate = Gate::new();
        let fault = match is_before {
            true => Fault::HoldBefore(gate.clone()),
            false => Fault::HoldAfter(gate.clone()),
        };
        store.plan(Strike::with(fault).on(Operation::PutNew));
        let key = format!("key-{number}");
        let waiting = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { store.put_new(&key, body("1")).await }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        assert_eq!(memory.head(&key).await.is_ok(), !is_before);
        gate.open();
        waiting.await.unwrap().unwrap();
        memory.head(&key).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_delayed_or_hangs() {
    let (store, memory) = new();
    let start = tokio::time::Instant::now();
    store.plan(Strike::with(Fault::Delay(Duration::from_secs(7))));
    store.put_new("a", body("1")).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(7));
    store.plan(Strike::with(Fault::Hang));
    let hung = tokio::time::timeout(Duration::from_secs(1000), store.put_new("b", body("1")));
    hung.await.unwrap_err();
    assert_eq!(memory.object_count(), 1);
}

#[tokio::test]
async fn what_is_read_is_cut_or_damaged() {
    let (store, memory) = new();
    store.put_new("a", body("12345678")).await.unwrap();
    store.plan(Strike::with(Fault::CutShort(3)).on(Operation::Get));
    assert_eq!(store.get("a").await.unwrap().0, "123");
    store.plan(Strike::with(Fault::FlipBit(8)).on(Operation::GetRange));
    assert_eq!(store.get_range("a", 0..2).await.unwrap(), "13");
    store.plan(Strike::with(Fault::FlipBit(64)).on(Operation::GetTail));
    assert_eq!(store.get_tail("a", 8).await.unwrap().0, "02345678");
    assert_eq!(memory.get("a").await.unwrap().0, "12345678");
    assert_eq!(store.get("a").await.unwrap().0, "12345678");
    assert_eq!(store.struck(), 3);
}
