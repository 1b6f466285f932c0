//! A three-way merge of two trees that grew from one.
//!
//! This module finds the keys that the other side changed, and the keys that both sides changed
//! differently. It does not resolve conflicts: a link count of a directory and the content of a
//! file need different answers, and the volume knows them.

use bytes::Bytes;

use super::diff::{Diff, Difference};
use super::key::{self, Key};
use super::map::Tree;
use super::source::NodeSource;

/// The result of a merge at one key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Merged {
    /// Only their side changed the key: our side takes the change over.
    Theirs {
        /// The key.
        key: Key,
        /// The value on their side, or `None` if they removed it.
        value: Option<Bytes>,
    },
    /// Both sides changed the key, to different values.
    Conflict {
        /// The key.
        key: Key,
        /// The value in the base tree.
        base: Option<Bytes>,
        /// The value on our side.
        ours: Option<Bytes>,
        /// The value on their side.
        theirs: Option<Bytes>,
    },
}

/// Walks over the changes that turn our tree into the merge of both, in the order of keys.
///
/// The results, with conflicts resolved, are a batch for [`apply`](super::apply()). A change that
/// only our side made, or that both sides made alike, is already in our tree and is not returned.
pub struct Merge {
    ours: Diff,
    theirs: Diff,
    /// Our next change, at a key that the walk over their changes has not passed. `None` if it has
    /// not been asked for, `Some(None)` at the end.
    our_next: Option<Option<Difference>>,
}

impl Merge {
    /// Prepares to merge `theirs` into `ours`. Both grew from `base`.
    pub fn new(base: Tree, ours: Tree, theirs: Tree) -> Merge {
        Merge {
            ours: Diff::new(base, ours, key::everything()),
            theirs: Diff::new(base, theirs, key::everything()),
            our_next: None,
        }
    }

    /// Returns the next result, or `None` after the last.
    ///
    /// A merge has lost its place after an error, or if the future was dropped. The caller then
    /// begins another merge.
    ///
    /// # Errors
    /// The error of `source`, or [`TreeError::Misplaced`](super::TreeError::Misplaced) for a node
    /// that does not match its parent's entry.
    pub async fn next<S: NodeSource>(&mut self, source: &S) -> Result<Option<Merged>, S::Error> {
        while let Some(theirs) = self.theirs.next(source).await? {
            let ours = self.our_change_at(source, &theirs.key).await?;
            match ours {
                None => {
                    return Ok(Some(Merged::Theirs {
                        key: theirs.key,
                        value: theirs.right,
                    }));
                }
                Some(ours) if ours.right == theirs.right => {}
                Some(ours) => {
                    return Ok(Some(Merged::Conflict {
                        key: theirs.key,
                        base: theirs.left,
                        ours: ours.right,
                        theirs: theirs.right,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Returns our change at `key`, if there is one. Passes over our changes before it.
    async fn our_change_at<S: NodeSource>(
        &mut self,
        source: &S,
        key: &Key,
    ) -> Result<Option<Difference>, S::Error> {
        loop {
            let next = match self.our_next.take() {
                Some(next) => next,
                None => self.ours.next(source).await?,
            };
            match next {
                Some(ours) if ours.key < *key => {}
                Some(ours) if ours.key == *key => return Ok(Some(ours)),
                later => {
                    self.our_next = Some(later);
                    return Ok(None);
                }
            }
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
    use crate::tree::memory::MemoryNodes;

    type Map = BTreeMap<u64, u8>;

    fn value(version: u8) -> Bytes {
        Bytes::from(vec![version; 30])
    }

    fn build(nodes: &MemoryNodes, map: &Map) -> Tree {
        let all = map
            .iter()
            .map(|(n, version)| (Key::attributes(*n), Some(value(*version))));
        let root = block_on(async { apply(nodes, nodes, empty(nodes).await?, all).await });
        Tree::new(root.unwrap())
    }

    fn changed(base: &Map, changes: &BTreeMap<u64, Option<u8>>) -> Map {
        let mut map = base.clone();
        for (n, version) in changes {
            match version {
                Some(version) => map.insert(*n, *version),
                None => map.remove(n),
            };
        }
        map
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn merging_agrees_with_three_maps(
            size in 0u64..2000,
            ours in proptest::collection::btree_map(
                0u64..2000, proptest::option::of(0u8..3), 0..60,
            ),
            theirs in proptest::collection::btree_map(
                0u64..2000, proptest::option::of(0u8..3), 0..60,
            ),
            both in proptest::collection::btree_map(
                0u64..2000,
                (proptest::option::of(0u8..3), proptest::option::of(0u8..3)),
                0..30,
            ),
        ) {
            let base: Map = (0..size).map(|n| (n, 0)).collect();
            let (mut ours, mut theirs) = (ours, theirs);
            for (n, (one, two)) in both {
                ours.insert(n, one);
                theirs.insert(n, two);
            }
            let (ours, theirs) = (changed(&base, &ours), changed(&base, &theirs));
            let nodes = MemoryNodes::new();
            let trees = [&base, &ours, &theirs].map(|map| build(&nodes, map));
            let mut merge = Merge::new(trees[0], trees[1], trees[2]);
            let mut found = Vec::new();
            while let Some(merged) = block_on(merge.next(&nodes)).unwrap() {
                found.push(merged);
            }
            let at = |map: &Map, n: u64| map.get(&n).map(|version| value(*version));
            let expected: Vec<Merged> = (0..2000)
                .filter_map(|n| {
                    let (base, ours, theirs) = (at(&base, n), at(&ours, n), at(&theirs, n));
                    let key = Key::attributes(n);
                    if theirs == base || theirs == ours {
                        None
                    } else if ours == base {
                        Some(Merged::Theirs { key, value: theirs })
                    } else {
                        Some(Merged::Conflict { key, base, ours, theirs })
                    }
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
