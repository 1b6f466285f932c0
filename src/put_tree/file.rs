//! One regular file of a put, from the source into the volume.
//!
//! Owns: how a file is read whole, and again if it changes meanwhile. A small file enters the volume
//! in one step, a long one as a deposit. Does not own: which files are read (`tree`), how contents
//! are stored (`volume`, `stream`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::extents::MAX_FILE_BYTES;
use crate::put_tree::facts::Facts;
use crate::put_tree::job::{Job, new_inode, waiting};
use crate::put_tree::read::{self, Held};
use crate::put_tree::remove::{named, remove};
use crate::put_tree::report::Report;
use crate::stream::source::Source;
use crate::stream::{StreamError, fill};
use crate::volume::data::WriteOptions;
use crate::volume::whole_file::WholeFile;

/// Times that a file is read until it does not change meanwhile.
const READS_MAX: u32 = 3;

/// Length of the longest file that is read in one step, in bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// Bytes of a file with holes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of small files that are read together, at least. One file more may be read.
pub(super) const BATCH_BYTES: u64 = 512 << 10;

/// Returns true for a file that is read in one step.
pub(super) fn is_small(facts: &Facts) -> bool {
    facts.size <= SMALL_BYTES && !facts.may_have_holes()
}

/// A regular file at the source.
pub(super) struct FileEntry {
    /// The inode of its directory in the volume.
    pub directory: u64,
    /// The directory at the source.
    pub parent: Arc<OwnedFd>,
    /// Its name.
    pub name: Vec<u8>,
    /// Its whole path at the source.
    pub path: Vec<u8>,
}

/// A file that was opened.
struct Opened {
    facts: Facts,
    held: Held,
    body: Body,
}

impl Opened {
    /// Returns the memory of the contents, in bytes.
    fn held_bytes(&self) -> u64 {
        match &self.body {
            Body::Small { contents, .. } => contents.len() as u64,
            Body::Long(_) => 0,
        }
    }
}

/// The contents of a file.
enum Body {
    /// All of them.
    Small {
        contents: Bytes,
        /// False if the file changed while it was read.
        is_whole: bool,
    },
    /// They are still to be read.
    Long(OwnedFd),
}

/// A deposit with the contents of a file.
struct Deposit {
    inode: u64,
    facts: Facts,
    held: Held,
    /// False if the file changed while it was read.
    is_whole: bool,
}

/// Stores files under their names, in place of what has the names. A file that cannot be read is
/// named in the report, and the name is removed. Small files are read together.
///
/// # Errors
/// [`StreamError::Volume`] if the volume cannot be changed, [`StreamError::Read`] if this process
/// lacks descriptors or memory.
pub(super) async fn store(job: &Job, files: Vec<FileEntry>) -> Result<(), StreamError> {
    let places = files
        .iter()
        .map(|file| (file.parent.clone(), file.name.clone()));
    let (places, report) = (places.collect::<Vec<_>>(), job.report.clone());
    let opened = waiting(move || {
        let mut bytes = 0;
        let open = |(parent, name): (Arc<OwnedFd>, Vec<u8>)| {
            let opened = (bytes < BATCH_BYTES).then(|| open(&report, &parent, &name))?;
            bytes += opened.as_ref().map_or(0, Opened::held_bytes);
            Some(opened)
        };
        Ok(places.into_iter().map(open).collect::<Vec<_>>())
    });
    // If the thread panicked, each file is opened by itself.
    let mut opened = opened.await.unwrap_or_default().into_iter();
    for file in &files {
        store_one(job, file, opened.next().flatten()).await?;
    }
    Ok(())
}

/// Stores a file as [`store`] does. `opened` is what opening it has brought; none if that is still
/// to be done.
async fn store_one(
    job: &Job,
    file: &FileEntry,
    mut opened: Option<io::Result<Opened>>,
) -> Result<(), StreamError> {
    for read in 1.. {
        let is_last = read >= READS_MAX;
        let opened = match opened.take() {
            Some(opened) => opened,
            None => {
                let (parent, name) = (file.parent.clone(), file.name.clone());
                let report = job.report.clone();
                waiting(move || open(&report, &parent, &name)).await
            }
        };
        let stored = match opened {
            Ok(Opened { facts, held, body }) => match body {
                Body::Small { is_whole, .. } if !is_whole && !is_last => Ok(false),
                Body::Small { contents, is_whole } => {
                    let small = (facts, held, is_whole);
                    return keep_small(job, file, small, contents).await;
                }
                Body::Long(fd) => store_long(job, file, (fd, facts, held), is_last).await,
            },
            Err(error) => Err(error.into()),
        };
        match stored {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error @ StreamError::Volume(_)) => return Err(error),
            Err(error) => return leave_out(job, file, error).await,
        }
    }
    Ok(())
}

/// Stores a long file. Returns false if it changed while it was read, unless this is the last time.
async fn store_long(
    job: &Job,
    file: &FileEntry,
    opened: (OwnedFd, Facts, Held),
    is_last: bool,
) -> Result<bool, StreamError> {
    let deposit = deposit(job, file, opened).await?;
    if !deposit.is_whole && !is_last {
        job.volume.drop_deposit(deposit.inode).await?;
        return Ok(false);
    }
    keep(job, file, deposit).await.map(|()| true)
}

