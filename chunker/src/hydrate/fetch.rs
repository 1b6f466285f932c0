//! Fetches of frames: from memory, from the disk cache, from the bucket. Concurrent callers share
//! one fetch of a frame.
//!
//! Owns the fetch tasks. They run to their end even if the caller that began them is dropped,
//! because other callers may wait for the same frames.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bkfs_store::urgency::{SharedUrgency, Urgency};
use bytes::Bytes;

use super::plan::coalesce;
use super::reader::{Answers, FrameAnswer, FrameKey, Reader, Region, Source};
use super::single_flight::Duty;
use crate::catalog::{Candidate, Location};
use crate::crypto::{Class, ObjectOpener};
use crate::error::ContentError;
use crate::gate::Reservation;
use crate::pack::{NamedFrame, PackName};
use crate::pending::{Body, SealedHere};

/// Size in bytes of the regions that are fetched whole from a pack that is read in small parts.
/// Trees are written together and read together, and so are small files.
const REGION_BYTES: u64 = 1 << 20;

/// The most that is decoded only because it lies near requested frames, in bytes of decoded length.
/// A region may hold much data that was compressed to almost nothing.
const NEIGHBOUR_BYTES: u64 = 8 << 20;

/// A region of which at least so many bytes are requested, in several ranges, is fetched whole.
const MUCH_BYTES: u64 = REGION_BYTES / 4;

/// A range of more bytes than this of a data pack is part of a long file, which has read-ahead.
const SMALL_BYTES: u64 = 256 << 10;

/// Frames that one job decodes, in bytes of decoded length.
const JOB_BYTES: u64 = 512 << 10;

/// Returns the region that holds a frame.
fn region(location: &Location) -> Region {
    (location.pack, location.offset / REGION_BYTES)
}

/// Returns the ranges of frames that adjoin, each with the region in which it begins.
fn adjoining(errands: &[Errand]) -> Vec<(Region, Range<u64>)> {
    let mut frames: Vec<(Region, Range<u64>)> = (errands.iter())
        .map(|errand| (region(&errand.location), errand.location.range()))
        .collect();
    frames.sort_unstable_by_key(|(_, range)| range.start);
    frames.dedup_by(|(_, next), (_, last)| {
        let adjoins = next.start <= last.end;
        if adjoins {
            last.end = last.end.max(next.end);
        }
        adjoins
    });
    frames
}

/// Frames that are decoded together, in bytes of decoded length. One frame may be longer.
const GROUP_BYTES: u64 = 2 << 20;

/// Returns the number of frames that are decoded together: at least one.
fn group(errands: &[Errand]) -> usize {
    let mut bytes = 0;
    let fits = errands.iter().take_while(|errand| {
        bytes += u64::from(errand.location.raw_length);
        bytes <= GROUP_BYTES
    });
    fits.count().max(1)
}

/// How many times a frame is requested if its fetch is abandoned each time.
const ASKED_MAX: u32 = 3;

/// A fetch that ended without an answer, which is a mistake in this program.
const ABANDONED: ContentError = ContentError::Internal("a fetch was abandoned");

/// A frame that this task must fetch.
struct Errand {
    location: Location,
    duty: Duty<FrameAnswer>,
}

/// A pack, and the means to fetch and open its frames.
pub(super) struct Trip {
    pub(super) candidate: Candidate,
    opener: Arc<ObjectOpener>,
    pub(super) key: String,
    pub(super) urgency: SharedUrgency,
}

impl Reader {
    /// Fetches frames. Returns one result for each requested frame. If the future is dropped, the
    /// fetches that it began go on for other callers that wait for them.
    pub(crate) async fn frames(
        self: &Arc<Self>,
        sources: Vec<Source>,
        urgency: Urgency,
    ) -> Answers {
        self.further_frames(Answers::new(), sources, urgency).await
    }

    /// Same, if some frames are there already, which are `answers`.
    pub(crate) async fn further_frames(
        self: &Arc<Self>,
        mut answers: Answers,
        sources: Vec<Source>,
        urgency: Urgency,
    ) -> Answers {
        let mut wanted = sources;
        for _ in 0..ASKED_MAX {
            wanted = self.ask(wanted, urgency, &mut answers).await;
            if wanted.is_empty() {
                break;
            }
        }
        for source in wanted {
            let (key, _) = source.place();
            answers.insert(key, Err(ABANDONED));
        }
        answers
    }

