//! The bytes that a volume counts as used: exactly the allocated ones, whatever happens to files
//! and machines.

use bkfs::tree::item::Item;
use bkfs::tree::key::{self, Key};
use bkfs::volume::attributes::Change;
use bkfs::volume::data::{Room, Source};
use bkfs::volume::state::Scope;
use bkfs::volume::{FIRST_INODE, ROOT_INODE};
use bkfs_fuse::Ino;
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::host::{Bucket, Host, ask, noise};

/// Returns the sum over all inodes, stored and dirty ones, and the count of the volume, in bytes.
fn counted(host: &Host) -> (u64, u64) {
    let volume = host.volume();
    let mut sum = 0;
    for inode in std::iter::once(ROOT_INODE).chain(FIRST_INODE..volume.inode_mark()) {
        let item = host.run(volume.view.item(Scope::Live, &Key::attributes(inode)));
        if let Some(Item::Attributes(attributes)) = item.expect("read") {
            sum += attributes.allocated_bytes;
        }
    }
    (sum, volume.view.totals().bytes)
}

fn check(host: &Host, when: &str) {
    let (sum, count) = counted(host);
    assert_eq!(sum, count, "{when}");
}

fn resize(host: &Host, name: &str, size: u64) {
    let change = Change {
        size: Some(size),
        ..Change::default()
    };
    let volume = host.volume();
    host.run(volume.set_attributes(host.file(name), change))
        .expect("resized");
}

/// Returns the number of 4 KiB blocks that statfs(2) shows as used.
fn used_blocks(host: &Host) -> u64 {
    let answer = ask(host, |vfs, reply| vfs.statfs(Ino(ROOT_INODE), reply));
    let seen = answer.recv().expect("answered").expect("well");
    seen.blocks - seen.blocks_free
}

#[test]
fn holes_are_not_used() {
    let bucket = Bucket::new();
    let host = bucket.host();
    resize(&host, "sparse", 1 << 50);
    assert_eq!(used_blocks(&host), 0);
    let ino = Ino(host.file("sparse"));
    let answer = ask(&host, |vfs, reply| vfs.getattr(ino, None, reply));
    let seen = answer.recv().expect("answered").expect("well");
    assert_eq!(seen.attributes.blocks, 0);
    assert_eq!(seen.ttl.as_secs(), 1, "it may soon have blocks");
    host.write("sparse", 1 << 40, noise(1, 64 << 10));
    assert_eq!(used_blocks(&host), 16, "dirty bytes are used");
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(used_blocks(&host), 16);
    host.finish().expect("unmounted");
    let host = bucket.host();
    assert_eq!(used_blocks(&host), 16, "and so a commit says");
    resize(&host, "sparse", 1 << 30);
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(used_blocks(&host), 0);
}

/// Attributes are read, and then what was dirty is stored. Shown with them, the file would occupy
/// nothing, and programs like tar take a file without blocks for one hole.
#[test]
fn bytes_that_are_stored_meanwhile_occupy_room() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("file", 0, noise(1, 300_000));
    let (volume, inode) = (host.volume(), host.file("file"));
    let read = || host.run(volume.view.attributes(Scope::Live, inode));
    let shown = |read| {
        let (attributes, dirty_bytes) = volume.newest(inode, &read);
        (attributes.allocated_bytes, dirty_bytes)
    };
    let before = read().expect("there");
    assert_eq!(shown(before), (0, 300_000));
    host.run(volume.settle(inode)).expect("settled");
    assert_eq!(shown(before), (300_000, 0));
    host.run(volume.commit()).expect("committed");
    assert_eq!(shown(read().expect("there")), (300_000, 0));
}

/// Makes one of all changes that change what is allocated. `round` decides which.
fn work(host: &Host, round: u64) {
    let name = |number: u64| format!("file {}", number % 7);
    let file = name(round);
    match round * 31 % 11 {
        0 => host.write(&file, round * 1000, noise(round, 300_000)),
        1 => host.write(&file, 0, noise(round, 500)),
        2 => resize(host, &file, round * 777 % 400_000),
        3 => {
            let room = Room::Punch;
            let volume = host.volume();
            let punch = volume.allocate(host.file(&file), 10_000..90_000, room, false);
            host.run(punch).expect("punched");
        }
        4 if host.find(&file).is_some() => {
            let unlink = host.volume();
            host.run(unlink.unlink(ROOT_INODE, file.as_bytes()))
                .expect("unlinked");
        }
        5 => {
            let volume = host.volume();
            let source = Source {
                view: volume.view.clone(),
                inode: host.file(&name(round + 3)),
                offset: 0,
            };
            let target = (host.file(&file), round * 5_000);
            host.run(volume.share(&source, target, 200_000, false))
                .expect("shared");
        }
        6 => host
            .run(host.volume().settle(host.file(&file)))
            .expect("settled"),
        7 => host.fsync().expect("durable"),
        8 => host
            .run(host.volume().commit())
            .map(|_| ())
            .expect("committed"),
        _ => host.write(&file, round * 313 % 50_000, noise(round, 9_000)),
    }
}

