//! What stat(2) says of a file, and whether an earlier put has stored that file as it is now. Pure.
//!
//! Owns: the decision to take a file over unread, and the mark of the source's inode in the flags
//! of a stored inode (FORMAT.md). Does not own: how the source is asked (`read`).

use crate::tree::item::{Attributes, Timestamp};
use crate::volume::mode;

/// The age that a time of change must have when a put begins, in seconds. A younger file may change
/// once more within the same tick of its filesystem's clock.
const SETTLED_SECONDS: i64 = 2;

/// Position of the mark in the flags of an inode.
const MARK_SHIFT: u32 = 8;

/// The bits of the flags that hold the mark. All zero: there is none.
const MARK_BITS: u64 = 0xffff_ffff << MARK_SHIFT;

/// The attributes of a file at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Number of the filesystem's device.
    pub filesystem: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device; otherwise 0.
    pub device: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Time of the last read.
    pub accessed: Timestamp,
    /// Time of the last change of contents.
    pub modified: Timestamp,
    /// Time of the last change of the inode.
    pub changed: Timestamp,
}

impl Facts {
    /// Returns true if the file has less allocated than its size, so that it may have holes.
    pub fn may_have_holes(&self) -> bool {
        self.allocated < self.size
    }

    /// Returns what tells the file from all others that exist now.
    pub fn key(&self) -> (u64, u64) {
        (self.filesystem, self.inode)
    }

    /// Returns true if the file is the same and neither it nor its contents changed between both.
    pub fn is_same(&self, later: &Facts) -> bool {
        self.key() == later.key()
            && self.size == later.size
            && self.modified == later.modified
            && self.changed == later.changed
    }

    /// Returns the flags to store with the file, of an inode that has `flags`. A file that was
    /// changed within 2 s before `started`, when the put began, or later, gets no mark: the next
    /// put reads it again.
    pub fn flags(&self, flags: u64, started: Timestamp) -> u64 {
        let mark = match is_settled(self.changed, started) {
            true => mark(self.inode),
            false => 0,
        };
        flags & !MARK_BITS | mark
    }
}

/// Returns true if a time of change lies far enough before `started`.
fn is_settled(changed: Timestamp, started: Timestamp) -> bool {
    let seconds = started.seconds.saturating_sub(SETTLED_SECONDS);
    changed < Timestamp { seconds, ..started }
}

/// Returns the mark of an inode number of the source, which is not zero.
fn mark(inode: u64) -> u64 {
    let mixed = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32).max(1)) << MARK_SHIFT
}

/// Returns true if `stored` is what the file at the source is now, so that it need not be read. A
/// change through a mount since then sets another time of change.
pub fn is_unchanged(stored: &Attributes, now: &Facts) -> bool {
    let has_size = mode::is_regular(now.mode) || mode::is_symlink(now.mode);
    stored.flags & MARK_BITS == mark(now.inode)
        && stored.mode == now.mode
        && (stored.uid, stored.gid) == (now.uid, now.gid)
        && (!has_size || stored.size_bytes == now.size)
        && stored.modified == now.modified
        && stored.changed == now.changed
        && stored.device == now.device
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: Timestamp = at(1_000, 500);

    const fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    fn facts() -> Facts {
        Facts {
            filesystem: 7,
            inode: 4_711,
            mode: 0o100_644,
            links: 1,
            uid: 1_000,
            gid: 100,
            device: 0,
            size: 10,
            allocated: 4_096,
            accessed: at(900, 0),
            modified: at(800, 1),
            changed: at(810, 2),
        }
    }

    fn stored(facts: &Facts) -> Attributes {
        Attributes {
            mode: facts.mode,
            uid: facts.uid,
            gid: facts.gid,
            links: 1,
            size_bytes: facts.size,
            modified: facts.modified,
            changed: facts.changed,
            device: facts.device,
            flags: facts.flags(0, STARTED),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_file_is_taken_over_only_if_nothing_of_it_changed() {
        let before = facts();
        assert!(is_unchanged(&stored(&before), &before));
        type Change = fn(&mut Facts);
        let changes: [(&str, Change); 8] = [
            ("size", |now| now.size += 1),
            ("modification", |now| now.modified = at(800, 2)),
            ("change", |now| now.changed = at(810, 3)),
            ("change, earlier", |now| now.changed = at(809, 2)),
            ("inode", |now| now.inode += 1),
            ("permissions", |now| now.mode = 0o100_600),
            ("owner", |now| now.uid = 0),
            ("type", |now| now.mode = 0o040_644),
        ];
        for (what, change) in changes {
            let mut now = before;
            change(&mut now);
            assert!(!is_unchanged(&stored(&before), &now), "{what}");
        }
        let mut read = before;
        read.accessed = at(2_000, 0);
        read.filesystem += 1;
        assert!(
            is_unchanged(&stored(&before), &read),
            "reads change nothing"
        );
    }

    #[test]
    fn a_file_that_changed_shortly_before_the_put_is_read_again() {
        for (changed, is_taken) in [
            (at(810, 2), true),
            (at(998, 499), true),
            (at(998, 500), false),
            (at(999, 0), false),
            (STARTED, false),
            (at(1_003, 0), false),
            (at(i64::MAX, 0), false),
            (at(i64::MIN, 0), true),
        ] {
            let mut racy = facts();
            racy.changed = changed;
            assert_eq!(is_unchanged(&stored(&racy), &racy), is_taken, "{changed:?}");
        }
    }

    #[test]
    fn the_mark_leaves_other_flags_alone() {
        let flags = facts().flags(u64::MAX, at(0, 0));
        assert_eq!(flags, !MARK_BITS, "too young: no mark");
        let marked = facts().flags(u64::MAX, STARTED);
        assert_eq!(marked & !MARK_BITS, !MARK_BITS);
        for inode in [0, 1, u64::MAX, 4_711] {
            assert_ne!(mark(inode), 0);
            assert_eq!(mark(inode) & !MARK_BITS, 0);
        }
        assert_ne!(mark(1), mark(2));
    }

    #[test]
    fn a_file_of_another_put_has_no_mark() {
        let mut without = stored(&facts());
        without.flags = 0;
        assert!(!is_unchanged(&without, &facts()));
    }
}
