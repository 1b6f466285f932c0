//! What is written to a scratch clone, and memory has no room for.

use std::sync::Arc;

use bkfs::volume::data::WriteOptions;
use bkfs::volume::error::VolumeError;
use bkfs::volume::state::Scope;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::swap::SwapFile;
use bkfs_fuse::{Create, Errno, Ino, OpenFlags};
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use bytes::Bytes;

use crate::clones::{read, require_whole, root, world};
use crate::host::noise;
use crate::paused::{CALLER, Mount, World, ask, paused, seconds};
use crate::scratch::cloning;

const PAGE: usize = 16 << 10;

/// Pages of the file: 16 MiB, where 4 MiB are the limit of dirty bytes in memory.
const PAGES: usize = 1024;

/// The limit of a swap file that is not full.
const SWAP_BYTES: u64 = 1 << 30;

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

/// A mounted clone that is thrown away, with little memory.
struct Scratch {
    mount: Mount,
    volume: Arc<Volume>,
    swap: SwapFile,
    disk: SimulatedDisk,
    faults: Arc<FaultStore>,
}

impl Scratch {
    /// `swap_bytes` is the limit of the swap file.
    async fn of(world: &World, swap_bytes: u64) -> Self {
        let mut machine = small(world, "scratch~1");
        machine.spool_bytes = swap_bytes;
        let mount = Mount(machine.try_assemble(false).await.expect("mounted"));
        let volume = mount.0.volume().expect("writable").clone();
        let swap = volume.swap().cloned().expect("there is one");
        Self {
            mount,
            volume,
            swap,
            disk: machine.disk,
            faults: machine.faults,
        }
    }

    async fn unlink(&self, name: &str) {
        let removed = self.volume.unlink(ROOT_INODE, name.as_bytes()).await;
        removed.expect("removed");
    }

    /// Writes a page, which lies apart from those of other numbers.
    async fn write_apart(&self, file: Ino, number: u64) -> Result<(), VolumeError> {
        let page = Bytes::from(noise(number, 4000));
        let options = WriteOptions::default();
        let written = self.volume.write(file.0, number << 13, page, options).await;
        written.map(|_| ())
    }

    /// Makes each request fail from now on.
    fn lose_store(&self) {
        let fault = Fault::FailBefore(StoreErrorKind::Unreachable);
        self.faults.plan(Strike::with(fault).always());
    }

    /// Has the store back after a while, and checks that a change without bytes then finds room.
    async fn recover(self, world: &World) {
        // What was tried meanwhile ends.
        tokio::time::sleep(seconds(1000)).await;
        self.faults.heal();
        let removed = tokio::time::timeout(seconds(1000), self.unlink("file1")).await;
        removed.expect("there is room in the end");
        self.end(world).await;
    }

    /// Throws the clone away, and checks that it leaves nothing.
    async fn end(self, world: &World) {
        let Self {
            mount,
            volume,
            swap,
            ..
        } = self;
        drop(volume);
        mount.0.finish().await.expect("ended");
        // What was just on its way to the disk or back ends there, and a tick lasts until then.
        tokio::time::sleep(seconds(1)).await;
        assert_eq!(swap.used_bytes(), 0);
        assert!(!root(world).await.volumes.contains_key("scratch~1"));
        require_whole(world).await;
    }
}

/// Writes this many files, too short to be swapped out.
async fn write_small_files(mount: &Mount, count: u64) {
    for number in 0..count {
        mount
            .put(&format!("small{number}"), &noise(number, 4000))
            .await;
    }
}

/// Makes so many names that a commit stores what is dirty, unless that fails first.
async fn create_names(mount: &Mount) {
    for number in 0..4000 {
        // Without a failure, it might wait for memory for ever.
        let created = create_name(mount, &format!("name {number}")).await;
        if !matches!(created, Some(Ok(()))) {
            return;
        }
    }
}

