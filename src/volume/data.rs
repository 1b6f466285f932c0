//! Operations on the contents of files: writing, zeroing, truncating, sharing.
//!
//! Owns: the effect of each operation on sizes, times and dirty ranges. Does not own: storing
//! (`flush`), reading (`view`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::extents::{self, MAX_FILE_BYTES};
use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::capturing::LiveState;
use crate::volume::error::VolumeError;
use crate::volume::flush::{INLINE_BYTES, RUN_BYTES, Reach, place_extents};
use crate::volume::mode;
use crate::volume::rescue;
use crate::volume::room::Pressure;
use crate::volume::state::Scope;
use crate::volume::transaction::{Step, Transaction};
use crate::volume::view::View;

/// Maximum number of bytes that one call of [`Volume::share`] shares.
pub const SHARE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Minimum length of a write that keeps its own buffer, in bytes. Shorter writes are collected with
/// their neighbours.
const SHARED_WRITE_BYTES: usize = 64 * 1024;

/// Options of a write.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Writes at the end of the file, and ignores the offset.
    pub append: bool,
    /// Clears set-user-id and set-group-id.
    pub kill_privileges: bool,
}

/// The source of shared bytes: a position in a file of this volume or of a snapshot.
pub struct Source {
    /// The view that the source is read through.
    pub view: View,
    /// The file.
    pub inode: u64,
    /// The offset of the first byte.
    pub offset: u64,
}

/// The modes of fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Only grows the file to the end of the range; does nothing with `keep_size`. The bucket has
    /// no space to reserve.
    Allocate {
        /// Keeps the size.
        keep_size: bool,
    },
    /// Zeroes the range; grows the file unless `keep_size`.
    Zero {
        /// Keeps the size.
        keep_size: bool,
    },
    /// Makes the range a hole.
    Punch,
}

impl Volume {
    /// Writes `data`, and returns the offset in bytes at which it was written.
    ///
    /// Cancel safety: dropped, it has written nothing.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`] beyond [`MAX_FILE_BYTES`]; [`VolumeError::IsDirectory`] or
    /// [`VolumeError::Invalid`] if the inode is no regular file; [`VolumeError::Stale`] if it is
    /// gone. As [`Volume::writable`] and [`View::transact`].
    pub async fn write(
        self: &Arc<Self>,
        inode: u64,
        offset: u64,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<u64, VolumeError> {
        self.writable_with(data.len() as u64).await?;
        let now = self.clock.now();
        let is_private = self.usage.is_private(inode);
        let length = data.len() as u64;
        let decide = |run: &mut Transaction<'_>| {
            let mut attributes = regular(run, inode)?;
            let offset = if options.append {
                attributes.size_bytes
            } else {
                offset
            };
            let end = offset
                .checked_add(length)
                .filter(|end| *end <= MAX_FILE_BYTES);
            let Some(end) = end else {
                return Err(VolumeError::TooLarge.into());
            };
            if options.kill_privileges {
                attributes.mode = mode::without_privileges(attributes.mode);
            }
            grow(&mut attributes, end);
            changed(run, inode, attributes, now);
            Ok(offset)
        };
        let write = |&place: &u64, state: &mut LiveState, stamp| {
            state.change_data(inode, place..place + length, |ranges| {
                if is_private {
                    ranges.set_private();
                }
                if data.len() < SHARED_WRITE_BYTES {
                    ranges.write(place, &data, stamp);
                } else {
                    ranges.write_shared(place, data.clone(), stamp);
                }
            });
        };
        let place = self.view.transact_with(decide, write).await?;
        self.wrote(inode, place..place + length);
        Ok(place)
    }

