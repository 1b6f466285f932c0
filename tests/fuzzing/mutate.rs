//! Generated inputs: mutations of a corpus, and random bytes.
//!
//! This module owns the generator. An input follows from the corpus and a number alone: it reads no
//! clock and no state.

use crate::cbor::{self, Item};

/// The longest input, in bytes.
pub const INPUT_MAX: usize = 64 << 10;

/// One of this many inputs is random bytes.
const RANDOM_ONE_IN: u64 = 24;

/// The most mutations of one input.
const MUTATIONS_MAX: u64 = 6;

/// The most items among which those of one array are counted.
const COUNTED_MAX: usize = 512;

/// A generator of numbers (splitmix64).
pub struct Random(u64);

impl Random {
    /// Returns the generator for a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// Returns a number below `count`; 0 if that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        match count {
            0 => 0,
            count => (self.number() % count as u64) as usize,
        }
    }

    /// Whether an event happens that happens once in `count` times.
    fn one_in(&mut self, count: u64) -> bool {
        self.number().is_multiple_of(count)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// Returns the input with this seed.
pub fn input(corpus: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    if corpus.is_empty() || random.one_in(RANDOM_ONE_IN) {
        let most = 1 << random.below(10);
        let length = random.below(most);
        return random.bytes(length);
    }
    let mut input = random.of(corpus).clone();
    for _ in 0..=random.number() % MUTATIONS_MAX {
        mutate(&mut input, corpus, &mut random);
        input.truncate(INPUT_MAX);
    }
    input
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    match random.below(14) {
        0 | 1 => flip(input, random),
        2 => {
            let at = random.below(input.len());
            if let Some(byte) = input.get_mut(at) {
                *byte = *random.of(&[
                    0, 1, 0x7f, 0x80, 0xff, b'/', b'=', b'%', b'\\', b'"', b'@', b'*',
                ]);
            }
        }
        3 => input.truncate(random.below(input.len() + 1)),
        4 => {
            let count = random.below(16) + 1;
            let more = random.bytes(count);
            insert(input, random, &more);
        }
        5 => {
            let range = range(input.len(), random);
            input.drain(range);
        }
        6 => {
            let range = range(input.len(), random);
            let copy = input[range].to_vec();
            let times = 1 + random.below(4);
            insert(input, random, &copy.repeat(times));
        }
        7 => {
            let other = random.of(corpus);
            let range = range(other.len(), random);
            let part = &other[range];
            splice(input, random, part);
        }
        8 | 9 => integer(input, random),
        10 => {
            let number = varint(extreme(random));
            splice(input, random, &number);
        }
        _ => structured(input, corpus, random),
    }
}

fn flip(input: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(input.len());
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
}

fn range(length: usize, random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(length + 1);
    let most = (length - start).min(1 << random.below(12));
    start..start + random.below(most + 1)
}

fn insert(input: &mut Vec<u8>, random: &mut Random, bytes: &[u8]) {
    let at = random.below(input.len() + 1);
    input.splice(at..at, bytes.iter().copied());
}

/// Puts bytes in place of some others.
fn splice(input: &mut Vec<u8>, random: &mut Random, bytes: &[u8]) {
    let start = random.below(input.len() + 1);
    let end = match random.one_in(2) {
        true => (start + bytes.len()).min(input.len()),
        false => start + random.below((input.len() - start).min(32) + 1),
    };
    input.splice(start..end, bytes.iter().copied());
}

/// Returns a number at an edge: a power of two, one less or one more, or a small one.
fn extreme(random: &mut Random) -> u64 {
    let power = 1_u64 << random.below(64);
    *random.of(&[
        0,
        1,
        2,
        power,
        power - 1,
        power + 1,
        u64::MAX,
        i64::MAX as u64,
        u64::MAX - 1,
    ])
}

/// Writes an extreme number of 1, 2, 4 or 8 bytes, of either byte order, or adds to the one there.
fn integer(input: &mut [u8], random: &mut Random) {
    let length = *random.of(&[1, 2, 4, 8]);
    if input.len() < length {
        return;
    }
    let at = random.below(input.len() - length + 1);
    let field = &mut input[at..at + length];
    let is_big = random.one_in(2);
    let mut number = extreme(random);
    if random.one_in(3) {
        let old = field
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        number = old.wrapping_add(*random.of(&[1, u64::MAX, 16, 256]));
    }
    let mut bytes = number.to_le_bytes()[..length].to_vec();
    if is_big {
        bytes.reverse();
    }
    field.copy_from_slice(&bytes);
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Changes an item of CBOR; any bytes if the input is not CBOR.
fn structured(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let start = match random.one_in(4) {
        true => random.below(input.len()),
        false => 0,
    };
    let items = cbor::items(input, start);
    if items.is_empty() {
        return splice(input, random, &[0xff, 0xff, 0xff, 0xff]);
    }
    let item = random.of(&items).clone();
    let body = input[item.whole.clone()].to_vec();
    match random.below(7) {
        0 => repeat(input, &items, &item, random),
        1 => {
            let deep = [0x81, 0x9f, 0xbf, 0xc1, 0xa1];
            let nested = vec![*random.of(&deep); 1 << random.below(12)];
            input.splice(item.whole, nested);
        }
        2 => {
            let head = cbor::head(item.major, extreme(random));
            input.splice(item.whole.start..item.head_end, head);
        }
        3 => {
            let major = random.below(8) as u8;
            let head = cbor::head(major, extreme(random));
            input.splice(item.whole, head);
        }
        4 => {
            let other = random.of(corpus);
            let others = cbor::items(other, 0);
            let replacement = match others.is_empty() {
                true => vec![0xf6],
                false => other[random.of(&others).whole.clone()].to_vec(),
            };
            input.splice(item.whole, replacement);
        }
        5 => {
            // The same item, of unstated length.
            let mut open = vec![item.major << 5 | 0x1f];
            open.extend_from_slice(&input[item.head_end..item.whole.end]);
            open.push(0xff);
            input.splice(item.whole, open);
        }
        _ => {
            let other = random.of(&items).whole.clone();
            input.splice(other, body);
        }
    }
}

/// Repeats an item, and raises the number of items in the array or map around it.
fn repeat(input: &mut Vec<u8>, items: &[Item], item: &Item, random: &mut Random) {
    let most = 1 << random.below(10);
    let times = 1 + random.below(most);
    let times = times.min(1 + INPUT_MAX / item.whole.len());
    let around = items.iter().find(|other| {
        matches!(other.major, 4 | 5)
            && other.head_end <= item.whole.start
            && item.whole.end <= other.whole.end
    });
    let copy = input[item.whole.clone()].repeat(times);
    input.splice(item.whole.end..item.whole.end, copy);
    if let Some(around) = around.filter(|_| items.len() <= COUNTED_MAX) {
        let count = items
            .iter()
            .filter(|other| is_direct(items, around, other))
            .count();
        let count = match around.major {
            5 => (count + times) / 2,
            _ => count + times,
        };
        let head = cbor::head(around.major, count as u64);
        input.splice(around.whole.start..around.head_end, head);
    }
}

/// Whether `item` lies in `around`, and in no other array or map inside it.
fn is_direct(items: &[Item], around: &Item, item: &Item) -> bool {
    let lies_in = |outer: &Item, inner: &Item| {
        outer.head_end <= inner.whole.start && inner.whole.end <= outer.whole.end && outer != inner
    };
    let is_between = |other: &Item| {
        matches!(other.major, 4..=6) && lies_in(around, other) && lies_in(other, item)
    };
    lies_in(around, item) && !items.iter().any(is_between)
}

#[test]
fn an_input_follows_from_its_seed() {
    let corpus = vec![b"an example".to_vec(), vec![0xa1, 0x00, 0x81, 0x01]];
    let inputs: Vec<_> = (0..1000).map(|seed| input(&corpus, seed)).collect();
    for (seed, known) in inputs.iter().enumerate() {
        assert_eq!(input(&corpus, seed as u64), *known);
        assert!(known.len() <= INPUT_MAX);
    }
    let different: std::collections::BTreeSet<_> = inputs.iter().collect();
    assert!(different.len() > 800, "{}", different.len());
}

#[test]
fn a_repeated_item_is_counted() {
    // {0: [1]}
    let mut input = vec![0xa1, 0x00, 0x81, 0x01];
    let items = cbor::items(&input, 0);
    let one = items
        .iter()
        .find(|item| item.whole == (3..4))
        .expect("there");
    repeat(&mut input, &items, &one.clone(), &mut Random::new(1));
    assert!(input.len() > 4);
    assert_eq!(
        cbor::items(&input, 0).last().expect("CBOR").whole,
        0..input.len()
    );
}
