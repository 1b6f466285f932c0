//! Handles that were open at a loss, and where handles, mapped pages and inode numbers lead.

use bkfs::mounting::settings::Settings;
use bkfs::tree::item::Item;
use bkfs::vfs::CloseMode;
use bkfs::volume::attributes::XattrDemand;
use bkfs::volume::error::VolumeError;
use bkfs_fuse::{
    AttributeChange, CopyFileRange, Create, DirectoryReply, Errno, Fallocate, FallocateMode,
    Forget, Handle, Ino, Lookup, OpenFlags, Read, Stat, Vfs, Write,
};
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Gate, Strike};

use crate::host::{Bucket, CALLER, Host, ask, noise};

/// `.bkfs/control`.
const CONTROL: Ino = Ino(6);

/// Files with attributes, so many that the tree cannot be read at once.
const FILES: u64 = 200;

type Open = (Ino, Handle);

fn open_with(host: &Host, ino: Ino, flags: OpenFlags) -> Handle {
    let opened = ask(host, |vfs, reply| vfs.open(CALLER, ino, flags, reply));
    opened.recv().expect("answered").expect("opened").handle
}

fn open(host: &Host, name: &str) -> Open {
    let ino = Ino(host.file(name));
    let flags = OpenFlags {
        read: true,
        write: true,
        ..OpenFlags::default()
    };
    (ino, open_with(host, ino, flags))
}

fn open_to_read(host: &Host, name: &str) -> Open {
    let ino = Ino(host.file(name));
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    (ino, open_with(host, ino, flags))
}

fn open_directory(host: &Host, ino: Ino) -> Handle {
    let opened = ask(host, |vfs, reply| vfs.opendir(CALLER, ino, reply));
    opened.recv().expect("answered").expect("opened").handle
}

fn put(host: &Host, open: Open, offset: u64, data: &[u8], from_cache: bool) -> Result<u32, Errno> {
    let write = Write {
        ino: open.0,
        handle: open.1,
        offset,
        data,
        from_cache,
        kill_privileges: false,
    };
    let written = ask(host, |vfs, reply| vfs.write(write, reply));
    written.recv().expect("answered")
}

fn write(host: &Host, open: Open, offset: u64, data: &[u8]) -> Result<u32, Errno> {
    put(host, open, offset, data, false)
}

fn flush(host: &Host, (ino, handle): Open) -> Result<(), Errno> {
    let flushed = ask(host, |vfs, reply| vfs.flush(ino, handle, reply));
    flushed.recv().expect("answered")
}

fn fsync(host: &Host, (ino, handle): Open) -> Result<(), Errno> {
    let synced = ask(host, |vfs, reply| vfs.fsync(ino, handle, false, reply));
    synced.recv().expect("answered")
}

fn fsync_directory(host: &Host, ino: Ino, handle: Handle) -> Result<(), Errno> {
    let synced = ask(host, |vfs, reply| vfs.fsyncdir(ino, handle, false, reply));
    synced.recv().expect("answered")
}

fn truncate(host: &Host, (ino, handle): Open, size: u64) -> Result<Stat, Errno> {
    let change = AttributeChange {
        size: Some(size),
        handle: Some(handle),
        ..AttributeChange::default()
    };
    let changed = ask(host, |vfs, reply| vfs.setattr(CALLER, ino, change, reply));
    changed.recv().expect("answered")
}

fn allocate(host: &Host, (ino, handle): Open) -> Result<(), Errno> {
    let request = Fallocate {
        ino,
        handle,
        offset: 0,
        length: 1 << 20,
        mode: FallocateMode::Allocate { keep_size: false },
        kill_privileges: false,
    };
    let allocated = ask(host, |vfs, reply| vfs.fallocate(request, reply));
    allocated.recv().expect("answered")
}

fn copy(host: &Host, from: Open, to: Open) -> Result<u64, Errno> {
    let request = CopyFileRange {
        ino_in: from.0,
        handle_in: from.1,
        offset_in: 0,
        ino_out: to.0,
        handle_out: to.1,
        offset_out: 0,
        length: 4,
        kill_privileges: false,
    };
    let copied = ask(host, |vfs, reply| vfs.copy_file_range(request, reply));
    copied.recv().expect("answered")
}

fn read(host: &Host, (ino, handle): Open) -> Result<Vec<u8>, Errno> {
    let request = Read {
        ino,
        handle,
        offset: 0,
        size: 1 << 20,
    };
    let data = ask(host, |vfs, reply| vfs.read(request, reply));
    Ok(data.recv().expect("answered")?.to_vec())
}

