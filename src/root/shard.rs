//! Shards: the list objects that a root refers to.
//!
//! Owns the reference by which a root names a list object, and the encoding of the payload. Pure.
//! Knows no type of entry: [`super::snapshots`] and [`super::chain`] define the entries, and
//! [`super::lists`] loads and writes the objects.

use bkfs_chunker::catalog::name_bytes;
use bkfs_chunker::pack::PackName;
use minicbor::{Decode, Encode};

/// A list object that a root refers to.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct ListRef {
    /// Names the object `lists/NAME`.
    #[cbor(n(0), with = "name_bytes")]
    pub name: PackName,
    /// The number of entries in it.
    #[n(1)]
    pub count: u32,
    /// The length of its payload in bytes.
    #[n(2)]
    pub bytes: u64,
}

/// The payload of a list object.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
struct Shard<T> {
    #[n(0)]
    entries: Vec<T>,
}

/// Types of entries of list objects.
pub trait ListEntry: Encode<()> + for<'b> Decode<'b, ()> + Clone + Send + Sync + 'static {}

/// Encodes the payload of a list object.
pub fn encode_shard<T: ListEntry>(entries: Vec<T>) -> Vec<u8> {
    minicbor::to_vec(Shard { entries }).expect("writing plain fields to memory cannot fail")
}

/// Decodes the payload of a list object.
///
/// # Errors
/// A text that says what is wrong with the bytes.
pub fn decode_shard<T: ListEntry>(payload: &[u8]) -> Result<Vec<T>, String> {
    minicbor::decode::<Shard<T>>(payload)
        .map(|shard| shard.entries)
        .map_err(|error| error.to_string())
}
