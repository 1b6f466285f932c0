//! The life of a mount: made, served by threads, ended.
//!
//! Owns: mounting (as root by mount(2) under the type `fuse.bkfs`, otherwise through fusermount3),
//! the threads, read-ahead, waiting for the end, unmounting.
//! Does not own: signals, draining before an unmount (the program), which options there are, or why
//! mounting can fail (error).
//!
//! The library's own mounting is not used. As root it mounts the plain type `fuse` and drops the
//! subtype, so umount(8) would find no helper that drains first.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno as SystemError, retry_on_intr};
use rustix::mount::MountFlags as SystemFlags;
use thiserror::Error;
use tracing::{debug, error, info, warn};

use crate::adapter::Adapter;
use crate::error::MountError;
use crate::fusermount;
use crate::mountinfo::{self, FILE_SYSTEM_TYPE, MountInfo};
use crate::negotiate::{MAX_REQUEST_BYTES, Negotiation};
use crate::notifier::Notifier;
use crate::options::{Access, MountFlags, MountOptions};
use crate::own::{Before, OwnMount, unmount_as};
use crate::types::Granted;
use crate::utab;
use crate::vfs::Vfs;

const DEVICE: &str = "/dev/fuse";

/// Default of [`MountConfig::niceness`].
///
/// With this value, and one thread more than cores, fewer requests are answered on another core
/// than the caller's. A wake-up of another core is expensive (both measured: PERFORMANCE.md, "Small
/// files"). The kernel derives the priority of disk requests from the niceness in steps of 5, so
/// the priority stays the same.
const NICENESS: i32 = 2;

/// Configuration of a mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// Source that /proc/mounts shows: the URL of the repository, without secrets.
    pub source: String,
    /// Mount options; [`MountOptions::others`] is ignored.
    pub options: MountOptions,
    /// Number of threads that read requests, at least 2. `None`: one more than cores, so that one
    /// thread is ready for the next request while another still returns from its last answer.
    pub threads: Option<usize>,
    /// Niceness of these threads, relative to the thread that mounts.
    pub niceness: i32,
    /// Bytes that the kernel reads ahead of a sequential reader through the page cache. Only root
    /// can set this; otherwise it stays at the kernel's 128 KiB.
    pub read_ahead_bytes: u64,
    /// Largest number of background requests in flight (read-ahead, direct I/O in pieces).
    pub max_background: u16,
}

impl MountConfig {
    /// Returns the default configuration for a source.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            options: MountOptions::default(),
            threads: None,
            niceness: NICENESS,
            read_ahead_bytes: 4 << 20,
            max_background: 64,
        }
    }

    fn thread_count(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.unwrap_or_else(|| cores() + 1).max(2)
    }
}

/// A mount that is served. Dropping it detaches the mount.
pub struct Session {
    own: OwnMount,
    granted: Granted,
    notifier: Notifier,
    ending: Arc<Ending>,
}

struct Ending {
    /// The device while it is served. The connection lasts as long as any descriptor of it is open.
    connection: Mutex<Option<OwnedFd>>,
    result: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
}

