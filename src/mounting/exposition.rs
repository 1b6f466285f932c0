//! The text of `.bkfs/metrics`, as Prometheus reads it.
//!
//! Owns the form: HELP and TYPE of each family, names of counters, histograms. Does not own the
//! values (`control`).

use std::fmt::{Display, Write};

use bkfs_chunker::metrics::{Kind, Measure};

use crate::volume::state_lock::{HOLD_LIMITS_US, Holds};

/// The text so far.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Returns the text.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Adds a value that only grows. `_total` is added to its name.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("bkfs_{name}_total");
        self.family(&name, "counter", help);
        self.sample(&name, value);
    }

    /// Adds a value of this moment.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        let name = format!("bkfs_{name}");
        self.family(&name, "gauge", help);
        self.sample(&name, value);
    }

    /// Adds a value of the content store.
    pub fn measure(&mut self, measure: &Measure) {
        match measure.kind {
            Kind::Counter => self.counter(measure.name, measure.help, measure.value),
            Kind::Gauge => self.gauge(measure.name, measure.help, measure.value),
        }
    }

    /// Adds the histogram of how long the state of the volume was locked, and the longest hold.
    pub fn holds(&mut self, holds: &Holds) {
        let name = "bkfs_state_lock_hold_seconds";
        let help = "How long one operation kept all others of the volume waiting.";
        self.family(name, "histogram", help);
        let mut count = 0;
        for (number, class) in holds.counts.iter().enumerate() {
            count += class;
            let limit = HOLD_LIMITS_US.get(number).map_or_else(
                || "+Inf".to_owned(),
                |limit_us| (*limit_us as f64 / 1e6).to_string(),
            );
            self.sample(&format!("{name}_bucket{{le=\"{limit}\"}}"), count);
        }
        self.sample(&format!("{name}_sum"), holds.total.as_secs_f64());
        self.sample(&format!("{name}_count"), count);
        let help = "The longest of these times since the mount began.";
        let longest = holds.longest.as_secs_f64();
        self.gauge("state_lock_longest_hold_seconds", help, longest);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_family_has_its_help_and_type_before_its_value() {
        let mut text = Exposition::default();
        text.counter("bytes_in", "What came \\ in.", 7);
        text.gauge("inodes", "Inodes now.", 3);
        assert_eq!(
            text.into_text(),
            "# HELP bkfs_bytes_in_total What came \\\\ in.\n# TYPE bkfs_bytes_in_total counter\n\
             bkfs_bytes_in_total 7\n\
             # HELP bkfs_inodes Inodes now.\n# TYPE bkfs_inodes gauge\nbkfs_inodes 3\n"
        );
    }

    #[test]
    fn only_what_grows_is_a_counter() {
        let mut text = Exposition::default();
        let metrics = bkfs_chunker::metrics::Metrics::default();
        metrics
            .measures()
            .iter()
            .for_each(|measure| text.measure(measure));
        let text = text.into_text();
        for line in [
            "# TYPE bkfs_bytes_in_total counter",
            "# TYPE bkfs_pending_bytes gauge",
            "# TYPE bkfs_spool_waiting_bytes gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn holds_are_a_histogram_of_prometheus() {
        let mut holds = Holds {
            total: Duration::from_millis(70),
            longest: Duration::from_millis(60),
            ..Holds::default()
        };
        holds.counts[0] = 5;
        holds.counts[4] = 2;
        holds.counts[HOLD_LIMITS_US.len()] = 1;
        let mut exposition = Exposition::default();
        exposition.holds(&holds);
        let text = exposition.into_text();
        let lines: Vec<&str> = text.lines().collect();
        let bucket = |limit: &str, count: u64| {
            format!("bkfs_state_lock_hold_seconds_bucket{{le=\"{limit}\"}} {count}")
        };
        for line in [
            bucket("0.00001", 5),
            bucket("0.0005", 5),
            bucket("0.001", 7),
            bucket("0.25", 7),
            bucket("+Inf", 8),
            "bkfs_state_lock_hold_seconds_count 8".to_owned(),
            "bkfs_state_lock_hold_seconds_sum 0.07".to_owned(),
            "bkfs_state_lock_longest_hold_seconds 0.06".to_owned(),
        ] {
            assert!(lines.contains(&line.as_str()), "{line}: {text}");
        }
        assert_eq!(lines.len(), HOLD_LIMITS_US.len() + 8);
    }
}
