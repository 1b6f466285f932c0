//! The spool on a disk that loses, tears, fills and fails.

mod dropped;
mod room;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use bkfs_store::disk::SystemDisk;
use bkfs_testing::disk::{DiskOperation, SimulatedDisk};
use bkfs_testing::entropy::SeededEntropy;
use proptest::prelude::*;

use super::*;

const LIMIT_BYTES: u64 = 20_000;
const ROOT: &str = "/state/spool/repository";

#[derive(Debug, Clone)]
enum Event {
    /// An object is put, and its put awaited.
    Put(u16),
    /// An object is put, and the future of its put is dropped after this many polls.
    PutAndLeave(u16, u8),
    /// A root names one of the present objects.
    Release(u8),
    Sweep,
    /// Room on the disk beyond the present files.
    Capacity(Option<u16>),
    /// A later operation fails.
    Fail(DiskOperation, u8),
    /// The power, or only the process, is lost; the next session begins.
    Crash {
        power: bool,
        seed: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    use DiskOperation::{Flush, Remove, Rename, SyncDirectory, Write};
    let operations = prop::sample::select(vec![Write, Flush, Rename, SyncDirectory, Remove]);
    prop_oneof![
        8 => (0u16..6000).prop_map(Event::Put),
        3 => (1u16..6000, 0u8..5).prop_map(|(length, looks)| Event::PutAndLeave(length, looks)),
        4 => any::<u8>().prop_map(Event::Release),
        3 => Just(Event::Sweep),
        1 => prop::option::of(0u16..9000).prop_map(Event::Capacity),
        1 => (operations, 1u8..4).prop_map(|(operation, nth)| Event::Fail(operation, nth)),
        2 => (any::<bool>(), any::<u64>()).prop_map(|(power, seed)| Event::Crash { power, seed }),
    ]
}

struct World {
    disk: SimulatedDisk,
    spool: Arc<Spool>,
    sessions: u64,
    puts: u64,
    /// Every object that a put was tried for, by key.
    known: BTreeMap<String, Bytes>,
    /// Objects that the spool acknowledged.
    kept: BTreeMap<String, Arc<Spooled>>,
}

impl World {
    async fn new() -> Self {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 0).await;
        Self {
            disk,
            spool,
            sessions: 0,
            puts: 0,
            known: BTreeMap::new(),
            kept: BTreeMap::new(),
        }
    }

    fn object(&mut self, length: u16) -> (String, Bytes) {
        self.puts += 1;
        let key = format!("data/00/{:016x}-{:08x}", self.sessions, self.puts);
        let body = noise(self.puts, length.into());
        self.known.insert(key.clone(), body.clone());
        (key, body)
    }

    async fn step(&mut self, event: &Event) {
        match event {
            Event::Put(length) => {
                let (key, body) = self.object(*length);
                let half = body.len() / 2;
                let parts = [body.slice(..half), body.slice(half..)];
                if let Ok(spooled) = self.spool.put(&key, &parts).await {
                    assert_eq!(spooled.read().await.expect("is there"), body);
                    self.kept.insert(key, spooled);
                }
            }
            Event::PutAndLeave(length, looks) => {
                let (key, body) = self.object(*length);
                let spool = Arc::clone(&self.spool);
                let parts = [body];
                let mut put = pin!(spool.put(&key, &parts));
                for _ in 0..*looks {
                    let looked =
                        std::future::poll_fn(|context| Poll::Ready(put.as_mut().poll(context)));
                    if let Poll::Ready(result) = looked.await {
                        if let Ok(spooled) = result {
                            self.kept.insert(key.clone(), spooled);
                        }
                        break;
                    }
                }
            }
            Event::Release(which) => {
                let count = self.kept.len().max(1);
                let key = self.kept.keys().nth(usize::from(*which) % count).cloned();
                if let Some(spooled) = key.and_then(|key| self.kept.remove(&key)) {
                    self.spool.release(&spooled);
                }
            }
            Event::Sweep => self.spool.sweep().await,
            Event::Capacity(room) => {
                let now = self.spool.usage().bytes;
                self.disk
                    .set_capacity(room.map(|room| now + u64::from(room)));
            }
            Event::Fail(operation, nth) => {
                self.disk
                    .fail(*operation, (*nth).into(), io::ErrorKind::Other);
            }
            Event::Crash { power, seed } => self.crash(*power, *seed).await,
        }
        let usage = self.spool.usage();
        assert!(usage.bytes <= LIMIT_BYTES, "{usage:?}");
        assert!(usage.files >= self.kept.len() as u64);
        assert!(self.spool.state.lock().used <= LIMIT_BYTES);
    }

