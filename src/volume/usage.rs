//! Which inodes are in use: open files, and lookups the kernel has not given back.
//!
//! Owns: the counts that keep an unlinked inode alive, and how much each file has written since it was last stored.
//! Does not own: the inodes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Counts {
    opens: u32,
    lookups: u64,
    /// For directories: the directory it was last looked up in (`..`).
    parent: u64,
    /// Known to have no file capabilities.
    is_bare: bool,
    /// A user other than the mount's owner may write to it, or has.
    is_private: bool,
}

impl Counts {
    fn in_use(&self) -> bool {
        self.opens > 0 || self.lookups > 0
    }
}

/// Bytes written to files that left with one cut, by inode. Shared by those who wait for it.
pub type Leaving = Arc<HashMap<u64, u64>>;

/// Bytes written to a file since the last cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uncut {
    /// How many.
    pub bytes: u64,
    /// Cuts before.
    cuts: u64,
}

#[derive(Debug, Default)]
struct Inner {
    users: HashMap<u64, Counts>,
    /// Bytes written since the last cut.
    uncut: HashMap<u64, u64>,
    /// Bytes written before a cut, of which no commit or journal is in the bucket yet; one for each
    /// such cut.
    leaving: Vec<Leaving>,
    /// Cuts so far.
    cuts: u64,
}

impl Inner {
    fn uncut_bytes(&self, inode: u64) -> u64 {
        self.uncut.get(&inode).copied().unwrap_or(0)
    }

    /// Forgets a cut; false if it was forgotten before.
    fn forget(&mut self, leaving: &Leaving) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|other| !Arc::ptr_eq(other, leaving));
        self.leaving.len() < before
    }
}

/// Counts by inode.
#[derive(Debug, Default)]
pub struct Usage(Mutex<Inner>);

impl Usage {
    /// True if somebody still names the inode by its number.
    pub fn in_use(&self, inode: u64) -> bool {
        self.0.lock().users.get(&inode).is_some_and(Counts::in_use)
    }

    /// The kernel learned of the inode, in this directory; 0 if it came from elsewhere.
    pub fn looked_up(&self, inode: u64, parent: u64) {
        let mut inner = self.0.lock();
        let counts = inner.users.entry(inode).or_default();
        counts.lookups += 1;
        if parent != 0 {
            counts.parent = parent;
        }
    }

    /// An inode that the kernel may know has another parent now.
    pub fn moved(&self, inode: u64, parent: u64) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.parent = parent;
        }
    }

    /// The kernel gave lookups back; true if nobody uses the inode any more.
    pub fn forgot(&self, inode: u64, lookups: u64) -> bool {
        self.change(inode, |counts| {
            counts.lookups = counts.lookups.saturating_sub(lookups)
        })
    }

    /// The file was opened.
    pub fn opened(&self, inode: u64) {
        self.0.lock().users.entry(inode).or_default().opens += 1;
    }

    /// An open file was closed for good; true if nobody uses the inode any more.
    pub fn closed(&self, inode: u64) -> bool {
        self.change(inode, |counts| {
            counts.opens = counts.opens.saturating_sub(1)
        })
    }

    /// The directory in which a directory was looked up last.
    pub fn parent(&self, inode: u64) -> Option<u64> {
        self.0
            .lock()
            .users
            .get(&inode)
            .map(|counts| counts.parent)
            .filter(|parent| *parent != 0)
    }

    /// Whether the inode is known to have no file capabilities.
    pub fn is_bare(&self, inode: u64) -> bool {
        self.0
            .lock()
            .users
            .get(&inode)
            .is_some_and(|counts| counts.is_bare)
    }

    /// The inode has no file capabilities, or may have some. To be said while the state is locked in which that is so; kept while the inode is in use.
    pub fn set_bare(&self, inode: u64, is_bare: bool) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.is_bare = is_bare;
        }
    }

    /// What is written to the inode is not matched with what is stored already, from now on and
    /// for as long as the inode is in use.
    pub fn set_private(&self, inode: u64) {
        if let Some(counts) = self.0.lock().users.get_mut(&inode) {
            counts.is_private = true;
        }
    }

    /// Whether [`Usage::set_private`] holds.
    pub fn is_private(&self, inode: u64) -> bool {
        let inner = self.0.lock();
        inner
            .users
            .get(&inode)
            .is_some_and(|counts| counts.is_private)
    }

    /// Bytes were written.
    pub fn wrote(&self, inode: u64, bytes: u64) {
        *self.0.lock().uncut.entry(inode).or_default() += bytes;
    }

    /// Bytes written to the file that are in no commit and no journal in the bucket.
    pub fn unsent_bytes(&self, inode: u64) -> u64 {
        let inner = self.0.lock();
        let leaving = inner.leaving.iter().filter_map(|bytes| bytes.get(&inode));
        inner.uncut_bytes(inode) + leaving.sum::<u64>()
    }

    /// Those of them that are not on their way with a commit or journal either.
    pub fn uncut(&self, inode: u64) -> Uncut {
        let inner = self.0.lock();
        Uncut {
            bytes: inner.uncut_bytes(inode),
            cuts: inner.cuts,
        }
    }

    /// What was uncut is in the bucket now. If it was cut since, it left with the cut, and what is
    /// uncut now was written later.
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

    /// What was written so far leaves with a commit or journal. It counts as unsent until
    /// [`Usage::landed`]. Called under the state's lock: takes the same time however many files
    /// there are.
    pub fn cut(&self) -> Leaving {
        let mut inner = self.0.lock();
        inner.cuts += 1;
        let leaving = Leaving::new(std::mem::take(&mut inner.uncut));
        inner.leaving.push(leaving.clone());
        leaving
    }

    /// What left with a cut is in the bucket.
    pub fn landed(&self, leaving: &Leaving) {
        self.0.lock().forget(leaving);
    }

    /// What was to leave with a cut did not get into the bucket.
    pub fn stayed(&self, leaving: &Leaving) {
        let mut inner = self.0.lock();
        if inner.forget(leaving) {
            for (inode, bytes) in leaving.iter() {
                *inner.uncut.entry(*inode).or_default() += bytes;
            }
        }
    }

    /// Takes over who uses what, from a volume in whose place this one comes.
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

    /// True if the file or directory is open.
    pub fn is_open(&self, inode: u64) -> bool {
        self.0
            .lock()
            .users
            .get(&inode)
            .is_some_and(|counts| counts.opens > 0)
    }

    /// Number of open files and directories.
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
            "nothing is known of a file that nobody uses"
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
