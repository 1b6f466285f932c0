//! The target figures of `bkfs put` of a file on many cores.

use super::verdict::{Verdict, verdict};
use crate::report::Report;

/// Returns them.
pub(super) fn of_cores(report: &Report) -> Vec<Verdict> {
    let part = |name| report.figures.get(&serial_part(name)).copied();
    let wanted = |name, least: f64| {
        let rate = report.figures.get(&rate(name, 48)).copied();
        rate.map(|rate| least / rate)
    };
    vec![
        verdict(
            "bkfs put of incompressible content: the part of one thread, in one core's time",
            0.02,
            0.02,
            part("noise"),
        ),
        verdict(
            "bkfs put of pages: the part of one thread, in one core's time",
            0.02,
            0.02,
            part("pages"),
        ),
        verdict(
            "20 GiB/s ÷ the rate of incompressible content on 48 cores, by Amdahl's law",
            1.0,
            1.0,
            wanted("noise", 20.0),
        ),
        verdict(
            "10 GiB/s ÷ the rate of pages on 48 cores, by Amdahl's law",
            1.0,
            1.0,
            wanted("pages", 10.0),
        ),
    ]
}

/// Name of a figure: the time of the thread that reads and of the one that hands blocks on, divided
/// by that of all threads, on one core and without the opening.
pub(crate) fn serial_part(content: &str) -> String {
    format!("cores: {content}, part of one core's time that only one thread can do")
}

/// Name of a figure: what many cores would store, from the times on one core.
pub(crate) fn rate(content: &str, cores: u32) -> String {
    format!("cores: {content}, GiB/s on {cores} cores by Amdahl's law")
}
