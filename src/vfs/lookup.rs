//! Requests that only read: lookup, getattr, readlink, statfs, extended attributes.

use std::time::Duration;

use bkfs_fuse::{Attributes as Shown, Entry, FileKind, Forget, Lookup, Stat, Statistics};
use bytes::Bytes;

use crate::fault;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{Key, KeyParts, MAX_NAME_BYTES};
use crate::vfs::convert::{self, Lifetimes};
use crate::vfs::numbers::{self, CONTROL_DIRECTORY, Number, ROOT, SNAPSHOTS};
use crate::vfs::{Mount, special};
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Free space that statfs(2) shows, in bytes. A bucket has no size, but programs need one.
const ROOM_BYTES: u64 = 1 << 50;

/// The block size of statfs(2), in bytes.
const STATFS_BLOCK_BYTES: u32 = 4096;

impl Mount {
    pub(super) async fn lookup(
        &self,
        parent: Number,
        name: Vec<u8>,
    ) -> Result<Lookup, VolumeError> {
        match name.as_slice() {
            b"." => return self.itself(parent).await,
            b".." => {
                let above = self.known_parent_of(parent).ok_or(VolumeError::Stale)?;
                return self.itself(above).await;
            }
            _ => {}
        }
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
        let view = self.view_of(parent).await?;
        let key = names_key(&view, parent.inode, &name)?;
        match self.find(&view, &key).await? {
            Some(inode) => Ok(self
                .entry(&view, parent, parent.named(inode)?)
                .await?
                .into()),
            None => Ok(Lookup::Absent {
                ttl: self.lifetimes_of(parent).names,
            }),
        }
    }

    /// Answers a lookup by number, for an inode that a file handle still refers to although the
    /// kernel may have forgotten it.
    async fn itself(&self, number: Number) -> Result<Lookup, VolumeError> {
        if number.is_special() {
            return Ok(self.special_entry(number)?.into());
        }
        let view = self.view_of(number).await?;
        let attributes = view.attributes(Scope::Live, number.inode).await?;
        let unknown = number.with_inode(0);
        let parent = self.known_parent_of(number).unwrap_or(unknown);
        Ok(self.entry_of(number, parent, &attributes)?.into())
    }

    async fn entry(
        &self,
        view: &View,
        parent: Number,
        number: Number,
    ) -> Result<Entry, VolumeError> {
        let attributes = view.attributes(Scope::Live, number.inode).await?;
        self.entry_of(number, parent, &attributes)
    }

    /// Returns an entry, and counts it as a lookup.
    pub(super) fn entry_of(
        &self,
        number: Number,
        parent: Number,
        attributes: &Attributes,
    ) -> Result<Entry, VolumeError> {
        let entry = self.entry_shown(number, attributes)?;
        let is_directory = entry.attributes.kind == FileKind::Directory;
        self.looked_up(number, parent, is_directory);
        Ok(entry)
    }

    /// Returns an entry that is not counted as a lookup.
    pub(super) fn entry_shown(
        &self,
        number: Number,
        attributes: &Attributes,
    ) -> Result<Entry, VolumeError> {
        let (shown, lifetimes) = self.shown(number, attributes)?;
        Ok(convert::entry(shown, lifetimes))
    }

    pub(super) fn looked_up(&self, number: Number, parent: Number, is_directory: bool) {
        match self.volume_of(number) {
            Some(volume) => volume.usage().looked_up(number.inode, parent.inode),
            None if is_directory => self.ancestry.looked_up(number, parent),
            None => {}
        }
    }

    /// Returns the attributes of an inode as stat(2) shows them now.
    pub(super) fn stat_shown(
        &self,
        number: Number,
        attributes: &Attributes,
    ) -> Result<Stat, VolumeError> {
        let (shown, lifetimes) = self.shown(number, attributes)?;
        Ok(convert::stat(shown, lifetimes))
    }

    /// Returns the attributes of an inode as they are shown now, and for how long the kernel may keep
    /// them. Both follow from one look at the volume.
    fn shown(
        &self,
        number: Number,
        attributes: &Attributes,
    ) -> Result<(Shown, Lifetimes), VolumeError> {
        let (attributes, dirty) = match self.volume_of(number) {
            // An empty file has no dirty bytes.
            Some(volume) if attributes.size_bytes > 0 => volume.newest(number.inode, attributes),
            _ => (*attributes, 0),
        };
        let shown = convert::attributes(number, &attributes, dirty)?;
        Ok((shown, self.lifetimes_shown(number, &attributes, dirty)))
    }

    pub(super) fn special_entry(&self, number: Number) -> Result<Entry, VolumeError> {
        let shown = special::attributes(number, &self.owner, !self.current.is_writable())?;
        Ok(convert::entry(shown, self.lifetimes))
    }