impl Ending {
    fn of(connection: &OwnedFd) -> io::Result<Self> {
        Ok(Self {
            connection: Mutex::new(Some(connection.try_clone()?)),
            result: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Returns true while the mount is served, in the tree or detached. The end of the mount cuts
    /// the connection; only then can another mount get its device number. An abort cuts the
    /// connection too; the mount that it leaves in the tree is unmounted by its path.
    fn is_connected(&self) -> bool {
        let connection = self.connection.lock();
        let Some(device) = connection.as_ref() else {
            return false;
        };
        let mut polled = [PollFd::new(device, PollFlags::empty())];
        let now = Timespec::default();
        // Signals request an unmount; an interrupted poll must not count as the end of the mount.
        let events = retry_on_intr(|| poll(&mut polled, Some(&now)));
        events == Ok(0)
    }
}

/// The event loops ended without an unmount.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the connection to the kernel broke: {0}")]
pub struct SessionError(String);

/// Mounts `vfs` at `mount_point` and serves it from threads of its own. When this returns, the INIT
/// exchange is done, [`Vfs::init`] has succeeded, and requests are answered.
///
/// # Errors
/// [`MountError::Absent`], [`MountError::NotADirectory`], [`MountError::AlreadyMounted`] or
/// [`MountError::Disconnected`] if the mount point cannot be used. [`MountError::NoDevice`],
/// [`MountError::NotPermitted`], [`MountError::Busy`], [`MountError::NoHelper`] or
/// [`MountError::Helper`] if mounting is refused. [`MountError::NotMounted`] if the new mount is
/// already gone. [`MountError::Start`] if [`Vfs::init`] or the INIT exchange fails.
/// [`MountError::Io`] for other errors. After an error nothing stays mounted, unless another mount
/// was made over it meanwhile.
pub fn mount(
    vfs: Arc<dyn Vfs>,
    mount_point: &Path,
    config: &MountConfig,
) -> Result<Session, MountError> {
    let mount_point = check_mount_point(mount_point)?;
    let is_direct = rustix::process::geteuid().is_root();
    let before = Before::now(&mount_point);
    let connection = if is_direct {
        mount_directly(&mount_point, config)?
    } else {
        fusermount::mount(&mount_point, &helper_options(config))?
    };
    let own = match before.made_since(is_direct) {
        Ok(made) => made,
        Err(error) => {
            // The top mount there is not known; it was made a moment ago.
            let _ = unmount_as(&mount_point, true, is_direct);
            return Err(MountError::io("reading the mount table")(error));
        }
    };
    let own = own.ok_or_else(|| MountError::NotMounted(mount_point.clone()))?;
    let left = mount_point.clone();
    let at_end = move || {
        // The entry of another mount that has taken the place stays.
        if is_direct && !topmost(&left).is_some_and(|mount| mount.is_bkfs()) {
            utab::leave(&left);
        }
    };
    let started = start(vfs, connection, config, at_end).map_err(|error| {
        // The caller gets the error of the start, not that of the unmount.
        if let Err(left) = own.unmount(true, || true) {
            warn!(%left, "what was mounted is not served, and stays");
        }
        MountError::Start(error)
    })?;
    if is_direct {
        raise_read_ahead(own.device, config.read_ahead_bytes);
        utab::enter(&config.source, &mount_point);
    }
    info!(mount_point = %mount_point.display(), source = config.source, "mounted");
    Ok(Session {
        own,
        granted: started.granted,
        notifier: started.notifier,
        ending: started.ending,
    })
}

/// Resolves a mount point, and refuses paths that cannot be one.
fn check_mount_point(mount_point: &Path) -> Result<PathBuf, MountError> {
    let absent = || MountError::Absent(mount_point.to_owned());
    if let Ok(named) = mountinfo::resolve_parent(mount_point)
        && let Some(mounted) = topmost(&named)
        && mounted.is_bkfs()
    {
        return Err(match std::fs::metadata(&named) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                MountError::Disconnected(named)
            }
            _ => already_mounted(named, &mounted),
        });
    }
    let resolved = match std::fs::canonicalize(mount_point) {
        Ok(resolved) => resolved,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOENT) => absent(),
                Some(libc::ENOTDIR) => MountError::NotADirectory(mount_point.to_owned()),
                Some(libc::ENOTCONN) => MountError::Disconnected(mount_point.to_owned()),
                _ => MountError::io("looking at the mount point")(error),
            });
        }
    };
    let metadata = std::fs::metadata(&resolved).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => absent(),
        Some(libc::ENOTCONN) => MountError::Disconnected(resolved.clone()),
        _ => MountError::io("looking at the mount point")(error),
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(resolved));
    }
    match topmost(&resolved) {
        Some(mounted) if mounted.is_bkfs() => Err(already_mounted(resolved, &mounted)),
        _ => Ok(resolved),
    }
}

fn already_mounted(mount_point: PathBuf, mounted: &MountInfo) -> MountError {
    MountError::AlreadyMounted {
        mount_point,
        mounted: mounted.source.to_string_lossy().into_owned(),
    }
}

/// Returns the top mount on exactly this path.
fn topmost(mount_point: &Path) -> Option<MountInfo> {
    mountinfo::mounts()
        .ok()?
        .into_iter()
        .rfind(|mount| mount.mount_point == mount_point)
}

/// Opens a new, unconnected FUSE device.
fn open_device() -> io::Result<OwnedFd> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(DEVICE)
        .map(OwnedFd::from)
}

