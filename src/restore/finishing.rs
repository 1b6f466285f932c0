//! What is set on the inodes that a restore makes: owners, permissions, times, extended attributes.
//!
//! Owns the order of these, and the report of what could not be set. Does not own how inodes are
//! made (`place`).

use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::restore::place::proc_path;
use crate::restore::rights::Rights;
use crate::tree::item::{Attributes, Timestamp};

/// Returns true if one of these extended attributes gives a program privileges.
pub(super) fn gives_privileges(xattrs: &[(Vec<u8>, bytes::Bytes)]) -> bool {
    xattrs.iter().any(|(name, _)| name == CAPABILITY)
}

/// The extended attribute by which the kernel gives a program privileges.
const CAPABILITY: &[u8] = b"security.capability";

/// The access control lists that a new inode inherits from a directory with default lists.
/// Snapshots have no such lists.
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// The attributes of an inode that could not be set, each with the reason.
#[derive(Debug, Default)]
pub struct Unset {
    failed: Vec<String>,
    /// Number of extended attributes left out because only root can set them, or because they give
    /// privileges.
    pub privileged: u64,
    /// True if set-id bits were left out.
    pub set_ids: bool,
}

impl Unset {
    fn note(&mut self, what: impl fmt::Display, result: rustix::io::Result<()>) {
        if let Err(error) = result {
            self.failed.push(format!("{what}: {error}"));
        }
    }

    fn note_xattr(&mut self, name: &[u8], is_root: bool, result: rustix::io::Result<()>) {
        match result {
            // Without privileges only `user.` can be set, so this error is expected.
            Err(Errno::PERM) if !is_root && !name.starts_with(b"user.") => self.privileged += 1,
            result => self.note(
                format_args!("extended attribute {}", name.escape_ascii()),
                result,
            ),
        }
    }

    /// Notes the removal of an access control list. A list that is absent, or that the filesystem
    /// does not support, counts as removed.
    fn note_acl(&mut self, removed: rustix::io::Result<()>) {
        match removed {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            result => self.note("an inherited access control list stays", result),
        }
    }

    /// Returns true if an extended attribute is left out, and counts it then. With `no_special`
    /// that is every attribute except those of `user.`. Otherwise it is only `security.capability`,
    /// for a file that does not have its former owner and group.
    fn leaves_out(&mut self, name: &[u8], rights: Rights, is_whose: bool) -> bool {
        let is_unwanted = rights.no_special && !name.starts_with(b"user.");
        let is_left_out = is_unwanted || (name == CAPABILITY && !is_whose);
        self.privileged += u64::from(is_left_out);
        is_left_out
    }

    /// Returns the permissions to set. Set-id bits are kept only if the file has its former owner
    /// and group, as whom its program would run, and if the options do not exclude them.
    fn mode(&mut self, attributes: &Attributes, rights: Rights, is_whose: bool) -> Mode {
        let set_ids = attributes.mode & (libc::S_ISUID | libc::S_ISGID);
        self.set_ids = set_ids != 0 && (rights.no_special || !is_whose);
        let kept = match self.set_ids {
            true => attributes.mode & !set_ids,
            false => attributes.mode,
        };
        Mode::from_raw_mode(kept & 0o7777)
    }

    /// Returns the message, if anything failed.
    pub fn told(&self) -> Option<String> {
        (!self.failed.is_empty()).then(|| self.failed.join("; "))
    }
}

/// Sets the owner, extended attributes, permissions and times of an inode.
pub fn finish(
    fd: BorrowedFd<'_>,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    rights: Rights,
) -> Unset {
    let mut unset = finish_undated(fd, attributes, xattrs, rights);
    unset.note("times", rustix::fs::futimens(fd, &times(attributes)));
    unset
}

