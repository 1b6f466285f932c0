//! Look-ups and ranges, compared with a sorted map.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pollster::block_on;
use proptest::prelude::*;

use super::*;
use crate::tree::apply::{apply, empty};
use crate::tree::key::{self, ItemKind};
use crate::tree::memory::MemoryNodes;
use crate::tree::{Node, TreeError};

type Map = BTreeMap<Key, Vec<u8>>;

fn build(nodes: &MemoryNodes, map: &Map) -> Tree {
    let all = map
        .clone()
        .into_iter()
        .map(|(key, value)| (key, Some(value)));
    let root = block_on(async { apply(nodes, nodes, empty(nodes).await?, all).await });
    Tree::new(root.unwrap())
}

fn numbered(numbers: impl Iterator<Item = u64>) -> Map {
    numbers
        .map(|n| (Key::attributes(n), n.to_be_bytes().repeat(6)))
        .collect()
}

fn collect(nodes: &MemoryNodes, mut cursor: Cursor) -> Vec<(Key, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((key, value)) = block_on(cursor.next(nodes)).unwrap() {
        found.push((key, value.to_vec()));
    }
    assert_eq!(block_on(cursor.next(nodes)).unwrap(), None);
    found
}

#[test]
fn a_scan_loads_each_node_once_and_announces_leaves_ahead() {
    let nodes = MemoryNodes::new();
    let map = numbered(0..300_000);
    let tree = build(&nodes, &map);
    let all = nodes.len() as u64;
    let loads = nodes.loads();
    assert_eq!(
        collect(&nodes, tree.range(key::everything())).len(),
        map.len()
    );
    let loads = nodes.loads() - loads;
    assert!(loads <= all, "{loads} loads of {all} nodes");
    let announced = nodes.announced();
    assert!(
        announced <= all && announced * 10 >= all * 9,
        "{announced} of {all} announced"
    );
}

#[test]
fn a_short_range_announces_nothing_behind_it() {
    let nodes = MemoryNodes::new();
    let tree = build(&nodes, &numbered(0..100_000));
    let announced = nodes.announced();
    assert_eq!(
        collect(&nodes, tree.range(key::of_inodes(50_000..50_003))).len(),
        3
    );
    assert!(nodes.announced() - announced <= 1);
}

#[test]
fn a_batch_of_sorted_keys_loads_each_leaf_once() {
    let nodes = MemoryNodes::new();
    let tree = build(&nodes, &numbered((0..200_000).map(|n| n * 2)));
    let all = nodes.len() as u64;
    let keys: Vec<Key> = (0..4_000).map(|n| Key::attributes(n * 100)).collect();
    let (loads, announced) = (nodes.loads(), nodes.announced());
    let values = block_on(tree.get_many(&nodes, &keys)).unwrap();
    assert!(values.iter().all(Option::is_some));
    assert!(nodes.loads() - loads <= all);
    assert!((nodes.announced() - announced) * 2 >= all);
}

#[test]
fn items_are_counted_without_reading_them() {
    let nodes = MemoryNodes::new();
    let tree = build(&nodes, &numbered(0..50_000));
    let loads = nodes.loads();
    assert_eq!(block_on(tree.items(&nodes)), Ok(50_000));
    assert_eq!(nodes.loads(), loads + 1);
}

/// A node source that fails every seventh load.
struct Flaky(MemoryNodes, AtomicU64);

impl NodeSource for Flaky {
    type Error = TreeError;

    async fn load(&self, id: Id) -> Result<Arc<Node>, TreeError> {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(7) {
            return Err(TreeError::Absent { id });
        }
        self.0.load(id).await
    }
}

