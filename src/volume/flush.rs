//! Turning dirty bytes of a file into extents.
//!
//! Owns: which runs are stored, how far they are widened so that equal content is cut equally, and how the result replaces older extents.
//! Does not own: cutting and storing (the chunker), when to flush (`data`, `commit`).
//!
//! One flush of a file at a time (`Volume::flushing`), older layer first: extents made in a layer are cut to fit everything below it.

use std::ops::Range;
use std::time::Duration;

use bkfs_chunker::extent::{StoredExtent, StoredRun};
use bkfs_chunker::ingest::{Profile, detect};
use bytes::Bytes;

use crate::extents::{self, Placed};
use crate::tree::item::{Attributes, Extent, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::room::Held;
use crate::volume::state::{Scope, State};

/// Files up to this size lie in the tree, in bytes: a chunk of their own would cost more in names and frames than they hold.
pub const INLINE_BYTES: u64 = 1024;

/// Page files are cut on this grid, in bytes (InnoDB's default page; two of PostgreSQL's).
const PAGE_BYTES: u64 = 16 * 1024;

/// A run is stored in parts of this size, in bytes; a streaming flush waits until it has as much.
pub const RUN_BYTES: u64 = 8 * 1024 * 1024;

/// A file with more pieces than this has its runs joined where they lie near each other: an extent
/// for each would cost more than what lies between, in memory, in time and in the tree.
const PIECES_APART_MAX: usize = 512;

/// How near that is, in bytes, for runs that are not short: no page of a database is read for the
/// sake of its neighbours.
const NEAR_BYTES: u64 = 4 * 1024;

/// How near that is for short ones, in bytes.
const SHORT_NEAR_BYTES: u64 = 16 * 1024;

/// Runs below this length are short, in bytes.
const SHORT_BYTES: u64 = 4 * 1024;

/// Extents that are removed in one go while a range is emptied: bounds memory, whatever the size of the hole.
const HOLE_EXTENTS: usize = 4096;

/// How long what lies between short runs is read for: storing these must not wait for a store that
/// is silent, where the spool would take them.
const NEAR_PATIENCE: Duration = Duration::from_secs(1);

/// How much of a file is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Whole segments of long runs only: the writer is expected to go on.
    Streaming,
    /// What reads as zeroes only, so that what is allocated is known. Data may stay dirty.
    Holes,
    /// Everything.
    All,
    /// Everything, and as extents even where the tree would hold it.
    Extents,
}

/// A run picked for storing.
struct Picked<'a> {
    range: Range<u64>,
    /// The buffers, for data; none for zeroes.
    data: Option<Vec<Bytes>>,
    /// Where more runs end that lie near: this one may be stored together with them, and with what
    /// lies between.
    near_end: u64,
    /// The run goes on behind the picked range.
    more: bool,
    /// It must not be matched with what is stored already.
    is_private: bool,
    stamp: u64,
    attributes: Attributes,
    /// What copies of its neighbours take of the memory.
    _held: Option<Held<'a>>,
}

impl Volume {
    /// Stores dirty bytes of `inode` that were written before the cut that ended layer `epoch` (or will).
    pub async fn flush_file(
        &self,
        inode: u64,
        epoch: u64,
        reach: Reach,
    ) -> Result<(), VolumeError> {
        let lock = self.flushing.lock_for(inode);
        let _flushing = lock.lock().await;
        let older = self
            .view
            .state()?
            .lock()
            .sealing
            .as_ref()
            .map(|layer| layer.epoch);
        if let Some(older) = older.filter(|older| *older < epoch) {
            self.flush_layer(inode, older, Reach::All).await?;
        }
        self.flush_layer(inode, epoch, reach).await
    }

    async fn flush_layer(&self, inode: u64, epoch: u64, reach: Reach) -> Result<(), VolumeError> {
        if self.store_inline(inode, epoch, reach).await? {
            return Ok(());
        }
        // A streaming flush leaves the incomplete end of each run: it must not be picked again for ever.
        let mut skip_to = 0;
        let mut joins = reach != Reach::Streaming;
        while let Some(mut picked) = self.pick(inode, epoch, reach, skip_to)? {
            // Whatever is cut and committed meanwhile: what lies above the layer is never looked
            // at.
            joins = joins
                && self
                    .take_near(inode, Scope::Until(epoch), &mut picked)
                    .await;
            let range = picked.range.clone();
            let is_stored = self.store_picked(inode, epoch, picked).await?;
            if !is_stored {
                skip_to = range.end;
            } else if reach == Reach::Streaming {
                // What was too short before it is looked at once.
                skip_to = range.start;
            }
            self.room.notify();
        }
        Ok(())
    }

