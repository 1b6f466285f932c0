//! How much work compression may take, and which stage of the write path it waits for.
//!
//! Owns the two choices that a caller of the encoder has. Does not own the zstd parameters that
//! follow from them (compressor).

/// How much work the encoder does to compress.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Effort {
    /// Stores the bytes uncompressed.
    None,
    /// Uses zstd with parameters that follow from the content and the balance. Stores the bytes
    /// uncompressed if the probe finds them incompressible.
    Auto(Balance),
    /// Uses zstd at this level. Stores the bytes uncompressed if the probe finds them
    /// incompressible.
    Level(i32),
}

/// Which stage of the write path waits: the writers, none, or the compression workers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Balance {
    /// Writers wait for the workers: a few more stored bytes are accepted for less time.
    Behind,
    /// No stage waits for another: the workers compress as fast as the content allows without
    /// storing more bytes.
    Even,
    /// The workers wait for the store: more time is spent for fewer stored bytes.
    Ahead,
}

impl Balance {
    /// The number of balances.
    pub(super) const COUNT: usize = 3;
}
