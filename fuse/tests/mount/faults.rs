//! Faults of the filesystem, which must not spread to other requests.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::thread;

use crate::helpers::*;

#[test]
fn waiting_writers_occupy_no_thread() {
    let mounted = Mounted::new();
    fs::write(mounted.path("other"), b"x").unwrap();
    thread::scope(|scope| {
        // More writers than threads that serve the mount.
        let writers: Vec<_> = (0..5)
            .map(|index| {
                let path = mounted.path(&format!("parked-{index}"));
                scope.spawn(move || File::create(path).unwrap().write_all(b"waited"))
            })
            .collect();
        eventually("all writers wait", || mounted.memory.parked() == 5);
        assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 6);
        assert_eq!(fs::read(mounted.path("other")).unwrap(), b"x");
        fs::write(mounted.path("new"), b"y").unwrap();
        assert!(writers.iter().all(|writer| !writer.is_finished()));
        mounted.memory.release_parked();
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
    assert_eq!(fs::read(mounted.path("parked-3")).unwrap(), b"waited");
    mounted.end();
}

#[test]
fn a_reply_that_is_dropped_is_an_input_output_error() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("lost")).unwrap();
    assert_eq!(errno(file.write_all(b"x")), libc::EIO);
    fs::write(mounted.path("other"), b"x").unwrap();
    drop(file);
    mounted.end();
}

#[test]
fn a_panic_is_an_input_output_error_and_no_more() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("panic")).unwrap();
    for _ in 0..10 {
        assert_eq!(errno(file.write_all(b"x")), libc::EIO);
    }
    fs::write(mounted.path("other"), b"x").unwrap();
    drop(file);
    mounted.end();
}

/// fuser 0.18 negates the seconds of times before 1970, which overflows for the first possible
/// second. With overflow checks, one such request would end one of the mount's threads. The
/// workspace turns the checks off for that crate; this test verifies it.
#[test]
fn the_first_second_of_all_does_not_end_the_mount() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    for _ in 0..10 {
        set_times(&path, i64::MIN, 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mtime(), i64::MIN);
        set_times(&path, i64::MIN + 1, 999_999_999).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mtime(), i64::MIN + 1);
    }
    mounted.end();
}