/// Stores a small file.
async fn keep_small(
    job: &Job,
    file: &FileEntry,
    (facts, held, is_whole): (Facts, Held, bool),
    contents: Bytes,
) -> Result<(), StreamError> {
    let length = contents.len() as u64;
    let has_all = is_whole && held.unread.is_none();
    let profile = profile_of(file);
    let stamp = job.stamp(&facts, Some(held.xattrs), has_all);
    let whole = WholeFile {
        directory: file.directory,
        name: &file.name,
        contents,
        profile,
        stamp: &stamp,
    };
    let inode = job.volume.put_whole(whole).await?;
    job.report.read.bytes.fetch_add(length, Ordering::Relaxed);
    stored(job, file, (inode, &facts), (is_whole, held.unread.as_ref()))
}

/// Returns how a file is split, as far as its name says.
fn profile_of(file: &FileEntry) -> u8 {
    let profile = bkfs_chunker::ingest::detect(&file.name, &[]);
    profile.map_or(0, |profile| profile as u8)
}

/// Counts a file that has its name, and reports what it lacks.
fn stored(
    job: &Job,
    file: &FileEntry,
    (inode, facts): (u64, &Facts),
    (is_whole, unread): (bool, Option<&io::Error>),
) -> Result<(), StreamError> {
    if !is_whole {
        let why = "it changed each time that it was read; bkfs stored what it read last";
        job.report.changing.lock().add(&file.path, why);
    }
    if let Some(error) = unread {
        job.report.problem(&file.path, error)?;
    }
    job.linked(facts, inode);
    Report::count(&job.report.stored);
    Ok(())
}

async fn leave_out(job: &Job, file: &FileEntry, error: StreamError) -> Result<(), StreamError> {
    let error = match error {
        StreamError::Read(error) => error,
        error => io::Error::other(error),
    };
    job.report.problem(&file.path, &error)?;
    let directory = file.directory;
    match named(&job.volume, directory, &file.name).await? {
        Some(there) => {
            remove(&job.volume, directory, &there).await?;
            Ok(())
        }
        None => Ok(()),
    }
}

async fn keep(job: &Job, file: &FileEntry, deposit: Deposit) -> Result<(), StreamError> {
    let Deposit {
        inode,
        facts,
        held,
        is_whole,
    } = deposit;
    let (directory, modified) = (file.directory, facts.modified);
    let named = job
        .volume
        .name_deposit(inode, directory, &file.name, modified);
    named.await?;
    let has_all = is_whole && held.unread.is_none();
    let mut stamp = job.stamp(&facts, Some(held.xattrs), has_all);
    stamp.size_bytes = is_whole.then_some(facts.size);
    job.volume.stamp(inode, &stamp).await?;
    stored(job, file, (inode, &facts), (is_whole, held.unread.as_ref()))
}

/// Reads a long file into a deposit. On an error nothing of it is kept.
async fn deposit(
    job: &Job,
    file: &FileEntry,
    (fd, facts, held): (OwnedFd, Facts, Held),
) -> Result<Deposit, StreamError> {
    let new = new_inode(&facts, profile_of(file));
    let inode = job.volume.begin_deposit(&new).await?;
    let filled = async {
        let written = contents(job, inode, (&fd, &facts)).await?;
        Ok((written, read::facts_of(fd.as_fd())?))
    };
    match filled.await {
        Ok((written, later)) => {
            let is_whole = facts.is_same(&later) && written == facts.size;
            Ok(Deposit {
                inode,
                facts,
                held,
                is_whole,
            })
        }
        Err(error) => {
            if let Err(left) = job.volume.drop_deposit(inode).await {
                tracing::debug!("left to the next session: {left}");
            }
            Err(error)
        }
    }
}

/// Opens a file, and reads it if it is small. Blocks.
///
/// # Errors
/// The I/O error of opening or reading it.
fn open(report: &Report, parent: &OwnedFd, name: &[u8]) -> io::Result<Opened> {
    let (fd, facts) = read::open_file(parent.as_fd(), name)?;
    if facts.size > MAX_FILE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let held = read::xattrs(fd.as_fd());
    report.lists.fetch_add(held.left_out, Ordering::Relaxed);
    let body = match is_small(&facts) {
        true => {
            let contents = read::whole(fd.as_fd(), facts.size as usize)?;
            let is_same = facts.is_same(&read::facts_of(fd.as_fd())?);
            let is_whole = is_same && contents.len() as u64 == facts.size;
            Body::Small { contents, is_whole }
        }
        false => Body::Long(fd),
    };
    Ok(Opened { facts, held, body })
}

/// Stores the contents of an open file, up to the size that it had when it was opened. Returns the
/// number of bytes up to the end of what was read.
async fn contents(
    job: &Job,
    inode: u64,
    (fd, facts): (&OwnedFd, &Facts),
) -> Result<u64, StreamError> {
    let large = job.large.acquire().await;
    let _large = large.map_err(|error| StreamError::Read(io::Error::other(error)))?;
    if facts.may_have_holes() {
        return with_holes(job, inode, (fd, facts)).await;
    }
    let mut blocks = Source::prefix(fd.try_clone()?, facts.size).blocks()?;
    fill(&job.volume, inode, &mut blocks, &job.report.read).await
}

async fn with_holes(
    job: &Job,
    inode: u64,
    (file, facts): (&OwnedFd, &Facts),
) -> Result<u64, StreamError> {
    let size = facts.size;
    let mut at = 0;
    while at < size {
        let fd = file.try_clone()?;
        let next = waiting(move || read::next_data(fd.as_fd(), at, size, PIECE_BYTES));
        let Some((offset, data)) = next.await? else {
            break;
        };
        let length = data.len() as u64;
        let options = WriteOptions::default();
        job.volume.write(inode, offset, data, options).await?;
        job.report.read.bytes.fetch_add(length, Ordering::Relaxed);
        at = offset + length;
    }
    // A file that became shorter meanwhile differs in its facts.
    Ok(size)
}
