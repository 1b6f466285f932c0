//! Unsigned integers of variable length, and a reader over untrusted bytes.
//!
//! This module owns the number encoding that items and nodes share. A byte holds seven bits, least
//! significant first; its high bit says that another byte follows. Only the shortest form is
//! accepted, so that equal values have equal bytes.

/// Appends `value` in its shortest form (1 to 10 bytes).
pub(crate) fn write(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Moves the sign into the lowest bit, so that small negative numbers stay short.
pub(crate) fn fold_sign(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Reverses [`fold_sign`].
pub(crate) fn unfold_sign(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Reads values from the front of untrusted bytes.
///
/// Methods return `None` if the bytes end early or a number is not in its shortest form.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Returns a reader at the first of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, position: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Whether all bytes have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.position == self.bytes.len()
    }

    /// Reads one byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    /// Reads the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(count)?;
        let taken = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    /// Reads one number of variable length that is a length of at most `most`.
    ///
    /// Nearly all lengths take one byte.
    #[inline]
    pub(crate) fn length(&mut self, most: usize) -> Option<usize> {
        let length = match self.bytes.get(self.position) {
            Some(&byte) if byte < 0x80 => {
                self.position += 1;
                usize::from(byte)
            }
            _ => usize::try_from(self.number()?).ok()?,
        };
        (length <= most).then_some(length)
    }

    /// Reads one number of variable length.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only.
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                let padded = byte == 0 && shift > 0;
                return (!padded).then_some(value);
            }
        }
        None
    }

    /// Reads one number of variable length that fits 32 bits.
    pub(crate) fn number_u32(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padded_and_oversized_forms_are_refused() {
        for bytes in [&[0x80, 0x00][..], &[0xff; 10], &[0x80], &[]] {
            assert_eq!(Reader::new(bytes).number(), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, signed: i64) {
            let mut out = Vec::new();
            write(&mut out, value);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.number(), Some(value));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(unfold_sign(fold_sign(signed)), signed);
        }

        #[test]
        fn whatever_is_read_is_written_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..12),
        ) {
            let mut reader = Reader::new(&bytes);
            if let Some(value) = reader.number() {
                let mut out = Vec::new();
                write(&mut out, value);
                prop_assert_eq!(&out[..], &bytes[..reader.position()]);
            }
        }
    }
}
