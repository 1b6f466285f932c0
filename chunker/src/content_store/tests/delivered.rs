//! The packs that a journal may name: they are in the bucket, with all packs that they refer to.

use std::path::Path;
use std::time::Duration;

use bkfs_store::Operation;
use bkfs_store::disk::Disk;
use bkfs_testing::disk::SimulatedDisk;
use parking_lot::Mutex;

use super::bucket::Verdict;
use super::*;
use crate::ingest::Delivered;
use crate::pack::PackName;
use crate::spool::Spool;

const SECOND: Duration = Duration::from_secs(1);

/// Uploads of metadata packs take these times in seconds, one after the other.
fn take_times(world: &World, times: &'static [u32]) {
    let mut times = times.iter().copied();
    world.bucket.script(move |operation, key| {
        if operation == Operation::PutNew && key.starts_with("meta/") {
            let time = times.next().unwrap_or(0);
            return Verdict::Wait(SECOND * time);
        }
        Verdict::Pass
    });
}

/// Stores a node. Its pack is in flight when this returns.
async fn send_node(ingest: &Ingest, seed: u64) {
    let stored = ingest.store_blob(Kind::Node, noise(seed, 1000)).await;
    stored.expect("is stored");
    let begun = tokio::time::timeout(SECOND / 100, ingest.deliver()).await;
    begun.map_or_else(drop, |delivered| drop(delivered.expect("delivered")));
}

fn names(delivered: &Delivered) -> Vec<PackName> {
    delivered.own.iter().map(|pack| pack.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_is_there_before_what_it_refers_to_is_not_named() {
    let mut world = World::new(70, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    // The requested pack, a child, and its parent, which arrives first.
    take_times(&world, &[5, 10, 0]);
    let first = ingest.store_blob(Kind::Node, noise(7, 1000)).await;
    first.expect("is stored");
    let others = async {
        tokio::time::sleep(SECOND / 10).await;
        send_node(&ingest, 8).await;
        send_node(&ingest, 9).await;
    };
    let (delivered, ()) = tokio::join!(ingest.deliver(), others);
    let delivered = delivered.expect("delivered");
    assert_eq!(
        world.bucket.count("meta/"),
        2,
        "the parent is there, and not the child"
    );
    assert_eq!(names(&delivered).len(), 1, "{delivered:?}");
    let all = ingest.deliver().await.expect("delivered");
    assert_eq!(names(&all).len(), 3, "all of them when all are there");
}

#[tokio::test(start_paused = true)]
async fn a_pack_on_the_disk_whose_child_is_in_memory_is_not_named() {
    let mut world = World::new(71, true);
    let content_store = world.loaded().await;
    world.sessions += 1;
    let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new());
    let spool = Spool::create(disk, Path::new("/spool"), world.sessions, 64 << 20).await;
    let spool = spool.expect("a spool");
    let ingest = Ingest::with_spool(content_store.clone(), world.sessions, Some(spool));
    world.absent(Verdict::Hang);
    let seen = Mutex::new(Vec::new());
    let keep = async {
        let kept = ingest.keep().await.expect("needs no store");
        seen.lock().push(kept);
    };
    let first = ingest.store_blob(Kind::Node, noise(7, 1000)).await;
    first.expect("is stored");
    keep.await;
    send_node(&ingest, 8).await;
    assert_eq!(names(&seen.lock()[0]).len(), 1);
    let spooled = ingest.spool().expect("has one").usage().files;
    assert_eq!(spooled, 1, "what was not asked for is in memory");
    let all = ingest.keep().await.expect("needs no store");
    assert_eq!(names(&all).len(), 2);
}