fn release(host: &Host, (ino, handle): Open) {
    let released = ask(host, |vfs, reply| vfs.release(ino, handle, reply));
    released.recv().expect("answered").expect("released");
}

fn lose(host: &Host) {
    let cause = VolumeError::Commit("the store takes nothing".into());
    host.volume().poison(cause);
}

/// Sends a request to the mount itself, and returns its answer.
pub fn control(host: &Host, request: &str) -> String {
    let flags = OpenFlags {
        read: true,
        write: true,
        ..OpenFlags::default()
    };
    let control = (CONTROL, open_with(host, CONTROL, flags));
    write(host, control, 0, request.as_bytes()).expect("asked");
    let answer = String::from_utf8(read(host, control).expect("read")).expect("text");
    release(host, control);
    answer
}

fn acknowledge(host: &Host) {
    let answer = control(host, r#"{"acknowledge":{}}"#);
    assert!(answer.contains("lost_files"), "{answer}");
}

/// Checks that nothing that would change or keep the file works through this handle.
fn fails_for_good(host: &Host, open: Open) {
    for _ in 0..2 {
        assert_eq!(write(host, open, 4, b"more"), Err(Errno::EIO));
        assert_eq!(fsync(host, open), Err(Errno::EIO));
        assert_eq!(flush(host, open), Err(Errno::EIO));
        assert_eq!(truncate(host, open, 1).map(|_| ()), Err(Errno::EIO));
        assert_eq!(allocate(host, open), Err(Errno::EIO));
    }
}

/// Makes a file, and commits it with the contents `kept`.
fn committed(host: &Host, name: &str) {
    host.write(name, 0, b"kept");
    host.run(host.volume().commit()).expect("committed");
}

#[test]
fn a_small_file_is_copied_as_it_is() {
    let bucket = Bucket::new();
    let host = Host::with(bucket.memory.clone(), Settings::default()).expect("mounted");
    let (from, to) = (open(&host, "from"), open(&host, "to"));
    write(&host, from, 0, b"abcdef").expect("written");
    host.run(host.volume().commit()).expect("committed");
    assert_eq!(copy(&host, from, to), Ok(4));
    assert_eq!(read(&host, to), Ok(b"abcd".to_vec()));
    host.fsync().expect("durable");
    host.crash();
    assert_eq!(bucket.host().read("to"), Some(b"abcd".to_vec()));
}

#[test]
fn a_handle_that_was_open_at_a_loss_fails_until_its_release() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let old = open(&host, "file");
    write(&host, old, 0, &noise(1, 100_000)).expect("written");
    lose(&host);
    assert_eq!(write(&host, old, 0, b"more"), Err(Errno::EIO));
    assert_eq!(fsync(&host, old), Err(Errno::EIO));
    assert_eq!(flush(&host, old), Err(Errno::EIO));
    acknowledge(&host);
    fails_for_good(&host, old);
    let another = open(&host, "another");
    assert_eq!(copy(&host, another, old), Err(Errno::EIO));
    assert_eq!(host.read("file"), Some(b"kept".to_vec()));
    assert_eq!(read(&host, old), Ok(b"kept".to_vec()), "reading goes on");
    // A second loss, of another file, takes nothing back.
    write(&host, another, 0, b"more").expect("written");
    lose(&host);
    acknowledge(&host);
    fails_for_good(&host, old);
    // A process that opens the file now knows its contents.
    let new = open(&host, "file");
    write(&host, new, 0, b"news").expect("written");
    fsync(&host, new).expect("synced");
    flush(&host, new).expect("closed");
    fails_for_good(&host, old);
    release(&host, old);
    write(&host, new, 0, b"also").expect("written");
    host.finish().expect("unmounted");
    assert_eq!(bucket.host().read("file"), Some(b"also".to_vec()));
}

#[test]
fn a_file_that_was_lost_whole_fails_too() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let old = open(&host, "file");
    write(&host, old, 0, b"first").expect("written");
    lose(&host);
    acknowledge(&host);
    fails_for_good(&host, old);
    assert_eq!(host.find("file"), None);
    // The file does not come back with zeroes in place of its first bytes.
    host.fsync().expect("synced");
    host.crash();
    assert_eq!(bucket.host().find("file"), None);
}

