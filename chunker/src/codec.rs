//! Compression: reusable zstd contexts, and an entropy probe that detects incompressible data.
//!
//! Owns the coded form `codec u8 ‖ raw length u32 ‖ coded bytes`, which frames, footers and index
//! objects share. Does not know what the bytes mean.

use zstd::bulk;

use compressor::Compressor;

mod compressor;
mod effort;

pub use effort::{Balance, Effort};

/// Length in bytes of the head that precedes the coded bytes: codec u8 and raw length u32.
pub const CODED_HEAD_LEN: usize = 5;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// Bytes that no encoder produced.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are shorter than the head.
    #[error("truncated")]
    Short,
    /// The codec number is not one that this program knows.
    #[error("unknown codec {0}")]
    UnknownCodec(u8),
    /// The head states a longer content than the caller allows.
    #[error("states a length of {stated} bytes, more than the maximum of {bound}")]
    TooLong {
        /// The raw length that the head states, in bytes.
        stated: u32,
        /// The caller's bound, in bytes.
        bound: u32,
    },
    /// The coded bytes do not decode to the stated length.
    #[error("cannot be decoded")]
    Damaged,
}

/// The coded form of some bytes, which is not copied to its destination yet.
#[derive(Copy, Clone, Debug)]
pub struct Coded<'a> {
    codec: u8,
    raw_length: u32,
    body: &'a [u8],
}

impl Coded<'_> {
    /// Returns the length of the coded form, head included, in bytes.
    pub fn length(&self) -> usize {
        CODED_HEAD_LEN + self.body.len()
    }

    /// Appends the coded form, head first, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.length());
        out.push(self.codec);
        out.extend_from_slice(&self.raw_length.to_le_bytes());
        out.extend_from_slice(self.body);
    }
}

/// A compressor with its zstd contexts and output buffers. Each worker has one and reuses it for
/// each call.
#[derive(Debug)]
pub struct Encoder {
    compressor: Compressor,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Returns an encoder. It allocates its contexts at their first use.
    pub fn new() -> Self {
        Self {
            compressor: Compressor::new(),
        }
    }

    /// Returns the coded form of `raw`. It is compressed if that saves more than 1/32 of the
    /// length.
    ///
    /// # Panics
    /// If `raw` has 4 GiB or more. All callers have far lower bounds.
    pub fn code<'a>(&'a mut self, raw: &'a [u8], effort: Effort) -> Coded<'a> {
        let raw_length = u32::try_from(raw.len()).expect("callers bound what they encode");
        let worth = raw.len() - raw.len() / 32;
        let (codec, body) = match self.compress(raw, effort) {
            Some(coded) if coded.len() < worth => (ZSTD, coded),
            _ => (RAW, raw),
        };
        Coded {
            codec,
            raw_length,
            body,
        }
    }

    /// Appends the coded form that [`Encoder::code`] makes of `raw` to `out`.
    ///
    /// # Panics
    /// As [`Encoder::code`].
    pub fn encode(&mut self, raw: &[u8], effort: Effort, out: &mut Vec<u8>) {
        self.code(raw, effort).append_to(out);
    }

    /// Returns the zstd frame of `raw`. `None` if compression is not worth a try or fails.
    fn compress(&mut self, raw: &[u8], effort: Effort) -> Option<&[u8]> {
        if raw.len() < 32 || effort == Effort::None || is_incompressible(raw) {
            return None;
        }
        self.compressor.compress(raw, effort)
    }
}

/// A decompressor with its zstd context. Each worker has one and reuses it for each call.
#[derive(Default)]
pub struct Decoder {
    context: bulk::Decompressor<'static>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Decoder")
    }
}

impl Decoder {
    /// Returns a decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns true if the coded form holds the bytes uncompressed.
    pub fn is_raw(coded: &[u8]) -> bool {
        coded.first() == Some(&RAW)
    }

    /// Returns the length in bytes of an uncompressed content of at most `bound` bytes.
    ///
    /// # Errors
    /// - [`CodecError::Short`] if the head is incomplete.
    /// - [`CodecError::TooLong`] if the head states more than `bound` bytes.
    /// - [`CodecError::Damaged`] if the content is compressed, or has another length than the head
    ///   states.
    pub fn raw_length(coded: &[u8], bound: u32) -> Result<usize, CodecError> {
        match split(coded, bound)? {
            (RAW, length, body) if body.len() == length => Ok(length),
            _ => Err(CodecError::Damaged),
        }
    }

