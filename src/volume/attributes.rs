//! Owns: the changes that setattr and the xattr calls make. Does not own: permission checks. The
//! kernel makes them, also for `trusted.` attributes.

use std::sync::Arc;

use bytes::Bytes;

use crate::tree::item::{Attributes, Item, MAX_XATTR_BYTES, Timestamp};
use crate::tree::key::{self, ItemKind, Key, KeyParts, MAX_NAME_BYTES};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::transaction::{Step, Transaction};
use crate::volume::view::View;

/// Maximum total length of the names that listxattr(2) returns, in bytes, each with its final NUL.
/// The kernel takes no more.
pub const XATTR_LIST_BYTES_MAX: usize = 64 * 1024;

/// The attribute in which the kernel keeps file capabilities. It is removed when the contents or
/// the owner change.
const CAPABILITY: &[u8] = b"security.capability";

/// The changes of a setattr; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change {
    /// Permission bits, `0 … 0o7777`.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub accessed: Option<Timestamp>,
    /// Time of the last change of contents.
    pub modified: Option<Timestamp>,
    /// Clears set-user-id and set-group-id.
    pub kill_privileges: bool,
}

/// The condition under which setxattr(2) sets an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrDemand {
    /// Always.
    Nothing,
    /// The attribute does not exist.
    Absent,
    /// The attribute exists.
    Present,
}

impl Volume {
    /// Changes attributes, all or none, and returns the new ones.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`], [`VolumeError::Invalid`] or [`VolumeError::TooLarge`] if the
    /// size cannot be set; [`VolumeError::Stale`] if the inode is gone. As [`Volume::writable`] and
    /// [`View::transact`].
    pub async fn set_attributes(
        self: &Arc<Self>,
        inode: u64,
        change: Change,
    ) -> Result<Attributes, VolumeError> {
        self.writable().await?;
        let now = self.clock.now();
        let attributes = self
            .view
            .transact(|run| self.change_attributes(run, inode, change, now))
            .await?;
        if change.size.is_some() {
            self.relieve();
        }
        Ok(attributes)
    }

    fn change_attributes(
        &self,
        run: &mut Transaction<'_>,
        inode: u64,
        change: Change,
        now: Timestamp,
    ) -> Step<Attributes> {
        let mut attributes = run.attributes(inode)?;
        attributes.changed = now;
        if let Some(size) = change.size {
            self.resize(run, inode, &mut attributes, size, now)?;
        }
        let new_owner = change.uid.is_some() || change.gid.is_some();
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        let changes_hands = new_owner && !mode::is_directory(attributes.mode);
        if changes_hands || change.kill_privileges {
            attributes.mode = mode::without_privileges(attributes.mode);
        }
        if changes_hands || change.size.is_some() {
            let capability = Key::xattr(inode, CAPABILITY);
            if run.get(&capability)?.is_some() {
                run.set(capability, None);
            }
        }
        if let Some(permissions) = change.permissions {
            attributes.mode = attributes.mode & libc::S_IFMT | permissions & 0o7777;
        }
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        run.set_attributes(inode, attributes);
        Ok(attributes)
    }

    /// Removes the file capabilities of an inode, as a change of its contents demands. The kernel
    /// leaves this to the filesystem.
    ///
    /// They are looked up only at the first change since the inode came into use, or since they
    /// were set.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`Volume::writable`] and [`View::transact`].
    pub async fn drop_capabilities(self: &Arc<Self>, inode: u64) -> Result<(), VolumeError> {
        if self.usage.is_bare(inode) {
            return Ok(());
        }
        self.writable().await?;
        let key = Key::xattr(inode, CAPABILITY);
        self.view
            .transact(|run| {
                if run.get(&key)?.is_some() {
                    run.set(key.clone(), None);
                }
                self.usage.set_bare(inode, true);
                Ok(())
            })
            .await
    }

