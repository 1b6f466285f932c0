//! A real directory: of the machine's own filesystem, or of a mount.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode as Permissions, RenameFlags, XattrFlags};

use crate::alphabet::{Answer, Dump, Mode, Op, Path, Seen, World, bytes, name, xattr_name};

/// A directory, and the function that reopens it.
pub struct Directory {
    root: PathBuf,
    reopen: Box<dyn FnMut()>,
}

impl Directory {
    /// Works in `root`, which is empty.
    pub fn new(root: PathBuf, reopen: Box<dyn FnMut()>) -> Self {
        Directory { root, reopen }
    }

    /// Returns a path whose directories are not links: the worlds never follow links.
    fn path(&self, path: &Path) -> io::Result<PathBuf> {
        let mut full = self.root.clone();
        for number in path {
            if !full.symlink_metadata()?.is_dir() {
                return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
            }
            full.push(OsStr::from_bytes(name(*number)));
        }
        Ok(full)
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path(path)?)
    }

    fn carry_out(&mut self, op: &Op) -> io::Result<Vec<u8>> {
        match op {
            Op::Create(path) => {
                let file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o644)
                    .open(self.path(path)?)?;
                drop(file);
            }
            Op::Mkdir(path) => std::fs::create_dir(self.path(path)?)?,
            Op::Symlink(path, target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(target), CWD, self.path(path)?)?;
            }
            Op::Link(path, new) => {
                let source = self.path(path)?;
                source.symlink_metadata()?;
                rustix::fs::linkat(CWD, source, CWD, self.path(new)?, AtFlags::empty())?;
            }
            Op::Unlink(path) => rustix::fs::unlinkat(CWD, self.path(path)?, AtFlags::empty())?,
            Op::Rmdir(path) => std::fs::remove_dir(self.path(path)?)?,
            Op::Rename(from, to, mode) => {
                let flags = match mode {
                    Mode::Replace => RenameFlags::empty(),
                    Mode::NoReplace => RenameFlags::NOREPLACE,
                    Mode::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, self.path(from)?, CWD, self.path(to)?, flags)?;
            }
            Op::Write(path, offset, length, seed) => {
                self.open(path, true)?
                    .write_all_at(&bytes(*offset, *length, *seed), *offset)?;
            }
            Op::Append(path, length, seed) => {
                self.open(path, true)?;
                // The write uses O_APPEND: the kernel chooses the offset.
                let appending = OpenOptions::new()
                    .append(true)
                    .custom_flags(libc::O_NOFOLLOW)
                    .open(self.path(path)?)?;
                let data: Vec<u8> = bytes(7, *length, *seed);
                io::Write::write_all(&mut &appending, &data)?;
            }
            Op::Truncate(path, size) => self.open(path, true)?.set_len(*size)?,
            Op::Punch(path, offset, length) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.open(path, true)?, flags, *offset, *length)?;
            }
            Op::ZeroRange(path, offset, length) => {
                rustix::fs::fallocate(
                    self.open(path, true)?,
                    FallocateFlags::ZERO_RANGE,
                    *offset,
                    *length,
                )?;
            }
            Op::Copy(from, at, to, target, length) => self.copy(from, *at, to, *target, *length)?,
            Op::Chmod(path, mode) => {
                let path = self.path(path)?;
                if std::fs::symlink_metadata(&path)?.is_symlink() {
                    return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
                }
                rustix::fs::chmodat(
                    CWD,
                    path,
                    Permissions::from_raw_mode(*mode),
                    AtFlags::empty(),
                )?;
            }
            Op::SetXattr(path, number, length) => {
                let value = bytes(u64::from(*number), *length, *number);
                let name = OsStr::from_bytes(&xattr_name(*number)).to_owned();
                rustix::fs::lsetxattr(self.path(path)?, name, &value, XattrFlags::empty())?;
            }
            Op::RemoveXattr(path, number) => {
                rustix::fs::lremovexattr(
                    self.path(path)?,
                    OsStr::from_bytes(&xattr_name(*number)),
                )?;
            }
            Op::Read(path, offset, length) => return self.read(path, *offset, *length),
            Op::Sync | Op::Commit | Op::Crash => File::open(&self.root)?.sync_all()?,
            Op::Reopen => (self.reopen)(),
        }
        Ok(Vec::new())
    }

    fn read(&self, path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, true)?;
        let mut data = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut data[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    fn copy(&self, from: &Path, at: u64, to: &Path, target: u64, length: u64) -> io::Result<()> {
        let (source, destination) = (self.open(from, true)?, self.open(to, true)?);
        // A second call would go on in what the first one has put behind the end of the same file.
        let rest = source.metadata()?.len().saturating_sub(at);
        let (mut at, mut target, mut left) = (at, target, length.min(rest));
        while left > 0 {
            let copied = rustix::fs::copy_file_range(
                source.as_fd(),
                Some(&mut at),
                destination.as_fd(),
                Some(&mut target),
                left as usize,
            )?;
            if copied == 0 {
                break;
            }
            left -= copied as u64;
        }
        Ok(())
    }

    fn see(&self, path: &std::path::Path) -> io::Result<Seen> {
        let metadata = std::fs::symlink_metadata(path)?;
        let mut seen = Seen {
            mode: metadata.permissions().mode() & 0o7777,
            links: metadata.nlink() as u32,
            size: metadata.len(),
            contents: Vec::new(),
            xattrs: Default::default(),
            names: Vec::new(),
        };
        if metadata.is_file() {
            seen.contents = std::fs::read(path)?;
        } else if metadata.is_symlink() {
            seen.contents = std::fs::read_link(path)?.into_os_string().into_vec();
        } else {
            seen.size = 0;
            for entry in std::fs::read_dir(path)? {
                seen.names.push(entry?.file_name().into_vec());
            }
            seen.names.sort();
        }
        if !metadata.is_symlink() {
            let mut list = vec![0; 64 * 1024];
            let length = rustix::fs::llistxattr(path, &mut list)?;
            for name in list[..length]
                .split(|byte| *byte == 0)
                .filter(|name| name.starts_with(b"user."))
            {
                let mut value = vec![0; 64 * 1024];
                let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value)?;
                value.truncate(length);
                seen.xattrs.insert(name.to_vec(), value);
            }
        }
        Ok(seen)
    }
}

impl World for Directory {
    fn apply(&mut self, op: &Op) -> Answer {
        self.carry_out(op)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn dump(&mut self) -> Dump {
        let mut dump = Dump::new();
        let mut stack = vec![Vec::new()];
        while let Some(path) = stack.pop() {
            let full = self
                .root
                .join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)));
            let seen = self.see(&full).expect("everything can be seen");
            for name in &seen.names {
                stack.push([path.as_slice(), b"/", name].concat());
            }
            dump.insert(path, seen);
        }
        dump
    }
}
