//! The mapping from a name to its position in the tree.

use bkfs_chunker::crypto::Keyring;

use crate::tree::key::name_cookie;

/// Computes the readdir cookies of names by the repository's keyed hash. They never change, and
/// they reveal nothing to a reader of sealed objects alone.
#[derive(Clone)]
pub struct Names(Keyring);

impl Names {
    /// Returns the cookies of the repository with this keyring.
    pub fn new(keyring: Keyring) -> Self {
        Names(keyring)
    }

    /// Returns the cookie of a name.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        name_cookie(self.0.name_hash(name))
    }
}
