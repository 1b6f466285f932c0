//! What is written to a scratch clone, and memory has no room for.

use bkfs::volume::error::VolumeError;
use bkfs::volume::state::Scope;
use bkfs_fuse::{Create, Ino, OpenFlags};

use crate::clones::{read, require_whole, world};
use crate::host::noise;
use crate::paused::{CALLER, Mount, World, ask, paused, seconds};
use crate::scratch::cloning;

const PAGE: usize = 16 << 10;

/// Pages of the file: 16 MiB, where 4 MiB are the limit of dirty bytes in memory.
const PAGES: usize = 1024;

/// Returns a machine whose mounts are scratch clones of this name, with little memory.
fn small(world: &World, volume: &str) -> World {
    let mut machine = cloning(world, volume);
    machine.settings.memory_bytes = 24 << 20;
    machine
}

/// Writes pages of a file in an order that jumps, most of them twice and the first one often. Returns
/// what the file has then.
async fn write_pages(mount: &Mount) -> Vec<u8> {
    let mut model = vec![0; PAGES * PAGE];
    let file = mount.write("pages", &model[..1]).await;
    for turn in 0..2 * PAGES {
        let number = turn * 389 % PAGES;
        let page = noise(turn as u64, PAGE - turn % 2);
        for (number, page) in [(number, &page[..]), (0, &page[..100])] {
            let at = number * PAGE;
            model[at..at + page.len()].copy_from_slice(page);
            mount.write_at(file, at as u64, page).await;
        }
    }
    mount.fsync(file).await.expect("nothing to wait for");
    mount.close(file).await;
    // The last page has an odd number, and those are one byte short.
    model.pop();
    model
}

async fn objects(world: &World) -> usize {
    use bkfs_store::Store;
    let listed = world.memory.list("", None, 10_000).await;
    listed.expect("listed").len()
}

#[test]
fn what_memory_has_no_room_for_goes_to_the_swap_file() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let before = objects(&world).await;
        let model = write_pages(&mount).await;
        let swap = mount.0.volume().expect("writable").swap().cloned();
        let swap = swap.expect("there is one");
        assert!(swap.used_bytes() > 8 << 20, "{} bytes", swap.used_bytes());
        assert_eq!(objects(&world).await, before, "nothing was stored");
        assert!(mount.read("pages").await.expect("there") == model);
        for at in [5, 4_000_000, 16_000_001] {
            let part = mount.read_at("pages", at, 40_000).await.expect("there");
            assert!(part == model[at as usize..at as usize + 40_000]);
        }
        mount.put("pages", b"anew").await;
        mount.0.finish().await.expect("ended");
        assert_eq!(swap.used_bytes(), 0);
        require_whole(&world).await;
    });
}

