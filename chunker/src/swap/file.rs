//! A swap file: its places, its key, and bytes on their way there and back.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::task::JoinError;
use zeroize::Zeroizing;

use super::error::SwapError;
use super::places::{Place, Places};

/// The unit of the time that a disk may take. It is counted, because a process that was stopped
/// meanwhile must not take its disk for one that hangs.
const TICK: Duration = Duration::from_secs(1);

/// How long a disk may go without an answer before it counts as failed, in ticks.
const SILENT_TICKS_MAX: u32 = 30;

/// How long a put may take, in ticks. What it cannot write is stored in time elsewhere.
pub(super) const PUT_TICKS_MAX: u32 = 120;

/// Length of a tag, in bytes.
const TAG_BYTES: usize = 16;

/// What the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwapUse {
    /// Changed data, of which there is no other copy.
    Changes,
    /// Decoded frames, which can be decoded again.
    Decoded,
}

impl SwapUse {
    /// Returns what is done with the bytes.
    fn done(self) -> &'static str {
        match self {
            Self::Changes => "swapped out",
            Self::Decoded => "kept decoded",
        }
    }
}

/// A swap file. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SwapFile(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) file: File,
    key: LessSafeKey,
    state: Mutex<State>,
    limit_bytes: u64,
    used_for: SwapUse,
    has_failed: AtomicBool,
    /// True if the filesystem does not tell what the kernel has in memory.
    pub(super) is_silent: AtomicBool,
}

struct State {
    places: Places,
    /// The number of the next nonce. No number is used twice under a key.
    nonce: u64,
}

/// Bytes in a swap file. Their place is free again once they are dropped.
pub struct Swapped {
    pub(super) shared: Arc<Shared>,
    pub(super) place: Place,
    pub(super) length: usize,
    pub(super) nonce: u64,
    tag: [u8; TAG_BYTES],
}

impl SwapFile {
    /// Makes a swap file for changes of an empty file without a name. It may grow to `limit_bytes`.
    ///
    /// # Errors
    /// The machine gives no random numbers.
    pub fn new(file: File, limit_bytes: u64) -> io::Result<Self> {
        Self::used_for(SwapUse::Changes, file, limit_bytes)
    }

    /// Same, for bytes of another use.
    ///
    /// # Errors
    /// The machine gives no random numbers.
    pub(crate) fn used_for(used_for: SwapUse, file: File, limit_bytes: u64) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            file,
            key: random_key()?,
            state: Mutex::new(State {
                places: Places::default(),
                nonce: 0,
            }),
            limit_bytes,
            used_for,
            has_failed: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        })))
    }

    /// Writes several buffers, and returns the places of each, in order: one place for 64 KiB, and
    /// more if only shorter ones are free. A buffer that finds no room in the file or on its disk has
    /// none, and so has an empty one. Once the disk has failed, none has.
    ///
    /// Cancel safety: dropped, it lets the disk go on; then the places are free again.
    ///
    /// # Errors
    /// [`SwapError::Disk`] if the disk fails, does not answer for 30 s, or takes two minutes. What
    /// was written before is then not kept.
    pub async fn put(&self, buffers: Vec<Bytes>) -> Result<Vec<Vec<Swapped>>, SwapError> {
        let write = move |shared: &Arc<Shared>, answers: &AtomicU64| {
            let mut room = Vec::new();
            let mut is_full = false;
            // It may have been given up since the buffer before.
            let put = buffers
                .iter()
                .map(|bytes| match is_full || shared.has_failed() {
                    true => Ok(Vec::new()),
                    false => shared.put(bytes, &mut room, answers).or_else(|error| {
                        is_full = error.is_full_disk();
                        match is_full {
                            true => {
                                let (done, cause) = (shared.used_for.done(), error.cause());
                                tracing::debug!("nothing is {done} now: {cause}");
                                Ok(Vec::new())
                            }
                            false => Err(error),
                        }
                    }),
                });
            put.collect()
        };
        self.0.patiently(PUT_TICKS_MAX, write).await
    }

    /// Returns the bytes that are taken, in whole places.
    pub fn used_bytes(&self) -> u64 {
        self.0.state.lock().places.used()
    }

    /// Returns the length of the file, in bytes. Places in it may be free.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.0.state.lock().places.end()
    }

    /// Returns true if both are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Gives the disk back all that the file has, although readers may still have places in it: they
    /// cannot read these any more. It waits for the disk.
    pub(crate) fn empty(&self) {
        self.0.has_failed.store(true, Ordering::Relaxed);
        let emptied = self.0.file.set_len(0);
        emptied.unwrap_or_else(|error| tracing::debug!(%error, "a swap file keeps its length"));
    }

    /// Returns the most bytes that the file may have.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes
    }

    /// Returns whether its disk has failed, otherwise than by being full, has not answered for 30 s,
    /// or has taken two minutes for a put.
    pub fn has_failed(&self) -> bool {
        self.0.has_failed()
    }
}

impl Shared {
    fn put(
        self: &Arc<Self>,
        bytes: &[u8],
        room: &mut Vec<u8>,
        answers: &AtomicU64,
    ) -> Result<Vec<Swapped>, SwapError> {
        let mut parts = Vec::new();
        let mut rest = bytes;
        let used = self.state.lock().places.used();
        if used + bytes.len() as u64 > self.limit_bytes {
            return Ok(parts);
        }
        while !rest.is_empty() {
            let Some((place, nonce)) = self.take(rest.len()) else {
                return Ok(Vec::new());
            };
            let (part, behind) = rest.split_at(rest.len().min(place.length() as usize));
            rest = behind;
            let mut swapped = Swapped {
                shared: self.clone(),
                place,
                length: part.len(),
                nonce,
                tag: [0; TAG_BYTES],
            };
            room.clear();
            room.extend_from_slice(part);
            let sealed = (self.key).seal_in_place_separate_tag(number(nonce), Aad::empty(), room);
            let tag = sealed.map_err(|_| self.failed(SwapError::Damaged))?;
            swapped.tag.copy_from_slice(tag.as_ref());
            let written = self.file.write_all_at(room, place.offset());
            written.map_err(|error| self.failed(SwapError::disk(error)))?;
            answers.fetch_add(1, Ordering::Relaxed);
            parts.push(swapped);
        }
        Ok(parts)
    }

