//! What the record of a trace costs.

use bkfs::volume::namespace::NewInode;
use serde_json::json;

use crate::paused::{Mount, World, paused, seconds, snapshot};
use crate::traces::{ask, clone, status};

/// Returns the number of frames that were asked for so far.
fn frames(mount: &Mount) -> u64 {
    let metrics = &status(mount)["metrics"];
    let of = |name: &str| metrics[name].as_u64().expect("a number");
    of("memory_hits") + of("cache_misses")
}

#[test]
fn a_file_that_the_clone_made_is_not_looked_for() {
    paused(async {
        let world = World::new(seconds(60)).await;
        let mount = world.mount().await;
        let volume = mount.0.volume().expect("writable").clone();
        let new = NewInode {
            mode: libc::S_IFREG | 0o644,
            uid: 0,
            gid: 0,
            device: 0,
            target: None,
            profile: 0,
        };
        for number in 0..1500 {
            let name = format!("{number:0>240}");
            let made = volume.make(1, name.as_bytes(), new.clone()).await;
            made.expect("made");
        }
        snapshot(&mount, "one").await;
        mount.0.finish().await.expect("ended");

        let (_, mount) = clone(&world, 1, None).await;
        mount.put("new.ibd", &[7; 20_000]).await;
        mount.read_at("new.ibd", 0, 16_384).await.expect("is there");
        let before = frames(&mount);
        let refused = ask(&mount, json!({ "record": "warm" })).await;
        let error = refused["error"].as_str().expect("refused");
        assert!(error.contains("no file"), "{refused}");
        let asked = frames(&mount) - before;
        assert!(asked <= 4, "{asked} nodes for one inode");
        mount.0.finish().await.expect("ended");
    });
}