    async fn crash(&mut self, power: bool, seed: u64) {
        match power {
            true => self.disk.crash(&SeededEntropy::new(seed)),
            false => self.disk.kill(),
        }
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let found = leftovers(&disk, Path::new(ROOT))
            .await
            .expect("finds")
            .spools;
        let mut read = BTreeMap::new();
        for leftover in &found {
            let mut last = String::new();
            for object in leftover.objects() {
                assert!(last < object.key, "the order in which they came");
                last.clone_from(&object.key);
                // No torn file has the name of an object.
                let bytes = leftover.read(object).await.expect("reads");
                let bytes = bytes.unwrap_or_else(|| panic!("{object:?} is damaged"));
                assert_eq!(self.known.get(&object.key), Some(&bytes), "{object:?}");
                read.insert(object.key.clone(), bytes);
            }
        }
        for key in self.kept.keys() {
            assert!(read.contains_key(key), "{key} was kept, and is gone");
        }
        for leftover in found {
            leftover.discard().await;
        }
        self.disk.set_capacity(None);
        self.kept.clear();
        self.sessions += 1;
        self.spool = create(&self.disk, self.sessions).await;
    }
}

async fn create(disk: &SimulatedDisk, session: u64) -> Arc<Spool> {
    let disk = Arc::new(disk.clone());
    let spool = Spool::create(disk, Path::new(ROOT), session, LIMIT_BYTES).await;
    spool.expect("is made")
}

fn noise(seed: u64, length: usize) -> Bytes {
    use bkfs_store::entropy::Entropy;
    let mut bytes = vec![0; length];
    SeededEntropy::new(seed).fill(&mut bytes);
    Bytes::from(bytes)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_it_says_it_keeps_survives(events in prop::collection::vec(event(), 1..60)) {
        run(async {
            let mut world = World::new().await;
            for event in &events {
                world.step(event).await;
            }
            world.crash(true, 1).await;
        });
    }
}

#[test]
fn a_failed_flush_is_never_called_clean() {
    for operation in [
        DiskOperation::Flush,
        DiskOperation::SyncDirectory,
        DiskOperation::Rename,
        DiskOperation::Write,
    ] {
        run(async {
            let disk = SimulatedDisk::new();
            let spool = create(&disk, 1).await;
            let body = [noise(1, 100)];
            let before = spool.put("data/00/a", &body).await.expect("is kept");
            disk.fail(operation, 1, io::ErrorKind::Other);
            let failed = spool.put("data/00/b", &body).await;
            assert!(
                matches!(failed, Err(SpoolError::Disk { .. })),
                "{operation:?}"
            );
            assert_eq!(disk.struck(), 1);
            let later = spool.put("data/00/c", &body).await;
            assert!(
                matches!(later, Err(SpoolError::Disk { .. })),
                "not trusted any more"
            );
            assert!(spool.failure().is_some());
            assert_eq!(before.read().await.expect("still there"), body[0]);
            assert_eq!(spool.usage().files, 1);
        });
    }
}

#[test]
fn a_full_disk_is_tried_again() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        disk.set_capacity(Some(50));
        let body = [noise(1, 100)];
        let full = spool.put("data/00/a", &body).await.expect_err("is full");
        assert!(full.is_full_disk());
        let again = spool.put("data/00/a", &body).await.expect_err("rests");
        assert!(matches!(again, SpoolError::Full { .. }));
        disk.set_capacity(None);
        let begin = Instant::now();
        spool.room(100).await;
        assert_eq!(begin.elapsed(), FULL_DISK_REST);
        spool.put("data/00/a", &body).await.expect("has room");
        assert!(spool.failure().is_none());
    });
}

#[test]
fn an_empty_spool_leaves_nothing_behind() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let kept = spool.put("data/00/a", &[noise(1, 10)]).await.expect("fits");
        assert_eq!(spool.end().await.files, 1);
        assert!(disk.paths().iter().any(|path| path == spool.directory()));
        spool.release(&kept);
        drop(kept);
        assert_eq!(spool.end().await.files, 0);
        let left: Vec<PathBuf> = disk.paths();
        assert!(
            !left.iter().any(|path| path.starts_with(spool.directory())),
            "{left:?}"
        );
    });
}

#[test]
fn a_directory_that_another_left_is_not_taken() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let mark = spool.directory().join("done");
        drop(spool);
        disk.write_new(&mark, &[]).await.expect("written");
        let shared: Arc<dyn Disk> = Arc::new(disk);
        let again = Spool::create(shared, Path::new(ROOT), 1, 1).await;
        assert!(
            matches!(again, Err(SpoolError::Held { .. })),
            "a replay would remove its files"
        );
    });
}

