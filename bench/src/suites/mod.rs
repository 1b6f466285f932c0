//! The suites, by name.

use std::path::Path;

use crate::Outcome;
use crate::context::Context;
use crate::measure::Run;

pub(crate) mod files;
mod index;
mod latency;
mod mariadb;
mod micro;
mod stream;

/// A function that runs a suite with its context.
pub type Suite = fn(&mut Context) -> Outcome<()>;

/// Every suite, in the order in which `all` runs them.
pub const SUITES: [(&str, Suite); 6] = [
    ("mariadb", mariadb::run),
    ("stream", stream::run),
    ("files", files::run),
    ("latency", latency::run),
    ("micro", micro::run),
    ("index", index::run),
];

/// Returns the same run, marked as verified.
fn verified(run: Run) -> Run {
    Run {
        verified: true,
        ..run
    }
}

/// Returns a path as an argument. All paths here are the benchmark's own and need no quoting.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
