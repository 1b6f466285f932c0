//! The walk of a put over the directories of the source, together with those of the volume.
//!
//! Owns: what becomes of each entry. Does not own: the contents of files (`file`).

use std::collections::{HashMap, hash_map};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fault::PATH_BYTES_MAX;
use crate::put_tree::batch::Batch;
use crate::put_tree::facts::Facts;
use crate::put_tree::file::{FileEntry, is_small, store};
use crate::put_tree::job::{Job, Linked, Pass, new_inode, result_of, waiting};
use crate::put_tree::read::{self, Entry, Xattrs};
use crate::put_tree::remove::{named, names, remove};
use crate::put_tree::report::Report;
use crate::restore::selection::Choice;
use crate::stream::{RESERVED, StreamError, directory};
use crate::tree::key::MAX_NAME_BYTES;
use crate::volume::error::VolumeError;
use crate::volume::namespace::NewInode;
use crate::volume::stamp::Stamp;
use crate::volume::state::Scope;
use crate::volume::{ROOT_INODE, mode};
use crate::walk::{self, Named};

/// A directory that the user named.
#[derive(Debug)]
pub struct Origin {
    /// The open directory.
    pub fd: OwnedFd,
    /// Its path on this machine, from the root on.
    pub path: Vec<u8>,
    /// Its names in the volume, from the root on.
    pub names: Vec<Vec<u8>>,
}

/// A directory of the volume that gets its attributes when the last task that changes its names has
/// let go of it.
#[derive(Debug)]
struct Directory {
    /// Its inode in the volume.
    inode: u64,
    facts: Facts,
    /// None to keep those that it has.
    xattrs: Option<Xattrs>,
    /// False if the next put has to read its extended attributes again.
    is_whole: bool,
}

/// A directory that the walk is in.
struct Frame {
    directory: Arc<Directory>,
    fd: Arc<OwnedFd>,
    path: Vec<u8>,
    below: std::vec::IntoIter<Below>,
}

/// A directory of the volume that is to become equal to one of the source.
#[derive(Clone, Copy)]
struct Place {
    inode: u64,
    /// Just made, so that it holds nothing.
    is_new: bool,
    /// The user named the directory.
    is_origin: bool,
}

/// A directory in another that the walk will enter.
struct Below {
    name: Vec<u8>,
    /// What has the name in the volume.
    there: Option<Named>,
}

/// A further name of a file with several names.
struct Later {
    directory: Arc<Directory>,
    name: Vec<u8>,
    path: Vec<u8>,
    facts: Facts,
}

/// The entries of a directory at the source, and its extended attributes if it has changed.
#[derive(Default)]
struct Listing {
    entries: Vec<Entry>,
    xattrs: Option<Xattrs>,
    /// Why the entries are not all.
    unlisted: Option<io::Error>,
    /// Why the extended attributes are not read.
    problem: Option<io::Error>,
}

struct Walker {
    job: Arc<Job>,
    /// The directory that the user named, and its path.
    origin: (Arc<OwnedFd>, Vec<u8>),
    /// The filesystem of the directory that the user named.
    filesystem: u64,
    tasks: JoinSet<Result<(), StreamError>>,
    permits: Arc<Semaphore>,
    later: Vec<Later>,
    /// Those of the directory that is being entered.
    batch: Batch,
}