/// Creates an empty file. Returns none if it waits for very long.
async fn create_name(mount: &Mount, name: &str) -> Option<Result<(), Errno>> {
    let create = Create {
        parent: Ino(1),
        name: name.as_bytes(),
        permissions: 0o644,
        flags: OpenFlags::default(),
    };
    let created = ask(mount, |vfs, reply| vfs.create(CALLER, create, reply));
    let created = tokio::time::timeout(seconds(1000), created).await;
    Some(created.ok()?.map(|_| ()))
}

async fn objects(world: &World) -> usize {
    let listed = world.memory.list("", None, 10_000).await;
    listed.expect("listed").len()
}

#[test]
fn what_memory_has_no_room_for_goes_to_the_swap_file() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        let before = objects(&world).await;
        let model = write_pages(mount).await;
        assert!(
            clone.swap.used_bytes() > 8 << 20,
            "{} bytes",
            clone.swap.used_bytes()
        );
        assert_eq!(objects(&world).await, before, "nothing was stored");
        assert!(mount.read("pages").await.expect("there") == model);
        for at in [5, 4_000_000, 16_000_001] {
            let part = mount.read_at("pages", at, 40_000).await.expect("there");
            assert!(part == model[at as usize..at as usize + 40_000]);
        }
        clone.end(&world).await;
    });
}

#[test]
fn a_full_swap_file_lets_the_rest_be_stored() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, 2 << 20).await;
        let mount = &clone.mount;
        let before = objects(&world).await;
        mount.put("first", &noise(1, 3 << 20)).await;
        tokio::time::sleep(seconds(1)).await;
        assert!(clone.swap.used_bytes() > 0);
        let model = write_pages(mount).await;
        assert!(objects(&world).await > before);
        assert!(mount.read("pages").await.expect("there") == model);
        clone.end(&world).await;
    });
}

/// A commit, which many changed files bring about, stores what was swapped out. The volume then has
/// no dirty bytes where the next ones were looked for.
#[test]
fn a_commit_stores_what_was_swapped_out() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        for round in 0..2 {
            let mut model = write_pages(mount).await;
            assert!(clone.swap.used_bytes() > 8 << 20);
            for number in 0..4000 {
                mount.put(&format!("name{round} {number}"), b"").await;
            }
            tokio::time::sleep(seconds(100)).await;
            assert_eq!(clone.swap.used_bytes(), 0);
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
            clone.unlink("pages").await;
        }
        clone.end(&world).await;
    });
}

/// Dirty bytes that cannot be swapped out are stored.
#[test]
fn small_files_beyond_memory_are_stored() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        let before = objects(&world).await;
        write_small_files(mount, 1500).await;
        assert!(objects(&world).await > before);
        for number in [0, 700, 1499] {
            let contents = mount.read(&format!("small{number}")).await;
            assert!(contents.expect("there") == noise(number, 4000));
        }
        clone.end(&world).await;
    });
}

/// Writes pages that lie apart until memory is full. The store is out.
async fn fill(clone: &Scratch) {
    let (file, _) = clone.mount.write("pages", b"").await;
    let filled = async {
        for number in 0..60_000 {
            if let Err(error) = clone.write_apart(file, number).await {
                return error;
            }
        }
        panic!("memory has room for all")
    };
    let error = tokio::time::timeout(seconds(10_000), filled).await;
    let error = error.expect("the writer is told");
    assert!(matches!(error, VolumeError::ContentStore(_)), "{error}");
}

/// Memory is full and the store was out. A change that brings no bytes of its own waits for room, and
/// nothing else asks for it.
#[test]
fn a_change_without_bytes_makes_room_after_an_outage() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, 1 << 20).await;
        clone.lose_store();
        fill(&clone).await;
        clone.recover(&world).await;
    });
}

/// Names fill memory, and commits fail until the store is back. The second one fails with the cut of
/// the first one.
#[test]
fn names_beyond_memory_ask_for_a_commit_again_after_an_outage() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        clone.lose_store();
        let (mut failed, mut number) = (0, 0);
        while failed < 3 {
            let created = create_name(&clone.mount, &format!("name {number}")).await;
            failed += u32::from(created.expect("it is told").is_err());
            number += 1;
            assert!(number < 20_000, "memory has room for all");
        }
        clone.recover(&world).await;
    });
}

