//! Sizes and stretches of time as people write them. Pure.
//!
//! Owns the numbers and the words for units. Does not own which values an option takes.

/// What the letter `m` stands for: minutes where programs wait, months where backups are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterM {
    /// Minutes.
    Minutes,
    /// Months of 30 days.
    Months,
}

/// Returns a size in bytes: `4096`, `512M`, `1.5G`, `10 GiB`, `1TB`.
///
/// K, M, G, T and P, alone or as KiB and so on, are powers of 1024. KB, MB, GB, TB and PB are
/// powers of 1000. Upper and lower case mean the same. A part of a byte is left out.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit, rest) = token(text.trim())?;
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.as_str() {
        "" | "b" => return (rest.is_empty()).then(|| scaled(number, 1))?,
        unit => match (unit.get(..1)?, unit.get(1..)?) {
            (prefix, "" | "i" | "ib") => (prefix, 1024_u64),
            (prefix, "b") => (prefix, 1000),
            _ => return None,
        },
    };
    let power = "kmgtp".find(prefix)? as u32 + 1;
    rest.is_empty().then(|| scaled(number, base.pow(power)))?
}

/// Returns bytes per second: a size, which may end in `/s`.
pub fn rate(text: &str) -> Option<u64> {
    let text = text.trim();
    size(text.strip_suffix("/s").unwrap_or(text))
}

/// Returns a stretch of time in seconds: `90s`, `12h`, `7d`, `7 days`, `1.5h`, or several in a row.
/// A month has 30 days and a year 365.
pub fn stretch(text: &str, letter_m: LetterM) -> Option<u64> {
    let mut seconds: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, unit, left) = token(rest)?;
        seconds = seconds.checked_add(scaled(number, seconds_of(unit, letter_m)?)?)?;
        rest = left;
    }
    Some(seconds)
}

fn seconds_of(unit: &str, letter_m: LetterM) -> Option<u64> {
    const MINUTE: u64 = 60;
    const DAY: u64 = 86_400;
    Some(match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" if letter_m == LetterM::Minutes => MINUTE,
        "min" | "mins" | "minute" | "minutes" => MINUTE,
        "h" | "hour" | "hours" => 60 * MINUTE,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => 7 * DAY,
        "m" | "month" | "months" => 30 * DAY,
        "y" | "year" | "years" => 365 * DAY,
        _ => return None,
    })
}

/// Returns the number that `text` begins with, the word that follows it, and the rest. Spaces
/// between them do not count.
fn token(text: &str) -> Option<(&str, &str, &str)> {
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let number = text.find(|letter| !is_number(letter)).unwrap_or(text.len());
    let (number, after) = text.split_at(number);
    let after = after.trim_start();
    let word = after.find(|letter: char| !letter.is_ascii_alphabetic());
    let (word, rest) = after.split_at(word.unwrap_or(after.len()));
    (!number.is_empty()).then_some((number, word, rest.trim_start()))
}

/// Returns a decimal number times `unit`, without what is behind the point.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    /// The most digits behind a point that count.
    const DIGITS_MAX: usize = 15;
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    if fraction.len() > DIGITS_MAX || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let value = digits.checked_mul(u128::from(unit))? / 10_u128.pow(fraction.len() as u32);
    u64::try_from(value).ok()
}

/// Returns a number of bytes for people: three digits, binary units.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{count} B"),
        (_, value) if value < 10.0 => format!("{value:.2} {}", units[unit]),
        (_, value) if value < 100.0 => format!("{value:.1} {}", units[unit]),
        (_, value) => format!("{value:.0} {}", units[unit]),
    }
}

/// Returns how long ago something was, for people: the largest unit alone.
pub fn age(seconds: u64) -> String {
    format!("{} ago", duration(seconds))
}

/// Returns how long something takes, for people: the largest unit alone.
pub fn duration(seconds: u64) -> String {
    let units = [
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let found = units.iter().find(|(length, _)| seconds >= *length);
    let (length, unit) = found.copied().unwrap_or((1, "second"));
    let count = seconds / length;
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("2k", 2048),
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("10 GiB", 10 << 30),
            ("10gi", 10 << 30),
            ("1TB", 1_000_000_000_000),
            ("1 tb", 1_000_000_000_000),
            ("2.5 MB", 2_500_000),
            ("1P", 1 << 50),
            ("0.3K", 307),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        let wrong = [
            "",
            "M",
            "1.",
            "1..5G",
            "1.5.2G",
            "-1",
            "1X",
            "1GG",
            "1G 2M",
            "1 2",
            "0x10",
            "1,5G",
            "18446744073709551616",
            "18446744073709551615T",
            "G1",
            "1é",
        ];
        for text in wrong {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(size("18446744073709551615"), Some(u64::MAX));
        assert_eq!(rate("5M/s"), Some(5 << 20));
        assert_eq!(rate("5MB"), Some(5_000_000));
    }

    #[test]
    fn stretches_are_read_as_people_write_them() {
        let minutes = |text| stretch(text, LetterM::Minutes);
        let months = |text| stretch(text, LetterM::Months);
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("12h", 43_200),
            ("1.5h", 5400),
            ("7 days", 604_800),
            ("2w", 1_209_600),
            ("1d12h", 129_600),
            ("1 day 12 hours", 129_600),
            ("30min", 1800),
        ] {
            assert_eq!(
                (minutes(text), months(text)),
                (Some(seconds), Some(seconds)),
                "{text}"
            );
        }
        assert_eq!((minutes("6m"), months("6m")), (Some(360), Some(15_552_000)));
        for text in [
            "",
            "7",
            "d",
            "7x",
            "-7d",
            "7d-",
            "1e3s",
            "99999999999999999y",
        ] {
            assert_eq!(minutes(text), None, "{text}");
        }
    }

    #[test]
    fn bytes_have_three_digits() {
        let shown: Vec<String> = [
            0,
            999,
            1000,
            1024,
            10_240,
            1 << 20,
            123 << 20,
            1000 << 20,
            u64::MAX,
        ]
        .into_iter()
        .map(bytes)
        .collect();
        assert_eq!(
            shown,
            [
                "0 B", "999 B", "0.98 KiB", "1.00 KiB", "10.0 KiB", "1.00 MiB", "123 MiB",
                "0.98 GiB", "16.0 EiB"
            ]
        );
    }

    #[test]
    fn ages_have_one_unit() {
        let shown = [0, 1, 59, 60, 7_199, 7_200, 86_400, 40 * 86_400].map(age);
        let expected = [
            "0 seconds ago",
            "1 second ago",
            "59 seconds ago",
            "1 minute ago",
            "1 hour ago",
            "2 hours ago",
            "1 day ago",
            "40 days ago",
        ];
        assert_eq!(shown, expected);
    }
}
