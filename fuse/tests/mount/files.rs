//! Operations of programs on files, through the kernel and back.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use bkfs_fuse::{Access, MountConfig, MountOptions, Notifier, Ownership};

use crate::helpers::*;
use crate::memory::{MemoryFs, count};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[test]
fn bytes_written_are_read_back() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let data = pattern(5_000_000);
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 5_000_000);
    assert_eq!(metadata.blocks(), 9766);
    assert_eq!(metadata.mtime_nsec(), 123_456_789);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5_000_003);
    drop(file);
    mounted.end();
}

#[test]
fn requests_have_a_megabyte() {
    let mounted = Mounted::new();
    for name in ["cached", "direct"] {
        let mut file = File::create(mounted.path(name)).unwrap();
        file.write_all(&pattern(10 << 20)).unwrap();
        let largest = count(&mounted.memory.counters.largest_write);
        assert_eq!(largest, 1 << 20, "{name}");
        mounted
            .memory
            .counters
            .largest_write
            .store(0, std::sync::atomic::Ordering::SeqCst);
    }
    mounted.end();
}

#[test]
fn every_kind_of_file_can_be_made() {
    let mounted = Mounted::new();
    let fifo = c_string(&mounted.path("fifo"));
    let device = c_string(&mounted.path("device"));
    // SAFETY: NUL-terminated paths.
    unsafe {
        assert_eq!(libc::mkfifo(fifo.as_ptr(), 0o640), 0);
        let number = libc::makedev(300, 70_000);
        assert_eq!(
            libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o600, number),
            0
        );
    }
    let fifo = fs::symlink_metadata(mounted.path("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo());
    assert_eq!(fifo.permissions().mode() & 0o7777, 0o640 & !0o022);
    let device = fs::symlink_metadata(mounted.path("device")).unwrap();
    assert!(device.file_type().is_char_device());
    assert_eq!(device.rdev(), libc::makedev(300, 70_000));
    std::os::unix::fs::symlink("over/there", mounted.path("link")).unwrap();
    assert_eq!(
        fs::read_link(mounted.path("link")).unwrap(),
        Path::new("over/there")
    );
    drop(std::os::unix::net::UnixListener::bind(mounted.path("socket")).unwrap());
    let socket = fs::symlink_metadata(mounted.path("socket")).unwrap();
    assert!(socket.file_type().is_socket());
    fs::create_dir(mounted.path("directory")).unwrap();
    fs::write(mounted.path("directory/file"), b"x").unwrap();
    fs::hard_link(mounted.path("directory/file"), mounted.path("other")).unwrap();
    assert_eq!(fs::metadata(mounted.path("other")).unwrap().nlink(), 2);
    assert_eq!(
        errno(fs::remove_dir(mounted.path("directory"))),
        libc::ENOTEMPTY
    );
    let long = "n".repeat(256);
    assert_eq!(errno(File::create(mounted.path(&long))), libc::ENAMETOOLONG);
    mounted.end();
}

#[test]
fn times_are_exact_also_before_1970() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    for (seconds, nanoseconds) in [
        (0, 0),
        (1, 999_999_999),
        (-1, 0),
        (-1, 1),
        (-2, 800_000_000),
        (1 << 40, 5),
        (-(1 << 40), 5),
        (i64::MAX, 0),
        (i64::MAX - 1, 999_999_999),
    ] {
        set_times(&path, seconds, nanoseconds).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.mtime(), metadata.mtime_nsec()),
            (seconds, nanoseconds)
        );
        assert_eq!(
            (metadata.atime(), metadata.atime_nsec()),
            (seconds, nanoseconds)
        );
    }
    set_times(&path, 0, libc::UTIME_NOW).unwrap();
    assert!(fs::metadata(&path).unwrap().mtime() > 1_700_000_000);
    mounted.end();
}

