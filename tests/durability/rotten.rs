//! A spool whose files the disk has damaged: what fsync had acknowledged is not passed over, and
//! what is accepted as lost stays on the disk for people.

use std::path::{Path, PathBuf};

use bkfs::mounting::error::{MountingError, SpoolingError};
use bkfs::mounting::settings::Settings;
use bkfs_store::Store;
use bkfs_store::disk::Disk;
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::fault::{Fault, Gate, Strike};
use bytes::Bytes;

use crate::collecting::{gc, unlink};
use crate::host::{Bucket, Host, noise, runtime};
use crate::recovery_bases::read_in;

const SPOOL_BYTES: u64 = 256 << 20;

/// More than a journal carries itself.
const BYTES: usize = 3 << 20;

/// Bytes behind the object in each file of a spool.
const TRAILER_BYTES: usize = 48;

/// A machine whose mount has written `a`, `b` and `c` to its spool alone, with an fsync after each,
/// and is dead.
pub fn dead() -> (Bucket, SimulatedDisk) {
    dead_after(|_, _| ())
}

/// The same, after `before`, while the store still took writes.
pub fn dead_after(before: impl FnOnce(&Bucket, &Host)) -> (Bucket, SimulatedDisk) {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    let settings = Settings {
        fsync_local: true,
        ..Settings::default()
    };
    let host = Host::spooling_with(&bucket, &disk, settings);
    before(&bucket, &host);
    let held = Strike::with(Fault::HoldBefore(Gate::new())).on_writes();
    host.faults.plan(held.always());
    for (seed, name) in [(1, "a"), (2, "b"), (3, "c")] {
        host.write(name, 0, noise(seed, BYTES));
        host.fsync().expect("acknowledged");
    }
    host.crash();
    disk.kill();
    assert_eq!(files(&disk, ".journal+").len(), 3);
    assert_eq!(files(&disk, ".data+").len(), 3);
    (bucket, disk)
}

/// The files of a spool with this in their names, in order.
pub fn files(disk: &SimulatedDisk, class: &str) -> Vec<PathBuf> {
    let mut found = disk.paths();
    found.retain(|path| path.to_string_lossy().contains(class));
    found.sort();
    found
}

pub fn key(file: &Path) -> String {
    let name = file.file_name().expect("a name").to_string_lossy();
    let (_, key) = name.split_once('.').expect("a number before it");
    key.replace('+', "/")
}

/// What a file of a spool holds.
pub fn object(disk: &SimulatedDisk, file: &Path) -> Bytes {
    runtime().block_on(async {
        let listed = disk.list(file.parent().expect("a directory")).await;
        let listed = listed.expect("listed");
        let mut listed = listed.into_iter();
        let entry = listed.find(|entry| file.ends_with(&entry.name));
        let data = entry.expect("it is there").data.expect("known");
        let length = data.bytes as usize - TRAILER_BYTES;
        disk.read(file, 0, length).await.expect("read")
    })
}

pub fn mount(
    bucket: &Bucket,
    disk: &SimulatedDisk,
    accept_loss: bool,
    volume: &str,
) -> Result<Host, MountingError> {
    let settings = Settings {
        accept_loss,
        ..Settings::default()
    };
    Host::try_spooling(bucket, disk, settings, volume, SPOOL_BYTES)
}

/// Everything in the bucket that a replay sends.
pub fn sent(bucket: &Bucket) -> Vec<String> {
    let list = |prefix| bucket.memory.list(prefix, None, 1000);
    let classes = ["journal/", "data/", "meta/"].map(|prefix| {
        let listed = runtime().block_on(list(prefix));
        listed.expect("listed").into_iter().map(|info| info.key)
    });
    classes.into_iter().flatten().collect()
}