/// Names fill memory several times over. Each time a commit is asked for.
#[test]
fn names_beyond_memory_ask_for_one_commit_after_the_other() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        for number in 0..20_000 {
            let created = create_name(&clone.mount, &format!("name {number}")).await;
            assert!(matches!(created, Some(Ok(()))), "{number}: {created:?}");
        }
        clone.end(&world).await;
    });
}

/// A commit has cut the bytes that fill memory, and fails. They are stored without another one.
#[test]
fn bytes_of_a_failed_commit_are_stored() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, 1 << 20).await;
        clone.lose_store();
        fill(&clone).await;
        let committed = clone.volume.commit_for_the_base().await;
        assert!(committed.is_err(), "the store is out");
        clone.recover(&world).await;
    });
}

/// Room is made while an unmount drains. A change that has waited for it then waits for the drain.
#[test]
fn a_change_that_waits_for_room_waits_for_a_drain_too() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, 1 << 20).await;
        let gate = Gate::new();
        let strike = Strike::with(Fault::HoldBefore(gate.clone()));
        clone.faults.plan(strike.on(Operation::PutNew).always());
        let (file, _) = clone.mount.write("pages", b"").await;
        let mut number = 0;
        while let Ok(written) =
            tokio::time::timeout(seconds(1), clone.write_apart(file, number)).await
        {
            written.expect("written");
            number += 1;
        }
        let volume = clone.volume.clone();
        let removing = tokio::spawn(async move { volume.unlink(ROOT_INODE, b"file1").await });
        tokio::time::sleep(seconds(1)).await;
        assert!(!removing.is_finished(), "there is no room");
        clone.volume.freeze(true);
        gate.open();
        tokio::time::sleep(seconds(1000)).await;
        assert!(!removing.is_finished(), "a drain is under way");
        clone.volume.freeze(false);
        let removed = tokio::time::timeout(seconds(1000), removing).await;
        removed
            .expect("it goes on")
            .expect("no panic")
            .expect("removed");
        clone.faults.heal();
        clone.end(&world).await;
    });
}

/// Small files fill memory, are stored, and are gone. What comes next is swapped out again.
#[test]
fn what_was_stored_once_does_not_end_swapping() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        write_small_files(mount, 1000).await;
        for number in 0..1000 {
            clone.unlink(&format!("small{number}")).await;
        }
        tokio::time::sleep(seconds(10)).await;
        let before = objects(&world).await;
        let model = write_pages(mount).await;
        assert!(clone.swap.used_bytes() > 8 << 20);
        assert_eq!(objects(&world).await, before);
        assert!(mount.read("pages").await.expect("there") == model);
        clone.end(&world).await;
    });
}

/// Pages that are swapped out are remembered in memory. Once that is short of them alone, pages are
/// stored, and writers wait for nothing else.
#[test]
fn a_long_list_of_what_is_swapped_out_lets_pages_be_stored() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
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
        clone.end(&world).await;
    });
}

/// Runs a test whose only thread for disks can be taken by [`Hang`].
fn with_one_disk_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .max_blocking_threads(1)
        .build();
    runtime.expect("runtime").block_on(test);
}

/// The disk answers nothing until this ends.
struct Hang(std::sync::mpsc::Sender<()>);

impl Hang {
    fn begin() -> Self {
        let (answer, hangs) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || hangs.recv());
        Self(answer)
    }

    /// Lets the disk answer all that it was asked.
    async fn end(self) {
        drop(self.0);
        let asked = tokio::task::spawn_blocking(|| ());
        asked.await.expect("it does nothing");
    }
}

