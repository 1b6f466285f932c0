//! Attributes of an inode as they are at its source.
//!
//! Owns: the change that sets all of them, the time of change included, which no system call sets.
//! Does not own: how the source is read (`put_tree`).

use std::sync::Arc;

use bytes::Bytes;

use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::error::VolumeError;

/// The attributes that an inode gets.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The size of a regular file in bytes, if it ends with a hole.
    pub size_bytes: Option<u64>,
    /// Time of the last read.
    pub accessed: Timestamp,
    /// Time of the last change of contents.
    pub modified: Timestamp,
    /// Time of the last change of the inode.
    pub changed: Timestamp,
    /// Flag bits.
    pub flags: u64,
    /// The extended attributes; none to keep those that it has.
    pub xattrs: Option<Vec<(Vec<u8>, Bytes)>>,
}

impl Stamp {
    /// Returns the stamp that gives an inode these attributes and leaves its extended ones.
    pub fn of(attributes: &Attributes) -> Stamp {
        Stamp {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            size_bytes: None,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            flags: attributes.flags,
            xattrs: None,
        }
    }
}

impl Volume {
    /// Sets the attributes of an inode, all in one step.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::Stale`] if the inode is gone; [`VolumeError::AttributeTooLarge`] or
    /// [`VolumeError::Malformed`] if its extended attributes cannot be listed. As
    /// [`Volume::writable`] and [`View::transact`](crate::volume::view::View::transact).
    pub async fn stamp(self: &Arc<Self>, inode: u64, stamp: &Stamp) -> Result<(), VolumeError> {
        self.writable().await?;
        let before = match &stamp.xattrs {
            Some(_) => self.view.xattrs(inode).await?,
            None => Vec::new(),
        };
        let wanted = stamp.xattrs.as_deref().unwrap_or_default();
        self.view
            .transact(|run| {
                let mut attributes = run.attributes(inode)?;
                attributes.mode = stamp.mode;
                attributes.uid = stamp.uid;
                attributes.gid = stamp.gid;
                attributes.size_bytes = stamp.size_bytes.unwrap_or(attributes.size_bytes);
                attributes.accessed = stamp.accessed;
                attributes.modified = stamp.modified;
                attributes.changed = stamp.changed;
                attributes.flags = stamp.flags;
                run.set_attributes(inode, attributes);
                for name in &before {
                    if !wanted.iter().any(|(wanted, _)| wanted == name) {
                        run.set(Key::xattr(inode, name), None);
                    }
                }
                for (name, value) in wanted {
                    run.set(Key::xattr(inode, name), Some(Item::Xattr(value.clone())));
                }
                Ok(())
            })
            .await
    }
}
