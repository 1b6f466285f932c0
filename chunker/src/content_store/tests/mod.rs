//! The whole crate over a bucket in memory or in a directory: stored data is read back, whatever
//! happens in between.

mod balance;
mod bucket;
mod cached;
mod decoded;
mod delivered;
mod faults;
mod finishes;
mod pinned;
mod prefetched;
mod relying;
mod runs;
mod runs_lost;
mod spooled;
mod tables;
mod verify;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use bkfs_testing::entropy::SeededEntropy;
use bytes::Bytes;

use self::bucket::Bucket;
use super::*;
use crate::budget::MemoryBudget;
use crate::catalog::IndexRef;
use crate::crypto::{RepositoryId, Secrets};
use crate::extent::Piece;
use crate::extent::{StoredRun, Target};
use crate::id::Kind;
use crate::ingest::{Ingest, Profile};

const MIB: usize = 1 << 20;

/// A repository with a root's index list, but without a root.
struct World {
    bucket: Arc<Bucket>,
    keyring: Keyring,
    index: Vec<IndexRef>,
    cache_dir: Option<PathBuf>,
    config: ContentStoreConfig,
    sessions: u64,
}

impl World {
    fn new(seed: u64, is_sealed: bool) -> Self {
        let entropy = SeededEntropy::new(seed);
        let mut keys = [[0; 32]; 3];
        keys.iter_mut().for_each(|key| entropy.fill(key));
        let secrets = Secrets::new(keys[0], keys[1], keys[2]);
        let repository = RepositoryId([seed as u8; 16]);
        let keyring = match is_sealed {
            true => Keyring::sealed(repository, secrets),
            false => Keyring::unsealed(repository, secrets),
        };
        let config = ContentStoreConfig {
            memory: MemoryBudget {
                write_bytes: 24 << 20,
                fetch_bytes: 10 << 20,
                cache_bytes: 8 << 20,
            },
            workers: 0,
            pack_bytes: 1 << 20,
            ..ContentStoreConfig::default()
        };
        Self {
            bucket: Arc::new(Bucket::default()),
            keyring,
            index: Vec::new(),
            cache_dir: None,
            config,
            sessions: 0,
        }
    }

    fn content_store(&self) -> ContentStore {
        let config = ContentStoreConfig {
            cache_dir: self.cache_dir.clone(),
            ..self.config.clone()
        };
        let entropy = Arc::new(SeededEntropy::new(self.sessions + 1));
        let store: Arc<dyn Store> = self.bucket.clone();
        ContentStore::open(store, self.keyring.clone(), entropy, config).expect("opens")
    }

    /// Returns a content store that has loaded the root's list.
    async fn loaded(&self) -> ContentStore {
        let content_store = self.content_store();
        let loaded = content_store
            .load_index(&IndexSources::of_objects(&self.index), &HashSet::new())
            .await;
        loaded.expect("the index loads");
        content_store
    }

    fn ingest(&mut self, content_store: &ContentStore) -> Ingest {
        self.sessions += 1;
        Ingest::new(content_store.clone(), self.sessions)
    }

    /// Carries out the chunker's part of a commit.
    async fn commit(&mut self, ingest: &Ingest) {
        let finished = ingest.finish(&self.index).await.expect("finishes");
        self.index.clone_from(&finished.index);
        ingest.committed(finished);
    }
}

/// Returns random-looking bytes, the same for the same seed.
fn noise(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SeededEntropy::new(seed).fill(&mut bytes);
    Bytes::from(bytes)
}

/// Returns bytes like those of files: random bytes, repetition and zeros in uneven lengths.
fn content(seed: u64, length: usize) -> Bytes {
    let mut choices = noise(seed, 4096).to_vec().into_iter().cycle();
    let mut draw = move || choices.next().expect("endless");
    let mut bytes = Vec::with_capacity(length);
    let mut part = 0;
    while bytes.len() < length {
        part += 1;
        let size = 1 + usize::from(draw()) * 700 + usize::from(draw());
        let size = size.min(length - bytes.len());
        match draw() % 4 {
            0 => bytes.resize(bytes.len() + size, 0),
            1 => {
                let word = [draw(), draw(), draw()];
                bytes.extend(word.iter().cycle().take(size));
            }
            _ => bytes.extend_from_slice(&noise(seed * 1000 + part, size)),
        }
    }
    Bytes::from(bytes)
}

