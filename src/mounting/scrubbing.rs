//! The scrubbing of a mount: all packs of its repository are read and verified in the background
//! (`-o scrub=RATE`).
//!
//! Owns: the parts of a mount that scrubbing needs, and its end together with the mount. Does not
//! own: the reading (`maintain::scrub`). If the store fails, scrubbing pauses. A failure of
//! scrubbing ends only scrubbing.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::verify::{Verifier, VerifierConfig};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::exposition::Exposition;
use crate::maintain::quarantine;
use crate::maintain::scrub::{Facts, PositionFile, Scrubber, Surroundings};
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::state::HolderInfo;

/// The mount point that its sessions state. Such a session exists while damage is put in
/// quarantine.
const MOUNT_POINT: &str = "scrubbing";

/// Memory for packs in process, in bytes. A larger pack is processed alone.
const MEMORY_BYTES: u64 = 32 << 20;

/// A running scrub. Dropping it ends the scrub.
pub(super) struct Scrubbing {
    facts: Arc<Mutex<Facts>>,
    task: JoinHandle<()>,
}

impl Drop for Scrubbing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scrubbing {
    /// Starts scrubbing at `rate` bytes per second. The position is saved below `state_dir`, if
    /// there is one. If `read_only`, nothing is written to the repository.
    ///
    /// # Errors
    /// [`RootError::Content`] (internal) if no worker threads can be started.
    pub(super) fn begin(
        repository: &Arc<Repository>,
        rate: u64,
        state_dir: Option<&Path>,
        read_only: bool,
        runtime: &Handle,
    ) -> Result<Self, RootError> {
        let content_store = &repository.content_store;
        let config = VerifierConfig {
            downloads: 1,
            workers: content_store.config().workers.min(1),
            memory_bytes: MEMORY_BYTES,
            timeout_ms: content_store.config().timeout_ms,
        };
        let keyring = content_store.keyring().clone();
        let verifier = Verifier::new(
            content_store.store().clone(),
            keyring.clone(),
            repository.environment.entropy.clone(),
            &config,
        )?;
        let facts = Arc::new(Mutex::new(Facts::default()));
        let scrubber = Scrubber {
            handle: repository.handle.clone(),
            lists: repository.lists.clone(),
            verifier,
            clock: repository.environment.clock.clone(),
            memory: PositionFile::new(state_dir, &keyring.repository().to_string()),
            surroundings: Arc::new(Mount {
                repository: repository.clone(),
                holder: repository.environment.holder(MOUNT_POINT),
                read_only,
            }),
            rate,
            facts: facts.clone(),
        };
        Ok(Self {
            facts,
            task: runtime.spawn(scrubber.run()),
        })
    }

    /// Ends the scrub now.
    pub(super) fn stop(&self) {
        self.task.abort();
    }

    /// Returns the facts about the scrub that the mount shows.
    pub(super) fn facts(&self) -> Facts {
        self.facts.lock().clone()
    }

    /// Adds the metrics of the scrub.
    pub(super) fn expose(&self, text: &mut Exposition) {
        let facts = self.facts();
        text.counter(
            "scrub_verified_bytes",
            "Bytes of packs that were read and verified.",
            facts.verified_bytes,
        );
        for (name, help, value) in [
            (
                "scrub_round_bytes",
                "Bytes that the present round has verified.",
                facts.round_bytes,
            ),
            (
                "scrub_damaged_objects",
                "Damaged packs and index objects that the present round has found.",
                facts.damaged,
            ),
            (
                "scrub_last_round_damaged_objects",
                "Damaged packs and index objects that the last full round found.",
                facts.last_round_damaged,
            ),
            (
                "scrub_last_round_seconds",
                "Unix time in seconds at which the last full round ended; 0 before the first.",
                facts.last_round_seconds(),
            ),
            (
                "quarantined_places",
                "Damaged places of packs in quarantine.",
                facts.quarantined,
            ),
        ] {
            text.gauge(name, help, value);
        }
    }

    /// Returns the facts as JSON.
    pub(super) fn status(&self) -> Value {
        serde_json::to_value(self.facts()).unwrap_or_default()
    }
}

/// The mount, as the scrubber sees it.
struct Mount {
    repository: Arc<Repository>,
    holder: HolderInfo,
    read_only: bool,
}

#[async_trait]
impl Surroundings for Mount {
    async fn quarantine(&self, places: &[PackLocation]) -> Result<bool, RootError> {
        if self.read_only {
            return Ok(false);
        }
        let repository = &self.repository;
        quarantine::add(
            &repository.handle,
            &repository.lists,
            &repository.content_store,
            self.holder.clone(),
            repository.environment.processes.as_ref(),
            places,
        )
        .await?;
        Ok(true)
    }

    fn traffic_bytes(&self) -> u64 {
        let metrics = self.repository.content_store.metrics();
        metrics.bytes_in + metrics.bytes_fetched
    }
}
