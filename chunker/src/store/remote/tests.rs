//! The client of S3 against a server that says and does what a script tells it.

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use tokio::time::{Instant, sleep};

use super::*;
use crate::store::{Notice, StoreErrorKind as Kind};

/// What the server does with one request.
#[derive(Clone, Debug)]
enum Step {
    /// Reads all of it and answers.
    Answer(&'static str, Vec<(&'static str, String)>, String),
    /// Reads all of it and goes away.
    Forget,
    /// Reads so many bytes of the body and goes away.
    Leave(usize),
    /// Reads all of it and says nothing.
    Hang,
    /// Reads nothing of the body and says nothing.
    Ignore,
    /// Answers with so many bytes of a body that should have more, and says no more.
    Stop(usize, usize),
    /// Announces three bytes of an object, and sends more of them without end.
    Endless,
    /// Reads the body slowly, so many bytes (1 MiB at most) at a time with a pause, then answers.
    Slow(usize, Duration),
}

#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    /// The heads of the requests so far.
    fn heads(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self) -> usize {
        self.heads().len()
    }
}

fn success() -> Step {
    answer("200 OK", "")
}

fn answer(status: &'static str, body: &str) -> Step {
    let etag = ("ETag", "\"tag\"".to_owned());
    Step::Answer(status, vec![etag], body.to_owned())
}

fn error(status: &'static str, code: &str) -> Step {
    answer(
        status,
        &format!("<Error><Code>{code}</Code><Message>words</Message></Error>"),
    )
}

/// Serves one connection for each step of the script, and one more each that is refused with 418.
async fn serve(script: Vec<Step>) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    tokio::spawn({
        let seen = seen.clone();
        async move {
            let mut script = script.into_iter();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                let step = script.next().unwrap_or(answer("418 Unexpected", ""));
                tokio::spawn(play(connection, step, seen.clone()));
            }
        }
    });
    (endpoint, seen)
}

async fn play(mut connection: TcpStream, step: Step, seen: Seen) {
    let (head, mut body) = read_head(&mut connection).await;
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let is_head = head.starts_with("HEAD");
    seen.0.lock().unwrap().push(head);
    let mut buffer = vec![0; 1 << 20];
    let (stop_at, step_bytes, pause) = match &step {
        Step::Ignore => (0, buffer.len(), Duration::ZERO),
        Step::Leave(bytes) => (*bytes, buffer.len(), Duration::ZERO),
        Step::Slow(bytes, pause) => (length, *bytes, *pause),
        _ => (length, buffer.len(), Duration::ZERO),
    };
    while body < stop_at {
        let room = step_bytes.min(stop_at - body);
        body += connection.read_exact(&mut buffer[..room]).await.unwrap();
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    match step {
        Step::Answer(status, headers, text) => {
            write_answer(
                &mut connection,
                status,
                &headers,
                text.len(),
                is_head,
                text.as_bytes(),
            )
            .await;
        }
        Step::Slow(..) => {
            let etag = [("ETag", "\"slow\"".to_owned())];
            write_answer(&mut connection, "200 OK", &etag, 0, is_head, b"").await;
        }
        Step::Stop(sent, length) => {
            let etag = [("ETag", "\"tag\"".to_owned())];
            write_answer(
                &mut connection,
                "200 OK",
                &etag,
                length,
                false,
                &vec![b'x'; sent],
            )
            .await;
            std::future::pending().await
        }
        Step::Endless => {
            let head = "HTTP/1.1 206 Partial Content\r\nETag: \"tag\"\r\nContent-Length: 1099511627776\r\nContent-Range: bytes 4-6/10\r\nConnection: close\r\n\r\n";
            let _ = connection.write_all(head.as_bytes()).await;
            let part = "x".repeat(1 << 16);
            while connection.write_all(part.as_bytes()).await.is_ok() {}
        }
        Step::Forget | Step::Leave(_) => {}
        Step::Hang | Step::Ignore => std::future::pending().await,
    }
}

async fn read_head(connection: &mut TcpStream) -> (String, usize) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            return (head, bytes.len() - end - 4);
        }
        assert!(connection.read_buf(&mut bytes).await.unwrap() > 0);
    }
}

