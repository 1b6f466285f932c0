//! The source of a put: directories and files of this machine.
//!
//! Owns: every call to the source's filesystem. No call follows a symbolic link, so what swaps a
//! directory for a link meanwhile leads nowhere. Does not own: what is done with the results.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::put_tree::facts::Facts;
use crate::tree::item::Timestamp;
use crate::volume::mode;

/// Flags of every file and directory that is opened.
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOCTTY)
    .union(OFlags::NONBLOCK);

/// The file that marks a directory as a cache.
pub const CACHE_TAG: &CStr = c"CACHEDIR.TAG";

/// The bytes with which that file begins (bford.info/cachedir).
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// Length of the buffer for most values of extended attributes, and lists of their names, in bytes.
const XATTR_BYTES: usize = 1024;

/// Length of the longest of them (XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux), in bytes.
const XATTR_BYTES_MAX: usize = 64 * 1024;

/// Types of filesystems whose contents the kernel makes up (`linux/magic.h`): proc, sysfs, debugfs,
/// tracefs, securityfs, selinuxfs, configfs, cgroup, cgroup2, bpf, pstore, efivarfs, binfmt_misc,
/// devpts, fusectl and rpc_pipefs.
const MADE_UP: [u32; 16] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xf97c_ff8c,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x6165_676c,
    0xde5e_81e4,
    0x4249_4e4d,
    0x1cd1,
    0x6573_5543,
    0x6759_6969,
];

/// Extended attributes with their values.
pub type Xattrs = Vec<(Vec<u8>, Bytes)>;

/// What was read of the extended attributes of a file.
#[derive(Debug, Default)]
pub struct Held {
    /// Those that bkfs stores.
    pub xattrs: Xattrs,
    /// The number of those of `system.`, as access control lists, which bkfs does not store.
    pub left_out: u64,
    /// Why others could not be read.
    pub unread: Option<io::Error>,
}

/// An entry of a directory.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// What stat(2) says of it.
    pub facts: io::Result<Facts>,
}

impl From<&Stat> for Facts {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type of the number of links differs between processors"
    )]
    fn from(stat: &Stat) -> Facts {
        let time = |seconds: i64, nanoseconds: u64| Timestamp {
            seconds,
            nanoseconds: nanoseconds as u32,
        };
        let is_device = matches!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
        Facts {
            filesystem: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode,
            // The width of this field depends on the architecture.
            #[allow(clippy::unnecessary_cast)]
            links: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: if is_device { stat.st_rdev as u32 } else { 0 },
            size: stat.st_size as u64,
            allocated: (stat.st_blocks as u64).saturating_mul(512),
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// Opens a directory that the user named, through links if its path has any.
///
/// # Errors
/// The I/O error of opening it.
pub fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let flags = OPEN.difference(OFlags::NOFOLLOW).union(OFlags::DIRECTORY);
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory of an open directory.
///
/// # Errors
/// The I/O error of opening it; ENOTDIR or ELOOP if it is no directory any more.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OPEN.union(OFlags::DIRECTORY);
    Ok(rustix::fs::openat(
        parent,
        OsStr::from_bytes(name),
        flags,
        Mode::empty(),
    )?)
}

/// Opens the directory that has these names below an open directory.
///
/// # Errors
/// The I/O error of opening one of them, as [`open_directory`].
pub fn open_below<'a>(
    directory: BorrowedFd<'_>,
    names: impl Iterator<Item = &'a [u8]>,
) -> io::Result<OwnedFd> {
    let mut below = directory.try_clone_to_owned()?;
    for name in names {
        below = open_directory(below.as_fd(), name)?;
    }
    Ok(below)
}

