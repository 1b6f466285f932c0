//! The settings of the machines in a world: their mount options, and the sizes of memory, packs and
//! spool.

use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;

/// The product's default of `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The product's default of `drain=`.
pub const DRAIN: Duration = Duration::from_secs(600);

/// A memory budget of a mount, in bytes, that is so small that writers have to wait.
const LITTLE_MEMORY_BYTES: u64 = 4 << 20;

/// The product's default of `memory=`, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

/// A size at which packs are closed, in bytes, so that small files make many packs.
const SMALL_PACK_BYTES: u64 = 128 << 10;

/// A smaller size, in bytes, so that the metadata of one commit makes many packs, which arrive in
/// any order.
const TINY_PACK_BYTES: u64 = 8 << 10;

/// The product's size of packs, in bytes.
const PACK_BYTES: u64 = 16 << 20;

/// The size of a spool that is full at times, in bytes.
const SMALL_SPOOL_BYTES: u64 = 2 << 20;

/// The size of a spool that never is: the product's default of `spool_size=`, in bytes.
pub const SPOOL_BYTES: u64 = 4 << 30;

/// The settings that all mounts of a world have in common.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// `timeout=`.
    pub timeout: Duration,
    /// `memory=`, in bytes.
    pub memory_bytes: u64,
    /// The size at which packs are closed, in bytes.
    pub pack_bytes: u64,
    /// `spool_size=`, in bytes.
    pub spool_bytes: u64,
    /// Whether extended attributes are long, so that a commit makes many nodes of the tree.
    pub is_wide: bool,
    /// Whether some writes are so large that close(2) waits for their data.
    pub is_large: bool,
    /// Number of places that a journal reads before other operations run, or `None` for the
    /// product's number, which is more than a world ever changes.
    pub captured_at_once: Option<usize>,
    /// Whether there are no faults other than the weather.
    pub is_calm: bool,
    /// Longest extra time of a pack, in milliseconds, in addition to the time for its bytes. With
    /// it, packs arrive in any order.
    pub spread_ms: u64,
    /// Rate of each connection in bytes per second, or `None` for no limit.
    pub rate: Option<u64>,
    /// Half of the longest time between the beginnings of two spells of weather, in milliseconds,
    /// or `None` for no weather.
    pub gap_ms: Option<u64>,
    /// Percentage of the uploads of metadata packs that are held while later ones pass, or 0.
    pub held_percent: u32,
}

impl Manners {
    /// Draws the settings of a run.
    pub fn draw(random: &mut StdRng) -> Self {
        let mut chance = |percent: u32| random.random_range(0..100) < percent;
        let (is_default, is_short) = (chance(70), chance(50));
        let has_memory = chance(25);
        let has_large_packs = has_memory && chance(50);
        let has_small_spool = chance(25);
        let (is_wide, is_large, is_calm) = (chance(35), chance(15), chance(30));
        let (is_spread, has_rate, has_weather) = (chance(50), chance(40), is_calm || chance(60));
        let has_holds = chance(20);
        let is_wide = is_wide || has_holds;
        let has_tiny_packs = is_wide && (has_holds || is_spread && chance(60));
        Self {
            timeout: match (is_default, is_short) {
                (true, _) => TIMEOUT,
                (_, false) => Duration::from_secs(40),
                (_, true) => Duration::from_secs(15),
            },
            memory_bytes: if has_memory || has_holds {
                MEMORY_BYTES
            } else {
                LITTLE_MEMORY_BYTES
            },
            pack_bytes: match (has_large_packs && !has_holds, has_tiny_packs) {
                (true, _) => PACK_BYTES,
                (_, true) => TINY_PACK_BYTES,
                (_, false) => SMALL_PACK_BYTES,
            },
            spool_bytes: if has_small_spool {
                SMALL_SPOOL_BYTES
            } else {
                SPOOL_BYTES
            },
            is_wide,
            is_large,
            captured_at_once: match (is_wide, is_spread) {
                (true, _) => Some(1),
                (_, true) => Some(3),
                (_, false) => None,
            },
            is_calm,
            spread_ms: if is_spread {
                random.random_range(200..6_000)
            } else {
                0
            },
            rate: has_rate.then(|| random.random_range(100_000..8_000_000)),
            gap_ms: has_weather.then(|| random.random_range(4_000..60_000)),
            held_percent: if has_holds {
                random.random_range(10..50)
            } else {
                0
            },
        }
    }

    /// Returns the time without progress after which a client of the store breaks a request off: a
    /// quarter of `timeout=`, from 4 s to 60 s.
    pub fn silence(&self) -> Duration {
        (self.timeout / 4).clamp(Duration::from_secs(4), Duration::from_secs(60))
    }

    /// Whether the spool has room for everything that a world writes.
    pub fn has_large_spool(&self) -> bool {
        self.spool_bytes == SPOOL_BYTES
    }
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(40),
            memory_bytes: LITTLE_MEMORY_BYTES,
            pack_bytes: SMALL_PACK_BYTES,
            spool_bytes: SMALL_SPOOL_BYTES,
            is_wide: false,
            is_large: false,
            captured_at_once: None,
            is_calm: false,
            spread_ms: 0,
            rate: None,
            gap_ms: None,
            held_percent: 0,
        }
    }
}
