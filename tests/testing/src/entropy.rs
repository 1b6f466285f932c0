//! Randomness that can be repeated.
//!
//! Owns the generator of tests and simulations. Its bytes are no secret: a test passes the same
//! seed and gets the same names, salts and pauses.

use bkfs_store::entropy::Entropy;
use parking_lot::Mutex;
use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// Repeatable bytes from a seed.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<StdRng>);

impl SeededEntropy {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill_bytes(bytes);
    }
}
