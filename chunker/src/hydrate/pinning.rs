//! Frames on their way to a pin: from the disk cache, or from the bucket.
//!
//! Owns what is done for frames of one pack that lie close together. A frame that is on disk is
//! verified and not fetched. One that another caller fetches is waited for. One that this fetch
//! brings serves every caller that asks meanwhile. Does not own the order of frames, nor how many
//! are brought concurrently (`content_store`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bkfs_store::urgency::{SharedUrgency, Urgency};
use bytes::Bytes;

use super::fetch::Trip;
use super::plan::coalesce;
use super::reader::{FrameAnswer, FrameKey, Reader};
use super::single_flight::Duty;
use crate::cache::{DiskCache, is_out_of_room};
use crate::catalog::{Candidate, Location};
use crate::error::ContentError;
use crate::pack::PackName;
use crate::pins::{PinError, Pins};

/// The largest range of one request for a pin, in bytes. A caller that asks for one of its frames
/// meanwhile waits for all of it.
pub(crate) const PIN_RANGE_BYTES: u64 = 4 << 20;

/// How many times frames are looked for that other callers fetch, before they are fetched here.
const JOINED_MAX: u32 = 3;

/// How the frames of a range came to be pinned, in bytes of their stored lengths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// They were in the cache.
    pub(crate) found_bytes: u64,
    /// They were fetched.
    pub(crate) fetched_bytes: u64,
}

/// A frame that this task fetches.
type Fetch = (Location, Duty<FrameAnswer>);

impl Reader {
    /// Brings frames of the pack of `candidate` to disk. Those that are there already are read and
    /// verified.
    ///
    /// Cancel safety: dropped, it leaves frames that are whole or do not verify.
    ///
    /// # Errors
    /// [`PinError::Disk`] if the disk fails or is full, [`PinError::Content`] if a frame cannot be
    /// fetched. Frames of the range may have been brought.
    pub(crate) async fn pin_frames(
        self: &Arc<Self>,
        candidate: Candidate,
        locations: Vec<Location>,
    ) -> Result<Brought, PinError> {
        let pins = self.pins.clone().ok_or(PinError::NoCache)?;
        let urgency = SharedUrgency::new(Urgency::Background);
        let trip = self.trip(candidate, urgency)?;
        let memory = locations.iter().map(Location::memory).sum();
        let _part = self.hydration_gate.reserve(memory).await;
        let mut brought = Brought::default();
        let pinned = pins.clone();
        let found = move |location: &Location| read(pinned.frames(), location);
        let mut missing = self
            .sound(&trip, locations, found, &mut brought)
            .await
            .missing;
        let mut rounds = 0;
        while !missing.is_empty() {
            rounds += 1;
            missing = self.pin_cached(&trip, &pins, missing, &mut brought).await?;
            // Another pin may have taken it from the cache meanwhile.
            let pinned = pins.clone();
            let again = move |at: &Location| {
                let is_there = pinned.frames().holds(at.pack, &at.range());
                is_there.then(|| read(pinned.frames(), at)).flatten()
            };
            let sound = self.sound(&trip, missing, again, &mut brought).await;
            missing = sound.missing;
            let mut fetches = Vec::new();
            let mut tickets = Vec::new();
            for location in std::mem::take(&mut missing) {
                match self.single_flight.board(location.key(), &trip.urgency) {
                    (_, Some(duty)) => fetches.push((location, duty)),
                    (ticket, None) => tickets.push((location, ticket)),
                }
            }
            self.fetch_to_pin(&trip, &pins, fetches, &mut brought)
                .await?;
            for (location, ticket) in tickets {
                // What it answers lies in the disk cache now, or is fetched again.
                let answer = ticket.wait().await;
                if let (Some(Err(error)), true) = (answer, rounds > JOINED_MAX) {
                    return Err(error.into());
                }
                missing.push(location);
            }
        }
        Ok(brought)
    }