    /// Requests frames once. Returns the sources of those whose fetch was begun by another caller
    /// and then abandoned.
    async fn ask(
        self: &Arc<Self>,
        sources: Vec<Source>,
        urgency: Urgency,
        answers: &mut Answers,
    ) -> Vec<Source> {
        let urgency = SharedUrgency::new(urgency);
        // Ordered maps make a simulation repeatable.
        let mut tickets = BTreeMap::new();
        let mut trips: BTreeMap<PackName, (Box<Candidate>, Vec<Errand>)> = BTreeMap::new();
        for source in sources {
            let (key, _) = source.place();
            if answers.contains_key(&key) || tickets.contains_key(&key) {
                continue;
            }
            if let Some(frame) = self.frames.get(&key) {
                self.link.counters.memory_hits.one();
                answers.insert(key, Ok(frame));
                continue;
            }
            let (ticket, duty) = self.single_flight.board(key, &urgency);
            let Some(duty) = duty else {
                tickets.insert(key, (ticket, Some(source)));
                continue;
            };
            tickets.insert(key, (ticket, None));
            match source {
                Source::Sealed(sealed, _) => self.open_here(sealed, duty),
                Source::Bucket(candidate) => {
                    let location = candidate.location;
                    let (_, errands) = trips
                        .entry(key.0)
                        .or_insert_with(|| (candidate, Vec::new()));
                    errands.push(Errand { location, duty });
                }
            }
        }
        for (candidate, errands) in trips.into_values() {
            let (reader, urgency) = (Arc::clone(self), urgency.clone());
            tokio::spawn(async move { reader.travel(*candidate, errands, urgency).await });
        }
        // Fetches of others that this call has joined may be more urgent now.
        self.reconsider();
        let mut again = Vec::new();
        for (key, (ticket, source)) in tickets {
            match (ticket.wait().await, source) {
                (Some(answer), _) => {
                    answers.insert(key, answer);
                }
                (None, Some(source)) => again.push(source),
                (None, None) => {
                    answers.insert(key, Err(ABANDONED));
                }
            }
        }
        again
    }

    /// Begins a fetch of the frame that holds a blob. Dropping the result abandons the fetch.
    #[cfg(test)]
    pub(crate) async fn begin_in_vain(&self, id: &crate::id::Id) -> impl Sized + use<> {
        let mut search = crate::catalog::RunSearch::default();
        let found = self.catalog.locate_first(id, &mut search).await;
        let found = found.expect("the index answers");
        let location = found.first().expect("the blob is stored").location;
        let urgency = SharedUrgency::new(Urgency::Now);
        self.single_flight.board(location.key(), &urgency).1
    }

    pub(super) fn land(&self, key: FrameKey, duty: Duty<FrameAnswer>, answer: FrameAnswer) {
        if let Ok(frame) = &answer {
            self.hints.note(key, frame.chunks());
            self.frames.put(key, frame.memory(), Arc::clone(frame));
        }
        self.single_flight.land(key, duty, answer);
    }

    /// Opens a frame that is not in the bucket yet.
    fn open_here(self: &Arc<Self>, sealed: SealedHere, duty: Duty<FrameAnswer>) {
        let reader = Arc::clone(self);
        tokio::spawn(async move {
            let key = (sealed.pack, sealed.frame);
            let class = sealed.opener.header().class;
            let keyring = reader.keyring.clone();
            let (body, _room) = match reader.body_of(&sealed.body).await {
                Ok(found) => found,
                Err(error) => return reader.land(key, duty, Err(error)),
            };
            let job = reader.workers.run(move |scratch| {
                let number = u32::from(sealed.frame);
                let frame = scratch.frame_decoder.open(&sealed.opener, number, &body);
                frame.map(|frame| Arc::new(NamedFrame::new(&keyring, class, frame)))
            });
            let answer = match job.await {
                Ok(opened) => {
                    opened.map_err(|error| ContentError::damaged(key.0.key(class), error))
                }
                Err(error) => Err(error),
            };
            reader.land(key, duty, answer);
        });
    }

