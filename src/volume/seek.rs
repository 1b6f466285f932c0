//! Search for data and holes of a file: lseek(2) with SEEK_DATA and SEEK_HOLE.
//!
//! Owns: the walk over dirty bytes and extents to the first result. Does not own: the dirty bytes,
//! the extents.

use crate::extents::HoleSearch;
use crate::tree::item::Item;
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Length of the first step of a walk over adjacent extents, in bytes of the file. Each step is
/// twice as long as the one before.
const STEP_BYTES: u64 = 1024 * 1024;

/// Maximum length of a step, in bytes. It bounds memory, however short the extents are.
const STEP_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Number of extents that are read at once to find the first. Extents that changes hide are
/// skipped.
const FIRST_EXTENTS: usize = 32;

/// Maximum number of further looks at a position whose bytes were stored meanwhile.
const LOOKS_MAX: u32 = 16;

impl Volume {
    /// Returns the offset of the first byte of data (or of a hole) at or after `offset`.
    ///
    /// # Errors
    /// As [`seek`].
    pub async fn seek(&self, inode: u64, offset: u64, want_data: bool) -> Result<u64, VolumeError> {
        seek(&self.view, inode, offset, want_data).await
    }
}

/// Returns the offset of the first byte of data or of a hole at or after `offset`, in any view. The
/// end of the file is a hole.
///
/// # Errors
/// [`VolumeError::NoSuchPlace`] if there is no data at or after `offset`, or `offset` is not in the
/// file; [`VolumeError::Stale`] if the inode is gone; [`VolumeError::Malformed`] if an item is. As
/// [`View::items`] and [`View::extents`].
pub async fn seek(
    view: &View,
    inode: u64,
    offset: u64,
    want_data: bool,
) -> Result<u64, VolumeError> {
    let attributes = view.attributes(Scope::Live, inode).await?;
    let size = attributes.size_bytes;
    if offset >= size {
        return Err(VolumeError::NoSuchPlace);
    }
    let (mut at, mut looks) = (offset, 0);
    while at < size {
        let (dirty, until_dirty) = view.dirty_at(inode, at);
        let until = until_dirty.min(size);
        let found = match dirty {
            Some(is_data) => (is_data == want_data).then_some(at),
            None if want_data => first_data(view, inode, at, until).await?,
            None => first_hole(view, inode, at, until).await?,
        };
        // During a look, dirty bytes may be stored, and contents that the tree holds may become
        // dirty. Then the position is looked at again.
        let is_same = view.dirty_at(inode, at) == (dirty, until_dirty);
        if !is_same && looks < LOOKS_MAX {
            looks += 1;
            continue;
        }
        match found {
            Some(found) => return Ok(found),
            None => (at, looks) = (until, 0),
        }
    }
    match want_data {
        true => Err(VolumeError::NoSuchPlace),
        false => Ok(size),
    }
}

/// Returns the offset of the first stored byte from `at` to `until`, where nothing is dirty.
async fn first_data(
    view: &View,
    inode: u64,
    at: u64,
    until: u64,
) -> Result<Option<u64>, VolumeError> {
    if !view
        .extents(Scope::Live, inode, at..at + 1)
        .await?
        .is_empty()
        || at < small_length(view, inode).await?
    {
        return Ok(Some(at));
    }
    let keys = key::extents_beginning(inode, at..until);
    let page = view
        .items(Scope::Live, keys, FIRST_EXTENTS)
        .await?
        .whole()?;
    match page.items.first().map(|(key, _)| key.parse()) {
        None => Ok(None),
        Some(Ok(KeyParts::Extent { offset, .. })) => Ok(Some(offset)),
        Some(_) => Err(VolumeError::Malformed { inode }),
    }
}

/// Returns the offset of the first byte from `at` to `until` that is not stored, where nothing is
/// dirty.
async fn first_hole(
    view: &View,
    inode: u64,
    at: u64,
    until: u64,
) -> Result<Option<u64>, VolumeError> {
    let mut search = HoleSearch::new(at.max(small_length(view, inode).await?));
    let mut step = STEP_BYTES;
    while search.position() < until {
        let from = search.position();
        let to = until.min(from.saturating_add(step));
        let extents = view.extents(Scope::Live, inode, from..to).await?;
        let hole = extents.iter().find_map(|placed| search.feed(placed));
        if hole.is_some() || search.position() < to {
            return Ok(hole.or(Some(search.position())));
        }
        step = (step * 2).min(STEP_BYTES_MAX);
    }
    Ok(None)
}

/// Returns the length of the contents that the tree itself holds, in bytes.
async fn small_length(view: &View, inode: u64) -> Result<u64, VolumeError> {
    match view.item(Scope::Live, &Key::inline(inode)).await? {
        Some(Item::Inline(bytes)) => Ok(bytes.len() as u64),
        _ => Ok(0),
    }
}
