//! Checks whole trees, as readers walk over them: names that lead to no inode or to one of another
//! type, and directories that contain themselves.
//!
//! Owns what no single item shows. Each entry was judged where its pack was read. A tree is judged
//! by its differences from the tree before, so the cost is that of the differences, plus one pass
//! over all directories if one of them was moved or renamed. Memory is about 80 bytes for each
//! inode of one tree.

use std::collections::{BTreeSet, HashMap, HashSet};

use bkfs_chunker::id::Id;

use super::report::{Note, Problem, ProblemKind, Report};
use crate::fault::{Fault, PATH_BYTES_MAX, XATTRS_BYTES_MAX};
use crate::tree::diff::Diff;
use crate::tree::item::Item;
use crate::tree::key::{self, Key, KeyParts};
use crate::tree::map::Tree;
use crate::volume::ROOT_INODE;
use crate::volume::attributes::XATTR_LIST_BYTES_MAX;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::nodes::{Nodes, decode_item};

/// Faults of one tree that are reported. Of further ones only the number is.
const TOLD_MAX: usize = 100;

/// A tree with the name that people know it by.
pub struct Named {
    /// `snapshot VOLUME/NAME`, or `volume NAME`.
    pub who: String,
    /// The same without the first word.
    pub name: String,
    /// The root node.
    pub tree: Id,
}

/// The facts that a tree states about an inode.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    /// Its type by its attributes; 0 if it has none.
    kind: u8,
    /// Number of names that lead to it.
    names: u32,
    /// Number of names in it.
    children: u32,
    /// Sum of the [`claim`]s of the types that the names leading to it state.
    claims: u64,
    /// Sum of the directories that hold these names: its parent, if there is one name.
    parents: u64,
    /// The length of these names together, in bytes.
    name_bytes: u64,
    /// The length of the names of its extended attributes, as a list of them takes it, in bytes.
    xattr_list_bytes: u64,
    /// The length of their names and values together, in bytes.
    xattr_bytes: u64,
}

