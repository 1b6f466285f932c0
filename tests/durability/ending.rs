//! Acknowledged files when a mount is told to end while the store does not take them.

use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::error::MountingError;
use bkfs::volume::Volume;
use bkfs::volume::error::VolumeError;
use bkfs_fuse::{Errno, Reply, Vfs};
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, Gate, Strike};
use bytes::Bytes;
use tokio::time::Instant;

use crate::host::noise;
use crate::paused::{Mount, World, ask, paused, seconds};

/// The time that the daemon may take beyond `drain=`.
const BEYOND: Duration = Duration::from_secs(10);

/// The number of files: one is large, the others are small.
const FILES: u64 = 12;

fn contents(number: u64) -> Vec<u8> {
    noise(number, if number == 0 { 3 << 20 } else { 10_000 })
}

/// Writes and closes all files. Returns those whose close was acknowledged.
async fn put_all(mount: &Mount) -> Vec<u64> {
    let mut closed = Vec::new();
    for number in 0..FILES {
        let (name, data) = (format!("closed-{number}"), contents(number));
        if mount.try_put(&name, &data).await.is_ok() {
            closed.push(number);
        }
    }
    assert!(
        closed.len() as u64 >= FILES - 1,
        "small files are not waited for"
    );
    closed
}

async fn all_are_there(mount: &Mount, closed: &[u64]) {
    for number in closed {
        let read = mount.read(&format!("closed-{number}")).await;
        assert!(read == Some(contents(*number)), "closed-{number} is lost");
    }
}

/// Ends the mount, and checks that it takes no longer than it may.
async fn end(mount: Mount, drain: Duration) -> Result<(), MountingError> {
    let begin = Instant::now();
    let ended = mount.0.finish_within(Some(drain)).await;
    let took = begin.elapsed();
    assert!(
        took <= drain + BEYOND,
        "it took {took:?} with drain={drain:?}"
    );
    ended
}

/// Closes files while the store fails, the last one `last` before the mount is told to end. Checks
/// that all of them come back.
async fn comes_back(fault: Fault, timeout: Duration, drain: Duration, last: Duration) {
    let world = World::new(timeout).await;
    let mount = world.mount().await;
    let before = mount.write("fsynced", b"before").await;
    mount.fsync(before).await.expect("fsynced");
    world.fails_with(fault.clone());
    let closed = put_all(&mount).await;
    tokio::time::sleep(seconds(20)).await;
    mount.put("last", b"closed last").await;
    tokio::time::sleep(last).await;
    let error = end(mount, drain).await.expect_err("not in the bucket");
    assert!(error.to_string().contains("stays in the spool"), "{error}");
    let mount = world.mount_again().await;
    let case = format!("{fault:?}, timeout={timeout:?}, drain={drain:?}, {last:?} before");
    assert_eq!(
        mount.read("fsynced").await,
        Some(b"before".to_vec()),
        "{case}"
    );
    assert_eq!(
        mount.read("last").await,
        Some(b"closed last".to_vec()),
        "{case}"
    );
    all_are_there(&mount, &closed).await;
    end(mount, seconds(60)).await.expect("a store that works");
}

#[test]
fn closed_files_come_back_from_an_end_without_a_store() {
    for last in [0, 600, 1_000, 1_500, 2_000, 2_600, 4_000, 30_000] {
        let last = Duration::from_millis(last);
        paused(comes_back(Fault::Hang, seconds(300), seconds(600), last));
        paused(comes_back(Fault::Hang, seconds(300), seconds(10), last));
        paused(comes_back(Fault::Hang, seconds(300), seconds(0), last));
    }
}

#[test]
fn closed_files_come_back_from_an_end_with_a_store_that_refuses() {
    for kind in [StoreErrorKind::Denied, StoreErrorKind::Unreachable] {
        for last in [0, 1_000, 2_000, 15_000] {
            let (fault, last) = (Fault::FailBefore(kind), Duration::from_millis(last));
            paused(comes_back(fault.clone(), seconds(300), seconds(600), last));
            paused(comes_back(fault, seconds(300), seconds(10), last));
        }
    }
}

