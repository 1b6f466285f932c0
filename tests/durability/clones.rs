//! Clones of snapshots, and the removal of volumes (docs/PROTOCOL.md, rule 14): one replacement of
//! the root makes each of them, whatever fails at whichever request.

use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::check::check;
use bkfs::maintain::forgetting::{Changer, forgotten};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::{execute, plan};
use bkfs::mounting::writing::CloneOf;
use bkfs::replicate::Replication;
use bkfs::replicate::progress::CopyProgress;
use bkfs::repository::Repository;
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::refusal::Refusal;
use bkfs::root::snapshots::{Drill, SnapshotEntry, SnapshotReference};
use bkfs::root::state::{ROOT_KEY, Root};
use bkfs::volumes::reap::{Patience, reap};
use bkfs::volumes::{Cloned, Cloning, clone_snapshot, remove};
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};
use tokio::time::Instant;

use crate::collecting::{forget, gather};
use crate::paused::{Mount, World, paused, seconds, snapshot};

/// Requests after each other that make a clone, once the repository is open.
const ROUNDS_MAX: u64 = 6;

const DELAY: Duration = Duration::from_millis(100);

/// The name of the commit record of a clone, and of an index object, among the keys of the bucket.
const METADATA: &str = "meta/";

async fn clone(
    repository: &Repository,
    (source, snapshot): (&str, &str),
    name: &str,
) -> Result<Cloned, RootError> {
    let snapshot = SnapshotReference::parse(snapshot, repository.now())?;
    let cloning = Cloning {
        source,
        snapshot: &snapshot,
        name,
        command: "test",
        held_with: None,
    };
    clone_snapshot(repository, &cloning).await
}

fn changer(repository: &Repository) -> Changer<'_> {
    Changer {
        repository,
        command: "test",
    }
}

/// Returns a world whose volume `main` has a snapshot `one` with `files` files, and a later state.
async fn world(files: usize) -> World {
    let world = World::new(seconds(60)).await;
    let mount = world.mount().await;
    for file in 0..files {
        mount
            .put(
                &format!("file{file}"),
                format!("contents {file}").as_bytes(),
            )
            .await;
    }
    snapshot(&mount, "one").await;
    mount.put("file0", b"later by 1").await;
    mount.0.finish().await.expect("ended");
    world
}

/// Returns the same bucket, seen by a machine that mounts `volume`.
fn with(world: &World, volume: &str) -> World {
    let mut other = world.elsewhere();
    other.volume = volume.to_owned();
    other
}

/// Reads a file of a volume, by a mount of it.
async fn read(world: &World, volume: &str, name: &str) -> Option<Vec<u8>> {
    let mount = with(world, volume).mount().await;
    let contents = mount.read(name).await;
    mount.0.finish().await.expect("ended");
    contents
}

async fn root(world: &World) -> Root {
    let repository = world.elsewhere().repository().await;
    repository.handle.current().root.clone()
}

/// Checks every byte of the bucket.
async fn require_whole(world: &World) {
    let repository = world.elsewhere().repository().await;
    let store: Arc<dyn Store> = world.memory.clone();
    let options = CheckOptions::oracle();
    let report = check(store, repository.handle.keyring(), &options).await;
    let report = report.expect("checked");
    assert!(report.is_clean(), "{report}");
}

/// Takes the root away and repairs what is left.
async fn lose_root(world: &World) {
    let repository = world.elsewhere().repository().await;
    let keyring = repository.handle.keyring().clone();
    drop(repository);
    let store: Arc<dyn Store> = world.memory.clone();
    store.delete(ROOT_KEY).await.expect("deleted");
    let options = CheckOptions::oracle();
    for _ in 0..3 {
        let (findings, plan) = plan(&store, &keyring, &options).await.expect("planned");
        if plan.is_empty() {
            return;
        }
        let done = execute(&store, &keyring, &options, &findings, plan).await;
        done.expect("repaired");
    }
}

#[test]
fn a_clone_costs_six_rounds_whatever_the_size() {
    paused(async {
        for files in [1, 400] {
            let world = world(files).await;
            let repository = world.repository().await;
            world.fails_with(Fault::Delay(DELAY));
            let (begun, before) = (Instant::now(), world.faults.requests());
            clone(&repository, ("main", "one"), "try")
                .await
                .expect("made");
            let rounds = begun.elapsed().as_millis() as u64 / DELAY.as_millis() as u64;
            // The last one deletes the heartbeat of a session that is gone.
            let rounds = rounds - 1;
            println!(
                "{files} files: {rounds} rounds, {} requests",
                world.faults.requests() - before
            );
            assert!(rounds <= ROUNDS_MAX, "{files} files: {rounds} rounds");
            world.faults.heal();
            assert_eq!(read(&world, "try", "file0").await.unwrap(), b"contents 0");
        }
    });
}

