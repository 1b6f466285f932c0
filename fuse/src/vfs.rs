//! The filesystem as requests and answers.
//!
//! Owns: the trait [`Vfs`] and the requests with too many parts for an argument list.
//! Does not own: any behaviour. The filesystem implements the trait; the adapter calls it.
//!
//! # Rules of the trait
//!
//! - Several threads may call all methods at the same time.
//! - The filesystem answers each request through its [`Reply`], inline or later. A running method
//!   occupies one of the few threads that serve the mount. An operation that may wait for more than
//!   a short lock therefore copies what it needs, moves the reply to a task, and returns.
//! - A method that panics answers EIO; the mount goes on. A lock that it held is released or
//!   poisoned, as its type defines for unwinding.
//! - Names are bytes. A name is never empty, never holds `/` or NUL, and is `.` or `..` only in
//!   [`Vfs::lookup`]. A name may be longer than 255 bytes; the answer is then ENAMETOOLONG.
//! - An answer with an [`Entry`] counts one lookup of its inode. The filesystem must know the inode
//!   by its number until [`Vfs::forget`] has given back as many lookups, even if the inode has lost
//!   its last name. When the mount ends, the remaining lookups end without a request.
//! - The kernel checks permissions by the attributes that it was shown (`default_permissions`),
//!   applies umasks, and keeps POSIX and flock locks. The filesystem does the rest. It maintains
//!   times, link counts and sizes. A new inode in a set-group-id directory gets the group of the
//!   directory, and a new directory also the bit. The filesystem clears set-user-id bits where
//!   requests say so.
//! - The kernel sends the release of a handle only after all other requests on it are answered.

use bytes::Bytes;

use crate::errno::Errno;
use crate::reply::{DirectoryReply, Reply};
use crate::types::{
    AttributeChange, Caller, Created, Entry, FallocateMode, FileKind, Forget, Granted, Handle, Ino,
    Lookup, OpenFlags, Opened, ReadData, RenameMode, Stat, Statistics, Whence, XattrMode,
};

/// Request to make a special or regular file.
#[derive(Clone, Copy, Debug)]
pub struct Mknod<'a> {
    /// Directory of the new name.
    pub parent: Ino,
    /// The new name.
    pub name: &'a [u8],
    /// Any kind except directory and symbolic link.
    pub kind: FileKind,
    /// Permission bits, `0 … 0o7777`, with the umask applied.
    pub permissions: u16,
    /// Device number for device kinds, in the encoding of [`crate::Attributes::rdev`].
    pub rdev: u32,
}

/// Request to make a regular file unless it exists, and to open it.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// Directory of the name.
    pub parent: Ino,
    /// The name.
    pub name: &'a [u8],
    /// Permission bits, `0 … 0o7777`, with the umask applied.
    pub permissions: u16,
    /// How to open it; with `exclusive` an existing name answers EEXIST.
    pub flags: OpenFlags,
}

/// Request to move a name, atomically.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Directory of the old name.
    pub parent: Ino,
    /// The old name.
    pub name: &'a [u8],
    /// Directory of the new name.
    pub new_parent: Ino,
    /// The new name.
    pub new_name: &'a [u8],
    /// What happens to an existing target.
    pub mode: RenameMode,
}

/// Request to read a range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The file.
    pub ino: Ino,
    /// Handle of the open file.
    pub handle: Handle,
    /// Offset of the first byte, in bytes.
    pub offset: u64,
    /// Number of bytes, at most 1 MiB.
    pub size: u32,
}

/// Request to write a range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The file.
    pub ino: Ino,
    /// Handle of the open file; with `from_cache` it may be a handle of any opener.
    pub handle: Handle,
    /// Offset of the first byte, in bytes.
    pub offset: u64,
    /// The bytes, at most 1 MiB, borrowed for the call. A filesystem that must wait copies them
    /// first.
    pub data: &'a [u8],
    /// True if the bytes come from dirty pages of a shared mapping; the kernel chooses when it
    /// writes them.
    pub from_cache: bool,
    /// Clear set-user-id and set-group-id, as in [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Request to copy bytes between files without moving them through the kernel.
