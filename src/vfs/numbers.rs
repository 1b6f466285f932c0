//! Inode numbers as the kernel sees them: a tree, and an inode in it.
//!
//! ```text
//!   63         48 47                                0
//!   snapshot number │ inode of the tree               snapshot 0 is the live volume
//! ```
//! So `cp .snapshots/day1/f f` never sees "the same file". A number always refers to the same
//! inode: snapshot numbers are unique among the snapshots that are kept of a volume, and inode
//! numbers are never reused.

use bkfs_fuse::Ino;

use crate::volume::error::VolumeError;
use crate::volume::{FIRST_INODE, LAST_INODE};

/// Bits of an inode number within its tree.
const INODE_BITS: u32 = LAST_INODE.count_ones();

/// The directory `.snapshots` of the live volume's root.
pub const SNAPSHOTS: Number = Number {
    snapshot: 0,
    inode: 2,
};
/// The directory `.bkfs`.
pub const CONTROL_DIRECTORY: Number = Number {
    snapshot: 0,
    inode: 3,
};
/// The file `.bkfs/status`.
pub const STATUS: Number = Number {
    snapshot: 0,
    inode: 4,
};
/// The file `.bkfs/metrics`.
pub const METRICS: Number = Number {
    snapshot: 0,
    inode: 5,
};
/// The file `.bkfs/control`.
pub const CONTROL: Number = Number {
    snapshot: 0,
    inode: 6,
};
/// The root of the mount.
pub const ROOT: Number = Number {
    snapshot: 0,
    inode: 1,
};

/// The parts of an inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number {
    /// Number of the snapshot; 0 is the live volume.
    pub snapshot: u16,
    /// Inode in its tree.
    pub inode: u64,
}

impl Number {
    /// Returns the parts of a number that the kernel sent.
    pub fn of(ino: Ino) -> Number {
        Number {
            snapshot: (ino.0 >> INODE_BITS) as u16,
            inode: ino.0 & ((1 << INODE_BITS) - 1),
        }
    }

    /// Returns the number of an inode in the same tree.
    pub fn with_inode(self, inode: u64) -> Number {
        Number { inode, ..self }
    }

    /// Returns the number that a name in the same tree leads to.
    ///
    /// # Errors
    /// [`VolumeError::NoSuchNumber`]: to the kernel the number would be another inode's, the
    /// mount's own or a snapshot's. Only damage or forgery makes such a name.
    pub fn named(self, inode: u64) -> Result<Number, VolumeError> {
        match (FIRST_INODE..=LAST_INODE).contains(&inode) {
            true => Ok(self.with_inode(inode)),
            false => Err(VolumeError::NoSuchNumber {
                directory: self.inode,
                inode,
            }),
        }
    }

    /// Returns the number that the kernel is sent.
    pub fn ino(self) -> Ino {
        Ino(u64::from(self.snapshot) << INODE_BITS | self.inode)
    }

    /// Returns true for the mount's own files, which are in no tree.
    pub fn is_special(self) -> bool {
        self.snapshot == 0 && (SNAPSHOTS.inode..FIRST_INODE).contains(&self.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_name_leads_to_what_is_not_in_its_tree() {
        let in_tree = |inode| ROOT.named(inode).map(|number| number.inode).ok();
        for inode in [64, 65, (1 << 48) - 1] {
            assert_eq!(in_tree(inode), Some(inode));
        }
        for inode in [
            0,
            1,
            2,
            6,
            63,
            1 << 48,
            (1 << 48) + 64,
            7 << 48 | 1,
            u64::MAX,
        ] {
            assert_eq!(in_tree(inode), None);
        }
    }

    proptest! {
        #[test]
        fn there_and_back(snapshot: u16, inode in 0u64..1 << INODE_BITS) {
            let number = Number { snapshot, inode };
            prop_assert_eq!(Number::of(number.ino()), number);
        }
    }
}