async fn write_answer(
    connection: &mut TcpStream,
    status: &str,
    headers: &[(&str, String)],
    length: usize,
    is_head: bool,
    body: &[u8],
) {
    let mut head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    if !is_head {
        connection.write_all(body).await.unwrap();
    }
    connection.flush().await.unwrap();
}

fn options(endpoint: &str) -> StoreOptions {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    StoreOptions {
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        settings: vec![
            setting("AWS_ACCESS_KEY_ID", "id"),
            setting("AWS_SECRET_ACCESS_KEY", "secret"),
        ],
        use_environment: false,
        stall_timeout: Duration::from_millis(300),
        retry_for: Duration::from_secs(20),
        ..StoreOptions::default()
    }
}

/// A store before a server with a script. It is patient with one that always answers: on a busy machine that takes a while.
async fn scripted(script: impl Into<Vec<Step>>) -> (RemoteStore, Seen) {
    let script = script.into();
    let falls_silent = |step: &Step| matches!(step, Step::Hang | Step::Ignore | Step::Stop(..));
    let stalls = script.iter().any(falls_silent);
    let (endpoint, seen) = serve(script).await;
    let mut options = options(&endpoint);
    if !stalls {
        options.stall_timeout = Duration::from_secs(60);
    }
    let url = "s3://bucket/prefix".parse().unwrap();
    let store = RemoteStore::open(&url, &options).await.unwrap();
    (store, seen)
}

fn body(bytes: usize) -> Vec<Bytes> {
    vec![
        Bytes::from(vec![b'x'; bytes]),
        Bytes::new(),
        Bytes::from_static(b"y"),
    ]
}

fn version() -> Version {
    Version::new(Some("\"tag\"".to_owned()), None)
}

#[tokio::test]
async fn requests_are_conditional_signed_and_of_known_length() {
    let (store, seen) = scripted([success(), success(), success(), success()]).await;
    let created = store.put_new("data/a b", body(10)).await.unwrap();
    assert_eq!(created, version());
    store.replace("root", body(0), &version()).await.unwrap();
    store.put("sessions/1", vec![]).await.unwrap();
    store.get("root").await.unwrap();
    let heads: Vec<String> = seen
        .heads()
        .iter()
        .map(|head| head.to_ascii_lowercase())
        .collect();
    assert!(
        heads[0].starts_with("put /bucket/prefix/data/a%20b http/1.1"),
        "{}",
        heads[0]
    );
    assert!(heads[0].contains("if-none-match: *"), "{}", heads[0]);
    assert!(heads[0].contains("content-length: 11"), "{}", heads[0]);
    assert!(
        heads[0].contains("authorization: aws4-hmac-sha256"),
        "{}",
        heads[0]
    );
    assert!(heads[1].contains("if-match: \"tag\""), "{}", heads[1]);
    assert!(heads[2].contains("content-length: 0"), "{}", heads[2]);
    for head in heads {
        assert!(!head.contains("transfer-encoding"), "{head}");
    }
}

