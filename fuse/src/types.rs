//! The plain types that requests and answers are made of.
//!
//! Owns: inode numbers, handles, attributes, times, directory entries and the like, in shapes
//! that fit a filesystem, free of any FUSE library's types.
//! Does not own: their encoding for the kernel (convert), or the requests themselves (vfs).

use std::time::Duration;

use bytes::Bytes;

/// The number of an inode, as shown in `st_ino` and used by the kernel to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The mount's root directory; the kernel knows it by this number without a lookup.
    pub const ROOT: Ino = Ino(1);
}

impl std::fmt::Display for Ino {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The number the filesystem gave an open file or directory; the kernel hands it back unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// Who asks. The kernel has already applied the caller's umask to modes and, with
/// `default_permissions`, checked the permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Filesystem user id of the calling thread.
    pub uid: u32,
    /// Filesystem group id of the calling thread.
    pub gid: u32,
    /// Thread id of the caller in the daemon's pid namespace, 0 if it is outside.
    pub pid: u32,
}

/// What an inode is.
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
    /// The `S_IFMT` bits of `st_mode`.
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

    /// The kind that the `S_IFMT` bits of a mode name; no bits mean a regular file, as in mknod(2).
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

/// A point in time since 1970-01-01T00:00:00Z: `seconds + nanoseconds / 10^9`, where the
/// nanoseconds always count forward, also before 1970 (as in `struct timespec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970; any 64-bit value.
    pub seconds: i64,
    /// 0 … 999 999 999.
    pub nanoseconds: u32,
}

/// Everything stat(2) shows of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub ino: Ino,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last read access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// What the inode is.
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

/// Attributes and for how long the kernel may keep them without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The attributes.
    pub attributes: Attributes,
    /// How long they hold unless this mount changes them.
    pub ttl: Duration,
}

/// What a name leads to. Handing one out counts as one lookup of the inode; the kernel gives
/// the count back through [`Vfs::forget`](crate::Vfs::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attributes: Attributes,
    /// Tells apart inodes that share a number over time; 0 where numbers are never reused.
    pub generation: u64,
    /// How long the name leads here unless this mount changes it.
    pub entry_ttl: Duration,
    /// How long the attributes hold unless this mount changes them.
    pub attribute_ttl: Duration,
}

/// The answer to a lookup that did not fail. An uncached "no such name" is `Errno::ENOENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The name is there.
    Found(Entry),
    /// The name is not there, and the kernel need not ask again until `ttl` has passed or
    /// something is created under it through this mount.
    Absent {
        /// How long the absence holds.
        ttl: Duration,
    },
}

impl From<Entry> for Lookup {
    fn from(entry: Entry) -> Self {
        Lookup::Found(entry)
    }
}

/// How lookups of one inode are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The inode.
    pub ino: Ino,
    /// How many of the lookups counted so far end.
    pub lookups: u64,
}

/// An opened file or directory and how the kernel shall treat it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Comes back with every request on this open file.
    pub handle: Handle,
    /// Bypass the page cache (file): requests arrive with the tool's own sizes and alignment.
    pub direct_io: bool,
    /// Keep the pages (file) or the listing (directory) cached by earlier opens.
    pub keep_cache: bool,
    /// Let the kernel cache the listing (directory).
    pub cache_dir: bool,
    /// Refuse lseek(2).
    pub nonseekable: bool,
    /// With `direct_io`: several threads may write at once, as long as they do not extend the file.
    pub parallel_direct_writes: bool,
    /// Send no flush request at close(2) of this handle.
    pub noflush: bool,
}

/// The answer to a create request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The new (or, without `exclusive`, existing) file; counts one lookup.
    pub entry: Entry,
    /// The file as opened.
    pub opened: Opened,
}

