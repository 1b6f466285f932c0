//! Open files: opening, reading, writing, closing, syncing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bkfs_fuse::{
    CopyFileRange, Fallocate, FallocateMode, Handle, OpenFlags, Opened, Read, ReadData, Whence,
};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::vfs::handles::{Open, OpenFile};
use crate::vfs::numbers::{CONTROL, Number};
use crate::vfs::readahead::ReadAhead;
use crate::vfs::{CloseMode, Mount, special};
use crate::volume::Volume;
use crate::volume::attributes::Change;
use crate::volume::data::{Room, Source, WriteOptions, seek};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Files with more than this much unsent are waited for at close(2), in bytes (brief, promise 4).
const CLOSE_WAITS_ABOVE_BYTES: u64 = 1024 * 1024;

/// Longest request to `.bkfs/control`, in bytes.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// On whose behalf something is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// The kernel writes what a mapping has left in its page cache.
    pub(super) from_cache: bool,
    /// Clear set-user-id and set-group-id.
    pub(super) kill_privileges: bool,
}

/// Lets what is likely to be read next be fetched, beside the read of `range` itself.
fn fetch_ahead(file: &OpenFile, view: &View, range: &Range<u64>, size: u64) {
    let most = view.depot().prefetch_bytes_max();
    let mut readahead = file.readahead.lock();
    let Some(ahead) = readahead.read(range, size, most) else {
        return;
    };
    match view.depot().prefetch(ahead.end - ahead.start) {
        Some(prefetch) => {
            let (view, inode) = (view.clone(), file.number.inode);
            tokio::spawn(async move { view.fetch_ahead(inode, ahead, prefetch).await });
        }
        None => readahead.refused(&ahead),
    }
}

impl Mount {
    pub(super) async fn open(
        &self,
        number: Number,
        flags: OpenFlags,
    ) -> Result<Opened, VolumeError> {
        if number.is_special() {
            return self.open_special(number, flags);
        }
        let view = self.view_of(number)?;
        let frozen = number.snapshot != 0;
        if (flags.write || flags.truncate) && (frozen || self.volume().is_none()) {
            return Err(VolumeError::ReadOnly);
        }
        if let (Some(volume), false) = (self.volume(), frozen) {
            // Counted before it is looked at, so that an unlink in between keeps it.
            volume.usage().opened(number.inode);
            let opened = self.check_open(volume.clone(), number, flags).await;
            if let Err(error) = opened {
                volume.usage().closed(number.inode);
                return Err(error);
            }
        }
        // Snapshots never change: their pages are worth keeping.
        let direct_io = !frozen && self.modes.opened(number, &flags);
        let handle = self.handles.insert(Open::File(OpenFile {
            view,
            number,
            append: flags.append,
            wrote: AtomicBool::new(flags.truncate),
            readahead: Mutex::new(ReadAhead::default()),
        }));
        let keep_cache = frozen || self.volume().is_some();
        Ok(Opened {
            handle,
            keep_cache,
            direct_io,
            ..Opened::default()
        })
    }

    async fn check_open(
        &self,
        volume: Arc<Volume>,
        number: Number,
        flags: OpenFlags,
    ) -> Result<(), VolumeError> {
        if flags.truncate {
            let change = Change {
                size: Some(0),
                kill_privileges: flags.kill_privileges,
                ..Change::default()
            };
            volume.set_attributes(number.inode, change).await?;
            return Ok(());
        }
        let attributes = volume.view.attributes(Scope::Live, number.inode).await?;
        if mode::is_directory(attributes.mode) {
            Err(VolumeError::IsDirectory)
        } else {
            Ok(())
        }
    }

    fn open_special(&self, number: Number, flags: OpenFlags) -> Result<Opened, VolumeError> {
        let open = match (number, special::text(number, &self.control)) {
            (CONTROL, _) => Open::Control(Mutex::new(Bytes::new())),
            (_, Some(_)) if flags.write || flags.truncate => return Err(VolumeError::NotPermitted),
            (_, Some(text)) => Open::Text(text),
            _ => return Err(VolumeError::IsDirectory),
        };
        let handle = self.handles.insert(open);
        Ok(Opened {
            handle,
            direct_io: true,
            ..Opened::default()
        })
    }

    fn open_file(&self, handle: Handle) -> Result<Arc<Open>, VolumeError> {
        self.handles.get(handle).ok_or(VolumeError::Stale)
    }

    pub(super) async fn read(&self, request: Read) -> Result<ReadData, VolumeError> {
        let open = self.open_file(request.handle)?;
        let slice = |text: &Bytes| {
            let from = (request.offset as usize).min(text.len());
            let to = (from + request.size as usize).min(text.len());
            ReadData::from(text.slice(from..to))
        };
        let file = match open.as_ref() {
            Open::File(file) => file,
            Open::Text(text) => return Ok(slice(text)),
            Open::Control(answer) => return Ok(slice(&answer.lock())),
            Open::Plain => return Err(VolumeError::IsDirectory),
        };
        let inode = file.number.inode;
        let view = match file.number.snapshot {
            // A live file is read as it is now, whatever the mount has gone through since it was opened.
            0 => self.current.view(),
            _ => file.view.clone(),
        };
        let size = view.attributes(Scope::Live, inode).await?.size_bytes;
        let range = request.offset
            ..request
                .offset
                .saturating_add(u64::from(request.size))
                .min(size);
        if range.is_empty() {
            return Ok(ReadData::default());
        }
        fetch_ahead(file, &view, &range, size);
        Ok(view.read(Scope::Live, inode, range).await?.into())
    }

