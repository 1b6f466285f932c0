//! The walk over the tree: directories first, contents in the background, attributes of directories
//! last.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bkfs_store::direct::DIRECT_BYTES_MIN;
use bytes::Bytes;
use rustix::fs::AtFlags;
use tokio::task::JoinSet;

use crate::fault::{self, Entered};
use crate::restore::error::RestoreError;
use crate::restore::file::{Contents, Target};
use crate::restore::finishing::HeldInode;
use crate::restore::job::Job;
use crate::restore::output::Output;
use crate::restore::selection::Choice;
use crate::restore::{drafts, finishing, place};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::walk;

/// Names read at once.
const PAGE_NAMES: usize = 1024;

/// Number of names that may wait to become links; each takes a few words and its name in memory.
const LINKS_MAX: usize = 4096;

/// A name, and the path of its directory below the target. An open directory for each name would
/// exceed the process's limit of open files.
struct Name {
    directory: Arc<Path>,
    name: OsString,
}

/// Further names of inodes that have several.
#[derive(Default)]
struct Links {
    /// The first name of each such inode, and how many of its names are still to be met.
    firsts: HashMap<u64, (Arc<Name>, u32)>,
    /// Further names, which become links when the first one is whole.
    waiting: Vec<(u64, Arc<Name>, Name)>,
}

/// A directory that is being filled.
struct Filling {
    inode: u64,
    attributes: Attributes,
    fd: Arc<OwnedFd>,
    /// Whether a pattern names it or a directory above it.
    is_included: bool,
    /// Start of the rest of the listing; `None` after its end.
    rest: Option<Key>,
    /// Subdirectories that were listed and not yet entered.
    inside: Vec<Inside>,
}

/// A subdirectory that was listed.
struct Inside {
    inode: u64,
    attributes: Attributes,
    name: OsString,
    is_included: bool,
}

/// Restores the contents of a directory into `target`, and then its attributes. The longest path
/// that a walk follows and the limit of open files bound the depth; the stack of the thread does
/// not. No directory is entered twice.
///
/// # Errors
/// [`RestoreError::Target`] if the descriptor of the target cannot be duplicated. Other failures
/// are reported as problems.
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
    let mut walk = Walk {
        job,
        root: target,
        path,
        links: Links::default(),
        finished: Vec::new(),
    };
    walk.sweep(&fd, path);
    let mut entered = Entered::from(inode);
    // The path of the directory at the top of the stack.
    let mut here = path.to_owned();
    let mut stack = vec![filling(inode, attributes, Arc::new(fd), false)];
    while let Some(top) = stack.last_mut() {
        if top.rest.is_some() {
            walk.list(top, &here, &mut entered, parts).await?;
            if walk.links.waiting.len() >= LINKS_MAX {
                walk.flush(parts).await;
            }
            continue;
        }
        match top.inside.pop() {
            Some(next) => {
                here.push(&next.name);
                match place::directory(top.fd.as_fd(), &next.name, job.options.overwrite) {
                    Ok(fd) => {
                        walk.sweep(&fd, &here);
                        let Inside {
                            inode,
                            attributes,
                            is_included,
                            ..
                        } = next;
                        stack.push(filling(inode, attributes, Arc::new(fd), is_included));
                    }
                    Err(error) => {
                        job.problem(&here, &error, false);
                        here.pop();
                    }
                }
            }
            None => {
                if let Some(done) = stack.pop() {
                    let finished = (done.inode, done.attributes, done.fd, here.clone());
                    walk.finished.push(finished);
                    here.pop();
                    if walk.finished.len() >= FINISHED_MAX {
                        walk.flush(parts).await;
                    }
                }
            }
        }
    }
    walk.flush(parts).await;
    Ok(())
}

/// Restores one inode that is no directory.
pub async fn single(
    job: &Arc<Job>,
    source: (u64, &Attributes),
    place: Destination<'_>,
    parts: &mut JoinSet<()>,
) {
    let (inode, attributes) = source;
    match job.kept(place.directory.as_fd(), place.name, attributes) {
        None => make(job, source, place, parts).await,
        Some(held) if job.options.overwrite.replaces() => {
            finish_kept(job, (inode, attributes), &held, place.path).await;
        }
        Some(_) => {}
    }
}

/// Sets the attributes of an existing inode that stays.
async fn finish_kept(
    job: &Job,
    (inode, attributes): (u64, &Attributes),
    held: &HeldInode,
    path: &Path,
) {
    if let Some(xattrs) = xattrs(job, inode, path).await {
        let unset = finishing::finish_held(held, attributes, &xattrs, job.rights());
        job.unset(path, &unset);
    }
}