#[test]
fn rename_replaces_exchanges_and_refuses() {
    let mounted = Mounted::new();
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    assert_eq!(
        errno(rename_with(&a, &b, libc::RENAME_NOREPLACE)),
        libc::EEXIST
    );
    rename_with(&a, &b, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"b");
    assert_eq!(fs::read(&b).unwrap(), b"a");
    assert_eq!(
        errno(rename_with(&a, &b, libc::RENAME_WHITEOUT)),
        libc::EINVAL
    );
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
    mounted.end();
}

#[test]
fn an_unlinked_open_file_lives_on() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"still here").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(file);
    eventually("the inode is forgotten", || mounted.memory.inodes() == 1);
    mounted.end();
}

#[test]
fn shared_mappings_work_cached_and_direct() {
    let mounted = Mounted::new();
    assert!(mounted.session.granted().direct_io_mmap);
    for name in ["cached", "direct"] {
        let path = mounted.path(name);
        fs::write(&path, pattern(10_000)).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        // SAFETY: maps 10,000 bytes of an open file and uses no byte beyond them.
        unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                10_000,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(address, libc::MAP_FAILED, "{name}");
            let bytes = std::slice::from_raw_parts_mut(address.cast::<u8>(), 10_000);
            assert_eq!(bytes[9_999], (9_999 % 251) as u8);
            bytes[9_999] = 255;
            assert_eq!(libc::msync(address, 10_000, libc::MS_SYNC), 0);
            assert_eq!(libc::munmap(address, 10_000), 0);
        }
        let mut last = [0];
        file.read_exact_at(&mut last, 9_999).unwrap();
        assert_eq!(last, [255], "{name}");
        assert_eq!(file.metadata().unwrap().len(), 10_000, "{name}");
    }
    mounted.end();
}

#[test]
fn o_direct_passes_aligned_bytes_through() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let mut space = vec![0_u8; 3 << 20];
    let skew = space.as_ptr().align_offset(4096);
    let buffer = &mut space[skew..skew + (2 << 20)];
    buffer.copy_from_slice(&pattern(2 << 20));
    file.write_all_at(buffer, 4096).unwrap();
    buffer.fill(0);
    file.read_exact_at(buffer, 4096).unwrap();
    assert_eq!(buffer, pattern(2 << 20));
    drop(file);
    mounted.end();
}

#[test]
fn xattrs_follow_the_dialogue_about_sizes() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    let large = pattern(65_536);
    for value in [b"".as_slice(), b"small", &large] {
        set_xattr(&path, "user.key", value, 0).unwrap();
        assert_eq!(
            get_xattr(&path, "user.key", &mut []).unwrap(),
            value.len() as u64
        );
        let mut buffer = vec![0; 65_536];
        let length = get_xattr(&path, "user.key", &mut buffer).unwrap() as usize;
        assert_eq!(&buffer[..length], value);
        if value.len() > 1 {
            let mut short = vec![0; value.len() - 1];
            assert_eq!(
                errno(get_xattr(&path, "user.key", &mut short)),
                libc::ERANGE
            );
        }
    }
    assert_eq!(
        errno(set_xattr(&path, "user.key", b"", libc::XATTR_CREATE)),
        libc::EEXIST
    );
    assert_eq!(
        errno(set_xattr(&path, "user.new", b"", libc::XATTR_REPLACE)),
        libc::ENODATA
    );
    set_xattr(&path, "trusted.other", b"1", libc::XATTR_CREATE).unwrap();
    let mut names = [0; 100];
    let length = list_xattr(&path, &mut names).unwrap() as usize;
    assert_eq!(&names[..length], b"trusted.other\0user.key\0");
    assert_eq!(list_xattr(&path, &mut []).unwrap(), length as u64);
    assert_eq!(errno(list_xattr(&path, &mut [0; 3])), libc::ERANGE);
    remove_xattr(&path, "user.key").unwrap();
    assert_eq!(errno(remove_xattr(&path, "user.key")), libc::ENODATA);
    mounted.end();
}

