//! Finds the snapshots and files that damage touches: from lost blobs up to names.
//!
//! Owns the walk from the root nodes of damaged trees down to the lost blobs. It runs only if
//! something is lost. A node that is whole together with everything below it is visited once,
//! however many trees share it. Nodes are read from the bucket. A node that cannot be read is
//! itself one of the losses.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};

use super::judge::Damage;
use super::report::Report;
use crate::root::error::RootError;
use crate::tree::item::Item;
use crate::tree::key::KeyParts;
use crate::tree::node::{MAX_LEVEL, Node};
use crate::tree::source::{Reference, references};
use crate::volume::ROOT_INODE;
use crate::volume::mode;

/// Damaged trees whose touched files are named by path. Files of further trees are named by inode
/// number.
const NAMED_TREES_MAX: usize = 16;

/// Touched inodes that are recorded for each problem of one tree.
const INODES_MAX: usize = 10_000;

/// A tree with the name that people know it by.
#[derive(Clone, Debug)]
pub struct Head {
    /// `VOLUME/NAME`, or `VOLUME` for its current state.
    pub name: String,
    /// The root node.
    pub tree: Id,
}

/// The search for what damage touches.
pub struct Blame<'a> {
    /// Reads nodes.
    pub content_store: &'a ContentStore,
    /// The damage.
    pub damage: &'a Damage,
    clean: HashSet<Id>,
}

/// The inodes of one tree that damage touches, by the number of the problem.
#[derive(Debug, Default)]
struct Touched {
    problems: BTreeMap<usize, BTreeSet<u64>>,
}

impl Touched {
    fn note(&mut self, problem: usize, inode: u64) {
        let inodes = self.problems.entry(problem).or_default();
        if inodes.len() < INODES_MAX {
            inodes.insert(inode);
        }
    }
}

/// A node that has not been visited yet.
struct Step {
    id: Id,
    level: u8,
    /// The inode that owns the first key below it.
    inode: u64,
}

impl<'a> Blame<'a> {
    /// Creates a search for what `damage` touches. It reads nodes from `content_store`.
    pub fn new(content_store: &'a ContentStore, damage: &'a Damage) -> Self {
        Self {
            content_store,
            damage,
            clean: HashSet::new(),
        }
    }

    /// Adds to the problems of `report` which of `heads` they touch, and which files of those.
    ///
    /// # Errors
    /// [`RootError::Content`] if the store cannot be read. A damaged or missing node is no error.
    pub async fn name(&mut self, heads: &[Head], report: &mut Report) -> Result<(), RootError> {
        let mut by_tree: BTreeMap<Id, Vec<&str>> = BTreeMap::new();
        for head in heads {
            by_tree.entry(head.tree).or_default().push(&head.name);
        }
        let mut named = 0;
        for (tree, names) in by_tree {
            let touched = self.touched(tree).await?;
            if touched.problems.is_empty() {
                continue;
            }
            let paths = match named < NAMED_TREES_MAX {
                true => self.paths(tree, &touched).await?,
                false => HashMap::new(),
            };
            named += 1;
            for (number, inodes) in &touched.problems {
                let Some(problem) = report.problems.get_mut(*number) else {
                    continue;
                };
                problem
                    .snapshots
                    .extend(names.iter().map(|name| (*name).to_owned()));
                for inode in inodes {
                    let path = match paths.get(inode) {
                        Some(path) => path.clone(),
                        None => format!("(inode {inode})"),
                    };
                    problem.touch(format!("{}:{path}", names[0]));
                }
            }
        }
        Ok(())
    }

    /// Returns the node. If it cannot be read, returns the number of the problem that is the cause,
    /// if one is known.
    async fn node(&self, id: Id) -> Result<Result<Node, Option<usize>>, RootError> {
        let culprit = self.damage.culprit(&id.prefix());
        match self.content_store.read_blob(Kind::Node, id).await {
            Ok(bytes) => Ok(Node::decode(bytes).map_err(|_| culprit)),
            Err(
                ContentError::Damaged { .. }
                | ContentError::Missing { .. }
                | ContentError::Unknown { .. }
                | ContentError::Unreadable { .. },
            ) => Ok(Err(culprit)),
            Err(error) => Err(error.into()),
        }
    }

    async fn touched(&mut self, tree: Id) -> Result<Touched, RootError> {
        let mut touched = Touched::default();
        let mut path: Vec<(Id, Vec<Step>, bool)> = Vec::new();
        let mut next = Some(Step {
            id: tree,
            level: MAX_LEVEL,
            inode: ROOT_INODE,
        });
        loop {
            let Some(step) = next.take() else {
                // The last node of the path is done when all of its children are.
                let Some((_, children, _)) = path.last_mut() else {
                    return Ok(touched);
                };
                if let Some(child) = children.pop() {
                    next = Some(child);
                } else if let Some((id, _, whole)) = path.pop() {
                    match whole {
                        true => {
                            self.clean.insert(id);
                        }
                        false => path.iter_mut().for_each(|(_, _, whole)| *whole = false),
                    }
                }
                continue;
            };
            if self.clean.contains(&step.id) {
                continue;
            }
            let node = match self.node(step.id).await? {
                Ok(node) if node.level() <= step.level => node,
                Ok(_) => continue,
                Err(culprit) => {
                    path.iter_mut().for_each(|(_, _, whole)| *whole = false);
                    if let Some(problem) = culprit {
                        touched.note(problem, step.inode);
                    }
                    continue;
                }
            };
            let whole = !self.look(&node, &mut touched);
            path.push((step.id, children(&node), whole));
        }
    }