/// Only journals hang, or only packs, or only the root.
#[test]
fn closed_files_come_back_from_an_end_without_a_kind_of_object() {
    for prefix in ["journal/", "data/", "meta/", "index/", "root"] {
        for last in [0, 1_500, 20_000] {
            paused(async {
                let world = World::new(seconds(300)).await;
                let mount = world.mount().await;
                world
                    .faults
                    .plan(Strike::with(Fault::Hang).on_writes().keys(prefix).always());
                let closed = put_all(&mount).await;
                tokio::time::sleep(Duration::from_millis(last)).await;
                let ended = end(mount, seconds(30)).await;
                if let Err(error) = ended {
                    assert!(error.to_string().contains("stays in the spool"), "{error}");
                }
                all_are_there(&world.mount_again().await, &closed).await;
            });
        }
    }
}

#[test]
fn who_waits_in_fsync_is_answered_and_holds_nothing_up() {
    for drain in [0, 10, 600] {
        paused(async {
            let world = World::new(seconds(300)).await;
            let mount = world.mount().await;
            world.fails_with(Fault::Hang);
            let closed = put_all(&mount).await;
            let file = mount.write("waiting", b"fsync never returned").await;
            let (sender, mut answer) = tokio::sync::oneshot::channel();
            let reply = Reply::new("fsync", move |result| _ = sender.send(result));
            mount.0.vfs.fsync(file.0, file.1, false, reply);
            tokio::time::sleep(seconds(5)).await;
            answer.try_recv().expect_err("the store does not answer");
            end(mount, seconds(drain)).await.expect_err("no store");
            let answer = answer.try_recv().expect("answered by the end");
            assert_eq!(answer, Err(Errno::EIO));
            all_are_there(&world.mount_again().await, &closed).await;
        });
    }
}

/// The mount is told to end while a journal reads the changes that it is to describe, one at a time.
#[test]
fn an_end_in_the_middle_of_a_capture_loses_nothing() {
    for turns in [1, 20, 100, 300] {
        paused(async {
            let world = World::new(seconds(300)).await;
            let mount = world.mount().await;
            world.fails_with(Fault::Hang);
            mount.0.volume().expect("writable").capture_at_once(1);
            let mut last = None;
            for number in 1..=300 {
                last = Some(
                    mount
                        .write(&format!("closed-{number}"), &contents(number))
                        .await,
                );
            }
            let file = last.expect("written");
            let (sender, mut answer) = tokio::sync::oneshot::channel();
            let reply = Reply::new("fsync", move |result| _ = sender.send(result));
            mount.0.vfs.fsync(file.0, file.1, false, reply);
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            answer.try_recv().expect_err("it reads");
            end(mount, seconds(0)).await.expect_err("no store");
            let closed: Vec<u64> = (1..=300).collect();
            all_are_there(&world.mount_again().await, &closed).await;
        });
    }
}

/// Another machine has taken the volume over, and a journal arrives where nothing looks for it. The
/// mount does not learn that.
#[test]
fn what_arrives_too_late_for_another_holder_is_in_the_spool() {
    for spool_bytes in [1 << 30, 64] {
        paused(async {
            let mut world = World::new(seconds(300)).await;
            world.spool_bytes = spool_bytes;
            let mount = world.mount().await;
            let elsewhere = world.elsewhere();
            let other = elsewhere.mount().await;
            let hang = Strike::with(Fault::Hang).on(Operation::Get);
            world.faults.plan(hang.keys("root").always());
            mount.put("late", b"for no holder").await;
            tokio::time::sleep(seconds(4)).await;
            let journals = world.faults.list("journal/", None, 10).await;
            assert_eq!(journals.expect("listed").len(), 1, "it has arrived");
            let error = end(mount, seconds(30)).await.expect_err("not committed");
            let is_kept = error.to_string().contains("stays in the spool");
            assert_eq!(is_kept, spool_bytes > 64, "{error}");
            assert_eq!(other.read("late").await, None);
            end(other, seconds(30)).await.expect("committed");
            let again = world.mount_again().await;
            let recovered = again.0.spool_news().recovered;
            assert_eq!(recovered.len(), usize::from(is_kept));
        });
    }
}

