//! Files that bkfs writes for other programs of this machine.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::cli::output::Failure;

/// Replaces or makes a file that other users may read, as a whole or not at all.
///
/// # Errors
/// Exit code 1 with the error of the system.
pub fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let draft = path.with_extension("bkfs-draft");
    let written = || {
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&draft)?;
        // The umask of a unit may keep others out.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().map_err(|error| {
        // The draft holds nothing that is needed.
        let _ = fs::remove_file(&draft);
        Failure::new(format!("cannot write {}: {error}", path.display()))
    })
}