/// Returns what comes of this within a day. The clock does not go on by itself while a thread waits.
async fn while_time_passes<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    for _ in 0..24 * 3600 {
        tokio::select! {
            biased;
            done = &mut future => return done,
            () = tokio::time::advance(seconds(1)) => {}
        }
    }
    panic!("it waits for ever");
}

/// A disk that does not answer gets nothing more, and keeps no memory: what is dirty is stored.
#[test]
fn a_disk_that_does_not_answer_is_given_up() {
    with_one_disk_thread(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let before = objects(&world).await;
        let hang = Hang::begin();
        let model = while_time_passes(write_pages(&clone.mount)).await;
        assert!(clone.swap.has_failed() && clone.swap.used_bytes() == 0);
        assert!(objects(&world).await > before, "some was stored");
        let read = while_time_passes(clone.mount.read("pages")).await;
        assert!(read.expect("there") == model);
        assert!(clone.volume.failure().is_none(), "nothing is lost");
        hang.end().await;
        clone.end(&world).await;
    });
}

/// What a disk does not give back cannot be stored. That fails the mount, on which programs would
/// wait for ever.
#[test]
fn a_disk_that_gives_nothing_back_fails_the_mount() {
    with_one_disk_thread(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        write_pages(&clone.mount).await;
        assert!(clone.swap.used_bytes() > 8 << 20);
        let hang = Hang::begin();
        let failed = async {
            create_names(&clone.mount).await;
            tokio::time::sleep(seconds(100)).await;
            clone.volume.failure()
        };
        let failure = while_time_passes(failed).await;
        let failure = failure.expect("it cannot be stored").to_string();
        assert!(failure.contains("swap file"), "{failure}");
        hang.end().await;
        clone.end(&world).await;
    });
}

/// The same if what is stored first is in memory, and the rest of its page is not.
#[test]
fn a_disk_that_gives_no_neighbour_back_fails_the_mount() {
    with_one_disk_thread(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        let file = mount.write("t.ibd", b"").await;
        for block in 0..2000 {
            mount.write_at(file, block << 13, &noise(block, 4096)).await;
        }
        assert!(clone.swap.used_bytes() > 1 << 20);
        let hang = Hang::begin();
        let failed = async {
            mount.write_at(file, 0, &noise(1, 4096)).await;
            mount.close(file).await;
            create_names(mount).await;
            tokio::time::sleep(seconds(100)).await;
            clone.volume.failure()
        };
        let failure = while_time_passes(failed).await;
        let failure = failure.expect("it cannot be stored").to_string();
        assert!(failure.contains("swap file"), "{failure}");
        hang.end().await;
        clone.end(&world).await;
    });
}

/// Nothing is read of a file that its disk has lost, and nothing that stands on it is stored.
#[test]
fn a_swap_file_that_is_lost_fails_the_mount() {
    paused(async {
        let world = world(2).await;
        let clone = Scratch::of(&world, SWAP_BYTES).await;
        let mount = &clone.mount;
        let model = write_pages(mount).await;
        // Until memory is not short any more.
        tokio::time::sleep(seconds(10)).await;
        for file in clone.disk.unnamed() {
            file.set_len(0).expect("shortened");
        }
        let ino = mount.open("pages").await.0.0;
        let mut failed = 0;
        for page in 0..PAGES as u64 {
            let range = page * PAGE as u64..(page + 1) * PAGE as u64 - 1;
            let read = clone
                .volume
                .view
                .read(Scope::Live, ino, range.clone())
                .await;
            match read {
                Err(VolumeError::Swap(_)) => failed += 1,
                read => {
                    let model = &model[range.start as usize..range.end as usize];
                    assert!(read.expect("in memory").concat() == model);
                }
            }
        }
        assert!(failed > PAGES / 2 && failed < PAGES, "{failed} pages");
        assert!(clone.volume.failure().is_none());
        create_names(mount).await;
        tokio::time::sleep(seconds(100)).await;
        let failure = clone.volume.failure().expect("it cannot be stored");
        assert!(failure.to_string().contains("swap file"), "{failure}");
        clone.end(&world).await;
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
