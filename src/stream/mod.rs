//! One stream into a volume, without a mount.
//!
//! Owns: the steps from blocks to a file that gets its name only when it is whole. Does not own:
//! reading (`source`), the file (`volume::deposit`), the session (`mounting::alone`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::tree::item::{Item, Timestamp};
use crate::volume::data::WriteOptions;
use crate::volume::error::VolumeError;
use crate::volume::namespace::NewInode;
use crate::volume::state::Scope;
use crate::volume::{ROOT_INODE, Volume, mode};

pub mod source;

use source::{Blocks, Facts};

/// Names that a mount shows in its root, and that no file can have there.
pub const RESERVED: [&[u8]; 2] = [b".snapshots", b".bkfs"];

/// Bytes in memory that are written to a volume at once.
const PART_BYTES: usize = 1 << 20;

/// Time limit for dropping a stream that is not kept.
const DROPPING: Duration = Duration::from_secs(10);

/// Why a stream did not become a file.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream could not be read to its end.
    #[error("cannot read the stream: {0}")]
    Read(#[from] std::io::Error),
    /// The stream could not be stored.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Cancelled; the text says why.
    #[error("{0}")]
    Stopped(&'static str),
    /// The path cannot be that of a file.
    #[error("{path}: {reason}")]
    Path {
        /// The path, or the name in it.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// Counter of a stream in progress.
#[derive(Debug, Default)]
pub struct StreamProgress {
    /// Bytes read that are stored or being stored.
    pub bytes: AtomicU64,
}

/// A file's place in a volume: the names of its directories, and its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    directories: Vec<Vec<u8>>,
    name: Vec<u8>,
}

impl VolumePath {
    /// Parses a path from the root of the volume.
    ///
    /// # Errors
    /// [`StreamError::Path`] if the path is empty, names a directory, holds `.` or `..`, or begins
    /// with a name of the mount's own.
    pub fn parse(path: &[u8]) -> Result<VolumePath, StreamError> {
        if path.ends_with(b"/") {
            return Err(wrong(path, "names a directory; give the name of a file"));
        }
        let mut names = names_of(path)?;
        let name = (names.pop()).ok_or_else(|| wrong(path, "no name for a file"))?;
        Ok(VolumePath {
            directories: names,
            name,
        })
    }

    /// Returns the file's own name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Checks early, before the stream is read, that [`keep`] can give a file this place.
    ///
    /// # Errors
    /// [`StreamError::Path`] if a directory of the path is no directory, or if the file's name is a
    /// directory's; [`StreamError::Volume`] if the volume cannot be read.
    pub async fn check(&self, volume: &Volume) -> Result<(), StreamError> {
        let mut directory = ROOT_INODE;
        for name in &self.directories {
            match find(volume, directory, name).await? {
                Some((inode, true)) => directory = inode,
                Some(_) => return Err(wrong(name, "is not a directory")),
                None => return Ok(()),
            }
        }
        match find(volume, directory, &self.name).await? {
            Some((_, true)) => Err(wrong(&self.name, "is a directory")),
            _ => Ok(()),
        }
    }
}

/// Returns the names of a path from the root of the volume; none for the root itself.
///
/// # Errors
/// [`StreamError::Path`] if the path holds `.` or `..`, or begins with a name of the mount's own.
pub fn names_of(path: &[u8]) -> Result<Vec<Vec<u8>>, StreamError> {
    let names: Vec<Vec<u8>> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    if names.iter().any(|name| name == b"." || name == b"..") {
        return Err(wrong(path, "'.' and '..' are no names"));
    }
    let first = names.first().map(Vec::as_slice);
    match first.is_some_and(|name| RESERVED.contains(&name)) {
        true => Err(wrong(path, "is the mount's own")),
        false => Ok(names),
    }
}

fn wrong(path: &[u8], reason: &str) -> StreamError {
    StreamError::Path {
        path: path.escape_ascii().to_string(),
        reason: reason.to_owned(),
    }
}

/// Returns the inode of a name, and whether it is a directory.
async fn find(
    volume: &Volume,
    directory: u64,
    name: &[u8],
) -> Result<Option<(u64, bool)>, VolumeError> {
    let key = volume.name_key(directory, name)?;
    match volume.view.item(Scope::Live, &key).await? {
        None => Ok(None),
        Some(Item::Name { inode, file_type }) => {
            Ok(Some((inode, file_type == mode::kind(libc::S_IFDIR))))
        }
        Some(_) => Err(VolumeError::Malformed { inode: directory }),
    }
}

/// Returns the directory with these names from the root on; makes the directories that are absent,
/// with the owner and group of `new`.
///
/// # Errors
/// [`StreamError::Path`] if a name is that of another file; [`StreamError::Volume`] if the volume
/// cannot be read or changed.
pub async fn directory(
    volume: &Arc<Volume>,
    names: &[Vec<u8>],
    new: &NewInode,
) -> Result<u64, StreamError> {
    let mut directory = ROOT_INODE;
    for name in names {
        directory = match find(volume, directory, name).await? {
            Some((inode, true)) => inode,
            Some(_) => return Err(wrong(name, "is not a directory")),
            None => {
                let new = NewInode {
                    mode: libc::S_IFDIR | 0o755,
                    profile: 0,
                    ..new.clone()
                };
                volume.make(directory, name, new).await?.inode
            }
        };
    }
    Ok(directory)
}

/// Returns the attributes of a file that is made of a stream.
pub fn new_file(place: &VolumePath, facts: &Facts, umask: u32) -> NewInode {
    let profile = bkfs_chunker::ingest::detect(place.name(), &[]);
    let file = facts.file;
    NewInode {
        mode: libc::S_IFREG | file.map_or(0o666 & !umask, |file| file.permissions),
        uid: file.map_or_else(|| rustix::process::geteuid().as_raw(), |file| file.uid),
        gid: file.map_or_else(|| rustix::process::getegid().as_raw(), |file| file.gid),
        device: 0,
        target: None,
        profile: profile.map_or(0, |profile| profile as u8),
    }
}

/// A whole stream that has no name yet.
#[derive(Debug)]
pub struct Received {
    inode: u64,
    /// Its length, in bytes.
    pub bytes: u64,
}

/// Stores a stream to its end. On an error nothing of it is kept: the deposit is dropped, or if
/// that fails the next session removes it.
///
/// # Errors
/// [`StreamError::Read`] if the stream cannot be read, [`StreamError::Volume`] if it cannot be
/// stored, [`StreamError::Stopped`] with the result of `stop` if that comes before its end is stored.
pub async fn receive(
    volume: &Arc<Volume>,
    new: &NewInode,
    blocks: &mut Blocks,
    progress: &StreamProgress,
    stop: impl Future<Output = &'static str>,
) -> Result<Received, StreamError> {
    let mut stop = std::pin::pin!(stop);
    let inode = tokio::select! {
        biased;
        why = &mut stop => return Err(StreamError::Stopped(why)),
        inode = volume.begin_deposit(new) => inode?,
    };
    // A tool that the same signal ended may have ended the stream as well.
    let filled = tokio::select! {
        biased;
        why = stop => Err(StreamError::Stopped(why)),
        filled = fill(volume, inode, blocks, progress) => filled,
    };
    match filled {
        Ok(bytes) => Ok(Received { inode, bytes }),
        Err(error) => {
            abandon(volume, Received { inode, bytes: 0 }).await;
            Err(error)
        }
    }
}

/// Stores bytes that are in memory, as a stream that is whole.
///
/// # Errors
/// [`StreamError::Volume`] if they cannot be stored. Nothing of them is kept then.
pub async fn deposit(
    volume: &Arc<Volume>,
    new: &NewInode,
    mut bytes: Bytes,
) -> Result<Received, StreamError> {
    let inode = volume.begin_deposit(new).await?;
    let length = bytes.len() as u64;
    while !bytes.is_empty() {
        let offset = length - bytes.len() as u64;
        let part = bytes.split_to(PART_BYTES.min(bytes.len()));
        if let Err(error) = volume
            .write(inode, offset, part, WriteOptions::default())
            .await
        {
            abandon(volume, Received { inode, bytes: 0 }).await;
            return Err(error.into());
        }
    }
    Ok(Received {
        inode,
        bytes: length,
    })
}

/// Drops a received stream. If the volume cannot do that within [`DROPPING`], the next session does.
pub async fn abandon(volume: &Volume, received: Received) {
    let dropped = volume.drop_deposit(received.inode);
    match tokio::time::timeout(DROPPING, dropped).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("left to the next session: {error}"),
        Err(late) => tracing::debug!("left to the next session: {late}"),
    }
}

/// Gives the stream its name, in place of a file of that name. On an error drops the stream.
///
/// # Errors
/// [`StreamError::Path`] if a directory of the path is no directory; [`StreamError::Volume`] if the
/// volume cannot be read or changed, or if the name is a directory's.
pub async fn keep(
    volume: &Arc<Volume>,
    place: &VolumePath,
    new: &NewInode,
    received: Received,
    modified: Timestamp,
) -> Result<(), StreamError> {
    let named = async {
        let directory = directory(volume, &place.directories, new).await?;
        let inode = received.inode;
        let named = volume.name_deposit(inode, directory, &place.name, modified);
        Ok(named.await?)
    };
    let result = named.await;
    if result.is_err() {
        abandon(volume, received).await;
    }
    result
}

/// Stores all blocks as the contents of a deposit, and returns their length in bytes.
///
/// # Errors
/// [`StreamError::Read`] if the stream cannot be read, [`StreamError::Volume`] if it cannot be
/// stored.
pub async fn fill(
    volume: &Arc<Volume>,
    inode: u64,
    blocks: &mut Blocks,
    progress: &StreamProgress,
) -> Result<u64, StreamError> {
    let mut left = Bytes::new();
    let mut offset = 0;
    loop {
        let block = blocks.next().await?;
        let is_last = block.is_last();
        let length = block.length() as u64;
        let run = block.after(&left);
        if is_last && offset == 0 {
            // A stream that fits into one block is stored like any small file, possibly in the
            // tree.
            if length > 0 {
                let options = WriteOptions::default();
                volume.write(inode, 0, run, options).await?;
            }
            progress.bytes.fetch_add(length, Ordering::Relaxed);
            return Ok(length);
        }
        if !run.is_empty() {
            let taken = volume.deposit(inode, offset, run.clone(), is_last).await?;
            left = run.slice(taken as usize..);
            offset += taken;
        }
        progress.bytes.fetch_add(length, Ordering::Relaxed);
        if is_last {
            return match left.is_empty() {
                true => Ok(offset),
                false => Err(VolumeError::Invalid.into()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_file() {
        let place = VolumePath::parse(b"/a//b\xff/c").unwrap();
        assert_eq!(place.directories, [b"a".to_vec(), b"b\xff".to_vec()]);
        assert_eq!(place.name(), b"c");
        for path in [
            &b""[..],
            b"/",
            b"a/",
            b"../a",
            b"a/./b",
            b".snapshots/x",
            b"/.bkfs",
        ] {
            assert!(VolumePath::parse(path).is_err(), "{}", path.escape_ascii());
        }
        assert!(VolumePath::parse(b"a/.snapshots").is_ok());
    }

    #[test]
    fn the_root_has_no_names() {
        assert!(names_of(b"/").unwrap().is_empty());
        assert_eq!(names_of(b"/a//b/").unwrap(), [b"a", b"b"]);
        assert!(names_of(b"/a/..").is_err() && names_of(b".bkfs/").is_err());
    }
}
