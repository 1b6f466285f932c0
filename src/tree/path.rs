//! The way from a root down to one node, which can be moved forward.
//!
//! Owns the walking that look-ups, cursors and batch changes share: it holds one node per level, no more. Knows nothing of what is
//! done with the node it leads to.

use std::sync::Arc;

use bkfs_chunker::id::Id;

use super::key::Key;
use super::node::Node;
use super::source::{NodeSource, TreeError, load_child};

struct Step {
    node: Arc<Node>,
    /// Which child the way goes on to; without meaning at the last step.
    index: usize,
}

/// Nodes from the root down to the current one at a chosen level.
///
/// A load that fails or is given up leaves the path in a state from which the same call can be made again.
pub(super) struct Path {
    level: u8,
    steps: Vec<Step>,
    /// Interior nodes loaded so far: when this has grown, more is known of what lies ahead.
    interior: u64,
}

impl Path {
    /// Loads the root; the first [`Path::seek`] goes on from there. A root below `level` is an error.
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

    /// The node at the path's level, once a seek has led to it.
    pub(super) fn node(&self) -> Option<&Arc<Node>> {
        let node = &self.steps.last()?.node;
        (node.level() == self.level).then_some(node)
    }

    /// How many nodes above its level the path has loaded so far. When this has grown, there is more to [`Path::announce`].
    pub(super) fn interior_loads(&self) -> u64 {
        self.interior
    }

    /// Level of the root.
    pub(super) fn root_level(&self) -> u8 {
        self.steps[0].node.level()
    }

    /// The parent of the current node and which of its children that is.
    pub(super) fn parent(&self) -> Option<(&Node, usize)> {
        let step = self.steps.len().checked_sub(2).map(|at| &self.steps[at])?;
        Some((&step.node, step.index))
    }

    /// Goes to the node whose run of keys `key` falls into. Returns whether that is another node than before.
    pub(super) async fn seek<S: NodeSource>(
        &mut self,
        source: &S,
        key: &[u8],
    ) -> Result<bool, S::Error> {
        self.descend(source, |node| node.floor(key)).await
    }

    /// Goes to the last node that has a key below `key`, or to the first of all.
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

    /// Goes to the node after the current one; `false` if there is none.
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

    /// First key of the node that [`Path::advance`] would go to.
    pub(super) fn next_first_key(&self) -> Option<Key> {
        let step = &self.steps[self.turn()?];
        Some(step.node.key(step.index + 1))
    }

    /// Whether the next node begins with a key below `key`; `None` if there is no next node.
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

    /// Tells the source which nodes `keys`, sorted, will lead to, as far as the nodes at hand say.
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

    /// The deepest step above the current node that has a further child.
    fn turn(&self) -> Option<usize> {
        let above = self.steps.len() - 1;
        (0..above)
            .rev()
            .find(|depth| self.steps[*depth].index + 1 < self.steps[*depth].node.len())
    }
}
