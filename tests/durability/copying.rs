//! Copies of snapshots that break off. The volume shows its last whole state, and the next copy
//! goes on, whatever happened in between.

use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::replicate::progress::CopyProgress;
use bkfs::replicate::{Outcome, Pace, ReplicateError, Replication};
use bkfs::repository::{Repository, open_in};
use bkfs::root::snapshots::SnapshotEntry;
use bkfs::root::state::Volume;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volumes::remove;
use bkfs_store::MemoryStore;

use crate::clones::changer;
use crate::collecting::{forget_one, gc, snapshot, unlink};
use crate::host::{Bucket, Host, Unsealed, noise, opening, runtime};

const MIB: usize = 1 << 20;

/// Returns the contents of the file of the first snapshot, and of the file of the second.
pub fn contents() -> (Vec<u8>, Vec<u8>) {
    (noise(1, 24 * MIB + 77), noise(2, 20 * MIB + 5))
}

fn source() -> Bucket {
    let bucket = Bucket::new();
    let (first, second) = contents();
    let host = bucket.host();
    host.write("first", 0, first);
    snapshot(&host, "one");
    unlink(&host, "first");
    host.write("second", 0, second);
    snapshot(&host, "two");
    host.finish().expect("unmounted");
    bucket
}

/// Opens a repository.
pub async fn open(store: &Arc<MemoryStore>) -> Repository {
    let opening = opening(std::time::Duration::from_secs(10));
    let opened = open_in(store.clone(), opening, &mut Unsealed).await;
    opened.expect("opened")
}

/// Makes a snapshot anew.
fn replace(host: &Host, name: &str) {
    let request = SnapshotRequest {
        name: Some(name.to_owned()),
        replaces: true,
        ..SnapshotRequest::default()
    };
    host.run(host.volume().snapshot(request)).expect("made");
}

pub fn volume(bucket: &Bucket) -> Volume {
    bucket.work(bucket.memory.clone(), async |repository| {
        repository.volume_entry("main")
    })
}

/// Copies these snapshots. Returns the bytes that were sent. If `breaks` is given, the copy stops
/// after that many commits without a snapshot, or, with 0, once its session has the volume. The
/// session stays in the root.
pub fn copy(
    from: &Bucket,
    to: &Bucket,
    names: &[&str],
    anew: bool,
    breaks: Option<u64>,
) -> Result<u64, ReplicateError> {
    copy_as(from, to, names, (anew, false), breaks)
}

/// Copies as [`copy`] does. `options` are `anew` and `replaces`.
fn copy_as(
    from: &Bucket,
    to: &Bucket,
    names: &[&str],
    options: (bool, bool),
    breaks: Option<u64>,
) -> Result<u64, ReplicateError> {
    copy_at(Pace::every(MIB as u64), (from, to, names), options, breaks)
}

fn copy_at(
    pace: Pace,
    (from, to, names): (&Bucket, &Bucket, &[&str]),
    (anew, replaces): (bool, bool),
    breaks: Option<u64>,
) -> Result<u64, ReplicateError> {
    let runtime = runtime();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let done = runtime.block_on(async {
        let from = open(&from.memory).await;
        let to = Arc::new(open(&to.memory).await);
        let progress = CopyProgress::default();
        let replication = Replication {
            from: &from,
            to: &to,
            volume: "main",
            names: &names,
            steal: true,
            accept_loss: false,
            anew,
            replaces,
            pace,
            progress: &progress,
        };
        let mut roots = to.handle.subscribe();
        let begun = to.volume_entry("main").sequence;
        let far = async {
            let is_far = |breaks| {
                let entry = to.volume_entry("main");
                entry.sequence >= begun + breaks && (breaks > 0 || entry.holder.is_some())
            };
            while !breaks.is_some_and(is_far) {
                roots.changed().await.expect("the root is followed");
            }
        };
        let mut each = |_: &Outcome| ();
        tokio::select! {
            biased;
            () = far => Ok(()),
            copied = replication.run(&mut each) => {
                assert!(breaks.is_none() || copied.is_err(), "it did not break off");
                copied
            }
        }?;
        Ok(to.content_store.metrics().bytes_uploaded)
    });
    runtime.shutdown_background();
    done
}

