//! The live volume: one tree that one mount changes.
//!
//! Owns: operations on inodes, names and contents, the memory that they take, and the commits that
//! store them in the bucket. Does not own: how content is stored (the chunker), how the root is
//! replaced (`root`), inode numbers and handles as the kernel sees them (`vfs`).
//!
//! ```text
//!   namespace, data, attributes   operations: each a transaction on the layers
//!   transaction, state, dirty, new_inodes
//!                                 the layers in memory       (dirty, state, new_inodes: pure)
//!   state_lock                    their lock, and how long it is held
//!   view, seek                    reads of layers and tree as one
//!   flush, writeback              dirty bytes → extents; when that is done in the background
//!   neighbours, brief_reads       what is read to store a run, and how long that is waited for
//!   deposit                       a file that arrives as one stream, named when complete
//!   stamp                         attributes of an inode as they are at its source
//!   apart, shown                  commits that a snapshot completes, and what is shown meanwhile
//!   commit, cut_items             layers → tree → root
//!   commit_task                   when commits are made, and who waits for them
//!   root_failure                  what an error of the root means for a volume
//!   requests                      what waits for a commit or a journal
//!   swap, swapping                dirty bytes of scratch clones on local disk
//!   unsaved                       files with changes that no commit holds
//!   delta, capturing, capture, operations
//!                                 changes that no journal has described, what they were at one
//!                                 moment, and their description
//!                                                       (delta, capturing, operations: pure)
//!   journal, landing, replay      fsync, where it waits, and its replay by a new holder
//!   rescue                        condemned blobs, stored again
//! ```

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::swap::SwapFile;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::tree::item::{Attributes, Timestamp};
use crate::volume::brief_reads::BriefReads;
use crate::volume::error::VolumeError;
use crate::volume::locks::InodeLocks;
use crate::volume::requests::{QueuedCommit, QueuedFsync};
use crate::volume::room::{Limits, Pressure, Room};
use crate::volume::shown::Shown;
use crate::volume::state::Scope;
use crate::volume::swapping::Swapping;
use crate::volume::usage::Usage;
use crate::volume::view::View;

mod apart;
pub mod attributes;
mod brief_reads;
pub mod capture;
pub mod capturing;
pub mod commit;
pub mod commit_task;
pub mod cut_items;
pub mod data;
pub mod delta;
pub mod deposit;
pub mod dirty;
pub mod error;
pub mod flush;
pub mod journal;
mod landing;
pub mod locks;
pub mod mode;
pub mod names;
pub mod namespace;
mod neighbours;
pub mod new_inodes;
pub mod nodes;
pub mod operations;
mod read_plan;
pub mod replay;
pub mod requests;
pub mod rescue;
pub mod room;
pub mod root_failure;
pub mod seek;
mod shown;
pub mod stamp;
pub mod state;
pub mod state_lock;
mod swap;
mod swapping;
pub mod transaction;
pub mod unsaved;
pub mod usage;
pub mod view;
pub mod whole_file;
mod writeback;

/// The root directory's inode.
pub const ROOT_INODE: u64 = 1;

/// The first inode number of files. Lower numbers belong to the mount itself (`.snapshots` and the
/// like).
pub const FIRST_INODE: u64 = 64;

/// The last inode number of files. In a mount, higher numbers belong to snapshots.
pub const LAST_INODE: u64 = (1 << 48) - 1;

/// Number of places that a journal reads while the state is locked once.
const CAPTURED_AT_ONCE: usize = 256;

