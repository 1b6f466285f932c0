//! Compression: zstd with contexts that are kept, and a probe for what cannot be compressed.
//!
//! Owns the coded form `codec u8 ‖ raw length u32 ‖ coded bytes`, which frames, footers and index objects share.
//! Knows nothing of what the bytes mean.

use zstd::bulk;

use compressor::Compressor;

mod compressor;

/// Length of what precedes the coded bytes.
pub const CODED_HEAD_LEN: usize = 5;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// The bytes are not what an encoder made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// Not even the head is there.
    #[error("cut short")]
    Short,
    /// Coded in a way that this program does not know.
    #[error("unknown codec {0}")]
    UnknownCodec(u8),
    /// States a longer content than may be here.
    #[error("states {stated} bytes, where at most {bound} may be")]
    TooLong {
        /// The length that is stated, in bytes.
        stated: u32,
        /// The bound, in bytes.
        bound: u32,
    },
    /// Does not decode to the stated length.
    #[error("does not decode")]
    Damaged,
}

/// How much to try.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Effort {
    /// Do not compress.
    None,
    /// zstd as suits the content and the balance, unless the probe says that it is of no use.
    Auto(Balance),
    /// zstd at this level, unless the probe says that it is of no use.
    Level(i32),
}

/// Where those who compress stand between the writers and the store.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Balance {
    /// Writers wait for them: a few bytes more are given for time.
    Behind,
    /// Nobody waits for them, nor they for anybody: as fast as the content allows without storing more.
    Even,
    /// They wait for the store: time is given for fewer bytes.
    Ahead,
}

impl Balance {
    const COUNT: usize = 3;
}

/// The coded form of something, not yet put anywhere.
#[derive(Copy, Clone, Debug)]
pub struct Coded<'a> {
    codec: u8,
    raw_length: u32,
    body: &'a [u8],
}

impl Coded<'_> {
    /// Its length, in bytes.
    pub fn length(&self) -> usize {
        CODED_HEAD_LEN + self.body.len()
    }

    /// Appends it to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.length());
        out.push(self.codec);
        out.extend_from_slice(&self.raw_length.to_le_bytes());
        out.extend_from_slice(self.body);
    }
}

/// Compresses. One per worker: keeps its contexts and its room between calls.
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
    /// An encoder; allocates its contexts at their first use.
    pub fn new() -> Self {
        Self {
            compressor: Compressor::new(),
        }
    }

    /// The coded form of `raw`: compressed if that makes it smaller by a thirty-second at least.
    ///
    /// # Panics
    /// If `raw` has 4 GiB or more; all callers have far lower bounds.
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

    /// Appends what [`Encoder::code`] makes of `raw` to `out`.
    ///
    /// # Panics
    /// As [`Encoder::code`].
    pub fn encode(&mut self, raw: &[u8], effort: Effort, out: &mut Vec<u8>) {
        self.code(raw, effort).append_to(out);
    }

    /// `None` if it is not worth trying, or fails.
    fn compress(&mut self, raw: &[u8], effort: Effort) -> Option<&[u8]> {
        if raw.len() < 32 || effort == Effort::None || is_incompressible(raw) {
            return None;
        }
        self.compressor.compress(raw, effort)
    }
}

/// Decompresses. One per worker: keeps its context between calls.
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
    /// A decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the coded bytes are the raw ones.
    pub fn is_raw(coded: &[u8]) -> bool {
        coded.first() == Some(&RAW)
    }

    /// The length of the content, if it is not compressed and is as long as it says, at most `bound` bytes.
    pub fn raw_length(coded: &[u8], bound: u32) -> Result<usize, CodecError> {
        match split(coded, bound)? {
            (RAW, length, body) if body.len() == length => Ok(length),
            _ => Err(CodecError::Damaged),
        }
    }

    /// Decodes what [`Encoder::encode`] made, if the content has at most `bound` bytes. Never allocates more than that.
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

/// Takes the head off a coded form: codec, raw length and coded bytes.
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

/// Samples that the probe looks at, at most.
const PROBE_SAMPLES: usize = 4096;
/// Fewer bytes than this are not probed: a wrong answer saves nothing.
const PROBE_LEN_MIN: usize = 4096;

/// Whether `bytes` look as evenly distributed as compressed or encrypted bytes do. Cheap: looks at 4096 bytes at most,
/// in 64 stretches of 64.
///
/// Counts pairs of equal bytes among the samples. Of n evenly distributed bytes n(n-1)/2/256 pairs are equal, give or
/// take a hundredth for n = 4096; text has ten times as many, and the output of fast compressors a few hundredths more.
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
        // A page of which a sixth is empty.
        let mut page = noise(16_384);
        page[13_000..].fill(0);
        assert!(!is_incompressible(&page));
        // What compressors leave.
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
        fn arbitrary_bytes_do_not_panic(mut coded in prop::collection::vec(any::<u8>(), 0..200), zstd: bool) {
            if let (true, Some(codec)) = (zstd, coded.first_mut()) {
                *codec = ZSTD;
            }
            if let Ok(raw) = Decoder::new().decode(&coded, 1000) {
                prop_assert!(raw.len() <= 1000);
            }
        }

        #[test]
        fn changed_bytes_do_not_panic(at: prop::sample::Index, with: u8) {
            let mut coded = encode(&b"some text, some text, and some more text".repeat(20), Effort::Level(1));
            let at = at.index(coded.len());
            coded[at] = with;
            let _ = Decoder::new().decode(&coded, 100_000);
        }
    }
}
