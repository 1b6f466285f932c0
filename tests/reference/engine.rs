//! The filesystem itself, unmounted, over a bucket in memory.
//!
//! What the kernel does before a request reaches us is done here as well: walking paths, refusing links and directories where a file is opened, the order
//! of checks in rename(2) and link(2).

mod life;

use std::sync::Arc;

use bkfs::mounting::Assembled;
use bkfs_chunker::store::Store;
use bkfs_fuse::{
    AttributeChange, Caller, CopyFileRange, Create, DirectoryReply, Entry, Errno, Fallocate,
    FallocateMode, FileKind, Forget, Handle, Ino, Lookup, OpenFlags, Read, Rename, RenameMode,
    Reply, SetXattr, Vfs, Write, XattrMode,
};
use tokio::runtime::Runtime;

use crate::alphabet::{Answer, Dump, Mode, Op, Path, Seen, World, bytes, name, xattr_name};

/// Requests are as large as the kernel makes them, in bytes.
const REQUEST_BYTES: usize = 1 << 20;

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// An engine that can be reopened from its bucket.
pub struct Engine {
    /// None only while one machine follows another.
    runtime: Option<Runtime>,
    store: Arc<dyn Store>,
    password: Option<&'static str>,
    assembled: Option<Assembled>,
}

type Res<T> = Result<T, i32>;

impl Engine {
    fn ask<T: Send + 'static>(&self, request: impl FnOnce(&dyn Vfs, Reply<T>)) -> Res<T> {
        let (reply, answer) = Reply::channel();
        request(&self.assembled.as_ref().expect("is open").vfs, reply);
        answer
            .recv()
            .expect("every request is answered")
            .map_err(Errno::raw)
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Res<Entry> {
        match self.ask(|vfs, reply| vfs.lookup(CALLER, parent, name, reply))? {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Absent { .. } => Err(libc::ENOENT),
        }
    }

    fn parent(&self, path: &Path) -> Res<Ino> {
        let mut ino = Ino::ROOT;
        for number in &path[..path.len() - 1] {
            let entry = self.lookup(ino, name(*number))?;
            if entry.attributes.kind != FileKind::Directory {
                return Err(libc::ENOTDIR);
            }
            ino = entry.attributes.ino;
        }
        Ok(ino)
    }

    fn find(&self, path: &Path) -> Res<Entry> {
        self.lookup(self.parent(path)?, name(path[path.len() - 1]))
    }

