//! Moments as people write them: `2026-11-23`, `yesterday`, `3 days ago`. Pure.
//!
//! Owns the forms. The time of day is an argument. All dates are in UTC, as bkfs shows them.

use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};

use crate::units::{LetterM, stretch};

/// The forms, for messages about others.
pub const FORMS: &str =
    "2026-11-23, 2026-11-23 10:00 (UTC), 2026-11-23T10:00:00Z, today, yesterday or 3d (ago)";

/// A moment: an instant, or a day in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// The instant, or the beginning of the day.
    pub first: Timestamp,
    /// The instant, or the end of the day.
    pub last: Timestamp,
}

impl When {
    /// Parses a moment: RFC 3339; a date, with a time or without; `now`, `today`, `yesterday`; a
    /// stretch of time before `now`.
    pub fn parse(text: &str, now: Timestamp) -> Option<When> {
        let text = text.trim();
        if let Ok(instant) = text.parse::<Timestamp>() {
            return Some(When::at(instant));
        }
        let today: Date = now.strftime("%Y-%m-%d").to_string().parse().ok()?;
        match text {
            "now" => return Some(When::at(now)),
            "today" => return When::on(today),
            "yesterday" => return When::on(today.yesterday().ok()?),
            _ => {}
        }
        let ago = text.strip_suffix("ago").unwrap_or(text);
        if let Some(seconds) = stretch(ago, LetterM::Months) {
            let back = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
            return now.checked_sub(back).ok().map(When::at);
        }
        match text.contains(':') {
            true => in_utc(text.parse().ok()?).map(When::at),
            false => When::on(text.parse().ok()?),
        }
    }

    fn at(instant: Timestamp) -> When {
        When {
            first: instant,
            last: instant,
        }
    }

    fn on(day: Date) -> Option<When> {
        Some(When {
            first: in_utc(day.at(0, 0, 0, 0))?,
            last: in_utc(day.at(23, 59, 59, 999_999_999))?,
        })
    }
}

/// Returns a name with a moment in it, in UTC: `%F` becomes the date, `%T` the time, `%%` a percent
/// sign; strftime(3) has the others.
///
/// # Errors
/// What is wrong with the name.
pub fn filled(template: &str, moment: Timestamp) -> Result<String, String> {
    jiff::fmt::strtime::format(template, moment).map_err(|error| error.to_string())
}

/// Returns the instant at which clocks in UTC show this.
fn in_utc(time: DateTime) -> Option<Timestamp> {
    format!("{time}Z").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_moment_in_them() {
        let moment: Timestamp = "2026-11-05T08:30:00Z".parse().unwrap();
        let filled = |template| filled(template, moment);
        assert_eq!(filled("mon-%F").unwrap(), "mon-2026-11-05");
        assert_eq!(filled("%Y.%m.%d_%H%M").unwrap(), "2026.11.05_0830");
        assert_eq!(filled("half-50%%").unwrap(), "half-50%");
        assert_eq!(filled("plain").unwrap(), "plain");
        filled("%").unwrap_err();
        filled("%!").unwrap_err();
    }

    #[test]
    fn moments_are_read_as_people_write_them() {
        let now: Timestamp = "2026-11-25T18:30:00Z".parse().unwrap();
        let shown = |text: &str| {
            let when = When::parse(text, now).unwrap_or_else(|| panic!("{text}"));
            (when.first.to_string(), when.last.to_string())
        };
        for (text, instant) in [
            ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"),
            ("2026-11-20T10:00:00+02:00", "2026-11-20T08:00:00Z"),
            ("2026-11-20 10:00", "2026-11-20T10:00:00Z"),
            ("2026-11-20 10:00:30", "2026-11-20T10:00:30Z"),
            ("2026-11-20T10:00", "2026-11-20T10:00:00Z"),
            ("now", "2026-11-25T18:30:00Z"),
            ("3d", "2026-11-22T18:30:00Z"),
            ("3 days ago", "2026-11-22T18:30:00Z"),
            ("12h ago", "2026-11-25T06:30:00Z"),
        ] {
            assert_eq!(
                shown(text),
                (instant.to_owned(), instant.to_owned()),
                "{text}"
            );
        }
        for (text, day) in [
            ("2026-11-23", "2026-11-23"),
            ("today", "2026-11-25"),
            ("yesterday", "2026-11-24"),
        ] {
            let whole = (
                format!("{day}T00:00:00Z"),
                format!("{day}T23:59:59.999999999Z"),
            );
            assert_eq!(shown(text), whole, "{text}");
        }
        for text in [
            "",
            "soon",
            "2026-13-01",
            "2026-11-31",
            "11/23/2026",
            "3",
            "ago",
            "25:00",
        ] {
            assert_eq!(When::parse(text, now), None, "{text}");
        }
    }
}
