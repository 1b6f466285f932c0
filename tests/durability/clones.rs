//! Clones of snapshots (docs/PROTOCOL.md, rule 14): one replacement of the root makes each of them,
//! whatever fails at whichever request.

use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::check::check;
use bkfs::maintain::forgetting::Changer;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::{execute, plan};
use bkfs::repository::Repository;
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::refusal::Refusal;
use bkfs::root::snapshots::SnapshotReference;
use bkfs::root::state::{ROOT_KEY, Root};
use bkfs::volumes::{Cloned, Cloning, clone_snapshot, remove};
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};
use tokio::time::Instant;

use crate::collecting::{forget, gather};
use crate::paused::{World, paused, seconds, snapshot};

/// Requests after each other that make a clone, once the repository is open.
const ROUNDS_MAX: u64 = 6;

const DELAY: Duration = Duration::from_millis(100);

/// The name of the commit record of a clone, and of an index object, among the keys of the bucket.
pub const METADATA: &str = "meta/";

pub async fn clone(
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

pub fn changer(repository: &Repository) -> Changer<'_> {
    Changer {
        repository,
        command: "test",
    }
}

/// Returns a world whose volume `main` has a snapshot `one` with `files` files, and a later state.
pub async fn world(files: usize) -> World {
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
pub fn with(world: &World, volume: &str) -> World {
    let mut other = world.elsewhere();
    other.volume = volume.to_owned();
    other
}

/// Reads a file of a volume, by a mount of it.
pub async fn read(world: &World, volume: &str, name: &str) -> Option<Vec<u8>> {
    let mount = with(world, volume).mount().await;
    let contents = mount.read(name).await;
    mount.0.finish().await.expect("ended");
    contents
}

pub async fn root(world: &World) -> Root {
    let repository = world.elsewhere().repository().await;
    repository.handle.current().root.clone()
}

/// Checks every byte of the bucket.
pub async fn require_whole(world: &World) {
    let repository = world.elsewhere().repository().await;
    let store: Arc<dyn Store> = world.memory.clone();
    let options = CheckOptions::oracle();
    let report = check(store, repository.handle.keyring(), &options).await;
    let report = report.expect("checked");
    assert!(report.is_clean(), "{report}");
}

/// Takes the root away and repairs what is left.
pub async fn lose_root(world: &World) {
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
pub async fn crash_at_every_request(
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
