//! Metrics as Prometheus reads them, in the text format of OpenMetrics.
//!
//! ```text
//!   mod          the form: families of values, their help, types, units and labels
//!   repository   the values of a repository, from its root and its list of snapshots
//! ```
//! Does not own the values of a mount (`mounting::control`), nor the encoding (prometheus-client).

use std::fmt;

use bkfs_chunker::metrics::{Kind, Measure};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::volume::state_lock::{HOLD_LIMITS_US, Holds};

pub mod repository;

/// What the name of each family begins with.
const PREFIX: &str = "bkfs";

/// The families so far.
#[derive(Debug, Default)]
pub struct Exposition(Vec<Family>);

/// A value of this moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A number of things, or of bytes.
    Count(u64),
    /// A time in seconds.
    Seconds(f64),
}

impl From<u64> for Number {
    fn from(count: u64) -> Self {
        Number::Count(count)
    }
}

impl From<f64> for Number {
    fn from(seconds: f64) -> Self {
        Number::Seconds(seconds)
    }
}

/// Values of one name.
#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Counter(u64),
    Gauge(Number),
    /// Values by one label: its name, and each of its values with a number.
    Gauges(&'static str, Vec<(String, Number)>),
    Histogram(Holds),
}

impl Exposition {
    /// Returns the text. Each value gets the labels.
    pub fn into_text(self, labels: &[(&'static str, String)]) -> String {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).into(), value.clone().into()));
        let mut registry = Registry::with_prefix_and_labels(PREFIX, labels);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    /// Adds a value that only grows. The text adds `_total` to its name.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help, Values::Counter(value));
    }

    /// Adds a value of this moment.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(name, help, Values::Gauge(value.into()));
    }

    /// Adds values of this moment, each with another value of `label`.
    pub fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: Vec<(String, Number)>,
    ) {
        self.family(name, help, Values::Gauges(label, values));
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
        let help = "How long one operation kept all others of the volume waiting, of one in 17.";
        let histogram = Values::Histogram(holds.clone());
        self.family("state_lock_hold_seconds", help, histogram);
        let help = "The longest of these times since the mount began.";
        let longest = holds.longest.as_secs_f64();
        self.gauge("state_lock_longest_hold_seconds", help, longest);
    }

    fn family(&mut self, name: &str, help: &str, values: Values) {
        self.0.push(Family {
            name: name.to_owned(),
            help: help.to_owned(),
            values,
        });
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let kind = match family.values {
                Values::Counter(_) => MetricType::Counter,
                Values::Gauge(_) | Values::Gauges(..) => MetricType::Gauge,
                Values::Histogram(_) => MetricType::Histogram,
            };
            let metric = encoder.encode_descriptor(&family.name, &family.help, None, kind)?;
            family.values.encode(metric)?;
        }
        Ok(())
    }
}

impl Values {
    fn encode(&self, mut metric: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Values::Counter(value) => metric.encode_counter::<NoLabelSet, _, u64>(value, None),
            Values::Gauge(number) => number.encode(&mut metric),
            Values::Gauges(label, values) => values.iter().try_for_each(|(value, number)| {
                let labels = [(*label, value.as_str())];
                number.encode(&mut metric.encode_family(&labels)?)
            }),
            Values::Histogram(holds) => {
                let limits = HOLD_LIMITS_US.iter().map(|limit_us| *limit_us as f64 / 1e6);
                let limits = limits.chain([f64::INFINITY]);
                let buckets: Vec<_> = limits.zip(holds.counts).collect();
                let count = holds.counts.iter().sum();
                let sum = holds.total.as_secs_f64();
                metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            }
        }
    }
}

impl Number {
    fn encode(self, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Number::Count(count) => metric.encode_gauge(&count),
            Number::Seconds(seconds) => metric.encode_gauge(&seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_family_has_its_help_and_type_before_its_value() {
        let mut text = Exposition::default();
        text.counter("bytes_in", "What came in.", 7);
        text.gauge("inodes", "Inodes now.", 3);
        text.gauge("age_seconds", "An age.", 0.5);
        let volumes = vec![("a \"b\"\n".to_owned(), Number::Count(1))];
        text.gauges("snapshots", "Snapshots.", "volume", volumes);
        assert_eq!(
            text.into_text(&[("repository", "/srv/backup".to_owned())]),
            "# HELP bkfs_bytes_in What came in.\n# TYPE bkfs_bytes_in counter\n\
             bkfs_bytes_in_total{repository=\"/srv/backup\"} 7\n\
             # HELP bkfs_inodes Inodes now.\n# TYPE bkfs_inodes gauge\n\
             bkfs_inodes{repository=\"/srv/backup\"} 3\n\
             # HELP bkfs_age_seconds An age.\n# TYPE bkfs_age_seconds gauge\n\
             bkfs_age_seconds{repository=\"/srv/backup\"} 0.5\n\
             # HELP bkfs_snapshots Snapshots.\n# TYPE bkfs_snapshots gauge\n\
             bkfs_snapshots{repository=\"/srv/backup\",volume=\"a \\\"b\\\"\\n\"} 1\n\
             # EOF\n"
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
        let text = text.into_text(&[]);
        for line in [
            "# TYPE bkfs_bytes_in counter",
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
        let text = exposition.into_text(&[]);
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
        assert_eq!(lines.len(), HOLD_LIMITS_US.len() + 9);
    }
}
