//! What differs between two snapshots, by path.
//!
//! Owns: the walk from the top, and what counts as a difference. Does not own: which items differ (`tree::diff`), what is shown.
//!
//! The items that differ are found first; that costs what they are, not what the trees are. Items know inodes, and only names know where these are: so directories are then
//! listed from the top, until everything that differs was met. Nothing of contents is read.

use std::collections::{HashMap, HashSet};

use crate::tree::diff::Diff;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::tree::map::Tree;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::nodes::decode_item;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{Named, join, names};

/// How something differs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Change {
    /// It is only in the second.
    Added,
    /// It is only in the first.
    Removed,
    /// It has other contents, or leads elsewhere.
    Modified,
    /// It has another mode, owner, time or extended attribute.
    Metadata,
    /// It is of another type.
    Type,
}

/// A difference.
#[derive(Clone, Debug)]
pub struct Difference {
    /// How it differs.
    pub change: Change,
    /// Where; begins with `/`, a directory does not end with one.
    pub path: Vec<u8>,
    /// What the first has.
    pub left: Option<Attributes>,
    /// What the second has.
    pub right: Option<Attributes>,
}

/// What differs of an inode that both have.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Marks {
    contents: bool,
    metadata: bool,
    names: bool,
}

impl Marks {
    fn change(self) -> Option<Change> {
        match (self.contents, self.metadata) {
            (true, _) => Some(Change::Modified),
            (false, true) => Some(Change::Metadata),
            (false, false) => None,
        }
    }
}

/// A directory that is still to be looked into.
enum Task {
    /// The same on both sides.
    Same(u64),
    /// Another on each.
    Pair(u64, u64),
    /// Only in the first.
    Left(u64),
    /// Only in the second.
    Right(u64),
}

/// A comparison under way.
pub struct Comparison<'a> {
    left: &'a View,
    right: &'a View,
    marks: HashMap<u64, Marks>,
    /// Inodes that differ and were not met yet.
    pending: HashSet<u64>,
    tasks: Vec<(Vec<u8>, Task)>,
    /// Differences that were found and not taken yet.
    found: Vec<Difference>,
}

