//! Batches, compared with a sorted map. The root must equal the root of a tree that is built from
//! nothing, and the cost must follow the changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use pollster::block_on;
use proptest::prelude::*;

use super::*;
use crate::tree::boundary::{MAX_NODE_COST_BYTES, MIN_NODE_COST_BYTES};
use crate::tree::memory::MemoryNodes;
use crate::tree::{Item, Node, Tree, key};

type Map = BTreeMap<Key, Vec<u8>>;
type Changes = BTreeMap<Key, Option<Vec<u8>>>;

fn change(nodes: &MemoryNodes, root: Id, changes: &Changes) -> Id {
    block_on(apply(nodes, nodes, root, changes.clone().into_iter())).unwrap()
}

fn build(nodes: &MemoryNodes, map: &Map) -> Id {
    let root = block_on(empty(nodes)).unwrap();
    let all = map
        .clone()
        .into_iter()
        .map(|(key, value)| (key, Some(value)));
    block_on(apply(nodes, nodes, root, all)).unwrap()
}

fn merge(map: &mut Map, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

fn read(nodes: &MemoryNodes, root: Id) -> Map {
    block_on(async {
        let mut cursor = Tree::new(root).range(key::everything());
        let mut map = Map::new();
        while let Some((key, value)) = cursor.next(nodes).await.unwrap() {
            assert!(map.insert(key, value.to_vec()).is_none());
        }
        map
    })
}

/// Returns all nodes of a tree, level by level from the root.
fn all_nodes(nodes: &MemoryNodes, root: Id) -> Vec<Vec<Arc<Node>>> {
    let mut levels = vec![vec![nodes.peek(root).unwrap()]];
    while levels[levels.len() - 1][0].level() > 0 {
        let below = levels[levels.len() - 1]
            .iter()
            .flat_map(|node| (0..node.len()).map(|index| node.child(index).unwrap().id))
            .map(|id| nodes.peek(id).unwrap())
            .collect();
        levels.push(below);
    }
    levels
}

/// Returns version `version` of the value of item `n`, with a length that varies with `n`.
fn value(n: u64, version: u64) -> Vec<u8> {
    let length = 20 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize * 2;
    format!("{n}-{version}-").into_bytes().repeat(length / 5)
}

fn numbered(count: u64) -> Map {
    (0..count)
        .map(|n| (Key::attributes(n * 8), value(n, 0)))
        .collect()
}

#[test]
fn the_empty_tree_is_an_empty_leaf() {
    let nodes = MemoryNodes::new();
    let root = block_on(empty(&nodes)).unwrap();
    assert!(nodes.peek(root).unwrap().is_empty());
    let one = Changes::from([(Key::inline(1), Some(b"x".to_vec()))]);
    let none = Changes::from([(Key::inline(1), None)]);
    assert_eq!(change(&nodes, root, &Changes::new()), root);
    assert_eq!(change(&nodes, root, &none), root);
    let with = change(&nodes, root, &one);
    assert_eq!(read(&nodes, with).len(), 1);
    assert_eq!(change(&nodes, with, &none), root);
}

#[test]
fn what_the_tree_does_not_take_is_refused() {
    let nodes = MemoryNodes::new();
    let root = block_on(empty(&nodes)).unwrap();
    let run = |changes: Vec<(Key, Option<Vec<u8>>)>| {
        block_on(apply(&nodes, &nodes, root, changes.into_iter()))
    };
    let a = || (Key::inline(1), Some(vec![1]));
    let b = || (Key::inline(2), None);
    assert!(matches!(
        run(vec![b(), a()]),
        Err(TreeError::Unsorted { .. })
    ));
    assert!(matches!(
        run(vec![a(), a()]),
        Err(TreeError::Unsorted { .. })
    ));
    let long = vec![0; MAX_VALUE_BYTES + 1];
    let large = run(vec![(Key::inline(1), Some(long))]);
    assert!(matches!(large, Err(TreeError::TooLarge { .. })));
    let long = Key::from_bytes(vec![0; MAX_KEY_BYTES + 1]);
    assert!(matches!(
        run(vec![(long, None)]),
        Err(TreeError::TooLarge { .. })
    ));
}

#[test]
fn nodes_stay_within_their_sizes_and_keys_are_the_children_s() {
    let nodes = MemoryNodes::new();
    let map = numbered(30_000);
    let root = build(&nodes, &map);
    assert_eq!(read(&nodes, root), map);
    let levels = all_nodes(&nodes, root);
    assert_eq!(levels[0][0].items(), 30_000);
    for level in &levels {
        for (at, node) in level.iter().enumerate() {
            let most = MAX_NODE_COST_BYTES + 200;
            assert!(node.bytes().len() <= most);
            // Encoded nodes are smaller than their cost, because keys share a prefix.
            let least = if at + 1 < level.len() {
                MIN_NODE_COST_BYTES / 2
            } else {
                0
            };
            assert!(node.bytes().len() >= least);
        }
    }
    let leaves = levels.last().unwrap();
    let bytes: usize = leaves.iter().map(|leaf| leaf.bytes().len()).sum();
    let mean = bytes / leaves.len();
    assert!(
        (20_000..40_000).contains(&mean),
        "mean leaf of {mean} bytes"
    );
}

#[test]
fn a_change_costs_a_path() {
    let nodes = MemoryNodes::new();
    let map = numbered(100_000);
    let root = build(&nodes, &map);
    let depth = all_nodes(&nodes, root).len() as u64;
    assert!(depth >= 2);
    let (mut loads, mut stores) = (0, 0);
    let rounds = 200;
    for round in 0..rounds {
        let n = round * 499;
        let key = Key::attributes(n * 8 + round % 2);
        let changes = Changes::from([(key, Some(value(n, 1)))]);
        let before = (nodes.loads(), nodes.stores());
        change(&nodes, root, &changes);
        loads += nodes.loads() - before.0;
        stores += nodes.stores() - before.1;
    }
    // Each batch loads one path, the root once more per level, and sometimes neighbours until the
    // boundaries coincide.
    assert!(loads <= rounds * (3 * depth + 2), "{loads} loads");
    assert!(stores <= rounds * (depth + 2), "{stores} stores");
}

#[test]
fn nodes_that_a_batch_needs_are_announced_once() {
    let nodes = MemoryNodes::new();
    let root = build(&nodes, &numbered(200_000));
    let changes: Changes = (0..2_000)
        .map(|n| (Key::attributes(n * 800), Some(value(n, 9))))
        .collect();
    let (loads, announced) = (nodes.loads(), nodes.announced());
    change(&nodes, root, &changes);
    let (loads, announced) = (nodes.loads() - loads, nodes.announced() - announced);
    assert!(
        announced * 10 > loads * 5,
        "{announced} announced of {loads}"
    );
    assert!(announced < loads * 2, "{announced} announced of {loads}");
}

#[test]
fn changes_that_change_nothing_store_nothing() {
    let nodes = MemoryNodes::new();
    let map = numbered(20_000);
    let root = build(&nodes, &map);
    let stores = nodes.stores();
    let same: Changes = map
        .iter()
        .step_by(7)
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .chain((0..1000).map(|n| (Key::inline(n * 8), None)))
        .collect();
    assert_eq!(change(&nodes, root, &same), root);
    assert_eq!(nodes.stores(), stores);
}

#[test]
fn deleting_runs_shrinks_the_tree_to_what_it_would_have_been() {
    let nodes = MemoryNodes::new();
    let map = numbered(40_000);
    let root = build(&nodes, &map);
    let keys: Vec<Key> = map.keys().cloned().collect();
    let cases = [
        (0..40_000, "everything"),
        (0..39_999, "all but the last"),
        (1..40_000, "all but the first"),
        (0..20_000, "the first half"),
        (20_000..40_000, "the second half"),
        (10_000..30_000, "the middle"),
    ];
    for (gone, what) in cases {
        let changes: Changes = keys[gone].iter().map(|key| (key.clone(), None)).collect();
        let mut left = map.clone();
        merge(&mut left, &changes);
        assert_eq!(
            change(&nodes, root, &changes),
            build(&nodes, &left),
            "{what}"
        );
    }
    let middle = (&keys[20_000], &keys[20_001]);
    let all_but_middle: Changes = keys
        .iter()
        .filter(|key| *key != middle.0)
        .map(|key| (key.clone(), None))
        .collect();
    let left = Map::from([(middle.0.clone(), map[middle.0].clone())]);
    assert_eq!(change(&nodes, root, &all_but_middle), build(&nodes, &left));
}

#[test]
fn large_values_do_not_upset_the_boundaries() {
    let nodes = MemoryNodes::new();
    let mut map = numbered(5_000);
    let mut root = build(&nodes, &map);
    for (round, length) in [65_536, MAX_VALUE_BYTES, 40_000, 0, 9_000]
        .into_iter()
        .enumerate()
    {
        let changes: Changes = (0..20)
            .map(|n| {
                (
                    Key::xattr(n * 1900 + round as u64, b"user.x"),
                    Some(vec![7; length]),
                )
            })
            .collect();
        merge(&mut map, &changes);
        root = change(&nodes, root, &changes);
        assert_eq!(root, build(&nodes, &map), "{length}");
    }
    let gone: Changes = (0..40_000)
        .map(|n| (Key::xattr(n, b"user.x"), None))
        .collect();
    merge(&mut map, &gone);
    assert_eq!(change(&nodes, root, &gone), build(&nodes, &map));
}

#[test]
fn a_damaged_tree_is_an_error() {
    let nodes = MemoryNodes::new();
    let root = build(&nodes, &numbered(20_000));
    let leaf = nodes.peek(root).unwrap().child(3).unwrap().id;
    let other = nodes.peek(root).unwrap().child(4).unwrap().id;
    let bytes = nodes.peek(other).unwrap().bytes().clone();
    let key = nodes.peek(leaf).unwrap().key(0);
    nodes.plant(leaf, bytes).unwrap();
    let changes = Changes::from([(key, None)]);
    let result = block_on(apply(&nodes, &nodes, root, changes.into_iter()));
    assert_eq!(result, Err(TreeError::Misplaced { id: leaf }));
}

#[test]
fn the_future_can_be_spawned() {
    fn assert_send<T: Send>(_: T) {}
    let nodes = Arc::new(MemoryNodes::new());
    let changes = Changes::new();
    assert_send(apply(&nodes, &nodes, Id([0; 32]), changes.into_iter()));
    assert_send(async {
        let mut cursor = Tree::new(Id([0; 32])).range(key::everything());
        cursor.next(&nodes).await
    });
    assert_send(async {
        Tree::new(Id([0; 32]))
            .last_in(&nodes, key::everything())
            .await
    });
}

#[test]
fn whole_trees_are_frozen() {
    let nodes = MemoryNodes::new();
    let root = block_on(empty(&nodes)).unwrap();
    assert_eq!(
        root.to_string(),
        "c610e85212d0697cb161d4ba431ba603f273feee7dcb7927c9ff5d74ae6cbfa3"
    );
    let root = build(&nodes, &numbered(20_000));
    assert_eq!(
        root.to_string(),
        "6fd987985c04683abf48c91ce988c129813f8c6e57fbbd8f16e5339ac81d5fa6"
    );
}

#[test]
fn a_directory_of_a_million_names_is_no_special_case() {
    let nodes = MemoryNodes::new();
    let mut names: Vec<Key> = (0..1_000_000u64)
        .map(|n| {
            let name = format!("file-{n:07}.dat");
            let hash = blake3::hash(name.as_bytes());
            let hash = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap());
            Key::name(2, key::name_cookie(hash), name.as_bytes())
        })
        .collect();
    names.sort();
    let value = |n: usize| Item::Name {
        inode: n as u64 + 1000,
        file_type: 8,
    };
    let all = names
        .iter()
        .enumerate()
        .map(|(n, key)| (key.clone(), Some(value(n).encode())));
    let root = block_on(empty(&nodes)).unwrap();
    let root = block_on(apply(&nodes, &nodes, root, all)).unwrap();
    let levels = all_nodes(&nodes, root);
    assert_eq!(levels[0][0].items(), 1_000_000);
    assert_eq!(levels.len(), 3);
    let bytes: usize = levels.iter().flatten().map(|node| node.bytes().len()).sum();
    assert!(bytes < 40_000_000, "{bytes} bytes");
}