/// Where an inode is made.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// The open directory.
    pub directory: &'a Arc<OwnedFd>,
    /// The name in the directory.
    pub name: &'a OsStr,
    /// The whole path, for messages.
    pub path: &'a Path,
}

fn filling(inode: u64, attributes: Attributes, fd: Arc<OwnedFd>, is_included: bool) -> Filling {
    let rest = Some(key::names_from(inode, 0).start);
    Filling {
        inode,
        attributes,
        fd,
        is_included,
        rest,
        inside: Vec::new(),
    }
}

/// Number of directories that may wait for their contents before their times are set; each holds an
/// open descriptor.
const FINISHED_MAX: usize = 256;

/// A walk in progress.
struct Walk<'a> {
    job: &'a Arc<Job>,
    /// The open target.
    root: &'a OwnedFd,
    path: &'a Path,
    links: Links,
    /// Directories that are filled and wait for their attributes.
    finished: Vec<(u64, Attributes, Arc<OwnedFd>, PathBuf)>,
}

impl Walk<'_> {
    /// Waits for all contents, then makes the links to them, then sets the attributes of the filled
    /// directories, in which nothing is made after that.
    async fn flush(&mut self, parts: &mut JoinSet<()>) {
        let job = self.job;
        while let Some(done) = parts.join_next().await {
            if let Err(error) = done {
                job.problem(self.path, &error, false);
            }
        }
        for (inode, first, name) in std::mem::take(&mut self.links.waiting) {
            if let Err(reason) = self.link(inode, &first, &name) {
                let path = self.path.join(&name.directory).join(&name.name);
                job.problem(&path, &reason, false);
            }
        }
        for (inode, attributes, fd, path) in std::mem::take(&mut self.finished) {
            if let Some(xattrs) = xattrs(job, inode, &path).await {
                let unset = finishing::finish(fd.as_fd(), &attributes, &xattrs, job.rights());
                job.unset(&path, &unset);
            }
            job.made();
        }
    }

    /// Makes a further name of an inode that has its first one.
    fn link(&self, inode: u64, first: &Name, name: &Name) -> Result<(), String> {
        let job = self.job;
        if job.options.overwrite.meets_existing() && job.unmade.lock().contains(&inode) {
            return Err("its other name could not be restored".to_owned());
        }
        let draft = job.draft(&name.name);
        let link = || {
            let from = place::reopen(self.root.as_fd(), &first.directory)?;
            let to = place::reopen(self.root.as_fd(), &name.directory)?;
            let first = first.name.as_os_str();
            rustix::fs::linkat(&from, first, &to, &draft, AtFlags::empty())?;
            job.put_in_place(to.as_fd(), &draft, &name.name)
        };
        link().map_err(|error: rustix::io::Errno| error.to_string())
    }
}

