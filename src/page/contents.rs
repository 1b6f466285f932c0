//! Reads what a page shows.
//!
//! Owns how much of a directory one page has, and what is asked of a repository for it. Does not
//! own the pages (`markup`).

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};

use crate::page::route::{FileName, VolumeName};
use crate::repository::Repository;
use crate::restore::error::RestoreError;
use crate::restore::resolve;
use crate::root::error::{ErrorKind, RootError};
use crate::root::snapshots::{SnapshotEntry, SnapshotList, newest_of};
use crate::tree::item::{Attributes, Item};
use crate::tree::key::{self, Key, KeyParts};
use crate::volume::error::VolumeError;
use crate::volume::mode;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, Named};

/// Names of a directory that are sorted. A larger directory comes in parts, in the order of the
/// tree.
pub const SORTED_MAX: usize = 10_000;

/// Names on one page of a larger directory.
const PART_NAMES: usize = 1_000;

/// Bytes of addresses on one page: deep directories come in smaller parts.
const ADDRESS_BYTES: usize = 16 << 20;

/// Snapshots of a volume that are shown, the newest ones.
pub const SNAPSHOTS_MAX: usize = 1_000;

/// Attributes that are read at the same time.
const ATTRIBUTES_AT_ONCE: usize = 64;

/// Look-ups of versions at the same time.
const VERSIONS_AT_ONCE: usize = 8;

/// Why a page cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError {
    /// There is no such repository, volume, snapshot or file.
    #[error("there is no such {what}")]
    Absent {
        /// What there is not.
        what: &'static str,
    },
    /// The root or a list.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The tree of a snapshot.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl From<RestoreError> for ContentsError {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Volume(error) => Self::Volume(error),
            _ => Self::Absent { what: "file" },
        }
    }
}

/// A volume in the overview.
#[derive(Debug)]
pub struct VolumeSummary {
    /// The volume.
    pub name: VolumeName,
    /// The number of its snapshots.
    pub snapshots: usize,
    /// The newest snapshot of its own.
    pub newest: Option<SnapshotEntry>,
}

/// An entry of a directory, or what a file is.
#[derive(Debug)]
pub struct Entry {
    /// The name; empty for the root of a snapshot.
    pub name: Vec<u8>,
    /// Attributes; none if the name leads nowhere, or they cannot be read.
    pub attributes: Option<Attributes>,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
}

impl Entry {
    fn unreadable() -> Self {
        Self {
            name: Vec::new(),
            attributes: None,
            target: None,
        }
    }

    /// Returns true for a directory.
    pub fn is_directory(&self) -> bool {
        let attributes = self.attributes.as_ref();
        attributes.is_some_and(|attributes| mode::is_directory(attributes.mode))
    }

    /// Returns true for a regular file.
    pub fn is_file(&self) -> bool {
        let attributes = self.attributes.as_ref();
        attributes.is_some_and(|found| found.mode & libc::S_IFMT == libc::S_IFREG)
    }
}

/// Names of a directory.
#[derive(Debug)]
pub struct Directory {
    /// The entries of this page.
    pub entries: Vec<Entry>,
    /// Names that no file can have, and that are left out.
    pub faulty: usize,
    /// Whether these are all names, sorted.
    pub is_whole: bool,
    /// Where the next page begins.
    pub next: Option<u64>,
}

/// A file of a snapshot, ready to be read.
pub struct Opened {
    /// The snapshot.
    pub snapshot: SnapshotEntry,
    /// Its tree.
    pub view: View,
    /// The inode.
    pub inode: u64,
    /// The file.
    pub entry: Entry,
}

/// Returns the volumes of a repository, as the newest root has them.
///
/// # Errors
/// [`ContentsError::Root`].
pub async fn volumes(
    repository: &Repository,
    number: usize,
) -> Result<Vec<VolumeSummary>, ContentsError> {
    let (view, list) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let mut volumes: BTreeMap<&str, Vec<&SnapshotEntry>> = BTreeMap::new();
    for volume in view.root.volumes.keys() {
        volumes.entry(volume).or_default();
    }
    for snapshot in list.iter() {
        volumes.entry(&snapshot.volume).or_default().push(snapshot);
    }
    let summary = |(volume, made): (&str, Vec<&SnapshotEntry>)| VolumeSummary {
        name: VolumeName {
            repository: number,
            volume: volume.to_owned(),
        },
        snapshots: made.len(),
        newest: newest_of(made.into_iter()).cloned(),
    };
    Ok(volumes.into_iter().map(summary).collect())
}

/// Returns the newest [`SNAPSHOTS_MAX`] snapshots of a volume, the newest first.
///
/// # Errors
/// [`ContentsError::Absent`] if there is no such volume; [`ContentsError::Root`].
pub async fn snapshots(
    repository: &Repository,
    volume: &str,
) -> Result<Vec<SnapshotEntry>, ContentsError> {
    let (view, list) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let newest_first = newest_first(&list, volume);
    match newest_first.is_empty() && !view.root.volumes.contains_key(volume) {
        true => Err(ContentsError::Absent { what: "volume" }),
        false => Ok(newest_first),
    }
}

fn newest_first(list: &SnapshotList, volume: &str) -> Vec<SnapshotEntry> {
    let mut snapshots: Vec<_> = list.of_volume(volume).into_iter().cloned().collect();
    snapshots.reverse();
    snapshots.truncate(SNAPSHOTS_MAX);
    snapshots
}

