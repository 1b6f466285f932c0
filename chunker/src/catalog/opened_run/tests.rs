//! Look-ups in runs of a bucket in memory: what they find, and what they cost in requests and
//! bytes.

use std::sync::Arc;
use std::time::Duration;

use bkfs_store::entropy::SystemEntropy;
use bkfs_store::{MemoryStore, Operation, Store};
use bkfs_testing::counting::{CountingStore, Tally};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;

use super::requests::REQUEST_BYTES;
use super::*;
use crate::codec::Effort;
use crate::crypto::{Features, RepositoryId, Secrets};
use crate::run::{PackFrames, RunWriter};

const NAME: PackName = PackName {
    session: 1,
    sequence: 2,
    random: 3,
};

pub(in crate::catalog) fn keyring() -> Keyring {
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    Keyring::sealed(RepositoryId([4; 16]), secrets)
}

pub(in crate::catalog) fn pack(number: u64) -> PackName {
    PackName {
        session: 9,
        sequence: number as u32,
        random: number as u32,
    }
}

/// Returns the prefix of blob `number`, at random.
pub(in crate::catalog) fn prefix(number: u64) -> Prefix {
    let mut bytes = [0; Prefix::LEN];
    bytes.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..Prefix::LEN]);
    Prefix(bytes)
}

pub(in crate::catalog) fn everything() -> std::ops::RangeInclusive<Prefix> {
    Prefix([0; 16])..=Prefix([0xff; 16])
}

/// Returns a run of the blobs 0 to `blobs`, `copies` of each, in as many packs.
fn run_of(blobs: u64, copies: u64, packs: u64) -> Vec<u8> {
    let key = NAME.key(Class::Run);
    let sealer = keyring().object_sealer(Class::Run, &key, Features::NONE, [9; 32]);
    let names = (0..packs).map(pack);
    let (class, effort) = (Class::DataPack, Effort::Level(1));
    let mut writer = RunWriter::new(sealer, class, everything(), names, effort);
    let mut records: Vec<Record> = (0..blobs * copies)
        .map(|number| Record {
            prefix: prefix(number / copies),
            pack: (number % packs) as u32,
            frame: (number % 500) as u16,
            slot: 0,
            kind: Kind::Chunk,
        })
        .collect();
    records.sort_unstable();
    let mut bytes = Vec::new();
    for record in records {
        writer.push(record).expect("in order");
        bytes.extend(writer.take());
    }
    let mut packs: Vec<PackFrames> = (0..packs)
        .map(|number| PackFrames {
            name: pack(number),
            class,
            length: 1000,
            header: [7; HEADER_LEN],
            frames: vec![100; 9],
        })
        .collect();
    packs.sort_by_key(|pack| PackFrames::place_of(&pack.name));
    for pack in &packs {
        writer.push_pack(pack).expect("in order");
    }
    writer.finish().expect("small");
    bytes.extend(writer.take());
    bytes
}

/// Returns the number of records that a run states, if it can be read.
fn records_in(run: &[u8]) -> Option<u64> {
    let (header, trailer) = (run.first_chunk::<HEADER_LEN>()?, run.last_chunk()?);
    let trailer = Trailer::decode(trailer).ok()?;
    let key = NAME.key(Class::Run);
    let opener = keyring().object_opener(Class::Run, &key, header).ok()?;
    let end = run.len() - TRAILER_LEN;
    let sealed = &run[end.checked_sub(trailer.directory_length as usize)?..end];
    let length = run.len() as u64;
    let directory = Directory::open(opener, &trailer, sealed, length, &mut Decoder::new());
    Some(directory.ok()?.record_count())
}

/// A bucket with runs.
pub(in crate::catalog) struct Bucket {
    counting: Arc<CountingStore>,
    store: RunStore,
    /// The first run.
    reference: RunRef,
}

impl Bucket {
    async fn with(run: Vec<u8>) -> Self {
        let mut bucket = Self::empty();
        bucket.put_own(run).await;
        bucket
    }

