//! One node of the tree: a sorted run of entries, and its encoded form.
//!
//! This module owns the encoding of nodes, reading them in place, and filling one until it ends. A
//! leaf (level 0) holds items under their keys. An interior node holds the ids and item counts of
//! its children under their first keys. The module does not load or store nodes.
//!
//! Bytes: `form u8 ‖ level u8 ‖ count ‖ prefix length ‖ prefix ‖ suffix length of each key… ‖
//! length of each value… ‖ suffixes… ‖ values…`. Counts and lengths are numbers of variable length.
//! The prefix is the longest common prefix of the first key and the last. The value of a child is
//! `id 32 ‖ items below`.

use std::cmp::Ordering;
use std::fmt;

use bkfs_chunker::id::Id;
use bytes::Bytes;
use thiserror::Error;

use super::boundary::{self, MAX_NODE_COST_BYTES};
use super::item::MAX_VALUE_BYTES;
use super::key::{Key, MAX_KEY_BYTES};
use super::varint::{self, Reader};

/// Length of the longest encoded node, in bytes: one entry of the largest size in addition to a
/// node that is almost full.
pub const MAX_NODE_BYTES: usize = MAX_NODE_COST_BYTES + MAX_KEY_BYTES + MAX_VALUE_BYTES + 64;

/// Highest level of a node; leaves have level 0.
///
/// With 100 children per node, which is few, such a tree holds 10^32 items.
pub const MAX_LEVEL: u8 = 15;

/// Form number of the nodes that this version writes.
const NODE_FORM: u8 = 1;

/// The reason why bytes are not a node.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Error)]
pub enum NodeError {
    /// The bytes are longer than any node.
    #[error("node of {length} bytes is too long")]
    TooLong {
        /// Length of the bytes.
        length: usize,
    },
    /// The node has a form that this version does not know.
    #[error("node of unknown form {form}")]
    UnknownForm {
        /// The form number.
        form: u8,
    },
    /// No encoding of a node makes these bytes.
    #[error("malformed node: {what}")]
    Malformed {
        /// The part that is wrong.
        what: &'static str,
    },
    /// The keys are not strictly increasing.
    #[error("keys of a node are out of order at entry {index}")]
    Unsorted {
        /// Index of the first entry whose key is not above the key before it.
        index: usize,
    },
}

/// A child of an interior node.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Child {
    /// Id of the child, made from its encoded bytes.
    pub id: Id,
    /// Number of items in all leaves below the child, or in the child if it is a leaf.
    pub items: u64,
}

/// Where an entry's key suffix and value begin: byte offsets from the start of the node.
#[derive(Copy, Clone)]
struct Start {
    key: u32,
    value: u32,
}

/// A decoded node: its bytes and a table of the offsets of its entries.
///
/// Keys and values are not copied until a caller asks for them.
#[derive(Clone)]
pub struct Node {
    bytes: Bytes,
    level: u8,
    prefix: Start,
    items: u64,
    /// One per entry, and one more for the end of the last entry.
    starts: Vec<Start>,
}

impl Node {
    /// Checks the form of `bytes` and finds the entries. Does not panic, whatever the bytes are.
    ///
    /// The node takes at most eight bytes per entry in addition to `bytes` itself.
    ///
    /// # Errors
    /// [`NodeError::TooLong`] above [`MAX_NODE_BYTES`], [`NodeError::UnknownForm`] for a form that
    /// this version does not know, [`NodeError::Unsorted`] for keys that are not strictly
    /// increasing. [`NodeError::Malformed`] for all other bytes that [`NodeBuilder`] does not make.
    pub fn decode(bytes: Bytes) -> Result<Node, NodeError> {
        let malformed = |what| NodeError::Malformed { what };
        if bytes.len() > MAX_NODE_BYTES {
            return Err(NodeError::TooLong {
                length: bytes.len(),
            });
        }
        let mut reader = Reader::new(&bytes);
        let form = reader.byte().ok_or(malformed("empty"))?;
        if form != NODE_FORM {
            return Err(NodeError::UnknownForm { form });
        }
        let level = reader.byte().ok_or(malformed("level"))?;
        let count = reader.number_u32().ok_or(malformed("count"))? as usize;
        // Each entry has two lengths of at least one byte, so this check rejects a count that the
        // bytes cannot hold.
        if level > MAX_LEVEL || count > bytes.len() / 2 || (level > 0 && count == 0) {
            return Err(malformed("level or count"));
        }
        let prefix_length = reader.number_u32().ok_or(malformed("prefix"))?;
        let prefix_start = reader.position() as u32;
        reader
            .take(prefix_length as usize)
            .ok_or(malformed("prefix"))?;
        let prefix = Start {
            key: prefix_start,
            value: prefix_start + prefix_length,
        };
        let starts = read_starts(&mut reader, count, prefix_length as usize, bytes.len())?;
        let mut node = Node {
            level,
            prefix,
            items: 0,
            starts,
            bytes,
        };
        node.items = node.check()?;
        Ok(node)
    }

