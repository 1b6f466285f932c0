//! Frames that lie decoded on disk: when pages are read from there, and that they are not trusted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

/// A page of the stored file, in bytes.
const PAGE: usize = 16 << 10;

/// A file of pages in a repository, of which memory has room for a part only.
struct Pages {
    world: World,
    file: Bytes,
    stored: StoredRun,
    _directory: tempfile::TempDir,
}

impl Pages {
    async fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut world = World::new(seed, true);
        world.config.memory.cache_bytes = 32 << 20;
        world.config.cache_bytes = 80 << 20;
        let file = noise(seed, 48 * MIB);
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let stored = store_file(&ingest, Profile::Grid, &file, MIB).await;
        world.commit(&ingest).await;
        // What is uploaded from now on would be in the cache.
        world.cache_dir = Some(directory.path().to_owned());
        Self {
            world,
            file,
            stored,
            _directory: directory,
        }
    }

    /// Reads all pages, one after the other.
    async fn read(&self, content_store: &ContentStore) {
        let pieces = pieces(&self.stored);
        let mut rest = self.file.clone();
        for piece in pieces {
            for offset in (0..piece.length).step_by(PAGE) {
                let page = Piece {
                    offset,
                    length: PAGE as u32,
                    ..piece
                };
                let read = content_store.read(&[page]).await.expect("reads");
                assert_eq!(read[0].concat(), rest.split_to(PAGE));
            }
        }
        assert!(rest.is_empty());
    }

    /// Reads all pages again and again, until some of them were read from decoded frames.
    async fn warm(&self) -> ContentStore {
        let content_store = self.world.loaded().await;
        let begun = Instant::now();
        while content_store.metrics().decoded_hits < 100 {
            assert!(begun.elapsed() < Duration::from_secs(60), "never decoded");
            self.read(&content_store).await;
        }
        let reader = &content_store.shared().reader;
        let decoded = reader.decoded.as_ref().expect("there is a cache");
        while !decoded.is_idle() {
            assert!(begun.elapsed() < Duration::from_secs(120), "never idle");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        content_store
    }

    /// Returns the open files without a name.
    fn unnamed(&self) -> Vec<std::path::PathBuf> {
        let directory = self.world.cache_dir.as_deref().expect("a directory");
        let is_one = |path: &Path| {
            let target = fs::read_link(path).unwrap_or_default();
            target.starts_with(directory) && target.to_string_lossy().ends_with("(deleted)")
        };
        let open = fs::read_dir("/proc/self/fd").expect("listed").flatten();
        open.map(|entry| entry.path())
            .filter(|path| is_one(path))
            .collect()
    }
}

#[tokio::test]
async fn what_is_read_once_is_not_kept_decoded() {
    let pages = Pages::new(70).await;
    let content_store = pages.world.loaded().await;
    pages.read(&content_store).await;
    assert!(content_store.metrics().cache_misses > 0, "from the bucket");
    pages.read(&content_store).await;
    assert!(content_store.metrics().disk_hits > 0, "from the cache");
    assert_eq!(pages.unnamed(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn pages_that_are_read_again_are_not_decoded_again() {
    let pages = Pages::new(71).await;
    let fresh = pages.world.loaded().await;
    let (all, none) = fresh.shared().reader.frame_memory();
    assert_eq!(none, 0);
    let content_store = pages.warm().await;
    let reader = &content_store.shared().reader;
    reader.share_disk();
    let (frames, known) = reader.frame_memory();
    assert!(known > 10_000 && frames + known == all, "{frames}, {known}");
    let before = content_store.metrics();
    let begun = Instant::now();
    // A frame is kept if it is decoded while no other is written.
    while content_store.metrics().decoded_hits - before.decoded_hits < 1000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "too few");
        pages.read(&content_store).await;
    }
    let metrics = content_store.metrics();
    assert_eq!(metrics.get_requests, before.get_requests);
    assert_eq!(pages.unnamed().len(), 1);
    assert!((1 << 20..17 << 20).contains(&metrics.decoded_bytes));
    assert!(metrics.disk_cache_bytes + metrics.decoded_bytes <= 80 << 20);
}

#[tokio::test]
async fn decoded_frames_leave_the_disk_to_pins_and_sealed_ones() {
    let pages = Pages::new(75).await;
    let content_store = pages.warm().await;
    let reader = &content_store.shared().reader;
    let disk = reader.disk.as_ref().expect("a cache");
    reader.share_disk();
    let (sealed, decoded) = (disk.used(), content_store.metrics().decoded_bytes);
    disk.limit_to(sealed + decoded);
    reader.share_disk();
    assert_eq!(content_store.metrics().decoded_bytes, decoded);
    disk.limit_to(sealed + decoded - 1);
    reader.share_disk();
    assert_eq!(content_store.metrics().decoded_bytes, 0);
    assert_eq!(disk.used(), sealed, "they stay");
    pages.read(&content_store).await;
}

#[tokio::test]
async fn a_decoded_frame_that_the_disk_has_changed_is_not_read() {
    let pages = Pages::new(72).await;
    let content_store = pages.warm().await;
    let files = pages.unnamed();
    let file = File::options().write(true).open(&files[0]).expect("opens");
    let length = file.metadata().expect("has a length").len();
    let junk = noise(73, PAGE);
    for offset in (0..length).step_by(PAGE) {
        file.write_all_at(&junk, offset).expect("is written");
    }
    drop(file);
    let before = content_store.metrics().decoded_hits;
    pages.read(&content_store).await;
    pages.read(&content_store).await;
    pages.read(&content_store).await;
    assert_eq!(content_store.metrics().decoded_hits, before);
    assert_eq!(pages.unnamed(), Vec::<PathBuf>::new(), "it is closed");
}

#[tokio::test]
async fn a_decoded_chunk_is_verified_against_its_id() {
    let pages = Pages::new(74).await;
    let content_store = pages.warm().await;
    let reader = &content_store.shared().reader;
    let (mut found, other) = (0, Id([7; 32]));
    for page in pages.file.chunks(PAGE) {
        let id = pages.world.keyring.id(Kind::Chunk, page);
        let slots = content_store.slots_of(&id.prefix()).await.expect("found");
        let (pack, frame, slot) = slots[0];
        let wanted = [(id, slot), (other, slot)].into_iter();
        if let Some(chunks) = reader.decoded_chunks(&(pack, frame), wanted) {
            let read = reader.read_decoded(chunks, found % 2 == 0).await;
            assert_eq!((read[0].as_deref(), &read[1]), (Some(page), &None));
            found += 1;
        }
    }
    assert!(found > 0, "some lie decoded");
}
