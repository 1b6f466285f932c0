//! The events that close(2) waits for.

use std::time::{Duration, Instant};

use bkfs::mounting::settings::Settings;
use bkfs::vfs::CloseMode;
use bkfs_fuse::{AttributeChange, Create, Handle, Ino, OpenFlags, Rename, RenameMode, Write};
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::host::{Answer, Bucket, CALLER, Host, ask, noise};

fn host(bucket: &Bucket, close: CloseMode) -> Host {
    let settings = Settings {
        close,
        ..Settings::default()
    };
    Host::with(bucket.memory.clone(), settings).expect("mounted")
}

fn open(host: &Host, name: &str) -> (Ino, Handle) {
    open_to(host, name, true)
}

/// Opens a file to read, and to write if `write`.
fn open_to(host: &Host, name: &str, write: bool) -> (Ino, Handle) {
    let ino = Ino(host.file(name));
    let flags = OpenFlags {
        read: true,
        write,
        ..OpenFlags::default()
    };
    let opened = ask(host, |vfs, reply| vfs.open(CALLER, ino, flags, reply));
    (
        ino,
        opened.recv().expect("answered").expect("opened").handle,
    )
}

/// Opens a file and writes to it.
fn written(host: &Host, name: &str, data: &[u8]) -> (Ino, Handle) {
    let (ino, handle) = open(host, name);
    for (index, data) in data.chunks(1 << 20).enumerate() {
        let write = Write {
            ino,
            handle,
            offset: (index as u64) << 20,
            data,
            from_cache: false,
            kill_privileges: false,
        };
        let written = ask(host, |vfs, reply| vfs.write(write, reply));
        written.recv().expect("answered").expect("written");
    }
    (ino, handle)
}

/// Closes a file. Returns the answer, which may not have come yet.
fn close(host: &Host, (ino, handle): (Ino, Handle)) -> Answer<()> {
    ask(host, |vfs, reply| vfs.flush(ino, handle, reply))
}

#[test]
fn a_small_file_is_in_the_bucket_a_second_after_close() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Bounded);
    let replaced = host.asked(Operation::Replace);
    let file = written(&host, "small", &noise(1, 10_000));
    let begun = Instant::now();
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
    while bucket.count("journal/") == 0 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        host.asked(Operation::Replace),
        replaced,
        "the root is left alone"
    );
    host.crash();
    assert!(bucket.host().read("small") == Some(noise(1, 10_000)));
}

/// Programs write a temporary file, close it, and give it its name.
#[test]
fn a_new_name_is_in_the_bucket_a_second_after_rename() {
    for (close_mode, is_promised) in [
        (CloseMode::Durable, true),
        (CloseMode::Bounded, true),
        (CloseMode::Async, false),
    ] {
        let bucket = Bucket::new();
        let host = host(&bucket, close_mode);
        let file = written(&host, "temporary", &noise(1, 10_000));
        let closed = close(&host, file).recv();
        closed.expect("answered").expect("closed");
        host.fsync().expect("durable");
        let before = bucket.count("journal/");
        let root = Ino(bkfs::volume::ROOT_INODE);
        let rename = Rename {
            parent: root,
            name: b"temporary",
            new_parent: root,
            new_name: b"whole",
            mode: RenameMode::Replace,
        };
        let renamed = ask(&host, |vfs, reply| vfs.rename(CALLER, rename, reply)).recv();
        renamed.expect("answered").expect("renamed");
        let begun = Instant::now();
        while bucket.count("journal/") == before && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
        host.crash();
        let found = bucket.host().read("whole");
        assert_eq!(found.is_some(), is_promised, "{close_mode:?}");
    }
}

#[test]
fn what_is_closed_while_a_journal_is_written_has_the_next_one() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Bounded);
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
    host.faults.plan(strike.keys("journal/").always());
    let closed = |name: &str| {
        let file = written(&host, name, name.as_bytes());
        let answer = close(&host, file).recv();
        answer.expect("answered").expect("closed");
    };
    // Several files are closed before the journal begins, and none of them asks for another one.
    closed("first");
    closed("second");
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    closed("meanwhile");
    gate.open();
    let begun = Instant::now();
    while bucket.count("journal/") < 2 && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    host.crash();
    assert_eq!(bucket.count("journal/"), 2);
    let host = bucket.host();
    for name in ["first", "second", "meanwhile"] {
        assert_eq!(host.read(name), Some(name.as_bytes().to_vec()));
    }
}

