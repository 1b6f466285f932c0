//! The walk over the tree: directories first, contents in the background, attributes of directories last.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::AtFlags;
use tokio::task::JoinSet;

use crate::restore::file::Contents;
use crate::restore::{Job, RestoreError, place};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;

/// Names looked at in one go.
const PAGE_NAMES: usize = 1024;

/// Links to follow up: where an inode with several names was made first.
type FirstNames = HashMap<u64, (Arc<OwnedFd>, OsString)>;

/// A directory that is being filled.
struct Filling {
    inode: u64,
    attributes: Attributes,
    fd: Arc<OwnedFd>,
    path: PathBuf,
    /// Where the listing goes on; none when it is done.
    rest: Option<Key>,
    /// Subdirectories that were seen and not yet entered.
    inside: Vec<(u64, Attributes, OsString)>,
}

/// Restores a directory's contents into `target`, and then its attributes. Depth is bounded by memory only, not by the stack.
pub async fn directory(
    job: &Arc<Job>,
    inode: u64,
    attributes: Attributes,
    target: &OwnedFd,
    path: &Path,
    parts: &mut JoinSet<()>,
) -> Result<(), RestoreError> {
    let fd = target.try_clone().map_err(|error| RestoreError::Target {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mut firsts = FirstNames::new();
    let mut finished: Vec<(u64, Attributes, Arc<OwnedFd>, PathBuf)> = Vec::new();
    let mut stack = vec![filling(inode, attributes, Arc::new(fd), path.to_owned())];
    while let Some(top) = stack.last_mut() {
        if top.rest.is_some() {
            list(job, top, &mut firsts, parts).await?;
            continue;
        }
        match top.inside.pop() {
            Some((inode, attributes, name)) => {
                let inner = top.path.join(&name);
                match place::directory(top.fd.as_fd(), &name, job.options.overwrite) {
                    Ok(fd) => stack.push(filling(inode, attributes, Arc::new(fd), inner)),
                    Err(error) => job.problem(&inner, &error, false),
                }
            }
            None => {
                if let Some(done) = stack.pop() {
                    finished.push((done.inode, done.attributes, done.fd, done.path));
                    flush_finished(job, &mut finished, parts).await;
                }
            }
        }
    }
    flush_all(job, finished, parts).await;
    Ok(())
}

/// Restores one inode that is no directory.
pub async fn single(
    job: &Arc<Job>,
    source: (u64, &Attributes),
    place: Place<'_>,
    parts: &mut JoinSet<()>,
) {
    make(job, source, place, parts).await;
}

/// Where an inode is made.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The open directory.
    pub directory: &'a Arc<OwnedFd>,
    /// The name in it.
    pub name: &'a OsStr,
    /// The whole path, for messages.
    pub path: &'a Path,
}

fn filling(inode: u64, attributes: Attributes, fd: Arc<OwnedFd>, path: PathBuf) -> Filling {
    let rest = Some(key::names_from(inode, 0).start);
    Filling {
        inode,
        attributes,
        fd,
        path,
        rest,
        inside: Vec::new(),
    }
}

/// Directories wait for their contents before their times are set; this many may wait, each with an open descriptor.
const FINISHED_MAX: usize = 256;

async fn flush_finished(
    job: &Arc<Job>,
    finished: &mut Vec<(u64, Attributes, Arc<OwnedFd>, PathBuf)>,
    parts: &mut JoinSet<()>,
) {
    if finished.len() >= FINISHED_MAX {
        flush_all(job, std::mem::take(finished), parts).await;
    }
}

/// Sets the attributes of directories, once nothing is made in them any more.
async fn flush_all(
    job: &Arc<Job>,
    finished: Vec<(u64, Attributes, Arc<OwnedFd>, PathBuf)>,
    parts: &mut JoinSet<()>,
) {
    while let Some(done) = parts.join_next().await {
        if let Err(error) = done {
            job.problem(Path::new(""), &error, false);
        }
    }
    for (inode, attributes, fd, path) in finished {
        match xattrs(job, inode).await {
            Ok(xattrs) => {
                if let Err(error) = place::finish(fd.as_fd(), &attributes, &xattrs, job.is_root) {
                    job.problem(&path, &error, false);
                }
            }
            Err(error) => job.volume_problem(&path, &error),
        }
        job.made();
    }
}

/// Makes a page of a directory's names.
async fn list(
    job: &Arc<Job>,
    filling: &mut Filling,
    firsts: &mut FirstNames,
    parts: &mut JoinSet<()>,
) -> Result<(), RestoreError> {
    let Some(start) = filling.rest.take() else {
        return Ok(());
    };
    let range = start..key::names_from(filling.inode, 0).end;
    let page = match job.view.items(Scope::Live, range, PAGE_NAMES).await {
        Ok(page) => page,
        Err(error) => {
            job.volume_problem(&filling.path, &error);
            return Ok(());
        }
    };
    filling.rest = page.next;
    for (key, item) in page.items {
        let (Ok(KeyParts::Name { name, .. }), Item::Name { inode, .. }) = (key.parse(), item)
        else {
            job.volume_problem(
                &filling.path,
                &VolumeError::Malformed {
                    inode: filling.inode,
                },
            );
            continue;
        };
        let path = filling.path.join(OsStr::from_bytes(name));
        if !place::is_safe(name) {
            job.problem(
                &path,
                &"the bucket holds a name that no file can have",
                true,
            );
            continue;
        }
        let attributes = match job.view.attributes(Scope::Live, inode).await {
            Ok(attributes) => attributes,
            Err(error) => {
                job.volume_problem(&path, &error);
                continue;
            }
        };
        let name = OsString::from_vec(name.to_vec());
        if mode::is_directory(attributes.mode) {
            filling.inside.push((inode, attributes, name));
        } else if attributes.links > 1
            && !link_or_remember(job, inode, &filling.fd, &name, &path, firsts)
        {
            // The other name is there, and this one leads to it now.
        } else {
            let place = Place {
                directory: &filling.fd,
                name: &name,
                path: &path,
            };
            make(job, (inode, &attributes), place, parts).await;
        }
    }
    Ok(())
}

/// Links another name of an inode that was made already; true if this is its first name.
fn link_or_remember(
    job: &Job,
    inode: u64,
    directory: &Arc<OwnedFd>,
    name: &OsStr,
    path: &Path,
    firsts: &mut FirstNames,
) -> bool {
    let Some((first, first_name)) = firsts.get(&inode) else {
        firsts.insert(inode, (directory.clone(), name.to_owned()));
        return true;
    };
    let cleared = if job.options.overwrite {
        place::clear(directory.as_fd(), name)
    } else {
        Ok(())
    };
    let linked = cleared.and_then(|()| {
        rustix::fs::linkat(
            first.as_fd(),
            first_name.as_os_str(),
            directory.as_fd(),
            name,
            AtFlags::empty(),
        )
    });
    if let Err(error) = linked {
        job.problem(path, &error, false);
    }
    false
}

async fn make(
    job: &Arc<Job>,
    (inode, attributes): (u64, &Attributes),
    place: Place<'_>,
    parts: &mut JoinSet<()>,
) {
    let Place {
        directory,
        name,
        path,
    } = place;
    if job.options.overwrite
        && let Err(error) = place::clear(directory.as_fd(), name)
    {
        return job.problem(path, &error, false);
    }
    let xattrs = match xattrs(job, inode).await {
        Ok(xattrs) => xattrs,
        Err(error) => return job.volume_problem(path, &error),
    };
    if mode::is_regular(attributes.mode) {
        return match place::file(directory.as_fd(), name) {
            Ok(fd) => {
                let file =
                    Contents::new(job.clone(), inode, *attributes, xattrs, fd, path.to_owned());
                file.spawn(parts).await;
            }
            Err(error) => job.problem(path, &error, false),
        };
    }
    let made = make_other(job, inode, attributes, directory, name).await;
    let finished = made.and_then(|()| {
        place::xattrs_at(directory.as_fd(), name, &xattrs, job.is_root)?;
        Ok(place::finish_at(
            directory.as_fd(),
            name,
            attributes,
            job.is_root,
        )?)
    });
    match finished {
        Ok(()) => job.made(),
        Err(MakeError::Volume(error)) => job.volume_problem(path, &error),
        Err(MakeError::System(error)) => job.problem(path, &error, false),
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
    match job.view.item(Scope::Live, &Key::symlink(inode)).await {
        Ok(Some(Item::Symlink(target))) => Ok(rustix::fs::symlinkat(
            OsStr::from_bytes(&target),
            directory.as_fd(),
            name,
        )?),
        Ok(_) => Err(MakeError::Volume(VolumeError::Malformed { inode })),
        Err(error) => Err(MakeError::Volume(error)),
    }
}

async fn xattrs(job: &Job, inode: u64) -> Result<Vec<(Vec<u8>, Bytes)>, VolumeError> {
    let mut xattrs = Vec::new();
    for name in job.view.xattrs(inode).await? {
        let value = job.view.xattr(inode, &name).await?;
        xattrs.push((name, value));
    }
    Ok(xattrs)
}
