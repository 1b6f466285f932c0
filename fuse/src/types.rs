//! The plain types that requests and answers are made of.
//!
//! Owns: inode numbers, handles, attributes, times, directory entries and the like, in shapes that
//! fit a filesystem. No type of a FUSE library appears in them.
//! Does not own: their encoding for the kernel (convert), or the requests themselves (vfs).

use std::time::Duration;

use bytes::Bytes;

/// The number of an inode. `st_ino` shows it, and the kernel refers to the inode by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of the mount; the kernel knows it by this number without a lookup.
    pub const ROOT: Ino = Ino(1);
}

impl std::fmt::Display for Ino {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The number that the filesystem gave an open file or directory. The kernel returns it unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The caller of a request. The kernel has already applied the caller's umask to modes and, with
/// `default_permissions`, checked the permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Filesystem user id of the calling thread.
    pub uid: u32,
    /// Filesystem group id of the calling thread.
    pub gid: u32,
    /// Thread id of the caller in the daemon's pid namespace; 0 if the thread is outside of it.
    pub pid: u32,
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharacterDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// Returns the kind that the `S_IFMT` bits of a mode name. No bits mean a regular file, as in
    /// mknod(2); unknown bits return `None`.
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Some(FileKind::Regular),
            libc::S_IFDIR => Some(FileKind::Directory),
            libc::S_IFLNK => Some(FileKind::Symlink),
            libc::S_IFIFO => Some(FileKind::Fifo),
            libc::S_IFSOCK => Some(FileKind::Socket),
            libc::S_IFCHR => Some(FileKind::CharacterDevice),
            libc::S_IFBLK => Some(FileKind::BlockDevice),
            _ => None,
        }
    }
}

/// A point in time relative to 1970-01-01T00:00:00Z: `seconds + nanoseconds / 10^9`. The
/// nanoseconds always count forward, also before 1970 (as in `struct timespec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970; any 64-bit value.
    pub seconds: i64,
    /// 0 to 999 999 999, inclusive.
    pub nanoseconds: u32,
}

/// All that stat(2) shows of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub ino: Ino,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last read access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Permission bits with set-user-id, set-group-id and sticky: `0 … 0o7777`.
    pub permissions: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number of a device inode in the kernel's encoding (`st_rdev`), otherwise 0.
    pub rdev: u32,
    /// Preferred unit of I/O in bytes.
    pub blksize: u32,
}

/// Attributes, and how long the kernel may keep them without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The attributes.
    pub attributes: Attributes,
    /// How long they are valid unless this mount changes them.
    pub ttl: Duration,
}

/// The inode that a name leads to. An answer with it counts one lookup of the inode; the kernel
/// gives the count back through [`Vfs::forget`](crate::Vfs::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attributes: Attributes,
    /// Distinguishes inodes that share a number over time; 0 if numbers are never reused.
    pub generation: u64,
    /// How long the name leads to this inode unless this mount changes it.
    pub entry_ttl: Duration,
    /// How long the attributes are valid unless this mount changes them.
    pub attribute_ttl: Duration,
}

/// The answer to a lookup that did not fail. An uncached "no such name" is `Errno::ENOENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The name exists.
    Found(Entry),
    /// The name does not exist. The kernel need not ask again until `ttl` has passed or this mount
    /// creates something under the name.
    Absent {
        /// How long the absence is valid.
        ttl: Duration,
    },
}

impl From<Entry> for Lookup {
    fn from(entry: Entry) -> Self {
        Lookup::Found(entry)
    }
}

/// Lookups of one inode that the kernel gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The inode.
    pub ino: Ino,
    /// Number of lookups that end.
    pub lookups: u64,
}

/// An opened file or directory, and how the kernel treats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The kernel sends it with every request on this open file.
    pub handle: Handle,
    /// Bypass the page cache (file): requests arrive with the program's own sizes and alignment.
    pub direct_io: bool,
    /// Keep the pages (file) or the listing (directory) that earlier opens cached.
    pub keep_cache: bool,
    /// Let the kernel cache the listing (directory).
    pub cache_dir: bool,
    /// Refuse lseek(2).
    pub nonseekable: bool,
    /// With `direct_io`: several threads may write at the same time unless they extend the file.
    pub parallel_direct_writes: bool,
    /// Send no flush request at close(2) of this handle.
    pub noflush: bool,
}

/// The answer to a create request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The new file, or without `exclusive` the existing one; counts one lookup.
    pub entry: Entry,
    /// The open file.
    pub opened: Opened,
}

