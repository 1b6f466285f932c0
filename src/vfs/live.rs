//! What the root of a mount shows at present.
//!
//! Owns: the one place where it is exchanged when a mount that lost something goes on from its last
//! commit, and which files lost something at which exchange. Does not own: when that happens, or
//! what was lost (`mounting`).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use bkfs_fuse::Notifier;
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

/// The number of exchanges before a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(u64);

/// The present [`Live`], and what became of its predecessors.
struct Shown {
    live: Live,
    turn: Turn,
    /// Inodes that lost something, with the turn that began then.
    lost: HashMap<u64, Turn>,
    /// Turns at whose beginning inodes were lost of which the kernel has not dropped all yet.
    unsettled: BTreeSet<Turn>,
}

/// The present tree, shared by all who ask.
pub struct Current {
    shown: RwLock<Shown>,
    kernel: OnceLock<Notifier>,
}

impl Current {
    /// Begins with `live`.
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

    /// What the root of the mount shows.
    pub fn view(&self) -> View {
        self.shown.read().live.view.clone()
    }

    /// The volume, if the mount is writable.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        self.shown.read().live.volume.clone()
    }

    /// The snapshots, if they are shown.
    pub fn history(&self) -> Option<Arc<dyn History>> {
        self.shown.read().live.history.clone()
    }

    /// The present turn, which a handle keeps from its opening.
    pub fn turn(&self) -> Turn {
        self.shown.read().turn
    }

    /// Shows `live` from now on, and marks the inodes that `lost` something: see
    /// [`Current::has_lost`]. Requests that are under way end with what they began with.
    /// [`Current::settle`] must follow, with the turn that begins.
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

    /// The kernel has dropped what it kept of the inodes that were lost as `turn` began.
    pub fn settle(&self, turn: Turn) {
        self.shown.write().unsettled.remove(&turn);
    }

    /// True if the inode has lost something since a turn. What was opened in that turn stays
    /// broken: its reader or writer counts on what is gone.
    pub fn has_lost(&self, inode: u64, since: Turn) -> bool {
        let lost = self.shown.read().lost.get(&inode).copied();
        lost.is_some_and(|turn| turn > since)
    }

    /// The turn that began when the inode last lost something, if it ever did.
    pub fn lost_at(&self, inode: u64) -> Option<Turn> {
        self.shown.read().lost.get(&inode).copied()
    }

    /// True if the kernel may still keep lost pages of the inode.
    pub fn is_unsettled(&self, inode: u64) -> bool {
        let shown = self.shown.read();
        let lost = shown.lost.get(&inode);
        lost.is_some_and(|turn| shown.unsettled.contains(turn))
    }

    /// From now on the kernel is told what it must forget.
    pub fn tell_kernel_by(&self, kernel: Notifier) {
        // A mount has one kernel.
        let _ = self.kernel.set(kernel);
    }

    /// The way to the kernel, if there is one.
    pub fn kernel(&self) -> Option<&Notifier> {
        self.kernel.get()
    }
}
