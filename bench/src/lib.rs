//! Whole workloads of bkfs and of its peers, and the code that they share.

pub mod context;
pub mod data;
pub mod disk;
pub mod far_mount;
pub mod floor;
pub mod format;
pub mod loop_disk;
pub mod measure;
pub mod null_fs;
pub mod output;
pub mod peers;
pub mod plot;
pub mod program;
pub mod proxy;
pub mod report;
pub mod server;
pub mod servers;
pub mod suites;
pub mod targets;
pub mod threads;
pub mod verify;

/// An error, for the person who started the benchmark.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of a fallible function of this crate.
pub type Outcome<T> = Result<T, Failure>;