/// Divides bytes into uneven pieces of memory, as writes arrive.
fn pieces_of(bytes: &Bytes, seed: u64) -> Vec<Bytes> {
    let mut rest = bytes.clone();
    let mut parts = Vec::new();
    let mut step = 1 + (seed as usize % 7919);
    while !rest.is_empty() {
        step = step * 31 % 99_991 + 1;
        parts.push(rest.split_to(step.min(rest.len())));
    }
    parts
}

/// Stores a file run by run, as the volume does: bytes that were not consumed are passed again,
/// followed by more.
async fn store_file(ingest: &Ingest, profile: Profile, file: &Bytes, step: usize) -> StoredRun {
    let mut all = StoredRun::default();
    let mut end = 0;
    while end < file.len() {
        end = (end + step).min(file.len());
        let run = file.slice(all.consumed..end);
        let is_end = end == file.len();
        let parts = pieces_of(&run, step as u64);
        let offset = all.consumed as u64;
        let stored = ingest.store_run(profile, offset, parts, is_end).await;
        let stored = stored.expect("is stored");
        let covered: u64 = stored
            .extents
            .iter()
            .map(|extent| u64::from(extent.length))
            .sum();
        assert_eq!(
            covered, stored.consumed as u64,
            "extents cover what was consumed"
        );
        assert!(!is_end || stored.consumed == run.len());
        all.consumed += stored.consumed;
        all.extents.extend(stored.extents);
    }
    let mut next = 0;
    for extent in &all.extents {
        assert_eq!(extent.offset, next, "no gaps");
        next += u64::from(extent.length);
    }
    assert_eq!(next, file.len() as u64);
    all
}

fn pieces(stored: &StoredRun) -> Vec<Piece> {
    let whole = |extent: &crate::extent::StoredExtent| {
        Some(Piece {
            target: extent.target?,
            offset: 0,
            length: extent.length,
        })
    };
    stored.extents.iter().filter_map(whole).collect()
}

/// Reads a whole stored file.
async fn read_file(
    content_store: &ContentStore,
    stored: &StoredRun,
) -> Result<Bytes, ContentError> {
    let mut data = content_store.read(&pieces(stored)).await?.into_iter();
    let mut file = Vec::new();
    for extent in &stored.extents {
        match extent.target {
            None => file.resize(file.len() + extent.length as usize, 0),
            Some(_) => file.extend(data.next().expect("one answer for each piece").concat()),
        }
    }
    Ok(Bytes::from(file))
}

#[tokio::test]
async fn files_are_read_back_at_every_stage() {
    for (seed, is_sealed, workers) in [(1, true, 0), (2, false, 0), (3, true, 2)] {
        let mut world = World::new(seed, is_sealed);
        world.config.workers = workers;
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let mut files = Vec::new();
        for (number, profile) in [Profile::Grid, Profile::Content, Profile::Raw]
            .into_iter()
            .enumerate()
        {
            let file = content(seed * 10 + number as u64, 5 * MIB + number * 777 + 1);
            for step in [3 * MIB, MIB / 3] {
                let stored = store_file(&ingest, profile, &file, step).await;
                assert!(
                    read_file(&content_store, &stored).await.expect("reads") == file,
                    "pending"
                );
                files.push((stored, file.clone()));
            }
        }
        let finished = ingest.finish(&world.index).await.expect("finishes");
        for (stored, file) in &files {
            assert!(
                read_file(&content_store, stored).await.expect("reads") == *file,
                "sealed"
            );
        }
        world.index.clone_from(&finished.index);
        ingest.committed(finished);
        assert_eq!(ingest.uncommitted_blobs(), 0);
        let elsewhere = world.loaded().await;
        for content_store in [&content_store, &elsewhere] {
            for (stored, file) in &files {
                assert!(
                    read_file(content_store, stored).await.expect("reads") == *file,
                    "committed"
                );
            }
        }
    }
}

