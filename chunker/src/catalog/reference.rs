//! References to index objects in the root.

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
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = minicbor::decode::<IndexRef>(&bytes);
        }
    }
}
