//! The payload of a journal object, and where a session's journals lie (FORMAT.md, "Journals").
//!
//! Owns the form. [`super::journal`] owns the numbers and the order of journals.

use super::padding;
use super::state::{COUNTER_MAX, SessionId};
use super::wire;
use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use minicbor::{Decode, Encode};
use std::ops::RangeInclusive;

/// The payload of a journal object.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct JournalEntry {
    /// The first operation that it carries.
    #[n(0)]
    pub first: u64,
    /// The last operation that it carries (inclusive).
    #[n(1)]
    pub last: u64,
    /// The base epoch of the session, for information only.
    #[n(2)]
    pub base: u64,
    /// Packs of the session that no root listed when the journal was sent.
    #[n(3)]
    pub(super) own: Vec<OwnPack>,
    /// Foreign packs that the operations refer to.
    #[cbor(n(4), with = "wire::names")]
    pub(super) relied_on: Vec<PackName>,
    /// The operations, as the volume encodes them.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub operations: Vec<u8>,
    /// The id of the volume's commit record when the session took the volume, if there was one.
    #[cbor(n(6), with = "wire::id_option", has_nil)]
    pub recovery_base: Option<Id>,
}

/// The operations that a journal carries, by number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JournalSummary {
    /// The first operation in it.
    pub first: u64,
    /// The last operation in it, inclusive.
    pub last: u64,
}

#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub(super) struct OwnPack {
    #[cbor(n(0), with = "wire::name")]
    name: PackName,
    #[n(1)]
    is_metadata: bool,
    #[n(2)]
    length: u64,
}

impl JournalEntry {
    /// Returns an entry for the operations `carried` of its session. `packs` are the packs that
    /// they refer to, and `operations` is their encoded form.
    pub fn new(carried: RangeInclusive<u64>, packs: Delivered, operations: Vec<u8>) -> Self {
        let own = packs.own.into_iter().map(|pack| OwnPack {
            name: pack.name,
            is_metadata: pack.is_metadata,
            length: pack.length,
        });
        Self {
            first: *carried.start(),
            last: *carried.end(),
            base: 0,
            own: own.collect(),
            relied_on: packs.relied_on,
            operations,
            recovery_base: None,
        }
    }

    /// Returns the packs that the entry names.
    pub fn packs(&self) -> Delivered {
        let own = self.own.iter().map(|pack| NamedPack {
            name: pack.name,
            is_metadata: pack.is_metadata,
            length: pack.length,
        });
        Delivered {
            own: own.collect(),
            relied_on: self.relied_on.clone(),
        }
    }

    /// Returns the numbers of its operations.
    pub fn summary(&self) -> JournalSummary {
        JournalSummary {
            first: self.first,
            last: self.last,
        }
    }

    /// Returns the payload in CBOR.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// Returns the payload with zeroes appended, so that its object in the bucket has one of few
    /// lengths.
    pub fn encode_padded(&self) -> Vec<u8> {
        padding::padded(self.encode())
    }

    /// Decodes the payload that [`JournalEntry::encode`] or [`JournalEntry::encode_padded`]
    /// returns.
    ///
    /// # Errors
    /// A text for the user if the bytes cannot be decoded, or the entry carries no operation,
    /// operation 0, or one beyond [`COUNTER_MAX`].
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let entry: Self = minicbor::decode(bytes).map_err(|error| error.to_string())?;
        match entry.first {
            0 => Err("operations are counted from 1".to_owned()),
            first if first > entry.last => Err("it carries no operation".to_owned()),
            _ if entry.last > COUNTER_MAX => {
                Err(format!("it counts operations beyond {COUNTER_MAX}"))
            }
            _ => Ok(entry),
        }
    }
}

/// Returns the prefix of the keys of a session's journals.
pub(crate) fn prefix(keyring: &Keyring, volume: &str, session: SessionId) -> String {
    let volume = keyring.name_hash(volume.as_bytes());
    format!("journal/{volume:016x}/{session}/")
}