/// Makes a directory of the volume equal to one of the source. Directories of the volume above it
/// that are absent get the owner of `new`.
///
/// # Errors
/// [`StreamError::Read`] if the directory itself cannot be read, or this process lacks descriptors
/// or memory; [`StreamError::Path`] if the directory cannot have its names in the volume;
/// [`StreamError::Volume`] if the volume cannot be changed.
pub async fn put(job: &Arc<Job>, origin: Origin, new: &NewInode) -> Result<(), StreamError> {
    let inode = directory(&job.volume, &origin.names, new).await?;
    let facts = read::facts_of(origin.fd.as_fd())?;
    let fd = Arc::new(origin.fd);
    let mut walker = Walker {
        job: job.clone(),
        origin: (fd.clone(), origin.path.clone()),
        filesystem: facts.filesystem,
        tasks: JoinSet::new(),
        permits: Arc::new(Semaphore::new(Job::files_at_once())),
        later: Vec::new(),
        batch: Batch::default(),
    };
    let place = Place {
        inode,
        is_new: false,
        is_origin: true,
    };
    let mut way = vec![walker.enter(fd, origin.path, facts, place).await?];
    while let Some(frame) = way.last_mut() {
        match frame.below.next() {
            Some(below) => {
                let entered = walker.descend(frame, below).await?;
                way.extend(entered);
            }
            None => {
                if let Some(frame) = way.pop() {
                    leave(job, frame.directory).await?;
                }
            }
        }
    }
    walker.finish().await
}

/// Gives a directory its attributes, if no other task changes its names.
async fn leave(job: &Job, directory: Arc<Directory>) -> Result<(), VolumeError> {
    let Some(directory) = Arc::into_inner(directory) else {
        return Ok(());
    };
    let Directory {
        inode,
        facts,
        xattrs,
        is_whole,
    } = directory;
    if xattrs.is_none() && job.is_unchanged(inode, &facts).await? {
        return Ok(());
    }
    let stamp = job.stamp(&facts, xattrs, is_whole);
    job.volume.stamp(inode, &stamp).await
}

impl Walker {
    /// Handles all entries of a directory but the directories in it.
    async fn enter(
        &mut self,
        fd: Arc<OwnedFd>,
        path: Vec<u8>,
        facts: Facts,
        place: Place,
    ) -> Result<Frame, StreamError> {
        let job = self.job.clone();
        let Place { inode, is_new, .. } = place;
        Report::count(&job.report.directories);
        let is_unchanged = !is_new && job.is_unchanged(inode, &facts).await?;
        let has_contents = !self.passes(&fd, &facts, &path);
        let listing = self.list(&fd, is_unchanged, has_contents).await;
        match listing.unlisted {
            // What is there may be all there is of it, so nothing is removed.
            Some(error) if place.is_origin => return Err(StreamError::Read(error)),
            Some(error) => job.report.problem(&path, &error)?,
            None => {}
        }
        if let Some(problem) = &listing.problem {
            job.report.problem(&path, problem)?;
        }
        let directory = Arc::new(Directory {
            inode,
            facts,
            xattrs: listing.xattrs,
            is_whole: listing.problem.is_none(),
        });
        let mut there = match is_new {
            true => HashMap::new(),
            false => names(&job.volume, inode).await?,
        };
        let mut below = Vec::new();
        for entry in listing.entries {
            let whole = join(&path, &entry.name);
            if job.options.selection.judge(&whole, true) == Choice::Excluded {
                continue;
            }
            let there = there.remove(&entry.name);
            let taken = self.take(&directory, &fd, whole, entry, there).await?;
            below.extend(taken);
        }
        self.spawn_batch(&directory).await?;
        for named in there.into_values() {
            let removed = remove(&job.volume, inode, &named).await?;
            job.report.removed.fetch_add(removed, Ordering::Relaxed);
        }
        Ok(Frame {
            directory,
            fd,
            path,
            below: below.into_iter(),
        })
    }

    /// Returns true if the contents of a directory are left out.
    fn passes(&self, fd: &OwnedFd, facts: &Facts, path: &[u8]) -> bool {
        let is_made_up = || read::is_made_up(fd.as_fd());
        let pass = (self.job.options).pass(facts, self.filesystem, is_made_up);
        if let Some(Pass::Own(why)) = pass {
            self.job.report.passed.lock().add(path, why);
        }
        pass.is_some()
    }

