//! Tests of requests with their retries: outages, refusals, slow links.

use super::*;

#[test]
fn ends_are_compared_across_parts() {
    let body = [Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
    for tail in ["", "e", "de", "cde", "abcde"] {
        assert!(ends_with(&body, tail.as_bytes()), "{tail}");
    }
    for tail in ["d", "xde", "xabcde", "abcd"] {
        assert!(!ends_with(&body, tail.as_bytes()), "{tail}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_go_by_at_their_rates_and_waiting_for_them_is_no_stall() {
    use bkfs_store::MemoryStore;
    use bkfs_testing::entropy::SeededEntropy;
    let store = Arc::new(MemoryStore::new());
    let entropy = Arc::new(SeededEntropy::new(1));
    let rates = Rates {
        upload: Some(10),
        download: Some(100),
    };
    let link = StoreClient::new(store, entropy, (4, 4), Duration::from_secs(2)).at(rates);
    let body = [Bytes::from_static(&[7; 100])];
    let begin = tokio::time::Instant::now();
    let keys = ["data/1", "data/2", "data/3"];
    let sent = keys.map(|key| link.progress.watch(link.create(key, &body)));
    for sent in futures::future::join_all(sent).await {
        sent.expect("no stall").expect("created");
    }
    assert_eq!(begin.elapsed().as_secs(), 20, "the first goes at once");
    let begin = tokio::time::Instant::now();
    for key in keys {
        assert_eq!(link.get(key).await.expect("there").len(), 100);
    }
    assert_eq!(begin.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_asks_for_patience_is_sent_less_at_once_until_it_takes_more() {
    use bkfs_store::{MemoryStore, Operation};
    use bkfs_testing::entropy::SeededEntropy;
    use bkfs_testing::fault::{Fault, FaultStore, Strike};
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
    let entropy = Arc::new(SeededEntropy::new(1));
    let link = StoreClient::new(store.clone(), entropy, (8, 8), Duration::from_secs(60));
    let busy = Strike::with(Fault::FailBefore(StoreErrorKind::Throttled));
    store.plan(busy.on(Operation::PutNew).keys("data/busy").always());
    let body = [Bytes::from_static(b"bytes")];
    let refused = link.create("data/busy", &body);
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    assert!(refused.is_err(), "it is tried for as long as it takes");
    assert_eq!(link.uploads.limit(), 1);
    store.heal();
    for number in 0..40 {
        let sent = link.create(&format!("data/{number}"), &body).await;
        sent.expect("created");
    }
    assert_eq!(link.uploads.limit(), 8);
}

#[tokio::test(start_paused = true)]
async fn malformed_answers_for_a_few_seconds_pass_for_no_damage() {
    use bkfs_store::MemoryStore;
    use bkfs_testing::entropy::SeededEntropy;
    use bkfs_testing::fault::{Fault, FaultStore, Strike};
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
    let entropy = Arc::new(SeededEntropy::new(1));
    let link = StoreClient::new(store.clone(), entropy, (4, 4), Duration::from_secs(60));
    let body = [Bytes::from_static(b"bytes")];
    link.create("data/1", &body).await.expect("created");
    let malformed = Strike::with(Fault::FailBefore(StoreErrorKind::Invalid));
    store.plan(malformed.keys("data/1").always());
    let begin = Instant::now();
    let heal = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        store.heal();
    };
    let (read, ()) = tokio::join!(link.get("data/1"), heal);
    assert_eq!(read.expect("it was waited for"), body[0]);
    let malformed = Strike::with(Fault::FailBefore(StoreErrorKind::Invalid));
    store.plan(malformed.keys("data/1").always());
    link.get("data/1").await.expect_err("it does not end");
    assert!(begin.elapsed() < Duration::from_secs(30));
}

fn failing(timeout: Duration) -> (StoreClient, bkfs_testing::fault::FaultStore) {
    use bkfs_store::MemoryStore;
    use bkfs_testing::entropy::SeededEntropy;
    use bkfs_testing::fault::FaultStore;
    let store = FaultStore::new(Arc::new(MemoryStore::new()));
    let entropy = Arc::new(SeededEntropy::new(1));
    let link = StoreClient::new(Arc::new(store.clone()), entropy, (4, 4), timeout);
    link.bear_refusals();
    (link, store)
}

#[tokio::test(start_paused = true)]
async fn silence_that_is_shorter_than_the_timeout_costs_time_only_however_short_that_is() {
    use bkfs_testing::fault::{Fault, Strike};
    for timeout in [15, 60, 300].map(Duration::from_secs) {
        let (link, store) = failing(timeout);
        link.create("data/there", &[Bytes::from_static(b"there")])
            .await
            .expect("created");
        // Requests that are sent meanwhile are never answered.
        store.plan(Strike::with(Fault::Hang).always());
        let begin = Instant::now();
        let body = [Bytes::from_static(b"bytes")];
        let keys = ["data/1", "data/2", "data/3", "data/4", "data/5", "data/6"];
        let sent = keys.map(|key| link.progress.watch(link.create(key, &body)));
        let read = link.get("data/there");
        let heal = async {
            tokio::time::sleep(timeout * 2 / 3).await;
            store.heal();
        };
        let (sent, read, ()) = tokio::join!(futures::future::join_all(sent), read, heal);
        for sent in sent {
            sent.expect("no stall").expect("created");
        }
        read.expect("read");
        assert!(begin.elapsed() < timeout, "{:?}", begin.elapsed());
    }
}

/// What becomes of a body on a slow uplink.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// It is stored and answered.
    Answered,
    /// It is taken, and the attempt is broken off after so many seconds of silence.
    Swallowed(u64),
}

/// A store whose packs need so many seconds on the wire, in both directions. Everything else
/// takes no time.
#[derive(Debug)]
struct SlowLink {
    memory: bkfs_store::MemoryStore,
    signs: Signs,
    /// How long nothing moves at first: the kernel took that much at once.
    pause: u64,
    seconds: u64,
    fate: Fate,
}

#[async_trait::async_trait]
impl bkfs_store::Layer for SlowLink {
    fn below(&self) -> &dyn Store {
        &self.memory
    }

    async fn put_new(
        &self,
        key: &str,
        body: Vec<Bytes>,
    ) -> Result<bkfs_store::Version, StoreError> {
        if key.starts_with("data/") {
            let first = Instant::now();
            tokio::time::sleep(Duration::from_secs(self.pause)).await;
            for _ in 0..self.seconds {
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.signs.sent(first);
            }
            if let Fate::Swallowed(silence) = self.fate {
                tokio::time::sleep(Duration::from_secs(silence)).await;
                let kind = StoreErrorKind::OutcomeUnknown;
                let operation = bkfs_store::Operation::PutNew;
                return Err(StoreError::new(kind, operation, key, "no progress"));
            }
        }
        self.memory.put_new(key, body).await
    }

    async fn get(&self, key: &str) -> Result<(Bytes, bkfs_store::Version), StoreError> {
        let first = Instant::now();
        for _ in 0..self.seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.signs.received(first);
        }
        self.memory.get(key).await
    }

    fn signs(&self) -> Signs {
        self.signs.clone()
    }
}

/// Returns a link whose packs need so many seconds, with a timeout of one minute.
fn slow_link(seconds: u64, fate: Fate) -> StoreClient {
    pausing_link(0, seconds, fate)
}

/// Returns such a link on which nothing moves for the first `pause` seconds.
fn pausing_link(pause: u64, seconds: u64, fate: Fate) -> StoreClient {
    use bkfs_testing::entropy::SeededEntropy;
    let store = SlowLink {
        memory: bkfs_store::MemoryStore::new(),
        signs: Signs::default(),
        pause,
        seconds,
        fate,
    };
    let entropy = Arc::new(SeededEntropy::new(1));
    let timeout = Duration::from_secs(60);
    let link = StoreClient::new(Arc::new(store), entropy, (4, 4), timeout);
    link.bear_refusals();
    link
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_takes_longer_than_the_timeout_is_waited_for_and_made_once() {
    let link = slow_link(160, Fate::Answered);
    let begin = Instant::now();
    let body = [Bytes::from_static(b"bytes")];
    let sent = link.progress.watch(link.create("data/1", &body)).await;
    sent.expect("no stall").expect("created");
    assert_eq!(link.get("data/1").await.expect("read"), body[0]);
    assert_eq!(begin.elapsed().as_secs(), 320);
    let metrics = link.counters.snapshot();
    assert_eq!((metrics.put_requests, metrics.get_requests), (1, 1));
    assert_eq!(metrics.retries, 0);
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_pauses_is_sent_a_second_time_and_no_third_time() {
    let link = pausing_link(20, 160, Fate::Answered);
    let begin = Instant::now();
    let body = [Bytes::from_static(b"bytes")];
    let sent = link.progress.watch(link.create("data/1", &body)).await;
    sent.expect("no stall").expect("created");
    assert_eq!(begin.elapsed().as_secs(), 180);
    assert_eq!(link.counters.snapshot().retries, 1);
}

/// Waits for a pack that is swallowed while the store answers all other requests. Returns how
/// many seconds the wait took.
async fn swallowed(link: &StoreClient) -> u64 {
    let begin = Instant::now();
    let body = [Bytes::from_static(b"bytes")];
    let others = async {
        loop {
            let key = format!("journal/{:?}", begin.elapsed());
            link.create(&key, &body).await.expect("created");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        waited = link.progress.watch(link.create("data/1", &body)) => {
            assert!(matches!(waited, Err(ContentError::Stalled { .. })), "{waited:?}");
        }
        () = tokio::time::sleep(Duration::from_secs(3600)) => panic!("it waits without an end"),
        never = others => never,
    }
    begin.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_packs_and_never_answers_is_waited_for_no_longer_than_silence() {
    // On a fast link, the bodies are taken at once.
    let link = slow_link(0, Fate::Swallowed(15));
    assert_eq!(swallowed(&link).await, 60);
    assert_eq!(swallowed(&link).await, 60, "the next wait");
    // Bytes move most of the time, again and again.
    let link = slow_link(14, Fate::Swallowed(15));
    assert_eq!(swallowed(&link).await, 60);
    // An attempt that takes longer than the timeout fails the wait when it is broken off.
    let link = slow_link(160, Fate::Swallowed(60));
    let took = swallowed(&link).await;
    assert!((220..=225).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn who_bears_refusals_gives_up_after_the_timeout_and_never_for_what_is_mended() {
    use bkfs_testing::fault::{Fault, Strike};
    let timeout = Duration::from_secs(20);
    let body = [Bytes::from_static(b"bytes")];
    for (kind, ends) in [
        (StoreErrorKind::Invalid, true),
        (StoreErrorKind::NoBucket, true),
        (StoreErrorKind::Other, true),
        (StoreErrorKind::NoSpace, false),
        (StoreErrorKind::Denied, false),
    ] {
        let (link, store) = failing(timeout);
        store.plan(Strike::with(Fault::FailBefore(kind)).keys("data/").always());
        let begin = Instant::now();
        // Other requests succeed all the while.
        let others = async {
            loop {
                let key = format!("journal/{:?}", begin.elapsed());
                link.create(&key, &body).await.expect("created");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let waits = link.progress.watch(std::future::pending::<()>());
        let refused = async { tokio::join!(link.create("data/1", &body), waits) };
        let refused = tokio::time::timeout(timeout * 3, refused);
        let refused = tokio::select! {
            refused = refused => refused,
            never = others => never,
        };
        assert_eq!(refused.is_ok(), ends, "{kind:?}");
        if let Ok((created, waited)) = refused {
            let took = begin.elapsed().as_secs();
            assert!((20..=24).contains(&took), "{kind:?} took {took} s");
            created.expect_err("refused");
            let Err(ContentError::Stalled { last, .. }) = waited else {
                panic!("{waited:?}");
            };
            assert_eq!(last.map(|error| error.kind()), Some(kind));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_saves_time_is_not_waited_for_if_the_store_refuses_it() {
    use bkfs_testing::fault::{Fault, Strike};
    for kind in [
        StoreErrorKind::Denied,
        StoreErrorKind::NoSpace,
        StoreErrorKind::NoBucket,
    ] {
        // The link bears refusals of data.
        let (link, store) = failing(Duration::from_secs(300));
        store.plan(Strike::with(Fault::FailBefore(kind)).keys("runs/").always());
        let begin = Instant::now();
        let body = [Bytes::from_static(b"bytes")];
        let created = link.create_for_speed("runs/1", &body);
        let created = tokio::time::timeout(Duration::from_secs(250), created).await;
        let error = created.expect("it ends").expect_err("refused");
        assert!(matches!(error, ContentError::Store(_)), "{error}");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(2), "{kind:?} took {took:?}");
    }
    // A busy store is no refusal.
    let (link, store) = failing(Duration::from_secs(300));
    let busy = Fault::FailBefore(StoreErrorKind::Throttled);
    store.plan(Strike::with(busy).keys("runs/").times(5));
    let body = [Bytes::from_static(b"bytes")];
    let created = link.create_for_speed("runs/1", &body);
    created.await.expect("created");
}

/// A stopped process sends no requests meanwhile.
#[tokio::test(start_paused = true)]
async fn no_refusal_lasts_while_this_process_stands_still() {
    use bkfs_testing::fault::{Fault, Strike};
    let timeout = Duration::from_secs(20);
    let body = [Bytes::from_static(b"bytes")];
    for heals in [true, false] {
        let (link, store) = failing(timeout);
        let refused = Fault::FailBefore(StoreErrorKind::NoBucket);
        store.plan(Strike::with(refused).keys("data/").always());
        let mut created = std::pin::pin!(link.create("data/1", &body));
        let first = tokio::time::timeout(Duration::from_secs(3), created.as_mut()).await;
        first.expect_err("refused, and tried again");
        let begin = Instant::now();
        tokio::time::advance(timeout * 10).await;
        let next = tokio::time::timeout(Duration::from_secs(10), created.as_mut()).await;
        next.expect_err("13 s are no 20 s");
        if heals {
            store.heal();
            created.await.expect("created");
        } else {
            created.await.expect_err("refused for good");
            let took = (begin.elapsed() - timeout * 10).as_secs();
            assert!((16..=22).contains(&took), "{took} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_is_refused_ends_after_the_timeout_and_names_the_cause() {
    use bkfs_testing::fault::{Fault, Strike};
    let (link, store) = failing(Duration::from_secs(20));
    let body = [Bytes::from_static(b"bytes")];
    for fault in [Fault::FailBefore(StoreErrorKind::Invalid), Fault::Hang] {
        store.heal();
        let key = format!("data/{fault:?}");
        link.create(&key, &body).await.expect("created");
        store.plan(Strike::with(fault).keys(&key).always());
        let begin = Instant::now();
        let refused = link.get(&key).await;
        assert!(
            matches!(refused, Err(ContentError::Stalled { .. })),
            "{refused:?}"
        );
        let took = begin.elapsed().as_secs();
        assert!((20..=24).contains(&took), "{took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_answer_makes_no_object_foreign() {
    use bkfs_store::Operation;
    use bkfs_testing::fault::{Fault, Strike};
    let (link, store) = failing(Duration::from_secs(20));
    let body = [Bytes::from_static(b"bytes")];
    link.create("data/x", &body).await.expect("created");
    store.plan(Strike::with(Fault::FlipBit(3)).on(Operation::GetTail));
    link.create("data/x", &body).await.expect("it is ours");
}

#[tokio::test(start_paused = true)]
async fn only_our_own_object_counts_as_written() {
    use bkfs_store::MemoryStore;
    use bkfs_testing::entropy::SeededEntropy;
    let store = Arc::new(MemoryStore::new());
    let entropy = Arc::new(SeededEntropy::new(1));
    let link = StoreClient::new(store, entropy, (1, 1), Duration::from_secs(10));
    let body = [Bytes::from_static(b"ours"), Bytes::from_static(b" alone")];
    for _ in 0..2 {
        link.create("data/x", &body).await.expect("is ours");
    }
    for other in [&b"ours alonE"[..], b"s alone", b"xours alone"] {
        let refused = link
            .create("data/x", &[Bytes::copy_from_slice(other)])
            .await;
        let Err(ContentError::Store(error)) = refused else {
            panic!("{other:?} is not what is there");
        };
        assert_eq!(error.kind(), StoreErrorKind::AlreadyExists);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_behind_other_reads_is_no_failure_of_the_store() {
    use bkfs_store::MemoryStore;
    use bkfs_testing::entropy::SeededEntropy;
    use bkfs_testing::fault::{Fault, FaultStore, Strike};
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
    let entropy = Arc::new(SeededEntropy::new(1));
    let timeout = Duration::from_secs(10);
    let link = StoreClient::new(store.clone(), entropy, (1, 1), timeout);
    for key in ["data/busy", "data/late"] {
        let body = [Bytes::from_static(b"bytes")];
        link.create(key, &body).await.expect("created");
    }
    let slow = Strike::with(Fault::Delay(Duration::from_secs(1)));
    store.plan(slow.keys("data/busy").always());
    let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Unreachable));
    store.plan(refused.keys("data/late"));
    let busy = async || {
        for _ in 0..12 {
            link.get("data/busy").await.expect("there");
        }
    };
    // While one is under way, another waits: the slot is never free.
    let busy = async { tokio::join!(busy(), busy()) };
    let ahead = SharedUrgency::new(Urgency::Ahead);
    let late = link.get_range_as("data/late", 0..5, &ahead);
    let (_, late) = tokio::join!(busy, late);
    assert_eq!(late.expect("is tried again"), "bytes");
}
