//! The changes since the last journal, captured as of one moment.
//!
//! Owns: which bytes a journal carries and which are stored in packs before it. Does not own: the
//! record of changed places (`delta`), the journal's bytes (`operations`), their upload
//! (`journal`).
//!
//! Everything in a journal is as of one moment (`capturing`). Contents of the tree never change, so
//! they are looked up afterwards.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_chunker::swap;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::extents;
use crate::tree::item::Item;
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::capturing::{CapturedRange, LiveState, Moment};
use crate::volume::delta::{Delta, Ranges};
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::flush::{FLUSHES_AT_ONCE, Reach};
use crate::volume::operations::{Content, Operations, Piece};
use crate::volume::state::{ExtentChanges, Found, Layer, Scope, VolumeState};
use crate::volume::usage::Leaving;

/// Maximum number of file bytes that a journal carries. Further bytes are stored in packs before
/// it.
pub const RIDING_BYTES: u64 = 1024 * 1024;

/// Maximum number of file bytes that a journal carries after [`ATTEMPTS`] flushes, while writers go
/// on. It includes bytes that were written after the others were stored.
const LATE_BYTES_MAX: u64 = 8 * RIDING_BYTES;

/// Maximum number of file bytes that a journal carries because a part of the tree that is needed
/// to store them is not read in time.
const UNREAD_BYTES_MAX: u64 = 16 * RIDING_BYTES;

/// The same for a journal that must carry everything. With its items it fits in one object.
const LAST_UNREAD_BYTES_MAX: u64 = 128 * RIDING_BYTES;

/// Maximum number of changed items in a journal. More are committed, because a tree takes less
/// space than a list of them.
const ITEMS_MAX: usize = 1 << 15;

/// Maximum number of parts of file contents in a journal. More are committed, because each part is
/// held in memory until the journal is written.
const PARTS_MAX: usize = 1 << 17;

/// Number of times that data is stored before a journal. If too much was written meanwhile, a
/// commit follows instead.
const ATTEMPTS: u32 = 3;

/// Number of files whose data is summed up while the state is locked once.
const FILES_AT_ONCE: usize = 256;

/// The result of a capture.
pub enum Captured {
    /// Nothing changed since the last journal or commit.
    Nothing,
    /// More changed than a journal should carry.
    TooMuch,
    /// The changes to describe.
    Changes(Taken),
}

/// Changes that were taken out of the layers for a journal.
///
/// Dropped, they go back to the layers, and a later journal describes them. Only [`Taken::written`]
/// marks them as described.
pub struct Taken {
    volume: Arc<Volume>,
    capture: Box<Capture>,
    /// True until all places were read.
    is_reading: bool,
    is_written: bool,
}

impl Taken {
    /// Begins a capture of everything that changed since the last journal. The caller reads its
    /// places ([`Taken::read`]).
    fn begin(volume: &Arc<Volume>, state: &mut LiveState, most: Most) -> Self {
        let capture = Capture {
            moment: state.begin_capture(most.parts),
            delta: Delta::default(),
            unsent: volume.usage.cut(),
            items: Vec::new(),
            ranges: Vec::new(),
            next_inode: volume.inode_mark(),
            most,
        };
        Self {
            volume: Arc::clone(volume),
            capture: Box::new(capture),
            is_reading: true,
            is_written: false,
        }
    }

    /// Reads all places of the capture. Returns false if their contents have too many parts, or too
    /// many bytes.
    ///
    /// Cancel safety: dropped, it leaves a capture under way, which the drop of `self` ends.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] if the view is frozen.
    async fn read(&mut self) -> Result<bool, VolumeError> {
        let at_once = self.volume.captured_at_once.load(Ordering::Relaxed);
        let most = self.capture.most;
        let (mut parts, mut bytes) = (0, 0);
        loop {
            let batch = {
                let mut state = self.volume.view.state()?.lock();
                let batch = state.capture_some(at_once);
                state.give_way();
                batch
            };
            let read = batch.ranges.iter().map(CapturedRange::part_count);
            parts += read.sum::<usize>();
            let read = batch.ranges.iter().map(CapturedRange::data_bytes);
            bytes += read.sum::<u64>();
            self.capture.items.extend(batch.items);
            self.capture.ranges.extend(batch.ranges);
            if batch.is_too_much || parts > most.parts || bytes > most.bytes {
                return Ok(false);
            }
            if batch.is_last {
                break;
            }
            tokio::task::yield_now().await;
        }
        let ended = self.volume.view.state()?.lock().end_capture();
        self.is_reading = false;
        if let Some(capturing) = ended {
            self.capture.delta = capturing.into_delta();
        }
        self.capture
            .items
            .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(true)
    }