impl Walk<'_> {
    /// Removes the temporary files that an earlier restore has left in a directory that may have
    /// existed.
    fn sweep(&self, directory: &OwnedFd, path: &Path) {
        if self.job.options.overwrite.meets_existing()
            && let Err(error) = drafts::sweep(directory.as_fd())
        {
            tracing::warn!(
                "{}: drafts of an earlier restore may stay: {error}",
                path.display()
            );
        }
    }

    /// Returns the attributes of the inode that a name leads to. If no inode can be made of it,
    /// reports a problem and returns `None`. A directory counts as entered.
    async fn sound(&self, inode: u64, path: &Path, entered: &mut Entered) -> Option<Attributes> {
        let found = match walk::attributes(&self.job.source.view, inode).await {
            Ok(found) => found,
            Err(error) => {
                self.job.volume_problem(path, &error);
                return None;
            }
        };
        let sound = found.and_then(
            |attributes| match fault::of_attributes(inode, &attributes) {
                None if mode::is_directory(attributes.mode) => {
                    let length = path.as_os_str().len() - self.path.as_os_str().len();
                    entered.enter(inode, length).map(|()| attributes)
                }
                None => Ok(attributes),
                Some(fault) => Err(fault),
            },
        );
        sound
            .inspect_err(|fault| self.job.problem(path, fault, false))
            .ok()
    }

    /// Returns whether a name is included, or only leads to one that is; none if nothing is made of
    /// it. `below` is the path of its directory below the target.
    fn selects(&self, filling: &Filling, below: &Path, name: &[u8], inode: u64) -> Option<bool> {
        let source = &self.job.source;
        if source.selection.is_everything() {
            return Some(true);
        }
        let mut path = source.path().to_owned();
        if !below.as_os_str().is_empty() {
            path = walk::join(&path, below.as_os_str().as_bytes());
        }
        let path = walk::join(&path, name);
        match source.selection.judge(&path, filling.is_included) {
            Choice::Included => Some(true),
            Choice::Excluded => None,
            Choice::Unnamed => self.job.leading.contains(&inode).then_some(false),
        }
    }

    /// Lets an existing inode stay. One that is replaced when it differs gets the attributes of the
    /// snapshot, and further names become links to it.
    async fn keep(
        &mut self,
        (inode, attributes): (u64, &Attributes),
        held: &HeldInode,
        (below, name): (&Arc<Path>, &OsStr),
        path: &Path,
    ) {
        let job = self.job;
        if !job.options.overwrite.replaces()
            || (attributes.links > 1 && !self.links.is_first(inode, attributes.links, below, name))
        {
            return;
        }
        finish_kept(job, (inode, attributes), held, path).await;
    }

    /// Makes a page of a directory's names; `here` is its path.
    async fn list(
        &mut self,
        filling: &mut Filling,
        here: &Path,
        entered: &mut Entered,
        parts: &mut JoinSet<()>,
    ) -> Result<(), RestoreError> {
        let job = self.job;
        let Some(start) = filling.rest.take() else {
            return Ok(());
        };
        let range = start..key::names_from(filling.inode, 0).end;
        let page = match walk::page(&job.source.view, filling.inode, range, PAGE_NAMES).await {
            Ok(page) => page,
            Err(error) => {
                job.volume_problem(here, &error);
                return Ok(());
            }
        };
        filling.rest = page.next;
        for faulty in page.faulty {
            // `Path::join` of such a name might replace the whole path.
            let path = [here.as_os_str().as_bytes(), b"/", &faulty.name].concat();
            job.problem(Path::new(OsStr::from_bytes(&path)), &faulty.fault, false);
        }
        let below: Arc<Path> = here.strip_prefix(self.path).unwrap_or(here).into();
        for walk::Named { name, inode, .. } in page.names {
            let Some(is_included) = self.selects(filling, &below, &name, inode) else {
                continue;
            };
            let path = here.join(OsStr::from_bytes(&name));
            let Some(attributes) = self.sound(inode, &path, entered).await else {
                continue;
            };
            let name = OsString::from_vec(name);
            if job.leaves_out(&attributes) {
                continue;
            }
            if mode::is_directory(attributes.mode) {
                filling.inside.push(Inside {
                    inode,
                    attributes,
                    name,
                    is_included,
                });
            } else if let Some(held) = job.kept(filling.fd.as_fd(), &name, &attributes) {
                let names = (&below, name.as_os_str());
                self.keep((inode, &attributes), &held, names, &path).await;
            } else if attributes.links > 1
                && !self.links.is_first(inode, attributes.links, &below, &name)
            {
                // `is_first` has noted this name as a link to the first one.
            } else {
                let place = Destination {
                    directory: &filling.fd,
                    name: &name,
                    path: &path,
                };
                make(job, (inode, &attributes), place, parts).await;
            }
        }
        Ok(())
    }
}

impl Links {
    /// Returns true for the first name of an inode. Notes any other name as a link to it.
    fn is_first(&mut self, inode: u64, names: u32, directory: &Arc<Path>, name: &OsStr) -> bool {
        let name = Name {
            directory: directory.clone(),
            name: name.to_owned(),
        };
        let Some((first, left)) = self.firsts.get_mut(&inode) else {
            let left = names.saturating_sub(1);
            self.firsts.insert(inode, (Arc::new(name), left));
            return true;
        };
        self.waiting.push((inode, first.clone(), name));
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.firsts.remove(&inode);
        }
        false
    }
}

async fn make(
    job: &Arc<Job>,
    (inode, attributes): (u64, &Attributes),
    place: Destination<'_>,
    parts: &mut JoinSet<()>,
) {
    let Destination {
        directory,
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
        let draft = job.drafts.next();
        let is_large = attributes.size_bytes >= DIRECT_BYTES_MIN as u64;
        return match Output::make(directory.as_fd(), &draft, is_large) {
            Ok(output) => {
                let target = Target {
                    directory: directory.clone(),
                    draft,
                    name: name.to_owned(),
                    path: path.to_owned(),
                };
                let file = Contents::new(job.clone(), inode, *attributes, xattrs, output, target);
                file.spawn(parts).await;
            }
            Err(error) => {
                unmade();
                job.problem(path, &error, false);
            }
        };
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
async fn xattrs(job: &Job, inode: u64, path: &Path) -> Option<Vec<(Vec<u8>, Bytes)>> {
    match walk::xattrs(&job.source.view, inode).await {
        Ok(Ok(xattrs)) => return Some(xattrs),
        Ok(Err(fault)) => job.problem(path, &fault, false),
        Err(error) => job.volume_problem(path, &error),
    }
    None
}
