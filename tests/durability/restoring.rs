//! A restore that is dropped before its end.

use std::sync::Arc;
use std::time::Duration;

use bkfs::restore::job::Options;
use bkfs::restore::overwrite::Overwrite;
use bkfs::restore::restore;
use bkfs::restore::source::Source;
use bkfs::restore::target::Target;
use bkfs::volume::ROOT_INODE;
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Strike};

use crate::host::noise;
use crate::paused::{World, paused, seconds, snapshot};

/// Bytes of a file of several packs.
const LARGE: usize = 80 << 20;

/// Files of one part: more than there are parts at the same time.
const FILES: u64 = 40;

/// What has a name in the target after a restore that was dropped while its reads of `data/` from
/// the `nth` on had no answer.
async fn left_by(world: &World, overwrite: Overwrite, nth: u64) -> Vec<String> {
    let repository = world.repository().await;
    let (_, view) = repository.snapshot("main", "full").await.expect("found");
    let hang = Strike::with(Fault::Hang).on(Operation::GetRange);
    world.faults.plan(hang.keys("data/").nth(nth).always());
    let home = tempfile::TempDir::new().expect("a directory");
    let options = Options {
        overwrite,
        ..Options::default()
    };
    let target = Target::at(home.path());
    let source = Source::whole(view, ROOT_INODE, b"/");
    let restored = restore(source, Default::default(), &target, options, Arc::default());
    let restored = tokio::time::timeout(seconds(20), restored).await;
    assert!(restored.is_err(), "it has ended: {restored:?}");
    // Parts that were being written end by themselves.
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.faults.heal();
    let entries = std::fs::read_dir(home.path()).expect("listed");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}

/// The walk holds the file for which it waits for a permit; it is dropped with the walk.
#[test]
fn a_restore_that_is_dropped_in_its_walk_names_no_unfinished_file() {
    paused(async {
        let world = World::new(seconds(600)).await;
        let mount = world.mount().await;
        for number in 0..FILES {
            mount
                .put(&format!("file-{number}"), &noise(number, 200_000))
                .await;
        }
        snapshot(&mount, "full").await;
        for overwrite in [Overwrite::Refused, Overwrite::Never, Overwrite::Always] {
            let left = left_by(&world, overwrite, 1).await;
            assert!(left.is_empty(), "{overwrite:?}: {left:?}");
        }
    });
}

#[test]
fn a_restore_that_is_dropped_names_no_unfinished_file() {
    paused(async {
        let world = World::new(seconds(600)).await;
        let mount = world.mount().await;
        mount.put("a small one", b"small").await;
        mount.put("large", &noise(1, LARGE)).await;
        snapshot(&mount, "full").await;
        let mut is_part_written = false;
        for overwrite in [Overwrite::Refused, Overwrite::Never, Overwrite::Always] {
            for nth in [1, 3, 5] {
                let left = left_by(&world, overwrite, nth).await;
                is_part_written |= left == ["a small one"];
                let is_whole = |name: &String| name == "a small one";
                assert!(left.iter().all(is_whole), "{overwrite:?}: {left:?}");
            }
        }
        assert!(is_part_written, "no restore began");
    });
}
