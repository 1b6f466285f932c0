//! Disks of machines that were made of an image of one that holds a spool: they claim nothing of
//! its session, and what each of them holds becomes a snapshot.

use std::io::ErrorKind;
use std::sync::Arc;

use bkfs::mounting::settings::Settings;
use bkfs_store::disk::Disk;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::entropy::SeededEntropy;
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};

use crate::collecting::{gc, snapshot};
use crate::host::{Bucket, Host, noise, runtime};
use crate::recovery_bases::{KEPT_AFTER, number_of, read_in, recovery_bases};
use crate::rotten::{dead_after, files, mount};

/// Returns the disk of another machine, which was made of an image of this one.
fn image_of(disk: &SimulatedDisk) -> SimulatedDisk {
    let image = disk.copy();
    number_of(0x1234, &image);
    image
}

/// The names of the snapshots that a mount has made of spools, or found made of them.
fn recovered_in(host: &Host) -> Vec<String> {
    let recovered = host.assembled.spool_news().recovered;
    recovered.into_iter().map(|made| made.snapshot).collect()
}

/// Closes a file that only the spool gets, because the store stands still.
pub fn close_in_the_spool(host: &Host, name: &str, seed: u64) -> Gate {
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on_writes();
    host.faults.plan(held.always());
    close_another(host, name, seed);
    gate
}

/// Closes a further file while the store stands still.
fn close_another(host: &Host, name: &str, seed: u64) {
    host.write(name, 0, noise(seed, 1000));
    host.volume().fsync_within();
    host.wait(KEPT_AFTER);
}

/// What the image holds is in commits, or is not; the machine itself has acknowledged more since.
fn an_image_claims_nothing(is_committed: bool) {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let gate = close_in_the_spool(&host, "old", 1);
    let image = image_of(&disk);
    if is_committed {
        host.faults.heal();
        gate.open();
        host.run(host.volume().commit()).expect("committed");
        let _stands_still = close_in_the_spool(&host, "new", 2);
    } else {
        close_another(&host, "new", 2);
    }
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    let new_holder = bucket.host();
    new_holder.write("other", 0, noise(3, 1000));
    new_holder.finish().expect("left");
    let left = recovery_bases(&bucket);
    assert_eq!(left.len(), 1);
    let on_image = Host::spooling(&bucket, &image);
    on_image.finish().expect("left");
    assert_eq!(
        recovery_bases(&bucket),
        left,
        "the image speaks for its machine only"
    );
    gc(&bucket);
    gc(&bucket);
    let back = Host::spooling(&bucket, &disk);
    let recovered = format!("recovered-{}", left[0].session);
    for (name, seed) in [("old", 1), ("new", 2)] {
        let contents = read_in(&back, &recovered, name);
        assert!(contents == Some(noise(seed, 1000)), "{name}");
    }
    assert_eq!(recovery_bases(&bucket), []);
}

#[test]
fn an_image_of_a_machine_claims_nothing_because_commits_have_all_of_it() {
    an_image_claims_nothing(true);
}

#[test]
fn an_image_of_a_machine_claims_nothing_with_what_it_recovers() {
    an_image_claims_nothing(false);
}

/// The second image was made after the machine had acknowledged more. None of them claims anything.
#[test]
fn what_a_newer_image_of_a_machine_holds_becomes_another_snapshot() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let _stands_still = close_in_the_spool(&host, "old", 1);
    let older = [image_of(&disk), image_of(&disk)];
    close_another(&host, "new", 2);
    let newer = [image_of(&disk), image_of(&disk)];
    host.crash();
    bucket.host().finish().expect("left");
    let session = recovery_bases(&bucket)[0].session;
    let name = format!("recovered-{session}-copy");
    let mut made = Vec::new();
    let [first, last] = older;
    let [second, third] = newer;
    for image in [first, second, third, last] {
        let on_image = Host::spooling(&bucket, &image);
        let news = on_image.assembled.spool_news();
        let snapshot = news.recovered[0].snapshot.clone();
        assert!(read_in(&on_image, &snapshot, "old") == Some(noise(1, 1000)));
        let new = read_in(&on_image, &snapshot, "new");
        made.push((snapshot, new == Some(noise(2, 1000))));
        on_image.finish().expect("left");
    }
    let newest = (format!("{name}-2"), true);
    let oldest = (name, false);
    assert_eq!(made, [&oldest, &newest, &newest, &oldest].map(Clone::clone));
}

