//! Describing what was changed since the last journal, as of one moment.
//!
//! Owns: which bytes ride inside a journal and which go to packs ahead of it. Does not own: what counts as changed (`delta`), the journal's bytes
//! (`operations`) and its way into the bucket (`journal`).
//!
//! All that must be of one moment is taken under the state's lock; what lies in the tree never changes, and is looked up after.

use std::ops::Range;

use futures::stream::{self, StreamExt, TryStreamExt};

use crate::extents;
use crate::tree::item::Item;
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::commit::FLUSHES_AT_ONCE;
use crate::volume::delta::Delta;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::flush::Reach;
use crate::volume::operations::{Content, Operations, Piece};
use crate::volume::state::{Changes, Found, Scope, State, Totals};
use crate::volume::view::extent_keys;

/// So much data rides inside a journal, in bytes; what is more goes to packs ahead of it.
pub const RIDING_BYTES: u64 = 1024 * 1024;

/// While writers go on, data that comes in after the rest was stored rides along up to this, in bytes.
const LATE_BYTES_MAX: u64 = 8 * RIDING_BYTES;

/// Changed items beyond this number are committed instead of journaled: a tree takes less than a list of them.
const ITEMS_MAX: usize = 1 << 15;

/// How often data is stored ahead before what has come meanwhile is committed instead.
const ATTEMPTS: u32 = 3;

/// What a journal is to describe.
#[derive(Debug)]
pub enum Captured {
    /// Nothing was changed since the last journal or commit.
    Nothing,
    /// More than a journal should carry.
    TooMuch,
    /// This.
    Changes(Box<Capture>),
}

/// Changes as of one moment, partly still in the tree.
#[derive(Debug)]
pub struct Capture {
    /// The number of the operation that they are.
    pub operation: u64,
    /// The layer that was the active one.
    epoch: u64,
    /// The places.
    delta: Delta,
    /// Bytes written to files that it holds.
    unsent: Vec<(u64, u64)>,
    items: Vec<(Key, Option<Item>)>,
    ranges: Vec<CapturedRange>,
    totals: Totals,
    next_inode: u64,
}

/// A range of a file: dirty parts, and what is needed to find the rest.
#[derive(Debug)]
struct CapturedRange {
    inode: u64,
    range: Range<u64>,
    parts: Vec<(Range<u64>, Part)>,
    below: Option<(Changes, Found)>,
}

impl Volume {
    /// Takes what was changed since the last journal; stores data first that is too much to ride inside one.
    pub(super) async fn capture(&self) -> Result<Captured, VolumeError> {
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
                if item_count(&state) > ITEMS_MAX || (attempt > ATTEMPTS && bytes > late) {
                    return Ok(Captured::TooMuch);
                }
                if bytes <= late {
                    return Ok(Captured::Changes(Box::new(self.take(&mut state))));
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

    fn take(&self, state: &mut State) -> Capture {
        let unsent = self.usage.cut();
        let delta = state.take_delta();
        let mut items = Vec::with_capacity(delta.items.len());
        for key in &delta.items {
            match state.find(Scope::Live, key) {
                Found::Item(item) => items.push((key.clone(), Some(item))),
                Found::Absent => items.push((key.clone(), None)),
                // A commit has carried it away.
                Found::Below(_) => {}
            }
        }
        let places = delta.contents.iter();
        let ranges = places.flat_map(|(inode, ranges)| ranges.iter().map(|range| (*inode, range)));
        Capture {
            operation: state.operation,
            epoch: state.active.epoch,
            items,
            ranges: ranges
                .map(|(inode, range)| capture_range(state, inode, range))
                .collect(),
            totals: state.totals,
            next_inode: self.inode_mark(),
            delta,
            unsent,
        }
    }

    /// The journal did not come about: what it was to describe is described by a later one.
    pub(super) fn give_back(&self, capture: Capture) -> Result<(), VolumeError> {
        self.usage.stayed(&capture.unsent);
        self.view
            .state()?
            .lock()
            .return_delta(capture.epoch, capture.delta);
        Ok(())
    }

    /// The journal holds what it was to describe.
    pub(super) fn is_written(&self, capture: &Capture) {
        self.usage.landed(&capture.unsent);
    }

    /// Looks up what is stored. The packs that it is in may not be in the bucket yet.
    pub(super) async fn describe(&self, capture: &Capture) -> Result<Operations, VolumeError> {
        let mut contents = Vec::new();
        for captured in &capture.ranges {
            self.describe_range(captured, &mut contents).await?;
        }
        Ok(Operations {
            dropped: capture.delta.dropped.iter().copied().collect(),
            items: capture.items.clone(),
            contents,
            next_inode: capture.next_inode,
            totals: capture.totals,
        })
    }

    async fn describe_range(
        &self,
        captured: &CapturedRange,
        contents: &mut Vec<Piece>,
    ) -> Result<(), VolumeError> {
        let inode = captured.inode;
        let mut at = captured.range.start;
        let end = captured.range.end;
        let below = match &captured.below {
            Some(below) => Some(self.below(captured, below).await?),
            None => None,
        };
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
        Ok(())
    }

    async fn below(
        &self,
        captured: &CapturedRange,
        (changes, inline): &(Changes, Found),
    ) -> Result<Below, VolumeError> {
        let CapturedRange { inode, range, .. } = captured;
        let extents = self
            .view
            .extents_among(changes.clone(), *inode, range.clone())
            .await?;
        let inline = match extents.is_empty() {
            true => self.view.inline(*inode, inline.clone()).await?,
            false => None,
        };
        Ok(Below {
            inode: *inode,
            extents,
            inline,
        })
    }
}

/// What is stored of a range.
struct Below {
    inode: u64,
    extents: Vec<extents::Placed>,
    inline: Option<bytes::Bytes>,
}

impl Below {
    /// What `range` holds, without a gap: a hole is so many zeroes.
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

fn capture_range(state: &State, inode: u64, range: Range<u64>) -> CapturedRange {
    let mut parts = state.dirty_parts(Scope::Live, inode, range.clone());
    parts.sort_unstable_by_key(|(part, _)| part.start);
    let covered: u64 = parts.iter().map(|(part, _)| part.end - part.start).sum();
    let is_all = covered == range.end - range.start;
    let below = (!is_all).then(|| {
        let keys = extent_keys(inode, &range);
        (
            state.changes(Scope::Live, &keys, usize::MAX),
            state.find(Scope::Live, &Key::inline(inode)),
        )
    });
    CapturedRange {
        inode,
        range,
        parts,
        below,
    }
}

fn item_count(state: &State) -> usize {
    state
        .layers(Scope::Live)
        .map(|layer| layer.delta.items.len())
        .sum()
}

/// Data that would ride inside a journal now: bytes and file, the largest first. What two layers hold of one place counts twice.
fn riding(state: &State) -> Vec<(u64, u64)> {
    let mut files = Vec::new();
    let layers: Vec<_> = state.layers(Scope::Live).collect();
    for changed in &layers {
        for (inode, ranges) in &changed.delta.contents {
            let dirty = |range: Range<u64>| {
                let data = layers.iter().filter_map(|layer| layer.data.get(inode));
                data.map(|dirty| dirty.data_bytes_in(range.clone()))
                    .sum::<u64>()
            };
            let bytes: u64 = ranges.iter().map(dirty).sum();
            if bytes > 0 {
                files.push((bytes, *inode));
            }
        }
    }
    files.sort_unstable_by(|one, other| other.cmp(one));
    files
}
