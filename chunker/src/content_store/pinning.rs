//! Pins: blobs whose frames are brought to the local disk and stay there.
//!
//! Owns the way from blobs to a pin: the choice of copies, the check that they fit before the first
//! byte is fetched, and the order in which frames are brought. Does not own the files (`pins`), nor
//! how a frame is fetched (`hydrate`). What a pin is for is known to the caller alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs_store::urgency::Urgency;
use bkfs_store::{ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use futures::TryStreamExt;

use super::ContentStore;
use crate::budget::MemoryBudget;
use crate::catalog::{Candidate, Catalog, Location};
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::hydrate::{PIN_RANGE_BYTES, Reader, ReaderParts, coalesce};
use crate::id::{Id, Kind};
use crate::index::PartialPack;
use crate::pending::Pending;
use crate::pins::parts::{Packs, Parts, range_of};
use crate::pins::{DESCRIPTION_MAX, Pin, PinError, Pins};
use crate::runtime::Runtime;
use crate::store_client::StoreClient;

/// Ranges of frames that are brought concurrently, at most. Their requests give way to all others.
const RANGES_AT_ONCE: usize = 8;

/// Memory that the frames of one range take while they are verified, in bytes. Frames that were
/// compressed well are far longer than what is fetched.
const JOB_BYTES: u64 = 16 << 20;

/// Blobs that are looked up in a row before other tasks of the thread get a turn.
const LOOKUPS_IN_A_ROW: usize = 256;

/// What is known of a pin without reading its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinFacts {
    /// Whether all frames are on disk.
    pub is_complete: bool,
    /// Number of blobs.
    pub blobs: u64,
    /// Number of frames.
    pub frames: u64,
    /// Length of the frames, in bytes: exactly what is fetched if nothing is in the cache.
    pub stored_bytes: u64,
    /// What the frames take on disk, in bytes of whole blocks of 4 KiB.
    pub disk_bytes: u64,
    /// What the maker of the pin says of it.
    pub description: Bytes,
}

/// How far the frames of pins are brought, in bytes of their stored lengths.
#[derive(Debug, Default)]
pub struct PinProgress {
    /// Bytes of frames that were in the cache.
    pub found_bytes: AtomicU64,
    /// Bytes of frames that were fetched.
    pub fetched_bytes: AtomicU64,
}

/// Blobs that are to be pinned, with a copy of each.
#[derive(Debug)]
pub struct PinPlan {
    content_store: ContentStore,
    parts: Parts,
}

impl ContentStore {
    /// Returns a handle whose reads give way to all other reads and to prefetches.
    pub fn in_background(&self) -> ContentStore {
        ContentStore {
            urgency: Urgency::Background,
            ..self.clone()
        }
    }

    /// Returns an empty plan.
    pub fn plan_pin(&self) -> PinPlan {
        PinPlan {
            content_store: self.in_background(),
            parts: Parts::default(),
        }
    }

    fn pins(&self) -> Result<Arc<Pins>, PinError> {
        self.shared.reader.pins.clone().ok_or(PinError::NoCache)
    }

    /// Returns the pins of the cache directory, those of other processes included.
    pub fn list_pins(&self) -> Vec<Arc<Pin>> {
        let Ok(pins) = self.pins() else {
            return Vec::new();
        };
        if pins.refresh() {
            self.shared.reader.heed_pins();
        }
        pins.list()
    }

    /// Returns what the pins of the cache directory take on disk, and the size of the cache, both
    /// in bytes.
    pub fn pinned_bytes(&self) -> (u64, u64) {
        let pinned = self.pins().map_or(0, |pins| pins.disk_bytes());
        (pinned, self.config().cache_bytes)
    }

