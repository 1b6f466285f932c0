//! Open files: opening, reading, writing, closing, syncing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_fuse::{
    CopyFileRange, Fallocate, FallocateMode, Handle, OpenFlags, Opened, Read, ReadData, Whence,
};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::vfs::handles::{Open, OpenDirectory, OpenFile};
use crate::vfs::numbers::{CONTROL, Number};
use crate::vfs::readahead::ReadAhead;
use crate::vfs::{CloseMode, DedupMode, Mount, special};
use crate::volume::Volume;
use crate::volume::attributes::Change;
use crate::volume::data::{Room, Source, WriteOptions};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::seek::seek;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// close(2) waits for files with more unsent bytes than this (SEMANTICS.md, close-is-bounded).
const CLOSE_WAITS_ABOVE_BYTES: u64 = 1024 * 1024;

/// Longest request to `.bkfs/control`, in bytes.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// The origin of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// The kernel writes dirty pages of a mapping from its page cache.
    pub(super) from_cache: bool,
    /// Clear set-user-id and set-group-id.
    pub(super) kill_privileges: bool,
}

/// Starts a task that fetches the bytes that are likely to be read next, while `range` itself is
/// read.
fn fetch_ahead(file: &OpenFile, view: &View, range: &Range<u64>, size: u64) {
    let most = view.content_store().prefetch_bytes_max();
    let mut readahead = file.readahead.lock();
    let Some(ahead) = readahead.read(range, size, most) else {
        return;
    };
    match view.content_store().prefetch(ahead.end - ahead.start) {
        Some(prefetch) => {
            let (view, inode) = (view.clone(), file.number.inode);
            tokio::spawn(async move { view.fetch_ahead(inode, ahead, prefetch).await });
        }
        None => readahead.refused(&ahead),
    }
}

impl Mount {
    /// Opens a file for `user`. Writes through the handle count as those of `user`, whichever
    /// process holds the handle.
    pub(super) async fn open(
        &self,
        user: u32,
        number: Number,
        flags: OpenFlags,
    ) -> Result<Opened, VolumeError> {
        if number.is_special() {
            return self.open_special(number, flags);
        }
        // Read before the view: a loss after this point counts for this handle.
        let since = self.current.turn();
        let view = self.view_of(number).await?;
        let frozen = number.snapshot != 0;
        if (flags.write || flags.truncate) && (frozen || self.volume().is_none()) {
            return Err(VolumeError::ReadOnly);
        }
        if let (Some(volume), false) = (self.volume(), frozen) {
            // Counted as open before its attributes are read, so that a concurrent unlink keeps the
            // inode.
            volume.usage().opened(number.inode);
            if flags.write && self.is_private(user) {
                volume.usage().set_private(number.inode);
            }
            let opened = self.check_open(volume.clone(), number, flags).await;
            if let Err(error) = opened {
                volume.usage().closed(number.inode);
                return Err(error);
            }
        }
        // Snapshots never change, so the kernel may keep their pages. For a file that another
        // machine changes, the page cache would mix the states with which its handles were opened.
        let is_direct = !frozen && self.modes.opened(number, &flags);
        let direct_io = is_direct || !frozen && self.follows() && self.modes.is_mappable();
        let handle = self.handles.insert(Open::File(OpenFile {
            view,
            number,
            since,
            append: flags.append,
            writes: flags.write,
            written: AtomicU64::new(u64::from(flags.truncate)),
            closed: AtomicU64::new(0),
            readahead: Mutex::new(ReadAhead::default()),
        }));
        let is_settled = !self.current.is_unsettled(number.inode);
        let keep_cache = frozen || (self.volume().is_some() && is_settled);
        Ok(Opened {
            handle,
            keep_cache,
            direct_io,
            ..Opened::default()
        })
    }

    /// Returns true if the writes of this user are deduplicated with no stored data.
    fn is_private(&self, user: u32) -> bool {
        self.dedup == DedupMode::Private && user != 0 && user != self.owner.uid
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
            Open::Directory(_) => return Err(VolumeError::IsDirectory),
        };
        let inode = file.number.inode;
        let view = match file.number.snapshot {
            // A live file is read through the present view, even if the mount has exchanged its
            // volume since the open.
            0 if !self.follows() => self.current.view(),
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
        self.check_handle(open.as_deref())?;
        if by.from_cache {
            self.check_pages(number)?;
        }
        let append = match open.as_deref() {
            Some(Open::File(file)) => {
                file.written.fetch_add(1, Ordering::SeqCst);
                // The kernel writes pages back to their own offsets, through any handle that may
                // write.
                file.append && !by.from_cache
            }
            // Dirty pages of a mapping may outlive the handle through which they were written.
            _ => false,
        };
        // Pages of a mapping were written earlier, perhaps before the file got its capabilities.
        // They do not remove these.
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
        // Counted again at the end, for a close(2) that ran meanwhile.
        if by.from_cache {
            self.handles.wrote_by_mapping(number);
        } else if let Some(Open::File(file)) = open.as_deref() {
            file.written.fetch_add(1, Ordering::SeqCst);
        }
        Ok(length)
    }

