//! Files of a snapshot as one stream of bytes.
//!
//! Owns: reading ahead, in order, and the archive of a directory. Does not own: the encoding of an
//! archive's headers (`tar`), where the bytes go.

use std::collections::HashMap;
use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use tokio_util::task::AbortOnDropHandle;

use crate::fault::{self, Entered, Fault};
use crate::printable;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, names};

pub mod tar;

/// A part of a file that is read at once, in bytes.
const PART_BYTES: u64 = 8 << 20;

/// Number of parts that are read ahead, which bounds the memory.
const PARTS_AHEAD: usize = 8;

/// Largest size of a file that is read ahead of its turn in an archive, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// Number of such files that are read ahead.
const SMALL_AHEAD: usize = 64;

/// Why a dump ended early. The bytes written before are correct, but incomplete.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The snapshot could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Path of the file or directory.
        path: String,
        /// The error of the read.
        source: VolumeError,
    },
    /// The bytes could not be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// The receiver of the bytes.
#[async_trait]
pub trait Sink: Send {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// The I/O error of the write. It ends the dump with [`DumpError::Write`].
    async fn put(&mut self, bytes: Bytes) -> io::Result<()>;

    /// Takes note of an entry that is left out because of a fault.
    fn leave_out(&mut self, path: &[u8], fault: &Fault);
}

/// Zeroes that fill the last block of a member, and that end an archive.
static ZEROES: [u8; 2 * tar::BLOCK_BYTES] = [0; 2 * tar::BLOCK_BYTES];

/// Counts of a finished dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Bytes of contents.
    pub bytes: u64,
    /// Number of inodes in an archive; 1 for a file.
    pub entries: u64,
    /// Number of sockets, which an archive cannot hold.
    pub skipped: u64,
}

/// Writes the contents of one regular file. An inode with a [`Fault`] is left out.
///
/// # Errors
/// [`DumpError::Read`] if the attributes or the contents cannot be read; [`DumpError::Write`] if
/// the sink fails.
pub async fn file(
    view: &View,
    inode: u64,
    path: &str,
    sink: &mut dyn Sink,
) -> Result<Dumped, DumpError> {
    let attributes = view.attributes(Scope::Live, inode).await;
    let attributes = attributes.map_err(|source| failed(path, source))?;
    if let Some(fault) = fault::of_contents(inode, &attributes) {
        sink.leave_out(path.as_bytes(), &fault);
        return Ok(Dumped::default());
    }
    let bytes = contents(view, inode, attributes.size_bytes, path, sink).await?;
    Ok(Dumped {
        bytes,
        entries: 1,
        skipped: 0,
    })
}

fn failed(path: &str, source: VolumeError) -> DumpError {
    DumpError::Read {
        path: path.to_owned(),
        source,
    }
}

async fn contents(
    view: &View,
    inode: u64,
    size: u64,
    path: &str,
    sink: &mut dyn Sink,
) -> Result<u64, DumpError> {
    let parts = (0..size.div_ceil(PART_BYTES)).map(|part| {
        let start = part * PART_BYTES;
        start..size.min(start + PART_BYTES)
    });
    let mut reads = stream::iter(parts)
        .map(|range| {
            let view = view.clone();
            // Each part has a task of its own, so that reads continue while the sink blocks.
            AbortOnDropHandle::new(tokio::spawn(async move {
                view.read(Scope::Live, inode, range).await
            }))
        })
        .buffered(PARTS_AHEAD);
    while let Some(read) = reads.next().await {
        let read = read.map_err(|error| io::Error::other(error.to_string()))?;
        for bytes in read.map_err(|source| failed(path, source))? {
            sink.put(bytes).await?;
        }
    }
    Ok(size)
}

/// The parts of one archive member.
struct Member {
    path: Vec<u8>,
    inode: u64,
    attributes: Attributes,
    xattrs: Vec<(Vec<u8>, Bytes)>,
    target: Option<Bytes>,
    /// The contents, for a small file.
    small: Option<Vec<Bytes>>,
}

