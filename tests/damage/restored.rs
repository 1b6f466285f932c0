//! What an empty machine restores from a bucket.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use bkfs::repository::open_in;
use bkfs::restore;
use bkfs::restore::job::Options;
use bkfs::restore::source::Source;
use bkfs::restore::target::Target;
use bkfs_store::Store;

use crate::machine::opening;
use crate::password::Known;
use crate::world::{Fixture, wait};

/// The mode of each path, and its contents or the target of a link.
pub type Tree = BTreeMap<String, (u32, Vec<u8>)>;

/// The result of a restore.
pub struct Restored {
    /// The restored files.
    pub tree: Tree,
    /// Paths for which an error was reported, as `/path`.
    pub problems: Vec<String>,
}

/// Restores a snapshot on a machine that has never seen the repository.
///
/// # Errors
/// The text of the error that ended the restore. Paths that failed are in the result.
pub fn restore(fixture: &Fixture, store: Arc<dyn Store>, name: &str) -> Result<Restored, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let target = directory.path().join("restored");
    let problems = wait(async {
        let mut password = Known(fixture.password);
        let repository = open_in(store, opening(), &mut password).await;
        let repository = repository.map_err(|error| error.to_string())?;
        let found = repository.snapshot("main", name).await;
        let (_, view) = found.map_err(|error| error.to_string())?;
        let options = Options {
            verify: true,
            ..Options::default()
        };
        let source = Source::whole(view, bkfs::volume::ROOT_INODE, b"/");
        let place = Target::at(&target);
        let restored =
            restore::restore(source, Default::default(), &place, options, Arc::default()).await;
        restored.map_err(|error| error.to_string())
    })?;
    let path = |path: &Path| {
        let inside = path.strip_prefix(&target).unwrap_or(path);
        format!("/{}", inside.display())
    };
    let mut tree = Tree::new();
    read(&target, &target, &mut tree);
    Ok(Restored {
        tree,
        problems: problems.iter().map(|problem| path(&problem.path)).collect(),
    })
}

fn read(top: &Path, at: &Path, tree: &mut Tree) {
    let Ok(entries) = std::fs::read_dir(at) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let seen = path.symlink_metadata().expect("is there");
        let contents = if seen.is_symlink() {
            std::fs::read_link(&path)
                .expect("a link")
                .into_os_string()
                .into_encoded_bytes()
        } else if seen.is_file() {
            std::fs::read(&path).expect("a file")
        } else {
            Vec::new()
        };
        let name = format!("/{}", path.strip_prefix(top).expect("below").display());
        tree.insert(
            name,
            (
                seen.permissions().mode() ^ (seen.nlink() as u32) << 24,
                contents,
            ),
        );
        if seen.is_dir() {
            read(top, &path, tree);
        }
    }
}
