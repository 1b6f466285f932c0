//! A file that arrives whole.
//!
//! Owns: the one step that makes it, writes it, gives it its attributes and its name. Does not own:
//! files that arrive as a stream (`deposit`), nor how the source is read (`put_tree`).

use std::sync::Arc;

use bytes::Bytes;

use crate::extents::MAX_FILE_BYTES;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::capturing::LiveState;
use crate::volume::error::VolumeError;
use crate::volume::namespace::name_item;
use crate::volume::stamp::Stamp;
use crate::volume::transaction::Transaction;

/// A regular file and where it goes.
#[derive(Debug)]
pub struct WholeFile<'a> {
    /// The inode of its directory.
    pub directory: u64,
    /// Its name there.
    pub name: &'a [u8],
    /// All of its bytes.
    pub contents: Bytes,
    /// How it is split, as [`Attributes::profile`].
    pub profile: u8,
    /// Its attributes. Their size is that of the contents.
    pub stamp: &'a Stamp,
}

impl Volume {
    /// Makes a file with its contents, attributes and name, and replaces a file that has the name.
    /// Returns its inode. Waits while more is in flight than the memory budget allows.
    ///
    /// Cancel safety: dropped, it has made nothing; an inode number may be used up.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] if the name is that of a directory;
    /// [`VolumeError::NotDirectory`], [`VolumeError::NotFound`], [`VolumeError::NameTooLong`] or
    /// [`VolumeError::Malformed`] if `directory` cannot hold the name; [`VolumeError::Stale`] if it
    /// is gone; [`VolumeError::TooLarge`] beyond [`MAX_FILE_BYTES`]; [`VolumeError::NoNumberLeft`]
    /// if all inode numbers are given out. As [`Volume::writable`] and
    /// [`View::transact`](crate::volume::view::View::transact).
    pub async fn put_whole(self: &Arc<Self>, file: WholeFile<'_>) -> Result<u64, VolumeError> {
        let length = file.contents.len() as u64;
        if length > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge);
        }
        self.writable_with(length).await?;
        let now = self.now();
        let inode = self.next_inode()?;
        let stamp = file.stamp;
        let attributes = Attributes {
            mode: stamp.mode,
            uid: stamp.uid,
            gid: stamp.gid,
            links: 1,
            size_bytes: length,
            accessed: stamp.accessed,
            modified: stamp.modified,
            changed: stamp.changed,
            profile: file.profile,
            flags: stamp.flags,
            ..Attributes::default()
        };
        let make = |run: &mut Transaction<'_>| {
            let mut place = self.place(run, file.directory, file.name)?;
            self.replace_at(run, &mut place, now)?;
            run.make_inode(inode);
            run.set_attributes(inode, attributes);
            for (name, value) in stamp.xattrs.iter().flatten() {
                run.set(Key::xattr(inode, name), Some(Item::Xattr(value.clone())));
            }
            run.set(place.key.clone(), Some(name_item(inode, &attributes)));
            Ok(())
        };
        let write = |(): &(), state: &mut LiveState, stamp| {
            if length > 0 {
                state.change_data(inode, 0..length, |ranges| {
                    ranges.write_shared(0, file.contents.clone(), stamp);
                });
            }
        };
        self.view.transact_with(make, write).await?;
        if length > 0 {
            self.wrote(inode, 0..length);
        }
        Ok(inode)
    }
}
