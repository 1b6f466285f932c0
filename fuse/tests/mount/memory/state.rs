//! State of the filesystem in memory: inodes, names and bytes.

use std::collections::{BTreeMap, HashMap};

use bkfs_fuse::*;

use super::TTL;

/// Bytes of a block, the unit of holes.
pub const BLOCK: usize = 4096;

#[derive(Clone)]
pub struct Inode {
    pub attributes: Attributes,
    pub name: Vec<u8>,
    pub data: Vec<u8>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names by cookie, in order of creation.
    pub children: BTreeMap<u64, (Vec<u8>, Ino)>,
    pub parent: Ino,
    pub lookups: u64,
    pub opens: u64,
}

#[derive(Default)]
pub struct State {
    pub inodes: HashMap<Ino, Inode>,
    pub last_ino: u64,
    pub last_cookie: u64,
    pub clock: i64,
}

impl State {
    pub fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp {
            seconds: 1_700_000_000 + self.clock,
            nanoseconds: 123_456_789,
        }
    }

    pub fn get(&mut self, ino: Ino) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    pub fn child(&self, parent: Ino, name: &[u8]) -> Option<(u64, Ino)> {
        let children = &self.inodes.get(&parent)?.children;
        let (cookie, (_, ino)) = children.iter().find(|(_, (known, _))| known == name)?;
        Some((*cookie, *ino))
    }

    pub fn make(&mut self, caller: Caller, kind: FileKind, permissions: u16, name: &[u8]) -> Ino {
        self.last_ino += 1;
        let ino = Ino(self.last_ino);
        let now = self.now();
        let attributes = Attributes {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            kind,
            permissions,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            blksize: 4096,
        };
        let inode = Inode {
            attributes,
            name: name.to_vec(),
            data: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            children: BTreeMap::new(),
            parent: Ino::ROOT,
            lookups: 0,
            opens: 0,
        };
        self.inodes.insert(ino, inode);
        ino
    }

    pub fn attach(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<(), Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.child(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let now = self.now();
        let directory = self.get(parent)?;
        directory.children.insert(cookie, (name.to_vec(), ino));
        directory.attributes.mtime = now;
        Ok(())
    }

    pub fn make_in(
        &mut self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        permissions: u16,
    ) -> Result<Ino, Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.child(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let ino = self.make(caller, kind, permissions, name);
        self.attach(parent, name, ino)?;
        self.get(ino)?.parent = parent;
        Ok(ino)
    }

    pub fn detach(&mut self, parent: Ino, name: &[u8]) -> Result<Ino, Errno> {
        let (cookie, ino) = self.child(parent, name).ok_or(Errno::ENOENT)?;
        self.get(parent)?.children.remove(&cookie);
        Ok(ino)
    }

    pub fn drop_link(&mut self, ino: Ino) -> Result<(), Errno> {
        let inode = self.get(ino)?;
        inode.attributes.nlink = match inode.attributes.kind {
            FileKind::Directory => 0,
            _ => inode.attributes.nlink - 1,
        };
        self.reap(ino);
        Ok(())
    }

    pub fn reap(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get(&ino)
            && inode.attributes.nlink == 0
            && inode.lookups == 0
            && inode.opens == 0
        {
            self.inodes.remove(&ino);
        }
    }

    pub fn entry(&mut self, ino: Ino) -> Result<Entry, Errno> {
        let inode = self.get(ino)?;
        inode.lookups += 1;
        Ok(Entry {
            attributes: inode.attributes,
            generation: 0,
            entry_ttl: TTL,
            attribute_ttl: TTL,
        })
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let now = self.now();
        let inode = self.get(ino)?;
        let offset = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let end = offset + data.len();
        if inode.data.len() < end {
            inode.data.resize(end, 0);
        }
        inode.data[offset..end].copy_from_slice(data);
        inode.attributes.mtime = now;
        inode.measure();
        Ok(data.len() as u32)
    }
}

impl Inode {
    pub fn measure(&mut self) {
        self.attributes.size = self.data.len() as u64;
        self.attributes.blocks = self.data.len().div_ceil(512) as u64;
    }

    pub fn clear_privileges(&mut self) {
        self.attributes.permissions &= !0o4000;
        if self.attributes.permissions & 0o010 != 0 {
            self.attributes.permissions &= !0o2000;
        }
    }

    pub fn is_hole(&self, block: usize) -> bool {
        let end = self.data.len().min((block + 1) * BLOCK);
        self.data[block * BLOCK..end].iter().all(|&byte| byte == 0)
    }

    pub fn seek(&self, offset: u64, whence: Whence) -> Result<u64, Errno> {
        let length = self.data.len() as u64;
        if offset >= length {
            return Err(Errno::ENXIO);
        }
        let first = offset as usize / BLOCK;
        let found = (first..self.data.len().div_ceil(BLOCK))
            .find(|&block| self.is_hole(block) == (whence == Whence::Hole))
            .map(|block| offset.max((block * BLOCK) as u64));
        match (found, whence) {
            (Some(found), _) => Ok(found),
            (None, Whence::Hole) => Ok(length),
            (None, Whence::Data) => Err(Errno::ENXIO),
        }
    }

    pub fn change(&mut self, change: AttributeChange, now: Timestamp) {
        let attributes = &mut self.attributes;
        let at = |time| match time {
            TimeChange::Now => now,
            TimeChange::At(time) => time,
        };
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.atime = change.atime.map_or(attributes.atime, at);
        attributes.mtime = change.mtime.map_or(attributes.mtime, at);
        attributes.ctime = now;
        if let Some(size) = change.size {
            self.data.resize(size as usize, 0);
            self.measure();
        }
        if change.kill_privileges || change.uid.is_some() || change.gid.is_some() {
            self.clear_privileges();
        }
    }
}

impl Inode {
    pub fn opened(&self) -> Opened {
        let direct = self.name.starts_with(b"direct");
        Opened {
            handle: Handle(7),
            direct_io: direct,
            parallel_direct_writes: direct,
            keep_cache: !direct,
            ..Opened::default()
        }
    }
}
