//! Requests of the kernel, passed to the mount.
//!
//! Owns: copying the bytes that a request lends for the call. Does not own: anything else.

use bkfs_fuse::{
    AttributeChange, Caller, CopyFileRange, Create, Created, DirectoryReply, Entry, Errno,
    Fallocate, FileKind, Forget, Granted, Handle, Ino, Lookup, Mknod, OpenFlags, Opened, Read,
    ReadData, Rename, Reply, SetXattr, Stat, Statistics, Vfs, Whence, Write,
};
use bytes::Bytes;

use crate::vfs::BkfsVfs;
use crate::vfs::file::Writer;
use crate::vfs::mutations::Making;
use crate::vfs::numbers::Number;

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
                .map_err(|error| super::report(&error)),
        );
    }

    fn readdir(&self, ino: Ino, handle: Handle, cookie: u64, mut reply: DirectoryReply) {
        let mount = self.0.clone();
        self.run(async move {
            let listed = mount.readdir(Number::of(ino), handle, cookie, &mut reply);
            match listed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.err(super::report(&error)),
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
}
