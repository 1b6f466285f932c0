//! Storing bytes while a commit is under way. Bytes that are stored late belong to the layer in
//! which they were written, and to no other.

use bkfs::clock::{Clock, SystemClock};
use bkfs::volume::ROOT_INODE;
use bkfs::volume::data::Room;
use bkfs::volume::namespace::NewInode;
use bkfs_chunker::ingest::Profile;
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::host::{Bucket, Host, noise};

pub const PAGE: usize = 16 * 1024;

pub fn page_file(host: &Host, name: &str) -> u64 {
    let new = NewInode {
        mode: libc::S_IFREG | 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: None,
        profile: Profile::Grid as u8,
    };
    let made = host.run(host.volume().make(ROOT_INODE, name.as_bytes(), new));
    made.expect("made").inode
}

/// Commits a file of eight pages.
pub fn commit_pages(bucket: &Bucket) {
    let host = bucket.host();
    page_file(&host, "pages");
    host.write("pages", 0, noise(1, 8 * PAGE));
    host.finish().expect("unmounted");
}

/// Holds the next read of data until the gate is opened.
pub fn hold_reads(host: &Host) -> Gate {
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::GetRange);
    host.faults.plan(strike.keys("data/"));
    gate
}

/// An fsync during a commit names packs of that commit only if everything below them is in the
/// bucket as well, since packs finish in any order.
#[test]
fn an_fsync_names_no_node_of_a_commit_whose_children_are_on_their_way() {
    let bucket = Bucket::new();
    let host = Host::with_packs(&bucket, 64 << 10);
    for number in 0..1500 {
        host.write(&format!("small {number}"), 0, noise(number, 1000));
    }
    let hold = |nth| {
        let gate = Gate::new();
        let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
        host.faults.plan(strike.keys("meta/").nth(nth));
        gate
    };
    // The fsync waits for the list of this file's chunks.
    host.write("large", 0, noise(1000, 5 << 20));
    let list = hold(1);
    let volume = host.volume();
    let fsync = host.spawn(async move { volume.fsync().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    // The first pack of the commit is held. It has children of nodes in later packs.
    let before = bucket.count("meta/");
    let _children = hold(1);
    let volume = host.volume();
    let _commit = host.spawn(async move { volume.commit().await });
    let mut there = before;
    while host.faults.struck() < 2 || there == before || bucket.count("meta/") > there {
        there = bucket.count("meta/");
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    list.open();
    host.run(fsync).expect("ran").expect("durable");
    host.crash();
    let next = bucket.host();
    assert!(next.read("large") == Some(noise(1000, 5 << 20)));
    assert_eq!(next.read("small 7"), Some(noise(7, 1000)));
}

fn wait_for_a_cut(host: &Host) {
    let volume = host.volume();
    let state = volume.view.state().expect("is writable");
    while state.lock().committing.is_none() {
        std::thread::yield_now();
    }
}

/// A flush that waits while its layer is cut goes on with the bytes at the cut.
#[test]
fn a_commit_holds_nothing_that_was_written_after_its_cut() {
    let bucket = Bucket::new();
    commit_pages(&bucket);
    let host = bucket.host();
    let gate = Gate::new();
    host.faults.plan(
        Strike::with(Fault::HoldBefore(gate.clone()))
            .on(Operation::GetRange)
            .keys("data/"),
    );
    // This is the middle of a page: the bytes before and behind it are read back.
    host.write("pages", 3 * PAGE as u64 + 100, noise(2, 4096));
    let expected = {
        let mut bytes = noise(1, 8 * PAGE);
        bytes[3 * PAGE + 100..][..4096].copy_from_slice(&noise(2, 4096));
        bytes
    };
    let (volume, inode) = (host.volume(), host.file("pages"));
    let flush = host.spawn({
        let volume = volume.clone();
        async move { volume.settle(inode).await }
    });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    let commit = host.spawn(async move { volume.commit().await });
    wait_for_a_cut(&host);
    host.write("pages", 3 * PAGE as u64 + 8000, noise(3, 4096));
    gate.open();
    host.run(flush).expect("ran").expect("stored");
    host.run(commit).expect("ran").expect("committed");
    host.crash();
    let found = bucket.host().read("pages").expect("is there");
    assert!(found == expected, "as it was when the commit began");
}

/// Bytes that are written between the reading and the storing of a range stay dirty, and are stored
/// next.
#[test]
fn what_is_written_over_bytes_that_are_being_stored_is_kept() {
    let bucket = Bucket::new();
    commit_pages(&bucket);
    let host = bucket.host();
    let gate = hold_reads(&host);
    let place = 3 * PAGE + 100;
    host.write("pages", place as u64, noise(2, 4096));
    let (volume, inode) = (host.volume(), host.file("pages"));
    let flush = host.spawn(async move { volume.settle(inode).await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    host.write("pages", place as u64, noise(3, 4096));
    gate.open();
    host.run(flush).expect("ran").expect("stored");
    let mut expected = noise(1, 8 * PAGE);
    expected[place..][..4096].copy_from_slice(&noise(3, 4096));
    assert!(host.read("pages").as_ref() == Some(&expected));
    host.finish().expect("unmounted");
    assert!(bucket.host().read("pages") == Some(expected));
}

/// A file is stored while it is removed and committed as removed. Its new blobs rely on other packs
/// for as long as no root holds them.
#[test]
fn what_is_stored_of_a_removed_file_leans_on_others_until_it_is_committed() {
    let bucket = Bucket::new();
    commit_pages(&bucket);
    let host = bucket.host();
    let gate = hold_reads(&host);
    // One page is changed and its beginning is read back; the next one is as it was.
    let mut bytes = noise(2, PAGE - 100);
    bytes.extend_from_slice(&noise(1, 8 * PAGE)[4 * PAGE..5 * PAGE]);
    host.write("pages", 3 * PAGE as u64 + 100, bytes);
    let (volume, inode) = (host.volume(), host.file("pages"));
    let flush = host.spawn({
        let volume = volume.clone();
        async move { volume.settle(inode).await }
    });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    host.run(volume.unlink(ROOT_INODE, b"pages"))
        .expect("unlinked");
    host.run(volume.commit()).expect("committed");
    gate.open();
    let _ = host.run(flush).expect("ran");
    let ingest = volume.ingest();
    assert!(!ingest.relied_on().is_empty(), "a page was there before");
    host.run(volume.let_go());
    assert!(
        !ingest.relied_on().is_empty(),
        "no root holds what leans on it"
    );
    host.run(volume.commit()).expect("committed");
    host.run(volume.let_go());
    assert!(ingest.relied_on().is_empty());
    assert_eq!(ingest.uncommitted_blobs(), 0);
}

/// A small file that has grown is moved out of the tree in the layer that stores it, never in one
/// that is built already.
#[test]
fn a_small_file_that_grows_during_a_commit_keeps_its_beginning() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, noise(1, 500));
    let (volume, inode) = (host.volume(), host.file("file"));
    host.run(volume.commit()).expect("committed");
    let room = Room::Allocate { keep_size: false };
    host.run(volume.allocate(inode, 0..5000, room, false))
        .expect("longer");
    let gate = Gate::new();
    host.faults.plan(
        Strike::with(Fault::HoldBefore(gate.clone()))
            .on(Operation::Replace)
            .keys("root"),
    );
    let commit = host.spawn({
        let volume = volume.clone();
        async move { volume.commit().await }
    });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    host.write("file", 4096, noise(2, 2 << 20));
    host.run(volume.settle(inode)).expect("stored");
    gate.open();
    host.run(commit).expect("ran").expect("committed");
    let expected = {
        let mut bytes = noise(1, 500);
        bytes.resize(4096, 0);
        bytes.extend(noise(2, 2 << 20));
        bytes
    };
    assert!(
        host.read("file") == Some(expected.clone()),
        "after the commit"
    );
    host.finish().expect("unmounted");
    let found = bucket.host().read("file");
    assert!(found == Some(expected), "and after the next");
}

#[test]
fn a_mount_knows_when_it_has_committed() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let now = || SystemClock.now().seconds;
    let before = now();
    host.write("file", 0, b"new".to_vec());
    host.run(host.volume().commit()).expect("committed");
    let committed = host.volume().last_commit().expect("there was one");
    assert!((before..=now()).contains(&committed.seconds));
}
