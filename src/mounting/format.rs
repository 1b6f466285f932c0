//! The first contents of a volume, and the cleanup of orphans that a crash left behind.

use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;

use crate::tree::item::Attributes;
use crate::tree::key::{self, Key, KeyParts};
use crate::vfs::special::Owner;
use crate::volume::error::VolumeError;
use crate::volume::nodes::{NewNodes, Nodes};
use crate::volume::state::Scope;
use crate::volume::usage::Usage;
use crate::volume::{ROOT_INODE, Volume};

/// Stores the empty tree and returns the id of its root node.
///
/// Cancel safety: dropped, it has stored the node or not; nothing refers to it.
///
/// # Errors
/// [`VolumeError::ContentStore`] if the node cannot be stored, [`VolumeError::Tree`] if it is no
/// valid node.
pub async fn empty_tree(ingest: &Ingest, cache: &Nodes) -> Result<Id, VolumeError> {
    crate::tree::empty(&NewNodes { ingest, cache }).await
}

/// Makes the root directory of a new volume, owned by the user of the mount. Does nothing if it
/// exists.
///
/// Cancel safety: dropped, it has changed nothing.
///
/// # Errors
/// As [`View::transact`](crate::volume::view::View::transact).
pub async fn make_root(volume: &Volume, owner: Owner) -> Result<(), VolumeError> {
    let attributes = Attributes {
        mode: libc::S_IFDIR | 0o755,
        uid: owner.uid,
        gid: owner.gid,
        links: 2,
        accessed: owner.since,
        modified: owner.since,
        changed: owner.since,
        ..Attributes::default()
    };
    volume
        .view
        .transact(|run| {
            if run.get(&Key::attributes(ROOT_INODE))?.is_none() {
                run.make_inode(ROOT_INODE);
                run.set_attributes(ROOT_INODE, attributes);
            }
            Ok(())
        })
        .await
}

/// Drops inodes that lost their last name while a process of an earlier mount held them open.
/// Inodes that users of a `former` volume of this mount hold are kept for them.
///
/// Cancel safety: dropped, it leaves the remaining orphans to the next mount.
///
/// # Errors
/// [`VolumeError::Malformed`] if a key is not that of an orphan. As
/// [`View::items`](crate::volume::view::View::items) and [`Volume::reap_left_behind`].
pub async fn reap_orphans(volume: &Volume, former: Option<&Usage>) -> Result<(), VolumeError> {
    let mut range = key::orphans();
    loop {
        let page = volume.view.items(Scope::Live, range.clone(), 1024).await?;
        for (key, _) in &page.items {
            let Ok(KeyParts::Orphan { inode }) = key.parse() else {
                return Err(VolumeError::Malformed { inode: 0 });
            };
            if former.is_some_and(|users| users.in_use(inode)) {
                volume.keep_orphan(inode);
            } else {
                volume.reap_left_behind(inode).await?;
            }
        }
        match page.next {
            Some(next) => range.start = next,
            None => return Ok(()),
        }
    }
}