    async fn list(&self, fd: &Arc<OwnedFd>, is_unchanged: bool, has_contents: bool) -> Listing {
        let (fd, job) = (fd.clone(), self.job.clone());
        let listed = waiting(move || {
            let mut listing = Listing::default();
            if !is_unchanged {
                let held = read::xattrs(fd.as_fd());
                job.report.lists.fetch_add(held.left_out, Ordering::Relaxed);
                listing.xattrs = Some(held.xattrs);
                listing.problem = held.unread;
            }
            if has_contents {
                match read::entries(fd.as_fd()) {
                    Ok(entries) => listing.entries = entries,
                    Err(error) => listing.unlisted = Some(error),
                }
            }
            if job.options.exclude_caches && read::is_cache(fd.as_fd()) {
                let is_tag = |entry: &Entry| entry.name == read::CACHE_TAG.to_bytes();
                listing.entries.retain(is_tag);
            }
            Ok(listing)
        });
        listed.await.unwrap_or_else(|error| Listing {
            unlisted: Some(error),
            ..Listing::default()
        })
    }

    /// Stores an entry, or takes it over. Returns a directory, which is entered later.
    async fn take(
        &mut self,
        directory: &Arc<Directory>,
        fd: &Arc<OwnedFd>,
        path: Vec<u8>,
        entry: Entry,
        there: Option<Named>,
    ) -> Result<Option<Below>, StreamError> {
        let Entry { name, facts } = entry;
        let facts = match facts.and_then(|facts| storable(directory, &name).map(|()| facts)) {
            Ok(facts) => facts,
            Err(error) => {
                self.job.report.problem(&path, &error)?;
                self.clear(directory, there).await?;
                return Ok(None);
            }
        };
        if mode::is_directory(facts.mode) {
            return Ok(Some(Below { name, there }));
        }
        if facts.mode & libc::S_IFMT == libc::S_IFSOCK {
            Report::count(&self.job.report.sockets);
            self.clear(directory, there).await?;
            return Ok(None);
        }
        if facts.links > 1 && self.is_further(directory, &name, &path, &facts) {
            return Ok(None);
        }
        if self.takes_over(&facts, there.as_ref()).await? {
            return Ok(None);
        }
        if !mode::is_regular(facts.mode) {
            self.clear(directory, there).await?;
            self.other((directory, fd), (name, path), facts).await?;
            return Ok(None);
        }
        if there.as_ref().is_some_and(Named::is_directory) {
            self.clear(directory, there).await?;
        }
        let file = FileEntry {
            directory: directory.inode,
            parent: fd.clone(),
            name,
            path,
        };
        if !is_small(&facts) {
            return self.spawn(directory, vec![file]).await.map(|()| None);
        }
        if self.batch.add(file, facts.size) {
            self.spawn_batch(directory).await?;
        }
        Ok(None)
    }