    /// Makes a pin of a plan. Fetches nothing. The caller alone knows the form of `description`.
    ///
    /// # Errors
    /// - [`PinError::DoesNotFit`] or [`PinError::DiskTooSmall`] if its frames are too many.
    /// - [`PinError::TooMany`], [`PinError::NoCache`].
    /// - [`PinError::Disk`] if the files of the pin cannot be written.
    /// - [`PinError::Content`] (invalid) if the description has more than 32 KiB.
    pub async fn pin(&self, plan: PinPlan, description: Bytes) -> Result<Arc<Pin>, PinError> {
        if description.len() > DESCRIPTION_MAX {
            return Err(ContentError::Invalid("too much is pinned at once").into());
        }
        let (pins, shared) = (self.pins()?, Arc::clone(&self.shared));
        let make = move || {
            pins.refresh();
            let mut parts = plan.parts;
            let _bringing = pins.bringing();
            let check = |parts: &Parts| check_room(&shared, &pins, parts);
            let made = pins.add(&mut parts, &description, &*shared.link.entropy, check);
            shared.reader.heed_pins();
            made
        };
        blocking(make).await
    }

    /// Brings the frames of a pin to disk, and records when all are there. What is there already is
    /// verified and not fetched. Takes up where an earlier call ended, also if the cache has become
    /// smaller: the pin has fitted when it was made.
    ///
    /// Cancel safety: dropped, it leaves the frames that were brought.
    ///
    /// # Errors
    /// - [`PinError::Busy`] if another task or process does it, [`PinError::Gone`] if the pin was
    ///   given up.
    /// - [`PinError::Disk`] if the disk fails or is full.
    /// - [`PinError::Content`] if a frame cannot be fetched.
    pub async fn bring(&self, pin: &Arc<Pin>, progress: &PinProgress) -> Result<(), PinError> {
        let pins = self.pins()?;
        let listed = pin.clone();
        let begin = move || {
            let held = (pins.hold(&listed)?, pins.bringing());
            // Another process may have removed files that are open here.
            pins.frames().reopen();
            Ok((pins, listed.packs()?, held))
        };
        let (pins, packs, held) = blocking(begin).await?;
        let jobs = ranges(&packs);
        let reader = &self.shared.reader;
        futures::stream::iter(jobs.into_iter().map(Ok))
            .try_for_each_concurrent(RANGES_AT_ONCE, |(candidate, locations)| async move {
                let brought = reader.pin_frames(candidate, locations).await?;
                let (found, fetched) = (brought.found_bytes, brought.fetched_bytes);
                progress.found_bytes.fetch_add(found, Ordering::Relaxed);
                progress.fetched_bytes.fetch_add(fetched, Ordering::Relaxed);
                Ok::<_, PinError>(())
            })
            .await?;
        let (pin, shared) = (pin.clone(), Arc::clone(&self.shared));
        let complete = move || {
            let completed = pins.complete(&pin, &*shared.link.entropy);
            drop(held);
            shared.reader.heed_pins();
            completed
        };
        blocking(complete).await
    }

    /// Gives a pin up. Returns the bytes of disk that are free.
    ///
    /// # Errors
    /// [`PinError::Busy`] if its frames are being brought; [`PinError::Disk`] if its file cannot be
    /// removed.
    pub async fn unpin(&self, pin: &Arc<Pin>) -> Result<u64, PinError> {
        let (pins, pin, shared) = (self.pins()?, pin.clone(), Arc::clone(&self.shared));
        let remove = move || {
            let freed = pins.remove(&pin);
            shared.reader.heed_pins();
            shared.link.counters.pinned_bytes.set(pins.frames().used());
            freed
        };
        blocking(remove).await
    }

