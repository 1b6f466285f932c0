//! Compressing with contexts that are kept, and the choice between two ways of searching for what repeats.
//!
//! Owns: which parameters of zstd are used for what kind of content. Does not own: the form that the result is put into.
//!
//! Some content shrinks because it repeats (text, programs), some only because it uses few letters (digits, keys, hashes: much of what a database holds). For the
//! second kind a match of six bytes is an accident that costs more than the letters it stands for, and the search for it is most of the time. So a search
//! for longer matches in larger steps is tried beside the usual one now and then, and used as long as it is no worse. Measured in blocks of 128 KiB, one thread of
//! a busy machine: InnoDB pages of random digits 319 MB/s and 0.4175 of their size instead of 257 MB/s and 0.4240; Rust sources 0.2088 instead of 0.1991.

use zstd::bulk;
use zstd::zstd_safe::{CParameter, ParamSwitch, compress_bound};

use super::Effort;

/// The level that is used unless another one is asked for: on database pages level 3 is slower and not smaller.
const AUTO_LEVEL: i32 = 1;

/// Both ways are tried on one of so many blocks: that costs a hundredth or two, and is 8 MiB of a stream of frames.
const BLOCKS_PER_TRIAL: u32 = 64;

/// Blocks of fewer bytes tell too little to be tried both ways.
const TRIAL_LEN_MIN: usize = 64 * 1024;

/// The least match of the coarse search, in bytes: the longest that zstd offers for its fast strategy.
const COARSE_MATCH_LEN: u32 = 7;

/// The step of the coarse search, as zstd counts it (`targetLength` of the fast strategy): every third byte where nothing was found.
const COARSE_STEP: u32 = 2;

/// How matches are searched for.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Search {
    /// As the level says.
    Usual,
    /// Long matches in larger steps; what is left is coded letter by letter.
    Coarse,
}

/// Compresses blocks. Keeps its contexts and its room between calls.
pub(super) struct Compressor {
    usual: bulk::Compressor<'static>,
    level: i32,
    coarse: Option<bulk::Compressor<'static>>,
    search: Search,
    /// Blocks until both ways are tried again.
    until_trial: u32,
    coded: Vec<u8>,
    other: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Compressor(level {}, {:?})",
            self.level, self.search
        )
    }
}

impl Compressor {
    /// A compressor; allocates its contexts at their first use.
    pub fn new() -> Self {
        Self {
            usual: bulk::Compressor::default(),
            level: i32::MIN,
            coarse: None,
            search: Search::Usual,
            until_trial: 0,
            coded: Vec::new(),
            other: Vec::new(),
        }
    }

    /// A zstd frame of `raw`; `None` if nothing is to be tried, or it fails.
    pub fn compress(&mut self, raw: &[u8], effort: Effort) -> Option<&[u8]> {
        match effort {
            Effort::None => return None,
            Effort::Level(level) => self.as_usual(raw, level)?,
            Effort::Auto if raw.len() < TRIAL_LEN_MIN => self.as_usual(raw, AUTO_LEVEL)?,
            Effort::Auto if self.until_trial == 0 => self.try_both(raw)?,
            Effort::Auto => {
                self.until_trial -= 1;
                match self.search {
                    Search::Usual => self.as_usual(raw, AUTO_LEVEL)?,
                    Search::Coarse => self.coarsely(raw)?,
                }
            }
        }
        Some(&self.coded)
    }

    /// Compresses both ways, and decides how the next blocks are searched.
    fn try_both(&mut self, raw: &[u8]) -> Option<()> {
        self.until_trial = BLOCKS_PER_TRIAL - 1;
        self.as_usual(raw, AUTO_LEVEL)?;
        std::mem::swap(&mut self.coded, &mut self.other);
        self.coarsely(raw)?;
        self.search = Search::Coarse;
        if self.other.len() < self.coded.len() {
            self.search = Search::Usual;
            std::mem::swap(&mut self.coded, &mut self.other);
        }
        Some(())
    }

    fn as_usual(&mut self, raw: &[u8], level: i32) -> Option<()> {
        if self.level != level {
            self.usual.set_compression_level(level).ok()?;
            self.level = level;
        }
        into(&mut self.coded, raw, &mut self.usual)
    }

    fn coarsely(&mut self, raw: &[u8]) -> Option<()> {
        let context = match &mut self.coarse {
            Some(context) => context,
            none => none.insert(coarse()?),
        };
        into(&mut self.coded, raw, context)
    }
}

