//! The suites, by name.

use crate::Outcome;
use crate::context::Context;

mod cores;
mod files;
mod idle;
mod index;
mod latency;
mod listing;
pub(crate) mod live;
mod lock;
mod mariadb;
mod micro;
mod names;
mod random_reads;
mod runs;
mod stream;

/// A function that runs a suite with its context.
pub type Suite = fn(&mut Context) -> Outcome<()>;

/// Every suite, in the order in which they run. `all` is all but those [`BY_NAME`].
pub const SUITES: [(&str, Suite); 10] = [
    ("mariadb", mariadb::run),
    ("stream", stream::run),
    ("files", files::run),
    ("latency", latency::run),
    ("micro", micro::run),
    ("index", index::run),
    ("runs", runs::run),
    ("cores", cores::run),
    ("live", live::run),
    ("first-row", live::first::run),
];

/// The suites that take longer than all others together, and run only by their names.
pub const BY_NAME: [&str; 2] = ["live", "first-row"];
