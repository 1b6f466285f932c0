//! Looking: lookup, getattr, readlink, statfs, extended attributes.

use std::time::Duration;

use bkfs_fuse::{Attributes as Shown, Entry, FileKind, Forget, Lookup, Stat, Statistics};
use bytes::Bytes;

use crate::tree::item::{Attributes, Item};
use crate::tree::key::{Key, MAX_NAME_BYTES};
use crate::vfs::convert;
use crate::vfs::numbers::{self, CONTROL_DIRECTORY, Number, ROOT, SNAPSHOTS};
use crate::vfs::{Mount, special};
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Size of the bucket as statfs(2) shows it beyond what is used, in bytes: buckets have no end, tools want one.
const ROOM_BYTES: u64 = 1 << 50;

/// The unit of statfs(2), in bytes.
const STATFS_BLOCK_BYTES: u32 = 4096;

impl Mount {
    pub(super) async fn lookup(
        &self,
        parent: Number,
        name: Vec<u8>,
    ) -> Result<Lookup, VolumeError> {
        if parent == ROOT
            && let Some(number) = special::in_root(&name, self.history().is_ok())
        {
            return Ok(self.special_entry(number)?.into());
        }
        match parent {
            SNAPSHOTS => return Ok(self.snapshot_entry(&name).await?.into()),
            CONTROL_DIRECTORY => {
                let file = special::CONTROL_FILES
                    .iter()
                    .find(|(file, _)| file.as_bytes() == name);
                let (_, number) = file.ok_or(VolumeError::NotFound)?;
                return Ok(self.special_entry(*number)?.into());
            }
            _ => {}
        }
        let view = self.view_of(parent)?;
        match find(&view, &self.names_key(parent.inode, &name)?).await? {
            Some(inode) => Ok(self.entry(&view, parent, inode).await?.into()),
            None => Ok(Lookup::Absent {
                ttl: self.lifetimes_of(parent).names,
            }),
        }
    }

