//! Parents of directories in trees that do not change. The items of such a tree lead from names to
//! inodes, and not from a directory to its parent.
//!
//! Owns: the parents of directories in snapshots and in read-only mounts, as long as the kernel
//! knows those directories. Directories of a live volume move; `volume::usage` keeps their parents.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::vfs::numbers::Number;

/// The parents of directories that the kernel has looked up and not forgotten.
#[derive(Debug, Default)]
pub(super) struct Ancestry(Mutex<HashMap<Number, Child>>);

#[derive(Debug)]
struct Child {
    parent: Number,
    lookups: u64,
}

impl Ancestry {
    /// Counts one lookup of a directory in `parent`. Inode 0 as `parent` means that the kernel
    /// reached it without a parent.
    pub(super) fn looked_up(&self, number: Number, parent: Number) {
        let mut known = self.0.lock();
        let child = known.entry(number).or_insert(Child { parent, lookups: 0 });
        if parent.inode != 0 {
            child.parent = parent;
        }
        child.lookups += 1;
    }

    /// Takes lookups back. The number may be that of any inode.
    pub(super) fn forgot(&self, number: Number, lookups: u64) {
        let mut known = self.0.lock();
        if let Some(child) = known.get_mut(&number) {
            child.lookups = child.lookups.saturating_sub(lookups);
            if child.lookups == 0 {
                known.remove(&number);
            }
        }
    }

    /// Returns the directory in which a directory was looked up last, if it is known.
    pub(super) fn parent(&self, number: Number) -> Option<Number> {
        let parent = self.0.lock().get(&number).map(|child| child.parent);
        parent.filter(|parent| parent.inode != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_forgot_is_forgotten() {
        let number = |snapshot, inode| Number { snapshot, inode };
        let ancestry = Ancestry::default();
        ancestry.looked_up(number(1, 30), number(1, 0));
        assert_eq!(ancestry.parent(number(1, 30)), None);
        ancestry.looked_up(number(1, 30), number(1, 20));
        ancestry.looked_up(number(1, 30), number(1, 0));
        ancestry.looked_up(number(2, 30), number(2, 25));
        ancestry.forgot(number(1, 30), 2);
        assert_eq!(ancestry.parent(number(1, 30)), Some(number(1, 20)));
        ancestry.forgot(number(1, 30), 1);
        ancestry.forgot(number(1, 99), 1);
        assert_eq!(ancestry.parent(number(1, 30)), None);
        assert_eq!(ancestry.parent(number(2, 30)), Some(number(2, 25)));
        ancestry.forgot(number(2, 30), 7);
        assert!(ancestry.0.lock().is_empty());
    }
}