/// A writable volume. All its users share it.
pub struct Volume {
    /// The view that reads the volume.
    pub view: View,
    ingest: Arc<Ingest>,
    clock: Arc<dyn Clock>,
    usage: Usage,
    flushing: InodeLocks,
    brief_reads: BriefReads,
    streaming: Mutex<HashSet<u64>>,
    swapping: Option<Swapping>,
    /// True while a task makes room.
    relieving: AtomicBool,
    /// The inode from which the next files are taken that are stored when memory runs short.
    stored_to: AtomicU64,
    /// Inodes that lost their last name while they were in use.
    orphans: Mutex<HashSet<u64>>,
    room: Room,
    /// Held for reading by tasks that place extents outside of a flush. A cut waits for them.
    cut_gate: tokio::sync::RwLock<()>,
    next_inode: AtomicU64,
    /// The reason why the volume accepts nothing more; none if it does.
    health: tokio::sync::watch::Sender<Option<VolumeError>>,
    last_commit: Mutex<Option<Timestamp>>,
    /// The state that the volume shows while commits build another one.
    shown: Mutex<Option<Shown>>,
    /// True if blobs were stored again that no root holds yet. A journal may refer to such a blob
    /// without naming its pack.
    has_rescued: AtomicBool,
    requests: mpsc::Sender<QueuedCommit>,
    /// True if a commit was requested because items fill the memory; reset when one has ended.
    commit_asked: AtomicBool,
    /// What fsync and unmount promise.
    promise: Promise,
    /// True if this machine's spool is enough for fsync.
    is_local: AtomicBool,
    fsyncs: mpsc::Sender<QueuedFsync>,
    /// The receiver for the task that will write the journals.
    fsyncs_waiting: Mutex<Option<mpsc::Receiver<QueuedFsync>>>,
    /// Wakes the journaler when a file was closed: a journal is due soon.
    soon: tokio::sync::Notify,
    /// Number of places that a journal reads while the state is locked once.
    captured_at_once: AtomicUsize,
    /// True while an unmount drains: changes wait.
    frozen: tokio::sync::watch::Sender<bool>,
}

/// The data that is not in the bucket yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Bytes of file contents.
    pub bytes: u64,
    /// Number of files that the bytes belong to.
    pub files: u64,
}

/// The parts of a volume.
pub struct VolumeParts {
    /// The view of the last commit's tree, without changes above it.
    pub view: View,
    /// The ingest of the session, which stores into the bucket.
    pub ingest: Arc<Ingest>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The memory limits for changes.
    pub limits: Limits,
    /// The lowest inode number that was never given out.
    pub next_inode: u64,
    /// What fsync and unmount promise.
    pub promise: Promise,
    /// Where dirty bytes go when memory runs short; none if they are stored then.
    pub swap: Option<SwapFile>,
}

/// What a volume promises of the changes that it accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Promise {
    /// What fsync acknowledges survives a crash.
    #[default]
    Durable,
    /// Nothing survives a crash, and everything an unmount. Nothing is stored before that, unless
    /// memory runs short.
    Scratch,
    /// Nothing survives the mount.
    ThrownAway,
}

impl Promise {
    /// Returns true if fsync promises nothing.
    pub fn is_scratch(self) -> bool {
        self != Self::Durable
    }
}

impl Volume {
    /// Returns a volume, and the queue of requests that its committer ([`commit_task::CommitTask`]) must
    /// serve.
    pub fn new(parts: VolumeParts) -> (Arc<Volume>, mpsc::Receiver<QueuedCommit>) {
        let (requests, receiver) = mpsc::channel(64);
        let (fsyncs, fsyncs_waiting) = mpsc::channel(64);
        let next_inode = parts.next_inode.max(FIRST_INODE);
        // A frozen view takes no changes, and no inodes are made in it.
        if let Ok(state) = parts.view.state() {
            state.lock().new_inodes.begin_at(next_inode);
        }
        let volume = Volume {
            view: parts.view,
            ingest: parts.ingest,
            clock: parts.clock,
            usage: Usage::default(),
            flushing: InodeLocks::default(),
            brief_reads: BriefReads::default(),
            streaming: Mutex::new(HashSet::new()),
            swapping: (parts.swap).map(|file| Swapping::new(file, parts.limits.data_bytes)),
            relieving: AtomicBool::new(false),
            stored_to: AtomicU64::new(0),
            orphans: Mutex::new(HashSet::new()),
            room: Room::new(parts.limits),
            cut_gate: tokio::sync::RwLock::new(()),
            next_inode: AtomicU64::new(next_inode),
            health: tokio::sync::watch::Sender::new(None),
            last_commit: Mutex::new(None),
            shown: Mutex::new(None),
            has_rescued: AtomicBool::new(false),
            requests,
            commit_asked: AtomicBool::new(false),
            promise: parts.promise,
            is_local: AtomicBool::new(false),
            fsyncs,
            fsyncs_waiting: Mutex::new(Some(fsyncs_waiting)),
            soon: tokio::sync::Notify::new(),
            captured_at_once: AtomicUsize::new(CAPTURED_AT_ONCE),
            frozen: tokio::sync::watch::Sender::new(false),
        };
        (Arc::new(volume), receiver)
    }

