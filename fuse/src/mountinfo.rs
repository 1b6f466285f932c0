//! The table of mounts.
//!
//! Owns: reading /proc/PID/mountinfo; finding the mount of a path without asking a filesystem that
//! might not answer; the places where one filesystem is mounted.
//! Does not own: making or ending mounts (session).

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type under which bkfs is mounted, as /proc/mounts shows it.
pub const FILE_SYSTEM_TYPE: &str = "fuse.bkfs";

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Id of the mount, unique among the mounts that exist now.
    pub mount_id: u64,
    /// Id of the mount that this one is mounted in.
    pub parent_id: u64,
    /// Device number of the filesystem, `(major, minor)`.
    pub device: (u32, u32),
    /// The directory inside the filesystem that is mounted; `/` unless this is a bind mount.
    pub root: PathBuf,
    /// Path at which it is mounted.
    pub mount_point: PathBuf,
    /// Options of this mount, such as `rw,nosuid`.
    pub mount_options: String,
    /// Type of the filesystem, with its subtype.
    pub file_system: String,
    /// Source of the mount; for bkfs the URL of the repository.
    pub source: OsString,
    /// Options of the filesystem.
    pub super_options: String,
}

impl MountInfo {
    /// Returns true if this is a bkfs mount.
    pub fn is_bkfs(&self) -> bool {
        self.file_system == FILE_SYSTEM_TYPE
    }

    /// Returns true if both are mounts of one filesystem. The device number alone does not prove
    /// it: the kernel reuses the number as soon as a filesystem is gone.
    fn shows_the_same(&self, other: &MountInfo) -> bool {
        self.device == other.device
            && self.file_system == other.file_system
            && self.source == other.source
    }
}

/// Returns all mounts of this process's namespace, in the order of the table. Of several on one
/// mount point, the last is on top.
///
/// # Errors
/// The I/O error of reading /proc/self/mountinfo.
pub fn mounts() -> io::Result<Vec<MountInfo>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns true if unmounting at the mount point of `mount` removes this mount and no other.
/// umount(2) removes the top mount there; a lazy one removes all mounts within it as well.
pub(crate) fn is_alone(mounts: &[MountInfo], mount: &MountInfo) -> bool {
    let mut there = mounts.iter();
    let top = there.rfind(|other| other.mount_point == mount.mount_point);
    top.is_some_and(|top| top.mount_id == mount.mount_id)
        && !mounts.iter().any(|other| other.parent_id == mount.mount_id)
}

/// Returns the mount that `path` lies in.
///
/// The path may be a mount point or any path below it. A mount point is recognised by its name
/// first, so this does not wait for a filesystem that no longer answers.
///
/// # Errors
/// The I/O error of reading /proc/self/mountinfo, or of resolving the path.
pub fn find_mount(path: &Path) -> io::Result<Option<MountInfo>> {
    let mounts = mounts()?;
    if let Ok(named) = resolve_parent(path)
        && let Some(mount) = mounts.iter().rfind(|mount| mount.mount_point == named)
    {
        return Ok(Some(mount.clone()));
    }
    let path = std::fs::canonicalize(path)?;
    Ok(containing(&mounts, &path).cloned())
}

/// A place where a filesystem is mounted, in one mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Lowest process id in that mount namespace.
    pub process: u32,
    /// Path at which it is mounted, in that namespace.
    pub mount_point: PathBuf,
}

/// Returns every place where the filesystem of this mount is mounted, in the mount namespaces of
/// all processes that the caller may inspect. These include bind mounts, and copies that a
/// container or `unshare` made.
///
/// # Errors
/// The I/O error of listing /proc.
pub fn places_of(mounted: &MountInfo) -> io::Result<Vec<MountEntry>> {
    let mut processes: Vec<u32> = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    processes.sort_unstable();
    let mut seen = HashSet::new();
    let mut places = Vec::new();
    for process in processes {
        let about = PathBuf::from(format!("/proc/{process}"));
        // Skips processes that have ended meanwhile or belong to another user.
        let Ok(namespace) = std::fs::read_link(about.join("ns/mnt")) else {
            continue;
        };
        if seen.contains(&namespace) {
            continue;
        }
        let Ok(table) = std::fs::read(about.join("mountinfo")) else {
            continue;
        };
        seen.insert(namespace);
        let there = parse(&table).into_iter();
        places.extend(
            there
                .filter(|mount| mount.shows_the_same(mounted))
                .map(|mount| MountEntry {
                    process,
                    mount_point: mount.mount_point,
                }),
        );
    }
    Ok(places)
}

/// Returns the path with all components but the last resolved. The last may be a mount point whose
/// filesystem does not answer.
pub(crate) fn resolve_parent(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            Ok(std::fs::canonicalize(parent)?.join(name))
        }
        _ => std::fs::canonicalize(path),
    }
}

/// Returns the mount of a resolved path: the one with the longest mount point, and of equals the
/// last.
fn containing<'a>(mounts: &'a [MountInfo], path: &Path) -> Option<&'a MountInfo> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.as_os_str().len())
}

