//! How mounts begin and end.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bkfs_fuse::*;

use crate::helpers::*;
use crate::memory::{MemoryFs, count};

fn try_mount(path: &Path) -> MountError {
    match mount(MemoryFs::new(), path, &config()) {
        Ok(_) => panic!("mounted at {}", path.display()),
        Err(error) => error,
    }
}

#[test]
fn the_mount_table_names_source_and_type() {
    let mounted = Mounted::new();
    let info = find_mount(mounted.directory.path()).unwrap().unwrap();
    assert_eq!(info.file_system, "fuse.bkfs");
    assert_eq!(info.source, "test://bucket/with,comma and blank");
    assert!(info.is_bkfs());
    assert!(info.mount_options.contains("nosuid"));
    assert!(info.super_options.contains("default_permissions"));
    assert!(info.super_options.contains("allow_other"));
    fs::create_dir(mounted.path("below")).unwrap();
    assert_eq!(
        find_mount(&mounted.path("below")).unwrap(),
        Some(info.clone())
    );
    let read_ahead = format!(
        "/sys/class/bdi/{}:{}/read_ahead_kb",
        info.device.0, info.device.1
    );
    assert_eq!(fs::read_to_string(read_ahead).unwrap().trim(), "4096");
    let granted = mounted.session.granted();
    assert_eq!(*mounted.memory.granted.lock(), Some(granted));
    assert_eq!(granted.max_write_bytes, 1 << 20);
    assert!(granted.kill_privileges && granted.readdirplus);
    mounted.end();
}

#[test]
fn one_more_thread_than_cores_answers_and_they_are_nice() {
    let mounted = Mounted::with(MountConfig {
        threads: None,
        ..config()
    });
    let own = niceness(&format!("/proc/self/task/{}/stat", std::process::id())).unwrap();
    // Other tests mount at the same time, with two threads each.
    let cores = std::thread::available_parallelism().unwrap().get();
    eventually("the last thread", || {
        answering().contains_key(&format!("fuser-{cores}"))
    });
    assert!(!answering().contains_key(&format!("fuser-{}", cores + 1)));
    for (name, niceness) in answering() {
        assert_eq!(niceness, own + 2, "{name}");
    }
    mounted.end();
}

/// Returns the threads of this process that answer requests, with their niceness.
fn answering() -> HashMap<String, i32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| {
            // A thread of another test may end meanwhile.
            let path = task.ok()?.path();
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let name = name.trim().to_owned();
            let niceness = niceness(path.join("stat").to_str()?)?;
            name.starts_with("fuser-").then_some((name, niceness))
        })
        .collect()
}

/// Returns the niceness of the thread with this `stat`: field 19 of proc_pid_stat(5). The name is
/// field 2, in parentheses.
fn niceness(stat: &str) -> Option<i32> {
    let stat = fs::read_to_string(stat).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(16)?.parse().ok()
}

#[test]
fn impossible_mount_points_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    assert!(matches!(try_mount(&absent), MountError::Absent(path) if path == absent));
    let deeper = directory.path().join("absent/deeper");
    assert!(matches!(try_mount(&deeper), MountError::Absent(_)));
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(try_mount(&file), MountError::NotADirectory(_)));
    assert!(matches!(
        try_mount(&file.join("x")),
        MountError::NotADirectory(_)
    ));
}

#[test]
fn a_second_mount_on_the_same_place_is_refused() {
    let mounted = Mounted::new();
    let link = tempfile::tempdir().unwrap();
    let link = link.path().join("link");
    std::os::unix::fs::symlink(mounted.directory.path(), &link).unwrap();
    for path in [mounted.directory.path(), &link] {
        let error = try_mount(path);
        assert!(
            error
                .to_string()
                .ends_with("is already a mount of test://bucket/with,comma and blank"),
            "{error}"
        );
    }
    mounted.end();
}

#[test]
fn a_filesystem_that_refuses_to_start_leaves_no_mount() {
    let directory = tempfile::tempdir().unwrap();
    let memory = MemoryFs::new();
    *memory.refuses_to_start.lock() = Some(Errno::EPERM);
    let error = match mount(memory.clone(), directory.path(), &config()) {
        Ok(_) => panic!("mounted"),
        Err(error) => error,
    };
    assert!(
        matches!(&error, MountError::Start(source) if source.raw_os_error() == Some(libc::EPERM)),
        "{error}"
    );
    assert!(!find_mount(directory.path()).unwrap().unwrap().is_bkfs());
    assert_eq!(count(&memory.counters.destroyed), 0);
}

#[test]
fn a_busy_mount_is_not_unmounted_but_can_be_detached() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("file")).unwrap();
    assert!(matches!(
        mounted.session.unmount(false),
        Err(MountError::Busy(_))
    ));
    mounted.session.unmount(true).unwrap();
    assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 0);
    file.write_all(b"still served").unwrap();
    assert_eq!(mounted.session.wait_for(Duration::from_millis(50)), None);
    assert!(matches!(
        mounted.session.unmount(true),
        Err(MountError::NotMounted(_))
    ));
    drop(file);
    mounted.session.wait().unwrap();
    assert_eq!(count(&mounted.memory.counters.destroyed), 1);
}