#[tokio::test]
async fn however_a_file_arrives_it_is_stored_as_the_same_extents() {
    let mut world = World::new(4, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    for profile in [Profile::Grid, Profile::Content, Profile::Raw] {
        let file = content(44, 7 * MIB + 123);
        let whole = store_file(&ingest, profile, &file, file.len()).await;
        for step in [MIB / 2, MIB + 4096, 3 * MIB] {
            let again = store_file(&ingest, profile, &file, step).await;
            let targets = |run: &StoredRun| -> Vec<Target> {
                run.extents
                    .iter()
                    .filter_map(|extent| extent.target)
                    .collect()
            };
            assert_eq!(targets(&whole), targets(&again), "{profile:?} by {step}");
        }
        let last = whole.extents.last().expect("is not empty");
        assert!(
            last.open || last.target.is_none(),
            "the end of the file is not the content's"
        );
    }
}

#[tokio::test]
async fn pages_and_zeros_are_what_they_should_be() {
    let mut world = World::new(5, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let mut file = vec![0; 4 * MIB];
    file[MIB + 16_384..MIB + 32_768].copy_from_slice(&noise(1, 16_384));
    file[3 * MIB..].copy_from_slice(&noise(2, MIB));
    let stored = store_file(&ingest, Profile::Grid, &Bytes::from(file), 4 * MIB).await;
    let shape: Vec<(u32, bool)> = stored
        .extents
        .iter()
        .map(|extent| {
            (
                extent.length,
                matches!(extent.target, Some(Target::Chunk(_))),
            )
        })
        .collect();
    let page = 16_384;
    let mib = MIB as u32;
    let expected = [
        (mib + page, false),
        (page, true),
        (2 * mib - 2 * page, false),
        (mib, false),
    ];
    assert_eq!(shape, expected);
    assert!(stored.extents.iter().all(|extent| !extent.open));
    assert_eq!(
        content_store.metrics().bytes_zero,
        3 * MIB as u64 - u64::from(page)
    );
}

#[tokio::test]
async fn parts_of_targets_are_read() {
    let mut world = World::new(6, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(66, 3 * MIB);
    let stored = store_file(&ingest, Profile::Content, &file, 3 * MIB).await;
    world.commit(&ingest).await;
    let content_store = world.loaded().await;
    let mut asked = Vec::new();
    let mut expected = Vec::new();
    for extent in &stored.extents {
        for (offset, length) in [
            (0, 1),
            (extent.length / 3, extent.length / 2),
            (extent.length - 1, 1),
        ] {
            asked.push(Piece {
                target: extent.target.expect("no holes in noise"),
                offset,
                length,
            });
            let start = (extent.offset + u64::from(offset)) as usize;
            expected.push(file.slice(start..start + length as usize));
        }
    }
    let read = content_store.read(&asked).await.expect("reads").into_iter();
    assert_eq!(
        read.map(|parts| parts.concat()).collect::<Vec<_>>(),
        expected
    );
    let past = Piece {
        length: stored.extents[0].length + 1,
        ..pieces(&stored)[0]
    };
    let answers = content_store.read_each(&[past, pieces(&stored)[1]]).await;
    assert!(matches!(answers[0], Err(ContentError::Invalid(_))));
    assert!(answers[1].is_ok());
}

#[tokio::test]
async fn what_is_there_is_not_stored_again() {
    let mut world = World::new(7, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let file = noise(77, 6 * MIB);
    let first = store_file(&ingest, Profile::Grid, &file, MIB).await;
    world.commit(&ingest).await;
    let packs = world.bucket.count("data/");
    assert!(packs >= 6);
    // Another session of the same process, and another machine.
    let elsewhere = world.loaded().await;
    for content_store in [&content_store, &elsewhere] {
        let ingest = world.ingest(content_store);
        let before = content_store.metrics().bytes_deduplicated;
        let again = store_file(&ingest, Profile::Grid, &file, 2 * MIB).await;
        assert_eq!(first, again);
        assert!(content_store.metrics().bytes_deduplicated - before >= file.len() as u64);
        assert!(!ingest.relied_on().is_empty());
        let finished = ingest.finish(&world.index).await.expect("finishes");
        assert_eq!((finished.packs.len(), finished.new_bytes), (0, 0));
        assert_eq!(finished.index, world.index);
        assert_eq!(finished.relied_on, ingest.relied_on());
        ingest.committed(finished);
        assert!(
            ingest.relied_on().is_empty(),
            "the root holds the references now"
        );
    }
    assert_eq!(world.bucket.count("data/"), packs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_writers_at_once_store_each_blob_once() {
    let mut world = World::new(8, true);
    world.config.workers = 2;
    let content_store = world.loaded().await;
    let ingest = Arc::new(world.ingest(&content_store));
    let tasks = (0..8u64).map(|number| {
        let ingest = Arc::clone(&ingest);
        tokio::spawn(async move {
            // All files share the first half, and each has its own second half.
            let mut file = noise(88, 2 * MIB).to_vec();
            file.extend_from_slice(&noise(800 + number, 2 * MIB));
            let file = Bytes::from(file);
            let stored = store_file(&ingest, Profile::Grid, &file, MIB).await;
            (stored, file)
        })
    });
    let mut files = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        files.push(task.await.expect("ends"));
    }
    world.commit(&ingest).await;
    assert_eq!(world.index.iter().map(|index| index.blobs).sum::<u64>(), {
        let chunks = (2 + 8 * 2) * MIB as u64 / 16_384;
        let segments = 2 + 8 * 2;
        chunks + segments
    });
    let elsewhere = world.loaded().await;
    for (stored, file) in &files {
        assert!(read_file(&elsewhere, stored).await.expect("reads") == *file);
    }
}

#[tokio::test]
async fn the_pure_parts_alone_can_read_a_pack() {
    let mut world = World::new(9, true);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    store_file(&ingest, Profile::Content, &content(9, 2 * MIB), MIB).await;
    world.commit(&ingest).await;
    for key in world
        .bucket
        .keys("data/")
        .into_iter()
        .chain(world.bucket.keys("meta/"))
    {
        let (class, _) = PackName::from_key(&key).expect("a name");
        let (bytes, _) = world.bucket.get(&key).await.expect("is there");
        let trailer = crate::pack::Trailer::decode(&bytes).expect("a trailer");
        let header = bytes.first_chunk().expect("a header");
        let opener = world
            .keyring
            .object_opener(class, &key, header)
            .expect("opens");
        let start = bytes.len() - trailer.tail_length() as usize;
        let sealed = &bytes[start..bytes.len() - crate::pack::TRAILER_LEN];
        let mut decoder = crate::pack::FrameDecoder::new();
        let length = bytes.len() as u64;
        let footer =
            crate::pack::Footer::open(&opener, &trailer, sealed, length, decoder.decoder());
        let footer = footer.expect("a footer");
        let mut blobs = footer.blobs();
        for entry in footer.frames() {
            let range = entry.range();
            let sealed = &bytes[range.start as usize..range.end as usize];
            let frame = decoder.open(&opener, u32::from(entry.number), sealed);
            for bytes in frame.expect("a frame").blobs() {
                let blob = blobs.next().expect("as many as the footer says");
                let id = world.keyring.id(blob.kind, &bytes);
                assert_eq!(
                    (id.prefix(), bytes.len() as u32),
                    (blob.prefix, blob.length)
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_a_bucket() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = bkfs_store::StoreOptions::default();
    let store = bkfs_store::LocalStore::open(directory.path(), &options).await;
    let store: Arc<dyn Store> = Arc::new(store.expect("opens"));
    let world = World::new(10, true);
    let open = || {
        let entropy = Arc::new(SeededEntropy::new(10));
        let config = ContentStoreConfig {
            workers: 2,
            ..world.config.clone()
        };
        ContentStore::open(store.clone(), world.keyring.clone(), entropy, config).expect("opens")
    };
    let content_store = open();
    let ingest = Ingest::new(content_store.clone(), 1);
    let mut files = Vec::new();
    for profile in [Profile::Grid, Profile::Content, Profile::Raw] {
        let file = content(100 + profile as u64, 5 * MIB + 1);
        files.push((store_file(&ingest, profile, &file, 2 * MIB).await, file));
    }
    let finished = ingest.finish(&[]).await.expect("finishes");
    let index = finished.index.clone();
    ingest.committed(finished);
    let elsewhere = open();
    let loaded = elsewhere
        .load_index(&IndexSources::of_objects(&index), &HashSet::new())
        .await;
    loaded.expect("the index loads");
    for (stored, file) in &files {
        assert!(read_file(&elsewhere, stored).await.expect("reads") == *file);
    }
}
