//! Cases about reading.

use bkfs_store::StoreErrorKind as Kind;
use bytes::Bytes;
use futures::future::join_all;

use super::case::{CaseBucket, assert_kind, body, content};

pub(super) async fn writes_are_seen_at_once(place: &CaseBucket) {
    let other = place.reopen().await;
    for round in 0..10 {
        let key = place.key(&format!("object-{round}"));
        let bytes = content(round, 1000 + round as usize);
        let version = place.store.put_new(&key, vec![bytes.clone()]).await;
        let version = version.expect("a new object is created");
        for store in [&place.store, &other] {
            let (read, found) = store.get(&key).await.expect("the object is there");
            assert_eq!(read, bytes);
            assert_eq!(found, version, "the write and the read name one version");
            let info = store.head(&key).await.expect("the object is there");
            assert_eq!((info.key, info.size), (key.clone(), bytes.len() as u64));
            let listed = store.list(&key, None, 10).await.expect("lists work");
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].size, bytes.len() as u64);
        }
    }
}

pub(super) async fn absent_objects_are_not_found(place: &CaseBucket) {
    let store = &place.store;
    let present = place.key("here/object");
    let version = store.put_new(&present, body("x")).await;
    let version = version.expect("a new object is created");
    // Includes a key below an object, and a key that names a directory.
    for name in [
        "absent",
        "away/absent",
        "here/absent",
        "here/object/below",
        "here",
    ] {
        let key = place.key(name);
        assert_kind(store.get(&key).await, Kind::NotFound, "get");
        let changed = store.get_if_changed(&key, &version).await;
        assert_kind(changed, Kind::NotFound, "get_if_changed");
        assert_kind(
            store.get_range(&key, 0..1).await,
            Kind::NotFound,
            "get_range",
        );
        assert_kind(
            store.get_range(&key, 0..0).await,
            Kind::NotFound,
            "empty range",
        );
        assert_kind(store.get_tail(&key, 1).await, Kind::NotFound, "get_tail");
        assert_kind(store.get_tail(&key, 0).await, Kind::NotFound, "empty tail");
        assert_kind(store.head(&key).await, Kind::NotFound, "head");
    }
}

pub(super) async fn ranges_are_exact(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let bytes = content(1, 10_000);
    let created = store.put_new(&key, vec![bytes.clone()]).await;
    created.expect("a new object is created");
    for range in [
        0..1,
        0..10_000,
        9_999..10_000,
        4_095..4_097,
        17..17,
        0..0,
        10_000..10_000,
    ] {
        let read = store.get_range(&key, range.clone()).await;
        let read = read.expect("the range lies in the object");
        assert_eq!(
            read,
            bytes[range.start as usize..range.end as usize],
            "{range:?}"
        );
    }
    for range in [
        0..10_001,
        9_999..10_001,
        10_000..10_001,
        20_000..20_001,
        10_001..10_001,
    ] {
        let what = format!("{range:?}");
        assert_kind(store.get_range(&key, range).await, Kind::OutOfRange, &what);
    }
}

pub(super) async fn tails_are_exact(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let bytes = content(2, 5_000);
    let created = store.put_new(&key, vec![bytes.clone()]).await;
    created.expect("a new object is created");
    for tail in [0, 1, 16, 4_999, 5_000, 5_001, 1 << 20] {
        let (read, size) = store.get_tail(&key, tail).await.expect("there is a tail");
        let start = 5_000 - (tail as usize).min(5_000);
        assert_eq!((read, size), (bytes.slice(start..), 5_000), "{tail}");
    }
}

