//! How far a copy of snapshots is, for a progress display.

use std::sync::atomic::AtomicU64;

/// Counters of a copy in progress.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Bytes of contents translated.
    pub bytes: AtomicU64,
    /// Items of trees translated.
    pub items: AtomicU64,
}