#[test]
fn a_clone_is_a_volume_of_its_own() {
    paused(async {
        let world = world(3).await;
        let repository = world.repository().await;
        let used = repository.volume_entry("main").next_inode;
        clone(&repository, ("main", "one"), "try")
            .await
            .expect("made");
        let entry = repository.volume_entry("try");
        assert!((16..=used).contains(&entry.next_inode), "{entry:?}");
        assert!(entry.holder.is_none() && root(&world).await.sessions.is_empty());
        // Both are written, and neither sees the other.
        let mount = with(&world, "try").mount().await;
        mount.put("new", b"of the clone").await;
        mount.write_on("file1", 0, b"CONTENTS").await;
        snapshot(&mount, "mine").await;
        mount.0.finish().await.expect("ended");
        assert_eq!(read(&world, "main", "new").await, None);
        assert_eq!(read(&world, "main", "file1").await.unwrap(), b"contents 1");
        assert_eq!(read(&world, "main", "file0").await.unwrap(), b"later by 1");
        // A clone of a clone, after the first source is gone.
        changer(&repository)
            .forget("main", &["one".to_owned()])
            .await
            .expect("forgotten");
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        clone(&repository, ("try", "mine"), "third")
            .await
            .expect("made");
        for _ in 0..3 {
            gather(&repository).await;
        }
        require_whole(&world).await;
        assert_eq!(read(&world, "third", "new").await.unwrap(), b"of the clone");
        assert_eq!(read(&world, "third", "file1").await.unwrap(), b"CONTENTS 1");
        assert_eq!(read(&world, "try", "file2").await.unwrap(), b"contents 2");
    });
}

#[test]
fn what_a_clone_acknowledged_survives_its_machine() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        clone(&repository, ("main", "one"), "try")
            .await
            .expect("made");
        let mount = with(&world, "try").mount().await;
        let file = mount.write("synced", b"acknowledged").await;
        mount.fsync(file).await.expect("synced");
        // Its machine is gone with its disk. Another one takes the clone over.
        drop(mount);
        assert_eq!(
            read(&world, "try", "synced").await.unwrap(),
            b"acknowledged"
        );
        assert_eq!(read(&world, "try", "file1").await.unwrap(), b"contents 1");
        require_whole(&world).await;
    });
}

/// Runs `clone`, and `meanwhile` while the commit record of the clone is on its way.
async fn overtaken(world: &World, meanwhile: impl AsyncFnOnce(&Repository)) -> RootError {
    let repository = world.repository().await;
    let strike = Strike::with(Fault::Delay(seconds(5)))
        .keys(METADATA)
        .on(Operation::PutNew);
    world.faults.plan(strike);
    let other = world.elsewhere().repository().await;
    let meanwhile = async {
        tokio::time::sleep(seconds(2)).await;
        meanwhile(&other).await;
    };
    let (made, ()) = futures::join!(clone(&repository, ("main", "one"), "try"), meanwhile);
    assert_eq!(world.faults.struck(), 1, "the record was sent meanwhile");
    made.expect_err("refused")
}

#[test]
fn the_snapshot_is_looked_up_in_the_root_that_is_replaced() {
    paused(async {
        let world = world(2).await;
        let refused = overtaken(&world, async |other| {
            forget(other, "one").await;
        });
        let refused = refused.await;
        assert!(matches!(refused, RootError::NoSnapshot { .. }), "{refused}");
        let root = root(&world).await;
        assert!(!root.volumes.contains_key("try") && root.sessions.is_empty());
    });
}

#[test]
fn the_name_is_looked_up_in_the_root_that_is_replaced() {
    paused(async {
        let world = world(2).await;
        let refused = overtaken(&world, async |other| {
            clone(other, ("main", "one"), "try").await.expect("made");
        });
        let refused = refused.await;
        let taken = matches!(refused, RootError::Refused(Refusal::VolumeTaken { .. }));
        assert!(taken, "{refused}");
        assert!(root(&world).await.sessions.is_empty());
        assert_eq!(read(&world, "try", "file1").await.unwrap(), b"contents 1");
    });
}

#[test]
fn a_name_that_has_snapshots_is_taken() {
    paused(async {
        let world = world(1).await;
        let repository = world.repository().await;
        clone(&repository, ("main", "one"), "try")
            .await
            .expect("made");
        let mount = with(&world, "try").mount().await;
        snapshot(&mount, "mine").await;
        mount.0.finish().await.expect("ended");
        remove(&repository, "try", true, "test")
            .await
            .expect("removed");
        changer(&repository)
            .bring_back("try", "mine")
            .await
            .expect("is back");
        let refused = clone(&repository, ("main", "one"), "try")
            .await
            .expect_err("refused");
        let taken = matches!(refused, RootError::Refused(Refusal::VolumeTaken { .. }));
        assert!(taken, "{refused}");
        // But its own snapshot may become the volume again.
        clone(&repository, ("try", "mine"), "try")
            .await
            .expect("made");
    });
}