    /// Returns true for a name of a file that has had another name before. It is linked when all
    /// files are stored.
    fn is_further(
        &mut self,
        directory: &Arc<Directory>,
        name: &[u8],
        path: &[u8],
        facts: &Facts,
    ) -> bool {
        match self.job.links.lock().entry(facts.key()) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Linked {
                    facts: *facts,
                    inode: None,
                });
                return false;
            }
            hash_map::Entry::Occupied(_) => {}
        }
        self.later.push(Later {
            directory: directory.clone(),
            name: name.to_vec(),
            path: path.to_vec(),
            facts: *facts,
        });
        true
    }

    /// Returns true if the volume has the file as it is, and counts it then.
    async fn takes_over(&self, facts: &Facts, there: Option<&Named>) -> Result<bool, VolumeError> {
        let Some(there) = there.filter(|there| there.file_type == mode::kind(facts.mode)) else {
            return Ok(false);
        };
        let is_unchanged = self.job.is_unchanged(there.inode, facts).await?;
        if is_unchanged {
            let report = &self.job.report;
            Report::count(&report.unchanged);
            let bytes = if mode::is_regular(facts.mode) {
                facts.size
            } else {
                0
            };
            report.unchanged_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.job.linked(facts, there.inode);
        }
        Ok(is_unchanged)
    }

    /// Removes what has a name in the volume.
    async fn clear(&self, directory: &Directory, there: Option<Named>) -> Result<(), VolumeError> {
        match there {
            Some(there) => {
                let removed = remove(&self.job.volume, directory.inode, &there);
                removed.await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Stores a symbolic link, a fifo or a device, none of which is opened.
    async fn other(
        &self,
        (directory, fd): (&Arc<Directory>, &Arc<OwnedFd>),
        (name, path): (Vec<u8>, Vec<u8>),
        facts: Facts,
    ) -> Result<(), StreamError> {
        let (fd, entry) = (fd.clone(), name.clone());
        let read = waiting(move || {
            let target = match mode::is_symlink(facts.mode) {
                true => Some(read::link_target(fd.as_fd(), &entry)?),
                false => None,
            };
            Ok((target, read::xattrs_at(fd.as_fd(), &entry)?))
        });
        let (target, held) = match read.await {
            Ok(read) => read,
            Err(error) => {
                self.job.report.problem(&path, &error)?;
                return Ok(());
            }
        };
        let (volume, report) = (&self.job.volume, &self.job.report);
        report.lists.fetch_add(held.left_out, Ordering::Relaxed);
        if let Some(error) = &held.unread {
            report.problem(&path, error)?;
        }
        let new = NewInode {
            target,
            ..new_inode(&facts, 0)
        };
        let made = volume.make(directory.inode, &name, new).await?;
        let has_all = held.unread.is_none();
        let stamp = self.job.stamp(&facts, Some(held.xattrs), has_all);
        volume.stamp(made.inode, &stamp).await?;
        self.job.linked(&facts, made.inode);
        Report::count(&report.stored);
        Ok(())
    }

    /// Stores the small files of a directory that were collected.
    async fn spawn_batch(&mut self, directory: &Arc<Directory>) -> Result<(), StreamError> {
        let files = self.batch.take();
        match files.is_empty() {
            true => Ok(()),
            false => self.spawn(directory, files).await,
        }
    }

    /// Stores files of a directory in a task of their own, as soon as one more may run.
    async fn spawn(
        &mut self,
        directory: &Arc<Directory>,
        files: Vec<FileEntry>,
    ) -> Result<(), StreamError> {
        let permit = self.permits.clone().acquire_owned().await;
        let (job, directory) = (self.job.clone(), directory.clone());
        self.tasks.spawn(async move {
            let _permit = permit;
            store(&job, files).await?;
            Ok(leave(&job, directory).await?)
        });
        while let Some(ended) = self.tasks.try_join_next() {
            result_of(ended)?;
        }
        Ok(())
    }

    /// Opens a directory, makes it in the volume if it is new, and enters it.
    async fn descend(&mut self, frame: &Frame, below: Below) -> Result<Option<Frame>, StreamError> {
        let Below { name, there } = below;
        let path = join(&frame.path, &name);
        let (fd, entry, length) = (frame.fd.clone(), name.clone(), path.len());
        let opened = waiting(move || {
            if length > PATH_BYTES_MAX {
                return Err(io::Error::other("its path is too long"));
            }
            let fd = read::open_directory(fd.as_fd(), &entry)?;
            let facts = read::facts_of(fd.as_fd())?;
            Ok((fd, facts))
        });
        let (fd, facts) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                self.job.report.problem(&path, &error)?;
                self.clear(&frame.directory, there).await?;
                return Ok(None);
            }
        };
        let (there, other) = match there {
            Some(there) if there.is_directory() => (Some(there.inode), None),
            other => (None, other),
        };
        self.clear(&frame.directory, other).await?;
        let inode = match there {
            Some(inode) => inode,
            None => {
                let new = new_inode(&facts, 0);
                let parent = frame.directory.inode;
                self.job.volume.make(parent, &name, new).await?.inode
            }
        };
        let place = Place {
            inode,
            is_new: there.is_none(),
            is_origin: false,
        };
        let entered = self.enter(Arc::new(fd), path, facts, place);
        Ok(Some(entered.await?))
    }

    /// Waits for all files, and gives those with several names the further ones.
    async fn finish(mut self) -> Result<(), StreamError> {
        while let Some(ended) = self.tasks.join_next().await {
            result_of(ended)?;
        }
        for later in std::mem::take(&mut self.later) {
            self.link(&later).await?;
            leave(&self.job, later.directory).await?;
        }
        Ok(())
    }

    async fn link(&self, later: &Later) -> Result<(), StreamError> {
        match self.job.stored(&later.facts) {
            Some(inode) => Ok(self.link_to(inode, later).await?),
            None => self.link_or_store(later).await,
        }
    }

    /// Looks at a further name once more, because the file under the first name could not be read,
    /// or is not the one that was listed under this one. Stores a file of its own if that is so
    /// still.
    async fn link_or_store(&self, later: &Later) -> Result<(), StreamError> {
        let (origin, above) = &self.origin;
        let (origin, name) = (origin.clone(), later.name.clone());
        let below = later.path.strip_prefix(&above[..]).unwrap_or_default();
        let below = below.strip_suffix(&name[..]).unwrap_or_default().to_vec();
        let looked = waiting(move || {
            let names = below.split(|byte| *byte == b'/');
            let names = names.filter(|name| !name.is_empty());
            let parent = read::open_below(origin.as_fd(), names)?;
            let facts = read::facts_at(parent.as_fd(), &name)?;
            Ok((Arc::new(parent), facts))
        });
        let there = named(&self.job.volume, later.directory.inode, &later.name).await?;
        let kind = mode::kind(later.facts.mode);
        let (parent, facts) = match looked.await {
            Ok((parent, facts)) if mode::kind(facts.mode) == kind => (parent, facts),
            looked => {
                let stale = || io::Error::from_raw_os_error(libc::ESTALE);
                let error = looked.err().unwrap_or_else(stale);
                self.job.report.problem(&later.path, &error)?;
                return Ok(self.clear(&later.directory, there).await?);
            }
        };
        if let Some(inode) = self.job.stored(&facts) {
            return Ok(self.link_to(inode, later).await?);
        }
        let (name, path) = (later.name.clone(), later.path.clone());
        if !mode::is_regular(facts.mode) {
            self.clear(&later.directory, there).await?;
            let place = (&later.directory, &parent);
            return self.other(place, (name, path), facts).await;
        }
        if there.as_ref().is_some_and(Named::is_directory) {
            self.clear(&later.directory, there).await?;
        }
        let directory = later.directory.inode;
        let file = FileEntry {
            directory,
            parent,
            name,
            path,
        };
        store(&self.job, vec![file]).await
    }

    /// Gives an inode of the volume a further name.
    async fn link_to(&self, inode: u64, later: &Later) -> Result<(), VolumeError> {
        let (volume, report) = (&self.job.volume, &self.job.report);
        let directory = later.directory.inode;
        let there = named(volume, directory, &later.name).await?;
        if there.as_ref().is_some_and(|there| there.inode == inode) {
            Report::count(&report.unchanged);
            return Ok(());
        }
        self.clear(&later.directory, there).await?;
        let before = volume.view.attributes(Scope::Live, inode).await?;
        volume.link(inode, directory, &later.name).await?;
        // A further name is no change: the source has had it all along.
        volume.stamp(inode, &Stamp::of(&before)).await?;
        Report::count(&report.stored);
        Ok(())
    }
}

/// Returns whether a directory of the volume can have this name.
fn storable(directory: &Directory, name: &[u8]) -> io::Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    match directory.inode == ROOT_INODE && RESERVED.contains(&name) {
        true => Err(io::Error::other(
            "a mount shows its own directory under this name",
        )),
        false => Ok(()),
    }
}

/// Returns the path of a name in a directory.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.ends_with(b"/") {
        true => [directory, name].concat(),
        false => walk::join(directory, name),
    }
}
