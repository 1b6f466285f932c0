//! Places that are known to be damaged. Nothing new relies on them, and blobs that only they hold
//! are stored again.

use bkfs::maintain::quarantine;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::pack::PackName;
use bkfs_store::Store;

use crate::collecting::{gc, snapshot, unlink, with_snapshot_of};
use crate::host::{Bucket, noise};

/// Puts all data packs into quarantine. Returns their keys.
fn quarantine_data(bucket: &Bucket) -> Vec<String> {
    bucket.work(bucket.memory.clone(), async |repository| {
        let packs = bucket.memory.list("data/", None, 100).await;
        let keys = packs.expect("listed").into_iter().map(|info| info.key);
        let keys: Vec<String> = keys.collect();
        let place = |key: &String| PackLocation {
            pack: PackName::from_key(key).expect("a pack").1,
            frame: None,
        };
        let places: Vec<PackLocation> = keys.iter().map(place).collect();
        let machine = &repository.environment;
        let added = quarantine::add(
            &repository.handle,
            &repository.lists,
            &repository.content_store,
            machine.holder("quarantine"),
            &*machine.processes,
            &places,
        );
        added.await.expect("in quarantine");
        keys
    })
}

/// A journal names a segment that is live and whole, and its chunks have no undamaged live place.
#[test]
fn a_new_holder_stores_again_what_is_damaged_beneath_a_journal() {
    let bucket = Bucket::new();
    let data = noise(1, 3 << 20);
    let host = with_snapshot_of(&bucket, &data);
    host.write("new", 0, data.clone());
    host.fsync().expect("durable");
    host.crash();
    let damaged = quarantine_data(&bucket);
    assert!(!damaged.is_empty());
    let next = bucket.host();
    assert!(next.read("new").as_ref() == Some(&data));
    next.finish().expect("unmounted");
    bucket.work(bucket.memory.clone(), async |_| {
        for key in &damaged {
            bucket.memory.delete(key).await.expect("deleted");
        }
    });
    assert!(bucket.host().read("new") == Some(data));
}

#[test]
fn nothing_is_moved_onto_a_damaged_copy() {
    let bucket = Bucket::new();
    let kept = noise(1, 1 << 20);
    let host = bucket.host();
    host.write("old", 0, kept.clone());
    snapshot(&host, "one");
    host.finish().expect("unmounted");
    let damaged = quarantine_data(&bucket);
    assert!(!damaged.is_empty());
    // The same contents are stored once more, together with a file that nothing will need.
    let host = bucket.host();
    host.write("new", 0, kept.clone());
    host.write("gone", 0, noise(2, 5 << 20));
    host.run(host.volume().commit()).expect("committed");
    unlink(&host, "gone");
    host.finish().expect("unmounted");
    let done = gc(&bucket);
    assert!(done.condemned.packs > 0, "{done:?}");
    gc(&bucket);
    bucket.work(bucket.memory.clone(), async |_| {
        for key in &damaged {
            bucket.memory.delete(key).await.expect("deleted");
        }
    });
    assert!(bucket.host().read("new") == Some(kept));
}
