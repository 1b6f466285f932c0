//! Gaps: acknowledged operations of a session whose journals are no longer in the bucket.
//!
//! Owns what a gap says of them, and its text. [`super::ended_sessions`] finds gaps in the journals
//! of ended sessions.

use super::listing::journal_key;
use super::sent::Sent;
use super::state::SessionId;
use std::fmt;
use std::ops::RangeInclusive;

/// The largest number of missing journals, or ranges of them, that a message names.
const NAMED_MAX: usize = 8;

/// Operations that a session acknowledged and that are no longer in the bucket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gap {
    /// The session.
    pub session: SessionId,
    /// Its volume.
    pub volume: String,
    /// The last operation before the missing ones.
    pub after: u64,
    /// The last operation that is known to have been acknowledged.
    pub last: u64,
    /// The numbers of the missing journals, ascending; the ranges are inclusive.
    pub missing: Vec<RangeInclusive<u64>>,
    /// The key prefix of the session's journals.
    pub(super) prefix: String,
}

impl Gap {
    /// Returns the number of operations that cannot be carried out.
    pub fn operations(&self) -> u64 {
        self.last.saturating_sub(self.after)
    }

    /// Returns the note about the newest sent journal that replaces the old one once the loss is
    /// accepted.
    pub(crate) fn before(&self) -> Sent {
        let first = self.missing.first().map_or(1, |range| *range.start());
        Sent {
            number: first.saturating_sub(1),
            last: self.after,
        }
    }

    /// Returns the key of the first missing journal.
    pub fn key(&self) -> String {
        let first = self.missing.first().map_or(0, |range| *range.start());
        journal_key(&self.prefix, first)
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (session, volume) = (self.session, &self.volume);
        let (first, last) = (self.after + 1, self.last);
        let number = |range: &RangeInclusive<u64>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{} to {}", range.start(), range.end()),
        };
        let mut numbers: Vec<String> = self.missing.iter().take(NAMED_MAX).map(number).collect();
        if self.missing.len() > NAMED_MAX {
            numbers.push("others".to_owned());
        }
        write!(
            formatter,
            "journals of session {session} of volume {volume} are missing: number {} (the first \
             is {}); without them operations {first} to {last} ({} in all), which were \
             acknowledged, are lost",
            numbers.join(", "),
            self.key(),
            self.operations()
        )
    }
}

/// Returns several gaps as text for display.
pub(crate) fn told(gaps: &[Gap]) -> String {
    let told: Vec<String> = gaps.iter().map(Gap::to_string).collect();
    told.join("; ")
}
