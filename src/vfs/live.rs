//! What the root of a mount shows at present.
//!
//! Owns: the one place where it is exchanged, when a mount that lost something goes on from its last commit. Does not own: when that happens (`mounting`).

use std::sync::Arc;

use parking_lot::RwLock;

use crate::vfs::special::History;
use crate::volume::Volume;
use crate::volume::view::View;

/// A tree, and who may change it.
#[derive(Clone)]
pub struct Live {
    /// What the root of the mount shows.
    pub view: View,
    /// The volume, if the mount is writable.
    pub volume: Option<Arc<Volume>>,
    /// The snapshots; none in a mount of one snapshot.
    pub history: Option<Arc<dyn History>>,
}

/// The present one, shared by all who ask.
pub struct Current(RwLock<Live>);

impl Current {
    /// Begins with `live`.
    pub fn new(live: Live) -> Arc<Current> {
        Arc::new(Current(RwLock::new(live)))
    }

    /// What the root of the mount shows.
    pub fn view(&self) -> View {
        self.0.read().view.clone()
    }

    /// The volume, if the mount is writable.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.0.read().volume.clone()
    }

    /// The snapshots, if they are shown.
    pub fn history(&self) -> Option<Arc<dyn History>> {
        self.0.read().history.clone()
    }

    /// From now on it is `live`. Requests that are under way end with what they began with.
    pub fn replace(&self, live: Live) {
        *self.0.write() = live;
    }
}
