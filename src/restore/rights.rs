//! What a restore may set.

/// What a restore may set on the inodes that it makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rights {
    /// True if the process is root: only root may change owners.
    pub is_root: bool,
    /// True if nothing that gives privileges is wanted.
    pub no_special: bool,
    /// True if owners and groups are left as they are.
    pub no_owner: bool,
}

impl Rights {
    pub(super) fn sets_owner(self) -> bool {
        self.is_root && !self.no_owner
    }
}
