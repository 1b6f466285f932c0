//! The differences between two snapshots, by path.
//!
//! Owns: the walk from the top, and what counts as a difference. Does not own: which items differ
//! (`tree::diff`), how differences are shown.
//!
//! The comparison first finds the items that differ. Its cost depends on the number of those items,
//! not on the size of the trees. Items belong to inodes, and only names tell where an inode is. The
//! comparison therefore lists directories from the top, until it has met every inode that differs.
//! It reads no contents.

use std::collections::{HashMap, HashSet};

use crate::fault::{Entered, Fault};
use crate::tree::diff::Diff;
use crate::tree::item::{Attributes, Item, Target};
use crate::tree::key::{self, Key, KeyParts};
use crate::tree::map::Tree;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::nodes::decode_item;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, Listing, Named, join};

/// Extents compared at once. Memory stays bounded for a file of any claimed size; the comparison
/// stops at the first page that differs. Files of different sizes are not compared further.
const PAGE_EXTENTS: usize = 4096;

/// The kind of a difference.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Change {
    /// Only the second snapshot has it.
    Added,
    /// Only the first snapshot has it.
    Removed,
    /// Its contents differ, or it is a symbolic link with another target.
    Modified,
    /// Its mode, owner, time or an extended attribute differs.
    Metadata,
    /// Its file type differs.
    Type,
}

/// A difference.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Kind of the difference.
    pub change: Change,
    /// Path; begins with `/`, and does not end with `/` for a directory.
    pub path: Vec<u8>,
    /// Attributes in the first snapshot, if it is there.
    pub left: Option<Attributes>,
    /// Attributes in the second snapshot, if it is there.
    pub right: Option<Attributes>,
}

/// The parts in which an inode differs that both snapshots have.
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

/// A directory that is still to be listed.
enum Task {
    /// The same inode on both sides.
    Same(u64),
    /// Another inode on each side.
    Pair(u64, u64),
    /// Only in the first snapshot.
    Left(u64),
    /// Only in the second snapshot.
    Right(u64),
}

/// A comparison in progress.
pub struct Comparison<'a> {
    left: &'a View,
    right: &'a View,
    marks: HashMap<u64, Marks>,
    /// Inodes that differ and that the walk has not met yet.
    pending: HashSet<u64>,
    tasks: Vec<(Vec<u8>, Task)>,
    /// Differences found that the caller has not taken yet.
    found: Vec<Difference>,
    /// Directories entered, on each side.
    entered: [Entered; 2],
    /// Entries left out that the caller has not taken yet, each with its path.
    left_out: Vec<(Vec<u8>, Fault)>,
}

