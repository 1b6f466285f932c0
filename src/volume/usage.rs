//! Which inodes are in use: open files, and lookups the kernel has not given back.
//!
//! Owns: the counts that keep an unlinked inode alive, and how much each file has written since it was last stored.
//! Does not own: the inodes.

use std::collections::HashMap;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Counts {
    opens: u32,
    lookups: u64,
    /// For directories: the directory it was last looked up in (`..`).
    parent: u64,
    /// Bytes written and not yet in a commit.
    unsent_bytes: u64,
}

impl Counts {
    fn in_use(&self) -> bool {
        self.opens > 0 || self.lookups > 0
    }
}

/// Counts by inode.
#[derive(Debug, Default)]
pub struct Usage(Mutex<HashMap<u64, Counts>>);

impl Usage {
    /// True if somebody still names the inode by its number.
    pub fn in_use(&self, inode: u64) -> bool {
        self.0.lock().get(&inode).is_some_and(Counts::in_use)
    }

    /// The kernel learned of the inode, in this directory.
    pub fn looked_up(&self, inode: u64, parent: u64) {
        let mut counts = self.0.lock();
        let counts = counts.entry(inode).or_default();
        counts.lookups += 1;
        counts.parent = parent;
    }

    /// The kernel gave lookups back; true if nobody uses the inode any more.
    pub fn forgot(&self, inode: u64, lookups: u64) -> bool {
        self.change(inode, |counts| {
            counts.lookups = counts.lookups.saturating_sub(lookups)
        })
    }

    /// The file was opened.
    pub fn opened(&self, inode: u64) {
        self.0.lock().entry(inode).or_default().opens += 1;
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
            .get(&inode)
            .map(|counts| counts.parent)
            .filter(|parent| *parent != 0)
    }

    /// Bytes were written.
    pub fn wrote(&self, inode: u64, bytes: u64) {
        self.0.lock().entry(inode).or_default().unsent_bytes += bytes;
    }

    /// Bytes written to the file since the last commit.
    pub fn unsent_bytes(&self, inode: u64) -> u64 {
        self.0
            .lock()
            .get(&inode)
            .map_or(0, |counts| counts.unsent_bytes)
    }

    /// So many of the bytes written to the file are in the bucket now.
    pub fn sent(&self, inode: u64, bytes: u64) {
        if let Some(counts) = self.0.lock().get_mut(&inode) {
            counts.unsent_bytes = counts.unsent_bytes.saturating_sub(bytes);
        }
    }

    /// Takes the counts of unsent bytes, at a cut: each file that has some, and how many. Those that do not get into the bucket are counted again by
    /// [`Usage::wrote`].
    pub fn cut(&self) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        self.0.lock().retain(|inode, counts| {
            let unsent = std::mem::take(&mut counts.unsent_bytes);
            if unsent > 0 {
                taken.push((*inode, unsent));
            }
            counts.in_use()
        });
        taken
    }

    /// Number of open files and directories.
    pub fn open_files(&self) -> u64 {
        self.0
            .lock()
            .values()
            .map(|counts| u64::from(counts.opens))
            .sum()
    }

    fn change(&self, inode: u64, change: impl FnOnce(&mut Counts)) -> bool {
        let mut all = self.0.lock();
        let Some(counts) = all.get_mut(&inode) else {
            return true;
        };
        change(counts);
        let unused = !counts.in_use();
        if unused && counts.unsent_bytes == 0 {
            all.remove(&inode);
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
        assert_eq!(usage.cut(), [(7, 10)]);
        assert_eq!(usage.unsent_bytes(7), 0);
    }
}
