//! The removal of volumes, and what a rebuilt root has of clones and of removed volumes
//! (docs/PROTOCOL.md, *Clones and removed volumes*).

use bkfs::maintain::forgetting::forgotten;
use bkfs::repository::Repository;
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::refusal::Refusal;
use bkfs::volumes::remove;
use bkfs::volumes::undo::{Undone, undo_removal};
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};

use crate::clones::{
    METADATA, changer, clone, crash_at_every_request, lose_root, read, require_whole, root, with,
    world,
};
use crate::collecting::forget_at;
use crate::paused::{World, paused, seconds, snapshot};

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

async fn undo(repository: &Repository) -> Result<Undone, RootError> {
    let undone = undo_removal(repository, "main", "test").await?;
    Ok(undone.expect("the trash has its last state"))
}

#[test]
fn a_removal_is_undone_or_goes_on_whatever_fails() {
    paused(async {
        let count = async |repository: &Repository| {
            let list = repository.snapshots().await?;
            Ok::<_, RootError>(list.iter().count())
        };
        let work = async |repository: &Repository| {
            let view = repository.handle.refresh().await?;
            match view.root.volumes.contains_key("main") {
                true if count(repository).await? == 1 => {
                    remove(repository, "main", true, "test").await?;
                }
                true => return Ok(()),
                false => {}
            }
            undo(repository).await?;
            if let Ok(found) = count(repository).await {
                assert_eq!(found, 2, "all snapshots are back");
            }
            Ok(())
        };
        let is_done = async |world: &World| {
            let is_there = root(world).await.volumes.contains_key("main");
            let repository = world.elsewhere().repository().await;
            let is_done = is_there && count(&repository).await.expect("listed") == 2;
            if is_done {
                let contents = read(world, "main", "file0").await;
                assert_eq!(contents.unwrap(), b"later by 1");
            }
            is_done
        };
        let (made, not_made) = crash_at_every_request(2, work, is_done).await;
        assert!(
            made > 4 && not_made > 40,
            "{made} made, {not_made} not made"
        );
    });
}

/// Delays the next metadata of this machine for so long that others change the root meanwhile.
fn delay_metadata(world: &World) {
    let slow = Strike::with(Fault::Delay(seconds(5)));
    (world.faults).plan(slow.keys(METADATA).on(Operation::PutNew));
}

#[test]
fn a_removal_that_loses_to_a_commit_has_its_record_in_the_bucket() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        delay_metadata(&world);
        let other = world.elsewhere();
        let meanwhile = async {
            tokio::time::sleep(seconds(2)).await;
            let mount = other.mount().await;
            mount.put("last", b"before the removal").await;
            mount.0.finish().await.expect("ended");
        };
        let (removed, ()) = futures::join!(remove(&repository, "main", true, "test"), meanwhile);
        removed.expect("removed");
        require_whole(&world).await;
        undo(&repository).await.expect("undone");
        assert_eq!(
            read(&world, "main", "last").await.unwrap(),
            b"before the removal"
        );
    });
}

#[test]
fn a_removal_is_undone_and_nothing_else_whatever_clocks_say() {
    paused(async {
        let world = world(2).await;
        let mount = world.mount().await;
        snapshot(&mount, "two").await;
        mount.0.finish().await.expect("ended");
        let repository = world.repository().await;
        // The clock of the host that forgets is ten minutes fast.
        let fast = repository.now() + jiff::SignedDuration::from_mins(10);
        forget_at(&repository, "one", fast).await;
        let nothing = undo_removal(&repository, "absent", "test").await;
        assert!(nothing.expect("looked").is_none());
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        let undone = undo(&repository).await.expect("undone");
        assert_eq!(undone.restored, 2);
        let list = repository.snapshots().await.expect("listed");
        assert!(list.named("main", "two").is_some() && list.named("main", "one").is_none());
        assert_eq!(read(&world, "main", "file0").await.unwrap(), b"later by 1");
        require_whole(&world).await;
    });
}

#[test]
fn a_volume_without_a_last_state_in_the_trash_is_not_guessed() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        let trash = forgotten(&repository, "main").await.expect("listed");
        let of_removal = trash.iter().find(|entry| entry.snapshot.name != "one");
        let last = &of_removal.expect("the last state").snapshot.name;
        // The last state was forgotten for good, and the snapshot before it was brought back.
        changer(&repository)
            .bring_back("main", "one")
            .await
            .expect("is back");
        gather_in_window(&repository).await;
        let trash = forgotten(&repository, "main").await.expect("listed");
        assert!(trash.iter().any(|entry| entry.snapshot.name == *last));
        for _ in 0..3 {
            crate::collecting::gather(&repository).await;
        }
        let nothing = undo_removal(&repository, "main", "test").await;
        assert!(nothing.expect("looked").is_none());
        assert!(!root(&world).await.volumes.contains_key("main"));
    });
}

#[test]
fn a_rebuilt_root_has_the_newest_state_of_a_volume_that_came_back() {
    paused(async {
        let world = world(2).await;
        // The snapshot `late` is one of many commits.
        for number in 0..6 {
            let mount = world.mount().await;
            mount.put("number", format!("{number}").as_bytes()).await;
            snapshot(&mount, &format!("late{number}")).await;
            mount.0.finish().await.expect("ended");
        }
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        let last = undo(&repository).await.expect("undone").last;
        let mount = world.mount().await;
        mount.put("new", b"after its return").await;
        mount.0.finish().await.expect("ended");
        // Nothing says any more that the volume was removed once.
        changer(&repository)
            .forget("main", std::slice::from_ref(&last.name))
            .await
            .expect("forgotten");
        for _ in 0..4 {
            crate::collecting::gather(&repository).await;
        }
        drop(repository);
        lose_root(&world).await;
        assert_eq!(
            read(&world, "main", "new").await.unwrap(),
            b"after its return"
        );
        let repository = world.elsewhere().repository().await;
        let list = repository.snapshots().await.expect("listed");
        for name in ["one", "late0", "late5"] {
            assert!(list.named("main", name).is_some(), "{name} is gone");
        }
        require_whole(&world).await;
    });
}