#[tokio::test]
async fn in_the_clear_a_body_is_guarded_by_its_hash_unless_it_stays_on_this_machine() {
    const UNSIGNED: &str = "x-amz-content-sha256: unsigned-payload";
    // Connections to 0.0.0.0 are served by this machine, too, but it is not an address of it.
    for (host, choice, unsigned) in [
        ("127.0.0.1", None, true),
        ("127.0.0.1", Some("false"), false),
        ("0.0.0.0", None, false),
        ("0.0.0.0", Some("true"), true),
    ] {
        let (endpoint, seen) = serve(vec![success()]).await;
        let mut options = options(&endpoint.replace("127.0.0.1", host));
        options.stall_timeout = Duration::from_secs(60);
        let choice = choice.map(|value| ("aws_unsigned_payload".to_owned(), value.to_owned()));
        options.settings.extend(choice);
        let url = "s3://bucket/prefix".parse().unwrap();
        let store = RemoteStore::open(&url, &options).await.unwrap();
        store.put_new("data/a", body(10)).await.unwrap();
        let head = seen.heads()[0].to_ascii_lowercase();
        assert_eq!(head.contains(UNSIGNED), unsigned, "{host}: {head}");
    }
}

#[tokio::test]
async fn what_surely_was_not_applied_is_sent_again() {
    let refusals = [
        error("503 Slow Down", "SlowDown"),
        error("409 Conflict", "ConditionalRequestConflict"),
        error("400 Bad Request", "RequestTimeout"),
        Step::Leave(4096),
    ];
    for refusal in refusals {
        let (store, seen) = scripted([refusal.clone(), success()]).await;
        store
            .replace("root", body(4 << 20), &version())
            .await
            .unwrap();
        assert_eq!(seen.count(), 2, "{refusal:?}");
        let (store, seen) = scripted([refusal.clone(), success()]).await;
        store.put_new("data/a", body(4 << 20)).await.unwrap();
        assert_eq!(seen.count(), 2, "{refusal:?}");
    }
}

