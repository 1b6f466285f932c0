//! The directory of a repository's spools on this machine.
//!
//! Owns: where it lies, where it may not lie, and the creation of a mount's spool in it, or of its
//! swap file. Does not own: its identity (`spool_id`), what ended mounts have left there
//! (`spooling`), nor the spool and the swap file themselves (the chunker).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::spool::Spool;
use bkfs_chunker::swap::SwapFile;
use bkfs_store::disk::{Disk, SystemDisk};

use crate::mounting::error::SpoolingError;
use crate::places;
use crate::repository::Repository;

/// How long the disk may take to make a swap file. The mount has looked at the directory before, for
/// which it waits as long as that takes.
const DISK_PATIENCE: Duration = Duration::from_secs(10);

/// Directory of spools of a mount. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SpoolPlace {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The directory of this repository's spools, with one directory for each session.
    pub root: PathBuf,
    /// Most bytes that one spool holds; 0 for no spool, but old ones are replayed.
    pub limit_bytes: u64,
}

impl SpoolPlace {
    /// Returns the directory on this machine for a mount at `mount_point`; `None` if the user has
    /// no state directory.
    ///
    /// # Errors
    /// `OnMount` if it lies on a mount of bkfs, or would be covered by this one; `Unusable`.
    pub fn on_this_machine(
        repository: &Repository,
        limit_bytes: u64,
        mount_point: &Path,
    ) -> Result<Option<Self>, SpoolingError> {
        let Some(state) = places::state_dir() else {
            tracing::warn!("without HOME or XDG_STATE_HOME there is no place for a spool");
            return Ok(None);
        };
        let id = repository.content_store.keyring().repository().to_string();
        let root = state.join("spool").join(id);
        check_place(&root, mount_point)?;
        Ok(Some(Self {
            disk: Arc::new(SystemDisk),
            root,
            limit_bytes,
        }))
    }

    /// Makes the spool of a session; `None` if it may hold no bytes.
    ///
    /// # Errors
    /// The disk fails, another process holds the directory, or files of another session are in it.
    pub(super) async fn create(&self, session: u64) -> Result<Option<Arc<Spool>>, SpoolingError> {
        if self.limit_bytes == 0 {
            return Ok(None);
        }
        let disk = Arc::clone(&self.disk);
        let spool = Spool::create(disk, &self.root, session, self.limit_bytes).await?;
        Ok(Some(spool))
    }

    /// Makes a swap file, which has no name there. `None` if it may hold no bytes, or if the disk
    /// does not let it be made: then memory has to do.
    pub(super) async fn swap(&self) -> Option<SwapFile> {
        if self.limit_bytes == 0 {
            return None;
        }
        let path = self.root.display();
        let made = tokio::time::timeout(DISK_PATIENCE, self.try_swap()).await;
        made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .inspect_err(|error| {
                tracing::warn!(
                    "there is no swap file in {path}: {error}; what is changed beyond memory= is \
                     uploaded"
                );
            })
            .ok()
    }

    async fn try_swap(&self) -> io::Result<SwapFile> {
        self.disk.make_directory(&self.root).await?;
        let file = self.disk.make_unnamed(&self.root).await?;
        SwapFile::new(file, self.limit_bytes)
    }
}

/// Refuses a spool on a mount of bkfs, which would wait for itself.
fn check_place(spool: &Path, mount_point: &Path) -> Result<(), SpoolingError> {
    let unusable = |source| SpoolingError::Unusable {
        path: spool.display().to_string(),
        source,
    };
    let on_mount = |mount: &Path| SpoolingError::OnMount {
        spool: spool.display().to_string(),
        mount: mount.display().to_string(),
    };
    let resolved = resolve(spool).map_err(unusable)?;
    let mount = resolve(mount_point).map_err(unusable)?;
    if resolved.starts_with(&mount) {
        return Err(on_mount(mount_point));
    }
    let existing = resolved.ancestors().find(|path| path.exists());
    match existing.map(bkfs_fuse::find_mount) {
        Some(Ok(Some(found))) if found.is_bkfs() => Err(on_mount(&found.mount_point)),
        _ => Ok(()),
    }
}

/// Returns the path without symbolic links, as far as it exists.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for existing in path.ancestors() {
        if let Ok(resolved) = existing.canonicalize() {
            let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return Ok(resolved.join(rest));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_on_its_own_mount_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        std::os::unix::fs::symlink(&mount, directory.path().join("link")).unwrap();
        for below in ["mount/state/spool", "link/state/spool", "mount"] {
            let refused = check_place(&directory.path().join(below), &mount).unwrap_err();
            assert!(
                matches!(refused, SpoolingError::OnMount { .. }),
                "{below}: {refused}"
            );
        }
        check_place(&directory.path().join("mounted/spool"), &mount).unwrap();
    }
}