    /// Notes the references of a leaf to lost blobs. Returns true if there are any.
    fn look(&self, node: &Node, touched: &mut Touched) -> bool {
        let mut any = false;
        if node.level() > 0 {
            return any;
        }
        for index in 0..node.len() {
            let Some(problem) =
                leaf_target(node, index).and_then(|target| self.damage.culprit(&target.prefix()))
            else {
                continue;
            };
            any = true;
            touched.note(problem, node.key(index).inode().unwrap_or(0));
        }
        any
    }

    /// Returns the paths of the touched inodes, as far as the names that lead to them can be read.
    async fn paths(&self, tree: Id, touched: &Touched) -> Result<HashMap<u64, String>, RootError> {
        let wanted: HashSet<u64> = touched.problems.values().flatten().copied().collect();
        let mut parents: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        let mut stack = vec![tree];
        while let Some(id) = stack.pop() {
            let Ok(node) = self.node(id).await? else {
                continue;
            };
            stack.extend(children(&node).into_iter().map(|child| child.id));
            for index in 0..if node.level() == 0 { node.len() } else { 0 } {
                let key = node.key(index);
                let Ok(KeyParts::Name {
                    directory, name, ..
                }) = key.parse()
                else {
                    continue;
                };
                let item = key
                    .kind()
                    .map(|kind| Item::decode(kind, &node.value_bytes(index)));
                let Ok(Ok(Item::Name { inode, file_type })) = item else {
                    continue;
                };
                let is_directory = mode::is_directory(u32::from(file_type) << 12);
                if is_directory || wanted.contains(&inode) {
                    parents
                        .entry(inode)
                        .or_insert_with(|| (directory, name.to_vec()));
                }
            }
        }
        let path = |inode| (inode, path_of(inode, &parents));
        Ok(wanted.into_iter().map(path).collect())
    }
}

fn children(node: &Node) -> Vec<Step> {
    let Some(level) = node.level().checked_sub(1) else {
        return Vec::new();
    };
    let child = |index| {
        let child = node.child(index)?;
        Some(Step {
            id: child.id,
            level,
            inode: node.key(index).inode().unwrap_or(0),
        })
    };
    (0..node.len()).filter_map(child).collect()
}

/// Returns the chunk or segment that an entry of a leaf refers to, if the entry is an extent.
fn leaf_target(node: &Node, index: usize) -> Option<Id> {
    let key = node.key(index);
    let kind = key.kind().ok()?;
    match Item::decode(kind, &node.value_bytes(index)) {
        Ok(Item::Extent(extent)) => Some(extent.target.id()),
        _ => None,
    }
}

/// Returns the path of an inode, made of the names that were found. A loop of directories, which no
/// filesystem makes, ends after as many parts as there are names.
fn path_of(inode: u64, parents: &HashMap<u64, (u64, Vec<u8>)>) -> String {
    let mut parts = Vec::new();
    let mut at = inode;
    while at != ROOT_INODE {
        let Some((parent, name)) = parents.get(&at).filter(|_| parts.len() <= parents.len()) else {
            parts.push(format!("(inode {at})"));
            break;
        };
        parts.push(String::from_utf8_lossy(name).escape_debug().to_string());
        at = *parent;
    }
    parts.reverse();
    format!("/{}", parts.join("/"))
}

/// Visits every node of a tree and every segment and chunk that it refers to, as far as its nodes
/// can be read.
///
/// `seen` holds the nodes that were visited before, for this tree or for others: they are skipped.
/// Returns true if every node that was not skipped can be read and a pack of the content store's
/// index holds everything that it refers to.
///
/// # Errors
/// [`RootError::Content`] if the store cannot be read. A damaged or missing node is no error.
pub async fn reach(
    content_store: &ContentStore,
    tree: Id,
    seen: &mut HashSet<Id>,
    visit: &mut (dyn FnMut(Id) + Send),
) -> Result<bool, RootError> {
    let damage = Damage::default();
    let blame = Blame::new(content_store, &damage);
    let (mut stack, mut whole) = (vec![tree], true);
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        visit(id);
        let Ok(node) = blame.node(id).await? else {
            whole = false;
            continue;
        };
        for reference in references(&node) {
            match reference {
                Ok(Reference::Node(id)) => stack.push(id),
                Ok(Reference::Target(target)) => {
                    visit(target.id());
                    whole &= !content_store.places(&target.id()).await?.is_empty();
                }
                Err(_) => whole = false,
            }
        }
    }
    Ok(whole)
}