#[tokio::test]
async fn a_conditional_write_that_may_have_been_applied_is_not_sent_again() {
    let troubles = [
        Step::Forget,
        Step::Hang,
        error("500 Internal Server Error", "InternalError"),
        answer("502 Bad Gateway", "<html>nginx</html>"),
        answer("503 Service Unavailable", ""),
        answer("504 Gateway Timeout", ""),
        answer("409 Conflict", ""),
        // Success without the version that it made.
        Step::Answer("200 OK", vec![], String::new()),
    ];
    for trouble in troubles {
        let (store, seen) = scripted([trouble.clone(), success()]).await;
        let error = store
            .replace("root", body(9), &version())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::OutcomeUnknown, "{trouble:?}: {error}");
        let error = {
            let (store, _) = scripted([trouble.clone(), success()]).await;
            store.put_new("root", body(9)).await.unwrap_err()
        };
        assert_eq!(error.kind(), Kind::OutcomeUnknown, "{trouble:?}: {error}");
        assert_eq!(seen.count(), 1, "{trouble:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_believed() {
    let cases = [
        (
            error("412 Precondition Failed", "PreconditionFailed"),
            Kind::AlreadyExists,
            Kind::Conflict,
        ),
        (
            error("404 Not Found", "NoSuchBucket"),
            Kind::NoBucket,
            Kind::NoBucket,
        ),
        (
            error("403 Forbidden", "AccessDenied"),
            Kind::Denied,
            Kind::Denied,
        ),
        (
            error("507 Full", "XMinioStorageFull"),
            Kind::NoSpace,
            Kind::NoSpace,
        ),
        (
            error("501 Not Implemented", "NotImplemented"),
            Kind::Invalid,
            Kind::Invalid,
        ),
    ];
    for (step, created, replaced) in cases {
        let (store, seen) = scripted([step.clone(), step.clone()]).await;
        let error = store.put_new("a", body(1)).await.unwrap_err();
        assert_eq!(error.kind(), created, "{error}");
        let error = store.replace("a", body(1), &version()).await.unwrap_err();
        assert_eq!(error.kind(), replaced, "{error}");
        assert_eq!(seen.count(), 2);
    }
}

#[tokio::test]
async fn reads_and_repeatable_writes_are_sent_again_whatever_happened() {
    let troubles = [
        Step::Forget,
        Step::Hang,
        error("500 Internal Server Error", "InternalError"),
        answer("503 Service Unavailable", ""),
    ];
    for trouble in troubles {
        let (store, seen) = scripted([trouble.clone(), answer("200 OK", "read")]).await;
        assert_eq!(store.get("a").await.unwrap().0, "read", "{trouble:?}");
        assert_eq!(seen.count(), 2, "{trouble:?}");
        let (store, seen) = scripted([trouble.clone(), success()]).await;
        store.put("a", body(1)).await.unwrap();
        assert_eq!(seen.count(), 2, "{trouble:?}");
        let (store, seen) = scripted([trouble.clone(), answer("204 No Content", "")]).await;
        store.delete("a").await.unwrap();
        assert_eq!(seen.count(), 2, "{trouble:?}");
    }
}

#[tokio::test]
async fn time_counts_only_without_progress() {
    // Three times as long as the timeout, but never without progress.
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
    // More than the sockets take, so that the server cannot have all of it.
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

#[tokio::test]
async fn missing_credentials_are_told_from_missing_permission() {
    let (endpoint, seen) = serve(vec![error("404 Not Found", "NoRole"); 4]).await;
    let url = "s3://bucket".parse().unwrap();
    let without = StoreOptions {
        settings: vec![("AWS_METADATA_ENDPOINT".to_owned(), endpoint.clone())],
        ..options(&endpoint)
    };
    let store = RemoteStore::open(&url, &without).await.unwrap();
    for error in [
        store.get("a").await.unwrap_err(),
        store.put_new("a", body(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(
            error.message().contains("there are no credentials"),
            "{error}"
        );
    }
    assert!(
        seen.heads()
            .iter()
            .all(|head| head.contains("/latest/api/token"))
    );
}

#[tokio::test]
async fn a_bucket_elsewhere_is_told_where() {
    let moved = Step::Answer(
        "301 Moved Permanently",
        vec![("x-amz-bucket-region", "eu-central-1".to_owned())],
        "<Error><Code>PermanentRedirect</Code></Error>".to_owned(),
    );
    let (store, seen) = scripted([moved]).await;
    let error = store.get("config").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.message().contains("region=eu-central-1"), "{error}");
    assert_eq!(seen.count(), 1);
}

#[tokio::test]
async fn an_object_that_is_too_large_is_not_begun() {
    let (store, _) = scripted([Step::Stop(0, 1 << 40)]).await;
    let error = store.get("root").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.message().contains("1099511627776 bytes"), "{error}");
}

/// Without a bound this would take memory until there is none.
#[tokio::test]
async fn a_body_without_end_is_broken_off() {
    // The last answer is to the question for the object's size.
    let endless = [Step::Endless, Step::Endless, Step::Endless];
    let (store, _) = scripted([&endless[..], &[answer("200 OK", "0123456789")]].concat()).await;
    let error = store.get_range("a", 4..7).await.unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[tokio::test]
async fn other_bytes_than_were_asked_for_are_refused() {
    let whole = answer("200 OK", "0123456789");
    let other = |range: &str, text: &str| {
        let range = ("Content-Range", range.to_owned());
        let etag = ("ETag", "\"tag\"".to_owned());
        Step::Answer("206 Partial Content", vec![range, etag], text.to_owned())
    };
    for step in [
        whole.clone(),
        other("bytes 0-2/10", "012"),
        other("bytes 4-6/10", "45"),
    ] {
        // The second answer is to the question for the object's size.
        let (store, _) = scripted([step.clone(), whole.clone(), whole.clone()]).await;
        let error = store.get_range("a", 4..7).await.unwrap_err();
        assert!(!error.is_not_found(), "{step:?}: {error}");
    }
    let (store, _) = scripted([other("bytes 4-6/10", "456")]).await;
    assert_eq!(store.get_range("a", 4..7).await.unwrap(), "456");
    let (store, _) = scripted([other("bytes 4-6/7", "456"), whole]).await;
    let error = store.get_range("a", 4..12).await.unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfRange, "{error}");
}

/// A page of a list with these keys, and the token for the next.
fn page(keys: &[String], token: &str) -> Step {
    let contents: String = keys
        .iter()
        .map(|key| {
            format!(
                "<Contents><Key>prefix/{key}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag><LastModified>2026-11-20T10:00:00.000Z</LastModified></Contents>"
            )
        })
        .collect();
    answer(
        "200 OK",
        &format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>{contents}</ListBucketResult>"
        ),
    )
}

#[tokio::test]
async fn a_list_that_does_not_end_is_refused() {
    let keys = |from: usize| [from, from + 1].map(|number| format!("data/{number:06}"));
    let same_token = |number: usize| page(&keys(number * 2), "again");
    let same_keys = |number: usize| page(&keys(0), &format!("t{number}"));
    let nothing = |number: usize| page(&[], &format!("t{number}"));
    let of_others = |number: usize| page(&["daa/x".to_owned()], &format!("t{number}"));
    let cases: [(&dyn Fn(usize) -> Step, usize); 4] = [
        (&same_token, 2),
        (&same_keys, 2),
        (&nothing, 100),
        (&of_others, 100),
    ];
    for (number, (make, most)) in cases.into_iter().enumerate() {
        let (store, seen) = scripted((0..300).map(make).collect::<Vec<_>>()).await;
        let error = store.list("data/", None, 1_000_000).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "case {number}: {error}");
        assert!(error.message().contains("the store"), "{error}");
        assert!(seen.count() <= most, "case {number}: {}", seen.count());
    }
}

