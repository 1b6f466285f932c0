//! The use of inodes: open files, and lookups that the kernel has not given back.
//!
//! Owns: the counts that keep an unlinked inode alive, and the number of bytes written to each file
//! since they were last stored. Does not own: the inodes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Counts {
    opens: u32,
    lookups: u64,
    /// For a directory: the parent through which it was last looked up (`..`).
    parent: u64,
    /// True if the inode is known to have no file capabilities.
    is_bare: bool,
    /// True if a user other than the mount's owner may write to the file, or has written to it.
    is_private: bool,
}

impl Counts {
    fn in_use(&self) -> bool {
        self.opens > 0 || self.lookups > 0
    }
}

/// Bytes written to files before one cut, by inode. The tasks that wait for the cut share it.
pub type Leaving = Arc<HashMap<u64, u64>>;

/// Bytes written to a file since the last cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uncut {
    /// The number of bytes.
    pub bytes: u64,
    /// The number of earlier cuts.
    cuts: u64,
}

#[derive(Debug, Default)]
struct Inner {
    users: HashMap<u64, Counts>,
    /// Bytes written since the last cut, by inode.
    uncut: HashMap<u64, u64>,
    /// Bytes written before a cut whose commit or journal is not in the bucket yet; one entry for
    /// each such cut.
    leaving: Vec<Leaving>,
    /// The number of cuts so far.
    cuts: u64,
}

impl Inner {
    fn uncut_bytes(&self, inode: u64) -> u64 {
        self.uncut.get(&inode).copied().unwrap_or(0)
    }

    /// Forgets a cut. Returns false if it was forgotten before.
    fn forget(&mut self, leaving: &Leaving) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|other| !Arc::ptr_eq(other, leaving));
        self.leaving.len() < before
    }
}

/// The counts by inode.
#[derive(Debug, Default)]
pub struct Usage(Mutex<Inner>);

impl Usage {
    /// Returns true if the inode is open, or the kernel still knows its number.
    pub fn in_use(&self, inode: u64) -> bool {
        self.0.lock().users.get(&inode).is_some_and(Counts::in_use)
    }

    /// Counts a lookup by the kernel through the directory `parent`; 0 if it came from elsewhere.
    pub fn looked_up(&self, inode: u64, parent: u64) {
        let mut inner = self.0.lock();
        let counts = inner.users.entry(inode).or_default();
        counts.lookups += 1;
        if parent != 0 {
            counts.parent = parent;
        }
    }