/// A mount that looks for dead sessions holds a new directory for a while, and removes it.
#[test]
fn a_directory_that_another_holds_for_a_while_is_made_again() {
    run(async {
        let disk = SimulatedDisk::new();
        let held = create(&disk, 1).await;
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let made = tokio::spawn(async move { Spool::create(shared, Path::new(ROOT), 1, 1).await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!made.is_finished(), "another holds the directory");
        let directory = held.directory().to_owned();
        disk.remove(&directory.join(LOCK)).await.expect("removed");
        disk.remove_directory(&directory).await.expect("removed");
        drop(held);
        made.await.expect("no panic").expect("made");
    });
}

#[test]
fn two_never_share_one() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let other = Spool::create(Arc::clone(&shared), Path::new(ROOT), 1, 1).await;
        assert!(matches!(other, Err(SpoolError::Held { .. })));
        let dead = leftovers(&shared, Path::new(ROOT))
            .await
            .expect("looks")
            .spools;
        assert!(dead.is_empty(), "its owner lives");
        drop(spool);
        let dead = leftovers(&shared, Path::new(ROOT))
            .await
            .expect("looks")
            .spools;
        assert_eq!(dead.len(), 1);
        let again = leftovers(&shared, Path::new(ROOT))
            .await
            .expect("looks")
            .spools;
        assert!(again.is_empty(), "the replay holds it");
    });
}

#[test]
fn rot_is_noticed() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = noise(1, 1_000);
        let kept = spool
            .put("data/00/a", std::slice::from_ref(&body))
            .await
            .expect("fits");
        assert_eq!(
            kept.read_range(10..20).await.expect("reads"),
            body.slice(10..20)
        );
        disk.rot(&kept.path, 4_321);
        assert!(matches!(kept.read().await, Err(SpoolError::Damaged { .. })));
    });
}

/// A file that is cut or has flipped bits is damaged; an unfinished file is none.
#[test]
fn what_is_not_whole_under_the_name_of_an_object_is_damaged() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let mut paths = Vec::new();
        for (key, length) in [
            ("data/00/a", 1_000),
            ("data/00/b", 1_000),
            ("data/00/c", 10),
        ] {
            let kept = spool.put(key, &[noise(1, length)]).await.expect("fits");
            paths.push(kept.path.clone());
        }
        disk.rot(&paths[0], 4_321);
        disk.cut(&paths[1]);
        disk.cut(&paths[2]);
        let unfinished = spool.directory().join(file::unfinished(9));
        let part = [noise(1, 10)];
        disk.write_new(&unfinished, &part).await.expect("written");
        disk.kill();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let mut dead = leftovers(&shared, Path::new(ROOT))
            .await
            .expect("looks")
            .spools;
        let dead = dead.pop().expect("one");
        assert_eq!(dead.objects().len(), 3);
        for object in dead.objects() {
            assert_eq!(dead.read(object).await.expect("reads"), None, "{object:?}");
        }
        let aside = dead.set_aside().await.expect("renamed");
        let kept = || {
            let paths = disk.paths();
            let kept = paths.iter().filter(|path| path.parent() == Some(&aside));
            kept.count()
        };
        assert_eq!(kept(), 5, "three objects, a part of one, and the lock");
        disk.crash(&SeededEntropy::new(1));
        let found = leftovers(&shared, Path::new(ROOT))
            .await
            .expect("looks")
            .spools;
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(kept(), 4, "the part was never flushed");
    });
}

#[tokio::test]
async fn the_real_disk_keeps_and_finds_it_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("spool/repository");
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let absent = leftovers(&disk, &root).await.expect("looks").spools;
    assert!(absent.is_empty());
    let spool = Spool::create(Arc::clone(&disk), &root, 0xab, 1 << 20)
        .await
        .expect("is made");
    let body = noise(1, 100_000);
    let kept = spool
        .put("meta/01/x", std::slice::from_ref(&body))
        .await
        .expect("fits");
    assert_eq!(kept.read().await.expect("reads"), body);
    assert!(
        leftovers(&disk, &root)
            .await
            .expect("looks")
            .spools
            .is_empty()
    );
    drop(kept);
    drop(spool);
    let mut dead = leftovers(&disk, &root).await.expect("looks").spools;
    let dead = dead.pop().expect("one");
    assert_eq!((dead.session(), dead.bytes()), (0xab, 100_000));
    let object = dead.objects().first().cloned().expect("one");
    assert_eq!(object.key, "meta/01/x");
    assert_eq!(dead.read(&object).await.expect("reads"), Some(body));
    dead.discard().await;
    let left = std::fs::read_dir(&root).expect("is there").count();
    assert_eq!(left, 0);
    let spool = Spool::create(Arc::clone(&disk), &root, 0xac, 1 << 20).await;
    drop(spool.expect("is made"));
    let mut dead = leftovers(&disk, &root).await.expect("looks").spools;
    let aside = dead.pop().expect("one").set_aside().await.expect("renamed");
    assert_eq!(aside, root.join("00000000000000ac.damaged"));
    assert!(aside.join(LOCK).exists());
    assert!(
        leftovers(&disk, &root)
            .await
            .expect("looks")
            .spools
            .is_empty()
    );
}