    pub(in crate::catalog) fn empty() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }

    fn over(store: Arc<dyn Store>) -> Self {
        let counting = Arc::new(CountingStore::new(store));
        let link = StoreClient::new(
            Arc::clone(&counting) as Arc<dyn Store>,
            Arc::new(SystemEntropy),
            (4, 16),
            Duration::from_secs(5),
        );
        Self {
            counting,
            store: RunStore {
                link: Arc::new(link),
                keyring: keyring(),
                workers: Workers::inline(),
                caches: Arc::new(RunCaches::new()),
            },
            reference: RunRef {
                name: NAME,
                bytes: 0,
                class: Class::DataPack,
                first: *everything().start(),
                last: *everything().end(),
                records: 0,
            },
        }
    }

    /// Stores the run of this bucket, whatever its bytes are.
    async fn put_own(&mut self, run: Vec<u8>) {
        self.reference.records = records_in(&run).unwrap_or_default();
        self.reference.bytes = self.put(NAME, vec![Bytes::from(run)]).await;
    }

    /// Stores a run, and returns its length in bytes.
    pub(in crate::catalog) async fn put(&self, name: PackName, body: Vec<Bytes>) -> u64 {
        let bytes = body.iter().map(|part| part.len() as u64).sum();
        let put = self.counting.put_new(&name.key(Class::Run), body).await;
        put.expect("a store in memory takes it");
        bytes
    }

    async fn remove(&self, name: PackName) {
        let removed = self.counting.delete(&name.key(Class::Run)).await;
        removed.expect("a store in memory does");
    }

    /// Opens one of the runs.
    pub(in crate::catalog) async fn open_run(&self, reference: RunRef) -> OpenedRun {
        self.try_open(reference).await.expect("it opens")
    }

    pub(in crate::catalog) async fn try_open(
        &self,
        reference: RunRef,
    ) -> Result<OpenedRun, ContentError> {
        OpenedRun::open(self.store.clone(), reference).await
    }

    async fn open(&self) -> Result<OpenedRun, ContentError> {
        self.try_open(self.reference).await
    }

    /// Returns the reads and the bytes of their answers so far.
    pub(in crate::catalog) fn asked(&self) -> (u64, u64) {
        let reads: Tally = self.counting.counters().tally(Operation::GetRange);
        (reads.requests, reads.bytes_read)
    }
}

/// Returns the names of the packs that hold a blob, from a run of `copies` and `packs`.
fn expected(number: u64, copies: u64, packs: u64) -> Vec<RunRecord> {
    let mut all: Vec<RunRecord> = (number * copies..(number + 1) * copies)
        .map(|place| RunRecord {
            prefix: prefix(number),
            pack: pack(place % packs),
            frame: (place % 500) as u16,
            slot: 0,
            kind: Kind::Chunk,
        })
        .collect();
    all.sort_unstable();
    all
}

fn sorted(numbers: impl Iterator<Item = u64>) -> Vec<Prefix> {
    let mut prefixes: Vec<Prefix> = numbers.map(prefix).collect();
    prefixes.sort_unstable();
    prefixes
}

#[tokio::test]
async fn every_record_is_found_and_no_other_one() {
    let (blobs, copies, packs) = (30_000, 3, 5_000);
    let mut bucket = Bucket::with(run_of(blobs, copies, packs)).await;
    for is_kept in [true, false] {
        if !is_kept {
            bucket.store.caches = Arc::new(RunCaches::within(0));
        }
        finds_every_record(&bucket, blobs, copies, packs).await;
    }
}

async fn finds_every_record(bucket: &Bucket, blobs: u64, copies: u64, packs: u64) {
    let run = bucket.open().await.expect("it opens");
    assert_eq!(run.directory().record_count(), blobs * copies);
    // Some are in the run, and as many are not.
    let asked: Vec<u64> = (0..2 * blobs).step_by(7).collect();
    let mut wanted: Vec<RunRecord> = asked
        .iter()
        .filter(|number| **number < blobs)
        .flat_map(|number| expected(*number, copies, packs))
        .collect();
    wanted.sort_unstable();
    let found = run.find(&sorted(asked.into_iter())).await.expect("read");
    assert!(
        found == wanted,
        "{} instead of {}",
        found.len(),
        wanted.len()
    );
    for number in [0, 1, blobs - 1] {
        let found = run.find(&[prefix(number)]).await.expect("read");
        assert_eq!(found, expected(number, copies, packs));
    }
    assert_eq!(run.find(&[]).await.expect("nothing"), []);
    let caches = &run.store.caches;
    let used = [
        caches.blocks.used(),
        caches.fences.used(),
        caches.names.used(),
    ];
    assert_eq!(used[0] > 0, used[1] > 0 && used[2] > 0, "{used:?}");
    assert!(used.iter().all(|used| *used <= 16 << 20), "{used:?}");
}

