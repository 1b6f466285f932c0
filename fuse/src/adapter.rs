//! From fuser's calls to the filesystem's.
//!
//! Owns: the translation of each kernel request into a call of [`Vfs`] and of its answer back;
//! that a panic answers EIO; what is refused here because the mount did not ask the kernel for
//! it (access control lists, ioctl, poll, whiteouts).
//! Does not own: policy. Nothing here knows what a file is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::error;

use crate::convert;
use crate::errno::Errno;
use crate::negotiate::Negotiation;
use crate::options::Ownership;
use crate::reply::{DirectoryReply, Reply};
use crate::types::{AttributeChange, Caller, FileKind, Forget, Handle, Ino};
use crate::vfs::{CopyFileRange, Create, Fallocate, Mknod, Read, Rename, SetXattr, Vfs, Write};

mod answers;

/// The filesystem as fuser calls it.
pub(crate) struct Adapter {
    vfs: Arc<dyn Vfs>,
    ownership: Ownership,
    /// Until the kernel has been greeted.
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

    /// Calls the filesystem. Should it panic, its reply answers EIO as it is dropped, and the
    /// event loop goes on.
    fn call(&self, operation: &'static str, call: impl FnOnce(&dyn Vfs)) {
        if catch_unwind(AssertUnwindSafe(|| call(&*self.vfs))).is_err() {
            error!(operation, "the filesystem panicked in a request");
        }
    }
}

fn caller(request: &fuser::Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

/// Whether a caller keeps set-user-id bits when truncating (CAP_FSETID). The kernel says so
/// in a flag that fuser does not pass on; root is the closest that can be known here, and errs
/// on the side of clearing.
fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0
}

fn ino(ino: fuser::INodeNo) -> Ino {
    Ino(ino.0)
}

fn handle(handle: fuser::FileHandle) -> Handle {
    Handle(handle.0)
}

/// The permission bits of a mode; the mask makes the narrowing exact.
fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