    /// Decodes the output of [`Encoder::encode`]. Never allocates more than `bound` bytes.
    ///
    /// # Errors
    /// - [`CodecError::Short`] if the head is incomplete.
    /// - [`CodecError::TooLong`] if the head states more than `bound` bytes.
    /// - [`CodecError::UnknownCodec`] if this program does not know the codec.
    /// - [`CodecError::Damaged`] if the bytes do not decode to the stated length.
    pub fn decode(&mut self, coded: &[u8], bound: u32) -> Result<Vec<u8>, CodecError> {
        let (codec, length, body) = split(coded, bound)?;
        match codec {
            RAW if body.len() == length => Ok(body.to_vec()),
            RAW => Err(CodecError::Damaged),
            ZSTD => {
                let mut raw = Vec::with_capacity(length);
                let written = self.context.decompress_to_buffer(body, &mut raw);
                match written {
                    Ok(written) if written == length => Ok(raw),
                    _ => Err(CodecError::Damaged),
                }
            }
            codec => Err(CodecError::UnknownCodec(codec)),
        }
    }
}

/// Splits a coded form into codec, raw length and coded bytes.
fn split(coded: &[u8], bound: u32) -> Result<(u8, usize, &[u8]), CodecError> {
    let (head, body) = coded
        .split_first_chunk::<CODED_HEAD_LEN>()
        .ok_or(CodecError::Short)?;
    let stated = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    if stated > bound {
        return Err(CodecError::TooLong { stated, bound });
    }
    Ok((head[0], stated as usize, body))
}

/// The most samples that the probe takes, in bytes.
const PROBE_SAMPLES: usize = 4096;
/// Shorter inputs, in bytes, are not probed: a wrong result costs next to nothing there.
const PROBE_LEN_MIN: usize = 4096;

