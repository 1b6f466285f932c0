//! Inodes that are newer than the tree of the last commit. Pure.
//!
//! Owns for which inodes the tree need not be read. Does not own their items (`state`).

/// The inodes that were made after the cut of the last commit. Its tree has nothing of them.
#[derive(Debug, Default)]
pub struct NewInodes {
    /// The tree has inodes below it only; none while that is not known.
    begin: Option<u64>,
    /// The number after the last inode that was made.
    end: u64,
}

impl NewInodes {
    /// Notes that the tree has inodes below `next` only.
    pub fn begin_at(&mut self, next: u64) {
        self.begin = Some(next);
    }

    /// Notes that `inode` was made now.
    pub fn made(&mut self, inode: u64) {
        self.end = self.end.max(inode + 1);
    }

    /// Returns true if the tree has nothing of `inode`.
    pub fn has(&self, inode: u64) -> bool {
        self.begin
            .is_some_and(|begin| (begin..self.end).contains(&inode))
    }
}

#[cfg(test)]
mod tests {
    use super::NewInodes;

    fn seen(new: &NewInodes) -> Vec<u64> {
        (0..20).filter(|inode| new.has(*inode)).collect()
    }

    #[test]
    fn inodes_are_new_that_were_made_after_the_cut() {
        let mut new = NewInodes::default();
        new.made(7);
        assert!(seen(&new).is_empty(), "nothing is known of the tree");
        new.begin_at(8);
        assert!(seen(&new).is_empty());
        new.made(9);
        assert_eq!(seen(&new), [8, 9]);
        new.begin_at(9);
        assert_eq!(seen(&new), [9]);
        new.begin_at(12);
        assert!(seen(&new).is_empty());
        new.made(12);
        assert_eq!(seen(&new), [12]);
    }
}