fn mount_directly(mount_point: &Path, config: &MountConfig) -> Result<OwnedFd, MountError> {
    let device = open_device().map_err(MountError::NoDevice)?;
    let data = CString::new(kernel_data(&device, &config.options))
        .map_err(MountError::io("preparing mount options"))?;
    let flags = system_flags(config.options.flags);
    match rustix::mount::mount(
        config.source.as_str(),
        mount_point,
        FILE_SYSTEM_TYPE,
        flags,
        data.as_c_str(),
    ) {
        Ok(()) => Ok(device),
        Err(SystemError::PERM | SystemError::ACCESS) => {
            Err(MountError::NotPermitted(mount_point.to_owned()))
        }
        Err(SystemError::BUSY) => Err(MountError::Busy(mount_point.to_owned())),
        Err(SystemError::NODEV) => Err(MountError::NoDevice(SystemError::NODEV.into())),
        Err(error) => Err(MountError::io("mount(2)")(error)),
    }
}

/// Returns the mount options that FUSE itself reads.
fn kernel_data(device: &OwnedFd, options: &MountOptions) -> String {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={MAX_REQUEST_BYTES}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.access != Access::Owner {
        data.push_str(",allow_other");
    }
    for label in &options.security {
        data.push(',');
        data.push_str(label);
    }
    data
}

fn system_flags(flags: MountFlags) -> SystemFlags {
    [
        (flags.read_only, SystemFlags::RDONLY),
        (flags.nosuid, SystemFlags::NOSUID),
        (flags.nodev, SystemFlags::NODEV),
        (flags.noexec, SystemFlags::NOEXEC),
        (flags.synchronous, SystemFlags::SYNCHRONOUS),
        (flags.dirsync, SystemFlags::DIRSYNC),
        (flags.noatime, SystemFlags::NOATIME),
        (flags.nodiratime, SystemFlags::NODIRATIME),
        (flags.relatime, SystemFlags::RELATIME),
        (flags.strictatime, SystemFlags::STRICTATIME),
        (flags.lazytime, SystemFlags::LAZYTIME),
        (flags.nosymfollow, SystemFlags::NOSYMFOLLOW),
        (flags.silent, SystemFlags::SILENT),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .fold(SystemFlags::empty(), |flags, (_, flag)| flags | flag)
}

/// Returns the option string for fusermount3, which adds `nosuid,nodev` for users by itself.
fn helper_options(config: &MountConfig) -> String {
    let flags = config.options.flags;
    let source = fusermount::escape(&config.source);
    let mut options =
        format!("fsname={source},subtype=bkfs,default_permissions,max_read={MAX_REQUEST_BYTES}");
    for (set, option) in [
        (config.options.access != Access::Owner, ",allow_other"),
        (flags.read_only, ",ro"),
        (flags.noexec, ",noexec"),
        (flags.synchronous, ",sync"),
        (flags.dirsync, ",dirsync"),
        (flags.noatime, ",noatime"),
    ] {
        if set {
            options.push_str(option);
        }
    }
    options
}

struct Started {
    granted: Granted,
    notifier: Notifier,
    ending: Arc<Ending>,
}

/// Does the INIT exchange and starts the threads. The last thread calls `at_end`.
fn start(
    vfs: Arc<dyn Vfs>,
    connection: OwnedFd,
    config: &MountConfig,
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<Started> {
    let granted = Arc::new(OnceLock::new());
    let negotiation = Negotiation {
        max_background: config.max_background,
        has_set_id: !config.options.flags.nosuid,
        granted: granted.clone(),
    };
    let adapter = Adapter::new(vfs, config.options.ownership, negotiation);
    // The kernel checks who may use the mount, but has no mode for "owner and root".
    let access = match config.options.access {
        Access::OwnerAndRoot => fuser::SessionACL::RootAndOwner,
        Access::Owner | Access::Everyone => fuser::SessionACL::All,
    };
    let mut threads = fuser::Config::default();
    threads.n_threads = Some(config.thread_count());
    // Each thread has a queue of its own. If the library loses a thread, the queue closes, and the
    // kernel answers the request that this thread was handling.
    threads.clone_fd = true;
    let ending = Arc::new(Ending::of(&connection)?);
    let session = fuser::Session::from_fd(adapter, connection, access, threads)?;
    let granted = *granted
        .get()
        .ok_or_else(|| io::Error::other("the kernel was not greeted"))?;
    let notifier = Notifier::new(session.notifier());
    let (supervisor, closing) = (ending.clone(), notifier.clone());
    let niceness = config.niceness;
    thread::Builder::new()
        .name("bkfs-fuse".to_owned())
        .spawn(move || {
            // This thread starts the threads of the session; they inherit its niceness.
            if let Err(error) = rustix::process::nice(niceness) {
                debug!(%error, "the threads that answer stay as they are");
            }
            let result = without_the_race_at_the_end(session.run());
            if let Err(error) = &result {
                error!(%error, "the mount is no longer served");
            }
            // Before the end is announced, no request may wait on a connection without threads.
            closing.close();
            supervisor.connection.lock().take();
            at_end();
            *supervisor.result.lock() = Some(result.map_err(|error| error.to_string()));
            supervisor.changed.notify_all();
        })?;
    Ok(Started {
        granted,
        notifier,
        ending,
    })
}

/// Turns a race at the end of a mount into success. The kernel closes a connection with ENODEV. A
/// thread that is just taking a request from the queue (such as the last file's release) gets
/// ECONNABORTED instead; that is the same end. Aborts by an administrator also read as ENODEV,
/// because ABORT_ERROR is not requested.
fn without_the_race_at_the_end(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        other => other,
    }
}

/// Raises the kernel's read-ahead above its 128 KiB. A failure is only logged.
fn raise_read_ahead((major, minor): (u32, u32), bytes: u64) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match std::fs::write(&path, (bytes / 1024).to_string()) {
        Ok(()) => debug!(path, bytes, "raised read-ahead"),
        Err(error) => info!(path, %error, "read-ahead stays at the kernel's default"),
    }
}

