//! Cases about listing.

use futures::StreamExt;
use futures::stream;

use super::case::{CaseBucket, body};

/// Keys whose order follows only from comparing whole keys, not their parts.
const TREE: [&str; 14] = [
    "a-b", "a/-", "a/b", "a/b-c", "a/c/d", "a/c/e/f", "a/c0", "a0", "b", "b+", "ba/x", "c", "d~",
    "Z",
];

async fn plant(place: &CaseBucket) -> Vec<String> {
    let mut keys = Vec::new();
    for name in TREE {
        let key = place.key(name);
        let created = place.store.put_new(&key, body(name)).await;
        created.expect("a new object is created");
        keys.push(key);
    }
    keys.sort();
    keys
}

async fn names(place: &CaseBucket, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let page = place.store.list(prefix, after, limit).await;
    let page = page.unwrap_or_else(|error| panic!("{prefix:?} after {after:?}: {error}"));
    page.into_iter().map(|object| object.key).collect()
}

pub(super) async fn lists_are_in_order(place: &CaseBucket) {
    let expected = plant(place).await;
    assert_eq!(names(place, &place.prefix, None, 1000).await, expected);
    let sizes = place
        .store
        .list(&place.prefix, None, 1000)
        .await
        .expect("lists work");
    for object in sizes {
        let info = place.store.head(&object.key).await.expect("it is there");
        assert_eq!(info, object);
    }
}

pub(super) async fn pages_join_without_gaps(place: &CaseBucket) {
    let expected = plant(place).await;
    for limit in [1, 2, 3, 5, 13, 14, 15] {
        let mut joined: Vec<String> = Vec::new();
        loop {
            let page = names(
                place,
                &place.prefix,
                joined.last().map(String::as_str),
                limit,
            )
            .await;
            assert!(page.len() <= limit);
            let is_last = page.len() < limit;
            joined.extend(page);
            if is_last {
                break;
            }
        }
        assert_eq!(joined, expected, "limit {limit}");
    }
    assert_eq!(
        names(place, &place.prefix, None, 0).await,
        Vec::<String>::new()
    );
    // Positions without an object: between two, within a directory, before and after all.
    for after in [
        "", "a", "a/", "a/c", "a/c/", "a/c/dd", "a/c/e/", "a/zzz", "bb", "zzz",
    ] {
        let after = place.key(after);
        let rest: Vec<&String> = expected.iter().filter(|key| **key > after).collect();
        let listed = names(place, &place.prefix, Some(&after), 1000).await;
        assert_eq!(listed.iter().collect::<Vec<_>>(), rest, "after {after}");
    }
    let before = names(place, &place.prefix, Some("a"), 1000).await;
    assert_eq!(before, expected, "after something before the prefix");
    let behind = names(place, &place.prefix, Some("zzz"), 1000).await;
    assert_eq!(
        behind,
        Vec::<String>::new(),
        "after something behind the prefix"
    );
}

pub(super) async fn prefixes_are_strings(place: &CaseBucket) {
    let expected = plant(place).await;
    for name in [
        "a", "a/", "a/c", "a/c/", "a/c/e", "b", "b+", "ba/x", "c", "none", "none/", "a/c/d/",
        "a/c/e/f", "Z",
    ] {
        let prefix = place.key(name);
        let matching: Vec<&String> = expected
            .iter()
            .filter(|key| key.starts_with(&prefix))
            .collect();
        let listed = names(place, &prefix, None, 1000).await;
        assert_eq!(listed.iter().collect::<Vec<_>>(), matching, "{name}");
        // In pages of one key, each after the previous key.
        let mut joined: Vec<String> = Vec::new();
        while let [next] = names(place, &prefix, joined.last().map(String::as_str), 1)
            .await
            .as_slice()
        {
            joined.push(next.clone());
        }
        assert_eq!(
            joined.iter().collect::<Vec<_>>(),
            matching,
            "{name} in pages"
        );
    }
    let all = names(place, "", None, 1).await;
    assert_eq!(all.len(), 1, "the whole bucket can be listed");
}

/// Lists more objects than one page holds: 1,000 objects at S3 and Google, and 5,000 at Azure,
/// where the client requests smaller pages.
pub(super) async fn long_lists_are_complete(place: &CaseBucket) {
    const COUNT: usize = 1_030;
    let mut expected: Vec<String> = (0..COUNT)
        .map(|number| place.key(&format!("{:02}/{number}", number % 7)))
        .collect();
    let created = stream::iter(expected.clone())
        .map(|key| async move { place.store.put_new(&key, body("x")).await })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    for result in created {
        result.expect("a new object is created");
    }
    expected.sort();
    assert_eq!(names(place, &place.prefix, None, 10_000).await, expected);
    assert_eq!(names(place, &place.prefix, None, COUNT).await, expected);
    let first = names(place, &place.prefix, None, 1_010).await;
    assert_eq!(first, expected[..1_010]);
    let rest = names(
        place,
        &place.prefix,
        first.last().map(String::as_str),
        1_010,
    )
    .await;
    assert_eq!(rest, expected[1_010..]);
    stream::iter(expected)
        .for_each_concurrent(16, |key| async move {
            place
                .store
                .delete(&key)
                .await
                .expect("an object is deleted");
        })
        .await;
    assert_eq!(
        names(place, &place.prefix, None, 10).await,
        Vec::<String>::new()
    );
}
