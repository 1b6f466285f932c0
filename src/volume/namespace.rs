//! Operations on names: look up, make, link, remove and rename.
//!
//! Owns: the changes of each operation, which are atomic. Does not own: permission checks (the
//! kernel makes them from the attributes that it gets), numbers of snapshots (`vfs`).
//!
//! The size of a directory is its number of names, so one look tells whether it is empty. Its link
//! count is 2 plus the number of its subdirectories.

use std::sync::Arc;

use bytes::Bytes;

use crate::tree::item::{Attributes, Item, Timestamp};
use crate::tree::key::{Key, MAX_NAME_BYTES};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::signed_difference;
use crate::volume::transaction::{Step, Transaction};

/// Maximum number of names of an inode. The limit is that of `nlink_t` in old tools; that of ext4's
/// 16-bit counters does not apply.
const MAX_LINKS: u32 = u32::MAX - 1;

/// The attributes of a new inode.
#[derive(Debug, Clone)]
pub struct NewInode {
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own group.
    pub gid: u32,
    /// Device number of a device.
    pub device: u32,
    /// Target of a symbolic link.
    pub target: Option<Bytes>,
    /// Number of the profile by which the file is split, if its name suggests one; otherwise 0.
    pub profile: u8,
}

/// The condition on the target of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameTo {
    /// Replaces an existing name.
    Anything,
    /// The name must not exist.
    Nothing,
    /// Exchanges the two names, which must both exist.
    Exchange,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The inode that the name leads to.
    pub inode: u64,
    /// The inode's attributes.
    pub attributes: Attributes,
}

/// A name in a directory, within a transaction.
pub(super) struct NameInDirectory {
    directory: u64,
    attributes: Attributes,
    pub(super) key: Key,
    /// Inode and kind of the entry, if the name exists.
    pub(super) holds: Option<(u64, u8)>,
}

