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
use crate::tree::item::Timestamp;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::volume::{ROOT_INODE, mode};
use crate::walk;

/// The volume of all traces.
pub const VOLUME: &str = "traces";

/// The word for no trace, where a name is read.
pub const NONE: &str = "none";

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

    /// Returns the traces for snapshots of one volume or of all, the newest first.
    ///
    /// # Errors
    /// [`StoredError::Volume`] if a directory cannot be read.
    pub async fn list(&self, volume: Option<&str>) -> Result<Vec<Listed>, StoredError> {
        let mut listed = Vec::new();
        for of in walk::names(&self.0, ROOT_INODE).await?.names {
            let (is_directory, inode) = (of.is_directory(), of.inode);
            let Some(of) = String::from_utf8(of.name).ok().filter(|_| is_directory) else {
                continue;
            };
            if volume.is_some_and(|volume| volume != of) {
                continue;
            }
            for named in walk::names(&self.0, inode).await?.names {
                let Ok(name) = String::from_utf8(named.name) else {
                    continue;
                };
                let found = self.0.attributes(Scope::Live, named.inode).await?;
                if mode::is_regular(found.mode) && check_trace_name(&name).is_ok() {
                    listed.push(Listed {
                        volume: of.clone(),
                        name,
                        made: found.modified,
                        bytes: found.size_bytes,
                    });
                }
            }
        }
        let time = |one: &Listed| (one.made.seconds, one.made.nanoseconds);
        listed.sort_by(|one, other| time(other).cmp(&time(one)).then(one.name.cmp(&other.name)));
        Ok(listed)
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
        let no_trace = |source| StoredError::NoTrace {
            volume: volume.to_owned(),
            name: name.to_owned(),
            source,
        };
        if found.size > TRACE_BYTES_MAX {
            return Err(no_trace(TraceError::TooLarge));
        }
        if found.size == 0 {
            return Err(no_trace(TraceError::NoTrace));
        }
        let parts = self.0.read(Scope::Live, found.inode, 0..found.size).await?;
        Trace::decode(&parts.concat()).map_err(no_trace)
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

fn absent(volume: &str, name: &str) -> StoredError {
    StoredError::Absent {
        volume: volume.to_owned(),
        name: name.to_owned(),
    }
}
