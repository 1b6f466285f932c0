//! A read-only mount that follows the commits of its volume.
//!
//! Owns: the task that looks for newer commits, and the invalidations that it sends to the kernel.
//! Does not own: the state that open files and directories continue to show (`vfs`).

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bkfs_fuse::{Ino, Notifier};
use tokio::task::JoinHandle;

use crate::repository::Repository;
use crate::tree::diff::Diff;
use crate::tree::key::{self, KeyParts};
use crate::tree::map::Tree;
use crate::vfs::live::{Current, Live};
use crate::volume::error::VolumeError;
use crate::volume::view::View;

/// Time between two looks for a newer commit.
const INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of changed inodes and names of one commit that are invalidated in the kernel.
/// Further entries of its cache expire with their lifetime.
const TOLD_MAX: usize = 100_000;

/// The task that keeps a mount at the last commit of its volume. Dropping it ends the task.
pub(super) struct Following {
    kernel: Arc<OnceLock<Notifier>>,
    task: JoinHandle<()>,
}

impl Following {
    /// Starts the task. Must be called within a runtime.
    pub(super) fn begin(
        repository: Arc<Repository>,
        volume: String,
        current: Arc<Current>,
    ) -> Self {
        let kernel = Arc::new(OnceLock::new());
        let task = tokio::spawn(follow(repository, volume, current, kernel.clone()));
        Following { kernel, task }
    }

    /// Sets the kernel connection that invalidations are sent to from now on.
    pub(super) fn tell_kernel_by(&self, kernel: Notifier) {
        // A mount has one kernel connection, so a second one is ignored.
        let _ = self.kernel.set(kernel);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    repository: Arc<Repository>,
    volume: String,
    current: Arc<Current>,
    kernel: Arc<OnceLock<Notifier>>,
) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let (tree, totals) = match repository.volume_tree(&volume).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("cannot look for a newer commit: {error}");
                continue;
            }
        };
        let before = current.view();
        if tree == before.base() {
            continue;
        }
        // A new view: open files keep the view that they were opened with.
        let view = View::frozen(repository.nodes.clone(), tree, totals);
        let history = current.history();
        let live = Live {
            view: view.clone(),
            volume: None,
            history,
        };
        // A read-only mount loses and writes nothing, so there is nothing to wait for.
        let turn = current.replace(live, []);
        current.settle(turn);
        if let Some(kernel) = kernel.get().cloned()
            && let Err(error) = make_forget(&before, &view, kernel).await
        {
            tracing::warn!("the kernel may show older attributes for a second: {error}");
        }
    }
}

/// Invalidates in the kernel the data, attributes and names that differ between two states.
async fn make_forget(before: &View, after: &View, kernel: Notifier) -> Result<(), VolumeError> {
    let (left, right) = (Tree::new(before.base()), Tree::new(after.base()));
    let mut diff = Diff::new(left, right, key::everything());
    let (mut inodes, mut names) = (BTreeSet::new(), Vec::new());
    while let Some(difference) = diff.next(after.nodes().as_ref()).await? {
        inodes.extend(difference.key.inode().ok());
        if let Ok(KeyParts::Name {
            directory, name, ..
        }) = difference.key.parse()
        {
            names.push((directory, name.to_vec()));
        }
        if inodes.len() + names.len() >= TOLD_MAX {
            break;
        }
    }
    let forget = move || {
        for (directory, name) in &names {
            kernel.invalidate_name(Ino(*directory), name);
        }
        for inode in &inodes {
            kernel.invalidate_inode(Ino(*inode), 0, 0);
        }
    };
    // An invalidation takes kernel locks, so it may wait for other requests.
    let told = tokio::task::spawn_blocking(forget).await;
    told.map_err(|error| VolumeError::Commit(error.to_string()))
}
