//! Bytes that are compressed as a whole, for objects that hold no frames.
//!
//! Owns the effort. The form is that of frames and footers (`codec`), which others do not see.

use crate::codec::{CodecError, Decoder, Effort, Encoder};

/// The level of zstd. 1 MiB takes about ten milliseconds.
const LEVEL: i32 = 1;

/// Returns the coded form of `bytes`.
///
/// # Panics
/// If there are 4 GiB or more.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    Encoder::new().encode(bytes, Effort::Level(LEVEL), &mut coded);
    coded
}

/// Returns the bytes of a coded form, at most `bytes_max`. Allocates no more for them.
///
/// # Errors
/// [`CodecError`] for what [`encode`] does not return for that many bytes.
pub fn decode(coded: &[u8], bytes_max: u32) -> Result<Vec<u8>, CodecError> {
    Decoder::new().decode(coded, bytes_max)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn bytes_are_read_back_within_their_bound() {
        let bytes = b"what repeats ".repeat(1000);
        let coded = encode(&bytes);
        assert!(coded.len() < bytes.len() / 10);
        assert_eq!(decode(&coded, 13_000).as_ref(), Ok(&bytes));
        assert!(decode(&coded, 12_999).is_err());
        assert!(decode(&coded[..coded.len() - 1], 13_000).is_err());
    }
}