    /// Returns a content store that reads from the pins of this one alone: its memory is empty, it
    /// has no index, and its store refuses every request. [`ContentStore::metrics`] of it counts
    /// the requests that were refused.
    ///
    /// # Errors
    /// [`PinError::NoCache`] if there are no pins.
    pub fn of_pins_alone(&self) -> Result<ContentStore, PinError> {
        let pins = self.pins()?;
        let shared = &self.shared;
        let link = Arc::new(StoreClient::new(
            Arc::new(NoStore),
            Arc::clone(&shared.link.entropy),
            (1, 1),
            std::time::Duration::from_millis(shared.config.timeout_ms),
        ));
        let memory = MemoryBudget {
            cache_bytes: MemoryBudget::default().cache_bytes,
            ..shared.config.memory
        };
        let fetch_gate = Arc::new(ByteGate::new(memory.in_flight_bytes()));
        let (keyring, workers) = (shared.keyring.clone(), shared.workers.clone());
        let catalog = Arc::new(Catalog::new(
            None,
            keyring.clone(),
            workers.clone(),
            Arc::clone(&link),
            Arc::clone(&fetch_gate),
        ));
        let reader = Reader::new(ReaderParts {
            link: Arc::clone(&link),
            keyring: keyring.clone(),
            workers: workers.clone(),
            catalog: Arc::clone(&catalog),
            disk: None,
            decoded_in: None,
            pins: Some(pins),
            saves_requests: false,
            fetch_gate,
            memory,
        });
        reader.heed_pins();
        let runtime = Runtime {
            cutter: keyring.cutter(&shared.config.parameters),
            link,
            keyring,
            config: shared.config.clone(),
            workers,
            catalog,
            reader: Arc::new(reader),
        };
        Ok(ContentStore {
            shared: Arc::new(runtime),
            renew: Arc::default(),
            urgency: Urgency::Background,
        })
    }

    /// Returns the chunks of segments. Chunks that occur several times are returned several times.
    ///
    /// # Errors
    /// Those of [`ContentStore::read_blob`].
    pub async fn chunks_of(&self, segments: &[Id]) -> Result<Vec<Id>, ContentError> {
        let mut renewals = 0;
        loop {
            let reader = &self.shared.reader;
            let found = reader
                .segments(segments.iter().copied(), self.urgency)
                .await;
            let mut chunks = Vec::new();
            let mut failure = None;
            for segment in found.into_values() {
                match segment {
                    Ok(segment) => chunks.extend(segment.chunks.iter().map(|chunk| chunk.id)),
                    Err(error) => failure = Some(error),
                }
            }
            match failure {
                Some(error) if self.renewed(&error, &mut renewals).await => {}
                Some(error) => return Err(error),
                None => return Ok(chunks),
            }
        }
    }
}

impl Pin {
    /// Returns what is known of the pin.
    pub fn facts(&self) -> PinFacts {
        let record = self.record().clone();
        PinFacts {
            is_complete: record.is_complete,
            blobs: record.blobs,
            frames: record.frames,
            stored_bytes: record.stored_bytes,
            disk_bytes: record.disk_bytes,
            description: record.description,
        }
    }

    /// Returns true if both are the same pin, maybe as it was at different times.
    pub fn is(&self, other: &Pin) -> bool {
        self.name() == other.name()
    }
}

impl PinPlan {
    /// Adds blobs, each with one of its copies: in a frame that the plan has already, or that is on
    /// disk, if there is such a copy.
    ///
    /// # Errors
    /// [`ContentError::Unknown`] if a blob is in no pack of the bucket; otherwise those of
    /// [`ContentStore::read_blob`] that concern the index.
    pub async fn add(&mut self, blobs: &[(Kind, Id)]) -> Result<(), ContentError> {
        for (number, (kind, id)) in blobs.iter().enumerate() {
            if number % LOOKUPS_IN_A_ROW == LOOKUPS_IN_A_ROW - 1 {
                tokio::task::yield_now().await;
            }
            let mut renewals = 0;
            let candidates = loop {
                let found = self.copies(*kind, *id).await;
                match found {
                    Err(error) if self.content_store.renewed(&error, &mut renewals).await => {}
                    found => break found?,
                }
            };
            let reader = &self.content_store.shared.reader;
            let pack = |candidate: &&Candidate| candidate.location.pack;
            let is_pinned = |candidate: &&Candidate| {
                let pins = reader.pins.as_ref();
                pins.is_some_and(|pins| pins.frames().has(pack(candidate)))
            };
            let is_cached = |candidate: &&Candidate| {
                let disk = reader.disk.as_ref();
                disk.is_some_and(|disk| disk.has(pack(candidate)))
            };
            let all = || candidates.iter();
            let chosen = (all().find(|candidate| self.parts.has(candidate)))
                .or_else(|| all().find(is_pinned))
                .or_else(|| all().find(is_cached))
                .or_else(|| all().next());
            if let Some(candidate) = chosen {
                self.parts.add(id.prefix(), candidate);
            }
        }
        Ok(())
    }