/// The image has an empty spool of the session, which the next mount takes over from.
#[test]
fn an_image_of_a_machine_claims_nothing_with_an_empty_spool() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let image = image_of(&disk);
    let _stands_still = close_in_the_spool(&host, "new", 2);
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    let on_image = Host::spooling(&bucket, &image);
    on_image.write("other", 0, noise(3, 1000));
    on_image.finish().expect("left");
    let left = recovery_bases(&bucket);
    assert_eq!(left.len(), 1, "the image speaks for its machine only");
    let back = Host::spooling(&bucket, &disk);
    let recovered = format!("recovered-{}", left[0].session);
    assert!(read_in(&back, &recovered, "new") == Some(noise(2, 1000)));
}

/// An older version made the snapshot, which does not say how much it has.
#[test]
fn a_snapshot_that_does_not_say_what_it_has_replaces_no_image() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let _stands_still = close_in_the_spool(&host, "old", 1);
    let image = image_of(&disk);
    host.crash();
    let new_holder = bucket.host();
    let session = recovery_bases(&bucket)[0].session;
    snapshot(&new_holder, &format!("recovered-{session}-copy"));
    new_holder.finish().expect("left");
    let on_image = Host::spooling(&bucket, &image);
    let made = on_image.assembled.spool_news().recovered[0]
        .snapshot
        .clone();
    assert!(read_in(&on_image, &made, "old") == Some(noise(1, 1000)));
}

/// The disks of an image with some closed files, and of two images with four. One of those has lost
/// the journal of the third file.
struct Images {
    bucket: Bucket,
    oldest: SimulatedDisk,
    damaged: SimulatedDisk,
    whole: SimulatedDisk,
}

/// `of_oldest` is the number of files that the oldest image has.
fn images(of_oldest: u64) -> Images {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let _stands_still = close_in_the_spool(&host, "1", 1);
    let mut oldest = image_of(&disk);
    for number in 2..=4 {
        close_another(&host, &number.to_string(), number);
        if number == of_oldest {
            oldest = image_of(&disk);
        }
    }
    let (damaged, whole) = (image_of(&disk), image_of(&disk));
    let journal = files(&damaged, ".journal+").remove(2);
    runtime()
        .block_on(damaged.remove(&journal))
        .expect("removed");
    host.crash();
    bucket.host().finish().expect("left");
    let on_oldest = Host::spooling(&bucket, &oldest);
    on_oldest.finish().expect("left");
    Images {
        bucket,
        oldest,
        damaged,
        whole,
    }
}

/// The snapshot of the damaged one has the name of all that its journals state.
#[test]
fn what_a_whole_image_holds_is_recovered_after_an_accepted_loss() {
    let images = images(1);
    let on_damaged = mount(&images.bucket, &images.damaged, true, "main").expect("accepted");
    assert_eq!(on_damaged.assembled.spool_news().stranded.len(), 1);
    on_damaged.finish().expect("left");
    let mut names = Vec::new();
    for disk in [&images.whole, &images.whole.copy()] {
        let on_whole = Host::spooling(&images.bucket, disk);
        let made = on_whole.assembled.spool_news().recovered[0]
            .snapshot
            .clone();
        assert!(
            read_in(&on_whole, &made, "4") == Some(noise(4, 1000)),
            "{made}"
        );
        on_whole.finish().expect("left");
        assert!(files(disk, "+").is_empty(), "the spool is gone");
        names.push(made);
    }
    assert_eq!(names[0], names[1]);
}