#[derive(Clone, Copy, Debug)]
pub struct CopyFileRange {
    /// Source file.
    pub ino_in: Ino,
    /// Handle of the source.
    pub handle_in: Handle,
    /// Offset of the first byte in the source, in bytes.
    pub offset_in: u64,
    /// Target file, possibly the source. The kernel refuses overlapping ranges.
    pub ino_out: Ino,
    /// Handle of the target.
    pub handle_out: Handle,
    /// Offset of the first byte in the target, in bytes.
    pub offset_out: u64,
    /// Largest number of bytes to copy; the filesystem may copy fewer.
    pub length: u64,
    /// Clear set-user-id and set-group-id of the target, as in
    /// [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Request to preallocate, punch or zero a range.
#[derive(Clone, Copy, Debug)]
pub struct Fallocate {
    /// The file.
    pub ino: Ino,
    /// Handle of the open file.
    pub handle: Handle,
    /// Offset of the first byte, in bytes.
    pub offset: u64,
    /// Number of bytes, not 0; `offset + length` does not overflow.
    pub length: u64,
    /// What to do.
    pub mode: FallocateMode,
    /// Clear set-user-id and set-group-id, as in [`AttributeChange::kill_privileges`].
    pub kill_privileges: bool,
}

/// Request to set an extended attribute.
#[derive(Clone, Copy, Debug)]
pub struct SetXattr<'a> {
    /// The inode.
    pub ino: Ino,
    /// Full name with its namespace, such as `user.comment`.
    pub name: &'a [u8],
    /// The value, at most 64 KiB, borrowed for the call.
    pub value: &'a [u8],
    /// State of the attribute that the request requires.
    pub mode: XattrMode,
}

