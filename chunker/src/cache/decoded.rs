//! Decoded frames on disk, for readers of single pages.
//!
//! A database reads its pages in any order. To decode a whole frame for one of them takes ten times
//! as long as to read the page where its frame lies decoded.
//!
//! Owns which frames lie there, the order of their eviction, and the bounds of disk and memory. Does
//! not own how bytes lie on disk, sealed in a file without a name (`swap`), nor their verification
//! against an id (`hydrate`). Nothing here is an error of a read: what is not kept is decoded again.
//!
//! A frame is kept when it is decoded for the second time. So what is read once is not written.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lru::LruCache;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::disk::is_passing;
use crate::pack::PackName;
use crate::swap::{SwapFile, SwapUse, SwappedPart, places_of, read_in_memory, read_now};

/// The pack and number of a frame.
type FrameName = (PackName, u16);

/// The bytes that are sealed together. A page is read with all of its part.
const PART_BYTES: usize = 32 << 10;

/// The number of frames that are remembered because they were decoded once.
const SEEN: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("more than zero");

/// Memory of a remembered frame, in bytes: its name, and its place in the list.
const SEEN_MEMORY: u64 = 100;

/// Memory of a kept frame, in bytes, without its parts and the ends of its blobs.
const FRAME_MEMORY: u64 = 200;

/// Memory of a part, in bytes: its place, nonce and tag.
const PART_MEMORY: u64 = 112;

/// With less memory nothing is kept, in bytes.
const LEAST_MEMORY: u64 = 2 * SEEN.get() as u64 * SEEN_MEMORY;

/// The largest frame that is kept is one of so many parts of the limit.
const LEAST_FRAMES: u64 = 8;

/// Bytes that the file may have beyond the limit. A frame for which room was made finds some.
const SPARE_BYTES: u64 = 1 << 20;

/// The number of blobs that are read from here for each frame that is written in the place of
/// another. So as much is read as is written, at least.
const HITS_PER_EVICTION: u32 = 8;

/// Of the frames for which no hits have paid, one in so many is kept all the same. So a file that is
/// full of what is not read any more changes to what is read now.
const UNPAID_PER_EVICTION: u32 = 64;

/// The number of evictions that earlier hits pay for, at most.
const EVICTIONS_SAVED_UP: u32 = 64;

/// Who finds a full disk so soon after it was given back something has found it before that.
const MOMENT: Duration = Duration::from_secs(1);

/// How long passes before the lock is tried again, and before the disk is divided again while frames
/// are read.
const PAUSE: Duration = Duration::from_secs(10);

/// The number of reads that wait for the disk at the same time. Others decode their frames.
const READS: usize = 32;

/// The most parts that a thread reads, opens and verifies which may not wait: about 50 µs.
const PARTS_AT_ONCE: usize = 4;

/// The file by which the processes of one cache directory agree who of them keeps decoded frames.
const LOCK_FILE: &str = "decoded.lock";

/// The name of the file for a moment, on filesystems that make none without a name.
const FILE: &str = "decoded";

/// Decoded frames in a file that ends with the process.
#[derive(Debug)]
pub(crate) struct DecodedFrames {
    directory: PathBuf,
    memory_limit: u64,
    state: Mutex<DecodedState>,
    /// One frame is written at a time. So a slow disk holds up no reader, and little memory.
    writes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    /// When the disk was last given back what it had because it was full. Held meanwhile, so that all
    /// who found the disk full know of it.
    given: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct DecodedState {
    file: Option<SwapFile>,
    /// The lock of the directory, once this process has it.
    lock: Option<Arc<File>>,
    /// True once the disk has failed or was full: then it gets no more.
    is_given_up: bool,
    frames: LruCache<FrameName, Arc<DecodedFrame>>,
    /// Memory of `frames`, in bytes.
    memory: u64,
    seen: LruCache<FrameName, ()>,
    /// Hits that no eviction has used up.
    hits: u32,
    /// True if the file or memory is full, and there were too few hits for an eviction.
    waits_for_hits: bool,
    /// Frames that were not kept because of that.
    unpaid: u32,
    /// When another process was found to have the lock, or too many files were open.
    refused: Option<Instant>,
    /// When the disk was last divided.
    divided: Option<Instant>,
}

/// A frame on disk.
#[derive(Debug)]
struct DecodedFrame {
    parts: Vec<SwappedPart>,
    /// The end of each blob, in bytes.
    ends: Box<[u32]>,
}

/// Blobs of one frame that lie decoded on disk.
#[derive(Debug)]
pub(crate) struct DecodedBlobs {
    file: SwapFile,
    /// The parts of all blobs, in order.
    parts: Vec<SwappedPart>,
    /// The number of parts of each blob.
    counts: Vec<usize>,
}

/// What was forgotten.
#[derive(Debug)]
struct Forgotten {
    _frames: LruCache<FrameName, Arc<DecodedFrame>>,
    file: SwapFile,
}

impl Forgotten {
    /// Gives the disk back what the file had. It waits for the disk.
    fn end(self) {
        self.file.empty();
    }

