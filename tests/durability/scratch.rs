//! Clones that a mount makes, those that are thrown away with it, and the notes of drills.

use std::sync::Arc;

use bkfs::mounting::writing::CloneOf;
use bkfs::replicate::progress::CopyProgress;
use bkfs::replicate::{Pace, Replication};
use bkfs::repository::Repository;
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::snapshots::{Drill, SnapshotEntry, SnapshotReference};
use bkfs::volumes::reap::{Patience, reap};
use bkfs_store::{Operation, Store};
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::clones::{changer, read, require_whole, root, with, world};
use crate::collecting::{forget, gather};
use crate::host::noise;
use crate::paused::{Mount, World, paused, seconds, snapshot};

/// Returns a machine whose mounts are clones of snapshot `one` of `main`, as this volume.
pub fn cloning(world: &World, volume: &str) -> World {
    let mut other = with(world, volume);
    other.clone_of = Some(CloneOf {
        volume: "main".to_owned(),
        snapshot: SnapshotReference::Name("one".to_owned()),
    });
    other
}

#[test]
fn a_scratch_clone_stores_nothing_and_leaves_nothing() {
    paused(async {
        let world = world(2).await;
        let before = root(&world).await;
        let scratch = cloning(&world, "scratch~1");
        let assembled = scratch.try_assemble(false).await.expect("mounted");
        let mount = Mount(assembled);
        let keys = async || {
            world
                .memory
                .list("", None, 10_000)
                .await
                .expect("listed")
                .len()
        };
        let objects = keys().await;
        let requests = scratch.faults.requests();
        let file = mount.write("new", &vec![7; 3 << 20]).await;
        mount.fsync(file).await.expect("synced");
        mount.close(file).await;
        mount.write_on("file1", 0, b"CONTENTS").await;
        let asked = scratch.faults.requests() - requests;
        // The directory and the old contents are read; nothing is asked for the three calls.
        assert!(asked < 10, "{asked} requests");
        tokio::time::sleep(seconds(300)).await;
        assert_eq!(keys().await, objects, "a heartbeat was there before");
        assert_eq!(mount.read("file1").await.unwrap(), b"CONTENTS 1");
        let request = bkfs::volume::requests::SnapshotRequest::default();
        let refused = mount.0.volume().expect("writable").snapshot(request).await;
        assert!(refused.is_err(), "it would be thrown away as well");
        assert!(root(&world).await.volumes.contains_key("scratch~1"));
        mount.0.finish().await.expect("ended");
        let after = root(&world).await;
        assert_eq!(after.volumes, before.volumes);
        assert!(after.sessions.is_empty() && after.recovery_bases().is_empty());
        assert_eq!(
            (after.snapshots, after.trash),
            (before.snapshots, before.trash)
        );
        require_whole(&world).await;
    });
}

#[test]
fn a_clone_that_is_mounted_with_a_name_stays() {
    paused(async {
        let world = world(2).await;
        for scratch in [false, true] {
            let name = format!("kept {scratch}");
            let mut machine = cloning(&world, &name);
            machine.settings.scratch = scratch;
            let mount = Mount(machine.try_assemble(false).await.expect("mounted"));
            let file = mount.write("new", b"of the clone").await;
            mount.fsync(file).await.expect("synced");
            mount.close(file).await;
            mount.0.finish().await.expect("ended");
            assert_eq!(read(&world, &name, "new").await.unwrap(), b"of the clone");
            assert_eq!(read(&world, &name, "file0").await.unwrap(), b"contents 0");
            let taken = cloning(&world, &name).try_assemble(false).await;
            assert!(taken.is_err(), "there is a volume of that name");
        }
        // What fsync acknowledged survives only without `scratch`.
        for scratch in [false, true] {
            let name = format!("crashed {scratch}");
            let mut machine = cloning(&world, &name);
            machine.settings.scratch = scratch;
            let mount = Mount(machine.try_assemble(false).await.expect("mounted"));
            let file = mount.write("new", b"of the clone").await;
            mount.fsync(file).await.expect("synced");
            drop(mount);
            let survived = read(&world, &name, "new").await;
            assert_eq!(survived.is_some(), !scratch);
            assert_eq!(read(&world, &name, "file0").await.unwrap(), b"contents 0");
        }
        require_whole(&world).await;
    });
}

