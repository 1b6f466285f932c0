//! What is asked of the kernel when the mount is made, and what is done without.
//!
//! Owns: the list of wanted capabilities with the reason for each, and the limits.
//! Does not own: the greeting itself (fuser).
//!
//! Asked for, where the kernel offers it:
//!
//! | capability | because |
//! |---|---|
//! | ASYNC_READ | one reader may have several requests in flight |
//! | BIG_WRITES, MAX_PAGES | requests of 1 MiB instead of 4 KiB |
//! | PARALLEL_DIROPS | lookups and listings of one directory do not queue |
//! | DO_READDIRPLUS, READDIRPLUS_AUTO | `ls -l` and rsync get attributes with the names; `ls` alone does not pay for them |
//! | ATOMIC_O_TRUNC | open(O_TRUNC) is one request; nobody sees the file opened and not yet truncated |
//! | HANDLE_KILLPRIV_V2 | otherwise the kernel asks for `security.capability` before every cached write; set-user-id bits are cleared by the filesystem where requests say so (not on mounts with `suid`) |
//! | DIRECT_IO_ALLOW_MMAP | `MAP_SHARED` works on files that bypass the page cache (not on mounts with `suid`: the kernel clears no set-id bits before direct writes) |
//! | CACHE_SYMLINKS | a symbolic link never changes |
//! | EXPLICIT_INVAL_DATA | all changes come through this mount, so that a new time of modification is no reason to drop a file's pages; what changes otherwise is invalidated by [`Notifier`](crate::Notifier) |
//! | EXPORT_SUPPORT | handles of name_to_handle_at(2) work as long as their file does: the kernel looks `.` up by its number |
//!
//! Not asked for: ASYNC_DIO (the kernel drops pages that a reader has fetched during a direct write
//! only where it waits for the write), AUTO_INVAL_DATA (drops the pages just written, at the next
//! stat), WRITEBACK_CACHE (acknowledges writes that the filesystem has not seen, and keeps times
//! and sizes of its own), POSIX_LOCKS and FLOCK_LOCKS (the kernel keeps both kinds for one mount),
//! POSIX_ACL, DONT_MASK (the kernel applies umasks), SPLICE (the library copies), ABORT_ERROR (an
//! abort then ends the event loops like an unmount).

use std::sync::{Arc, OnceLock};

use fuser::InitFlags;
use tracing::{debug, info, warn};

use crate::types::Granted;

/// Largest write and read request in bytes. The kernel's own limit is 256 pages
/// (`fs.fuse.max_pages_limit`), 1 MiB where pages have 4 KiB.
pub(crate) const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Wanted capabilities with their names for the log.
const WANTED: &[(InitFlags, &str)] = &[
    (InitFlags::FUSE_ASYNC_READ, "ASYNC_READ"),
    (InitFlags::FUSE_BIG_WRITES, "BIG_WRITES"),
    (InitFlags::FUSE_MAX_PAGES, "MAX_PAGES"),
    (InitFlags::FUSE_PARALLEL_DIROPS, "PARALLEL_DIROPS"),
    (InitFlags::FUSE_DO_READDIRPLUS, "DO_READDIRPLUS"),
    (InitFlags::FUSE_READDIRPLUS_AUTO, "READDIRPLUS_AUTO"),
    (InitFlags::FUSE_ATOMIC_O_TRUNC, "ATOMIC_O_TRUNC"),
    (InitFlags::FUSE_HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
    (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP"),
    (InitFlags::FUSE_CACHE_SYMLINKS, "CACHE_SYMLINKS"),
    (InitFlags::FUSE_EXPLICIT_INVAL_DATA, "EXPLICIT_INVAL_DATA"),
    (InitFlags::FUSE_EXPORT_SUPPORT, "EXPORT_SUPPORT"),
];

/// What is not wanted where set-id bits have an effect. The kernel then clears them itself before a
/// write, in its own cache as well as here. With either of the two a program that was overwritten
/// could be run with the bits that the kernel remembers.
const UNWANTED_WITH_SET_ID: InitFlags =
    InitFlags::FUSE_HANDLE_KILLPRIV_V2.union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// The mount's side of the greeting.
pub(crate) struct Negotiation {
    pub(crate) max_background: u16,
    /// Set-id bits have an effect on this mount.
    pub(crate) has_set_id: bool,
    /// Where the result is left for the session.
    pub(crate) granted: Arc<OnceLock<Granted>>,
}

impl Negotiation {
    /// Asks for what is wanted and offered.
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
            atomic_truncate: offered.contains(InitFlags::FUSE_ATOMIC_O_TRUNC),
        };
        debug!(?granted, "greeted the kernel");
        // The greeting happens once per mount; the cell is fresh.
        self.granted.get_or_init(|| granted);
        granted
    }
}