/// Neither can the root be read or replaced, nor does the spool take anything. Journals that arrive
/// meanwhile stay in memory, so there must be few.
#[test]
fn journals_that_cannot_be_confirmed_are_few() {
    paused(async {
        let mut world = World::new(seconds(300)).await;
        world.spool_bytes = 64;
        let mount = world.mount().await;
        let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        for operation in [Operation::Get, Operation::Replace] {
            let denied = denied.clone().on(operation);
            world.faults.plan(denied.keys("root").always());
        }
        for number in 0..60 {
            let name = format!("{number}");
            let file = mount.write(&name, &noise(number, 60_000)).await;
            mount.fsync(file).await.expect_err("not confirmed");
        }
        let journals = world.faults.list("journal/", None, 1000).await;
        let bytes: u64 = journals.expect("listed").iter().map(|info| info.size).sum();
        assert!(
            (1 << 20..4 << 20).contains(&bytes),
            "{bytes} bytes of journals"
        );
    });
}

/// After its end a mount must answer nothing that is in neither bucket nor spool.
#[test]
fn a_mount_that_is_closed_acknowledges_nothing() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let mount = world.mount().await;
        let (ino, handle) = mount.write("file", b"bytes").await;
        mount.0.vfs.close();
        let closed = ask(&mount, |vfs, reply| vfs.flush(ino, handle, reply)).await;
        assert_eq!(closed, Err(Errno::EIO));
        assert_eq!(mount.fsync((ino, handle)).await, Err(Errno::EIO));
    });
}

#[test]
fn more_names_than_a_journal_has_come_back() {
    const NAMES: u64 = 20_000;
    paused(async {
        let world = World::new(seconds(300)).await;
        let mount = world.mount().await;
        world.fails_with(Fault::Hang);
        for number in 0..NAMES {
            mount.put(&format!("{number}"), b"").await;
        }
        let error = end(mount, seconds(10)).await.expect_err("no store");
        assert!(error.to_string().contains("stays in the spool"), "{error}");
        let mount = world.mount_again().await;
        for number in (0..NAMES).step_by(997) {
            assert_eq!(mount.read(&format!("{number}")).await, Some(Vec::new()));
        }
    });
}

#[test]
fn what_the_spool_does_not_take_is_an_error_in_time() {
    for spool_bytes in [0, 64 << 10] {
        paused(async {
            let mut world = World::new(seconds(300)).await;
            world.spool_bytes = spool_bytes;
            let mount = world.mount().await;
            world.fails_with(Fault::Hang);
            mount.write("never closed", &noise(1, 3 << 20)).await;
            let error = end(mount, seconds(10)).await.expect_err("no store");
            assert!(!error.to_string().contains("stays in the spool"), "{error}");
        });
    }
}

#[test]
fn an_end_with_a_store_that_works_is_quick_and_leaves_nothing_behind() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let mount = world.mount().await;
        let closed = put_all(&mount).await;
        let begin = Instant::now();
        end(mount, seconds(600)).await.expect("ended");
        assert!(begin.elapsed() < seconds(5), "{:?}", begin.elapsed());
        let listed = world.faults.list("journal/", None, 100).await;
        assert_eq!(listed.expect("listed").len(), 0);
        all_are_there(&world.mount().await, &closed).await;
    });
}

async fn acknowledge(mount: &Mount) -> String {
    let request = Bytes::from_static(br#"{"acknowledge":{}}"#);
    mount.0.vfs.control().handle(request).await
}

/// A loss is acknowledged while the disk of the spool hangs. The mount would go on without what the
/// spool alone holds.
#[test]
fn a_loss_is_not_acknowledged_without_the_spool() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let mount = world.mount().await;
        world.fails_with(Fault::Hang);
        mount.put("in the spool", b"closed").await;
        tokio::time::sleep(seconds(10)).await;
        world.disk.hold();
        mount.put("on its way", b"to the spool").await;
        tokio::time::sleep(seconds(10)).await;
        let volume = mount.0.volume().expect("writable").clone();
        volume.poison(VolumeError::Commit("a test".into()));
        world.faults.heal();
        let answer = tokio::time::timeout(seconds(60), acknowledge(&mount)).await;
        let answer = answer.expect("it waits for no disk");
        assert!(answer.contains("the disk does not answer"), "{answer}");
        assert_eq!(mount.read("in the spool").await, Some(b"closed".to_vec()));
        world.disk.let_go();
        let answer = acknowledge(&mount).await;
        assert!(!answer.contains("error"), "{answer}");
        assert_eq!(mount.read("in the spool").await, Some(b"closed".to_vec()));
    });
}