/// Sets the owner, extended attributes and permissions of an inode, in an order in which no step
/// undoes or forbids another. A failure of one does not prevent the others.
pub fn finish_undated(
    fd: BorrowedFd<'_>,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    rights: Rights,
) -> Unset {
    let mut unset = Unset::default();
    let is_root = rights.is_root;
    if rights.sets_owner() {
        let (uid, gid) = (owner(attributes.uid), group(attributes.gid));
        unset.note("owner", rustix::fs::fchown(fd, Some(uid), Some(gid)));
    }
    let [access, default] = ACLS;
    unset.note_acl(rustix::fs::fremovexattr(fd, access));
    if crate::volume::mode::is_directory(attributes.mode) {
        unset.note_acl(rustix::fs::fremovexattr(fd, default));
    }
    // Plain files need no look at what they are.
    let is_plain = xattrs.is_empty() && attributes.mode & (libc::S_ISUID | libc::S_ISGID) == 0;
    let is_whose = is_plain || is_whose(rustix::fs::fstat(fd), attributes);
    for (name, value) in xattrs {
        if unset.leaves_out(name, rights, is_whose) {
            continue;
        }
        let set = || {
            let name = CString::new(name.as_slice()).map_err(|_| Errno::INVAL)?;
            rustix::fs::fsetxattr(fd, &name, value, XattrFlags::empty())
        };
        unset.note_xattr(name, is_root, set());
    }
    let mode = unset.mode(attributes, rights, is_whose);
    unset.note("permissions", rustix::fs::fchmod(fd, mode));
    unset
}

/// Does the same for inodes that cannot be opened: links, fifos, sockets, devices. The owner of the
/// directory may have put anything under the name since. An inode of another kind gets nothing
/// then, and neither does the target of a link.
pub fn finish_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    rights: Rights,
) -> Unset {
    match HeldInode::of_kind(directory, name, attributes) {
        Ok(held) => finish_held(&held, attributes, xattrs, rights),
        Err(error) => {
            let mut unset = Unset::default();
            unset.note("owner, permissions and times", Err(error));
            unset
        }
    }
}

/// An inode of the target, held by an `O_PATH` descriptor: what has its name may change.
pub(super) struct HeldInode {
    fd: OwnedFd,
    /// A path that leads to the inode itself, even if it is a link.
    path: String,
}

impl HeldInode {
    /// Holds the inode of this name, and returns what it is.
    ///
    /// # Errors
    /// ENOENT if nothing has the name; the errno of opening it.
    pub(super) fn at(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<(Self, Stat)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&fd)?;
        let path = proc_path(fd.as_fd());
        Ok((HeldInode { fd, path }, found))
    }

    /// Holds the inode of this name, if it is of the kind that was made there; otherwise fails with
    /// ESTALE.
    fn of_kind(
        directory: BorrowedFd<'_>,
        name: &OsStr,
        attributes: &Attributes,
    ) -> rustix::io::Result<Self> {
        let (held, found) = HeldInode::at(directory, name)?;
        let kind = FileType::from_raw_mode(attributes.mode);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        let is_other = is_device && found.st_rdev != u64::from(attributes.device);
        match FileType::from_raw_mode(found.st_mode) != kind || is_other {
            true => Err(Errno::STALE),
            false => Ok(held),
        }
    }
}

/// Does the same for an inode that is held.
pub(super) fn finish_held(
    held: &HeldInode,
    attributes: &Attributes,
    xattrs: &[(Vec<u8>, bytes::Bytes)],
    rights: Rights,
) -> Unset {
    let mut unset = Unset::default();
    let is_root = rights.is_root;
    let path = held.path.as_str();
    if rights.sets_owner() {
        let (uid, gid) = (Some(owner(attributes.uid)), Some(group(attributes.gid)));
        let given = rustix::fs::chownat(rustix::fs::CWD, path, uid, gid, AtFlags::empty());
        unset.note("owner", given);
    }
    let is_whose = is_whose(rustix::fs::fstat(&held.fd), attributes);
    for (attribute, value) in xattrs {
        if unset.leaves_out(attribute, rights, is_whose) {
            continue;
        }
        let attribute_name = OsStr::from_bytes(attribute);
        let set = rustix::fs::setxattr(path, attribute_name, value, XattrFlags::empty());
        unset.note_xattr(attribute, is_root, set);
    }
    if !crate::volume::mode::is_symlink(attributes.mode) {
        unset.note_acl(rustix::fs::removexattr(path, ACLS[0]));
        let mode = unset.mode(attributes, rights, is_whose);
        // fchmod(2) does not take such a descriptor.
        unset.note("permissions", rustix::fs::chmod(path, mode));
    }
    unset.note("times", set_times(held, attributes));
    unset
}

