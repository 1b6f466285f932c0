//! Compression with reusable zstd contexts, and the choice between two match searches.
//!
//! Owns which zstd parameters are used for which kind of content at which balance. Does not own the
//! coded form that holds the result.
//!
//! Some content shrinks because it repeats (text, programs). Other content shrinks only because it
//! uses few byte values (digits, keys, hashes), as much of a database does. In the second kind, a
//! match of six bytes is an accident: it costs more than the literals that it replaces, and the
//! search for it takes most of the time. So the compressor occasionally tries a search for longer
//! matches in larger steps as well as the usual one. It uses that search for the next blocks if the
//! result is no larger. While writers wait for the workers, a slightly larger result is accepted.
//!
//! Measured in blocks of 128 KiB on one thread:
//!
//! | content | search | MB/s | compressed size / raw size |
//! |---|---|---|---|
//! | InnoDB pages of random digits | usual | 387 | 0.4375 |
//! | InnoDB pages of random digits | coarse, steps of 3 bytes | 514 | 0.4323 |
//! | InnoDB pages of random digits | coarse, steps of 7 bytes | 641 | 0.4495 |
//! | C and Rust sources | usual, level 1 | 379 | 0.2209 |
//! | C and Rust sources | usual, level 3 | 319 | 0.2083 |

use zstd::bulk;
use zstd::zstd_safe::{CParameter, ParamSwitch, compress_bound};

use super::effort::{Balance, Effort};

/// One of this many blocks is compressed with both searches. That costs about 1 % of the time, and
/// is one trial for each 16 MiB in frames of 128 KiB.
const BLOCKS_PER_TRIAL: u32 = 128;

/// Blocks of fewer bytes say too little about the content to be used for a trial.
const TRIAL_LEN_MIN: usize = 64 * 1024;

/// The shortest match of the coarse search, in bytes: the largest value that zstd offers for its
/// fast strategy.
const COARSE_MATCH_LEN: u32 = 7;

/// Base-2 logarithm of the number of hash table entries of the coarse search: half as many entries
/// as level 1 uses. The table stays in the fastest processor cache, and hardly any match is lost.
const COARSE_HASH_LOG: u32 = 12;

/// How matches are searched for.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Search {
    /// As the zstd level defines it.
    Usual,
    /// Long matches in larger steps. The bytes between the matches are entropy-coded literals.
    Coarse,
}

/// Parameters of the two searches at a balance, and the rule that chooses between them.
struct Terms {
    /// The zstd level of the usual search.
    level: i32,
    /// The step of the coarse search where it finds no match, in zstd's unit (`targetLength` of the
    /// fast strategy): one less than the number of bytes.
    step: u32,
    /// How much larger the coarse result may be: the usual length divided by this number. `None`
    /// allows no larger result.
    waste: Option<usize>,
}

impl Terms {
    const fn of(balance: Balance) -> Self {
        let (level, step, waste) = match balance {
            Balance::Behind => (1, 6, Some(16)),
            // On database pages level 3 is slower and yields no smaller result.
            Balance::Even => (1, 2, None),
            Balance::Ahead => (3, 2, None),
        };
        Self { level, step, waste }
    }

    /// Returns the better search for a block, given the compressed length of each search in bytes.
    fn choose(&self, usual: usize, coarse: usize) -> Search {
        match coarse <= usual + self.waste.map_or(0, |part| usual / part) {
            true => Search::Coarse,
            false => Search::Usual,
        }
    }
}

/// The result of the last trial at a balance.
#[derive(Copy, Clone, Debug)]
struct Choice {
    search: Search,
    /// Blocks that remain until the next trial of both searches.
    until_trial: u32,
}

/// Compresses blocks. Reuses its contexts and buffers for each call.
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
    /// Returns a compressor. It allocates its contexts at their first use.
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

    /// Returns a zstd frame of `raw`. `None` if `effort` is [`Effort::None`], or if zstd fails.
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

    /// Compresses with both searches and keeps the smaller result. Returns the search to use for
    /// the next blocks.
    fn try_both(&mut self, raw: &[u8], terms: &Terms) -> Option<Search> {
        self.as_usual(raw, terms.level)?;
        std::mem::swap(&mut self.coded, &mut self.other);
        self.coarsely(raw, terms.step)?;
        // Both results exist already, so the smaller one is taken, whatever the rule chooses.
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
        // Otherwise zstd takes larger steps as a request to leave literals uncompressed, too.
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

    /// Evenly distributed digits: few byte values, and repetition only by chance.
    fn digits(length: usize, seed: &[u8]) -> Vec<u8> {
        noise(length, seed)
            .iter()
            .map(|byte| b'0' + byte % 10)
            .collect()
    }

    /// One thousand words of five letters and a space, in random order: matches of six bytes.
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
        // Rows of uneven lengths: steps of seven bytes miss more of the row starts than steps of
        // three.
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
        // The first block at each balance is a trial: the smaller of the two results is taken.
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
