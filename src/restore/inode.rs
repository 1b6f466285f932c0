//! Restoring one inode that is no directory.
//!
//! Owns: whether an existing inode stays, and how a new one is made and gets its name. Does not own:
//! the contents of files (`file`), nor the walk over directories (`walk`).

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::fault;
use crate::restore::file::{Contents, Target};
use crate::restore::finishing::HeldInode;
use crate::restore::job::Job;
use crate::restore::parts::Parts;
use crate::restore::{finishing, place};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::walk;

/// Restores one inode that is no directory.
pub async fn single(
    job: &Arc<Job>,
    source: (u64, &Attributes),
    place: Destination<'_>,
    parts: &mut Parts,
) {
    let (_, attributes) = source;
    match kept(job, source, place).await {
        None => make(job, source, place, parts).await,
        Some(kept) => kept.finish(job, attributes, place.path),
    }
}

/// An existing inode that stays.
pub struct Kept {
    held: HeldInode,
    /// The extended attributes that it gets; none if it gets no attributes.
    xattrs: Option<Vec<(Vec<u8>, Bytes)>>,
}

/// Returns the inode that has a name in the target if it stays, and counts it then. One that gets
/// privileges is made anew: they are those of its contents.
pub async fn kept(
    job: &Job,
    (inode, attributes): (u64, &Attributes),
    place: Destination<'_>,
) -> Option<Kept> {
    let held = job.kept(place.directory.as_fd(), place.name, attributes)?;
    let xattrs = match job.options.overwrite.replaces() {
        true => xattrs(job, inode, place.path).await,
        false => None,
    };
    if xattrs.as_deref().is_some_and(finishing::gives_privileges) {
        return None;
    }
    job.progress.keep(attributes);
    Some(Kept { held, xattrs })
}

impl Kept {
    /// Sets the attributes, if it gets any.
    pub fn finish(&self, job: &Job, attributes: &Attributes, path: &Path) {
        if let Some(xattrs) = &self.xattrs {
            let unset = finishing::finish_held(&self.held, attributes, xattrs, job.rights());
            job.unset(path, &unset);
        }
    }
}

/// Where an inode is made.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// The open directory.
    pub directory: &'a Arc<OwnedFd>,
    /// Its path below the target.
    pub below: &'a Arc<Path>,
    /// The name in the directory.
    pub name: &'a OsStr,
    /// The whole path, for messages.
    pub path: &'a Path,
}

/// Makes an inode; a file is filled by tasks in `parts`.
pub async fn make(
    job: &Arc<Job>,
    (inode, attributes): (u64, &Attributes),
    place: Destination<'_>,
    parts: &mut Parts,
) {
    let Destination {
        directory,
        below,
        name,
        path,
    } = place;
    let unmade = || {
        job.unmade.lock().insert(inode);
    };
    let Some(xattrs) = xattrs(job, inode, path).await else {
        return unmade();
    };
    if mode::is_regular(attributes.mode) {
        let target = Target {
            directory: directory.clone(),
            draft: job.drafts.next(),
            name: name.to_owned(),
            below: below.clone(),
            path: path.to_owned(),
        };
        let file = Contents::new(job.clone(), inode, *attributes, xattrs, target);
        return parts.fill(file).await;
    }
    let draft = job.draft(name);
    match make_other(job, inode, attributes, directory, &draft).await {
        Ok(()) => {}
        Err(error) => {
            unmade();
            return match error {
                MakeError::Volume(error) => job.volume_problem(path, &error),
                MakeError::System(error) => job.problem(path, &error, false),
            };
        }
    }
    let unset = finishing::finish_at(directory.as_fd(), &draft, attributes, &xattrs, job.rights());
    if let Err(error) = job.put_in_place(directory.as_fd(), &draft, name) {
        unmade();
        return job.problem(path, &error, false);
    }
    if !job.unset(path, &unset) {
        job.made();
    }
}

/// Why an inode could not be made.
enum MakeError {
    Volume(VolumeError),
    System(rustix::io::Errno),
}

impl From<rustix::io::Errno> for MakeError {
    fn from(error: rustix::io::Errno) -> Self {
        MakeError::System(error)
    }
}

async fn make_other(
    job: &Job,
    inode: u64,
    attributes: &Attributes,
    directory: &OwnedFd,
    name: &OsStr,
) -> Result<(), MakeError> {
    if !mode::is_symlink(attributes.mode) {
        return Ok(place::special(directory.as_fd(), name, attributes)?);
    }
    let link = Key::symlink(inode);
    match job.source.view.item(Scope::Live, &link).await {
        Ok(Some(Item::Symlink(target))) if fault::of_target(inode, &target).is_none() => Ok(
            rustix::fs::symlinkat(OsStr::from_bytes(&target), directory.as_fd(), name)?,
        ),
        Ok(_) => Err(MakeError::Volume(VolumeError::Malformed { inode })),
        Err(error) => Err(MakeError::Volume(error)),
    }
}

/// Returns the extended attributes of an inode. If they cannot be read, reports a problem and
/// returns `None`.
pub async fn xattrs(job: &Job, inode: u64, path: &Path) -> Option<Vec<(Vec<u8>, Bytes)>> {
    match walk::xattrs(&job.source.view, inode).await {
        Ok(Ok(xattrs)) => return Some(xattrs),
        Ok(Err(fault)) => job.problem(path, &fault, false),
        Err(error) => job.volume_problem(path, &error),
    }
    None
}
