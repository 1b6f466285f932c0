//! Mounts of an object store by other tools.
//!
//! Owns: how they are called, and their end.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::disk::text;
use crate::measure::shell;
use crate::servers::{BUCKET, USER, endpoint};

/// A mount that a tool serves in the foreground.
#[derive(Debug)]
pub struct FarMount {
    child: Child,
    /// `None` once it is unmounted.
    point: Option<PathBuf>,
}

impl FarMount {
    /// Runs `command`, which mounts at `point`.
    ///
    /// # Errors
    /// An I/O error, or a message if no mount appears within 60 s.
    pub fn start(command: &mut Command, point: &Path) -> Outcome<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut mount = Self {
            child,
            point: Some(point.to_owned()),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while shell(&format!("mountpoint -q {}", text(point))).is_err() {
            if mount.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err("the mount does not appear".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(mount)
    }

    /// Unmounts, and returns the seconds that it took.
    ///
    /// # Errors
    /// As [`shell`].
    pub fn unmount(mut self) -> Outcome<f64> {
        let began = Instant::now();
        if let Some(point) = &self.point {
            shell(&format!("umount {}", text(point)))?;
        }
        self.point = None;
        self.child.wait()?;
        Ok(began.elapsed().as_secs_f64())
    }
}

impl Drop for FarMount {
    fn drop(&mut self) {
        let Some(point) = &self.point else {
            return;
        };
        // Something has failed, perhaps the tool itself, and errors of this are ignored.
        let mut unmount = Command::new("umount");
        let _ = unmount.arg("-l").arg(point).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of s3fs, which uploads each file when it is closed or synced. `work` takes
/// its password and its temporary files.
///
/// # Errors
/// The I/O error of writing the password.
pub fn s3fs(binary: &str, address: SocketAddr, point: &Path, work: &Path) -> Outcome<Command> {
    let secret = work.join("s3fs-password");
    fs::write(&secret, format!("{}:{}", USER.0, USER.1))?;
    shell(&format!("chmod 600 {}", text(&secret)))?;
    let mut command = Command::new(binary);
    command.args([BUCKET, text(point), "-f", "-o"]).arg(format!(
        "passwd_file={},url={},use_path_request_style,allow_other",
        text(&secret),
        endpoint(address)
    ));
    command.arg("-o").arg(format!("tmpdir={}", text(work)));
    Ok(command)
}

/// Returns the command of rclone mount, whose writes wait in `cache` for their upload: they are
/// durable after the unmount. `mode` is that of its cache.
pub fn rclone(
    binary: &str,
    address: SocketAddr,
    point: &Path,
    cache: &Path,
    mode: &str,
) -> Command {
    let mut command = rclone_for(binary, address);
    command
        .args(["mount", &format!(":s3:{BUCKET}/rclone"), text(point)])
        .args(["--allow-other", "--vfs-cache-mode", mode])
        .args(["--vfs-write-back", "0s", "--cache-dir", text(cache)]);
    command
}

/// Returns a command of rclone for the store at `address`, without its operation.
pub fn rclone_for(binary: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(binary);
    // Some versions do not start if this variable is set.
    command.env_remove("AWS_CA_BUNDLE");
    command
        .args(["--config", "/dev/null", "--s3-provider", "Minio"])
        .args(["--s3-endpoint", &endpoint(address)])
        .args([
            "--s3-access-key-id",
            USER.0,
            "--s3-secret-access-key",
            USER.1,
        ]);
    command
}