    /// Copies those frames that the disk cache has. Returns the others.
    async fn pin_cached(
        self: &Arc<Self>,
        trip: &Trip,
        pins: &Arc<Pins>,
        locations: Vec<Location>,
        brought: &mut Brought,
    ) -> Result<Vec<Location>, PinError> {
        let Some(disk) = self.disk.clone() else {
            return Ok(locations);
        };
        let cached = disk.clone();
        let read = move |location: &Location| read(&cached, location);
        let sound = self.sound(trip, locations, read, brought).await;
        let pack = trip.candidate.location.pack;
        let copied = united(sound.frames.iter().map(|(at, _)| at.range()));
        // One copy is enough: no frame that is still to be copied is evicted for this one.
        self.put_pinned(pins, pack, sound.frames, copied).await?;
        Ok(sound.missing)
    }

    /// Reads frames from disk and verifies them.
    async fn sound(
        &self,
        trip: &Trip,
        locations: Vec<Location>,
        read: impl Fn(&Location) -> Option<Bytes> + Send + 'static,
        brought: &mut Brought,
    ) -> Sound {
        let asked = locations.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let frames = asked.iter().filter_map(|at| Some((*at, read(at)?)));
            frames.collect::<Vec<_>>()
        });
        let found = reading.await.unwrap_or_default();
        let answers = self.decode(trip, found.clone()).await;
        let answers: HashMap<FrameKey, FrameAnswer> = answers.into_iter().collect();
        let is_sound = |at: &Location| matches!(answers.get(&at.key()), Some(Ok(_)));
        let frames: Vec<(Location, Bytes)> = found
            .into_iter()
            .filter(|(location, _)| is_sound(location))
            .collect();
        let bytes = frames
            .iter()
            .map(|(location, _)| u64::from(location.length));
        brought.found_bytes += bytes.sum::<u64>();
        let missing = locations.into_iter().filter(|at| !is_sound(at)).collect();
        Sound { frames, missing }
    }

    /// Fetches frames, answers for them, and writes them to disk.
    async fn fetch_to_pin(
        self: &Arc<Self>,
        trip: &Trip,
        pins: &Arc<Pins>,
        fetches: Vec<Fetch>,
        brought: &mut Brought,
    ) -> Result<(), PinError> {
        let frames: Vec<Range<u64>> = fetches.iter().map(|(at, _)| at.range()).collect();
        let mut fetches: Vec<Option<Fetch>> = fetches.into_iter().map(Some).collect();
        for (range, served) in coalesce(&frames, PIN_RANGE_BYTES) {
            let served = served.into_iter().filter_map(|at| fetches[at].take());
            let bytes = self.pin_range(trip, pins, range, served.collect()).await?;
            brought.fetched_bytes += bytes;
        }
        Ok(())
    }

    /// Fetches one range. Returns the stored lengths of its frames, in bytes.
    async fn pin_range(
        self: &Arc<Self>,
        trip: &Trip,
        pins: &Arc<Pins>,
        range: Range<u64>,
        fetches: Vec<Fetch>,
    ) -> Result<u64, PinError> {
        let memory = fetches.iter().map(|(at, _)| u64::from(at.raw_length));
        let memory = range.end - range.start + memory.sum::<u64>();
        let _room = self.room(memory, &trip.urgency).await;
        let fetched = self
            .link
            .get_range_as(&trip.key, range.clone(), &trip.urgency);
        let bytes = match fetched.await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.give_back(fetches, error)),
        };
        let part = |at: &Location| {
            let start = (at.offset - range.start) as usize;
            (*at, bytes.slice(start..start + at.length as usize))
        };
        let sealed: Vec<(Location, Bytes)> = fetches.iter().map(|(at, _)| part(at)).collect();
        let answers = self.decode(trip, sealed.clone()).await;
        let mut answers: HashMap<FrameKey, FrameAnswer> = answers.into_iter().collect();
        let (mut good, mut waits, mut failure) = (Vec::new(), Vec::new(), None);
        for ((at, duty), sealed) in fetches.into_iter().zip(sealed) {
            let lost = ContentError::Internal("a frame was lost among the workers");
            let (sealed, answer) = match answers.remove(&at.key()).unwrap_or(Err(lost)) {
                Ok(frame) => (sealed.1, Ok(frame)),
                // The bytes may have been damaged in transit.
                Err(_) => self.fetch_again(trip, at).await,
            };
            match &answer {
                Ok(_) => good.push((at, sealed)),
                Err(error) => failure = failure.or_else(|| Some(error.clone())),
            }
            // The disk may be slow: a caller that waits is answered first.
            match duty.is_awaited() {
                true => self.land(at.key(), duty, answer),
                false => waits.push((at.key(), duty, answer)),
            }
        }
        let bytes = good.iter().map(|(at, _)| u64::from(at.length)).sum();
        let pack = trip.candidate.location.pack;
        let written = self.put_pinned(pins, pack, good, Vec::new()).await;
        for (key, duty, answer) in waits {
            // Not kept in memory: a later caller finds it on disk.
            match written.is_ok() && !duty.is_awaited() {
                true => self.single_flight.land(key, duty, answer),
                false => self.land(key, duty, answer),
            }
        }
        written?;
        failure.map_or(Ok(bytes), |error| Err(error.into()))
    }

    /// Answers callers that joined fetches that failed. Returns the error.
    fn give_back(&self, fetches: Vec<Fetch>, error: ContentError) -> PinError {
        for (location, duty) in fetches {
            self.land(location.key(), duty, Err(error.clone()));
        }
        error.into()
    }

    /// Fetches a frame alone. Returns its sealed bytes with the answer.
    async fn fetch_again(&self, trip: &Trip, at: Location) -> (Bytes, FrameAnswer) {
        let fetched = self.link.get_range_as(&trip.key, at.range(), &trip.urgency);
        let sealed = match fetched.await {
            Ok(sealed) => sealed,
            Err(error) => return (Bytes::new(), Err(error)),
        };
        let answer = self.decode(trip, vec![(at, sealed.clone())]).await.pop();
        let lost = ContentError::Internal("a frame was lost among the workers");
        (sealed, answer.map_or(Err(lost), |(_, answer)| answer))
    }

    /// Writes frames to disk, and frees ranges of the pack in the disk cache. If the disk is full,
    /// what lies decoded gives way; if that is not enough, as much of the disk cache is evicted once.
    async fn put_pinned(
        self: &Arc<Self>,
        pins: &Arc<Pins>,
        pack: PackName,
        frames: Vec<(Location, Bytes)>,
        copied: Vec<Range<u64>>,
    ) -> Result<(), PinError> {
        if frames.is_empty() {
            return Ok(());
        }
        let (pins, disk) = (Arc::clone(pins), self.disk.clone());
        let reader = Arc::clone(self);
        let write = move || {
            let frames: Vec<(u64, Bytes)> = (frames.into_iter())
                .map(|(at, bytes)| (at.offset, bytes))
                .collect();
            let length: u64 = frames.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            let mut written = pins.frames().put(pack, &frames);
            if written.as_ref().is_err_and(is_out_of_room) && reader.give_way() {
                written = pins.frames().put(pack, &frames);
            }
            let evict = |disk: &Arc<DiskCache>| disk.make_room(2 * length);
            if written.as_ref().is_err_and(is_out_of_room) && disk.as_ref().is_some_and(evict) {
                written = pins.frames().put(pack, &frames);
            }
            let counters = &reader.link.counters;
            counters.pinned_bytes.set(pins.frames().used());
            if let (Some(disk), Ok(())) = (&disk, &written) {
                copied.iter().for_each(|range| disk.punch(pack, range));
            }
            reader.share_disk();
            written.map_err(|error| pins.failed(error))
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(written) => written,
            Err(_) => Err(ContentError::Internal("a write to the cache broke off").into()),
        }
    }
}

/// Unites ranges that adjoin.
fn united(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = ranges.collect();
    all.sort_by_key(|range| range.start);
    all.dedup_by(|next, last| {
        let adjoins = next.start <= last.end;
        if adjoins {
            last.end = last.end.max(next.end);
        }
        adjoins
    });
    all
}

/// Frames that were read from disk and verified, and those that were not there.
struct Sound {
    frames: Vec<(Location, Bytes)>,
    missing: Vec<Location>,
}

fn read(disk: &DiskCache, location: &Location) -> Option<Bytes> {
    disk.read(location.pack, location.offset, location.length as usize)
}
