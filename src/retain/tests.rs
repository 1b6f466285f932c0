//! Tables: a list of snapshots, a policy, and the snapshots that stay with the reasons.

use super::*;

struct Made {
    name: String,
    volume: String,
    host: String,
    time: Timestamp,
    generation: u64,
    tags: Vec<String>,
}

impl Dated for Made {
    fn volume(&self) -> &str {
        &self.volume
    }
    fn host(&self) -> &str {
        &self.host
    }
    fn time(&self) -> Timestamp {
        self.time
    }
    fn generation(&self) -> u64 {
        self.generation
    }
    fn tags(&self) -> &[String] {
        &self.tags
    }
    fn is_recovered(&self) -> bool {
        self.name.starts_with("recovered-")
    }
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// Returns a snapshot named `s` and its generation.
fn snapshot(generation: u64, host: &str, at: &str, tags: &[&str]) -> Made {
    Made {
        name: format!("s{generation}"),
        volume: "main".to_owned(),
        host: host.to_owned(),
        time: time(at),
        generation,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
    }
}

/// Returns one snapshot for each of `days` days, at noon, from the 1st of `month` on.
fn daily(month: &str, days: u64) -> Vec<Made> {
    let start = time(&format!("{month}-01T12:00:00Z"));
    let mut made = Vec::new();
    for day in 0..days {
        let at = start + SignedDuration::from_hours(24 * day as i64);
        made.push(snapshot(day + 1, "host", &at.to_string(), &[]));
    }
    made
}

/// Returns the snapshots that stay: their names, with the reasons.
fn kept(snapshots: &[Made], policy: &Policy, now: &str) -> Vec<String> {
    let verdicts = plan(snapshots, policy, time(now));
    assert_eq!(verdicts.len(), snapshots.len(), "every snapshot is judged");
    let line = |verdict: &Verdict<'_, Made>| {
        let reasons: Vec<String> = verdict.reasons.iter().map(Reason::to_string).collect();
        format!("{} {}", verdict.snapshot.name, reasons.join(","))
    };
    verdicts
        .iter()
        .filter(|verdict| verdict.stays())
        .map(line)
        .collect()
}

fn names(kept: &[String]) -> Vec<&str> {
    let name = |line: &String| line.split(' ').next().map(str::len);
    kept.iter()
        .map(|line| &line[..name(line).unwrap_or(0)])
        .collect()
}

const NOW: &str = "2027-01-01T00:00:00Z";

#[test]
fn last_ones_and_the_newest_stay() {
    let all = daily("2026-03", 5);
    let policy = Policy {
        last: 2,
        ..Policy::default()
    };
    assert_eq!(kept(&all, &policy, NOW), ["s4 last", "s5 newest,last"]);
    let policy = Policy {
        tags: vec!["none".into()],
        ..Policy::default()
    };
    assert_eq!(kept(&all, &policy, NOW), ["s5 newest"]);
}

#[test]
fn the_last_of_each_stretch_of_the_calendar_stays() {
    let all = daily("2026-03", 70); // 1 March (a Sunday) to 9 May
    let policy = Policy {
        daily: 3,
        weekly: 2,
        monthly: 3,
        yearly: 5,
        ..Policy::default()
    };
    assert_eq!(
        kept(&all, &policy, NOW),
        [
            "s31 monthly", // 31 March
            "s61 monthly", // 30 April
            "s64 weekly",  // Sunday, 3 May
            "s68 daily",
            "s69 daily",
            "s70 newest,daily,weekly,monthly,yearly",
        ]
    );
}

#[test]
fn hours_and_iso_weeks_across_a_new_year() {
    let all = [
        snapshot(1, "h", "2026-12-31T22:10:00Z", &[]),
        snapshot(2, "h", "2026-12-31T22:50:00Z", &[]),
        snapshot(3, "h", "2026-12-31T23:10:00Z", &[]),
        snapshot(4, "h", "2027-01-01T00:10:00Z", &[]),
    ];
    let policy = Policy {
        hourly: 3,
        weekly: 9,
        yearly: 9,
        ..Policy::default()
    };
    assert_eq!(
        kept(&all, &policy, "2027-02-01T00:00:00Z"),
        [
            "s2 hourly",
            "s3 hourly,yearly",
            "s4 newest,hourly,weekly,yearly"
        ]
    );
}

#[test]
fn hosts_and_volumes_are_judged_apart() {
    let mut all = daily("2026-03", 3);
    all.push(snapshot(9, "other", "2026-03-01T12:00:00Z", &[]));
    let mut elsewhere = snapshot(1, "host", "2026-03-01T12:00:00Z", &[]);
    elsewhere.volume = "streams".to_owned();
    all.push(elsewhere);
    let policy = Policy {
        last: 1,
        ..Policy::default()
    };
    assert_eq!(
        kept(&all, &policy, NOW),
        ["s3 newest,last", "s9 newest,last", "s1 newest,last"]
    );
}