    /// Handles close(2): waits as `close=` says, if the handle has written. Concurrent close(2)
    /// calls on one handle all wait.
    pub(super) async fn flush(&self, handle: Handle) -> Result<(), VolumeError> {
        let Some(open) = self.handles.get(handle) else {
            return Ok(());
        };
        let (Open::File(file), Some(volume)) = (open.as_ref(), self.volume()) else {
            return Ok(());
        };
        self.check_handle(Some(&open))?;
        let inode = file.number.inode;
        let written = file.written.load(Ordering::SeqCst);
        let has_written = file.closed.load(Ordering::SeqCst) < written;
        // Data for which an earlier close(2) returned success may be lost by now.
        let is_lost =
            || file.writes && volume.failure().is_some() && volume.view.has_changed(inode);
        if !has_written && !is_lost() {
            return Ok(());
        }
        let closed = self.close(&volume, inode).await;
        // After an error, a later close(2) of a duplicate of the handle fails as well.
        if closed.is_ok() {
            file.closed.fetch_max(written, Ordering::SeqCst);
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

    /// Handles fsync(2) of a file or directory.
    pub(super) async fn fsync(&self, number: Number, handle: Handle) -> Result<(), VolumeError> {
        let Ok(volume) = self.volume_for(number) else {
            // An inode that cannot be written has nothing to make durable.
            return Ok(());
        };
        self.check_handle(self.handles.get(handle).as_deref())?;
        volume.fsync().await
    }

    /// Checks that a handle may still change or sync the inode that it was opened for. The caller
    /// takes the volume before it calls this: the exchange of a volume marks the inodes that lost
    /// something in the same step.
    ///
    /// # Errors
    /// [`VolumeError::Lost`] if the inode has lost something since it was opened.
    pub(super) fn check_handle(&self, open: Option<&Open>) -> Result<(), VolumeError> {
        let (number, since) = match open {
            Some(Open::File(file)) => (file.number, file.since),
            Some(Open::Directory(directory)) => (directory.number, directory.since),
            Some(Open::Text(_) | Open::Control(_)) | None => return Ok(()),
        };
        if number.snapshot == 0 && self.current.has_lost(number.inode, since) {
            let inode = number.inode;
            return Err(VolumeError::Lost { inode });
        }
        Ok(())
    }

    /// Checks that pages of a mapping are certain to date from after the last loss of the file. The
    /// kernel does not say through which handle they were mapped. While a handle from before the
    /// loss may write, no page is accepted.
    ///
    /// # Errors
    /// [`VolumeError::Lost`] if the pages may date from before the loss.
    fn check_pages(&self, number: Number) -> Result<(), VolumeError> {
        let inode = number.inode;
        let Some(turn) = self.current.lost_at(inode) else {
            return Ok(());
        };
        let is_stale =
            self.current.is_unsettled(inode) || self.handles.any_writes_from_before(number, turn);
        match is_stale {
            true => Err(VolumeError::Lost { inode }),
            false => Ok(()),
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
        let volume = self.volume_for(number)?;
        self.writes_through(request.handle)?;
        volume.drop_capabilities(number.inode).await?;
        volume
            .allocate(number.inode, range, room, request.kill_privileges)
            .await?;
        self.writes_through(request.handle)
    }

    pub(super) async fn lseek(
        &self,
        number: Number,
        handle: Handle,
        offset: u64,
        whence: Whence,
    ) -> Result<u64, VolumeError> {
        // The same view as for reads through the handle.
        let view = match self.handles.get(handle).as_deref() {
            Some(Open::File(file)) if self.follows() => file.view.clone(),
            _ => self.view_of(number).await?,
        };
        seek(&view, number.inode, offset, whence == Whence::Data).await
    }

    pub(super) async fn copy_file_range(&self, request: CopyFileRange) -> Result<u64, VolumeError> {
        let from = Number::of(request.ino_in);
        let to = Number::of(request.ino_out);
        if from.is_special() || to.is_special() {
            return Err(VolumeError::Invalid);
        }
        let source = Source {
            view: self.view_of(from).await?,
            inode: from.inode,
            offset: request.offset_in,
        };
        let volume = self.volume_for(to)?;
        self.writes_through(request.handle_out)?;
        volume.drop_capabilities(to.inode).await?;
        let shared = volume
            .share(
                &source,
                (to.inode, request.offset_out),
                request.length,
                request.kill_privileges,
            )
            .await?;
        self.writes_through(request.handle_out)?;
        Ok(shared)
    }

    /// Counts that a change of contents through a handle begins or has ended; close(2) waits for
    /// it.
    ///
    /// # Errors
    /// As [`Mount::check_handle`].
    pub(super) fn writes_through(&self, handle: Handle) -> Result<(), VolumeError> {
        self.check_handle(self.handles.get(handle).as_deref())?;
        self.handles.wrote(handle);
        Ok(())
    }

    pub(super) fn opendir(&self, number: Number) -> Result<Opened, VolumeError> {
        let since = self.current.turn();
        if let (Some(volume), 0, false) = (self.volume(), number.snapshot, number.is_special()) {
            volume.usage().opened(number.inode);
        }
        let is_kept = number.snapshot == 0 && !number.is_special() && self.follows();
        let directory = OpenDirectory {
            number,
            since,
            view: is_kept.then(|| self.current.view()),
        };
        let handle = self.handles.insert(Open::Directory(directory));
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
