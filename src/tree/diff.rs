//! Differences between two trees.
//!
//! This module owns the walk over both trees at once, which passes over equal subtrees without
//! loading them. The cost follows the size of the difference; memory is one node per level and
//! tree. The module does not know the meaning of a difference.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use bkfs_chunker::id::Id;
use bytes::Bytes;
use futures::future::try_join;

use super::key::Key;
use super::map::Tree;
use super::node::Node;
use super::source::{NodeSource, TreeError, load_child};

/// Number of nodes announced ahead on each side.
const NODES_AHEAD: usize = 16;

/// A key whose value differs between the two trees.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// The key.
    pub key: Key,
    /// Its value in the left tree, or `None` if the key is absent.
    pub left: Option<Bytes>,
    /// Its value in the right tree, or `None` if the key is absent.
    pub right: Option<Bytes>,
}

/// Walks over the differences of two trees in the order of keys.
///
/// It holds no borrow, so that it can be kept between requests.
pub struct Diff {
    roots: Option<(Id, Id)>,
    range: Range<Key>,
    left: Side,
    right: Side,
}

impl Diff {
    /// Returns a walk over the differences whose keys lie in `range` (end exclusive).
    ///
    /// Loads nothing until [`Diff::next`].
    pub fn new(left: Tree, right: Tree, range: Range<Key>) -> Diff {
        Diff {
            roots: (left != right && range.start < range.end).then_some((left.root, right.root)),
            range,
            left: Side::default(),
            right: Side::default(),
        }
    }

    /// Returns the next difference, or `None` after the last.
    ///
    /// The call may be repeated after an error, or if the future was dropped.
    ///
    /// # Errors
    /// The error of `source`, or [`TreeError::Misplaced`] for a node that does not match its
    /// parent's entry.
    pub async fn next<S: NodeSource>(
        &mut self,
        source: &S,
    ) -> Result<Option<Difference>, S::Error> {
        if let Some((left, right)) = self.roots {
            let (left, right) = try_join(source.load(left), source.load(right)).await?;
            self.left.enter(left, &self.range);
            self.right.enter(right, &self.range);
            self.roots = None;
        }
        loop {
            self.left.leave_finished();
            self.right.leave_finished();
            let order = match (self.left.stack.last(), self.right.stack.last()) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(left), Some(right)) => left.compare(right),
            };
            let found = match order {
                // The side that stands at the lower key moves on alone.
                Ordering::Less => self.go_on_left(source).await?,
                Ordering::Greater => self.go_on_right(source).await?,
                Ordering::Equal => self.go_on_both(source).await?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    async fn go_on_left<S: NodeSource>(
        &mut self,
        source: &S,
    ) -> Result<Option<Difference>, S::Error> {
        if let Some((key, value)) = self.left.take_entry() {
            return Ok(Some(Difference {
                key,
                left: Some(value),
                right: None,
            }));
        }
        self.left.announce(&self.right, source);
        let child = self.left.load(source).await?;
        self.left.enter_child(child, &self.range);
        Ok(None)
    }

    async fn go_on_right<S: NodeSource>(
        &mut self,
        source: &S,
    ) -> Result<Option<Difference>, S::Error> {
        if let Some((key, value)) = self.right.take_entry() {
            return Ok(Some(Difference {
                key,
                left: None,
                right: Some(value),
            }));
        }
        self.right.announce(&self.left, source);
        let child = self.right.load(source).await?;
        self.right.enter_child(child, &self.range);
        Ok(None)
    }

    /// Moves on when both sides stand at the same key.
    async fn go_on_both<S: NodeSource>(
        &mut self,
        source: &S,
    ) -> Result<Option<Difference>, S::Error> {
        let (left, right) = (self.left.level(), self.right.level());
        if left > right {
            return self.go_on_left(source).await;
        }
        if right > left {
            return self.go_on_right(source).await;
        }
        if self.left.value() == self.right.value() {
            // The items are equal, or the children have the same id, and then the whole subtrees
            // are equal.
            self.left.pass();
            self.right.pass();
            return Ok(None);
        }
        if left == Some(0) {
            let (left, right) = (self.left.take_entry(), self.right.take_entry());
            return Ok(left.zip(right).map(|((key, left), (_, right))| Difference {
                key,
                left: Some(left),
                right: Some(right),
            }));
        }
        self.left.announce(&self.right, source);
        self.right.announce(&self.left, source);
        let (left, right) = try_join(self.left.load(source), self.right.load(source)).await?;
        self.left.enter_child(left, &self.range);
        self.right.enter_child(right, &self.range);
        Ok(None)
    }
}

/// A node on the path, and the entry that the walk stands before.
struct Frame {
    node: Arc<Node>,
    index: usize,
    /// Index of the first entry behind the range.
    end: usize,
    /// The children below this index have been announced.
    announced: usize,
}

impl Frame {
    fn compare(&self, other: &Frame) -> Ordering {
        self.node
            .compare_entry(self.index, &other.node, other.index)
    }
}

/// The walk over one of the two trees.
#[derive(Default)]
struct Side {
    /// The nodes from the root down. The walk stands before the current entry of the last one.
    stack: Vec<Frame>,
}

impl Side {
    /// Returns the level of the node whose entry the walk stands before, or `None` at the end.
    fn level(&self) -> Option<u8> {
        Some(self.stack.last()?.node.level())
    }

