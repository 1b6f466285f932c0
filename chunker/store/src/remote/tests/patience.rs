//! Tests of how long the client waits for an answer, and what it tells the user meanwhile.

use super::server::*;
use super::*;

#[tokio::test]
async fn time_counts_only_without_progress() {
    // Takes three times as long as the timeout, but always makes progress.
    let slow = Step::Slow(1 << 20, Duration::from_millis(100));
    let (endpoint, seen) = serve(vec![slow]).await;
    let url = "s3://bucket".parse().unwrap();
    let options = StoreOptions {
        stall_timeout: Duration::from_secs(1),
        ..options(&endpoint)
    };
    let store = RemoteStore::open(&url, &options).await.unwrap();
    let start = Instant::now();
    store.put_new("a", body(32 << 20)).await.unwrap();
    assert!(
        start.elapsed() > Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(seen.count(), 1);
}

#[tokio::test]
async fn a_stalled_request_is_broken_off() {
    let (endpoint, seen) = serve(vec![Step::Ignore, Step::Stop(10, 20), Step::Hang]).await;
    let url = "s3://bucket".parse().unwrap();
    let impatient = StoreOptions {
        retry_for: Duration::ZERO,
        ..options(&endpoint)
    };
    let store = RemoteStore::open(&url, &impatient).await.unwrap();
    let start = Instant::now();
    // The body is larger than the sockets' buffers, so the server cannot have all of it.
    let error = store.put_new("a", body(32 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    let error = store.get("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    assert!(error.message().contains("no progress"), "{error}");
    let error = store.head("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(seen.count(), 3);
}

/// A link of 100 kB/s, and a server that answers at once when it has the body.
const SLOW: Step = Step::Slow(16 << 10, Duration::from_millis(160));

/// Returns a store whose caller waits 6 s in all, so that an attempt may be silent for 3 s.
async fn impatient(script: Vec<Step>) -> (RemoteStore, Seen, Signs) {
    let (endpoint, seen) = serve(script).await;
    let url = "s3://bucket".parse().unwrap();
    let options = options(&endpoint).within(Duration::from_secs(6));
    let signs = options.signs.clone();
    let store = RemoteStore::open(&url, &options).await.unwrap();
    (store, seen, signs)
}

#[tokio::test]
async fn a_body_on_a_slow_link_is_sent_once_and_its_bytes_are_seen_moving() {
    let (store, seen, signs) = impatient(vec![SLOW]).await;
    let start = Instant::now();
    let mut put = std::pin::pin!(store.put_new("a", body(2_000_000)));
    let mut silence = Duration::ZERO;
    loop {
        tokio::select! {
            put = put.as_mut() => break put.map(drop).unwrap(),
            () = sleep(Duration::from_millis(100)) => {}
        }
        let moved = signs.sent_at().unwrap_or(start);
        silence = silence.max(moved.elapsed());
    }
    assert!(start.elapsed() > Duration::from_secs(18));
    assert_eq!(seen.count(), 1, "it was broken off");
    // The wait for the answer, while the last bytes are in the buffers, is longer than all before.
    assert!(silence < Duration::from_secs(8), "{silence:?}");
}

#[tokio::test]
async fn many_bodies_on_a_slow_link_are_sent_once() {
    // Each of them at 50 kB/s.
    let slow = Step::Slow(8 << 10, Duration::from_millis(160));
    let (store, seen, _) = impatient(vec![slow; 4]).await;
    let keys = ["a", "b", "c", "d"];
    let puts = keys.map(|key| store.put_new(key, body(700_000)));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
    assert_eq!(seen.count(), 4, "some were broken off");
}

#[tokio::test]
async fn a_slow_store_that_takes_bodies_and_never_answers_is_left() {
    let swallow = Step::Swallow(16 << 10, Duration::from_millis(160));
    let (store, seen, signs) = impatient(vec![swallow]).await;
    let start = Instant::now();
    let put = store.put_new("a", body(1_000_000)).await;
    let took = start.elapsed();
    assert_eq!(put.unwrap_err().kind(), Kind::OutcomeUnknown);
    assert!(signs.sent_at().is_some(), "bytes moved");
    assert!(took > Duration::from_secs(8), "{took:?}");
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert_eq!(seen.count(), 1);
}

/// At 100 kB/s, this many bytes of a body take longer than [`impatient`] waits.
const LONG: usize = 800_000;

#[tokio::test]
async fn a_transfer_that_breaks_after_the_whole_time_is_sent_again() {
    let pause = Duration::from_millis(160);
    let broken = [
        Step::Reset(LONG, 16 << 10, pause),
        Step::Stall(LONG, 16 << 10, pause),
    ];
    let again = broken.map(|step| async move {
        let (store, seen, _) = impatient(vec![step.clone(), success()]).await;
        let start = Instant::now();
        let put = store.put_new("a", body(LONG + (1 << 20))).await;
        put.unwrap_or_else(|error| panic!("{step:?}: {error}"));
        let took = start.elapsed();
        assert!(took > Duration::from_secs(6), "{step:?}: {took:?}");
        assert_eq!(seen.count(), 2, "{step:?}");
    });
    futures::future::join_all(again).await;
}

#[tokio::test]
async fn a_store_that_breaks_each_transfer_is_left() {
    let pause = Duration::from_millis(160);
    // The second one ends after the whole time since the first one moved.
    let long = Step::Reset(LONG, 16 << 10, pause);
    let (store, seen, _) = impatient(vec![long; 9]).await;
    // Short ones end early, and all of them have one and the same time.
    let short = Step::Reset(200_000, 16 << 10, pause);
    let (other, other_seen, _) = impatient(vec![short; 99]).await;
    let start = Instant::now();
    let timed = |store: RemoteStore| async move {
        let error = store
            .put_new("a", body(LONG + (1 << 20)))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{error}");
        start.elapsed().as_secs()
    };
    let (long, short) = futures::join!(timed(store), timed(other));
    assert!((12..=24).contains(&long), "{long} s");
    assert_eq!(seen.count(), 2);
    assert!((6..=13).contains(&short), "{short} s");
    assert!(
        (3..=6).contains(&other_seen.count()),
        "{}",
        other_seen.count()
    );
}

#[tokio::test]
async fn a_transfer_that_nothing_shows_moving_has_no_more_time() {
    // The buffers take the start of a body, and the server reads none of it.
    let (store, _, signs) = impatient(vec![Step::Ignore; 9]).await;
    let start = Instant::now();
    let error = store.put_new("a", body(32 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{error}");
    assert_eq!(signs.sent_at(), None);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test]
async fn an_answer_below_the_least_rate_is_left() {
    let (store, seen, _) = impatient(vec![Step::Trickle; 10]).await;
    let start = Instant::now();
    let error = store.get("a").await.unwrap_err();
    let took = start.elapsed();
    assert!(error.message().contains("bytes of the answer"), "{error}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(seen.count() >= 2, "it is sent again");
}

#[tokio::test]
async fn an_absent_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = "s3://bucket".parse().unwrap();
    let impatient = StoreOptions {
        retry_for: Duration::from_millis(300),
        wait: true,
        ..options(&format!("http://{address}"))
    };
    let store = RemoteStore::open(&url, &impatient).await.unwrap();
    for error in [
        store.get("a").await.unwrap_err(),
        store.put_new("a", body(1)).await.unwrap_err(),
        store.replace("a", vec![], &version()).await.unwrap_err(),
        store.delete("a").await.unwrap_err(),
        store.list("", None, 1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unreachable, "{error}");
        assert!(error.message().contains(&address.to_string()), "{error}");
        assert!(error.message().contains("refused"), "{error}");
    }
}

/// Returns options for a caller that waits `timeout`, and the messages that the caller receives.
fn noticed(endpoint: &str, timeout: Duration) -> (StoreOptions, Arc<Mutex<Vec<String>>>) {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let options = StoreOptions {
        notice: Notice::new({
            let told = told.clone();
            move |cause| told.lock().unwrap().push(cause.to_owned())
        }),
        ..options(endpoint)
    };
    (options.within(timeout), told)
}

#[tokio::test]
async fn a_server_that_was_never_reached_is_told_soon_unless_it_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let absent = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    // A server that does not speak TLS, and a name that cannot exist.
    let (plain, _) = serve(vec![Step::Hang; 20]).await;
    let no_tls = plain.replace("http://", "https://");
    let no_name = "http://name.invalid:9000";
    let url = "s3://bucket".parse().unwrap();
    for endpoint in [absent.as_str(), no_tls.as_str(), no_name] {
        let (options, _) = noticed(endpoint, Duration::from_secs(300));
        let store = RemoteStore::open(&url, &options).await.unwrap();
        let begin = Instant::now();
        let error = store.get("config").await.unwrap_err();
        assert_eq!(error.kind(), Kind::NoServer, "{endpoint}: {error}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{endpoint}");
    }
    let (options, told) = noticed(&absent, Duration::from_secs(300));
    let waiting = StoreOptions {
        wait: true,
        ..options
    };
    let store = RemoteStore::open(&url, &waiting).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(8), store.get("config")).await;
    assert!(waited.is_err(), "it waits");
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("refused"), "{told:?}");
}

#[tokio::test]
async fn a_server_that_was_reached_is_waited_for_as_long_as_asked() {
    let (endpoint, _) = serve(vec![answer("200 OK", "read")]).await;
    let url = "s3://bucket".parse().unwrap();
    let (options, _) = noticed(&endpoint, Duration::from_secs(300));
    let store = RemoteStore::open(&url, &options).await.unwrap();
    store.get("config").await.unwrap();
    assert!(!store.contact.is_hasty());
}

#[tokio::test]
async fn who_waits_is_told_within_five_seconds_what_for() {
    let busy = vec![answer("503 Service Unavailable", ""); 30];
    for (script, cause) in [
        (busy, "503"),
        (vec![Step::Hang], "no progress"),
        (vec![Step::Stop(3, 10)], "in the middle of the answer"),
    ] {
        let (endpoint, _) = serve(script).await;
        let url = "s3://bucket".parse().unwrap();
        let (options, told) = noticed(&endpoint, Duration::from_secs(300));
        let store = RemoteStore::open(&url, &options).await.unwrap();
        let begin = Instant::now();
        let waited = tokio::time::timeout(Duration::from_secs(5), store.get("config")).await;
        assert!(waited.is_err(), "{:?}", begin.elapsed());
        let told = told.lock().unwrap().clone();
        assert_eq!(told.len(), 1, "{cause}: {told:?}");
        assert!(told[0].contains(cause), "{told:?}");
    }
}

#[tokio::test]
async fn a_silent_store_is_told_as_long_as_it_is_silent() {
    let (endpoint, seen) = serve(vec![Step::Ignore; 2]).await;
    let url = "s3://bucket".parse().unwrap();
    let (options, _) = noticed(&endpoint, Duration::from_secs(300));
    let signs = options.signs.clone();
    let store = Arc::new(RemoteStore::open(&url, &options).await.unwrap());
    let store = crate::GuardedStore::new(store, signs.clone());
    let is_told = |when: &str| {
        let outage = signs.outage().expect(when);
        assert_eq!(outage.cause(), "silence");
    };
    let told = async {
        sleep(TOLD_AFTER + Duration::from_millis(100)).await;
        is_told("no byte of an answer has arrived");
        // The body of a later request fills the buffers of a connection.
        let later = async {
            while seen.count() < 2 {
                sleep(Duration::from_millis(10)).await;
                is_told("the second one goes out");
            }
            sleep(Duration::from_millis(500)).await;
            is_told("the second one is not answered either");
        };
        tokio::select! {
            put = store.put_new("b", body(1 << 20)) => panic!("answered: {put:?}"),
            () = later => {}
        }
    };
    tokio::select! {
        put = store.put_new("a", body(1 << 20)) => panic!("answered: {put:?}"),
        () = told => {}
    }
}

#[test]
fn a_request_is_broken_off_in_time_to_be_sent_again() {
    let long = StoreOptions::default().within(Duration::from_secs(300));
    assert_eq!(long.stall_timeout, Duration::from_secs(60));
    assert_eq!(long.drain_timeout, Duration::from_secs(120));
    for seconds in [4, 8, 15, 60, 120, 300, 3600] {
        let timeout = Duration::from_secs(seconds);
        let options = StoreOptions::default().within(timeout);
        let patience = options.stall_timeout + options.drain_timeout;
        assert!(patience * 3 <= timeout * 2, "{seconds} s: {patience:?}");
    }
}

#[tokio::test]
async fn a_silence_shorter_than_the_timeout_is_survived() {
    // A request that is sent during the silence is never answered. It is sent again after a part of
    // `timeout=`.
    let (endpoint, seen) = serve(vec![Step::Hang, Step::Hang, answer("200 OK", "read")]).await;
    let url = "s3://bucket".parse().unwrap();
    let (options, _) = noticed(&endpoint, Duration::from_secs(15));
    let store = RemoteStore::open(&url, &options).await.unwrap();
    let begin = Instant::now();
    let read = tokio::time::timeout(Duration::from_secs(15), store.get("a")).await;
    assert_eq!(read.expect("within the timeout").unwrap().0, "read");
    assert_eq!(seen.count(), 3, "{:?}", begin.elapsed());
}
