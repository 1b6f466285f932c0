//! A client of mounts, through `.bkfs/control`.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bkfs_fuse::MountInfo;
use serde_json::Value;

use crate::cli::output::{Code, Failure};

/// A client of one bkfs mount.
#[derive(Clone)]
pub struct MountClient {
    mounted: MountInfo,
}

impl MountClient {
    /// Returns the bkfs mount at `path`, or the one that contains `path`.
    ///
    /// # Errors
    /// A [`Failure`] with exit code 1 if there is none.
    pub fn find(path: &Path) -> Result<MountClient, Failure> {
        let absolute = std::path::absolute(path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        let no_mount = || {
            Failure::new(format!("{} is not a bkfs mount", path.display()))
                .hint("findmnt -t fuse.bkfs lists the bkfs mounts.")
        };
        let mount = bkfs_fuse::find_mount(&absolute)
            .ok()
            .flatten()
            .ok_or_else(no_mount)?;
        if !mount.is_bkfs() {
            return Err(no_mount());
        }
        Ok(MountClient { mounted: mount })
    }

    /// Returns the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mounted.mount_point
    }

    /// Returns what the kernel says of the mount, by which its other mount points are found.
    pub fn mounted(&self) -> &MountInfo {
        &self.mounted
    }

    /// Returns true if the daemon is gone: the kernel says that no daemon is connected, or that it
    /// cut the connection. After any other error the mount may be live.
    pub fn is_dead(&self) -> bool {
        let answer = std::fs::symlink_metadata(self.mount_point());
        let code = answer.err().and_then(|error| error.raw_os_error());
        matches!(code, Some(libc::ENOTCONN | libc::ECONNABORTED))
    }

    /// Returns the contents of `.bkfs/status`.
    ///
    /// # Errors
    /// A [`Failure`] with exit code 1 if the file cannot be read or is not JSON.
    pub fn status(&self) -> Result<Value, Failure> {
        let path = self.mount_point().join(".bkfs/status");
        let text = std::fs::read_to_string(&path).map_err(|error| unreachable(&path, &error))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The [`Failure`] that the mount answers with, its code and hint included. One with exit code
    /// 1 if the mount cannot be asked or its answer is not JSON.
    pub fn request(&self, request: &Value) -> Result<Value, Failure> {
        let path = self.mount_point().join(".bkfs/control");
        let failed = |error: std::io::Error| unreachable(&path, &error);
        let text = request.to_string();
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                let written = file.write_at(text.as_bytes(), 0).map_err(failed)?;
                if written != text.len() {
                    return Err(Failure::new(format!(
                        "{}: the request was sent only in part",
                        path.display()
                    )));
                }
                file
            }
            // The kernel lets no write through to a read-only mount.
            Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
                let file = OpenOptions::new().read(true).open(&path).map_err(failed)?;
                bkfs_fuse::send_command(&file, text.as_bytes()).map_err(failed)?;
                file
            }
            Err(error) => return Err(failed(error)),
        };
        let mut answer = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match file
                .read_at(&mut buffer, answer.len() as u64)
                .map_err(failed)?
            {
                0 => break,
                read => answer.extend_from_slice(&buffer[..read]),
            }
        }
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        match answer.get("error").and_then(Value::as_str) {
            None => Ok(answer),
            Some(message) => {
                let code = answer.get("code").and_then(Value::as_i64).unwrap_or(1);
                let mut failure = Failure::new(message).code(Code::of(code));
                failure.hint = answer
                    .get("hint")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
                Err(failure)
            }
        }
    }
}

fn unreachable(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::new(format!("{}: {error}", path.display()));
    match error.raw_os_error() {
        Some(libc::ENOTCONN) => failure.hint(
            "The daemon of this mount has ended. Mount again: bkfs mount replaces the dead mount.",
        ),
        Some(libc::EACCES) => failure.hint(
            "Only the user who mounted it may do this, and root if it was mounted with \
                 allow_other.",
        ),
        _ => failure,
    }
}
