//! A tool that works on an unmounted filesystem.
//!
//! The client also does the kernel's work before a request: it walks paths, refuses links and
//! directories where a file is opened, and keeps the order of checks in rename(2) and link(2).

use bkfs::vfs::BkfsVfs;
use bkfs_fuse::{
    AttributeChange, Caller, CopyFileRange, Create, DirectoryReply, Entry, Errno, Fallocate,
    FallocateMode, FileKind, Forget, Handle, Ino, Lookup, OpenFlags, Read, Rename, RenameMode,
    Reply, SetXattr, Vfs, Write, XattrMode,
};
use tokio::sync::oneshot;

use crate::alphabet::{Answer, Dump, Mode, Op, Path, Seen, bytes, name, xattr_name};

/// Size of the largest request that the kernel makes, in bytes.
const REQUEST_BYTES: usize = 1 << 20;

/// The caller of all requests.
pub const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// A client that sends requests to a filesystem, one after another.
#[derive(Clone)]
pub struct Client(pub BkfsVfs);

type Res<T> = Result<T, i32>;

impl Client {
    /// Sends a request, and waits for its answer.
    pub async fn ask<T: Send + 'static>(&self, request: impl FnOnce(&dyn Vfs, Reply<T>)) -> Res<T> {
        let (sender, answer) = oneshot::channel();
        // A caller that no longer waits does not need the answer.
        let reply = Reply::new("unmounted", move |answer| drop(sender.send(answer)));
        request(&self.0, reply);
        let answer = answer.await.expect("every request is answered");
        answer.map_err(Errno::raw)
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Res<Entry> {
        match self
            .ask(|vfs, reply| vfs.lookup(CALLER, parent, name, reply))
            .await?
        {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Absent { .. } => Err(libc::ENOENT),
        }
    }

    async fn parent(&self, path: &Path) -> Res<Ino> {
        let mut ino = Ino::ROOT;
        for number in &path[..path.len() - 1] {
            let entry = self.lookup(ino, name(*number)).await?;
            if entry.attributes.kind != FileKind::Directory {
                return Err(libc::ENOTDIR);
            }
            ino = entry.attributes.ino;
        }
        Ok(ino)
    }

    /// Returns the entry that a path leads to.
    pub async fn find(&self, path: &Path) -> Res<Entry> {
        self.lookup(self.parent(path).await?, name(path[path.len() - 1]))
            .await
    }