    /// Returns the value of that entry: an item, or the id and item count of a child.
    fn value(&self) -> Option<&[u8]> {
        let frame = self.stack.last()?;
        Some(frame.node.value(frame.index))
    }

    fn pass(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.index += 1;
        }
    }

    /// Returns the item that the walk stands before and moves past it.
    ///
    /// Returns `None` before a subtree.
    fn take_entry(&mut self) -> Option<(Key, Bytes)> {
        let frame = self.stack.last_mut().filter(|top| top.node.level() == 0)?;
        let entry = (
            frame.node.key(frame.index),
            frame.node.value_bytes(frame.index),
        );
        frame.index += 1;
        Some(entry)
    }

    async fn load<S: NodeSource>(&self, source: &S) -> Result<Arc<Node>, S::Error> {
        match self.stack.last() {
            Some(frame) => load_child(source, &frame.node, frame.index).await,
            None => Err(TreeError::TooDeep.into()),
        }
    }

    fn enter_child(&mut self, child: Arc<Node>, range: &Range<Key>) {
        self.pass();
        self.enter(child, range);
    }

    fn enter(&mut self, node: Arc<Node>, range: &Range<Key>) {
        let start = range.start.as_bytes();
        let index = match node.level() {
            0 => node.lower_bound(start),
            _ => node.floor(start),
        };
        self.stack.push(Frame {
            index,
            end: node.lower_bound(range.end.as_bytes()),
            announced: index,
            node,
        });
    }

    fn leave_finished(&mut self) {
        while self.stack.pop_if(|top| top.index >= top.end).is_some() {}
    }

