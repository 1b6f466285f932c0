//! Locks that a bucket itself keeps (Object Lock of S3): what nobody can delete before an instant, whatever keys they hold.
//!
//! Owns the words: a lock, its modes, and the rule by which a repository sets them. Pure. Which objects are locked, and when locks are extended, is the caller's to say; how a
//! store is asked for them is in [`crate::store`].

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

/// The most days of a [`LockRule`]: a hundred years, as S3 has it.
pub const LOCK_DAYS_MAX: u32 = 36_500;

/// Who can remove a lock before its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LockMode {
    /// Whoever has a right of its own for that (`s3:BypassGovernanceRetention`), which no key of bkfs needs.
    Governance,
    /// Nobody.
    Compliance,
}

impl LockMode {
    /// As S3 writes it.
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

/// A mode that has another name.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("governance or compliance")]
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

/// Until when an object cannot be deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lock {
    /// Who can remove it before.
    pub mode: LockMode,
    /// Its end; stores keep whole seconds.
    pub until: Timestamp,
}

/// By what rule a repository locks its objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LockRule {
    /// For how many days from now, at most [`LOCK_DAYS_MAX`]. With 0 nothing more is locked, but what was is heeded.
    pub days: u32,
    /// Who can remove a lock.
    pub mode: LockMode,
}

impl LockRule {
    /// The lock of an object that is stored, or found to be needed still, at `now`. Rounded up to a second.
    pub fn lock_from(&self, now: Timestamp) -> Lock {
        let end = now.as_second().saturating_add(1);
        let end = Timestamp::from_second(end).unwrap_or(Timestamp::MAX);
        let until = end.checked_add(self.span()).unwrap_or(Timestamp::MAX);
        Lock {
            mode: self.mode,
            until,
        }
    }

    /// The days, as a duration.
    pub fn span(&self) -> SignedDuration {
        SignedDuration::from_hours(24 * i64::from(self.days))
    }

    /// Whether locks that end at `until` are to be extended at `now`: when less than half of the days is left. So half of them is the time in which
    /// nobody needs to have come by, and an object costs two requests in as many days as it is locked for.
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
