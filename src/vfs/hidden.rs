//! Names that are hidden, since no file can have them or what they lead to.
//!
//! Owns: that each is told once, however often it is listed or looked up. Does not own: which are
//! hidden.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// Names that are told; of those hidden beyond them only that there are some. Takes some 16 bytes
/// for each.
const TOLD_MAX: usize = 4096;

/// What is said of a hidden name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The name.
    Name,
    /// That names are not told from here on.
    Silence,
    /// Nothing.
    None,
}

/// The names that were told, by hash.
#[derive(Default)]
struct Told {
    names: HashSet<u64>,
    is_silent: bool,
}

/// The names of a mount that were told.
#[derive(Default)]
pub struct Hidden {
    hashes: RandomState,
    told: Mutex<Told>,
}

impl Hidden {
    /// Returns whether a name of a directory is to be told: it was not so far. Logs once that
    /// further ones are not.
    pub fn is_news(&self, directory: u64, name: &[u8]) -> bool {
        let news = self.judge(directory, name);
        if news == News::Silence {
            tracing::warn!(
                "{TOLD_MAX} hidden names were logged; further ones are hidden too, and not logged: \
                 bkfs check names what cannot be in a tree"
            );
        }
        news == News::Name
    }

    fn judge(&self, directory: u64, name: &[u8]) -> News {
        let mut told = self.told.lock();
        let hash = self.hashes.hash_one((directory, name));
        if told.names.contains(&hash) {
            return News::None;
        }
        if told.names.len() < TOLD_MAX {
            told.names.insert(hash);
            return News::Name;
        }
        match std::mem::replace(&mut told.is_silent, true) {
            true => News::None,
            false => News::Silence,
        }
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

    #[test]
    fn it_is_told_once_that_names_are_no_longer_told() {
        let hidden = Hidden::default();
        let name = |number: usize| hidden.judge(1, &number.to_le_bytes());
        assert!((0..TOLD_MAX).all(|number| name(number) == News::Name));
        assert_eq!(name(0), News::None, "it was told");
        assert_eq!(name(TOLD_MAX), News::Silence);
        assert_eq!(name(TOLD_MAX), News::None);
        assert_eq!(name(TOLD_MAX + 1), News::None);
    }
}