#[tokio::test]
async fn an_answer_to_a_read_that_makes_no_sense_is_asked_for_again() {
    let partial = |range: &str, text: &str| {
        let range = ("Content-Range", range.to_owned());
        let etag = ("ETag", "\"tag\"".to_owned());
        Step::Answer("206 Partial Content", vec![range, etag], text.to_owned())
    };
    let right = || partial("bytes 4-6/10", "456");
    for wrong in [
        answer("200 OK", "0123456789"),
        partial("bytes 4-5/10", "45"),
        partial("bytes 0-2/10", "012"),
        Step::Answer("206 Partial Content", vec![], "456".to_owned()),
    ] {
        let (store, seen) = scripted([wrong.clone(), right()]).await;
        let read = store.get_range("a", 4..7).await;
        assert_eq!(read.expect("the second is right"), "456", "{wrong:?}");
        assert_eq!(seen.count(), 2);
        // Three times the same is the store's own doing. The fourth request asks for the size.
        let script = [
            wrong.clone(),
            wrong.clone(),
            wrong,
            answer("200 OK", "0123456789"),
        ];
        let (store, seen) = scripted(script).await;
        let error = store.get_range("a", 4..7).await.unwrap_err();
        assert_eq!((error.kind(), seen.count()), (Kind::Invalid, 4), "{error}");
    }
    let whole = answer("200 OK", "0123456789");
    let (store, _) = scripted([whole.clone(), whole.clone(), whole.clone(), whole]).await;
    let error = store.get_range("a", 4..7).await.unwrap_err();
    assert!(error.message().contains("ignores Range"), "{error}");
    let without_tag = Step::Answer("200 OK", vec![], "read".to_owned());
    let (store, _) = scripted([without_tag, answer("200 OK", "read")]).await;
    assert_eq!(store.get("root").await.unwrap().0, "read");
}

#[tokio::test]
async fn a_tail_that_is_shorter_than_announced_is_not_believed() {
    let headers = vec![
        ("Content-Range", "bytes 4-9/10".to_owned()),
        ("ETag", "\"tag\"".to_owned()),
    ];
    let tail = |text: &str| Step::Answer("206 Partial Content", headers.clone(), text.to_owned());
    let (store, seen) = scripted([tail("45678"), tail("456789")]).await;
    let (read, size) = store.get_tail("a", 6).await.unwrap();
    assert_eq!((read, size), (Bytes::from("456789"), 10));
    assert_eq!(seen.count(), 2);
}