/// Returns true if `bytes` are as evenly distributed as compressed or encrypted bytes. Always false
/// for fewer than 4096 bytes. Cheap: samples 4096 bytes in 64 stretches of 64 bytes.
///
/// Counts the pairs of equal bytes among the samples. Of n evenly distributed bytes n(n-1)/2/256
/// pairs are equal, within about 1 % for n = 4096. Text has ten times as many such pairs. The
/// output of fast compressors has a few per cent more.
pub fn is_incompressible(bytes: &[u8]) -> bool {
    if bytes.len() < PROBE_LEN_MIN {
        return false;
    }
    const STRETCH: usize = 64;
    let stretches = PROBE_SAMPLES / STRETCH;
    let step = (bytes.len() - STRETCH) / (stretches - 1);
    let mut counts = [0u32; 256];
    for stretch in 0..stretches {
        let start = stretch * step;
        for byte in &bytes[start..start + STRETCH] {
            counts[usize::from(*byte)] += 1;
        }
    }
    let samples = (stretches * STRETCH) as u64;
    // Ordered pairs of samples with equal bytes.
    let equal: u64 = counts
        .iter()
        .map(|count| u64::from(*count) * u64::from(count.saturating_sub(1)))
        .sum();
    let even = samples * (samples - 1) / 256;
    equal < even + even / 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(raw: &[u8], effort: Effort) -> Vec<u8> {
        let mut out = b"before".to_vec();
        Encoder::new().encode(raw, effort, &mut out);
        out.split_off(6)
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut output = blake3::Hasher::new().finalize_xof();
        let mut bytes = vec![0; length];
        output.fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_shrinks_is_compressed_and_nothing_else() {
        let text = b"a text that is repeated ".repeat(100);
        for level in [-5, 0, 1, 3, 19] {
            let coded = encode(&text, Effort::Level(level));
            assert_eq!(coded[0], ZSTD);
            assert!(coded.len() < 200);
            assert_eq!(Decoder::new().decode(&coded, 1 << 20), Ok(text.clone()));
        }
        assert_eq!(encode(&text, Effort::None)[0], RAW);
        assert_eq!(encode(&noise(1000), Effort::Level(1))[0], RAW);
        assert_eq!(encode(&noise(100_000), Effort::Level(1))[0], RAW);
        assert_eq!(encode(b"", Effort::Level(1)), [0; 5]);
    }

    #[test]
    fn one_encoder_changes_its_level() {
        let text: Vec<u8> = (0..20_000u32)
            .flat_map(|number| number.wrapping_mul(number).to_string().into_bytes())
            .collect();
        let mut encoder = Encoder::new();
        let lengths = [1, 19, 1].map(|level| {
            let mut out = Vec::new();
            encoder.encode(&text, Effort::Level(level), &mut out);
            let decoded = Decoder::new().decode(&out, 1 << 20);
            assert_eq!(decoded.as_deref(), Ok(&text[..]));
            out.len()
        });
        assert_eq!(lengths[0], lengths[2]);
        assert!(lengths[1] < lengths[0]);
        assert_eq!(lengths[1], encode(&text, Effort::Level(19)).len());
    }

    #[test]
    fn the_probe_tells_noise_from_text() {
        for length in [4096, 10_000, 16_384, 131_072, 1 << 20] {
            assert!(is_incompressible(&noise(length)), "{length}");
            let text: Vec<u8> = noise(length).iter().map(|byte| byte & 0x3f).collect();
            assert!(!is_incompressible(&text), "{length}");
            assert!(!is_incompressible(&vec![0; length]), "{length}");
        }
        assert!(!is_incompressible(&noise(4095)));
        // A page of which one sixth is zero.
        let mut page = noise(16_384);
        page[13_000..].fill(0);
        assert!(!is_incompressible(&page));
        // The output of a compressor.
        let text: Vec<u8> = (0..200_000u32)
            .flat_map(|number| number.wrapping_mul(number).to_string().into_bytes())
            .collect();
        let coded = encode(&text, Effort::Level(3));
        assert!(is_incompressible(&coded));
    }

    #[test]
    fn hostile_lengths_are_refused() {
        let text = b"text ".repeat(1000);
        let whole = encode(&text, Effort::Level(1));
        let mut decoder = Decoder::new();
        assert_eq!(
            decoder.decode(&whole, 4999),
            Err(CodecError::TooLong {
                stated: 5000,
                bound: 4999
            })
        );
        let mut decode = |codec: u8, length: u32, body: &[u8]| {
            let mut coded = vec![codec];
            coded.extend_from_slice(&length.to_le_bytes());
            coded.extend_from_slice(body);
            decoder.decode(&coded, u32::MAX >> 8)
        };
        let body = &whole[5..];
        assert_eq!(decode(ZSTD, 5000, body), Ok(text.clone()));
        assert_eq!(decode(ZSTD, 4999, body), Err(CodecError::Damaged));
        assert_eq!(decode(ZSTD, 5001, body), Err(CodecError::Damaged));
        assert_eq!(decode(ZSTD, 5000, &body[1..]), Err(CodecError::Damaged));
        assert_eq!(
            decode(ZSTD, 5000, &body[..body.len() - 1]),
            Err(CodecError::Damaged)
        );
        assert_eq!(decode(RAW, 3, b"ab"), Err(CodecError::Damaged));
        assert_eq!(decode(RAW, 1, b"ab"), Err(CodecError::Damaged));
        assert_eq!(decode(RAW, 2, b"ab"), Ok(b"ab".to_vec()));
        assert_eq!(decode(7, 2, b"ab"), Err(CodecError::UnknownCodec(7)));
        assert_eq!(decoder.decode(b"abcd", 10), Err(CodecError::Short));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            alphabet in 1..=255u8, level in -3..5i32, compress: bool,
            raw in prop::collection::vec(any::<u8>(), 0..20_000),
        ) {
            let raw: Vec<u8> = raw.iter().map(|byte| byte % alphabet).collect();
            let effort = if compress { Effort::Level(level) } else { Effort::None };
            let coded = encode(&raw, effort);
            prop_assert!(coded.len() <= raw.len() + CODED_HEAD_LEN);
            let decoded = Decoder::new().decode(&coded, raw.len() as u32);
            prop_assert_eq!(decoded.as_deref(), Ok(&raw[..]));
            prop_assert_eq!(Decoder::is_raw(&coded), Decoder::raw_length(&coded, 1 << 20).is_ok());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            mut coded in prop::collection::vec(any::<u8>(), 0..200), zstd: bool,
        ) {
            if let (true, Some(codec)) = (zstd, coded.first_mut()) {
                *codec = ZSTD;
            }
            if let Ok(raw) = Decoder::new().decode(&coded, 1000) {
                prop_assert!(raw.len() <= 1000);
            }
        }

        #[test]
        fn changed_bytes_do_not_panic(at: prop::sample::Index, with: u8) {
            let mut coded = encode(
                &b"some text, some text, and some more text".repeat(20),
                Effort::Level(1),
            );
            let at = at.index(coded.len());
            coded[at] = with;
            let _ = Decoder::new().decode(&coded, 100_000);
        }
    }
}
