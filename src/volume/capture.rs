//! The changes since the last journal, captured as of one moment.
//!
//! Owns: which bytes a journal carries and which are stored in packs before it. Does not own: the
//! record of changed places (`delta`), the journal's bytes (`operations`), their upload
//! (`journal`).
//!
//! Everything that must be of one moment is taken under the state's lock. Contents of the tree
//! never change, so they are looked up afterwards.

use std::ops::{Deref, Range};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};

use crate::extents;
use crate::tree::item::Item;
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::delta::Delta;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::flush::{FLUSHES_AT_ONCE, Reach};
use crate::volume::operations::{Content, Operations, Piece};
use crate::volume::state::{ExtentChanges, Found, Scope, Totals, VolumeState};
use crate::volume::usage::Leaving;

/// Maximum number of file bytes that a journal carries. Further bytes are stored in packs before
/// it.
pub const RIDING_BYTES: u64 = 1024 * 1024;

/// Maximum number of file bytes that a journal carries after [`ATTEMPTS`] flushes, while writers go
/// on. It includes bytes that were written after the others were stored.
const LATE_BYTES_MAX: u64 = 8 * RIDING_BYTES;

/// Maximum number of changed items in a journal. More are committed, because a tree takes less
/// space than a list of them.
const ITEMS_MAX: usize = 1 << 15;

/// Maximum number of parts of file contents in a journal. More are committed, because each part is
/// held in memory until the journal is written.
const PARTS_MAX: usize = 1 << 17;

/// Number of times that data is stored before a journal. If too much was written meanwhile, a
/// commit follows instead.
const ATTEMPTS: u32 = 3;

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
    is_written: bool,
}

impl Taken {
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
            let delta = std::mem::take(&mut self.capture.delta);
            state.lock().return_delta(self.capture.epoch, delta);
        }
    }
}

/// The changes as of one moment. Some contents are still to be looked up in the tree.
#[derive(Debug)]
pub struct Capture {
    /// The first operation that no earlier journal carries.
    pub first: u64,
    /// The number of the operation that these changes are. The operations from `first` up to it
    /// failed, and are part of these changes.
    pub last: u64,
    /// The epoch of the layer that was active.
    epoch: u64,
    /// The places that changed.
    delta: Delta,
    /// Bytes written to files that these changes contain.
    unsent: Leaving,
    items: Vec<(Key, Option<Item>)>,
    ranges: Vec<CapturedRange>,
    totals: Totals,
    next_inode: u64,
    /// Maximum number of parts of contents.
    parts_max: usize,
}

