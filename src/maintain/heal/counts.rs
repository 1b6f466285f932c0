//! How much was brought back from another repository.

/// Counts of the blobs and records that were brought back.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Healed {
    /// Chunks, segments and nodes that were stored again.
    pub blobs: u64,
    /// Bytes of these blobs.
    pub bytes: u64,
    /// Commit records that were made anew.
    pub records: u64,
}

impl Healed {
    /// Adds the counts of `more`.
    pub fn add(&mut self, more: &Self) {
        self.blobs += more.blobs;
        self.bytes += more.bytes;
        self.records += more.records;
    }

    /// Returns true if nothing was brought back.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