    /// Sets the new parent of an inode that the kernel may know.
    pub fn moved(&self, inode: u64, parent: u64) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.parent = parent;
        }
    }

    /// Subtracts lookups that the kernel gave back. Returns true if the inode is not in use any
    /// more.
    pub fn forgot(&self, inode: u64, lookups: u64) -> bool {
        self.change(inode, |counts| {
            counts.lookups = counts.lookups.saturating_sub(lookups)
        })
    }

    /// Counts an open of the file.
    pub fn opened(&self, inode: u64) {
        self.0.lock().users.entry(inode).or_default().opens += 1;
    }

    /// Counts the final close of an open file. Returns true if the inode is not in use any more.
    pub fn closed(&self, inode: u64) -> bool {
        self.change(inode, |counts| {
            counts.opens = counts.opens.saturating_sub(1)
        })
    }

    /// Returns the directory through which a directory was last looked up.
    pub fn parent(&self, inode: u64) -> Option<u64> {
        self.0
            .lock()
            .users
            .get(&inode)
            .map(|counts| counts.parent)
            .filter(|parent| *parent != 0)
    }

    /// Returns true if the inode is known to have no file capabilities.
    pub fn is_bare(&self, inode: u64) -> bool {
        self.0
            .lock()
            .users
            .get(&inode)
            .is_some_and(|counts| counts.is_bare)
    }

    /// Sets whether the inode is known to have no file capabilities. It must be called while the
    /// state is locked in which that is so. The fact is kept while the inode is in use.
    pub fn set_bare(&self, inode: u64, is_bare: bool) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.is_bare = is_bare;
        }
    }

    /// Marks the inode as private while it is in use: bytes written to it are not matched with
    /// stored content.
    pub fn set_private(&self, inode: u64) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.is_private = true;
        }
    }

    /// Returns true if [`Usage::set_private`] is in effect.
    pub fn is_private(&self, inode: u64) -> bool {
        let inner = self.0.lock();
        inner
            .users
            .get(&inode)
            .is_some_and(|counts| counts.is_private)
    }

    /// Counts bytes written to the file.
    pub fn wrote(&self, inode: u64, bytes: u64) {
        *self.0.lock().uncut.entry(inode).or_default() += bytes;
    }

    /// Returns the number of bytes written to the file that are in no commit and in no journal in
    /// the bucket.
    pub fn unsent_bytes(&self, inode: u64) -> u64 {
        let inner = self.0.lock();
        let leaving = inner.leaving.iter().filter_map(|bytes| bytes.get(&inode));
        inner.uncut_bytes(inode) + leaving.sum::<u64>()
    }

    /// Returns the unsent bytes of the file that no commit or journal under way contains.
    pub fn uncut(&self, inode: u64) -> Uncut {
        let inner = self.0.lock();
        Uncut {
            bytes: inner.uncut_bytes(inode),
            cuts: inner.cuts,
        }
    }

    /// Subtracts bytes that are in the bucket now, as [`Usage::uncut`] returned them. If a cut was
    /// made since, it took those bytes along, and the bytes that are uncut now were written later.
    pub fn sent(&self, inode: u64, sent: Uncut) {
        let mut inner = self.0.lock();
        if inner.cuts != sent.cuts {
            return;
        }
        let bytes = sent.bytes;
        let left = inner.uncut_bytes(inode).saturating_sub(bytes);
        match left {
            0 => inner.uncut.remove(&inode),
            left => inner.uncut.insert(inode, left),
        };
    }

    /// Makes a cut: the bytes written so far leave with a commit or journal. They count as unsent
    /// until [`Usage::landed`].
    ///
    /// It is called under the state's lock, and takes the same time for any number of files.
    pub fn cut(&self) -> Leaving {
        let mut inner = self.0.lock();
        inner.cuts += 1;
        let leaving = Leaving::new(std::mem::take(&mut inner.uncut));
        inner.leaving.push(leaving.clone());
        leaving
    }

    /// Forgets the bytes of a cut, which is in the bucket now.
    pub fn landed(&self, leaving: &Leaving) {
        self.0.lock().forget(leaving);
    }

    /// Counts the bytes of a cut as uncut again, because its commit or journal failed.
    pub fn stayed(&self, leaving: &Leaving) {
        let mut inner = self.0.lock();
        if inner.forget(leaving) {
            for (inode, bytes) in leaving.iter() {
                *inner.uncut.entry(*inode).or_default() += bytes;
            }
        }
    }

    /// Adds the users of a former volume, which this one replaces.
    pub fn adopt_users(&self, former: &Usage) {
        let mut inner = self.0.lock();
        let former = former.0.lock();
        for (inode, users) in former.users.iter().filter(|(_, users)| users.in_use()) {
            let counts = inner.users.entry(*inode).or_default();
            counts.opens += users.opens;
            counts.lookups += users.lookups;
            counts.parent = users.parent;
            counts.is_private |= users.is_private;
        }
    }

    /// Returns true if the file or directory is open.
    pub fn is_open(&self, inode: u64) -> bool {
        self.0
            .lock()
            .users
            .get(&inode)
            .is_some_and(|counts| counts.opens > 0)
    }

    /// Returns the number of open files and directories.
    pub fn open_files(&self) -> u64 {
        let inner = self.0.lock();
        inner
            .users
            .values()
            .map(|users| u64::from(users.opens))
            .sum()
    }

    fn change(&self, inode: u64, change: impl FnOnce(&mut Counts)) -> bool {
        let mut inner = self.0.lock();
        let Some(counts) = inner.users.get_mut(&inode) else {
            return true;
        };
        change(counts);
        let unused = !counts.in_use();
        if unused {
            inner.users.remove(&inode);
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_used_until_the_last_user_is_gone() {
        let usage = Usage::default();
        usage.looked_up(7, 1);
        usage.looked_up(7, 1);
        usage.opened(7);
        assert!(!usage.forgot(7, 2));
        assert!(usage.in_use(7));
        usage.wrote(7, 10);
        assert!(usage.closed(7));
        assert!(!usage.in_use(7));
        assert_eq!(usage.unsent_bytes(7), 10);
        let leaving = usage.cut();
        assert_eq!(*leaving, HashMap::from([(7, 10)]));
        assert_eq!((usage.unsent_bytes(7), usage.uncut(7).bytes), (10, 0));
        usage.landed(&leaving);
        assert_eq!(usage.unsent_bytes(7), 0);
        let inner = usage.0.lock();
        assert!(
            inner.users.is_empty() && inner.uncut.is_empty() && inner.leaving.is_empty(),
            "nothing is known of an unused file"
        );
    }

    #[test]
    fn users_outlive_a_volume() {
        let (former, usage) = (Usage::default(), Usage::default());
        former.opened(7);
        former.wrote(7, 10);
        usage.adopt_users(&former);
        assert_eq!(usage.unsent_bytes(7), 0);
        assert!(usage.in_use(7));
        assert!(usage.closed(7));
    }

    #[test]
    fn what_did_not_get_into_the_bucket_is_unsent_again() {
        let usage = Usage::default();
        usage.wrote(7, 10);
        let leaving = usage.cut();
        usage.wrote(7, 5);
        usage.stayed(&leaving);
        assert_eq!((usage.unsent_bytes(7), usage.uncut(7).bytes), (15, 15));
        usage.stayed(&leaving);
        assert_eq!(usage.unsent_bytes(7), 15, "once is enough");
        usage.sent(7, usage.uncut(7));
        assert_eq!(usage.unsent_bytes(7), 0);
    }

    #[test]
    fn what_is_sent_says_nothing_of_what_was_written_after_a_cut() {
        let usage = Usage::default();
        usage.wrote(7, 10);
        let sent = usage.uncut(7);
        let leaving = usage.cut();
        usage.wrote(7, 8);
        usage.sent(7, sent);
        usage.landed(&leaving);
        assert_eq!(usage.unsent_bytes(7), 8);
    }
}