#[test]
fn the_count_is_the_sum_over_all_files_also_after_crashes() {
    let bucket = Bucket::new();
    let mut host = bucket.host();
    for round in 0..240 {
        work(&host, round);
        check(&host, &format!("after round {round}"));
        if round % 40 == 29 {
            host.fsync().expect("durable");
            host.crash();
            host = bucket.host();
            check(&host, &format!("replayed after round {round}"));
        }
        if round % 40 == 9 {
            host.run(host.volume().commit()).expect("committed");
            let before = counted(&host);
            host.finish().expect("unmounted");
            host = bucket.host();
            assert_eq!(counted(&host), before);
        }
    }
}

/// Bytes that are stored for a commit under way count for it. They count for the live volume only
/// where that still has the file.
#[test]
fn a_commit_counts_its_own_layer() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("stays", 0, noise(1, 300_000));
    host.write("goes", 0, noise(2, 200_000));
    host.run(host.volume().commit()).expect("committed");
    host.write("stays", 400_000, noise(3, 50_000));
    host.write("goes", 400_000, noise(4, 30_000));
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone()));
    host.faults.plan(strike.on(Operation::Replace).keys("root"));
    let volume = host.volume();
    let commit = host.spawn(async move { volume.commit().await });
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    // A change in the layer above the one that is being committed.
    host.run(host.volume().unlink(ROOT_INODE, b"goes"))
        .expect("unlinked");
    host.write("later", 0, noise(5, 70_000));
    host.run(host.volume().settle(host.file("later")))
        .expect("settled");
    check(&host, "while a commit is under way");
    assert_eq!(counted(&host).0, 350_000 + 70_000);
    gate.open();
    host.run(commit).expect("no panic").expect("committed");
    check(&host, "after it");
    // The bucket holds nothing of the later layer.
    let repository = host.repository.clone();
    let (_, totals) = host.run(repository.volume_tree("main")).expect("read");
    assert_eq!(totals.bytes, 350_000 + 230_000);
    host.crash();
    let host = bucket.host();
    assert_eq!(counted(&host), (580_000, 580_000));
}

/// Pieces near each other are stored together with the bytes between them. The copy of those bytes
/// is charged while it exists.
#[test]
fn copies_that_are_made_to_be_stored_are_charged() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("pieces", 0, noise(1, 6 << 20));
    host.finish().expect("unmounted");
    let host = bucket.host();
    for number in 0..600 {
        host.write("pieces", number * 8192, noise(number, 512));
    }
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone()));
    host.faults
        .plan(strike.on(Operation::Get).keys("data/").always());
    assert_eq!(host.volume().held_bytes(), 0);
    let (volume, inode) = (host.volume(), host.file("pieces"));
    let mut highest = 0;
    let mut settling = Box::pin(volume.settle(inode));
    // Each step is looked at, because a slow read is given up after a second.
    let settled = host.run(std::future::poll_fn(|context| {
        let step = settling.as_mut().poll(context);
        highest = highest.max(volume.held_bytes());
        if highest >= 4 << 20 {
            gate.open();
        }
        step
    }));
    settled.expect("settled");
    assert!(highest >= 4 << 20, "{highest} bytes are charged");
    assert_eq!(host.volume().held_bytes(), 0);
}

/// The removal of one file removes more keys than are held at once.
#[test]
fn a_file_of_very_many_extents_goes_as_a_whole() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for number in 0..70_000u64 {
        host.write("extents", number << 24, [7; 1].to_vec());
    }
    host.write("other", 0, noise(1, 5_000));
    host.run(host.volume().commit()).expect("committed");
    let count = host.counted.counters().tally(Operation::PutNew).requests;
    host.run(host.volume().unlink(ROOT_INODE, b"extents"))
        .expect("unlinked");
    host.write("other", 0, noise(2, 5_000));
    host.run(host.volume().commit()).expect("committed");
    assert!(host.counted.counters().tally(Operation::PutNew).requests > count);
    check(&host, "after it");
    host.finish().expect("unmounted");
    let host = bucket.host();
    let all = host.run(
        host.volume()
            .view
            .items(Scope::Live, key::everything(), 100),
    );
    // The root directory and its name, and the other file, are left.
    assert!(all.expect("read").items.len() < 10);
    assert_eq!(counted(&host), (5_000, 5_000));
}
