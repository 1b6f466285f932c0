//! Files of the greatest length. Operations on their holes take no longer than on small ones.

use bkfs::extents::MAX_FILE_BYTES;
use bkfs::tree::item::Attributes;
use bkfs::volume::attributes::Change;
use bkfs::volume::data::Room;
use bkfs::volume::error::VolumeError;
use bkfs::volume::seek::seek;

use crate::host::{Bucket, Host};

const TIB: u64 = 1 << 40;

fn resize(host: &Host, name: &str, size: u64) -> Attributes {
    let change = Change {
        size: Some(size),
        ..Change::default()
    };
    let volume = host.volume();
    let resized = host.run(volume.set_attributes(host.file(name), change));
    resized.expect("resized")
}

fn seek_data(host: &Host, name: &str, offset: u64) -> Option<u64> {
    let volume = host.volume();
    match host.run(seek(&volume.view, host.file(name), offset, true)) {
        Ok(found) => Some(found),
        Err(VolumeError::NoSuchPlace) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A stress test found this: it wrote a byte at the very end, and then cut everything off. The
/// commit after that went through the hole in steps of 4 GiB.
#[test]
fn regression_emptying_the_longest_file_takes_one_step() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("far", MAX_FILE_BYTES - 1, *b"z");
    host.run(host.volume().commit()).expect("committed");
    resize(&host, "far", 1);
    resize(&host, "far", MAX_FILE_BYTES);
    host.write("far", 5, *b"near");
    host.run(host.volume().commit()).expect("committed");
    let volume = host.volume();
    let punch = volume.allocate(host.file("far"), 0..MAX_FILE_BYTES, Room::Punch, false);
    host.run(punch).expect("punched");
    drop(volume);
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(host.attributes(host.file("far")).allocated_bytes, 0);
    host.finish().expect("unmounted");
    let host = bucket.host();
    assert_eq!(host.attributes(host.file("far")).size_bytes, MAX_FILE_BYTES);
    assert_eq!(seek_data(&host, "far", 0), None);
}

/// A hole with many extents in it is emptied in several steps, and none of the extents stays.
#[test]
fn a_hole_over_many_extents_leaves_none() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for number in 0..5000 {
        host.write("scattered", number << 30, vec![1; 2000]);
    }
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(
        host.attributes(host.file("scattered")).allocated_bytes,
        5000 * 2000
    );
    resize(&host, "scattered", 0);
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(host.attributes(host.file("scattered")).allocated_bytes, 0);
    resize(&host, "scattered", 6000 << 30);
    assert_eq!(seek_data(&host, "scattered", 0), None);
}

/// `cp --sparse` and tar ask where data goes on. The answer went through holes in steps of 1 GiB.
#[test]
fn regression_seeking_goes_over_holes_of_any_length() {
    let bucket = Bucket::new();
    let host = bucket.host();
    host.write("far", 5 * TIB, *b"middle");
    host.write("far", MAX_FILE_BYTES - 3, *b"end");
    for stored in [false, true] {
        if stored {
            host.run(host.volume().commit()).expect("committed");
        }
        assert_eq!(seek_data(&host, "far", 0), Some(5 * TIB));
        assert_eq!(seek_data(&host, "far", 5 * TIB + 2), Some(5 * TIB + 2));
        assert_eq!(
            seek_data(&host, "far", 6 * TIB),
            Some(MAX_FILE_BYTES - 3),
            "stored: {stored}"
        );
    }
    resize(&host, "far", 7 * TIB);
    assert_eq!(seek_data(&host, "far", 6 * TIB), None);
}
