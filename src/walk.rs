//! The names of directories, as whoever walks a tree from above needs them.
//!
//! Owns: listing one directory, and which of its names are none. Memory: as many names as it has.
//! Does not own: what is looked for.

use std::ops::Range;

use bytes::Bytes;

use crate::fault::{self, Fault, XATTRS_BYTES_MAX};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// Names looked at in one go.
const PAGE_NAMES: usize = 1024;

/// A name in a directory.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Named {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// Where it leads.
    pub inode: u64,
    /// The type bits of what it leads to, shifted down: `d_type` of readdir(3).
    pub file_type: u8,
    /// Its place in the directory.
    pub cookie: u64,
}

impl Named {
    /// True if it leads to a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == mode::kind(libc::S_IFDIR)
    }
}

/// What stands among the names of a directory and is none that a file can have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Faulty {
    /// Its bytes.
    pub name: Vec<u8>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// Names of a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Those that a file can have.
    pub names: Vec<Named>,
    /// The others.
    pub faulty: Vec<Faulty>,
    /// Where the rest begins; none if this was all.
    pub next: Option<Key>,
}

/// The names of a directory in `range`, about `limit` of them, in the order of the tree.
///
/// # Errors
/// What keeps the tree from being read.
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

/// The name in a key that may have any form: what stands behind inode, kind and cookie.
fn suffix(key: &Key) -> Vec<u8> {
    key.as_bytes().get(17..).unwrap_or_default().to_vec()
}

/// All names of a directory, in the order of their bytes.
///
/// # Errors
/// What keeps the tree from being read.
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

/// The attributes of the inode that a name leads to, or that there is none.
///
/// # Errors
/// What keeps the tree from being read.
pub async fn attributes(view: &View, inode: u64) -> Result<Result<Attributes, Fault>, VolumeError> {
    match view.attributes(Scope::Live, inode).await {
        Ok(attributes) => Ok(Ok(attributes)),
        Err(VolumeError::Stale) => Ok(Err(Fault::Dangling { inode })),
        Err(error) => Err(error),
    }
}

/// The extended attributes of an inode with their values, or that they are more than any file has.
///
/// # Errors
/// What keeps the tree from being read.
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
        let value = view.xattr(inode, &name).await?;
        bytes += name.len() + value.len();
        if bytes > XATTRS_BYTES_MAX {
            return Ok(Err(Fault::Xattrs { inode }));
        }
        all.push((name, value));
    }
    Ok(Ok(all))
}

/// A path below `directory`: that of the directory, a slash, the name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    [directory, b"/", name].concat()
}
