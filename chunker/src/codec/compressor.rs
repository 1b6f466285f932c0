//! Compressing with contexts that are kept, and the choice between two ways of searching for what repeats.
//!
//! Owns: which parameters of zstd are used for what kind of content, and at which balance. Does not own: the form that the result is put into.
//!
//! Some content shrinks because it repeats (text, programs), some only because it uses few letters (digits, keys, hashes: much of what a database holds). For the
//! second kind a match of six bytes is an accident that costs more than the letters it stands for, and the search for it is most of the time. So a search
//! for longer matches in larger steps is tried beside the usual one now and then, and used as long as it is no worse; or hardly worse, while writers wait for it.
//! Measured in blocks of 128 KiB, one thread (megabytes a second, and what is left of the size): InnoDB pages of random digits 387 and 0.4375 as usual, 514 and
//! 0.4323 in steps of three bytes, 641 and 0.4495 in steps of seven; C and Rust sources 379 and 0.2209 at level 1, 319 and 0.2083 at level 3.

use zstd::bulk;
use zstd::zstd_safe::{CParameter, ParamSwitch, compress_bound};

use super::{Balance, Effort};

/// Both ways are tried on one of so many blocks: that costs about a hundredth, and is 16 MiB of a stream of frames.
const BLOCKS_PER_TRIAL: u32 = 128;

/// Blocks of fewer bytes tell too little to be tried both ways.
const TRIAL_LEN_MIN: usize = 64 * 1024;

/// The least match of the coarse search, in bytes: the longest that zstd offers for its fast strategy.
const COARSE_MATCH_LEN: u32 = 7;

/// Places that the coarse search remembers, as a power of two: half of what level 1 does. They stay in the fastest cache, and hardly a match is lost.
const COARSE_HASH_LOG: u32 = 12;

/// How matches are searched for.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Search {
    /// As a level says.
    Usual,
    /// Long matches in larger steps; what is left is coded letter by letter.
    Coarse,
}

/// What the two ways are at a balance, and what decides between them.
struct Terms {
    /// The level of the usual search.
    level: i32,
    /// The step of the coarse search where nothing was found, as zstd counts it (`targetLength` of the fast strategy): one less than bytes.
    step: u32,
    /// The coarse search may store this part more: one in so many.
    waste: Option<usize>,
}

impl Terms {
    const fn of(balance: Balance) -> Self {
        let (level, step, waste) = match balance {
            Balance::Behind => (1, 6, Some(16)),
            // On database pages level 3 is slower and not smaller.
            Balance::Even => (1, 2, None),
            Balance::Ahead => (3, 2, None),
        };
        Self { level, step, waste }
    }

    /// The better way for a block that takes so many bytes in each.
    fn choose(&self, usual: usize, coarse: usize) -> Search {
        match coarse <= usual + self.waste.map_or(0, |part| usual / part) {
            true => Search::Coarse,
            false => Search::Usual,
        }
    }
}

/// What the last trial at a balance said.
#[derive(Copy, Clone, Debug)]
struct Choice {
    search: Search,
    /// Blocks until both ways are tried again.
    until_trial: u32,
}

/// Compresses blocks. Keeps its contexts and its room between calls.
pub(super) struct Compressor {
    usual: bulk::Compressor<'static>,
    level: i32,
    coarse: Option<bulk::Compressor<'static>>,
    step: u32,
    choices: [Choice; Balance::COUNT],
    coded: Vec<u8>,
    other: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Compressor(level {}, {:?})",
            self.level, self.choices
        )
    }
}

impl Compressor {
    /// A compressor; allocates its contexts at their first use.
    pub fn new() -> Self {
        let first = Choice {
            search: Search::Usual,
            until_trial: 0,
        };
        Self {
            usual: bulk::Compressor::default(),
            level: i32::MIN,
            coarse: None,
            step: 0,
            choices: [first; Balance::COUNT],
            coded: Vec::new(),
            other: Vec::new(),
        }
    }

    /// A zstd frame of `raw`; `None` if nothing is to be tried, or it fails.
    pub fn compress(&mut self, raw: &[u8], effort: Effort) -> Option<&[u8]> {
        match effort {
            Effort::None => return None,
            Effort::Level(level) => self.as_usual(raw, level)?,
            Effort::Auto(balance) => self.balanced(raw, balance)?,
        }
        Some(&self.coded)
    }

    fn balanced(&mut self, raw: &[u8], balance: Balance) -> Option<()> {
        let terms = Terms::of(balance);
        if raw.len() < TRIAL_LEN_MIN {
            return self.as_usual(raw, terms.level);
        }
        let choice = &mut self.choices[balance as usize];
        if choice.until_trial == 0 {
            let search = self.try_both(raw, &terms)?;
            self.choices[balance as usize] = Choice {
                search,
                until_trial: BLOCKS_PER_TRIAL - 1,
            };
            return Some(());
        }
        choice.until_trial -= 1;
        match choice.search {
            Search::Usual => self.as_usual(raw, terms.level),
            Search::Coarse => self.coarsely(raw, terms.step),
        }
    }

    /// Compresses both ways and keeps the better one: how the next blocks are searched.
    fn try_both(&mut self, raw: &[u8], terms: &Terms) -> Option<Search> {
        self.as_usual(raw, terms.level)?;
        std::mem::swap(&mut self.coded, &mut self.other);
        self.coarsely(raw, terms.step)?;
        // It is there already: no reason to take the larger one.
        if self.other.len() < self.coded.len() {
            std::mem::swap(&mut self.coded, &mut self.other);
            return Some(terms.choose(self.coded.len(), self.other.len()));
        }
        Some(Search::Coarse)
    }