/// Returns the bucket, a thrown-away clone that has stored a file again that was there already, and
/// another machine. The packs of that file are condemned.
async fn leaning_clone(data: &[u8]) -> (World, World, Mount, Repository) {
    let world = World::new(seconds(60)).await;
    let mount = world.mount().await;
    mount.put("file0", b"contents").await;
    snapshot(&mount, "one").await;
    mount.put("old", data).await;
    snapshot(&mount, "two").await;
    let volume = mount.0.volume().expect("writable").clone();
    let removed = volume.unlink(bkfs::volume::ROOT_INODE, b"old").await;
    removed.expect("removed");
    mount.0.finish().await.expect("ended");
    // It was open still: the next mount frees it.
    world.mount().await.0.finish().await.expect("ended");
    let scratch = cloning(&world, "scratch~1");
    let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
    let (file, _) = mount.write("new", data).await;
    let volume = mount.0.volume().expect("writable").clone();
    volume.settle(file.0).await.expect("stored");
    assert!(!volume.ingest().relied_on().is_empty());
    let there = world.repository_elsewhere().await;
    forget(&there, "two").await;
    assert!(gather(&there).await.condemned.packs > 0);
    (world, scratch, mount, there)
}

/// Collects again and again. Returns the number of packs that were deleted.
async fn deleted(there: &Repository) -> u64 {
    let mut deleted = 0;
    for _ in 0..4 {
        tokio::time::sleep(seconds(120)).await;
        deleted += gather(there).await.deleted_packs;
    }
    deleted
}

#[test]
fn a_scratch_clone_holds_no_deletion_back() {
    paused(async {
        let data = noise(1, 3 << 20);
        let (_world, _scratch, mount, there) = leaning_clone(&data).await;
        assert!(deleted(&there).await > 0, "it holds them back");
        assert_eq!(mount.read("new").await, Some(data));
        mount.0.finish().await.expect("ended");
    });
}

/// The commit that lets its base rise is under way when the clone is thrown away.
#[test]
fn a_scratch_clone_that_is_committing_is_thrown_away() {
    let faults: [fn(Gate) -> Fault; 2] = [Fault::HoldBefore, Fault::HoldAfter];
    for fault in faults {
        paused(async {
            let data = noise(1, 3 << 20);
            let (world, scratch, mount, there) = leaning_clone(&data).await;
            let gate = Gate::new();
            let held = Strike::with(fault(gate.clone()));
            scratch
                .faults
                .plan(held.on(Operation::Replace).keys("root").nth(1));
            while scratch.faults.struck() == 0 {
                tokio::time::sleep(seconds(1)).await;
            }
            let begun = tokio::time::Instant::now();
            mount.0.finish().await.expect("ended");
            assert!(begun.elapsed() < seconds(5), "{:?}", begun.elapsed());
            gate.open();
            assert!(deleted(&there).await > 0, "it holds them back");
            let root = root(&world).await;
            assert!(!root.volumes.contains_key("scratch~1") && root.sessions.is_empty());
        });
    }
}

