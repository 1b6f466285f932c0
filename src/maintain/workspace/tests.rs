//! Tests of working data: joins against a map in memory, disks that are full or rot, and what of a
//! directory stays.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_store::entropy::SystemEntropy;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::directory::WorkDirectory;
use super::join::join;
use super::medium::{Medium, WorkFile};
use super::partitions::{Partitions, Record};
use super::questions::Questions;
use super::records::{Edge, Holding, NodeFact, Order, Question, ReadNode, Reference};
use super::{WorkError, Workspace};

/// A disk in memory that takes a number of bytes, and of which a bit can be flipped.
#[derive(Debug)]
struct FakeDisk {
    files: Mutex<Vec<Arc<FakeFile>>>,
    left: Arc<AtomicU64>,
}

#[derive(Debug)]
struct FakeFile {
    bytes: Mutex<Vec<u8>>,
    left: Arc<AtomicU64>,
}

impl FakeDisk {
    fn of(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            files: Mutex::default(),
            left: Arc::new(AtomicU64::new(capacity)),
        })
    }

    fn bytes(&self) -> usize {
        let files = self.files.lock();
        files.iter().map(|file| file.bytes.lock().len()).sum()
    }
}

impl Medium for FakeDisk {
    fn create(&self) -> io::Result<Arc<dyn WorkFile>> {
        let file = Arc::new(FakeFile {
            bytes: Mutex::default(),
            left: Arc::clone(&self.left),
        });
        self.files.lock().push(Arc::clone(&file));
        Ok(file)
    }

    fn place(&self) -> Arc<str> {
        "/fake".into()
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.left.load(Ordering::Relaxed))
    }
}

