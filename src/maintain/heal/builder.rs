//! Makes nodes again from the items that they held. Pure.
//!
//! Owns the way from sorted items to nodes. Where a node ends depends on its own entries alone. So
//! the items of a lost node give that node again, and all nodes below it, to the byte.

use bkfs_chunker::id::Id;

use crate::tree::key::Key;
use crate::tree::node::{Child, MAX_LEVEL, NodeBuilder, write_child};

/// Makes nodes, children before parents. Memory is one node per level.
pub(super) struct Builder<F> {
    /// Returns the id of a node.
    name: F,
    levels: Vec<Level>,
}

struct Level {
    builder: NodeBuilder,
    /// Number of nodes of this level that have ended.
    made: u64,
}

/// A node that has ended: its id and bytes.
pub(super) type Made = (Id, Vec<u8>);

impl<F: Fn(&[u8]) -> Id> Builder<F> {
    /// Starts without items.
    pub(super) fn new(name: F) -> Self {
        Self {
            name,
            levels: Vec::new(),
        }
    }

    /// Adds an item whose key is above all before it. Returns the nodes that end with it.
    pub(super) fn push(&mut self, key: &Key, value: &[u8]) -> Vec<Made> {
        let mut made = Vec::new();
        self.add(0, key.as_bytes(), value, &mut made);
        made
    }

    fn add(&mut self, level: usize, key: &[u8], value: &[u8], made: &mut Vec<Made>) {
        if self.levels.len() == level {
            self.levels.push(Level {
                builder: NodeBuilder::new(level as u8),
                made: 0,
            });
        }
        if self.levels[level].builder.push(&[], key, value) {
            self.end(level, made);
        }
    }

    fn end(&mut self, level: usize, made: &mut Vec<Made>) {
        let Level {
            builder,
            made: count,
        } = &mut self.levels[level];
        let Some(first) = builder.first_key().map(<[u8]>::to_vec) else {
            return;
        };
        let items = builder.items();
        let bytes = builder.finish();
        *count += 1;
        let id = (self.name)(&bytes);
        made.push((id, bytes));
        if level < usize::from(MAX_LEVEL) {
            self.add(level + 1, &first, &write_child(Child { id, items }), made);
        }
    }

    /// Ends the input. Returns the nodes that end with it, up to the one of `level`, or up to the
    /// root node if `level` is none.
    pub(super) fn finish(mut self, level: Option<u8>) -> Vec<Made> {
        let mut made = Vec::new();
        if self.levels.is_empty() {
            let bytes = NodeBuilder::new(0).finish();
            made.push(((self.name)(&bytes), bytes));
            return made;
        }
        for at in 0..=usize::from(MAX_LEVEL) {
            if self.levels.len() <= at {
                break;
            }
            self.end(at, &mut made);
            let is_last = match level {
                Some(level) => at == usize::from(level),
                None => self.levels[at].made == 1,
            };
            if is_last {
                break;
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::tree::apply::{apply, empty};
    use crate::tree::key::everything;
    use crate::tree::map::Tree;
    use crate::tree::memory::MemoryNodes;
    use crate::tree::source::NodeSource;

    fn items(count: u64) -> Vec<(Key, Vec<u8>)> {
        (0..count)
            .map(|number| {
                (
                    Key::extent(number / 9, number * 4096),
                    vec![number as u8; 40],
                )
            })
            .collect()
    }

    /// Returns the root node of a tree, and every node of it with its level and the range of its
    /// keys.
    async fn tree(nodes: &MemoryNodes, items: &[(Key, Vec<u8>)]) -> (Id, Vec<(Id, u8, Key, Key)>) {
        let root = empty(nodes).await.expect("empty");
        let changes = items.iter().map(|(key, value)| (key.clone(), Some(value)));
        let root = apply(nodes, nodes, root, changes).await.expect("applied");
        let mut found = Vec::new();
        let mut stack = vec![(root, everything().start, everything().end)];
        while let Some((id, start, end)) = stack.pop() {
            let node = nodes.load(id).await.expect("a node");
            found.push((id, node.level(), start, end.clone()));
            for index in 0..node.len() {
                let Some(child) = node.child(index) else {
                    break;
                };
                let last = index + 1 == node.len();
                let until = if last {
                    end.clone()
                } else {
                    node.key(index + 1)
                };
                stack.push((child.id, node.key(index), until));
            }
        }
        (root, found)
    }

    #[tokio::test]
    async fn a_node_is_made_again_from_its_items() {
        for count in [0, 1, 50, 3_000, 60_000] {
            let nodes = MemoryNodes::new();
            let items = items(count);
            let (root, all) = tree(&nodes, &items).await;
            let name = |bytes: &[u8]| Id(*blake3::hash(bytes).as_bytes());
            let mut builder = Builder::new(name);
            let mut made: HashSet<Id> = HashSet::new();
            for (key, value) in &items {
                made.extend(builder.push(key, value).into_iter().map(|(id, _)| id));
            }
            let last = builder.finish(None);
            assert_eq!(last.last().map(|(id, _)| *id), Some(root));
            made.extend(last.into_iter().map(|(id, _)| id));
            assert!(all.iter().all(|(id, ..)| made.contains(id)), "{count}");
            for (id, level, start, end) in &all {
                let mut cursor = Tree::new(root).range(start.clone()..end.clone());
                let mut builder = Builder::new(name);
                let mut made = Vec::new();
                while let Some((key, value)) = cursor.next(&nodes).await.expect("reads") {
                    made.extend(builder.push(&key, &value));
                }
                made.extend(builder.finish(Some(*level)));
                assert!(
                    made.iter().any(|(made, _)| made == id),
                    "level {level} of {count}"
                );
            }
        }
    }
}
