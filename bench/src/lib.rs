//! Whole workloads, bkfs beside its peers, and what they share.

pub mod context;
pub mod data;
pub mod floor;
pub mod measure;
pub mod null_fs;
pub mod peers;
pub mod plot;
pub mod program;
pub mod proxy;
pub mod report;
pub mod servers;
pub mod suites;
pub mod targets;
pub mod verify;

/// What went wrong, for the person who started the benchmark.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A result of anything here.
pub type Outcome<T> = Result<T, Failure>;
