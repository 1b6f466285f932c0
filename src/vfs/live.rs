//! The tree that the root of a mount shows at present.
//!
//! Owns: the one place where this tree is exchanged when a mount that lost something continues from
//! its last commit; which files lost something at which exchange. Does not own: when an exchange
//! happens, or what was lost (`mounting`).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use bkfs_fuse::Notifier;
use parking_lot::RwLock;

use crate::vfs::special::History;
use crate::volume::Volume;
use crate::volume::view::View;

/// A tree, and the volume that changes it.
#[derive(Clone)]
pub struct Live {
    /// The view of the mount's root.
    pub view: View,
    /// The volume, if the mount is writable.
    pub volume: Option<Arc<Volume>>,
    /// The snapshots; `None` in a mount of one snapshot.
    pub history: Option<Arc<dyn History>>,
}

/// The number of exchanges before a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(u64);

/// The present [`Live`], and what its predecessors lost.
struct Shown {
    live: Live,
    turn: Turn,
    /// Inodes that lost something, each with the turn that its last loss began.
    lost: HashMap<u64, Turn>,
    /// Turns that began with lost inodes of which the kernel may still cache something.
    unsettled: BTreeSet<Turn>,
}

/// The present tree, shared by all requests.
pub struct Current {
    shown: RwLock<Shown>,
    kernel: OnceLock<Notifier>,
}

impl Current {
    /// Returns the first tree, `live`, at turn 0.
    pub fn new(live: Live) -> Arc<Current> {
        Arc::new(Current {
            shown: RwLock::new(Shown {
                live,
                turn: Turn::default(),
                lost: HashMap::new(),
                unsettled: BTreeSet::new(),
            }),
            kernel: OnceLock::new(),
        })
    }

    /// Returns the view of the mount's root.
    pub fn view(&self) -> View {
        self.shown.read().live.view.clone()
    }

    /// Returns the volume, if the mount is writable.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.shown.read().live.volume.clone()
    }

    /// Returns true if the mount is writable.
    pub fn is_writable(&self) -> bool {
        self.shown.read().live.volume.is_some()
    }

    /// Returns true if the mount shows a volume that another machine may change.
    pub fn follows(&self) -> bool {
        let shown = self.shown.read();
        shown.live.volume.is_none() && shown.live.history.is_some()
    }

    /// Returns the snapshots, if the mount shows them.
    pub fn history(&self) -> Option<Arc<dyn History>> {
        self.shown.read().live.history.clone()
    }

    /// Returns the present turn, which a handle keeps from its open.
    pub fn turn(&self) -> Turn {
        self.shown.read().turn
    }

    /// Exchanges the tree for `live`, and marks the inodes that `lost` something: see
    /// [`Current::has_lost`]. Returns the turn that begins. Requests in progress finish with the
    /// tree that they began with. The caller calls [`Current::settle`] with the returned turn
    /// afterwards.
    pub fn replace(&self, live: Live, lost: impl IntoIterator<Item = u64>) -> Turn {
        let mut shown = self.shown.write();
        let turn = Turn(shown.turn.0 + 1);
        shown.live = live;
        shown.turn = turn;
        shown.unsettled.insert(turn);
        shown
            .lost
            .extend(lost.into_iter().map(|inode| (inode, turn)));
        turn
    }

    /// Notes that the kernel has dropped all that it cached of the inodes that were lost when
    /// `turn` began.
    pub fn settle(&self, turn: Turn) {
        self.shown.write().unsettled.remove(&turn);
    }

    /// Returns true if the inode has lost something since turn `since`. A handle that was opened in
    /// that turn stays broken, because its user relies on data that is gone.
    pub fn has_lost(&self, inode: u64, since: Turn) -> bool {
        let lost = self.shown.read().lost.get(&inode).copied();
        lost.is_some_and(|turn| turn > since)
    }

    /// Returns the turn that began when the inode last lost something, if it ever did.
    pub fn lost_at(&self, inode: u64) -> Option<Turn> {
        self.shown.read().lost.get(&inode).copied()
    }

    /// Returns true if the kernel may still cache lost pages of the inode.
    pub fn is_unsettled(&self, inode: u64) -> bool {
        let shown = self.shown.read();
        let lost = shown.lost.get(&inode);
        lost.is_some_and(|turn| shown.unsettled.contains(turn))
    }

    /// Sets the notifier by which the kernel is told what it must drop.
    pub fn tell_kernel_by(&self, kernel: Notifier) {
        // A mount has one kernel; a second call changes nothing.
        let _ = self.kernel.set(kernel);
    }

    /// Returns the notifier of the kernel, if it is set.
    pub fn kernel(&self) -> Option<&Notifier> {
        self.kernel.get()
    }
}
