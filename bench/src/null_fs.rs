//! A filesystem that stores names and sizes, and no bytes.
//!
//! It measures the cost of the kernel path alone; bkfs on a mount cannot be faster. Writes are
//! counted and dropped, reads return zeros. It has files and directories only.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bkfs_fuse::{
    AttributeChange, Attributes, Caller, CopyFileRange, Create, Created, DirectoryEntry,
    DirectoryReply, Entry, Errno, Fallocate, FileKind, Forget, Granted, Handle, Ino, Lookup, Mknod,
    OpenFlags, Opened, Read, ReadData, Rename, RenameMode, Reply, SetXattr, Stat, Statistics,
    TimeChange, Timestamp, Vfs, Whence, Write,
};
use bytes::Bytes;

/// Lifetime of all answers: longer than any mount, because nothing changes without the kernel.
const TTL: Duration = Duration::from_secs(86_400);

/// The bytes of all reads, as many as the largest read request.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// How files are opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullConfig {
    /// Bypass the page cache.
    pub direct_io: bool,
    /// Let several threads write one file at the same time (with `direct_io`).
    pub parallel_direct_writes: bool,
}

/// The filesystem.
pub struct NullFs {
    config: NullConfig,
    files: Mutex<Files>,
    /// Bytes written since the start.
    pub written_bytes: AtomicU64,
}

#[derive(Default)]
struct Files {
    attributes: HashMap<Ino, Attributes>,
    names: HashMap<(Ino, Vec<u8>), Ino>,
    /// Names by directory and cookie, in order of creation.
    order: BTreeMap<(Ino, u64), (Vec<u8>, Ino)>,
    cookies: HashMap<Ino, (Ino, u64)>,
    last: u64,
}

impl Files {
    fn insert(
        &mut self,
        caller: Caller,
        (parent, name): (Ino, &[u8]),
        kind: FileKind,
        permissions: u16,
    ) -> Attributes {
        self.last += 1;
        let ino = Ino(self.last + 1);
        let attributes = new_attributes(ino, kind, permissions, caller);
        self.attributes.insert(ino, attributes);
        self.attach(parent, name, ino);
        attributes
    }

    fn attach(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        self.last += 1;
        // Cookies 1 and 2 are the directory's own entries.
        let cookie = self.last + 2;
        self.names.insert((parent, name.to_vec()), ino);
        self.order.insert((parent, cookie), (name.to_vec(), ino));
        self.cookies.insert(ino, (parent, cookie));
    }

    fn detach(&mut self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let ino = self.names.remove(&(parent, name.to_vec()))?;
        if let Some(place) = self.cookies.remove(&ino) {
            self.order.remove(&place);
        }
        Some(ino)
    }
}

fn new_attributes(ino: Ino, kind: FileKind, permissions: u16, caller: Caller) -> Attributes {
    Attributes {
        ino,
        size: 0,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind,
        permissions,
        nlink: 1,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        blksize: 1 << 20,
    }
}

fn entry(attributes: Attributes) -> Entry {
    Entry {
        attributes,
        generation: 0,
        entry_ttl: TTL,
        attribute_ttl: TTL,
    }
}

impl NullFs {
    /// Returns an empty filesystem with direct I/O, as bkfs serves files that are only written.
    pub fn as_bkfs() -> Self {
        Self::new(NullConfig {
            direct_io: true,
            parallel_direct_writes: false,
        })
    }