    /// Sets the number of places that a journal reads while the state is locked once, at least one.
    /// Simulations set it low, so that operations run in the middle of small journals as well.
    pub fn capture_at_once(&self, places: usize) {
        self.captured_at_once
            .store(places.max(1), Ordering::Relaxed);
    }

    /// Returns what it promises of the changes that it accepts.
    pub fn promise(&self) -> Promise {
        self.promise
    }

    /// Returns the time of day.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the attributes of a file and the number of its dirty bytes, which are not yet stored,
    /// both of one moment. A flush makes allocated bytes of dirty ones, and attributes that were read
    /// before it count neither. `read` are those that the caller has; they are returned if no layer
    /// has newer ones.
    pub fn newest(&self, inode: u64, read: &Attributes) -> (Attributes, u64) {
        let Ok(state) = self.view.state() else {
            return (*read, 0);
        };
        let state = state.lock();
        let dirty = |layer: &state::Layer| {
            layer
                .data
                .get(&inode)
                .map_or(0, |ranges| ranges.data_bytes())
        };
        let dirty_bytes = state.layers(Scope::Live).map(dirty).sum();
        let newest = state.attributes(Scope::Live, inode);
        (newest.unwrap_or(*read), dirty_bytes)
    }

    /// Returns the number of dirty bytes of all files.
    pub fn all_dirty_bytes(&self) -> u64 {
        let Ok(state) = self.view.state() else {
            return 0;
        };
        let state = state.lock();
        state
            .layers(Scope::Live)
            .map(state::Layer::data_bytes)
            .sum()
    }

    /// Returns the bytes in memory in addition to the dirty ones: data of writers that wait, and
    /// copies that are being stored.
    pub fn held_bytes(&self) -> u64 {
        self.room.held_bytes()
    }

    /// Returns the dirty bytes and the number of files that they belong to.
    pub fn dirty(&self) -> Dirty {
        let Ok(state) = self.view.state() else {
            return Dirty::default();
        };
        let state = state.lock();
        let mut dirty = Dirty::default();
        let mut files = HashSet::new();
        for layer in state.layers(Scope::Live) {
            for (inode, ranges) in &layer.data {
                dirty.bytes += ranges.data_bytes();
                files.insert(*inode);
            }
        }
        dirty.files = files.len() as u64;
        dirty
    }

    /// Returns the swap file, if there is one.
    pub fn swap(&self) -> Option<&SwapFile> {
        self.swapping.as_ref().map(Swapping::file)
    }

    /// Returns the time of the last commit of this mount, if there was one.
    pub fn last_commit(&self) -> Option<Timestamp> {
        *self.last_commit.lock()
    }

    /// Returns true if this mount knows that the inode has no name. Then its last user must reap
    /// it.
    pub fn is_orphan(&self, inode: u64) -> bool {
        self.orphans.lock().contains(&inode)
    }

    /// Returns true if blobs were stored again that no root holds yet.
    pub fn has_rescued(&self) -> bool {
        self.has_rescued.load(Ordering::SeqCst)
    }