    /// Marks the changes as described: a journal in the bucket or in the spool holds them.
    pub(super) fn written(mut self) {
        self.is_written = true;
    }
}

impl Deref for Taken {
    type Target = Capture;

    fn deref(&self) -> &Capture {
        &self.capture
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let usage = &self.volume.usage;
        if self.is_written {
            return usage.landed(&self.capture.unsent);
        }
        usage.stayed(&self.capture.unsent);
        if let Ok(state) = self.volume.view.state() {
            if self.is_reading {
                let ended = state.lock().end_capture();
                let delta = ended.map(|capturing| capturing.into_delta());
                self.capture.delta = delta.unwrap_or_default();
            }
            let delta = std::mem::take(&mut self.capture.delta);
            state.lock().return_delta(self.capture.moment.epoch, delta);
        }
    }
}

/// The changes as of one moment. Some contents are still to be looked up in the tree.
#[derive(Debug)]
pub struct Capture {
    /// The moment.
    pub moment: Moment,
    /// The places that changed.
    delta: Delta,
    /// Bytes written to files that these changes contain.
    unsent: Leaving,
    items: Vec<(Key, Option<Item>)>,
    ranges: Vec<CapturedRange>,
    next_inode: u64,
    /// The limits.
    most: Most,
}

/// What a journal carries at most.
#[derive(Debug, Clone, Copy)]
struct Most {
    /// Changed items.
    items: usize,
    /// Parts of file contents.
    parts: usize,
    /// Bytes of file contents.
    bytes: u64,
    /// Bytes of file contents if some cannot be stored, because the tree is not read in time.
    unread: u64,
}

/// The data that a journal would carry.
enum Riding {
    /// Nothing changed since the last journal or commit.
    Nothing,
    /// More items changed than a journal should carry.
    TooMuch,
    /// Changes, with the data of files as (bytes, inode), the largest first. A byte that both
    /// layers hold counts twice. No files if all dirty data is small enough for a journal.
    Files(Vec<(u64, u64)>),
}

impl Volume {
    /// Takes the changes since the last journal. Data that is too much for a journal is stored
    /// first.
    ///
    /// Cancel safety: dropped, it has taken nothing.
    ///
    /// # Errors
    /// As [`Volume::flush_file`].
    pub(super) async fn capture(self: &Arc<Self>) -> Result<Captured, VolumeError> {
        self.capture_up_to(Most {
            items: ITEMS_MAX,
            parts: PARTS_MAX,
            bytes: LATE_BYTES_MAX,
            unread: UNREAD_BYTES_MAX,
        })
        .await
    }

    /// Takes the changes for a journal that must carry everything, because no commit follows. The
    /// number of items and parts is not limited.
    ///
    /// Cancel safety: dropped, it has taken nothing.
    ///
    /// # Errors
    /// As [`Volume::flush_file`].
    pub(super) async fn capture_all(self: &Arc<Self>) -> Result<Captured, VolumeError> {
        self.capture_up_to(Most {
            items: usize::MAX,
            parts: usize::MAX,
            bytes: u64::MAX,
            unread: LAST_UNREAD_BYTES_MAX,
        })
        .await
    }

    async fn capture_up_to(self: &Arc<Self>, mut most: Most) -> Result<Captured, VolumeError> {
        // Without a spool a journal waits for the store anyway.
        let is_brief = self.ingest.spool().is_some();
        let mut are_all_read = true;
        for attempt in 1.. {
            let epoch = self.view.state()?.lock().active.epoch;
            let files = match self.riding(most.items)? {
                Riding::Nothing => return Ok(Captured::Nothing),
                Riding::TooMuch => return Ok(Captured::TooMuch),
                Riding::Files(files) => files,
            };
            let bytes: u64 = files.iter().map(|(bytes, _)| bytes).sum();
            let late = match (are_all_read, attempt > ATTEMPTS) {
                (false, _) => most.unread,
                (true, true) => LATE_BYTES_MAX,
                (true, false) => RIDING_BYTES,
            };
            if attempt > ATTEMPTS && bytes > late {
                return Ok(Captured::TooMuch);
            }
            if bytes <= late {
                return self.take(most).await;
            }
            if !are_all_read {
                return Ok(Captured::TooMuch);
            }
            let mut left = bytes;
            let too_much = files.into_iter().take_while(|(bytes, _)| {
                let is_too_much = left > RIDING_BYTES / 2;
                left -= bytes;
                is_too_much
            });
            let inodes = too_much.map(|(_, inode)| inode).collect();
            are_all_read = self.flush_all(inodes, epoch, is_brief).await?;
            if !are_all_read {
                most.bytes = most.bytes.max(most.unread + LATE_BYTES_MAX);
            }
        }
        Ok(Captured::TooMuch)
    }

