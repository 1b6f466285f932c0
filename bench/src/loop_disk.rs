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

/// A mounted disk in memory. It is unmounted, and its memory is free again, when this is dropped.
pub struct LoopDisk {
    mount_point: PathBuf,
}

impl LoopDisk {
    /// Makes a disk of `length` bytes, and mounts it. Only bytes that are written take memory.
    ///
    /// # Errors
    /// The I/O error of making its file or the mount point, or a message if mkfs.ext4 or mount(8)
    /// fails: the latter needs root and a loop device.
    pub fn mount(mount_point: &Path, length: u64) -> Outcome<Self> {
        let make = find("mkfs.ext4").ok_or("mkfs.ext4 is not on this machine")?;
        // The loop device keeps the file open, which has no name any more when this returns.
        let image = tempfile::Builder::new()
            .prefix("bkfs-bench.")
            .tempfile_in("/dev/shm")?;
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
