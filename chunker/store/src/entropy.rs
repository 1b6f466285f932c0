//! Sources of random bytes. Every module at the edge takes one as an argument, so that a simulation
//! can be repeated.
//!
//! Owns the trait and the system's source. The modules inside (ids, seals, packs) draw no
//! randomness.

use std::fmt::Debug;

use rand::Rng as _;

/// A source of random bytes for names and salts. Outside tests it must be of cryptographic quality.
pub trait Entropy: Send + Sync + Debug + 'static {
    /// Fills `bytes` with fresh randomness.
    fn fill(&self, bytes: &mut [u8]);
}

/// The process's random generator, seeded by the operating system.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where the process' randomness enters"
    )]
    fn fill(&self, bytes: &mut [u8]) {
        rand::rng().fill_bytes(bytes);
    }
}

/// Returns a fresh 32-byte salt.
pub fn salt(entropy: &dyn Entropy) -> [u8; 32] {
    let mut salt = [0; 32];
    entropy.fill(&mut salt);
    salt
}

/// Returns a fresh 32-bit number for a name.
pub fn number(entropy: &dyn Entropy) -> u32 {
    let mut bytes = [0; 4];
    entropy.fill(&mut bytes);
    u32::from_le_bytes(bytes)
}