/// Parses the table; skips lines that it cannot parse.
fn parse(table: &[u8]) -> Vec<MountInfo> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mount_id = text(fields.next()?)?.parse().ok()?;
    let parent_id = text(fields.next()?)?.parse().ok()?;
    let (major, minor) = text(fields.next()?)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let root = PathBuf::from(unescape(fields.next()?));
    let mount_point = PathBuf::from(unescape(fields.next()?));
    let mount_options = text(fields.next()?)?.to_owned();
    // Any number of optional fields, ended by a hyphen.
    fields.by_ref().find(|&field| field == b"-")?;
    Some(MountInfo {
        mount_id,
        parent_id,
        device,
        root,
        mount_point,
        mount_options,
        file_system: unescape(fields.next()?).to_str()?.to_owned(),
        source: unescape(fields.next()?),
        super_options: unescape(fields.next()?).to_string_lossy().into_owned(),
    })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// Decodes the kernel's `\ooo` escapes of blanks, backslashes and the like.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match octal(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn octal(escape: &[u8]) -> Option<u8> {
    match *escape {
        [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
            Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
        }
        _ => None,
    }
}

/// Encodes a path as mountinfo does.
#[cfg(test)]
fn escape(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mut escaped = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\\' | b'#') {
            escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes());
        } else {
            escaped.push(byte);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /backup rw,nosuid,nodev shared:7 master:2 - fuse.bkfs s3://bucket/a\\040b rw,user_id=0
31 30 0:41 / /backup rw - fuse.bkfs file:///x rw
32 22 0:42 /sub /mnt/with\\040blank\\134 ro - tmpfs tmpfs rw
not a line
33 22 0:43 / /backups rw -
";

    #[test]
    fn lines_are_taken_apart() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].source, "s3://bucket/a b");
        assert_eq!(mounts[1].device, (0, 40));
        assert!(mounts[1].is_bkfs());
        assert_eq!(mounts[3].mount_point, Path::new("/mnt/with blank\\"));
        assert_eq!(mounts[3].root, Path::new("/sub"));
        assert!(!mounts[3].is_bkfs());
    }

    #[test]
    fn a_path_lies_in_the_topmost_of_the_longest() {
        let mounts = parse(TABLE);
        let id = |path: &str| containing(&mounts, Path::new(path)).map(|mount| mount.mount_id);
        assert_eq!(id("/backup"), Some(31));
        assert_eq!(id("/backup/.snapshots/x"), Some(31));
        assert_eq!(id("/backups/x"), Some(22), "a name that only begins alike");
        assert_eq!(id("/etc"), Some(22));
    }

    #[test]
    fn a_mount_below_or_around_another_is_not_alone() {
        let mounts = parse(TABLE);
        let alone = mounts.iter().filter(|mount| is_alone(&mounts, mount));
        let ids: Vec<u64> = alone.map(|mount| mount.mount_id).collect();
        assert_eq!(ids, [31, 32]);
    }

    #[test]
    fn the_root_is_found_for_real() {
        let mount = find_mount(Path::new("/")).unwrap().unwrap();
        assert_eq!(mount.mount_point, Path::new("/"));
        assert!(find_mount(Path::new("/no/such/path")).is_err());
        let proc = find_mount(Path::new("/proc/self/status")).unwrap().unwrap();
        assert_eq!(proc.file_system, "proc");
    }

    #[test]
    fn a_file_system_is_found_in_this_namespace_once() {
        let proc = find_mount(Path::new("/proc")).unwrap().unwrap();
        let places = places_of(&proc).unwrap();
        let here: Vec<_> = places
            .iter()
            .filter(|place| place.mount_point == proc.mount_point)
            .collect();
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let in_own = here.iter().filter(|place| {
            std::fs::read_link(format!("/proc/{}/ns/mnt", place.process)).ok() == Some(own.clone())
        });
        assert_eq!(in_own.count(), 1, "{places:?}");
        let later = MountInfo {
            source: "s3://another/one".into(),
            ..proc.clone()
        };
        assert_eq!(places_of(&later).unwrap(), [], "it has that number now");
        let other_type = MountInfo {
            file_system: FILE_SYSTEM_TYPE.into(),
            ..proc.clone()
        };
        assert_eq!(places_of(&other_type).unwrap(), []);
        let device = (0, u32::MAX);
        let gone = MountInfo { device, ..proc };
        assert_eq!(places_of(&gone).unwrap(), []);
    }

    proptest! {
        #[test]
        fn arbitrary_tables_never_panic(table: Vec<u8>) {
            let _ = parse(&table);
        }

        #[test]
        fn every_path_survives_escaping(path in prop::collection::vec(1_u8.., 1..50)) {
            let path = PathBuf::from(OsString::from_vec(path));
            prop_assert_eq!(unescape(&escape(&path)), path.into_os_string());
        }
    }
}