/// Flags of an open request. `O_CREAT` never arrives here; it is a create request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Opened for reading.
    pub read: bool,
    /// Opened for writing.
    pub write: bool,
    /// `O_APPEND`. The kernel already sends offsets at the end of the file as it knows it.
    pub append: bool,
    /// `O_TRUNC`, on create: this request also truncates the file. With an open it never arrives:
    /// a setattr request without a handle follows.
    pub truncate: bool,
    /// `O_EXCL`, on create: an existing name is an error.
    pub exclusive: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// `O_DSYNC` or `O_SYNC`: every write is durable when it returns. The kernel sends fsync
    /// requests of its own after writes; the filesystem need not act on this flag.
    pub data_sync: bool,
    /// Opened for execution.
    pub execute: bool,
    /// With `truncate`: clear set-user-id and set-group-id as [`AttributeChange::kill_privileges`]
    /// does.
    pub kill_privileges: bool,
}

/// A new value for an access or modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The time at which the filesystem executes the request.
    Now,
    /// This time.
    At(Timestamp),
}

/// The changes of a setattr request; `None` leaves a field unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// New permission bits, `0 … 0o7777`.
    pub permissions: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes: truncation, or growth by a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<TimeChange>,
    /// New modification time.
    pub mtime: Option<TimeChange>,
    /// New change time. The kernel sends it only in modes that this crate does not request.
    pub ctime: Option<Timestamp>,
    /// The handle of ftruncate(2) and similar calls; none for truncate(2), and for open(2) with
    /// `O_TRUNC`. The mode of the open file permits the change;
    /// its current permissions do not matter.
    pub handle: Option<Handle>,
    /// With `size`: clear set-user-id, and set-group-id if the group may execute. A change of owner
    /// or group of anything but a directory clears them too, whatever this field says. Each of
    /// these changes also removes the attribute `security.capability`.
    pub kill_privileges: bool,
}

/// One name in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The inode the name leads to.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: FileKind,
    /// The name, without `/` and NUL.
    pub name: &'a [u8],
    /// Position after this entry, at which a listing continues. It is not 0, stable while the
    /// directory is open, and below 2^63, so that telldir(3) can return it.
    pub cookie: u64,
    /// The entry for READDIRPLUS; plain listings ignore it.
    pub plus: Option<Entry>,
}

impl DirectoryEntry<'_> {
    /// Returns a copy that owns its name.
    pub fn to_owned(&self) -> OwnedDirectoryEntry {
        OwnedDirectoryEntry {
            ino: self.ino,
            kind: self.kind,
            name: self.name.to_vec(),
            cookie: self.cookie,
            plus: self.plus,
        }
    }
}

/// A [`DirectoryEntry`] that owns its name, as tests collect them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDirectoryEntry {
    /// The inode the name leads to.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
    /// Position after this entry, at which a listing continues.
    pub cookie: u64,
    /// The entry for READDIRPLUS, if the filesystem gave one.
    pub plus: Option<Entry>,
}

/// The answer to statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Size of a block in bytes: the unit of the next three fields, and the preferred unit of I/O.
    pub block_size: u32,
    /// Blocks in total.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes in total.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// What rename does with an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Refuses with EEXIST.
    NoReplace,
    /// Exchanges both names, which must exist.
    Exchange,
}

/// What fallocate(2) does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocates space; contents stay, new bytes read as zero.
    Allocate {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Makes a hole; the size stays.
    PunchHole,
    /// Makes the range read as zeros.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
}

/// What lseek(2) looks for. The kernel handles the other kinds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The first byte of data at or after the offset.
    Data,
    /// The first byte of a hole at or after the offset; the end of the file counts as a hole.
    Hole,
}

/// The state of an attribute that setxattr(2) requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Any state.
    Any,
    /// The attribute must not exist; otherwise the answer is EEXIST.
    Create,
    /// The attribute must exist; otherwise the answer is ENODATA.
    Replace,
}

/// The bytes of a read, in order, in one or more pieces. Fewer bytes than requested mean the end of
/// the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadData(pub Vec<Bytes>);

impl ReadData {
    /// Returns the length of all pieces, in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Returns true if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// Returns a copy of all bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Bytes> for ReadData {
    fn from(bytes: Bytes) -> Self {
        ReadData(vec![bytes])
    }
}

impl From<Vec<Bytes>> for ReadData {
    fn from(pieces: Vec<Bytes>) -> Self {
        ReadData(pieces)
    }
}

impl From<Vec<u8>> for ReadData {
    fn from(bytes: Vec<u8>) -> Self {
        ReadData(vec![Bytes::from(bytes)])
    }
}

/// The features that the kernel granted when the mount was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Version of the FUSE protocol that the kernel speaks: major, minor.
    pub protocol: (u32, u32),
    /// Largest write request, in bytes.
    pub max_write_bytes: u32,
    /// `MAP_SHARED` works on files opened with `direct_io` (since kernel 6.6). Without it,
    /// `direct_io` breaks programs that map the files they write.
    pub direct_io_mmap: bool,
    /// The kernel leaves clearing set-user-id bits to the filesystem and says when (see
    /// [`AttributeChange::kill_privileges`]). Without it, the kernel sends a setattr request of its
    /// own.
    pub kill_privileges: bool,
    /// Listings may carry attributes.
    pub readdirplus: bool,
}