#[tokio::test]
async fn copies_that_fill_several_blocks_are_all_found() {
    // 6,000 copies of one blob, in 3 blocks.
    let bucket = Bucket::with(run_of(3, 6_000, 7_000)).await;
    let run = bucket.open().await.expect("it opens");
    for number in 0..3 {
        let found = run.find(&[prefix(number)]).await.expect("read");
        assert!(found == expected(number, 6_000, 7_000), "{}", found.len());
    }
}

#[tokio::test]
async fn a_look_up_costs_one_block() {
    let bucket = Bucket::with(run_of(400_000, 1, 170)).await;
    let run = bucket.open().await.expect("it opens");
    let (requests, bytes) = bucket.asked();
    assert_eq!(requests, 2, "header and end");
    assert!(bytes <= END_BYTES + HEADER_LEN as u64, "{bytes}");
    run.find(&[prefix(1)]).await.expect("read");
    let (again, more) = bucket.asked();
    assert_eq!(again - requests, 2, "a block, and the names of all packs");
    assert!(more - bytes <= 100 << 10, "{}", more - bytes);
    run.find(&[prefix(1)]).await.expect("read");
    assert_eq!(bucket.asked().0, again, "it is cached");
    run.find(&[prefix(2)]).await.expect("read");
    assert_eq!(bucket.asked().0, again + 1, "another block");
}

#[tokio::test]
async fn neighbours_share_requests() {
    let bucket = Bucket::with(run_of(400_000, 1, 170)).await;
    let run = bucket.open().await.expect("it opens");
    let before = bucket.asked();
    // Every block of the run has some of these.
    let found = run.find(&sorted(0..20_000)).await.expect("read");
    assert_eq!(found.len(), 20_000);
    let (requests, bytes) = bucket.asked();
    let blocks: u64 = bucket.reference.bytes;
    assert!(bytes - before.1 <= blocks, "no byte twice");
    let requests = requests - before.0;
    assert!(
        requests <= blocks / REQUEST_BYTES + 3,
        "{requests} requests for {blocks} bytes"
    );
}

#[tokio::test]
async fn filters_spare_requests_for_what_is_absent() {
    let blobs = 100_000;
    let bucket = Bucket::with(run_of(blobs, 1, 40)).await;
    let run = bucket.open().await.expect("it opens");
    let absent = sorted(blobs..blobs + 5_000);
    assert!(
        absent.iter().all(|prefix| run.may_hold(prefix)),
        "nothing is known yet"
    );
    // A sampling reader holds the levels from 3 on: an eighth of all prefixes.
    let before = bucket.asked();
    run.load_filters(3).await.expect("read");
    let sampled = bucket.asked();
    assert_eq!(sampled.0 - before.0, 1);
    assert!(
        sampled.1 - before.1 < blobs * 18 / 8 / 8 * 2,
        "{}",
        sampled.1 - before.1
    );
    let passed = |prefixes: &[Prefix]| {
        prefixes
            .iter()
            .filter(|prefix| run.may_hold(prefix))
            .count()
    };
    let of_level = |prefixes: &[Prefix], from: u8| -> Vec<Prefix> {
        let is_of_it = |prefix: &&Prefix| LevelFilter::level_of(prefix) >= from;
        prefixes.iter().filter(is_of_it).copied().collect()
    };
    assert!(passed(&of_level(&absent, 3)) <= 2);
    run.load_filters(0).await.expect("read");
    assert!(passed(&absent) <= 3, "one in 65,536 is wrong");
    let present = sorted(0..blobs);
    assert_eq!(
        passed(&present),
        present.len(),
        "each present one is let through"
    );
    let before = bucket.asked().0;
    assert_eq!(run.find(&absent).await.expect("read"), []);
    assert!(bucket.asked().0 - before <= 3);
    // Again costs nothing.
    let before = bucket.asked().0;
    run.load_filters(2).await.expect("held");
    assert_eq!(bucket.asked().0, before);
}

