//! The reads of one mount, and how many of them a replay had fetched.
//!
//! Owns the recorder of the mount and the count of hits. A hit is the first touch of a place that a
//! replay has brought or is bringing: what is touched is in the cache, or the read joins its fetch.

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::trace::coverage::Coverage;
use crate::trace::recorder::{Recorded, Recorder};

/// What was touched of a mount.
#[derive(Debug)]
pub struct Touches(Mutex<Noted>);

#[derive(Debug)]
struct Noted {
    recorder: Recorder,
    coverage: Coverage,
    first_touches: u64,
    hits: u64,
    /// When a place was touched for the first time, last.
    last: Instant,
}

/// Counts of what was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchCounts {
    /// Number of ranges that are recorded.
    pub ranges: u64,
    /// Places of 16 KiB that were touched.
    pub first_touches: u64,
    /// Those of them that a replay had brought, or was bringing.
    pub hits: u64,
    /// Whether the recorder has no more room.
    pub is_full: bool,
    /// How long no place was touched for the first time, in milliseconds.
    pub quiet_ms: u64,
}

impl Default for Touches {
    fn default() -> Self {
        Touches(Mutex::new(Noted {
            recorder: Recorder::default(),
            coverage: Coverage::default(),
            first_touches: 0,
            hits: 0,
            last: Instant::now(),
        }))
    }
}

impl Touches {
    /// Notes that `length` bytes of an inode are read from `offset` on.
    pub fn note(&self, inode: u64, offset: u64, length: u64) {
        let noted = &mut *self.0.lock();
        let (mut first, mut hits) = (0, 0);
        noted.recorder.note(inode, offset, length, |place| {
            first += 1;
            hits += u64::from(noted.coverage.has(inode, place));
        });
        if first > 0 {
            noted.first_touches += first;
            noted.hits += hits;
            noted.last = Instant::now();
        }
    }

    /// Notes that a replay brings `length` bytes of an inode from `offset` on.
    pub fn cover(&self, inode: u64, offset: u64, length: u64) {
        self.0.lock().coverage.add(inode, offset, length);
    }

    /// Returns the ranges that were touched, by rank.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.0.lock().recorder.recorded()
    }

    /// Returns the counts.
    pub fn counts(&self) -> TouchCounts {
        let noted = self.0.lock();
        TouchCounts {
            ranges: noted.recorder.ranges() as u64,
            first_touches: noted.first_touches,
            hits: noted.hits,
            is_full: noted.recorder.is_full(),
            quiet_ms: noted.last.elapsed().as_millis() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::trace::recorder::PLACE_BYTES;

    #[tokio::test(start_paused = true)]
    async fn a_hit_is_a_first_touch_of_what_was_asked_for_before() {
        let touches = Touches::default();
        touches.note(7, 0, PLACE_BYTES);
        touches.cover(7, 0, 3 * PLACE_BYTES);
        touches.note(7, 0, 2 * PLACE_BYTES);
        touches.note(7, 5 * PLACE_BYTES, 1);
        touches.note(8, 0, 1);
        tokio::time::advance(Duration::from_millis(1500)).await;
        touches.note(7, 0, 3);
        let expected = TouchCounts {
            ranges: 3,
            first_touches: 4,
            hits: 1,
            is_full: false,
            quiet_ms: 1500,
        };
        assert_eq!(touches.counts(), expected);
        assert_eq!(touches.recorded().len(), 3);
    }
}
