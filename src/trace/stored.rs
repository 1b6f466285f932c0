//! The traces of a repository: the file NAME in the directory VOLUME of the volume `traces`.
//!
//! Owns these names, and the reading of traces. The directory is named after the volume of the
//! snapshots that a trace is for. Does not own writing (`mounting::trace_store`).

use std::sync::Arc;

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::state::check_new_name;
use crate::trace::format::{TRACE_BYTES_MAX, Trace, TraceError};
use crate::trace::place::resolve;
use crate::tree::item::{Item, Timestamp};
use crate::tree::key::{self, Key};
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, mode};
use crate::walk::{self, Named};

/// The volume of all traces.
pub const VOLUME: &str = "traces";

/// The word for no trace, where a name is read.
pub const NONE: &str = "none";

/// The most traces in a list.
pub const LISTED_MAX: usize = 10_000;

/// The most names that are looked at for a list.
const NAMES_MAX: usize = 100_000;

/// Names that are read from the tree at a time.
const PAGE_NAMES: usize = 1024;

/// A trace in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The volume of the snapshots that it is for.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub made: Timestamp,
    /// The length of its file, in bytes.
    pub bytes: u64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// There is no trace of this name.
    #[error("volume {volume} has no trace {name}")]
    Absent {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// A name that no trace can have.
    #[error("the name of a trace: {0}")]
    Name(String),
    /// The file is no trace.
    #[error("trace {name} of volume {volume}: {source}")]
    NoTrace {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
        /// The reason.
        source: TraceError,
    },
    /// The volume `traces` cannot be read.
    #[error("the traces of the repository: {0}")]
    Volume(#[from] VolumeError),
    /// The repository cannot be read.
    #[error(transparent)]
    Root(#[from] RootError),
}

/// Checks the name of a trace: 1 to 255 bytes, no `/`, no control character, not starting with `.`
/// or `@`, and not `none`.
///
/// # Errors
/// [`StoredError::Name`].
pub fn check_trace_name(name: &str) -> Result<(), StoredError> {
    if name == NONE {
        let reserved = "'none' is reserved: it means no trace";
        return Err(StoredError::Name(reserved.to_owned()));
    }
    check_new_name(name).map_err(|error| StoredError::Name(error.to_string()))
}

/// Returns the path of a trace in its volume.
pub fn path_of(volume: &str, name: &str) -> String {
    format!("{volume}/{name}")
}

/// The newest traces of those that were added.
#[derive(Debug, Default)]
struct Newest(Vec<Listed>);

impl Newest {
    fn add(&mut self, listed: Listed) {
        self.0.push(listed);
        if self.0.len() >= 2 * LISTED_MAX {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let time = |one: &Listed| (one.made.seconds, one.made.nanoseconds);
        self.0
            .sort_by(|one, other| time(other).cmp(&time(one)).then(one.name.cmp(&other.name)));
        self.0.truncate(LISTED_MAX);
    }

    /// Returns them, the newest first.
    fn listed(mut self) -> Vec<Listed> {
        self.cut();
        self.0
    }
}

/// The traces of a repository as of one root.
pub struct Stored(View);

impl Stored {
    /// Returns the traces as of the newest root; `None` if there is no volume of them.
    ///
    /// # Errors
    /// [`StoredError::Root`] if the root or the index cannot be read.
    pub async fn open(repository: &Arc<Repository>) -> Result<Option<Stored>, StoredError> {
        match repository.volume_tree(VOLUME).await {
            Ok((tree, totals)) => {
                let view = View::frozen(repository.nodes.clone(), tree, totals);
                Ok(Some(Stored(view)))
            }
            Err(RootError::NoSnapshot { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the traces for snapshots of one volume or of all, the newest first and of them at most
    /// [`LISTED_MAX`]. The volume may have any number of files: behind the first 100,000 names, in the
    /// order of the tree, none is looked at.
    ///
    /// # Errors
    /// [`StoredError::Volume`] if a directory cannot be read.
    pub async fn list(&self, volume: Option<&str>) -> Result<Vec<Listed>, StoredError> {
        let (mut newest, mut room) = (Newest::default(), NAMES_MAX);
        let directories = match volume {
            Some(volume) => self.directory(volume).await?.into_iter().collect(),
            None => self.names(ROOT_INODE, &mut room).await?,
        };
        for of in directories.into_iter().filter(Named::is_directory) {
            let Ok(volume) = String::from_utf8(of.name) else {
                continue;
            };
            for named in self.names(of.inode, &mut room).await? {
                let Ok(name) = String::from_utf8(named.name) else {
                    continue;
                };
                let found = self.0.attributes(Scope::Live, named.inode).await?;
                if mode::is_regular(found.mode) && check_trace_name(&name).is_ok() {
                    newest.add(Listed {
                        volume: volume.clone(),
                        name,
                        made: found.modified,
                        bytes: found.size_bytes,
                    });
                }
            }
        }
        Ok(newest.listed())
    }

    /// Returns the name of the directory for a volume; `None` if there is none.
    async fn directory(&self, volume: &str) -> Result<Option<Named>, VolumeError> {
        let name = volume.as_bytes();
        let cookie = self.0.nodes().names().cookie(name);
        let key = Key::name(ROOT_INODE, cookie, name);
        Ok(match self.0.item(Scope::Live, &key).await? {
            Some(Item::Name { inode, file_type }) => Some(Named {
                name: name.to_vec(),
                inode,
                file_type,
                cookie,
            }),
            _ => None,
        })
    }

    /// Returns the names of a directory, at most `room` of them, which is then less by them.
    async fn names(&self, directory: u64, room: &mut usize) -> Result<Vec<Named>, VolumeError> {
        let mut names = Vec::new();
        let mut range = key::names_from(directory, 0);
        while *room > 0 {
            let page = walk::page(&self.0, directory, range.clone(), PAGE_NAMES.min(*room)).await?;
            let looked_at = page.names.len() + page.faulty.len();
            *room = room.saturating_sub(looked_at.max(1));
            names.extend(page.names);
            match page.next {
                Some(next) => range.start = next,
                None => break,
            }
        }
        Ok(names)
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// [`StoredError::Absent`], [`StoredError::NoTrace`]; [`StoredError::Volume`] if the file cannot
    /// be read.
    pub async fn read(&self, volume: &str, name: &str) -> Result<Trace, StoredError> {
        check_trace_name(name)?;
        let found = resolve(&self.0, path_of(volume, name).as_bytes()).await?;
        let found = found.ok_or_else(|| absent(volume, name))?;
        let no_trace = |source| no_trace((volume, name), source);
        if found.size > TRACE_BYTES_MAX {
            return Err(no_trace(TraceError::TooLarge));
        }
        if found.size == 0 {
            return Err(no_trace(TraceError::NoTrace));
        }
        let mut bytes = Vec::with_capacity(found.size as usize);
        for part in self.0.read(Scope::Live, found.inode, 0..found.size).await? {
            // The parts are given back one by one.
            bytes.extend_from_slice(&part);
        }
        Trace::decode(&bytes).map_err(no_trace)
    }
}

/// Reads a trace of a repository.
///
/// # Errors
/// Those of [`Stored::open`] and [`Stored::read`].
pub async fn load(
    repository: &Arc<Repository>,
    volume: &str,
    name: &str,
) -> Result<Trace, StoredError> {
    check_trace_name(name)?;
    match Stored::open(repository).await? {
        Some(stored) => stored.read(volume, name).await,
        None => Err(absent(volume, name)),
    }
}

/// Returns the error of a file that is no trace, of this volume and name.
pub fn no_trace((volume, name): (&str, &str), source: TraceError) -> StoredError {
    StoredError::NoTrace {
        volume: volume.to_owned(),
        name: name.to_owned(),
        source,
    }
}

fn absent(volume: &str, name: &str) -> StoredError {
    StoredError::Absent {
        volume: volume.to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_any_number_of_traces_keeps_the_newest() {
        let listed = |seconds| Listed {
            volume: "main".to_owned(),
            name: format!("{seconds}"),
            made: Timestamp {
                seconds,
                nanoseconds: 0,
            },
            bytes: 1,
        };
        let count = 5 * LISTED_MAX as i64 / 2;
        for is_rising in [true, false] {
            let mut newest = Newest::default();
            for number in 0..count {
                newest.add(listed(if is_rising {
                    number
                } else {
                    count - 1 - number
                }));
                assert!(newest.0.len() < 2 * LISTED_MAX);
            }
            let kept = newest.listed();
            let expected = (0..LISTED_MAX as i64).map(|rank| listed(count - 1 - rank));
            assert!(kept == expected.collect::<Vec<_>>());
        }
    }
}