#[tokio::test]
async fn a_passing_redirection_is_waited_out_and_explained() {
    let moved = |status| {
        let location = ("Location", "http://elsewhere.example/".to_owned());
        Step::Answer(status, vec![location], String::new())
    };
    for status in ["307 Temporary Redirect", "302 Found"] {
        let (store, seen) = scripted([moved(status), success()]).await;
        store.replace("root", body(1), &version()).await.unwrap();
        assert_eq!(seen.count(), 2, "{status}");
    }
    let (store, seen) = scripted([moved("308 Permanent Redirect")]).await;
    let error = store.put_new("a", body(1)).await.unwrap_err();
    assert_eq!((error.kind(), seen.count()), (Kind::Invalid, 1), "{error}");
    for words in ["elsewhere.example", "endpoint", "308"] {
        assert!(error.message().contains(words), "{error}");
    }
}

#[tokio::test]
async fn an_expired_token_is_not_taken_for_another_region() {
    let expired = Step::Answer(
        "400 Bad Request",
        vec![("x-amz-bucket-region", "us-east-1".to_owned())],
        "<Error><Code>ExpiredToken</Code><Message>it has expired</Message></Error>".to_owned(),
    );
    let elsewhere = Step::Answer(
        "400 Bad Request",
        vec![("x-amz-bucket-region", "eu-west-1".to_owned())],
        "<Error><Code>ExpiredToken</Code></Error>".to_owned(),
    );
    for step in [expired, elsewhere] {
        let (store, _) = scripted([step]).await;
        let error = store.get("config").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.message().contains("have expired"), "{error}");
    }
    // The answer to a question for a size has no code; the bucket is where we ask already.
    let headers = vec![("x-amz-bucket-region", "us-east-1".to_owned())];
    let (store, _) = scripted([Step::Answer("400 Bad Request", headers, String::new())]).await;
    let error = store.head("config").await.unwrap_err();
    assert!(!error.message().contains("AWS_REGION"), "{error}");
}

/// Options of one who waits `timeout`, and what that one is told.
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
    // No TLS is spoken there; and a name that cannot be.
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
    // What is sent into the silence is never answered; a part of `timeout=` later it is sent again.
    let (endpoint, seen) = serve(vec![Step::Hang, Step::Hang, answer("200 OK", "read")]).await;
    let url = "s3://bucket".parse().unwrap();
    let (options, _) = noticed(&endpoint, Duration::from_secs(15));
    let store = RemoteStore::open(&url, &options).await.unwrap();
    let begin = Instant::now();
    let read = tokio::time::timeout(Duration::from_secs(15), store.get("a")).await;
    assert_eq!(read.expect("within the timeout").unwrap().0, "read");
    assert_eq!(seen.count(), 3, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    let refused = async |url: &str, options: StoreOptions| {
        let url = url.parse().unwrap();
        let error = RemoteStore::open(&url, &options).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        error.to_string()
    };
    let error = refused("s3://bucket", options("127.0.0.1:9000")).await;
    assert!(error.contains("https://host:port"), "{error}");
    let mut unknown = options("http://127.0.0.1:9000");
    unknown
        .settings
        .push(("AWS_SHOE_SIZE".to_owned(), "45".to_owned()));
    let error = refused("s3://bucket", unknown).await;
    assert!(error.contains("aws_shoe_size"), "{error}");
    let account = StoreOptions {
        use_environment: false,
        ..StoreOptions::default()
    };
    let error = refused("az://container", account).await;
    assert!(error.to_lowercase().contains("account"), "{error}");
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?}", options("http://127.0.0.1:9000"));
    assert!(shown.contains("AWS_SECRET_ACCESS_KEY"), "{shown}");
    assert!(!shown.contains("\"secret\""), "{shown}");
}
