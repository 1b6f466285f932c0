//! Locks that the bucket itself keeps (Object Lock of S3). Until its lock ends, a client cannot
//! delete an object for good, whatever keys it holds, unless the lock's mode allows it.
//!
//! Owns the terms: a lock, its modes, and the rule by which a repository sets locks. Pure. The
//! caller decides which objects are locked and when locks are extended. [`Store`](crate::Store)
//! owns the requests to a store.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

/// The most days of a [`LockRule`]: 100 years, the limit of S3.
pub const LOCK_DAYS_MAX: u32 = 36_500;

/// Who can remove a lock before its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LockMode {
    /// Clients with a special permission (`s3:BypassGovernanceRetention`), which bkfs never needs.
    Governance,
    /// No client at all.
    Compliance,
}

impl LockMode {
    /// Returns the mode's name in S3.
    pub fn name(self) -> &'static str {
        match self {
            LockMode::Governance => "GOVERNANCE",
            LockMode::Compliance => "COMPLIANCE",
        }
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name().to_ascii_lowercase())
    }
}

/// The error for an unknown name of a mode.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("expected governance or compliance")]
pub struct UnknownMode;

impl FromStr for LockMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let modes = [LockMode::Governance, LockMode::Compliance];
        let named = modes
            .into_iter()
            .find(|mode| mode.name().eq_ignore_ascii_case(text));
        named.ok_or(UnknownMode)
    }
}

/// A lock: until its end the object cannot be deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lock {
    /// Who can remove the lock before its end.
    pub mode: LockMode,
    /// The end of the lock. Stores keep whole seconds.
    pub until: Timestamp,
}

/// The rule by which a repository locks its objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LockRule {
    /// The length of a lock in days, at most [`LOCK_DAYS_MAX`]. With 0 no further object is locked,
    /// but existing locks are still respected.
    pub days: u32,
    /// Who can remove a lock before its end.
    pub mode: LockMode,
}

impl LockRule {
    /// Returns the lock of an object that is stored, or found to be still needed, at `now`. Its end
    /// is rounded up to a whole second.
    pub fn lock_from(&self, now: Timestamp) -> Lock {
        let end = now.as_second().saturating_add(1);
        let end = Timestamp::from_second(end).unwrap_or(Timestamp::MAX);
        let until = end.checked_add(self.span()).unwrap_or(Timestamp::MAX);
        Lock {
            mode: self.mode,
            until,
        }
    }

    /// Returns the length of a lock as a duration.
    pub fn span(&self) -> SignedDuration {
        SignedDuration::from_hours(24 * i64::from(self.days))
    }

    /// Returns whether locks that end at `until` are to be extended at `now`: when less than half
    /// of the days is left. So a repository may go without an extension for half of the days, and
    /// an object costs two requests per period of `days` days.
    pub fn is_due(&self, until: Timestamp, now: Timestamp) -> bool {
        self.days > 0 && until.duration_since(now) < self.span() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn locks_are_whole_seconds_and_never_too_short() {
        let rule = LockRule {
            days: 30,
            mode: LockMode::Governance,
        };
        let now = Timestamp::new(1_000, 1).expect("in range");
        let lock = rule.lock_from(now);
        assert_eq!(lock.until, at(1_001 + 30 * 86_400));
        assert_eq!(lock.mode, LockMode::Governance);
        let long = LockRule {
            days: LOCK_DAYS_MAX,
            ..rule
        };
        assert!(long.lock_from(Timestamp::MAX).until <= Timestamp::MAX);
    }

    #[test]
    fn half_of_the_days_is_the_time_to_extend() {
        let rule = |days| LockRule {
            days,
            mode: LockMode::Compliance,
        };
        let day = 86_400;
        assert!(!rule(10).is_due(at(5 * day), at(0)));
        assert!(rule(10).is_due(at(5 * day - 1), at(0)));
        assert!(rule(10).is_due(at(0), at(20 * day)), "it has ended");
        assert!(
            !rule(0).is_due(at(0), at(20 * day)),
            "nothing is locked any more"
        );
    }

    #[test]
    fn modes_are_read_in_any_case() {
        for mode in [LockMode::Governance, LockMode::Compliance] {
            assert_eq!(mode.name().parse::<LockMode>().ok(), Some(mode));
            assert_eq!(mode.to_string().parse::<LockMode>().ok(), Some(mode));
        }
        assert!("legal".parse::<LockMode>().is_err());
    }
}