/// Returns a number for each type, so that a sum of them shows whether all are of one type.
fn claim(kind: u8) -> u64 {
    let mixed = (u64::from(kind) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Facts {
    fn is_directory(&self) -> bool {
        self.kind == mode::kind(libc::S_IFDIR)
    }

    fn fault(&self, inode: u64) -> Option<String> {
        let is_directory = self.is_directory();
        let claims = claim(self.kind).wrapping_mul(self.names.into());
        if self.names > 0 && self.kind == 0 {
            Some(Fault::Dangling { inode }.to_string())
        } else if is_directory && self.names > 1 {
            Some(Fault::Again { inode }.to_string())
        } else if self.claims != claims || (self.children > 0 && !is_directory) {
            Some(format!("inode {inode} is of another type than names say"))
        } else {
            None
        }
    }

    /// Returns whether it has more extended attributes than readers take.
    fn has_many_xattrs(&self) -> bool {
        self.xattr_list_bytes > XATTR_LIST_BYTES_MAX as u64
            || self.xattr_bytes > XATTRS_BYTES_MAX as u64
    }
}

/// The lengths of the paths of directories, in bytes; of one whose way up ends in a cycle, the
/// lowest inode of the cycle.
type Paths = HashMap<u64, Result<u64, u64>>;

/// The judgement over trees, one after the other.
pub struct Trees<'a> {
    nodes: &'a Nodes,
    before: Option<Id>,
    inodes: HashMap<u64, Facts>,
    /// Inodes that have a fault in the current tree.
    faulty: BTreeSet<u64>,
    /// Inodes that have more extended attributes than readers take.
    laden: BTreeSet<u64>,
    /// Directories with paths that are too long, in others whose paths are not.
    deep: BTreeSet<u64>,
    /// Inodes of which the current tree says something else than the one before.
    touched: HashSet<u64>,
    /// Those that have lost a name.
    unnamed: HashSet<u64>,
}

impl<'a> Trees<'a> {
    /// Creates a judge that reads trees through `nodes`.
    pub fn new(nodes: &'a Nodes) -> Self {
        Self {
            nodes,
            before: None,
            inodes: HashMap::new(),
            faulty: BTreeSet::new(),
            laden: BTreeSet::new(),
            deep: BTreeSet::new(),
            touched: HashSet::new(),
            unnamed: HashSet::new(),
        }
    }

    /// Judges a tree, and adds its faults to `report`, and notes of what readers leave out.
    ///
    /// Cancel safety: dropped while it reads, it leaves a value that cannot judge another tree.
    ///
    /// # Errors
    /// The [`VolumeError`] of the node that could not be read. This value cannot judge another tree
    /// after that.
    pub async fn judge(&mut self, named: &Named, report: &mut Report) -> Result<(), VolumeError> {
        self.read(named.tree).await?;
        let mut cycles = BTreeSet::new();
        let mut known = Paths::from([(ROOT_INODE, Ok(0))]);
        self.judge_all_paths(&mut known);
        for inode in std::mem::take(&mut self.touched) {
            let facts = self.inodes.get(&inode);
            match facts.and_then(|facts| facts.fault(inode)) {
                Some(_) => self.faulty.insert(inode),
                None => self.faulty.remove(&inode),
            };
            match facts.is_some_and(Facts::has_many_xattrs) {
                true => self.laden.insert(inode),
                false => self.laden.remove(&inode),
            };
            if facts.is_some_and(|facts| *facts == Facts::default()) {
                self.inodes.remove(&inode);
            }
            cycles.extend(self.judge_path(inode, &mut known).err());
        }
        let faults = self
            .faulty
            .iter()
            .filter_map(|inode| self.inodes.get(inode)?.fault(*inode));
        let cycles = cycles
            .iter()
            .map(|inode| format!("a cycle of directories: inode {inode} lies in itself"));
        let faults: Vec<String> = faults.chain(cycles).collect();
        for fault in faults.iter().take(TOLD_MAX) {
            tell(named, fault.clone(), report);
        }
        if let Some(more) = faults.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
            tell(
                named,
                format!("{more} more of its inodes are not what an honest tree holds"),
                report,
            );
        }
        self.note_left_out(named, report);
        Ok(())
    }

    /// Notes what readers leave out of the current tree, although an honest writer can make it.
    fn note_left_out(&self, named: &Named, report: &mut Report) {
        let laden = self.laden.iter().map(|inode| {
            format!(
                "restore leaves out the extended attributes of inode {inode}, and dump the inode: \
                 they are more than {XATTR_LIST_BYTES_MAX} bytes of names, or \
                 {XATTRS_BYTES_MAX} bytes in all"
            )
        });
        let deep = self.deep.iter().map(|inode| {
            format!(
                "ls, find, diff, dump and restore leave out directory {inode} and all below it: \
                 its path is longer than {PATH_BYTES_MAX} bytes"
            )
        });
        for what in laden.chain(deep).take(TOLD_MAX) {
            let tree = named.name.clone();
            report.note(Note { tree, what });
        }
        let all = self.laden.len() + self.deep.len();
        report.more_notes += all.saturating_sub(TOLD_MAX) as u64;
    }

    /// Takes in the differences from the tree before.
    async fn read(&mut self, tree: Id) -> Result<(), VolumeError> {
        let everything = key::everything();
        match self.before.replace(tree) {
            None => {
                let mut cursor = Tree::new(tree).range(everything);
                while let Some((key, value)) = cursor.next(self.nodes).await? {
                    self.note(&key, &value, true);
                }
            }
            Some(before) => {
                let mut diff = Diff::new(Tree::new(before), Tree::new(tree), everything);
                while let Some(differing) = diff.next(self.nodes).await? {
                    for (value, is_there) in [(differing.left, false), (differing.right, true)] {
                        if let Some(value) = value {
                            self.note(&differing.key, &value, is_there);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Records that an entry was added or removed. A malformed entry is skipped: it is reported
    /// where its pack is read.
    fn note(&mut self, key: &Key, value: &bytes::Bytes, is_there: bool) {
        if !matches!(
            key.kind(),
            Ok(key::ItemKind::Attributes | key::ItemKind::Name | key::ItemKind::Xattr)
        ) {
            return;
        }
        let (Ok(parts), Ok(item)) = (key.parse(), decode_item(key, value)) else {
            return;
        };
        let step = if is_there { 1 } else { u32::MAX };
        match (parts, item) {
            (KeyParts::Attributes { inode }, Item::Attributes(attributes)) => {
                let facts = self.facts(inode);
                facts.kind = if is_there { attributes.file_type() } else { 0 };
            }
            (KeyParts::Xattr { inode, name }, Item::Xattr(value)) => {
                let facts = self.facts(inode);
                let of_names = &mut facts.xattr_list_bytes;
                count(of_names, name.len() as u64 + 1, is_there);
                count(
                    &mut facts.xattr_bytes,
                    (name.len() + value.len()) as u64,
                    is_there,
                );
            }
            (
                KeyParts::Name {
                    directory, name, ..
                },
                Item::Name { inode, file_type },
            ) => {
                if !is_there {
                    self.unnamed.insert(inode);
                }
                let parent = self.facts(directory);
                parent.children = parent.children.wrapping_add(step);
                let facts = self.facts(inode);
                facts.names = facts.names.wrapping_add(step);
                count(&mut facts.claims, claim(file_type), is_there);
                count(&mut facts.parents, directory, is_there);
                count(&mut facts.name_bytes, name.len() as u64, is_there);
            }
            _ => {}
        }
    }

    fn facts(&mut self, inode: u64) -> &mut Facts {
        self.touched.insert(inode);
        self.inodes.entry(inode).or_default()
    }

    /// Judges the paths of all directories, if one that was there before has another path now.
    fn judge_all_paths(&mut self, known: &mut Paths) {
        let unnamed = std::mem::take(&mut self.unnamed);
        let mut unnamed = unnamed.iter().filter_map(|inode| self.inodes.get(inode));
        if unnamed.any(|facts| facts.is_directory() && facts.names > 0) {
            let directories = self.inodes.iter();
            let directories = directories.filter(|(_, facts)| facts.is_directory());
            let directories: Vec<u64> = directories.map(|(inode, _)| *inode).collect();
            for inode in directories {
                // Cycles are told of those that were touched.
                let _ = self.judge_path(inode, known);
            }
        }
    }

    /// Judges the length of the path of an inode, if it is a directory. Returns a directory that
    /// lies in itself, on the way up.
    fn judge_path(&mut self, inode: u64, known: &mut Paths) -> Result<(), u64> {
        let bytes = match path_bytes(&self.inodes, inode, known) {
            Ok(bytes) => bytes,
            Err(cycle) => {
                self.deep.remove(&inode);
                return Err(cycle);
            }
        };
        let facts = self.inodes.get(&inode).filter(|facts| facts.is_directory());
        let above = facts.map(|facts| bytes.saturating_sub(facts.name_bytes.saturating_add(1)));
        let most = PATH_BYTES_MAX as u64;
        match above.is_some_and(|above| above <= most && bytes > most) {
            true => self.deep.insert(inode),
            false => self.deep.remove(&inode),
        };
        Ok(())
    }
}

/// Returns the length of a path, in bytes, or the lowest inode of the cycle that the way up ends
/// in. `known` are other paths; those of all inodes on the way join them, also on the way to a
/// cycle.
fn path_bytes(inodes: &HashMap<u64, Facts>, inode: u64, known: &mut Paths) -> Result<u64, u64> {
    let (mut way, mut met) = (Vec::<(u64, u64)>::new(), HashSet::new());
    let mut at = inode;
    let mut path = loop {
        if let Some(path) = known.get(&at) {
            break *path;
        }
        if !met.insert(at) {
            let numbers = way.iter().map(|(inode, _)| *inode);
            let cycle = numbers.skip_while(|inode| *inode != at);
            break Err(cycle.min().unwrap_or(at));
        }
        match inodes.get(&at) {
            Some(facts) if facts.names == 1 => {
                way.push((at, facts.name_bytes));
                at = facts.parents;
            }
            _ => {
                known.insert(at, Ok(0));
                break Ok(0);
            }
        }
    };
    for (inode, name_bytes) in way.into_iter().rev() {
        path = path.map(|bytes| bytes.saturating_add(name_bytes).saturating_add(1));
        known.insert(inode, path);
    }
    path
}

/// Adds to a sum, or takes from it what was added before.
fn count(sum: &mut u64, value: u64, is_there: bool) {
    *sum = match is_there {
        true => sum.wrapping_add(value),
        false => sum.wrapping_sub(value),
    };
}

fn tell(named: &Named, what: String, report: &mut Report) {
    let what = format!("{}: {what}", named.who);
    let mut problem = Problem::new("lists/", ProblemKind::Inconsistent, what);
    problem.snapshots.insert(named.name.clone());
    report.add(problem);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_types_are_seen_however_many_there_are() {
        let facts = |kinds: &[u8]| Facts {
            kind: 8,
            names: kinds.len() as u32,
            claims: kinds
                .iter()
                .fold(0_u64, |sum, kind| sum.wrapping_add(claim(*kind))),
            ..Facts::default()
        };
        assert_eq!(facts(&[8, 8, 8]).fault(70), None);
        assert!(facts(&[4]).fault(70).is_some());
        assert!(facts(&[8, 10]).fault(70).is_some());
        assert!(facts(&[4, 12]).fault(70).is_some());
    }

    /// A directory with one name of one byte.
    fn below(parent: u64) -> Facts {
        Facts {
            kind: mode::kind(libc::S_IFDIR),
            names: 1,
            parents: parent,
            name_bytes: 1,
            ..Facts::default()
        }
    }

    #[test]
    fn a_way_into_a_cycle_is_gone_once() {
        let chain = 1_000..2_000_u64;
        let mut inodes = HashMap::from([(70, below(71)), (71, below(70)), (1_000, below(71))]);
        inodes.extend(chain.clone().skip(1).map(|inode| (inode, below(inode - 1))));
        let mut known = Paths::from([(ROOT_INODE, Ok(0))]);
        assert_eq!(path_bytes(&inodes, 1_999, &mut known), Err(70));
        for inode in chain.chain([70, 71]) {
            assert_eq!(known.get(&inode), Some(&Err(70)), "{inode}");
        }
    }

    #[test]
    fn the_length_of_a_path_is_that_of_its_names_and_slashes() {
        let inodes = HashMap::from([(70, below(ROOT_INODE)), (71, below(70))]);
        let mut known = Paths::from([(ROOT_INODE, Ok(0))]);
        assert_eq!(path_bytes(&inodes, 71, &mut known), Ok(4));
        assert_eq!(known.get(&70), Some(&Ok(2)));
    }

    #[test]
    fn many_extended_attributes_are_no_fault() {
        let mut facts = below(ROOT_INODE);
        facts.claims = claim(facts.kind);
        assert!(!facts.has_many_xattrs());
        facts.xattr_bytes = XATTRS_BYTES_MAX as u64 + 1;
        assert!(facts.has_many_xattrs());
        assert_eq!(facts.fault(70), None);
    }
}