/// Returns a key of 392 bytes, so long that few children fit in a node.
fn wide(n: u64) -> Key {
    let digest = blake3::hash(&n.to_be_bytes());
    Key::from_bytes([&n.to_be_bytes()[..], &digest.as_bytes().repeat(12)].concat())
}

/// Returns a map whose tree has three levels, because its keys are long and its values have about 2
/// KiB.
fn deep(count: u64) -> Map {
    (0..count)
        .map(|n| (wide(n), value(n, 0).repeat(20)))
        .collect()
}

#[test]
fn every_tail_can_be_removed() {
    let nodes = MemoryNodes::new();
    let map = deep(2500);
    let root = build(&nodes, &map);
    let keys: Vec<Key> = map.keys().cloned().collect();
    // As the removed tail gets shorter, there comes a case in which the last interior node keeps
    // one child, and one in which the last leaf keeps one entry.
    for from in (0..2500).step_by(17).chain(2400..2500) {
        let tail: Changes = keys[from..].iter().map(|key| (key.clone(), None)).collect();
        let mut left = map.clone();
        merge(&mut left, &tail);
        assert_eq!(
            change(&nodes, root, &tail),
            build(&nodes, &left),
            "from {from}"
        );
    }
}

/// Generates a batch: for each number, the version to set, or `None` to remove it.
fn batch(span: u64, most: usize) -> impl Strategy<Value = Vec<(u64, Option<u64>)>> {
    let scattered = proptest::collection::vec((0..span, proptest::option::of(0u64..3)), 0..most);
    let run =
        (0..span, 0..span / 2, proptest::option::of(0u64..3)).prop_map(|(from, length, what)| {
            (from..from + length).map(|n| (n, what)).collect::<Vec<_>>()
        });
    prop_oneof![3 => scattered, 1 => run]
}