/// A mount is refused, names `file`, sends nothing and leaves the spool.
pub fn refused(bucket: &Bucket, disk: &SimulatedDisk, file: &str) {
    let (there, kept) = (sent(bucket), disk.paths());
    for _ in 0..2 {
        match mount(bucket, disk, false, "main") {
            Err(MountingError::Spool(error @ SpoolingError::Damaged { .. })) => {
                let told = error.to_string();
                assert!(told.contains(file), "{told} names {file}");
                assert!(
                    error
                        .hint()
                        .is_some_and(|hint| hint.contains("--accept-loss"))
                );
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("the mount says healthy"),
        }
        disk.kill();
        assert_eq!(sent(bucket), there, "nothing was sent");
        let is_kept = |path: &PathBuf| disk.paths().contains(path);
        assert!(kept.iter().all(is_kept), "nothing was removed");
    }
}

/// The names of `a`, `b`, `c` whose contents are there.
pub fn whole(host: &Host) -> String {
    let names = [(1, "a"), (2, "b"), (3, "c")];
    let names = names
        .into_iter()
        .filter(|(seed, name)| host.read(name) == Some(noise(*seed, BYTES)));
    names.map(|(_, name)| name).collect()
}

/// With its loss accepted, a mount goes on with `left`, and the whole spool is set aside.
pub fn accepted(bucket: &Bucket, disk: &SimulatedDisk, left: &str) {
    let kept = files(disk, "+");
    let host = mount(bucket, disk, true, "main").expect("accepted");
    assert_eq!(whole(&host), left);
    let news = host.assembled.spool_news();
    assert!(news.stranded[0].path.ends_with(".damaged"), "{news:?}");
    host.finish().expect("unmounted");
    for file in kept {
        let directory = file.parent().expect("a directory").display();
        let name = file.file_name().expect("a name");
        let aside = PathBuf::from(format!("{directory}.damaged")).join(name);
        assert!(disk.paths().contains(&aside), "{}", aside.display());
        assert!(!disk.paths().contains(&file), "{}", file.display());
    }
    let host = mount(bucket, disk, false, "main").expect("whole again");
    assert_eq!(whole(&host), left);
    assert!(host.assembled.spool_news().stranded.is_empty());
    host.finish().expect("unmounted");
}

#[test]
fn a_damaged_pack_that_a_journal_names_is_not_passed_over() {
    for (index, left) in [(0, ""), (1, "a"), (2, "ab")] {
        let (bucket, disk) = dead();
        let file = files(&disk, ".data+").remove(index);
        disk.rot(&file, 77_777);
        refused(&bucket, &disk, &file.display().to_string());
        accepted(&bucket, &disk, left);
    }
}

#[test]
fn a_pack_that_is_gone_is_not_passed_over() {
    let (bucket, disk) = dead();
    let file = files(&disk, ".data+").remove(1);
    runtime().block_on(disk.remove(&file)).expect("removed");
    refused(&bucket, &disk, &key(&file));
    accepted(&bucket, &disk, "a");
}

/// The last one had been acknowledged as the others: it was flushed under this name.
#[test]
fn a_damaged_journal_is_not_passed_over() {
    for (index, left) in [(0, ""), (1, "a"), (2, "ab")] {
        for is_cut in [false, true] {
            let (bucket, disk) = dead();
            let file = files(&disk, ".journal+").remove(index);
            match is_cut {
                true => (0..9).for_each(|_| disk.cut(&file)),
                false => disk.rot(&file, 777),
            }
            refused(&bucket, &disk, &file.display().to_string());
            accepted(&bucket, &disk, left);
        }
    }
}

#[test]
fn a_journal_that_is_gone_before_another_one_is_not_passed_over() {
    for (index, left) in [(0, ""), (1, "a")] {
        let (bucket, disk) = dead();
        let file = files(&disk, ".journal+").remove(index);
        runtime().block_on(disk.remove(&file)).expect("removed");
        refused(&bucket, &disk, &key(&file));
        accepted(&bucket, &disk, left);
    }
}

/// What had arrived before the machine died, or before an earlier replay did, is not missed.
#[test]
fn what_the_bucket_has_may_be_damaged_in_the_spool() {
    for class in [".data+", ".journal+"] {
        for index in 0..3 {
            let (bucket, disk) = dead();
            let file = files(&disk, class).remove(index);
            // A journal arrives after the packs that it names, and after those before it.
            let before = files(&disk, "+")
                .into_iter()
                .take_while(|other| *other != file);
            for file in before.chain([file.clone()]) {
                let (key, bytes) = (key(&file), object(&disk, &file));
                let put = bucket.memory.put_new(&key, vec![bytes]);
                runtime().block_on(put).expect("put");
            }
            disk.rot(&file, 777);
            let host = mount(&bucket, &disk, false, "main").expect("nothing is lost");
            assert_eq!(whole(&host), "abc", "{class} {index}");
            host.finish().expect("unmounted");
            assert!(files(&disk, "+").is_empty(), "the spool is gone");
        }
    }
}

/// A crash leaves packs that no journal names, and files that were being written.
#[test]
fn what_no_journal_names_may_be_damaged() {
    let (bucket, disk) = dead();
    let directory = files(&disk, ".journal+").remove(0);
    let directory = directory.parent().expect("a directory");
    let name = "data+ff+00000000000000ff-00000001-0000003f";
    for file in [
        format!("0000000000000000.{name}"),
        format!("00000000000000ff.{name}"),
        "new-0000000000000100".to_owned(),
    ] {
        let torn = [Bytes::from(noise(9, 1000))];
        let written = runtime().block_on(disk.write_new(&directory.join(file), &torn));
        written.expect("written");
    }
    let host = mount(&bucket, &disk, false, "main").expect("nothing is lost");
    assert_eq!(whole(&host), "abc");
    assert!(!sent(&bucket).contains(&name.replace('+', "/")));
    host.finish().expect("unmounted");
    assert!(files(&disk, "+").is_empty(), "the spool is gone");
}

/// A mount of another volume neither needs a damaged spool nor accepts its loss.
#[test]
fn a_mount_of_another_volume_leaves_a_damaged_spool() {
    let (bucket, disk) = dead();
    let file = files(&disk, ".journal+").remove(2);
    disk.rot(&file, 777);
    for accept_loss in [false, true] {
        let host = mount(&bucket, &disk, accept_loss, "other").expect("of another volume");
        let news = host.assembled.spool_news();
        let path = file.display().to_string();
        assert!(news.stranded[0].why.contains(&path), "{news:?}");
        host.finish().expect("unmounted");
    }
    refused(&bucket, &disk, &file.display().to_string());
}

/// The volume was taken over elsewhere: what the spool held alone becomes a snapshot, or stays.
#[test]
fn a_damaged_journal_of_a_fenced_spool_is_not_passed_over() {
    for (index, recovers) in [(1, "a"), (2, "ab")] {
        let (bucket, disk) = dead();
        let new_holder = bucket.host();
        new_holder.write("taken", 0, noise(4, 10));
        new_holder.finish().expect("left");
        let file = files(&disk, ".journal+").remove(index);
        disk.rot(&file, 777);
        for _ in 0..2 {
            let host = mount(&bucket, &disk, false, "main").expect("mounted");
            let news = host.assembled.spool_news();
            assert!(news.recovered.is_empty(), "{news:?}");
            let why = &news.stranded[0].why;
            assert!(why.contains(&file.display().to_string()), "{why}");
            host.finish().expect("unmounted");
            assert_eq!(files(&disk, ".journal+").len(), 3, "the spool stays");
        }
        let host = mount(&bucket, &disk, true, "main").expect("accepted");
        let news = host.assembled.spool_news();
        let snapshot = &news.recovered[0].snapshot;
        for (seed, name) in [(1, "a"), (2, "b"), (3, "c")] {
            let contents = recovers.contains(name).then(|| noise(seed, BYTES));
            assert!(
                crate::recovery_bases::read_in(&host, snapshot, name) == contents,
                "{name}"
            );
        }
        assert!(news.stranded[0].path.ends_with(".damaged"), "{news:?}");
        host.finish().expect("unmounted");
        assert!(files(&disk, ".damaged/").len() >= 6, "for people");
    }
}

/// How the second of three journals is lost when a snapshot is made, and what the next mount finds.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    Gone,
    Damaged,
    /// It can be read again: the disk answered an error for a while.
    ForAWhile,
    /// The same, after what the journals stand on was collected.
    ForTooLong,
}