#[test]
fn access_control_lists_are_refused_cleanly() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"").unwrap();
    // Version 2, and the three entries that every mode has.
    let entry = |tag: u16, rights: u16| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(rights.to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
        bytes
    };
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6),
        entry(4, 4),
        entry(32, 4),
    ]
    .concat();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        let target = if name.ends_with("default") {
            mounted.directory.path()
        } else {
            &path
        };
        assert_eq!(errno(set_xattr(target, name, &list, 0)), libc::EOPNOTSUPP);
        assert_eq!(errno(get_xattr(target, name, &mut [])), libc::EOPNOTSUPP);
    }
    mounted.end();
}

#[test]
fn ranges_are_allocated_punched_sought_and_copied() {
    let mounted = Mounted::new();
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(mounted.path(name))
            .unwrap()
    };
    let file = open("file");
    file.write_all_at(&pattern(40_960), 0).unwrap();
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | keep, 8_192, 8_192).unwrap();
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 36_864, 8_192).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 45_056);
    fallocate(&file, keep, 0, 1 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 45_056);
    assert_eq!(
        errno(fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)),
        libc::EOPNOTSUPP
    );
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 8_192);
    assert_eq!(seek(&file, 8_192, libc::SEEK_DATA).unwrap(), 16_384);
    assert_eq!(errno(seek(&file, 45_056, libc::SEEK_DATA)), libc::ENXIO);
    let mut bytes = vec![1; 8_192];
    file.read_exact_at(&mut bytes, 8_192).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    let copy = open("copy");
    assert_eq!(copy_range(&file, 100, &copy, 1_000, 5_000).unwrap(), 5_000);
    let mut bytes = vec![0; 5_000];
    copy.read_exact_at(&mut bytes, 1_000).unwrap();
    assert_eq!(bytes, pattern(45_056)[100..5_100]);
    drop((file, copy));
    mounted.end();
}

#[test]
fn truncation_comes_after_the_open() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"long contents").unwrap();
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    let counters = &mounted.memory.counters;
    assert_eq!(count(&counters.truncating_opens), 0);
    assert_eq!(count(&counters.truncating_setattrs), 1);
    mounted.end();
}

/// The kernel knows whether a program is running only after it has sent the open request.
#[test]
fn a_running_program_is_not_truncated() {
    let mounted = Mounted::new();
    let path = mounted.path("program");
    let mut running = while_no_program_runs(|| {
        fs::copy("/bin/sleep", &path).unwrap();
        Command::new(&path).arg("60").spawn().unwrap()
    });
    let truncating = libc::O_RDONLY | libc::O_TRUNC;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(truncating)
        .open(&path);
    let is_running = running.try_wait().unwrap().is_none();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(errno(opened), libc::ETXTBSY);
    assert!(is_running);
    assert_eq!(fs::read(&path).unwrap(), fs::read("/bin/sleep").unwrap());
    mounted.end();
}

#[test]
fn set_user_id_goes_when_others_write() {
    let mounted = Mounted::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("cached", |path| fs::write(path, b"x").unwrap()),
        ("direct", |path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(b"x", 0).unwrap();
        }),
        ("truncated", |path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(1).unwrap();
        }),
        ("opened", |path| drop(File::create(path).unwrap())),
    ];
    for (name, change) in changes {
        let path = mounted.path(name);
        fs::write(&path, b"program").unwrap();
        let bits = fs::Permissions::from_mode(0o6777);
        fs::set_permissions(&path, bits.clone()).unwrap();
        change(&path);
        assert_eq!(mode(&path), 0o6777, "{name}: root keeps them");
        as_user(|| change(&path));
        assert_eq!(mode(&path), 0o777, "{name}: others do not");
        fs::set_permissions(&path, bits).unwrap();
        std::os::unix::fs::chown(&path, Some(5), Some(6)).unwrap();
        assert_eq!(mode(&path), 0o777, "{name}: a new owner clears them");
    }
    mounted.end();
}