    /// Returns the copies of a blob in packs of the bucket, at least one.
    async fn copies(&self, kind: Kind, id: Id) -> Result<Vec<Candidate>, ContentError> {
        let shared = &self.content_store.shared;
        let catalog = &shared.catalog;
        let mut search = crate::catalog::RunSearch::default();
        if let Some(found) = catalog.next_by_runs(&id, &mut search).await? {
            return Ok(found);
        }
        let pending = shared.reader.pending.read();
        let stored = pending
            .iter()
            .find_map(|blobs| match blobs.find(kind, id.prefix()) {
                Some(Pending::Stored(candidate)) => Some(*candidate),
                _ => None,
            });
        match stored.or_else(|| catalog.locate_pinned(&id.prefix()).into_iter().next()) {
            Some(candidate) => Ok(vec![candidate]),
            None => Err(ContentError::Unknown { kind, id }),
        }
    }

    /// Returns the length of the frames, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.stored_bytes()
    }
}

/// Runs work that blocks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PinError> + Send + 'static,
) -> Result<T, PinError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(ContentError::Internal("work on pins broke off").into()),
    }
}

/// Checks that all pins and a plan fit into the cache and on its disk.
fn check_room(shared: &Runtime, pins: &Pins, plan: &Parts) -> Result<(), PinError> {
    let (disk_bytes, pinned_bytes) = pins.cost(plan);
    let cache_bytes = shared.config.cache_bytes;
    if disk_bytes + pinned_bytes > cache_bytes {
        return Err(PinError::DoesNotFit {
            stored_bytes: plan.stored_bytes(),
            disk_bytes,
            pinned_bytes,
            cache_bytes,
        });
    }
    let reader = &shared.reader;
    let evictable = reader.disk.as_ref().map_or(0, |disk| disk.used())
        + (reader.decoded.as_ref()).map_or(0, |decoded| decoded.disk_bytes());
    // Frames of other pins may still have to be brought.
    let promised = pinned_bytes.saturating_sub(pins.frames().used_on_disk());
    let free_bytes = pins.free_bytes().saturating_add(evictable);
    let free_bytes = free_bytes.saturating_sub(promised);
    match disk_bytes > free_bytes {
        true => Err(PinError::DiskTooSmall {
            disk_bytes,
            free_bytes,
        }),
        false => Ok(()),
    }
}