    /// Sets the size in bytes, as part of another operation's transaction.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] or [`VolumeError::Invalid`] if the inode is no regular file;
    /// [`VolumeError::TooLarge`] beyond [`MAX_FILE_BYTES`].
    pub fn resize(
        &self,
        run: &mut Transaction<'_>,
        inode: u64,
        attributes: &mut Attributes,
        size: u64,
        now: Timestamp,
    ) -> Step<()> {
        if !mode::is_regular(attributes.mode) {
            let directory = mode::is_directory(attributes.mode);
            let error = if directory {
                VolumeError::IsDirectory
            } else {
                VolumeError::Invalid
            };
            return Err(error.into());
        }
        if size > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge.into());
        }
        if size < attributes.size_bytes {
            run.zero(inode, size..attributes.size_bytes);
        }
        attributes.size_bytes = size;
        attributes.modified = now;
        attributes.changed = now;
        Ok(())
    }

    /// Performs fallocate(2) on a range in bytes.
    ///
    /// Cancel safety: dropped before the change, it has changed nothing; dropped later, it leaves
    /// the extents of a new hole to the next flush or commit.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`] if the range ends beyond [`MAX_FILE_BYTES`];
    /// [`VolumeError::IsDirectory`] or [`VolumeError::Invalid`] if the inode is no regular file;
    /// [`VolumeError::Stale`] if it is gone. As [`Volume::writable`] and [`View::transact`].
    pub async fn allocate(
        self: &Arc<Self>,
        inode: u64,
        range: Range<u64>,
        room: Room,
        kill_privileges: bool,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        if range.end > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge);
        }
        let now = self.clock.now();
        let size = self
            .view
            .transact(|run| {
                let mut attributes = regular(run, inode)?;
                let size = attributes.size_bytes;
                match room {
                    Room::Allocate { keep_size: true } => {}
                    Room::Allocate { keep_size: false } => grow(&mut attributes, range.end),
                    Room::Zero { keep_size } => {
                        run.zero(inode, range.start..range.end.min(size).max(range.start));
                        if !keep_size {
                            grow(&mut attributes, range.end);
                        }
                    }
                    Room::Punch => {
                        run.zero(inode, range.start..range.end.min(size).max(range.start))
                    }
                }
                if kill_privileges {
                    attributes.mode = mode::without_privileges(attributes.mode);
                }
                changed(run, inode, attributes, now);
                Ok(size)
            })
            .await?;
        // The flush frees the allocated bytes of the range, so that stat(2) reports it at once. If
        // the tree cannot be read now, the next commit reports the error.
        if !matches!(room, Room::Allocate { .. }) && size > INLINE_BYTES {
            let epoch = self.view.state()?.lock().active.epoch;
            if let Err(error) = self.flush_file(inode, epoch, Reach::Holes).await {
                tracing::debug!("inode {inode} keeps what its holes had allocated: {error}");
            }
        }
        Ok(())
    }

    /// Makes `target`, an inode and an offset, share up to `length` bytes of `source`:
    /// copy_file_range(2) without copying.
    ///
    /// Returns the number of bytes that are shared. It is smaller than `length` at the end of the
    /// source, and at most [`SHARE_BYTES_MAX`]. Bytes that are written to either range during the
    /// call may be seen or not, as with any two concurrent calls.
    ///
    /// Cancel safety: dropped, it has shared nothing; dirty bytes of both files may be stored
    /// already.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] or [`VolumeError::IsDirectory`] if an inode is no regular file;
    /// [`VolumeError::TooLarge`] if the target range ends beyond [`MAX_FILE_BYTES`];
    /// [`VolumeError::Stale`] if an inode is gone. As [`Volume::writable`], [`Volume::flush_file`],
    /// [`View::extents`] and [`rescue::ensure`].
    pub async fn share(
        self: &Arc<Self>,
        source: &Source,
        target: (u64, u64),
        length: u64,
        kill_privileges: bool,
    ) -> Result<u64, VolumeError> {
        self.writable().await?;
        let attributes = source.view.attributes(Scope::Live, source.inode).await?;
        if !mode::is_regular(attributes.mode) {
            return Err(VolumeError::Invalid);
        }
        let available = attributes.size_bytes.saturating_sub(source.offset);
        let length = length.min(available).min(SHARE_BYTES_MAX);
        if length == 0 {
            return Ok(0);
        }
        let end = target.1.checked_add(length);
        if end.is_none_or(|end| end > MAX_FILE_BYTES) {
            return Err(VolumeError::TooLarge);
        }
        if source.view.state().is_ok() {
            self.settle(source.inode).await?;
        }
        if source
            .view
            .item(Scope::Live, &Key::inline(source.inode))
            .await?
            .is_some()
        {
            return self
                .copy_small(source, target, length, kill_privileges)
                .await;
        }
        self.settle(target.0).await?;
        self.share_extents(source, target, length, kill_privileges)
            .await?;
        Ok(length)
    }

    async fn copy_small(
        self: &Arc<Self>,
        source: &Source,
        target: (u64, u64),
        length: u64,
        kill_privileges: bool,
    ) -> Result<u64, VolumeError> {
        let range = source.offset..source.offset + length;
        let bytes = source
            .view
            .read(Scope::Live, source.inode, range)
            .await?
            .concat();
        self.write(
            target.0,
            target.1,
            Bytes::from(bytes),
            WriteOptions {
                kill_privileges,
                append: false,
            },
        )
        .await?;
        Ok(length)
    }

    async fn share_extents(
        self: &Arc<Self>,
        source: &Source,
        target: (u64, u64),
        length: u64,
        kill_privileges: bool,
    ) -> Result<(), VolumeError> {
        let inode = target.0;
        let range = target.1..target.1 + length;
        loop {
            // No cut while extents are placed: they would come too late for the commit of their own
            // layer.
            let _no_cut = self.cut_gate.read().await;
            let lock = self.flushing.lock_for(inode);
            let _flushing = lock.lock().await;
            let (epoch, unsettled) = {
                let state = self.view.state()?.lock();
                let committing = state.committing.as_ref();
                (
                    state.active.epoch,
                    committing.is_some_and(|layer| layer.data.contains_key(&inode)),
                )
            };
            if unsettled
                || self
                    .view
                    .item(Scope::Live, &Key::inline(inode))
                    .await?
                    .is_some()
            {
                drop(_flushing);
                drop(_no_cut);
                self.unsettle_small(inode).await?;
                continue;
            }
            let from = source.offset..source.offset + length;
            let extents = source
                .view
                .extents(Scope::Live, source.inode, from.clone())
                .await?;
            for target in extents::targets(&extents) {
                rescue::ensure_target(&self.ingest, target).await?;
            }
            let malformed = |error| VolumeError::Tree(format!("inode {}: {error}", source.inode));
            let moved = extents::clone_range(&extents, from, target.1).map_err(malformed)?;
            let plan = self
                .plan_extents(inode, Scope::Live, range.clone(), &moved)
                .await?;
            // No cut comes between, because of the gate: the attributes stay in the active layer
            // until they are changed below.
            self.touch(inode).await?;
            let now = self.clock.now();
            let mut state = self.view.state()?.lock();
            state.accepts()?;
            state.before_contents_change(inode, &range);
            place_extents(&mut state, inode, epoch, plan);
            finish_share(&mut state, inode, range.clone(), now, kill_privileges)?;
            // The shared contents may be unsent themselves.
            self.usage.wrote(inode, range.end - range.start);
            return Ok(());
        }
    }

    /// Puts the attributes of a regular file into the active layer.
    async fn touch(&self, inode: u64) -> Result<(), VolumeError> {
        self.view
            .transact(|run| {
                let attributes = regular(run, inode)?;
                run.set_attributes(inode, attributes);
                Ok(())
            })
            .await
    }

    /// Stores the dirty bytes of a file, and turns the contents of a small file into an extent.
    async fn unsettle_small(&self, inode: u64) -> Result<(), VolumeError> {
        // Only files whose attributes are in a layer are moved out of the tree: the attributes tell
        // their length.
        self.touch(inode).await?;
        let epoch = self.view.state()?.lock().active.epoch;
        self.flush_file(inode, epoch, Reach::Extents).await
    }

    /// Stores the dirty bytes of a file, in both layers.
    ///
    /// Cancel safety: dropped, it leaves the bytes that it has not stored dirty.
    ///
    /// # Errors
    /// As [`Volume::flush_file`].
    pub async fn settle(&self, inode: u64) -> Result<(), VolumeError> {
        let epoch = self.view.state()?.lock().active.epoch;
        self.flush_file(inode, epoch, Reach::All).await
    }

    /// Starts to store long runs after a write, and makes room if memory runs short.
    pub(super) fn wrote(self: &Arc<Self>, inode: u64, range: Range<u64>) {
        self.usage.wrote(inode, range.end - range.start);
        let (is_long, epoch, is_pressed) = {
            let Ok(state) = self.view.state() else { return };
            let state = state.lock();
            // Nothing of a scratch clone is stored before it must be.
            let ranges = (state.active.data.get(&inode)).filter(|_| !self.promise.is_scratch());
            let is_long = ranges.is_some_and(|ranges| {
                ranges.data_bytes() >= RUN_BYTES && ranges.runs_for(range.start, RUN_BYTES)
            });
            let pressure = self.room.data_pressure(&state);
            (is_long, state.active.epoch, pressure != Pressure::None)
        };
        if is_long {
            self.flush_soon(inode, epoch, Reach::Streaming);
        }
        if is_pressed {
            self.relieve();
        }
    }
}

