//! Files that are closed in an outage, on a mount that has not read what other files need to be
//! stored. They must not wait for that.

use std::time::Duration;

use bkfs_fuse::{Handle, Ino};
use bkfs_testing::fault::Fault;

use crate::host::noise;
use crate::paused::{Mount, World, paused, seconds};

/// Number of files that make a tree with many leaves.
const FILES: u64 = 12_000;

/// Number of files whose changes are too many for one journal.
const BURST: u64 = 40_000;

/// Number of extents of a file with many leaves.
const EXTENTS: u64 = 100_000;

/// Distance between the extents, in bytes.
const APART: u64 = 1 << 16;

/// Number of files that are written on: many more than are flushed at the same time.
const APPENDED: u64 = 120;

/// The time within which a closed file must be in the spool.
const PATIENCE: Duration = Duration::from_secs(6);

/// The same if more changed than a journal carries.
const COMMIT_PATIENCE: Duration = Duration::from_secs(15);

/// Returns a mount with a file that [`remounted`] writes to.
async fn world_with_a_first_file() -> (World, Mount) {
    let world = World::new(seconds(60)).await;
    let mount = world.mount().await;
    mount.put("first", b"small").await;
    (world, mount)
}

/// Commits what was written, and mounts again, with little of the tree in memory.
async fn remounted(world: &World, mut mount: Mount) -> Mount {
    // The first mount after it carries out its journals. The last commit has the root node, but not
    // the other leaves of the tree.
    for number in 0..2 {
        mount.write_on("first", 0, &[number; 100]).await;
        let volume = mount.0.volume().expect("writable").clone();
        volume.commit().await.expect("committed");
        let ended = mount.0.finish_within(Some(seconds(60)));
        Box::pin(ended).await.expect("ended");
        let mounted = world.try_assemble(false).await;
        mount = Mount(mounted.expect("mounted"));
    }
    mount
}

/// Closes a file in the outage, and crashes `patience` later. Checks that the machine has the file.
async fn closed_is_kept(
    world: &World,
    mount: Mount,
    after: (Ino, Handle),
    patience: Duration,
) -> Mount {
    mount.write_at(after, 0, b"closed").await;
    mount.close(after).await;
    tokio::time::sleep(patience).await;
    drop(mount);
    let again = world.mount_again().await;
    assert_eq!(again.read("after").await, Some(b"closed".to_vec()));
    again
}

#[test]
fn a_large_new_file_keeps_no_closed_file_from_the_spool() {
    paused(async {
        let (world, mount) = world_with_a_first_file().await;
        for number in 0..FILES {
            let data = noise(number, 1000);
            mount.put(&format!("old-{number}"), &data).await;
        }
        let mount = remounted(&world, mount).await;
        let large = mount.write("large", b"").await;
        let after = mount.write("after", b"").await;
        world.fails_with(Fault::Hang);
        mount.write_at(large, 0, &noise(1, 20 << 20)).await;
        closed_is_kept(&world, mount, after, PATIENCE).await;
    });
}

#[test]
fn scattered_writes_keep_no_closed_file_from_the_spool() {
    paused(async {
        let (world, mount) = world_with_a_first_file().await;
        let file = mount.write("scattered", b"").await;
        for number in 0..EXTENTS {
            let data = noise(number, 64);
            mount.write_at(file, number * APART, &data).await;
        }
        mount.close(file).await;
        let mount = remounted(&world, mount).await;
        let after = mount.write("after", b"").await;
        let file = mount.open("scattered").await;
        mount.write_at(file, 0, b"its attributes are read").await;
        world.fails_with(Fault::Hang);
        // So many ranges are not joined in what a journal describes. Their leaves lie far from those
        // that the mount has read.
        let rewritten = EXTENTS / 2..EXTENTS / 2 + 1000;
        for number in rewritten.clone() {
            let data = noise(number + EXTENTS, 2000);
            mount.write_at(file, number * APART, &data).await;
        }
        let again = closed_is_kept(&world, mount, after, PATIENCE).await;
        for number in rewritten.start - 100..rewritten.end + 100 {
            let data = match rewritten.contains(&number) {
                true => noise(number + EXTENTS, 2000),
                false => noise(number, 64),
            };
            let read = again.read_at("scattered", number * APART, data.len() as u32);
            assert!(read.await == Some(data), "{number}");
        }
    });
}

#[test]
fn files_that_are_written_on_keep_no_closed_file_from_the_spool() {
    paused(async {
        let (world, mount) = world_with_a_first_file().await;
        for number in 0..APPENDED {
            let data = noise(number, 100_000);
            mount.put(&format!("old-{number}"), &data).await;
        }
        let mount = remounted(&world, mount).await;
        let after = mount.write("after", b"").await;
        let mut files = Vec::new();
        for number in 0..APPENDED {
            files.push(mount.open(&format!("old-{number}")).await);
        }
        world.fails_with(Fault::Hang);
        for file in files {
            mount.write_at(file, 100_000, &noise(1, 100_000)).await;
        }
        let again = closed_is_kept(&world, mount, after, PATIENCE).await;
        for number in 0..APPENDED {
            let expected = [noise(number, 100_000), noise(1, 100_000)].concat();
            assert!(again.read(&format!("old-{number}")).await == Some(expected));
        }
    });
}

#[test]
fn a_burst_of_small_files_keeps_no_closed_file_from_the_spool() {
    paused(async {
        let world = World::new(seconds(60)).await;
        let mount = world.mount().await;
        world.fails_with(Fault::Hang);
        for number in 0..BURST {
            mount.put(&format!("new-{number}"), b"contents").await;
        }
        let after = mount.write("after", b"").await;
        closed_is_kept(&world, mount, after, COMMIT_PATIENCE).await;
    });
}