/// A range of a file: its dirty parts, and the layers' part of the rest.
#[derive(Debug)]
struct CapturedRange {
    inode: u64,
    range: Range<u64>,
    parts: Vec<(Range<u64>, Part)>,
    below: Option<(ExtentChanges, Found)>,
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
        self.capture_up_to(ITEMS_MAX, PARTS_MAX).await
    }

    /// Takes the changes for a journal that must carry everything, because no commit follows. The
    /// number of items and parts is not limited.
    ///
    /// Cancel safety: dropped, it has taken nothing.
    ///
    /// # Errors
    /// As [`Volume::flush_file`].
    pub(super) async fn capture_all(self: &Arc<Self>) -> Result<Captured, VolumeError> {
        self.capture_up_to(usize::MAX, usize::MAX).await
    }

    async fn capture_up_to(
        self: &Arc<Self>,
        items_max: usize,
        parts_max: usize,
    ) -> Result<Captured, VolumeError> {
        for attempt in 1.. {
            let (files, epoch) = {
                let mut state = self.view.state()?.lock();
                if !state.is_unjournaled() {
                    return Ok(Captured::Nothing);
                }
                let files = riding(&state);
                let bytes: u64 = files.iter().map(|(bytes, _)| bytes).sum();
                let late = if attempt > ATTEMPTS {
                    LATE_BYTES_MAX
                } else {
                    RIDING_BYTES
                };
                if item_count(&state) > items_max || (attempt > ATTEMPTS && bytes > late) {
                    return Ok(Captured::TooMuch);
                }
                if bytes <= late {
                    let Some(capture) = self.take(&mut state, parts_max) else {
                        return Ok(Captured::TooMuch);
                    };
                    return Ok(Captured::Changes(Taken {
                        volume: Arc::clone(self),
                        capture: Box::new(capture),
                        is_written: false,
                    }));
                }
                (files, state.active.epoch)
            };
            let mut left: u64 = files.iter().map(|(bytes, _)| bytes).sum();
            let too_much = files.into_iter().take_while(|(bytes, _)| {
                let is_too_much = left > RIDING_BYTES / 2;
                left -= bytes;
                is_too_much
            });
            let flushes = too_much.map(|(_, inode)| self.flush_file(inode, epoch, Reach::All));
            stream::iter(flushes.collect::<Vec<_>>())
                .buffer_unordered(FLUSHES_AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
        Ok(Captured::TooMuch)
    }

    /// Takes the changes; none if their contents have too many parts.
    fn take(&self, state: &mut VolumeState, parts_max: usize) -> Option<Capture> {
        let delta = state.take_delta();
        let Some(ranges) = capture_ranges(state, &delta, parts_max) else {
            state.return_delta(state.active.epoch, delta);
            return None;
        };
        let mut items = Vec::with_capacity(delta.items.len());
        for key in &delta.items {
            match state.find(Scope::Live, key) {
                Found::Item(item) => items.push((key.clone(), Some(item))),
                Found::Absent => items.push((key.clone(), None)),
                // A commit removed the layer that held it, so it is in the tree.
                Found::Below(_) => {}
            }
        }
        Some(Capture {
            first: state.settled + 1,
            last: state.operation,
            parts_max,
            epoch: state.active.epoch,
            items,
            ranges,
            totals: state.totals,
            next_inode: self.inode_mark(),
            delta,
            unsent: self.usage.cut(),
        })
    }

    /// Notes that a journal entry with fixed bytes carries the changes. The next entry begins after
    /// them.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`] if the view is frozen.
    pub(super) fn is_settled(&self, capture: &Capture) -> Result<(), VolumeError> {
        self.view.state()?.lock().settled = capture.last;
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
            let parts_max = capture.parts_max;
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
            totals: capture.totals,
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

/// Returns the layers' part of the contents that `delta` names; none if there are too many parts.
fn capture_ranges(
    state: &VolumeState,
    delta: &Delta,
    parts_max: usize,
) -> Option<Vec<CapturedRange>> {
    let mut captured = Vec::new();
    let mut parts_left = parts_max;
    for (inode, ranges) in delta.contents() {
        for range in ranges.iter() {
            let (parts, below) = state.contents(Scope::Live, inode, &range);
            let changes = below
                .as_ref()
                .map_or(0, |(below, _)| below.changes.items.len());
            parts_left = parts_left.checked_sub(parts.len() + changes + 1)?;
            captured.push(CapturedRange {
                inode,
                range,
                parts,
                below,
            });
        }
    }
    Some(captured)
}

fn item_count(state: &VolumeState) -> usize {
    state
        .layers(Scope::Live)
        .map(|layer| layer.delta.items.len())
        .sum()
}

/// Returns the data that a journal would carry now, as (bytes, inode), the largest first. A byte
/// that both layers hold counts twice.
fn riding(state: &VolumeState) -> Vec<(u64, u64)> {
    let mut files = Vec::new();
    let layers: Vec<_> = state.layers(Scope::Live).collect();
    for changed in &layers {
        for (inode, ranges) in changed.delta.contents() {
            let dirty = |range: Range<u64>| {
                let data = layers.iter().filter_map(|layer| layer.data.get(&inode));
                data.map(|dirty| dirty.data_bytes_in(range.clone()))
                    .sum::<u64>()
            };
            let bytes: u64 = ranges.iter().map(dirty).sum();
            if bytes > 0 {
                files.push((bytes, inode));
            }
        }
    }
    files.sort_unstable_by(|one, other| other.cmp(one));
    files
}