impl fuser::Filesystem for Adapter {
    fn init(
        &mut self,
        _request: &fuser::Request,
        config: &mut fuser::KernelConfig,
    ) -> std::io::Result<()> {
        // The kernel greets once per connection; the library answers a second greeting itself.
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

    fn lookup(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let reply = answers::lookup(reply, self.ownership);
        self.call("lookup", |vfs| {
            vfs.lookup(caller(request), ino(parent), name.as_bytes(), reply);
        });
    }

    fn forget(&self, _request: &fuser::Request, inode: fuser::INodeNo, lookups: u64) {
        self.call("forget", |vfs| {
            vfs.forget(&[Forget {
                ino: ino(inode),
                lookups,
            }]);
        });
    }

    fn getattr(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        let reply = answers::stat("getattr", reply, self.ownership);
        self.call("getattr", |vfs| {
            vfs.getattr(ino(inode), file.map(handle), reply);
        });
    }

    fn setattr(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<fuser::TimeOrNow>,
        mtime: Option<fuser::TimeOrNow>,
        ctime: Option<SystemTime>,
        file: Option<fuser::FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
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

    fn readlink(&self, _request: &fuser::Request, inode: fuser::INodeNo, reply: fuser::ReplyData) {
        let reply = answers::bytes("readlink", reply);
        self.call("readlink", |vfs| vfs.readlink(ino(inode), reply));
    }

    fn mknod(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let kind = match FileKind::from_mode(mode) {
            Some(FileKind::Directory | FileKind::Symlink) | None => {
                return reply.error(convert::errno(Errno::EINVAL));
            }
            Some(kind) => kind,
        };
        let reply = answers::entry("mknod", reply, self.ownership);
        self.call("mknod", |vfs| {
            let request_parts = Mknod {
                parent: ino(parent),
                name: name.as_bytes(),
                kind,
                permissions: permissions(mode),
                rdev,
            };
            vfs.mknod(caller(request), request_parts, reply);
        });
    }

    fn mkdir(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let reply = answers::entry("mkdir", reply, self.ownership);
        let permissions = permissions(mode);
        self.call("mkdir", |vfs| {
            vfs.mkdir(
                caller(request),
                ino(parent),
                name.as_bytes(),
                permissions,
                reply,
            );
        });
    }

    fn unlink(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("unlink", reply);
        self.call("unlink", |vfs| {
            vfs.unlink(caller(request), ino(parent), name.as_bytes(), reply);
        });
    }

    fn rmdir(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("rmdir", reply);
        self.call("rmdir", |vfs| {
            vfs.rmdir(caller(request), ino(parent), name.as_bytes(), reply);
        });
    }

    fn symlink(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let reply = answers::entry("symlink", reply, self.ownership);
        let target = target.as_os_str().as_bytes();
        self.call("symlink", |vfs| {
            vfs.symlink(caller(request), ino(parent), name.as_bytes(), target, reply);
        });
    }

    fn rename(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        new_parent: fuser::INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let mode = match convert::rename_mode(flags.bits()) {
            Ok(mode) => mode,
            Err(refused) => return reply.error(convert::errno(refused)),
        };
        let reply = answers::empty("rename", reply);
        self.call("rename", |vfs| {
            let request_parts = Rename {
                parent: ino(parent),
                name: name.as_bytes(),
                new_parent: ino(new_parent),
                new_name: new_name.as_bytes(),
                mode,
            };
            vfs.rename(caller(request), request_parts, reply);
        });
    }

    fn link(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        new_parent: fuser::INodeNo,
        new_name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let reply = answers::entry("link", reply, self.ownership);
        self.call("link", |vfs| {
            vfs.link(
                caller(request),
                ino(inode),
                ino(new_parent),
                new_name.as_bytes(),
                reply,
            );
        });
    }

    fn open(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        flags: fuser::OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        let caller = caller(request);
        let flags = convert::open_flags(flags.0, is_privileged(caller));
        let reply = answers::opened("open", reply);
        self.call("open", |vfs| vfs.open(caller, ino(inode), flags, reply));
    }

    fn create(
        &self,
        request: &fuser::Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        let caller = caller(request);
        let reply = answers::created(reply, self.ownership);
        self.call("create", |vfs| {
            let request_parts = Create {
                parent: ino(parent),
                name: name.as_bytes(),
                permissions: permissions(mode),
                flags: convert::open_flags(flags, is_privileged(caller)),
            };
            vfs.create(caller, request_parts, reply);
        });
    }

    fn read(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        let reply = answers::data(reply, size as usize);
        self.call("read", |vfs| {
            let request_parts = Read {
                ino: ino(inode),
                handle: handle(file),
                offset,
                size,
            };
            vfs.read(request_parts, reply);
        });
    }

    fn write(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: fuser::WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let reply = answers::written(reply);
        self.call("write", |vfs| {
            let request_parts = Write {
                ino: ino(inode),
                handle: handle(file),
                offset,
                data,
                from_cache: write_flags.contains(fuser::WriteFlags::FUSE_WRITE_CACHE),
                kill_privileges: write_flags.contains(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            };
            vfs.write(request_parts, reply);
        });
    }

    fn flush(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        _lock_owner: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("flush", reply);
        self.call("flush", |vfs| vfs.flush(ino(inode), handle(file), reply));
    }

    fn release(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        _flush: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("release", reply);
        self.call("release", |vfs| {
            vfs.release(ino(inode), handle(file), reply);
        });
    }

    fn fsync(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("fsync", reply);
        self.call("fsync", |vfs| {
            vfs.fsync(ino(inode), handle(file), data_only, reply);
        });
    }

    fn opendir(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        let reply = answers::opened("opendir", reply);
        self.call("opendir", |vfs| {
            vfs.opendir(caller(request), ino(inode), reply);
        });
    }

    fn readdir(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        cookie: u64,
        reply: fuser::ReplyDirectory,
    ) {
        let reply = DirectoryReply::new(false, Box::new(answers::PlainListing::new(reply)));
        self.call("readdir", |vfs| {
            vfs.readdir(ino(inode), handle(file), cookie, reply);
        });
    }

    fn readdirplus(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        cookie: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        let sink = answers::PlusListing::new(reply, self.ownership);
        let reply = DirectoryReply::new(true, Box::new(sink));
        self.call("readdirplus", |vfs| {
            vfs.readdir(ino(inode), handle(file), cookie, reply);
        });
    }

    fn releasedir(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("releasedir", reply);
        self.call("releasedir", |vfs| {
            vfs.releasedir(ino(inode), handle(file), reply);
        });
    }

    fn fsyncdir(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("fsyncdir", reply);
        self.call("fsyncdir", |vfs| {
            vfs.fsyncdir(ino(inode), handle(file), data_only, reply);
        });
    }

    fn statfs(&self, _request: &fuser::Request, inode: fuser::INodeNo, reply: fuser::ReplyStatfs) {
        let reply = answers::statistics(reply);
        self.call("statfs", |vfs| vfs.statfs(ino(inode), reply));
    }

    fn setxattr(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("setxattr", reply);
        let mode = match convert::xattr_mode(flags) {
            Ok(mode) => mode,
            Err(refused) => return reply.err(refused),
        };
        let Some(reply) = unless_access_control_list(name, reply) else {
            return;
        };
        self.call("setxattr", |vfs| {
            let request_parts = SetXattr {
                ino: ino(inode),
                name: name.as_bytes(),
                value,
                mode,
            };
            vfs.setxattr(caller(request), request_parts, reply);
        });
    }

    fn getxattr(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let reply = answers::xattr("getxattr", reply, size);
        if let Some(reply) = unless_access_control_list(name, reply) {
            self.call("getxattr", |vfs| {
                vfs.getxattr(ino(inode), name.as_bytes(), reply);
            });
        }
    }

    fn listxattr(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let reply = answers::xattr("listxattr", reply, size)
            .map(|names: Vec<Vec<u8>>| convert::xattr_list(&names).into());
        self.call("listxattr", |vfs| vfs.listxattr(ino(inode), reply));
    }

    fn removexattr(
        &self,
        request: &fuser::Request,
        inode: fuser::INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("removexattr", reply);
        if let Some(reply) = unless_access_control_list(name, reply) {
            self.call("removexattr", |vfs| {
                vfs.removexattr(caller(request), ino(inode), name.as_bytes(), reply);
            });
        }
    }

    fn access(
        &self,
        _request: &fuser::Request,
        _inode: fuser::INodeNo,
        _mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn bmap(
        &self,
        _request: &fuser::Request,
        _inode: fuser::INodeNo,
        _block_size: u32,
        _index: u64,
        reply: fuser::ReplyBmap,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &fuser::Request,
        _inode: fuser::INodeNo,
        _file: fuser::FileHandle,
        _flags: fuser::IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        _request: &fuser::Request,
        _inode: fuser::INodeNo,
        _file: fuser::FileHandle,
        _notifier: fuser::PollNotifier,
        _events: fuser::PollEvents,
        _flags: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        let reply = answers::empty("fallocate", reply);
        if length == 0 || offset.checked_add(length).is_none() {
            return reply.err(Errno::EINVAL);
        }
        let mode = match convert::fallocate_mode(mode) {
            Ok(mode) => mode,
            Err(refused) => return reply.err(refused),
        };
        self.call("fallocate", |vfs| {
            let request_parts = Fallocate {
                ino: ino(inode),
                handle: handle(file),
                offset,
                length,
                mode,
            };
            vfs.fallocate(request_parts, reply);
        });
    }

    fn lseek(
        &self,
        _request: &fuser::Request,
        inode: fuser::INodeNo,
        file: fuser::FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        let reply = answers::offset(reply);
        let (Ok(whence), Ok(offset)) = (convert::whence(whence), u64::try_from(offset)) else {
            return reply.err(Errno::EINVAL);
        };
        self.call("lseek", |vfs| {
            vfs.lseek(ino(inode), handle(file), offset, whence, reply);
        });
    }

    fn copy_file_range(
        &self,
        _request: &fuser::Request,
        inode_in: fuser::INodeNo,
        file_in: fuser::FileHandle,
        offset_in: u64,
        inode_out: fuser::INodeNo,
        file_out: fuser::FileHandle,
        offset_out: u64,
        length: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        let reply = answers::copied(reply);
        self.call("copy_file_range", |vfs| {
            let request_parts = CopyFileRange {
                ino_in: ino(inode_in),
                handle_in: handle(file_in),
                offset_in,
                ino_out: ino(inode_out),
                handle_out: handle(file_out),
                offset_out,
                length: length.min(answers::COPY_BYTES_MAX),
            };
            vfs.copy_file_range(request_parts, reply);
        });
    }
}

/// Refuses access control lists, and hands back the reply for anything else.
fn unless_access_control_list<T>(name: &OsStr, reply: Reply<T>) -> Option<Reply<T>> {
    if convert::is_access_control_list(name.as_bytes()) {
        reply.err(Errno::EOPNOTSUPP);
        None
    } else {
        Some(reply)
    }
}
