//! Contents of files: writing, zeroing, truncating, sharing.
//!
//! Owns: what each operation does to sizes, times and dirty ranges. Does not own: storing (`flush`), reading (`view`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::extents;
use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::flush::{INLINE_BYTES, RUN_BYTES, Reach, place_extents};
use crate::volume::mode;
use crate::volume::rescue;
use crate::volume::state::{Scope, State};
use crate::volume::transaction::{Step, Transaction};
use crate::volume::view::View;

/// Largest size of a file in bytes: what the kernel's offsets can say (`MAX_LFS_FILESIZE`).
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Bytes shared in one go by [`Volume::share`].
pub const SHARE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// What a write takes along.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Write at the end, wherever that is.
    pub append: bool,
    /// Clear set-user-id and set-group-id.
    pub kill_privileges: bool,
}

/// Where shared bytes come from: a place in a file of this volume or of a snapshot.
pub struct Source {
    /// What it is read through.
    pub view: View,
    /// The file.
    pub inode: u64,
    /// First byte.
    pub offset: u64,
}

/// What fallocate(2) may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Only make sure that the file is so long, or (`keep_size`) do nothing: room is the bucket's.
    Allocate {
        /// Leave the size.
        keep_size: bool,
    },
    /// Zeroes; grows the file unless `keep_size`.
    Zero {
        /// Leave the size.
        keep_size: bool,
    },
    /// A hole.
    Punch,
}

impl Volume {
    /// Writes `data`; returns where it ended up.
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
        let place = self
            .view
            .transact(|run| {
                let mut attributes = regular(run, inode)?;
                let offset = if options.append {
                    attributes.size_bytes
                } else {
                    offset
                };
                let end = offset
                    .checked_add(data.len() as u64)
                    .filter(|end| *end <= FILE_BYTES_MAX);
                let Some(end) = end else {
                    return Err(VolumeError::TooLarge.into());
                };
                run.write(inode, offset, data.clone(), is_private);
                if options.kill_privileges {
                    attributes.mode = mode::without_privileges(attributes.mode);
                }
                grow(&mut attributes, end);
                changed(run, inode, attributes, now);
                Ok(offset)
            })
            .await?;
        self.wrote(inode, place..place + data.len() as u64);
        Ok(place)
    }

    /// Sets the size, as part of another operation's transaction.
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
        if size > FILE_BYTES_MAX {
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

    /// fallocate(2).
    pub async fn allocate(
        self: &Arc<Self>,
        inode: u64,
        range: Range<u64>,
        room: Room,
        kill_privileges: bool,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        if range.end > FILE_BYTES_MAX {
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
        // What was allocated there is so no longer, and stat(2) says it at once. If the tree cannot be read now, the next commit says it.
        if !matches!(room, Room::Allocate { .. }) && size > INLINE_BYTES {
            let epoch = self.view.state()?.lock().active.epoch;
            if let Err(error) = self.flush_file(inode, epoch, Reach::Holes).await {
                tracing::debug!("inode {inode} keeps what its holes had allocated: {error}");
            }
        }
        Ok(())
    }

    /// Makes `length` bytes of `target` share what `source` has: copy_file_range(2) without copying.
    ///
    /// Returns how many bytes it covered, fewer at the end of the source. Bytes written to either range meanwhile may or may not be seen, as with any two
    /// calls at once.
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
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
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
            // No cut while extents are placed: they would come too late for the commit of their own layer.
            let _no_cut = self.cut_gate.read().await;
            let lock = self.flushing.lock_for(inode);
            let _flushing = lock.lock().await;
            let (epoch, unsettled) = {
                let state = self.view.state()?.lock();
                let sealing = state.sealing.as_ref();
                (
                    state.active.epoch,
                    sealing.is_some_and(|layer| layer.data.contains_key(&inode)),
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
            // No cut comes between: the attributes stay in the active layer until they are changed below.
            self.touch(inode).await?;
            let now = self.clock.now();
            let mut state = self.view.state()?.lock();
            state.accepts()?;
            place_extents(&mut state, inode, epoch, plan);
            finish_share(&mut state, inode, range.clone(), now, kill_privileges)?;
            // What it shares may be unsent itself.
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

    /// Stores what is dirty of a file, and makes a small one's contents an extent.
    async fn unsettle_small(&self, inode: u64) -> Result<(), VolumeError> {
        // Only files whose attributes are in a layer are moved out of the tree: nothing else says how long they are.
        self.touch(inode).await?;
        let epoch = self.view.state()?.lock().active.epoch;
        self.flush_file(inode, epoch, Reach::Extents).await
    }

    /// Stores what is dirty of a file, in both layers.
    pub async fn settle(&self, inode: u64) -> Result<(), VolumeError> {
        let epoch = self.view.state()?.lock().active.epoch;
        self.flush_file(inode, epoch, Reach::All).await
    }

    /// After a write: starts storing long runs, and makes room if memory runs short.
    fn wrote(self: &Arc<Self>, inode: u64, range: Range<u64>) {
        self.usage.wrote(inode, range.end - range.start);
        let (is_long, epoch) = {
            let Ok(state) = self.view.state() else { return };
            let state = state.lock();
            let is_long = state.active.data.get(&inode).is_some_and(|ranges| {
                ranges.data_bytes() >= RUN_BYTES && ranges.runs_for(range.start, RUN_BYTES)
            });
            (is_long, state.active.epoch)
        };
        if is_long {
            self.flush_soon(inode, epoch, Reach::Streaming);
        }
        self.relieve();
    }
}

/// What sharing changes beside extents, at the same moment: what was dirty in the range, the size, times and permissions.
fn finish_share(
    state: &mut State,
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
    let key = Key::attributes(inode);
    let layer = &mut state.active;
    layer.delta.item(&key);
    layer.set(key, Some(Item::Attributes(attributes)));
    layer.delta.content(inode, range.clone());
    layer.with_data(inode, |ranges| ranges.forget(range, u64::MAX));
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
