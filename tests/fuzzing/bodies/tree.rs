//! Nodes, trees of nodes, keys and items.

use super::{Draw, bounded, through_a_seal};
use bkfs::fault;
use bkfs::tree::item::{MAX_EXTENT_BYTES, MAX_INLINE_BYTES, MAX_SYMLINK_BYTES, MAX_XATTR_BYTES};
use bkfs::tree::key::{MAX_KEY_BYTES, MAX_NAME_BYTES, everything, name_cookie};
use bkfs::tree::memory::MemoryNodes;
use bkfs::tree::node::{MAX_LEVEL, MAX_NODE_BYTES};
use bkfs::tree::{Item, ItemKind, Key, KeyParts, Node, Tree};
use bkfs_chunker::crypto::Class;
use bkfs_chunker::id::Id;
use bytes::Bytes;
use futures::FutureExt;
use std::cmp::Ordering;

/// Bytes per byte of a node: eight for each entry, which has two bytes at least.
const NODE_FACTOR: usize = 5;

/// A node. It is, byte for byte, the encoding of its entries, and finds each of them.
pub fn node(input: &[u8]) {
    let payload = through_a_seal(Class::MetadataPack, input);
    let bytes = Bytes::from(payload);
    let Ok(node) = bounded(NODE_FACTOR, input.len(), || Node::decode(bytes)) else {
        return;
    };
    assert!(input.len() <= MAX_NODE_BYTES && node.level() <= MAX_LEVEL);
    assert_eq!(encoded(&node), input, "another node of the same entries");
    assert!(node.level() == 0 || !node.is_empty());
    let mut items = 0_u64;
    for index in 0..node.len() {
        let key = node.key(index);
        assert!(key.as_bytes().len() <= MAX_KEY_BYTES);
        assert_eq!(node.compare(index, key.as_bytes()), Ordering::Equal);
        assert_eq!(node.find(key.as_bytes()), Some(index));
        assert_eq!(
            (node.lower_bound(key.as_bytes()), node.floor(key.as_bytes())),
            (index, index)
        );
        assert_eq!(node.value_bytes(index), node.value(index));
        assert_eq!(node.compare_entry(index, &node, index), Ordering::Equal);
        assert_eq!(node.child(index).is_some(), node.level() > 0);
        items += node.child(index).map_or(1, |child| child.items);
        entry(&key, &node.value_bytes(index));
    }
    assert_eq!(node.items(), items);
    let after = everything().end;
    assert_eq!(node.lower_bound(after.as_bytes()), node.len());
    assert_eq!(
        (node.lower_bound(&[]), node.find(after.as_bytes())),
        (0, None)
    );
}

/// Returns the encoding of a node's entries, as FORMAT.md describes it.
fn encoded(node: &Node) -> Vec<u8> {
    let keys: Vec<Key> = (0..node.len()).map(|index| node.key(index)).collect();
    let values: Vec<&[u8]> = (0..node.len()).map(|index| node.value(index)).collect();
    let prefix = match (keys.first(), keys.last()) {
        (Some(first), Some(last)) => {
            let pairs = first.as_bytes().iter().zip(last.as_bytes());
            pairs.take_while(|(one, other)| one == other).count()
        }
        _ => 0,
    };
    let mut out = vec![1, node.level()];
    number(&mut out, keys.len());
    number(&mut out, prefix);
    out.extend(
        keys.iter()
            .take(1)
            .flat_map(|key| &key.as_bytes()[..prefix]),
    );
    keys.iter()
        .for_each(|key| number(&mut out, key.as_bytes().len() - prefix));
    values
        .iter()
        .for_each(|value| number(&mut out, value.len()));
    out.extend(keys.iter().flat_map(|key| &key.as_bytes()[prefix..]));
    out.extend(values.concat());
    out
}