pub fn is_clean(bucket: &Bucket) {
    let report = runtime().block_on(async {
        let keyring = open(&bucket.memory).await.handle.keyring().clone();
        check(bucket.memory.clone(), &keyring, &CheckOptions::oracle()).await
    });
    let report = report.expect("checked");
    assert!(report.is_clean(), "{report}");
}

/// Checks that the volume holds these files and no others.
pub fn shows(host: &Host, first: Option<&[u8]>, second: Option<&[u8]>) {
    host.attributes(bkfs::volume::ROOT_INODE);
    assert!(
        host.read("first").as_deref() == first,
        "the first file is another"
    );
    assert!(
        host.read("second").as_deref() == second,
        "the second file is another"
    );
}

/// Returns the number of sessions in the root.
pub fn sessions(bucket: &Bucket) -> usize {
    bucket.work(bucket.memory.clone(), async |repository| {
        repository.handle.current().root.sessions.len()
    })
}

/// Mounts a bucket for some work.
pub fn mounted(bucket: &Bucket, work: impl FnOnce(&Host)) {
    let host = bucket.host();
    work(&host);
    host.finish().expect("unmounted");
}

/// Checks that a copy is refused, because the target holds changes of its own.
pub fn diverges(from: &Bucket, to: &Bucket) {
    let diverged = copy(from, to, &[], false, None).expect_err("it holds changes");
    assert!(
        matches!(diverged, ReplicateError::Diverged { .. }),
        "{diverged}"
    );
}

#[test]
fn a_copy_that_broke_off_goes_on_whatever_happened_between() {
    let (first, second) = contents();
    let from = source();
    for is_collected in [false, true] {
        let to = Bucket::new();
        let sent = copy(&from, &to, &["one"], false, Some(3)).expect("it broke off");
        assert!(volume(&to).building.is_some(), "nothing is kept of it");
        is_clean(&to);
        // The volume is mounted once, and unmounted unchanged.
        let host = to.host();
        shows(&host, None, None);
        host.finish().expect("unmounted");
        is_clean(&to);
        if is_collected {
            gc(&to);
            gc(&to);
            is_clean(&to);
        }
        let rest = copy(&from, &to, &["one"], false, None).expect("it goes on");
        let whole = first.len() as u64;
        assert!(sent > 3 * MIB as u64, "{sent} bytes");
        if is_collected {
            // This mount made the root directory of a new volume, so the rest was garbage.
            assert!(rest > whole, "{rest} bytes");
        } else {
            assert!(rest < whole - 3 * MIB as u64, "{rest} bytes");
        }
        // The next copy breaks off after a snapshot that both have.
        copy(&from, &to, &["two"], false, Some(2)).expect("it broke off");
        let host = to.host();
        shows(&host, Some(&first), None);
        host.finish().expect("unmounted");
        assert!(
            volume(&to).building.is_some(),
            "an unchanged mount gave it up"
        );
        if is_collected {
            gc(&to);
            gc(&to);
        }
        is_clean(&to);
        let rest = copy(&from, &to, &[], false, None).expect("it goes on");
        assert!(rest < second.len() as u64 - MIB as u64, "{rest} bytes");
        assert_eq!(volume(&to).building, None, "it is kept for ever");
        let host = to.host();
        shows(&host, None, Some(&second));
        host.finish().expect("unmounted");
        is_clean(&to);
    }
}

/// What the first copy has stored stays, though the second one breaks off much earlier.
#[test]
fn a_copy_that_only_finds_what_is_there_gives_nothing_up() {
    let (first, _) = contents();
    let from = source();
    let to = Bucket::new();
    let sent = copy(&from, &to, &["one"], false, Some(12)).expect("it broke off");
    copy(&from, &to, &["one"], false, Some(1)).expect("it broke off");
    gc(&to);
    gc(&to);
    is_clean(&to);
    let rest = copy(&from, &to, &["one"], false, None).expect("it goes on");
    let whole = first.len() as u64;
    assert!(rest < whole - sent / 2, "{rest} bytes after {sent}");
}

/// What was found takes memory until the next commit, and there is a limit to that.
#[test]
fn a_copy_that_finds_much_commits_before_anything_is_new() {
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &["one"], false, Some(12)).expect("it broke off");
    let pace = Pace {
        found: 40,
        ..Pace::every(MIB as u64)
    };
    let sent = copy_at(pace, (&from, &to, &["one"]), (false, false), Some(1));
    let sent = sent.expect("it broke off");
    assert!(sent < MIB as u64, "{sent} bytes before the first commit");
    copy(&from, &to, &[], false, None).expect("it goes on");
    is_clean(&to);
}