impl WorkFile for FakeFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let taken = bytes.len() as u64;
        let left = self.left.load(Ordering::Relaxed);
        let left = left.checked_sub(taken).ok_or(io::ErrorKind::StorageFull)?;
        self.left.store(left, Ordering::Relaxed);
        let mut all = self.bytes.lock();
        let start = offset as usize;
        let length = all.len().max(start + bytes.len());
        all.resize(length, 0);
        all[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let all = self.bytes.lock();
        let end = offset as usize + bytes.len();
        let found = all.get(offset as usize..end);
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn workspace(disk: Arc<FakeDisk>, memory_bytes: u64) -> Workspace {
    Workspace {
        medium: Some(disk),
        memory_bytes,
        announce: None,
    }
}

/// A blob of few, so that many records are about the same one. Neighbours share a partition.
fn blob(number: u16) -> Prefix {
    let mut bytes = [0; Prefix::LEN];
    bytes[..2].copy_from_slice(&(number.wrapping_mul(67)).to_be_bytes());
    bytes[15] = number as u8;
    Prefix(bytes)
}

fn holdings(numbers: &[u16], workspace: &Workspace) -> Partitions<Holding> {
    let mut held = Partitions::new(workspace);
    for (ordinal, number) in numbers.iter().enumerate() {
        let holding = Holding {
            blob: blob(*number),
            pack: ordinal as u32,
            frame: *number,
        };
        held.push(holding).expect("the disk takes it");
    }
    held
}

fn references(numbers: &[u16], workspace: &Workspace) -> Partitions<Reference> {
    let mut asked = Partitions::new(workspace);
    for (ordinal, number) in numbers.iter().enumerate() {
        let mut id = [7; Id::LEN];
        id[..Prefix::LEN].copy_from_slice(&blob(*number).0);
        let reference = Reference {
            from: (Kind::Segment, blob(0)),
            to: (Kind::Chunk, Id(id)),
            order: Order {
                pack: ordinal as u32 / 10,
                number: ordinal as u32,
            },
        };
        asked.push(reference).expect("the disk takes it");
    }
    asked
}

/// The packs that hold what each reference is to, in the order of the references.
fn joined(
    held: &Partitions<Holding>,
    asked: &Partitions<Reference>,
    memory_bytes: u64,
) -> Result<Vec<(Reference, Vec<u32>)>, WorkError> {
    let mut found = Vec::new();
    join(held, asked, memory_bytes, &mut |reference, copies| {
        let packs = copies.iter().map(|copy| copy.pack);
        found.push((*reference, packs.collect()));
    })?;
    found.sort_by_key(|(reference, _): &(Reference, _)| reference.order);
    Ok(found)
}

proptest! {
    #[test]
    fn a_join_on_disk_is_one_in_memory(
        held in prop::collection::vec(0..400_u16, 0..600),
        asked in prop::collection::vec(0..500_u16, 0..600),
        held_bytes in prop::sample::select(vec![0_u64, 4_000, 1 << 20]),
        asked_bytes in prop::sample::select(vec![0_u64, 4_000, 1 << 20]),
        memory_bytes in prop::sample::select(vec![0_u64, 100, 1_000, 1 << 20]),
    ) {
        let mut known: HashMap<u16, Vec<u32>> = HashMap::new();
        for (ordinal, number) in held.iter().enumerate() {
            known.entry(*number).or_default().push(ordinal as u32);
        }
        let disk = FakeDisk::of(u64::MAX);
        let in_held = holdings(&held, &workspace(disk.clone(), held_bytes));
        let in_asked = references(&asked, &workspace(disk.clone(), asked_bytes));
        prop_assert_eq!(in_held.is_spilled(), held_bytes == 0 && !held.is_empty()
            || held.len() > held_bytes as usize / 4 / size_of::<Holding>());
        let found = joined(&in_held, &in_asked, memory_bytes).expect("joins");
        let expected: Vec<Vec<u32>> = asked
            .iter()
            .map(|number| known.get(number).cloned().unwrap_or_default())
            .collect();
        let orders: Vec<u32> = found.iter().map(|(reference, _)| reference.order.number).collect();
        prop_assert_eq!(orders, (0..asked.len() as u32).collect::<Vec<_>>());
        let packs: Vec<Vec<u32>> = found.into_iter().map(|(_, packs)| packs).collect();
        prop_assert_eq!(packs, expected);
    }

    #[test]
    fn records_are_read_back(
        bytes: [u8; 32], items: u64, first: u64, level: u8, pack: u32, number: u32, frame: u16,
    ) {
        fn same<R: Record + PartialEq + std::fmt::Debug>(record: R) {
            let mut written = Vec::new();
            record.write(&mut written);
            assert_eq!(written.len(), R::BYTES);
            assert_eq!(R::read(&written), Some(record));
        }
        let id = Id(bytes);
        let fact = NodeFact { level, items, first };
        let order = Order { pack, number };
        same(Holding { blob: id.prefix(), pack, frame });
        same(Question(id.prefix()));
        same(ReadNode { node: id.prefix(), fact });
        same(Edge { child: id.prefix(), expected: fact, order });
        for kind in Kind::ALL {
            same(Reference { from: (kind, id.prefix()), to: (Kind::Chunk, id), order });
        }
    }
}

/// Each bit of a disk that rots is told, and no join that lacks a record passes for a whole one.
#[test]
fn rot_of_working_data_is_told() {
    let numbers: Vec<u16> = (0..60).collect();
    let disk = FakeDisk::of(u64::MAX);
    let held = holdings(&numbers, &workspace(disk.clone(), 0));
    let asked = references(&numbers, &workspace(disk.clone(), 0));
    assert!(joined(&held, &asked, 1 << 20).is_ok());
    let files = disk.files.lock().clone();
    assert_eq!(files.len(), 2);
    for file in files {
        let length = file.bytes.lock().len();
        for byte in 0..length {
            file.bytes.lock()[byte] ^= 1 << (byte % 8);
            let told = joined(&held, &asked, 1 << 20).expect_err("it is whole");
            assert!(matches!(told, WorkError::Changed { .. }), "{told}");
            file.bytes.lock()[byte] ^= 1 << (byte % 8);
        }
        let whole = file.bytes.lock().clone();
        file.bytes.lock().truncate(length - 1);
        let told = joined(&held, &asked, 1 << 20).expect_err("it is whole");
        assert!(matches!(told, WorkError::Changed { .. }), "{told}");
        *file.bytes.lock() = whole;
    }
    assert!(joined(&held, &asked, 1 << 20).is_ok());
}

/// Two blocks of one length that change places are intact, and not what was written.
#[test]
fn blocks_that_change_places_are_told() {
    let numbers: Vec<u16> = (0..2).collect();
    let disk = FakeDisk::of(u64::MAX);
    let held = holdings(&numbers, &workspace(disk.clone(), 0));
    let asked = references(&numbers, &Workspace::default());
    let file = disk.files.lock()[0].clone();
    {
        let mut bytes = file.bytes.lock();
        let half = bytes.len() / 2;
        bytes.rotate_left(half);
    }
    assert!(joined(&held, &asked, 1 << 20).is_err());
}

#[test]
fn a_full_disk_is_told_with_its_place() {
    let disk = FakeDisk::of(1_000);
    let space = workspace(disk.clone(), 0);
    let mut held = Partitions::new(&space);
    let told = (0..1_000).find_map(|number| {
        let blob = blob(number);
        let holding = Holding {
            blob,
            pack: 0,
            frame: 0,
        };
        held.push(holding).err()
    });
    let told = told.expect("it takes more than it has");
    let says = told.to_string();
    assert!(
        says.contains("/fake") && says.contains("--work-dir"),
        "{says}"
    );
    assert!(disk.bytes() <= 1_000);
}

/// What is in memory does not touch the medium.
#[test]
fn a_small_set_makes_no_file() {
    let disk = FakeDisk::of(0);
    let space = workspace(disk.clone(), 1 << 20);
    let held = holdings(&(0..1_000).collect::<Vec<_>>(), &space);
    let asked = references(&[5, 2_000], &space);
    let found = joined(&held, &asked, 1 << 20).expect("joins");
    assert_eq!(
        (found[0].1.as_slice(), found[1].1.as_slice()),
        ([5].as_slice(), [].as_slice())
    );
    assert!(disk.files.lock().is_empty());
}

#[test]
fn a_directory_is_private_and_leaves_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let above = home.path().join("work");
    let entries = || {
        std::fs::read_dir(&above)
            .expect("lists")
            .flatten()
            .collect::<Vec<_>>()
    };
    // A killed process has left one with a file, another one is in use, and one is foreign.
    for left in ["bkfs-check-0123", "other"] {
        std::fs::create_dir_all(above.join(left)).expect("makes");
        std::fs::write(above.join(left).join("1"), "left").expect("writes");
    }
    let in_use = WorkDirectory::new(above.clone(), Arc::new(SystemEntropy));
    let kept = in_use.create().expect("makes a file");
    kept.write_at(0, b"kept").expect("writes");
    assert_eq!(entries().len(), 2, "{:?}", entries());
    let directory = WorkDirectory::new(above.clone(), Arc::new(SystemEntropy));
    let file = directory.create().expect("makes a file");
    file.write_at(3, b"bytes").expect("writes");
    let mut read = [0; 5];
    file.read_at(3, &mut read).expect("reads");
    assert_eq!(&read, b"bytes");
    assert_eq!(entries().len(), 3, "{:?}", entries());
    for entry in entries() {
        if entry.file_name() != "other" {
            let mode = entry.metadata().expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            let files = std::fs::read_dir(entry.path()).expect("lists");
            assert_eq!(files.count(), 0, "a file has a name");
        }
    }
    drop((directory, in_use));
    assert_eq!(entries().len(), 1, "{:?}", entries());
    kept.read_at(0, &mut [0; 4])
        .expect("an open file stays whole");
}

