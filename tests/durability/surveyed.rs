//! Spools that a mount cannot look into, that lack journals in the middle, that a concurrent commit
//! covers while they are judged, and those of other volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::error::{MountingError, SpoolingError};
use bkfs::mounting::settings::Settings;
use bkfs_store::disk::Disk;
use bkfs_store::{Layer, MemoryStore, Operation, Store, StoreError, StoreErrorKind, Version};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::host::{Bucket, Host, noise, runtime};
use crate::recovery_bases::read_in;
use crate::rotten::{accepted, dead, dead_after, files, key, mount, object, refused, sent, whole};

/// The directory of the only spool.
fn spool(disk: &SimulatedDisk) -> PathBuf {
    let file = files(disk, ".journal+").remove(0);
    file.parent().expect("a directory").to_owned()
}

/// Puts the object of a file of the spool into the bucket, as its mount would have done.
fn put(bucket: &Bucket, disk: &SimulatedDisk, file: &Path) {
    let key = key(file);
    let put = bucket.memory.put_new(&key, vec![object(disk, file)]);
    runtime().block_on(put).expect("put");
}

/// What the bucket holds becomes what `other` holds.
fn replace(bucket: &MemoryStore, other: &MemoryStore) {
    runtime().block_on(async {
        for info in bucket.list("", None, 10_000).await.expect("listed") {
            bucket.delete(&info.key).await.expect("deleted");
        }
        for info in other.list("", None, 10_000).await.expect("listed") {
            let (bytes, _) = other.get(&info.key).await.expect("read");
            bucket.put_new(&info.key, vec![bytes]).await.expect("put");
        }
    });
}

#[test]
fn a_spool_that_cannot_be_read_is_not_passed_over() {
    let kinds = [
        std::io::ErrorKind::PermissionDenied,
        std::io::ErrorKind::Other,
    ];
    for kind in kinds {
        let (bucket, disk) = dead();
        let (directory, there, kept) = (spool(&disk), sent(&bucket), disk.paths());
        disk.close(&directory, kind);
        match mount(&bucket, &disk, false, "main").map(|_| ()) {
            Err(MountingError::Spool(error @ SpoolingError::Unreadable { .. })) => {
                is_told_as_damage(&error, &directory);
            }
            other => panic!("{other:?}"),
        }
        disk.kill();
        assert_eq!(sent(&bucket), there, "nothing was sent");
        // Nor does it stop the mount of another volume.
        let host = mount(&bucket, &disk, false, "other").expect("of another volume");
        let news = host.assembled.spool_news();
        assert_eq!(news.stranded[0].path, directory.display().to_string());
        host.finish().expect("unmounted");

        stays_until_it_can_be_read(&bucket, &disk, &directory, &kept);
    }
}

/// Checks that the error of a mount of `main` names what cannot be read, and what to do.
pub fn is_told_as_damage(error: &SpoolingError, named: &Path) {
    assert!(error.is_damage(), "exit code 13");
    let (told, named) = (error.to_string(), named.display().to_string());
    assert!(told.contains(&named), "{told} names {named}");
    assert!(told.contains("volume main"), "{told}");
    let hint = error.hint().expect("a hint");
    assert!(hint.contains("--accept-loss"), "{hint}");
}

/// Accepts the loss of a spool of [`dead`] that cannot be read. All of it stays, and is a snapshot
/// once it can be read: the volume went on without it.
pub fn stays_until_it_can_be_read(
    bucket: &Bucket,
    disk: &SimulatedDisk,
    directory: &Path,
    kept: &[PathBuf],
) {
    let host = mount(bucket, disk, true, "main").expect("accepted");
    assert_eq!(whole(&host), "");
    let news = host.assembled.spool_news();
    assert_eq!(news.stranded[0].path, directory.display().to_string());
    host.finish().expect("unmounted");
    let is_kept = |path: &PathBuf| disk.paths().contains(path);
    assert!(kept.iter().all(is_kept), "all of it stays");
    disk.heal();
    let host = mount(bucket, disk, false, "main").expect("mounted");
    let snapshot = host.assembled.spool_news().recovered[0].snapshot.clone();
    for (seed, name) in [(1, "a"), (2, "b"), (3, "c")] {
        assert!(read_in(&host, &snapshot, name) == Some(noise(seed, 3 << 20)));
    }
    host.finish().expect("unmounted");
}