    pub(super) fn names_key(&self, directory: u64, name: &[u8]) -> Result<Key, VolumeError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(VolumeError::NameTooLong);
        }
        Ok(Key::name(
            directory,
            self.current.view().nodes().names().cookie(name),
            name,
        ))
    }

    async fn entry(&self, view: &View, parent: Number, inode: u64) -> Result<Entry, VolumeError> {
        let attributes = view.attributes(Scope::Live, inode).await?;
        self.entry_of(parent.with_inode(inode), parent, &attributes)
    }

    /// An entry, counted as a lookup.
    pub(super) fn entry_of(
        &self,
        number: Number,
        parent: Number,
        attributes: &Attributes,
    ) -> Result<Entry, VolumeError> {
        let shown = self.shown(number, attributes)?;
        self.looked_up(number, parent, shown.kind == FileKind::Directory);
        Ok(convert::entry(
            shown,
            self.lifetimes_shown(number, attributes),
        ))
    }

    pub(super) fn looked_up(&self, number: Number, parent: Number, is_directory: bool) {
        match (self.volume(), number.snapshot) {
            (Some(volume), 0) => volume.usage().looked_up(number.inode, parent.inode),
            _ if is_directory => self.ancestry.looked_up(number, parent),
            _ => {}
        }
    }

    pub(super) fn shown(
        &self,
        number: Number,
        attributes: &Attributes,
    ) -> Result<Shown, VolumeError> {
        let dirty = match (self.volume(), number.snapshot) {
            (Some(volume), 0) => volume.dirty_bytes(number.inode),
            _ => 0,
        };
        convert::attributes(number, attributes, dirty)
    }

    pub(super) fn special_entry(&self, number: Number) -> Result<Entry, VolumeError> {
        let shown = special::attributes(number, &self.owner, self.volume().is_none())?;
        Ok(convert::entry(shown, self.lifetimes))
    }

    /// `.snapshots/NAME`: the name may lead elsewhere at any time, what lies below it never changes.
    pub(super) async fn snapshot_entry(&self, name: &[u8]) -> Result<Entry, VolumeError> {
        let name = std::str::from_utf8(name).map_err(|_| VolumeError::NotFound)?;
        let shelf = self.history()?.find(name).await?;
        let number = Number {
            snapshot: shelf.number,
            inode: ROOT_INODE,
        };
        let attributes = shelf.view.attributes(Scope::Live, ROOT_INODE).await?;
        self.shelves.lock().insert(shelf.number, shelf);
        let mut entry = self.entry_of(number, SNAPSHOTS, &attributes)?;
        entry.entry_ttl = Duration::ZERO;
        Ok(entry)
    }

    pub(super) fn forget(&self, forgets: &[Forget]) -> Vec<u64> {
        for forget in forgets {
            self.ancestry.forgot(Number::of(forget.ino), forget.lookups);
        }
        let Some(volume) = self.volume() else {
            return Vec::new();
        };
        let unused = |forget: &Forget| {
            let number = Number::of(forget.ino);
            let live = number.snapshot == 0 && !number.is_special();
            (live && volume.usage().forgot(number.inode, forget.lookups)).then_some(number.inode)
        };
        forgets
            .iter()
            .filter_map(unused)
            .filter(|inode| volume.is_orphan(*inode))
            .collect()
    }

    pub(super) async fn getattr(&self, number: Number) -> Result<Stat, VolumeError> {
        if number.is_special() {
            let shown = special::attributes(number, &self.owner, self.volume().is_none())?;
            return Ok(convert::stat(shown, self.lifetimes));
        }
        let attributes = self
            .view_of(number)?
            .attributes(Scope::Live, number.inode)
            .await?;
        Ok(convert::stat(
            self.shown(number, &attributes)?,
            self.lifetimes_shown(number, &attributes),
        ))
    }

    pub(super) async fn readlink(&self, number: Number) -> Result<Bytes, VolumeError> {
        match self
            .view_of(number)?
            .item(Scope::Live, &Key::symlink(number.inode))
            .await?
        {
            Some(Item::Symlink(target)) => Ok(target),
            Some(_) => Err(VolumeError::Malformed {
                inode: number.inode,
            }),
            None => Err(VolumeError::Invalid),
        }
    }

    pub(super) async fn getxattr(
        &self,
        number: Number,
        name: Vec<u8>,
    ) -> Result<Bytes, VolumeError> {
        if number.is_special() {
            return Err(VolumeError::NoAttribute);
        }
        self.view_of(number)?.xattr(number.inode, &name).await
    }

    pub(super) async fn listxattr(&self, number: Number) -> Result<Vec<Vec<u8>>, VolumeError> {
        if number.is_special() {
            return Ok(Vec::new());
        }
        self.view_of(number)?.xattrs(number.inode).await
    }

    pub(super) fn statfs(&self) -> Statistics {
        let totals = self.current.view().totals();
        let block = u64::from(STATFS_BLOCK_BYTES);
        let free = ROOM_BYTES / block;
        Statistics {
            block_size: STATFS_BLOCK_BYTES,
            blocks: free + totals.bytes.div_ceil(block),
            blocks_free: free,
            blocks_available: free,
            files: totals.inodes + (1 << 32),
            files_free: 1 << 32,
            name_max: MAX_NAME_BYTES as u32,
        }
    }

    /// The number of `..` of a directory.
    pub(super) fn parent_of(&self, number: Number) -> Number {
        match number {
            numbers::ROOT | SNAPSHOTS | CONTROL_DIRECTORY => ROOT,
            Number {
                snapshot,
                inode: ROOT_INODE,
            } if snapshot != 0 => SNAPSHOTS,
            _ => match (self.volume(), number.snapshot) {
                (Some(volume), 0) => {
                    let parent = volume.usage().parent(number.inode);
                    number.with_inode(parent.unwrap_or(number.inode))
                }
                _ => self.ancestry.parent(number).unwrap_or(number),
            },
        }
    }
}

/// Where a name leads.
pub(super) async fn find(view: &View, key: &Key) -> Result<Option<u64>, VolumeError> {
    match view.item(Scope::Live, key).await? {
        Some(Item::Name { inode, .. }) => Ok(Some(inode)),
        Some(_) => Err(VolumeError::Malformed {
            inode: key.inode().unwrap_or(0),
        }),
        None => Ok(None),
    }
}
