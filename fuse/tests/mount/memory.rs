//! A small filesystem in memory, for mounting.
//!
//! It implements what its tests need, and counts the requests that they check. Files whose names
//! begin with `parked`, `lost` or `panic` misbehave when they are written: they answer when the
//! test says so, answer never, or panic. Files whose names begin with `direct` are opened with
//! direct I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bkfs_fuse::*;
use bytes::Bytes;
use parking_lot::Mutex;

mod state;

use state::State;

pub const TTL: Duration = Duration::from_secs(600);

/// A write that waits for [`MemoryFs::release_parked`].
struct Parked {
    ino: Ino,
    offset: u64,
    data: Vec<u8>,
    reply: Reply<u32>,
}

#[derive(Default)]
pub struct Counters {
    pub lookups: AtomicU64,
    pub getxattrs: AtomicU64,
    pub truncating_opens: AtomicU64,
    pub truncating_setattrs: AtomicU64,
    pub largest_write: AtomicU64,
    pub plus_listings: AtomicU64,
    pub plain_listings: AtomicU64,
    pub destroyed: AtomicU64,
    pub forget_errors: AtomicU64,
}

#[derive(Default)]
pub struct MemoryFs {
    state: Mutex<State>,
    parked: Mutex<Vec<Parked>>,
    pub counters: Counters,
    pub granted: Mutex<Option<Granted>>,
    pub refuses_to_start: Mutex<Option<Errno>>,
    /// Called while the kernel waits for the answer to INIT.
    pub at_start: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub writes: Mutex<Vec<(u64, usize, bool)>>,
}

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

pub fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

impl MemoryFs {
    pub fn new() -> Arc<Self> {
        let memory = MemoryFs::default();
        let root = Caller {
            uid: 0,
            gid: 0,
            pid: 0,
        };
        memory
            .state
            .lock()
            .make(root, FileKind::Directory, 0o755, b"");
        Arc::new(memory)
    }

    /// Returns how many inodes are known, named or not.
    pub fn inodes(&self) -> usize {
        self.state.lock().inodes.len()
    }

    pub fn parked(&self) -> usize {
        self.parked.lock().len()
    }

    /// Answers the parked writes, from the calling thread.
    pub fn release_parked(&self) {
        for parked in std::mem::take(&mut *self.parked.lock()) {
            let result = self
                .state
                .lock()
                .write(parked.ino, parked.offset, &parked.data);
            parked.reply.send(result);
        }
    }

    /// Changes a file in the root without a notice to the kernel.
    pub fn replace_contents(&self, name: &[u8], data: &[u8]) -> Ino {
        let mut state = self.state.lock();
        let (_, ino) = state.child(Ino::ROOT, name).unwrap();
        let inode = state.get(ino).unwrap();
        inode.data = data.to_vec();
        inode.measure();
        ino
    }

    fn with_new(&self, reply: Reply<Entry>, make: impl FnOnce(&mut State) -> Result<Ino, Errno>) {
        let mut state = self.state.lock();
        let entry = make(&mut state).and_then(|ino| state.entry(ino));
        drop(state);
        reply.send(entry);
    }
}

