//! Which new objects are locked in the bucket, by the lock rule of a repository.
//!
//! Owns the decision for one object. Does not own that it is applied (`guarded`), which objects the
//! rule covers, how long locks last, and their extension.

use std::fmt;

use jiff::Timestamp;

use crate::lock::{Lock, LockRule};

/// Which objects are locked, for how long, and by which clock.
pub struct Locking {
    /// The mode of the locks, and their length in days. With 0 days nothing is locked.
    pub rule: LockRule,
    /// Returns whether the object under this key is to be locked.
    pub wanted: fn(&str) -> bool,
    /// Returns the time of day.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Locking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rule.fmt(formatter)
    }
}

impl Locking {
    /// Returns the lock of an object that is created now. `None` if it is not to be locked.
    pub(crate) fn lock_of(&self, key: &str) -> Option<Lock> {
        let wanted = self.rule.days > 0 && (self.wanted)(key);
        wanted.then(|| self.rule.lock_from((self.now)()))
    }
}
