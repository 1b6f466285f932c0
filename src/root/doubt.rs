//! Whether this process can read the root.
//!
//! Owns the order of looks at the root, good ones and others. Does not own what a look shows.
//!
//! A look that fails leaves a doubt. Only a good look that began after that clears it: an answer to
//! an earlier one may show a root that is gone. A look that is given up before it is answered proves
//! nothing: on a slow line, those of heartbeats never end.

use std::sync::atomic::{AtomicU64, Ordering};

/// Looks at the root, numbered from 1 in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct Looks {
    begun: AtomicU64,
    /// The last good one, or 0.
    good: AtomicU64,
    /// The last one that had begun when one failed, or 0.
    doubted: AtomicU64,
}

/// A look at the root. Dropped after it is [`Look::answered`], it has failed, unless it is
/// [`Look::good`].
#[derive(Debug)]
pub(super) struct Look<'a> {
    looks: &'a Looks,
    number: u64,
    has_failed: bool,
}

impl Looks {
    /// Begins a look. Call this before its request is sent.
    pub(super) fn begin(&self) -> Look<'_> {
        Look {
            looks: self,
            number: self.begun.fetch_add(1, Ordering::SeqCst) + 1,
            has_failed: false,
        }
    }

    /// Returns whether a look has failed, and no later one was good.
    pub(super) fn are_in_doubt(&self) -> bool {
        let doubted = self.doubted.load(Ordering::SeqCst);
        doubted > 0 && self.good.load(Ordering::SeqCst) <= doubted
    }
}

impl Look<'_> {
    /// Notes that its request was answered, or has had its time.
    pub(super) fn answered(&mut self) {
        self.has_failed = true;
    }

    /// Ends a look that has shown a root which may stand.
    pub(super) fn good(mut self) {
        self.has_failed = false;
        self.looks.good.fetch_max(self.number, Ordering::SeqCst);
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            let begun = self.looks.begun.load(Ordering::SeqCst);
            self.looks.doubted.fetch_max(begun, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(mut look: Look<'_>) {
        look.answered();
    }

    #[test]
    fn a_doubt_is_cleared_by_a_later_good_look() {
        let looks = Looks::default();
        assert!(!looks.are_in_doubt(), "there was no look");
        looks.begin().good();
        assert!(!looks.are_in_doubt());
        fail(looks.begin());
        assert!(looks.are_in_doubt());
        fail(looks.begin());
        looks.begin().good();
        assert!(!looks.are_in_doubt());
        drop(looks.begin());
        assert!(!looks.are_in_doubt(), "it was given up");
    }

    #[test]
    fn a_look_that_began_before_a_failure_clears_nothing() {
        let looks = Looks::default();
        let early = looks.begin();
        let failing = looks.begin();
        let late = looks.begin();
        fail(failing);
        early.good();
        assert!(looks.are_in_doubt());
        late.good();
        assert!(looks.are_in_doubt(), "it may have been answered before");
        looks.begin().good();
        assert!(!looks.are_in_doubt());
    }
}
