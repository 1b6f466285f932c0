//! The walk over the tree: directories first, contents in the background, attributes of directories
//! last.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode};
use tokio::task::{JoinError, JoinSet};

use crate::clock::{Clock, SystemClock};
use crate::fault::{self, Entered};
use crate::restore::error::RestoreError;
use crate::restore::inode::{Destination, Kept, kept, make, xattrs};
use crate::restore::job::Job;
use crate::restore::parts::Parts;
use crate::restore::place::Opened;
use crate::restore::selection::Choice;
use crate::restore::sync::date;
use crate::restore::{drafts, finishing, place};
use crate::tree::item::Attributes;
use crate::tree::key::{self, Key};
use crate::volume::mode;
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
    /// The permissions that it had, if it is not new and stays as it is.
    stays: Option<Mode>,
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
    target: &Opened,
    path: &Path,
    parts: &mut Parts,
) -> Result<(), RestoreError> {
    let again = || {
        let again = target.fd.try_clone();
        again.map_err(|error| RestoreError::Target {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    };
    let (root, fd) = (Arc::new(again()?), again()?);
    let mut walk = Walk {
        job,
        root,
        path,
        links: Links::default(),
        finished: Vec::new(),
        dating: JoinSet::new(),
    };
    walk.sweep(&fd, path);
    let mut entered = Entered::from(inode);
    // The path of the directory at the top of the stack.
    let mut here = path.to_owned();
    let top = Inside {
        inode,
        attributes,
        name: OsString::new(),
        is_included: false,
    };
    let opened = Opened {
        fd,
        before: target.before,
    };
    let mut stack = vec![walk.filling(top, opened)];
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
                let entered = walk.enter(top, next, &mut here);
                stack.extend(entered);
            }
            None => {
                if let Some(filled) = stack.pop() {
                    let path = here.clone();
                    walk.finished.push(Filled { filled, path });
                    here.pop();
                    if walk.finished.len() >= FINISHED_MAX {
                        walk.flush(parts).await;
                    }
                }
            }
        }
    }
    walk.flush(parts).await;
    walk.date(parts).await;
    Ok(())
}

/// A directory that is filled and waits for its attributes.
struct Filled {
    filled: Filling,
    path: PathBuf,
}

/// Number of directories that may wait for their contents before their times are set; each holds an
/// open descriptor.
const FINISHED_MAX: usize = 256;

/// A walk in progress.
struct Walk<'a> {
    job: &'a Arc<Job>,
    /// The open target.
    root: Arc<OwnedFd>,
    path: &'a Path,
    links: Links,
    /// Directories that are filled and wait for their attributes.
    finished: Vec<Filled>,
    /// Gives whole files their times while others are filled. At most one task, so that each failed
    /// write is reported by one sync.
    dating: JoinSet<()>,
}

