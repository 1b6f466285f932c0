//! The end of a mount: how long the store is waited for, and what becomes of what it did not take.
//!
//! Owns: the deadline, which only draws nearer, and the times that the steps after it may take.
//! Does not own: who tells a mount to end (the command line), nor the steps (`writer`).
//!
//! ```text
//!   told ── drain= ──► deadline ── GRACE ──► ── KEEPING ──► ── LEAVING ──► gone
//!                      the store            only if the    into the       out of
//!                      is given up          mount is used  spool          the root
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::volume::Volume;
use crate::volume::error::VolumeError;

/// How long the last commit of a mount may take that is still in use when its deadline passes.
pub const GRACE: Duration = Duration::from_secs(3);

/// How long the spool may take what the store did not, from the deadline on.
pub const KEEPING: Duration = Duration::from_secs(4);

/// How long leaving the root may take after that.
pub const LEAVING: Duration = Duration::from_secs(1);

/// A store that acknowledges nothing for this long while a mount ends is not waited for: what it
/// has not taken goes to the spool meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// Files that are named in the log when they are in neither bucket nor spool; others are counted.
const NAMED_MAX: usize = 100;

/// The instant up to which the end of a mount waits for the store; none until one is set.
/// Clones are the same deadline.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<watch::Sender<Wait>>);

#[derive(Debug, Clone, Copy, Default)]
struct Wait {
    until: Option<Instant>,
    is_over: bool,
}

impl Default for Deadline {
    fn default() -> Self {
        Deadline(Arc::new(watch::Sender::new(Wait::default())))
    }
}

impl Deadline {
    /// A deadline after `limit`, from now on; none without a limit.
    pub fn after(limit: Option<Duration>) -> Self {
        let deadline = Deadline::default();
        if let Some(limit) = limit {
            deadline.draw_to(limit);
        }
        deadline
    }

    /// Draws it to `limit` from now on, unless it is nearer.
    pub fn draw_to(&self, limit: Duration) {
        let until = Instant::now() + limit;
        self.0.send_modify(|wait| {
            wait.until = Some(wait.until.map_or(until, |earlier| earlier.min(until)));
        });
    }

    /// The store is not waited for any more, not even for [`GRACE`].
    pub fn end(&self) {
        self.draw_to(Duration::ZERO);
        self.0.send_modify(|wait| wait.is_over = true);
    }

    /// Whether [`Deadline::end`] was called.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_over
    }

    /// The deadline of a mount that is in use when its own passes.
    pub(super) fn grace(&self) -> Deadline {
        Deadline::after(Some(if self.is_over() {
            Duration::ZERO
        } else {
            GRACE
        }))
    }

    /// Waits until there is a deadline.
    pub async fn is_set(&self) {
        let mut waits = self.0.subscribe();
        // The sender is `self`.
        let _ = waits.wait_for(|wait| wait.until.is_some()).await;
    }

    /// Waits until the deadline is over by `more`, however often it is drawn nearer meanwhile.
    pub async fn passed_by(&self, more: Duration) {
        let mut waits = self.0.subscribe();
        loop {
            let until = waits.borrow_and_update().until;
            let slept = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until + more).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = slept => return,
                // The sender is `self`.
                _ = waits.changed() => {}
            }
        }
    }
}

/// Keeps in the spool what the store does not take, as soon as it stands still. Never ends.
///
/// Dropping it leaves what is in the spool there.
pub(super) async fn keep_ahead(volume: &Volume) -> Infallible {
    let ingest = volume.ingest();
    loop {
        ingest.idle(PATIENCE).await;
        if ingest.spool().is_none() || ingest.keep().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Names in the log what is in neither bucket nor spool when the mount is gone.
pub(super) async fn name_lost(volume: &Volume, why: &VolumeError) {
    // What a failed volume has lost is named already.
    if volume.failure().is_some() {
        return;
    }
    let (files, beyond) = volume.unsaved(NAMED_MAX).await;
    for file in &files {
        tracing::error!(
            inode = file.inode,
            bytes = file.bytes,
            "not in the bucket, and lost with this mount: {} ({why})",
            file.path
        );
    }
    if beyond > 0 {
        tracing::error!("… {} files in all", files.len() + beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_only_draws_nearer() {
        let deadline = Deadline::default();
        let begin = Instant::now();
        let told = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            deadline.draw_to(Duration::from_secs(60));
            deadline.draw_to(Duration::from_secs(10));
            deadline.draw_to(Duration::from_secs(600));
        };
        let ((), ()) = tokio::join!(told, deadline.passed_by(Duration::from_secs(2)));
        assert_eq!(begin.elapsed(), Duration::from_secs(13));
        assert!(!deadline.0.borrow().is_over);
        deadline.end();
        deadline.grace().passed_by(Duration::ZERO).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(13));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_deadline_nothing_passes() {
        let deadline = Deadline::after(None);
        let passed = tokio::time::timeout(Duration::from_secs(9999), deadline.passed_by(GRACE));
        assert!(passed.await.is_err());
    }
}
