//! Flushing: dirty bytes of a file become extents.
//!
//! Owns: the choice of the runs to store, how far they are widened so that equal content is split
//! equally, and the replacement of older extents. Does not own: splitting and storing (the
//! chunker), when to flush (`writeback`, `commit`).
//!
//! A file is flushed by one task at a time (`Volume::flushing`), the older layer first: the extents
//! of a layer are cut to fit everything below it.

use std::ops::Range;

use bkfs_chunker::extent::{StoredExtent, StoredRun};
use bkfs_chunker::ingest::{Profile, detect};
use bytes::Bytes;

use crate::extents::{self, Placed};
use crate::tree::item::{Attributes, Extent, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::Volume;
use crate::volume::dirty::Part;
use crate::volume::error::VolumeError;
use crate::volume::neighbours::{near, widen};
use crate::volume::state::{Scope, VolumeState};
use crate::volume::swapping::{ReadBack, Storing};

/// Maximum size of a file that the tree holds, in bytes. A chunk of its own would cost more in
/// names and frames than it holds.
pub const INLINE_BYTES: u64 = 1024;

/// Number of files that are flushed concurrently. It keeps all workers and uploads busy with small
/// files.
pub(super) const FLUSHES_AT_ONCE: usize = 16;

/// Length of the parts in which a run is stored, in bytes. A streaming flush waits until a run is
/// as long.
pub const RUN_BYTES: u64 = 8 * 1024 * 1024;

/// Number of pieces beyond which runs of a file that lie near each other are stored together. An
/// extent for each run would cost more memory, time and tree space than the bytes between them.
const PIECES_APART_MAX: usize = 512;

/// Maximum distance between two such runs, in bytes, if the second is not short. No page of a
/// database is read because of its neighbours.
const NEAR_BYTES: u64 = 4 * 1024;

/// Maximum distance between two such runs, in bytes, if the second is short.
const SHORT_NEAR_BYTES: u64 = 16 * 1024;

/// Length below which a run is short, in bytes.
const SHORT_BYTES: u64 = 4 * 1024;

/// Maximum number of extents that are removed in one step when a range is emptied. It bounds
/// memory, whatever the size of the hole.
const HOLE_EXTENTS: usize = 4096;

/// The part of a file to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only whole segments of long runs: the writer is expected to continue.
    Streaming,
    /// Only ranges that read as zeroes, so that the allocated bytes are known. Data may stay dirty.
    Holes,
    /// Everything.
    All,
    /// Everything, until memory is not short any more.
    Relief,
    /// Everything, as extents even where the tree would hold it.
    Extents,
}

/// A run that was chosen for storing.
struct Picked<'a> {
    range: Range<u64>,
    /// The parts, for data; none for zeroes.
    data: Option<Vec<Part>>,
    /// The end of the last run that lies near. This run may be stored together with the runs up to
    /// there and the bytes between them.
    near_end: u64,
    /// True if the run continues after the chosen range.
    more: bool,
    /// True if it must not be matched with stored content.
    is_private: bool,
    stamp: u64,
    attributes: Attributes,
    /// The note that the chosen range is being stored.
    _storing: Option<Storing<'a>>,
    /// The charge for copies of its neighbours against the memory limit.
    _read_back: Option<ReadBack<'a>>,
}

impl Volume {
    /// Stores the dirty bytes of `inode` in the layer of `epoch`, as far as `reach` says, after all
    /// those in an older layer.
    ///
    /// Cancel safety: dropped, it leaves the bytes dirty that no extent stands for yet; nothing
    /// refers to the blobs that it stored for them.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if bytes cannot be read or stored; [`VolumeError::Tree`] if
    /// nodes or extents are malformed; [`VolumeError::Malformed`] if an item of the inode is, or if
    /// no layer has its attributes; [`VolumeError::ReadOnly`] if the view is frozen.
    pub async fn flush_file(
        &self,
        inode: u64,
        epoch: u64,
        reach: Reach,
    ) -> Result<(), VolumeError> {
        let lock = self.flushing.lock_for(inode);
        let _flushing = lock.lock().await;
        self.flush_layers(inode, epoch, reach).await
    }

    /// Stores all dirty bytes of `inode` as [`Volume::flush_file`] does. Returns false if the tree is
    /// not read in time, or another task stores the file.
    ///
    /// Cancel safety and errors: as [`Volume::flush_file`].
    pub(super) async fn flush_briefly(&self, inode: u64, epoch: u64) -> Result<bool, VolumeError> {
        let lock = self.flushing.lock_for(inode);
        let Some(_flushing) = self.brief_reads.wait(lock.lock()).await else {
            return Ok(false);
        };
        if !self.is_tree_read(inode).await? {
            return Ok(false);
        }
        let flushed = self.flush_layers(inode, epoch, Reach::All).await;
        flushed.map(|()| true)
    }