impl<'a> Comparison<'a> {
    /// Finds the items that differ, and begins with a pair of inodes, one in each view, whose path
    /// is `path`.
    ///
    /// # Errors
    /// [`VolumeError::ContentStore`], [`VolumeError::Tree`] or [`VolumeError::Malformed`] if a tree
    /// cannot be read.
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
            entered: Default::default(),
            left_out: Vec::new(),
        };
        comparison.mark().await?;
        let path = match path {
            b"/" => b"",
            path => path,
        };
        comparison.compare_pair(inodes, path.to_vec()).await?;
        Ok(comparison)
    }

    /// Returns the entries that were left out since the last call because of a fault, each with its
    /// path.
    pub fn take_left_out(&mut self) -> Vec<(Vec<u8>, Fault)> {
        std::mem::take(&mut self.left_out)
    }

    /// Returns the next differences: those of one directory, sorted by name. The list is empty if
    /// the walk has only left out entries since the last call. Returns `None` after the last
    /// difference.
    ///
    /// # Errors
    /// As [`Comparison::new`].
    pub async fn next(&mut self) -> Result<Option<Vec<Difference>>, VolumeError> {
        loop {
            if !self.found.is_empty() || !self.left_out.is_empty() {
                return Ok(Some(std::mem::take(&mut self.found)));
            }
            let Some((path, task)) = self.tasks.pop() else {
                return Ok(None);
            };
            let below = self.tasks.len();
            match task {
                Task::Same(inode) => self.look_into_same(inode, &path).await?,
                Task::Pair(left, right) => {
                    let left = self.names(self.left, left, &path).await?;
                    let right = self.names(self.right, right, &path).await?;
                    self.merge(left, right, &path).await?;
                }
                Task::Left(inode) => {
                    let names = self.names(self.left, inode, &path).await?;
                    self.merge(names, Vec::new(), &path).await?;
                }
                Task::Right(inode) => {
                    let names = self.names(self.right, inode, &path).await?;
                    self.merge(Vec::new(), names, &path).await?;
                }
            }
            // The first name is taken from the stack first.
            self.tasks[below..].reverse();
        }
    }

    /// Returns the names of a directory. Names with a fault are left out.
    async fn names(
        &mut self,
        view: &View,
        inode: u64,
        path: &[u8],
    ) -> Result<Vec<Named>, VolumeError> {
        let Listing { names, faulty, .. } = walk::names(view, inode).await?;
        for faulty in faulty {
            self.left_out.push((join(path, &faulty.name), faulty.fault));
        }
        Ok(names)
    }

    /// Returns the attributes of the inode that a name leads to. A name that leads to no inode is
    /// left out, and the result is `None`.
    async fn attributes(
        &mut self,
        view: &View,
        inode: u64,
        path: &[u8],
    ) -> Result<Option<Attributes>, VolumeError> {
        match walk::attributes(view, inode).await? {
            Ok(attributes) => Ok(Some(attributes)),
            Err(fault) => {
                self.left_out.push((path.to_owned(), fault));
                Ok(None)
            }
        }
    }

    /// Queues a directory for listing, unless it was entered before or its path is too long: such a
    /// walk might never end.
    fn enter(&mut self, path: Vec<u8>, task: Task) {
        let (left, right) = match task {
            Task::Same(inode) => (Some(inode), Some(inode)),
            Task::Pair(left, right) => (Some(left), Some(right)),
            Task::Left(inode) => (Some(inode), None),
            Task::Right(inode) => (None, Some(inode)),
        };
        let sides = self.entered.iter_mut().zip([left, right]);
        let entered = sides.map(|(entered, inode)| match inode {
            Some(inode) => entered.enter(inode, path.len()),
            None => Ok(()),
        });
        match entered.reduce(Result::and) {
            Some(Err(fault)) => self.left_out.push((path, fault)),
            _ => self.tasks.push((path, task)),
        }
    }

    /// Notes the inodes that both snapshots have and that differ.
    async fn mark(&mut self) -> Result<(), VolumeError> {
        let (left, right) = (Tree::new(self.left.base()), Tree::new(self.right.base()));
        let nodes = self.right.nodes();
        let mut diff = Diff::new(left, right, key::everything());
        while let Some(difference) = diff.next(nodes.as_ref()).await? {
            let mut marks = Marks::default();
            let parts = match difference.key.parse() {
                Ok(parts) => parts,
                // An invalid name marks its directory, which is then listed; the listing leaves the
                // name out.
                Err(error) => match difference.key.inode() {
                    Ok(inode) if difference.key.kind() == Ok(key::ItemKind::Name) => {
                        self.marks.entry(inode).or_default().names = true;
                        continue;
                    }
                    _ => {
                        let what = format!("{:?}: {error}", difference.key);
                        return Err(VolumeError::Tree(what));
                    }
                },
            };
            let inode = match parts {
                KeyParts::Attributes { inode } => {
                    // An inode that only one side has is met through a name that only that side
                    // has.
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
            let left = self.names(self.left, inode, path).await?;
            let right = self.names(self.right, inode, path).await?;
            return self.merge(left, right, path).await;
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        for name in self.names(self.right, inode, path).await? {
            self.same(&name, path).await?;
        }
        Ok(())
    }

    /// Compares a name that leads to the same inode on both sides.
    async fn same(&mut self, name: &Named, directory: &[u8]) -> Result<(), VolumeError> {
        let inode = name.inode;
        if let Some(change) = self.marks.get(&inode).and_then(|marks| marks.change()) {
            let path = join(directory, &name.name);
            let left = self.attributes(self.left, inode, &path).await?;
            let right = self.attributes(self.right, inode, &path).await?;
            let (Some(left), Some(right)) = (left, right) else {
                return Ok(());
            };
            // Another name of the inode may follow.
            if right.links <= 1 {
                self.pending.remove(&inode);
            }
            self.tell(change, path, Some(left), Some(right));
        }
        if name.is_directory() {
            let path = join(directory, &name.name);
            self.enter(path, Task::Same(inode));
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
        let attributes = self.attributes(view, name.inode, &path).await?;
        if attributes.is_none() {
            return Ok(());
        }
        if name.is_directory() {
            let task = match is_left {
                true => Task::Left(name.inode),
                false => Task::Right(name.inode),
            };
            self.enter(path.clone(), task);
        }
        match is_left {
            true => self.tell(change, path, attributes, None),
            false => self.tell(change, path, None, attributes),
        }
        Ok(())
    }

    /// Compares one path that leads to an inode on each side.
    async fn compare_pair(
        &mut self,
        (left, right): (u64, u64),
        path: Vec<u8>,
    ) -> Result<(), VolumeError> {
        let one = self.attributes(self.left, left, &path).await?;
        let other = self.attributes(self.right, right, &path).await?;
        let (Some(one), Some(other)) = (one, other) else {
            return Ok(());
        };
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
            (true, true) if left == right => self.enter(path.clone(), Task::Same(left)),
            (true, true) => self.enter(path.clone(), Task::Pair(left, right)),
            (true, false) => self.enter(path.clone(), Task::Left(left)),
            (false, true) => self.enter(path.clone(), Task::Right(right)),
            (false, false) => {}
        }
        if let Some(change) = change {
            self.tell(change, path, Some(one), Some(other));
        }
        Ok(())
    }

    /// Returns true if two inodes of one type and size hold different bytes, as far as their
    /// extents tell: equal contents are stored as equal extents.
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
        let all = |inode| key::of_kind(inode, key::ItemKind::Extent);
        let (mut ours, mut theirs) = (all(left), all(right));
        loop {
            let one = self
                .left
                .items(Scope::Live, ours.clone(), PAGE_EXTENTS)
                .await?;
            let other = self.right.items(Scope::Live, theirs.clone(), PAGE_EXTENTS);
            let other = other.await?;
            if facts(&one.items) != facts(&other.items) {
                return Ok(true);
            }
            match (one.next, other.next) {
                (Some(one), Some(other)) => (ours.start, theirs.start) = (one, other),
                (None, None) => return Ok(false),
                _ => return Ok(true),
            }
        }
    }

    async fn has_other_xattrs(&self, left: u64, right: u64) -> Result<bool, VolumeError> {
        Ok(walk::xattrs(self.left, left).await? != walk::xattrs(self.right, right).await?)
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

/// Compares attributes. The times of the last access and of the last attribute change do not count.
/// For directories the time of modification and the size do not count either, because they only
/// tell that names came or went.
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

/// Returns the compared parts of extents: their place in the file, and the contents that they refer
/// to.
fn facts(items: &[(Key, Item)]) -> Vec<Option<(u64, u32, Target, u32)>> {
    let fact = |(key, item): &(Key, Item)| match (key.parse(), item) {
        (Ok(KeyParts::Extent { offset, .. }), Item::Extent(extent)) => {
            Some((offset, extent.length, extent.target, extent.target_offset))
        }
        _ => None,
    };
    items.iter().map(fact).collect()
}