    /// Returns an empty filesystem.
    pub fn new(config: NullConfig) -> Self {
        let mut files = Files::default();
        let root = Caller {
            uid: 0,
            gid: 0,
            pid: 0,
        };
        let attributes = new_attributes(Ino::ROOT, FileKind::Directory, 0o777, root);
        files.attributes.insert(Ino::ROOT, attributes);
        Self {
            config,
            files: Mutex::new(files),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// Locks the files. A panic during an earlier lock is ignored.
    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn opened(&self) -> Opened {
        Opened {
            direct_io: self.config.direct_io,
            parallel_direct_writes: self.config.parallel_direct_writes,
            keep_cache: true,
            ..Opened::default()
        }
    }
}

impl Vfs for NullFs {
    fn init(&self, _granted: &Granted) -> Result<(), Errno> {
        Ok(())
    }

    fn destroy(&self) {}

    fn lookup(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<Lookup>) {
        let files = self.files();
        let found = files
            .names
            .get(&(parent, name.to_vec()))
            .and_then(|ino| files.attributes.get(ino));
        reply.ok(match found {
            Some(&attributes) => Lookup::Found(entry(attributes)),
            None => Lookup::Absent { ttl: TTL },
        });
    }

    fn forget(&self, forgets: &[Forget]) {
        let mut files = self.files();
        for forget in forgets {
            if forget.ino != Ino::ROOT && !files.cookies.contains_key(&forget.ino) {
                files.attributes.remove(&forget.ino);
            }
        }
    }

    fn getattr(&self, ino: Ino, _handle: Option<Handle>, reply: Reply<Stat>) {
        let attributes = self.files().attributes.get(&ino).copied();
        reply.send(
            attributes
                .map(|attributes| Stat {
                    attributes,
                    ttl: TTL,
                })
                .ok_or(Errno::ENOENT),
        );
    }

    fn setattr(&self, _caller: Caller, ino: Ino, change: AttributeChange, reply: Reply<Stat>) {
        let mut files = self.files();
        let Some(attributes) = files.attributes.get_mut(&ino) else {
            return reply.err(Errno::ENOENT);
        };
        let set = |time: &mut Timestamp, change: Option<TimeChange>| {
            if let Some(TimeChange::At(new)) = change {
                *time = new;
            }
        };
        set(&mut attributes.atime, change.atime);
        set(&mut attributes.mtime, change.mtime);
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.size = change.size.unwrap_or(attributes.size);
        attributes.blocks = attributes.size.div_ceil(512);
        reply.ok(Stat {
            attributes: *attributes,
            ttl: TTL,
        });
    }

    fn readlink(&self, _ino: Ino, reply: Reply<Bytes>) {
        reply.err(Errno::EINVAL);
    }

    fn mknod(&self, caller: Caller, request: Mknod<'_>, reply: Reply<Entry>) {
        let place = (request.parent, request.name);
        let attributes = self
            .files()
            .insert(caller, place, FileKind::Regular, request.permissions);
        reply.ok(entry(attributes));
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        reply: Reply<Entry>,
    ) {
        let place = (parent, name);
        let attributes = self
            .files()
            .insert(caller, place, FileKind::Directory, permissions);
        reply.ok(entry(attributes));
    }

    fn unlink(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        reply.send(
            self.files()
                .detach(parent, name)
                .map(drop)
                .ok_or(Errno::ENOENT),
        );
    }

    fn rmdir(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        reply.send(
            self.files()
                .detach(parent, name)
                .map(drop)
                .ok_or(Errno::ENOENT),
        );
    }

    fn symlink(
        &self,
        _caller: Caller,
        _parent: Ino,
        _name: &[u8],
        _target: &[u8],
        reply: Reply<Entry>,
    ) {
        reply.err(Errno::EOPNOTSUPP);
    }

    fn rename(&self, _caller: Caller, request: Rename<'_>, reply: Reply<()>) {
        let mut files = self.files();
        if request.mode != RenameMode::Replace {
            return reply.err(Errno::EINVAL);
        }
        match files.detach(request.parent, request.name) {
            None => reply.err(Errno::ENOENT),
            Some(ino) => {
                files.detach(request.new_parent, request.new_name);
                files.attach(request.new_parent, request.new_name, ino);
                reply.ok(());
            }
        }
    }

    fn link(&self, _caller: Caller, _ino: Ino, _parent: Ino, _name: &[u8], reply: Reply<Entry>) {
        reply.err(Errno::EOPNOTSUPP);
    }

    fn open(&self, _caller: Caller, ino: Ino, flags: OpenFlags, reply: Reply<Opened>) {
        if flags.truncate
            && let Some(attributes) = self.files().attributes.get_mut(&ino)
        {
            attributes.size = 0;
            attributes.blocks = 0;
        }
        reply.ok(self.opened());
    }

    fn create(&self, caller: Caller, request: Create<'_>, reply: Reply<Created>) {
        let place = (request.parent, request.name);
        let attributes = self
            .files()
            .insert(caller, place, FileKind::Regular, request.permissions);
        reply.ok(Created {
            entry: entry(attributes),
            opened: self.opened(),
        });
    }

    fn read(&self, request: Read, reply: Reply<ReadData>) {
        let size = self
            .files()
            .attributes
            .get(&request.ino)
            .map_or(0, |attributes| attributes.size);
        let rest = size
            .saturating_sub(request.offset)
            .min(u64::from(request.size));
        let length = ZEROS.len().min(rest as usize);
        reply.ok(Bytes::from_static(&ZEROS[..length]).into());
    }

    fn write(&self, request: Write<'_>, reply: Reply<u32>) {
        let length = request.data.len() as u64;
        self.written_bytes.fetch_add(length, Ordering::Relaxed);
        if let Some(attributes) = self.files().attributes.get_mut(&request.ino) {
            attributes.size = attributes.size.max(request.offset.saturating_add(length));
            attributes.blocks = attributes.size.div_ceil(512);
        }
        reply.ok(request.data.len() as u32);
    }

    fn flush(&self, _ino: Ino, _handle: Handle, reply: Reply<()>) {
        reply.ok(());
    }

    fn release(&self, _ino: Ino, _handle: Handle, reply: Reply<()>) {
        reply.ok(());
    }

    fn fsync(&self, _ino: Ino, _handle: Handle, _data_only: bool, reply: Reply<()>) {
        reply.ok(());
    }

    fn opendir(&self, _caller: Caller, _ino: Ino, reply: Reply<Opened>) {
        reply.ok(Opened::default());
    }

    fn readdir(&self, ino: Ino, _handle: Handle, cookie: u64, mut reply: DirectoryReply) {
        let files = self.files();
        for (own, name) in [(1, b".".as_slice()), (2, b"..")] {
            if own > cookie {
                let entry = DirectoryEntry {
                    ino,
                    kind: FileKind::Directory,
                    name,
                    cookie: own,
                    plus: None,
                };
                if !reply.push(&entry) {
                    return reply.ok();
                }
            }
        }
        for (&(_, next), (name, ino)) in files.order.range((ino, cookie + 1)..=(ino, u64::MAX)) {
            let listed = DirectoryEntry {
                ino: *ino,
                kind: files
                    .attributes
                    .get(ino)
                    .map_or(FileKind::Regular, |attributes| attributes.kind),
                name,
                cookie: next,
                plus: files.attributes.get(ino).copied().map(entry),
            };
            if !reply.push(&listed) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _ino: Ino, _handle: Handle, reply: Reply<()>) {
        reply.ok(());
    }

    fn fsyncdir(&self, _ino: Ino, _handle: Handle, _data_only: bool, reply: Reply<()>) {
        reply.ok(());
    }

    fn statfs(&self, _ino: Ino, reply: Reply<Statistics>) {
        reply.ok(Statistics {
            block_size: 1 << 20,
            blocks: 1 << 40,
            blocks_free: 1 << 40,
            blocks_available: 1 << 40,
            files: 1 << 40,
            files_free: 1 << 40,
            name_max: 255,
        });
    }

    fn setxattr(&self, _caller: Caller, _request: SetXattr<'_>, reply: Reply<()>) {
        reply.err(Errno::EOPNOTSUPP);
    }

    fn getxattr(&self, _ino: Ino, _name: &[u8], reply: Reply<Bytes>) {
        reply.err(Errno::ENODATA);
    }

    fn listxattr(&self, _ino: Ino, reply: Reply<Vec<Vec<u8>>>) {
        reply.ok(Vec::new());
    }

    fn removexattr(&self, _caller: Caller, _ino: Ino, _name: &[u8], reply: Reply<()>) {
        reply.err(Errno::ENODATA);
    }

    fn fallocate(&self, _request: Fallocate, reply: Reply<()>) {
        reply.err(Errno::EOPNOTSUPP);
    }

    fn lseek(&self, _ino: Ino, _handle: Handle, _offset: u64, _whence: Whence, reply: Reply<u64>) {
        reply.err(Errno::EINVAL);
    }

    fn copy_file_range(&self, _request: CopyFileRange, reply: Reply<u64>) {
        reply.err(Errno::EOPNOTSUPP);
    }
}
