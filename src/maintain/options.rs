//! Options and progress of a check.
//!
//! Owns what the caller states, and the counters that the caller may watch. Does not own what a
//! check does with them ([`super::check`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::verify::VerifierConfig;
use bkfs_store::entropy::{Entropy, SystemEntropy};
use jiff::Timestamp;

use super::sample::Sample;
use super::workspace::Workspace;
use crate::root::memory::GenerationMemory;
use crate::root::retry::RetryPolicy;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// How much of the data is read.
    pub data: Sample,
    /// This machine's memory of the repository; `None` compares with nothing.
    pub memory: Option<Arc<dyn GenerationMemory>>,
    /// The oldest generation that is accepted.
    pub min_generation: u64,
    /// Accept the root as it is found, whatever this machine remembers.
    pub accept_rollback: bool,
    /// This machine's sightings of snapshots, and the time of day. A repair that condemns packs
    /// keeps vanished snapshots by them; without them it knows of none.
    pub seen: Option<(PathBuf, Timestamp)>,
    /// A repair gives up forgotten snapshots of which objects that collections need are unreadable.
    pub gives_up: bool,
    /// Source of jitter.
    pub entropy: Arc<dyn Entropy>,
    /// Timeouts and back-off.
    pub policy: RetryPolicy,
    /// Concurrency of pack reads; 0 workers for simulations.
    pub verifier: VerifierConfig,
    /// Where working data may be, and how much of it stays in memory.
    pub workspace: Workspace,
    /// Progress, for observers.
    pub progress: Arc<CheckProgress>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            data: Sample::Structure,
            memory: None,
            min_generation: 0,
            accept_rollback: false,
            seen: None,
            gives_up: false,
            entropy: Arc::new(SystemEntropy),
            policy: RetryPolicy::default(),
            verifier: VerifierConfig::default(),
            workspace: Workspace::default(),
            progress: Arc::default(),
        }
    }
}

impl CheckOptions {
    /// Options that read every byte in the calling task, for tests and simulations.
    pub fn oracle() -> Self {
        Self {
            data: Sample::All,
            verifier: VerifierConfig {
                workers: 0,
                ..VerifierConfig::default()
            },
            ..Self::default()
        }
    }
}

/// Progress of a check.
#[derive(Debug, Default)]
pub struct CheckProgress {
    /// Bytes of packs that are done.
    pub done_bytes: AtomicU64,
    /// Bytes of all packs; 0 until they are known.
    pub total_bytes: AtomicU64,
    /// Blobs that were restored from another repository.
    pub healed_blobs: AtomicU64,
    /// Their bytes.
    pub healed_bytes: AtomicU64,
}

impl CheckProgress {
    /// Adds bytes that were read and verified.
    pub fn verified(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes as done that need not be read.
    pub fn passed(&self, bytes: u64) {
        self.verified(bytes);
    }

    /// Counts a blob of this length, in bytes, that was restored from another repository.
    pub fn healed(&self, bytes: u64) {
        self.healed_blobs.fetch_add(1, Ordering::Relaxed);
        self.healed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