#[test]
fn a_cursor_goes_on_after_an_error() {
    let nodes = MemoryNodes::new();
    let map = numbered(0..60_000);
    let tree = build(&nodes, &map);
    let flaky = Flaky(nodes, AtomicU64::new(0));
    let mut cursor = tree.range(key::everything());
    let (mut found, mut errors) = (Vec::new(), 0);
    loop {
        match block_on(cursor.next(&flaky)) {
            Ok(Some((key, _))) => found.push(key),
            Ok(None) => break,
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 10);
    assert!(found.iter().eq(map.keys()));
}

#[test]
fn a_tree_with_a_misplaced_node_is_an_error() {
    let nodes = MemoryNodes::new();
    let tree = build(&nodes, &numbered(0..60_000));
    let root = nodes.peek(tree.root).unwrap();
    let (one, two) = (root.child(1).unwrap().id, root.child(2).unwrap().id);
    nodes
        .plant(one, nodes.peek(two).unwrap().bytes().clone())
        .unwrap();
    let key = root.key(1);
    let wrong = Err(TreeError::Misplaced { id: one });
    assert_eq!(block_on(tree.get(&nodes, &key)), wrong);
    // The child has the same first key, but fewer entries than the parent counted.
    let fewer = build(&nodes, &Map::from([(key.clone(), vec![0])]));
    let bytes = nodes.peek(fewer.root).unwrap().bytes().clone();
    nodes.plant(one, bytes).unwrap();
    assert_eq!(block_on(tree.get(&nodes, &key)), wrong);
}

#[test]
fn a_node_that_is_its_own_child_is_an_error() {
    let nodes = MemoryNodes::new();
    let id = Id([7; 32]);
    // An interior node of level 1 with one child, which is the node itself, and a count of one
    // item.
    let bytes = [&[1, 1, 1, 1, b'k', 0, 33][..], &id.0, &[1]].concat();
    nodes.plant(id, Bytes::from(bytes)).unwrap();
    let wrong = Err(TreeError::Misplaced { id });
    let key = Key::from_bytes(*b"k");
    assert_eq!(block_on(Tree::new(id).get(&nodes, &key)), wrong);
}

#[test]
fn the_last_before_a_node_is_in_the_node_before() {
    let nodes = MemoryNodes::new();
    let tree = build(&nodes, &numbered(0..60_000));
    let root = nodes.peek(tree.root).unwrap();
    for index in 1..root.len() {
        let range = key::everything().start..root.key(index);
        let (last, _) = block_on(tree.last_in(&nodes, range)).unwrap().unwrap();
        let before = nodes.peek(root.child(index - 1).unwrap().id).unwrap();
        assert_eq!(last, before.key(before.len() - 1));
    }
}

/// Generates keys as a filesystem makes them: few inodes, all kinds.
fn any_key() -> impl Strategy<Value = Key> {
    let name = proptest::collection::vec(b'a'..b'd', 1..4);
    (0u64..40, 1u8..7, 16u64..60, name).prop_map(|(inode, kind, number, name)| {
        match ItemKind::try_from(kind).unwrap() {
            ItemKind::Attributes => Key::attributes(inode),
            ItemKind::Name => Key::name(inode, number, &name),
            ItemKind::Extent => Key::extent(inode, number),
            ItemKind::Xattr => Key::xattr(inode, &name),
            ItemKind::Inline => Key::inline(inode),
            ItemKind::Symlink => Key::symlink(inode),
            ItemKind::Orphan => Key::orphan(inode),
        }
    })
}

fn any_range() -> impl Strategy<Value = Range<Key>> {
    prop_oneof![
        (any_key(), any_key()).prop_map(|(one, two)| one..two),
        (0u64..41).prop_map(key::of_inode),
        (0u64..41, 0u64..70).prop_map(|(inode, cookie)| key::names_from(inode, cookie)),
        (0u64..41, 0u64..70).prop_map(|(inode, at)| key::extents_beginning(inode, at..at + 9)),
        Just(key::everything()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn look_ups_agree_with_a_sorted_map(
        map in proptest::collection::btree_map(
            any_key(), proptest::collection::vec(any::<u8>(), 0..600), 0..800,
        ),
        ranges in proptest::collection::vec(any_range(), 1..12),
        probes in proptest::collection::vec(any_key(), 0..60),
    ) {
        let nodes = MemoryNodes::new();
        let tree = build(&nodes, &map);
        for range in ranges {
            let inside: Vec<(Key, Vec<u8>)> = map
                .iter()
                .filter(|(key, _)| range.contains(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let plain =
                |entry: Option<(Key, Bytes)>| entry.map(|(key, value)| (key, value.to_vec()));
            let first = block_on(tree.first_in(&nodes, range.clone())).unwrap();
            let last = block_on(tree.last_in(&nodes, range.clone())).unwrap();
            prop_assert_eq!(plain(first), inside.first().cloned());
            prop_assert_eq!(plain(last), inside.last().cloned());
            prop_assert_eq!(collect(&nodes, tree.range(range)), inside);
        }
        let values = block_on(tree.get_many(&nodes, &probes)).unwrap();
        for (key, value) in probes.iter().zip(values) {
            prop_assert_eq!(value.as_deref(), map.get(key).map(Vec::as_slice));
            prop_assert_eq!(block_on(tree.get(&nodes, key)).unwrap(), value);
        }
    }
}
