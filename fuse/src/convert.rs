//! Conversions between this crate's plain types and fuser's.
//!
//! Owns: encoding of answers, decoding of flags and times, and the mount options `uid=`, `gid=` and
//! `umask=`, which change the attributes shown.
//! Does not own: any decision. Everything here is a pure function.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::errno::Errno;
use crate::options::Ownership;
use crate::types::{
    Attributes, Caller, Entry, FallocateMode, FileKind, Handle, Ino, OpenFlags, Opened, RenameMode,
    TimeChange, Timestamp, Whence, XattrMode,
};

const NANOSECONDS: u32 = 1_000_000_000;

/// `__FMODE_EXEC` of the kernel. It stays set in the flags of an open for execve(2).
const FMODE_EXEC: i32 = 0x20;

pub(crate) fn caller(request: &fuser::Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

/// Returns true if a caller keeps set-user-id bits when it truncates a file (CAP_FSETID). The
/// kernel reports the capability in a flag that fuser does not pass on. Root is the closest test
/// possible here; a caller that is not root but has the capability loses the bits.
pub(crate) fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0
}

pub(crate) fn ino(ino: fuser::INodeNo) -> Ino {
    Ino(ino.0)
}

pub(crate) fn handle(handle: fuser::FileHandle) -> Handle {
    Handle(handle.0)
}

/// Returns the permission bits of a mode. The mask makes the narrowing exact.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

pub(crate) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

/// Returns a time as fuser takes it. Its encoding for the kernel is exact for every 64-bit second.
pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds.min(NANOSECONDS - 1)));
    let magnitude = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(magnitude)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(magnitude)
    };
    whole
        .and_then(|whole| whole.checked_add(nanoseconds))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns a time that fuser 0.18 decoded from the kernel.
///
/// For times before 1970 fuser subtracts the nanoseconds instead of adding them. This function
/// takes them off the same way, which restores the kernel's pair of numbers. The mount tests verify
/// this against the library: an upgrade that decodes differently fails them.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: 0_i64.saturating_sub_unsigned(before.as_secs()),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

pub(crate) fn time_change(time: fuser::TimeOrNow) -> TimeChange {
    match time {
        fuser::TimeOrNow::Now => TimeChange::Now,
        fuser::TimeOrNow::SpecificTime(time) => TimeChange::At(timestamp(time)),
    }
}

pub(crate) fn file_type(kind: FileKind) -> fuser::FileType {
    match kind {
        FileKind::Regular => fuser::FileType::RegularFile,
        FileKind::Directory => fuser::FileType::Directory,
        FileKind::Symlink => fuser::FileType::Symlink,
        FileKind::Fifo => fuser::FileType::NamedPipe,
        FileKind::Socket => fuser::FileType::Socket,
        FileKind::CharacterDevice => fuser::FileType::CharDevice,
        FileKind::BlockDevice => fuser::FileType::BlockDevice,
    }
}

/// Returns attributes as the mount shows them.
pub(crate) fn attributes(attributes: &Attributes, ownership: Ownership) -> fuser::FileAttr {
    fuser::FileAttr {
        ino: fuser::INodeNo(attributes.ino.0),
        size: attributes.size,
        blocks: attributes.blocks,
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: attributes.permissions & 0o7777 & !ownership.umask.unwrap_or(0),
        nlink: attributes.nlink,
        uid: ownership.uid.unwrap_or(attributes.uid),
        gid: ownership.gid.unwrap_or(attributes.gid),
        rdev: attributes.rdev,
        blksize: attributes.blksize,
        flags: 0,
    }
}

/// Returns the shorter of both times to live, for answers in which the library takes only one.
pub(crate) fn shorter_ttl(entry: &Entry) -> Duration {
    entry.entry_ttl.min(entry.attribute_ttl)
}

pub(crate) fn opened(opened: &Opened) -> (fuser::FileHandle, fuser::FopenFlags) {
    use fuser::FopenFlags as Flag;
    let flags = [
        (opened.direct_io, Flag::FOPEN_DIRECT_IO),
        (opened.keep_cache, Flag::FOPEN_KEEP_CACHE),
        (opened.cache_dir, Flag::FOPEN_CACHE_DIR),
        (opened.nonseekable, Flag::FOPEN_NONSEEKABLE),
        (
            opened.parallel_direct_writes,
            Flag::FOPEN_PARALLEL_DIRECT_WRITES,
        ),
        (opened.noflush, Flag::FOPEN_NOFLUSH),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(Flag::empty(), |flags, (_, flag)| flags | flag);
    (fuser::FileHandle(opened.handle.0), flags)
}

/// Decodes the flags of open(2). `privileged` callers keep set-user-id bits on truncation.
pub(crate) fn open_flags(raw: i32, privileged: bool) -> OpenFlags {
    let access = raw & libc::O_ACCMODE;
    let has = |flag: i32| raw & flag != 0;
    let truncate = has(libc::O_TRUNC);
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: has(libc::O_APPEND),
        truncate,
        exclusive: has(libc::O_EXCL),
        direct: has(libc::O_DIRECT),
        data_sync: has(libc::O_DSYNC),
        execute: has(FMODE_EXEC),
        kill_privileges: truncate && !privileged,
    }
}