/// Nothing that an earlier copy has stored would be given up.
#[test]
fn a_copy_commits_on_its_way_though_all_of_it_is_found() {
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &["one"], false, None).expect("copied");
    forget_one(&to);
    let sent = copy(&from, &to, &["one"], false, Some(5)).expect("it broke off");
    assert!(sent < MIB as u64, "{sent} bytes");
    assert!(volume(&to).building.is_some());
}

/// Only the snapshot says which numbers its tree has.
#[test]
fn a_copy_of_a_removed_volume_gives_no_number_out_again() {
    let (first, second) = contents();
    let (from, to) = (source(), Bucket::new());
    from.work(from.memory.clone(), async |repository| {
        let removed = remove(repository, "main", true, "test").await;
        removed.expect("removed");
        let back = changer(repository).bring_back("main", "one").await;
        back.expect("it is back");
    });
    copy(&from, &to, &["one"], false, None).expect("copied");
    mounted(&to, |host| {
        host.write("second", 0, second.clone());
        snapshot(host, "own");
    });
    mounted(&to, |host| shows(host, Some(&first), Some(&second)));
    is_clean(&to);
}

#[test]
fn a_volume_that_was_changed_starts_anew_when_it_is_told_to() {
    let (first, second) = contents();
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &["one"], false, None).expect("copied");
    copy(&from, &to, &["two"], false, Some(2)).expect("it broke off");
    let host = to.host();
    host.write("own", 0, noise(9, 1000));
    host.finish().expect("unmounted");
    assert_eq!(
        volume(&to).building,
        None,
        "a tree that no copy goes on with is kept"
    );
    diverges(&from, &to);
    let host = to.host();
    shows(&host, Some(&first), None);
    assert!(
        host.read("own").is_some(),
        "a copy that is refused changes nothing"
    );
    host.finish().expect("unmounted");
    copy(&from, &to, &[], true, None).expect("it starts anew");
    let host = to.host();
    shows(&host, None, Some(&second));
    assert_eq!(host.read("own"), None);
    host.finish().expect("unmounted");
    copy(&from, &to, &[], false, None).expect("there is nothing to do");
    is_clean(&to);
}

/// A copy that was killed before it committed anything says nothing of what the volume holds.
#[test]
fn a_copy_that_broke_off_at_once_gives_no_changes_up() {
    let (first, _) = contents();
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &["one"], false, None).expect("copied");
    mounted(&to, |host| host.write("own", 0, noise(9, 1000)));
    copy(&from, &to, &[], false, Some(0)).expect("it broke off");
    diverges(&from, &to);
    mounted(&to, |host| {
        shows(host, Some(&first), None);
        assert_eq!(host.read("own"), Some(noise(9, 1000)));
    });
    is_clean(&to);
}

/// Retention on either side leaves a volume whose state no snapshot of the other side has.
#[test]
fn a_copy_goes_on_after_its_last_snapshot_was_forgotten() {
    let (first, second) = contents();
    for is_at_source in [true, false] {
        let from = source();
        let to = Bucket::new();
        copy(&from, &to, &["one"], false, None).expect("copied");
        let bucket = if is_at_source { &from } else { &to };
        forget_one(bucket);
        copy(&from, &to, &["two"], false, Some(2)).expect("it broke off");
        mounted(&to, |host| shows(host, Some(&first), None));
        copy(&from, &to, &["two"], false, None).expect("nothing is lost");
        mounted(&to, |host| shows(host, None, Some(&second)));
        is_clean(&to);
    }
}

/// The target may forget what the source still has.
#[test]
fn what_is_older_than_the_newest_copy_keeps_nothing_from_being_copied() {
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &[], false, None).expect("copied");
    forget_one(&to);
    mounted(&from, |host| {
        host.write("third", 0, noise(3, 1000));
        snapshot(host, "three");
    });
    copy(&from, &to, &[], false, None).expect("the others are copied");
    let names = to.work(to.memory.clone(), async |repository| {
        let kept = repository.snapshots().await.expect("listed");
        let names = kept.of_volume("main").into_iter();
        names.map(|entry| entry.name.clone()).collect::<Vec<_>>()
    });
    assert_eq!(names, ["two", "three"]);
    let older = copy(&from, &to, &["one"], false, None).expect_err("it was asked for");
    assert!(matches!(older, ReplicateError::Older { .. }), "{older}");
}