/// All ways in which a request can fail.
const FAULTS: [fn() -> Fault; 4] = [
    || Fault::FailBefore(StoreErrorKind::Unreachable),
    || Fault::FailAfter(StoreErrorKind::Unreachable),
    || Fault::Late,
    || Fault::Hang,
];

/// Makes each request of `work` fail in each way, for ever from there on, and then lets `after` look
/// at the bucket. The numbers of outcomes: made and not made.
async fn crash_at_every_request(
    files: usize,
    work: impl AsyncFn(&Repository) -> Result<(), RootError>,
    is_done: impl AsyncFn(&World) -> bool,
) -> (u32, u32) {
    let (mut made, mut not_made) = (0, 0);
    for fault in FAULTS {
        for nth in 1.. {
            let world = world(files).await;
            let repository = world.repository().await;
            world.faults.plan(Strike::with(fault()).nth(nth).always());
            let result = tokio::time::timeout(seconds(1000), work(&repository)).await;
            let has_struck = world.faults.struck() > 0;
            world.faults.heal();
            world.faults.apply_late().await;
            drop(repository);
            let is_there = is_done(&world).await;
            if let Ok(Ok(())) = &result {
                assert!(is_there, "request {nth}: reported and not there");
            }
            if let Ok(Err(error)) = &result
                && error.kind() != ErrorKind::OutcomeUnknown
            {
                assert!(!is_there, "request {nth}: {error}, and it is there");
            }
            match is_there {
                true => made += 1,
                false => not_made += 1,
            }
            require_whole(&world).await;
            // Whatever was left, the next one succeeds, and nothing is lost.
            let again = world.elsewhere().repository().await;
            if !is_there {
                work(&again).await.expect("made at the next call");
            }
            for _ in 0..2 {
                gather(&again).await;
            }
            require_whole(&world).await;
            if !has_struck {
                break;
            }
        }
    }
    (made, not_made)
}

#[test]
fn a_clone_is_there_or_not_whatever_fails() {
    paused(async {
        let work = async |repository: &Repository| {
            clone(repository, ("main", "one"), "try").await.map(drop)
        };
        let is_done = async |world: &World| {
            let is_there = root(world).await.volumes.contains_key("try");
            if is_there {
                let contents = read(world, "try", "file1").await;
                assert_eq!(contents.unwrap(), b"contents 1");
            }
            is_there
        };
        let (made, not_made) = crash_at_every_request(2, work, is_done).await;
        assert!(
            made > 4 && not_made > 10,
            "{made} made, {not_made} not made"
        );
    });
}

#[test]
fn a_volume_is_removed_or_not_whatever_fails() {
    paused(async {
        let work = async |repository: &Repository| {
            remove(repository, "main", true, "test").await.map(drop)
        };
        let is_done = async |world: &World| {
            let repository = world.elsewhere().repository().await;
            let list = repository.snapshots().await.expect("listed");
            let trash = forgotten(&repository, "main").await.expect("listed");
            let is_there = repository
                .handle
                .current()
                .root
                .volumes
                .contains_key("main");
            // The snapshots are with the volume or in the trash, never between.
            assert_eq!(
                (list.iter().count(), trash.len()),
                if is_there { (1, 0) } else { (0, 2) }
            );
            !is_there
        };
        let (made, not_made) = crash_at_every_request(2, work, is_done).await;
        assert!(
            made > 4 && not_made > 10,
            "{made} made, {not_made} not made"
        );
    });
}

#[test]
fn a_removed_volume_is_in_the_trash_as_it_was() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        let refused = remove(&repository, "main", false, "test")
            .await
            .expect_err("refused");
        let has_some = matches!(
            refused,
            RootError::Refused(Refusal::HasSnapshots { count: 1, .. })
        );
        assert!(has_some, "{refused}");
        assert!(root(&world).await.sessions.is_empty());
        let removed = remove(&repository, "main", true, "test")
            .await
            .expect("removed")
            .output;
        let last = removed.last.expect("it was committed").name;
        gather_in_window(&repository).await;
        changer(&repository)
            .bring_back("main", &last)
            .await
            .expect("is back");
        clone(&repository, ("main", &last), "main")
            .await
            .expect("made");
        assert_eq!(read(&world, "main", "file0").await.unwrap(), b"later by 1");
        require_whole(&world).await;
    });
}

