//! Where commands keep working data.

use std::path::PathBuf;
use std::sync::Arc;

use bkfs_store::entropy::SystemEntropy;

use crate::maintain::workspace::Workspace;
use crate::maintain::workspace::directory::WorkDirectory;
use crate::places;

/// Returns working data that is in memory up to its default, and on disk beyond that: in
/// `directory`, or else in the directory `name` in that of the cache.
pub fn workspace(name: &str, directory: Option<&PathBuf>) -> Workspace {
    let by_default = || {
        let cache = places::cache_dir().unwrap_or_else(std::env::temp_dir);
        cache.join(name)
    };
    let directory = directory.cloned().unwrap_or_else(by_default);
    Workspace {
        medium: Some(Arc::new(WorkDirectory::new(
            directory,
            Arc::new(SystemEntropy),
        ))),
        ..Workspace::default()
    }
}
