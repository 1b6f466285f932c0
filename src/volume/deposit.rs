//! A file that comes in one stream: stored as it arrives, without a name until it is whole.
//!
//! Owns: the inode's life before it has its name, and the step that gives it one. Does not own: where the bytes come from (`stream`), how they are cut (the chunker).
//!
//! Until it is named the inode is an orphan, like an unlinked file that somebody has open: commits carry it, no path leads to it, and what a crash leaves of it is
//! reaped by whoever writes the volume next. Bytes go to the chunker without passing through the layers, so they take no memory beside the stream's own.

use bytes::Bytes;

use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::Key;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::flush::new_extents;
use crate::volume::mode;
use crate::volume::namespace::{NewInode, name_item, touch_directory};
use crate::volume::state::Scope;

impl Volume {
    /// Makes a regular file that has no name yet.
    pub async fn begin_deposit(&self, new: &NewInode) -> Result<u64, VolumeError> {
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
                run.count_inode();
                run.set_attributes(inode, attributes);
                run.set(Key::orphan(inode), Some(Item::Orphan));
                Ok(())
            })
            .await?;
        Ok(inode)
    }

    /// Stores what follows the first `offset` bytes of a deposit, which nobody else touches; waits while more is under way than the memory allows.
    ///
    /// Returns how many bytes were taken: without `is_end` an incomplete segment is left, to be given again with more behind it.
    pub async fn deposit(
        &self,
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

    /// Gives a deposit its name, in place of any file that has it. From now on it is a file like any other.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] if the name is a directory's; the deposit stays as it was.
    pub async fn name_deposit(
        &self,
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
                if let Some((there, _)) = place.holds {
                    let victim = run.attributes(there)?;
                    if mode::is_directory(victim.mode) {
                        return Err(VolumeError::IsDirectory.into());
                    }
                    self.unname(run, &mut place, there, victim, now)?;
                    touch_directory(run, &mut place, -1, now);
                }
                touch_directory(run, &mut place, 1, now);
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
    pub async fn drop_deposit(&self, inode: u64) -> Result<(), VolumeError> {
        self.usage().closed(inode);
        self.reap(inode).await
    }
}
