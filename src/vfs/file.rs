//! Open files: opening, closing, syncing, and changes of their ranges without bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_fuse::{CopyFileRange, Fallocate, FallocateMode, Handle, OpenFlags, Opened, Whence};
use bytes::Bytes;
use parking_lot::Mutex;

use crate::vfs::handles::{Open, OpenDirectory, OpenFile};
use crate::vfs::numbers::{CONTROL, Number};
use crate::vfs::readahead::ReadAhead;
use crate::vfs::{CloseMode, DedupMode, Mount, special};
use crate::volume::Volume;
use crate::volume::attributes::Change;
use crate::volume::data::{Room, Source};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::seek::seek;
use crate::volume::state::Scope;

/// close(2) waits for files with more unsent bytes than this (SEMANTICS.md, close-is-bounded).
const CLOSE_WAITS_ABOVE_BYTES: u64 = 1024 * 1024;

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
        let volume = self.volume_of(number);
        if (flags.write || flags.truncate) && volume.is_none() {
            return Err(VolumeError::ReadOnly);
        }
        if let Some(volume) = &volume {
            // Counted as open before its attributes are read, so that a concurrent unlink keeps the
            // inode.
            volume.usage().opened(number.inode);
            if flags.write && self.is_private(user) {
                volume.usage().set_private(number.inode);
            }
            let opened = self.check_open(volume, number, flags).await;
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
        let keep_cache = frozen || (volume.is_some() && is_settled);
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
        volume: &Arc<Volume>,
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

    pub(super) fn open_file(&self, handle: Handle) -> Result<Arc<Open>, VolumeError> {
        self.handles.get(handle).ok_or(VolumeError::Stale)
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

    /// Counts that a truncation begins or has ended, as [`Mount::writes_through`].
    ///
    /// # Errors
    /// As [`Mount::check_handle`], if it is one through a handle.
    pub(super) fn truncates(
        &self,
        number: Number,
        handle: Option<Handle>,
    ) -> Result<(), VolumeError> {
        if let Some(handle) = handle {
            return self.writes_through(handle);
        }
        self.handles.wrote_by_any(number);
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