    /// Same, on a thread that may wait.
    fn end_elsewhere(self) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || self.end())),
            Err(_) => self.end(),
        }
    }
}

impl DecodedFrame {
    fn memory(&self) -> u64 {
        let parts = self.parts.len() as u64;
        FRAME_MEMORY + parts * PART_MEMORY + size_of_val(&*self.ends) as u64
    }

    /// Returns the parts of a blob. An empty blob has none.
    fn blob(&self, slot: u16) -> Option<Vec<SwappedPart>> {
        let slot = usize::from(slot);
        let end = u64::from(*self.ends.get(slot)?);
        let start = match slot {
            0 => 0,
            _ => u64::from(self.ends[slot - 1]),
        };
        let mut parts = Vec::new();
        let mut behind = 0;
        for part in &self.parts {
            let before = behind;
            behind += part.len();
            let range = start.max(before)..end.min(behind);
            if range.start < range.end {
                parts.push(part.clone().slice(range.start - before..range.end - before));
            }
        }
        Some(parts)
    }
}

impl DecodedBlobs {
    /// Returns the memory that reading takes, in bytes, at most.
    pub(crate) fn memory(&self) -> u64 {
        places_of(&self.parts) as u64 * PART_BYTES as u64
    }

    /// Reads the blobs, in order; `None` if the disk fails: then `frames`, where they are from, get
    /// no more. It waits for the disk.
    pub(crate) fn read(&self, frames: &DecodedFrames) -> Option<Vec<Bytes>> {
        match read_now(&self.parts) {
            Ok(parts) => Some(self.blobs(parts)),
            Err(_) => {
                frames.failed(&self.file);
                None
            }
        }
    }

    /// Same, without waiting: `None` also if they are many, or the kernel does not have all of them
    /// in memory.
    pub(crate) fn read_in_memory(&self) -> Option<Vec<Bytes>> {
        match places_of(&self.parts) <= PARTS_AT_ONCE {
            true => Some(self.blobs(read_in_memory(&self.parts)?)),
            false => None,
        }
    }

    /// Makes blobs of parts.
    fn blobs(&self, parts: Vec<Bytes>) -> Vec<Bytes> {
        let mut read = parts.into_iter();
        let blob = |count: &usize| match count {
            1 => read.next().unwrap_or_default(),
            count => {
                let mut whole = BytesMut::new();
                read.by_ref()
                    .take(*count)
                    .for_each(|part| whole.extend_from_slice(&part));
                whole.freeze()
            }
        };
        self.counts.iter().map(blob).collect()
    }
}

impl DecodedState {
    fn uses(&self, file: &SwapFile) -> bool {
        self.file.as_ref().is_some_and(|now| now.is(file))
    }

    /// Forgets all frames and the file.
    fn forget(&mut self) -> Option<Forgotten> {
        self.memory = 0;
        self.hits = 0;
        self.waits_for_hits = false;
        let frames = std::mem::replace(&mut self.frames, LruCache::unbounded());
        self.file.take().map(|file| Forgotten {
            _frames: frames,
            file,
        })
    }
}

impl DecodedFrames {
    /// Returns no frames. Their file will be in `directory`, and what is known of them takes at most
    /// `memory_limit` bytes of memory. `None` if that is too little.
    pub(crate) fn new(directory: PathBuf, memory_limit: u64) -> Option<Self> {
        (memory_limit >= LEAST_MEMORY).then(|| Self {
            directory,
            memory_limit,
            state: Mutex::new(DecodedState {
                file: None,
                lock: None,
                is_given_up: false,
                frames: LruCache::unbounded(),
                memory: 0,
                seen: LruCache::new(SEEN),
                hits: 0,
                waits_for_hits: false,
                unpaid: 0,
                refused: None,
                divided: None,
            }),
            writes: Arc::new(Semaphore::new(1)),
            reads: Arc::new(Semaphore::new(READS)),
            given: Mutex::new(None),
        })
    }