/// Applies the other changes of sharing at the same moment as the extents: the dirty bytes in the
/// range, the size, times and permissions.
fn finish_share(
    state: &mut LiveState,
    inode: u64,
    range: Range<u64>,
    now: Timestamp,
    kill_privileges: bool,
) -> Result<(), VolumeError> {
    let Some(mut attributes) = state.attributes(Scope::Live, inode) else {
        return Err(VolumeError::Stale);
    };
    let grown = range.end.saturating_sub(attributes.size_bytes);
    attributes.size_bytes += grown;
    attributes.modified = now;
    attributes.changed = now;
    if kill_privileges {
        attributes.mode = mode::without_privileges(attributes.mode);
    }
    state.change_item(Key::attributes(inode), Some(Item::Attributes(attributes)));
    let shared = range.clone();
    state.change_data(inode, range, |ranges| ranges.forget(shared, u64::MAX));
    Ok(())
}

fn regular(run: &Transaction<'_>, inode: u64) -> Step<Attributes> {
    let attributes = run.attributes(inode)?;
    if mode::is_regular(attributes.mode) {
        return Ok(attributes);
    }
    let error = if mode::is_directory(attributes.mode) {
        VolumeError::IsDirectory
    } else {
        VolumeError::Invalid
    };
    Err(error.into())
}

fn grow(attributes: &mut Attributes, end: u64) {
    if end > attributes.size_bytes {
        attributes.size_bytes = end;
    }
}

fn changed(run: &mut Transaction<'_>, inode: u64, mut attributes: Attributes, now: Timestamp) {
    attributes.modified = now;
    attributes.changed = now;
    run.set_attributes(inode, attributes);
}