#[test]
fn tags_and_ages_keep() {
    let mut all = daily("2026-03", 10);
    all[1].tags.push("release".to_owned());
    let policy = Policy {
        within: Some("48h".parse().expect("a span")),
        tags: vec!["release".into()],
        ..Policy::default()
    };
    assert_eq!(
        kept(&all, &policy, NOW),
        ["s2 tag", "s8 within", "s9 within", "s10 newest,within"]
    );
}

/// A clock was once years ahead: its snapshot and all later ones have the same time.
#[test]
fn a_plateau_is_kept_whole_and_counts_for_no_day() {
    let mut all = daily("2026-03", 10);
    for snapshot in &mut all[5..] {
        snapshot.time = time("2031-05-05T05:05:05Z");
    }
    let policy = Policy {
        daily: 3,
        ..Policy::default()
    };
    let expected = ["s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10"];
    assert_eq!(names(&kept(&all, &policy, NOW)), expected);
    // The result is the same once that time has come, or if the clock that tells now is ahead as
    // well.
    assert_eq!(
        names(&kept(&all, &policy, "2033-01-01T00:00:00Z")),
        expected
    );
}

#[test]
fn one_time_ahead_of_now_counts_for_no_day() {
    let mut all = daily("2026-03", 10);
    all[9].time = time("2031-05-05T05:05:05Z");
    let policy = Policy {
        daily: 2,
        ..Policy::default()
    };
    assert_eq!(
        kept(&all, &policy, NOW),
        ["s8 daily", "s9 daily", "s10 newest,time not sure"]
    );
}

/// The host makes a snapshot and runs `forget` right after, with its clock years ahead.
#[test]
fn a_clock_that_is_ahead_now_ages_nothing() {
    let mut all = daily("2026-03", 30);
    all[29].time = time("2036-03-30T12:00:00Z");
    let policy = Policy {
        within: Some("7d".parse().expect("a span")),
        ..Policy::default()
    };
    let kept_now = kept(&all, &policy, "2036-03-30T12:01:00Z");
    // The jump counts as three days. The week therefore includes four more days, those of the
    // snapshots from the 25th to the 29th.
    assert_eq!(names(&kept_now), ["s25", "s26", "s27", "s28", "s29", "s30"]);
}

#[test]
fn a_clock_that_is_behind_drops_nothing_by_time() {
    let all = daily("2026-03", 10);
    let policy = Policy {
        daily: 1,
        within: Some("1d".parse().expect("a span")),
        ..Policy::default()
    };
    assert_eq!(kept(&all, &policy, "1970-01-01T00:00:00Z").len(), 10);
}

/// Whatever the times are, the snapshots made last stay, in the requested number. A rule by count
/// never depends on a clock.
#[test]
fn counts_never_depend_on_times() {
    let order = [
        "2031-01-01T00:00:00Z",
        "1980-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z",
    ];
    let mut all = daily("2026-03", 4);
    let policy = Policy {
        last: 2,
        ..Policy::default()
    };
    for turn in 0..4 {
        for (position, snapshot) in all.iter_mut().enumerate() {
            snapshot.time = time(order[(position + turn) % 4]);
        }
        let kept = kept(&all, &policy, "2050-01-01T00:00:00Z");
        assert_eq!(names(&kept), ["s3", "s4"], "{kept:?}");
    }
}

#[test]
fn spans_are_read_as_people_write_them() {
    let hours = |text: &str| text.parse::<Span>().map(|span| span.0.as_hours());
    assert_eq!(hours("0s"), Ok(0));
    assert_eq!(hours("12h"), Ok(12));
    assert_eq!(hours("1w2d"), Ok(9 * 24));
    assert_eq!(hours("1y"), Ok(365 * 24));
    for wrong in [
        "",
        "7",
        "d",
        "7x",
        "-1d",
        "9999999999999999999d",
        "99999999999999999y",
    ] {
        assert!(wrong.parse::<Span>().is_err(), "{wrong}");
    }
}

#[test]
fn recovered_snapshots_are_passed_over() {
    let mut made = daily("2026-01", 3);
    let mut recovered = snapshot(9, "host", "2026-01-09T12:00:00Z", &[]);
    recovered.name = "recovered-1".to_owned();
    made.push(recovered);
    let policy = Policy {
        last: 1,
        daily: 1,
        ..Policy::default()
    };
    assert_eq!(
        kept(&made, &policy, "2026-02-01T00:00:00Z"),
        ["s3 newest,last,daily", "recovered-1 recovered"]
    );
}
