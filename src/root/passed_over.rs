//! The key slots that a password was not tried on.
//!
//! Owns how many of them are named. Does not own why one is passed over ([`super::unlock`]).

use bkfs_chunker::crypto::SlotName;

/// Largest number of slots that are named. A writer to the bucket can add thousands.
const NAMED_MAX: usize = 16;

/// Key slots that a password was not tried on. It may open them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PassedOver {
    named: Vec<(SlotName, String)>,
    count: usize,
}

impl PassedOver {
    /// Adds a slot, and why the password was not tried on it.
    pub(super) fn add(&mut self, name: SlotName, reason: impl ToString) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push((name, reason.to_string()));
        }
    }

    /// Adds slots whose names are not known.
    pub(super) fn add_unnamed(&mut self, count: usize) {
        self.count += count;
    }

    /// Adds others.
    pub(super) fn extend(&mut self, others: &Self) {
        let room = NAMED_MAX - self.named.len();
        self.named.extend(others.named.iter().take(room).cloned());
        self.count += others.count;
    }

    /// Returns the first of them, each with the reason: at most 16.
    pub fn named(&self) -> &[(SlotName, String)] {
        &self.named
    }

    /// Returns how many there are, named or not.
    pub fn count(&self) -> usize {
        self.count
    }
}
