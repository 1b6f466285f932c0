//! A check whose working data is on local disk finds exactly what one finds that keeps it in
//! memory; and a disk that is full or rots ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs::maintain::check::{check, examine};
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::plan;
use bkfs::maintain::sample::Sample;
use bkfs::maintain::workspace::directory::WorkDirectory;
use bkfs::maintain::workspace::medium::{Medium, WorkFile};
use bkfs::maintain::workspace::{Announce, Workspace};
use bkfs::root::error::RootError;
use bkfs_store::Store;
use bkfs_store::entropy::SystemEntropy;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::cases::{Case, Harm};
use crate::repairs::mend_with;
use crate::world::{Fixture, Objects, PASSWORD, bucket, class_of, wait};

/// A disk that takes a number of bytes, and flips a bit of one byte that it gives.
#[derive(Debug)]
struct PoorDisk {
    disk: WorkDirectory,
    state: Arc<PoorState>,
}

#[derive(Debug)]
struct PoorState {
    /// Bytes that it still takes.
    left: AtomicU64,
    /// Bytes that it still gives as they are.
    sound: AtomicU64,
}

#[derive(Debug)]
struct PoorFile(Arc<dyn WorkFile>, Arc<PoorState>);

impl Medium for PoorDisk {
    fn create(&self) -> io::Result<Arc<dyn WorkFile>> {
        let file = self.disk.create()?;
        Ok(Arc::new(PoorFile(file, Arc::clone(&self.state))))
    }

    fn place(&self) -> Arc<str> {
        self.disk.place()
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.state.left.load(Ordering::Relaxed))
    }
}

impl WorkFile for PoorFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = &self.1.left;
        let rest = left.load(Ordering::Relaxed).checked_sub(bytes.len() as u64);
        left.store(rest.ok_or(io::ErrorKind::StorageFull)?, Ordering::Relaxed);
        self.0.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, bytes)?;
        let sound = self.1.sound.load(Ordering::Relaxed);
        if let Some(byte) = bytes.get_mut(sound as usize) {
            *byte ^= 1;
        }
        let rest = sound.checked_sub(bytes.len() as u64).unwrap_or(u64::MAX);
        self.1.sound.store(rest, Ordering::Relaxed);
        Ok(())
    }
}

/// A place for working data that is removed with the test.
struct Place {
    home: TempDir,
    /// Space that was announced, in bytes.
    announced: Arc<Mutex<Vec<u64>>>,
}

impl Place {
    fn new() -> Self {
        Self {
            home: TempDir::new().expect("a directory"),
            announced: Arc::default(),
        }
    }

    fn directory(&self) -> WorkDirectory {
        WorkDirectory::new(self.home.path().join("work"), Arc::new(SystemEntropy))
    }

    fn workspace(&self, medium: Arc<dyn Medium>) -> Workspace {
        let announced = Arc::clone(&self.announced);
        Workspace {
            medium: Some(medium),
            memory_bytes: 0,
            announce: Some(Announce::new(move |need| {
                announced.lock().push(need.bytes);
            })),
        }
    }

    /// Options under which all working data is on disk.
    fn options(&self, data: Sample) -> CheckOptions {
        CheckOptions {
            data,
            workspace: self.workspace(Arc::new(self.directory())),
            ..CheckOptions::oracle()
        }
    }

    /// Options under which it is on a disk that takes `room` bytes, and gives `sound` bytes as they
    /// are before it flips a bit.
    fn poor(&self, room: u64, sound: u64) -> CheckOptions {
        let disk = PoorDisk {
            disk: self.directory(),
            state: Arc::new(PoorState {
                left: AtomicU64::new(room),
                sound: AtomicU64::new(sound),
            }),
        };
        CheckOptions {
            workspace: self.workspace(Arc::new(disk)),
            ..CheckOptions::oracle()
        }
    }

    fn left(&self) -> usize {
        let entries = std::fs::read_dir(self.home.path().join("work"));
        entries.map_or(0, Iterator::count)
    }
}

/// Compares what two checks of the same objects find, and what repairs of that they plan.
fn compare(fixture: &Fixture, objects: &Objects, data: Sample, what: &str) {
    let place = Place::new();
    let in_memory = CheckOptions {
        data,
        ..CheckOptions::oracle()
    };
    let on_disk = place.options(data);
    let store: Arc<dyn Store> = bucket(objects);
    let look = |options| {
        wait(async {
            let found = examine(store.clone(), &fixture.keyring, options).await;
            let found = found.expect("examines");
            let planned = plan(&store, &fixture.keyring, options).await;
            let planned = planned.map(|(_, plan)| (plan.steps, plan.remarks));
            let planned = planned.map_err(|error| error.to_string());
            let mut open: Vec<_> = found.learned.open_packs().into_iter().collect();
            open.sort();
            let mut wanted: Vec<_> = found.damage.wanted().iter().copied().collect();
            wanted.sort();
            let mut places: Vec<_> = found.damage.places().into_iter().collect();
            places.sort();
            (found.report, planned, open, wanted, places)
        })
    };
    let (kept, spilled) = (look(&in_memory), look(&on_disk));
    assert!(kept == spilled, "{what}:\n{kept:#?}\n{spilled:#?}");
    drop(on_disk);
    assert_eq!(place.left(), 0, "{what}: something stays");
    let is_walked = kept.0.counts.blobs > 0;
    assert!(!is_walked || !place.announced.lock().is_empty(), "{what}");
}

