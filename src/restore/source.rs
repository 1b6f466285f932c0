//! What a restore takes from a snapshot, and how much that is.
//!
//! Owns the walk that counts before anything is made. Does not own the restore itself (`walk`), nor
//! the patterns (`selection`).

use std::collections::HashSet;

use crate::fault::Entered;
use crate::restore::selection::{Choice, Selection};
use crate::root::snapshots::SnapshotEntry;
use crate::tree::item::Attributes;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, Named, join, names};

/// The unit in which filesystems allocate, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// A directory or a file of a snapshot, and which names below it are restored.
#[derive(Clone)]
pub struct Source {
    /// The snapshot.
    pub view: View,
    /// The directory or file.
    pub inode: u64,
    /// Its path in the snapshot: `/a/b`; empty for the root.
    path: Vec<u8>,
    /// The names below it.
    pub selection: Selection,
}

/// What a restore would make.
#[derive(Debug, Default)]
pub struct Survey {
    /// Number of inodes.
    pub inodes: u64,
    /// Bytes of the files, with holes counted.
    pub bytes: u64,
    /// Directories that no pattern names and in which something is restored, or may be: damage
    /// keeps them from being read.
    pub leading: HashSet<u64>,
    /// Paths from `/` on that damage keeps from being looked into, with the reason.
    pub unread: Vec<(Vec<u8>, VolumeError)>,
}

impl Survey {
    /// Returns true if there is nothing to make but the top.
    pub fn is_empty(&self) -> bool {
        self.inodes <= 1 && self.unread.is_empty()
    }

    /// Counts directories that lead to what is restored.
    fn lead(&mut self, directories: &[u64]) {
        for directory in directories {
            self.inodes += u64::from(self.leading.insert(*directory));
        }
    }

    /// Returns what was read, or notes the damage that keeps it from being read. The directories
    /// above lead there, so that the restore meets the damage too.
    ///
    /// # Errors
    /// Any error that is no damage.
    fn read<T>(
        &mut self,
        found: Result<T, VolumeError>,
        path: &[u8],
        above: &[u64],
    ) -> Result<Option<T>, VolumeError> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_damage() => {
                self.lead(above);
                self.unread.push((path.to_owned(), error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn add(&mut self, attributes: &Attributes) {
        self.inodes += 1;
        if !mode::is_regular(attributes.mode) {
            return;
        }
        self.bytes = self.bytes.saturating_add(attributes.size_bytes);
    }
}

/// Returns the bytes that an inode allocates once it is restored. Holes need none.
pub(super) fn allocated(attributes: &Attributes) -> u64 {
    if !mode::is_regular(attributes.mode) {
        return 0;
    }
    let size = attributes.size_bytes;
    let blocks = size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
    blocks.min(attributes.allocated_bytes)
}

/// Returns the bytes of the file or directory `path` of a snapshot, with holes counted, if they are
/// known without a survey.
pub fn known_bytes(path: &[u8], attributes: &Attributes, snapshot: &SnapshotEntry) -> Option<u64> {
    let is_all = path.iter().all(|byte| *byte == b'/');
    match (is_all, mode::is_regular(attributes.mode)) {
        (true, _) => Some(snapshot.bytes),
        (false, true) => Some(attributes.size_bytes),
        (false, false) => None,
    }
}

/// What a survey has not looked into yet.
struct Unseen {
    inode: u64,
    path: Vec<u8>,
    /// Whether a pattern names it or a directory above it.
    is_included: bool,
    /// The directories above it that no pattern names.
    above: Vec<u64>,
}

impl Source {
    /// Returns the source that restores all of `inode`, whose path is `path`. Empty components are
    /// skipped.
    pub fn whole(view: View, inode: u64, path: &[u8]) -> Self {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty());
        Source {
            view,
            inode,
            path: names.flat_map(|name| [b"/", name].concat()).collect(),
            selection: Selection::default(),
        }
    }

    /// Returns the source of which only this selection is restored.
    pub fn selected(self, selection: Selection) -> Self {
        Source { selection, ..self }
    }

    /// Counts what is restored, and calls `each` with the path from `/` on and the attributes of
    /// every inode but the top. An inode with several names counts once. What is faulty or damaged
    /// is not restored, and not counted.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`] or [`VolumeError::Tree`] if the snapshot cannot be read, and
    /// that is no damage below the top.
    pub async fn survey(
        &self,
        mut each: impl FnMut(&[u8], &Attributes),
    ) -> Result<Survey, VolumeError> {
        let view = &self.view;
        let mut survey = Survey::default();
        let attributes = view.attributes(Scope::Live, self.inode).await?;
        survey.add(&attributes);
        if !mode::is_directory(attributes.mode) {
            return Ok(survey);
        }
        let mut linked = HashSet::new();
        let mut entered = Entered::from(self.inode);
        let mut open = vec![Unseen {
            inode: self.inode,
            path: self.path.clone(),
            is_included: false,
            above: Vec::new(),
        }];
        while let Some(directory) = open.pop() {
            let listing = names(view, directory.inode).await;
            let Some(listing) = survey.read(listing, &directory.path, &directory.above)? else {
                continue;
            };
            for named in listing.names {
                let Some(next) = self.choose(&directory, &named) else {
                    continue;
                };
                let leading = match next.is_included {
                    true => &directory.above,
                    false => &next.above,
                };
                let attributes = walk::attributes(view, next.inode).await;
                let Some(Ok(attributes)) = survey.read(attributes, &next.path, leading)? else {
                    continue;
                };
                let is_directory = mode::is_directory(attributes.mode);
                let depth = next.path.len() - self.path.len();
                if is_directory && entered.enter(next.inode, depth).is_err() {
                    continue;
                }
                let is_first = is_directory || attributes.links < 2 || linked.insert(next.inode);
                if next.is_included && is_first {
                    survey.add(&attributes);
                    each(&next.path, &attributes);
                }
                if next.is_included {
                    survey.lead(&directory.above);
                }
                if is_directory {
                    open.push(next);
                }
            }
        }
        Ok(survey)
    }

    /// Returns what a name in a directory leads to; none if nothing there is restored.
    fn choose(&self, directory: &Unseen, named: &Named) -> Option<Unseen> {
        let path = join(&directory.path, &named.name);
        let is_included = match self.selection.judge(&path, directory.is_included) {
            Choice::Excluded => return None,
            Choice::Included => true,
            Choice::Unnamed => false,
        };
        // The directories above an included one are counted already.
        let mut above = Vec::new();
        if !is_included {
            above.clone_from(&directory.above);
            above.push(named.inode);
        }
        (is_included || named.is_directory()).then_some(Unseen {
            inode: named.inode,
            path,
            is_included,
            above,
        })
    }

    /// Returns the path in the snapshot: `/a/b`; empty for the root.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }
}
