//! Requests of the kernel, passed to the mount, and those of them that carry the bytes of a file.
//!
//! Owns: copying the bytes that a request lends for the call, and the bounds and checks of reads
//! and writes. Does not own: how the other requests are carried out.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bkfs_fuse::{
    AttributeChange, Caller, CopyFileRange, Create, Created, DirectoryReply, Entry, Errno,
    Fallocate, FileKind, Forget, Granted, Handle, Ino, Lookup, Mknod, OpenFlags, Opened, Read,
    ReadData, Rename, Reply, SetXattr, Stat, Statistics, Vfs, Whence, Write,
};
use bytes::Bytes;

use crate::vfs::handles::{Open, OpenFile};
use crate::vfs::mutations::Making;
use crate::vfs::numbers::Number;
use crate::vfs::{BkfsVfs, Mount};
use crate::volume::data::WriteOptions;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Longest request to `.bkfs/control`, in bytes.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// The origin of a write.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// The kernel writes dirty pages of a mapping from its page cache.
    from_cache: bool,
    /// Clear set-user-id and set-group-id.
    kill_privileges: bool,
}

impl Vfs for BkfsVfs {
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        tracing::debug!(?granted, "the kernel answered");
        self.0.modes.mappable(granted.direct_io_mmap);
        Ok(())
    }

    fn destroy(&self) {}

    fn lookup(&self, _: Caller, parent: Ino, name: &[u8], reply: Reply<Lookup>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.lookup(Number::of(parent), name).await
        });
    }

    fn forget(&self, forgets: &[Forget]) {
        for inode in self.0.forget(forgets) {
            let mount = self.0.clone();
            self.run(async move { mount.reap(inode).await });
        }
    }

    fn getattr(&self, ino: Ino, _: Option<Handle>, reply: Reply<Stat>) {
        self.answer(reply, |mount| async move {
            mount.getattr(Number::of(ino)).await
        });
    }

    fn setattr(&self, _: Caller, ino: Ino, change: AttributeChange, reply: Reply<Stat>) {
        self.answer(reply, |mount| async move {
            mount.setattr(Number::of(ino), change).await
        });
    }

    fn readlink(&self, ino: Ino, reply: Reply<Bytes>) {
        self.answer(reply, |mount| async move {
            mount.readlink(Number::of(ino)).await
        });
    }

    fn mknod(&self, caller: Caller, request: Mknod<'_>, reply: Reply<Entry>) {
        let making = Making {
            caller,
            parent: Number::of(request.parent),
            name: request.name.to_vec(),
            kind: request.kind,
            permissions: request.permissions,
            rdev: request.rdev,
            target: None,
        };
        self.answer(reply, |mount| async move { mount.make(making).await });
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        reply: Reply<Entry>,
    ) {
        let making = Making {
            caller,
            parent: Number::of(parent),
            name: name.to_vec(),
            kind: FileKind::Directory,
            permissions,
            rdev: 0,
            target: None,
        };
        self.answer(reply, |mount| async move { mount.make(making).await });
    }

    fn unlink(&self, _: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.unlink(Number::of(parent), name).await
        });
    }

    fn rmdir(&self, _: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.rmdir(Number::of(parent), name).await
        });
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        reply: Reply<Entry>,
    ) {
        let making = Making {
            caller,
            parent: Number::of(parent),
            name: name.to_vec(),
            kind: FileKind::Symlink,
            permissions: 0o777,
            rdev: 0,
            target: Some(Bytes::copy_from_slice(target)),
        };
        self.answer(reply, |mount| async move { mount.make(making).await });
    }

    fn rename(&self, _: Caller, request: Rename<'_>, reply: Reply<()>) {
        let from = (Number::of(request.parent), request.name.to_vec());
        let to = (Number::of(request.new_parent), request.new_name.to_vec());
        let mode = request.mode;
        self.answer(reply, move |mount| async move {
            mount.rename(from, to, mode).await
        });
    }

    fn link(&self, _: Caller, ino: Ino, parent: Ino, name: &[u8], reply: Reply<Entry>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.link(Number::of(ino), Number::of(parent), name).await
        });
    }

    fn open(&self, caller: Caller, ino: Ino, flags: OpenFlags, reply: Reply<Opened>) {
        self.answer(reply, move |mount| async move {
            mount.open(caller.uid, Number::of(ino), flags).await
        });
    }

    fn create(&self, caller: Caller, request: Create<'_>, reply: Reply<Created>) {
        let making = Making {
            caller,
            parent: Number::of(request.parent),
            name: request.name.to_vec(),
            kind: FileKind::Regular,
            permissions: request.permissions,
            rdev: 0,
            target: None,
        };
        let flags = request.flags;
        self.answer(reply, move |mount| async move {
            mount.create(making, flags).await
        });
    }

    fn read(&self, request: Read, reply: Reply<ReadData>) {
        self.answer(reply, |mount| async move { mount.read(request).await });
    }

    fn write(&self, request: Write<'_>, reply: Reply<u32>) {
        let (handle, number, offset) = (request.handle, Number::of(request.ino), request.offset);
        let data = Bytes::copy_from_slice(request.data);
        let by = Writer {
            from_cache: request.from_cache,
            kill_privileges: request.kill_privileges,
        };
        self.answer(reply, move |mount| async move {
            mount.write(handle, number, offset, data, by).await
        });
    }

    fn flush(&self, _: Ino, handle: Handle, reply: Reply<()>) {
        self.answer(reply, |mount| async move { mount.flush(handle).await });
    }

    fn release(&self, _: Ino, handle: Handle, reply: Reply<()>) {
        self.answer(reply, |mount| async move { mount.release(handle).await });
    }

    fn fsync(&self, ino: Ino, handle: Handle, _: bool, reply: Reply<()>) {
        self.answer(reply, move |mount| async move {
            mount.fsync(Number::of(ino), handle).await
        });
    }

    fn opendir(&self, _: Caller, ino: Ino, reply: Reply<Opened>) {
        reply.send(
            self.0
                .opendir(Number::of(ino))
                .map_err(|error| self.0.report(&error)),
        );
    }

    fn readdir(&self, ino: Ino, handle: Handle, cookie: u64, mut reply: DirectoryReply) {
        let mount = self.0.clone();
        self.run(async move {
            let listed = mount.readdir(Number::of(ino), handle, cookie, &mut reply);
            match listed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.err(mount.report(&error)),
            }
        });
    }

    fn releasedir(&self, ino: Ino, handle: Handle, reply: Reply<()>) {
        self.answer(reply, |mount| async move {
            mount.releasedir(Number::of(ino), handle).await
        });
    }

    fn fsyncdir(&self, ino: Ino, handle: Handle, _: bool, reply: Reply<()>) {
        self.answer(reply, move |mount| async move {
            mount.fsync(Number::of(ino), handle).await
        });
    }

    fn statfs(&self, _: Ino, reply: Reply<Statistics>) {
        reply.ok(self.0.statfs());
    }

    fn setxattr(&self, _: Caller, request: SetXattr<'_>, reply: Reply<()>) {
        let (number, mode) = (Number::of(request.ino), request.mode);
        let (name, value) = (request.name.to_vec(), request.value.to_vec());
        self.answer(reply, move |mount| async move {
            mount.setxattr(number, name, value, mode).await
        });
    }

    fn getxattr(&self, ino: Ino, name: &[u8], reply: Reply<Bytes>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.getxattr(Number::of(ino), name).await
        });
    }

    fn listxattr(&self, ino: Ino, reply: Reply<Vec<Vec<u8>>>) {
        self.answer(reply, |mount| async move {
            mount.listxattr(Number::of(ino)).await
        });
    }

    fn removexattr(&self, _: Caller, ino: Ino, name: &[u8], reply: Reply<()>) {
        let name = name.to_vec();
        self.answer(reply, |mount| async move {
            mount.removexattr(Number::of(ino), name).await
        });
    }

    fn fallocate(&self, request: Fallocate, reply: Reply<()>) {
        self.answer(reply, |mount| async move { mount.fallocate(request).await });
    }

    fn lseek(&self, ino: Ino, handle: Handle, offset: u64, whence: Whence, reply: Reply<u64>) {
        self.answer(reply, |mount| async move {
            mount.lseek(Number::of(ino), handle, offset, whence).await
        });
    }

    fn copy_file_range(&self, request: CopyFileRange, reply: Reply<u64>) {
        self.answer(reply, |mount| async move {
            mount.copy_file_range(request).await
        });
    }

    fn command(&self, _: Ino, handle: Handle, command: &[u8], reply: Reply<()>) {
        let command = Bytes::copy_from_slice(command);
        self.answer(reply, move |mount| async move {
            mount.command(handle, command).await
        });
    }
}

