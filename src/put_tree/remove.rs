//! The names of the volume, and removing them with all that lies below them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::tree::item::Item;
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::stamp::Stamp;
use crate::volume::state::Scope;
use crate::walk::{self, Named};

/// Names of a directory that are read at a time.
const PAGE_NAMES: usize = 1024;

/// Returns the names of a directory.
///
/// # Errors
/// Those of reading the volume.
pub async fn names(volume: &Volume, inode: u64) -> Result<HashMap<Vec<u8>, Named>, VolumeError> {
    let listing = walk::names(&volume.view, inode).await?;
    let named = listing.names.into_iter();
    Ok(named.map(|named| (named.name.clone(), named)).collect())
}

/// Removes a name, with all that lies below it, and returns the number of names. An inode that keeps
/// another name keeps its times.
///
/// # Errors
/// Those of reading and changing the volume; [`VolumeError::Malformed`] for a directory that lies
/// in itself, or holds what is no name. Only damaged and forged trees have those.
pub async fn remove(
    volume: &Arc<Volume>,
    directory: u64,
    named: &Named,
) -> Result<u64, VolumeError> {
    if !named.is_directory() {
        unlink(volume, directory, named).await?;
        return Ok(1);
    }
    let mut removed = 0;
    let mut way = vec![Level::new(directory, named.clone())];
    while let Some(level) = way.last_mut() {
        let Some(range) = level.left.take() else {
            volume.rmdir(level.above, &level.named.name).await?;
            removed += 1;
            way.pop();
            continue;
        };
        let inode = level.named.inode;
        let page = walk::page(&volume.view, inode, range.clone(), PAGE_NAMES).await?;
        if !page.faulty.is_empty() {
            return Err(VolumeError::Malformed { inode });
        }
        level.left = page.next.map(|next| next..range.end);
        for named in page.names {
            if named.is_directory() && way.iter().any(|level| level.named.inode == named.inode) {
                return Err(VolumeError::Malformed { inode });
            }
            match named.is_directory() {
                true => way.push(Level::new(inode, named)),
                false => {
                    unlink(volume, inode, &named).await?;
                    removed += 1;
                }
            }
        }
    }
    Ok(removed)
}

/// A directory that is being emptied.
struct Level {
    /// The directory that it lies in.
    above: u64,
    named: Named,
    /// Where the names lie that were not read yet; none if all were.
    left: Option<Range<Key>>,
}

impl Level {
    fn new(above: u64, named: Named) -> Level {
        let left = Some(key::names_from(named.inode, 0));
        Level { above, named, left }
    }
}

async fn unlink(volume: &Arc<Volume>, directory: u64, named: &Named) -> Result<(), VolumeError> {
    let before = match walk::attributes(&volume.view, named.inode).await? {
        Ok(attributes) => attributes,
        Err(_) => return Err(VolumeError::Malformed { inode: directory }),
    };
    volume.unlink(directory, &named.name).await?;
    match before.links > 1 {
        // A file that is stored meanwhile may have taken the last other name.
        true => match volume.stamp(named.inode, &Stamp::of(&before)).await {
            Err(VolumeError::Stale) => Ok(()),
            stamped => stamped,
        },
        false => Ok(()),
    }
}

/// Returns the name as the volume has it; none if it has none.
///
/// # Errors
/// Those of reading the volume.
pub async fn named(
    volume: &Volume,
    directory: u64,
    name: &[u8],
) -> Result<Option<Named>, VolumeError> {
    let key = volume.name_key(directory, name)?;
    let Ok(KeyParts::Name { cookie, .. }) = key.parse() else {
        return Err(VolumeError::Invalid);
    };
    match volume.view.item(Scope::Live, &key).await? {
        None => Ok(None),
        Some(Item::Name { inode, file_type }) => Ok(Some(Named {
            name: name.to_vec(),
            inode,
            file_type,
            cookie,
        })),
        Some(_) => Err(VolumeError::Malformed { inode: directory }),
    }
}
