//! Restoring a tree, a directory or a file into a local directory, without a mount.
//!
//! Owns: the walk, how each inode is made, the concurrent fetch of parts, and the report of
//! failures. Does not own: reading (`view`).
//!
//! Everything is made relative to open directories and never through a symbolic link. Neither a
//! hostile name in the bucket nor a link in the target can therefore lead outside of the target.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::fault;
use crate::restore::error::RestoreError;
use crate::restore::job::{Abandoning, Job, Options, Problem, RestoreProgress};
use crate::restore::overwrite::Found;
use crate::restore::parts::Parts;
use crate::restore::room::{Lacking, Need};
use crate::restore::source::{Source, Survey};
use crate::restore::sync::{date, sync};
use crate::restore::target::Target;
use crate::root::snapshots::SnapshotEntry;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::ROOT_INODE;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;

mod dates;
mod drafts;
pub mod error;
mod file;
mod filesystems;
mod finishing;
mod inode;
pub mod job;
mod output;
pub mod overwrite;
mod parts;
mod place;
mod rights;
pub mod room;
pub mod selection;
pub mod source;
mod sync;
pub mod target;
mod walk;

/// Finds an inode by its path from the root. Empty components are skipped.
///
/// # Errors
/// [`RestoreError::NoSuchPath`] if a component does not exist; [`RestoreError::Volume`] if the
/// snapshot cannot be read.
pub async fn resolve(view: &View, path: &[u8]) -> Result<u64, RestoreError> {
    let missing = || RestoreError::NoSuchPath {
        path: crate::printable::name(path),
    };
    let mut inode = ROOT_INODE;
    // A name that leads to an invalid inode number counts as absent, as everywhere.
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let cookie = view.nodes().names().cookie(name);
        match view
            .item(Scope::Live, &Key::name(inode, cookie, name))
            .await?
        {
            Some(Item::Name { inode: found, .. }) if fault::of_inode(found).is_none() => {
                inode = found;
            }
            _ => return Err(missing()),
        }
    }
    Ok(inode)
}

/// Removes the drafts that interrupted restores of the file `target` have left next to it.
pub fn sweep(target: &Path) {
    let Some(directory) = target.parent() else {
        return;
    };
    let directory = match directory.as_os_str().is_empty() {
        true => Path::new("."),
        false => directory,
    };
    if let Ok(directory) = std::fs::File::open(directory) {
        sweep_in(&directory, target);
    }
}

fn sweep_in(directory: &impl AsFd, target: &Path) {
    if let Err(error) = drafts::sweep(directory.as_fd(), SystemClock.now()) {
        let target = target.display();
        tracing::warn!("{target}: drafts of an earlier restore may stay next to it: {error}");
    }
}

/// Returns what a restore of `source` as `target` would make and the room that it would take, and
/// counts in `progress` what would stay there. Changes nothing.
///
/// # Errors
/// [`RestoreError::Occupied`] if the target has what may not exist; [`RestoreError::Volume`] if the
/// snapshot cannot be read.
pub async fn rehearse(
    source: &Source,
    target: &Target,
    options: Options,
    progress: &RestoreProgress,
) -> Result<(Survey, Need), RestoreError> {
    let top = source.view.attributes(Scope::Live, source.inode).await?;
    let is_directory = mode::is_directory(top.mode);
    target.require_vacant(is_directory, options.overwrite)?;
    let target = target.path();
    let rights = options.rights();
    let mut need = Need::default();
    let mut judge = |path: &Path, attributes: &Attributes| {
        if mode::is_directory(attributes.mode) {
            return;
        }
        let found = Found::of(path);
        let keeps = |found: &Found| options.overwrite.keeps(found, attributes, rights);
        match found.as_ref().is_some_and(keeps) {
            true => progress.keep(attributes),
            false => need.add(source::allocated(attributes), found.as_ref()),
        }
    };
    if !is_directory {
        judge(target, &top);
    }
    let base = source.path().len() + 1;
    let survey = source.survey(|path, attributes| {
        let below = OsStr::from_bytes(path.get(base..).unwrap_or_default());
        judge(&target.join(below), attributes);
    });
    let survey = survey.await?;
    Ok((survey, need))
}