    /// Announces the next children that `other` does not have under the same key.
    fn announce<S: NodeSource>(&mut self, other: &Side, source: &S) {
        let Some(frame) = self.stack.last_mut() else {
            return;
        };
        if frame.announced > frame.index + NODES_AHEAD / 2 {
            return;
        }
        let level = frame.node.level();
        let twin = other.stack.iter().find(|twin| twin.node.level() == level);
        let is_shared = |index: usize| {
            let Some(twin) = twin else {
                return false;
            };
            let found = twin.node.find(frame.node.key(index).as_bytes());
            found.is_some_and(|at| twin.node.value(at) == frame.node.value(index))
        };
        let start = frame.announced.max(frame.index + 1);
        let end = (frame.index + 1 + NODES_AHEAD).min(frame.end);
        let ids: Vec<Id> = (start..end)
            .filter(|index| !is_shared(*index))
            .filter_map(|index| Some(frame.node.child(index)?.id))
            .collect();
        frame.announced = end.max(start);
        if !ids.is_empty() {
            source.prefetch(&ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pollster::block_on;
    use proptest::prelude::*;

    use super::*;
    use crate::tree::apply::{apply, empty};
    use crate::tree::key;
    use crate::tree::memory::MemoryNodes;

    type Map = BTreeMap<Key, Vec<u8>>;

    fn build(nodes: &MemoryNodes, map: &Map) -> Tree {
        let all = map
            .clone()
            .into_iter()
            .map(|(key, value)| (key, Some(value)));
        let root = block_on(async { apply(nodes, nodes, empty(nodes).await?, all).await });
        Tree::new(root.unwrap())
    }

    fn diff(nodes: &MemoryNodes, left: Tree, right: Tree, range: Range<Key>) -> Vec<Difference> {
        let mut walk = Diff::new(left, right, range);
        let mut found = Vec::new();
        while let Some(difference) = block_on(walk.next(nodes)).unwrap() {
            found.push(difference);
        }
        found
    }

    fn expected(left: &Map, right: &Map, range: &Range<Key>) -> Vec<Difference> {
        let mut keys: Vec<&Key> = left.keys().chain(right.keys()).collect();
        keys.sort();
        keys.dedup();
        keys.into_iter()
            .filter(|key| range.contains(key) && left.get(key) != right.get(key))
            .map(|key| Difference {
                key: key.clone(),
                left: left.get(key).cloned().map(Bytes::from),
                right: right.get(key).cloned().map(Bytes::from),
            })
            .collect()
    }

    fn numbered(numbers: impl Iterator<Item = u64>) -> Map {
        numbers
            .map(|n| (Key::attributes(n), n.to_be_bytes().repeat(5)))
            .collect()
    }

    #[test]
    fn cost_follows_what_differs() {
        let nodes = MemoryNodes::new();
        let map = numbered(0..200_000);
        let mut other = map.clone();
        let left = build(&nodes, &map);
        for n in [5, 70_000, 70_001, 199_999] {
            other.insert(Key::attributes(n), vec![1]);
        }
        other.remove(&Key::attributes(100_000));
        other.insert(Key::inline(150_000), vec![2]);
        let right = build(&nodes, &other);
        let loads = nodes.loads();
        let found = diff(&nodes, left, right, key::everything());
        assert_eq!(found, expected(&map, &other, &key::everything()));
        let loads = nodes.loads() - loads;
        // Five changed places, a path of at most three nodes on both sides, and neighbours where
        // boundaries moved.
        assert!(loads <= 40, "{loads} loads");
        let loads = nodes.loads();
        assert_eq!(diff(&nodes, left, left, key::everything()), []);
        assert_eq!(nodes.loads(), loads);
    }

    #[test]
    fn trees_of_different_height_share_what_they_share() {
        let nodes = MemoryNodes::new();
        let small = numbered(0..2_000);
        let large = numbered(0..300_000);
        let (left, right) = (build(&nodes, &small), build(&nodes, &large));
        let loads = nodes.loads();
        let range = key::of_inodes(0..1_500);
        assert_eq!(diff(&nodes, left, right, range), []);
        assert!(nodes.loads() - loads <= 8);
        let found = diff(&nodes, left, right, key::everything());
        assert_eq!(found.len(), 298_000);
        let mirrored = diff(&nodes, right, left, key::everything());
        assert!(
            found
                .iter()
                .zip(&mirrored)
                .all(|(one, two)| one.right == two.left)
        );
    }

    fn numbers() -> impl Strategy<Value = Vec<(u64, u8)>> {
        let run = (0u64..3000, 0u64..1500, 0u8..2).prop_map(|(from, length, v)| {
            (from..from + length).map(|n| (n, v)).collect::<Vec<_>>()
        });
        let scattered = proptest::collection::vec((0u64..3000, 0u8..3), 0..60);
        (proptest::collection::vec(run, 0..3), scattered)
            .prop_map(|(runs, scattered)| runs.into_iter().flatten().chain(scattered).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn differences_agree_with_two_maps(
            one in numbers(), two in numbers(), from in 0u64..3500, to in 0u64..3500,
        ) {
            let value = |n: u64, version: u8| [&n.to_be_bytes()[..], &[version]].concat().repeat(8);
            let map = |numbers: Vec<(u64, u8)>| -> Map {
                numbers.into_iter().map(|(n, v)| (Key::attributes(n), value(n, v))).collect()
            };
            let nodes = MemoryNodes::new();
            let (one, two) = (map(one), map(two));
            let (left, right) = (build(&nodes, &one), build(&nodes, &two));
            for range in [key::everything(), key::of_inodes(from..to)] {
                let found = diff(&nodes, left, right, range.clone());
                prop_assert_eq!(found, expected(&one, &two, &range));
            }
        }
    }
}