/// Accepts the loss of what an image cannot read, while the store refuses the snapshot.
fn accept_in_vain(bucket: &Bucket, disk: &SimulatedDisk) {
    let refusing = Arc::new(FaultStore::new(bucket.memory.clone()));
    let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::Replace);
    refusing.plan(refused.always());
    let settings = Settings {
        accept_loss: true,
        ..Settings::default()
    };
    let failed = Host::spooling_through(refusing, disk, settings);
    assert!(failed.is_err(), "it cannot make the snapshot");
}

/// The loss of an image was accepted, and the machine died before the snapshot was made. That of an
/// older image does not replace it.
#[test]
fn an_accepted_loss_is_accepted_for_its_own_snapshot_only() {
    let images = images(1);
    accept_in_vain(&images.bucket, &images.damaged);
    let kept = files(&images.damaged, ".journal+");
    assert_eq!(kept.len(), 3);
    let host = Host::spooling(&images.bucket, &images.damaged);
    assert!(host.assembled.spool_news().recovered.is_empty());
    assert_eq!(files(&images.damaged, ".journal+"), kept, "the spool stays");
    host.finish().expect("left");
    assert!(files(&images.oldest, "+").is_empty());
    let host = mount(&images.bucket, &images.damaged, true, "main").expect("accepted");
    let news = host.assembled.spool_news();
    assert!(news.stranded[0].path.ends_with(".damaged"), "{news:?}");
}

/// A journal could not be read for a while, and its loss was accepted. An older image has made a
/// snapshot of what comes before it.
#[test]
fn what_can_be_read_again_is_recovered_although_its_loss_was_accepted() {
    let images = images(2);
    let unread = files(&images.whole, ".journal+").remove(2);
    images.whole.rot(&unread, 77);
    accept_in_vain(&images.bucket, &images.whole);
    // The same bits turn back.
    images.whole.rot(&unread, 77);
    let host = Host::spooling(&images.bucket, &images.whole);
    let news = host.assembled.spool_news();
    let made = news.recovered[0].snapshot.clone();
    assert!(read_in(&host, &made, "4") == Some(noise(4, 1000)), "{made}");
    assert!(news.stranded.is_empty(), "{news:?}");
}

/// A spool with packs and journals, whose session another machine has ended.
fn fenced_with_a_pack() -> (Bucket, SimulatedDisk) {
    let (bucket, disk) = dead_after(|_, host| {
        host.write("kept", 0, noise(9, 3 << 20));
        host.run(host.volume().commit()).expect("committed");
    });
    let taker = bucket.host();
    taker.write("taken", 0, noise(4, 10));
    taker.finish().expect("left");
    (bucket, disk)
}

/// Removes the spool of a snapshot while the first `rename` and the `nth` removal fail, and power is
/// lost after that. What stays is no spool of its own.
fn removed_in_part(rename: Option<ErrorKind>, nth: u64, power_loss: Option<u64>) {
    let what = format!("{rename:?} {nth} {power_loss:?}");
    let (bucket, disk) = fenced_with_a_pack();
    if let Some(kind) = rename {
        disk.fail(DiskOperation::Rename, 1, kind);
    }
    disk.fail(DiskOperation::Remove, nth, ErrorKind::Other);
    let host = Host::spooling(&bucket, &disk);
    let first = recovered_in(&host);
    assert_eq!(first.len(), 1);
    host.finish().expect("left");
    disk.heal();
    if let Some(seed) = power_loss {
        disk.crash(&SeededEntropy::new(seed));
    }
    let host = Host::spooling(&bucket, &disk);
    let stranded = host.assembled.spool_news().stranded;
    assert!(stranded.is_empty(), "{what}: {stranded:?}");
    // Under the old name it stands for the same snapshot.
    let again = recovered_in(&host);
    let is_for_it = again.is_empty() || (rename.is_some() && again == first);
    assert!(is_for_it, "{what}: {again:?}");
    host.finish().expect("left");
    assert!(files(&disk, "+").is_empty(), "{what}: {:?}", disk.paths());
}