#[test]
fn a_full_swap_file_lets_the_rest_be_stored() {
    paused(async {
        let world = world(2).await;
        let mut scratch = small(&world, "scratch~1");
        scratch.spool_bytes = 2 << 20;
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let before = objects(&world).await;
        mount.put("first", &noise(1, 3 << 20)).await;
        tokio::time::sleep(seconds(1)).await;
        let swap = mount.0.volume().expect("writable").swap().cloned();
        assert!(swap.expect("there is one").used_bytes() > 0);
        let model = write_pages(&mount).await;
        assert!(objects(&world).await > before);
        assert!(mount.read("pages").await.expect("there") == model);
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

/// A commit, which many changed files bring about, stores what was swapped out. The volume then has
/// no dirty bytes where the next ones were looked for.
#[test]
fn a_commit_stores_what_was_swapped_out() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let volume = mount.0.volume().expect("writable").clone();
        let swap = volume.swap().cloned().expect("there is one");
        for round in 0..2 {
            let mut model = write_pages(&mount).await;
            assert!(swap.used_bytes() > 8 << 20);
            for number in 0..4000 {
                mount.put(&format!("name{round} {number}"), b"").await;
            }
            tokio::time::sleep(seconds(100)).await;
            assert_eq!(swap.used_bytes(), 0);
            assert!(mount.read("pages").await.expect("there") == model);
            let file = mount.open("pages").await;
            for page in 0..32 {
                mount
                    .write_at(file, page << 19, &noise(page, 100_000))
                    .await;
                let at = (page << 19) as usize;
                model[at..at + 100_000].copy_from_slice(&noise(page, 100_000));
            }
            mount.close(file).await;
            assert!(mount.read("pages").await.expect("there") == model);
            let unlinked = volume.unlink(bkfs::volume::ROOT_INODE, b"pages").await;
            unlinked.expect("removed");
        }
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

/// Dirty bytes that cannot be swapped out are stored.
#[test]
fn small_files_beyond_memory_are_stored() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let before = objects(&world).await;
        for number in 0..1500 {
            mount
                .put(&format!("small{number}"), &noise(number, 4000))
                .await;
        }
        assert!(objects(&world).await > before);
        for number in [0, 700, 1499] {
            let contents = mount.read(&format!("small{number}")).await;
            assert!(contents.expect("there") == noise(number, 4000));
        }
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

/// Small files fill memory, are stored, and are gone. What comes next is swapped out again.
#[test]
fn what_was_stored_once_does_not_end_swapping() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let volume = mount.0.volume().expect("writable").clone();
        for number in 0..1000 {
            mount
                .put(&format!("small{number}"), &noise(number, 4000))
                .await;
        }
        for number in 0..1000 {
            let name = format!("small{number}");
            let removed = volume
                .unlink(bkfs::volume::ROOT_INODE, name.as_bytes())
                .await;
            removed.expect("removed");
        }
        tokio::time::sleep(seconds(10)).await;
        let before = objects(&world).await;
        let model = write_pages(&mount).await;
        let swap = volume.swap().cloned().expect("there is one");
        assert!(swap.used_bytes() > 8 << 20);
        assert_eq!(objects(&world).await, before);
        assert!(mount.read("pages").await.expect("there") == model);
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

/// Pages that are swapped out are remembered in memory. Once that is short of them alone, pages are
/// stored, and writers wait for nothing else.
#[test]
fn a_long_list_of_what_is_swapped_out_lets_pages_be_stored() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let before = objects(&world).await;
        let file = mount.write("blocks", b"").await;
        // Each takes 330 bytes, of 4 MiB; they are apart, so that they do not grow together.
        let place = |block: u64| (block * 389 % 16_000) << 13;
        for block in 0..16_000 {
            mount
                .write_at(file, place(block), &noise(block, 4096))
                .await;
        }
        mount.close(file).await;
        tokio::time::sleep(seconds(10)).await;
        assert!(objects(&world).await > before, "some were stored");
        for block in [0, 1, 77, 15_999] {
            let read = mount.read_at("blocks", place(block), 4096).await;
            assert!(read.expect("there") == noise(block, 4096));
        }
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

/// Nothing is read of a file that its disk has lost, and nothing that stands on it is stored.
#[test]
fn a_swap_file_that_is_lost_fails_the_mount() {
    paused(async {
        let world = world(2).await;
        let scratch = small(&world, "scratch~1");
        let mount = Mount(scratch.try_assemble(false).await.expect("mounted"));
        let model = write_pages(&mount).await;
        // Until memory is not short any more.
        tokio::time::sleep(seconds(10)).await;
        for file in scratch.disk.unnamed() {
            file.set_len(0).expect("shortened");
        }
        let volume = mount.0.volume().expect("writable").clone();
        let ino = mount.open("pages").await.0.0;
        let mut failed = 0;
        for page in 0..PAGES as u64 {
            let range = page * PAGE as u64..(page + 1) * PAGE as u64 - 1;
            let read = volume.view.read(Scope::Live, ino, range.clone()).await;
            match read {
                Err(VolumeError::Swap(_)) => failed += 1,
                read => {
                    let model = &model[range.start as usize..range.end as usize];
                    assert!(read.expect("in memory").concat() == model);
                }
            }
        }
        assert!(failed > PAGES / 2 && failed < PAGES, "{failed} pages");
        assert!(volume.failure().is_none());
        for number in 0..4000 {
            let name = format!("name {number}");
            let create = Create {
                parent: Ino(1),
                name: name.as_bytes(),
                permissions: 0o644,
                flags: OpenFlags::default(),
            };
            let created = ask(&mount, |vfs, reply| vfs.create(CALLER, create, reply)).await;
            if created.is_err() {
                break;
            }
        }
        tokio::time::sleep(seconds(100)).await;
        let failure = volume.failure().expect("it cannot be stored");
        assert!(failure.to_string().contains("swap file"), "{failure}");
        require_whole(&world).await;
    });
}

/// What outlives the mount must not wait on this machine's disk without a spool.
#[test]
fn a_volume_that_stays_has_no_swap_file() {
    paused(async {
        let world = world(2).await;
        let mount = world.mount().await;
        assert!(mount.0.volume().expect("writable").swap().is_none());
        let mut kept = small(&world, "kept");
        kept.settings.scratch = true;
        let mount = Mount(kept.try_assemble(false).await.expect("mounted"));
        assert!(mount.0.volume().expect("writable").swap().is_none());
        let model = write_pages(&mount).await;
        mount.0.finish().await.expect("ended");
        assert!(read(&world, "kept", "pages").await.expect("there") == model);
        let mut without = small(&world, "scratch~1");
        without.spool_bytes = 0;
        let mount = Mount(without.try_assemble(false).await.expect("mounted"));
        assert!(mount.0.volume().expect("writable").swap().is_none());
        let model = write_pages(&mount).await;
        assert!(mount.read("pages").await.expect("there") == model);
    });
}
