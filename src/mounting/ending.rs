//! The end of a mount: how long it waits for the store, and where unsent data goes.
//!
//! Owns: the deadline, which is only ever moved earlier, and the time limits of the steps after it.
//! Does not own: the request to end (the command line), the steps themselves (`writer`).
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

/// Time limit of the last commit of a mount that is still in use when its deadline passes.
pub const GRACE: Duration = Duration::from_secs(3);

/// Time limit, counted from the deadline, for writing unsent data to the spool.
pub const KEEPING: Duration = Duration::from_secs(4);

/// Time limit for leaving the root, after [`KEEPING`].
pub const LEAVING: Duration = Duration::from_secs(1);

/// Time without an acknowledgement after which an ending mount writes unsent data to the spool. It
/// still waits for the store until the deadline.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of files that the log names when they are in neither bucket nor spool. Further
/// files are only counted.
const NAMED_MAX: usize = 100;

/// The instant up to which the end of a mount waits for the store. It is unset at first. Clones
/// share one deadline.
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
    /// Returns a deadline that passes `limit` after now; unset if `limit` is `None`.
    pub fn after(limit: Option<Duration>) -> Self {
        let deadline = Deadline::default();
        if let Some(limit) = limit {
            deadline.draw_to(limit);
        }
        deadline
    }

    /// Moves the deadline to `limit` after now, unless it is earlier already.
    pub fn draw_to(&self, limit: Duration) {
        let until = Instant::now() + limit;
        self.0.send_modify(|wait| {
            wait.until = Some(wait.until.map_or(until, |earlier| earlier.min(until)));
        });
    }

    /// Ends the wait for the store at once, without [`GRACE`].
    pub fn end(&self) {
        self.draw_to(Duration::ZERO);
        self.0.send_modify(|wait| wait.is_over = true);
    }

    /// Returns true if [`Deadline::end`] was called.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_over
    }

    /// Returns the deadline of the last commit of a mount that is in use when its own deadline
    /// passes.
    pub(super) fn grace(&self) -> Deadline {
        Deadline::after(Some(if self.is_over() {
            Duration::ZERO
        } else {
            GRACE
        }))
    }

    /// Waits until a deadline is set.
    pub async fn is_set(&self) {
        let mut waits = self.0.subscribe();
        // The sender is `self`, so this cannot fail.
        let _ = waits.wait_for(|wait| wait.until.is_some()).await;
    }

    /// Waits until `more` after the deadline. Follows the deadline if it is moved earlier
    /// meanwhile.
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
                // The sender is `self`, so this cannot fail.
                _ = waits.changed() => {}
            }
        }
    }
}

/// Writes unsent data to the spool each time that the store has acknowledged nothing for
/// [`PATIENCE`]. Without a spool, or after an error of it, only waits. Never returns.
///
/// Cancel safety: dropped, it removes nothing from the spool.
pub(super) async fn keep_ahead(volume: &Volume) -> Infallible {
    let ingest = volume.ingest();
    loop {
        ingest.idle(PATIENCE).await;
        if ingest.spool().is_none() || ingest.keep().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Logs the files that are in neither bucket nor spool when the mount ends.
pub(super) async fn name_lost(volume: &Volume, why: &VolumeError) {
    // The log already names the files that a failed volume has lost.
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
