//! The root on which a change is first tried.
//!
//! Owns: when a root that was read before the change counts as the newest. Does not own: what the
//! change does with it (`handle`). Whichever it is, only a replacement of the version that was read
//! makes the change.

use super::error::RootError;
use super::handle::{Applied, RootHandle, Transition};
use super::view::RootView;
use futures::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The age up to which a root that was read early counts as the newest.
const EARLY_MAX: Duration = Duration::from_secs(1);

/// A root that was read for a change that is made soon.
#[derive(Debug)]
pub struct EarlyRoot {
    view: Arc<RootView>,
    /// When it was read.
    read: Instant,
}

/// The root on which a change is first tried.
#[derive(Debug)]
pub(super) enum Start {
    /// One that is read for it.
    Read,
    /// The newest root known.
    Known,
    /// One that was read early, or else one that is read for it.
    Early(Option<EarlyRoot>),
}

impl Start {
    /// Returns the root, unless it must be read. `known` is the newest root known.
    pub(super) fn known(self, known: Arc<RootView>) -> Option<Arc<RootView>> {
        match self {
            Start::Read => None,
            Start::Known => Some(known),
            Start::Early(early) => {
                let is_newest = |early: &EarlyRoot| {
                    early.view.version == known.version && early.read.elapsed() <= EARLY_MAX
                };
                early.filter(is_newest).map(|early| early.view)
            }
        }
    }
}

impl RootHandle {
    /// Awaits the uploads that a change needs, and reads the root for it meanwhile. Returns no root
    /// if it was not read by then, cannot be read, or others change it too: it would change again
    /// before it is needed.
    ///
    /// Cancel safety: that of the uploads.
    pub async fn read_during<T>(&self, uploads: impl Future<Output = T>) -> (T, Option<EarlyRoot>) {
        match select(pin!(uploads), pin!(self.read_early())).await {
            Either::Left((uploaded, _)) => (uploaded, None),
            Either::Right((early, uploads)) => (uploads.await, early),
        }
    }

    async fn read_early(&self) -> Option<EarlyRoot> {
        if !self.is_alone() {
            return None;
        }
        // The change meets the error again.
        let view = self.refresh().await.ok()?;
        let read = Instant::now();
        Some(EarlyRoot { view, read })
    }

    /// Makes a change as [`Self::update`] does, without another read of a root that was read just
    /// now.
    ///
    /// # Errors
    /// Those of [`Self::update`].
    pub async fn update_early<T: Transition>(
        &self,
        early: Option<EarlyRoot>,
        transition: &mut T,
    ) -> Result<Applied<T::Output>, RootError> {
        self.change(transition, Start::Early(early)).await
    }
}
