//! A deposit: a file that arrives as one stream and is stored as it arrives. It has no name until
//! it is complete.
//!
//! Owns: the life of the inode before it has its name, and the step that gives it one. Does not
//! own: the source of the bytes (`stream`), how they are split (the chunker).
//!
//! Until it is named, the inode is an orphan, like an unlinked file that is still open: commits
//! carry it, no path leads to it, and after a crash the next writer of the volume drops it. The
//! bytes go to the chunker without the layers, so they take no memory except that of the stream
//! itself.

use std::sync::Arc;

use bytes::Bytes;

use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::flush::new_extents;
use crate::volume::namespace::{NewInode, name_item};
use crate::volume::state::Scope;

impl Volume {
    /// Makes a regular file without a name, and returns its inode.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::NoNumberLeft`] if all inode numbers are given out. As [`Volume::writable`]
    /// and [`View::transact`](crate::volume::view::View::transact).
    pub async fn begin_deposit(self: &Arc<Self>, new: &NewInode) -> Result<u64, VolumeError> {
        self.writable().await?;
        let now = self.now();
        let inode = self.next_inode()?;
        self.usage().opened(inode);
        self.orphans.lock().insert(inode);
        let attributes = Attributes {
            mode: new.mode,
            uid: new.uid,
            gid: new.gid,
            accessed: now,
            modified: now,
            changed: now,
            profile: new.profile,
            ..Attributes::default()
        };
        self.view
            .transact(|run| {
                run.make_inode(inode);
                run.set_attributes(inode, attributes);
                run.set(Key::orphan(inode), Some(Item::Orphan));
                Ok(())
            })
            .await?;
        Ok(inode)
    }

    /// Stores the bytes that follow the first `offset` bytes of a deposit. Only one caller may work
    /// on the deposit. Waits while more is in flight than the memory budget allows.
    ///
    /// Returns the number of bytes that were taken. Without `is_end`, an incomplete segment at the
    /// end is left over; the caller passes it again with more bytes after it.
    ///
    /// Cancel safety: dropped, it may leave the file's size grown, without the bytes; the caller
    /// passes them again or drops the deposit.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] if the bytes cannot be stored; [`VolumeError::Tree`] if
    /// extents are malformed; [`VolumeError::Stale`] if the inode is gone. As [`Volume::writable`]
    /// and [`View::transact`](crate::volume::view::View::transact).
    pub async fn deposit(
        self: &Arc<Self>,
        inode: u64,
        offset: u64,
        run: Bytes,
        is_end: bool,
    ) -> Result<u64, VolumeError> {
        self.writable().await?;
        // No cut between storing and placing: references made before a cut belong to its commit.
        let _no_cut = self.cut_gate.read().await;
        let attributes = self.grow_deposit(inode, offset + run.len() as u64).await?;
        let epoch = self.view.state()?.lock().active.epoch;
        let run = vec![run];
        let profile = self.profile(inode, epoch, &attributes, offset, &run)?;
        let stored = self
            .ingest()
            .store_run(profile, offset, run, is_end)
            .await?;
        let taken = stored.consumed as u64;
        let range = offset..offset + taken;
        self.replace_extents(inode, epoch, Scope::Live, range, &new_extents(&stored))
            .await?;
        Ok(taken)
    }

    async fn grow_deposit(&self, inode: u64, size: u64) -> Result<Attributes, VolumeError> {
        self.view
            .transact(|run| {
                let mut attributes = run.attributes(inode)?;
                attributes.size_bytes = size;
                run.set_attributes(inode, attributes);
                Ok(attributes)
            })
            .await
    }

    /// Gives a deposit its name, and replaces a file that has it. The deposit is then a regular
    /// file like any other.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] if the name is that of a directory; the deposit stays as it
    /// was. [`VolumeError::NotDirectory`], [`VolumeError::NotFound`], [`VolumeError::NameTooLong`]
    /// or [`VolumeError::Malformed`] if `directory` cannot hold the name; [`VolumeError::Stale`] if
    /// an inode is gone. As [`Volume::writable`] and
    /// [`View::transact`](crate::volume::view::View::transact).
    pub async fn name_deposit(
        self: &Arc<Self>,
        inode: u64,
        directory: u64,
        name: &[u8],
        modified: Timestamp,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        let now = self.now();
        self.view
            .transact(|run| {
                let mut place = self.place(run, directory, name)?;
                let mut attributes = run.attributes(inode)?;
                self.replace_at(run, &mut place, now)?;
                attributes.links = 1;
                attributes.modified = modified;
                attributes.changed = now;
                run.set(place.key.clone(), Some(name_item(inode, &attributes)));
                run.set(Key::orphan(inode), None);
                run.set_attributes(inode, attributes);
                Ok(())
            })
            .await?;
        self.orphans.lock().remove(&inode);
        self.usage().closed(inode);
        Ok(())
    }

    /// Drops a deposit that does not become a file.
    ///
    /// Cancel safety: dropped, it leaves an orphan, which the next mount of the volume drops.
    ///
    /// # Errors
    /// As [`View::transact`](crate::volume::view::View::transact).
    pub async fn drop_deposit(&self, inode: u64) -> Result<(), VolumeError> {
        self.usage().closed(inode);
        self.reap(inode).await
    }
}
