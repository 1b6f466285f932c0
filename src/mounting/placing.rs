//! From the paths of a mount to places of volumes and snapshots.
//!
//! Owns what the first names of a path mean: `.snapshots/NAME` is a snapshot, all else lies in what
//! the root of the mount shows. Does not look below: whether there is such a path is found out by
//! the walk.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::hydration::place::{Place, Planted, names_of};
use crate::mounting::hydrating::HydrationError;
use crate::vfs::live::Current;
use crate::vfs::special::Shelf;
use crate::volume::error::VolumeError;

/// Paths from the mount point on, their bytes in base64. No path means all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paths {
    paths: Vec<String>,
}

/// The name of a snapshot, and the names that lead to a place in it.
type InSnapshot<'a> = (String, &'a [Vec<u8>]);

/// What the root of a mount shows.
pub(super) struct Shown {
    /// The volume's name.
    pub(super) volume: String,
    /// The snapshot, of a mount of one snapshot.
    pub(super) snapshot: Option<String>,
    /// Its tree.
    pub(super) current: Arc<Current>,
}

impl Shown {
    /// Returns the places, each with the tree that it is in now. A writable volume is committed
    /// before, so that its tree is in the bucket.
    ///
    /// # Errors
    /// [`HydrationError::NoSuchPlace`] if a path cannot be one; [`HydrationError::Volume`] if the
    /// commit fails or the snapshots cannot be read.
    pub(super) async fn planted(&self, paths: &Paths) -> Result<Vec<Planted>, HydrationError> {
        let mut planted = Vec::new();
        let mut live = None;
        for names in names(paths)? {
            let (place, tree) = match self.snapshot_in(&names)? {
                Some((name, rest)) => {
                    let shelf = self.shelf(&name).await?;
                    (self.place(Some(shelf.name), rest), shelf.view.base())
                }
                None => {
                    let tree = match live {
                        Some(tree) => tree,
                        None => *live.insert(self.committed().await?),
                    };
                    (self.place(self.snapshot.clone(), &names), tree)
                }
            };
            planted.push(Planted::new(place, tree));
        }
        planted.sort_by(|one, other| one.place.cmp(&other.place));
        // What lies in another place comes right behind it.
        planted.dedup_by(|below, above| below.place.is_within(&above.place));
        Ok(planted)
    }

    /// Returns the places, without a look at the bucket if no path names a snapshot by its time or
    /// as the latest one.
    ///
    /// # Errors
    /// As [`Shown::planted`].
    pub(super) async fn places(&self, paths: &Paths) -> Result<Vec<Place>, HydrationError> {
        let mut places = Vec::new();
        for names in names(paths)? {
            places.push(match self.snapshot_in(&names)? {
                Some((name, rest)) if name == "latest" || name.starts_with('@') => {
                    self.place(Some(self.shelf(&name).await?.name), rest)
                }
                Some((name, rest)) => self.place(Some(name), rest),
                None => self.place(self.snapshot.clone(), &names),
            });
        }
        Ok(places)
    }

    /// Returns the name of the snapshot that names begin with, and the names in it.
    fn snapshot_in<'a>(
        &self,
        names: &'a [Vec<u8>],
    ) -> Result<Option<InSnapshot<'a>>, HydrationError> {
        match names.first().map(Vec::as_slice) {
            Some(b".bkfs") => Err(no_such_place(names)),
            Some(b".snapshots") if self.current.history().is_some() => {
                let name = names.get(1).and_then(|name| std::str::from_utf8(name).ok());
                let name = name.ok_or_else(|| no_such_place(names))?;
                Ok(Some((name.to_owned(), &names[2..])))
            }
            _ => Ok(None),
        }
    }

    async fn shelf(&self, name: &str) -> Result<Shelf, HydrationError> {
        let history = self.current.history().ok_or(VolumeError::NotFound)?;
        match history.find(name).await {
            Err(VolumeError::NotFound) => {
                Err(HydrationError::NoSuchPlace(format!("/.snapshots/{name}")))
            }
            found => Ok(found?),
        }
    }

    /// Returns the root of the tree that the mount shows, which is in the bucket.
    async fn committed(&self) -> Result<bkfs_chunker::id::Id, HydrationError> {
        if let Some(volume) = self.current.volume() {
            volume.commit().await?;
        }
        Ok(self.current.view().base())
    }

    fn place(&self, snapshot: Option<String>, names: &[Vec<u8>]) -> Place {
        Place {
            volume: self.volume.clone(),
            snapshot,
            names: names.to_vec(),
        }
    }
}

/// Returns the names of each path.
fn names(paths: &Paths) -> Result<Vec<Vec<Vec<u8>>>, HydrationError> {
    if paths.paths.is_empty() {
        return Ok(vec![Vec::new()]);
    }
    let refused = |path: &[u8]| HydrationError::NoSuchPlace(String::from_utf8_lossy(path).into());
    let names = paths.paths.iter().map(|path| {
        let bytes = STANDARD
            .decode(path)
            .map_err(|_| refused(path.as_bytes()))?;
        names_of(&bytes).map_err(|_| refused(&bytes))
    });
    names.collect()
}

fn no_such_place(names: &[Vec<u8>]) -> HydrationError {
    let path = names
        .iter()
        .flat_map(|name| [b"/", name.as_slice()].concat());
    let path: Vec<u8> = path.collect();
    HydrationError::NoSuchPlace(String::from_utf8_lossy(&path).into_owned())
}
