//! A mount's life: made, served by threads, ended.
//!
//! Owns: mounting (as root by mount(2) under the type `fuse.bkfs`, otherwise through
//! fusermount3), the threads, read-ahead, waiting for the end, unmounting, and errors that say
//! what to do.
//! Does not own: signals, draining before an unmount (the program), or which options there are.
//!
//! The library's own mounting is not used: as root it mounts the plain type `fuse` and drops
//! the subtype, so that umount(8) would find no helper that drains first.

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

/// What [`MountConfig::niceness`] is unless said otherwise.
///
/// With it, and a thread more than cores, fewer requests are answered on another core than the one
/// that asks, which is dear (both measured: PERFORMANCE.md, "Small files"). The priority of their
/// disk requests, which the kernel derives in steps of five, stays the same.
const NICENESS: i32 = 2;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// What /proc/mounts shows as the source: the repository's URL, without secrets.
    pub source: String,
    /// Options; [`MountOptions::others`] is not looked at.
    pub options: MountOptions,
    /// Threads that read requests, at least 2. `None`: one more than cores, so that one is there
    /// for the next request while another has yet to return from its answer to the last.
    pub threads: Option<usize>,
    /// By how much these threads are nicer than the one that mounts.
    pub niceness: i32,
    /// How far the kernel reads ahead of a sequential reader through the page cache, in bytes
    /// (only root can set it; otherwise it stays at the kernel's 128 KiB).
    pub read_ahead_bytes: u64,
    /// How many background requests (read-ahead, direct I/O in pieces) may be in flight.
    pub max_background: u16,
}

impl MountConfig {
    /// The defaults for a source.
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

/// Why something is not mounted, or still is.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no /dev/fuse.
    #[error(
        "{DEVICE} cannot be opened: {0}; load the kernel's module with `modprobe fuse`, or pass the device into the container"
    )]
    NoDevice(#[source] io::Error),
    /// The kernel forbids this process to mount.
    #[error(
        "not permitted to mount at {0}: it takes CAP_SYS_ADMIN, or fusermount3 and a mount point of one's own"
    )]
    NotPermitted(PathBuf),
    /// There is no such mount point.
    #[error("mount point {0} does not exist")]
    Absent(PathBuf),
    /// The mount point is something else.
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// A bkfs is mounted there.
    #[error("{mount_point} is already a mount of {mounted}")]
    AlreadyMounted {
        /// Where.
        mount_point: PathBuf,
        /// Its source.
        mounted: String,
    },
    /// What is mounted there has lost its daemon.
    #[error("{0} is a mount whose daemon is gone: unmount it first")]
    Disconnected(PathBuf),
    /// The mount is in use.
    #[error("{0} is busy: a process has a file or its working directory there")]
    Busy(PathBuf),
    /// Another mount lies over it or within it, which would go with it.
    #[error("{0} stays mounted: something else is mounted over it or within it")]
    Covered(PathBuf),
    /// It is not mounted, or not any more.
    #[error("{0} is not mounted")]
    NotMounted(PathBuf),
    /// Not root, and no helper.
    #[error("fusermount3 is not installed (package fuse3), and only root can mount without it")]
    NoHelper,
    /// The helper's own words.
    #[error("{0}")]
    Helper(String),
    /// The kernel and this process did not come to terms, or the filesystem refused to start.
    #[error("starting the filesystem: {0}")]
    Start(#[source] io::Error),
    /// Anything else that the system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What came back.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| MountError::Io {
            doing,
            source: source.into(),
        }
    }
}

/// A mount that is being served. Dropping it detaches the mount.
pub struct Session {
    own: OwnMount,
    granted: Granted,
    notifier: Notifier,
    ending: Arc<Ending>,
}

struct Ending {
    /// The device, as long as it is served: a connection lasts as long as anybody holds it.
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

    /// Whether the mount is served, in the tree or detached: its end cuts the connection, and only
    /// then is its device number free for another mount. An abort cuts it too: what that leaves in
    /// the tree is unmounted by its path.
    fn is_connected(&self) -> bool {
        let connection = self.connection.lock();
        let Some(device) = connection.as_ref() else {
            return false;
        };
        let mut polled = [PollFd::new(device, PollFlags::empty())];
        let now = Timespec::default();
        // Unmounting is asked for by signals: one more must not read as an end.
        let events = retry_on_intr(|| poll(&mut polled, Some(&now)));
        events == Ok(0)
    }
}

/// The event loops ended although nobody unmounted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the connection to the kernel broke: {0}")]
pub struct SessionError(String);