#[test]
fn a_scratch_clone_is_reaped_once_its_session_is_dead() {
    paused(async {
        let world = world(2).await;
        let scratch = cloning(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        // Its process lives on this machine, and its heart beats for others.
        let here = world.elsewhere().repository().await;
        let there = world.elsewhere().repository_elsewhere().await;
        let reaped = async |repository: &Repository, patience| {
            repository.handle.refresh().await.expect("read");
            reap(repository, "test", patience).await.expect("looked")
        };
        assert!(reaped(&here, Patience::Everywhere).await.is_empty());
        assert!(reaped(&there, Patience::Here).await.is_empty());
        assert!(reaped(&there, Patience::Everywhere).await.is_empty());
        assert_eq!(mount.read("file1").await.unwrap(), b"contents 1");
        drop(mount);
        assert!(reaped(&there, Patience::Here).await.is_empty());
        assert_eq!(reaped(&there, Patience::Everywhere).await, ["scratch~1"]);
        let root = root(&world).await;
        assert!(!root.volumes.contains_key("scratch~1") && root.sessions.is_empty());
        require_whole(&world).await;
    });
}

#[test]
fn a_scratch_clone_that_was_reaped_by_mistake_fails_and_does_not_come_back() {
    paused(async {
        let world = world(2).await;
        let scratch = cloning(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let there = world.elsewhere().repository_elsewhere().await;
        let here = there.environment.holder("test");
        let holder = root(&world).await.volumes["scratch~1"].holder;
        // Another session than the holder is named: the clone stays.
        let other = bkfs::root::state::SessionId(1);
        let refused = bkfs::volumes::reap::remove(&there, &here, "scratch~1", Some(other)).await;
        assert_eq!(refused.expect_err("held").kind(), ErrorKind::Held);
        let refused = bkfs::volumes::reap::remove(&there, &here, "scratch~1", None).await;
        assert_eq!(refused.expect_err("held").kind(), ErrorKind::Held);
        let removed = bkfs::volumes::reap::remove(&there, &here, "scratch~1", holder).await;
        removed.expect("removed");
        tokio::time::sleep(seconds(60)).await;
        let failure = mount.0.volume().expect("writable").failure();
        assert!(failure.is_some(), "its heartbeat has told it");
        let _ = mount.0.finish().await;
        let root = root(&world).await;
        assert!(!root.volumes.contains_key("scratch~1") && root.sessions.is_empty());
        // No mount makes one anew.
        let again = with(&world, "scratch~1").try_assemble(false).await;
        assert!(again.is_err());
        require_whole(&world).await;
    });
}

#[test]
fn a_drill_is_noted_on_its_snapshot_and_comes_along_with_a_copy() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        let entry = async |world: &World| {
            let list = world
                .elsewhere()
                .repository()
                .await
                .snapshots()
                .await
                .expect("listed");
            list.named("main", "one").expect("kept").clone()
        };
        let before = entry(&world).await;
        let mut drill = Drill {
            time: repository.now(),
            is_good: true,
            command: "mariadb-check".to_owned(),
            seconds: 7,
            read_permille: 333,
            is_of_source: false,
        };
        changer(&repository)
            .note_drill(&before, &drill)
            .await
            .expect("noted");
        assert_eq!(entry(&world).await.drill.as_ref(), Some(&drill));
        drill.is_good = false;
        changer(&repository)
            .note_drill(&before, &drill)
            .await
            .expect("noted");
        let after = entry(&world).await;
        assert_eq!(after.drill.as_ref(), Some(&drill));
        assert_eq!(
            SnapshotEntry {
                drill: None,
                ..after
            },
            before
        );
        let target = World::new(seconds(60)).await;
        let to = Arc::new(target.repository().await);
        let replication = Replication {
            from: &repository,
            to: &to,
            volume: "main",
            names: &[],
            steal: false,
            accept_loss: false,
            anew: false,
            replaces: false,
            pace: Pace::every(1 << 30),
            progress: &CopyProgress::default(),
        };
        replication.run(&mut |_| ()).await.expect("copied");
        let copied = entry(&target).await.drill.expect("it came along");
        assert_eq!(
            copied,
            Drill {
                is_of_source: true,
                ..drill
            }
        );
        // A snapshot that was forgotten meanwhile gets no note.
        forget(&repository, "one").await;
        let refused = changer(&repository).note_drill(&before, &copied).await;
        assert!(matches!(refused, Err(RootError::NoSnapshot { .. })));
    });
}
