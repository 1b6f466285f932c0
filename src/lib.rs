//! The filesystem and its history.
//!
//! The pure part is `tree`, `extents` and `retain`. The live volume is `volume`, and `vfs`
//! implements the requests of the kernel. ARCHITECTURE.md describes all modules.

pub mod acquaintance;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod config;
pub mod dump;
pub mod environment;
pub mod exposition;
pub mod extents;
pub mod fault;
pub mod glob;
pub mod hydration;
pub mod json_name;
pub mod locking;
mod logging;
pub mod maintain;
pub mod mounting;
pub mod outage;
mod own_directory;
pub mod page;
mod places;
pub mod printable;
mod private;
pub mod put_tree;
pub mod replicate;
pub mod repository;
pub mod restore;
pub mod retain;
pub mod root;
pub mod schedule;
pub mod stats;
pub mod stream;
pub mod trace;
pub mod tree;
pub mod units;
pub mod vfs;
pub mod volume;
pub mod volumes;
pub mod walk;
pub mod when;
