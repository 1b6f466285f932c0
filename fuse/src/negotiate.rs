//! Negotiation with the kernel when the mount is made.
//!
//! Owns: the list of requested capabilities with the reason for each, and the limits.
//! Does not own: the INIT exchange itself (fuser).
//!
//! Requested, where the kernel offers it:
//!
//! - ASYNC_READ: one reader may have several requests in flight.
//! - BIG_WRITES, MAX_PAGES: requests have up to 1 MiB instead of 4 KiB.
//! - PARALLEL_DIROPS: lookups and listings of one directory do not queue.
//! - DO_READDIRPLUS, READDIRPLUS_AUTO: `ls -l` and rsync get attributes with the names; a plain
//!   `ls` does not pay for them.
//! - HANDLE_KILLPRIV_V2: without it the kernel asks for `security.capability` before every cached
//!   write. The filesystem clears set-user-id bits where requests say so. Not requested for mounts
//!   with `suid`.
//! - DIRECT_IO_ALLOW_MMAP: `MAP_SHARED` works on files that bypass the page cache. Not requested
//!   for mounts with `suid`, because the kernel clears no set-id bits before direct writes.
//! - CACHE_SYMLINKS: a symbolic link never changes.
//! - EXPLICIT_INVAL_DATA: all changes come through this mount, so a new time of modification is no
//!   reason to drop the pages of a file. [`Notifier`](crate::Notifier) invalidates what changes
//!   otherwise.
//! - EXPORT_SUPPORT: handles of name_to_handle_at(2) work as long as their file exists, because the
//!   kernel looks up `.` by the inode's number.
//!
//! Not requested:
//!
//! - ATOMIC_O_TRUNC: the kernel sends the open request, which would truncate the file, before it
//!   looks whether the file is a program that runs. Without it, the kernel truncates the file after
//!   the open, by a setattr request without a handle.
//! - ASYNC_DIO: the kernel drops pages that a reader fetched during a direct write only if it waits
//!   for the write.
//! - AUTO_INVAL_DATA: drops the pages just written at the next stat.
//! - WRITEBACK_CACHE: acknowledges writes that the filesystem has not seen, and keeps times and
//!   sizes of its own.
//! - POSIX_LOCKS, FLOCK_LOCKS: the kernel keeps both kinds of locks for one mount.
//! - POSIX_ACL: not supported.
//! - DONT_MASK: the kernel applies umasks.
//! - SPLICE: the library copies.
//! - ABORT_ERROR: without it an abort ends the event loops like an unmount.

use std::sync::{Arc, OnceLock};

use fuser::InitFlags;
use tracing::{debug, info, warn};

use crate::types::Granted;

/// Largest write and read request, in bytes. The kernel's own limit is 256 pages
/// (`fs.fuse.max_pages_limit`): 1 MiB with pages of 4 KiB.
pub(crate) const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Requested capabilities with their names for the log.
const WANTED: &[(InitFlags, &str)] = &[
    (InitFlags::FUSE_ASYNC_READ, "ASYNC_READ"),
    (InitFlags::FUSE_BIG_WRITES, "BIG_WRITES"),
    (InitFlags::FUSE_MAX_PAGES, "MAX_PAGES"),
    (InitFlags::FUSE_PARALLEL_DIROPS, "PARALLEL_DIROPS"),
    (InitFlags::FUSE_DO_READDIRPLUS, "DO_READDIRPLUS"),
    (InitFlags::FUSE_READDIRPLUS_AUTO, "READDIRPLUS_AUTO"),
    (InitFlags::FUSE_HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
    (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP"),
    (InitFlags::FUSE_CACHE_SYMLINKS, "CACHE_SYMLINKS"),
    (InitFlags::FUSE_EXPLICIT_INVAL_DATA, "EXPLICIT_INVAL_DATA"),
    (InitFlags::FUSE_EXPORT_SUPPORT, "EXPORT_SUPPORT"),
];

/// Capabilities that are not requested where set-id bits have an effect. Without them the kernel
/// clears the bits itself before a write, in its own cache as well as in the filesystem. With
/// either of the two, an overwritten program could run with the bits from the kernel's cache.
const UNWANTED_WITH_SET_ID: InitFlags =
    InitFlags::FUSE_HANDLE_KILLPRIV_V2.union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// The mount's side of the INIT exchange.
pub(crate) struct Negotiation {
    pub(crate) max_background: u16,
    /// Set-id bits have an effect on this mount.
    pub(crate) has_set_id: bool,
    /// The cell from which the session reads the result.
    pub(crate) granted: Arc<OnceLock<Granted>>,
}

impl Negotiation {
    /// Requests the wanted capabilities that the kernel offers, and returns what it granted.
    pub(crate) fn conclude(self, config: &mut fuser::KernelConfig) -> Granted {
        let mut offered = config.capabilities();
        if self.has_set_id {
            offered.remove(UNWANTED_WITH_SET_ID);
        }
        let wanted = |capability| !self.has_set_id || !UNWANTED_WITH_SET_ID.contains(capability);
        for &(capability, name) in WANTED.iter().filter(|(capability, _)| wanted(*capability)) {
            if config.add_capabilities(capability).is_err() {
                info!(
                    capability = name,
                    "not offered by this kernel: going without"
                );
            }
        }
        let max_write_bytes = match config.set_max_write(MAX_REQUEST_BYTES) {
            Ok(_) => MAX_REQUEST_BYTES,
            Err(nearest) => {
                warn!(nearest, "the library refuses the request size");
                nearest
            }
        };
        if let Err(nearest) = config.set_max_background(self.max_background.max(1)) {
            warn!(
                nearest,
                "the library refuses the number of background requests"
            );
        }
        if config
            .set_time_granularity(std::time::Duration::from_nanos(1))
            .is_err()
        {
            warn!("the library refuses a time granularity of 1 ns");
        }
        let version = config.kernel_abi();
        let granted = Granted {
            protocol: (version.0, version.1),
            max_write_bytes,
            direct_io_mmap: offered.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP),
            kill_privileges: offered.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2),
            readdirplus: offered.contains(InitFlags::FUSE_DO_READDIRPLUS),
        };
        debug!(?granted, "greeted the kernel");
        // INIT happens once per mount, so the cell is empty.
        self.granted.get_or_init(|| granted);
        granted
    }
}
