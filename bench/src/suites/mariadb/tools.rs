//! Tools that back up a finished directory, and mounts of object stores.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::database::Database;
use crate::Outcome;
use crate::context::Context;
use crate::disk::{flush, remove, text};
use crate::far_mount::{self, FarMount};
use crate::measure::{self, Run, shell};

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
        measure::drop_caches()?;
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
pub(super) type Backup = fn(&Far<'_>, &Database) -> Outcome<Run>;

/// Runs s3fs.
pub(super) fn s3fs(far: &Far<'_>, database: &Database) -> Outcome<Run> {
    let command = far_mount::s3fs(far.binary, far.address, far.point, far.work)?;
    backup_onto(command, far, database, "s3fs")
}

/// Runs rclone mount.
pub(super) fn rclone(far: &Far<'_>, database: &Database) -> Outcome<Run> {
    let cache = far.work.join("rclone-cache");
    let command = far_mount::rclone(far.binary, far.address, far.point, &cache, "writes");
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
    let mount = FarMount::start(&mut command, far.point)?;
    let mut run = shell(&database.backup(&far.point.join(name)))?;
    run.wall_s += mount.unmount()?;
    // The measured processor time is that of the writing program; that of the daemon is not known.
    run.cpu_s = None;
    run.anon_bytes = None;
    // Mounts again, so that the compared bytes come from the store.
    let mount = FarMount::start(&mut command, far.point)?;
    database.same_tables(&far.point.join(name))?;
    mount.unmount()?;
    Ok(run)
}