    fn with_file<T>(&self, path: &Path, work: impl FnOnce(Ino, Handle, u64) -> Res<T>) -> Res<T> {
        let entry = self.find(path)?;
        match entry.attributes.kind {
            FileKind::Directory => return Err(libc::EISDIR),
            FileKind::Symlink => return Err(libc::ELOOP),
            _ => {}
        }
        let ino = entry.attributes.ino;
        let flags = OpenFlags {
            read: true,
            write: true,
            ..OpenFlags::default()
        };
        let opened = self.ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply))?;
        let result = work(ino, opened.handle, entry.attributes.size);
        self.ask(|vfs, reply| vfs.flush(ino, opened.handle, reply))?;
        self.ask(|vfs, reply| vfs.release(ino, opened.handle, reply))?;
        result
    }

    fn write(&self, path: &Path, offset: Option<u64>, data: &[u8]) -> Res<()> {
        self.with_file(path, |ino, handle, size| {
            let mut at = offset.unwrap_or(size);
            for part in data.chunks(REQUEST_BYTES) {
                let request = Write {
                    ino,
                    handle,
                    offset: at,
                    data: part,
                    from_cache: false,
                    kill_privileges: false,
                };
                let written = self.ask(|vfs, reply| vfs.write(request, reply))?;
                assert_eq!(written as usize, part.len());
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    fn read_all(&self, ino: Ino, handle: Handle, offset: u64, length: usize) -> Res<Vec<u8>> {
        let mut data = Vec::new();
        while data.len() < length {
            let size = (length - data.len()).min(REQUEST_BYTES) as u32;
            let request = Read {
                ino,
                handle,
                offset: offset + data.len() as u64,
                size,
            };
            let part = self.ask(|vfs, reply| vfs.read(request, reply))?;
            if part.is_empty() {
                break;
            }
            data.extend_from_slice(&part.to_vec());
        }
        Ok(data)
    }

    fn fallocate(&self, path: &Path, offset: u64, length: u64, mode: FallocateMode) -> Res<()> {
        self.with_file(path, |ino, handle, _| {
            let request = Fallocate {
                ino,
                handle,
                offset,
                length,
                mode,
            };
            self.ask(|vfs, reply| vfs.fallocate(request, reply))
        })
    }

    fn copy(&self, from: &Path, at: u64, to: &Path, target: u64, length: u64) -> Res<()> {
        self.with_file(from, |ino_in, handle_in, size| {
            self.with_file(to, |ino_out, handle_out, _| {
                let mut left = length.min(size.saturating_sub(at));
                if ino_in == ino_out && at < target + left && target < at + left {
                    return Err(libc::EINVAL);
                }
                let (mut at, mut target) = (at, target);
                while left > 0 {
                    let request = CopyFileRange {
                        ino_in,
                        handle_in,
                        offset_in: at,
                        ino_out,
                        handle_out,
                        offset_out: target,
                        length: left,
                    };
                    let copied = self.ask(|vfs, reply| vfs.copy_file_range(request, reply))?;
                    assert!(copied > 0, "the source has {left} bytes more");
                    (at, target, left) = (at + copied, target + copied, left - copied);
                }
                Ok(())
            })
        })
    }

    fn is_below(&self, ino: Ino, above: Ino) -> bool {
        ino == above
            || self.names(above).is_ok_and(|names| {
                names.iter().any(|name| {
                    self.lookup(above, name)
                        .is_ok_and(|e| self.is_below(ino, e.attributes.ino))
                })
            })
    }

    fn rename(&self, from: &Path, to: &Path, mode: Mode) -> Res<()> {
        let (parent, new_parent) = (self.parent(from)?, self.parent(to)?);
        let (name, new_name) = (name(from[from.len() - 1]), name(to[to.len() - 1]));
        let moved = self.lookup(parent, name)?.attributes.ino;
        let there = self.lookup(new_parent, new_name);
        match (mode, &there) {
            (Mode::NoReplace, Ok(_)) => return Err(libc::EEXIST),
            (Mode::Exchange, Err(error)) => return Err(*error),
            _ => {}
        }
        if self.is_below(new_parent, moved) {
            return Err(libc::EINVAL);
        }
        if let Ok(there) = there
            && self.is_below(parent, there.attributes.ino)
        {
            let exchange = mode == Mode::Exchange;
            return Err(if exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        let mode = match mode {
            Mode::Replace => RenameMode::Replace,
            Mode::NoReplace => RenameMode::NoReplace,
            Mode::Exchange => RenameMode::Exchange,
        };
        self.ask(|vfs, reply| {
            vfs.rename(
                CALLER,
                Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    mode,
                },
                reply,
            )
        })
    }

    fn set(&self, path: &Path, change: AttributeChange) -> Res<()> {
        let ino = self.find(path)?.attributes.ino;
        self.ask(|vfs, reply| vfs.setattr(CALLER, ino, change, reply))
            .map(|_| ())
    }

    fn xattr_target(&self, path: &Path) -> Res<Ino> {
        let attributes = self.find(path)?.attributes;
        if attributes.kind == FileKind::Symlink {
            Err(libc::EPERM)
        } else {
            Ok(attributes.ino)
        }
    }

    fn names(&self, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let opened = self.ask(|vfs, reply| vfs.opendir(CALLER, ino, reply))?;
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            // A small reply, so that listings go on from cookies.
            let (reply, answer) = DirectoryReply::channel(true, 3);
            self.assembled.as_ref().expect("is open").vfs.readdir(
                ino,
                opened.handle,
                cookie,
                reply,
            );
            let entries = answer.recv().expect("answered").map_err(Errno::raw)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in entries {
                if let Some(plus) = entry.plus {
                    let forget = Forget {
                        ino: plus.attributes.ino,
                        lookups: 1,
                    };
                    self.assembled
                        .as_ref()
                        .expect("is open")
                        .vfs
                        .forget(&[forget]);
                }
                names.push(entry.name);
            }
        }
        self.ask(|vfs, reply| vfs.releasedir(ino, opened.handle, reply))?;
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        Ok(names)
    }

    fn make(&self, op: &Op) -> Res<()> {
        match op {
            Op::Create(path) => {
                let flags = OpenFlags {
                    write: true,
                    exclusive: true,
                    ..OpenFlags::default()
                };
                let (parent, name) = (self.parent(path)?, name(path[path.len() - 1]));
                let request = Create {
                    parent,
                    name,
                    permissions: 0o644,
                    flags,
                };
                let created = self.ask(|vfs, reply| vfs.create(CALLER, request, reply))?;
                let (ino, handle) = (created.entry.attributes.ino, created.opened.handle);
                self.ask(|vfs, reply| vfs.release(ino, handle, reply))
            }
            Op::Mkdir(path) => {
                let (parent, name) = (self.parent(path)?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.mkdir(CALLER, parent, name, 0o755, reply))
                    .map(|_| ())
            }
            Op::Symlink(path, target) => {
                let (parent, name) = (self.parent(path)?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.symlink(CALLER, parent, name, target, reply))
                    .map(|_| ())
            }
            Op::Link(path, new) => {
                let source = self.find(path)?.attributes;
                let (parent, name) = (self.parent(new)?, name(new[new.len() - 1]));
                if self.lookup(parent, name).is_ok() {
                    return Err(libc::EEXIST);
                }
                self.ask(|vfs, reply| vfs.link(CALLER, source.ino, parent, name, reply))
                    .map(|_| ())
            }
            Op::Unlink(path) => {
                let (parent, name) = (self.parent(path)?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.unlink(CALLER, parent, name, reply))
            }
            Op::Rmdir(path) => {
                let (parent, name) = (self.parent(path)?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.rmdir(CALLER, parent, name, reply))
            }
            _ => unreachable!("only what makes or removes names"),
        }
    }

    fn change(&mut self, op: &Op) -> Res<()> {
        match op {
            Op::Rename(from, to, mode) => self.rename(from, to, *mode),
            Op::Write(path, offset, length, seed) => {
                self.write(path, Some(*offset), &bytes(*offset, *length, *seed))
            }
            Op::Append(path, length, seed) => self.write(path, None, &bytes(7, *length, *seed)),
            Op::Truncate(path, size) => {
                self.with_file(path, |_, _, _| Ok(()))?;
                self.set(
                    path,
                    AttributeChange {
                        size: Some(*size),
                        ..AttributeChange::default()
                    },
                )
            }
            Op::Punch(path, offset, length) => {
                self.fallocate(path, *offset, *length, FallocateMode::PunchHole)
            }
            Op::ZeroRange(path, offset, length) => self.fallocate(
                path,
                *offset,
                *length,
                FallocateMode::ZeroRange { keep_size: false },
            ),
            Op::Copy(from, at, to, target, length) => self.copy(from, *at, to, *target, *length),
            Op::Chmod(path, mode) => {
                if self.find(path)?.attributes.kind == FileKind::Symlink {
                    return Err(libc::EOPNOTSUPP);
                }
                self.set(
                    path,
                    AttributeChange {
                        permissions: Some(*mode as u16),
                        ..AttributeChange::default()
                    },
                )
            }
            Op::SetXattr(path, number, length) => {
                let ino = self.xattr_target(path)?;
                let (name, value) = (
                    xattr_name(*number),
                    bytes(u64::from(*number), *length, *number),
                );
                let request = SetXattr {
                    ino,
                    name: &name,
                    value: &value,
                    mode: XattrMode::Any,
                };
                self.ask(|vfs, reply| vfs.setxattr(CALLER, request, reply))
            }
            Op::RemoveXattr(path, number) => {
                let ino = self.xattr_target(path)?;
                self.ask(|vfs, reply| vfs.removexattr(CALLER, ino, &xattr_name(*number), reply))
            }
            Op::Sync => self.ask(|vfs, reply| vfs.fsyncdir(Ino::ROOT, Handle(0), false, reply)),
            Op::Reopen => {
                self.reopen();
                Ok(())
            }
            Op::Commit => {
                self.commit();
                Ok(())
            }
            Op::Crash => {
                self.ask(|vfs, reply| vfs.fsyncdir(Ino::ROOT, Handle(0), false, reply))?;
                self.crash();
                Ok(())
            }
            other => self.make(other),
        }
    }

    fn see(&self, ino: Ino) -> Res<Seen> {
        let attributes = self
            .ask(|vfs, reply| vfs.getattr(ino, None, reply))?
            .attributes;
        let mut seen = Seen {
            mode: u32::from(attributes.permissions),
            links: attributes.nlink,
            size: attributes.size,
            contents: Vec::new(),
            xattrs: Default::default(),
            names: Vec::new(),
        };
        match attributes.kind {
            FileKind::Directory => {
                seen.size = 0;
                seen.names = self.names(ino)?;
            }
            FileKind::Symlink => {
                seen.contents = self.ask(|vfs, reply| vfs.readlink(ino, reply))?.to_vec();
                return Ok(seen);
            }
            _ => {
                let flags = OpenFlags {
                    read: true,
                    ..OpenFlags::default()
                };
                let handle = self
                    .ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply))?
                    .handle;
                seen.contents = self.read_all(ino, handle, 0, usize::MAX >> 1)?;
                self.ask(|vfs, reply| vfs.release(ino, handle, reply))?;
            }
        }
        for name in self.ask(|vfs, reply| vfs.listxattr(ino, reply))? {
            let value = self.ask(|vfs, reply| vfs.getxattr(ino, &name, reply))?;
            seen.xattrs.insert(name, value.to_vec());
        }
        Ok(seen)
    }
}

impl World for Engine {
    fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Read(path, offset, length) => self.with_file(path, |ino, handle, _| {
                self.read_all(ino, handle, *offset, *length)
            }),
            other => self.change(other).map(|()| Vec::new()),
        }
    }

    fn dump(&mut self) -> Dump {
        let mut dump = Dump::new();
        let mut stack = vec![(Vec::new(), Ino::ROOT)];
        while let Some((path, ino)) = stack.pop() {
            let seen = self
                .see(ino)
                .unwrap_or_else(|errno| panic!("{}: errno {errno}", path.escape_ascii()));
            for name in &seen.names {
                let child = self.lookup(ino, name).expect("a listed name is there");
                stack.push(([path.as_slice(), b"/", name].concat(), child.attributes.ino));
            }
            dump.insert(path, seen);
        }
        dump
    }
}