impl Volume {
    /// Returns the key of a name.
    ///
    /// # Errors
    /// [`VolumeError::NameTooLong`] if the name is longer than [`MAX_NAME_BYTES`].
    pub fn name_key(&self, directory: u64, name: &[u8]) -> Result<Key, VolumeError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(VolumeError::NameTooLong);
        }
        Ok(Key::name(
            directory,
            self.view.nodes().names().cookie(name),
            name,
        ))
    }

    pub(super) fn place(
        &self,
        run: &Transaction<'_>,
        directory: u64,
        name: &[u8],
    ) -> Step<NameInDirectory> {
        let attributes = run.attributes(directory)?;
        if !mode::is_directory(attributes.mode) {
            return Err(VolumeError::NotDirectory.into());
        }
        if attributes.links == 0 {
            return Err(VolumeError::NotFound.into());
        }
        let key = self.name_key(directory, name)?;
        let holds = match run.get(&key)? {
            None => None,
            Some(Item::Name { inode, file_type }) => Some((inode, file_type)),
            Some(_) => return Err(VolumeError::Malformed { inode: directory }.into()),
        };
        Ok(NameInDirectory {
            directory,
            attributes,
            key,
            holds,
        })
    }

    /// Makes an inode and its name.
    ///
    /// Cancel safety: dropped, it has made nothing; an inode number may be used up.
    ///
    /// # Errors
    /// [`VolumeError::Exists`] if the name exists; [`VolumeError::NotDirectory`],
    /// [`VolumeError::NotFound`], [`VolumeError::NameTooLong`] or [`VolumeError::Malformed`] if
    /// `directory` cannot hold it; [`VolumeError::Stale`] if `directory` is gone;
    /// [`VolumeError::NoNumberLeft`] if all inode numbers are given out. As [`Volume::writable`]
    /// and [`View::transact`](crate::volume::view::View::transact).
    pub async fn make(
        self: &Arc<Self>,
        directory: u64,
        name: &[u8],
        new: NewInode,
    ) -> Result<Entry, VolumeError> {
        self.writable().await?;
        let now = self.clock.now();
        let inode = self.next_inode()?;
        self.view
            .transact(|run| {
                let mut place = self.place(run, directory, name)?;
                if place.holds.is_some() {
                    return Err(VolumeError::Exists.into());
                }
                let attributes = attributes_of(&new, &place.attributes, now);
                if mode::is_directory(new.mode) {
                    place.attributes.links = shifted(place.attributes.links, true, false);
                }
                touch_directory(run, &mut place, 1, now);
                run.set(place.key.clone(), Some(name_item(inode, &attributes)));
                if let Some(target) = &new.target {
                    run.set(Key::symlink(inode), Some(Item::Symlink(target.clone())));
                }
                run.make_inode(inode);
                run.set_attributes(inode, attributes);
                Ok(Entry { inode, attributes })
            })
            .await
    }

    /// Gives an inode another name.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::NotPermitted`] for a directory; [`VolumeError::TooManyLinks`] if the inode
    /// has the maximum number of names; [`VolumeError::NotFound`] if it has none. Those of
    /// [`Volume::make`] for the name and the directory; [`VolumeError::Stale`] if an inode is gone.
    /// As [`Volume::writable`] and [`View::transact`](crate::volume::view::View::transact).
    pub async fn link(
        self: &Arc<Self>,
        inode: u64,
        directory: u64,
        name: &[u8],
    ) -> Result<Entry, VolumeError> {
        self.writable().await?;
        let now = self.clock.now();
        self.view
            .transact(|run| {
                let mut attributes = run.attributes(inode)?;
                if mode::is_directory(attributes.mode) {
                    return Err(VolumeError::NotPermitted.into());
                }
                if attributes.links >= MAX_LINKS {
                    return Err(VolumeError::TooManyLinks.into());
                }
                let mut place = self.place(run, directory, name)?;
                if place.holds.is_some() {
                    return Err(VolumeError::Exists.into());
                }
                if attributes.links == 0 {
                    return Err(VolumeError::NotFound.into());
                }
                attributes.links += 1;
                attributes.changed = now;
                touch_directory(run, &mut place, 1, now);
                run.set(place.key.clone(), Some(name_item(inode, &attributes)));
                run.set_attributes(inode, attributes);
                Ok(Entry { inode, attributes })
            })
            .await
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] if the name is that of a directory; [`VolumeError::NotFound`]
    /// if it does not exist; [`VolumeError::NotDirectory`], [`VolumeError::NameTooLong`] or
    /// [`VolumeError::Malformed`] if `directory` cannot hold it; [`VolumeError::Stale`] if an inode
    /// is gone. As [`Volume::writable`] and
    /// [`View::transact`](crate::volume::view::View::transact).
    pub async fn unlink(self: &Arc<Self>, directory: u64, name: &[u8]) -> Result<(), VolumeError> {
        self.remove(directory, name, false).await
    }

    /// Removes an empty directory.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// [`VolumeError::NotDirectory`] if the name is not that of a directory;
    /// [`VolumeError::NotEmpty`] if the directory contains names. Otherwise as [`Volume::unlink`].
    pub async fn rmdir(self: &Arc<Self>, directory: u64, name: &[u8]) -> Result<(), VolumeError> {
        self.remove(directory, name, true).await
    }

    async fn remove(
        self: &Arc<Self>,
        directory: u64,
        name: &[u8],
        want_directory: bool,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        let now = self.clock.now();
        self.view
            .transact(|run| {
                let mut place = self.place(run, directory, name)?;
                let Some((inode, _)) = place.holds else {
                    return Err(VolumeError::NotFound.into());
                };
                let ended_session = run.attributes(inode)?;
                match (mode::is_directory(ended_session.mode), want_directory) {
                    (true, false) => return Err(VolumeError::IsDirectory.into()),
                    (false, true) => return Err(VolumeError::NotDirectory.into()),
                    _ => {}
                }
                self.unname(run, &mut place, inode, ended_session, now)?;
                touch_directory(run, &mut place, -1, now);
                run.set(place.key.clone(), None);
                Ok(())
            })
            .await
    }

    /// Removes one name of an inode, which `place` held. Drops the inode if this was its last name
    /// and it is not in use.
    pub(super) fn unname(
        &self,
        run: &mut Transaction<'_>,
        place: &mut NameInDirectory,
        inode: u64,
        mut ended_session: Attributes,
        now: Timestamp,
    ) -> Step<()> {
        if mode::is_directory(ended_session.mode) {
            if ended_session.size_bytes != 0 {
                return Err(VolumeError::NotEmpty.into());
            }
            place.attributes.links = place.attributes.links.saturating_sub(1);
            ended_session.links = 0;
        } else {
            ended_session.links = ended_session.links.saturating_sub(1);
        }
        ended_session.changed = now;
        if ended_session.links > 0 {
            run.set_attributes(inode, ended_session);
        } else if self.usage.in_use(inode) {
            run.set_attributes(inode, ended_session);
            run.set(Key::orphan(inode), Some(Item::Orphan));
            self.orphans.lock().insert(inode);
        } else {
            drop_inode(run, inode, &ended_session);
        }
        Ok(())
    }

    /// Makes room for a new file under a name: removes the file that has it, and counts the new one in
    /// the directory.
    ///
    /// # Errors
    /// [`VolumeError::IsDirectory`] if the name is that of a directory.
    pub(super) fn replace_at(
        &self,
        run: &mut Transaction<'_>,
        place: &mut NameInDirectory,
        now: Timestamp,
    ) -> Step<()> {
        if let Some((there, _)) = place.holds {
            let replaced = run.attributes(there)?;
            if mode::is_directory(replaced.mode) {
                return Err(VolumeError::IsDirectory.into());
            }
            self.unname(run, place, there, replaced, now)?;
            touch_directory(run, place, -1, now);
        }
        touch_directory(run, place, 1, now);
        Ok(())
    }

    /// Keeps an inode without a name for its users. The last of them reaps it.
    pub fn keep_orphan(&self, inode: u64) {
        self.orphans.lock().insert(inode);
    }

    /// Drops an inode that has lost its last name and its last user; leaves any other inode alone.
    /// The successor of a failed volume drops the orphans that are left.
    ///
    /// Cancel safety: dropped, it leaves an orphan, which the next mount of the volume drops.
    ///
    /// # Errors
    /// As [`Volume::reap_left_behind`].
    pub async fn reap(&self, inode: u64) -> Result<(), VolumeError> {
        if !self.orphans.lock().remove(&inode) || self.failure().is_some() {
            return Ok(());
        }
        self.reap_left_behind(inode).await
    }

    /// Drops an inode that an earlier mount left without a name, if it is not in use.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// As [`View::transact`](crate::volume::view::View::transact).
    pub async fn reap_left_behind(&self, inode: u64) -> Result<(), VolumeError> {
        self.view
            .transact(|run| {
                let Some(Item::Attributes(attributes)) = run.get(&Key::attributes(inode))? else {
                    run.set(Key::orphan(inode), None);
                    return Ok(());
                };
                if attributes.links == 0 && !self.usage.in_use(inode) {
                    run.set(Key::orphan(inode), None);
                    drop_inode(run, inode, &attributes);
                }
                Ok(())
            })
            .await
    }

    /// Moves a name from one directory and name to another.
    ///
    /// Cancel safety: dropped, it has changed nothing.
    ///
    /// # Errors
    /// - [`VolumeError::NotFound`] if `from` does not exist, or `to` does not in an exchange.
    /// - [`VolumeError::Exists`] if `to` exists and `mode` forbids it.
    /// - [`VolumeError::NotDirectory`], [`VolumeError::IsDirectory`] or [`VolumeError::NotEmpty`]
    ///   if the inode at `to` cannot be replaced.
    /// - [`VolumeError::NotDirectory`], [`VolumeError::NotFound`], [`VolumeError::NameTooLong`] or
    ///   [`VolumeError::Malformed`] if a directory cannot hold its name.
    /// - [`VolumeError::Stale`] if an inode is gone.
    /// - As [`Volume::writable`] and [`View::transact`](crate::volume::view::View::transact).
    pub async fn rename(
        self: &Arc<Self>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameTo,
    ) -> Result<(), VolumeError> {
        self.writable().await?;
        let now = self.clock.now();
        self.view
            .transact(|run| {
                let source = self.place(run, from.0, from.1)?;
                let target = self.place(run, to.0, to.1)?;
                let Some(moved) = source.holds else {
                    return Err(VolumeError::NotFound.into());
                };
                match (mode, target.holds) {
                    (RenameTo::Nothing, Some(_)) => Err(VolumeError::Exists.into()),
                    (RenameTo::Exchange, None) => Err(VolumeError::NotFound.into()),
                    // Both names lead to the same inode: POSIX keeps both.
                    (_, Some(there)) if there.0 == moved.0 => Ok(()),
                    (RenameTo::Exchange, Some(there)) => {
                        exchange(run, source, target, moved, there, now)
                    }
                    _ => self.move_name(run, (source, target), moved, now),
                }
            })
            .await
    }

    fn move_name(
        &self,
        run: &mut Transaction<'_>,
        (mut source, mut target): (NameInDirectory, NameInDirectory),
        moved: (u64, u8),
        now: Timestamp,
    ) -> Step<()> {
        let there = target.holds;
        let mut attributes = run.attributes(moved.0)?;
        let is_directory = mode::is_directory(attributes.mode);
        let same = source.directory == target.directory;
        if let Some((inode, _)) = there {
            let ended_session = run.attributes(inode)?;
            match (is_directory, mode::is_directory(ended_session.mode)) {
                (true, false) => return Err(VolumeError::NotDirectory.into()),
                (false, true) => return Err(VolumeError::IsDirectory.into()),
                _ => {}
            }
            self.unname(run, &mut target, inode, ended_session, now)?;
            touch_directory(run, &mut target, -1, now);
        }
        if same {
            source.attributes = target.attributes;
        }
        if is_directory {
            source.attributes.links = shifted(source.attributes.links, false, true);
        }
        touch_directory(run, &mut source, -1, now);
        if same {
            target.attributes = source.attributes;
        }
        if is_directory {
            target.attributes.links = shifted(target.attributes.links, true, false);
        }
        touch_directory(run, &mut target, 1, now);
        run.set(source.key, None);
        run.set(
            target.key,
            Some(Item::Name {
                inode: moved.0,
                file_type: moved.1,
            }),
        );
        attributes.changed = now;
        run.set_attributes(moved.0, attributes);
        Ok(())
    }
}