    /// Checks the properties across entries (order, longest prefix, children) and counts the items
    /// below.
    fn check(&self) -> Result<u64, NodeError> {
        let malformed = |what| Err(NodeError::Malformed { what });
        let Some(last) = self.len().checked_sub(1) else {
            return match self.prefix().len() {
                0 => Ok(0),
                _ => malformed("prefix of nothing"),
            };
        };
        let bytes = &self.bytes[..];
        let mut before = self.suffix(0);
        for (index, pair) in self.starts.windows(2).enumerate().skip(1) {
            let suffix = &bytes[pair[0].key as usize..pair[1].key as usize];
            if !is_above(suffix, before) {
                return Err(NodeError::Unsorted { index });
            }
            before = suffix;
        }
        if common_length(self.suffix(0), self.suffix(last)) > 0 {
            return malformed("prefix is not the longest");
        }
        if self.level == 0 {
            return Ok(self.len() as u64);
        }
        let add = |sum: u64, index| sum.checked_add(read_child(self.value(index))?.items);
        match (0..=last).try_fold(0, add) {
            Some(items) => Ok(items),
            None => malformed("child"),
        }
    }

    /// Returns the height of the node above the leaves. A leaf is at 0.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of entries in this node.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether the node has no entries. Only the leaf of an empty tree has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the encoded form.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the memory that this node takes, in bytes. Caches count with it.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.starts.len() * size_of::<Start>() + size_of::<Node>()
    }

    /// Returns the common prefix of all keys of the node.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix.key as usize..self.prefix.value as usize]
    }

    /// Returns the part of the key of entry `index` that follows the prefix.
    ///
    /// # Panics
    /// If there is no such entry. All functions here that take an index panic in this case.
    pub fn suffix(&self, index: usize) -> &[u8] {
        &self.bytes[self.starts[index].key as usize..self.starts[index + 1].key as usize]
    }

    /// Returns the key of entry `index`.
    pub fn key(&self, index: usize) -> Key {
        Key::from_bytes([self.prefix(), self.suffix(index)].concat())
    }

    /// Returns the value of entry `index`.
    pub fn value(&self, index: usize) -> &[u8] {
        &self.bytes[self.starts[index].value as usize..self.starts[index + 1].value as usize]
    }

    /// Returns the value of entry `index`, which shares the memory of the node.
    pub fn value_bytes(&self, index: usize) -> Bytes {
        self.bytes
            .slice(self.starts[index].value as usize..self.starts[index + 1].value as usize)
    }

    /// Returns the child at entry `index`, or `None` in a leaf.
    pub fn child(&self, index: usize) -> Option<Child> {
        if self.level == 0 {
            return None;
        }
        read_child(self.value(index))
    }

    /// Returns the number of items in all leaves below this node, or in the node if it is a leaf.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Compares the key of entry `index` with `key`.
    pub fn compare(&self, index: usize, key: &[u8]) -> Ordering {
        match self.place(key) {
            Ok(rest) => self.suffix(index).cmp(rest),
            Err(order) => order,
        }
    }

    /// Compares the key of entry `index` with the key of entry `other_index` of `other`.
    pub fn compare_entry(&self, index: usize, other: &Node, other_index: usize) -> Ordering {
        if self.prefix() == other.prefix() {
            return self.suffix(index).cmp(other.suffix(other_index));
        }
        let mine = self.prefix().iter().chain(self.suffix(index));
        mine.cmp(other.prefix().iter().chain(other.suffix(other_index)))
    }

    /// Returns the index of the first entry whose key is not below `key`, or [`Node::len`] if there
    /// is none.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        match self.place(key) {
            Ok(rest) => partition(self.len(), |index| self.suffix(index) < rest),
            Err(Ordering::Less) => self.len(),
            Err(_) => 0,
        }
    }

    /// Returns the index of the entry whose key is exactly `key`.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let index = self.lower_bound(key);
        (index < self.len() && self.compare(index, key) == Ordering::Equal).then_some(index)
    }

    /// Returns the index of the entry whose run of keys contains `key`: the last entry that is not
    /// above `key`, or else the first entry.
    pub fn floor(&self, key: &[u8]) -> usize {
        let above = match self.place(key) {
            Ok(rest) => partition(self.len(), |index| self.suffix(index) <= rest),
            Err(Ordering::Less) => self.len(),
            Err(_) => 0,
        };
        above.saturating_sub(1)
    }

    /// Returns the rest of `key` after the prefix, or how all keys of the node compare with `key`.
    fn place<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], Ordering> {
        let prefix = self.prefix();
        match key.strip_prefix(prefix) {
            Some(rest) => Ok(rest),
            // `key` either differs within the prefix, or is shorter than the prefix and begins it.
            // In the second case every key of the node is above `key`.
            None => Err(prefix.cmp(key)),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Node")
            .field("level", &self.level)
            .field("entries", &self.len())
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// Returns the first number of `0..count` for which `below` is false.
///
/// `below` must be true for all smaller numbers and false from there on.
fn partition(count: usize, below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Whether `suffix` comes after `before`.
///
/// Most pairs differ within eight bytes, which are compared as one number.
fn is_above(suffix: &[u8], before: &[u8]) -> bool {
    match (suffix.first_chunk(), before.first_chunk()) {
        (Some(one), Some(other)) if one != other => {
            u64::from_be_bytes(*one) > u64::from_be_bytes(*other)
        }
        _ => suffix > before,
    }
}

/// Reads the two columns of lengths.
///
/// Checks that each length is within its limit and that all of them add up to exactly the bytes
/// that remain.
fn read_starts(
    reader: &mut Reader<'_>,
    count: usize,
    prefix_length: usize,
    total: usize,
) -> Result<Vec<Start>, NodeError> {
    let malformed = NodeError::Malformed { what: "lengths" };
    let longest_suffix = MAX_KEY_BYTES.checked_sub(prefix_length).ok_or(malformed)?;
    let mut starts = Vec::with_capacity(count + 1);
    // No sum can overflow: there are at most MAX_NODE_BYTES / 2 lengths of at most MAX_VALUE_BYTES
    // each, and the product is below 2^34.
    let mut sum = 0usize;
    for _ in 0..count {
        starts.push(Start {
            key: sum as u32,
            value: 0,
        });
        sum += reader.length(longest_suffix).ok_or(malformed)?;
    }
    let keys = sum;
    for start in &mut starts {
        start.value = sum as u32;
        sum += reader.length(MAX_VALUE_BYTES).ok_or(malformed)?;
    }
    // If this check passes, all offsets lie within the node, and so the `as u32` casts lose
    // nothing.
    if reader.position() + sum != total {
        return Err(malformed);
    }
    starts.push(Start {
        key: keys as u32,
        value: sum as u32,
    });
    let base = reader.position() as u32;
    for start in &mut starts {
        start.key += base;
        start.value += base;
    }
    Ok(starts)
}

/// Encodes the value that an interior node holds for a child.
pub(crate) fn write_child(child: Child) -> Vec<u8> {
    let mut out = Vec::with_capacity(36);
    out.extend_from_slice(&child.id.0);
    varint::write(&mut out, child.items);
    out
}

fn read_child(value: &[u8]) -> Option<Child> {
    let mut reader = Reader::new(value);
    let id = Id(reader.take(32)?.try_into().ok()?);
    let items = reader.number()?;
    (reader.is_empty() && items > 0).then_some(Child { id, items })
}

/// Returns the length of the common prefix of both, in bytes.
fn common_length(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// Collects sorted entries until a node ends, and encodes it.
///
/// The buffers are reused from one node to the next.
pub(crate) struct NodeBuilder {
    level: u8,
    /// All keys, concatenated. `ends` holds the end of each key in `keys` and of each value in
    /// `values`.
    keys: Vec<u8>,
    values: Vec<u8>,
    ends: Vec<Start>,
    cost_bytes: usize,
    items: u64,
}

impl NodeBuilder {
    /// Returns an empty node of `level`.
    pub(crate) fn new(level: u8) -> Self {
        NodeBuilder {
            level,
            keys: Vec::new(),
            values: Vec::new(),
            ends: Vec::new(),
            cost_bytes: 0,
            items: 0,
        }
    }

    /// Returns the number of entries so far.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the next entry begins a node.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of items in all leaves below, or in this node if it is a leaf.
    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    /// Returns the key of the first entry.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        let end = self.ends.first()?;
        Some(&self.keys[..end.key as usize])
    }

    /// Returns the height above the leaves.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Returns the child of an interior node that has exactly one entry.
    pub(crate) fn only_child(&self) -> Option<Id> {
        if self.level == 0 || self.ends.len() != 1 {
            return None;
        }
        read_child(&self.values).map(|child| child.id)
    }

    /// Adds the entry with key `prefix ‖ suffix`, which must be above the key before it.
    ///
    /// Returns whether the node ends with this entry.
    pub(crate) fn push(&mut self, prefix: &[u8], suffix: &[u8], value: &[u8]) -> bool {
        let start = self.keys.len();
        self.keys.extend_from_slice(prefix);
        self.keys.extend_from_slice(suffix);
        self.values.extend_from_slice(value);
        self.ends.push(Start {
            key: self.keys.len() as u32,
            value: self.values.len() as u32,
        });
        let below = if self.level == 0 {
            1
        } else {
            read_child(value).map_or(0, |child| child.items)
        };
        self.items = self.items.saturating_add(below);
        let key = &self.keys[start..];
        let entry_bytes = boundary::entry_cost_bytes(key.len(), value.len());
        self.cost_bytes += entry_bytes;
        boundary::ends_after(self.level, key, entry_bytes, self.cost_bytes)
    }

    /// Encodes the entries collected so far and clears the builder.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let prefix_length = match (self.first_key(), self.last_key()) {
            (Some(first), Some(last)) => common_length(first, last),
            _ => 0,
        };
        let mut out = Vec::with_capacity(self.cost_bytes + 16);
        out.extend_from_slice(&[NODE_FORM, self.level]);
        varint::write(&mut out, self.ends.len() as u64);
        varint::write(&mut out, prefix_length as u64);
        out.extend_from_slice(&self.keys[..prefix_length]);
        let mut before = 0;
        for end in &self.ends {
            varint::write(&mut out, (end.key - before) as u64 - prefix_length as u64);
            before = end.key;
        }
        before = 0;
        for end in &self.ends {
            varint::write(&mut out, (end.value - before) as u64);
            before = end.value;
        }
        before = 0;
        for end in &self.ends {
            out.extend_from_slice(&self.keys[before as usize + prefix_length..end.key as usize]);
            before = end.key;
        }
        out.extend_from_slice(&self.values);
        self.clear();
        out
    }

    fn last_key(&self) -> Option<&[u8]> {
        let start = match self.ends.len() {
            0 => return None,
            1 => 0,
            count => self.ends[count - 2].key as usize,
        };
        Some(&self.keys[start..])
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.ends.clear();
        self.cost_bytes = 0;
        self.items = 0;
    }
}

#[cfg(test)]
mod tests;