    /// Returns the users of each inode.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the ingest of the session, which stores into the bucket.
    pub fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }

    /// Returns the reason why the volume accepts nothing more; none if it does.
    pub fn failure(&self) -> Option<VolumeError> {
        self.health.borrow().clone()
    }

    /// Returns a channel that reports when the volume accepts nothing more, and why. It closes with
    /// the volume.
    pub fn health(&self) -> tokio::sync::watch::Receiver<Option<VolumeError>> {
        self.health.subscribe()
    }

    /// Refuses all changes from now on, because accepted data cannot be stored or another session
    /// took the volume over.
    pub fn poison(&self, error: VolumeError) {
        let refusal = VolumeError::Poisoned(error.to_string());
        // This comes first, so that the list of lost data holds everything that was ever accepted.
        if let Ok(state) = self.view.state() {
            state.lock().refusal.get_or_insert_with(|| refusal.clone());
        }
        self.health.send_if_modified(|health| {
            let is_first = health.is_none();
            if is_first {
                tracing::error!("the mount takes no more writes: {error}");
                *health = Some(refusal);
            }
            is_first
        });
        self.room.close();
    }

    /// Waits until a change may be made: there is room for it, and no unmount is draining.
    ///
    /// # Errors
    /// [`VolumeError::Poisoned`] if the volume accepts nothing more; otherwise the error of a flush
    /// or commit that failed while this waited for room.
    pub async fn writable(self: &Arc<Self>) -> Result<(), VolumeError> {
        while !self.admits() && self.failure().is_none() {
            let mut frozen = self.frozen.subscribe();
            // The sender lives as long as the volume.
            let _ = frozen.wait_for(|frozen| !frozen).await;
            // Storing that failed before has ended, and nothing else may begin it again.
            let make_room = || self.relieve();
            self.room.wait(|| self.is_full(), make_room).await?;
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Waits as [`Volume::writable`] does, for a change of `bytes` bytes. They count as used memory
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Volume::writable`].
    async fn writable_with(self: &Arc<Self>, bytes: u64) -> Result<(), VolumeError> {
        if self.admits() {
            return self.failure().map_or(Ok(()), Err);
        }
        let _held = self.room.hold(bytes);
        // The held bytes may make storing due.
        self.relieve();
        self.writable().await
    }

    /// Returns true if a change need not wait.
    fn admits(&self) -> bool {
        let is_frozen = *self.frozen.borrow();
        !is_frozen && !self.is_full()
    }

    /// Returns true if changes must wait for room. Requests a commit early if items fill the memory.
    fn is_full(&self) -> bool {
        let Ok(state) = self.view.state() else {
            return false;
        };
        let (data, items, is_cut) = {
            let state = state.lock();
            (
                self.room.data_pressure(&state),
                self.room.item_pressure(&state),
                state.committing.is_some(),
            )
        };
        // A commit that is under way, or failed, makes room before another one is due.
        let is_due = items == Pressure::Full || items == Pressure::Some && !is_cut;
        if is_due && !self.commit_asked.swap(true, Ordering::Relaxed) {
            self.commit_soon();
        }
        (data == Pressure::Full || items == Pressure::Full) && self.health.borrow().is_none()
    }

    /// Requests a journal within [`SOON`](journal::SOON), without waiting for it.
    pub fn fsync_within(&self) {
        self.soon.notify_one();
    }

    /// Makes changes wait while an unmount drains, or lets them continue.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Returns a number for a new inode.
    ///
    /// # Errors
    /// [`VolumeError::NoNumberLeft`] if all are given out.
    fn next_inode(&self) -> Result<u64, VolumeError> {
        let next = |inode: u64| (inode <= LAST_INODE).then(|| inode + 1);
        let given = self
            .next_inode
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        given.map_err(|_| VolumeError::NoNumberLeft)
    }

    /// Returns the lowest inode number that was not given out yet.
    pub fn inode_mark(&self) -> u64 {
        self.next_inode.load(Ordering::Relaxed)
    }

    /// Notes that numbers below `next` were given out by an earlier session.
    fn raise_inode_mark(&self, next: u64) {
        self.next_inode.fetch_max(next, Ordering::Relaxed);
    }
}
