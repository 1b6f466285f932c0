//! Sums over dirty bytes.

/// What dirty bytes amount to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Their memory, in bytes, with overhead.
    pub cost: u64,
    /// Bytes of data (not zeroes).
    pub data_bytes: u64,
    /// Bytes that could be swapped out.
    pub swappable_bytes: u64,
}

impl Counts {
    /// Takes a part out of them, and puts another one in.
    pub fn replace(&mut self, old: Counts, new: Counts) {
        self.cost = self.cost + new.cost - old.cost;
        self.data_bytes = self.data_bytes + new.data_bytes - old.data_bytes;
        self.swappable_bytes = self.swappable_bytes + new.swappable_bytes - old.swappable_bytes;
    }
}
