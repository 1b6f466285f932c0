//! The forms that `src/tree` owns: keys, items, nodes, and where nodes end.

use std::fmt::Write;

use bkfs::tree::memory::MemoryNodes;
use bkfs::tree::{Attributes, Extent, Item, Key, Node, Target, Timestamp, apply, empty};
use bkfs_chunker::id::Id;
use bytes::Bytes;

use crate::{fixed, fixed_text, noise};

fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds,
    }
}

fn attributes() -> Attributes {
    Attributes {
        mode: 0o100_644,
        uid: 1000,
        gid: 100,
        links: 1,
        size_bytes: 1 << 40,
        allocated_bytes: 4096,
        accessed: time(1_700_000_002, 3),
        modified: time(1_700_000_000, 999_999_999),
        changed: time(-1, 2),
        device: 0x0801,
        profile: 2,
        flags: 0,
    }
}

fn extent(target: Target, open: bool) -> Extent {
    Extent {
        length: 1 << 20,
        target,
        target_offset: 16_384,
        open,
    }
}

/// Returns one item of each kind, under its key.
fn entries() -> Vec<(Key, Item)> {
    let id = |number| Id([number; 32]);
    let name = Item::Name {
        inode: 300,
        file_type: 8,
    };
    let mut entries = vec![
        (Key::attributes(300), Item::Attributes(attributes())),
        (Key::name(2, 0x0123_4567_89ab_cdef, b"etc"), name),
        (
            Key::extent(300, 0),
            Item::Extent(extent(Target::Segment(id(0xab)), false)),
        ),
        (
            Key::extent(300, 1 << 20),
            Item::Extent(extent(Target::Chunk(id(0xcd)), true)),
        ),
        (
            Key::xattr(300, b"user.note"),
            Item::Xattr(Bytes::from_static(b"hello")),
        ),
        (
            Key::inline(301),
            Item::Inline(Bytes::from_static(b"small\n")),
        ),
        (
            Key::symlink(302),
            Item::Symlink(Bytes::from_static(b"../target")),
        ),
        (Key::orphan(303), Item::Orphan),
    ];
    entries.sort_by(|one, two| one.0.cmp(&two.0));
    entries
}

/// Returns the root of a tree of these entries, and the nodes of the tree.
fn build(entries: impl Iterator<Item = (Key, Vec<u8>)> + Send) -> (MemoryNodes, Id) {
    let nodes = MemoryNodes::new();
    let changes = entries.map(|(key, value)| (key, Some(value)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without timers or I/O can be made");
    let root = runtime.block_on(async {
        let root = empty(&nodes).await?;
        apply(&nodes, &nodes, root, changes).await
    });
    let root = root.expect("nodes in memory do not fail");
    (nodes, root)
}

fn node(nodes: &MemoryNodes, id: Id) -> Bytes {
    let node = nodes.peek(id).expect("what was stored is there");
    node.bytes().clone()
}

#[test]
fn keys_and_items() {
    let mut text = String::new();
    for (key, item) in entries() {
        let value = item.encode();
        writeln!(text, "{}", hex(key.as_bytes())).expect("strings take all");
        writeln!(text, "  {}", hex(&value)).expect("strings take all");
        let kind = key.kind().expect("the key has a kind");
        assert_eq!(kind, item.kind());
        assert_eq!(Item::decode(kind, &Bytes::from(value)), Ok(item));
    }
    fixed_text("items.txt", &text);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_leaf() {
    let all = || {
        entries()
            .into_iter()
            .map(|(key, item)| (key, item.encode()))
    };
    let (nodes, root) = build(all());
    let frozen = fixed("node-leaf.bin", &node(&nodes, root));
    let leaf = Node::decode(Bytes::from(frozen)).expect("the frozen leaf is read");
    let read: Vec<(Key, Vec<u8>)> = (0..leaf.len())
        .map(|index| (leaf.key(index), leaf.value(index).to_vec()))
        .collect();
    assert_eq!(read, all().collect::<Vec<_>>());
}

/// Returns enough entries for three levels: `count` names of one directory with values of up to 600
/// bytes.
fn many(count: u64) -> impl Iterator<Item = (Key, Vec<u8>)> + Send {
    (0..count).map(|number| {
        let name = [b'n'; 255];
        let bits = noise(number, 2);
        let length = usize::from(u16::from_le_bytes([bits[0], bits[1]])) % 600;
        (Key::name(2, number << 20, &name), noise(number, length))
    })
}

#[test]
fn interior_nodes_and_where_nodes_end() {
    let (nodes, root) = build(many(10_000));
    fixed("node-interior.bin", &node(&nodes, root));
    // The text has every node, from the root down, level by level, so that it covers the whole rule
    // of boundaries.
    let mut text = String::new();
    let mut level = vec![root];
    while !level.is_empty() {
        let mut below = Vec::new();
        for id in level {
            let node = nodes.peek(id).expect("what was stored is there");
            let (height, bytes) = (node.level(), node.bytes().len());
            writeln!(text, "{height} {id} {} entries {bytes} bytes", node.len())
                .expect("strings take all");
            below.extend((0..node.len()).filter_map(|index| Some(node.child(index)?.id)));
        }
        level = below;
    }
    fixed_text("tree.txt", &text);
}

#[test]
fn the_empty_tree() {
    let (nodes, root) = build(std::iter::empty());
    fixed("node-empty.bin", &node(&nodes, root));
}