/// A filesystem. The module documentation lists the rules that all methods share.
pub trait Vfs: Send + Sync + 'static {
    /// Starts the filesystem. The mount exists; `granted` says what the kernel can do. The adapter
    /// calls this once, before all other methods.
    ///
    /// # Errors
    /// Any errno. It fails the mount, which returns [`crate::MountError::Start`].
    fn init(&self, granted: &Granted) -> Result<(), Errno>;

    /// Ends the filesystem. The mount is gone and no further request comes. The filesystem may drop
    /// replies that are still open. The adapter calls this once.
    fn destroy(&self);

    /// Looks up a name in a directory. The name `.` stands for the inode itself, of any kind; the
    /// filesystem need not know that inode by its number any more. The name `..` stands for the
    /// parent of a directory. If there is no such inode, the answer is ESTALE.
    fn lookup(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<Lookup>);

    /// Gives lookups back. There is no answer. The kernel no longer refers to an inode whose count
    /// of lookups falls to 0.
    fn forget(&self, forgets: &[Forget]);

    /// Answers with the attributes of an inode.
    fn getattr(&self, ino: Ino, handle: Option<Handle>, reply: Reply<Stat>);

    /// Changes attributes, all or none, and answers with the result.
    fn setattr(&self, caller: Caller, ino: Ino, change: AttributeChange, reply: Reply<Stat>);

    /// Answers with the target of a symbolic link.
    fn readlink(&self, ino: Ino, reply: Reply<Bytes>);

    /// Makes a file, fifo, socket or device.
    fn mknod(&self, caller: Caller, request: Mknod<'_>, reply: Reply<Entry>);

    /// Makes a directory with permissions `0 … 0o7777`.
    fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        reply: Reply<Entry>,
    );

    /// Removes a name of anything but a directory. Open files and counted lookups stay valid.
    fn unlink(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>);

    /// Removes an empty directory.
    fn rmdir(&self, caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>);

    /// Makes a symbolic link.
    fn symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8], reply: Reply<Entry>);

    /// Moves a name.
    fn rename(&self, caller: Caller, request: Rename<'_>, reply: Reply<()>);

    /// Gives an inode another name.
    fn link(&self, caller: Caller, ino: Ino, parent: Ino, name: &[u8], reply: Reply<Entry>);

    /// Opens a file.
    fn open(&self, caller: Caller, ino: Ino, flags: OpenFlags, reply: Reply<Opened>);

    /// Creates and opens a file.
    fn create(&self, caller: Caller, request: Create<'_>, reply: Reply<Created>);

    /// Answers with bytes of a file. Fewer bytes than requested mean the end of the file.
    fn read(&self, request: Read, reply: Reply<ReadData>);

    /// Writes and answers with the number of bytes taken. Only a file opened with `direct_io` may
    /// take fewer bytes than sent without an error.
    fn write(&self, request: Write<'_>, reply: Reply<u32>);

    /// Handles the close(2) of one descriptor of an open file. The kernel sends it once per
    /// descriptor: several times or never per handle. Its error becomes the error of close(2).
    fn flush(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// Ends a handle: the last descriptor and mapping of the open file are gone. The kernel waits
    /// for no answer and reports no error to any program.
    fn release(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// Makes a file durable. With `data_only`, attributes that are not needed to read it may wait.
    fn fsync(&self, ino: Ino, handle: Handle, data_only: bool, reply: Reply<()>);

    /// Opens a directory.
    fn opendir(&self, caller: Caller, ino: Ino, reply: Reply<Opened>);

    /// Lists a directory after `cookie` (0: from the start), beginning with `.` and `..`.
    /// [`DirectoryReply::plus`] says whether the kernel wants attributes, and how they count as
    /// lookups.
    fn readdir(&self, ino: Ino, handle: Handle, cookie: u64, reply: DirectoryReply);

    /// Closes a directory; the handle ends.
    fn releasedir(&self, ino: Ino, handle: Handle, reply: Reply<()>);

    /// Makes the names of a directory durable.
    fn fsyncdir(&self, ino: Ino, handle: Handle, data_only: bool, reply: Reply<()>);

    /// Answers with the space of the filesystem.
    fn statfs(&self, ino: Ino, reply: Reply<Statistics>);

    /// Sets an extended attribute.
    fn setxattr(&self, caller: Caller, request: SetXattr<'_>, reply: Reply<()>);

    /// Answers with the whole value of an extended attribute, or ENODATA if it is absent. The
    /// adapter compares sizes with the caller's buffer.
    fn getxattr(&self, ino: Ino, name: &[u8], reply: Reply<Bytes>);

    /// Lists the names of all extended attributes, without NULs.
    fn listxattr(&self, ino: Ino, reply: Reply<Vec<Vec<u8>>>);

    /// Removes an extended attribute; answers ENODATA if it is absent.
    fn removexattr(&self, caller: Caller, ino: Ino, name: &[u8], reply: Reply<()>);

    /// Preallocates, punches or zeroes a range.
    fn fallocate(&self, request: Fallocate, reply: Reply<()>);

    /// Finds data or a hole at or after `offset`; answers ENXIO if there is none.
    fn lseek(&self, ino: Ino, handle: Handle, offset: u64, whence: Whence, reply: Reply<u64>);

    /// Copies bytes within the filesystem. The answer is the number of bytes copied, possibly fewer
    /// than requested.
    fn copy_file_range(&self, request: CopyFileRange, reply: Reply<u64>);

    /// Carries out a command that was sent through an open file by
    /// [`send_command`](crate::send_command). It arrives on read-only mounts too. Unless it is
    /// implemented, it answers ENOTTY.
    fn command(&self, _ino: Ino, _handle: Handle, _command: &[u8], reply: Reply<()>) {
        reply.err(Errno::ENOTTY);
    }
}