/// The bucket has the journal right before the one that the spool has, and not the one before that.
#[test]
fn a_journal_that_is_gone_from_the_middle_of_the_chain_is_not_passed_over() {
    let (bucket, disk) = dead();
    let mut journals = files(&disk, ".journal+");
    let (first, second) = (journals.remove(0), journals.remove(0));
    for file in files(&disk, ".data+").iter().chain([&second]) {
        put(&bucket, &disk, file);
    }
    for file in [&first, &second] {
        runtime().block_on(disk.remove(file)).expect("removed");
    }
    refused(&bucket, &disk, &key(&first));
    accepted(&bucket, &disk, "");
}

/// The same, where an fsync before them made a commit instead of a journal, so that the root says
/// that commits cover operations, and no journal.
#[test]
fn a_journal_that_is_gone_after_commits_without_journals_is_not_passed_over() {
    let (bucket, disk) = dead_after(|_, host| fsync_by_commit(host));
    let (operation, journal) = covered(&bucket);
    assert!(operation > 0);
    assert_eq!(journal, Some(0));
    let mut journals = files(&disk, ".journal+");
    let (first, second) = (journals.remove(0), journals.remove(0));
    for file in files(&disk, ".data+").iter().chain([&second]) {
        put(&bucket, &disk, file);
    }
    for file in [&first, &second] {
        runtime().block_on(disk.remove(file)).expect("removed");
    }
    refused(&bucket, &disk, &key(&first));
    accepted(&bucket, &disk, "");
}

/// An fsync of a file in more pieces than a journal carries.
fn fsync_by_commit(host: &Host) {
    const PIECES: u64 = (1 << 16) + 1;
    for piece in 0..PIECES {
        host.write("scattered", 2 * piece, [1]);
    }
    host.fsync().expect("acknowledged");
}

/// The last operation and the last journal of the only session that its commits cover.
fn covered(bucket: &Bucket) -> (u64, Option<u64>) {
    bucket.work(bucket.memory.clone(), async |repository| {
        let view = repository.handle.current();
        let sessions: Vec<_> = view.root.sessions.values().collect();
        assert_eq!(sessions.len(), 1);
        (sessions[0].covered, sessions[0].covered_journal)
    })
}

/// The bucket loses a journal while a mount that accepts losses brings those after it.
#[test]
fn an_intact_spool_behind_a_gap_of_the_bucket_is_set_aside() {
    for (lost, left) in [(0, ""), (1, "a")] {
        let (bucket, disk) = dead();
        let journals = files(&disk, ".journal+");
        for file in files(&disk, ".data+").iter().chain(&journals[..2]) {
            put(&bucket, &disk, file);
        }
        for file in &journals[..2] {
            runtime().block_on(disk.remove(file)).expect("removed");
        }
        let kept = files(&disk, "+");
        let key = key(&journals[lost]);
        let lose = || {
            let deleted = runtime().block_on(bucket.memory.delete(&key));
            deleted.expect("deleted");
        };
        let host = mount_while(&bucket, &disk, Operation::PutNew, true, lose).expect("accepted");
        assert_eq!(whole(&host), left);
        let news = host.assembled.spool_news();
        assert_eq!(news.stranded.len(), 1, "{news:?}");
        assert!(news.stranded[0].path.ends_with(".damaged"), "{news:?}");
        assert!(news.stranded[0].why.contains(&key), "{news:?}");
        host.finish().expect("unmounted");
        assert_eq!(files(&disk, "+").len(), kept.len(), "nothing was removed");
        for file in kept {
            let name = file.file_name().expect("a name");
            let aside = Path::new(&news.stranded[0].path).join(name);
            assert!(disk.paths().contains(&aside), "{}", aside.display());
        }
    }
}

