//! Cases about writing.

use std::sync::Arc;

use bkfs_store::{
    PROBE_PREFIX, Races, Store, StoreErrorKind as Kind, Version, probe_conditional_writes,
};
use bytes::Bytes;
use futures::future::join_all;

use super::case::{CaseBucket, assert_kind, body};

/// The number of requests that race for one object.
const CONTENDERS: usize = 32;

pub(super) async fn creation_happens_once(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let version = store.put_new(&key, body("first")).await;
    let version = version.expect("a new object is created");
    for text in ["second", "first", ""] {
        assert_kind(
            store.put_new(&key, body(text)).await,
            Kind::AlreadyExists,
            text,
        );
    }
    let (read, found) = store.get(&key).await.expect("the object is there");
    assert_eq!((read, found), (Bytes::from("first"), version));
}

pub(super) async fn one_of_many_creators_wins(place: &CaseBucket) {
    let other = place.reopen().await;
    for round in 0..place.subject.rounds {
        let key = place.key(&format!("object-{round}"));
        let racers = (0..CONTENDERS).map(|number| {
            let store = [&place.store, &other][number % 2];
            store.put_new(&key, body(format!("{number}")))
        });
        let results = join_all(racers).await;
        let mut winners = Vec::new();
        for (number, result) in results.into_iter().enumerate() {
            match result {
                Ok(version) => winners.push((Bytes::from(format!("{number}")), version)),
                lost => assert_kind(lost, Kind::AlreadyExists, "a loser"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let read = other.get(&key).await.expect("the object is there");
        assert_eq!(read, winners[0]);
    }
}

pub(super) async fn put_writes_over_anything(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let mut before: Option<Version> = None;
    for text in ["first", "second", "a longer third", "4"] {
        let version = store.put(&key, body(text)).await.expect("put always works");
        assert_eq!(
            store.get(&key).await.expect("it is there"),
            (Bytes::from(text), version.clone())
        );
        if let Some(before) = before {
            assert_ne!(before, version, "other bytes have another version");
            let stale = store.replace(&key, body("stale"), &before).await;
            assert_kind(stale, Kind::Conflict, "a version from before the put");
        }
        before = Some(version);
    }
}

pub(super) async fn replacing_needs_the_version(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let first = store.put_new(&key, body("1")).await;
    let first = first.expect("a new object is created");
    let second = store.replace(&key, body("2"), &first).await;
    let second = second.expect("the version of the creation is right");
    let (_, read) = store.get(&key).await.expect("the object is there");
    assert_eq!(read, second);
    for text in ["3", "2", "1"] {
        assert_kind(
            store.replace(&key, body(text), &first).await,
            Kind::Conflict,
            text,
        );
        assert_eq!(store.get(&key).await.expect("it is there").0, "2");
    }
    let third = store.replace(&key, body("3"), &read).await;
    let third = third.expect("the version of a read is right");
    let absent = place.key("absent");
    assert_kind(
        store.replace(&absent, body("x"), &third).await,
        Kind::Conflict,
        "absent",
    );
    assert_kind(
        store.get(&absent).await,
        Kind::NotFound,
        "a refused write creates nothing",
    );
    store.delete(&key).await.expect("an object is deleted");
    assert_kind(
        store.replace(&key, body("4"), &third).await,
        Kind::Conflict,
        "deleted",
    );
    assert_kind(
        store.get(&key).await,
        Kind::NotFound,
        "a refused write creates nothing",
    );
}

pub(super) async fn one_of_many_replacers_wins(place: &CaseBucket) {
    let other = place.reopen().await;
    let key = place.key("object");
    let created = place.store.put_new(&key, body("start")).await;
    let mut version = created.expect("a new object is created");
    for round in 0..place.subject.rounds {
        let racers = (0..CONTENDERS).map(|number| {
            let store = [&place.store, &other][number % 2];
            store.replace(&key, body(format!("{round} {number}")), &version)
        });
        let results = join_all(racers).await;
        let mut winners = Vec::new();
        for (number, result) in results.into_iter().enumerate() {
            match result {
                Ok(version) => winners.push((Bytes::from(format!("{round} {number}")), version)),
                lost => assert_kind(lost, Kind::Conflict, "a loser"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let read = other.get(&key).await.expect("the object is there");
        assert_eq!(read, winners[0]);
        version = read.1;
    }
}

/// Several tasks increment one number. Each reads and replaces it until it succeeds.
pub(super) async fn counting_loses_nothing(place: &CaseBucket) {
    const STEPS: usize = 4;
    let key = place.key("counter");
    // A nonce follows the number, as the root has one, because some stores derive versions from the
    // content.
    let created = place.store.put_new(&key, body("0 start")).await;
    created.expect("a new object is created");
    let other = place.reopen().await;
    let counters = (0..CONTENDERS / 4).map(|number| {
        let store = [&place.store, &other][number % 2];
        let key = &key;
        async move {
            for step in 0..STEPS {
                count_up(store, key, &format!("{number}-{step}")).await;
            }
        }
    });
    join_all(counters).await;
    let (read, _) = place.store.get(&key).await.expect("the counter is there");
    assert_eq!(number_in(&read), STEPS * (CONTENDERS / 4));
}

async fn count_up(store: &Arc<dyn Store>, key: &str, nonce: &str) {
    loop {
        let (read, version) = store.get(key).await.expect("the counter is there");
        let next = body(format!("{} {nonce}", number_in(&read) + 1));
        match store.replace(key, next, &version).await {
            Ok(_) => return,
            lost => assert_kind(lost, Kind::Conflict, "a loser"),
        }
    }
}

fn number_in(bytes: &[u8]) -> usize {
    let text = std::str::from_utf8(bytes).expect("the counter is text");
    let (number, _) = text.split_once(' ').expect("the counter has a nonce");
    number.parse().expect("the counter is a number")
}

pub(super) async fn old_versions_never_come_back(place: &CaseBucket) {
    let store = &place.store;
    let exact = place.subject.exact_versions;
    let key = place.key("object");
    // Where versions may derive from the content, a caller that relies on them adds a nonce.
    let text = |round: usize| match exact {
        true => body("a"),
        false => body(format!("a {round}")),
    };
    let first = store.put_new(&key, text(0)).await;
    let first = first.expect("a new object is created");
    let between = store.replace(&key, body("b"), &first).await;
    let between = between.expect("the version is right");
    let again = store.replace(&key, text(1), &between).await;
    let again = again.expect("the version is right");
    assert_ne!(again, first);
    for old in [&first, &between] {
        assert_kind(
            store.replace(&key, body("c"), old).await,
            Kind::Conflict,
            "old",
        );
    }
    store.delete(&key).await.expect("an object is deleted");
    let reborn = store.put_new(&key, text(2)).await;
    let reborn = reborn.expect("a deleted object is created again");
    for old in [&first, &between, &again] {
        assert_ne!(*old, reborn);
        assert_kind(
            store.replace(&key, body("c"), old).await,
            Kind::Conflict,
            "old",
        );
    }
    let replaced = store.replace(&key, body("c"), &reborn).await;
    replaced.expect("the version is right");
}

pub(super) async fn versions_survive_reopening(place: &CaseBucket) {
    let key = place.key("object");
    let first = place.store.put_new(&key, body("1")).await;
    let first = first.expect("a new object is created");
    let other = place.reopen().await;
    let (_, found) = other.get(&key).await.expect("the object is there");
    assert_eq!(found, first, "another handle sees the same version");
    let second = other.replace(&key, body("2"), &first).await;
    let second = second.expect("a version is good for another handle");
    let third = place.store.replace(&key, body("3"), &second).await;
    third.expect("a version is good for another handle");
    assert_kind(
        other.replace(&key, body("4"), &second).await,
        Kind::Conflict,
        "stale",
    );
}

pub(super) async fn deletion_is_idempotent(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("directory/object");
    let created = store.put_new(&key, body("x")).await;
    created.expect("a new object is created");
    for _ in 0..2 {
        store.delete(&key).await.expect("deletion is idempotent");
        assert_kind(store.get(&key).await, Kind::NotFound, "deleted");
        let listed = store.list(&place.prefix, None, 10).await;
        assert_eq!(listed.expect("lists work"), vec![]);
    }
    let never = place.key("never/was/there");
    store
        .delete(&never)
        .await
        .expect("what never was is deleted");
    let created = store.put_new(&key, body("y")).await;
    created.expect("a deleted object is created again");
    assert_eq!(store.get(&key).await.expect("it is there").0, "y");
    // A deletion affects neither a key that is the beginning of another, nor a key that begins with
    // it.
    let below = place.key("directory");
    store
        .delete(&below)
        .await
        .expect("a directory is no object");
    assert_eq!(store.get(&key).await.expect("it is there").0, "y");
}

/// Runs a deletion and a replacement concurrently. Whichever is applied first, no object is left: a
/// replacement after the deletion finds no object and fails.
pub(super) async fn replacing_never_resurrects(place: &CaseBucket) {
    if !place.subject.orderly_deletion {
        return;
    }
    for round in 0..place.subject.rounds {
        let key = place.key(&format!("object-{round}"));
        let created = place.store.put_new(&key, body("x")).await;
        let version = created.expect("a new object is created");
        let replace = place.store.replace(&key, body("y"), &version);
        let delete = place.store.delete(&key);
        let (replaced, deleted) = futures::join!(replace, delete);
        deleted.expect("an object is deleted");
        if replaced.is_err() {
            assert_kind(replaced, Kind::Conflict, "the object was gone");
        }
        assert_kind(place.store.get(&key).await, Kind::NotFound, "it is deleted");
    }
}

/// Names that servers, URLs, signatures and file systems may mishandle.
const ODD_NAMES: &[&str] = &[
    "plain",
    "PLAIN",
    "with space",
    "with  two",
    "plus+plus",
    "a=b",
    "a&b",
    "50%",
    "50%25",
    "%2e",
    "hash#tag",
    "what?",
    "semi;colon",
    "comma,",
    "(brackets)",
    "[square]",
    "{curly}",
    "quote'quote",
    "quote\"quote",
    "star*",
    "tilde~",
    "at@at",
    "dollar$",
    "bang!",
    "pipe|pipe",
    "less<more>",
    "back`tick",
    "hat^",
    "colon:colon",
    "umlaut-ü",
    "umlaut-u\u{308}",
    "snow-☃",
    "high-\u{1F4BE}",
    "a.b.c",
    "-",
    "_",
    "--flag",
    "C:",
    "con",
    " leading",
    "amp&amp;amp",
    "deep/er/and/deep er/still",
];

pub(super) async fn odd_keys_are_kept_apart(place: &CaseBucket) {
    let store = &place.store;
    for (number, name) in ODD_NAMES.iter().enumerate() {
        let created = store
            .put_new(&place.key(name), body(format!("{number}")))
            .await;
        created.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    for (number, name) in ODD_NAMES.iter().enumerate() {
        let (read, version) = match store.get(&place.key(name)).await {
            Ok(read) => read,
            Err(error) => panic!("{name:?}: {error}"),
        };
        assert_eq!(read, format!("{number}"), "{name:?}");
        let range = store.get_range(&place.key(name), 0..1).await;
        range.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let replaced = store.replace(&place.key(name), body("new"), &version).await;
        replaced.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    let mut expected: Vec<String> = ODD_NAMES.iter().map(|name| place.key(name)).collect();
    expected.sort();
    let listed = store
        .list(&place.prefix, None, 1000)
        .await
        .expect("lists work");
    let listed: Vec<String> = listed.into_iter().map(|object| object.key).collect();
    assert_eq!(listed, expected);
    for name in ODD_NAMES {
        let deleted = store.delete(&place.key(name)).await;
        deleted.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_kind(store.head(&place.key(name)).await, Kind::NotFound, name);
    }
}

pub(super) async fn bad_keys_are_refused(place: &CaseBucket) {
    let store = &place.store;
    let created = store.put_new(&place.key("object"), body("x")).await;
    let version = created.expect("a new object is created");
    let long = "x".repeat(600);
    for key in [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        "a/",
        "..",
        "../escape",
        "a/../../b",
        "a/.",
        ".bkfs",
        "a/.b",
        "a\0b",
        "a\nb",
        "a\\b",
        &long,
    ] {
        assert_kind(store.get(key).await, Kind::Invalid, key);
        assert_kind(
            store.get_if_changed(key, &version).await,
            Kind::Invalid,
            key,
        );
        assert_kind(store.get_range(key, 0..1).await, Kind::Invalid, key);
        assert_kind(store.get_tail(key, 1).await, Kind::Invalid, key);
        assert_kind(store.head(key).await, Kind::Invalid, key);
        assert_kind(store.put_new(key, body("x")).await, Kind::Invalid, key);
        assert_kind(store.put(key, body("x")).await, Kind::Invalid, key);
        assert_kind(
            store.replace(key, body("x"), &version).await,
            Kind::Invalid,
            key,
        );
        assert_kind(store.delete(key).await, Kind::Invalid, key);
    }
    assert_kind(store.list("../", None, 10).await, Kind::Invalid, "a prefix");
    let (read, _) = store.get(&place.key("object")).await.expect("it is there");
    assert_eq!(read, "x");
}

pub(super) async fn the_probe_finds_it_fit(place: &CaseBucket) {
    let other = place.reopen().await;
    let salts = ["probe-1", "probe-2"].map(|name| format!("{}-{name}", place.subject.salt));
    let (first, second) = futures::join!(
        probe_conditional_writes(place.store.as_ref(), &salts[0], Races::MANY),
        probe_conditional_writes(other.as_ref(), &salts[1], Races::FEW),
    );
    first.expect("the store is fit");
    second.expect("the store is fit");
    for salt in salts {
        let left = place
            .store
            .list(&format!("{PROBE_PREFIX}{salt}"), None, 10)
            .await;
        assert_eq!(left.expect("lists work"), vec![]);
    }
}