/// A directory that cannot be made is told with its place, and only when it is needed.
#[test]
fn a_directory_that_cannot_be_made_is_told() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("file");
    std::fs::write(&file, "").expect("writes");
    let directory = WorkDirectory::new(file.join("below"), Arc::new(SystemEntropy));
    let space = Workspace {
        medium: Some(Arc::new(directory)),
        memory_bytes: 0,
        announce: None,
    };
    let told = Partitions::new(&space).push(Question(blob(1)));
    let says = told.expect_err("it is made").to_string();
    assert!(says.contains("file/below"), "{says}");
}

async fn read_all(questions: &Questions) -> Result<Vec<Prefix>, WorkError> {
    let mut all = Vec::new();
    for batch in questions.batches()? {
        let blobs = questions.read(batch).await?;
        assert!(blobs.is_sorted_by(|one, next| one < next), "each once");
        all.extend_from_slice(&blobs);
    }
    all.sort_unstable();
    Ok(all)
}

#[tokio::test]
async fn each_question_is_in_one_batch() {
    // In memory, and on disk.
    for memory_bytes in [1 << 22, 16_000] {
        let disk = FakeDisk::of(1 << 30);
        let mut questions = Questions::new(workspace(disk.clone(), memory_bytes));
        assert!(read_all(&questions).await.expect("read").is_empty());
        let mut expected: Vec<Prefix> = (0..5_000).map(|number| blob(number % 3_000)).collect();
        for blob in &expected {
            questions.ask(*blob).expect("taken");
        }
        assert_eq!(questions.count(), 5_000);
        expected.sort_unstable();
        expected.dedup();
        for _ in 0..2 {
            assert_eq!(read_all(&questions).await.expect("read"), expected);
        }
        assert_eq!(disk.bytes() > 0, memory_bytes < 1 << 22);
        let before = questions.batches().expect("none is lost");
        questions.clear();
        assert!(read_all(&questions).await.expect("read").is_empty());
        for batch in before {
            let late = questions.read(batch).await;
            assert!(
                matches!(late, Err(WorkError::Ended)),
                "of dropped questions"
            );
        }
    }
}

#[tokio::test]
async fn one_blob_is_asked_for_many_times() {
    let mut questions = Questions::new(workspace(FakeDisk::of(1 << 30), 16_000));
    for number in 0..200_000u32 {
        questions.ask(blob((number % 2) as u16)).expect("taken");
    }
    assert_eq!(read_all(&questions).await.expect("read").len(), 2);
}

/// The disk is full at the first write, which takes all earlier questions, or at a later one.
#[tokio::test]
async fn a_lost_question_is_not_forgotten() {
    for capacity in [0, 500, 20_000] {
        let mut questions = Questions::new(workspace(FakeDisk::of(capacity), 16_000));
        let mut refused = None;
        for number in 0..5_000 {
            match questions.ask(blob(number)) {
                Ok(()) => assert_eq!(refused, None, "capacity {capacity}"),
                Err(_) => refused = refused.or(Some(number)),
            }
        }
        let refused = refused.expect("it is full");
        assert!((62..4_900).contains(&refused), "question {refused}");
        let lost = read_all(&questions).await;
        assert!(matches!(lost, Err(WorkError::Unwritten { .. })));
        questions.clear();
        questions.ask(blob(1)).expect("taken");
        assert_eq!(read_all(&questions).await.expect("read"), [blob(1)]);
    }
}