/// The machine dies, or its disk refuses, between the snapshot and the setting aside.
#[test]
fn what_a_recovered_snapshot_lacks_stays_on_the_disk() {
    for loss in [Loss::Gone, Loss::Damaged, Loss::ForAWhile, Loss::ForTooLong] {
        let (bucket, disk) = dead_after(|_, host| {
            host.write("kept", 0, noise(9, BYTES));
            host.run(host.volume().commit()).expect("committed");
        });
        let new_holder = bucket.host();
        unlink(&new_holder, "kept");
        new_holder.write("taken", 0, noise(4, 10));
        new_holder.finish().expect("left");
        let file = files(&disk, ".journal+").remove(1);
        match loss {
            Loss::Gone => runtime().block_on(disk.remove(&file)).expect("removed"),
            _ => disk.rot(&file, 777),
        }
        let last = files(&disk, ".journal+").pop().expect("the third");
        let name = last.file_name().expect("a name").to_owned();
        disk.fail(DiskOperation::Rename, 1, std::io::ErrorKind::Other);
        let host = mount(&bucket, &disk, true, "main").expect("accepted");
        let news = host.assembled.spool_news();
        assert_eq!(news.recovered.len(), 1, "{news:?}");
        host.finish().expect("unmounted");
        assert!(disk.paths().contains(&last), "it is not set aside");
        disk.heal();
        if loss == Loss::ForTooLong {
            gc(&bucket);
            gc(&bucket);
        }
        if matches!(loss, Loss::ForAWhile | Loss::ForTooLong) {
            disk.rot(&file, 777);
        }
        let host = mount(&bucket, &disk, false, "main").expect("mounted");
        let made = host.assembled.spool_news().recovered[0].snapshot.clone();
        let third = read_in(&host, &made, "c");
        host.finish().expect("unmounted");
        if loss == Loss::ForAWhile {
            // All of it could be read: another snapshot has it.
            assert!(third == Some(noise(3, BYTES)), "{made}");
            continue;
        }
        assert_eq!(third, None);
        let is_kept = disk.paths().iter().any(|path| path.ends_with(&name));
        assert!(is_kept, "the third journal is in no commit and no snapshot");
    }
}