/// `bkfs run --replace` makes a snapshot of a name anew, also after it was copied.
#[test]
fn a_snapshot_that_was_made_anew_takes_the_place_of_its_copy() {
    let (_, second) = contents();
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &[], false, None).expect("copied");
    mounted(&from, |host| {
        host.write("third", 0, noise(3, 1000));
        replace(host, "two");
    });
    let taken = copy(&from, &to, &[], false, None).expect_err("it was not told to");
    assert!(matches!(taken, ReplicateError::Taken { .. }), "{taken}");
    copy_as(&from, &to, &[], (false, true), None).expect("it is copied");
    mounted(&to, |host| {
        shows(host, None, Some(&second));
        assert_eq!(host.read("third"), Some(noise(3, 1000)));
    });
    let trash = to.work(to.memory.clone(), async |repository| {
        let root = repository.handle.current().root.clone();
        let trash = repository.lists.known_trash(&root.trash).await;
        let trash = trash.expect("listed");
        let now = repository.now();
        let entries = trash.iter().flat_map(|shard| shard.iter());
        let names = entries.map(|entry| {
            let age = now.duration_since(entry.forgotten);
            (entry.snapshot.name.clone(), age.as_secs() < 1000)
        });
        names.collect::<Vec<_>>()
    });
    assert_eq!(
        trash,
        [("two".to_owned(), true)],
        "forgotten by the clock of now"
    );
    is_clean(&to);
}

/// A snapshot of the target's own stays, whatever name it has.
#[test]
fn a_snapshot_of_the_target_is_not_replaced() {
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &["one"], false, None).expect("copied");
    mounted(&to, |host| {
        host.write("own", 0, noise(9, 1000));
        snapshot(host, "two");
    });
    mounted(&from, |host| {
        host.wait(2.0);
        replace(host, "two");
    });
    let taken = copy_as(&from, &to, &[], (false, true), None).expect_err("it has the name");
    assert!(matches!(taken, ReplicateError::Taken { .. }), "{taken}");
}

/// A copy of it was replaced where it is, and its successor comes back.
#[test]
fn a_snapshot_of_the_target_is_not_replaced_by_the_successor_of_its_copy() {
    let (home, away) = (source(), Bucket::new());
    copy(&home, &away, &[], false, None).expect("copied");
    mounted(&away, |host| {
        host.write("own", 0, noise(9, 1000));
        replace(host, "two");
    });
    let taken = copy_as(&away, &home, &["two"], (false, true), None).expect_err("it has the name");
    assert!(matches!(taken, ReplicateError::Taken { .. }), "{taken}");
}

/// Returns the snapshots of a bucket, oldest first.
pub fn kept(bucket: &Bucket) -> Vec<SnapshotEntry> {
    bucket.work(bucket.memory.clone(), async |repository| {
        let kept = repository.snapshots().await.expect("listed");
        kept.of_volume("main").into_iter().cloned().collect()
    })
}

/// A collection has emptied the source's trash, but the copy notes what it is a copy of.
#[test]
fn a_copy_is_replaced_after_the_source_has_emptied_its_trash() {
    let (first, _) = contents();
    let from = source();
    let to = Bucket::new();
    copy(&from, &to, &[], false, None).expect("copied");
    mounted(&from, |host| {
        host.write("first", 0, first.clone());
        replace(host, "two");
    });
    gc(&from);
    gc(&from);
    let taken = copy(&from, &to, &[], false, None).expect_err("it was not told to");
    assert!(matches!(taken, ReplicateError::Taken { .. }), "{taken}");
    copy_as(&from, &to, &[], (false, true), None).expect("it is copied");
    let (made, copied) = (kept(&from), kept(&to));
    assert_eq!(made.len(), 2);
    for (made, copied) in made.iter().zip(&copied) {
        let origin = copied.origin.expect("noted");
        assert_eq!(
            (origin.commit, origin.generation),
            (made.commit, made.generation)
        );
    }
    is_clean(&to);
}
