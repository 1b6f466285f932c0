//! The names in directories, for readers that walk a tree from its root.
//!
//! This module owns the listing of one directory, and the check of its names. It holds all names of
//! one directory in memory. It does not know the purpose of the walk.

use std::ops::Range;

use bytes::Bytes;

use crate::fault::{self, Fault, XATTRS_BYTES_MAX};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Names that are read from the tree at a time.
const PAGE_NAMES: usize = 1024;

/// A name in a directory.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Named {
    /// The bytes of the name.
    pub name: Vec<u8>,
    /// The inode that the name leads to.
    pub inode: u64,
    /// The file type bits of that inode's mode, shifted right by 12: `d_type` of readdir(3).
    pub file_type: u8,
    /// Position of the name in the directory: its readdir cookie.
    pub cookie: u64,
}

impl Named {
    /// Whether the name leads to a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == mode::kind(libc::S_IFDIR)
    }
}

/// An entry of a directory that is not a name that a file can have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Faulty {
    /// The bytes of the name.
    pub name: Vec<u8>,
    /// The fault of the entry.
    pub fault: Fault,
}

/// Names of a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The names that a file can have.
    pub names: Vec<Named>,
    /// The other entries.
    pub faulty: Vec<Faulty>,
    /// The key at which the rest begins, or `None` if this was all.
    pub next: Option<Key>,
}

/// Returns the names of a directory in `range`, about `limit` of them, in the order of the tree.
///
/// # Errors
/// [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if a node of the tree cannot be read;
/// [`VolumeError::Malformed`] if `range` holds an item that is not a name.
pub async fn page(
    view: &View,
    directory: u64,
    range: Range<Key>,
    limit: usize,
) -> Result<Listing, VolumeError> {
    let page = view.any_items(Scope::Live, range, limit).await?;
    let mut listing = Listing {
        next: page.next,
        ..Listing::default()
    };
    let hashes = view.nodes().names();
    for (key, item) in page.items {
        let (name, fault) = match (key.parse(), item) {
            (Ok(KeyParts::Name { name, cookie, .. }), Item::Name { inode, file_type }) => {
                let Some(fault) = fault::of_name(name, cookie, hashes.cookie(name), inode) else {
                    listing.names.push(Named {
                        name: name.to_vec(),
                        inode,
                        file_type,
                        cookie,
                    });
                    continue;
                };
                (name.to_vec(), fault)
            }
            (Err(_), _) => (suffix(&key), Fault::Name),
            _ => return Err(VolumeError::Malformed { inode: directory }),
        };
        listing.faulty.push(Faulty { name, fault });
    }
    let malformed = page.malformed.into_iter().map(|(key, error)| Faulty {
        name: suffix(&key),
        fault: Fault::Malformed(error.to_string()),
    });
    listing.faulty.extend(malformed);
    Ok(listing)
}

/// Returns the name in a key of any form: the bytes behind inode, kind and cookie.
fn suffix(key: &Key) -> Vec<u8> {
    key.as_bytes().get(17..).unwrap_or_default().to_vec()
}

/// Returns all names of a directory, in the order of their bytes.
///
/// # Errors
/// As [`page`].
pub async fn names(view: &View, directory: u64) -> Result<Listing, VolumeError> {
    let mut all = Listing::default();
    let mut range = key::names_from(directory, 0);
    loop {
        let page = page(view, directory, range.clone(), PAGE_NAMES).await?;
        all.names.extend(page.names);
        all.faulty.extend(page.faulty);
        match page.next {
            Some(next) => range.start = next,
            None => break,
        }
    }
    all.names.sort();
    Ok(all)
}

/// Returns the attributes of the inode that a name leads to, or [`Fault::Dangling`] if there is no
/// such inode.
///
/// # Errors
/// [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if the tree cannot be read;
/// [`VolumeError::Malformed`] if the item is not attributes.
pub async fn attributes(view: &View, inode: u64) -> Result<Result<Attributes, Fault>, VolumeError> {
    match view.attributes(Scope::Live, inode).await {
        Ok(attributes) => Ok(Ok(attributes)),
        Err(VolumeError::Stale) => Ok(Err(Fault::Dangling { inode })),
        Err(error) => Err(error),
    }
}

/// Returns the extended attributes of an inode with their values, or [`Fault::Xattrs`] if they are
/// more than a file can have, or one has a name that no file can give it.
///
/// # Errors
/// [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if the tree cannot be read;
/// [`VolumeError::Malformed`] if an item is not an extended attribute.
pub async fn xattrs(
    view: &View,
    inode: u64,
) -> Result<Result<Vec<(Vec<u8>, Bytes)>, Fault>, VolumeError> {
    let names = match view.xattrs(inode).await {
        Ok(names) => names,
        Err(VolumeError::AttributeTooLarge) => return Ok(Err(Fault::Xattrs { inode })),
        Err(error) => return Err(error),
    };
    let mut all = Vec::with_capacity(names.len());
    let mut bytes = 0;
    for name in names {
        let value = match view.xattr(inode, &name).await {
            Ok(value) => value,
            // A mount takes no such name.
            Err(VolumeError::NotSupported) => return Ok(Err(Fault::Xattrs { inode })),
            Err(error) => return Err(error),
        };
        bytes += name.len() + value.len();
        if bytes > XATTRS_BYTES_MAX {
            return Ok(Err(Fault::Xattrs { inode }));
        }
        all.push((name, value));
    }
    Ok(Ok(all))
}

/// Returns a path below `directory`: its path, a slash, and the name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    [directory, b"/", name].concat()
}
