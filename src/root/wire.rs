//! CBOR encodings of the chunker's plain types: ids, names and nonces are byte strings, never
//! arrays of numbers.
//!
//! Owns only these adapters, which the derived encoders of this module's parent name with
//! `#[cbor(with = ..)]`.
//!
//! # Errors
//! Each `encode` fails only if the writer fails. Each `decode` fails if the input has another CBOR
//! type or length, or holds a value out of range.

use minicbor::decode::{Decoder, Error};
use minicbor::encode::{Encoder, Error as EncodeError, Write};

/// Reads a byte string of exactly `N` bytes.
fn fixed<const N: usize>(decoder: &mut Decoder<'_>) -> Result<[u8; N], Error> {
    let position = decoder.position();
    decoder
        .bytes()?
        .try_into()
        .map_err(|_| Error::message("byte string of another length").at(position))
}

/// A 16-byte nonce or id.
pub(super) mod bytes_16 {
    use super::*;

    pub fn encode<C, W: Write>(
        value: &[u8; 16],
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.bytes(value)?.ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<[u8; 16], Error> {
        fixed(decoder)
    }
}

/// The id of a repository.
pub(super) mod repository {
    use super::*;
    use bkfs_chunker::crypto::RepositoryId;

    pub fn encode<C, W: Write>(
        value: &RepositoryId,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.bytes(&value.0)?.ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<RepositoryId, Error> {
        fixed(decoder).map(RepositoryId)
    }
}

/// The id of a blob.
pub(super) mod id {
    use super::*;
    use bkfs_chunker::id::Id;

    pub fn encode<C, W: Write>(
        value: &Id,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.bytes(&value.0)?.ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<Id, Error> {
        fixed(decoder).map(Id)
    }
}

/// The id of a blob that may be absent. An absent field is left out, or null in an array.
pub(super) mod id_option {
    use super::*;
    use bkfs_chunker::id::Id;

    pub fn encode<C, W: Write>(
        value: &Option<Id>,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        match value {
            Some(id) => encoder.bytes(&id.0)?.ok(),
            None => encoder.null()?.ok(),
        }
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<Option<Id>, Error> {
        if decoder.datatype()? == minicbor::data::Type::Null {
            decoder.skip()?;
            return Ok(None);
        }
        fixed(decoder).map(|bytes| Some(Id(bytes)))
    }

    pub fn nil() -> Option<Option<Id>> {
        Some(None)
    }

    pub fn is_nil(value: &Option<Id>) -> bool {
        value.is_none()
    }
}

/// The name of a write-once object.
pub(super) mod name {
    use super::*;
    use bkfs_chunker::pack::PackName;

    pub fn encode<C, W: Write>(
        value: &PackName,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.bytes(&value.to_bytes())?.ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<PackName, Error> {
        fixed(decoder).map(PackName::from_bytes)
    }
}

/// Names of write-once objects.
pub(super) mod names {
    use super::*;
    use bkfs_chunker::pack::PackName;

    pub fn encode<C, W: Write>(
        value: &[PackName],
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.array(value.len() as u64)?;
        value
            .iter()
            .try_for_each(|value| name::encode(value, encoder, context))
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, context: &mut C) -> Result<Vec<PackName>, Error> {
        let position = decoder.position();
        let count = decoder.array()?;
        let count = count.ok_or_else(|| Error::message("a list without a length").at(position))?;
        (0..count).map(|_| name::decode(decoder, context)).collect()
    }
}

/// An instant as two numbers: whole seconds since 1970, then nanoseconds within the second. No year
/// of the calendar overflows.
pub(super) mod time {
    use super::*;
    use jiff::Timestamp;

    pub fn encode<C, W: Write>(
        value: &Timestamp,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder
            .array(2)?
            .i64(value.as_second())?
            .i32(value.subsec_nanosecond())?
            .ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<Timestamp, Error> {
        let position = decoder.position();
        if decoder.array()? != Some(2) {
            return Err(Error::message("an instant is two numbers").at(position));
        }
        let (seconds, nanoseconds) = (decoder.i64()?, decoder.i32()?);
        Timestamp::new(seconds, nanoseconds)
            .map_err(|_| Error::message("no such instant").at(position))
    }
}

/// A flag that is written only if it is set.
pub(super) mod flag {
    use super::*;

    pub fn encode<C, W: Write>(
        value: &bool,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.bool(*value)?.ok()
    }

    pub fn decode<C>(decoder: &mut Decoder<'_>, _: &mut C) -> Result<bool, Error> {
        decoder.bool()
    }

    pub fn nil() -> Option<bool> {
        Some(false)
    }

    pub fn is_nil(value: &bool) -> bool {
        !value
    }
}
