//! A mount that this process made, and its end.
//!
//! Owns: which line of the mount table is that mount, and unmounting it and no other. Does not own:
//! making it, nor serving it (session).

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno as SystemError;
use rustix::mount::UnmountFlags;

use crate::error::MountError;
use crate::fusermount;
use crate::mountinfo::{self, MountInfo};

/// The bkfs mounts at a mount point before a new one is made. The kernel reuses mount ids as soon
/// as they are free, so the ids of mounts elsewhere prove nothing.
pub(crate) struct Before {
    mount_point: PathBuf,
    ids: HashSet<u64>,
}

impl Before {
    /// Reads the mounts that exist now.
    pub(crate) fn now(mount_point: &Path) -> Self {
        let mounts = mountinfo::mounts().unwrap_or_default();
        let there = mounts.iter().filter(|mount| is_there(mount, mount_point));
        Before {
            mount_point: mount_point.to_owned(),
            ids: there.map(|mount| mount.mount_id).collect(),
        }
    }

    /// Returns the mount that was made since, even if another mount covers it by now; `None` if the
    /// mount table has no such mount.
    ///
    /// # Errors
    /// The I/O error of reading the mount table.
    pub(crate) fn made_since(&self, is_direct: bool) -> io::Result<Option<OwnMount>> {
        let mounts = mountinfo::mounts()?;
        let made = mounts.into_iter().find(|mount| {
            is_there(mount, &self.mount_point) && !self.ids.contains(&mount.mount_id)
        });
        Ok(made.map(|mount| OwnMount {
            mount_id: mount.mount_id,
            device: mount.device,
            mount_point: mount.mount_point,
            is_direct,
        }))
    }
}

fn is_there(mount: &MountInfo, mount_point: &Path) -> bool {
    mount.mount_point == mount_point && mount.is_bkfs()
}

/// A mount of this process.
#[derive(Debug)]
pub(crate) struct OwnMount {
    mount_id: u64,
    /// Device number of the mount, `(major, minor)`.
    pub(crate) device: (u32, u32),
    /// Path at which it was mounted, resolved.
    pub(crate) mount_point: PathBuf,
    /// True if mount(2) made it, false if fusermount3 did.
    pub(crate) is_direct: bool,
}

impl OwnMount {
    /// Unmounts it, even if it has been moved, unless that would remove another mount too. The
    /// method calls `is_ours` after it has read the mount table. The result says whether a mount
    /// with these numbers was still this one then.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`];
    /// [`MountError::NotPermitted`], [`MountError::NoHelper`], [`MountError::Helper`] and
    /// [`MountError::Io`] if the system or the helper refuses.
    pub(crate) fn unmount(
        &self,
        lazy: bool,
        is_ours: impl FnOnce() -> bool,
    ) -> Result<(), MountError> {
        let not_mounted = || MountError::NotMounted(self.mount_point.clone());
        let mounts = mountinfo::mounts().map_err(|_| not_mounted())?;
        if !is_ours() {
            return Err(not_mounted());
        }
        let ours = |mount: &&MountInfo| {
            mount.mount_id == self.mount_id && mount.is_bkfs() && mount.device == self.device
        };
        let mount = mounts.iter().find(ours).ok_or_else(not_mounted)?;
        match mountinfo::is_alone(&mounts, mount) {
            true => unmount_as(&mount.mount_point, lazy, self.is_direct),
            false => Err(MountError::Covered(mount.mount_point.clone())),
        }
    }
}

/// Unmounts the top mount at `mount_point`.
pub(crate) fn unmount_as(
    mount_point: &Path,
    lazy: bool,
    is_direct: bool,
) -> Result<(), MountError> {
    if !is_direct {
        return fusermount::unmount(mount_point, lazy);
    }
    let flags = if lazy {
        UnmountFlags::NOFOLLOW | UnmountFlags::DETACH
    } else {
        UnmountFlags::NOFOLLOW
    };
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(SystemError::BUSY) => Err(MountError::Busy(mount_point.to_owned())),
        Err(SystemError::INVAL | SystemError::NOENT) => {
            Err(MountError::NotMounted(mount_point.to_owned()))
        }
        Err(SystemError::PERM) => Err(MountError::NotPermitted(mount_point.to_owned())),
        Err(error) => Err(MountError::io("umount(2)")(error)),
    }
}
