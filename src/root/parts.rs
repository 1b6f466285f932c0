//! What a process needs to read and replace the root.
//!
//! Owns [`RootParts`]. [`super::handle`] does the reading and replacing.

use super::memory::GenerationMemory;
use super::retry::RetryPolicy;
use bkfs_chunker::crypto::Keyring;
use bkfs_store::Store;
use bkfs_store::entropy::Entropy;
use std::sync::Arc;

/// Parameters of a [`RootHandle`](super::handle::RootHandle).
#[derive(Clone, Debug)]
pub struct RootParts {
    /// The bucket.
    pub store: Arc<dyn Store>,
    /// The repository's keys.
    pub keyring: Keyring,
    /// Source of salts, nonces and jitter.
    pub entropy: Arc<dyn Entropy>,
    /// This machine's memory of the repository.
    pub memory: Arc<dyn GenerationMemory>,
    /// Timeouts and back-off.
    pub policy: RetryPolicy,
    /// Accept and remember the root as it is found, whatever this machine remembers.
    pub accept_rollback: bool,
}