#[test]
fn a_spool_of_which_a_part_stays_is_removed_by_the_next_mount() {
    for rename in [
        None,
        Some(ErrorKind::CrossesDevices),
        Some(ErrorKind::StorageFull),
    ] {
        for nth in 1..=8 {
            removed_in_part(rename, nth, None);
            for seed in 0..4 {
                removed_in_part(rename, nth, Some(seed));
            }
        }
    }
}

/// On a layered filesystem a directory may have its name for good, and a full disk may have no room
/// for another name.
#[test]
fn a_spool_whose_directory_keeps_its_name_is_removed() {
    for kind in [
        ErrorKind::CrossesDevices,
        ErrorKind::AlreadyExists,
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::Other,
    ] {
        let (bucket, disk) = fenced_with_a_pack();
        disk.fail(DiskOperation::Rename, 1, kind);
        let host = Host::spooling(&bucket, &disk);
        assert_eq!(host.assembled.spool_news().recovered.len(), 1);
        host.finish().expect("left");
        assert!(files(&disk, "+").is_empty(), "{kind:?}: {:?}", disk.paths());
    }
}

/// How much memory the recovery of a spool takes: its journals may be more than there is memory.
#[test]
fn a_recovery_keeps_no_journals_in_memory() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    leave_journals(&bucket, &disk);
    bucket.host().finish().expect("left");
    let (back, held_bytes) = spooling_measured(&bucket, &disk);
    let [recovered] = &back.assembled.spool_news().recovered[..] else {
        panic!("one snapshot: {:?}", back.assembled.spool_news());
    };
    for number in [0, JOURNALS / 2, JOURNALS - 1] {
        let read = read_in(&back, &recovered.snapshot, &format!("f{number}"));
        assert!(read == Some(alike(number)), "{number}");
    }
    assert!(held_bytes < 112 << 20, "{} MiB", held_bytes >> 20);
}

#[test]
fn a_takeover_keeps_no_journals_in_memory() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    leave_journals(&bucket, &disk);
    let (back, held_bytes) = spooling_measured(&bucket, &disk);
    assert!(back.assembled.spool_news().recovered.is_empty());
    for number in [0, JOURNALS / 2, JOURNALS - 1] {
        let name = format!("f{number}");
        assert!(back.read(&name) == Some(alike(number)), "{number}");
    }
    assert!(held_bytes < 112 << 20, "{} MiB", held_bytes >> 20);
}

/// The number of journals that [`leave_journals`] leaves.
const JOURNALS: u64 = 160;

/// Returns the contents of a file, which compress well: the bucket of the test is in memory.
fn alike(number: u64) -> Vec<u8> {
    vec![number as u8; 900_000]
}

/// A mount acknowledges an fsync for each of many files while the bucket takes nothing, and
/// crashes: its spool then holds [`JOURNALS`] journals.
fn leave_journals(bucket: &Bucket, disk: &SimulatedDisk) {
    let settings = Settings {
        fsync_local: true,
        ..Settings::default()
    };
    let host = Host::spooling_with(bucket, disk, settings);
    let held = Strike::with(Fault::HoldBefore(Gate::new())).on_writes();
    host.faults.plan(held.always());
    for number in 0..JOURNALS {
        host.write(&format!("f{number}"), 0, alike(number));
        host.fsync().expect("acknowledged");
    }
    host.crash();
    disk.kill();
}

/// Mounts with the spool, and returns the greatest number of bytes that this held in memory.
fn spooling_measured(bucket: &Bucket, disk: &SimulatedDisk) -> (Host, u64) {
    let mut back = None;
    let held = allocation_counter::measure(|| back = Some(Host::spooling(bucket, disk)));
    (back.expect("mounted"), held.bytes_max)
}
