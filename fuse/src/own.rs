//! A mount that this process made, and its end.
//!
//! Owns: which line of the mount table is that mount, and unmounting it and no other. Does not own:
//! making it, nor serving it (session).

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno as SystemError;
use rustix::mount::UnmountFlags;

use crate::fusermount;
use crate::mountinfo::{self, MountInfo};
use crate::session::MountError;

/// The bkfs mounts that there were at a mount point before one was made. Mount ids are given again as
/// soon as they are free, so that those of other places say nothing.
pub(crate) struct Before {
    mount_point: PathBuf,
    ids: HashSet<u64>,
}

impl Before {
    /// Those of now.
    pub(crate) fn now(mount_point: &Path) -> Self {
        let mounts = mountinfo::mounts().unwrap_or_default();
        let there = mounts.iter().filter(|mount| is_there(mount, mount_point));
        Before {
            mount_point: mount_point.to_owned(),
            ids: there.map(|mount| mount.mount_id).collect(),
        }
    }

    /// The mount that was made since, whatever lies over it by now.
    ///
    /// # Errors
    /// As reading the mount table fails.
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
    /// Its device number.
    pub(crate) device: (u32, u32),
    /// Where it was mounted, resolved.
    pub(crate) mount_point: PathBuf,
    /// It was made by mount(2), not by fusermount3.
    pub(crate) is_direct: bool,
}

impl OwnMount {
    /// Unmounts it, wherever it has been moved to, unless that would take another mount along.
    /// `is_ours` is asked after the mount table was read: whether a mount with these numbers was
    /// this one until then.
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`], [`MountError::NotMounted`], and what the
    /// system refuses.
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

/// Unmounts what is on top at `mount_point`.
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
