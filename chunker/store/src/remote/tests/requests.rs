//! Tests of which requests are sent, and which are sent again.

use super::server::*;
use super::*;

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
    // This machine also serves connections to 0.0.0.0, but that is not a loopback address.
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
        // Success without the version of the new object.
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
