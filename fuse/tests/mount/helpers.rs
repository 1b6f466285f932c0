//! A mounted [`MemoryFs`] in a temporary directory, and system calls that std does not have.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bkfs_fuse::{Access, MountConfig, MountOptions, Session, mount};

use crate::memory::MemoryFs;

pub struct Mounted {
    pub memory: Arc<MemoryFs>,
    pub session: Session,
    // Declared after the session, which detaches first.
    pub directory: tempfile::TempDir,
}

impl Mounted {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: MountConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let memory = MemoryFs::new();
        let session = mount(memory.clone(), directory.path(), &config).unwrap_or_else(|error| {
            panic!("these tests mount for real, as root, with /dev/fuse: {error}")
        });
        Self {
            memory,
            session,
            directory,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Unmounts and waits; every test ends with it.
    pub fn end(self) {
        let unmounted = while_no_program_runs(|| self.session.unmount(false));
        unmounted.unwrap();
        self.session.wait().unwrap();
        assert_eq!(crate::memory::count(&self.memory.counters.destroyed), 1);
        assert_eq!(crate::memory::count(&self.memory.counters.forget_errors), 0);
    }
}

pub fn config() -> MountConfig {
    MountConfig {
        threads: Some(2),
        options: MountOptions {
            access: Access::Everyone,
            ..MountOptions::default()
        },
        ..MountConfig::new("test://bucket/with,comma and blank")
    }
}

/// A program that starts has copies of all open files of this process for a moment, of the files
/// on the mounts of other tests too. Such a mount is busy for that moment.
pub fn while_no_program_runs<T>(work: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Runs a program that must succeed.
pub fn succeed(command: &mut Command) {
    let status = while_no_program_runs(|| command.status()).unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Runs a program and returns what it said.
pub fn output(command: &mut Command) -> Output {
    while_no_program_runs(|| command.output()).unwrap()
}

/// Waits until `is_done`, for at most 20 s.
pub fn eventually(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn check(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

pub fn set_times(path: &Path, seconds: i64, nanoseconds: i64) -> io::Result<u64> {
    let time = libc::timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let path = c_string(path);
    // SAFETY: a NUL-terminated path and two times.
    check(i64::from(unsafe {
        libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [time; 2].as_ptr(), 0)
    }))
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<u64> {
    let (from, to) = (c_string(from), c_string(to));
    // SAFETY: two NUL-terminated paths.
    check(i64::from(unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            flags,
        )
    }))
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<u64> {
    let (path, name) = (c_string(path), CString::new(name).unwrap());
    // SAFETY: NUL-terminated strings and a value with its length.
    check(i64::from(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    }))
}

pub fn get_xattr(path: &Path, name: &str, buffer: &mut [u8]) -> io::Result<u64> {
    let (path, name) = (c_string(path), CString::new(name).unwrap());
    // SAFETY: NUL-terminated strings and a buffer with its length.
    check(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    } as i64)
}

pub fn list_xattr(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let path = c_string(path);
    // SAFETY: a NUL-terminated path and a buffer with its length.
    check(
        unsafe { libc::listxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) } as i64,
    )
}

pub fn remove_xattr(path: &Path, name: &str) -> io::Result<u64> {
    let (path, name) = (c_string(path), CString::new(name).unwrap());
    // SAFETY: NUL-terminated strings.
    check(i64::from(unsafe {
        libc::removexattr(path.as_ptr(), name.as_ptr())
    }))
}

pub fn fallocate(file: &File, mode: i32, offset: i64, length: i64) -> io::Result<u64> {
    // SAFETY: numbers only.
    check(i64::from(unsafe {
        libc::fallocate(file.as_raw_fd(), mode, offset, length)
    }))
}

pub fn seek(file: &File, offset: i64, whence: i32) -> io::Result<u64> {
    // SAFETY: numbers only.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

pub fn copy_range(
    from: &File,
    mut start: i64,
    to: &File,
    mut target: i64,
    length: usize,
) -> io::Result<u64> {
    // SAFETY: two open files and two offsets that the call may change.
    check(unsafe {
        libc::copy_file_range(
            from.as_raw_fd(),
            &raw mut start,
            to.as_raw_fd(),
            &raw mut target,
            length,
            0,
        )
    } as i64)
}

/// Runs `action` on a thread of user 1000, with none of root's capabilities.
pub fn as_user<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    const USER: libc::c_long = 1000;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the bare system calls, unlike the C library's functions, change this thread
            // only, which ends with the scope.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setresgid, USER, USER, USER), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, USER, USER, USER), 0);
            }
            action()
        });
        thread.join().unwrap()
    })
}