pub(crate) fn rename_mode(flags: u32) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

pub(crate) fn fallocate_mode(mode: i32) -> Option<FallocateMode> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(FallocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(FallocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(FallocateMode::ZeroRange { keep_size }),
        _ => None,
    }
}

fn whence(whence: i32) -> Option<Whence> {
    match whence {
        libc::SEEK_DATA => Some(Whence::Data),
        libc::SEEK_HOLE => Some(Whence::Hole),
        _ => None,
    }
}

/// Decodes the offset and `whence` of lseek(2): EINVAL for another `whence` than data and hole,
/// ENXIO for an offset before the start of the file.
pub(crate) fn place(offset: i64, whence_number: i32) -> Result<(u64, Whence), Errno> {
    let whence = whence(whence_number).ok_or(Errno::EINVAL)?;
    let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    Ok((offset, whence))
}

pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// The answer to getxattr(2) and listxattr(2) for a value, given the size of the caller's buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum XattrAnswer {
    /// The caller asked for the size only.
    Size(u32),
    /// The value fits into the buffer.
    Data,
    /// The value does not fit into this buffer (ERANGE), or into any (E2BIG).
    Refuse(Errno),
}

pub(crate) fn xattr_answer(length: usize, buffer_size: u32) -> XattrAnswer {
    match u32::try_from(length) {
        Err(_) => XattrAnswer::Refuse(Errno::E2BIG),
        Ok(length) if buffer_size == 0 => XattrAnswer::Size(length),
        Ok(length) if length <= buffer_size => XattrAnswer::Data,
        Ok(_) => XattrAnswer::Refuse(Errno::ERANGE),
    }
}

/// Encodes names for listxattr(2): a NUL follows each.
pub(crate) fn xattr_list(names: &[Vec<u8>]) -> Vec<u8> {
    let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names {
        list.extend_from_slice(name);
        list.push(0);
    }
    list
}

