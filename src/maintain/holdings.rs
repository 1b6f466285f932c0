//! Which live packs hold a blob.
//!
//! Owns where that is known from: a table in memory, or partitions on local disk if the lists of
//! the packs are too many for the memory of a check.

use std::collections::HashMap;
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Prefix};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::PackContents;

use super::workspace::join::{JOIN_BYTES, join};
use super::workspace::partitions::Partitions;
use super::workspace::records::{Holding, Ordinal, Question};
use super::workspace::shelf::ShelvedPack;
use super::workspace::{self, WorkError, Workspace};
use crate::root::error::RootError;

/// Bytes of lists that make one table.
const TABLE_BYTES: u64 = 16 << 20;

/// All copies of the blobs in live packs.
#[derive(Clone, Debug)]
pub enum Holdings {
    /// The table of a content store knows all of them.
    Loaded(ContentStore),
    /// They are records on a medium. The names are those of the packs, by ordinal.
    Spilled(Arc<Partitions<Holding>>, Arc<[PackName]>),
}

/// The copies of some blobs.
#[derive(Debug)]
pub enum Copies<'h> {
    /// The table of a content store knows them.
    Loaded(&'h ContentStore),
    /// They were joined.
    Joined(HashMap<Prefix, Vec<PackLocation>>),
}

impl Holdings {
    /// Makes the blobs of `live` known to `content_store`: all of them if `is_spilled` is false,
    /// and otherwise those of packs with metadata only.
    ///
    /// # Errors
    /// [`RootError::Content`] if a worker's job panics, and those of [`WorkError`].
    pub async fn of(
        live: &[ShelvedPack],
        content_store: &ContentStore,
        is_spilled: bool,
        workspace: &Workspace,
    ) -> Result<Self, RootError> {
        load(live, content_store, |pack| {
            !is_spilled || pack.has_metadata()
        })
        .await?;
        if !is_spilled {
            return Ok(Self::Loaded(content_store.clone()));
        }
        let (packs, workspace) = (live.to_vec(), workspace.clone());
        let spilled = workspace::run(true, move || spill(&packs, &workspace)).await?;
        let names = live.iter().map(ShelvedPack::name).collect();
        Ok(Self::Spilled(Arc::new(spilled), names))
    }

    /// Returns whether a live pack holds a blob. `None` if only a join can tell.
    pub fn holds(&self, id: &Id) -> Option<bool> {
        match self {
            Self::Loaded(content_store) => {
                Some(!content_store.places_in_memory(&id.prefix()).is_empty())
            }
            Self::Spilled(..) => None,
        }
    }

    /// Returns the copies of blobs.
    ///
    /// # Errors
    /// [`WorkError::Unread`] and [`WorkError::Changed`].
    pub async fn copies(&self, blobs: Vec<Prefix>) -> Result<Copies<'_>, WorkError> {
        let (held, names) = match self {
            Self::Loaded(content_store) => return Ok(Copies::Loaded(content_store)),
            Self::Spilled(held, names) => (Arc::clone(held), Arc::clone(names)),
        };
        let joined = workspace::run(true, move || {
            let asked = Partitions::of(blobs.into_iter().map(Question).collect());
            let mut found = HashMap::new();
            join(&*held, &asked, JOIN_BYTES, &mut |asked, copies| {
                let places = copies.iter().filter_map(|copy| copy.place(&names));
                found.insert(asked.0, places.collect());
            })?;
            Ok(found)
        });
        Ok(Copies::Joined(joined.await?))
    }
}

impl Copies<'_> {
    /// Returns the places that hold one of the blobs.
    pub fn of(&self, blob: &Prefix) -> Vec<PackLocation> {
        match self {
            Self::Loaded(content_store) => content_store.places_in_memory(blob),
            Self::Joined(found) => found.get(blob).cloned().unwrap_or_default(),
        }
    }
}

/// Writes down every blob of these packs.
fn spill(packs: &[ShelvedPack], workspace: &Workspace) -> Result<Partitions<Holding>, WorkError> {
    let mut held = Partitions::new(workspace);
    for (ordinal, pack) in packs.iter().enumerate() {
        for blob in pack.contents()?.blobs() {
            held.push(Holding {
                blob: blob.prefix,
                pack: ordinal as Ordinal,
                frame: blob.frame,
            })?;
        }
    }
    Ok(held)
}

/// Makes exactly those of `packs` that `is_wanted` admits the index of `content_store`. Takes 30
/// bytes of memory for each of their blobs.
///
/// # Errors
/// [`RootError::Content`] if a worker's job panics, and those of [`WorkError`].
pub async fn load(
    packs: &[ShelvedPack],
    content_store: &ContentStore,
    is_wanted: impl Fn(&ShelvedPack) -> bool,
) -> Result<(), RootError> {
    let wanted = || packs.iter().filter(|pack| is_wanted(pack));
    let kept = wanted().filter(|pack| pack.is_in_memory());
    let kept: Vec<PackContents> = kept.map(ShelvedPack::contents).collect::<Result<_, _>>()?;
    content_store.load_packs(&kept).await?;
    drop(kept);
    // Lists on disk make tables of a bounded length.
    let (mut read, mut bytes) = (Vec::new(), 0);
    for pack in wanted().filter(|pack| !pack.is_in_memory()) {
        let contents = pack.contents()?;
        bytes += contents.encoded_bytes();
        read.push(contents);
        if bytes >= TABLE_BYTES {
            content_store.add_packs(std::mem::take(&mut read)).await?;
            bytes = 0;
        }
    }
    match read.is_empty() {
        true => Ok(()),
        false => Ok(content_store.add_packs(read).await?),
    }
}