/// Returns the link count of a directory that gains or loses a subdirectory. It stays within its
/// range, because a forged tree may state any count.
fn shifted(links: u32, gains: bool, loses: bool) -> u32 {
    links
        .saturating_add(u32::from(gains))
        .saturating_sub(u32::from(loses))
}

fn exchange(
    run: &mut Transaction<'_>,
    mut source: NameInDirectory,
    mut target: NameInDirectory,
    moved: (u64, u8),
    there: (u64, u8),
    now: Timestamp,
) -> Step<()> {
    let mut first = run.attributes(moved.0)?;
    let mut second = run.attributes(there.0)?;
    first.changed = now;
    second.changed = now;
    run.set_attributes(moved.0, first);
    run.set_attributes(there.0, second);
    if source.directory != target.directory {
        let (one, two) = (
            mode::is_directory(first.mode),
            mode::is_directory(second.mode),
        );
        source.attributes.links = shifted(source.attributes.links, two, one);
        target.attributes.links = shifted(target.attributes.links, one, two);
        touch_directory(run, &mut target, 0, now);
    }
    touch_directory(run, &mut source, 0, now);
    run.set(
        source.key,
        Some(Item::Name {
            inode: there.0,
            file_type: there.1,
        }),
    );
    run.set(
        target.key,
        Some(Item::Name {
            inode: moved.0,
            file_type: moved.1,
        }),
    );
    Ok(())
}