#[test]
fn writing_does_not_ask_for_capabilities_each_time() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("file")).unwrap();
    for _ in 0..100 {
        file.write_all(b"x").unwrap();
    }
    // At most once, for the first write; then the kernel has the answer cached.
    assert!(count(&mounted.memory.counters.getxattrs) <= 1);
    drop(file);
    mounted.end();
}

#[test]
fn ownership_options_are_shown_and_enforced() {
    let mut config = config();
    config.options.ownership = Ownership {
        uid: Some(1000),
        gid: Some(77),
        umask: Some(0o077),
    };
    let mounted = Mounted::with(config);
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1000, 77));
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!(as_user(|| fs::read(&path).unwrap()), b"x");
    mounted.end();
}

#[test]
fn permissions_are_checked_by_the_kernel() {
    let mounted = Mounted::new();
    let path = mounted.path("secret");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(errno(as_user(|| fs::read(&path))), libc::EACCES);
    assert_eq!(
        errno(as_user(|| File::create(mounted.path("new")))),
        libc::EACCES
    );
    mounted.end();
}

#[test]
fn others_are_kept_out_unless_let_in() {
    for (access, may) in [
        (Access::Owner, false),
        (Access::OwnerAndRoot, false),
        (Access::Everyone, true),
    ] {
        let mut config = config();
        config.options.access = access;
        let mounted = Mounted::with(config);
        fs::write(mounted.path("file"), b"x").unwrap();
        let seen = as_user(|| fs::read(mounted.path("file")));
        assert_eq!(seen.is_ok(), may, "{access:?}: {seen:?}");
        mounted.end();
    }
}

#[test]
fn locks_are_kept_by_the_kernel() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    let first = File::create(&path).unwrap();
    let second = File::open(&path).unwrap();
    first.try_lock().unwrap();
    assert!(second.try_lock().is_err());
    first.unlock().unwrap();
    second.try_lock().unwrap();
    drop((first, second));
    mounted.end();
}

#[test]
fn caches_hold_until_they_are_invalidated() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"before").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"before");
    let ino = mounted.memory.replace_contents(b"file", b"behind");
    assert_eq!(
        fs::read(&path).unwrap(),
        b"before",
        "cached for ten minutes"
    );
    let notifier: Notifier = mounted.session.notifier();
    notifier.invalidate_inode(ino, 0, 0);
    assert_eq!(fs::read(&path).unwrap(), b"behind");

    let absent = mounted.path("absent");
    let lookups = |memory: &MemoryFs| count(&memory.counters.lookups);
    assert!(!absent.exists());
    let before = lookups(&mounted.memory);
    assert!(!absent.exists());
    assert_eq!(lookups(&mounted.memory), before, "absence is cached");
    notifier.invalidate_name(bkfs_fuse::Ino::ROOT, b"absent");
    assert!(!absent.exists());
    assert_eq!(lookups(&mounted.memory), before + 1);
    fs::write(&absent, b"now").unwrap();
    assert!(absent.exists());
    mounted.end();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let options = MountOptions::parse(["ro,noexec"]).unwrap();
    let mounted = Mounted::with(MountConfig {
        options,
        ..MountConfig::new("test")
    });
    assert_eq!(errno(File::create(mounted.path("new"))), libc::EROFS);
    mounted.end();
}

#[test]
fn space_is_shown() {
    let mounted = Mounted::new();
    let path = c_string(mounted.directory.path());
    // SAFETY: a NUL-terminated path and room for the answer, which is plain numbers.
    let shown = unsafe {
        let mut shown: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(path.as_ptr(), &raw mut shown), 0);
        shown
    };
    assert_eq!((shown.f_bsize, shown.f_frsize), (65_536, 65_536));
    assert_eq!((shown.f_blocks, shown.f_bavail), (1 << 40, 1 << 38));
    assert_eq!((shown.f_files, shown.f_namemax), (1 << 48, 255));
    mounted.end();
}
