//! Which snapshots a policy keeps: a pure plan.
//!
//! Owns the rules of `bkfs forget` and what they make of clocks that lie. Pure: no I/O, and the time of day is an argument. Moving what is not kept to the trash is for
//! `root::forget`.
//!
//! **Order.** Snapshots are ordered by the generation of the root that made them, which no clock can change. "The last one" is always the one made last.
//!
//! **Times that are not believed.** A snapshot's time is its host's clock, but never before its predecessor's. So a clock that once jumped ahead leaves a *plateau*: its own snapshot, and all that
//! follow until the clock has caught up, carry one and the same time. To such a row a rule by days would see one day, and keep one of it. Hence a snapshot is
//! *unsure* if its time lies ahead of now, or if another one of its group has the same: no rule by time counts it, and it is kept. If it is now whose clock is
//! wrong and behind, more snapshots are unsure, and more are kept.
//!
//! **Recovered snapshots** never were the state of a volume: no rule counts them, and none drops
//! them. They are forgotten by name.
//!
//! **Ages.** `within` does not look at now, but adds up the distances from each snapshot to the next, each of which counts at most [`GAP_FACTOR`] times the usual one (or
//! [`GAP_HOURS`], if that is more). So a clock that jumps by years ages nothing by more than that, however it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};

/// A distance between two snapshots counts at most so many times the usual one (the median).
const GAP_FACTOR: i32 = 3;

/// But at least so many hours count, so that hourly snapshots age over a day off.
const GAP_HOURS: i64 = 48;

/// How far two clocks may differ before a time counts as ahead of now.
const SKEW: SignedDuration = SignedDuration::from_mins(15);

/// A stretch of time as people write it: `12h`, `30d`, `8w`, `6m`, `2y`, or several in a row. A month has 30 days and a year 365.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Span(pub SignedDuration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no stretch of time: write 12h, 30d, 8w, 6m or 2y, or 0s");
        let mut seconds: i64 = 0;
        let mut rest = text;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: i64 = rest[..digits].parse().map_err(|_| wrong())?;
            let unit = rest[digits..].chars().next().ok_or_else(wrong)?;
            let length = match unit {
                's' => 1,
                'h' => 3600,
                'd' => 86_400,
                'w' => 7 * 86_400,
                'm' => 30 * 86_400,
                'y' => 365 * 86_400,
                _ => return Err(wrong()),
            };
            let more = number.checked_mul(length).ok_or_else(wrong)?;
            seconds = seconds.checked_add(more).ok_or_else(wrong)?;
            rest = &rest[digits + unit.len_utf8()..];
        }
        Ok(Self(SignedDuration::from_secs(seconds)))
    }
}

/// What to keep. A snapshot stays if any rule keeps it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// So many, made last.
    pub last: u32,
    /// The last one of each of so many hours.
    pub hourly: u32,
    /// The last one of each of so many days (UTC).
    pub daily: u32,
    /// The last one of each of so many weeks (ISO 8601).
    pub weekly: u32,
    /// The last one of each of so many months.
    pub monthly: u32,
    /// The last one of each of so many years.
    pub yearly: u32,
    /// All that are no older than this.
    pub within: Option<Span>,
    /// All with any of these tags.
    pub tags: Vec<String>,
}

impl Policy {
    /// True if it keeps nothing: such a policy is a mistake.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a snapshot is kept.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Reason {
    /// It is the newest of its group, which no policy drops.
    Newest,
    /// Among the last ones.
    Last,
    /// Last of its hour.
    Hourly,
    /// Last of its day.
    Daily,
    /// Last of its week.
    Weekly,
    /// Last of its month.
    Monthly,
    /// Last of its year.
    Yearly,
    /// Young enough.
    Within,
    /// It has a tag.
    Tag,
    /// Its time cannot be believed.
    Unsure,
    /// It was never the volume's state.
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

/// What a policy asks of a snapshot.
pub trait Dated {
    /// The volume it is of.
    fn volume(&self) -> &str;
    /// The host that made it.
    fn host(&self) -> &str;
    /// When it was made, as far as that is known.
    fn time(&self) -> Timestamp;
    /// Orders the snapshots of a volume by age, whatever clocks say.
    fn generation(&self) -> u64;
    /// Words for retention.
    fn tags(&self) -> &[String];
    /// Whether it is what only a spool had, and never was the volume's state.
    fn is_recovered(&self) -> bool;
}

/// What becomes of one snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict<'a, S> {
    /// The snapshot.
    pub snapshot: &'a S,
    /// Why it stays, in the order of [`Reason`]; if there is no reason it goes.
    pub reasons: Vec<Reason>,
}

impl<S> Verdict<'_, S> {
    /// Whether it stays.
    pub fn stays(&self) -> bool {
        !self.reasons.is_empty()
    }
}

/// What `policy` says of each snapshot. Volumes are looked at one by one, and within them hosts: each is a group of its own. The answer is sorted by volume, host
/// and age, oldest first.
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

/// One group, oldest first.
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

/// Whose time cannot be believed.
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

/// How old each snapshot is, seen from the newest: the sum of the distances between, none of which counts for more than a few times the usual one.
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

/// A stretch of the calendar (UTC), as a number that differs between stretches of one kind.
type Bucket = i64;

/// Seconds of an hour, and of a day.
const HOUR_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;

/// The rules by calendar, and which stretches each has seen, newest first.
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

    /// The rules that keep a snapshot of this time, which is not newer than those asked about before.
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
