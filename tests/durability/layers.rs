//! Storing bytes while a commit is under way: what is stored late belongs to the layer it was written in, and to no other.

use bkfs::volume::ROOT_INODE;
use bkfs::volume::data::Room;
use bkfs::volume::namespace::NewInode;
use bkfs_chunker::ingest::Profile;
use bkfs_chunker::store::Operation;
use bkfs_chunker::store::fault::{Fault, Gate, Strike};

use crate::host::{Bucket, Host, noise};

const PAGE: usize = 16 * 1024;

fn page_file(host: &Host, name: &str) -> u64 {
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

fn wait_for_a_cut(host: &Host) {
    let volume = host.volume();
    let state = volume.view.state().expect("is writable");
    while state.lock().sealing.is_none() {
        std::thread::yield_now();
    }
}

/// A flush that waits while its layer is cut goes on with what was there at the cut.
#[test]
fn a_commit_holds_nothing_that_was_written_after_its_cut() {
    let bucket = Bucket::new();
    let host = bucket.host();
    page_file(&host, "pages");
    host.write("pages", 0, noise(1, 8 * PAGE));
    host.finish().expect("unmounted");

    let host = bucket.host();
    let gate = Gate::new();
    host.faults.plan(
        Strike::with(Fault::HoldBefore(gate.clone()))
            .on(Operation::GetRange)
            .keys("data/"),
    );
    // The middle of a page: what lies before and behind it is read back.
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

/// A small file that has grown is moved out of the tree in the layer that stores it, never in one that is built already.
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
