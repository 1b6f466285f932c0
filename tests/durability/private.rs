//! `-o dedup=private`: the writes of other users do not reveal what is stored already.

use bkfs::mounting::settings::Settings;
use bkfs::vfs::DedupMode;
use bkfs_fuse::{Caller, CopyFileRange, Handle, Ino, OpenFlags, Write};

use crate::host::{Answer, Bucket, CALLER, Host, ask, noise};

/// A user who has not mounted.
const OTHER: Caller = Caller {
    uid: 4321,
    gid: 4321,
    pid: 2,
};

const BYTES: usize = 3 << 20;

fn host(bucket: &Bucket, dedup: DedupMode) -> Host {
    let settings = Settings {
        dedup,
        ..Settings::default()
    };
    Host::with(bucket.memory.clone(), settings).expect("mounted")
}

fn got<T>(answer: Answer<T>) -> T {
    answer.recv().expect("answered").expect("well")
}

fn open(host: &Host, caller: Caller, name: &str) -> (Ino, Handle) {
    let ino = Ino(host.file(name));
    let flags = OpenFlags {
        read: true,
        write: true,
        ..OpenFlags::default()
    };
    let opened = got(ask(host, |vfs, reply| vfs.open(caller, ino, flags, reply)));
    (ino, opened.handle)
}

fn write(host: &Host, (ino, handle): (Ino, Handle), data: &[u8], from_cache: bool) {
    for (index, data) in data.chunks(1 << 20).enumerate() {
        let write = Write {
            ino,
            handle,
            offset: (index as u64) << 20,
            data,
            from_cache,
            kill_privileges: false,
        };
        got(ask(host, |vfs, reply| vfs.write(write, reply)));
    }
}

/// Returns the bytes that came into the bucket as data packs while a user stored `data` with
/// fsync(2).
fn sent(bucket: &Bucket, host: &Host, caller: Caller, name: &str, data: &[u8]) -> u64 {
    let before = bucket.bytes("data/");
    let (ino, handle) = open(host, caller, name);
    write(host, (ino, handle), data, false);
    got(ask(host, |vfs, reply| vfs.fsync(ino, handle, false, reply)));
    got(ask(host, |vfs, reply| vfs.release(ino, handle, reply)));
    host.run(host.volume().commit()).expect("committed");
    bucket.bytes("data/") - before
}

#[test]
fn what_other_users_write_is_stored_whether_it_is_there_or_not() {
    let bucket = Bucket::new();
    let secret = noise(1, BYTES);
    let host = host(&bucket, DedupMode::Private);
    let first = sent(&bucket, &host, CALLER, "secret", &secret);
    assert!(first > BYTES as u64);
    // Contents that the bucket does not have, that the owner has, and that this user has stored
    // before.
    for (name, data) in [
        ("new", noise(2, BYTES)),
        ("guessed", secret.clone()),
        ("again", noise(2, BYTES)),
    ] {
        let sent = sent(&bucket, &host, OTHER, name, &data);
        let difference = sent.abs_diff(first);
        assert!(difference < first / 50, "{name}: {sent} bytes, not {first}");
    }
    // The owner's own contents still match.
    let again = sent(&bucket, &host, CALLER, "copy", &secret);
    assert_eq!(again, 0);
    assert!(host.read("guessed") == Some(secret.clone()));
    host.finish().expect("unmounted");
    let host = bucket.host();
    assert!(host.read("guessed") == Some(secret));
}

#[test]
fn without_it_all_users_share() {
    let bucket = Bucket::new();
    let host = host(&bucket, DedupMode::Shared);
    let data = noise(1, BYTES);
    assert!(sent(&bucket, &host, CALLER, "mine", &data) > 0);
    assert_eq!(sent(&bucket, &host, OTHER, "theirs", &data), 0);
}

/// Pages that the kernel writes back through the owner's handle may be another user's.
#[test]
fn pages_of_a_mapping_are_of_all_who_opened_the_file() {
    let bucket = Bucket::new();
    let host = host(&bucket, DedupMode::Private);
    let data = noise(1, BYTES);
    sent(&bucket, &host, CALLER, "secret", &data);
    let before = bucket.bytes("data/");
    let owners = open(&host, CALLER, "mapped");
    open(&host, OTHER, "mapped");
    write(&host, owners, &data, true);
    host.run(host.volume().commit()).expect("committed");
    assert!(bucket.bytes("data/") - before >= BYTES as u64);
}

/// A user who can read a file may share its contents.
#[test]
fn copies_within_the_mount_share() {
    let bucket = Bucket::new();
    let host = host(&bucket, DedupMode::Private);
    let data = noise(1, BYTES);
    sent(&bucket, &host, CALLER, "source", &data);
    let before = bucket.bytes("data/");
    let (ino_in, handle_in) = open(&host, CALLER, "source");
    let (ino_out, handle_out) = open(&host, OTHER, "target");
    let request = CopyFileRange {
        ino_in,
        handle_in,
        offset_in: 0,
        ino_out,
        handle_out,
        offset_out: 0,
        length: BYTES as u64,
        kill_privileges: false,
    };
    got(ask(&host, |vfs, reply| vfs.copy_file_range(request, reply)));
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(bucket.bytes("data/"), before);
    assert!(host.read("target") == Some(data));
}