/// Unmounts the top mount at `mount_point`, as root or through fusermount3. This is only the system
/// call: a filesystem that must drain does so before. `lazy` detaches the mount even while it is in
/// use.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::NotMounted`]; [`MountError::NotPermitted`],
/// [`MountError::NoHelper`], [`MountError::Helper`] and [`MountError::Io`] if the system or the
/// helper refuses.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_as(mount_point, lazy, rustix::process::geteuid().is_root())
}

/// Marks this thread, and all threads that it starts later, as writers of dirty pages
/// (`PR_SET_IO_FLUSHER`). When memory is short, such a thread does not wait for its own mount to
/// write dirty pages back. Call this before any thread is started.
///
/// # Errors
/// The error of prctl(2): it needs CAP_SYS_RESOURCE and Linux 5.6. The mount also works without it,
/// at the risk of waiting for itself when memory is short.
pub fn become_io_flusher() -> io::Result<()> {
    rustix::process::configure_io_flusher_behavior(true).map_err(io::Error::from)
}

impl Session {
    /// Returns the path at which it is mounted, resolved.
    pub fn mount_point(&self) -> &Path {
        &self.own.mount_point
    }

    /// Returns what the kernel granted.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Returns the notifier, which tells the kernel about changes that did not come through it.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Waits until the mount is gone, [`Vfs::destroy`] has returned, and no thread is left. Replies
    /// that are still held may be answered afterwards; the answers are dropped.
    ///
    /// # Errors
    /// [`SessionError`] if the event loops ended for another reason than an unmount. The mount then
    /// answers "transport endpoint is not connected".
    pub fn wait(&self) -> Result<(), SessionError> {
        let mut result = self.ending.result.lock();
        loop {
            match &*result {
                Some(end) => return end.clone().map_err(SessionError),
                None => self.ending.changed.wait(&mut result),
            }
        }
    }

    /// Waits like [`wait`](Self::wait), but no longer than `limit`. Returns `None` if it is still
    /// mounted then, and otherwise the result of [`wait`](Self::wait).
    pub fn wait_for(&self, limit: Duration) -> Option<Result<(), SessionError>> {
        let mut result = self.ending.result.lock();
        if result.is_none() {
            self.ending
                .changed
                .wait_while_for(&mut result, |result| result.is_none(), limit);
        }
        result.clone().map(|end| end.map_err(SessionError))
    }

    /// Unmounts; call [`wait`](Self::wait) afterwards. Removes only the mount that this session
    /// made, identified by its mount id, even if it has been moved. A bind mount of it, a copy in
    /// another mount namespace, and mounts over it or within it stay. `lazy` detaches it even while
    /// it is in use: it disappears from the tree, and ends when the last file is closed.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`];
    /// [`MountError::NotPermitted`], [`MountError::NoHelper`], [`MountError::Helper`] and
    /// [`MountError::Io`] if the system or the helper refuses.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.own.unmount(lazy, || self.ending.is_connected())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.ending.result.lock().is_none()
            && let Err(error) = self.unmount(true)
            && !matches!(error, MountError::NotMounted(_))
        {
            warn!(%error, "the mount could not be detached");
        }
    }
}