/// Returns true if an attribute is a POSIX access control list, which this crate does not ask the
/// kernel to enforce. Stored as a plain attribute, it would look like an access right but have no
/// effect.
pub(crate) fn is_access_control_list(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Joins the pieces of a read into `buffer`, at most `size` bytes.
pub(crate) fn gather(pieces: &[Bytes], size: usize, buffer: &mut Vec<u8>) {
    buffer.clear();
    for piece in pieces {
        let room = size - buffer.len();
        buffer.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What fuser 0.18 decodes from the kernel's pair of numbers.
    fn decoded_by_fuser(seconds: i64, nanoseconds: u32) -> Option<SystemTime> {
        let magnitude = Duration::new(seconds.unsigned_abs(), nanoseconds);
        if seconds >= 0 {
            SystemTime::UNIX_EPOCH.checked_add(magnitude)
        } else {
            SystemTime::UNIX_EPOCH.checked_sub(magnitude)
        }
    }

    /// What fuser 0.18 sends to the kernel for a time: correct floor division.
    fn encoded_by_fuser(time: SystemTime) -> (i64, u32) {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let nanoseconds = before.duration().as_nanos() as i128;
                let seconds = (-nanoseconds).div_euclid(i128::from(NANOSECONDS));
                let rest = (-nanoseconds).rem_euclid(i128::from(NANOSECONDS));
                (seconds as i64, rest as u32)
            }
        }
    }

    proptest! {
        #[test]
        fn times_from_the_kernel_come_back_unchanged(seconds: i64, nanoseconds in 0..NANOSECONDS) {
            if let Some(time) = decoded_by_fuser(seconds, nanoseconds) {
                prop_assert_eq!(timestamp(time), Timestamp { seconds, nanoseconds });
            }
        }

        #[test]
        fn times_to_the_kernel_are_exact(seconds: i64, nanoseconds in 0..NANOSECONDS) {
            let time = system_time(Timestamp { seconds, nanoseconds });
            prop_assert_eq!(encoded_by_fuser(time), (seconds, nanoseconds));
        }

        #[test]
        fn arbitrary_flags_are_decoded_or_refused(flags: i32, privileged: bool) {
            let open = open_flags(flags, privileged);
            prop_assert!(open.read || open.write);
            prop_assert_eq!(open.kill_privileges, open.truncate && !privileged);
            let _ = rename_mode(flags as u32);
            let _ = fallocate_mode(flags);
            let _ = whence(flags);
            let _ = xattr_mode(flags);
            let _ = FileKind::from_mode(flags as u32);
        }

        #[test]
        fn gathering_keeps_order_and_limit(pieces: Vec<Vec<u8>>, size in 0_usize..4096) {
            let whole: Vec<u8> = pieces.concat();
            let pieces: Vec<Bytes> = pieces.into_iter().map(Bytes::from).collect();
            let mut buffer = vec![1, 2, 3];
            gather(&pieces, size, &mut buffer);
            prop_assert_eq!(&buffer[..], &whole[..whole.len().min(size)]);
        }

        #[test]
        fn xattr_sizes_follow_the_protocol(length in 0_usize..70_000, size in 0_u32..70_000) {
            let answer = xattr_answer(length, size);
            if size == 0 {
                prop_assert_eq!(answer, XattrAnswer::Size(length as u32));
            } else if length <= size as usize {
                prop_assert_eq!(answer, XattrAnswer::Data);
            } else {
                prop_assert_eq!(answer, XattrAnswer::Refuse(Errno::ERANGE));
            }
        }
    }

    #[test]
    fn the_extreme_times_do_not_panic() {
        for seconds in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
            for nanoseconds in [0, 1, NANOSECONDS - 1, u32::MAX] {
                let _ = system_time(Timestamp {
                    seconds,
                    nanoseconds,
                });
            }
        }
        assert_eq!(
            xattr_answer(usize::MAX, 0),
            XattrAnswer::Refuse(Errno::E2BIG)
        );
    }

    #[test]
    fn every_kind_keeps_its_mode_bits() {
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharacterDevice,
            FileKind::BlockDevice,
        ] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), Some(FileKind::Regular));
        assert_eq!(FileKind::from_mode(libc::S_IFMT), None);
    }

    #[test]
    fn ownership_options_change_what_is_shown() {
        let stored = Attributes {
            ino: Ino(9),
            size: 1,
            blocks: 1,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            kind: FileKind::Regular,
            permissions: 0o4777,
            nlink: 1,
            uid: 5,
            gid: 6,
            rdev: 0,
            blksize: 4096,
        };
        let plain = attributes(&stored, Ownership::default());
        assert_eq!((plain.uid, plain.gid, plain.perm), (5, 6, 0o4777));
        let shown = attributes(
            &stored,
            Ownership {
                uid: Some(0),
                gid: None,
                umask: Some(0o027),
            },
        );
        assert_eq!((shown.uid, shown.gid, shown.perm), (0, 6, 0o4750));
    }

    #[test]
    fn flags_of_fallocate_and_rename_mean_what_the_manual_says() {
        assert_eq!(
            fallocate_mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            Some(FallocateMode::PunchHole)
        );
        assert_eq!(fallocate_mode(libc::FALLOC_FL_PUNCH_HOLE), None);
        assert_eq!(fallocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        assert_eq!(
            rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE),
            None
        );
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), None);
    }

    #[test]
    fn nothing_is_sought_before_the_beginning() {
        assert_eq!(place(7, libc::SEEK_HOLE), Ok((7, Whence::Hole)));
        assert_eq!(place(-1, libc::SEEK_DATA), Err(Errno::ENXIO));
        assert_eq!(place(i64::MIN, libc::SEEK_HOLE), Err(Errno::ENXIO));
        assert_eq!(place(-1, libc::SEEK_SET), Err(Errno::EINVAL));
    }

    #[test]
    fn open_answers_carry_every_flag() {
        use fuser::FopenFlags as Flag;
        let (handle, flags) = opened(&Opened {
            handle: Handle(3),
            direct_io: true,
            keep_cache: true,
            cache_dir: true,
            nonseekable: true,
            parallel_direct_writes: true,
            noflush: true,
        });
        assert_eq!(handle, fuser::FileHandle(3));
        assert_eq!(
            flags,
            Flag::all() - Flag::FOPEN_STREAM - Flag::FOPEN_PASSTHROUGH
        );
        assert_eq!(opened(&Opened::default()).1, Flag::empty());
    }
}
