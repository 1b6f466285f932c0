//! The filesystem as the kernel's door sees it.
//!
//! Owns: the trait [`Vfs`] and the requests with too many parts for an argument list.
//! Does not own: any behaviour. The filesystem implements the trait; the adapter calls it.
//!
//! # Rules of the trait
//!
//! - All methods may be called at once from several threads.
//! - Each request is answered through its [`Reply`], inline or later. An operation that may
//!   wait for anything but a short lock copies what it needs, moves the reply to a task, and
//!   returns: as long as a method runs, it occupies one of the few threads that serve the mount.
//! - A method that panics answers EIO; the mount goes on. Locks it held are released as their
//!   kind does on unwinding.
//! - Names are bytes: never empty, never with `/` or NUL, never `.` or `..` but in
//!   [`Vfs::lookup`]. They may be longer than 255 bytes, which is ENAMETOOLONG.
//! - An answer with an [`Entry`] counts one lookup of its inode. The inode must be known by its
//!   number until as many have been given back by [`Vfs::forget`], also when it has lost its last
//!   name. When the mount ends, what is left is forgotten without a request.
//! - The kernel checks permissions from the attributes it is shown (`default_permissions`),
//!   applies umasks, and keeps POSIX and flock locks. The rest is the filesystem's: times, link
//!   counts, sizes, that a set-group-id directory passes on its group (and to directories the
//!   bit), and clearing set-user-id bits where
//!   requests say so.
//! - Requests on one handle are answered before its release is sent.

use bytes::Bytes;

use crate::errno::Errno;
use crate::reply::{DirectoryReply, Reply};
use crate::types::{
    AttributeChange, Caller, Created, Entry, FallocateMode, FileKind, Forget, Granted, Handle, Ino,
    Lookup, OpenFlags, Opened, ReadData, RenameMode, Stat, Statistics, Whence, XattrMode,
};

/// Make a special (or regular) file.
#[derive(Clone, Copy, Debug)]
pub struct Mknod<'a> {
    /// Directory the name is made in.
    pub parent: Ino,
    /// The new name.
    pub name: &'a [u8],
    /// Anything but a directory or symbolic link.
    pub kind: FileKind,
    /// `0 … 0o7777`, umask applied.
    pub permissions: u16,
    /// Device number for device kinds.
    pub rdev: u32,
}

/// Make a regular file unless it exists, and open it.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// Directory the name is made in.
    pub parent: Ino,
    /// The name.
    pub name: &'a [u8],
    /// `0 … 0o7777`, umask applied.
    pub permissions: u16,
    /// How to open it; `exclusive` refuses an existing name with EEXIST.
    pub flags: OpenFlags,
}

/// Move a name, atomically.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Directory the name is in.
    pub parent: Ino,
    /// The name.
    pub name: &'a [u8],
    /// Directory it goes to.
    pub new_parent: Ino,
    /// The name it gets there.
    pub new_name: &'a [u8],
    /// What happens to a name already there.
    pub mode: RenameMode,
}

/// Read a range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The file.
    pub ino: Ino,
    /// As opened.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; at most 1 MiB.
    pub size: u32,
}

/// Write a range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The file.
    pub ino: Ino,
    /// As opened (with `from_cache`, by any opener).
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// The bytes, lent for the call: whoever must wait copies them first. At most 1 MiB.
    pub data: &'a [u8],
    /// They come from dirty pages of a shared mapping, at a time of the kernel's choosing.
    pub from_cache: bool,
    /// Clear set-user-id and set-group-id, as in [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Copy bytes between files without moving them through the kernel.
#[derive(Clone, Copy, Debug)]
pub struct CopyFileRange {
    /// Source file.
    pub ino_in: Ino,
    /// Source as opened.
    pub handle_in: Handle,
    /// First byte in the source.
    pub offset_in: u64,
    /// Target file, possibly the same; overlapping ranges are refused by the kernel.
    pub ino_out: Ino,
    /// Target as opened.
    pub handle_out: Handle,
    /// First byte in the target.
    pub offset_out: u64,
    /// Number of bytes at most; fewer may be copied.
    pub length: u64,
    /// Clear set-user-id and set-group-id of the target, as in [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Preallocate, punch or zero a range.
#[derive(Clone, Copy, Debug)]
pub struct Fallocate {
    /// The file.
    pub ino: Ino,
    /// As opened.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, not 0; `offset + length` does not overflow.
    pub length: u64,
    /// What to do.
    pub mode: FallocateMode,
    /// Clear set-user-id and set-group-id, as in [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Set an extended attribute.
#[derive(Clone, Copy, Debug)]
pub struct SetXattr<'a> {
    /// The inode.
    pub ino: Ino,
    /// Full name with its namespace, such as `user.comment`.
    pub name: &'a [u8],
    /// The value, lent for the call; at most 64 KiB.
    pub value: &'a [u8],
    /// What must have been there.
    pub mode: XattrMode,
}

/// A filesystem. See the module for the rules that all methods share.
pub trait Vfs: Send + Sync + 'static {
    /// The mount has been made; `granted` says what the kernel can do. Called once, before all others.
    /// An error fails the mount.
    fn init(&self, granted: &Granted) -> Result<(), Errno>;

