//! Limits on the memory of each part of a depot.
//!
//! Owns the division only; `gate` enforces the limits.

const MIB: u64 = 1 << 20;

/// The most bytes of memory that each part of a content store may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes that are accepted for writing and not yet acknowledged by the store. At least
    /// [`MemoryBudget::LEAST_WRITE_BYTES`].
    pub write_bytes: u64,
    /// Bytes of fetches in progress. At least [`MemoryBudget::LEAST_FETCH_BYTES`].
    pub fetch_bytes: u64,
    /// Decoded bytes that are kept for further reads.
    pub cache_bytes: u64,
}

impl MemoryBudget {
    /// The smallest write budget, in bytes. With less, two open packs and the frames on their way
    /// into them would not fit, and writes would stall.
    pub const LEAST_WRITE_BYTES: u64 = 24 * MIB;
    /// The smallest fetch budget, in bytes. With less, the largest frame would not fit together
    /// with its decoded form.
    pub const LEAST_FETCH_BYTES: u64 = 10 * MIB;

    /// Divides `bytes`, the memory limit of the process: 3/8 for writes, 1/8 for fetches and 1/4
    /// for the cache. The last quarter is left to the caller of the content store (dirty ranges,
    /// tree nodes, replies).
    pub fn of_total(bytes: u64) -> Self {
        Self {
            write_bytes: (bytes * 3 / 8).max(Self::LEAST_WRITE_BYTES),
            fetch_bytes: (bytes / 8).max(Self::LEAST_FETCH_BYTES),
            cache_bytes: bytes / 4,
        }
    }

    /// Returns the division for a content store that is only read: fetches take as much again of
    /// what writes would have. Reads from a distant store are as fast as the bytes on their way
    /// allow.
    #[must_use]
    pub fn for_reading(self) -> Self {
        let unused = self.write_bytes.saturating_sub(Self::LEAST_WRITE_BYTES);
        Self {
            write_bytes: self.write_bytes.min(Self::LEAST_WRITE_BYTES),
            fetch_bytes: self.fetch_bytes + self.fetch_bytes.min(unused),
            ..self
        }
    }

    /// Returns the part of [`MemoryBudget::fetch_bytes`] for stored bytes that are on their way: what
    /// decoding leaves. A distant store delays these, so their number decides how fast it is read.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.fetch_bytes.saturating_sub(self.decoding_bytes())
    }

    /// Returns the part of [`MemoryBudget::fetch_bytes`] for what is being decoded, which only takes
    /// processor time: a quarter, and at least half of the smallest budget.
    pub(crate) fn decoding_bytes(&self) -> u64 {
        (self.fetch_bytes / 4).max(Self::LEAST_FETCH_BYTES / 2)
    }

    /// Returns the most bytes of files that read-ahead may have requested at the same time. They are
    /// decoded before they are asked for, so the cache must hold them.
    pub(crate) fn prefetch_bytes(&self) -> u64 {
        let held = self.cache_bytes / 8 * 7;
        (self.fetch_bytes * 2)
            .min(held)
            .max(Self::LEAST_FETCH_BYTES)
    }

    /// Returns the most bytes of memory for the filters of runs, by which a writer decides whether
    /// data may be stored already: half as many as for the cache.
    pub fn filter_bytes(&self) -> u64 {
        self.cache_bytes / 2
    }

    /// Returns this budget with every part raised to its minimum.
    pub(crate) fn at_least_workable(self) -> Self {
        Self {
            write_bytes: self.write_bytes.max(Self::LEAST_WRITE_BYTES),
            fetch_bytes: self.fetch_bytes.max(Self::LEAST_FETCH_BYTES),
            cache_bytes: self.cache_bytes,
        }
    }
}

impl Default for MemoryBudget {
    /// Returns the division of 512 MiB.
    fn default() -> Self {
        Self::of_total(512 * MIB)
    }
}