/// Writes a directory and all below it as a tar archive with extended headers (POSIX.1-2001). Paths
/// in the archive are relative to the directory. Entries with a [`Fault`] are left out, so nothing
/// in the archive leads out of the directory into which it is unpacked.
///
/// # Errors
/// [`DumpError::Read`] if an entry cannot be read; [`DumpError::Write`] if the sink fails.
pub async fn archive(view: &View, inode: u64, sink: &mut dyn Sink) -> Result<Dumped, DumpError> {
    let mut dumped = Dumped::default();
    let mut firsts: HashMap<u64, Vec<u8>> = HashMap::new();
    // Directories that are still to be written, the next one last. The contents of a directory
    // directly follow it, because tar sets the times of a directory when it leaves it.
    let mut open = vec![];
    match member(view, inode, b"./".to_vec()).await? {
        (_, Ok(member)) => open.push(member),
        (path, Err(fault)) => sink.leave_out(&path, &fault),
    }
    let mut entered = Entered::from(inode);
    let mut is_top = true;
    while let Some(directory) = open.pop() {
        let prefix = match std::mem::take(&mut is_top) {
            true => Vec::new(),
            false => directory.path.clone(),
        };
        let inode = directory.inode;
        put_member(view, directory, &mut firsts, sink, &mut dumped).await?;
        let listing = names(view, inode).await;
        let listing = listing.map_err(|source| failed(&printable::name(&prefix), source))?;
        for faulty in listing.faulty {
            sink.leave_out(&[prefix.as_slice(), &faulty.name].concat(), &faulty.fault);
        }
        let mut inside = Vec::new();
        let mut members = stream::iter(listing.names)
            .map(|named| {
                let view = view.clone();
                let path = [prefix.as_slice(), &named.name].concat();
                async move { member(&view, named.inode, path).await }
            })
            .buffered(SMALL_AHEAD);
        while let Some(member) = members.next().await {
            let mut member = match member? {
                (_, Ok(member)) => member,
                (path, Err(fault)) => {
                    sink.leave_out(&path, &fault);
                    continue;
                }
            };
            if mode::is_directory(member.attributes.mode) {
                if let Err(fault) = entered.enter(member.inode, member.path.len()) {
                    sink.leave_out(&member.path, &fault);
                    continue;
                }
                member.path.push(b'/');
                inside.push(member);
            } else {
                put_member(view, member, &mut firsts, sink, &mut dumped).await?;
            }
        }
        inside.reverse();
        open.append(&mut inside);
    }
    sink.put(Bytes::from_static(&ZEROES)).await?;
    Ok(dumped)
}

/// Returns the archive member of a name, or why it is left out; with its path.
async fn member(
    view: &View,
    inode: u64,
    path: Vec<u8>,
) -> Result<(Vec<u8>, Result<Member, Fault>), DumpError> {
    match read_member(view, inode, &path).await {
        Ok(member) => Ok((path, member)),
        Err(source) => Err(failed(&printable::name(&path), source)),
    }
}

async fn read_member(
    view: &View,
    inode: u64,
    path: &[u8],
) -> Result<Result<Member, Fault>, VolumeError> {
    let attributes = match walk::attributes(view, inode).await? {
        Ok(attributes) => attributes,
        Err(fault) => return Ok(Err(fault)),
    };
    if let Some(fault) = fault::of_attributes(inode, &attributes) {
        return Ok(Err(fault));
    }
    let target = match mode::is_symlink(attributes.mode) {
        false => None,
        true => match view.item(Scope::Live, &Key::symlink(inode)).await? {
            Some(Item::Symlink(target)) => Some(target),
            _ => return Err(VolumeError::Malformed { inode }),
        },
    };
    let size = attributes.size_bytes;
    let is_small = mode::is_regular(attributes.mode) && (1..=SMALL_BYTES).contains(&size);
    let small = match is_small {
        true => Some(view.read(Scope::Live, inode, 0..size).await?),
        false => None,
    };
    if let Some(fault) = target
        .as_ref()
        .and_then(|target| fault::of_target(inode, target))
    {
        return Ok(Err(fault));
    }
    let xattrs = match walk::xattrs(view, inode).await? {
        Ok(xattrs) => xattrs,
        Err(fault) => return Ok(Err(fault)),
    };
    Ok(Ok(Member {
        path: path.to_vec(),
        inode,
        attributes,
        xattrs,
        target,
        small,
    }))
}

async fn put_member(
    view: &View,
    member: Member,
    firsts: &mut HashMap<u64, Vec<u8>>,
    sink: &mut dyn Sink,
    dumped: &mut Dumped,
) -> Result<(), DumpError> {
    let attributes = &member.attributes;
    let is_directory = mode::is_directory(attributes.mode);
    let first = firsts.get(&member.inode).cloned();
    let link = first.as_deref().map(tar::Link::Hard);
    let link = link.or(member.target.as_deref().map(tar::Link::Symbolic));
    let entry = tar::Entry {
        path: &member.path,
        attributes,
        xattrs: &member.xattrs,
        link,
    };
    let Some(header) = entry.encode() else {
        dumped.skipped += 1;
        return Ok(());
    };
    sink.put(header.into()).await?;
    dumped.entries += 1;
    if !is_directory && attributes.links > 1 && first.is_none() {
        firsts.insert(member.inode, member.path.clone());
    }
    if !mode::is_regular(attributes.mode) || first.is_some() {
        return Ok(());
    }
    let size = attributes.size_bytes;
    match member.small {
        Some(small) => {
            for bytes in small {
                sink.put(bytes).await?;
            }
        }
        None => {
            let path = printable::name(&member.path);
            contents(view, member.inode, size, &path, sink).await?;
        }
    }
    dumped.bytes = dumped.bytes.saturating_add(size);
    let fill = size.wrapping_neg() % tar::BLOCK_BYTES as u64;
    sink.put(Bytes::from_static(&ZEROES[..fill as usize]))
        .await?;
    Ok(())
}