    /// The mount is gone, no further request comes. Replies that are still open may be dropped.
    /// Called once.
    fn destroy(&self);

    /// Find a name in a directory. The name `.` stands for the inode itself, of whatever kind,
    /// which need not be known by its number any more; `..` for the parent of a directory. ESTALE
    /// if there is none.
    fn lookup(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<Lookup>);

    /// Lookups are given back. There is no answer; an inode that falls to zero lookups is no
    /// longer named by the kernel.
    fn forget(&self, forgets: &[Forget]);

    /// Show attributes.
    fn getattr(&self, ino: Ino, handle: Option<Handle>, reply: Reply<Stat>);

    /// Change attributes, all or none, and show the result.
    fn setattr(&self, caller: Caller, ino: Ino, change: AttributeChange, reply: Reply<Stat>);

    /// Read a symbolic link's target.
    fn readlink(&self, ino: Ino, reply: Reply<Bytes>);

    /// Make a file, fifo, socket or device.
    fn mknod(&self, caller: Caller, request: Mknod<'_>, reply: Reply<Entry>);

    /// Make a directory with permissions `0 … 0o7777`.
    fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        reply: Reply<Entry>,
    );

    /// Remove a name of anything but a directory. Open files and counted lookups live on.
    fn unlink(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>);

    /// Remove an empty directory.
    fn rmdir(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>);

    /// Make a symbolic link.
    fn symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8], reply: Reply<Entry>);

    /// Move a name.
    fn rename(&self, caller: Caller, request: Rename<'_>, reply: Reply<()>);

    /// Give an inode another name.
    fn link(&self, caller: Caller, ino: Ino, parent: Ino, name: &[u8], reply: Reply<Entry>);

    /// Open a file.
    fn open(&self, caller: Caller, ino: Ino, flags: OpenFlags, reply: Reply<Opened>);

    /// Create and open a file.
    fn create(&self, caller: Caller, request: Create<'_>, reply: Reply<Created>);

    /// Read. Fewer bytes than asked for mean the end of the file.
    fn read(&self, request: Read, reply: Reply<ReadData>);

    /// Write. The answer is the number of bytes taken; anything but all of them or an error
    /// only where the file was opened with `direct_io`.
    fn write(&self, request: Write<'_>, reply: Reply<u32>);

    /// close(2) of one descriptor of an open file: comes once per descriptor, several times or
    /// never per handle. Its error is close(2)'s.
    fn flush(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// The last descriptor and mapping of an open file are gone; the handle ends. The kernel
    /// waits for no answer and tells nobody of errors.
    fn release(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// Make a file durable; with `data_only`, attributes that are not needed to read it may wait.
    fn fsync(&self, ino: Ino, handle: Handle, data_only: bool, reply: Reply<()>);

    /// Open a directory.
    fn opendir(&self, caller: Caller, ino: Ino, reply: Reply<Opened>);

    /// List a directory behind `cookie` (0: from the beginning), beginning with `.` and `..`.
    /// Whether attributes are wanted, and what that means for lookups, says [`DirectoryReply::plus`].
    fn readdir(&self, ino: Ino, handle: Handle, cookie: u64, reply: DirectoryReply);

    /// Close a directory; the handle ends.
    fn releasedir(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// Make a directory's names durable.
    fn fsyncdir(&self, ino: Ino, handle: Handle, data_only: bool, reply: Reply<()>);

    /// Show the space of the filesystem.
    fn statfs(&self, ino: Ino, reply: Reply<Statistics>);

    /// Set an extended attribute.
    fn setxattr(&self, caller: Caller, request: SetXattr<'_>, reply: Reply<()>);

    /// Read an extended attribute, always whole; ENODATA if absent. The dialogue about sizes is
    /// held by the adapter.
    fn getxattr(&self, ino: Ino, name: &[u8], reply: Reply<Bytes>);

    /// List the names of all extended attributes, without NULs.
    fn listxattr(&self, ino: Ino, reply: Reply<Vec<Vec<u8>>>);

    /// Remove an extended attribute; ENODATA if absent.
    fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8], reply: Reply<()>);

    /// Preallocate, punch or zero.
    fn fallocate(&self, request: Fallocate, reply: Reply<()>);

    /// Find data or a hole at or after `offset`; ENXIO if there is none.
    fn lseek(&self, ino: Ino, handle: Handle, offset: u64, whence: Whence, reply: Reply<u64>);

    /// Copy within the filesystem. The answer is the number of bytes copied, possibly fewer than asked.
    fn copy_file_range(&self, request: CopyFileRange, reply: Reply<u64>);
}