    pub(super) async fn write(
        &self,
        handle: Handle,
        number: Number,
        offset: u64,
        data: Bytes,
        by: Writer,
    ) -> Result<u32, VolumeError> {
        let length = data.len() as u32;
        let open = self.handles.get(handle);
        if let Some(Open::Control(answer)) = open.as_deref() {
            if data.len() > REQUEST_BYTES_MAX {
                return Err(VolumeError::Invalid);
            }
            let text = self.control.handle(data).await;
            *answer.lock() = Bytes::from(text);
            return Ok(length);
        }
        let volume = self.volume_for(number)?;
        let append = match open.as_deref() {
            Some(Open::File(file)) => {
                file.wrote.store(true, Ordering::Relaxed);
                file.append
            }
            // Dirty pages of a mapping may outlive the handle they were written through.
            _ => false,
        };
        // What comes from a mapping was written before, perhaps before capabilities were given.
        if !by.from_cache {
            volume.drop_capabilities(number.inode).await?;
        }
        volume
            .write(
                number.inode,
                offset,
                data,
                WriteOptions {
                    append,
                    kill_privileges: by.kill_privileges,
                },
            )
            .await?;
        Ok(length)
    }

    /// close(2): waits as promised, for handles that wrote.
    pub(super) async fn flush(&self, handle: Handle) -> Result<(), VolumeError> {
        let Some(open) = self.handles.get(handle) else {
            return Ok(());
        };
        let (Open::File(file), Some(volume)) = (open.as_ref(), self.volume()) else {
            return Ok(());
        };
        if !file.wrote.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let closed = self.close(&volume, file.number.inode).await;
        if closed.is_err() {
            // A duplicate of the handle that is closed later is told as well.
            file.wrote.store(true, Ordering::Relaxed);
        }
        closed
    }

    async fn close(&self, volume: &Volume, inode: u64) -> Result<(), VolumeError> {
        if let Some(error) = volume.failure() {
            return Err(error);
        }
        match self.close {
            CloseMode::Async => return Ok(()),
            CloseMode::Durable => return volume.fsync_in_bucket().await,
            CloseMode::Bounded => {}
        }
        if volume.usage().unsent_bytes(inode) > CLOSE_WAITS_ABOVE_BYTES {
            volume.deliver(inode).await?;
        }
        volume.fsync_within();
        Ok(())
    }

    pub(super) async fn release(&self, handle: Handle) -> Result<(), VolumeError> {
        let Some(open) = self.handles.remove(handle) else {
            return Ok(());
        };
        let Open::File(file) = open.as_ref() else {
            return Ok(());
        };
        if file.number.snapshot != 0 {
            return Ok(());
        }
        self.modes.closed(file.number);
        let Some(volume) = self.volume() else {
            return Ok(());
        };
        if volume.usage().closed(file.number.inode) {
            volume.reap(file.number.inode).await?;
        }
        Ok(())
    }

    pub(super) async fn fsync(&self, number: Number) -> Result<(), VolumeError> {
        match self.volume_for(number) {
            Ok(volume) => volume.fsync().await,
            // What cannot be written is as durable as it will ever be.
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn fallocate(&self, request: Fallocate) -> Result<(), VolumeError> {
        let number = Number::of(request.ino);
        let room = match request.mode {
            FallocateMode::Allocate { keep_size } => Room::Allocate { keep_size },
            FallocateMode::ZeroRange { keep_size } => Room::Zero { keep_size },
            FallocateMode::PunchHole => Room::Punch,
        };
        let range = request.offset
            ..request
                .offset
                .checked_add(request.length)
                .ok_or(VolumeError::TooLarge)?;
        if let Some(Open::File(file)) = self.handles.get(request.handle).as_deref() {
            file.wrote.store(true, Ordering::Relaxed);
        }
        let volume = self.volume_for(number)?;
        volume.drop_capabilities(number.inode).await?;
        volume
            .allocate(number.inode, range, room, request.kill_privileges)
            .await
    }

    pub(super) async fn lseek(
        &self,
        number: Number,
        offset: u64,
        whence: Whence,
    ) -> Result<u64, VolumeError> {
        let view = self.view_of(number)?;
        seek(&view, number.inode, offset, whence == Whence::Data).await
    }

    pub(super) async fn copy_file_range(&self, request: CopyFileRange) -> Result<u64, VolumeError> {
        let from = Number::of(request.ino_in);
        let to = Number::of(request.ino_out);
        if from.is_special() || to.is_special() {
            return Err(VolumeError::Invalid);
        }
        if let Some(Open::File(file)) = self.handles.get(request.handle_out).as_deref() {
            file.wrote.store(true, Ordering::Relaxed);
        }
        let source = Source {
            view: self.view_of(from)?,
            inode: from.inode,
            offset: request.offset_in,
        };
        let volume = self.volume_for(to)?;
        volume.drop_capabilities(to.inode).await?;
        volume
            .share(
                &source,
                (to.inode, request.offset_out),
                request.length,
                request.kill_privileges,
            )
            .await
    }

    pub(super) fn opendir(&self, number: Number) -> Result<Opened, VolumeError> {
        if let (Some(volume), 0, false) = (self.volume(), number.snapshot, number.is_special()) {
            volume.usage().opened(number.inode);
        }
        let handle = self.handles.insert(Open::Plain);
        let frozen = number.snapshot != 0;
        Ok(Opened {
            handle,
            cache_dir: frozen,
            keep_cache: frozen,
            ..Opened::default()
        })
    }

    pub(super) async fn releasedir(
        &self,
        number: Number,
        handle: Handle,
    ) -> Result<(), VolumeError> {
        self.handles.remove(handle);
        if let (Some(volume), 0, false) = (self.volume(), number.snapshot, number.is_special())
            && volume.usage().closed(number.inode)
        {
            volume.reap(number.inode).await?;
        }
        Ok(())
    }
}