#[test]
fn damage_is_found_alike_in_memory_and_on_disk() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        compare(&fixture, &fixture.objects, Sample::All, "undamaged");
        for number in 0..60 {
            let case = Case::draw(&fixture, 77, number);
            let objects = case.apply(&fixture);
            let data = match number % 2 {
                0 => Sample::All,
                _ => Sample::Structure,
            };
            compare(&fixture, &objects, data, &case.to_string());
        }
    }
}

/// Every object that is needed is missing once, and one of each pair of packs with it: then
/// references lead nowhere.
#[test]
fn losses_are_found_alike_in_memory_and_on_disk() {
    let fixture = Fixture::build(None);
    let packs = fixture.needed.iter().filter(|key| class_of(key) == "data");
    let packs: Vec<&String> = packs.collect();
    for key in &fixture.needed {
        let mut objects = Case::new(key, Harm::Remove).apply(&fixture);
        compare(&fixture, &objects, Sample::Structure, key);
        if matches!(class_of(key), "index" | "root" | "meta") {
            objects.remove(packs[0]);
            compare(
                &fixture,
                &objects,
                Sample::Structure,
                &format!("{key} and a pack"),
            );
        }
    }
}

#[test]
fn what_is_on_disk_is_repaired_as_what_is_in_memory() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        for class in ["index", "root", "lists", "data", "meta"] {
            let key = fixture.needed.iter().find(|key| class_of(key) == class);
            let key = key.expect("there is one");
            for harm in [Harm::Remove, Harm::Flip(200, 1)] {
                let case = Case::new(key, harm);
                let place = Place::new();
                let mend = |options: &CheckOptions| {
                    let store: Arc<dyn Store> = bucket(&case.apply(&fixture));
                    mend_with(&fixture, &store, options)
                };
                let on_disk = mend(&place.options(Sample::All));
                let in_memory = mend(&CheckOptions::oracle());
                let said = |report: &bkfs::maintain::Report| report.to_string();
                assert_eq!(said(&on_disk), said(&in_memory), "{case}");
                assert_eq!(on_disk.counts.blobs, in_memory.counts.blobs, "{case}");
            }
        }
    }
}

/// The error of a check, which names the place of its working data.
fn ends(fixture: &Fixture, place: &Place, options: &CheckOptions) -> Option<io::ErrorKind> {
    let report = wait(check(bucket(&fixture.objects), &fixture.keyring, options));
    match report {
        Ok(report) => {
            assert!(report.is_clean(), "{report}");
            None
        }
        Err(RootError::Local { what, source }) => {
            let says = format!("{what}: {source}");
            let named = place.home.path().join("work").display().to_string();
            assert!(
                says.contains(&named) && says.contains("--work-dir"),
                "{says}"
            );
            Some(source.kind())
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_full_disk_ends_a_check_and_is_named() {
    let fixture = Fixture::build(None);
    let place = Place::new();
    let (mut room, mut failed) = (0, 0);
    loop {
        let options = place.poor(room, u64::MAX);
        let ended = ends(&fixture, &place, &options);
        drop(options);
        let Some(kind) = ended else { break };
        assert_eq!(kind, io::ErrorKind::StorageFull);
        assert_eq!(place.left(), 0, "something stays");
        room += 500;
        failed += 1;
    }
    assert!(failed > 5, "it needs {room} bytes");
    let announced = place.announced.lock().iter().max().copied();
    assert!(announced.is_some(), "no need was announced");
}

/// A disk that gives other bytes than were written never makes a check say that nothing is wrong.
#[test]
fn a_disk_that_rots_ends_a_check() {
    let fixture = Fixture::build(None);
    let place = Place::new();
    let (mut sound, mut failed) = (0, 0);
    loop {
        let options = place.poor(u64::MAX, sound);
        let ended = ends(&fixture, &place, &options);
        drop(options);
        let Some(kind) = ended else { break };
        assert_eq!(kind, io::ErrorKind::InvalidData);
        sound += 997;
        failed += 1;
    }
    assert!(failed > 5, "it reads {sound} bytes");
    assert_eq!(place.left(), 0, "something stays");
}