#[test]
fn every_close_fails_while_a_loss_waits_to_be_acknowledged() {
    let bucket = Bucket::new();
    // With this setting no close begins a journal, which would keep the bytes that are to be lost.
    let settings = Settings {
        close: CloseMode::Async,
        ..Settings::default()
    };
    let host = Host::with(bucket.memory.clone(), settings).expect("mounted");
    committed(&host, "file");
    committed(&host, "unchanged");
    let (old, unchanged) = (open(&host, "file"), open(&host, "unchanged"));
    write(&host, old, 0, b"lost").expect("written");
    // One of two descriptors is closed before the loss.
    flush(&host, old).expect("closed");
    lose(&host);
    assert_eq!(flush(&host, old), Err(Errno::EIO));
    assert_eq!(flush(&host, old), Err(Errno::EIO));
    flush(&host, unchanged).expect("nothing of it was lost");
    acknowledge(&host);
    assert_eq!(flush(&host, old), Err(Errno::EIO));
}

#[test]
fn who_reads_a_lost_file_is_told_at_the_end() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let reader = open_to_read(&host, "file");
    host.write("file", 0, b"lost");
    assert_eq!(read(&host, reader), Ok(b"lost".to_vec()));
    lose(&host);
    acknowledge(&host);
    assert_eq!(read(&host, reader), Ok(b"kept".to_vec()));
    assert_eq!(fsync(&host, reader), Err(Errno::EIO));
    assert_eq!(flush(&host, reader), Err(Errno::EIO));
}

#[test]
fn what_lost_nothing_goes_on() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for name in ["committed", "journaled", "unlinked", "lost"] {
        committed(&host, name);
    }
    let files = ["committed", "journaled", "unlinked"].map(|name| open(&host, name));
    let [_, journaled, unlinked] = files;
    let root = open_directory(&host, Ino(1));
    // A file without a name that is held open, as databases have them.
    let volume = host.volume();
    host.run(volume.unlink(1, b"unlinked")).expect("unlinked");
    host.run(volume.commit()).expect("committed");
    // A journal has it, but no commit.
    write(&host, journaled, 0, b"told").expect("written");
    fsync(&host, journaled).expect("synced");
    host.write("lost", 0, b"lost");
    lose(&host);
    acknowledge(&host);
    for file in files {
        write(&host, file, 4, b" on").expect("written");
        fsync(&host, file).expect("synced");
        flush(&host, file).expect("closed");
    }
    fsync_directory(&host, Ino(1), root).expect("synced");
    assert_eq!(read(&host, unlinked), Ok(b"kept on".to_vec()));
    assert_eq!(host.read("journaled"), Some(b"told on".to_vec()));
    for file in files {
        release(&host, file);
    }
    host.run(host.volume().commit()).expect("committed");
    assert!(!host.has_inode(unlinked.0.0), "without users it goes");
}

#[test]
fn a_directory_that_lost_a_name_fails_to_sync() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let old = open_directory(&host, Ino(1));
    fsync_directory(&host, Ino(1), old).expect("synced");
    host.write("lost", 0, b"lost");
    lose(&host);
    assert_eq!(fsync_directory(&host, Ino(1), old), Err(Errno::EIO));
    acknowledge(&host);
    assert_eq!(fsync_directory(&host, Ino(1), old), Err(Errno::EIO));
    assert_eq!(fsync_directory(&host, Ino(1), old), Err(Errno::EIO));
    let new = open_directory(&host, Ino(1));
    fsync_directory(&host, Ino(1), new).expect("synced");
}

#[test]
fn pages_of_before_a_loss_never_come_into_the_file() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let old = open(&host, "file");
    write(&host, old, 0, b"lost").expect("written");
    lose(&host);
    acknowledge(&host);
    let new = open(&host, "file");
    // The kernel writes the pages of a mapping back through any handle that is open for writing.
    for handle in [old, new] {
        let written = put(&host, handle, 0, b"lost and more", true);
        assert_eq!(written, Err(Errno::EIO));
    }
    release(&host, old);
    put(&host, new, 0, b"mapped", true).expect("the mapping is of after the loss");
    assert_eq!(host.read("file"), Some(b"mapped".to_vec()));
}

