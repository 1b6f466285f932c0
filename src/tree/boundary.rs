//! The rule that says where nodes end.
//!
//! This module owns the rule that splits a run of sorted entries into nodes. The end of a node
//! depends only on the node's own entries, in order, from its first. Equal content therefore gives
//! equal nodes whatever the history, and after a change the node ends soon coincide with the old
//! ones again. The rule is part of the format.

/// Cost in bytes below which a node does not end.
pub const MIN_NODE_COST_BYTES: usize = 8 * 1024;

/// Cost in bytes above which an end becomes six times as likely, which narrows the spread of node
/// sizes.
pub const MIDDLE_NODE_COST_BYTES: usize = 32 * 1024;

/// Cost in bytes at which a node ends with the entry that reaches it.
pub const MAX_NODE_COST_BYTES: usize = 64 * 1024;

/// Expected interval between ends up to the middle cost, in bytes.
const EARLY_INTERVAL_BYTES: u64 = 48 * 1024;

/// Expected interval between ends above the middle cost, in bytes.
///
/// With the early interval, the mean cost of a node is 8 + 48 (1 - e^(-24/48)) + 8 e^(-24/48) (1 -
/// e^(-32/8)) = 31.7 KiB. One node in 90 ends only because it reaches the maximum.
const LATE_INTERVAL_BYTES: u64 = 8 * 1024;

/// Most bytes that the two lengths of an entry take in a node, in addition to key and value.
const LENGTHS_BYTES: usize = 5;

/// Returns the cost of an entry in bytes, which is never less than the entry takes in an encoded
/// node.
pub(crate) fn entry_cost_bytes(key_length: usize, value_length: usize) -> usize {
    key_length + value_length + LENGTHS_BYTES
}

/// Whether a node of `level` ends after the entry with `key`.
///
/// The entry costs `entry_bytes`, and the node costs `node_bytes` with it.
pub(crate) fn ends_after(level: u8, key: &[u8], entry_bytes: usize, node_bytes: usize) -> bool {
    if node_bytes < MIN_NODE_COST_BYTES {
        return false;
    }
    if node_bytes >= MAX_NODE_COST_BYTES {
        return true;
    }
    let interval_bytes = if node_bytes <= MIDDLE_NODE_COST_BYTES {
        EARLY_INTERVAL_BYTES
    } else {
        LATE_INTERVAL_BYTES
    };
    boundary_hash(level, key) < (u64::MAX / interval_bytes).saturating_mul(entry_bytes as u64)
}

/// Hashes level and key quickly to 64 bits.
///
/// The hash is not secret. An adversary who chooses keys can make nodes as small or as large as the
/// limits allow, and nothing else.
///
/// The function multiplies each word of eight bytes by the odd constant of splitmix64 (2^64 divided
/// by the golden ratio) and ends with that generator's finalizer. Source: Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, 2014, with Stafford's mix 13.
fn boundary_hash(level: u8, key: &[u8]) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |state: u64, word: u64| {
        let mixed = (state ^ word).wrapping_mul(GOLDEN);
        mixed ^ (mixed >> 32)
    };
    let mut state = fold(key.len() as u64, u64::from(level) + 1);
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        state = fold(state, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state = fold(state, u64::from_le_bytes(last));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::key::Key;

    /// Returns the costs of the nodes that entries of `entry_bytes` each fall into.
    fn node_costs(level: u8, keys: impl Iterator<Item = Key>, entry_bytes: usize) -> Vec<usize> {
        let mut costs = Vec::new();
        let mut cost = 0;
        for key in keys {
            cost += entry_bytes;
            if ends_after(level, key.as_bytes(), entry_bytes, cost) {
                costs.push(cost);
                cost = 0;
            }
        }
        costs
    }

    #[test]
    fn the_rule_is_frozen() {
        assert_eq!(boundary_hash(0, b""), 0x9ef9_ea8d_d217_236e);
        assert_eq!(boundary_hash(0, b"12345678"), 0x11f3_d507_f9cc_1d7a);
        assert_eq!(boundary_hash(1, b"123456789"), 0xa84c_3d70_181d_6dc6);
    }

    #[test]
    fn nodes_have_the_mean_that_the_formula_says_for_every_kind_of_key() {
        let sets: [(&str, Vec<usize>); 4] = [
            (
                "inodes",
                node_costs(0, (0..400_000).map(Key::attributes), 64),
            ),
            (
                "offsets",
                node_costs(0, (0..400_000).map(|n| Key::extent(7, n << 20)), 58),
            ),
            (
                "interior",
                node_costs(1, (0..400_000).map(|n| Key::extent(7, n << 25)), 52),
            ),
            (
                "large",
                node_costs(0, (0..40_000).map(|n| Key::xattr(n, b"user.large")), 4_000),
            ),
        ];
        for (what, costs) in sets {
            let mean = costs.iter().sum::<usize>() / costs.len();
            let forced = costs
                .iter()
                .filter(|cost| **cost >= MAX_NODE_COST_BYTES)
                .count();
            assert!((29_000..36_000).contains(&mean), "{what}: mean {mean}");
            assert!(
                forced * 40 < costs.len(),
                "{what}: {forced} of {} forced",
                costs.len()
            );
        }
    }
}