/// Sets the times of an inode that is held.
pub(super) fn set_times(held: &HeldInode, attributes: &Attributes) -> rustix::io::Result<()> {
    let times = times(attributes);
    match rustix::fs::utimensat(&held.fd, "", &times, AtFlags::EMPTY_PATH) {
        // Before Linux 5.8.
        Err(Errno::INVAL | Errno::NOENT) => {
            let path = held.path.as_str();
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::empty())
        }
        set => set,
    }
}

/// Returns true if an inode has the owner and the group that the snapshot has.
fn is_whose(found: rustix::io::Result<rustix::fs::Stat>, attributes: &Attributes) -> bool {
    found.is_ok_and(|found| (found.st_uid, found.st_gid) == (attributes.uid, attributes.gid))
}

fn owner(uid: u32) -> rustix::fs::Uid {
    rustix::fs::Uid::from_raw(uid)
}

fn group(gid: u32) -> rustix::fs::Gid {
    rustix::fs::Gid::from_raw(gid)
}

fn times(attributes: &Attributes) -> Timestamps {
    let spec = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: spec(attributes.accessed),
        last_modification: spec(attributes.modified),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::*;
    use crate::restore::place::special;

    fn opened(path: &Path) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    /// Another user's file has taken the name since.
    #[test]
    fn what_has_taken_the_name_since_gets_nothing() {
        let home = tempfile::TempDir::new().unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("file", home.path().join("link")).unwrap();
        let directory = opened(home.path());
        let before = |path: &Path| {
            let found = path.symlink_metadata().unwrap();
            (found.uid(), found.gid(), found.mtime(), found.ctime())
        };
        for name in ["file", "link"] {
            let path = home.path().join(name);
            let expected = before(&path);
            let attributes = Attributes {
                mode: libc::S_IFIFO | 0o666,
                uid: 12_345,
                gid: 12_345,
                ..Attributes::default()
            };
            let xattrs = [(b"user.other".to_vec(), "1".into())];
            let rights = Rights {
                is_root: true,
                ..Rights::default()
            };
            let name = OsStr::new(name);
            let unset = finish_at(directory.as_fd(), name, &attributes, &xattrs, rights);
            assert!(unset.told().is_some());
            assert_eq!(before(&path), expected, "{name:?}");
            let mut value = [0; 8];
            rustix::fs::lgetxattr(&path, "user.other", &mut value[..]).unwrap_err();
        }
    }

    /// Links and fifos get their attributes; the target of a link gets nothing.
    #[test]
    fn what_cannot_be_opened_gets_what_it_had() {
        let home = tempfile::TempDir::new().unwrap();
        std::fs::write(home.path().join("target"), "x").unwrap();
        let target = home.path().join("target").metadata().unwrap();
        std::os::unix::fs::symlink("target", home.path().join("link")).unwrap();
        let directory = opened(home.path());
        let mut attributes = Attributes {
            mode: libc::S_IFIFO | 0o640,
            uid: target.uid(),
            gid: target.gid(),
            ..Attributes::default()
        };
        attributes.modified.seconds = 1_000_000_000;
        special(directory.as_fd(), OsStr::new("fifo"), &attributes).unwrap();
        let rights = Rights {
            is_root: rustix::process::geteuid().is_root(),
            ..Rights::default()
        };
        let is_root = rights.is_root;
        attributes.uid += u32::from(is_root);
        let finish = |name: &str, attributes: &Attributes| {
            let unset = finish_at(directory.as_fd(), OsStr::new(name), attributes, &[], rights);
            assert_eq!(unset.told(), None);
            let found = home.path().join(name).symlink_metadata().unwrap();
            (found.uid(), found.mtime(), found.mode() & 0o7777)
        };
        let wanted = (attributes.uid, 1_000_000_000);
        let (uid, seconds, mode) = finish("fifo", &attributes);
        assert_eq!(((uid, seconds), mode), (wanted, 0o640));
        attributes.mode = libc::S_IFLNK | 0o777;
        let (uid, seconds, _) = finish("link", &attributes);
        assert_eq!((uid, seconds), wanted);
        let found = home.path().join("target").metadata().unwrap();
        let facts = |of: &std::fs::Metadata| (of.uid(), of.mtime(), of.ctime());
        assert_eq!(facts(&found), facts(&target));
    }

    /// The attributes of a fifo do not go to the target of a link that has its name now.
    #[test]
    fn permissions_never_go_through_a_link() {
        let home = tempfile::TempDir::new().unwrap();
        let target = home.path().join("target");
        std::fs::write(&target, "x").unwrap();
        std::fs::set_permissions(&target, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&target, home.path().join("name")).unwrap();
        let attributes = Attributes {
            mode: 0o010666,
            ..Attributes::default()
        };
        let directory = opened(home.path());
        let unset = finish_at(
            directory.as_fd(),
            OsStr::new("name"),
            &attributes,
            &[],
            Rights::default(),
        );
        assert!(unset.told().unwrap().contains("permissions"));
        let mode = target.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn one_attribute_that_fails_is_named_and_keeps_no_other_from_being_set() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let mut attributes = Attributes {
            mode: 0o100444,
            ..Attributes::default()
        };
        attributes.modified.seconds = 1_000_000_000;
        let xattrs = [
            (b"nowhere.first".to_vec(), "1".into()),
            (b"user.second".to_vec(), "2".into()),
        ];
        let told = finish(file.as_fd(), &attributes, &xattrs, Rights::default()).told();
        let told = told.unwrap();
        assert!(told.contains("nowhere.first"), "{told}");
        assert!(!told.contains("times") && !told.contains("permissions"));
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
        let modified = metadata.mtime();
        assert_eq!(modified, 1_000_000_000);
        if !told.contains("user.second") {
            let mut value = [0; 8];
            let length = rustix::fs::fgetxattr(&file, "user.second", &mut value[..]);
            assert_eq!(length, Ok(1));
        }
    }

    /// Finishes a file with these rights, for its owner or for a foreign one; returns its
    /// permissions then, and what could not be set.
    fn set_id(rights: Rights, foreign: bool) -> (u32, Unset) {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let found = path.metadata().unwrap();
        let attributes = Attributes {
            mode: 0o106755,
            uid: found.uid() + u32::from(foreign),
            gid: found.gid(),
            ..Attributes::default()
        };
        let unset = finish(file.as_fd(), &attributes, &[], rights);
        (
            path.metadata().unwrap().permissions().mode() & 0o7777,
            unset,
        )
    }

    #[test]
    fn set_id_bits_are_set_where_owner_and_group_are_right_only() {
        let (mode, unset) = set_id(Rights::default(), true);
        assert_eq!((mode, unset.set_ids), (0o755, true));
        let (mode, unset) = set_id(Rights::default(), false);
        assert_eq!((mode, unset.set_ids), (0o6755, false));
        let rights = Rights {
            no_special: true,
            ..Rights::default()
        };
        let (mode, unset) = set_id(rights, false);
        assert_eq!((mode, unset.set_ids), (0o755, true));
        assert_eq!(unset.told(), None);
    }

    #[test]
    fn capabilities_are_given_to_the_right_owner_only() {
        let rights = |no_special| Rights {
            is_root: true,
            no_special,
            no_owner: false,
        };
        let mut unset = Unset::default();
        assert!(unset.leaves_out(CAPABILITY, rights(false), false));
        assert!(!unset.leaves_out(CAPABILITY, rights(false), true));
        assert!(unset.leaves_out(b"trusted.a", rights(true), true));
        assert!(!unset.leaves_out(b"user.a", rights(true), false));
        assert_eq!(unset.privileged, 2);
    }
}