    /// Returns the entry of `.snapshots/NAME`. The name may lead to another snapshot at any time,
    /// so its lifetime is 0; the tree below it never changes.
    pub(super) async fn snapshot_entry(&self, name: &[u8]) -> Result<Entry, VolumeError> {
        let name = std::str::from_utf8(name).map_err(|_| VolumeError::NotFound)?;
        let shelf = self.history()?.find(name).await?;
        let number = Number {
            snapshot: shelf.number,
            inode: ROOT_INODE,
        };
        let attributes = shelf.view.attributes(Scope::Live, ROOT_INODE).await?;
        self.shelves.keep(shelf);
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

    /// Drops an inode that [`Mount::forget`] returned.
    pub(super) async fn reap(&self, inode: u64) {
        if let Some(volume) = self.volume()
            && let Err(error) = volume.reap(inode).await
        {
            tracing::warn!("inode {inode} stays behind until the next mount: {error}");
        }
    }

    pub(super) async fn getattr(&self, number: Number) -> Result<Stat, VolumeError> {
        if number.is_special() {
            let shown = special::attributes(number, &self.owner, !self.current.is_writable())?;
            return Ok(convert::stat(shown, self.lifetimes));
        }
        let view = self.view_of(number).await?;
        let attributes = match view.attributes(Scope::Live, number.inode).await {
            // The inode is gone from the volume, and open here.
            Err(VolumeError::Stale) if self.follows() => {
                let view = self.handles.view_of(number).ok_or(VolumeError::Stale)?;
                view.attributes(Scope::Live, number.inode).await?
            }
            attributes => attributes?,
        };
        self.stat_shown(number, &attributes)
    }

    pub(super) async fn readlink(&self, number: Number) -> Result<Bytes, VolumeError> {
        match self
            .view_of(number)
            .await?
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
        self.view_of(number).await?.xattr(number.inode, &name).await
    }

    pub(super) async fn listxattr(&self, number: Number) -> Result<Vec<Vec<u8>>, VolumeError> {
        if number.is_special() {
            return Ok(Vec::new());
        }
        self.view_of(number).await?.xattrs(number.inode).await
    }

    pub(super) fn statfs(&self) -> Statistics {
        let totals = self.current.view().totals();
        let dirty = self.volume().map_or(0, |volume| volume.all_dirty_bytes());
        let used = totals.bytes.saturating_add(dirty);
        let block = u64::from(STATFS_BLOCK_BYTES);
        let free = ROOM_BYTES / block;
        Statistics {
            block_size: STATFS_BLOCK_BYTES,
            blocks: free.saturating_add(used.div_ceil(block)),
            blocks_free: free,
            blocks_available: free,
            files: totals.inodes.saturating_add(1 << 32),
            files_free: 1 << 32,
            name_max: MAX_NAME_BYTES as u32,
        }
    }

    /// Returns the number of `..` of a directory; the directory's own number if its parent is not
    /// known.
    pub(super) fn parent_of(&self, number: Number) -> Number {
        self.known_parent_of(number).unwrap_or(number)
    }

    fn known_parent_of(&self, number: Number) -> Option<Number> {
        match number {
            numbers::ROOT | SNAPSHOTS | CONTROL_DIRECTORY => Some(ROOT),
            Number {
                snapshot,
                inode: ROOT_INODE,
            } if snapshot != 0 => Some(SNAPSHOTS),
            _ => match self.volume_of(number) {
                Some(volume) => {
                    let parent = volume.usage().parent(number.inode);
                    parent.map(|parent| number.with_inode(parent))
                }
                None => self.ancestry.parent(number),
            },
        }
    }

    /// Returns the inode that a name leads to. A name that leads to a number that no file can have
    /// is hidden, because the kernel would take the number for another inode's.
    pub(super) async fn find(&self, view: &View, key: &Key) -> Result<Option<u64>, VolumeError> {
        match view.item(Scope::Live, key).await? {
            Some(Item::Name { inode, .. }) => match fault::of_inode(inode) {
                None => Ok(Some(inode)),
                Some(fault) => {
                    if let Ok(KeyParts::Name {
                        directory, name, ..
                    }) = key.parse()
                        && self.hidden.is_news(directory, name)
                    {
                        tracing::warn!("a name is hidden: {key:?}: {fault}");
                    }
                    Ok(None)
                }
            },
            Some(_) => Err(VolumeError::Malformed {
                inode: key.inode().unwrap_or(0),
            }),
            None => Ok(None),
        }
    }
}

/// Returns the key of a name in a directory of the view.
pub(super) fn names_key(view: &View, directory: u64, name: &[u8]) -> Result<Key, VolumeError> {
    if name.len() > MAX_NAME_BYTES {
        return Err(VolumeError::NameTooLong);
    }
    let cookie = view.nodes().names().cookie(name);
    Ok(Key::name(directory, cookie, name))
}