/// A dead session's spool with one object, on a disk that its process has left.
async fn dead_spool() -> (SimulatedDisk, Arc<dyn Disk>, PathBuf) {
    let disk = SimulatedDisk::new();
    let spool = create(&disk, 1).await;
    let kept = spool.put("data/00/a", &[noise(1, 10)]).await;
    let path = kept.expect("fits").path.clone();
    disk.kill();
    (disk.clone(), Arc::new(disk), path)
}

/// Another process may remove a spool between its listing and its opening.
#[test]
fn a_spool_that_is_listed_and_not_there_is_looked_for_twice() {
    run(async {
        let (disk, shared, path) = dead_spool().await;
        let directory = path.parent().expect("a directory");
        disk.vanish(directory);
        let found = leftovers(&shared, Path::new(ROOT)).await.expect("looks");
        assert!(found.spools.is_empty() && found.unreadable.is_empty());
        for (operation, refused) in [
            (DiskOperation::Lock, directory.join(LOCK)),
            (DiskOperation::List, directory.to_owned()),
            (DiskOperation::Stat, directory.to_owned()),
            (DiskOperation::Stat, path.clone()),
        ] {
            let (disk, shared, _) = dead_spool().await;
            disk.refuse(operation, &refused, libc::ENOENT);
            let found = leftovers(&shared, Path::new(ROOT)).await.expect("looks");
            assert!(found.spools.is_empty(), "{operation:?}");
            let [unreadable] = &found.unreadable[..] else {
                panic!("{operation:?}: {found:?}");
            };
            assert_eq!(unreadable.session, 1);
            let told = unreadable.source.to_string();
            assert!(told.contains(&refused.display().to_string()), "{told}");
        }
    });
}

/// One that cannot be looked at does not hide the others.
#[test]
fn an_unreadable_spool_hides_no_other() {
    run(async {
        let (disk, shared, path) = dead_spool().await;
        let other = create(&disk, 2).await;
        other.put("data/00/b", &[noise(2, 10)]).await.expect("fits");
        disk.kill();
        let directory = path.parent().expect("a directory");
        disk.refuse(DiskOperation::Stat, directory, libc::EIO);
        let found = leftovers(&shared, Path::new(ROOT)).await.expect("looks");
        let spools: Vec<u64> = found.spools.iter().map(Leftover::session).collect();
        assert_eq!(spools, [2]);
        let unreadable: Vec<u64> = found.unreadable.iter().map(|one| one.session).collect();
        assert_eq!(unreadable, [1]);
    });
}

/// A spool that was moved elsewhere, with a link left in its place, is not passed over.
#[test]
fn what_stands_in_the_place_of_a_spool_is_not_passed_over() {
    run(async {
        let (_, shared, _) = dead_spool().await;
        let place = Path::new(ROOT).join(format!("{:016x}", 2));
        shared
            .write_new(&place, &[noise(3, 1)])
            .await
            .expect("made");
        let found = leftovers(&shared, Path::new(ROOT)).await.expect("looks");
        let unreadable: Vec<u64> = found.unreadable.iter().map(|one| one.session).collect();
        assert_eq!((found.spools.len(), unreadable), (1, vec![2]));
    });
}

/// What the machine lacks for a while says nothing of a file.
#[test]
fn a_condition_of_the_machine_is_neither_rot_nor_a_refusal_of_the_file() {
    let is_of_machine = |number| {
        let source = std::io::Error::from_raw_os_error(number);
        SpoolError::disk(Path::new("file"), source).is_of_machine()
    };
    for number in [
        libc::EROFS,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::ENOLCK,
        libc::ENOSPC,
        libc::EDQUOT,
    ] {
        assert!(is_of_machine(number), "{number}");
        let source = std::io::Error::from_raw_os_error(number);
        assert!(!super::left::is_rot(&source), "{number}");
    }
    for number in [libc::EIO, libc::EACCES, libc::ENOENT, libc::EUCLEAN] {
        assert!(!is_of_machine(number), "{number}");
    }
}

/// Filesystems with checksums answer a read of rotten bytes with an error.
#[test]
fn an_error_that_stands_for_rot_counts_as_damage() {
    let is_rot = |number| super::left::is_rot(&std::io::Error::from_raw_os_error(number));
    assert!(
        [libc::EIO, libc::EBADMSG, libc::EUCLEAN]
            .iter()
            .all(|&number| is_rot(number))
    );
    assert!(
        ![libc::EACCES, libc::EMFILE, libc::ENOMEM]
            .iter()
            .any(|&number| is_rot(number))
    );
}