/// Opens a regular file of an open directory. Its time of the last read stays if the caller may ask
/// for that. Waits while another process gives up its lease of the file.
///
/// # Errors
/// The I/O error of opening it; ESTALE if it is no regular file any more.
pub fn open_file(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<(OwnedFd, Facts)> {
    let open = |flags| rustix::fs::openat(parent, OsStr::from_bytes(name), flags, Mode::empty());
    let fd = match open(OPEN.union(OFlags::NOATIME)) {
        Err(Errno::PERM) => open(OPEN),
        opened => opened,
    };
    let fd = match fd {
        Err(Errno::AGAIN) => open_leased(parent, name)?,
        opened => opened?,
    };
    let facts = facts_of(fd.as_fd())?;
    match mode::is_regular(facts.mode) {
        true => Ok((fd, facts)),
        false => Err(Errno::STALE.into()),
    }
}

/// Opens a regular file that another process has leased, which needs a call that may wait. What has
/// the name is looked at first, since such a call waits for the writer of a fifo as well.
fn open_leased(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(parent, OsStr::from_bytes(name), flags, Mode::empty())?;
    if !mode::is_regular(facts_of(found.as_fd())?.mode) {
        return Err(Errno::STALE.into());
    }
    // This path leads to the file that was looked at, whatever has the name by now.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns what fstat(2) says.
///
/// # Errors
/// The I/O error of the call.
pub fn facts_of(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    Ok(Facts::from(&rustix::fs::fstat(fd)?))
}

/// Returns what stat(2) says of a name in a directory.
///
/// # Errors
/// The I/O error of the call.
pub fn facts_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Facts> {
    let name = OsStr::from_bytes(name);
    let looked = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(Facts::from(&looked))
}

/// Returns the entries of a directory, in the order of their names' bytes. Those that are gone
/// before they were looked at are left out.
///
/// # Errors
/// The I/O error of reading the directory.
pub fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    let look = |name: Vec<u8>| match facts_at(directory, &name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        facts => Some(Entry { facts, name }),
    };
    Ok(names.into_iter().filter_map(look).collect())
}

/// Returns true if the kernel makes up what is in a directory: proc and others like it.
pub fn is_made_up(directory: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::fstatfs(directory);
    found.is_ok_and(|found| MADE_UP.contains(&(found.f_type as u32)))
}

/// Returns true if a directory says that it is a cache.
pub fn is_cache(directory: BorrowedFd<'_>) -> bool {
    let Ok((fd, _)) = open_file(directory, CACHE_TAG.to_bytes()) else {
        return false;
    };
    let mut head = [0; CACHE_SIGNATURE.len()];
    let read = rustix::io::pread(&fd, &mut head[..], 0);
    read == Ok(head.len()) && head == CACHE_SIGNATURE
}

/// Returns the target of a symbolic link.
///
/// # Errors
/// The I/O error of reading it.
pub fn link_target(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Bytes> {
    let target = rustix::fs::readlinkat(directory, OsStr::from_bytes(name), Vec::new())?;
    Ok(Bytes::from(target.into_bytes()))
}

/// Returns the extended attributes of an open file or directory.
pub fn xattrs(fd: BorrowedFd<'_>) -> Held {
    xattrs_by(
        |buffer| rustix::fs::flistxattr(fd, buffer),
        |name, buffer| rustix::fs::fgetxattr(fd, name, buffer),
    )
}

/// Returns the same of what is not opened: links, fifos and devices.
///
/// # Errors
/// The I/O error of looking at the name.
pub fn xattrs_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Held> {
    xattrs_through("/proc/self/fd", directory, name)
}

/// Does so through the paths that `descriptors` has for open directories.
fn xattrs_through(descriptors: &str, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Held> {
    let mut path = format!("{descriptors}/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    let path = CString::new(path)?;
    let held = xattrs_by(
        |buffer| rustix::fs::llistxattr(&path, buffer),
        |name, buffer| rustix::fs::lgetxattr(&path, name, buffer),
    );
    if held.unread.is_some() {
        // Without /proc each path is absent, and the file is there.
        facts_at(directory, name)?;
    }
    Ok(held)
}

fn xattrs_by(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> Held {
    let mut held = Held::default();
    let names = match sized(&list) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return held,
        Err(error) => {
            held.unread = Some(unread("its extended attributes", error));
            return held;
        }
        Ok(names) => names,
    };
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if name.to_bytes().starts_with(b"system.") {
            held.left_out += 1;
            continue;
        }
        match sized(|buffer| get(name, buffer)) {
            Ok(value) => {
                let xattr = (name.to_bytes().to_vec(), Bytes::from(value));
                held.xattrs.push(xattr);
            }
            // It was removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(error) => {
                let what = format!("its attribute {}", name.to_string_lossy());
                held.unread.get_or_insert(unread(&what, error));
            }
        }
    }
    held
}

/// Returns an error that names a part of a file. A lack of memory stays one.
fn unread(what: &str, error: Errno) -> io::Error {
    match error {
        Errno::NOMEM => error.into(),
        Errno::NOENT => io::Error::other(format!("{what}: no path to it, is /proc mounted?")),
        error => io::Error::other(format!("{what}: {error}")),
    }
}

/// Calls a function that fills a buffer, with one that is long enough.
fn sized(fill: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; XATTR_BYTES];
    loop {
        match fill(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < XATTR_BYTES_MAX => {
                buffer.resize(XATTR_BYTES_MAX, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads a file from its start, up to `length` bytes.
///
/// # Errors
/// The I/O error of reading it.
pub fn whole(fd: BorrowedFd<'_>, length: usize) -> io::Result<Bytes> {
    Ok(Bytes::from(read_at(fd, 0, length)?))
}

/// Returns the next data at or after `offset` and below `end`, with its offset: up to `most` bytes
/// that lie together. `None` if only a hole is left, or the file has become shorter.
///
/// # Errors
/// The I/O error of reading it.
pub fn next_data(
    fd: BorrowedFd<'_>,
    offset: u64,
    end: u64,
    most: usize,
) -> io::Result<Option<(u64, Bytes)>> {
    let start = match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // This filesystem knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
        Err(error) => return Err(error.into()),
    };
    let until = match rustix::fs::seek(fd, SeekFrom::Hole(start)) {
        Ok(until) => until.min(end),
        Err(_) => end,
    };
    if start >= until {
        return Ok(None);
    }
    let length = (until - start).min(most as u64) as usize;
    let data = read_at(fd, start, length)?;
    Ok((!data.is_empty()).then(|| (start, Bytes::from(data))))
}

fn read_at(fd: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; length];
    let mut read = 0;
    while read < length {
        match rustix::io::pread(fd, &mut data[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    data.truncate(read);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_place_of_a_directory_or_file_leads_nowhere() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(home.path().join("real")).unwrap();
        std::fs::write(home.path().join("real/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", home.path().join("link")).unwrap();
        std::os::unix::fs::symlink("real/file", home.path().join("file")).unwrap();
        let directory = open_named(home.path()).unwrap();
        open_directory(directory.as_fd(), b"real").unwrap();
        open_directory(directory.as_fd(), b"link").unwrap_err();
        open_file(directory.as_fd(), b"file").unwrap_err();
    }

    #[test]
    fn a_fifo_in_place_of_a_file_is_neither_waited_for_nor_read() {
        let home = tempfile::TempDir::new().unwrap();
        let directory = open_named(home.path()).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(&directory, "fifo", kind, Mode::RUSR, 0).unwrap();
        let error = open_file(directory.as_fd(), b"fifo").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn entries_are_in_order_and_links_are_not_followed() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::write(home.path().join("b"), "12345").unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("a")).unwrap();
        std::fs::write(home.path().join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let directory = open_named(home.path()).unwrap();
        let entries = entries(directory.as_fd()).unwrap();
        let names: Vec<&[u8]> = entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [&b"a"[..], b"b", b"\xff"]);
        let facts = entries[0].facts.as_ref().unwrap();
        assert!(mode::is_symlink(facts.mode));
        assert_eq!(entries[1].facts.as_ref().unwrap().size, 5);
    }

    #[test]
    fn what_the_kernel_makes_up_is_told_from_files() {
        let home = tempfile::TempDir::new().unwrap();
        assert!(!is_made_up(open_named(home.path()).unwrap().as_fd()));
        let proc = open_named(Path::new("/proc/self")).unwrap();
        assert!(is_made_up(proc.as_fd()));
    }

    #[test]
    fn only_the_whole_signature_marks_a_cache() {
        let home = tempfile::TempDir::new().unwrap();
        let directory = open_named(home.path()).unwrap();
        let tag = home.path().join("CACHEDIR.TAG");
        assert!(!is_cache(directory.as_fd()));
        std::fs::write(&tag, &CACHE_SIGNATURE[1..]).unwrap();
        assert!(!is_cache(directory.as_fd()));
        std::fs::write(&tag, [CACHE_SIGNATURE, b"\n# made by a test"].concat()).unwrap();
        assert!(is_cache(directory.as_fd()));
    }

    #[test]
    fn a_buffer_grows_once() {
        let filled = |length: usize| {
            sized(|buffer| {
                let there = buffer.get_mut(..length).ok_or(Errno::RANGE)?;
                there.fill(7);
                Ok(length)
            })
        };
        for length in [0, 1, XATTR_BYTES, XATTR_BYTES + 1, XATTR_BYTES_MAX] {
            assert_eq!(filled(length).unwrap(), vec![7; length]);
        }
        assert_eq!(filled(XATTR_BYTES_MAX + 1), Err(Errno::RANGE));
    }

    #[test]
    fn extended_attributes_are_read_with_their_values() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        std::fs::write(&path, "").unwrap();
        let long = vec![7; 3 * XATTR_BYTES];
        for (name, value) in [("user.long", &long[..]), ("user.short", b"x")] {
            let flags = rustix::fs::XattrFlags::empty();
            // A filesystem may have none, or only short ones.
            if rustix::fs::setxattr(&path, name, value, flags).is_err() {
                return;
            }
        }
        let directory = open_named(home.path()).unwrap();
        let (fd, _) = open_file(directory.as_fd(), b"file").unwrap();
        let mut xattrs = super::xattrs(fd.as_fd()).xattrs;
        xattrs.sort();
        xattrs.retain(|(name, _)| name.starts_with(b"user."));
        let names: Vec<&[u8]> = xattrs.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, [&b"user.long"[..], b"user.short"]);
        assert_eq!(xattrs[0].1, long);
        let held = xattrs_at(directory.as_fd(), b"file").unwrap();
        assert_eq!(held.xattrs.len(), super::xattrs(fd.as_fd()).xattrs.len());
    }

    #[test]
    fn a_file_without_a_path_through_proc_is_no_file_that_is_gone() {
        let home = tempfile::TempDir::new().unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("link")).unwrap();
        let directory = open_named(home.path()).unwrap();
        let held = xattrs_through("/absent/fd", directory.as_fd(), b"link").unwrap();
        assert!(held.unread.is_some() && held.xattrs.is_empty());
        let gone = xattrs_through("/absent/fd", directory.as_fd(), b"gone").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_attribute_that_cannot_be_read_is_named_and_the_others_are_read() {
        let held = xattrs_by(
            |buffer| {
                let names = b"user.a\0security.b\0system.c\0user.d\0";
                buffer[..names.len()].copy_from_slice(names);
                Ok(names.len())
            },
            |name, buffer| match name.to_bytes() {
                b"security.b" => Err(Errno::ACCESS),
                _ => {
                    buffer[0] = 7;
                    Ok(1)
                }
            },
        );
        let names: Vec<&[u8]> = held.xattrs.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, [&b"user.a"[..], b"user.d"]);
        assert_eq!(held.left_out, 1);
        assert!(held.unread.unwrap().to_string().contains("security.b"));
    }

    #[test]
    fn data_is_found_between_holes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        rustix::io::pwrite(&file, b"data", 4 << 20).unwrap();
        let data = |offset| next_data(file.as_fd(), offset, 10 << 20, 1 << 20).unwrap();
        let mut at = 0;
        let mut found = Vec::new();
        while let Some((offset, bytes)) = data(at) {
            at = offset + bytes.len() as u64;
            found.extend(bytes.iter().copied().filter(|byte| *byte != 0));
        }
        assert_eq!(found, b"data");
        assert!(data(10 << 20).is_none());
    }
}