/// Finds a file of a snapshot.
///
/// # Errors
/// [`ContentsError::Absent`] if there is no such snapshot or file; errors of the repository.
pub async fn open(repository: &Repository, file: &FileName) -> Result<Opened, ContentsError> {
    let list = repository.snapshots().await?;
    let snapshot = list.named(&file.volume.volume, &file.snapshot);
    let snapshot = snapshot.ok_or(ContentsError::Absent { what: "snapshot" })?;
    let view = repository.view(snapshot).await?;
    let inode = resolve(&view, &file.joined()).await?;
    let name = file.path.last().cloned().unwrap_or_default();
    let entry = entry(&view, name, inode).await?;
    match entry.attributes {
        None => Err(ContentsError::Absent { what: "file" }),
        Some(_) => Ok(Opened {
            snapshot: snapshot.clone(),
            view,
            inode,
            entry,
        }),
    }
}

async fn entry(view: &View, name: Vec<u8>, inode: u64) -> Result<Entry, ContentsError> {
    let attributes = match walk::attributes(view, inode).await {
        Ok(attributes) => attributes.ok(),
        // One damaged item keeps no others from being shown.
        Err(error) if error.is_damage() => None,
        Err(error) => return Err(error.into()),
    };
    let is_link = |found: &Attributes| mode::is_symlink(found.mode);
    let target = match attributes.as_ref().is_some_and(is_link) {
        false => None,
        true => match view.item(Scope::Live, &Key::symlink(inode)).await? {
            Some(Item::Symlink(target)) => Some(target.to_vec()),
            _ => None,
        },
    };
    Ok(Entry {
        name,
        attributes,
        target,
    })
}

/// Returns the names of a directory with their attributes: all of them sorted, or a part of more
/// than [`SORTED_MAX`] that begins at the cookie `from`. The address of an entry has about
/// `address_bytes`.
///
/// # Errors
/// [`ContentsError::Volume`].
pub async fn list(
    view: &View,
    inode: u64,
    from: u64,
    address_bytes: usize,
) -> Result<Directory, ContentsError> {
    let range = key::names_from(inode, from);
    let most = (ADDRESS_BYTES / address_bytes.max(1)).clamp(2 * PART_NAMES, SORTED_MAX);
    let limit = if from == 0 { most } else { 2 * PART_NAMES };
    let mut listing = walk::page(view, inode, range, limit).await?;
    let is_whole = from == 0 && listing.next.is_none();
    let mut next = None;
    match is_whole {
        true => listing.names.sort(),
        false => {
            // Names of one cookie are never parted.
            let mut rest = listing.names.iter().skip(PART_NAMES);
            let last = listing.names.get(PART_NAMES - 1).map(|named| named.cookie);
            let further = rest.find(|named| Some(named.cookie) > last);
            next = match (further, listing.names.last()) {
                (Some(named), _) => Some(named.cookie),
                (None, Some(last)) if listing.next.is_some() => last.cookie.checked_add(1),
                // All of them are names that no file can have.
                (None, _) => listing
                    .next
                    .as_ref()
                    .and_then(cookie)
                    .map(|next| next.max(from + 1)),
            };
            let before = |named: &Named| next.is_none_or(|next| named.cookie < next);
            listing.names.retain(before);
        }
    }
    let faulty = listing.faulty.len();
    let entries = stream::iter(listing.names)
        .map(|named| entry(view, named.name, named.inode))
        .buffered(ATTRIBUTES_AT_ONCE);
    let entries: Vec<Result<Entry, ContentsError>> = entries.collect().await;
    Ok(Directory {
        entries: entries.into_iter().collect::<Result<_, _>>()?,
        faulty,
        is_whole,
        next,
    })
}

/// Returns the cookie in the key of a name.
fn cookie(key: &Key) -> Option<u64> {
    match key.parse() {
        Ok(KeyParts::Name { cookie, .. }) => Some(cookie),
        _ => None,
    }
}

/// A snapshot that has a path.
#[derive(Debug)]
pub struct FileVersion {
    /// The snapshot.
    pub snapshot: SnapshotEntry,
    /// The file there; none if it is absent.
    pub entry: Option<Entry>,
}

/// Returns what each snapshot of the volume has at the path of `file`, the newest first. At most
/// [`SNAPSHOTS_MAX`] snapshots are looked at.
///
/// # Errors
/// Errors of the repository.
pub async fn versions(
    repository: &Repository,
    file: &FileName,
) -> Result<Vec<FileVersion>, ContentsError> {
    let list = repository.snapshots().await?;
    let snapshots = newest_first(&list, &file.volume.volume);
    let path = &file.joined();
    let found = stream::iter(snapshots)
        .map(|snapshot| async move {
            let view = repository.view(&snapshot).await?;
            let found = match resolve(&view, path).await {
                Ok(inode) => Some(entry(&view, Vec::new(), inode).await?),
                Err(RestoreError::Volume(error)) if error.is_damage() => Some(Entry::unreadable()),
                Err(RestoreError::Volume(error)) => return Err(error.into()),
                Err(_) => None,
            };
            Ok(FileVersion {
                snapshot,
                entry: found,
            })
        })
        .buffered(VERSIONS_AT_ONCE);
    let found: Vec<Result<FileVersion, ContentsError>> = found.collect().await;
    found.into_iter().collect()
}

/// Returns true if the repository could not be reached, so that the same request may succeed later.
pub fn is_passing(error: &ContentsError) -> bool {
    match error {
        ContentsError::Root(error) => error.kind() == ErrorKind::Unavailable,
        ContentsError::Volume(error) => !error.is_damage(),
        ContentsError::Absent { .. } => false,
    }
}
