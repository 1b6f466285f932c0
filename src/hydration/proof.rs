//! The proof that everything below a place can be read without the store.
//!
//! Owns the reading of all that a tree has: attributes, extended attributes, names, link targets and
//! contents, through a content store whose bucket refuses every request. It reads as a mount does,
//! and shares nothing with the walk that made the plan.

use std::sync::Arc;

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::extent::Piece;

use crate::hydration::place::Planted;
use crate::tree::item::Item;
use crate::tree::key::{self, ItemKind, Key};
use crate::volume::error::VolumeError;
use crate::volume::nodes::Nodes;
use crate::volume::state::{Scope, Totals};
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, mode};
use crate::walk::{self, join};

/// Extents that are read together. One has 4 MiB at most.
const EXTENTS_AT_ONCE: usize = 4;

/// Problems that are named. The others are counted.
const NAMED_MAX: usize = 20;

/// What was read.
#[derive(Debug, Default)]
pub struct Proof {
    /// Number of names below the places, the places included.
    pub inodes: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
    /// Paths that could not be read, with the reason.
    pub unread: Vec<(Vec<u8>, String)>,
    /// Further ones.
    pub unread_beyond: u64,
    /// Requests that the store would have been sent.
    pub refused_requests: u64,
}

impl Proof {
    /// Returns true if everything was read, and the store was asked for nothing.
    pub fn holds(&self) -> bool {
        self.unread.is_empty() && self.refused_requests == 0
    }

    fn note(&mut self, path: &[u8], error: &VolumeError) {
        match self.unread.len() < NAMED_MAX {
            true => self.unread.push((path.to_owned(), error.to_string())),
            false => self.unread_beyond += 1,
        }
    }
}

/// Reads everything below places from `content_store`, which has no store.
pub async fn prove(content_store: &ContentStore, places: &[Planted]) -> Proof {
    let nodes = Arc::new(Nodes::new(content_store.clone()));
    let mut proof = Proof::default();
    for planted in places {
        let path = planted.place.path();
        let Some(tree) = planted.tree() else {
            proof.note(&path, &VolumeError::NotFound);
            continue;
        };
        let view = View::frozen(nodes.clone(), tree, Totals::default());
        match resolve(&view, &planted.place.names).await {
            Ok(inode) => read_below(&view, inode, path, &mut proof).await,
            Err(error) => proof.note(&path, &error),
        }
    }
    proof.refused_requests = content_store.metrics().get_requests;
    proof
}

/// Returns the inode at the end of names, by the look-ups of a mount.
async fn resolve(view: &View, names: &[Vec<u8>]) -> Result<u64, VolumeError> {
    let mut inode = ROOT_INODE;
    for name in names {
        view.attributes(Scope::Live, inode).await?;
        view.xattrs(inode).await?;
        let cookie = view.nodes().names().cookie(name);
        let key = Key::name(inode, cookie, name);
        match view.item(Scope::Live, &key).await? {
            Some(Item::Name { inode: found, .. }) => inode = found,
            _ => return Err(VolumeError::NotFound),
        }
    }
    Ok(inode)
}

async fn read_below(view: &View, inode: u64, path: Vec<u8>, proof: &mut Proof) {
    let mut stack = vec![(inode, path)];
    while let Some((inode, path)) = stack.pop() {
        proof.inodes += 1;
        match read_inode(view, inode).await {
            Ok((bytes, names)) => {
                proof.bytes += bytes;
                let path: &[u8] = if path == b"/" { b"" } else { &path };
                stack.extend(
                    names
                        .into_iter()
                        .map(|(name, inode)| (inode, join(path, &name))),
                );
            }
            Err(error) => proof.note(&path, &error),
        }
    }
}

/// Reads all that an inode has. Returns the bytes of its contents, and its names if it is a
/// directory.
async fn read_inode(view: &View, inode: u64) -> Result<(u64, Vec<(Vec<u8>, u64)>), VolumeError> {
    let attributes = view.attributes(Scope::Live, inode).await?;
    for name in view.xattrs(inode).await? {
        view.xattr(inode, &name).await?;
    }
    if mode::is_directory(attributes.mode) {
        let listing = walk::names(view, inode).await?;
        let names = listing.names.into_iter();
        return Ok((0, names.map(|named| (named.name, named.inode)).collect()));
    }
    let mut bytes = 0;
    view.item(Scope::Live, &Key::inline(inode)).await?;
    view.item(Scope::Live, &Key::symlink(inode)).await?;
    let mut range = key::of_kind(inode, ItemKind::Extent);
    loop {
        let page = view
            .items(Scope::Live, range.clone(), EXTENTS_AT_ONCE)
            .await?;
        let pieces: Vec<Piece> = page
            .items
            .iter()
            .filter_map(|(_, item)| piece(item))
            .collect();
        for parts in view.content_store().read(&pieces).await? {
            bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        }
        match page.next {
            Some(next) => range.start = next,
            None => return Ok((bytes, Vec::new())),
        }
    }
}

fn piece(item: &Item) -> Option<Piece> {
    let Item::Extent(extent) = item else {
        return None;
    };
    Some(Piece {
        target: extent.target,
        offset: extent.target_offset,
        length: extent.length,
    })
}