/// Starts a task that fetches the bytes that are likely to be read next, while `range` itself is
/// read.
fn fetch_ahead(file: &OpenFile, view: &View, range: &Range<u64>, size: u64) {
    // The last window is being read while the next one is asked for.
    let most = view.content_store().prefetch_bytes_max() / 4 * 3;
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
    async fn read(&self, request: Read) -> Result<ReadData, VolumeError> {
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
        let length = range.end - range.start;
        self.observed.note_read(inode, range.start, length);
        if let (Some(touches), 0) = (&self.touches, file.number.snapshot) {
            touches.note(inode, range.start, length);
        }
        Ok(view.read(Scope::Live, inode, range).await?.into())
    }

    /// Handles a request to `.bkfs/control` that comes by another way than a write, as on read-only
    /// mounts. The same handle reads its answer.
    async fn command(&self, handle: Handle, command: Bytes) -> Result<(), VolumeError> {
        let open = self.open_file(handle)?;
        let Open::Control(answer) = open.as_ref() else {
            return Err(VolumeError::NotSupported);
        };
        let text = self.control.handle(command).await;
        *answer.lock() = Bytes::from(text);
        Ok(())
    }

    async fn write(
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
            self.handles.wrote_by_any(number);
        } else if let Some(Open::File(file)) = open.as_deref() {
            file.written.fetch_add(1, Ordering::SeqCst);
        }
        Ok(length)
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
}