    /// Returns true if the disk should be divided again, since other processes may have taken some
    /// of it: at most once in [`PAUSE`].
    pub(crate) fn is_to_be_divided(&self) -> bool {
        let mut state = self.state.lock();
        let is_due = state.divided.is_none_or(|at| at.elapsed() >= PAUSE);
        if is_due {
            state.divided = Some(Instant::now());
        }
        is_due
    }

    /// Returns true while no frame is being written.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.writes.available_permits() == 1
    }

    /// Returns the bytes that the file has on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.file.as_ref().map_or(0, SwapFile::end_bytes)
    }

    /// Returns the memory that is in use, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        state.memory + state.seen.len() as u64 * SEEN_MEMORY
    }

    /// Returns blobs of a frame, by their slots, if the frame lies here, with the right to read
    /// them. `None` as well while very many others are being read.
    pub(crate) fn find(
        &self,
        name: &FrameName,
        slots: &[u16],
    ) -> Option<(DecodedBlobs, OwnedSemaphorePermit)> {
        let (frame, file) = {
            let mut state = self.state.lock();
            let frame = state.frames.get(name).cloned()?;
            (frame, state.file.clone()?)
        };
        let (mut parts, mut counts) = (Vec::new(), Vec::new());
        for slot in slots {
            let blob = frame.blob(*slot)?;
            counts.push(blob.len());
            parts.extend(blob);
        }
        let right = Arc::clone(&self.reads).try_acquire_owned().ok()?;
        let mut state = self.state.lock();
        state.hits = (state.hits + slots.len() as u32).min(EVICTIONS_SAVED_UP * HITS_PER_EVICTION);
        let blobs = DecodedBlobs {
            file,
            parts,
            counts,
        };
        Some((blobs, right))
    }

    /// Notes that a frame was decoded for a reader. Returns the right to [`DecodedFrames::keep`] it
    /// if that is worth its time: the frame was decoded before and does not lie here, and no other
    /// is being written.
    pub(crate) fn note_decoded(&self, name: FrameName) -> Option<OwnedSemaphorePermit> {
        let mut state = self.state.lock();
        if state.is_given_up || state.frames.contains(&name) {
            return None;
        }
        state.seen.put(name, ())?;
        if state.refused.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        if state.waits_for_hits && state.hits < HITS_PER_EVICTION {
            state.unpaid += 1;
            if state.unpaid < UNPAID_PER_EVICTION {
                return None;
            }
            state.unpaid = 0;
            state.hits += HITS_PER_EVICTION;
        }
        Arc::clone(&self.writes).try_acquire_owned().ok()
    }

    /// Writes a frame: the bytes of its blobs, and where each of them ends. The file has at most
    /// `limit_bytes` bytes when it is made, and about a mebibyte.
    ///
    /// Cancel safety: dropped, it lets the disk go on, and does not keep the frame.
    pub(crate) async fn keep(
        &self,
        _right: OwnedSemaphorePermit,
        name: FrameName,
        (contents, ends): (Bytes, &[u32]),
        limit_bytes: u64,
    ) {
        let file = match self.file(limit_bytes).await {
            Ok(Some(file)) => file,
            Ok(None) => return,
            Err(error) if is_passing(&error) => {
                self.state.lock().refused = Some(Instant::now());
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "no frames are kept decoded");
                return self.give_up();
            }
        };
        let limit_bytes = file.limit_bytes() - SPARE_BYTES;
        let length = contents.len().next_multiple_of(PART_BYTES) as u64;
        if length == 0 || length > limit_bytes / LEAST_FRAMES {
            return;
        }
        if !self.make_room(&file, limit_bytes - length) {
            return;
        }
        let starts = (0..contents.len()).step_by(PART_BYTES);
        let part = |start| contents.slice(start..contents.len().min(start + PART_BYTES));
        let put = file.put(starts.map(part).collect()).await;
        let is_whole = |placed: &Vec<Vec<_>>| placed.iter().all(|places| !places.is_empty());
        let Some(placed) = put.ok().filter(is_whole) else {
            // The file had room, so its disk has none, or has failed. Others need the disk more.
            return self.failed(&file);
        };
        let parts = placed.into_iter().flatten().map(SwappedPart::whole);
        let frame = DecodedFrame {
            parts: parts.collect(),
            ends: ends.into(),
        };
        let mut state = self.state.lock();
        if state.uses(&file) {
            state.memory += frame.memory();
            if let Some((_, before)) = state.frames.push(name, Arc::new(frame)) {
                state.memory -= before.memory();
            }
            state.seen.pop(&name);
        }
    }

    /// Forgets everything if the file has more than `limit_bytes` bytes: it is not made shorter
    /// while places at its end are taken.
    pub(crate) fn limit_to(&self, limit_bytes: u64) {
        let forgotten = {
            let mut state = self.state.lock();
            let file = state.file.as_ref();
            match file.is_some_and(|file| file.end_bytes() > limit_bytes) {
                true => state.forget(),
                false => None,
            }
        };
        forgotten.into_iter().for_each(Forgotten::end_elsewhere);
    }

    /// Forgets everything, and gives the disk back what it had. Returns false if that was nothing, and
    /// nothing was given back a moment ago. It waits for the disk.
    pub(crate) fn give_way(&self) -> bool {
        let mut given = self.given.lock();
        let forgotten = self.state.lock().forget();
        if let Some(forgotten) = forgotten {
            forgotten.end();
            *given = Some(Instant::now());
        }
        given.is_some_and(|at| at.elapsed() < MOMENT)
    }

    /// Keeps nothing from now on, and gives the disk back what it has.
    fn give_up(&self) {
        let forgotten = {
            let mut state = self.state.lock();
            state.is_given_up = true;
            state.seen.clear();
            state.lock = None;
            state.forget()
        };
        forgotten.into_iter().for_each(Forgotten::end_elsewhere);
    }

    /// Handles a failure of a file. One that was forgotten meanwhile has failed for that.
    fn failed(&self, file: &SwapFile) {
        let is_in_use = self.state.lock().uses(file);
        if is_in_use {
            self.give_up();
        }
    }

    /// Returns the file. Makes it if there is none; `None` if nothing is to be kept, or another
    /// process of this directory keeps frames.
    async fn file(&self, limit_bytes: u64) -> io::Result<Option<SwapFile>> {
        let lock = {
            let state = self.state.lock();
            if state.file.is_some() || state.is_given_up {
                return Ok(state.file.clone());
            }
            state.lock.clone()
        };
        let directory = self.directory.clone();
        let make = move || unnamed(&directory, lock);
        let made = tokio::task::spawn_blocking(make).await;
        let Some((file, lock)) = made.map_err(io::Error::other)?? else {
            self.state.lock().refused = Some(Instant::now());
            return Ok(None);
        };
        let file = SwapFile::used_for(SwapUse::Decoded, file, limit_bytes + SPARE_BYTES)?;
        let mut state = self.state.lock();
        if state.is_given_up {
            return Ok(None);
        }
        state.lock = Some(lock);
        state.file = Some(file.clone());
        Ok(Some(file))
    }

    /// Forgets frames until at most `left_bytes` bytes of the file are taken, and memory has room for
    /// one more. Returns false if that is not reached: readers use what was forgotten, or hits were
    /// too few to pay for it.
    fn make_room(&self, file: &SwapFile, left_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let memory_limit = self.memory_limit - SEEN.get() as u64 * SEEN_MEMORY;
        let is_full =
            |state: &DecodedState| file.used_bytes() > left_bytes || state.memory >= memory_limit;
        if !is_full(&state) {
            return true;
        }
        while is_full(&state) {
            let Some(hits) = state.hits.checked_sub(HITS_PER_EVICTION) else {
                state.waits_for_hits = true;
                return false;
            };
            state.hits = hits;
            let Some((_, frame)) = state.frames.pop_lru() else {
                state.waits_for_hits = false;
                return false;
            };
            state.memory -= frame.memory();
        }
        state.waits_for_hits = false;
        true
    }
}