    fn pick(
        &self,
        inode: u64,
        epoch: u64,
        reach: Reach,
        skip_to: u64,
    ) -> Result<Option<Picked<'_>>, VolumeError> {
        let mut state = self.view.state()?.lock();
        let stamp = state.stamp;
        let attributes = state.attributes(Scope::Until(epoch), inode);
        let Some(layer) = state.layer_mut(epoch) else {
            return Ok(None);
        };
        let Some(ranges) = layer.data.get_mut(&inode) else {
            return Ok(None);
        };
        let Some(attributes) = attributes else {
            return Err(VolumeError::Malformed { inode });
        };
        let is_wanted = |run: &Range<u64>, is_data: bool| match reach {
            Reach::Streaming => !is_data || run.end - run.start >= RUN_BYTES,
            Reach::Holes => !is_data,
            Reach::All | Reach::Extents => true,
        };
        let joins = ranges.pieces() > PIECES_APART_MAX;
        let mut runs = ranges.runs_from(skip_to);
        let Some((run, is_data)) = runs.find(|(run, is_data)| is_wanted(run, *is_data)) else {
            return Ok(None);
        };
        let end = if is_data {
            run.end.min(run.start + RUN_BYTES)
        } else {
            run.end
        };
        let near_end = match is_data && joins && end == run.end {
            true => end_of_near(&run, &mut runs),
            false => end,
        };
        drop(runs);
        let range = run.start..end;
        Ok(Some(Picked {
            more: range.end < run.end || reach == Reach::Streaming,
            data: is_data.then(|| ranges.capture(range.clone())),
            near_end,
            range,
            is_private: ranges.is_private(),
            stamp,
            attributes,
            _held: None,
        }))
    }

    /// Takes the runs near a picked one along, with what lies between. False if that cannot be
    /// read: then the run stays as it is.
    async fn take_near<'a>(&'a self, inode: u64, scope: Scope, picked: &mut Picked<'a>) -> bool {
        let range = picked.range.start..picked.near_end;
        if range == picked.range {
            return true;
        }
        let held = self.room.hold(range.end - range.start);
        let read = self.view.read(scope, inode, range.clone());
        match tokio::time::timeout(NEAR_PATIENCE, read).await {
            Ok(Ok(data)) => {
                (picked.range, picked.data) = (range, Some(data));
                picked._held = Some(held);
                true
            }
            Ok(Err(error)) => {
                tracing::debug!("inode {inode} is stored piece by piece: {error}");
                false
            }
            Err(_) => {
                tracing::debug!("inode {inode} is stored piece by piece: the store is slow");
                false
            }
        }
    }

    /// Stores a picked run; false if nothing of it could be stored yet.
    async fn store_picked(
        &self,
        inode: u64,
        epoch: u64,
        picked: Picked<'_>,
    ) -> Result<bool, VolumeError> {
        let scope = Scope::Until(epoch);
        let range = picked.range.clone();
        let Some(data) = picked.data else {
            let range = self.hole_step(inode, scope, range).await?;
            let plan = self.plan_extents(inode, scope, range.clone(), &[]).await?;
            self.settle_range(inode, epoch, plan, (range, picked.stamp))?;
            return Ok(true);
        };
        let profile = self.profile(inode, epoch, &picked.attributes, range.start, &data)?;
        let (start, before) = self.widen_left(inode, scope, profile, range.start).await?;
        let after = if picked.more {
            Vec::new()
        } else {
            self.widen_right(
                inode,
                scope,
                profile,
                range.end,
                picked.attributes.size_bytes,
            )
            .await?
        };
        let run: Vec<Bytes> = before.into_iter().chain(data).chain(after).collect();
        let (ingest, is_end) = (&self.ingest, !picked.more);
        let stored = match picked.is_private {
            false => ingest.store_run(profile, start, run, is_end).await?,
            true => ingest.store_run_anew(profile, start, run, is_end).await?,
        };
        let end = start + stored.consumed as u64;
        if end <= range.start {
            return Ok(false);
        }
        let new = new_extents(&stored);
        let plan = self.plan_extents(inode, scope, start..end, &new).await?;
        let forgotten = range.start..end.min(range.end);
        self.settle_range(inode, epoch, plan, (forgotten, picked.stamp))?;
        Ok(true)
    }

    /// As much of a hole as is emptied in one go: all of it, unless very many extents lie in it. Never counted in bytes, since a hole may be as long as a file can be.
    async fn hole_step(
        &self,
        inode: u64,
        scope: Scope,
        hole: Range<u64>,
    ) -> Result<Range<u64>, VolumeError> {
        let keys = key::extents_beginning(inode, hole.clone());
        match self.view.items(scope, keys, HOLE_EXTENTS).await?.next {
            None => Ok(hole),
            Some(next) => match next.parse() {
                Ok(KeyParts::Extent { offset, .. }) => Ok(hole.start..offset),
                _ => Err(VolumeError::Malformed { inode }),
            },
        }
    }

    /// Carries a plan out and forgets the dirty bytes that it stands for: at no moment does both or
    /// neither count as allocated.
    fn settle_range(
        &self,
        inode: u64,
        epoch: u64,
        plan: ExtentPlan,
        (range, stamp): (Range<u64>, u64),
    ) -> Result<(), VolumeError> {
        let mut state = self.view.state()?.lock();
        place_extents(&mut state, inode, epoch, plan);
        if let Some(layer) = state.layer_mut(epoch) {
            layer.with_data(inode, |ranges| ranges.forget(range, stamp));
        }
        Ok(())
    }

    /// Puts `new` in place of whatever extents lie in `range`, in the layer of `epoch`.
    pub async fn replace_extents(
        &self,
        inode: u64,
        epoch: u64,
        scope: Scope,
        range: Range<u64>,
        new: &[Placed],
    ) -> Result<(), VolumeError> {
        let plan = self.plan_extents(inode, scope, range, new).await?;
        let mut state = self.view.state()?.lock();
        place_extents(&mut state, inode, epoch, plan);
        Ok(())
    }

    /// What [`place_extents`] has to do to put `new` in place of whatever extents lie in `range`.
    pub(super) async fn plan_extents(
        &self,
        inode: u64,
        scope: Scope,
        range: Range<u64>,
        new: &[Placed],
    ) -> Result<ExtentPlan, VolumeError> {
        let existing = self.view.extents(scope, inode, range.clone()).await?;
        let malformed = |error| VolumeError::Tree(format!("inode {inode}: {error}"));
        let changes = extents::replace(&existing, range, new).map_err(malformed)?;
        let growth = extents::allocated_change(&existing, &changes);
        Ok(ExtentPlan { changes, growth })
    }

    /// Which way the file is cut: as it was, or as its name or first bytes say.
    pub(super) fn profile(
        &self,
        inode: u64,
        epoch: u64,
        attributes: &Attributes,
        offset: u64,
        data: &[Bytes],
    ) -> Result<Profile, VolumeError> {
        if let Some(profile) = Profile::from_number(attributes.profile) {
            return Ok(profile);
        }
        if offset != 0 {
            return Ok(Profile::Content);
        }
        let mut head = Vec::with_capacity(HEAD_BYTES);
        for buffer in data {
            head.extend_from_slice(&buffer[..buffer.len().min(HEAD_BYTES - head.len())]);
        }
        let profile = detect(b"", &head).unwrap_or(Profile::Content);
        let mut state = self.view.state()?.lock();
        state.adjust(inode, epoch, |attributes| {
            attributes.profile = profile as u8
        });
        Ok(profile)
    }

    /// Where the run must start so that it is cut as if the file had been written in one go, and the stored bytes before it.
    async fn widen_left(
        &self,
        inode: u64,
        scope: Scope,
        profile: Profile,
        start: u64,
    ) -> Result<(u64, Vec<Bytes>), VolumeError> {
        if start == 0 {
            return Ok((0, Vec::new()));
        }
        let mut from = start;
        let neighbours = self.view.extents(scope, inode, start - 1..start).await?;
        if let Some(placed) = neighbours.first() {
            // Only whole targets start where a segment starts; an extent that was cut since does not.
            if placed.extent.open && placed.extent.target_offset == 0 && placed.end() == start {
                from = placed.offset;
            }
        }
        if profile == Profile::Grid {
            from = from.min(start - start % PAGE_BYTES);
        }
        if from == start {
            return Ok((start, Vec::new()));
        }
        Ok((from, self.view.read(scope, inode, from..start).await?))
    }

    /// The rest of the last page of a page file, if the file goes on behind the run.
    async fn widen_right(
        &self,
        inode: u64,
        scope: Scope,
        profile: Profile,
        end: u64,
        size: u64,
    ) -> Result<Vec<Bytes>, VolumeError> {
        let to = end.next_multiple_of(PAGE_BYTES).min(size);
        if profile != Profile::Grid || to <= end {
            return Ok(Vec::new());
        }
        self.view.read(scope, inode, end..to).await
    }

    /// Keeps a small file in the tree, or moves one that has grown out of it. True if all is done.
    async fn store_inline(
        &self,
        inode: u64,
        epoch: u64,
        reach: Reach,
    ) -> Result<bool, VolumeError> {
        let scope = Scope::Until(epoch);
        let (attributes, stamp) = {
            let state = self.view.state()?.lock();
            (state.attributes(scope, inode), state.stamp)
        };
        let Some(attributes) = attributes else {
            return Ok(false);
        };
        let old = self.view.item(scope, &Key::inline(inode)).await?;
        let size = attributes.size_bytes;
        if size > INLINE_BYTES || reach != Reach::All {
            if let Some(Item::Inline(bytes)) = old {
                self.move_out(inode, epoch, scope, bytes)?;
            }
            return Ok(false);
        }
        if old.is_none() {
            let extents = key::extents_beginning(inode, 0..u64::MAX);
            if !self.view.items(scope, extents, 1).await?.items.is_empty() {
                return Ok(false);
            }
        }
        let contents = match size {
            0 => Vec::new(),
            _ => self.view.read(scope, inode, 0..size).await?.concat(),
        };
        let growth = size as i64 - old.as_ref().map_or(0, |item| inline_length(item) as i64);
        let mut state = self.view.state()?.lock();
        let Some(layer) = state.storing_layer(epoch, inode) else {
            return Ok(true);
        };
        let item = (size > 0).then(|| Item::Inline(Bytes::from(contents)));
        if item.is_some() || old.is_some() {
            layer.set(Key::inline(inode), item);
        }
        layer.with_data(inode, |ranges| ranges.forget(0..u64::MAX, stamp));
        state.adjust(inode, epoch, |attributes| {
            attributes.allocated_bytes = attributes.allocated_bytes.saturating_add_signed(growth);
        });
        Ok(true)
    }

    /// Makes the contents of a small file dirty bytes again, below what was written since.
    fn move_out(
        &self,
        inode: u64,
        epoch: u64,
        scope: Scope,
        bytes: Bytes,
    ) -> Result<(), VolumeError> {
        let length = bytes.len() as u64;
        let mut state = self.view.state()?.lock();
        let stamp = state.next_stamp();
        let mut covered = state.dirty_parts(scope, inode, 0..length);
        covered.sort_unstable_by_key(|(range, _)| range.start);
        let Some(layer) = state.storing_layer(epoch, inode) else {
            return Ok(());
        };
        let mut at = 0;
        let is_private = self.usage.is_private(inode);
        layer.with_data(inode, |ranges| {
            if is_private {
                ranges.set_private();
            }
            for (range, _) in covered
                .iter()
                .map(|(range, part)| (range.clone(), part))
                .chain([(length..length, &END)])
            {
                if at < range.start {
                    ranges.write(at, &bytes[at as usize..range.start as usize], stamp);
                }
                at = range.end;
            }
        });
        layer.set(Key::inline(inode), None);
        state.adjust(inode, epoch, |attributes| {
            attributes.allocated_bytes = attributes.allocated_bytes.saturating_sub(length);
        });
        Ok(())
    }
}

