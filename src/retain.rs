//! The retention policy: a pure plan of the snapshots to keep.
//!
//! This module owns the rules of `bkfs forget`, and how they treat wrong clocks. It is pure: it
//! does no I/O, and the time of day is an argument. `root::forget` moves the other snapshots to the
//! trash.
//!
//! **Order.** Snapshots are ordered by the generation of the root that made them, which no clock
//! can change. "The last one" is always the one that was made last.
//!
//! **Uncertain times.** The time of a snapshot comes from its host's clock, but is never before the
//! time of its predecessor. A clock that once jumped ahead therefore leaves a *plateau*: its own
//! snapshot and all later ones have the same time, until the clock has caught up. A calendar rule
//! would see a plateau as one day and keep one snapshot of it. A snapshot is therefore *unsure* if
//! its time lies ahead of now, or if another snapshot of its group has the same time. No calendar
//! rule counts an unsure snapshot, and it is kept. If the clock that tells now is wrong and behind,
//! more snapshots are unsure, and more are kept.
//!
//! **Recovered snapshots** were never the state of a volume. No rule counts them, and none drops
//! them. The user forgets them by name.
//!
//! **Ages.** `within` does not use the time of day. It adds up the distances from each snapshot to
//! the next. A distance counts at most [`GAP_FACTOR`] times the usual one, or [`GAP_HOURS`] if that
//! is more. A clock that jumps by years therefore ages no snapshot by more than this limit,
//! whatever it does later.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};

use crate::units::{LetterM, stretch};

/// Limit of the distance between two snapshots that counts, as a multiple of the usual distance
/// (the median).
const GAP_FACTOR: i32 = 3;

/// Least limit of the distance that counts, in hours.
///
/// With it, hourly snapshots still age over a day without snapshots.
const GAP_HOURS: i64 = 48;

/// How far the clocks of two machines may differ.
///
/// A time that is further ahead of now counts as ahead.
const SKEW: SignedDuration = SignedDuration::from_mins(15);

/// A length of time as users write it: `12h`, `30d`, `8w`, `6m`, `2y`, `7 days`, or several in a
/// row.
///
/// A month has 30 days and a year 365.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Span(pub SignedDuration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no stretch of time: write 12h, 7 days, 8w, 6m (months), 2y or 0s")
        };
        let seconds =
            stretch(text, LetterM::Months).and_then(|seconds| i64::try_from(seconds).ok());
        let seconds = seconds.ok_or_else(wrong)?;
        Ok(Self(SignedDuration::from_secs(seconds)))
    }
}

/// The rules of retention. A snapshot stays if any rule keeps it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// Number of snapshots to keep, the ones made last.
    pub last: u32,
    /// Number of hours of which to keep the last snapshot.
    pub hourly: u32,
    /// Number of days (UTC) of which to keep the last snapshot.
    pub daily: u32,
    /// Number of weeks (ISO 8601) of which to keep the last snapshot.
    pub weekly: u32,
    /// Number of months of which to keep the last snapshot.
    pub monthly: u32,
    /// Number of years of which to keep the last snapshot.
    pub yearly: u32,
    /// Keep all snapshots that are no older than this.
    pub within: Option<Span>,
    /// Keep all snapshots with any of these tags.
    pub tags: Vec<String>,
}

impl Policy {
    /// Whether the policy has no rule. Such a policy is a mistake of the user.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The reason why a snapshot is kept.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Reason {
    /// It is the newest of its group, which no policy drops.
    Newest,
    /// It is among the last ones.
    Last,
    /// It is the last one of its hour.
    Hourly,
    /// It is the last one of its day.
    Daily,
    /// It is the last one of its week.
    Weekly,
    /// It is the last one of its month.
    Monthly,
    /// It is the last one of its year.
    Yearly,
    /// It is young enough.
    Within,
    /// It has a tag to keep.
    Tag,
    /// Its time is uncertain.
    Unsure,
    /// It is a recovered snapshot, which was never the state of the volume.
    Recovered,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Newest => "newest",
            Self::Last => "last",
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
            Self::Within => "within",
            Self::Tag => "tag",
            Self::Unsure => "time not sure",
            Self::Recovered => "recovered",
        })
    }
}

/// The properties of a snapshot that a policy needs.
pub trait Dated {
    /// Returns the name of the snapshot's volume.
    fn volume(&self) -> &str;
    /// Returns the name of the host that made the snapshot.
    fn host(&self) -> &str;
    /// Returns the time at which the snapshot was made, by its host's clock.
    fn time(&self) -> Timestamp;
    /// Returns the generation of the root that made the snapshot.
    ///
    /// It orders the snapshots of a volume by age, whatever the clocks say.
    fn generation(&self) -> u64;
    /// Returns the tags of the snapshot.
    fn tags(&self) -> &[String];
    /// Whether the snapshot holds data that only a spool had, and was never the state of the
    /// volume.
    fn is_recovered(&self) -> bool;
}

/// The decision about one snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict<'a, S> {
    /// The snapshot.
    pub snapshot: &'a S,
    /// The reasons to keep it, in the order of [`Reason`]. Without a reason it is dropped.
    pub reasons: Vec<Reason>,
}

impl<S> Verdict<'_, S> {
    /// Whether the snapshot stays.
    pub fn stays(&self) -> bool {
        !self.reasons.is_empty()
    }
}

