//! Requests that change something: attributes, names, extended attributes; and snapshots by
//! mkdir(2) and rmdir(2).

use bkfs_fuse::{
    AttributeChange, Caller, Created, Entry, FileKind, Forget, OpenFlags, RenameMode, Stat,
    TimeChange, XattrMode,
};
use bytes::Bytes;

use crate::tree::item::{MAX_SYMLINK_BYTES, Timestamp};
use crate::vfs::convert;
use crate::vfs::lookup::names_key;
use crate::vfs::numbers::{CONTROL, CONTROL_DIRECTORY, Number, ROOT, SNAPSHOTS};
use crate::vfs::{CloseMode, Mount, special};
use crate::volume::Volume;
use crate::volume::attributes::{Change, XattrDemand};
use crate::volume::error::VolumeError;
use crate::volume::namespace::{NewInode, RenameTo};
use crate::volume::requests::SnapshotRequest;

/// A name to be made, and the inode that it will lead to.
pub(super) struct Making {
    pub caller: Caller,
    pub parent: Number,
    pub name: Vec<u8>,
    pub kind: FileKind,
    pub permissions: u16,
    pub rdev: u32,
    pub target: Option<Bytes>,
}

impl Mount {
    /// Checks that a name is not one of those that the mount itself shows. Those cannot be made,
    /// removed or moved.
    fn free_name(&self, parent: Number, name: &[u8]) -> Result<(), VolumeError> {
        if parent == CONTROL_DIRECTORY || (parent == ROOT && special::in_root(name, true).is_some())
        {
            return Err(VolumeError::NotPermitted);
        }
        if parent == SNAPSHOTS {
            Err(VolumeError::NotPermitted)
        } else {
            Ok(())
        }
    }

    pub(super) async fn setattr(
        &self,
        number: Number,
        change: AttributeChange,
    ) -> Result<Stat, VolumeError> {
        if number == CONTROL && change.size.is_some() {
            // The `>` of a shell truncates the file before it writes to it.
            return self.getattr(number).await;
        }
        let volume = self.volume_for(number)?;
        let truncates = change.size.is_some();
        let handle = change.handle;
        if truncates {
            self.truncates(number, handle)?;
        }
        let now = volume.now();
        let moment = |time: Option<TimeChange>| -> Option<Timestamp> {
            time.map(|time| match time {
                TimeChange::Now => now,
                TimeChange::At(time) => convert::timestamp(time),
            })
        };
        let change = Change {
            permissions: change.permissions.map(u32::from),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            accessed: moment(change.atime),
            modified: moment(change.mtime),
            kill_privileges: change.kill_privileges,
        };
        let attributes = volume.set_attributes(number.inode, change).await?;
        // Counted again at the end, for a close(2) that ran meanwhile.
        if truncates {
            self.truncates(number, handle)?;
        }
        self.stat_shown(number, &attributes)
    }

    pub(super) async fn make(&self, making: Making) -> Result<Entry, VolumeError> {
        if making.parent == SNAPSHOTS && making.kind == FileKind::Directory {
            return self.make_snapshot(&making.name).await;
        }
        self.free_name(making.parent, &making.name)?;
        let volume = self.volume_for(making.parent)?;
        if making
            .target
            .as_ref()
            .is_some_and(|target| target.len() > MAX_SYMLINK_BYTES)
        {
            return Err(VolumeError::NameTooLong);
        }
        let regular = making.kind == FileKind::Regular;
        let profile = if regular {
            bkfs_chunker::ingest::detect(&making.name, &[])
        } else {
            None
        };
        let new = NewInode {
            mode: making.kind.mode_bits() | u32::from(making.permissions),
            uid: making.caller.uid,
            gid: making.caller.gid,
            device: making.rdev,
            target: making.target,
            profile: profile.map_or(0, |profile| profile as u8),
        };
        let made = volume.make(making.parent.inode, &making.name, new).await?;
        self.entry_of(
            making.parent.with_inode(made.inode),
            making.parent,
            &made.attributes,
        )
    }