impl<'a> Comparison<'a> {
    /// Finds the items that differ, and begins with a pair of inodes, one in each view, that people know as `path`.
    ///
    /// # Errors
    /// What keeps either tree from being read; so everywhere here.
    pub async fn new(
        (left, right): (&'a View, &'a View),
        inodes: (u64, u64),
        path: &[u8],
    ) -> Result<Comparison<'a>, VolumeError> {
        let mut comparison = Comparison {
            left,
            right,
            marks: HashMap::new(),
            pending: HashSet::new(),
            tasks: Vec::new(),
            found: Vec::new(),
        };
        comparison.mark().await?;
        let path = match path {
            b"/" => b"",
            path => path,
        };
        comparison.compare_pair(inodes, path.to_vec()).await?;
        Ok(comparison)
    }

    /// The next differences: those of one directory, by name. None after the last.
    pub async fn next(&mut self) -> Result<Option<Vec<Difference>>, VolumeError> {
        loop {
            if !self.found.is_empty() {
                return Ok(Some(std::mem::take(&mut self.found)));
            }
            let Some((path, task)) = self.tasks.pop() else {
                return Ok(None);
            };
            let below = self.tasks.len();
            match task {
                Task::Same(inode) => self.look_into_same(inode, &path).await?,
                Task::Pair(left, right) => {
                    let left = names(self.left, left).await?;
                    let right = names(self.right, right).await?;
                    self.merge(left, right, &path).await?;
                }
                Task::Left(inode) => {
                    let names = names(self.left, inode).await?;
                    self.merge(names, Vec::new(), &path).await?;
                }
                Task::Right(inode) => {
                    let names = names(self.right, inode).await?;
                    self.merge(Vec::new(), names, &path).await?;
                }
            }
            // The first name is looked into first.
            self.tasks[below..].reverse();
        }
    }

    /// Notes the inodes that both have and that differ.
    async fn mark(&mut self) -> Result<(), VolumeError> {
        let (left, right) = (Tree::new(self.left.base()), Tree::new(self.right.base()));
        let nodes = self.right.nodes();
        let mut diff = Diff::new(left, right, key::everything());
        while let Some(difference) = diff.next(nodes.as_ref()).await? {
            let malformed = |error| VolumeError::Tree(format!("{:?}: {error}", difference.key));
            let mut marks = Marks::default();
            let inode = match difference.key.parse().map_err(malformed)? {
                KeyParts::Attributes { inode } => {
                    // An inode that only one has is met by a name that only one has.
                    let (Some(left), Some(right)) = (&difference.left, &difference.right) else {
                        continue;
                    };
                    let left = decode_item(&difference.key, left)?;
                    let right = decode_item(&difference.key, right)?;
                    if let (Item::Attributes(left), Item::Attributes(right)) = (left, right) {
                        marks = compare_attributes(&left, &right);
                    }
                    inode
                }
                KeyParts::Name { directory, .. } => {
                    marks.names = true;
                    directory
                }
                KeyParts::Extent { inode, .. }
                | KeyParts::Inline { inode }
                | KeyParts::Symlink { inode } => {
                    marks.contents = true;
                    inode
                }
                KeyParts::Xattr { inode, .. } => {
                    marks.metadata = true;
                    inode
                }
                KeyParts::Orphan { .. } => continue,
            };
            if marks != Marks::default() {
                let all = self.marks.entry(inode).or_default();
                all.contents |= marks.contents;
                all.metadata |= marks.metadata;
                all.names |= marks.names;
            }
        }
        self.pending = self.marks.keys().copied().collect();
        Ok(())
    }

    async fn look_into_same(&mut self, inode: u64, path: &[u8]) -> Result<(), VolumeError> {
        let has_other_names = self.marks.get(&inode).is_some_and(|marks| marks.names);
        self.pending.remove(&inode);
        if has_other_names {
            let left = names(self.left, inode).await?;
            let right = names(self.right, inode).await?;
            return self.merge(left, right, path).await;
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        for name in names(self.right, inode).await? {
            self.same(&name, path).await?;
        }
        Ok(())
    }

    /// A name that leads to one inode on both sides.
    async fn same(&mut self, name: &Named, directory: &[u8]) -> Result<(), VolumeError> {
        let inode = name.inode;
        if let Some(change) = self.marks.get(&inode).and_then(|marks| marks.change()) {
            let left = self.left.attributes(Scope::Live, inode).await?;
            let right = self.right.attributes(Scope::Live, inode).await?;
            // Another name of it may come.
            if right.links <= 1 {
                self.pending.remove(&inode);
            }
            self.tell(change, join(directory, &name.name), Some(left), Some(right));
        }
        if name.is_directory() {
            let path = join(directory, &name.name);
            self.tasks.push((path, Task::Same(inode)));
        }
        Ok(())
    }

    async fn merge(
        &mut self,
        left: Vec<Named>,
        right: Vec<Named>,
        path: &[u8],
    ) -> Result<(), VolumeError> {
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(one), Some(other)) => one.name.cmp(&other.name),
            };
            let one = if order.is_le() { left.next() } else { None };
            let other = if order.is_ge() { right.next() } else { None };
            match (one, other) {
                (Some(one), Some(other)) if one.inode == other.inode => {
                    self.same(&other, path).await?;
                }
                (Some(one), Some(other)) => {
                    let path = join(path, &one.name);
                    self.compare_pair((one.inode, other.inode), path).await?;
                }
                (Some(one), None) => self.alone(Change::Removed, &one, path).await?,
                (None, Some(other)) => self.alone(Change::Added, &other, path).await?,
                (None, None) => return Ok(()),
            }
        }
    }

    async fn alone(
        &mut self,
        change: Change,
        name: &Named,
        directory: &[u8],
    ) -> Result<(), VolumeError> {
        let path = join(directory, &name.name);
        let is_left = change == Change::Removed;
        let view = if is_left { self.left } else { self.right };
        let attributes = Some(view.attributes(Scope::Live, name.inode).await?);
        if name.is_directory() {
            let task = match is_left {
                true => Task::Left(name.inode),
                false => Task::Right(name.inode),
            };
            self.tasks.push((path.clone(), task));
        }
        match is_left {
            true => self.tell(change, path, attributes, None),
            false => self.tell(change, path, None, attributes),
        }
        Ok(())
    }

    /// One path with an inode on each side.
    async fn compare_pair(
        &mut self,
        (left, right): (u64, u64),
        path: Vec<u8>,
    ) -> Result<(), VolumeError> {
        let one = self.left.attributes(Scope::Live, left).await?;
        let other = self.right.attributes(Scope::Live, right).await?;
        let is_type = mode::kind(one.mode) != mode::kind(other.mode);
        let directories = (mode::is_directory(one.mode), mode::is_directory(other.mode));
        let change = if is_type {
            Some(Change::Type)
        } else if left == right {
            self.marks.get(&left).and_then(|marks| marks.change())
        } else {
            let mut marks = compare_attributes(&one, &other);
            marks.contents = marks.contents || self.has_other_contents(left, right, &one).await?;
            marks.metadata = marks.metadata || self.has_other_xattrs(left, right).await?;
            marks.change()
        };
        match directories {
            (true, true) if left == right => self.tasks.push((path.clone(), Task::Same(left))),
            (true, true) => self.tasks.push((path.clone(), Task::Pair(left, right))),
            (true, false) => self.tasks.push((path.clone(), Task::Left(left))),
            (false, true) => self.tasks.push((path.clone(), Task::Right(right))),
            (false, false) => {}
        }
        if let Some(change) = change {
            self.tell(change, path, Some(one), Some(other));
        }
        Ok(())
    }

    /// Whether two inodes of one type and size hold other bytes, as far as their extents tell: equal contents are stored as equal extents.
    async fn has_other_contents(
        &self,
        left: u64,
        right: u64,
        attributes: &Attributes,
    ) -> Result<bool, VolumeError> {
        let key = match attributes.mode & libc::S_IFMT {
            libc::S_IFLNK => Key::symlink,
            libc::S_IFREG => Key::inline,
            _ => return Ok(false),
        };
        let one = self.left.item(Scope::Live, &key(left)).await?;
        let other = self.right.item(Scope::Live, &key(right)).await?;
        if one.is_some() || other.is_some() {
            return Ok(one != other);
        }
        /// Extents compared in one go, in bytes of the file.
        const STEP_BYTES: u64 = 1 << 40;
        let mut at = 0;
        while at < attributes.size_bytes {
            let range = at..at.saturating_add(STEP_BYTES).min(attributes.size_bytes);
            let one = self.left.extents(Scope::Live, left, range.clone()).await?;
            let other = self
                .right
                .extents(Scope::Live, right, range.clone())
                .await?;
            let facts = |extents: &[crate::extents::Placed]| -> Vec<_> {
                let fact = |placed: &crate::extents::Placed| {
                    let extent = placed.extent;
                    let target = (extent.target, extent.target_offset);
                    (placed.offset, extent.length, target)
                };
                extents.iter().map(fact).collect()
            };
            if facts(&one) != facts(&other) {
                return Ok(true);
            }
            at = range.end;
        }
        Ok(false)
    }

    async fn has_other_xattrs(&self, left: u64, right: u64) -> Result<bool, VolumeError> {
        Ok(xattrs(self.left, left).await? != xattrs(self.right, right).await?)
    }

    fn tell(
        &mut self,
        change: Change,
        path: Vec<u8>,
        left: Option<Attributes>,
        right: Option<Attributes>,
    ) {
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        self.found.push(Difference {
            change,
            path,
            left,
            right,
        });
    }
}

/// What counts: not when something was last read or had its attributes changed, and of directories not when names came or went.
fn compare_attributes(left: &Attributes, right: &Attributes) -> Marks {
    let is_directory = mode::is_directory(right.mode);
    let facts = |attributes: &Attributes| {
        let modified = (!is_directory).then_some(attributes.modified);
        let who = (attributes.uid, attributes.gid);
        (attributes.mode, who, attributes.device, modified)
    };
    Marks {
        contents: !is_directory && left.size_bytes != right.size_bytes,
        metadata: facts(left) != facts(right),
        names: false,
    }
}

async fn xattrs(view: &View, inode: u64) -> Result<Vec<(Vec<u8>, Item)>, VolumeError> {
    let mut range = key::of_kind(inode, key::ItemKind::Xattr);
    let mut all = Vec::new();
    loop {
        let page = view.items(Scope::Live, range.clone(), 64).await?;
        for (key, item) in page.items {
            if let Ok(KeyParts::Xattr { name, .. }) = key.parse() {
                all.push((name.to_vec(), item));
            }
        }
        match page.next {
            Some(next) => range.start = next,
            None => return Ok(all),
        }
    }
}