    async fn with_file<T>(
        &self,
        path: &Path,
        work: impl AsyncFnOnce(Ino, Handle, u64) -> Res<T>,
    ) -> Res<T> {
        let entry = self.find(path).await?;
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
        let opened = self
            .ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply))
            .await?;
        let result = work(ino, opened.handle, entry.attributes.size).await;
        self.ask(|vfs, reply| vfs.flush(ino, opened.handle, reply))
            .await?;
        self.ask(|vfs, reply| vfs.release(ino, opened.handle, reply))
            .await?;
        result
    }

    async fn write(&self, path: &Path, offset: Option<u64>, data: &[u8]) -> Res<()> {
        self.with_file(path, async |ino, handle, size| {
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
                let written = self.ask(|vfs, reply| vfs.write(request, reply)).await?;
                assert_eq!(written as usize, part.len());
                at += part.len() as u64;
            }
            Ok(())
        })
        .await
    }

    async fn read_all(&self, ino: Ino, handle: Handle, offset: u64, length: usize) -> Res<Vec<u8>> {
        let mut data = Vec::new();
        while data.len() < length {
            let size = (length - data.len()).min(REQUEST_BYTES) as u32;
            let request = Read {
                ino,
                handle,
                offset: offset + data.len() as u64,
                size,
            };
            let part = self.ask(|vfs, reply| vfs.read(request, reply)).await?;
            if part.is_empty() {
                break;
            }
            data.extend_from_slice(&part.to_vec());
        }
        Ok(data)
    }

    async fn fallocate(
        &self,
        path: &Path,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Res<()> {
        self.with_file(path, async |ino, handle, _| {
            let request = Fallocate {
                ino,
                handle,
                offset,
                length,
                mode,
                kill_privileges: false,
            };
            self.ask(|vfs, reply| vfs.fallocate(request, reply)).await
        })
        .await
    }

    async fn copy(&self, from: &Path, at: u64, to: &Path, target: u64, length: u64) -> Res<()> {
        self.with_file(from, async |ino_in, handle_in, size| {
            self.with_file(to, async |ino_out, handle_out, _| {
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
                        kill_privileges: false,
                    };
                    let copied = self
                        .ask(|vfs, reply| vfs.copy_file_range(request, reply))
                        .await?;
                    assert!(copied > 0, "the source has {left} bytes more");
                    (at, target, left) = (at + copied, target + copied, left - copied);
                }
                Ok(())
            })
            .await
        })
        .await
    }

    async fn is_below(&self, ino: Ino, above: Ino) -> bool {
        if ino == above {
            return true;
        }
        for name in self.names(above).await.unwrap_or_default() {
            if let Ok(entry) = self.lookup(above, &name).await
                && Box::pin(self.is_below(ino, entry.attributes.ino)).await
            {
                return true;
            }
        }
        false
    }

    async fn rename(&self, from: &Path, to: &Path, mode: Mode) -> Res<()> {
        let (parent, new_parent) = (self.parent(from).await?, self.parent(to).await?);
        let (name, new_name) = (name(from[from.len() - 1]), name(to[to.len() - 1]));
        let moved = self.lookup(parent, name).await?.attributes.ino;
        let there = self.lookup(new_parent, new_name).await;
        match (mode, &there) {
            (Mode::NoReplace, Ok(_)) => return Err(libc::EEXIST),
            (Mode::Exchange, Err(error)) => return Err(*error),
            _ => {}
        }
        if self.is_below(new_parent, moved).await {
            return Err(libc::EINVAL);
        }
        if let Ok(there) = there
            && self.is_below(parent, there.attributes.ino).await
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
        .await
    }

    async fn set(&self, path: &Path, change: AttributeChange) -> Res<()> {
        let ino = self.find(path).await?.attributes.ino;
        self.ask(|vfs, reply| vfs.setattr(CALLER, ino, change, reply))
            .await
            .map(|_| ())
    }

    async fn xattr_target(&self, path: &Path) -> Res<Ino> {
        let attributes = self.find(path).await?.attributes;
        if attributes.kind == FileKind::Symlink {
            Err(libc::EPERM)
        } else {
            Ok(attributes.ino)
        }
    }

    async fn names(&self, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let opened = self
            .ask(|vfs, reply| vfs.opendir(CALLER, ino, reply))
            .await?;
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (sender, answer) = oneshot::channel();
            // The reply is small, so that listings go on from cookies.
            let reply =
                DirectoryReply::collecting(true, 3, move |answer| drop(sender.send(answer)));
            self.0.readdir(ino, opened.handle, cookie, reply);
            let entries = answer.await.expect("answered").map_err(Errno::raw)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in entries {
                if let Some(plus) = entry.plus {
                    let forget = Forget {
                        ino: plus.attributes.ino,
                        lookups: 1,
                    };
                    self.0.forget(&[forget]);
                }
                names.push(entry.name);
            }
        }
        self.ask(|vfs, reply| vfs.releasedir(ino, opened.handle, reply))
            .await?;
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        Ok(names)
    }

    async fn make(&self, op: &Op) -> Res<()> {
        match op {
            Op::Create(path) => {
                let flags = OpenFlags {
                    write: true,
                    exclusive: true,
                    ..OpenFlags::default()
                };
                let (parent, name) = (self.parent(path).await?, name(path[path.len() - 1]));
                let request = Create {
                    parent,
                    name,
                    permissions: 0o644,
                    flags,
                };
                let created = self
                    .ask(|vfs, reply| vfs.create(CALLER, request, reply))
                    .await?;
                let (ino, handle) = (created.entry.attributes.ino, created.opened.handle);
                self.ask(|vfs, reply| vfs.release(ino, handle, reply)).await
            }
            Op::Mkdir(path) => {
                let (parent, name) = (self.parent(path).await?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.mkdir(CALLER, parent, name, 0o755, reply))
                    .await
                    .map(|_| ())
            }
            Op::Symlink(path, target) => {
                let (parent, name) = (self.parent(path).await?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.symlink(CALLER, parent, name, target, reply))
                    .await
                    .map(|_| ())
            }
            Op::Link(path, new) => {
                let source = self.find(path).await?.attributes;
                let (parent, name) = (self.parent(new).await?, name(new[new.len() - 1]));
                if self.lookup(parent, name).await.is_ok() {
                    return Err(libc::EEXIST);
                }
                self.ask(|vfs, reply| vfs.link(CALLER, source.ino, parent, name, reply))
                    .await
                    .map(|_| ())
            }
            Op::Unlink(path) => {
                let (parent, name) = (self.parent(path).await?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.unlink(CALLER, parent, name, reply))
                    .await
            }
            Op::Rmdir(path) => {
                let (parent, name) = (self.parent(path).await?, name(path[path.len() - 1]));
                self.ask(|vfs, reply| vfs.rmdir(CALLER, parent, name, reply))
                    .await
            }
            _ => unreachable!("only what makes or removes names"),
        }
    }

    async fn change(&self, op: &Op) -> Res<()> {
        match op {
            Op::Rename(from, to, mode) => self.rename(from, to, *mode).await,
            Op::Write(path, offset, length, seed) => {
                self.write(path, Some(*offset), &bytes(*offset, *length, *seed))
                    .await
            }
            Op::Append(path, length, seed) => {
                self.write(path, None, &bytes(7, *length, *seed)).await
            }
            Op::Truncate(path, size) => {
                self.with_file(path, async |_, _, _| Ok(())).await?;
                self.set(
                    path,
                    AttributeChange {
                        size: Some(*size),
                        ..AttributeChange::default()
                    },
                )
                .await
            }
            Op::Punch(path, offset, length) => {
                self.fallocate(path, *offset, *length, FallocateMode::PunchHole)
                    .await
            }
            Op::ZeroRange(path, offset, length) => {
                self.fallocate(
                    path,
                    *offset,
                    *length,
                    FallocateMode::ZeroRange { keep_size: false },
                )
                .await
            }
            Op::Copy(from, at, to, target, length) => {
                self.copy(from, *at, to, *target, *length).await
            }
            Op::Chmod(path, mode) => {
                if self.find(path).await?.attributes.kind == FileKind::Symlink {
                    return Err(libc::EOPNOTSUPP);
                }
                self.set(
                    path,
                    AttributeChange {
                        permissions: Some(*mode as u16),
                        ..AttributeChange::default()
                    },
                )
                .await
            }
            Op::SetXattr(path, number, length) => {
                let ino = self.xattr_target(path).await?;
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
                    .await
            }
            Op::RemoveXattr(path, number) => {
                let ino = self.xattr_target(path).await?;
                self.ask(|vfs, reply| vfs.removexattr(CALLER, ino, &xattr_name(*number), reply))
                    .await
            }
            Op::Sync => {
                self.ask(|vfs, reply| vfs.fsyncdir(Ino::ROOT, Handle(0), false, reply))
                    .await
            }
            Op::Reopen | Op::Commit | Op::Crash => {
                unreachable!("the owner of the engine does this")
            }
            other => self.make(other).await,
        }
    }

    async fn see(&self, ino: Ino) -> Res<Seen> {
        let attributes = self
            .ask(|vfs, reply| vfs.getattr(ino, None, reply))
            .await?
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
                seen.names = self.names(ino).await?;
            }
            FileKind::Symlink => {
                seen.contents = self
                    .ask(|vfs, reply| vfs.readlink(ino, reply))
                    .await?
                    .to_vec();
                return Ok(seen);
            }
            _ => {
                let flags = OpenFlags {
                    read: true,
                    ..OpenFlags::default()
                };
                let handle = self
                    .ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply))
                    .await?
                    .handle;
                seen.contents = self.read_all(ino, handle, 0, usize::MAX >> 1).await?;
                self.ask(|vfs, reply| vfs.release(ino, handle, reply))
                    .await?;
            }
        }
        for name in self.ask(|vfs, reply| vfs.listxattr(ino, reply)).await? {
            let value = self
                .ask(|vfs, reply| vfs.getxattr(ino, &name, reply))
                .await?;
            seen.xattrs.insert(name, value.to_vec());
        }
        Ok(seen)
    }

    /// Carries an operation out, except for those that only the owner of the engine can do.
    pub async fn apply(&self, op: &Op) -> Answer {
        match op {
            Op::Read(path, offset, length) => {
                let read =
                    async |ino, handle, _| self.read_all(ino, handle, *offset, *length).await;
                self.with_file(path, read).await
            }
            other => self.change(other).await.map(|()| Vec::new()),
        }
    }

    /// Returns the whole tree.
    ///
    /// # Errors
    /// The path that cannot be read, and its errno.
    pub async fn dump(&self) -> Result<Dump, (Vec<u8>, i32)> {
        let mut dump = Dump::new();
        let mut stack = vec![(Vec::new(), Ino::ROOT)];
        while let Some((path, ino)) = stack.pop() {
            let seen = self.see(ino).await;
            let seen = seen.map_err(|errno| (path.clone(), errno))?;
            for name in &seen.names {
                let below = [path.as_slice(), b"/", name].concat();
                let child = self.lookup(ino, name).await;
                let child = child.map_err(|errno| (below.clone(), errno))?;
                stack.push((below, child.attributes.ino));
            }
            dump.insert(path, seen);
        }
        Ok(dump)
    }
}