/// What a file is opened for. `O_CREAT` never arrives here (it is a create request).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reading is asked for.
    pub read: bool,
    /// Writing is asked for.
    pub write: bool,
    /// `O_APPEND`. The kernel already sends offsets at the end of the file as it knows it.
    pub append: bool,
    /// `O_TRUNC`: the file's contents go with this very request.
    pub truncate: bool,
    /// `O_EXCL`, on create: an existing name is an error.
    pub exclusive: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// `O_DSYNC` or `O_SYNC`: every write is durable when it returns. The kernel follows up with
    /// fsync requests of its own; nothing has to be done for it here.
    pub data_sync: bool,
    /// Opened to be executed.
    pub execute: bool,
    /// With `truncate`: clear set-user-id and set-group-id as [`AttributeChange::kill_privileges`] does.
    pub kill_privileges: bool,
}

/// A new value for an access or modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The time at which the request is carried out.
    Now,
    /// This one.
    At(Timestamp),
}

/// What a setattr request changes; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// New permission bits, `0 … 0o7777`.
    pub permissions: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes: truncation or growth by a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<TimeChange>,
    /// New modification time.
    pub mtime: Option<TimeChange>,
    /// New change time; the kernel sends it only in modes this crate does not ask for.
    pub ctime: Option<Timestamp>,
    /// The handle of ftruncate(2) and its kin: allowed by how the file was opened, not by its permissions now.
    pub handle: Option<Handle>,
    /// With `size`: clear set-user-id, and set-group-id where the group may execute. Whatever
    /// this says, a change of owner or group of anything but a directory clears them too, and
    /// any of these removes the attribute `security.capability`.
    pub kill_privileges: bool,
}

/// One name in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The inode the name leads to.
    pub ino: Ino,
    /// What that inode is.
    pub kind: FileKind,
    /// The name, without any `/` or NUL.
    pub name: &'a [u8],
    /// Where a listing goes on behind this entry: not 0, stable while the directory is open, and
    /// below 2^63, so that telldir(3) can carry it.
    pub cookie: u64,
    /// The entry for READDIRPLUS; ignored in plain listings.
    pub plus: Option<Entry>,
}

impl DirectoryEntry<'_> {
    /// A copy that owns its name.
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
    /// What that inode is.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
    /// Where a listing goes on behind this entry.
    pub cookie: u64,
    /// The entry, if given.
    pub plus: Option<Entry>,
}

/// What statfs(2) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Size of a block in bytes: the unit of the next three, and the preferred unit of I/O.
    pub block_size: u32,
    /// Blocks in total.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users who are not root.
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
    /// Replace it.
    Replace,
    /// Refuse with EEXIST.
    NoReplace,
    /// Exchange both, which must exist.
    Exchange,
}

/// What fallocate(2) does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Make room; contents stay, new bytes read as zero.
    Allocate {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Make a hole; the size stays.
    PunchHole,
    /// Make it read as zeros.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
}

/// What lseek(2) looks for; the other kinds are the kernel's own affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The first byte of data at or after the offset.
    Data,
    /// The first byte of a hole at or after the offset; the end of the file is one.
    Hole,
}

/// What setxattr(2) demands of an attribute's former state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing.
    Any,
    /// It must not exist (EEXIST).
    Create,
    /// It must exist (ENODATA).
    Replace,
}

/// The bytes of a read in order, in as many pieces as they were found in. Fewer bytes than
/// asked for mean the end of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadData(pub Vec<Bytes>);

impl ReadData {
    /// Length of all pieces in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// All bytes in one piece, copied if there are several.
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

/// What the kernel granted when the mount was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Version of the FUSE protocol that the kernel speaks.
    pub protocol: (u32, u32),
    /// Largest write request in bytes.
    pub max_write_bytes: u32,
    /// `MAP_SHARED` works on files opened with `direct_io` (kernel 6.6). Where it does not,
    /// opening with `direct_io` breaks tools that map what they write.
    pub direct_io_mmap: bool,
    /// The kernel leaves clearing set-user-id bits to us and says when (see
    /// [`AttributeChange::kill_privileges`]). Where it does not, it sends a setattr of its own.
    pub kill_privileges: bool,
    /// Listings may come with attributes.
    pub readdirplus: bool,
    /// `O_TRUNC` arrives with the open request; otherwise as a setattr behind it.
    pub atomic_truncate: bool,
}
