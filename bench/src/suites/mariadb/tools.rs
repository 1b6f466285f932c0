//! Tools that back up a finished directory, and mounts of object stores.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::database::Database;
use crate::Outcome;
use crate::context::Context;
use crate::disk::{flush, remove, text};
use crate::measure::{self, Run, shell};
use crate::servers::{BUCKET, USER, endpoint};

/// A backup tool with a repository of its own.
pub(super) struct Tool {
    pub(super) name: &'static str,
    repository: PathBuf,
    /// Shell lines: the setup before the other two, the backup (`@` stands for the directory), and
    /// the restore into the working directory.
    before: String,
    backup: String,
    restore: String,
}

impl Tool {
    /// Returns every tool that is installed, each with a new repository.
    pub(super) fn all(context: &mut Context) -> Outcome<Vec<Tool>> {
        let mut tools = Vec::new();
        for name in ["restic", "rustic", "borg"] {
            match context.peers.need(name) {
                Err(reason) => context.absent(name, reason),
                Ok(binary) => {
                    let repository = context.fresh(name)?;
                    let home = context.fresh(&format!("{name}-home"))?;
                    tools.push(Tool::new(name, &binary, repository, &home)?);
                }
            }
        }
        Ok(tools)
    }

    fn new(name: &'static str, binary: &str, repository: PathBuf, home: &Path) -> Outcome<Tool> {
        let (place, home) = (text(&repository).to_owned(), text(home));
        let before = format!(
            "export HOME={home} XDG_CACHE_HOME={home} RESTIC_PASSWORD=benchmark \
             RUSTIC_PASSWORD=benchmark BORG_PASSPHRASE=benchmark BORG_BASE_DIR={home}; "
        );
        let (init, backup, restore) = match name {
            "borg" => (
                format!("{binary} init -e repokey-blake2 {place}"),
                format!("{binary} create -C zstd,1 {place}::$(date +%s%N) @"),
                format!("{binary} extract {place}::$({binary} list --last 1 --short {place})"),
            ),
            "rustic" => (
                format!("{binary} -r {place} init"),
                format!("{binary} -r {place} backup @"),
                format!("{binary} -r {place} restore latest ."),
            ),
            _ => (
                format!("{binary} -q -r {place} init"),
                format!("{binary} -q -r {place} backup @"),
                format!("{binary} -q -r {place} restore latest --target ."),
            ),
        };
        shell(&format!("{before}{init}"))?;
        Ok(Tool {
            name,
            repository,
            before,
            backup,
            restore,
        })
    }

    /// Backs up a directory until the backup is durable.
    pub(super) fn backup(&mut self, directory: &Path) -> Outcome<Run> {
        let line = self.backup.replace('@', text(directory));
        let mut run = shell(&format!("{}{line}", self.before))?;
        run.wall_s += flush(&self.repository)?;
        run.stored_bytes = Some(measure::stored_bytes(&self.repository));
        Ok(run)
    }

    /// Restores the last backup below `target`, with cold caches, until it is durable.
    pub(super) fn restore(&self, target: &Path) -> Outcome<Run> {
        measure::drop_caches();
        let mut run = shell(&format!(
            "{}cd {}; {}",
            self.before,
            text(target),
            self.restore
        ))?;
        run.wall_s += flush(target)?;
        Ok(run)
    }
}

/// A mount of an object store.
pub(super) struct Far<'a> {
    pub(super) binary: &'a str,
    pub(super) address: SocketAddr,
    pub(super) point: &'a Path,
    pub(super) work: &'a Path,
}

/// A function that mounts, backs up, unmounts and verifies.
pub(super) type FarMount = fn(&Far<'_>, &Database) -> Outcome<Run>;

/// Runs s3fs, which uploads each file when it is closed.
pub(super) fn s3fs(far: &Far<'_>, database: &Database) -> Outcome<Run> {
    let secret = far.work.join("s3fs-password");
    std::fs::write(&secret, format!("{}:{}", USER.0, USER.1))?;
    shell(&format!("chmod 600 {}", text(&secret)))?;
    let mut command = Command::new(far.binary);
    command
        .args([BUCKET, text(far.point), "-f"])
        .args([
            "-o",
            &format!(
                "passwd_file={},url={},use_path_request_style",
                text(&secret),
                endpoint(far.address)
            ),
        ])
        .args(["-o", &format!("tmpdir={}", text(far.work))]);
    backup_onto(command, far, database, "s3fs")
}

/// Runs rclone mount. Its writes wait in a cache for their upload, so they are durable after the
/// unmount.
pub(super) fn rclone(far: &Far<'_>, database: &Database) -> Outcome<Run> {
    let cache = far.work.join("rclone-cache");
    let mut command = Command::new(far.binary);
    // Some versions do not start if this variable is set.
    command.env_remove("AWS_CA_BUNDLE");
    command
        .args([
            "--config",
            "/dev/null",
            "mount",
            &format!(":s3:{BUCKET}/rclone"),
            text(far.point),
        ])
        .args([
            "--s3-provider",
            "Minio",
            "--s3-endpoint",
            &endpoint(far.address),
        ])
        .args([
            "--s3-access-key-id",
            USER.0,
            "--s3-secret-access-key",
            USER.1,
        ])
        .args([
            "--vfs-cache-mode",
            "writes",
            "--vfs-write-back",
            "0s",
            "--cache-dir",
            text(&cache),
        ]);
    let run = backup_onto(command, far, database, "rclone");
    remove(&cache)?;
    run
}

fn backup_onto(
    mut command: Command,
    far: &Far<'_>,
    database: &Database,
    name: &str,
) -> Outcome<Run> {
    let (mut run, ending_s) = on_mount(&mut command, far.point, || {
        shell(&database.backup(&far.point.join(name)))
    })?;
    run.wall_s += ending_s;
    // The measured processor time is that of the writing program; that of the daemon is not known.
    run.cpu_s = None;
    run.anon_bytes = None;
    // Mounts again, so that the compared bytes come from the store.
    let (compared, _) = on_mount(&mut command, far.point, || {
        Ok(database.same_tables(&far.point.join(name)))
    })?;
    compared?;
    Ok(run)
}

/// Runs `work` on a mount that `command` serves in the foreground. Returns its result, and the
/// seconds that unmounting took.
fn on_mount<T>(
    command: &mut Command,
    point: &Path,
    work: impl FnOnce() -> Outcome<T>,
) -> Outcome<(T, f64)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_mounted = || shell(&format!("mountpoint -q {}", text(point))).is_ok();
    while !is_mounted() {
        if child.try_wait()?.is_some() || Instant::now() > deadline {
            let _ = child.kill();
            return Err("the mount does not appear".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let done = work();
    let ended = end(&mut child, point);
    Ok((done?, ended?))
}

fn end(child: &mut Child, point: &Path) -> Outcome<f64> {
    let began = Instant::now();
    shell(&format!("umount {}", text(point)))?;
    child.wait()?;
    Ok(began.elapsed().as_secs_f64())
}
