//! Spools that the disk does not let be read. Only a mount of their volume is refused; what cannot
//! be read is never removed; and what the machine lacks for a while is no damage.

use std::path::{Path, PathBuf};

use bkfs::mounting::error::{MountingError, SpoolingError};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};

use crate::host::Bucket;
use crate::rotten::{accepted, dead, files, mount, refused, sent, whole};
use crate::surveyed::{is_told_as_damage, stays_until_it_can_be_read};

/// The directory of the only spool, and a journal and a pack in it.
struct Paths {
    directory: PathBuf,
    lock: PathBuf,
    journal: PathBuf,
    pack: PathBuf,
}

fn paths(disk: &SimulatedDisk) -> Paths {
    let journal = files(disk, ".journal+").remove(1);
    let directory = journal.parent().expect("a directory").to_owned();
    Paths {
        lock: directory.join("lock"),
        directory,
        journal,
        pack: files(disk, ".data+").remove(1),
    }
}

/// Another volume can be mounted, and its mount names the spool.
fn does_not_stop_another_volume(bucket: &Bucket, disk: &SimulatedDisk, directory: &Path) {
    let host = mount(bucket, disk, false, "other").expect("of another volume");
    let news = host.assembled.spool_news();
    assert_eq!(news.stranded.len(), 1, "{news:?}");
    assert_eq!(news.stranded[0].path, directory.display().to_string());
    host.finish().expect("unmounted");
}

/// The error of a mount of `main`, which sends and removes nothing.
fn error_of(bucket: &Bucket, disk: &SimulatedDisk, accept_loss: bool) -> SpoolingError {
    let (there, kept) = (sent(bucket), disk.paths());
    let error = match mount(bucket, disk, accept_loss, "main").map(|_| ()) {
        Err(MountingError::Spool(error)) => error,
        other => panic!("{other:?}"),
    };
    disk.kill();
    assert_eq!(sent(bucket), there, "nothing was sent");
    let is_kept = |path: &PathBuf| disk.paths().contains(path);
    assert!(kept.iter().all(is_kept), "nothing was removed");
    error
}

#[test]
fn what_cannot_be_read_stops_only_a_mount_of_its_volume() {
    type Which = fn(&Paths) -> &Path;
    let cases: [(DiskOperation, Which, i32); 8] = [
        (DiskOperation::Stat, |paths| &paths.directory, libc::EIO),
        (DiskOperation::Stat, |paths| &paths.directory, libc::ENOENT),
        (DiskOperation::List, |paths| &paths.directory, libc::ESTALE),
        (DiskOperation::Lock, |paths| &paths.lock, libc::ENOENT),
        (DiskOperation::Stat, |paths| &paths.pack, libc::EACCES),
        (DiskOperation::Read, |paths| &paths.journal, libc::EACCES),
        (DiskOperation::Read, |paths| &paths.pack, libc::EACCES),
        (DiskOperation::Read, |paths| &paths.pack, libc::ENOENT),
    ];
    for (operation, which, number) in cases {
        let (bucket, disk) = dead();
        let (paths, kept) = (paths(&disk), files(&disk, "+"));
        disk.refuse(operation, which(&paths), number);
        let error = error_of(&bucket, &disk, false);
        assert!(
            matches!(error, SpoolingError::Unreadable { .. }),
            "{operation:?} {number}: {error}"
        );
        is_told_as_damage(&error, which(&paths));
        does_not_stop_another_volume(&bucket, &disk, &paths.directory);

        stays_until_it_can_be_read(&bucket, &disk, &paths.directory, &kept);
    }
}

/// As if its bytes were rotten: the other files of the spool count.
#[test]
fn a_file_of_which_the_disk_says_that_it_is_rotten_is_damaged() {
    let (bucket, disk) = dead();
    let pack = paths(&disk).pack;
    disk.refuse(DiskOperation::Stat, &pack, libc::EIO);
    refused(&bucket, &disk, &pack.display().to_string());
    accepted(&bucket, &disk, "a");
}

/// A filesystem that is read-only, or a table of open files that is full, says nothing of the data.
#[test]
fn what_the_machine_lacks_for_a_while_is_no_damage() {
    type Which = fn(&Paths) -> &Path;
    let cases: [(DiskOperation, Which, i32); 6] = [
        (DiskOperation::Lock, |paths| &paths.lock, libc::EROFS),
        (DiskOperation::Lock, |paths| &paths.lock, libc::EMFILE),
        (DiskOperation::List, |paths| &paths.directory, libc::ENFILE),
        (DiskOperation::Read, |paths| &paths.journal, libc::EMFILE),
        (DiskOperation::Read, |paths| &paths.pack, libc::ENFILE),
        (DiskOperation::Read, |paths| &paths.pack, libc::ENOMEM),
    ];
    for (operation, which, number) in cases {
        let (bucket, disk) = dead();
        let paths = paths(&disk);
        disk.refuse(operation, which(&paths), number);
        // Nothing is lost, so there is no loss to accept.
        for accept_loss in [false, true] {
            let error = error_of(&bucket, &disk, accept_loss);
            let told = error.to_string();
            assert!(
                matches!(error, SpoolingError::MachineCondition { .. }),
                "{operation:?} {number}: {told}"
            );
            assert!(!error.is_damage(), "not exit code 13");
            let named = which(&paths).display().to_string();
            assert!(told.contains(&named), "{told} names {named}");
            assert!(!told.contains("spool_size=0"), "{told}");
            assert!(error.hint().is_some());
        }
        does_not_stop_another_volume(&bucket, &disk, &paths.directory);
        disk.heal();
        let host = mount(&bucket, &disk, false, "main").expect("mounted");
        assert_eq!(whole(&host), "abc");
        host.finish().expect("unmounted");
        assert!(files(&disk, "+").is_empty(), "the spool is gone");
    }
}

/// Without a list it is unknown of which volumes there are spools.
#[test]
fn a_place_that_cannot_be_listed_stops_every_mount() {
    let (bucket, disk) = dead();
    let place = paths(&disk).directory;
    let place = place.parent().expect("a directory");
    disk.refuse(DiskOperation::List, place, libc::EIO);
    for accept_loss in [false, true] {
        let error = error_of(&bucket, &disk, accept_loss);
        let told = error.to_string();
        assert!(matches!(error, SpoolingError::Unlisted { .. }), "{told}");
        assert!(told.contains(&place.display().to_string()), "{told}");
        assert!(
            !told.contains("spool_size=0"),
            "{told}: that would not help"
        );
        assert!(error.hint().is_some());
    }
    disk.heal();
    let host = mount(&bucket, &disk, false, "main").expect("mounted");
    assert_eq!(whole(&host), "abc");
    host.finish().expect("unmounted");
}

/// Another process of this machine removes a spool between the listing and the opening.
#[test]
fn a_spool_that_is_gone_at_the_second_look_stops_no_mount() {
    let (bucket, disk) = dead();
    disk.vanish(&paths(&disk).directory);
    let host = mount(&bucket, &disk, false, "main").expect("mounted");
    assert!(host.assembled.spool_news().stranded.is_empty());
    host.finish().expect("unmounted");
}