    fn take(&self, length: usize) -> Option<(Place, u64)> {
        let mut state = self.state.lock();
        let place = state.places.take(length as u64, self.limit_bytes)?;
        let nonce = state.nonce;
        state.nonce += 1;
        Some((place, nonce))
    }

    /// Reads one place.
    pub(super) fn read(&self, swapped: &Swapped) -> Result<Bytes, SwapError> {
        let mut room = vec![0; swapped.length + TAG_BYTES];
        let sealed = &mut room[..swapped.length];
        let read = self.file.read_exact_at(sealed, swapped.place.offset());
        read.map_err(|error| self.failed(SwapError::disk(error)))?;
        self.open(swapped, room)
    }

    /// Reads one place if the kernel has it in memory; `None` if it would have to wait for the disk,
    /// or the disk fails.
    pub(super) fn read_in_memory(&self, swapped: &Swapped) -> Option<Bytes> {
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let mut room = vec![0; swapped.length + TAG_BYTES];
        let sealed = IoSliceMut::new(&mut room[..swapped.length]);
        let (offset, flags) = (swapped.place.offset(), ReadWriteFlags::NOWAIT);
        match rustix::io::preadv2(&self.file, &mut [sealed], offset, flags) {
            Ok(read) if read == swapped.length => self.open(swapped, room).ok(),
            Err(Errno::OPNOTSUPP) => {
                self.is_silent.store(true, Ordering::Relaxed);
                None
            }
            // It would have to wait, or the file has ended.
            Ok(_) | Err(_) => None,
        }
    }

    /// Opens the bytes of one place, which has room for the tag behind them.
    fn open(&self, swapped: &Swapped, mut room: Vec<u8>) -> Result<Bytes, SwapError> {
        room[swapped.length..].copy_from_slice(&swapped.tag);
        let opened = (self.key).open_in_place(number(swapped.nonce), Aad::empty(), &mut room);
        opened.map_err(|_| self.failed(SwapError::Damaged))?;
        room.truncate(swapped.length);
        Ok(Bytes::from(room))
    }

    /// Runs `job` on a thread that may wait for the disk, and that counts the answers. If there is
    /// none for 30 ticks, or the job takes `ticks_max`, the disk counts as failed, and the job goes
    /// on without a listener.
    ///
    /// # Errors
    /// Those of `job`; [`SwapError::Disk`] if the disk does not answer, or if the job panics.
    pub(super) async fn patiently<T: Send + 'static>(
        self: &Arc<Self>,
        ticks_max: u32,
        job: impl FnOnce(&Arc<Self>, &AtomicU64) -> Result<T, SwapError> + Send + 'static,
    ) -> Result<T, SwapError> {
        let (shared, answers) = (self.clone(), Arc::new(AtomicU64::new(0)));
        let counted = answers.clone();
        let mut running = tokio::task::spawn_blocking(move || job(&shared, &counted));
        let (mut before, mut silent_ticks) = (0, 0);
        for _ in 0..ticks_max {
            if let Ok(done) = tokio::time::timeout(TICK, &mut running).await {
                return finished(done);
            }
            let now = answers.load(Ordering::Relaxed);
            silent_ticks = if now == before { silent_ticks + 1 } else { 0 };
            if silent_ticks == SILENT_TICKS_MAX {
                break;
            }
            before = now;
        }
        // A job that has not begun does not begin any more.
        running.abort();
        Err(self.failed(SwapError::disk(io::ErrorKind::TimedOut.into())))
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn failed(&self, error: SwapError) -> SwapError {
        if !error.is_full_disk() && !self.has_failed.swap(true, Ordering::Relaxed) {
            let (done, cause) = (self.used_for.done(), error.cause());
            match self.used_for {
                SwapUse::Changes => tracing::error!("nothing more is {done}: {cause}"),
                SwapUse::Decoded => tracing::warn!("nothing more is {done}: {cause}"),
            }
        }
        error
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        self.shared.state.lock().places.give_back(self.place);
    }
}

/// Runs `job` on a thread that waits for the disk as long as that takes.
pub(super) async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, SwapError> + Send + 'static,
) -> Result<T, SwapError> {
    finished(tokio::task::spawn_blocking(job).await)
}

fn finished<T>(done: Result<Result<T, SwapError>, JoinError>) -> Result<T, SwapError> {
    done.map_err(|error| SwapError::disk(io::Error::other(error)))?
}

fn random_key() -> io::Result<LessSafeKey> {
    let mut key = Zeroizing::new([0; 32]);
    let filled = SystemRandom::new().fill(key.as_mut());
    filled.map_err(|_| io::Error::other("no random numbers"))?;
    let key = UnboundKey::new(&AES_256_GCM, key.as_ref());
    let key = key.map_err(|_| io::Error::other("no key"))?;
    Ok(LessSafeKey::new(key))
}

fn number(nonce: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("SwapFile");
        fields.field("limit_bytes", &self.limit_bytes);
        fields.finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Swapped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("Swapped");
        fields.field("place", &self.place);
        fields.field("length", &self.length);
        fields.finish_non_exhaustive()
    }
}