/// Where the last of the `following` runs of data ends that lies near the one before it, beginning
/// with `run`; as much as is stored in one go.
fn end_of_near(run: &Range<u64>, following: impl Iterator<Item = (Range<u64>, bool)>) -> u64 {
    let is_near = |end: u64, next: &Range<u64>| {
        let near = match next.end - next.start < SHORT_BYTES {
            true => SHORT_NEAR_BYTES,
            false => NEAR_BYTES,
        };
        next.start - end <= near && next.end - run.start <= RUN_BYTES
    };
    let mut end = run.end;
    for (next, _) in following.take_while(|(_, is_data)| *is_data) {
        if !is_near(end, &next) {
            break;
        }
        end = next.end;
    }
    end
}

/// Extents to be set and removed.
pub(super) struct ExtentPlan {
    changes: Vec<extents::Change>,
    /// By how much they change what is allocated, in bytes.
    growth: i64,
}

/// Carries a plan out in the layer of `epoch`, unless that or the inode is gone.
pub(super) fn place_extents(state: &mut State, inode: u64, epoch: u64, plan: ExtentPlan) {
    let Some(layer) = state.storing_layer(epoch, inode) else {
        return;
    };
    for (offset, extent) in plan.changes {
        layer.set(Key::extent(inode, offset), extent.map(Item::Extent));
    }
    state.adjust(inode, epoch, |attributes| {
        attributes.allocated_bytes = attributes
            .allocated_bytes
            .saturating_add_signed(plan.growth);
    });
}

/// Closes the list of covered ranges in [`Volume::move_out`].
static END: crate::volume::dirty::Part = crate::volume::dirty::Part::Zero;

/// Bytes of a file's beginning that its kind is read from.
const HEAD_BYTES: usize = 64 * 1024;

fn inline_length(item: &Item) -> u64 {
    match item {
        Item::Inline(bytes) => bytes.len() as u64,
        _ => 0,
    }
}

pub(super) fn new_extents(stored: &StoredRun) -> Vec<Placed> {
    let placed = |stored: &StoredExtent| {
        let target = stored.target?;
        let extent = Extent {
            length: stored.length,
            target,
            target_offset: 0,
            open: stored.open,
        };
        Some(Placed {
            offset: stored.offset,
            extent,
        })
    };
    stored.extents.iter().filter_map(placed).collect()
}
