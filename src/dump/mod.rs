//! Files of a snapshot as one stream of bytes.
//!
//! Owns: reading ahead, in order, and what is written for a directory. Does not own: the form of an archive (`tar`), where the bytes go.

use std::collections::HashMap;
use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};

use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::names;

mod tar;

/// A part of a file that is read at once, in bytes.
const PART_BYTES: u64 = 8 << 20;

/// Parts read ahead: bounds the memory.
const PARTS_AHEAD: usize = 8;

/// Files up to this size are read ahead of their turn in an archive, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// How many of them.
const SMALL_AHEAD: usize = 64;

/// Extended attributes looked at in one go.
const PAGE_XATTRS: usize = 64;

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

/// Writes a directory, and all below it, as a tar archive with extended headers (POSIX.1-2001): paths in it begin below the directory.
pub async fn archive(view: &View, inode: u64, sink: &mut dyn Sink) -> Result<Dumped, DumpError> {
    let mut dumped = Dumped::default();
    let mut firsts: HashMap<u64, Vec<u8>> = HashMap::new();
    // Directories that are still to be written, the next one last. What lies in one follows it at once: tar sets its times when it is left.
    let mut open = vec![member(view, inode, b"./".to_vec()).await?];
    let mut is_top = true;
    while let Some(directory) = open.pop() {
        let prefix = match std::mem::take(&mut is_top) {
            true => Vec::new(),
            false => directory.path.clone(),
        };
        let inode = directory.inode;
        put_member(view, directory, &mut firsts, sink, &mut dumped).await?;
        let shown = prefix.escape_ascii().to_string();
        let names = names(view, inode).await;
        let names = names.map_err(|source| failed(&shown, source))?;
        let mut inside = Vec::new();
        let mut members = stream::iter(names)
            .map(|named| {
                let view = view.clone();
                let path = [prefix.as_slice(), &named.name].concat();
                async move { member(&view, named.inode, path).await }
            })
            .buffered(SMALL_AHEAD);
        while let Some(member) = members.next().await {
            let mut member = member?;
            if mode::is_directory(member.attributes.mode) {
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

async fn member(view: &View, inode: u64, path: Vec<u8>) -> Result<Member, DumpError> {
    let read = async {
        let attributes = view.attributes(Scope::Live, inode).await?;
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
        let xattrs = xattrs_of(view, inode).await?;
        Ok((attributes, xattrs, target, small))
    };
    let (attributes, xattrs, target, small) = read
        .await
        .map_err(|source| failed(&path.escape_ascii().to_string(), source))?;
    Ok(Member {
        path,
        inode,
        attributes,
        xattrs,
        target,
        small,
    })
}

async fn xattrs_of(view: &View, inode: u64) -> Result<Vec<(Vec<u8>, Bytes)>, VolumeError> {
    let mut range = key::of_kind(inode, key::ItemKind::Xattr);
    let mut all = Vec::new();
    loop {
        let page = view.items(Scope::Live, range.clone(), PAGE_XATTRS).await?;
        for (key, item) in page.items {
            if let (Ok(KeyParts::Xattr { name, .. }), Item::Xattr(value)) = (key.parse(), item) {
                all.push((name.to_vec(), value));
            }
        }
        match page.next {
            Some(next) => range.start = next,
            None => return Ok(all),
        }
    }
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
            let path = member.path.escape_ascii().to_string();
            contents(view, member.inode, size, &path, sink).await?;
        }
    }
    dumped.bytes += size;
    let fill = size.next_multiple_of(tar::BLOCK_BYTES as u64) - size;
    sink.put(Bytes::from_static(&ZEROES[..fill as usize]))
        .await?;
    Ok(())
}