#[test]
fn a_rebuilt_root_has_a_fresh_volume_before_a_clone_that_was_never_made() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        // The program ends once its index object is in the bucket, and before the clone is in the
        // root.
        let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        (world.faults).plan(strike.on(Operation::Replace).keys("root").nth(2).always());
        let unmade = clone(&repository, ("main", "one"), "try").await;
        unmade.expect_err("never made");
        world.faults.heal();
        drop(repository);
        let mount = with(&world, "try").mount().await;
        mount.put("new", b"of a fresh volume").await;
        mount.0.finish().await.expect("ended");
        lose_root(&world).await;
        assert_eq!(
            read(&world, "try", "new").await.unwrap(),
            b"of a fresh volume"
        );
        assert_eq!(read(&world, "try", "file0").await, None);
        require_whole(&world).await;
    });
}

#[test]
fn a_rebuilt_root_has_a_clone_before_a_later_one_that_was_never_made() {
    paused(async {
        let world = world(2).await;
        let repository = world.repository().await;
        delay_metadata(&world);
        let other = world.elsewhere();
        let unmade = async {
            tokio::time::sleep(seconds(2)).await;
            let repository = other.repository().await;
            for name in ["a", "b", "c"] {
                clone(&repository, ("main", "one"), name)
                    .await
                    .expect("made");
            }
            let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
            (other.faults).plan(strike.on(Operation::Replace).keys("root").nth(2).always());
            let unmade = clone(&repository, ("main", "one"), "try").await;
            unmade.expect_err("never made");
        };
        let (made, ()) = futures::join!(clone(&repository, ("main", "one"), "try"), unmade);
        made.expect("made");
        drop(repository);
        // The record that the root names is not that of the attempt which lost.
        require_whole(&world).await;
        let mount = with(&world, "try").mount().await;
        mount.put("new", b"of the clone").await;
        mount.0.finish().await.expect("ended");
        lose_root(&world).await;
        assert_eq!(read(&world, "try", "new").await.unwrap(), b"of the clone");
        require_whole(&world).await;
    });
}

#[test]
fn a_rebuilt_root_has_a_fresh_volume_before_a_former_one_of_its_name() {
    paused(async {
        let world = world(2).await;
        for number in 0..6 {
            let mount = world.mount().await;
            mount.put("number", format!("{number}").as_bytes()).await;
            snapshot(&mount, &format!("late{number}")).await;
            mount.0.finish().await.expect("ended");
        }
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        // One snapshot is kept, and nothing says any more that the volume was removed.
        changer(&repository)
            .bring_back("main", "late5")
            .await
            .expect("is back");
        for _ in 0..4 {
            crate::collecting::gather(&repository).await;
        }
        drop(repository);
        let mount = world.mount().await;
        mount.put("new", b"of a fresh volume").await;
        mount.0.finish().await.expect("ended");
        lose_root(&world).await;
        assert_eq!(
            read(&world, "main", "new").await.unwrap(),
            b"of a fresh volume"
        );
        require_whole(&world).await;
    });
}

/// Lets no request delete a journal, as when a machine stops before it does.
fn keep_journals(world: &World) {
    let strike = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
    let strike = strike.on(Operation::Delete).keys("journal/");
    world.faults.plan(strike.always());
}

/// Returns the number of journals in the bucket.
async fn journals(world: &World) -> usize {
    let repository = world.elsewhere().repository().await;
    let listed = repository.handle.store().list("journal/", None, 100).await;
    listed.expect("listed").len()
}

#[test]
fn a_rebuilt_root_has_no_journals_of_a_former_volume_in_a_fresh_one() {
    paused(async {
        let world = world(2).await;
        keep_journals(&world);
        let mount = world.mount().await;
        let file = mount.write("synced", b"of the former volume").await;
        mount.fsync(file).await.expect("synced");
        mount.0.finish().await.expect("ended");
        assert!(journals(&world).await > 0);
        let repository = world.repository().await;
        remove(&repository, "main", true, "test")
            .await
            .expect("removed");
        drop(repository);
        let mount = world.mount().await;
        mount.put("new", b"of a fresh volume").await;
        mount.0.finish().await.expect("ended");
        assert!(journals(&world).await > 0);
        lose_root(&world).await;
        assert_eq!(read(&world, "main", "synced").await, None);
        assert_eq!(
            read(&world, "main", "new").await.unwrap(),
            b"of a fresh volume"
        );
        require_whole(&world).await;
    });
}

#[test]
fn a_rebuilt_root_has_no_journals_that_a_commit_has_carried_out() {
    paused(async {
        let world = world(2).await;
        keep_journals(&world);
        let mount = world.mount().await;
        let file = mount.write("synced", b"acknowledged").await;
        mount.fsync(file).await.expect("synced");
        drop(mount);
        let other = world.elsewhere();
        keep_journals(&other);
        let mount = other.mount().await;
        mount.put("synced", b"written later").await;
        snapshot(&mount, "newer").await;
        mount.0.finish().await.expect("ended");
        assert!(journals(&world).await > 0);
        lose_root(&world).await;
        assert_eq!(
            read(&world, "main", "synced").await.unwrap(),
            b"written later"
        );
        require_whole(&world).await;
    });
}