/// Returns a mount that has acknowledged a file, and its volume.
async fn with_an_acknowledged_file(world: &World) -> (Mount, Arc<Volume>) {
    let mount = world.mount().await;
    let file = mount.write("file", b"contents").await;
    mount.fsync(file).await.expect("acknowledged");
    let volume = mount.0.volume().expect("writable").clone();
    (mount, volume)
}

/// A new session of the mount has taken the volume over, and the store then takes neither its first
/// commit, or the removal of the session before it, nor its end.
#[test]
fn an_acknowledgement_that_failed_half_way_can_be_repeated() {
    for is_to_replay in [true, false] {
        paused(async {
            let world = World::new(seconds(20)).await;
            let (mount, volume) = with_an_acknowledged_file(&world).await;
            if !is_to_replay {
                volume.commit().await.expect("committed");
            }
            volume.poison(VolumeError::Commit("a test".into()));
            let denied = Fault::FailBefore(StoreErrorKind::Denied);
            let after_takeover = Strike::with(denied).on_writes().keys("root").nth(2);
            world.faults.plan(after_takeover.always());
            for _ in 0..2 {
                let answer = acknowledge(&mount).await;
                assert!(answer.contains("error"), "{answer}");
            }
            assert!(world.faults.struck() > 2, "the commit and the end");
            world.faults.heal();
            let answer = acknowledge(&mount).await;
            assert!(!answer.contains("error"), "{answer}");
            let expected = Some(b"contents".to_vec());
            assert_eq!(mount.read("file").await, expected);
            mount.put("afterwards", b"written").await;
            end(mount, seconds(60)).await.expect("ended");
            assert_eq!(world.mount().await.read("file").await, expected);
        });
    }
}

/// The entry of the new session has no answer, and the store makes it later, or not.
#[test]
fn an_acknowledgement_without_an_answer_can_be_repeated() {
    for is_made in [true, false] {
        paused(async {
            let world = World::new(seconds(20)).await;
            let (mount, volume) = with_an_acknowledged_file(&world).await;
            volume.poison(VolumeError::Commit("a test".into()));
            let late = Strike::with(Fault::Late).on_writes().keys("root");
            world.faults.plan(late.always());
            let answer = acknowledge(&mount).await;
            assert!(answer.contains("error"), "{answer}");
            world.faults.heal();
            if is_made {
                assert!(world.faults.apply_late().await > 0);
            }
            let answer = acknowledge(&mount).await;
            assert!(!answer.contains("error"), "{answer}");
            assert_eq!(mount.read("file").await, Some(b"contents".to_vec()));
        });
    }
}

/// The new session takes the failed one out of the root, by its first commit or, if there is nothing
/// to replay, before it. The change is made and has no answer. The store answers again after some
/// seconds: before the new session gives up, while it gives up, or later.
#[test]
fn an_acknowledgement_that_removed_the_failed_session_can_be_repeated() {
    for is_to_replay in [true, false] {
        let mut failed = 0;
        for healed_after in (5..90).step_by(5) {
            paused(async {
                let world = World::new(seconds(20)).await;
                let (mount, volume) = with_an_acknowledged_file(&world).await;
                if !is_to_replay {
                    volume.commit().await.expect("committed");
                }
                volume.poison(VolumeError::Commit("a test".into()));
                let removal = Strike::with(Fault::HoldAfter(Gate::new())).on_writes();
                world.faults.plan(removal.keys("root").nth(2));
                let (first, ()) = tokio::join!(acknowledge(&mount), async {
                    while world.faults.struck() == 0 {
                        tokio::time::sleep(seconds(1)).await;
                    }
                    let fault = Fault::FailBefore(StoreErrorKind::Unreachable);
                    let root = Strike::with(fault).keys("root");
                    world.faults.plan(root.always());
                    tokio::time::sleep(seconds(healed_after)).await;
                    world.faults.heal();
                });
                if first.contains("error") {
                    failed += 1;
                    // The next session enters, cannot read journals, and leaves.
                    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
                    let second = denied.on(Operation::List).keys("journal/").nth(2);
                    world.faults.plan(second.always());
                    acknowledge(&mount).await;
                    world.faults.heal();
                }
                let again = acknowledge(&mount).await;
                assert!(!again.contains("error"), "{healed_after}: {first}, {again}");
                mount.put("afterwards", b"written").await;
                end(mount, seconds(60)).await.expect("ended");
                let expected = Some(b"contents".to_vec());
                assert_eq!(world.mount().await.read("file").await, expected);
            });
        }
        assert!(failed > 0, "every change had its answer");
    }
}

