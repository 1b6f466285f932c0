//! Making umount(8) find our helper.
//!
//! Owns: the entry that libmount keeps beside the kernel's table of mounts (/run/mount/utab), which
//! names the helper for a mount. It is made and removed by mount(8) and umount(8) themselves, since
//! the file is theirs.
//! Does not own: the helper.
//!
//! Why it is needed: to spare itself the whole table, umount(8) called by root with an absolute path
//! asks statfs(2) for the type, which says `fuse` for every FUSE filesystem, and looks for the
//! helper umount.fuse. Only for mounts with an entry of its own does it look up the type with its
//! subtype, `fuse.bkfs`.

use std::path::Path;
use std::process::{Command, Stdio};

use tracing::debug;

use crate::mountinfo::FILE_SYSTEM_TYPE;

/// Where umount(8) looks for helpers.
const HELPER: &str = "/sbin/umount.fuse.bkfs";

/// Makes the entry, if the helper is installed. Without it a plain `umount` unmounts first and drains
/// behind; that is no reason not to mount.
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

/// Removes the entry of a mount that is gone. umount(8) has done so itself, if that is what ended it.
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
