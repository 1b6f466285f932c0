//! Files of a snapshot as one stream of bytes.
//!
//! Owns: reading ahead, in order, and what is written for a directory. Does not own: the form of an archive (`tar`), where the bytes go.

use std::collections::HashMap;
use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};

use crate::fault::{self, Entered, Fault};
use crate::printable;
use crate::tree::item::{Attributes, Item};
use crate::tree::key::Key;
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, names};

mod tar;

/// A part of a file that is read at once, in bytes.
const PART_BYTES: u64 = 8 << 20;

/// Parts read ahead: bounds the memory.
const PARTS_AHEAD: usize = 8;

/// Files up to this size are read ahead of their turn in an archive, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// How many of them.
const SMALL_AHEAD: usize = 64;

/// Why a dump ended early. What was written before is right, and not all.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// It could not be read.
    #[error("{path}: {source}")]
    Read {
        /// What.
        path: String,
        /// Why.
        source: VolumeError,
    },
    /// It could not be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// Where the bytes go.
#[async_trait]
pub trait Sink: Send {
    /// Takes what comes next.
    async fn put(&mut self, bytes: Bytes) -> io::Result<()>;

    /// Learns of what is not in the archive, since no file can be so.
    fn leave_out(&mut self, path: &[u8], fault: &Fault);
}

/// What fills the last block of a member, and ends an archive.
static ZEROES: [u8; 2 * tar::BLOCK_BYTES] = [0; 2 * tar::BLOCK_BYTES];

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Bytes of contents.
    pub bytes: u64,
    /// Inodes in an archive; 1 for a file.
    pub entries: u64,
    /// Sockets, which no archive has.
    pub skipped: u64,
}

/// Writes the contents of one regular file.
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
            // A task of its own each, so that they go on while the sink blocks.
            tokio::spawn(async move { view.read(Scope::Live, inode, range).await })
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

/// What an archive has of one name.
struct Member {
    path: Vec<u8>,
    inode: u64,
    attributes: Attributes,
    xattrs: Vec<(Vec<u8>, Bytes)>,
    target: Option<Bytes>,
    /// The contents of a small file.
    small: Option<Vec<Bytes>>,
}

/// Writes a directory, and all below it, as a tar archive with extended headers (POSIX.1-2001):
/// paths in it begin below the directory. What no file can be is left out, so that nothing in the
/// archive leads out of where it is unpacked.
pub async fn archive(view: &View, inode: u64, sink: &mut dyn Sink) -> Result<Dumped, DumpError> {
    let mut dumped = Dumped::default();
    let mut firsts: HashMap<u64, Vec<u8>> = HashMap::new();
    // Directories that are still to be written, the next one last. What lies in one follows it at once: tar sets its times when it is left.
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

/// What an archive has of a name, or why it is left out; with its path.
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