/// A mount of `main` through a store that holds the first such request for a journal up while
/// `meanwhile` is done.
fn mount_while(
    bucket: &Bucket,
    disk: &SimulatedDisk,
    operation: Operation,
    accept_loss: bool,
    meanwhile: impl FnOnce(),
) -> Result<Host, MountingError> {
    let gate = Gate::new();
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    let held = Strike::with(Fault::HoldBefore(gate.clone()));
    faults.plan(held.on(operation).keys("journal/"));
    let (store, disk) = (faults.clone(), disk.clone());
    let settings = Settings {
        accept_loss,
        ..Settings::default()
    };
    let mounting = std::thread::spawn(move || Host::spooling_through(store, &disk, settings));
    while faults.struck() == 0 {
        assert!(!mounting.is_finished(), "it comes to a journal");
        std::thread::sleep(Duration::from_millis(5));
    }
    meanwhile();
    gate.open();
    mounting.join().expect("no panic")
}

/// The same, where the bucket becomes `other` when it is asked for a journal.
fn mount_while_replaced(
    bucket: &Bucket,
    disk: &SimulatedDisk,
    other: &MemoryStore,
) -> Result<Host, MountingError> {
    let meanwhile = || replace(&bucket.memory, other);
    mount_while(bucket, disk, Operation::Head, false, meanwhile)
}

/// The last commit of the dead mount arrives while its spool is judged: it covers what is missing.
#[test]
fn a_commit_that_arrives_meanwhile_covers_what_is_missing() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    let settings = Settings {
        fsync_local: true,
        ..Settings::default()
    };
    let host = Host::spooling_with(&bucket, &disk, settings);
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on_writes();
    host.faults.plan(held.always());
    for (seed, name) in [(1, "a"), (2, "b"), (3, "c")] {
        host.write(name, 0, noise(seed, 3 << 20));
        host.fsync().expect("acknowledged");
    }
    let before = bucket.copy();
    // What it has committed stays in its spool.
    for nth in 1..100 {
        disk.fail(DiskOperation::Remove, nth, std::io::ErrorKind::Other);
    }
    gate.open();
    host.faults.heal();
    host.run(host.volume().commit()).expect("committed");
    host.crash();
    disk.kill();
    disk.heal();
    let file = files(&disk, ".journal+").remove(1);
    runtime().block_on(disk.remove(&file)).expect("removed");
    refused(&before, &disk, &key(&file));
    let host = mount_while_replaced(&before, &disk, &bucket.memory).expect("nothing is missing");
    assert_eq!(whole(&host), "abc");
    assert!(host.assembled.spool_news().stranded.is_empty());
    host.finish().expect("unmounted");
}

/// Another machine ends the session while its spool is judged: its damage no more stops the mount.
#[test]
fn a_session_that_ends_meanwhile_is_recovered_as_a_fenced_one() {
    let (bucket, disk) = dead();
    let file = files(&disk, ".journal+").remove(1);
    runtime().block_on(disk.remove(&file)).expect("removed");
    let after = bucket.copy();
    let new_holder = after.host();
    new_holder.write("taken", 0, noise(4, 10));
    new_holder.finish().expect("left");
    let host = mount_while_replaced(&bucket, &disk, &after.memory).expect("mounted");
    assert_eq!(host.read("taken"), Some(noise(4, 10)));
    assert_eq!(whole(&host), "");
    let news = host.assembled.spool_news();
    assert!(news.recovered.is_empty(), "{news:?}");
    assert_eq!(news.stranded[0].path, spool(&disk).display().to_string());
    host.finish().expect("unmounted");
}