#[test]
fn the_close_of_a_large_file_waits_for_its_data() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Bounded);
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
    host.faults.plan(strike.keys("data/").always());
    let file = written(&host, "large", &noise(1, 3 << 20));
    let closed = close(&host, file);
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    closed
        .recv_timeout(Duration::from_millis(200))
        .expect_err("its data is not in the bucket");
    gate.open();
    closed.recv().expect("answered").expect("closed");
    assert!(bucket.count("data/") > 0);
}

/// A duplicate of a descriptor is closed while the close of the other one waits.
#[test]
fn every_close_of_a_handle_waits() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Bounded);
    let gate = Gate::new();
    let strike = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
    host.faults.plan(strike.keys("data/").always());
    let file = written(&host, "large", &noise(1, 3 << 20));
    let first = close(&host, file);
    while host.faults.struck() == 0 {
        std::thread::yield_now();
    }
    let second = close(&host, file);
    for closed in [&second, &first] {
        closed
            .recv_timeout(Duration::from_millis(200))
            .expect_err("its data is not in the bucket");
    }
    gate.open();
    for closed in [second, first] {
        closed.recv().expect("answered").expect("closed");
    }
    assert!(bucket.count("data/") > 0);
}

#[test]
fn a_handle_that_did_not_write_waits_for_nothing() {
    let bucket = Bucket::new();
    for mode in [CloseMode::Bounded, CloseMode::Durable] {
        let host = host(&bucket, mode);
        host.write("file", 0, noise(1, 3 << 20));
        let hung = Strike::with(Fault::Hang).on_writes();
        host.faults.plan(hung.always());
        let file = open(&host, "file");
        close(&host, file)
            .recv()
            .expect("answered")
            .expect("closed");
    }
}

#[test]
fn close_durable_is_an_fsync() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Durable);
    let file = written(&host, "file", b"kept");
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
    host.crash();
    assert_eq!(bucket.host().read("file"), Some(b"kept".to_vec()));
}

/// Makes an empty file and leaves it open.
fn made(host: &Host, name: &str) -> (Ino, Handle) {
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let create = Create {
        parent: Ino(1),
        name: name.as_bytes(),
        permissions: 0o640,
        flags,
    };
    let created = ask(host, |vfs, reply| vfs.create(CALLER, create, reply));
    let created = created.recv().expect("answered").expect("created");
    (created.entry.attributes.ino, created.opened.handle)
}

#[test]
fn close_durable_waits_for_an_empty_file_and_a_truncation() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Durable);
    let file = made(&host, "empty");
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
    let (ino, handle) = written(&host, "cut", b"kept and lost");
    host.fsync().expect("synced");
    close(&host, (ino, handle))
        .recv()
        .expect("answered")
        .expect("closed");
    let change = AttributeChange {
        size: Some(4),
        handle: Some(handle),
        ..AttributeChange::default()
    };
    let truncated = ask(&host, |vfs, reply| vfs.setattr(CALLER, ino, change, reply));
    truncated.recv().expect("answered").expect("truncated");
    close(&host, (ino, handle))
        .recv()
        .expect("answered")
        .expect("closed");
    host.crash();
    let host = bucket.host();
    assert_eq!(host.read("empty"), Some(Vec::new()));
    assert_eq!(host.read("cut"), Some(b"kept".to_vec()));
}

/// As open(2) with O_TRUNC does, after the open request.
#[test]
fn close_durable_waits_for_a_truncation_through_the_name() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Durable);
    let first = written(&host, "cut", b"lost");
    close(&host, first)
        .recv()
        .expect("answered")
        .expect("closed");
    let file = open(&host, "cut");
    truncate_by_name(&host, file.0);
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
    host.crash();
    assert_eq!(bucket.host().read("cut"), Some(Vec::new()));
}