pub(super) async fn empty_objects_are_objects(place: &CaseBucket) {
    let store = &place.store;
    for (name, parts) in [
        ("none", vec![]),
        ("one", vec![Bytes::new()]),
        ("two", vec![Bytes::new(); 2]),
    ] {
        let key = place.key(name);
        let version = store.put_new(&key, parts.clone()).await;
        let version = version.expect("an empty object is created");
        assert_kind(
            store.put_new(&key, parts.clone()).await,
            Kind::AlreadyExists,
            name,
        );
        let (read, _) = store.get(&key).await.expect("the object is there");
        assert!(read.is_empty());
        assert_eq!(store.head(&key).await.expect("the object is there").size, 0);
        let tail = store
            .get_tail(&key, 100)
            .await
            .expect("the tail of nothing");
        assert_eq!(tail, (Bytes::new(), 0));
        let range = store
            .get_range(&key, 0..0)
            .await
            .expect("the range of nothing");
        assert!(range.is_empty());
        assert_kind(store.get_range(&key, 0..1).await, Kind::OutOfRange, name);
        let version = store.replace(&key, body("full"), &version).await;
        let version = version.expect("an empty object is replaced");
        let emptied = store.replace(&key, parts, &version).await;
        emptied.expect("an object is replaced by nothing");
        assert_eq!(store.head(&key).await.expect("the object is there").size, 0);
        let listed = store.list(&key, None, 10).await.expect("lists work");
        assert_eq!(listed.len(), 1, "an empty object is listed");
    }
}

pub(super) async fn large_objects_in_many_parts(place: &CaseBucket) {
    const SIZE: usize = 16 << 20;
    let store = &place.store;
    let whole = content(3, SIZE);
    // Parts of many sizes, some of them empty, and more parts than one system call takes.
    let mut parts = vec![Bytes::new()];
    let mut rest = whole.clone();
    for step in (0..).map(|part: usize| (part * 7919) % 20_000) {
        parts.push(rest.split_to(step.min(rest.len())));
        if rest.is_empty() {
            break;
        }
    }
    assert!(parts.len() > 1024);
    let key = place.key("large");
    let created = store.put_new(&key, parts).await;
    let version = created.expect("a large object is created");
    let (read, found) = store.get(&key).await.expect("the object is there");
    assert!(read == whole, "a large object comes back as it was");
    assert_eq!(found, version);
    let range = store.get_range(&key, (8 << 20)..(12 << 20)).await;
    assert!(range.expect("the range lies in the object") == whole[8 << 20..12 << 20]);
    let (tail, size) = store
        .get_tail(&key, 64 << 10)
        .await
        .expect("there is a tail");
    assert!(tail == whole[SIZE - (64 << 10)..]);
    assert_eq!(size, SIZE as u64);
    let replaced = store.replace(&key, vec![whole.slice(1..)], &version).await;
    replaced.expect("a large object is replaced");
    assert_eq!(
        store.head(&key).await.expect("it is there").size,
        SIZE as u64 - 1
    );
}

pub(super) async fn unchanged_objects_are_not_sent_again(place: &CaseBucket) {
    let store = &place.store;
    let key = place.key("object");
    let first = store.put_new(&key, body("first")).await;
    let first = first.expect("a new object is created");
    let (_, read) = store.get(&key).await.expect("the object is there");
    for known in [&first, &read] {
        let changed = store.get_if_changed(&key, known).await;
        assert_eq!(changed.expect("the object is there"), None);
    }
    let second = store.replace(&key, body("second"), &read).await;
    let second = second.expect("the version is right");
    let changed = store.get_if_changed(&key, &first).await;
    let changed = changed.expect("the object is there");
    assert_eq!(changed, Some((Bytes::from("second"), second.clone())));
    let unchanged = store.get_if_changed(&key, &second).await;
    assert_eq!(unchanged.expect("the object is there"), None);
}

pub(super) async fn readers_see_whole_objects(place: &CaseBucket) {
    const SIZE: usize = 512 << 10;
    let key = place.key("object");
    let of_letter = |letter: u8| vec![Bytes::from(vec![letter; SIZE + usize::from(letter)])];
    let created = place.store.put_new(&key, of_letter(b'a')).await;
    created.expect("a new object is created");
    let writer = async {
        for letter in b'b'..=b'k' {
            let written = place.store.put(&key, of_letter(letter)).await;
            written.expect("an object is written over");
        }
    };
    let readers = join_all((0..4).map(|_| async {
        for _ in 0..10 {
            let (read, _) = place.store.get(&key).await.expect("the object is there");
            let letter = read[0];
            assert_eq!(read.len(), SIZE + usize::from(letter));
            assert!(read.iter().all(|&each| each == letter), "a torn object");
        }
    }));
    futures::join!(writer, readers);
}