    fn as_usual(&mut self, raw: &[u8], level: i32) -> Option<()> {
        if self.level != level {
            self.usual.set_compression_level(level).ok()?;
            self.level = level;
        }
        into(&mut self.coded, raw, &mut self.usual)
    }

    fn coarsely(&mut self, raw: &[u8], step: u32) -> Option<()> {
        let context = match &mut self.coarse {
            Some(context) => context,
            none => none.insert(coarse()?),
        };
        if self.step != step {
            context.set_parameter(CParameter::TargetLength(step)).ok()?;
            self.step = step;
        }
        into(&mut self.coded, raw, context)
    }
}

fn coarse() -> Option<bulk::Compressor<'static>> {
    let mut context = bulk::Compressor::new(1).ok()?;
    for parameter in [
        CParameter::MinMatch(COARSE_MATCH_LEN),
        CParameter::HashLog(COARSE_HASH_LOG),
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
            for (balance, level) in [
                (Balance::Behind, 1),
                (Balance::Even, 1),
                (Balance::Ahead, 3),
            ] {
                let mut compressor = Compressor::new();
                let effort = Effort::Auto(balance);
                let tried = compressor.compress(raw, effort).unwrap().to_vec();
                assert_eq!(decompressed(&tried, raw.len()), *raw);
                assert_eq!(compressor.choices[balance as usize].search, search);
                let mut usual = Compressor::new();
                let usual = usual.compress(raw, Effort::Level(level)).unwrap();
                assert!(tried.len() <= usual.len());
                assert_eq!(tried == usual, search == Search::Usual);
                let next = compressor.compress(raw, effort).unwrap();
                assert!(
                    next == tried,
                    "the next block is searched in the way that won"
                );
            }
        }
    }

    #[test]
    fn bytes_are_given_for_time_only_while_writers_wait() {
        let chosen = |balance, coarse| Terms::of(balance).choose(3200, coarse);
        for balance in [Balance::Even, Balance::Ahead] {
            assert_eq!(chosen(balance, 3200), Search::Coarse);
            assert_eq!(chosen(balance, 3201), Search::Usual);
        }
        assert_eq!(chosen(Balance::Behind, 3400), Search::Coarse);
        assert_eq!(chosen(Balance::Behind, 3401), Search::Usual);
    }

    #[test]
    fn each_balance_has_its_own_trials_and_steps() {
        let balances = [Balance::Behind, Balance::Even, Balance::Ahead];
        // Rows of uneven lengths: a step of seven bytes misses more of their beginnings than one of three.
        let rows: Vec<u8> = noise(262_144, b"d")
            .chunks(64)
            .flat_map(|row| {
                let digits = row[usize::from(row[0] % 32)..].iter();
                let digits = digits.map(|byte| b'0' + byte % 10);
                b"a row: ".iter().copied().chain(digits)
            })
            .take(131_072)
            .collect();
        let mut compressor = Compressor::new();
        let mut coded = |balance| {
            let coded = compressor.compress(&rows, Effort::Auto(balance)).unwrap();
            assert_eq!(decompressed(coded, rows.len()), rows);
            coded.to_vec()
        };
        // The first is tried both ways, and the better result is taken.
        let _ = balances.map(&mut coded);
        let second = balances.map(&mut coded);
        assert!(second[0].len() > second[1].len());
        assert_eq!(second[1], second[2]);
        assert!(balances.map(&mut coded) == second);
        for balance in balances {
            let choice = compressor.choices[balance as usize];
            assert_eq!(choice.search, Search::Coarse);
            assert_eq!(choice.until_trial, BLOCKS_PER_TRIAL - 3);
        }
    }

    #[test]
    fn another_kind_of_content_is_noticed_at_the_next_trial() {
        let even = Effort::Auto(Balance::Even);
        let mut compressor = Compressor::new();
        compressor.compress(&digits(131_072, b"b"), even).unwrap();
        let words = words(131_072, b"b");
        for number in 1..BLOCKS_PER_TRIAL {
            let coded = compressor.compress(&words, even).unwrap();
            assert_eq!(decompressed(coded, words.len()), words);
            let search = compressor.choices[Balance::Even as usize].search;
            assert_eq!(search, Search::Coarse, "{number}");
        }
        compressor.compress(&words, even).unwrap();
        let search = compressor.choices[Balance::Even as usize].search;
        assert_eq!(search, Search::Usual);
    }

    #[test]
    fn small_blocks_and_levels_by_hand_neither_count_nor_change() {
        let even = Effort::Auto(Balance::Even);
        let (long, short) = (digits(131_072, b"c"), words(TRIAL_LEN_MIN - 1, b"c"));
        let mut compressor = Compressor::new();
        compressor.compress(&long, even).unwrap();
        for _ in 0..BLOCKS_PER_TRIAL {
            let by_hand = compressor
                .compress(&short, Effort::Level(1))
                .unwrap()
                .to_vec();
            assert!(compressor.compress(&short, even).unwrap() == by_hand);
        }
        let choice = compressor.choices[Balance::Even as usize];
        assert_eq!(choice.search, Search::Coarse);
        assert_eq!(choice.until_trial, BLOCKS_PER_TRIAL - 1);
        assert_eq!(compressor.compress(&long, Effort::None), None);
    }
}