    /// Returns the bytes of a local frame. If they were read from the spool, the reservation for
    /// their memory comes with them.
    async fn body_of(&self, body: &Body) -> Result<(Bytes, Option<Reservation>), ContentError> {
        match body {
            Body::Memory(bytes) => Ok((bytes.clone(), None)),
            Body::Spool(spooled, range) => {
                let room = self.fetch_gate.reserve(range.end - range.start).await;
                let bytes = spooled.read_range(range.clone()).await?;
                Ok((bytes, Some(room)))
            }
        }
    }

    /// Fetches frames of one pack.
    async fn travel(
        self: Arc<Self>,
        candidate: Candidate,
        errands: Vec<Errand>,
        urgency: SharedUrgency,
    ) {
        let trip = match self.trip(candidate, urgency) {
            Ok(trip) => trip,
            Err(error) => return self.land_all(errands, &error),
        };
        let mut errands = self.fetch_cached(&trip, errands).await;
        if errands.is_empty() {
            return;
        }
        self.link.counters.cache_misses.add(errands.len() as u64);
        let class = trip.candidate.location.class;
        // Prefetches name what they need. A prefetch that returns to a region would bring all of it.
        let is_waited_for = trip.urgency.get() == Urgency::Now;
        let regions: BTreeSet<Region> = match class {
            Class::MetadataPack => (errands.iter())
                .map(|errand| region(&errand.location))
                .collect(),
            _ if is_waited_for => self.returned_to(&errands),
            _ => BTreeSet::new(),
        };
        if !regions.is_empty() {
            self.add_neighbours(&trip, &regions, &mut errands);
        }
        let frames: Vec<Range<u64>> = errands
            .iter()
            .map(|errand| errand.location.range())
            .collect();
        let largest = self.largest_range();
        let mut errands: Vec<Option<Errand>> = errands.into_iter().map(Some).collect();
        let ranges = coalesce(&frames, largest)
            .into_iter()
            .map(|(range, served)| {
                let served = served
                    .into_iter()
                    .filter_map(|position| errands[position].take());
                self.fetch_range(&trip, range, served.collect())
            });
        futures::future::join_all(ranges.collect::<Vec<_>>()).await;
    }

    /// Returns the means to fetch and open frames of the pack of a candidate.
    pub(super) fn trip(
        &self,
        candidate: Candidate,
        urgency: SharedUrgency,
    ) -> Result<Trip, ContentError> {
        Ok(Trip {
            key: candidate.location.pack.key(candidate.location.class),
            opener: self.opener(&candidate)?,
            candidate,
            urgency,
        })
    }

    fn land_all(&self, errands: Vec<Errand>, error: &ContentError) {
        for errand in errands {
            self.land(errand.location.key(), errand.duty, Err(error.clone()));
        }
    }

    /// Takes the frames that the disk cache holds, and returns the rest. A frame that does not
    /// verify was never written whole.
    async fn fetch_cached(self: &Arc<Self>, trip: &Trip, errands: Vec<Errand>) -> Vec<Errand> {
        let pack = trip.candidate.location.pack;
        let disk = self.disk.clone().filter(|disk| disk.has(pack));
        let pins = self.pins.clone();
        let is_pinned = |pins: &Arc<crate::pins::Pins>| pins.frames().has(pack);
        if disk.is_none() && !pins.as_ref().is_some_and(is_pinned) {
            return errands;
        }
        let locations: Vec<Location> = errands.iter().map(|errand| errand.location).collect();
        let room = locations.iter().map(Location::memory).sum();
        let _room = self.room(room, &trip.urgency).await;
        let read = tokio::task::spawn_blocking(move || {
            let frames = locations.into_iter().map(|location| {
                let (offset, length) = (location.offset, location.length as usize);
                let pinned = || pins.as_ref()?.frames().read(pack, offset, length);
                let cached = || disk.as_ref()?.read(pack, offset, length);
                // It may move from the cache to the pins between these two.
                let found = pinned().or_else(cached).or_else(pinned);
                Some((location, found?))
            });
            frames.collect::<Vec<_>>()
        });
        let Ok(found) = read.await else {
            return errands;
        };
        let decoded = self
            .decode(trip, found.into_iter().flatten().collect())
            .await;
        let mut decoded: HashMap<FrameKey, FrameAnswer> = decoded.into_iter().collect();
        let mut missing = Vec::new();
        for errand in errands {
            match decoded.remove(&errand.location.key()) {
                Some(Ok(frame)) => {
                    self.link.counters.disk_hits.one();
                    if trip.urgency.get() == Urgency::Now {
                        self.keep_decoded(errand.location.key(), &frame);
                    }
                    self.land(errand.location.key(), errand.duty, Ok(frame));
                }
                _ => missing.push(errand),
            }
        }
        missing
    }

