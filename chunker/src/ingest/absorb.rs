//! Which small index objects a new one takes in: pure.
//!
//! Owns the rule that keeps the root's list short while each footer is rewritten only a few times: sizes fall into levels, each four times the one below, and
//! whoever finds three of its own level or below takes them in.

use crate::catalog::IndexRef;

/// The largest decoded payload that absorbing makes. A larger object holds the footers of one seal alone.
pub(super) const LARGEST_BYTES: u64 = 32 << 20;

/// Everything below this is of one level.
const SMALLEST_BYTES: u64 = 64 << 10;

/// How many of one level become one of the next.
const FAN: u32 = 4;

/// Which of the list (by position) an index object with `new_bytes` of its own takes in.
pub(super) fn choose(current: &[IndexRef], new_bytes: u64) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..current.len()).collect();
    rest.sort_by_key(|&position| current[position].bytes);
    let mut chosen = Vec::new();
    let mut merged = new_bytes;
    loop {
        let alike =
            rest.partition_point(|&position| level(current[position].bytes) <= level(merged));
        if alike < FAN as usize - 1 {
            break;
        }
        let mut sum = merged;
        let fitting = rest[..alike]
            .iter()
            .take_while(|&&position| {
                sum = sum.saturating_add(current[position].bytes);
                sum <= LARGEST_BYTES
            })
            .count();
        if fitting == 0 {
            break;
        }
        let taken = rest.drain(..fitting);
        merged += taken
            .as_slice()
            .iter()
            .map(|&position| current[position].bytes)
            .sum::<u64>();
        chosen.extend(taken);
    }
    chosen.sort_unstable();
    chosen
}

fn level(bytes: u64) -> u32 {
    match (bytes / SMALLEST_BYTES).checked_ilog(u64::from(FAN)) {
        None => 0,
        Some(power) => power + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackName;

    fn reference(bytes: u64) -> IndexRef {
        let name = PackName {
            session: 1,
            sequence: 1,
            random: 1,
        };
        IndexRef {
            name,
            packs: 1,
            blobs: 1,
            bytes,
        }
    }

    /// Seals `sizes` one after the other; returns the longest list and all bytes written.
    fn drive(sizes: impl Iterator<Item = u64>) -> (usize, u64) {
        let mut list: Vec<IndexRef> = Vec::new();
        let (mut longest, mut written) = (0, 0);
        for size in sizes {
            let chosen = choose(&list, size);
            let mut bytes = size;
            for &position in chosen.iter().rev() {
                bytes += list.remove(position).bytes;
            }
            list.push(reference(bytes));
            longest = longest.max(list.len());
            written += bytes;
        }
        (longest, written)
    }

    #[test]
    fn levels_grow_by_four() {
        assert_eq!(
            [0, 65_535, 65_536, 262_143, 262_144].map(level),
            [0, 0, 1, 1, 2]
        );
    }

    #[test]
    fn the_list_stays_short_and_little_is_rewritten() {
        let (longest, written) = drive((0..10_000).map(|_| 2_000));
        assert!(longest <= 24, "{longest} for small seals");
        assert!(written <= 20_000_000 * 40, "{written}");
        let (longest, _) = drive((0..1_000).map(|n| 1 + (n * 7919) % 900_000));
        assert!(longest <= 48, "{longest} for mixed seals");
        let (longest, _) = drive((0..40).map(|_| LARGEST_BYTES));
        assert_eq!(longest, 40, "full ones stay as they are");
    }

    #[test]
    fn nothing_grows_past_the_largest() {
        let list: Vec<IndexRef> = (0..20).map(|_| reference(10 << 20)).collect();
        let chosen = choose(&list, 10 << 20);
        assert_eq!(chosen.len(), 2);
        assert!(choose(&list, LARGEST_BYTES).is_empty());
    }
}
