//! What a check writes down of blobs and of references to them. Pure.
//!
//! Owns the written forms, which are read again by the same process only.

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_chunker::pack::PackName;

use super::partitions::Record;

/// The position of a pack among those that a check walks.
pub type Ordinal = u32;

/// A position in the order in which a check reads metadata: the pack, and what is counted in it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Order {
    /// The pack.
    pub pack: Ordinal,
    /// The number of records of this sort before it in the pack.
    pub number: u32,
}

/// A copy of a blob in a live pack.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Holding {
    /// The blob.
    pub blob: Prefix,
    /// The pack.
    pub pack: Ordinal,
    /// The number of the frame in the pack.
    pub frame: u16,
}

/// A reference from one blob to another.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Reference {
    /// The referring blob.
    pub from: (Kind, Prefix),
    /// The blob that it refers to.
    pub to: (Kind, Id),
    /// When it was read.
    pub order: Order,
}

/// Facts about a node that its parent states as well.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct NodeFact {
    /// The level above the leaves.
    pub level: u8,
    /// The number of items below it.
    pub items: u64,
    /// Hash of the node's first key.
    pub first: u64,
}

/// A node that was read.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct ReadNode {
    /// The node.
    pub node: Prefix,
    /// What it is.
    pub fact: NodeFact,
}

/// A parent's statement about a child.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Edge {
    /// The child.
    pub child: Prefix,
    /// What it has to be.
    pub expected: NodeFact,
    /// When the parent was read.
    pub order: Order,
}

/// A question for all copies of a blob.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Question(
    /// The blob.
    pub Prefix,
);

impl Holding {
    /// Returns the place of the copy, if `names` has its pack.
    pub fn place(&self, names: &[PackName]) -> Option<PackLocation> {
        names.get(self.pack as usize).map(|pack| PackLocation {
            pack: *pack,
            frame: Some(self.frame),
        })
    }
}

/// Takes fields off the front of a written form.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn kind(&mut self) -> Option<Kind> {
        let [kind] = self.take()?;
        Kind::try_from(kind).ok()
    }

    fn fact(&mut self) -> Option<NodeFact> {
        let [level] = self.take()?;
        Some(NodeFact {
            level,
            items: self.u64()?,
            first: self.u64()?,
        })
    }

    fn order(&mut self) -> Option<Order> {
        Some(Order {
            pack: self.take().map(u32::from_le_bytes)?,
            number: self.take().map(u32::from_le_bytes)?,
        })
    }
}

fn write_fact(fact: &NodeFact, to: &mut Vec<u8>) {
    to.push(fact.level);
    to.extend_from_slice(&fact.items.to_le_bytes());
    to.extend_from_slice(&fact.first.to_le_bytes());
}

fn write_order(order: &Order, to: &mut Vec<u8>) {
    to.extend_from_slice(&order.pack.to_le_bytes());
    to.extend_from_slice(&order.number.to_le_bytes());
}

impl Record for Holding {
    const BYTES: usize = Prefix::LEN + 4 + 2;

    fn prefix(&self) -> Prefix {
        self.blob
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.blob.0);
        to.extend_from_slice(&self.pack.to_le_bytes());
        to.extend_from_slice(&self.frame.to_le_bytes());
    }

    fn read(from: &[u8]) -> Option<Self> {
        let mut fields = Fields(from);
        Some(Self {
            blob: Prefix(fields.take()?),
            pack: fields.take().map(u32::from_le_bytes)?,
            frame: fields.take().map(u16::from_le_bytes)?,
        })
    }
}

impl Record for Reference {
    const BYTES: usize = 1 + Prefix::LEN + 1 + Id::LEN + 8;

    fn prefix(&self) -> Prefix {
        self.to.1.prefix()
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.push(self.from.0 as u8);
        to.extend_from_slice(&self.from.1.0);
        to.push(self.to.0 as u8);
        to.extend_from_slice(&self.to.1.0);
        write_order(&self.order, to);
    }

    fn read(from: &[u8]) -> Option<Self> {
        let mut fields = Fields(from);
        Some(Self {
            from: (fields.kind()?, Prefix(fields.take()?)),
            to: (fields.kind()?, Id(fields.take()?)),
            order: fields.order()?,
        })
    }
}

impl Record for ReadNode {
    const BYTES: usize = Prefix::LEN + 17;

    fn prefix(&self) -> Prefix {
        self.node
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.node.0);
        write_fact(&self.fact, to);
    }

    fn read(from: &[u8]) -> Option<Self> {
        let mut fields = Fields(from);
        Some(Self {
            node: Prefix(fields.take()?),
            fact: fields.fact()?,
        })
    }
}

impl Record for Edge {
    const BYTES: usize = Prefix::LEN + 17 + 8;

    fn prefix(&self) -> Prefix {
        self.child
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.child.0);
        write_fact(&self.expected, to);
        write_order(&self.order, to);
    }

    fn read(from: &[u8]) -> Option<Self> {
        let mut fields = Fields(from);
        Some(Self {
            child: Prefix(fields.take()?),
            expected: fields.fact()?,
            order: fields.order()?,
        })
    }
}

impl Record for Question {
    const BYTES: usize = Prefix::LEN;

    fn prefix(&self) -> Prefix {
        self.0
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0.0);
    }

    fn read(from: &[u8]) -> Option<Self> {
        Fields(from).take().map(Prefix).map(Self)
    }
}