fn drop_inode(run: &mut Transaction<'_>, inode: u64, attributes: &Attributes) {
    if mode::is_regular(attributes.mode) {
        run.count_bytes(signed_difference(0, attributes.allocated_bytes));
    }
    run.drop_inode(inode);
}

pub(super) fn name_item(inode: u64, attributes: &Attributes) -> Item {
    Item::Name {
        inode,
        file_type: mode::kind(attributes.mode),
    }
}

/// Changes the number of names of a directory by `names`, and updates its times.
pub(super) fn touch_directory(
    run: &mut Transaction<'_>,
    place: &mut NameInDirectory,
    names: i64,
    now: Timestamp,
) {
    place.attributes.size_bytes = place.attributes.size_bytes.saturating_add_signed(names);
    place.attributes.modified = now;
    place.attributes.changed = now;
    run.set_attributes(place.directory, place.attributes);
}

fn attributes_of(new: &NewInode, directory: &Attributes, now: Timestamp) -> Attributes {
    let passes_group_on = directory.mode & libc::S_ISGID != 0;
    let is_directory = mode::is_directory(new.mode);
    Attributes {
        mode: if passes_group_on && is_directory {
            new.mode | libc::S_ISGID
        } else {
            new.mode
        },
        uid: new.uid,
        gid: if passes_group_on {
            directory.gid
        } else {
            new.gid
        },
        links: if is_directory { 2 } else { 1 },
        size_bytes: new.target.as_ref().map_or(0, |target| target.len() as u64),
        allocated_bytes: 0,
        accessed: now,
        modified: now,
        changed: now,
        device: new.device,
        profile: new.profile,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_count_of_links_does_not_overflow() {
        assert_eq!(shifted(2, true, false), 3);
        assert_eq!(shifted(3, false, true), 2);
        assert_eq!(shifted(u32::MAX, true, false), u32::MAX);
        assert_eq!(shifted(0, false, true), 0);
    }
}
