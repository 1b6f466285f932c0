//! One target figure.

use serde::Serialize;

/// A target figure and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Description of the measurement.
    pub measure: &'static str,
    /// The figure must not be above this.
    pub limit: f64,
    /// The figure should not be above this.
    pub aim: f64,
    /// The measured figure; `None` if a suite or a peer was missing.
    pub measured: Option<f64>,
}

impl Verdict {
    /// Returns the result in words.
    pub fn word(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(figure) if figure <= self.aim => "pass, aim reached",
            Some(figure) if figure <= self.limit => "pass",
            Some(_) => "miss",
        }
    }
}

/// Returns the target figure of these limits.
pub(super) fn verdict(
    measure: &'static str,
    limit: f64,
    aim: f64,
    measured: Option<f64>,
) -> Verdict {
    Verdict {
        measure,
        limit,
        aim,
        measured,
    }
}