    /// Stores the dirty bytes of files. If `is_brief`, returns false if some of them were left,
    /// because the tree was not read in time.
    async fn flush_all(
        &self,
        inodes: Vec<u64>,
        epoch: u64,
        is_brief: bool,
    ) -> Result<bool, VolumeError> {
        // Boxed, since futures of thousands of files would take megabytes before the first one runs.
        let flushes = inodes.into_iter().map(|inode| {
            let flush = async move {
                match is_brief {
                    true => self.flush_briefly(inode, epoch).await,
                    false => self
                        .flush_file(inode, epoch, Reach::All)
                        .await
                        .map(|()| true),
                }
            };
            flush.boxed()
        });
        stream::iter(flushes)
            .buffer_unordered(FLUSHES_AT_ONCE)
            .try_fold(true, |all, one| async move { Ok(all && one) })
            .await
    }

    /// Takes the changes as of one moment.
    ///
    /// Cancel safety: dropped, it has taken nothing.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] if the view is frozen.
    async fn take(self: &Arc<Self>, most: Most) -> Result<Captured, VolumeError> {
        let mut taken = {
            let mut state = self.view.state()?.lock();
            // Other operations ran since the data was summed up.
            if !state.is_unjournaled() {
                return Ok(Captured::Nothing);
            }
            if item_count(&state) > most.items {
                return Ok(Captured::TooMuch);
            }
            Taken::begin(self, &mut state, most)
        };
        match taken.read().await? {
            true => Ok(Captured::Changes(taken)),
            false => Ok(Captured::TooMuch),
        }
    }

