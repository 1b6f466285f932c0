//! The path from a root down to one node, which can be moved forward.
//!
//! This module owns the walk that look-ups, cursors and batch changes share. A path holds one node
//! per level and no more. The module does not know what its callers do with the node that it
//! reaches.

use std::sync::Arc;

use bkfs_chunker::id::Id;

use super::key::Key;
use super::node::Node;
use super::source::{NodeSource, TreeError, load_child};

struct Step {
    node: Arc<Node>,
    /// Index of the child that the path goes through. It has no meaning at the last step.
    index: usize,
}

/// The nodes from the root down to the current one at a chosen level.
///
/// If a load fails or its future is dropped, the same call can be made again.
pub(super) struct Path {
    level: u8,
    steps: Vec<Step>,
    /// Number of nodes above `level` that were loaded so far.
    interior: u64,
}

impl Path {
    /// Loads the root; the first [`Path::seek`] goes down from there.
    ///
    /// Fails with [`TreeError::Misplaced`] if the root is below `level`.
    pub(super) async fn new<S: NodeSource>(
        source: &S,
        root: Id,
        level: u8,
    ) -> Result<Path, S::Error> {
        let node = source.load(root).await?;
        if node.level() < level || (node.is_empty() && node.level() > 0) {
            return Err(TreeError::Misplaced { id: root }.into());
        }
        Ok(Path {
            level,
            steps: vec![Step { node, index: 0 }],
            interior: 1,
        })
    }

    /// Returns the node at the path's level, once a seek has reached it.
    pub(super) fn node(&self) -> Option<&Arc<Node>> {
        let node = &self.steps.last()?.node;
        (node.level() == self.level).then_some(node)
    }

    /// Returns the number of nodes above the path's level that were loaded so far.
    ///
    /// When it has grown, [`Path::announce`] can find more nodes.
    pub(super) fn interior_loads(&self) -> u64 {
        self.interior
    }

    /// Returns the level of the root.
    pub(super) fn root_level(&self) -> u8 {
        self.steps[0].node.level()
    }

    /// Returns the parent of the current node and the index of that node among the parent's
    /// children.
    pub(super) fn parent(&self) -> Option<(&Node, usize)> {
        let step = self.steps.len().checked_sub(2).map(|at| &self.steps[at])?;
        Some((&step.node, step.index))
    }

    /// Moves to the node whose run of keys contains `key`.
    ///
    /// Returns whether that is another node than before.
    pub(super) async fn seek<S: NodeSource>(
        &mut self,
        source: &S,
        key: &[u8],
    ) -> Result<bool, S::Error> {
        self.descend(source, |node| node.floor(key)).await
    }

    /// Moves to the last node that has a key below `key`, or to the first node of the level.
    pub(super) async fn seek_below<S: NodeSource>(
        &mut self,
        source: &S,
        key: &[u8],
    ) -> Result<bool, S::Error> {
        self.descend(source, |node| node.lower_bound(key).saturating_sub(1))
            .await
    }

    async fn descend<S: NodeSource>(
        &mut self,
        source: &S,
        choose: impl Fn(&Node) -> usize + Send,
    ) -> Result<bool, S::Error> {
        let mut depth = 0;
        let mut moved = false;
        while self.steps[depth].node.level() > self.level {
            let step = &self.steps[depth];
            let index = choose(&step.node);
            if depth + 1 == self.steps.len() || step.index != index {
                let child = load_child(source, &step.node, index).await?;
                self.interior += u64::from(child.level() > self.level);
                self.steps.truncate(depth + 1);
                self.steps[depth].index = index;
                self.steps.push(Step {
                    node: child,
                    index: 0,
                });
                moved = true;
            }
            depth += 1;
        }
        Ok(moved)
    }

    /// Moves to the node after the current one. Returns `false` if there is none.
    pub(super) async fn advance<S: NodeSource>(&mut self, source: &S) -> Result<bool, S::Error> {
        let Some(depth) = self.turn() else {
            return Ok(false);
        };
        let index = self.steps[depth].index + 1;
        let child = load_child(source, &self.steps[depth].node, index).await?;
        let mut fresh = vec![child];
        while let Some(last) = fresh.last().filter(|last| last.level() > self.level) {
            let child = load_child(source, last, 0).await?;
            fresh.push(child);
        }
        self.interior += fresh.len() as u64 - 1;
        self.steps.truncate(depth + 1);
        self.steps[depth].index = index;
        self.steps
            .extend(fresh.into_iter().map(|node| Step { node, index: 0 }));
        Ok(true)
    }

    /// Returns the first key of the node that [`Path::advance`] would move to.
    pub(super) fn next_first_key(&self) -> Option<Key> {
        let step = &self.steps[self.turn()?];
        Some(step.node.key(step.index + 1))
    }

    /// Whether the next node begins with a key below `key`, or `None` if there is no next node.
    pub(super) fn next_begins_below(&self, key: &[u8]) -> Option<bool> {
        let step = &self.steps[self.turn()?];
        Some(step.node.compare(step.index + 1, key).is_lt())
    }

    /// Whether the current node is the first of its level.
    pub(super) fn is_first(&self) -> bool {
        self.steps[..self.steps.len() - 1]
            .iter()
            .all(|step| step.index == 0)
    }

    /// Tells the source which nodes `keys`, sorted, will lead to, as far as the loaded nodes show.
    pub(super) fn announce<'k, S: NodeSource>(
        &self,
        source: &S,
        keys: impl Iterator<Item = &'k Key> + Clone,
    ) {
        let mut ids = Vec::new();
        for step in &self.steps {
            if step.node.level() <= self.level {
                break;
            }
            let mut seen = step.index;
            for key in keys.clone() {
                let index = step.node.floor(key.as_bytes());
                if index > seen {
                    ids.extend(step.node.child(index).map(|child| child.id));
                    seen = index;
                }
                if index + 1 == step.node.len() {
                    break;
                }
            }
        }
        if !ids.is_empty() {
            source.prefetch(&ids);
        }
    }

    /// Returns the deepest step above the current node that has a further child.
    fn turn(&self) -> Option<usize> {
        let above = self.steps.len() - 1;
        (0..above)
            .rev()
            .find(|depth| self.steps[*depth].index + 1 < self.steps[*depth].node.len())
    }
}
