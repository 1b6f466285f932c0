//! Tests of answers that are misleading or make no sense.

use super::server::*;
use super::*;

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

/// Without a bound the body would fill the memory.
#[tokio::test]
async fn a_body_without_end_is_broken_off() {
    // The last answer is to the request for the object's size.
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
        // The second answer is to the request for the object's size.
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

/// Returns a page of a list with these keys and the token for the next page.
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
        // The same fault three times is the store's own. The fourth request asks for the size.
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
    // The answer to a request for a size has no code. The bucket is in the region that was asked.
    let headers = vec![("x-amz-bucket-region", "us-east-1".to_owned())];
    let (store, _) = scripted([Step::Answer("400 Bad Request", headers, String::new())]).await;
    let error = store.head("config").await.unwrap_err();
    assert!(!error.message().contains("AWS_REGION"), "{error}");
}