#[tokio::test]
async fn a_changed_byte_is_damage_wherever_it_lies() {
    let run = run_of(20_000, 1, 40);
    let length = run.len();
    let prefixes = sorted(0..20_000);
    let unchanged = Bucket::with(run.clone()).await;
    let unchanged = unchanged.open().await.expect("it opens");
    let whole = unchanged.find(&prefixes).await.expect("read");
    assert_eq!(whole.len(), 20_000);
    let mut places: Vec<usize> = (0..length).step_by(length / 60).collect();
    places.extend([0, HEADER_LEN - 1, length - 1, length - TRAILER_LEN]);
    for place in places {
        let mut changed = run.clone();
        changed[place] ^= 0x10;
        let bucket = Bucket::with(changed).await;
        let outcome = async {
            let run = bucket.open().await?;
            run.load_filters(0).await?;
            run.find(&prefixes).await
        };
        match outcome.await {
            // A part that no look-up reads: the records of packs.
            Ok(found) => assert!(found == whole, "{place}"),
            Err(ContentError::Damaged { object, .. }) => {
                assert_eq!(object, NAME.key(Class::Run), "{place}");
            }
            Err(other) => panic!("{place}: {other}"),
        }
    }
    for cut in [1, 15, 16, 100, 5_000, length - 200, length - 128] {
        let bucket = Bucket::with(run[..length - cut].to_vec()).await;
        let outcome = async {
            let run = bucket.open().await?;
            run.find(&prefixes).await
        };
        let error = outcome.await.expect_err("it is cut short");
        assert!(
            matches!(error, ContentError::Damaged { .. }),
            "{cut}: {error}"
        );
    }
}

#[tokio::test]
async fn another_run_under_the_same_name_has_its_own_blocks() {
    let mut bucket = Bucket::with(run_of(20_000, 1, 5_000)).await;
    let run = bucket.open().await.expect("it opens");
    let prefixes = sorted(0..20_000);
    assert_eq!(run.find(&prefixes).await.expect("read").len(), 20_000);
    // A party with the password may put another run in its place: one of fewer packs.
    bucket.remove(NAME).await;
    let key = NAME.key(Class::Run);
    let sealer = keyring().object_sealer(Class::Run, &key, Features::NONE, [8; 32]);
    let names = [pack(3)];
    let mut writer = RunWriter::new(
        sealer,
        Class::DataPack,
        everything(),
        names,
        Effort::Level(1),
    );
    for prefix in &prefixes {
        let record = Record {
            prefix: *prefix,
            pack: 0,
            frame: 1,
            slot: 1,
            kind: Kind::Chunk,
        };
        writer.push(record).expect("in order");
    }
    writer.finish().expect("small");
    bucket.put_own(writer.take()).await;
    let run = bucket.open().await.expect("it opens");
    let found = run.find(&prefixes).await.expect("read");
    assert_eq!(found.len(), 20_000);
    assert!(found.iter().all(|record| record.pack == pack(3)));
}

#[tokio::test]
async fn more_copies_than_there_can_be_are_damage() {
    let bucket = Bucket::with(run_of(2, 30_000, 31_000)).await;
    let run = bucket.open().await.expect("it opens");
    let error = run.find(&[prefix(1)]).await.expect_err("too many");
    assert!(matches!(error, ContentError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_that_is_damaged_on_its_way_is_read_again() {
    let run = run_of(20_000, 1, 40);
    let memory = Arc::new(MemoryStore::new());
    let (key, body) = (NAME.key(Class::Run), vec![Bytes::from(run.clone())]);
    let put = memory.put_new(&key, body).await;
    put.expect("a store in memory takes it");
    let faults = Arc::new(FaultStore::new(memory));
    let mut bucket = Bucket::over(faults.clone());
    bucket.reference.bytes = run.len() as u64;
    bucket.reference.records = records_in(&run).expect("a run");
    let run = bucket.open().await.expect("it opens");
    faults.plan(Strike::with(Fault::FlipBit(12_345)).on(Operation::GetRange));
    let found = run
        .find(&sorted(0..20_000))
        .await
        .expect("the second answer is right");
    assert_eq!((found.len(), faults.struck()), (20_000, 1));
}
