//! Files that are written in many small pieces: they are read back, and take few extents.

use bkfs::tree::key;
use bkfs::volume::error::VolumeError;
use bkfs::volume::seek::seek;
use bkfs::volume::state::Scope;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};

use crate::host::{Bucket, Host, noise};

const COUNT: u64 = 4096;
const PIECE: usize = 512;
const APART: u64 = 1024;

/// Writes small pieces in an order of their own. Returns the contents of the file, which held
/// `before`.
fn scatter(host: &Host, seed: u64, mut before: Vec<u8>) -> Vec<u8> {
    before.resize((COUNT * APART) as usize - PIECE, 0);
    let fresh = noise(seed, COUNT as usize * PIECE);
    for n in 0..COUNT {
        let n = n * 1571 % COUNT;
        let piece = &fresh[n as usize * PIECE..][..PIECE];
        before[(n * APART) as usize..][..PIECE].copy_from_slice(piece);
        host.write("scattered", n * APART, piece);
    }
    before
}

fn extents(host: &Host, name: &str) -> usize {
    let keys = key::extents_beginning(host.file(name), 0..u64::MAX);
    let volume = host.volume();
    let page = host.run(volume.view.items(Scope::Live, keys, usize::MAX));
    page.expect("read").items.len()
}

/// An fsync described each piece with all extents of the 4 MiB before it, and a flush looked
/// through them again and again.
#[test]
fn regression_small_pieces_are_stored_together_with_what_lies_between() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let first = scatter(&host, 1, Vec::new());
    host.run(host.volume().commit()).expect("committed");
    assert!(extents(&host, "scattered") <= COUNT as usize / 100);
    assert!(host.read("scattered").as_ref() == Some(&first));
    let second = scatter(&host, 2, first);
    host.fsync().expect("durable");
    assert!(extents(&host, "scattered") <= COUNT as usize / 100);
    host.crash();
    let host = bucket.host();
    assert!(host.read("scattered") == Some(second));
}

/// Pieces far apart stay apart: the file does not grow by the bytes between them.
#[test]
fn pieces_far_apart_are_found_again_before_and_after_they_are_stored() {
    const FAR: u64 = 1 << 20;
    let bucket = Bucket::new();
    let host = bucket.host();
    let contents = noise(3, PIECE);
    for n in 0..1000 {
        host.write("far", n * 7 % 1000 * FAR, contents.clone());
    }
    let volume = host.volume();
    let inode = host.file("far");
    for stored in [false, true] {
        if stored {
            host.run(volume.commit()).expect("committed");
            assert_eq!(host.attributes(inode).allocated_bytes, 1000 * PIECE as u64);
        }
        for n in 0..1000 {
            let find = |at, want_data| host.run(seek(&volume.view, inode, at, want_data));
            assert_eq!(find(n * FAR, true).ok(), Some(n * FAR));
            let hole = n * FAR + PIECE as u64;
            assert_eq!(find(n * FAR, false).ok(), Some(hole));
            match (find(hole, true), n) {
                (Err(VolumeError::NoSuchPlace), 999) => {}
                (found, _) => assert_eq!(found.ok(), Some((n + 1) * FAR)),
            }
            let read = volume.view.read(Scope::Live, inode, n * FAR..hole);
            assert!(host.run(read).expect("read").concat() == contents);
        }
    }
}

/// The bytes between pieces are a reason to store fewer extents, and no reason to store nothing.
#[test]
fn pieces_are_stored_though_what_lies_between_cannot_be_read() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let first = scatter(&host, 1, Vec::new());
    host.finish().expect("unmounted");
    let host = bucket.host();
    let strike = Strike::with(Fault::FailBefore(StoreErrorKind::NotFound));
    host.faults
        .plan(strike.on(Operation::GetRange).keys("data/").always());
    let second = scatter(&host, 2, first);
    host.run(host.volume().settle(host.file("scattered")))
        .expect("stored");
    host.faults.heal();
    host.finish().expect("unmounted");
    assert!(bucket.host().read("scattered") == Some(second));
}
