//! From a name to its place in the tree.

use bkfs_chunker::seal::Keyring;

use crate::tree::key::name_cookie;

/// Makes readdir cookies of names under the repository's keyed hash: stable for ever, and of no use to whoever sees only sealed objects.
#[derive(Clone)]
pub struct Names(Keyring);

impl Names {
    /// Cookies of the repository with this keyring.
    pub fn new(keyring: Keyring) -> Self {
        Names(keyring)
    }

    /// The cookie of a name.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        name_cookie(self.0.name_hash(name))
    }
}