/// Applies `policy` to snapshots and returns the decision about each one.
///
/// The snapshots of one volume and host are a group, and each group is planned alone. The result is
/// sorted by volume, host and age, oldest first.
pub fn plan<'a, S: Dated>(
    snapshots: impl IntoIterator<Item = &'a S>,
    policy: &Policy,
    now: Timestamp,
) -> Vec<Verdict<'a, S>> {
    let mut groups: BTreeMap<(&str, &str), Vec<&S>> = BTreeMap::new();
    for snapshot in snapshots {
        let key = (snapshot.volume(), snapshot.host());
        groups.entry(key).or_default().push(snapshot);
    }
    let mut verdicts = Vec::new();
    for mut group in groups.into_values() {
        group.sort_by_key(|snapshot| snapshot.generation());
        let (recovered, states): (Vec<&S>, Vec<&S>) = group
            .into_iter()
            .partition(|snapshot| snapshot.is_recovered());
        verdicts.extend(judge(&states, policy, now));
        verdicts.extend(recovered.into_iter().map(|snapshot| Verdict {
            snapshot,
            reasons: vec![Reason::Recovered],
        }));
        verdicts.sort_by_key(|verdict| {
            let snapshot = verdict.snapshot;
            (snapshot.volume(), snapshot.host(), snapshot.generation())
        });
    }
    verdicts
}

/// Applies `policy` to one group, oldest first.
fn judge<'a, S: Dated>(group: &[&'a S], policy: &Policy, now: Timestamp) -> Vec<Verdict<'a, S>> {
    let unsure = unsure(group, now);
    let ages = ages(group);
    let mut buckets = Buckets::of(policy);
    let mut reasons = vec![BTreeSet::new(); group.len()];
    for (position, snapshot) in group.iter().enumerate().rev() {
        let from_end = group.len() - 1 - position;
        let mut keep = |reason| {
            reasons[position].insert(reason);
        };
        if from_end == 0 {
            keep(Reason::Newest);
        }
        if (from_end as u64) < u64::from(policy.last) {
            keep(Reason::Last);
        }
        if snapshot.tags().iter().any(|tag| policy.tags.contains(tag)) {
            keep(Reason::Tag);
        }
        if policy
            .within
            .is_some_and(|within| ages[position] <= within.0)
        {
            keep(Reason::Within);
        }
        if unsure[position] {
            keep(Reason::Unsure);
        } else {
            buckets.take(snapshot.time()).into_iter().for_each(keep);
        }
    }
    let verdict = |(snapshot, reasons): (&&'a S, BTreeSet<Reason>)| Verdict {
        snapshot: *snapshot,
        reasons: reasons.into_iter().collect(),
    };
    group.iter().zip(reasons).map(verdict).collect()
}

/// Returns for each snapshot whether its time is uncertain.
fn unsure<S: Dated>(group: &[&S], now: Timestamp) -> Vec<bool> {
    let mut counts: BTreeMap<Timestamp, u32> = BTreeMap::new();
    for snapshot in group {
        *counts.entry(snapshot.time()).or_default() += 1;
    }
    let latest = now.saturating_add(SKEW).unwrap_or(Timestamp::MAX);
    let is_unsure = |snapshot: &&S| {
        snapshot.time() > latest || counts.get(&snapshot.time()).is_some_and(|count| *count > 1)
    };
    group.iter().map(is_unsure).collect()
}

/// Returns the age of each snapshot, counted from the newest: the sum of the distances between,
/// each of which is limited as the module header says.
fn ages<S: Dated>(group: &[&S]) -> Vec<SignedDuration> {
    let gap = |pair: &[&S]| {
        let gap = pair[1].time().duration_since(pair[0].time());
        gap.max(SignedDuration::ZERO)
    };
    let gaps: Vec<SignedDuration> = group.windows(2).map(gap).collect();
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    let most = usual
        .checked_mul(GAP_FACTOR)
        .unwrap_or(SignedDuration::MAX)
        .max(SignedDuration::from_hours(GAP_HOURS));
    let mut ages = vec![SignedDuration::ZERO; group.len()];
    for (position, gap) in gaps.iter().enumerate().rev() {
        ages[position] = ages[position + 1].saturating_add((*gap).min(most));
    }
    ages
}

/// A period of the calendar (UTC), as a number that differs between periods of one kind.
type Bucket = i64;

/// Seconds of an hour, and of a day.
const HOUR_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;

/// The calendar rules, each with its number of periods and the periods that it has seen so far,
/// newest first.
struct Buckets(Vec<(Reason, u32, BTreeSet<Bucket>)>);

impl Buckets {
    fn of(policy: &Policy) -> Self {
        let rules = [
            (Reason::Hourly, policy.hourly),
            (Reason::Daily, policy.daily),
            (Reason::Weekly, policy.weekly),
            (Reason::Monthly, policy.monthly),
            (Reason::Yearly, policy.yearly),
        ];
        let rules = rules.map(|(reason, count)| (reason, count, BTreeSet::new()));
        Self(rules.into())
    }

    /// Returns the rules that keep a snapshot of this time.
    ///
    /// The times of successive calls must not increase.
    fn take(&mut self, time: Timestamp) -> Vec<Reason> {
        let seconds = time.as_second();
        let days = seconds.div_euclid(DAY_SECONDS);
        let date = Date::constant(1970, 1, 1)
            .checked_add(SignedDuration::from_secs(days * DAY_SECONDS))
            .unwrap_or(Date::ZERO);
        let (year, month) = (i64::from(date.year()), i64::from(date.month()));
        let mut kept = Vec::new();
        for (reason, count, seen) in &mut self.0 {
            let bucket = match reason {
                Reason::Hourly => seconds.div_euclid(HOUR_SECONDS),
                Reason::Daily => days,
                // Weeks of ISO 8601 begin on Mondays; 1 January 1970 was a Thursday.
                Reason::Weekly => (days + 3).div_euclid(7),
                Reason::Monthly => 12 * year + month,
                _ => year,
            };
            if (seen.len() as u64) < u64::from(*count) && seen.insert(bucket) {
                kept.push(*reason);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests;
