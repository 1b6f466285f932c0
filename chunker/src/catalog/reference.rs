//! What a root says of where blobs are: references to index objects and to runs.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::crypto::Class;
use crate::id::Prefix;
use crate::pack::PackName;

/// One index object in the root's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub struct IndexRef {
    /// The name of the index object, which lies under `index/NAME`.
    #[cbor(n(0), with = "name_bytes")]
    pub name: PackName,
    /// Number of packs whose footers it holds.
    #[n(1)]
    pub packs: u32,
    /// Number of blobs in these packs.
    #[n(2)]
    pub blobs: u64,
    /// Decoded length of its payload, in bytes. Determines the cost of loading it, and whether it
    /// is absorbed.
    #[n(3)]
    pub bytes: u64,
}

/// One run in the root's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, minicbor::Encode, minicbor::Decode)]
#[cbor(map)]
pub struct RunRef {
    /// The name of the run, which lies under `runs/NAME`.
    #[cbor(n(0), with = "name_bytes")]
    pub name: PackName,
    /// The length of the object, in bytes.
    #[n(1)]
    pub bytes: u64,
    /// The class of the packs that it names: data or metadata packs.
    #[cbor(n(2), with = "pack_class")]
    pub class: Class,
    /// The first prefix of its range.
    #[cbor(n(3), with = "prefix_bytes")]
    pub first: Prefix,
    /// The last prefix of its range.
    #[cbor(n(4), with = "prefix_bytes")]
    pub last: Prefix,
    /// Number of its records.
    #[n(5)]
    pub records: u64,
}

impl RunRef {
    /// Returns the range of prefixes that the run has all records of.
    pub fn prefixes(&self) -> RangeInclusive<Prefix> {
        self.first..=self.last
    }
}

/// Where a root says that blobs are. Each index object of the root is in exactly one place here.
#[derive(Debug, Clone, Default)]
pub struct IndexSources {
    /// Index objects that are read themselves.
    pub objects: Vec<IndexRef>,
    /// Groups of runs that answer for other index objects.
    pub groups: Vec<RunGroup>,
}

impl IndexSources {
    /// Returns the sources of a root whose index objects are all read themselves.
    pub fn of_objects(objects: &[IndexRef]) -> Self {
        Self {
            objects: objects.to_vec(),
            groups: Vec::new(),
        }
    }
}

/// Runs that together have the records of a set of index objects (docs/PROTOCOL.md, rule 12).
#[derive(Debug, Clone)]
pub struct RunGroup {
    /// The index objects that the runs answer for.
    pub covers: Vec<IndexRef>,
    /// The runs. The ranges of those of each class divide all prefixes among them.
    pub runs: Vec<RunRef>,
    /// Packs that the runs may name, and none of these index objects does: they are gone.
    pub dropped: Arc<HashSet<PackName>>,
}

/// Encoding of a class of packs as its number in CBOR.
mod pack_class {
    use minicbor::decode::{Decoder, Error};
    use minicbor::encode::{self, Encoder, Write};

    use crate::crypto::Class;

    pub(super) fn encode<C, W: Write>(
        class: &Class,
        encoder: &mut Encoder<W>,
        _context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        encoder.u8(*class as u8)?;
        Ok(())
    }

    pub(super) fn decode<C>(decoder: &mut Decoder<'_>, _context: &mut C) -> Result<Class, Error> {
        Class::from_number(decoder.u8()?)
            .filter(|class| matches!(class, Class::DataPack | Class::MetadataPack))
            .ok_or_else(|| Error::message("a run of a wrong class"))
    }
}

/// Encoding of a prefix as 16 bytes in CBOR.
mod prefix_bytes {
    use minicbor::decode::{Decoder, Error};
    use minicbor::encode::{self, Encoder, Write};

    use crate::id::Prefix;

    pub(super) fn encode<C, W: Write>(
        prefix: &Prefix,
        encoder: &mut Encoder<W>,
        _context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        encoder.bytes(&prefix.0)?;
        Ok(())
    }

    pub(super) fn decode<C>(decoder: &mut Decoder<'_>, _context: &mut C) -> Result<Prefix, Error> {
        let bytes: [u8; Prefix::LEN] = (decoder.bytes()?)
            .try_into()
            .map_err(|_| Error::message("a prefix has 16 bytes"))?;
        Ok(Prefix(bytes))
    }
}

/// Encoding of a name as 16 bytes in CBOR.
pub mod name_bytes {
    use minicbor::decode::{Decoder, Error};
    use minicbor::encode::{self, Encoder, Write};

    use crate::pack::PackName;

    /// Writes a name as a byte string.
    ///
    /// # Errors
    /// The error of the writer.
    pub fn encode<C, W: Write>(
        name: &PackName,
        encoder: &mut Encoder<W>,
        _context: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        encoder.bytes(&name.to_bytes())?;
        Ok(())
    }

    /// Reads a name that [`encode`] has written.
    ///
    /// # Errors
    /// [`Error`] if the input is not a byte string of 16 bytes.
    pub fn decode<C>(decoder: &mut Decoder<'_>, _context: &mut C) -> Result<PackName, Error> {
        let bytes = decoder.bytes()?;
        let bytes: [u8; PackName::LEN] = bytes
            .try_into()
            .map_err(|_| Error::message("a name has 16 bytes"))?;
        Ok(PackName::from_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn references_are_read_back(
            session: u64, sequence: u32, random: u32, packs: u32, blobs: u64, bytes: u64,
        ) {
            let name = PackName { session, sequence, random };
            let reference = IndexRef { name, packs, blobs, bytes };
            let encoded = minicbor::to_vec(reference).expect("a vector takes everything");
            prop_assert_eq!(minicbor::decode::<IndexRef>(&encoded).expect("decodes"), reference);
        }

        #[test]
        fn references_to_runs_are_read_back(
            session: u64, bytes: u64, is_data: bool, first: [u8; 16], last: [u8; 16], records: u64,
        ) {
            let name = PackName { session, sequence: 1, random: 2 };
            let class = if is_data { Class::DataPack } else { Class::MetadataPack };
            let (first, last) = (Prefix(first), Prefix(last));
            let reference = RunRef { name, bytes, class, first, last, records };
            let encoded = minicbor::to_vec(reference).expect("a vector takes everything");
            prop_assert_eq!(minicbor::decode::<RunRef>(&encoded).expect("decodes"), reference);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = minicbor::decode::<IndexRef>(&bytes);
            let _ = minicbor::decode::<RunRef>(&bytes);
        }
    }
}