/// Truncates a file. The kernel names no handle.
fn truncate_by_name(host: &Host, ino: Ino) {
    let change = AttributeChange {
        size: Some(0),
        ..AttributeChange::default()
    };
    let truncated = ask(host, |vfs, reply| vfs.setattr(CALLER, ino, change, reply));
    truncated.recv().expect("answered").expect("truncated");
}

#[test]
fn a_reader_does_not_wait_for_what_others_truncate() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Durable);
    host.write("file", 0, noise(1, 1000));
    let file = open_to(&host, "file", false);
    let hung = Strike::with(Fault::Hang).on_writes();
    host.faults.plan(hung.always());
    truncate_by_name(&host, file.0);
    let closed = close(&host, file).recv_timeout(Duration::from_secs(5));
    closed.expect("no wait").expect("closed");
}

#[test]
fn an_empty_file_is_in_the_bucket_a_second_after_close() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Bounded);
    let file = made(&host, "empty");
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
    let begun = Instant::now();
    while bucket.count("journal/") == 0 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    host.crash();
    assert_eq!(bucket.host().read("empty"), Some(Vec::new()));
}

#[test]
fn close_async_never_waits() {
    let bucket = Bucket::new();
    let host = host(&bucket, CloseMode::Async);
    host.faults
        .plan(Strike::with(Fault::Hang).on_writes().always());
    let file = written(&host, "file", &noise(1, 3 << 20));
    close(&host, file)
        .recv()
        .expect("answered")
        .expect("closed");
}

/// After the close of a descriptor failed, its duplicate is closed. That close waits too, and
/// reports the error.
#[test]
fn a_close_after_one_that_failed_is_told_as_well() {
    let bucket = Bucket::new();
    let settings = Settings {
        close: CloseMode::Durable,
        ..Settings::default()
    };
    let host = Host::patient(bucket.memory.clone(), settings, Duration::from_secs(2));
    let host = host.expect("mounted");
    let absent = Fault::FailBefore(StoreErrorKind::Unreachable);
    let strike = Strike::with(absent).on(Operation::PutNew).keys("journal/");
    host.faults.plan(strike.always());
    let file = written(&host, "file", b"kept");
    for _ in 0..2 {
        let closed = close(&host, file).recv().expect("answered");
        closed.expect_err("it is not in the bucket");
    }
    host.faults.heal();
    let closed = close(&host, file).recv().expect("answered");
    closed.expect("closed");
    host.crash();
    assert_eq!(bucket.host().read("file"), Some(b"kept".to_vec()));
}

/// The store answers each request, three seconds later, while an fsync stores much.
#[test]
fn a_close_does_not_wait_for_a_long_fsync_of_a_slow_store() {
    let bucket = Bucket::new();
    let host = Host::spooling(&bucket, &SimulatedDisk::new());
    let slow = Strike::with(Fault::Delay(Duration::from_secs(3))).on_writes();
    host.faults.plan(slow.always());
    host.write("big", 0, noise(1, 40 << 20));
    let volume = host.volume();
    let fsync = host.spawn(async move { volume.fsync().await });
    host.wait(0.5);
    assert!(!fsync.is_finished(), "it waits for the store");
    let small = written(&host, "small", &noise(2, 10_000));
    let answer = close(&host, small);
    answer.try_recv().expect("at once").expect("closed");
    let large = written(&host, "large", &noise(3, 2 << 20));
    let answer = close(&host, large);
    let mut seconds = 0;
    let closed = loop {
        match answer.try_recv() {
            Ok(closed) => break closed,
            Err(_) => host.wait(1.0),
        }
        seconds += 1;
    };
    closed.expect("closed");
    println!("close of a large file took {seconds} s");
    assert!(seconds >= 3, "its data is in the bucket");
    assert!(
        seconds <= 7,
        "two requests in a row, not those of the fsync: {seconds} s"
    );
    host.run(fsync).expect("no panic").expect("acknowledged");
    host.faults.heal();
    host.finish().expect("unmounted");
}