#[test]
fn what_a_failing_volume_takes_is_not_acknowledged() {
    let bucket = Bucket::new();
    let host = bucket.host();
    for number in 0..FILES {
        let inode = host.file(&format!("file {number}"));
        let volume = host.volume();
        let value = noise(number, 60_000);
        let set = volume.set_xattr(inode, b"user.large", &value, XattrDemand::Nothing);
        host.run(set).expect("set");
    }
    host.finish().expect("unmounted");
    // Little of the tree is in memory, so the change waits for the store after it was let in.
    let host = bucket.host();
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::GetRange);
    host.faults.plan(held.always());
    let volume = host.volume();
    let removed = host.spawn(async move { volume.unlink(1, b"file 100").await });
    while host.faults.struck() == 0 {
        assert!(!removed.is_finished(), "it waits for nothing");
        std::thread::yield_now();
    }
    lose(&host);
    gate.open();
    let answer = host.run(removed).expect("ended");
    assert!(answer.is_err(), "it would be lost without a word");
}

#[test]
fn pages_of_a_mapping_never_go_to_the_end_of_a_file() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let flags = OpenFlags {
        read: true,
        write: true,
        append: true,
        ..OpenFlags::default()
    };
    let ino = Ino(host.file("file"));
    let appending = (ino, open_with(&host, ino, flags));
    put(&host, appending, 0, b"page", true).expect("written");
    write(&host, appending, 0, b" end").expect("written");
    assert_eq!(host.read("file"), Some(b"page end".to_vec()));
}

#[test]
fn a_lookup_that_a_failed_create_made_is_given_back() {
    let bucket = Bucket::new();
    let host = bucket.host();
    let request = Create {
        parent: Ino(1),
        name: b"directory",
        permissions: 0o644,
        flags: OpenFlags {
            write: true,
            ..OpenFlags::default()
        },
    };
    let made = ask(&host, |vfs, reply| {
        vfs.mkdir(CALLER, Ino(1), b"directory", 0o755, reply)
    });
    let ino = made.recv().expect("answered").expect("made").attributes.ino;
    host.vfs().forget(&[Forget { ino, lookups: 1 }]);
    let created = ask(&host, |vfs, reply| vfs.create(CALLER, request, reply));
    let answer = created.recv().expect("answered");
    assert_eq!(answer.map(|_| ()), Err(Errno::EISDIR));
    assert!(!host.volume().usage().in_use(ino.0), "a lookup is left");
}

#[test]
fn a_number_leads_to_its_file_without_a_name() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "file");
    let ino = Ino(host.file("file"));
    let itself = |name: &'static [u8]| {
        let found = ask(&host, |vfs, reply| vfs.lookup(CALLER, ino, name, reply));
        found.recv().expect("answered")
    };
    match itself(b".") {
        Ok(Lookup::Found(entry)) => assert_eq!(entry.attributes.ino, ino),
        other => panic!("{other:?}"),
    }
    assert!(host.volume().usage().in_use(ino.0), "it counts as a lookup");
    assert_eq!(itself(b"..").map(|_| ()), Err(Errno::ESTALE));
    host.vfs().forget(&[Forget { ino, lookups: 1 }]);
    host.run(host.volume().unlink(1, b"file"))
        .expect("unlinked");
    assert_eq!(itself(b".").map(|_| ()), Err(Errno::ESTALE));
}

#[test]
fn a_name_that_leads_out_of_its_tree_is_refused_and_not_listed() {
    let bucket = Bucket::new();
    let host = bucket.host();
    committed(&host, "good");
    let volume = host.volume();
    // The root of another snapshot, the mount's own files, and the root itself.
    let bad = [
        ("snapshot", 7 << 48 | 1),
        ("control", CONTROL.0),
        ("root", 1),
    ];
    for (name, inode) in bad {
        let key = volume.name_key(1, name.as_bytes()).expect("short");
        let item = Item::Name {
            inode,
            file_type: 8,
        };
        let forged = volume.view.transact(|run| {
            run.set(key.clone(), Some(item.clone()));
            Ok(())
        });
        host.run(forged).expect("set");
        let found = ask(&host, |vfs, reply| {
            vfs.lookup(CALLER, Ino(1), name.as_bytes(), reply)
        });
        let found = found.recv().expect("answered");
        assert!(!matches!(found, Ok(Lookup::Found(_))), "{name}");
    }
    let handle = open_directory(&host, Ino(1));
    let (sender, answer) = std::sync::mpsc::channel();
    let reply = DirectoryReply::collecting(false, 9, move |answer| drop(sender.send(answer)));
    host.vfs().readdir(Ino(1), handle, 0, reply);
    let listed = answer.recv().expect("answered").expect("listed");
    let names: Vec<_> = listed.iter().map(|entry| entry.name.as_slice()).collect();
    assert_eq!(names, [b".".as_slice(), b"..", b"good"]);
}
