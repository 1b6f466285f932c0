//! A read-only mount while another machine writes the volume.

use bkfs_fuse::{DirectoryReply, Errno, Handle, Ino, OpenFlags, Read, Vfs};

use bkfs::volume::attributes::Change;
use bkfs::volume::data::WriteOptions;

use crate::host::noise;
use crate::paused::{CALLER, Mount, World, ask, paused, seconds};

async fn open(mount: &Mount, name: &str) -> (Ino, Handle) {
    let found = ask(mount, |vfs, reply| {
        vfs.lookup(CALLER, Ino(1), name.as_bytes(), reply)
    });
    let bkfs_fuse::Lookup::Found(entry) = found.await.expect("looked up") else {
        panic!("{name} is not there");
    };
    let ino = entry.attributes.ino;
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let opened = ask(mount, |vfs, reply| vfs.open(CALLER, ino, flags, reply)).await;
    (ino, opened.expect("opened").handle)
}

async fn read(mount: &Mount, (ino, handle): (Ino, Handle)) -> Result<Vec<u8>, Errno> {
    let read = Read {
        ino,
        handle,
        offset: 0,
        size: 64 << 20,
    };
    let read = ask(mount, |vfs, reply| vfs.read(read, reply)).await?;
    Ok(read.to_vec())
}

/// Returns at most `count` names from `cookie` on, and the cookie behind the last one.
async fn list(mount: &Mount, handle: Handle, cookie: u64, count: usize) -> (Vec<String>, u64) {
    let (sender, answer) = tokio::sync::oneshot::channel();
    let reply = DirectoryReply::collecting(true, count, move |listed| drop(sender.send(listed)));
    mount.0.vfs.readdir(Ino(1), handle, cookie, reply);
    let listed = answer.await.expect("answered").expect("listed");
    let behind = listed.last().map_or(cookie, |entry| entry.cookie);
    let names = listed
        .into_iter()
        .map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
    (
        names.filter(|name| !name.starts_with('.')).collect(),
        behind,
    )
}

#[test]
fn an_open_file_keeps_the_state_that_it_was_opened_with() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let writer = world.mount().await;
        for name in ["changed", "cut", "removed"] {
            writer.put(name, &noise(1, 300_000)).await;
        }
        let volume = writer.0.volume().expect("writable");
        volume.commit().await.expect("committed");
        let reader = world.mount_read_only().await;
        let mut before = Vec::new();
        for name in ["changed", "cut", "removed"] {
            before.push(open(&reader, name).await);
        }
        let data = bytes::Bytes::from(noise(2, 400_000));
        let written = volume.write(before[0].0.0, 100, data, WriteOptions::default());
        written.await.expect("written");
        let cut = Change {
            size: Some(10),
            ..Change::default()
        };
        let cut = volume.set_attributes(before[1].0.0, cut);
        cut.await.expect("cut");
        let removed = ask(&writer, |vfs, reply| {
            vfs.unlink(CALLER, Ino(1), b"removed", reply)
        });
        removed.await.expect("removed");
        volume.commit().await.expect("committed");
        tokio::time::sleep(seconds(5)).await;
        let found = ask(&reader, |vfs, reply| {
            vfs.lookup(CALLER, Ino(1), b"removed", reply)
        });
        let found = found.await.expect("looked up");
        assert!(
            matches!(found, bkfs_fuse::Lookup::Absent { .. }),
            "it follows"
        );
        for file in before {
            assert!(read(&reader, file).await == Ok(noise(1, 300_000)));
            let stat = ask(&reader, |vfs, reply| vfs.getattr(file.0, None, reply)).await;
            stat.expect("an open file has attributes");
        }
        let mut changed = noise(1, 300_000);
        changed.truncate(100);
        changed.extend(noise(2, 400_000));
        let now = open(&reader, "changed").await;
        assert!(read(&reader, now).await == Ok(changed));
    });
}

#[test]
fn a_listing_goes_on_with_what_was_there_when_it_began() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let writer = world.mount().await;
        for number in 0..600 {
            writer.put(&format!("file-{number}"), b"").await;
        }
        let volume = writer.0.volume().expect("writable");
        volume.commit().await.expect("committed");
        let reader = world.mount_read_only().await;
        let opened = ask(&reader, |vfs, reply| vfs.opendir(CALLER, Ino(1), reply)).await;
        let handle = opened.expect("opened").handle;
        let (mut names, mut cookie) = list(&reader, handle, 0, 50).await;
        for number in 0..600 {
            let name = format!("file-{number}");
            let removed = ask(&writer, |vfs, reply| {
                vfs.unlink(CALLER, Ino(1), name.as_bytes(), reply)
            });
            removed.await.expect("removed");
        }
        volume.commit().await.expect("committed");
        tokio::time::sleep(seconds(5)).await;
        loop {
            let (more, behind) = list(&reader, handle, cookie, 50).await;
            if behind == cookie {
                break;
            }
            names.extend(more);
            cookie = behind;
        }
        assert_eq!(names.len(), 600);
        let opened = ask(&reader, |vfs, reply| vfs.opendir(CALLER, Ino(1), reply)).await;
        let (names, _) = list(&reader, opened.expect("opened").handle, 0, 1000).await;
        assert!(names.is_empty(), "{names:?}");
    });
}

#[test]
fn a_mount_that_is_gone_follows_nothing() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let writer = world.mount().await;
        writer.0.finish().await.expect("ended");
        let reader = world.mount_read_only().await;
        let asked = world.faults.requests();
        tokio::time::sleep(seconds(10)).await;
        assert!(world.faults.requests() > asked, "it follows");
        reader.0.finish().await.expect("ended");
        tokio::time::sleep(seconds(5)).await;
        let asked = world.faults.requests();
        tokio::time::sleep(seconds(100)).await;
        assert_eq!(world.faults.requests(), asked);
    });
}

#[test]
fn a_snapshot_that_was_let_go_is_found_again_by_its_number() {
    paused(async {
        let world = World::new(seconds(300)).await;
        let writer = world.mount().await;
        let volume = writer.0.volume().expect("writable");
        for number in 0..80 {
            writer.put("file", format!("{number}").as_bytes()).await;
            let made = volume.snapshot(bkfs::volume::requests::SnapshotRequest {
                name: Some(format!("s{number}")),
                ..bkfs::volume::requests::SnapshotRequest::default()
            });
            made.await.expect("made");
        }
        let snapshots = ask(&writer, |vfs, reply| {
            vfs.lookup(CALLER, Ino(1), b".snapshots", reply)
        });
        let bkfs_fuse::Lookup::Found(snapshots) = snapshots.await.expect("looked up") else {
            panic!("no snapshots");
        };
        let mut roots = Vec::new();
        for number in 0..80 {
            let name = format!("s{number}");
            let root = ask(&writer, |vfs, reply| {
                vfs.lookup(CALLER, snapshots.attributes.ino, name.as_bytes(), reply)
            });
            match root.await.expect("looked up") {
                bkfs_fuse::Lookup::Found(root) => roots.push(root.attributes.ino),
                other => panic!("{other:?}"),
            }
        }
        for root in roots {
            let file = ask(&writer, |vfs, reply| {
                vfs.lookup(CALLER, root, b"file", reply)
            });
            let file = file.await.expect("looked up");
            assert!(matches!(file, bkfs_fuse::Lookup::Found(_)));
        }
    });
}
