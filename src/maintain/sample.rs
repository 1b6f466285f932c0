//! Selects the packs that a partial check reads. Pure.

use bkfs_chunker::pack::PackName;

/// How much of the data is read.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub enum Sample {
    /// Structure only: all metadata, and header and footer of each data pack.
    #[default]
    Structure,
    /// Every byte.
    All,
    /// About this share of the data packs, chosen by the seed. Equal seeds choose the same packs,
    /// another seed chooses others.
    Percent {
        /// Percent of the data packs: above 0, at most 100.
        percent: f64,
        /// Decides which packs are read.
        seed: u64,
    },
}

impl Sample {
    /// Returns true if this data pack is read whole.
    pub fn takes(&self, pack: PackName) -> bool {
        match *self {
            Self::Structure => false,
            Self::All => true,
            Self::Percent { percent, seed } => {
                let low = u64::from(pack.sequence) << 32 | u64::from(pack.random);
                let mixed = mix(mix(seed ^ mix(pack.session)) ^ low);
                (mixed as f64 / 2f64.powi(64)) * 100.0 < percent
            }
        }
    }

    /// Returns the seed, if the sample depends on it.
    pub fn seed(&self) -> Option<u64> {
        match *self {
            Self::Percent { seed, .. } => Some(seed),
            Self::Structure | Self::All => None,
        }
    }
}

/// Spreads a number over all bits (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