fn as_changes(batch: Vec<(u64, Option<u64>)>) -> Changes {
    batch
        .into_iter()
        .map(|(n, version)| (Key::attributes(n), version.map(|version| value(n, version))))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_the_history_the_tree_is_the_same(
        batches in proptest::collection::vec(batch(6000, 400), 1..6),
    ) {
        let nodes = MemoryNodes::new();
        let mut map = Map::new();
        let mut root = block_on(empty(&nodes)).unwrap();
        for batch in batches {
            let changes = as_changes(batch);
            merge(&mut map, &changes);
            root = change(&nodes, root, &changes);
            prop_assert_eq!(root, build(&nodes, &map));
        }
        prop_assert_eq!(read(&nodes, root), map);
    }

    #[test]
    fn wide_keys_make_deep_trees_that_are_still_the_same(
        batches in proptest::collection::vec(batch(4000, 60), 1..4),
    ) {
        let nodes = MemoryNodes::new();
        let mut map = deep(4000);
        let mut root = build(&nodes, &map);
        prop_assert!(nodes.peek(root).unwrap().level() >= 2);
        for batch in batches {
            let changes: Changes = batch
                .into_iter()
                .map(|(n, version)| (wide(n), version.map(|version| value(n, version).repeat(20))))
                .collect();
            merge(&mut map, &changes);
            root = change(&nodes, root, &changes);
            prop_assert_eq!(root, build(&nodes, &map));
        }
    }

    #[test]
    fn removing_or_leaving_exactly_some_nodes(
        ends in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..3), 1..8),
        rest: bool,
    ) {
        let nodes = MemoryNodes::new();
        let map = deep(3000);
        let root = build(&nodes, &map);
        let levels = all_nodes(&nodes, root);
        // The first keys of nodes on all levels, and the end of the map.
        let mut cuts: Vec<usize> = ends
            .into_iter()
            .map(|(at, level)| {
                let level = &levels[usize::from(level).min(levels.len() - 1)];
                let at = at.index(level.len() + 1);
                level.get(at).map_or(map.len(), |node| map.range(..node.key(0)).count())
            })
            .collect();
        cuts.sort_unstable();
        let is_gone = |at: usize| (cuts.iter().filter(|cut| **cut <= at).count() % 2 == 1) != rest;
        let gone = map.keys().enumerate().filter(|(at, _)| is_gone(*at));
        let changes: Changes = gone.map(|(_, key)| (key.clone(), None)).collect();
        let mut left = map.clone();
        merge(&mut left, &changes);
        prop_assert_eq!(change(&nodes, root, &changes), build(&nodes, &left));
    }
}