/// Appends a number of variable length.
fn number(out: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Nodes of a hostile writer, under the ids that their parents name. A walk over all of them ends
/// after no more entries than the nodes have.
pub fn tree(input: &[u8]) {
    let nodes = MemoryNodes::new();
    let mut draw = Draw(input);
    let (mut entries, mut first) = (0, None);
    while !draw.is_empty() && nodes.len() < 16 {
        let length = draw.number(2) as usize;
        let bytes = Bytes::copy_from_slice(draw.bytes(length));
        // The parents in the corpus name their children by hash. Low ids are easy to name for a
        // mutation.
        let hash = Id(*blake3::hash(&bytes).as_bytes());
        let low = Id([nodes.len() as u8; 32]);
        if nodes.plant(hash, bytes.clone()).is_ok() && nodes.plant(low, bytes).is_ok() {
            first.get_or_insert(hash);
            entries += nodes.peek(hash).map_or(0, |node| node.len());
        }
    }
    let Some(root) = first else {
        return;
    };
    let tree = Tree::new(root);
    let mut cursor = tree.range(everything());
    let mut count = 0;
    while let Ok(Some((key, _))) = ready(cursor.next(&nodes)) {
        // A forged leaf may reach beyond the first key of the next one. A search then ends there.
        let _ = ready(tree.get(&nodes, &key));
        count += 1;
        assert!(count <= entries, "the walk reads a node twice");
    }
    let _ = ready(tree.last_in(&nodes, everything()));
    let _ = ready(tree.items(&nodes));
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("nodes in memory answer at once")
}

/// A key and the value under it: one byte of length, the key, the value.
pub fn item(input: &[u8]) {
    let mut draw = Draw(input);
    let key = Key::from_bytes(draw.string());
    entry(&key, &Bytes::copy_from_slice(draw.0));
    // Each kind sees each value.
    for number in 0..=u8::MAX {
        if let Ok(kind) = ItemKind::try_from(number) {
            value(kind, &Bytes::copy_from_slice(draw.0));
        }
    }
}

/// A key with its value. The key's parts make the same key, and the item encodes to the same value.
fn entry(key: &Key, bytes: &Bytes) {
    let parts = bounded(1, key.as_bytes().len(), || key.parse());
    let _ = format!("{key:?}");
    let Ok(parts) = parts else {
        return;
    };
    let (again, is_named_well) = rebuilt(parts);
    assert_eq!(again, *key);
    assert!(is_named_well && key.as_bytes().len() <= MAX_KEY_BYTES);
    assert!(everything().contains(key));
    let kind = key.kind().expect("a key that parses has a kind");
    let Some(item) = value(kind, bytes) else {
        return;
    };
    assert_eq!(item.kind(), kind);
    let cookie = |name: &[u8]| name_cookie(name.len() as u64);
    let _ = fault::of_item(key, &item, cookie).map(|fault| fault.to_string());
}

fn rebuilt(parts: KeyParts<'_>) -> (Key, bool) {
    let is_name = |name: &[u8]| (1..=MAX_NAME_BYTES).contains(&name.len());
    match parts {
        KeyParts::Attributes { inode } => (Key::attributes(inode), true),
        KeyParts::Extent { inode, offset } => (Key::extent(inode, offset), true),
        KeyParts::Inline { inode } => (Key::inline(inode), true),
        KeyParts::Symlink { inode } => (Key::symlink(inode), true),
        KeyParts::Orphan { inode } => (Key::orphan(inode), true),
        KeyParts::Xattr { inode, name } => (Key::xattr(inode, name), is_name(name)),
        KeyParts::Name {
            directory,
            cookie,
            name,
        } => (
            Key::name(directory, cookie, name),
            is_name(name) && i64::try_from(cookie).is_ok(),
        ),
    }
}

fn value(kind: ItemKind, bytes: &Bytes) -> Option<Item> {
    let item = bounded(1, bytes.len(), || Item::decode(kind, bytes)).ok()?;
    assert_eq!(item.encode(), **bytes, "another value of the same item");
    match &item {
        Item::Attributes(attributes) => {
            let times = [attributes.accessed, attributes.modified, attributes.changed];
            assert!(times.iter().all(|time| time.nanoseconds < 1_000_000_000));
            let _ = fault::of_attributes(100, attributes);
        }
        Item::Extent(extent) => {
            assert!((1..=MAX_EXTENT_BYTES).contains(&extent.length));
            assert!(extent.target_offset.checked_add(extent.length).is_some());
        }
        Item::Xattr(value) => assert!(value.len() <= MAX_XATTR_BYTES),
        Item::Inline(value) => assert!(value.len() <= MAX_INLINE_BYTES),
        Item::Symlink(value) => assert!((1..=MAX_SYMLINK_BYTES).contains(&value.len())),
        Item::Name { .. } | Item::Orphan => {}
    }
    Some(item)
}