/// Nothing can be stored for a while, and each acknowledgement fails after its session has entered.
#[test]
fn acknowledgements_that_fail_leave_no_session_each() {
    paused(async {
        let world = World::new(seconds(20)).await;
        let (mount, volume) = with_an_acknowledged_file(&world).await;
        volume.poison(VolumeError::Commit("a test".into()));
        let denied = Fault::FailBefore(StoreErrorKind::Denied);
        let packs = Strike::with(denied).on_writes().keys("meta/");
        world.faults.plan(packs.always());
        let repository = world.repository().await;
        for _ in 0..3 {
            let answer = acknowledge(&mount).await;
            assert!(answer.contains("error"), "{answer}");
            let view = repository.handle.refresh().await.expect("read");
            assert_eq!(view.root.sessions.len(), 1, "{:?}", view.root.sessions);
        }
        world.faults.heal();
        let answer = acknowledge(&mount).await;
        assert!(!answer.contains("error"), "{answer}");
        let expected = Some(b"contents".to_vec());
        assert_eq!(mount.read("file").await, expected);
    });
}

/// The volume of a mount that was dropped before it began may belong to another mount by the time
/// that the store answers again.
#[test]
fn a_mount_that_is_dropped_before_it_begins_commits_nothing_later() {
    paused(async {
        let world = World::new(seconds(20)).await;
        // It enters the root, and is dropped while it waits for its first commit.
        let silent = Strike::with(Fault::Hang).on_writes().keys("root").nth(2);
        world.faults.plan(silent.always());
        let begun = tokio::time::timeout(seconds(5), world.try_assemble(false)).await;
        assert!(begun.is_err(), "it does not wait for its commit");
        assert!(world.faults.struck() > 0, "it does not commit");
        let before = root_of(&world).await;
        world.faults.heal();
        tokio::time::sleep(seconds(600)).await;
        assert_eq!(root_of(&world).await, before);
    });
}

/// Returns the bytes of the root.
async fn root_of(world: &World) -> Bytes {
    world.faults.get("root").await.expect("there").0
}

/// What is written goes on where the bucket alone has the bytes before it, or the rest of a page.
/// The store is silent for good.
#[test]
fn writing_on_in_an_outage_keeps_no_closed_file_from_the_spool() {
    let pages = [b"SQLite format 3\0".to_vec(), noise(3, 4_000_000)].concat();
    let appended = (noise(1, 1_118_576), 1_118_576, 2_451_424);
    for (old, offset, length) in [appended, (pages, 1_000_001, 2_000_000)] {
        paused(async {
            let world = World::new(seconds(60)).await;
            let mount = world.mount().await;
            mount.put("file", &old).await;
            let volume = mount.0.volume().expect("writable").clone();
            volume.commit().await.expect("committed");
            end(mount, seconds(60)).await.expect("ended");
            let mount = world.mount().await;
            world.fails_with(Fault::Hang);
            mount.put("before", b"closed").await;
            let new = noise(2, length);
            mount.write_on("file", offset as u64, &new).await;
            mount.put("after", b"closed").await;
            tokio::time::sleep(seconds(6)).await;
            drop(mount);
            let again = world.mount_again().await;
            for name in ["before", "after"] {
                assert_eq!(again.read(name).await, Some(b"closed".to_vec()), "{name}");
            }
            let mut expected = old;
            expected.resize(expected.len().max(offset + length), 0);
            expected[offset..offset + length].copy_from_slice(&new);
            assert!(again.read("file").await == Some(expected), "{offset}");
        });
    }
}
