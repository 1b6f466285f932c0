//! Reads that are not waited for, because the spool would take what waits for them.
//!
//! Owns the time limit, and the pause after a read that took too long. Does not own what is done
//! without the read.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::volume::error::VolumeError;

/// Time limit for a read.
const BRIEF: Duration = Duration::from_secs(2);

/// How long nothing is waited for after a read took too long: otherwise each of many files would
/// wait once more.
const PAUSE: Duration = Duration::from_secs(10);

/// Limits the time of reads.
#[derive(Debug, Default)]
pub(super) struct BriefReads {
    pauses_until: Mutex<Option<Instant>>,
}

impl BriefReads {
    /// Waits for `read`, which reads the tree or stored bytes. Returns none if the store does not
    /// answer in time. For a while after that, only what is in memory is read.
    ///
    /// Cancel safety: dropped, it drops `read`.
    ///
    /// # Errors
    /// Those of `read` that do not come from the store.
    pub(super) async fn read<T>(
        &self,
        read: impl Future<Output = Result<T, VolumeError>>,
    ) -> Result<Option<T>, VolumeError> {
        let limit = self.limit();
        match timeout(limit, read).await {
            Ok(Ok(read)) => return Ok(Some(read)),
            Ok(Err(error)) if !is_of_the_store(&error) => return Err(error),
            Ok(Err(_)) | Err(_) => {}
        }
        if limit > Duration::ZERO {
            *self.pauses_until.lock() = Some(Instant::now() + PAUSE);
        }
        Ok(None)
    }

    /// Waits for another task, which may read. Returns none if that takes too long.
    pub(super) async fn wait<T>(&self, other: impl Future<Output = T>) -> Option<T> {
        timeout(self.limit(), other).await.ok()
    }

    /// Returns true for a while after a read took too long.
    pub(super) fn are_pausing(&self) -> bool {
        let until = *self.pauses_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns how long may be waited now.
    fn limit(&self) -> Duration {
        match self.are_pausing() {
            true => Duration::ZERO,
            false => BRIEF,
        }
    }
}

fn is_of_the_store(error: &VolumeError) -> bool {
    matches!(error, VolumeError::ContentStore(error) if error.is_of_the_store())
}
