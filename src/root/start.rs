//! The root on which a change is first tried.
//!
//! Owns: when a root that was read before the change counts as the newest. Does not own: how it is
//! read (`early`), nor what the change does with it (`handle`). Whichever it is, only a replacement
//! of the version that was read makes the change.

use super::error::RootError;
use super::view::RootView;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The age up to which a root that was read early counts as the newest.
const EARLY_MAX: Duration = Duration::from_secs(1);

/// A root that was read for a change that is made soon.
#[derive(Debug)]
pub struct EarlyRoot {
    pub(super) view: Arc<RootView>,
    /// When it was read.
    pub(super) read: Instant,
}

/// The outcome of an early read: none if nothing was read.
pub type EarlyRead = Result<Option<EarlyRoot>, RootError>;

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
