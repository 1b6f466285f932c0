//! The choice of the small index objects that a new one absorbs: pure.
//!
//! Owns the rule that keeps the root's list short while each footer is rewritten only a few times.
//! Sizes fall into levels, each four times as large as the one below. A new index object that finds
//! at least three objects of its own level or below absorbs them.

use crate::catalog::IndexRef;

/// The maximum decoded payload of an index object that a seal writes, in bytes, with or without
/// absorbed objects.
pub(super) const LARGEST_BYTES: u64 = 32 << 20;

/// Sizes below this, in bytes, are all of level 0.
const SMALLEST_BYTES: u64 = 64 << 10;

/// Number of objects of one level that become one of the next.
const FAN: u32 = 4;

/// Returns the positions in `current` of the index objects that a new one with a payload of
/// `new_bytes` bytes absorbs.
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

    /// Runs one seal for each of `sizes`. Returns the length of the longest list and the number of
    /// bytes written.
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