/// Makes a file without a name. Takes the lock of its directory if it is not had yet; `None` if
/// another process has it.
fn unnamed(directory: &Path, lock: Option<Arc<File>>) -> io::Result<Option<(File, Arc<File>)>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let lock = match lock {
        Some(lock) => lock,
        None => {
            let lock =
                (options.clone().create(true).truncate(false)).open(directory.join(LOCK_FILE))?;
            match lock.try_lock() {
                Ok(()) => Arc::new(lock),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    };
    let file = match (options.clone().custom_flags(libc::O_TMPFILE)).open(directory) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            // Under the lock, no other process has a file of this name.
            let path = directory.join(FILE);
            let file = options.create(true).truncate(true).open(&path)?;
            fs::remove_file(path)?;
            file
        }
        made => made?,
    };
    Ok(Some((file, lock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 4 << 20;
    const FRAME_BYTES: u32 = 128 << 10;
    const PAGES: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    fn name(number: u16) -> FrameName {
        let pack = PackName {
            session: 7,
            sequence: 1,
            random: 9,
        };
        (pack, number)
    }

    fn frames_in(directory: &Path) -> DecodedFrames {
        DecodedFrames::new(directory.to_owned(), 16 << 20).expect("memory is enough")
    }

    /// Keeps a frame of eight pages that all have this byte, after it was decoded twice.
    async fn keep(frames: &DecodedFrames, number: u16, limit: u64) {
        keep_of(FRAME_BYTES, frames, number, limit).await;
    }

    async fn keep_of(length: u32, frames: &DecodedFrames, number: u16, limit: u64) {
        assert!(frames.note_decoded(name(number)).is_none(), "{number}");
        if let Some(right) = frames.note_decoded(name(number)) {
            let contents = Bytes::from(vec![number as u8; length as usize]);
            let ends: Vec<u32> = (1..=8).map(|page| page * length / 8).collect();
            let frame = (contents, &ends[..]);
            frames.keep(right, name(number), frame, limit).await;
        }
    }

    fn has(frames: &DecodedFrames, number: u16) -> bool {
        frames.state.lock().frames.contains(&name(number))
    }

    fn kept(frames: &DecodedFrames) -> usize {
        frames.state.lock().frames.len()
    }

    #[tokio::test]
    async fn blobs_are_read_by_their_slots() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(directory.path());
        frames.note_decoded(name(1));
        let right = frames.note_decoded(name(1)).expect("its turn");
        let contents: Vec<u8> = (0..100_000_u32).map(|at| (at / 1000) as u8).collect();
        let ends = [10_000, 10_000, 90_000, 100_000];
        let frame = (Bytes::from(contents.clone()), &ends[..]);
        frames.keep(right, name(1), frame, LIMIT).await;
        let read = |slots: &[u16]| {
            let (blobs, _right) = frames.find(&name(1), slots)?;
            let read = blobs.read(&frames)?;
            // Not every filesystem tells what is in memory.
            if let Some(at_once) = blobs.read_in_memory() {
                assert_eq!(at_once, read);
            }
            Some(read)
        };
        let blobs = read(&[0, 1, 2, 3]).expect("reads");
        let expected = [0..10_000, 0..0, 10_000..90_000, 90_000..100_000];
        for (blob, range) in blobs.iter().zip(expected) {
            assert_eq!(*blob, contents[range]);
        }
        assert_eq!(read(&[3]).expect("reads"), [&contents[90_000..]]);
        assert_eq!(read(&[0, 4]), None);
        assert!(frames.note_decoded(name(1)).is_none(), "it lies there");
    }

    #[tokio::test]
    async fn the_limit_of_the_disk_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(directory.path());
        for number in 0..100 {
            keep(&frames, number, LIMIT).await;
            // The first is used again and again, and stays.
            assert!(frames.find(&name(0), &PAGES).is_some(), "{number}");
        }
        assert!(has(&frames, 99) && !has(&frames, 1));
        assert_eq!(kept(&frames) as u64, LIMIT / u64::from(FRAME_BYTES));
        assert!(frames.disk_bytes() <= LIMIT + SPARE_BYTES);
        frames.limit_to(LIMIT + SPARE_BYTES);
        assert!(kept(&frames) > 0);
        frames.limit_to(LIMIT / 2);
        assert_eq!((kept(&frames), frames.disk_bytes()), (0, 0));
        keep(&frames, 100, LIMIT).await;
        assert!(has(&frames, 100), "in a new file");
        assert!(frames.give_way());
        assert!(frames.give_way(), "another found the disk full as well");
        *frames.given.lock() = Instant::now().checked_sub(MOMENT);
        assert!(!frames.give_way());
        assert_eq!((kept(&frames), frames.disk_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn frames_that_are_not_read_replace_no_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(directory.path());
        let full = (LIMIT / u64::from(FRAME_BYTES)) as u16;
        for number in 0..full + 50 {
            keep(&frames, number, LIMIT).await;
        }
        assert!(has(&frames, 0) && !has(&frames, full));
        for _ in 0..2 {
            assert!(frames.find(&name(1), &PAGES).is_some());
        }
        for number in full + 50..full + 60 {
            keep(&frames, number, LIMIT).await;
        }
        // Sixteen hits have paid for two.
        assert!(has(&frames, full + 51) && !has(&frames, full + 52));
    }

    #[tokio::test]
    async fn what_is_not_read_any_more_gives_way_in_the_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(directory.path());
        let full = (LIMIT / u64::from(FRAME_BYTES)) as u16;
        for number in 0..full + 3 * UNPAID_PER_EVICTION as u16 {
            keep(&frames, number, LIMIT).await;
        }
        let news = (0..full).filter(|number| !has(&frames, *number)).count();
        assert!((1..=3).contains(&news), "{news}");
    }

    #[tokio::test]
    async fn the_limit_of_memory_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = DecodedFrames::new(directory.path().to_owned(), LEAST_MEMORY);
        let frames = frames.expect("memory is enough");
        let most = LEAST_MEMORY - SEEN.get() as u64 * SEEN_MEMORY;
        for number in 0..6_000 {
            keep_of(4096, &frames, number, 1 << 30).await;
            frames.find(&name(number), &PAGES);
        }
        let memory = frames.state.lock().memory;
        assert!((most / 2..most + 1_000).contains(&memory), "{memory}");
        assert!(has(&frames, 5_999) && !has(&frames, 0));
        assert!(DecodedFrames::new(directory.path().to_owned(), LEAST_MEMORY - 1).is_none());
    }

    #[tokio::test]
    async fn without_a_directory_nothing_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(&directory.path().join("none"));
        keep(&frames, 1, LIMIT).await;
        assert!(!has(&frames, 1));
        frames.note_decoded(name(2));
        assert!(frames.note_decoded(name(2)).is_none(), "it was given up");
    }

    #[tokio::test]
    async fn one_at_a_time_keeps_frames_of_a_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, other) = (frames_in(directory.path()), frames_in(directory.path()));
        keep(&one, 1, LIMIT).await;
        keep(&other, 1, LIMIT).await;
        assert!(has(&one, 1) && !has(&other, 1));
        one.give_up();
        keep(&other, 2, LIMIT).await;
        assert!(!has(&other, 2), "it tries again later");
        other.state.lock().refused = None;
        keep(&other, 3, LIMIT).await;
        assert!(has(&other, 3));
    }

    #[tokio::test]
    async fn a_frame_that_takes_much_of_the_limit_is_not_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        for (frames_of_limit, is_kept) in [(LEAST_FRAMES - 1, false), (LEAST_FRAMES, true)] {
            let frames = frames_in(directory.path());
            keep(&frames, 1, u64::from(FRAME_BYTES) * frames_of_limit).await;
            assert_eq!(has(&frames, 1), is_kept);
        }
    }

    #[tokio::test]
    async fn who_reads_what_gave_way_meanwhile_does_not_end_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let frames = frames_in(directory.path());
        keep(&frames, 1, LIMIT).await;
        let (blobs, _right) = frames.find(&name(1), &PAGES).expect("it lies there");
        assert!(frames.give_way());
        assert_eq!((blobs.read_in_memory(), blobs.read(&frames)), (None, None));
        keep(&frames, 2, LIMIT).await;
        assert!(has(&frames, 2), "in a new file");
        let file = frames.state.lock().file.clone().expect("a file");
        let (blobs, _right) = frames.find(&name(2), &PAGES).expect("it lies there");
        file.empty();
        assert_eq!(blobs.read(&frames), None);
        assert!(!has(&frames, 2), "it is not tried again");
        keep(&frames, 3, LIMIT).await;
        assert!(!has(&frames, 3), "a disk that loses bytes gets no more");
    }
}
