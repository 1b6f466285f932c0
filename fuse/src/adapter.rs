//! Translates fuser's calls into calls of the filesystem.
//!
//! Owns: the translation of each kernel request into a call of [`Vfs`], and of its answer back. A
//! panic of the filesystem answers EIO. Requests that the mount did not ask the kernel for (access
//! control lists, other ioctls, whiteouts) are refused here. The library answers methods that are absent
//! here (access, bmap, poll, locks) with ENOSYS; the kernel does not ask again.
//! Does not own: policy. Nothing here knows what a file is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use tracing::error;

use crate::command::command_of;
use crate::convert::{self, caller, handle, ino, is_privileged, permissions};
use crate::errno::Errno;
use crate::negotiate::Negotiation;
use crate::options::Ownership;
use crate::reply::{DirectoryReply, Reply};
use crate::types::{AttributeChange, FileKind, Forget};
use crate::vfs::{CopyFileRange, Create, Fallocate, Mknod, Read, Rename, SetXattr, Vfs, Write};

mod answers;

/// The filesystem as fuser calls it.
pub(crate) struct Adapter {
    vfs: Arc<dyn Vfs>,
    ownership: Ownership,
    /// `None` after the kernel's INIT request.
    negotiation: Option<Negotiation>,
    is_started: bool,
}