/// The disk refuses a file, or the store an object, of the spool of another volume.
#[test]
fn a_spool_of_another_volume_that_cannot_be_brought_stays() {
    for is_of_disk in [true, false] {
        let (bucket, disk) = dead();
        let directory = spool(&disk);
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        match is_of_disk {
            true => disk.fail(DiskOperation::Read, 1, std::io::ErrorKind::PermissionDenied),
            false => {
                let key = key(&files(&disk, ".data+")[0]);
                let refusal = Strike::with(Fault::FailBefore(StoreErrorKind::Invalid));
                faults.plan(refusal.on(Operation::PutNew).keys(&key).always());
            }
        }
        let settings = |volume: &str| Settings {
            volume: Some(volume.to_owned()),
            ..Settings::default()
        };
        let host = Host::spooling_through(faults.clone(), &disk, settings("other"));
        let host = host.expect("of another volume");
        let news = host.assembled.spool_news();
        assert_eq!(
            news.stranded.len(),
            1,
            "of the disk: {is_of_disk}: {news:?}"
        );
        assert_eq!(news.stranded[0].path, directory.display().to_string());
        assert!(news.stranded[0].bytes > 0);
        host.finish().expect("unmounted");
        assert_eq!(files(&disk, ".journal+").len(), 3, "the spool stays");
        disk.heal();
        faults.heal();
        let host = Host::spooling_through(faults, &disk, settings("main")).expect("mounted");
        assert_eq!(whole(&host), "abc");
        host.finish().expect("unmounted");
    }
}

/// A store where a commit of the dead session has arrived each time that the root is read.
#[derive(Debug)]
struct Moving {
    bucket: Arc<MemoryStore>,
    /// What the root becomes, the next one last.
    roots: Mutex<Vec<Bytes>>,
}

#[async_trait::async_trait]
impl Layer for Moving {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        let next = (key == "root").then(|| self.roots.lock().pop());
        if let Some(root) = next.flatten() {
            self.bucket.put(key, vec![root]).await?;
        }
        self.bucket.get_if_changed(key, known).await
    }
}

/// A copy of the machine goes on committing: no mount waits for its end.
#[test]
fn a_spool_whose_cover_moves_all_the_time_is_not_judged_forever() {
    const COMMITS: usize = 40;
    let mut roots = Vec::new();
    let (bucket, disk) = dead_after(|bucket, host| {
        for number in 0..COMMITS {
            host.write("before", 0, noise(number as u64, 10));
            host.fsync().expect("acknowledged");
            host.run(host.volume().commit()).expect("committed");
            let (root, _) = runtime().block_on(bucket.memory.get("root")).expect("read");
            roots.push(root);
        }
    });
    let lost = files(&disk, ".journal+").remove(1);
    runtime().block_on(disk.remove(&lost)).expect("removed");
    let kept = disk.paths();
    roots.reverse();
    let first = roots.pop().expect("one");
    let put = runtime().block_on(bucket.memory.put("root", vec![first]));
    put.expect("put");
    let store = Arc::new(Moving {
        bucket: bucket.memory.clone(),
        roots: Mutex::new(roots),
    });
    let there = sent(&bucket);
    let mounted = Host::spooling_through(store.clone(), &disk, Settings::default());
    match mounted.map(|_| ()) {
        Err(MountingError::Spool(error @ SpoolingError::Unsettled { .. })) => {
            assert!(!error.is_damage(), "nothing is known to be lost");
            let told = error.to_string();
            let directory = spool(&disk).display().to_string();
            assert!(told.contains(&directory), "{told}");
            assert!(told.contains("volume main"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    let left = store.roots.lock().len();
    assert!((1..COMMITS - 2).contains(&left), "{left} more would follow");
    assert_eq!(sent(&bucket), there, "nothing was sent");
    let is_kept = |path: &PathBuf| disk.paths().contains(path);
    assert!(kept.iter().all(is_kept), "nothing was removed");
}