/// The kernel sometimes closes the connection while a thread takes the last request. That must
/// count as a normal end.
#[test]
fn a_detached_mount_ends_without_an_error_however_its_end_is_timed() {
    for _ in 0..40 {
        let mounted = Mounted::new();
        let files: Vec<File> = (0..4)
            .map(|number| File::create(mounted.path(&number.to_string())).unwrap())
            .collect();
        mounted.session.unmount(true).unwrap();
        let closers: Vec<_> = files
            .into_iter()
            .map(|file| std::thread::spawn(move || drop(file)))
            .collect();
        mounted.session.wait().unwrap();
        for closer in closers {
            closer.join().unwrap();
        }
        assert_eq!(count(&mounted.memory.counters.destroyed), 1);
    }
}

#[test]
fn another_process_may_unmount() {
    let mounted = Mounted::new();
    unmount(mounted.directory.path(), false).unwrap();
    mounted.session.wait().unwrap();
    assert!(matches!(
        mounted.session.unmount(false),
        Err(MountError::NotMounted(_))
    ));
    assert!(matches!(
        unmount(mounted.directory.path(), false),
        Err(MountError::NotMounted(_))
    ));
}

/// Another process owns what is mounted over it while it starts.
#[test]
fn a_start_that_fails_unmounts_its_own_mount_only() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_owned();
    let memory = MemoryFs::new();
    *memory.refuses_to_start.lock() = Some(Errno::EPERM);
    let over = place.clone();
    *memory.at_start.lock() = Some(Box::new(move || {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("foreign", &over, "tmpfs", flags, None).unwrap();
    }));
    let mounted = mount(memory, &place, &config());
    assert!(matches!(mounted, Err(MountError::Start(_))));
    let on_top = find_mount(&place).unwrap().unwrap();
    assert_eq!(on_top.source, "foreign");
    unmount(&place, false).unwrap();
    unmount(&place, true).unwrap();
    assert!(!find_mount(&place).unwrap().unwrap().is_bkfs());
}

#[test]
fn what_is_mounted_over_it_stays() {
    let mounted = Mounted::new();
    let place = mounted.directory.path();
    succeed(
        Command::new("mount")
            .args(["-t", "tmpfs", "foreign"])
            .arg(place),
    );
    for lazy in [false, true] {
        assert!(matches!(
            mounted.session.unmount(lazy),
            Err(MountError::Covered(_))
        ));
    }
    let on_top = find_mount(place).unwrap().unwrap();
    assert_eq!(on_top.source, "foreign");
    succeed(Command::new("umount").arg(place));
    mounted.session.unmount(false).unwrap();
    mounted.session.wait().unwrap();
}

#[test]
fn a_bind_mount_of_it_stays() {
    let mounted = Mounted::new();
    let elsewhere = tempfile::tempdir().unwrap();
    succeed(
        Command::new("mount")
            .arg("--bind")
            .args([mounted.directory.path(), elsewhere.path()]),
    );
    mounted.session.unmount(false).unwrap();
    assert!(matches!(
        mounted.session.unmount(true),
        Err(MountError::NotMounted(_))
    ));
    let bound = find_mount(elsewhere.path()).unwrap().unwrap();
    assert!(bound.is_bkfs(), "{bound:?}");
    unmount(elsewhere.path(), false).unwrap();
    mounted.session.wait().unwrap();
}

/// The kernel gives the device number of a mount that is gone to the next one.
#[test]
fn a_session_that_is_over_leaves_the_mount_with_its_number_alone() {
    let over = Mounted::new();
    let number = device_of(&over);
    unmount(over.directory.path(), false).unwrap();
    over.session.wait().unwrap();
    let mut others = Vec::new();
    eventually("another mount has the number", || {
        others.push(Mounted::new());
        others.last().map(device_of) == Some(number)
    });
    assert!(matches!(
        over.session.unmount(false),
        Err(MountError::NotMounted(_))
    ));
    for other in others {
        let mount = find_mount(other.directory.path()).unwrap().unwrap();
        assert!(mount.is_bkfs(), "{mount:?}");
    }
}

fn device_of(mounted: &Mounted) -> (u32, u32) {
    find_mount(mounted.directory.path())
        .unwrap()
        .unwrap()
        .device
}

#[test]
fn dropping_the_session_detaches_the_mount() {
    let Mounted {
        session, directory, ..
    } = Mounted::new();
    drop(session);
    let info = find_mount(directory.path()).unwrap().unwrap();
    assert!(!info.is_bkfs());
}

