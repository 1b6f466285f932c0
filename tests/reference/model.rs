//! The reference: the simplest possible filesystem.

use std::collections::BTreeMap;

use crate::alphabet::{Answer, Dump, Mode, Op, Path, Seen, World, bytes, name, xattr_name};

#[derive(Clone, Debug)]
enum Kind {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, usize>),
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Inode {
    kind: Kind,
    mode: u32,
    links: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Inodes in a vector; number 0 is the root.
#[derive(Clone, Debug)]
pub struct Model(Vec<Inode>);

impl Default for Model {
    fn default() -> Self {
        Model(vec![Inode {
            kind: Kind::Directory(BTreeMap::new()),
            mode: 0o755,
            links: 2,
            xattrs: BTreeMap::new(),
        }])
    }
}

impl Model {
    fn directory(&mut self, inode: usize) -> Result<&mut BTreeMap<Vec<u8>, usize>, i32> {
        match &mut self.0[inode].kind {
            Kind::Directory(names) => Ok(names),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// Returns the directory that holds the last name of a path.
    fn parent(&mut self, path: &Path) -> Result<usize, i32> {
        let mut inode = 0;
        for number in &path[..path.len() - 1] {
            // The worlds never follow links: a link within a path is not a directory.
            inode = *self
                .directory(inode)?
                .get(name(*number))
                .ok_or(libc::ENOENT)?;
        }
        self.directory(inode)?;
        Ok(inode)
    }

    fn find(&mut self, path: &Path) -> Result<usize, i32> {
        let parent = self.parent(path)?;
        self.directory(parent)?
            .get(name(path[path.len() - 1]))
            .copied()
            .ok_or(libc::ENOENT)
    }

    fn file(&mut self, path: &Path) -> Result<&mut Vec<u8>, i32> {
        let inode = self.find(path)?;
        match &mut self.0[inode].kind {
            Kind::File(data) => Ok(data),
            Kind::Directory(_) => Err(libc::EISDIR),
            Kind::Link(_) => Err(libc::ELOOP),
        }
    }

    fn make(&mut self, path: &Path, kind: Kind, mode: u32) -> Answer {
        let parent = self.parent(path)?;
        let next = self.0.len();
        let last = name(path[path.len() - 1]).to_vec();
        if self.directory(parent)?.contains_key(&last) {
            return Err(libc::EEXIST);
        }
        self.directory(parent)?.insert(last, next);
        let is_directory = matches!(kind, Kind::Directory(_));
        // A directory inherits the set-group-ID bit of its parent.
        let mode = if is_directory {
            mode | self.0[parent].mode & libc::S_ISGID
        } else {
            mode
        };
        self.0.push(Inode {
            kind,
            mode,
            links: if is_directory { 2 } else { 1 },
            xattrs: BTreeMap::new(),
        });
        if is_directory {
            self.0[parent].links += 1;
        }
        Ok(Vec::new())
    }

    fn is_directory(&self, inode: usize) -> bool {
        matches!(self.0[inode].kind, Kind::Directory(_))
    }

    fn remove(&mut self, path: &Path, want_directory: bool) -> Answer {
        let parent = self.parent(path)?;
        let inode = self.find(path)?;
        match (self.is_directory(inode), want_directory) {
            (true, false) => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        if let Kind::Directory(names) = &self.0[inode].kind {
            if !names.is_empty() {
                return Err(libc::ENOTEMPTY);
            }
            self.0[parent].links -= 1;
        }
        self.0[inode].links -= 1;
        self.directory(parent)?.remove(name(path[path.len() - 1]));
        Ok(Vec::new())
    }

    fn is_below(&self, inode: usize, above: usize) -> bool {
        inode == above
            || match &self.0[above].kind {
                Kind::Directory(names) => names.values().any(|child| self.is_below(inode, *child)),
                _ => false,
            }
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: Mode) -> Answer {
        let (from_parent, to_parent) = (self.parent(from)?, self.parent(to)?);
        let (from_name, to_name) = (
            name(from[from.len() - 1]).to_vec(),
            name(to[to.len() - 1]).to_vec(),
        );
        let moved = *self
            .directory(from_parent)?
            .get(&from_name)
            .ok_or(libc::ENOENT)?;
        let there = self.directory(to_parent)?.get(&to_name).copied();
        match (mode, there) {
            (Mode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (Mode::Exchange, None) => return Err(libc::ENOENT),
            _ => {}
        }
        if self.is_below(to_parent, moved) {
            return Err(libc::EINVAL);
        }
        if let Some(there) = there
            && self.is_below(from_parent, there)
        {
            let exchange = mode == Mode::Exchange;
            return Err(if exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        if there == Some(moved) {
            return Ok(Vec::new());
        }
        if let (Mode::Exchange, Some(there)) = (mode, there) {
            let shift = i64::from(self.is_directory(there)) - i64::from(self.is_directory(moved));
            if from_parent != to_parent {
                self.0[from_parent].links = (i64::from(self.0[from_parent].links) + shift) as u32;
                self.0[to_parent].links = (i64::from(self.0[to_parent].links) - shift) as u32;
            }
            self.directory(from_parent)?.insert(from_name, there);
            self.directory(to_parent)?.insert(to_name, moved);
            return Ok(Vec::new());
        }
        if let Some(there) = there {
            match (self.is_directory(moved), self.is_directory(there)) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                _ => {}
            }
            let directory = self.is_directory(there);
            self.remove(to, directory)?;
        }
        if self.is_directory(moved) {
            self.0[from_parent].links -= 1;
            self.0[to_parent].links += 1;
        }
        self.directory(from_parent)?.remove(&from_name);
        self.directory(to_parent)?.insert(to_name, moved);
        Ok(Vec::new())
    }

    fn write(data: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: &Path, at: u64, to: &Path, target: u64, length: u64) -> Answer {
        let data = self.file(from)?.clone();
        let (one, two) = (self.find(from)?, self.find(to));
        self.file(to)?;
        let start = (at as usize).min(data.len());
        let end = (at as usize + length as usize).min(data.len());
        let length = (end - start) as u64;
        // The kernel refuses overlapping ranges of one file. It limits the length to the rest of
        // the file before.
        if two == Ok(one) && at < target + length && target < at + length {
            return Err(libc::EINVAL);
        }
        if start < end {
            Model::write(self.file(to)?, target, &data[start..end]);
        }
        Ok(Vec::new())
    }

    fn xattrs(&mut self, path: &Path) -> Result<&mut BTreeMap<Vec<u8>, Vec<u8>>, i32> {
        let inode = self.find(path)?;
        match self.0[inode].kind {
            // The kernel allows `user.` attributes for files and directories only.
            Kind::Link(_) => Err(libc::EPERM),
            _ => Ok(&mut self.0[inode].xattrs),
        }
    }
}

impl World for Model {
    fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Create(path) => self.make(path, Kind::File(Vec::new()), 0o644),
            Op::Mkdir(path) => self.make(path, Kind::Directory(BTreeMap::new()), 0o755),
            Op::Symlink(path, target) => self.make(path, Kind::Link(target.clone()), 0o777),
            Op::Link(path, new) => {
                let inode = self.find(path)?;
                let parent = self.parent(new)?;
                let last = name(new[new.len() - 1]).to_vec();
                if self.directory(parent)?.contains_key(&last) {
                    return Err(libc::EEXIST);
                }
                if self.is_directory(inode) {
                    return Err(libc::EPERM);
                }
                self.directory(parent)?.insert(last, inode);
                self.0[inode].links += 1;
                Ok(Vec::new())
            }
            Op::Unlink(path) => self.remove(path, false),
            Op::Rmdir(path) => self.remove(path, true),
            Op::Rename(from, to, mode) => self.rename(from, to, *mode),
            Op::Write(path, offset, length, seed) => {
                Model::write(self.file(path)?, *offset, &bytes(*offset, *length, *seed));
                Ok(Vec::new())
            }
            Op::Append(path, length, seed) => {
                let data = self.file(path)?;
                let end = data.len() as u64;
                Model::write(data, end, &bytes(7, *length, *seed));
                Ok(Vec::new())
            }
            Op::Truncate(path, size) => {
                self.file(path)?.resize(*size as usize, 0);
                Ok(Vec::new())
            }
            Op::Punch(path, offset, length) => {
                let data = self.file(path)?;
                let end = ((offset + length) as usize).min(data.len());
                let start = (*offset as usize).min(end);
                data[start..end].fill(0);
                Ok(Vec::new())
            }
            Op::ZeroRange(path, offset, length) => {
                Model::write(self.file(path)?, *offset, &vec![0; *length as usize]);
                Ok(Vec::new())
            }
            Op::Copy(from, at, to, target, length) => self.copy(from, *at, to, *target, *length),
            Op::Chmod(path, mode) => {
                let inode = self.find(path)?;
                if matches!(self.0[inode].kind, Kind::Link(_)) {
                    return Err(libc::EOPNOTSUPP);
                }
                self.0[inode].mode = *mode;
                Ok(Vec::new())
            }
            Op::SetXattr(path, number, length) => {
                let value = bytes(u64::from(*number), *length, *number);
                self.xattrs(path)?.insert(xattr_name(*number), value);
                Ok(Vec::new())
            }
            Op::RemoveXattr(path, number) => {
                self.xattrs(path)?
                    .remove(&xattr_name(*number))
                    .ok_or(libc::ENODATA)?;
                Ok(Vec::new())
            }
            Op::Read(path, offset, length) => {
                let data = self.file(path)?;
                let start = (*offset as usize).min(data.len());
                let end = (*offset as usize + length).min(data.len());
                Ok(data[start..end].to_vec())
            }
            Op::Sync | Op::Reopen | Op::Commit | Op::Crash => Ok(Vec::new()),
        }
    }

    fn dump(&mut self) -> Dump {
        let mut dump = Dump::new();
        let mut stack = vec![(Vec::new(), 0)];
        while let Some((path, number)) = stack.pop() {
            let inode = &self.0[number];
            let mut seen = Seen {
                mode: inode.mode,
                links: inode.links,
                size: 0,
                contents: Vec::new(),
                xattrs: inode.xattrs.clone(),
                names: Vec::new(),
            };
            match &inode.kind {
                Kind::File(data) => {
                    seen.size = data.len() as u64;
                    seen.contents = data.clone();
                }
                Kind::Link(target) => {
                    seen.size = target.len() as u64;
                    seen.contents = target.clone();
                }
                Kind::Directory(names) => {
                    seen.names = names.keys().cloned().collect();
                    for (name, child) in names {
                        stack.push(([path.as_slice(), b"/", name].concat(), *child));
                    }
                }
            }
            dump.insert(path, seen);
        }
        dump
    }
}
