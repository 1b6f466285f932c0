//! Index objects: the headers and footers of several packs in one object.

use super::IndexError;
use crate::codec::{Decoder, Effort, Encoder};
use crate::crypto::{BOX_OVERHEAD, Class, HEADER_LEN};
use crate::pack::{FinishedPack, Footer, PACK_BYTES_MAX, PackName, TRAILER_LEN};
use bytes::Bytes;

/// The maximum decoded length of an index object, in bytes: about three million blobs.
pub const INDEX_RAW_MAX: u32 = 64 * 1024 * 1024;

/// Length in bytes of name, class, pack length, footer length and header.
const RECORD_HEAD_LEN: usize = PackName::LEN + 1 + 8 + 4 + HEADER_LEN;

/// The index entry of a pack: enough to find, fetch and open any of its frames.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackRecord {
    /// The pack's name.
    pub name: PackName,
    /// Data or metadata pack.
    pub class: Class,
    /// The length of the pack in the bucket, in bytes.
    pub length: u64,
    /// The first bytes of the pack. [`crate::crypto::Keyring::object_opener`] verifies them at each
    /// use.
    pub header: [u8; HEADER_LEN],
    /// The frames and blobs of the pack.
    pub footer: Footer,
}

impl PackRecord {
    /// Returns the length in bytes of the form that [`PackRecord::encode`] appends.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        (RECORD_HEAD_LEN + self.footer.bytes().len()) as u64
    }

    /// Appends the record in the form that index objects hold.
    pub(crate) fn encode(&self, raw: &mut Vec<u8>) {
        let footer = self.footer.bytes();
        raw.extend_from_slice(&self.name.to_bytes());
        raw.push(self.class as u8);
        raw.extend_from_slice(&self.length.to_le_bytes());
        raw.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        raw.extend_from_slice(&self.header);
        raw.extend_from_slice(footer);
    }

    /// The inverse of [`PackRecord::encode`].
    ///
    /// # Errors
    /// [`IndexError::Footer`] or [`IndexError::Inconsistent`] if the bytes are not one record.
    pub(crate) fn decode(mut raw: Bytes) -> Result<Self, IndexError> {
        let record = decode_record(&mut raw)?;
        match raw.is_empty() {
            true => Ok(record),
            false => Err(IndexError::Inconsistent("bytes follow the pack")),
        }
    }
}

impl From<&FinishedPack> for PackRecord {
    fn from(pack: &FinishedPack) -> Self {
        Self {
            name: pack.name,
            class: pack.class,
            length: pack.length,
            header: pack.header,
            footer: pack.footer.clone(),
        }
    }
}

/// Returns the decoded length in bytes of an index object of these packs, which [`INDEX_RAW_MAX`]
/// bounds.
pub fn encoded_length<'a>(records: impl IntoIterator<Item = &'a PackRecord>) -> u64 {
    4 + records
        .into_iter()
        .map(PackRecord::encoded_bytes)
        .sum::<u64>()
}

/// Returns the payload of an index object of these packs, to be sealed as class [`Class::Index`].
/// Sorts `records` by name.
///
/// # Errors
/// - [`IndexError::TooLarge`] if the decoded length exceeds [`INDEX_RAW_MAX`].
/// - [`IndexError::Inconsistent`] if two packs have the same name.
pub fn encode(
    records: &mut [PackRecord],
    encoder: &mut Encoder,
    effort: Effort,
) -> Result<Vec<u8>, IndexError> {
    let length = encoded_length(&*records);
    if length > u64::from(INDEX_RAW_MAX) {
        return Err(IndexError::TooLarge { length });
    }
    records.sort_unstable_by_key(|record| record.name);
    if records.windows(2).any(|pair| pair[0].name == pair[1].name) {
        return Err(IndexError::Inconsistent("a pack is there twice"));
    }
    let mut raw = Vec::with_capacity(length as usize);
    raw.extend_from_slice(&(records.len() as u32).to_le_bytes());
    for record in records {
        record.encode(&mut raw);
    }
    let mut payload = Vec::new();
    encoder.encode(&raw, effort, &mut payload);
    Ok(payload)
}

/// The inverse of [`encode`]. Returns the packs in the order of their names. Their footers share
/// one allocation.
///
/// # Errors
/// - [`IndexError::Codec`] if the payload does not decode.
/// - [`IndexError::Footer`] if a footer is damaged.
/// - [`IndexError::Inconsistent`] if the payload is truncated or has trailing bytes, if the packs
///   are not in order, or if a pack has a wrong class or length.
pub fn decode(payload: &[u8], decoder: &mut Decoder) -> Result<Vec<PackRecord>, IndexError> {
    let raw = Bytes::from(decoder.decode(payload, INDEX_RAW_MAX)?);
    let count = raw
        .first_chunk::<4>()
        .map(|count| u32::from_le_bytes(*count) as usize)
        .ok_or(SHORT)?;
    let mut rest = raw.slice(4..);
    // A footer has at least 8 bytes, so a false count cannot cause an allocation larger than the
    // payload.
    let mut records: Vec<PackRecord> =
        Vec::with_capacity(count.min(rest.len() / (RECORD_HEAD_LEN + 8)));
    for _ in 0..count {
        let record = decode_record(&mut rest)?;
        if records.last().is_some_and(|last| last.name >= record.name) {
            return Err(IndexError::Inconsistent("the packs are not in order"));
        }
        records.push(record);
    }
    if rest.is_empty() {
        Ok(records)
    } else {
        Err(IndexError::Inconsistent("bytes follow the last pack"))
    }
}

const SHORT: IndexError = IndexError::Inconsistent("truncated");

/// Removes the first record from `rest` and returns it.
fn decode_record(rest: &mut Bytes) -> Result<PackRecord, IndexError> {
    let name = PackName::from_bytes(take(rest)?);
    let [class] = take(rest)?;
    let length = u64::from_le_bytes(take(rest)?);
    let footer_length = u32::from_le_bytes(take(rest)?) as usize;
    let header = take(rest)?;
    if rest.len() < footer_length {
        return Err(SHORT);
    }
    let footer = Footer::parse(rest.split_to(footer_length))?;
    let class = Class::from_number(class)
        .filter(|class| matches!(class, Class::DataPack | Class::MetadataPack))
        .ok_or(IndexError::Inconsistent("a pack of a wrong class"))?;
    let footer_min = (BOX_OVERHEAD + TRAILER_LEN) as u32;
    if length > PACK_BYTES_MAX || length < footer.pack_length(footer_min) {
        return Err(IndexError::Inconsistent("a pack of a wrong length"));
    }
    Ok(PackRecord {
        name,
        class,
        length,
        header,
        footer,
    })
}

/// Removes the first `N` bytes from `rest` and returns them.
fn take<const N: usize>(rest: &mut Bytes) -> Result<[u8; N], IndexError> {
    let taken = *rest.first_chunk::<N>().ok_or(SHORT)?;
    *rest = rest.slice(N..);
    Ok(taken)
}