    /// Returns the data that a journal would carry now. Operations go on meanwhile, so it is the
    /// sum of no single moment.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] if the view is frozen.
    fn riding(&self, items_max: usize) -> Result<Riding, VolumeError> {
        let state = self.view.state()?;
        let mut inodes = {
            let state = state.lock();
            if !state.is_unjournaled() {
                return Ok(Riding::Nothing);
            }
            if item_count(&state) > items_max {
                return Ok(Riding::TooMuch);
            }
            let dirty = state.layers(Scope::Live).map(Layer::data_bytes);
            if dirty.sum::<u64>() <= RIDING_BYTES {
                return Ok(Riding::Files(Vec::new()));
            }
            let layers = state.layers(Scope::Live);
            let files = layers.flat_map(|layer| layer.delta.changed_files());
            files.collect::<Vec<u64>>()
        };
        inodes.sort_unstable();
        inodes.dedup();
        let mut files = Vec::new();
        for inodes in inodes.chunks(FILES_AT_ONCE) {
            let mut state = state.lock();
            let sized = inodes
                .iter()
                .map(|inode| (riding_of(&state, *inode), *inode));
            files.extend(sized.filter(|(bytes, _)| *bytes > 0));
            state.give_way();
        }
        files.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Riding::Files(files))
    }

    /// Notes that a journal entry with fixed bytes carries the changes. The next entry begins after
    /// them.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] if the view is frozen.
    pub(super) fn is_settled(&self, capture: &Capture) -> Result<(), VolumeError> {
        self.view.state()?.lock().settled = capture.moment.last;
        Ok(())
    }

    /// Looks up the stored contents of the changes, and returns their description; none if there
    /// are too many parts. The packs of these contents may not be in the bucket yet.
    ///
    /// # Errors
    /// Those of reading the tree; [`VolumeError::Tree`] if extents are malformed.
    pub(super) async fn describe(
        &self,
        capture: &Capture,
    ) -> Result<Option<Operations>, VolumeError> {
        let mut contents = Vec::new();
        for captured in &capture.ranges {
            let parts_max = capture.most.parts;
            let is_all = self
                .describe_range(captured, parts_max, &mut contents)
                .await?;
            if !is_all || contents.len() > parts_max {
                return Ok(None);
            }
        }
        Ok(Some(Operations {
            dropped: capture.delta.dropped.iter().copied().collect(),
            items: capture.items.clone(),
            contents,
            next_inode: capture.next_inode,
            totals: capture.moment.totals,
        }))
    }

    /// Adds the contents of a range; returns false if it has too many parts.
    async fn describe_range(
        &self,
        captured: &CapturedRange,
        parts_max: usize,
        contents: &mut Vec<Piece>,
    ) -> Result<bool, VolumeError> {
        let inode = captured.inode;
        let mut at = captured.range.start;
        let end = captured.range.end;
        let below = match &captured.below {
            Some(below) => self.below(inode, below, parts_max).await?,
            None => None,
        };
        if captured.below.is_some() != below.is_some() {
            return Ok(false);
        }
        let mut push = |offset, content| {
            contents.push(Piece {
                inode,
                offset,
                content,
            });
        };
        for (range, part) in captured
            .parts
            .iter()
            .map(|(range, part)| (range.clone(), Some(part)))
            .chain([(end..end, None)])
        {
            if let (true, Some(below)) = (at < range.start, &below) {
                below.pieces(at..range.start, &mut push)?;
            }
            at = range.end;
            match part {
                Some(Part::Data(bytes)) => push(range.start, Content::Data(bytes.clone())),
                Some(Part::Zero) => push(range.start, Content::Zero(range.end - range.start)),
                Some(Part::Swapped(part)) => {
                    for bytes in swap::read_in_time(vec![part.clone()]).await? {
                        push(range.start, Content::Data(bytes));
                    }
                }
                None => {}
            }
        }
        Ok(true)
    }

    async fn below(
        &self,
        inode: u64,
        (changes, inline): &(ExtentChanges, Found),
        parts_max: usize,
    ) -> Result<Option<Below>, VolumeError> {
        let extents = self.view.extents_among(changes.clone(), parts_max).await?;
        let Some(extents) = extents else {
            return Ok(None);
        };
        let inline = match extents.is_empty() {
            true => self.view.inline(inode, inline.clone()).await?,
            false => None,
        };
        Ok(Some(Below {
            inode,
            extents,
            inline,
        }))
    }
}

/// The stored contents of a range.
struct Below {
    inode: u64,
    extents: Vec<extents::Placed>,
    inline: Option<bytes::Bytes>,
}

impl Below {
    /// Pushes the contents of `range` without a gap. A hole is pushed as zeroes.
    fn pieces(
        &self,
        range: Range<u64>,
        push: &mut impl FnMut(u64, Content),
    ) -> Result<(), VolumeError> {
        let mut at = range.start;
        if let Some(bytes) = &self.inline {
            let to = range.end.min(bytes.len() as u64);
            if at < to {
                push(at, Content::Data(bytes.slice(at as usize..to as usize)));
                at = to;
            }
        }
        let malformed = |error| VolumeError::Tree(format!("inode {}: {error}", self.inode));
        let stored = extents::clone_range(&self.extents, range.clone(), range.start);
        for placed in stored.map_err(malformed)? {
            if at < placed.offset {
                push(at, Content::Zero(placed.offset - at));
            }
            at = placed.end();
            push(placed.offset, Content::Stored(placed.extent));
        }
        if at < range.end {
            push(at, Content::Zero(range.end - at));
        }
        Ok(())
    }
}

fn item_count(state: &VolumeState) -> usize {
    state
        .layers(Scope::Live)
        .map(|layer| layer.delta.items.len())
        .sum()
}

/// Returns the bytes of a file that a journal would carry now. A byte that both layers hold counts
/// twice.
fn riding_of(state: &VolumeState, inode: u64) -> u64 {
    let layers: Vec<_> = state.layers(Scope::Live).collect();
    let dirty = |range: Range<u64>| {
        let data = layers.iter().filter_map(|layer| layer.data.get(&inode));
        data.map(|dirty| dirty.data_bytes_in(range.clone()))
            .sum::<u64>()
    };
    let changed = layers
        .iter()
        .filter_map(|layer| layer.delta.contents_of(inode));
    changed.flat_map(Ranges::iter).map(dirty).sum()
}
