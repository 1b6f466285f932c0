//! Locks of inodes: each is created on request, and removed when no task holds it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Number of entries at which unused ones are removed.
const SWEEP_AT: usize = 1024;

/// Locks by inode.
#[derive(Debug, Default)]
pub struct InodeLocks(Mutex<HashMap<u64, Weak<tokio::sync::Mutex<()>>>>);

impl InodeLocks {
    /// Returns the lock of `inode`: the same one for all callers while it is in use.
    pub fn lock_for(&self, inode: u64) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(&inode).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= SWEEP_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(inode, Arc::downgrade(&lock));
        lock
    }
}
