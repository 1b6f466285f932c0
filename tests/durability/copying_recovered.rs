//! Copies of snapshots that bkfs recovered from the spool of a machine. They never were the state of
//! the source's volume, and do not become that of the target's.

use bkfs::root::record::CommitRecord;
use bkfs_chunker::id::Kind;
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::entropy::SeededEntropy;

use crate::collecting::{forget_one, snapshot};
use crate::copying::{contents, copy, diverges, is_clean, kept, mounted, sessions, shows, volume};
use crate::host::{Bucket, Host, noise};
use crate::images::close_in_the_spool;
use crate::recovery_bases::read_in;

/// Returns a source with a snapshot, an empty target, and the name of a second snapshot of the
/// source, which was recovered from the spool of a machine.
fn recovered_at_the_source() -> (Bucket, Bucket, String) {
    let from = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&from, &disk);
    let _stands_still = close_in_the_spool(&host, "spooled", 7);
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    mounted(&from, |host| {
        host.write("first", 0, contents().0);
        snapshot(host, "one");
    });
    let back = Host::spooling(&from, &disk);
    let recovered = back.assembled.spool_news().recovered[0].snapshot.clone();
    back.finish().expect("unmounted");
    (from, Bucket::new(), recovered)
}

/// What the spool of a fenced machine held never was the state of the volume, at the target no more
/// than at the source.
fn recovered_is_not_shown(is_alone: bool) {
    let (first, second) = contents();
    let first_shown = (!is_alone).then_some(&first[..]);
    let (from, to, recovered) = recovered_at_the_source();
    if is_alone {
        forget_one(&from);
    }
    copy(&from, &to, &[], false, Some(1)).expect("it broke off");
    copy(&from, &to, &[], false, None).expect("copied");
    assert_eq!(volume(&to).building, None, "a snapshot keeps it");
    assert_eq!(sessions(&to), 0, "one that broke off stays");
    let shows_the_state = |host: &Host| {
        shows(host, first_shown, None);
        assert_eq!(host.read("spooled"), None);
        assert_eq!(read_in(host, &recovered, "spooled"), Some(noise(7, 1000)));
    };
    // A mount gives a volume that shows nothing a directory.
    if !is_alone {
        mounted(&to, shows_the_state);
    }
    is_clean(&to);
    mounted(&from, |host| {
        host.write("second", 0, second.clone());
        snapshot(host, "two");
    });
    copy(&from, &to, &[], false, Some(2)).expect("it broke off");
    mounted(&to, shows_the_state);
    copy(&from, &to, &[], false, None).expect("it goes on");
    mounted(&to, |host| shows(host, Some(&first), Some(&second)));
    let recovered = &kept(&to)[usize::from(!is_alone)];
    assert!(recovered.new_bytes > 1000, "{} bytes", recovered.new_bytes);
    let marks: Vec<bool> = kept(&to).iter().map(|entry| entry.recovered).collect();
    assert_eq!(marks[marks.len() - 2..], [true, false]);
    is_clean(&to);
}

#[test]
fn a_recovered_snapshot_does_not_become_what_the_target_shows() {
    recovered_is_not_shown(false);
}

#[test]
fn a_recovered_snapshot_that_comes_alone_is_not_shown() {
    recovered_is_not_shown(true);
}

/// What the target holds is given up, though what is missing there cannot take its place.
#[test]
fn a_volume_starts_anew_also_with_a_recovered_snapshot() {
    let (first, _) = contents();
    let (from, to, recovered) = recovered_at_the_source();
    copy(&from, &to, &["one"], false, None).expect("copied");
    mounted(&to, |host| host.write("own", 0, noise(9, 1000)));
    diverges(&from, &to);
    copy(&from, &to, &[], true, None).expect("it starts anew");
    mounted(&to, |host| {
        shows(host, Some(&first), None);
        assert_eq!(host.read("own"), None);
        assert_eq!(read_in(host, &recovered, "spooled"), Some(noise(7, 1000)));
    });
    copy(&from, &to, &[], false, None).expect("there is nothing to do");
    is_clean(&to);
}

/// The numbers of a recovered tree are those of the machine that was fenced, which may have given
/// out more of them than the volume has.
#[test]
fn a_clone_of_a_copied_recovered_snapshot_gives_out_numbers_of_its_own() {
    let (from, to) = (Bucket::new(), Bucket::new());
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&from, &disk);
    for number in 0..20 {
        let _stands_still = close_in_the_spool(&host, &format!("spooled-{number}"), number);
    }
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    mounted(&from, |host| host.write("first", 0, noise(1, 1000)));
    let back = Host::spooling(&from, &disk);
    let recovered = back.assembled.spool_news().recovered[0].snapshot.clone();
    back.finish().expect("unmounted");
    copy(&from, &to, &[], false, None).expect("copied");
    let next_inode = |bucket: &Bucket| {
        bucket.work(bucket.memory.clone(), async |repository| {
            let kept = repository.snapshots().await.expect("listed");
            let entry = kept.named("main", &recovered).expect("it has it");
            let content_store = &repository.content_store;
            let record = content_store.read_blob(Kind::Commit, entry.commit).await;
            let record = CommitRecord::decode(&record.expect("read")).expect("decoded");
            (
                record.next_inode,
                repository.volume_entry("main").next_inode,
            )
        })
    };
    let (made, of_volume) = next_inode(&from);
    assert!(made > of_volume, "{made} after {of_volume} says nothing");
    let (copied, of_target) = next_inode(&to);
    assert_eq!(copied, made);
    assert!(of_target >= made, "{of_target} after {made}");
}
