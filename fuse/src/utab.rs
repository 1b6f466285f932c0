//! The entry by which umount(8) finds the helper of bkfs.
//!
//! Owns: the entry that libmount keeps in /run/mount/utab, next to the kernel's table of mounts.
//! The entry names the helper for a mount. mount(8) and umount(8) write and remove it, because the
//! file is theirs.
//! Does not own: the helper.
//!
//! Reason: umount(8), called by root with an absolute path, avoids reading the whole table. It asks
//! statfs(2) for the type, which is `fuse` for every FUSE filesystem, and looks for the helper
//! umount.fuse. Only for mounts with an entry does it look up the type with its subtype,
//! `fuse.bkfs`.

use std::path::Path;
use std::process::{Command, Stdio};

use tracing::debug;

use crate::mountinfo::FILE_SYSTEM_TYPE;

/// Path at which umount(8) looks for the helper.
const HELPER: &str = "/sbin/umount.fuse.bkfs";

/// Makes the entry, if the helper is installed. Without the helper a plain `umount` unmounts first
/// and drains afterwards; the mount goes on without it.
pub(crate) fn enter(source: &str, mount_point: &Path) {
    if !Path::new(HELPER).exists() {
        debug!(
            helper = HELPER,
            "not installed: umount(8) will not drain first"
        );
        return;
    }
    // --fake: everything but mounting. --internal-only: without calling /sbin/mount.fuse.
    let mut command = Command::new("mount");
    command
        .args(["--fake", "--internal-only", "--no-canonicalize"])
        .args(["-t", FILE_SYSTEM_TYPE, "-o"])
        .arg(format!("helper={FILE_SYSTEM_TYPE}"))
        .arg("--")
        .arg(source)
        .arg(mount_point);
    run(command);
}

/// Removes the entry of a mount that is gone. If umount(8) ended the mount, it has removed the
/// entry itself.
pub(crate) fn leave(mount_point: &Path) {
    if Path::new(HELPER).exists() {
        let mut command = Command::new("umount");
        command
            .args(["--fake", "--internal-only", "--no-canonicalize", "--"])
            .arg(mount_point);
        run(command);
    }
}

fn run(mut command: Command) {
    let result = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    debug!(?command, ?result, "told libmount");
}
