//! How much memory each part of a depot may hold.
//!
//! Owns the division only; `gate` keeps to it.

const MIB: u64 = 1 << 20;

/// How many bytes of memory each part of a depot may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes accepted for writing and not yet acknowledged by the store. At least [`MemoryBudget::LEAST_WRITE_BYTES`].
    pub write_bytes: u64,
    /// Bytes being fetched. At least [`MemoryBudget::LEAST_FETCH_BYTES`].
    pub fetch_bytes: u64,
    /// Decoded bytes kept for further reads.
    pub cache_bytes: u64,
}

impl MemoryBudget {
    /// Below this two open packs and the frames on their way into them would not fit, and writing could not go on.
    pub const LEAST_WRITE_BYTES: u64 = 24 * MIB;
    /// Below this the largest frame could not be fetched together with its decoded form.
    pub const LEAST_FETCH_BYTES: u64 = 10 * MIB;

    /// Divides what a whole process may use. A quarter is left to whoever uses the depot (dirty ranges, tree nodes, replies).
    pub fn of_total(bytes: u64) -> Self {
        Self {
            write_bytes: (bytes * 3 / 8).max(Self::LEAST_WRITE_BYTES),
            fetch_bytes: (bytes / 8).max(Self::LEAST_FETCH_BYTES),
            cache_bytes: bytes / 4,
        }
    }

    /// The same with every part raised to the least it can work with.
    pub(crate) fn at_least_workable(self) -> Self {
        Self {
            write_bytes: self.write_bytes.max(Self::LEAST_WRITE_BYTES),
            fetch_bytes: self.fetch_bytes.max(Self::LEAST_FETCH_BYTES),
            cache_bytes: self.cache_bytes,
        }
    }
}

impl Default for MemoryBudget {
    /// The parts of 512 MiB.
    fn default() -> Self {
        Self::of_total(512 * MIB)
    }
}