    /// Sets an extended attribute.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// - [`VolumeError::AttributeTooLarge`] if the value is longer than [`MAX_XATTR_BYTES`].
    /// - [`VolumeError::Invalid`] if the name is empty or too long, [`VolumeError::NotSupported`]
    ///   if it begins with `system.`.
    /// - [`VolumeError::Exists`] or [`VolumeError::NoAttribute`] if `demand` is not met.
    /// - [`VolumeError::Stale`] if the inode is gone.
    /// - As [`Volume::writable`] and [`View::transact`].
    pub async fn set_xattr(
        self: &Arc<Self>,
        inode: u64,
        name: &[u8],
        value: &[u8],
        demand: XattrDemand,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        if value.len() > MAX_XATTR_BYTES {
            return Err(VolumeError::AttributeTooLarge);
        }
        let key = xattr_key(inode, name)?;
        let now = self.clock.now();
        let value = Bytes::copy_from_slice(value);
        self.view
            .transact(|run| {
                let mut attributes = run.attributes(inode)?;
                match (demand, run.get(&key)?.is_some()) {
                    (XattrDemand::Absent, true) => return Err(VolumeError::Exists.into()),
                    (XattrDemand::Present, false) => return Err(VolumeError::NoAttribute.into()),
                    _ => {}
                }
                attributes.changed = now;
                run.set_attributes(inode, attributes);
                run.set(key.clone(), Some(Item::Xattr(value.clone())));
                if name == CAPABILITY {
                    self.usage.set_bare(inode, false);
                }
                Ok(())
            })
            .await
    }

    /// Removes an extended attribute.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::NoAttribute`] if there is none; [`VolumeError::Invalid`] or
    /// [`VolumeError::NotSupported`] for a name as in [`Volume::set_xattr`]; [`VolumeError::Stale`]
    /// if the inode is gone. As [`Volume::writable`] and [`View::transact`].
    pub async fn remove_xattr(
        self: &Arc<Self>,
        inode: u64,
        name: &[u8],
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        let key = xattr_key(inode, name)?;
        let now = self.clock.now();
        self.view
            .transact(|run| {
                let mut attributes = run.attributes(inode)?;
                if run.get(&key)?.is_none() {
                    return Err(VolumeError::NoAttribute.into());
                }
                attributes.changed = now;
                run.set_attributes(inode, attributes);
                run.set(key.clone(), None);
                Ok(())
            })
            .await
    }
}

impl View {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`VolumeError::NoAttribute`] if there is none; [`VolumeError::Invalid`] or
    /// [`VolumeError::NotSupported`] for a name as in [`Volume::set_xattr`];
    /// [`VolumeError::Malformed`] if the item is no attribute. As [`View::item`].
    pub async fn xattr(&self, inode: u64, name: &[u8]) -> Result<Bytes, VolumeError> {
        match self.item(Scope::Live, &xattr_key(inode, name)?).await? {
            Some(Item::Xattr(value)) => Ok(value),
            Some(_) => Err(VolumeError::Malformed { inode }),
            None => Err(VolumeError::NoAttribute),
        }
    }

    /// Returns the names of all extended attributes, without a final NUL.
    ///
    /// # Errors
    /// [`VolumeError::AttributeTooLarge`] if the names, each with a final NUL, are longer than 64
    /// KiB together; [`VolumeError::Malformed`] if a key is no attribute's. As [`View::items`].
    pub async fn xattrs(&self, inode: u64) -> Result<Vec<Vec<u8>>, VolumeError> {
        let mut names = Vec::new();
        let mut total = 0;
        let mut range = key::of_kind(inode, ItemKind::Xattr);
        loop {
            let page = self.items(Scope::Live, range.clone(), 256).await?;
            for (key, _) in &page.items {
                let Ok(KeyParts::Xattr { name, .. }) = key.parse() else {
                    return Err(VolumeError::Malformed { inode });
                };
                total += name.len() + 1;
                if total > XATTR_LIST_BYTES_MAX {
                    return Err(VolumeError::AttributeTooLarge);
                }
                names.push(name.to_vec());
            }
            match page.next {
                Some(next) => range.start = next,
                None => return Ok(names),
            }
        }
    }
}

fn xattr_key(inode: u64, name: &[u8]) -> Result<Key, VolumeError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(VolumeError::Invalid);
    }
    // The kernel handles ACLs only on request. A mount that stored them while nothing enforces them
    // would mislead its users. No system call passes a name with a zero byte: only a forged tree
    // has one.
    if name.starts_with(b"system.") || name.contains(&0) {
        return Err(VolumeError::NotSupported);
    }
    Ok(Key::xattr(inode, name))
}
