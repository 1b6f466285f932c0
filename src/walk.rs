//! The names of directories, as whoever walks a tree from above needs them.
//!
//! Owns: listing one directory. Memory: as many names as it has. Does not own: what is looked for.

use crate::tree::item::Item;
use crate::tree::key::{self, KeyParts};
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
}

impl Named {
    /// True if it leads to a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type == mode::kind(libc::S_IFDIR)
    }
}

/// All names of a directory, in the order of their bytes.
///
/// # Errors
/// What keeps the tree from being read.
pub async fn names(view: &View, directory: u64) -> Result<Vec<Named>, VolumeError> {
    let mut names = Vec::new();
    let mut range = key::names_from(directory, 0);
    loop {
        let page = view.items(Scope::Live, range.clone(), PAGE_NAMES).await?;
        for (key, item) in page.items {
            match (key.parse(), item) {
                (Ok(KeyParts::Name { name, .. }), Item::Name { inode, file_type }) => {
                    names.push(Named {
                        name: name.to_vec(),
                        inode,
                        file_type,
                    });
                }
                _ => return Err(VolumeError::Malformed { inode: directory }),
            }
        }
        match page.next {
            Some(next) => range.start = next,
            None => break,
        }
    }
    names.sort();
    Ok(names)
}

/// A path below `directory`: that of the directory, a slash, the name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    [directory, b"/", name].concat()
}