fn coarse() -> Option<bulk::Compressor<'static>> {
    let mut context = bulk::Compressor::new(AUTO_LEVEL).ok()?;
    for parameter in [
        CParameter::MinMatch(COARSE_MATCH_LEN),
        CParameter::TargetLength(COARSE_STEP),
        // Or else zstd takes larger steps for a wish to skip this, too.
        CParameter::LiteralCompressionMode(ParamSwitch::Enable),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    Some(context)
}

fn into(coded: &mut Vec<u8>, raw: &[u8], context: &mut bulk::Compressor<'static>) -> Option<()> {
    coded.clear();
    coded.reserve(compress_bound(raw.len()));
    context.compress_to_buffer(raw, coded).ok()?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, seed: &[u8]) -> Vec<u8> {
        let mut output = blake3::Hasher::new().update(seed).finalize_xof();
        let mut bytes = vec![0; length];
        output.fill(&mut bytes);
        bytes
    }

    /// Evenly distributed digits: few letters, and nothing that repeats on purpose.
    fn digits(length: usize, seed: &[u8]) -> Vec<u8> {
        noise(length, seed)
            .iter()
            .map(|byte| b'0' + byte % 10)
            .collect()
    }

    /// Words of five letters and a space, a thousand of them, in any order: matches of six bytes.
    fn words(length: usize, seed: &[u8]) -> Vec<u8> {
        let list: Vec<_> = noise(5 * 1000, b"list")
            .iter()
            .map(|byte| b'a' + byte % 26)
            .collect();
        let order = noise(length / 6 * 2 + 2, seed);
        let mut bytes = Vec::with_capacity(length + 6);
        for choice in order.chunks_exact(2) {
            let word = 5 * (usize::from(choice[0]) << 8 | usize::from(choice[1])) % 5000;
            bytes.extend_from_slice(&list[word..word + 5]);
            bytes.push(b' ');
        }
        bytes.truncate(length);
        bytes
    }

    fn decompressed(coded: &[u8], length: usize) -> Vec<u8> {
        bulk::decompress(coded, length).expect("it is a frame")
    }

    #[test]
    fn digits_are_searched_coarsely_and_words_as_usual() {
        let (digits, words) = (digits(131_072, b"a"), words(131_072, b"a"));
        for (raw, search) in [(&digits, Search::Coarse), (&words, Search::Usual)] {
            let mut compressor = Compressor::new();
            let tried = compressor.compress(raw, Effort::Auto).unwrap().to_vec();
            assert_eq!(decompressed(&tried, raw.len()), *raw);
            assert_eq!(compressor.search, search);
            let mut usual = Compressor::new();
            let usual = usual.compress(raw, Effort::Level(AUTO_LEVEL)).unwrap();
            assert!(tried.len() <= usual.len());
            assert_eq!(tried == usual, search == Search::Usual);
            let next = compressor.compress(raw, Effort::Auto).unwrap();
            assert!(
                next == tried,
                "the next block is searched in the way that won"
            );
        }
    }

    #[test]
    fn another_kind_of_content_is_noticed_at_the_next_trial() {
        let mut compressor = Compressor::new();
        compressor
            .compress(&digits(131_072, b"b"), Effort::Auto)
            .unwrap();
        let words = words(131_072, b"b");
        for number in 1..BLOCKS_PER_TRIAL {
            let coded = compressor.compress(&words, Effort::Auto).unwrap();
            assert_eq!(decompressed(coded, words.len()), words);
            assert_eq!(compressor.search, Search::Coarse, "{number}");
        }
        compressor.compress(&words, Effort::Auto).unwrap();
        assert_eq!(compressor.search, Search::Usual);
    }

    #[test]
    fn small_blocks_and_levels_by_hand_neither_count_nor_change() {
        let (long, short) = (digits(131_072, b"c"), words(TRIAL_LEN_MIN - 1, b"c"));
        let mut compressor = Compressor::new();
        compressor.compress(&long, Effort::Auto).unwrap();
        for _ in 0..BLOCKS_PER_TRIAL {
            let by_hand = compressor
                .compress(&short, Effort::Level(1))
                .unwrap()
                .to_vec();
            assert!(compressor.compress(&short, Effort::Auto).unwrap() == by_hand);
        }
        assert_eq!(compressor.search, Search::Coarse);
        assert_eq!(compressor.until_trial, BLOCKS_PER_TRIAL - 1);
        assert_eq!(compressor.compress(&long, Effort::None), None);
    }
}