impl Adapter {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, ownership: Ownership, negotiation: Negotiation) -> Self {
        Self {
            vfs,
            ownership,
            negotiation: Some(negotiation),
            is_started: false,
        }
    }

    /// Calls the filesystem. If it panics, its dropped reply answers EIO, and the event loop goes
    /// on.
    fn call(&self, operation: &'static str, call: impl FnOnce(&dyn Vfs)) {
        if catch_unwind(AssertUnwindSafe(|| call(&*self.vfs))).is_err() {
            error!(operation, "the filesystem panicked in a request");
        }
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The kernel sends INIT once per connection; the library answers a second one itself.
        if let Some(negotiation) = self.negotiation.take() {
            let granted = negotiation.conclude(config);
            self.vfs.init(&granted).map_err(std::io::Error::from)?;
            self.is_started = true;
        }
        Ok(())
    }

    fn destroy(&mut self) {
        // The library calls this for filesystems that refused to start, too.
        if std::mem::take(&mut self.is_started) {
            self.call("destroy", |vfs| vfs.destroy());
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let reply = answers::lookup(reply, self.ownership);
        let (caller, ino, name) = (caller(request), ino(parent), name.as_bytes());
        self.call("lookup", |vfs| vfs.lookup(caller, ino, name, reply));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        let ino = ino(inode);
        self.call("forget", |vfs| vfs.forget(&[Forget { ino, lookups }]));
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let reply = answers::stat("getattr", reply, self.ownership);
        self.call("getattr", |vfs| {
            vfs.getattr(ino(inode), file.map(handle), reply);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = caller(request);
        let change = AttributeChange {
            permissions: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(convert::time_change),
            mtime: mtime.map(convert::time_change),
            ctime: ctime.map(convert::timestamp),
            handle: file.map(handle),
            kill_privileges: size.is_some() && !is_privileged(caller),
        };
        let reply = answers::stat("setattr", reply, self.ownership);
        self.call("setattr", |vfs| {
            vfs.setattr(caller, ino(inode), change, reply);
        });
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let reply = answers::bytes("readlink", reply);
        self.call("readlink", |vfs| vfs.readlink(ino(inode), reply));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let kind = match FileKind::from_mode(mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => {
                return reply.error(convert::errno(Errno::EINVAL));
            }
            Some(kind) => kind,
        };
        let reply = answers::entry("mknod", reply, self.ownership);
        let parts = Mknod {
            parent: ino(parent),
            name: name.as_bytes(),
            kind,
            permissions: permissions(mode),
            rdev,
        };
        self.call("mknod", |vfs| vfs.mknod(caller(request), parts, reply));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let reply = answers::entry("mkdir", reply, self.ownership);
        let (caller, parent, permissions) = (caller(request), ino(parent), permissions(mode));
        self.call("mkdir", |vfs| {
            vfs.mkdir(caller, parent, name.as_bytes(), permissions, reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let reply = answers::empty("unlink", reply);
        self.call("unlink", |vfs| {
            vfs.unlink(caller(request), ino(parent), name.as_bytes(), reply);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let reply = answers::empty("rmdir", reply);
        self.call("rmdir", |vfs| {
            vfs.rmdir(caller(request), ino(parent), name.as_bytes(), reply);
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let reply = answers::entry("symlink", reply, self.ownership);
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        self.call("symlink", |vfs| {
            vfs.symlink(caller(request), ino(parent), name, target, reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::rename_mode(flags.bits()) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let reply = answers::empty("rename", reply);
        let parts = Rename {
            parent: ino(parent),
            name: name.as_bytes(),
            new_parent: ino(new_parent),
            new_name: new_name.as_bytes(),
            mode,
        };
        self.call("rename", |vfs| vfs.rename(caller(request), parts, reply));
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let reply = answers::entry("link", reply, self.ownership);
        let (parent, name) = (ino(new_parent), new_name.as_bytes());
        self.call("link", |vfs| {
            vfs.link(caller(request), ino(inode), parent, name, reply);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        let flags = convert::open_flags(flags.0, is_privileged(caller));
        let reply = answers::opened("open", reply);
        self.call("open", |vfs| vfs.open(caller, ino(inode), flags, reply));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = caller(request);
        let reply = answers::created(reply, self.ownership);
        let parts = Create {
            parent: ino(parent),
            name: name.as_bytes(),
            permissions: permissions(mode),
            flags: convert::open_flags(flags, is_privileged(caller)),
        };
        self.call("create", |vfs| vfs.create(caller, parts, reply));
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let reply = answers::data(reply, size as usize);
        let parts = Read {
            ino: ino(inode),
            handle: handle(file),
            offset,
            size,
        };
        self.call("read", |vfs| vfs.read(parts, reply));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let reply = answers::written(reply);
        let parts = Write {
            ino: ino(inode),
            handle: handle(file),
            offset,
            data,
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        self.call("write", |vfs| vfs.write(parts, reply));
    }

    fn flush(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("flush", reply);
        self.call("flush", |vfs| vfs.flush(ino(inode), handle(file), reply));
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("release", reply);
        self.call("release", |vfs| {
            vfs.release(ino(inode), handle(file), reply);
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("fsync", reply);
        self.call("fsync", |vfs| {
            vfs.fsync(ino(inode), handle(file), data_only, reply);
        });
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let reply = answers::opened("opendir", reply);
        self.call("opendir", |vfs| {
            vfs.opendir(caller(request), ino(inode), reply);
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        cookie: u64,
        reply: ReplyDirectory,
    ) {
        let reply = DirectoryReply::new(false, Box::new(answers::PlainListing::new(reply)));
        self.call("readdir", |vfs| {
            vfs.readdir(ino(inode), handle(file), cookie, reply);
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let sink = answers::PlusListing::new(reply, self.ownership);
        let reply = DirectoryReply::new(true, Box::new(sink));
        self.call("readdirplus", |vfs| {
            vfs.readdir(ino(inode), handle(file), cookie, reply);
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("releasedir", reply);
        self.call("releasedir", |vfs| {
            vfs.releasedir(ino(inode), handle(file), reply);
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("fsyncdir", reply);
        self.call("fsyncdir", |vfs| {
            vfs.fsyncdir(ino(inode), handle(file), data_only, reply);
        });
    }

    fn statfs(&self, _request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        let reply = answers::statistics(reply);
        self.call("statfs", |vfs| vfs.statfs(ino(inode), reply));
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("setxattr", reply);
        let Some(mode) = convert::xattr_mode(flags) else {
            return reply.err(Errno::EINVAL);
        };
        let Some(reply) = unless_access_control_list(name, reply) else {
            return;
        };
        let parts = SetXattr {
            ino: ino(inode),
            name: name.as_bytes(),
            value,
            mode,
        };
        self.call("setxattr", |vfs| {
            vfs.setxattr(caller(request), parts, reply)
        });
    }

    fn getxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let reply = answers::xattr("getxattr", reply, size);
        if let Some(reply) = unless_access_control_list(name, reply) {
            let (ino, name) = (ino(inode), name.as_bytes());
            self.call("getxattr", |vfs| vfs.getxattr(ino, name, reply));
        }
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let reply = answers::xattr("listxattr", reply, size)
            .map(|names: Vec<Vec<u8>>| convert::xattr_list(&names).into());
        self.call("listxattr", |vfs| vfs.listxattr(ino(inode), reply));
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let reply = answers::empty("removexattr", reply);
        if let Some(reply) = unless_access_control_list(name, reply) {
            let (caller, ino, name) = (caller(request), ino(inode), name.as_bytes());
            self.call("removexattr", |vfs| {
                vfs.removexattr(caller, ino, name, reply)
            });
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        _flags: IoctlFlags,
        number: u32,
        data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let (reply, ino, handle) = (answers::done(reply), ino(inode), handle(file));
        match command_of(number, data) {
            Some(command) => self.call("ioctl", |vfs| vfs.command(ino, handle, command, reply)),
            None => reply.err(Errno::ENOTTY),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let reply = answers::empty("fallocate", reply);
        if length == 0 || offset.checked_add(length).is_none() {
            return reply.err(Errno::EINVAL);
        }
        let Some(mode) = convert::fallocate_mode(mode) else {
            return reply.err(Errno::EOPNOTSUPP);
        };
        let parts = Fallocate {
            ino: ino(inode),
            handle: handle(file),
            offset,
            length,
            mode,
            kill_privileges: !is_privileged(caller(request)),
        };
        self.call("fallocate", |vfs| vfs.fallocate(parts, reply));
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let reply = answers::offset(reply);
        match convert::place(offset, whence) {
            Ok((offset, whence)) => self.call("lseek", |vfs| {
                vfs.lseek(ino(inode), handle(file), offset, whence, reply);
            }),
            Err(error) => reply.err(error),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        inode_in: INodeNo,
        file_in: FileHandle,
        offset_in: u64,
        inode_out: INodeNo,
        file_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let reply = answers::copied(reply);
        let parts = CopyFileRange {
            ino_in: ino(inode_in),
            handle_in: handle(file_in),
            offset_in,
            ino_out: ino(inode_out),
            handle_out: handle(file_out),
            offset_out,
            length: length.min(answers::COPY_BYTES_MAX),
            kill_privileges: !is_privileged(caller(request)),
        };
        self.call("copy_file_range", |vfs| vfs.copy_file_range(parts, reply));
    }
}

/// Refuses access control lists with EOPNOTSUPP; returns the reply for any other name.
fn unless_access_control_list<T>(name: &OsStr, reply: Reply<T>) -> Option<Reply<T>> {
    if convert::is_access_control_list(name.as_bytes()) {
        reply.err(Errno::EOPNOTSUPP);
        None
    } else {
        Some(reply)
    }
}