/// Returns the room that a restore of `source` as `target` lacks; none if it fits, or if that is not
/// known. `total` is the number of bytes to restore if that is known, and `snapshot` the snapshot.
///
/// # Errors
/// [`RestoreError::Occupied`] if the target has what may not exist.
pub async fn lacking(
    source: &Source,
    (snapshot, total): (&SnapshotEntry, Option<u64>),
    target: &Target,
    options: Options,
) -> Result<Option<Lacking>, RestoreError> {
    // Each file may need one block more than its contents.
    let blocks = snapshot.files.saturating_mul(4096);
    let at_most = total.unwrap_or(snapshot.bytes).saturating_add(blocks);
    let lacking = target
        .room()
        .and_then(|room| Need::of(at_most).lacking_in(room));
    if lacking.is_none() || target.is_beneath() {
        // A look at what is there would follow links that lead out of the root.
        return Ok(lacking.filter(|_| !options.overwrite.meets_existing()));
    }
    // What is there already is replaced, or need not be written.
    match rehearse(source, target, options, &RestoreProgress::default()).await {
        // The restore itself says what is wrong with the tree.
        Err(RestoreError::Volume(_)) => Ok(None),
        rehearsed => Ok(rehearsed?.1.lacking(target.path())),
    }
}

/// Restores `source` as `target`: the contents of a directory, or one file. `leading` are the
/// directories that a [survey](Source::survey) has found to lead to what patterns name.
///
/// Returns the problems: inodes that could not be restored, or not completely. All others are
/// restored and on disk (`syncfs`).
///
/// Cancel safety: dropped, it leaves inodes that are whole, without a sync, and, under temporary
/// names, parts of others, which the next restore to the same directory removes.
///
/// # Errors
/// [`RestoreError::Target`] or [`RestoreError::Occupied`] if the target cannot be used;
/// [`RestoreError::Volume`] if the attributes of the source cannot be read.
pub async fn restore(
    source: Source,
    leading: HashSet<u64>,
    target: &Target,
    options: Options,
    progress: Arc<RestoreProgress>,
) -> Result<Vec<Problem>, RestoreError> {
    let attributes = source.view.attributes(Scope::Live, source.inode).await?;
    let job = Job::new(source, leading, options, progress);
    let mut parts = Parts::default();
    let mut made = pin!(make(&job, attributes, target, &mut parts));
    // Declared last, so dropped before the walk and the parts, which hold unfinished files.
    let mut abandoning = Abandoning(Some(job.clone()));
    let made = made.as_mut().await;
    if made.is_ok() {
        abandoning.0 = None;
    }
    made.map(|()| std::mem::take(&mut *job.problems.lock()))
}

/// Makes what the source has, by tasks in `parts`, and waits for them.
async fn make(
    job: &Arc<Job>,
    attributes: Attributes,
    target: &Target,
    parts: &mut Parts,
) -> Result<(), RestoreError> {
    let (path, number, options) = (target.path(), job.source.inode, job.options);
    let unusable = |error: &dyn std::fmt::Display| RestoreError::Target {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let note = |directory: &OwnedFd| {
        let noted = job.filesystems.note(directory.as_fd());
        noted.map_err(|error| unusable(&error))
    };
    let directory: OwnedFd = if mode::is_directory(attributes.mode) {
        let directory = target.directory(options.overwrite)?;
        note(&directory.fd)?;
        walk::directory(job, number, attributes, &directory, path, parts).await?;
        directory.fd
    } else if job.leaves_out(&attributes) {
        return Ok(());
    } else if let Some(fault) = fault::of_attributes(number, &attributes) {
        job.problem(path, &fault, false);
        return Ok(());
    } else {
        let (directory, name) = target.file(options.overwrite)?;
        note(&directory)?;
        sweep_in(&*directory, path);
        let place = inode::Destination {
            directory: &directory,
            below: &Path::new("").into(),
            name: &name,
            path,
        };
        inode::single(job, (number, &attributes), place, parts).await;
        Arc::try_unwrap(directory)
            .or_else(|shared| shared.try_clone())
            .map_err(|error| unusable(&error))?
    };
    parts.join(|error| job.problem(path, &error, false)).await;
    // What still waits is a single file.
    let files = job.dates.take();
    date(job, files, &directory, path.parent().unwrap_or(path)).await;
    sync(job, path).await;
    Ok(())
}
