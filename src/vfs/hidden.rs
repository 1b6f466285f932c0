//! Names that are hidden, since no file can have them or what they lead to.
//!
//! Owns: that each is told once, however often it is listed or looked up. Does not own: which are
//! hidden.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Names that are told; what is hidden beyond those is not. Takes some 16 bytes for each.
const TOLD_MAX: usize = 4096;

/// The names that were told, by hash.
#[derive(Default)]
pub struct Hidden {
    hashes: RandomState,
    told: Mutex<HashSet<u64>>,
}

impl Hidden {
    /// Whether a name of a directory is to be told: it was not so far.
    pub fn is_news(&self, directory: u64, name: &[u8]) -> bool {
        let mut told = self.told.lock();
        let hash = self.hashes.hash_one((directory, name));
        if told.len() < TOLD_MAX {
            return told.insert(hash);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_told_once_and_not_too_many() {
        let hidden = Hidden::default();
        assert!(hidden.is_news(1, b".."));
        assert!(!hidden.is_news(1, b".."));
        assert!(hidden.is_news(2, b".."));
        let told = (0..10_000_u64).filter(|number| hidden.is_news(3, &number.to_le_bytes()));
        assert_eq!(told.count(), TOLD_MAX - 2);
    }
}