/// A user of another volume cannot accept the loss.
#[test]
fn a_fenced_spool_of_another_volume_stays() {
    let (bucket, disk) = dead();
    let new_holder = bucket.host();
    new_holder.write("taken", 0, noise(4, 10));
    new_holder.finish().expect("left");
    // The last one, and then all of them: no journal says what it is of.
    for file in files(&disk, ".journal+").into_iter().rev() {
        disk.rot(&file, 777);
        let host = mount(&bucket, &disk, true, "other").expect("of another volume");
        let news = host.assembled.spool_news();
        assert!(news.recovered.is_empty(), "{news:?}");
        host.finish().expect("unmounted");
        assert!(disk.paths().contains(&file), "it stays where it was");
    }
}

/// A file of a spool may be there twice.
#[test]
fn a_whole_file_of_a_pack_counts_whatever_another_one_holds() {
    let (bucket, disk) = dead_after(|_, _| {});
    bucket.host().finish().expect("taken over");
    for file in files(&disk, ".data+") {
        let object = object(&disk, &file);
        let again =
            file.with_file_name(format!("ffffffffffffffff.{}", key(&file).replace('/', "+")));
        let bytes = object.len() + TRAILER_BYTES;
        runtime().block_on(async {
            let whole = disk.read(&file, 0, bytes).await.expect("read");
            disk.write_new(&again, &[whole]).await.expect("written");
        });
        disk.rot(&file, 100);
    }
    let host = mount(&bucket, &disk, false, "main").expect("mounted");
    let news = host.assembled.spool_news();
    assert!(news.stranded.is_empty(), "{:?}", news.stranded);
    let snapshot = &news.recovered[0].snapshot;
    for (seed, name) in [(1, "a"), (2, "b"), (3, "c")] {
        assert!(
            read_in(&host, snapshot, name) == Some(noise(seed, BYTES)),
            "{name}"
        );
    }
}
