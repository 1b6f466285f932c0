//! `.snapshots`, as the kernel asks for it.

use std::time::Duration;

use bkfs::vfs::numbers::SNAPSHOTS;
use bkfs_fuse::{DirectoryReply, Errno, Handle, Ino, Lookup, Rename, RenameMode, Vfs};
use bkfs_testing::fault::{Fault, Strike};

use crate::host::{Answer, Bucket, CALLER, Host, ask};

fn mkdir(host: &Host, parent: Ino, name: &[u8]) -> Answer<bkfs_fuse::Entry> {
    ask(host, |vfs, reply| {
        vfs.mkdir(CALLER, parent, name, 0o755, reply)
    })
}

fn made(host: &Host, parent: Ino, name: &[u8]) -> Ino {
    let entry = mkdir(host, parent, name).recv().expect("answered");
    entry.expect("made").attributes.ino
}

fn lookup(host: &Host, parent: Ino, name: &[u8]) -> Ino {
    let found = ask(host, |vfs, reply| vfs.lookup(CALLER, parent, name, reply));
    match found.recv().expect("answered").expect("looked up") {
        Lookup::Found(entry) => entry.attributes.ino,
        Lookup::Absent { .. } => panic!("{} is not there", name.escape_ascii()),
    }
}

/// Returns the inode that a directory lists as `..`.
fn above(host: &Host, directory: Ino) -> Ino {
    let opened = ask(host, |vfs, reply| vfs.opendir(CALLER, directory, reply));
    let handle: Handle = opened.recv().expect("answered").expect("opened").handle;
    let (sender, answer) = std::sync::mpsc::channel();
    let reply = DirectoryReply::collecting(false, 3, move |answer| drop(sender.send(answer)));
    host.vfs().readdir(directory, handle, 0, reply);
    let listed = answer.recv().expect("answered").expect("listed");
    let above = listed.iter().find(|entry| entry.name == b"..");
    above.expect("every directory has it").ino
}

#[test]
fn dot_dot_in_a_snapshot_is_what_was_above_when_it_was_made() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let outer = made(&host, Ino::ROOT, b"outer");
    let inner = made(&host, outer, b"inner");
    made(&host, SNAPSHOTS.ino(), b"then");
    let moved = ask(&host, |vfs, reply| {
        let rename = Rename {
            parent: outer,
            name: b"inner",
            new_parent: Ino::ROOT,
            new_name: b"inner",
            mode: RenameMode::Replace,
        };
        vfs.rename(CALLER, rename, reply);
    });
    moved.recv().expect("answered").expect("moved");
    assert_eq!(above(&host, inner), Ino::ROOT);
    let root = lookup(&host, SNAPSHOTS.ino(), b"then");
    let outer = lookup(&host, root, b"outer");
    let inner = lookup(&host, outer, b"inner");
    assert_eq!(above(&host, inner), outer);
    assert_eq!(above(&host, outer), root);
    assert_eq!(above(&host, root), SNAPSHOTS.ino());
}

#[test]
fn of_two_who_make_one_snapshot_one_is_told_that_it_exists() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for round in 0..10 {
        let name = format!("round-{round}");
        let both = [(); 2].map(|()| mkdir(&host, SNAPSHOTS.ino(), name.as_bytes()));
        let answers = both.map(|answer| answer.recv().expect("answered").map(drop));
        assert!(answers.contains(&Ok(())), "{answers:?}");
        assert!(answers.contains(&Err(Errno::EEXIST)), "{answers:?}");
    }
}

#[test]
fn a_mount_of_a_new_volume_has_committed_it() {
    let bucket = Bucket::new();
    // A commit that the mount does not wait for comes after this test has looked.
    let slow = Strike::with(Fault::Delay(Duration::from_secs(1))).keys("meta/");
    let host = bucket.host_with(slow.on_writes().always());
    let commit = bucket.work(bucket.memory.clone(), async |repository| {
        repository.volume_entry("main").commit
    });
    assert!(commit.is_some(), "a root that is rebuilt would not know it");
    host.finish().expect("ended");
}