/// Collects with an undelete window of a day.
async fn gather_in_window(repository: &Repository) {
    use bkfs::maintain::collect::{Options, collect, prospect};
    let options = Options {
        undelete_window: jiff::SignedDuration::from_hours(24),
        ..crate::collecting::OPTIONS
    };
    let now = repository.now() + jiff::SignedDuration::from_hours(1);
    let found = prospect(repository, &options, now).await.expect("looked");
    collect(repository, found).await.expect("collected");
}

#[test]
fn a_volume_is_not_removed_while_a_session_stands_for_it() {
    paused(async {
        let world = world(1).await;
        let repository = world.repository().await;
        let mount = world.mount().await;
        let refused = remove(&repository, "main", true, "test")
            .await
            .expect_err("held");
        assert_eq!(refused.kind(), ErrorKind::Held, "{refused}");
        // What it acknowledged is only in a journal when its machine is gone.
        let file = mount.write("synced", b"acknowledged").await;
        mount.fsync(file).await.expect("synced");
        drop(mount);
        let refused = remove(&repository, "main", true, "test")
            .await
            .expect_err("held");
        assert_eq!(refused.kind(), ErrorKind::Held, "{refused}");
        assert_eq!(
            read(&world, "main", "synced").await.unwrap(),
            b"acknowledged"
        );
        // Its spool may hold more, so a recovery base stands in the root now.
        let root = root(&world).await;
        assert!(root.sessions.is_empty() && !root.recovery_bases().is_empty());
        let refused = remove(&repository, "main", true, "test")
            .await
            .expect_err("unfinished");
        assert_eq!(refused.kind(), ErrorKind::Held, "{refused}");
    });
}

#[test]
fn a_rebuilt_root_has_a_clone_as_its_own_volume() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        clone(&repository, ("main", "one"), "a clone")
            .await
            .expect("made");
        clone(&repository, ("main", "one"), "zone")
            .await
            .expect("made");
        let mount = with(&world, "zone").mount().await;
        mount.put("new", b"of the clone").await;
        snapshot(&mount, "mine").await;
        mount.0.finish().await.expect("ended");
        let before = root(&world).await;
        drop(repository);
        lose_root(&world).await;
        let after = root(&world).await;
        for (name, entry) in &before.volumes {
            let rebuilt = &after.volumes[name];
            assert_eq!(rebuilt.tree, entry.tree, "{name}");
            assert_eq!(rebuilt.next_inode, entry.next_inode, "{name}");
        }
        assert_eq!(after.volumes.len(), 3);
        let list = world
            .elsewhere()
            .repository()
            .await
            .snapshots()
            .await
            .expect("listed");
        let mut names: Vec<String> = (list.iter())
            .map(|entry| format!("{}:{}", entry.volume, entry.name))
            .collect();
        names.sort();
        assert_eq!(names, ["main:one", "zone:mine"]);
        assert_eq!(
            read(&world, "a clone", "file0").await.unwrap(),
            b"contents 0"
        );
        assert_eq!(read(&world, "zone", "new").await.unwrap(), b"of the clone");
        assert_eq!(read(&world, "main", "file0").await.unwrap(), b"later by 1");
    });
}

#[test]
fn a_rebuilt_root_has_the_newer_volume_of_a_name() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        // The new one has fewer commits than the one before it.
        let mount = world.elsewhere().mount().await;
        mount.put("new", b"of the new volume").await;
        mount.0.finish().await.expect("ended");
        let commits = repository
            .handle
            .refresh()
            .await
            .expect("read")
            .root
            .volumes["main"]
            .sequence;
        drop(repository);
        lose_root(&world).await;
        assert_eq!(root(&world).await.volumes["main"].sequence, commits);
        assert_eq!(
            read(&world, "main", "new").await.unwrap(),
            b"of the new volume"
        );
        assert_eq!(read(&world, "main", "file1").await, None);
        // What was in the trash is not lost.
        let list = world
            .elsewhere()
            .repository()
            .await
            .snapshots()
            .await
            .expect("listed");
        assert!(list.named("main", "one").is_some());
        require_whole(&world).await;
    });
}

#[test]
fn a_removed_volume_without_a_later_one_comes_back_with_a_rebuilt_root() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        drop(repository);
        lose_root(&world).await;
        assert_eq!(read(&world, "main", "file0").await.unwrap(), b"later by 1");
    });
}

/// Returns a machine whose mounts are clones of snapshot `one` of `main`, as this volume.
fn cloning(world: &World, volume: &str) -> World {
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
        assert!(mount.try_put("new", b"late").await.is_err());
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
            commit_bytes: 1 << 30,
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