impl Vfs for MemoryFs {
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        *self.granted.lock() = Some(*granted);
        if let Some(act) = self.at_start.lock().take() {
            act();
        }
        self.refuses_to_start.lock().map_or(Ok(()), Err)
    }

    fn destroy(&self) {
        bump(&self.counters.destroyed);
    }

    fn lookup(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<Lookup>) {
        bump(&self.counters.lookups);
        let mut state = self.state.lock();
        reply.send(match state.child(parent, name) {
            Some((_, ino)) => state.entry(ino).map(Lookup::Found),
            None if name.starts_with(b"absent") => Ok(Lookup::Absent { ttl: TTL }),
            None => Err(Errno::ENOENT),
        });
    }

    fn forget(&self, forgets: &[Forget]) {
        let mut state = self.state.lock();
        for forget in forgets {
            match state.get(forget.ino) {
                Ok(inode) if inode.lookups >= forget.lookups => inode.lookups -= forget.lookups,
                _ => bump(&self.counters.forget_errors),
            }
            state.reap(forget.ino);
        }
    }

    fn getattr(&self, ino: Ino, _handle: Option<Handle>, reply: Reply<Stat>) {
        let mut state = self.state.lock();
        reply.send(state.get(ino).map(|inode| Stat {
            attributes: inode.attributes,
            ttl: TTL,
        }));
    }

    fn setattr(&self, _caller: Caller, ino: Ino, change: AttributeChange, reply: Reply<Stat>) {
        if change.size.is_some() {
            bump(&self.counters.truncating_setattrs);
        }
        let mut state = self.state.lock();
        let now = state.now();
        reply.send(state.get(ino).map(|inode| {
            inode.change(change, now);
            Stat {
                attributes: inode.attributes,
                ttl: TTL,
            }
        }));
    }

    fn readlink(&self, ino: Ino, reply: Reply<Bytes>) {
        let mut state = self.state.lock();
        reply.send(state.get(ino).map(|inode| inode.target.clone().into()));
    }

    fn mknod(&self, caller: Caller, request: Mknod<'_>, reply: Reply<Entry>) {
        self.with_new(reply, |state| {
            let Mknod {
                parent,
                name,
                kind,
                permissions,
                rdev,
            } = request;
            let ino = state.make_in(caller, parent, name, kind, permissions)?;
            state.get(ino)?.attributes.rdev = rdev;
            Ok(ino)
        });
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        permissions: u16,
        reply: Reply<Entry>,
    ) {
        self.with_new(reply, |state| {
            state.make_in(caller, parent, name, FileKind::Directory, permissions)
        });
    }

    fn unlink(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        let mut state = self.state.lock();
        let result = state
            .detach(parent, name)
            .and_then(|ino| state.drop_link(ino));
        reply.send(result);
    }

    fn rmdir(&self, _caller: Caller, parent: Ino, name: &[u8], reply: Reply<()>) {
        let mut state = self.state.lock();
        let result = state
            .child(parent, name)
            .ok_or(Errno::ENOENT)
            .and_then(|(_, ino)| match state.get(ino)?.children.is_empty() {
                true => state.detach(parent, name),
                false => Err(Errno::ENOTEMPTY),
            })
            .and_then(|ino| state.drop_link(ino));
        reply.send(result);
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        reply: Reply<Entry>,
    ) {
        self.with_new(reply, |state| {
            let ino = state.make_in(caller, parent, name, FileKind::Symlink, 0o777)?;
            let inode = state.get(ino)?;
            inode.target = target.to_vec();
            inode.attributes.size = target.len() as u64;
            Ok(ino)
        });
    }

    fn rename(&self, _caller: Caller, request: Rename<'_>, reply: Reply<()>) {
        let Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
        } = request;
        let mut state = self.state.lock();
        let result = (|| {
            let existing = state.child(new_parent, new_name).map(|(_, ino)| ino);
            let ino = state.child(parent, name).ok_or(Errno::ENOENT)?.1;
            match (mode, existing) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
                (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
                (RenameMode::Exchange, Some(other)) => {
                    state.detach(parent, name)?;
                    state.detach(new_parent, new_name)?;
                    state.attach(parent, name, other)?;
                }
                (_, Some(other)) => {
                    state.detach(new_parent, new_name)?;
                    state.drop_link(other)?;
                    state.detach(parent, name)?;
                }
                (_, None) => drop(state.detach(parent, name)?),
            }
            state.attach(new_parent, new_name, ino)
        })();
        reply.send(result);
    }

    fn link(&self, _caller: Caller, ino: Ino, parent: Ino, name: &[u8], reply: Reply<Entry>) {
        self.with_new(reply, |state| {
            state.attach(parent, name, ino)?;
            state.get(ino)?.attributes.nlink += 1;
            Ok(ino)
        });
    }

    fn open(&self, _caller: Caller, ino: Ino, flags: OpenFlags, reply: Reply<Opened>) {
        let mut state = self.state.lock();
        reply.send(state.get(ino).map(|inode| {
            if flags.truncate {
                bump(&self.counters.truncating_opens);
                inode.data.clear();
                inode.measure();
                if flags.kill_privileges {
                    inode.clear_privileges();
                }
            }
            inode.opens += 1;
            inode.opened()
        }));
    }

    fn create(&self, caller: Caller, request: Create<'_>, reply: Reply<Created>) {
        let mut state = self.state.lock();
        let Create {
            parent,
            name,
            permissions,
            ..
        } = request;
        let result = state
            .make_in(caller, parent, name, FileKind::Regular, permissions)
            .and_then(|ino| {
                let entry = state.entry(ino)?;
                let inode = state.get(ino)?;
                inode.opens += 1;
                Ok(Created {
                    entry,
                    opened: inode.opened(),
                })
            });
        reply.send(result);
    }

    fn read(&self, request: Read, reply: Reply<ReadData>) {
        let mut state = self.state.lock();
        let Read {
            ino, offset, size, ..
        } = request;
        reply.send(state.get(ino).map(|inode| {
            let start = inode.data.len().min(offset as usize);
            let end = inode.data.len().min(start + size as usize);
            // In pieces, so that the adapter must join them.
            let pieces = inode.data[start..end].chunks(100_000);
            ReadData(pieces.map(Bytes::copy_from_slice).collect())
        }));
    }

    fn write(&self, request: Write<'_>, reply: Reply<u32>) {
        let Write {
            ino,
            offset,
            data,
            kill_privileges,
            ..
        } = request;
        self.writes
            .lock()
            .push((offset, data.len(), kill_privileges));
        self.counters
            .largest_write
            .fetch_max(data.len() as u64, Ordering::SeqCst);
        let mut state = self.state.lock();
        let name = match state.get(ino) {
            Ok(inode) => {
                if kill_privileges {
                    inode.clear_privileges();
                }
                inode.name.clone()
            }
            Err(errno) => return reply.err(errno),
        };
        if name.starts_with(b"parked") {
            let data = data.to_vec();
            return self.parked.lock().push(Parked {
                ino,
                offset,
                data,
                reply,
            });
        }
        if name.starts_with(b"lost") {
            return drop(reply);
        }
        assert!(!name.starts_with(b"panic"), "on purpose");
        let result = state.write(ino, offset, data);
        reply.send(result);
    }

    fn flush(&self, _ino: Ino, _handle: Handle, reply: Reply<()>) {
        reply.ok(());
    }

    fn release(&self, ino: Ino, _handle: Handle, reply: Reply<()>) {
        let mut state = self.state.lock();
        let result = state.get(ino).map(|inode| inode.opens -= 1);
        state.reap(ino);
        reply.send(result);
    }

    fn fsync(&self, _ino: Ino, _handle: Handle, _data_only: bool, reply: Reply<()>) {
        reply.ok(());
    }

    fn opendir(&self, _caller: Caller, _ino: Ino, reply: Reply<Opened>) {
        reply.ok(Opened::default());
    }

    fn readdir(&self, ino: Ino, _handle: Handle, cookie: u64, mut reply: DirectoryReply) {
        bump(match reply.plus() {
            true => &self.counters.plus_listings,
            false => &self.counters.plain_listings,
        });
        // Cookies 1 and 2 are `.` and `..`; the cookie of a child is its own plus 2.
        let mut state = self.state.lock();
        let inode = match state.get(ino) {
            Ok(inode) => inode.clone(),
            Err(errno) => return reply.err(errno),
        };
        let dots = [(1, b".".to_vec(), ino), (2, b"..".to_vec(), inode.parent)];
        let children = inode.children.into_iter();
        let all = dots
            .into_iter()
            .chain(children.map(|(cookie, (name, ino))| (cookie + 2, name, ino)));
        for (next, name, ino) in all.filter(|(next, ..)| *next > cookie) {
            let is_dots = next <= 2;
            let (plus, kind) = match state.get(ino) {
                Ok(child) => (child.attributes, child.attributes.kind),
                Err(errno) => return reply.err(errno),
            };
            let entry = DirectoryEntry {
                ino,
                kind,
                name: &name,
                cookie: next,
                plus: (!is_dots).then_some(Entry {
                    attributes: plus,
                    generation: 0,
                    entry_ttl: TTL,
                    attribute_ttl: TTL,
                }),
            };
            if !reply.push(&entry) {
                break;
            }
            if reply.plus() && !is_dots {
                state.get(ino).unwrap().lookups += 1;
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
            block_size: 65536,
            blocks: 1 << 40,
            blocks_free: 1 << 39,
            blocks_available: 1 << 38,
            files: 1 << 48,
            files_free: 1 << 47,
            name_max: 255,
        });
    }

    fn setxattr(&self, _caller: Caller, request: SetXattr<'_>, reply: Reply<()>) {
        let SetXattr {
            ino,
            name,
            value,
            mode,
        } = request;
        let mut state = self.state.lock();
        let result = state.get(ino).and_then(|inode| {
            match (mode, inode.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Errno::EEXIST),
                (XattrMode::Replace, false) => return Err(Errno::ENODATA),
                _ => inode.xattrs.insert(name.to_vec(), value.to_vec()),
            };
            Ok(())
        });
        reply.send(result);
    }

    fn getxattr(&self, ino: Ino, name: &[u8], reply: Reply<Bytes>) {
        bump(&self.counters.getxattrs);
        let mut state = self.state.lock();
        reply.send(state.get(ino).and_then(|inode| {
            let value = inode.xattrs.get(name).ok_or(Errno::ENODATA)?;
            Ok(value.clone().into())
        }));
    }

    fn listxattr(&self, ino: Ino, reply: Reply<Vec<Vec<u8>>>) {
        let mut state = self.state.lock();
        reply.send(
            state
                .get(ino)
                .map(|inode| inode.xattrs.keys().cloned().collect()),
        );
    }

    fn removexattr(&self, _caller: Caller, ino: Ino, name: &[u8], reply: Reply<()>) {
        let mut state = self.state.lock();
        let result = state
            .get(ino)
            .and_then(|inode| inode.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA));
        reply.send(result);
    }

    fn fallocate(&self, request: Fallocate, reply: Reply<()>) {
        let Fallocate {
            ino,
            offset,
            length,
            mode,
            ..
        } = request;
        let mut state = self.state.lock();
        reply.send(state.get(ino).map(|inode| {
            let end = (offset + length) as usize;
            let (grow, zero) = match mode {
                FallocateMode::Allocate { keep_size } => (!keep_size, false),
                FallocateMode::ZeroRange { keep_size } => (!keep_size, true),
                FallocateMode::PunchHole => (false, true),
            };
            if grow && inode.data.len() < end {
                inode.data.resize(end, 0);
            }
            let end = end.min(inode.data.len());
            if zero && (offset as usize) < end {
                inode.data[offset as usize..end].fill(0);
            }
            inode.measure();
        }));
    }

    fn lseek(&self, ino: Ino, _handle: Handle, offset: u64, whence: Whence, reply: Reply<u64>) {
        let mut state = self.state.lock();
        reply.send(state.get(ino).and_then(|inode| inode.seek(offset, whence)));
    }

    fn copy_file_range(&self, request: CopyFileRange, reply: Reply<u64>) {
        let CopyFileRange {
            ino_in,
            offset_in,
            ino_out,
            offset_out,
            length,
            ..
        } = request;
        let mut state = self.state.lock();
        let result = state.get(ino_in).map(|inode| {
            let start = inode.data.len().min(offset_in as usize);
            let end = inode.data.len().min(start.saturating_add(length as usize));
            inode.data[start..end].to_vec()
        });
        let result = result.and_then(|data| state.write(ino_out, offset_out, &data));
        reply.send(result.map(u64::from));
    }
}