/// Divides the frames of packs into ranges of at most [`PIN_RANGE_BYTES`] that lie close together,
/// and of frames that take at most [`JOB_BYTES`] of memory. Returns them in the order of packs,
/// each with a candidate that opens its pack.
fn ranges(packs: &Packs) -> Vec<(Candidate, Vec<Location>)> {
    let mut all = Vec::new();
    for (name, pack) in packs {
        let PartialPack { pack, frames } = pack;
        let locations: Vec<Location> = frames
            .iter()
            .map(|(number, frame)| Location {
                pack: *name,
                class: pack.class,
                frame: *number,
                offset: u64::from(frame.offset),
                length: frame.stored_length,
                raw_length: frame.raw_length,
                slot: 0,
            })
            .collect();
        let places: Vec<_> = frames.values().map(range_of).collect();
        for (_, served) in coalesce(&places, PIN_RANGE_BYTES) {
            let mut bytes = 0;
            let mut rest: Vec<Location> = served.iter().map(|at| locations[*at]).collect();
            while !rest.is_empty() {
                // At least one frame, however large.
                let fits = rest.iter().take_while(|at| {
                    bytes += at.memory();
                    bytes <= JOB_BYTES
                });
                let after = rest.split_off(fits.count().max(1));
                let locations = std::mem::replace(&mut rest, after);
                bytes = 0;
                let candidate = Candidate {
                    location: locations[0],
                    header: pack.header,
                    table: None,
                };
                all.push((candidate, locations));
            }
        }
    }
    all
}

/// A store that refuses every request, as if it had no object.
#[derive(Debug)]
struct NoStore;

impl NoStore {
    fn refuse<T>(operation: Operation, key: &str) -> Result<T, StoreError> {
        let message = "it is not in the cache, and the store must not be asked";
        Err(StoreError::new(
            StoreErrorKind::NotFound,
            operation,
            key,
            message,
        ))
    }
}

#[async_trait]
impl Store for NoStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        Self::refuse(Operation::Get, key)
    }

    async fn get_if_changed(
        &self,
        key: &str,
        _: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        Self::refuse(Operation::Get, key)
    }

    async fn get_range(&self, key: &str, _: std::ops::Range<u64>) -> Result<Bytes, StoreError> {
        Self::refuse(Operation::GetRange, key)
    }

    async fn get_tail(&self, key: &str, _: u64) -> Result<(Bytes, u64), StoreError> {
        Self::refuse(Operation::GetTail, key)
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        Self::refuse(Operation::Head, key)
    }

    async fn put_new(&self, key: &str, _: Vec<Bytes>) -> Result<Version, StoreError> {
        Self::refuse(Operation::PutNew, key)
    }

    async fn put(&self, key: &str, _: Vec<Bytes>) -> Result<Version, StoreError> {
        Self::refuse(Operation::Put, key)
    }

    async fn replace(&self, key: &str, _: Vec<Bytes>, _: &Version) -> Result<Version, StoreError> {
        Self::refuse(Operation::Replace, key)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        Self::refuse(Operation::Delete, key)
    }

    async fn list(
        &self,
        prefix: &str,
        _: Option<&str>,
        _: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        Self::refuse(Operation::List, prefix)
    }

    fn describe(&self) -> String {
        "no store".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::crypto::{Class, HEADER_LEN};
    use crate::index::{FrameLocation, PackEntry};
    use crate::pack::PackName;

    #[test]
    fn a_job_takes_bounded_memory_unless_one_frame_takes_more() {
        let name = PackName::from_bytes([1; 16]);
        let frame = |number: u16| FrameLocation {
            offset: 128 + u32::from(number) * 10_000,
            stored_length: 10_000,
            raw_length: if number == 7 { 40 << 20 } else { 3 << 20 },
        };
        let frames: BTreeMap<u16, FrameLocation> =
            (0..100).map(|number| (number, frame(number))).collect();
        let pack = PackEntry {
            name,
            class: Class::DataPack,
            length: 2_000_000,
            header: [0; HEADER_LEN],
        };
        let jobs = ranges(&Packs::from([(name, PartialPack { pack, frames })]));
        let mut next = 0;
        for (candidate, locations) in &jobs {
            assert_eq!(candidate.location, locations[0]);
            let memory: u64 = locations.iter().map(Location::memory).sum();
            assert!(memory <= JOB_BYTES || locations.len() == 1, "{memory}");
            for location in locations {
                assert_eq!(location.frame, next, "each once, in order");
                next += 1;
            }
        }
        assert_eq!(next, 100);
        assert!(jobs.len() < 30, "{} jobs", jobs.len());
    }
}