    /// Reads what is needed to store all dirty bytes of a file. Returns false if a part of it is not
    /// read in time. Some bytes stored, and the rest not, would be worse than nothing: a journal
    /// that carries the rest needs the tree for what lies between.
    async fn is_tree_read(&self, inode: u64) -> Result<bool, VolumeError> {
        let scope = Scope::Live;
        let (runs, size) = {
            let state = self.view.state()?.lock();
            let data = state.layers(scope);
            let data = data.filter_map(|layer| layer.data.get(&inode));
            let runs = data.flat_map(|ranges| ranges.runs_from(0));
            let attributes = state.attributes(scope, inode);
            let size = attributes.map_or(0, |attributes| attributes.size_bytes);
            (runs.collect::<Vec<_>>(), size)
        };
        if size <= INLINE_BYTES {
            let contents = Box::pin(self.view.read(scope, inode, 0..size));
            return Ok(self.brief_reads.read(contents).await?.is_some());
        }
        let inline = Key::inline(inode);
        let inline = Box::pin(self.view.item(scope, &inline));
        if self.brief_reads.read(inline).await?.is_none() {
            return Ok(false);
        }
        for (run, is_data) in runs {
            let read = Box::pin(async {
                match is_data {
                    true => self.view.extents(scope, inode, run).await.map(drop),
                    false => self.hole_step(inode, scope, run).await.map(drop),
                }
            });
            if self.brief_reads.read(read).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn flush_layers(&self, inode: u64, epoch: u64, reach: Reach) -> Result<(), VolumeError> {
        let older = self
            .view
            .state()?
            .lock()
            .committing
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
        // A streaming flush leaves the incomplete end of each run; that run must not be chosen
        // again for ever.
        let mut skip_to = 0;
        let mut joins = reach != Reach::Streaming;
        while let Some(mut picked) = self.pick(inode, epoch, reach, skip_to)? {
            // The scope ends at this layer, so a cut or commit meanwhile changes nothing: nothing
            // above the layer is read.
            joins = joins
                && self
                    .take_near(inode, Scope::Until(epoch), &mut picked)
                    .await;
            let range = picked.range.clone();
            let is_stored = self.store_picked(inode, epoch, picked).await?;
            if !is_stored {
                skip_to = range.end;
            } else if reach == Reach::Streaming {
                // Skips the runs before it that were too short: each is looked at once.
                skip_to = range.start;
            }
            self.room.notify();
            if let Some(swapping) = &self.swapping {
                swapping.wanted();
            }
            if reach == Reach::Relief && !self.is_pressed() {
                break;
            }
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
            Reach::All | Reach::Relief | Reach::Extents => true,
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
        let storing = self.swapping.as_ref();
        let storing = storing.map(|file| file.storing(inode, (epoch, stamp), range.clone()));
        Ok(Some(Picked {
            more: range.end < run.end || reach == Reach::Streaming,
            data: is_data.then(|| ranges.capture(range.clone())),
            near_end,
            range,
            is_private: ranges.is_private(),
            stamp,
            attributes,
            _storing: storing,
            _read_back: None,
        }))
    }

    /// Extends a chosen run by the runs near it, with the bytes between them. Returns false if those
    /// bytes cannot be read; then the run stays as it is.
    async fn take_near<'a>(&'a self, inode: u64, scope: Scope, picked: &mut Picked<'a>) -> bool {
        let range = picked.range.start..picked.near_end;
        if range == picked.range {
            return true;
        }
        let read_back = self.may_read_back(range.end - range.start).await;
        let read = Box::pin(self.view.read_to_store(scope, inode, range.clone()));
        let Some(data) = near(&self.brief_reads, inode, read).await else {
            return false;
        };
        let data = data.into_iter().map(Part::Data).collect();
        (picked.range, picked.data) = (range, Some(data));
        picked._read_back = Some(read_back);
        true
    }

    /// Stores a chosen run. Returns false if nothing of it could be stored yet.
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
        let (_read_back, data) = self.in_memory(data).await?;
        let profile = self.profile(inode, epoch, &picked.attributes, range.start, &data)?;
        let end = (!picked.more).then_some(picked.attributes.size_bytes);
        let widened = Box::pin(widen(&self.view, (inode, scope), profile, (&range, end)));
        // Without a spool the run waits for the store anyway.
        let widened = match self.ingest.spool() {
            Some(_) => near(&self.brief_reads, inode, widened).await,
            None => Some(widened.await?),
        };
        let (start, before, after) =
            widened.unwrap_or_else(|| (range.start, Vec::new(), Vec::new()));
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

    /// Returns the part of a hole that is emptied in one step: all of it, unless very many extents
    /// lie in it. The step has no limit in bytes, because a hole may be as long as a file can be.
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

    /// Applies a plan and forgets the dirty bytes that it replaces, in one step. So at no moment do
    /// these bytes count as allocated twice, or not at all.
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

    /// Puts `new` in place of the extents in the byte range `range`, in the layer of `epoch`.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`View::extents`](crate::volume::view::View::extents); [`VolumeError::Tree`] if extents
    /// are malformed; [`VolumeError::ReadOnly`] if the view is frozen.
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

    /// Returns the plan for [`place_extents`] to put `new` in place of the extents in `range`.
    ///
    /// # Errors
    /// [`VolumeError::Tree`] if the extents are malformed; otherwise the failure to read them.
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

    /// Returns how the file is split: as before, or as its name or its first bytes suggest.
    ///
    /// # Errors
    /// That the volume cannot be changed.
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

    /// Stores a small file in the tree, or moves a file out of the tree that has grown too long for
    /// it. Returns true if nothing else is to be stored.
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
        if size > INLINE_BYTES || !matches!(reach, Reach::All | Reach::Relief) {
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
            _ => (self.view.read_to_store(scope, inode, 0..size).await?).concat(),
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

    /// Makes the contents of a small file dirty bytes again, below later writes.
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

/// Returns the end of the last of the `following` runs of data that can be stored together with
/// `run`: each lies near the one before, and all of them fit in [`RUN_BYTES`].
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

/// The extents to set and to remove.
pub(super) struct ExtentPlan {
    changes: Vec<extents::Change>,
    /// The change of the allocated bytes.
    growth: i64,
}

/// Applies a plan in the layer of `epoch`, unless the layer or the inode is gone.
pub(super) fn place_extents(state: &mut VolumeState, inode: u64, epoch: u64, plan: ExtentPlan) {
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

/// Ends the list of covered ranges in [`Volume::move_out`].
static END: Part = Part::Zero;

/// Number of bytes at the start of a file that its kind is detected from.
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