    /// Returns the regions that are fetched whole: those from which something else was recently
    /// fetched if little is requested, and those of which much is requested, in several ranges. None
    /// if any of the ranges is part of a long file.
    ///
    /// Small files that were stored together are then being read, in whatever order their names
    /// have.
    fn returned_to(&self, errands: &[Errand]) -> BTreeSet<Region> {
        let ranges = adjoining(errands);
        let length = |range: &Range<u64>| range.end - range.start;
        if !self.saves_requests || ranges.iter().any(|(_, range)| length(range) > SMALL_BYTES) {
            return BTreeSet::new();
        }
        // The ranges and the bytes that are requested of each region.
        let mut requested: BTreeMap<Region, (u32, u64)> = BTreeMap::new();
        for (region, range) in &ranges {
            let (count, bytes) = requested.entry(*region).or_default();
            *count += 1;
            *bytes += length(range);
        }
        let is_little = requested.values().map(|(_, bytes)| bytes).sum::<u64>() <= SMALL_BYTES;
        let is_whole = |region: &Region, (count, bytes): (u32, u64)| {
            let is_known = self.regions.get(region).is_some();
            self.regions.put(*region, 1, ());
            is_little && is_known || count > 1 && bytes >= MUCH_BYTES
        };
        let whole = (requested.into_iter()).filter(|(region, asked)| is_whole(region, *asked));
        whole.map(|(region, _)| region).collect()
    }

    /// Adds the frames of the same regions that are not in the memory cache and that no other
    /// caller fetches, up to [`NEIGHBOUR_BYTES`].
    fn add_neighbours(&self, trip: &Trip, regions: &BTreeSet<Region>, errands: &mut Vec<Errand>) {
        let Some((table, number)) = &trip.candidate.table else {
            return;
        };
        let mut room = NEIGHBOUR_BYTES;
        let mut frame = 0;
        while let Some(location) = table.neighbour(*number, &trip.candidate.location, frame) {
            let bytes = u64::from(location.raw_length);
            if regions.contains(&region(&location))
                && bytes <= room
                && !self.frames.has(&location.key())
                && let (_, Some(duty)) = self.single_flight.board(location.key(), &trip.urgency)
            {
                room -= bytes;
                errands.push(Errand { location, duty });
            }
            let Some(next) = frame.checked_add(1) else {
                break;
            };
            frame = next;
        }
    }

    /// Fetches one range, and answers for the frames in it.
    async fn fetch_range(self: &Arc<Self>, trip: &Trip, range: Range<u64>, errands: Vec<Errand>) {
        let _room = self.room(range.end - range.start, &trip.urgency).await;
        let fetched = self
            .link
            .get_range_as(&trip.key, range.clone(), &trip.urgency);
        let bytes = match fetched.await {
            Ok(bytes) => bytes,
            Err(ContentError::Damaged { .. }) if errands.len() > 1 => {
                // The pack is shorter than the index says. The frames that exist can still be read
                // one by one.
                drop(_room);
                return self.one_by_one(trip, errands).await;
            }
            Err(error) => return self.land_all(errands, &error),
        };
        let part = |location: &Location| {
            let start = (location.offset - range.start) as usize;
            bytes.slice(start..start + location.length as usize)
        };
        let (mut good, mut damaged) = (Vec::new(), Vec::new());
        let mut errands = errands;
        while !errands.is_empty() {
            let rest = errands.split_off(group(&errands));
            let sealed = errands.iter().map(|errand| errand.location);
            let sealed = sealed.map(|location| (location, part(&location)));
            let memory = errands.iter().map(|errand| errand.location.raw_length);
            let memory = memory.map(u64::from).sum();
            let _decoding = self.decoding_room(memory, &trip.urgency).await;
            let decoded = self.decode(trip, sealed.collect()).await;
            let mut decoded: HashMap<FrameKey, FrameAnswer> = decoded.into_iter().collect();
            for errand in std::mem::replace(&mut errands, rest) {
                let key = errand.location.key();
                match decoded.remove(&key) {
                    Some(Ok(frame)) => {
                        good.push((errand.location.offset, part(&errand.location)));
                        self.land(key, errand.duty, Ok(frame));
                    }
                    _ => damaged.push(errand),
                }
            }
        }
        // The bytes may have been damaged in transit. A frame counts as damaged only if a second
        // fetch finds the same.
        self.one_by_one(trip, damaged).await;
        self.keep(trip.candidate.location.pack, good).await;
    }