#[test]
fn an_aborted_connection_ends_the_session() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("parked")).unwrap();
    let device = file.metadata().unwrap().dev();
    let control = format!("/sys/fs/fuse/connections/{}/abort", libc::minor(device));
    if !Path::new(&control).exists() {
        succeed(Command::new("mount").args([
            "-t",
            "fusectl",
            "fusectl",
            "/sys/fs/fuse/connections",
        ]));
    }
    let writer = std::thread::spawn(move || file.write_all(b"x"));
    eventually("the write waits", || mounted.memory.parked() == 1);
    fs::write(control, "1").unwrap();
    assert_eq!(errno(writer.join().unwrap()), libc::ECONNABORTED);
    mounted.session.wait().unwrap();
    // An answer after the end is dropped and does no harm.
    mounted.memory.release_parked();
    assert!(matches!(
        try_mount(mounted.directory.path()),
        MountError::Disconnected(_)
    ));
    let info = find_mount(mounted.directory.path()).unwrap().unwrap();
    assert!(info.is_bkfs(), "found although it does not answer");
    unmount(mounted.directory.path(), false).unwrap();
}

/// Holds the mount point for the process that has helpers of its own.
const WITH_HELPER: &str = "BKFS_TEST_MOUNT_WITH_HELPER";

/// An overlay over the directory of the helpers, and a libmount table of its own.
const WITH_HELPER_IN_NAMESPACE: &str = "
mount -t tmpfs tmpfs $1
mkdir $1/upper $1/work
mount -t overlay -o lowerdir=/sbin,upperdir=$1/upper,workdir=$1/work overlay /sbin
mount -t tmpfs tmpfs /run
printf '#!/bin/sh\\necho \"helper: $*\"\\numount -i \"$1\"\\n' >/sbin/umount.fuse.bkfs
chmod 755 /sbin/umount.fuse.bkfs
exec $2 --exact life::in_the_process_with_a_helper --nocapture
";

#[test]
fn umount_finds_its_helper() {
    let directory = tempfile::tempdir().unwrap();
    let layer = tempfile::tempdir().unwrap();
    let output = output(
        Command::new("unshare")
            .args(["--mount", "sh", "-euc", WITH_HELPER_IN_NAMESPACE])
            .args([
                Path::new("sh"),
                layer.path(),
                &std::env::current_exe().unwrap(),
            ])
            .env(WITH_HELPER, directory.path()),
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let called = format!("helper: {}\n", directory.path().display());
    assert!(text.contains(&called), "{text}");
    assert!(text.contains("no entry is left"), "{text}");
}

#[test]
fn in_the_process_with_a_helper() {
    let Some(directory) = std::env::var_os(WITH_HELPER) else {
        // The test above starts this one.
        return;
    };
    let directory = Path::new(&directory);
    for by_helper in [true, false] {
        let session = mount(MemoryFs::new(), directory, &config()).unwrap();
        if by_helper {
            succeed(Command::new("umount").arg(directory));
        } else {
            session.unmount(false).unwrap();
        }
        session.wait().unwrap();
        let entries = fs::read_to_string("/run/mount/utab").unwrap();
        assert_eq!(entries, "");
    }
    println!("no entry is left");
}

/// Holds the mount point for the process that mounts as an ordinary user.
const AS_USER: &str = "BKFS_TEST_MOUNT_AS_USER";

const IN_NAMESPACE: &str = "
mount -t tmpfs -o mode=755 tmpfs $1
mknod -m 666 $1/fuse c 10 229
mount --bind $1/fuse /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups $2 \\
    --exact life::in_the_process_of_an_ordinary_user --nocapture
";

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // A directory from which an ordinary user may start the program.
    let programs = tempfile::tempdir().unwrap();
    fs::set_permissions(programs.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = programs.path().join("mount-test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // In a mount namespace of its own, with a device that all users may open, as udev sets it up.
    let devices = tempfile::tempdir().unwrap();
    let output = output(
        Command::new("unshare")
            .args(["--mount", "sh", "-euc", IN_NAMESPACE])
            .args([Path::new("sh"), devices.path(), &program])
            .env(AS_USER, directory.path())
            .current_dir("/"),
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("served as an ordinary user"), "{text}");
}

#[test]
fn in_the_process_of_an_ordinary_user() {
    let Some(directory) = std::env::var_os(AS_USER) else {
        // The test above starts this one.
        return;
    };
    let directory = Path::new(&directory);
    let memory = MemoryFs::new();
    let mut config = MountConfig::new("test://bucket/with,comma and blank");
    config.options.ownership = Ownership {
        uid: Some(65_534),
        gid: Some(65_534),
        umask: None,
    };
    let session = mount(memory.clone(), directory, &config).unwrap();
    let info = find_mount(directory).unwrap().unwrap();
    assert_eq!(info.file_system, "fuse.bkfs");
    assert_eq!(info.source, "test://bucket/with,comma and blank");
    fs::write(directory.join("file"), b"by nobody").unwrap();
    let mut text = String::new();
    let mut file = File::open(directory.join("file")).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "by nobody");
    assert!(matches!(session.unmount(false), Err(MountError::Busy(_))));
    drop(file);
    session.unmount(false).unwrap();
    session.wait().unwrap();
    assert_eq!(count(&memory.counters.destroyed), 1);
    println!("served as an ordinary user");
}

#[test]
fn becoming_a_flusher_works_or_is_forbidden() {
    let result = std::thread::spawn(become_io_flusher).join().unwrap();
    if result.is_err() {
        assert_eq!(errno(result), libc::EPERM, "without CAP_SYS_RESOURCE");
    }
}