impl Walk<'_> {
    /// Makes or opens a directory; `here` is the path of the one above, and then its own. Reports a
    /// problem and returns `None` if that fails.
    fn enter(&self, above: &Filling, next: Inside, here: &mut PathBuf) -> Option<Filling> {
        here.push(&next.name);
        let overwrite = self.job.options.overwrite;
        let opened = place::directory(above.fd.as_fd(), &next.name, overwrite);
        let noted = |opened: &Opened| self.job.filesystems.note(opened.fd.as_fd());
        match opened.and_then(|opened| noted(&opened).map(|()| opened)) {
            Ok(opened) => {
                self.sweep(&opened.fd, here);
                Some(self.filling(next, opened))
            }
            Err(error) => {
                self.job.problem(here, &error, false);
                here.pop();
                None
            }
        }
    }

    /// Returns an opened directory before anything of it is listed.
    fn filling(&self, directory: Inside, opened: Opened) -> Filling {
        let options = &self.job.options;
        // One that no pattern names only leads to what one does.
        let is_named = directory.is_included || !self.job.source.selection.is_by_name();
        let stays = !options.overwrite.changes_directories() || !is_named;
        Filling {
            rest: Some(key::names_from(directory.inode, 0).start),
            inode: directory.inode,
            attributes: directory.attributes,
            fd: Arc::new(opened.fd),
            is_included: directory.is_included,
            stays: opened.before.filter(|_| stays),
            inside: Vec::new(),
        }
    }

    /// Waits for all contents.
    async fn join(&self, parts: &mut Parts) {
        parts.join(|error: JoinError| self.failed(&error)).await;
    }

    /// Gives all files their times, once they are whole and on the disk.
    async fn date(&mut self, parts: &mut Parts) {
        self.join(parts).await;
        self.dated().await;
        date(self.job, self.job.dates.take(), &self.root, self.path).await;
    }

    /// Begins to give the files their times that are whole now. Waits for the ones before them, so
    /// that only a bounded number waits.
    async fn date_soon(&mut self) {
        self.dated().await;
        let (job, files) = (self.job.clone(), self.job.dates.take());
        let (root, path) = (self.root.clone(), self.path.to_owned());
        self.dating
            .spawn(async move { date(&job, files, &root, &path).await });
    }

    /// Waits for the files that are being given their times.
    async fn dated(&mut self) {
        while let Some(dated) = self.dating.join_next().await {
            if let Err(error) = dated {
                self.failed(&error);
            }
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) {
        self.job.problem(self.path, error, false);
    }

    /// Waits for all contents, then makes the links to them, then sets the attributes of the filled
    /// directories, in which nothing is made after that.
    async fn flush(&mut self, parts: &mut Parts) {
        let job = self.job;
        self.join(parts).await;
        for (inode, first, name) in std::mem::take(&mut self.links.waiting) {
            if let Err(reason) = self.link(inode, &first, &name) {
                let path = self.path.join(&name.directory).join(&name.name);
                job.problem(&path, &reason, false);
            }
        }
        let finished = std::mem::take(&mut self.finished);
        // Its files must have their times before their owner cannot reach them any more.
        let closes = |done: &Filled| {
            let stays = done.filled.stays.map(|mode| mode.bits());
            stays.unwrap_or(done.filled.attributes.mode) & libc::S_IXUSR == 0
        };
        if !job.rights().is_root && finished.iter().any(closes) {
            self.date(parts).await;
        }
        for Filled { filled, path } in finished {
            self.finish(filled, &path).await;
            job.made();
        }
    }

    /// Sets the attributes of a directory, or gives back those that it had.
    async fn finish(&self, filled: Filling, path: &Path) {
        let job = self.job;
        if let Some(before) = filled.stays {
            if let Err(error) = place::give_back(filled.fd.as_fd(), before) {
                job.problem(path, &format_args!("permissions: {error}"), false);
            }
        } else if let Some(xattrs) = xattrs(job, filled.inode, path).await {
            let attributes = &filled.attributes;
            let unset = finishing::finish(filled.fd.as_fd(), attributes, &xattrs, job.rights());
            job.unset(path, &unset);
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
            let held = drafts::hold(from.as_fd(), first);
            rustix::fs::linkat(&from, first, &to, &draft, AtFlags::empty())?;
            let named = job.put_in_place(to.as_fd(), &draft, &name.name);
            drop(held);
            named
        };
        link().map_err(|error: rustix::io::Errno| error.to_string())
    }
}

impl Walk<'_> {
    /// Removes the temporary files that an earlier restore has left in a directory that may have
    /// existed.
    fn sweep(&self, directory: &OwnedFd, path: &Path) {
        if self.job.options.overwrite.meets_existing()
            && let Err(error) = drafts::sweep(directory.as_fd(), SystemClock.now())
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
    fn keep(&mut self, kept: &Kept, (inode, attributes): (u64, &Attributes), at: Destination<'_>) {
        let job = self.job;
        if !job.options.overwrite.replaces()
            || (attributes.links > 1
                && !self
                    .links
                    .is_first(inode, attributes.links, at.below, at.name))
        {
            return;
        }
        kept.finish(job, attributes, at.path);
    }

    /// Makes a page of a directory's names; `here` is its path.
    async fn list(
        &mut self,
        filling: &mut Filling,
        here: &Path,
        entered: &mut Entered,
        parts: &mut Parts,
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
                continue;
            }
            let place = Destination {
                directory: &filling.fd,
                below: &below,
                name: &name,
                path: &path,
            };
            self.restore((inode, &attributes), place, parts).await;
        }
        Ok(())
    }

    /// Restores a name that leads to no directory.
    async fn restore(
        &mut self,
        source: (u64, &Attributes),
        place: Destination<'_>,
        parts: &mut Parts,
    ) {
        let (inode, attributes) = source;
        let links = attributes.links;
        if let Some(kept) = kept(self.job, source, place).await {
            self.keep(&kept, source, place);
        } else if links > 1 && !self.links.is_first(inode, links, place.below, place.name) {
            // `is_first` has noted this name as a link to the first one.
        } else {
            make(self.job, source, place, parts).await;
        }
        if self.job.dates.is_due() {
            self.date_soon().await;
        }
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