    /// Makes a snapshot for `mkdir .snapshots/NAME`. Returns when the snapshot is in the bucket.
    async fn make_snapshot(&self, name: &[u8]) -> Result<Entry, VolumeError> {
        let volume = self.volume().ok_or(VolumeError::ReadOnly)?;
        let name = std::str::from_utf8(name).map_err(|_| VolumeError::Invalid)?;
        if self.history()?.find(name).await.is_ok() {
            return Err(VolumeError::Exists);
        }
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            ..SnapshotRequest::default()
        };
        match volume.snapshot(request).await {
            // Another program made it meanwhile.
            Err(VolumeError::SnapshotName(_)) if self.history()?.find(name).await.is_ok() => {
                Err(VolumeError::Exists)
            }
            Err(error) => Err(error),
            Ok(_) => self.snapshot_entry(name.as_bytes()).await,
        }
    }

    pub(super) async fn create(
        &self,
        making: Making,
        flags: OpenFlags,
    ) -> Result<Created, VolumeError> {
        let (parent, name) = (making.parent, making.name.clone());
        let user = making.caller.uid;
        let (mut entry, is_new) = match self.make(making).await {
            Err(VolumeError::Exists) if !flags.exclusive => {
                match self.lookup(parent, name).await? {
                    bkfs_fuse::Lookup::Found(entry) => (entry, false),
                    bkfs_fuse::Lookup::Absent { .. } => return Err(VolumeError::NotFound),
                }
            }
            made => (made?, true),
        };
        let ino = entry.attributes.ino;
        match self.open(user, Number::of(ino), flags).await {
            Ok(mut opened) => {
                // close(2) treats a new, empty file like one that was written to.
                if is_new {
                    self.handles.wrote(opened.handle);
                } else if flags.truncate {
                    // The kernel has found a name that it did not know of, and its old contents.
                    opened.keep_cache = false;
                    if let Ok(stat) = self.getattr(Number::of(ino)).await {
                        entry.attributes = stat.attributes;
                    }
                }
                Ok(Created { entry, opened })
            }
            Err(error) => {
                // The kernel does not learn of the inode, so it will not give this lookup back.
                for inode in self.forget(&[Forget { ino, lookups: 1 }]) {
                    self.reap(inode).await;
                }
                Err(error)
            }
        }
    }

    pub(super) async fn unlink(&self, parent: Number, name: Vec<u8>) -> Result<(), VolumeError> {
        self.free_name(parent, &name)?;
        self.volume_for(parent)?.unlink(parent.inode, &name).await
    }

    pub(super) async fn rmdir(&self, parent: Number, name: Vec<u8>) -> Result<(), VolumeError> {
        if parent == SNAPSHOTS {
            if !self.current.is_writable() {
                return Err(VolumeError::ReadOnly);
            }
            let name = std::str::from_utf8(&name).map_err(|_| VolumeError::NotFound)?;
            return self.history()?.forget(name).await;
        }
        self.free_name(parent, &name)?;
        self.volume_for(parent)?.rmdir(parent.inode, &name).await
    }

    pub(super) async fn rename(
        &self,
        from: (Number, Vec<u8>),
        to: (Number, Vec<u8>),
        mode: RenameMode,
    ) -> Result<(), VolumeError> {
        self.free_name(from.0, &from.1)?;
        self.free_name(to.0, &to.1)?;
        if from.0.snapshot != to.0.snapshot {
            return Err(VolumeError::CrossesSnapshots);
        }
        let mode = match mode {
            RenameMode::Replace => RenameTo::Anything,
            RenameMode::NoReplace => RenameTo::Nothing,
            RenameMode::Exchange => RenameTo::Exchange,
        };
        let volume = self.volume_for(from.0)?;
        volume
            .rename((from.0.inode, &from.1), (to.0.inode, &to.1), mode)
            .await?;
        // The new name of a file that was closed under another one is as good as a close.
        if self.close != CloseMode::Async {
            volume.fsync_within();
        }
        if from.0 != to.0 {
            // The kernel does not look up a name that it has moved itself.
            self.note_moved(&volume, to.0, &to.1).await;
            if mode == RenameTo::Exchange {
                self.note_moved(&volume, from.0, &from.1).await;
            }
        }
        Ok(())
    }

    /// Notes the new parent directory of the inode that a name leads to.
    async fn note_moved(&self, volume: &Volume, directory: Number, name: &[u8]) {
        let Ok(key) = names_key(&volume.view, directory.inode, name) else {
            return;
        };
        // If the name cannot be read, or is gone again, the noted parent stays as it was.
        if let Ok(Some(inode)) = self.find(&volume.view, &key).await {
            volume.usage().moved(inode, directory.inode);
        }
    }

    pub(super) async fn link(
        &self,
        number: Number,
        parent: Number,
        name: Vec<u8>,
    ) -> Result<Entry, VolumeError> {
        self.free_name(parent, &name)?;
        if number.snapshot != parent.snapshot {
            return Err(VolumeError::CrossesSnapshots);
        }
        if number.is_special() {
            return Err(VolumeError::NotPermitted);
        }
        let linked = self
            .volume_for(parent)?
            .link(number.inode, parent.inode, &name)
            .await?;
        self.entry_of(number, parent, &linked.attributes)
    }

    pub(super) async fn setxattr(
        &self,
        number: Number,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), VolumeError> {
        let demand = match mode {
            XattrMode::Any => XattrDemand::Nothing,
            XattrMode::Create => XattrDemand::Absent,
            XattrMode::Replace => XattrDemand::Present,
        };
        self.volume_for(number)?
            .set_xattr(number.inode, &name, &value, demand)
            .await
    }

    pub(super) async fn removexattr(
        &self,
        number: Number,
        name: Vec<u8>,
    ) -> Result<(), VolumeError> {
        self.volume_for(number)?
            .remove_xattr(number.inode, &name)
            .await
    }
}