/// Mounts `vfs` at `mount_point` and serves it from threads of its own. When this returns, the
/// kernel has been greeted, [`Vfs::init`] has succeeded, and requests are answered.
///
/// # Errors
/// See [`MountError`]. After an error nothing is left mounted, unless something else was mounted
/// over it meanwhile.
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
            // Nothing tells what is on top there. It was made a moment ago.
            let _ = unmount_as(&mount_point, true, is_direct);
            return Err(MountError::io("reading the mount table")(error));
        }
    };
    let own = own.ok_or_else(|| MountError::NotMounted(mount_point.clone()))?;
    let left = mount_point.clone();
    let at_end = move || {
        // Not the entry of another mount that has taken the place.
        if is_direct && !topmost(&left).is_some_and(|mount| mount.is_bkfs()) {
            utab::leave(&left);
        }
    };
    let started = start(vfs, connection, config, at_end).map_err(|error| {
        // The error that led here is the one to tell.
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

/// Resolves a mount point and refuses what cannot be one.
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

/// What is mounted on exactly this path, on top.
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

/// The options that FUSE itself reads.
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

/// The option string for fusermount3, which adds `nosuid,nodev` for users by itself.
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

/// Greets the kernel and starts the threads; the last of them calls `at_end`.
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
    // The kernel checks who may use the mount, except that it knows no "and root".
    let access = match config.options.access {
        Access::OwnerAndRoot => fuser::SessionACL::RootAndOwner,
        Access::Owner | Access::Everyone => fuser::SessionACL::All,
    };
    let mut threads = fuser::Config::default();
    threads.n_threads = Some(config.thread_count());
    // A queue per thread; and should the library lose a thread, the request it was lost over is
    // answered by the kernel as the queue closes.
    threads.clone_fd = true;
    let ending = Arc::new(Ending::of(&connection)?);
    let session = fuser::Session::from_fd(adapter, connection, access, threads)?;
    let granted = *granted
        .get()
        .ok_or_else(|| io::Error::other("the kernel was not greeted"))?;
    let notifier = Notifier::new(session.notifier());
    let (keeper, closing) = (ending.clone(), notifier.clone());
    let niceness = config.niceness;
    thread::Builder::new()
        .name("bkfs-fuse".to_owned())
        .spawn(move || {
            // The threads of the session are started from here, and take after it.
            if let Err(error) = rustix::process::nice(niceness) {
                debug!(%error, "the threads that answer stay as they are");
            }
            let result = without_the_race_at_the_end(session.run());
            if let Err(error) = &result {
                error!(%error, "the mount is no longer served");
            }
            // Nobody may be left waiting at a connection that nobody serves.
            closing.close();
            keeper.connection.lock().take();
            at_end();
            *keeper.result.lock() = Some(result.map_err(|error| error.to_string()));
            keeper.changed.notify_all();
        })?;
    Ok(Started {
        granted,
        notifier,
        ending,
    })
}

/// The kernel closes a connection with ENODEV, but a thread that was just taking a request from the
/// queue (the last file's release, say) is told ECONNABORTED instead: the same end. Aborts by an
/// administrator read as ENODEV too, since ABORT_ERROR is not asked for.
fn without_the_race_at_the_end(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        other => other,
    }
}

/// Lets the kernel read further ahead than its 128 KiB. Not being able to is no error.
fn raise_read_ahead((major, minor): (u32, u32), bytes: u64) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match std::fs::write(&path, (bytes / 1024).to_string()) {
        Ok(()) => debug!(path, bytes, "raised read-ahead"),
        Err(error) => info!(path, %error, "read-ahead stays at the kernel's default"),
    }
}

/// Unmounts whatever is mounted at `mount_point`, as root or through fusermount3. This is the bare
/// system call: a filesystem that has something to drain does that first. `lazy` detaches the
/// mount even while it is in use.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::NotMounted`], and what the system refuses.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    unmount_as(mount_point, lazy, rustix::process::geteuid().is_root())
}

/// Tells the kernel that this thread, and all that it starts from now on, store what others wait
/// to have stored: when memory is short they do not wait for their own mount to take dirty pages
/// off the kernel's hands. To be called before any thread is started.
///
/// # Errors
/// It takes CAP_SYS_RESOURCE, and Linux 5.6. Going without is no more than a risk.
pub fn become_io_flusher() -> io::Result<()> {
    rustix::process::configure_io_flusher_behavior(true).map_err(io::Error::from)
}

impl Session {
    /// Where it is mounted, resolved.
    pub fn mount_point(&self) -> &Path {
        &self.own.mount_point
    }

    /// What the kernel granted.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// For telling the kernel what changed behind its back.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Waits until the mount is gone, [`Vfs::destroy`] has returned, and no thread is left.
    /// Replies that are still held may be answered afterwards; nobody hears them.
    ///
    /// # Errors
    /// The loops ended for another reason; the mount answers "transport endpoint is not connected".
    pub fn wait(&self) -> Result<(), SessionError> {
        let mut result = self.ending.result.lock();
        loop {
            match &*result {
                Some(end) => return end.clone().map_err(SessionError),
                None => self.ending.changed.wait(&mut result),
            }
        }
    }

    /// As [`wait`](Self::wait), but no longer than `limit`; `None` if it is still mounted then.
    pub fn wait_for(&self, limit: Duration) -> Option<Result<(), SessionError>> {
        let mut result = self.ending.result.lock();
        if result.is_none() {
            self.ending
                .changed
                .wait_while_for(&mut result, |result| result.is_none(), limit);
        }
        result.clone().map(|end| end.map_err(SessionError))
    }

    /// Unmounts; follow with [`wait`](Self::wait). Only the mount that this session made goes,
    /// known by its mount id, wherever it has been moved to: a bind mount of it, a copy in another
    /// mount namespace and whatever is mounted over it or within it stay. `lazy` detaches it even
    /// while it is in use: it disappears from the tree, and ends when the last file is closed.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`], and what the
    /// system refuses.
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