    async fn one_by_one(&self, trip: &Trip, errands: Vec<Errand>) {
        for errand in errands {
            let answer = self.once_more(trip, errand.location).await;
            self.land(errand.location.key(), errand.duty, answer);
        }
    }

    async fn once_more(&self, trip: &Trip, location: Location) -> FrameAnswer {
        let fetched = self
            .link
            .get_range_as(&trip.key, location.range(), &trip.urgency);
        let sealed = fetched.await?;
        let memory = u64::from(location.raw_length);
        let _decoding = self.decoding_room(memory, &trip.urgency).await;
        let mut decoded = self.decode(trip, vec![(location, sealed)]).await;
        match decoded.pop() {
            Some((_, answer)) => answer,
            None => Err(ContentError::Internal("a frame was lost among the workers")),
        }
    }

    /// Verifies and decodes frames, in jobs of about [`JOB_BYTES`] each.
    pub(super) async fn decode(
        &self,
        trip: &Trip,
        mut sealed: Vec<(Location, Bytes)>,
    ) -> Vec<(FrameKey, FrameAnswer)> {
        let mut jobs = Vec::new();
        while !sealed.is_empty() {
            let mut bytes = 0;
            let count = sealed.iter().take_while(|(location, _)| {
                let before = bytes;
                bytes += u64::from(location.raw_length);
                before < JOB_BYTES
            });
            let rest = sealed.split_off(count.count());
            let batch = std::mem::replace(&mut sealed, rest);
            let (keyring, opener) = (self.keyring.clone(), Arc::clone(&trip.opener));
            let job = self.workers.run(move |scratch| {
                let decode = |(location, sealed): (Location, Bytes)| {
                    let number = u32::from(location.frame);
                    let frame = scratch.frame_decoder.open(&opener, number, &sealed);
                    let answer = match frame {
                        Ok(frame) => Ok(Arc::new(NamedFrame::new(&keyring, location.class, frame))),
                        Err(error) => {
                            let what = format!("frame {number}: {error}");
                            Err(ContentError::damaged(
                                location.pack.key(location.class),
                                what,
                            ))
                        }
                    };
                    (location.key(), answer)
                };
                batch.into_iter().map(decode).collect::<Vec<_>>()
            });
            jobs.push(job);
        }
        let done = futures::future::join_all(jobs).await;
        done.into_iter().flatten().flatten().collect()
    }

    /// Writes a whole pack to the disk cache.
    pub(crate) async fn keep_pack(self: &Arc<Self>, pack: PackName, parts: Vec<Bytes>) {
        let mut offset = 0;
        let place = |part: Bytes| {
            let start = offset;
            offset += part.len() as u64;
            (start, part)
        };
        self.keep(pack, parts.into_iter().map(place).collect())
            .await;
    }

    /// Writes parts of a pack to the disk cache, each with its offset in the pack in bytes.
    async fn keep(self: &Arc<Self>, pack: PackName, frames: Vec<(u64, Bytes)>) {
        let Some(disk) = self.disk.clone() else {
            return;
        };
        if frames.is_empty() || !self.saves_requests {
            return;
        }
        let reader = Arc::clone(self);
        let write = move || {
            // Another process may have pinned something, which leaves less room.
            if reader.pins.as_ref().is_some_and(|pins| pins.refresh()) {
                reader.heed_pins();
            }
            disk.write(pack, &frames, || reader.give_way());
            reader.share_disk();
        };
        let _ = tokio::task::spawn_blocking(write).await;
    }
}
