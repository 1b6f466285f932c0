//! One regular file of a put, from the source into the volume.
//!
//! Owns: how a file is read whole, and again if it changes meanwhile. Does not own: which files are
//! read (`tree`), how contents are stored (`volume`, `stream`).

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

/// Times that a file is read until it does not change meanwhile.
const READS_MAX: u32 = 3;

/// Length of the longest file that is read in one step, in bytes.
const SMALL_BYTES: u64 = 1 << 20;

/// Bytes of a file with holes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

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

/// A file that is open, with its contents if it is small.
struct Opened {
    fd: OwnedFd,
    facts: Facts,
    held: Held,
    contents: Option<Bytes>,
}

/// A deposit with the contents of a file.
struct Deposit {
    inode: u64,
    facts: Facts,
    held: Held,
    /// False if the file changed while it was read.
    is_whole: bool,
}

/// Stores a file under its name, in place of what has the name. A file that cannot be read is named
/// in the report, and the name is removed.
///
/// # Errors
/// [`StreamError::Volume`] if the volume cannot be changed, [`StreamError::Read`] if this process
/// lacks descriptors or memory.
pub(super) async fn store(job: &Job, file: FileEntry) -> Result<(), StreamError> {
    for read in 1.. {
        let deposit = match deposit(job, &file).await {
            Ok(deposit) => deposit,
            Err(error @ StreamError::Volume(_)) => return Err(error),
            Err(error) => return leave_out(job, &file, error).await,
        };
        if deposit.is_whole || read >= READS_MAX {
            return keep(job, &file, deposit).await;
        }
        job.volume.drop_deposit(deposit.inode).await?;
    }
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
    if !is_whole {
        let why = "it changed each time that it was read; bkfs stored what it read last";
        job.report.changing.lock().add(&file.path, why);
    }
    let (directory, modified) = (file.directory, facts.modified);
    let named = job
        .volume
        .name_deposit(inode, directory, &file.name, modified);
    named.await?;
    if let Some(error) = &held.unread {
        job.report.problem(&file.path, error)?;
    }
    let has_all = is_whole && held.unread.is_none();
    let mut stamp = job.stamp(&facts, Some(held.xattrs), has_all);
    stamp.size_bytes = is_whole.then_some(facts.size);
    job.volume.stamp(inode, &stamp).await?;
    job.linked(&facts, inode);
    Report::count(&job.report.stored);
    Ok(())
}

/// Reads a file into a deposit. On an error nothing of it is kept.
async fn deposit(job: &Job, file: &FileEntry) -> Result<Deposit, StreamError> {
    let opened = open(job, file).await?;
    let profile = bkfs_chunker::ingest::detect(&file.name, &[]);
    let new = new_inode(&opened.facts, profile.map_or(0, |profile| profile as u8));
    let inode = job.volume.begin_deposit(&new).await?;
    let filled = async {
        let written = contents(job, inode, &opened).await?;
        Ok((written, read::facts_of(opened.fd.as_fd())?))
    };
    match filled.await {
        Ok((written, later)) => {
            let is_whole = opened.facts.is_same(&later) && written == opened.facts.size;
            Ok(Deposit {
                inode,
                facts: opened.facts,
                held: opened.held,
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

async fn open(job: &Job, file: &FileEntry) -> Result<Opened, StreamError> {
    let (parent, name) = (file.parent.clone(), file.name.clone());
    let report = job.report.clone();
    let opened = waiting(move || {
        let (fd, facts) = read::open_file(parent.as_fd(), &name)?;
        if facts.size > MAX_FILE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let held = read::xattrs(fd.as_fd());
        report.lists.fetch_add(held.left_out, Ordering::Relaxed);
        let is_small = facts.size <= SMALL_BYTES && !facts.may_have_holes();
        let contents = match is_small {
            true => Some(read::whole(fd.as_fd(), facts.size as usize)?),
            false => None,
        };
        Ok(Opened {
            fd,
            facts,
            held,
            contents,
        })
    });
    Ok(opened.await?)
}

/// Stores the contents of an open file, up to the size that it had when it was opened. Returns the
/// number of bytes up to the end of what was read.
async fn contents(job: &Job, inode: u64, file: &Opened) -> Result<u64, StreamError> {
    let size = file.facts.size;
    if let Some(contents) = &file.contents {
        let length = contents.len() as u64;
        if length > 0 {
            let options = WriteOptions::default();
            (job.volume)
                .write(inode, 0, contents.clone(), options)
                .await?;
        }
        job.report.read.bytes.fetch_add(length, Ordering::Relaxed);
        return Ok(length);
    }
    let large = job.large.acquire().await;
    let _large = large.map_err(|error| StreamError::Read(io::Error::other(error)))?;
    if file.facts.may_have_holes() {
        return with_holes(job, inode, file).await;
    }
    let mut blocks = Source::prefix(file.fd.try_clone()?, size).blocks()?;
    fill(&job.volume, inode, &mut blocks, &job.report.read).await
}

async fn with_holes(job: &Job, inode: u64, file: &Opened) -> Result<u64, StreamError> {
    let size = file.facts.size;
    let mut at = 0;
    while at < size {
        let fd = file.fd.try_clone()?;
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
