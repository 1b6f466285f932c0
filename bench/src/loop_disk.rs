//! A disk in memory: ext4 on a loop device, whose file is in /dev/shm.
//!
//! Owns: making, mounting and unmounting it. The times of a real disk differ more from run to run
//! than those of the systems that are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::disk::remove;
use crate::measure;
use crate::peers::find;

/// The directory whose files take memory.
const IN_MEMORY: &str = "/dev/shm";

/// A mounted disk in memory. It is unmounted, and its memory is free again, when this is dropped.
pub struct LoopDisk {
    mount_point: PathBuf,
}

impl LoopDisk {
    /// Makes a disk of `length` bytes, and mounts it. Only bytes that are written take memory.
    ///
    /// # Errors
    /// The I/O error of making its file or the mount point, or a message if `/dev/shm` has no room for
    /// a full disk, or mkfs.ext4 or mount(8) fails: the latter needs root and a loop device.
    pub fn mount(mount_point: &Path, length: u64) -> Outcome<Self> {
        let make = find("mkfs.ext4").ok_or("mkfs.ext4 is not on this machine")?;
        let free = free_bytes(IN_MEMORY)?;
        if free < length {
            return Err(format!("{IN_MEMORY} has {free} bytes free, and not {length}").into());
        }
        // The loop device keeps the file open, which has no name any more when this returns.
        let image = tempfile::Builder::new()
            .prefix("bkfs-bench.")
            .tempfile_in(IN_MEMORY)?;
        image.as_file().set_len(length)?;
        measure::command(Command::new(make).args(["-q", "-F"]).arg(image.path()))?;
        fs::create_dir_all(mount_point)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop"]).arg(image.path());
        measure::command(mount.arg(mount_point))?;
        let mount_point = mount_point.to_owned();
        Ok(Self { mount_point })
    }
}

/// Returns the free bytes of the filesystem of a directory.
fn free_bytes(directory: &str) -> Outcome<u64> {
    let mut df = Command::new("df");
    let told = df.args(["--output=avail", "-B1", directory]).output()?;
    let told = String::from_utf8_lossy(&told.stdout);
    let free = told
        .lines()
        .last()
        .and_then(|line| line.trim().parse().ok());
    free.ok_or_else(|| format!("df does not tell the free bytes of {directory}").into())
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            let mut unmount = Command::new("umount");
            measure::command(unmount.args(options).arg(&self.mount_point))
        };
        // A suite that failed may have left something open.
        let removed = unmount(&[])
            .or_else(|_| unmount(&["-l"]))
            .and_then(|_| remove(&self.mount_point));
        if let Err(error) = removed {
            eprintln!("{} stays: {error}", self.mount_point.display());
        }
    }
}
