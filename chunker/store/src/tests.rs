//! Tests of the store's pure parts: URLs, keys and errors.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn s3(bucket: &str, prefix: &str) -> RepositoryUrl {
    RepositoryUrl::S3 {
        bucket: bucket.into(),
        prefix: prefix.into(),
    }
}

fn local(path: &str) -> RepositoryUrl {
    RepositoryUrl::Local {
        path: PathBuf::from(path),
    }
}

#[test]
fn urls_are_read_as_the_command_line_says() {
    let cases = [
        ("s3://bucket", s3("bucket", "")),
        ("s3://bucket/", s3("bucket", "")),
        ("S3://bucket/a/b/", s3("bucket", "a/b")),
        ("s3://bucket/my backups/ü", s3("bucket", "my backups/ü")),
        (
            "gs://b/p",
            RepositoryUrl::Gcs {
                bucket: "b".into(),
                prefix: "p".into(),
            },
        ),
        (
            "az://c/p",
            RepositoryUrl::Azure {
                container: "c".into(),
                prefix: "p".into(),
            },
        ),
        ("file:///srv/bucket", local("/srv/bucket")),
        ("file://localhost/srv", local("/srv")),
        ("file:///a%20b%2525", local("/a b%25")),
        ("./bucket", local("./bucket")),
        ("bucket/", local("bucket/")),
        ("/srv/bucket", local("/srv/bucket")),
        ("a:b/c", local("a:b/c")),
        (".", local(".")),
        ("..", local("..")),
        ("backups", RepositoryUrl::Word("backups".into())),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_url(text), Ok(expected), "{text}");
    }
    assert_eq!(
        RepositoryUrl::Word("word".into()).or_bucket(),
        s3("word", "")
    );
    assert_eq!(local("./a").or_bucket(), local("./a"));
}

#[test]
fn urls_that_make_no_sense_are_refused_with_the_reason() {
    let cases = [
        ("", "empty"),
        ("s3://", "missing"),
        ("s3:///prefix", "missing"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/../b", "begins with a dot"),
        ("s3://bucket/a\nb", "control character"),
        ("ftp://host/dir", "ftp:// is not known"),
        ("https://host/bucket", "endpoint="),
        ("file://host/dir", "three slashes"),
        ("file:///a%2", "%25"),
        ("file:///a%ff", "%25"),
        ("a b", "./directory"),
        ("./a\0b", "NUL"),
    ];
    for (text, reason) in cases {
        let error = parse_url(text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn credentials_in_a_url_are_refused_and_not_repeated() {
    for text in ["s3://id:secret@host/bucket", "id:secret@host"] {
        let error = parse_url(text).expect_err(text).to_string();
        assert!(error.contains("credentials"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    for text in ["id:secret@host://\0", "id:secret@a://b@\0"] {
        let error = parse_url(text).expect_err(text).to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn keys_are_held_to_one_rule() {
    let long_part = "p".repeat(PART_BYTES_MAX);
    let long_key = [long_part.as_str(), &long_part].join("/");
    for key in [
        "root",
        "data/0f/00-1-2",
        "odd/a b+c=d%25~ü,",
        &long_part,
        &long_key,
    ] {
        assert!(check_key(Operation::Get, key).is_ok(), "{key}");
    }
    let too_long = format!("{long_key}x");
    for key in [
        "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".bkfs", "a/.b", "a.", "a./b", "a\\b",
        "a\nb", "a\0", &too_long,
    ] {
        let error = check_key(Operation::Get, key).expect_err(key);
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{key}");
    }
    for prefix in ["", "a", "a/", "a/b", "a.", "data/0f/00-"] {
        assert!(check_prefix(prefix).is_ok(), "{prefix}");
    }
    for prefix in ["/", "//", "a//", "../", "a/..", ".bk", "a\0"] {
        assert!(check_prefix(prefix).is_err(), "{prefix}");
    }
}

#[test]
fn errors_say_what_where_and_why() {
    let error = StoreError::new(
        StoreErrorKind::Denied,
        Operation::PutNew,
        "data/x",
        "no permission",
    );
    assert_eq!(error.to_string(), "cannot create data/x: no permission");
    assert!(!error.is_transient());
    let error = StoreError::new(
        StoreErrorKind::OutcomeUnknown,
        Operation::Replace,
        "root",
        "connection lost",
    );
    assert_eq!(
        error.to_string(),
        "cannot replace root: it is not known whether the write was applied: connection lost"
    );
    assert!(!error.is_transient());
    let error = StoreError::new(StoreErrorKind::Unreachable, Operation::List, "", "no route");
    assert_eq!(error.to_string(), "cannot list the bucket: no route");
    assert!(error.is_transient());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,60}") {
        if let Ok(url) = parse_url(&text) {
            // The displayed form of a remote URL parses to the same repository.
            if url.local_path().is_none() {
                prop_assert_eq!(parse_url(&url.to_string()), Ok(url));
            }
        }
        let _ = check_key(Operation::Get, &text);
        let _ = check_prefix(&text);
    }

    #[test]
    fn every_beginning_of_a_key_is_a_prefix(key in "[a-z./ü -]{1,40}", cut in 0usize..40) {
        prop_assume!(check_key(Operation::Get, &key).is_ok());
        if let Some(prefix) = key.get(..cut.min(key.len())) {
            prop_assert!(check_prefix(prefix).is_ok());
        }
    }
}
