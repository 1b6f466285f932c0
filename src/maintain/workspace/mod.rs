//! Working data of a check or a collection: kept in memory up to a budget, and on local disk beyond it.
//!
//! Owns the budget, the forms of the data, and how two sets of records are joined in bounded
//! memory. Knows no bucket, and does not decide what counts as damage. Nothing here outlives the
//! process, so no form is part of the format of a repository.
//!
//! | module | |
//! |---|---|
//! | [`medium`] | where files with working data are made, as a trait |
//! | [`directory`] | a private directory on local disk |
//! | `blocks` | one file of blocks, each with a checksum |
//! | [`partitions`] | records by the prefix of an id |
//! | [`join`] | two sets of records, partition by partition |
//! | [`records`] | what a check writes down of blobs and references |
//! | [`questions`] | questions about many blobs, answered in the order of prefixes |
//! | [`shelf`] | the lists of what packs hold |

mod blocks;
pub mod directory;
pub mod join;
pub mod medium;
pub mod partitions;
pub mod questions;
pub mod records;
pub mod shelf;

use std::fmt;
use std::sync::Arc;

use medium::Medium;

use crate::root::error::RootError;

/// Memory that working data may take before it goes to local disk, in bytes. That is enough for
/// about three million blobs.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// Why working data cannot be kept.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkError {
    /// The disk does not take it.
    #[error(
        "cannot write working data to {place} (free space there, or name another directory with \
         --work-dir): {source}"
    )]
    Unwritten {
        /// The place, as users know it.
        place: Arc<str>,
        /// The error of the disk.
        source: Arc<std::io::Error>,
    },
    /// The disk does not give it.
    #[error(
        "cannot read working data in {place} (name another directory with --work-dir): {source}"
    )]
    Unread {
        /// The place, as users know it.
        place: Arc<str>,
        /// The error of the disk.
        source: Arc<std::io::Error>,
    },
    /// The disk gives other bytes than were written.
    #[error(
        "working data in {place} has changed since it was written: that disk or the memory of \
         this machine is faulty; name a directory on another disk with --work-dir"
    )]
    Changed {
        /// The place, as users know it.
        place: Arc<str>,
    },
    /// A job has panicked, or the runtime ends.
    #[error("a job with working data has ended without a result")]
    Ended,
}

impl From<WorkError> for RootError {
    fn from(error: WorkError) -> Self {
        let kind = match &error {
            WorkError::Unwritten { source, .. } | WorkError::Unread { source, .. } => source.kind(),
            WorkError::Changed { .. } => std::io::ErrorKind::InvalidData,
            WorkError::Ended => std::io::ErrorKind::Other,
        };
        RootError::Local {
            what: "the work ended without a result".to_owned(),
            source: std::io::Error::new(kind, error),
        }
    }
}

/// Space that working data may need.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Need {
    /// The place, as users know it.
    pub place: String,
    /// What it may need at most, in bytes.
    pub bytes: u64,
    /// What is free there, in bytes; `None` if that is not known.
    pub free_bytes: Option<u64>,
}

/// Told what space may be needed, before it is.
#[derive(Clone)]
pub struct Announce(Arc<dyn Fn(&Need) + Send + Sync>);

impl Announce {
    /// Returns one that calls a function.
    pub fn new(tell: impl Fn(&Need) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for Announce {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Announce")
    }
}

/// Where working data may be, and how much of it stays in memory.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Makes files. Without one all working data stays in memory.
    pub medium: Option<Arc<dyn Medium>>,
    /// Memory that working data may take before it goes to the medium, in bytes.
    pub memory_bytes: u64,
    /// Told what space may be needed.
    pub announce: Option<Announce>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self::IN_MEMORY
    }
}

impl Workspace {
    /// Working data in memory alone.
    pub const IN_MEMORY: Self = Self {
        medium: None,
        memory_bytes: MEMORY_BYTES,
        announce: None,
    };

    /// Returns the memory that one kind of working data may take, in bytes. The lists of packs, the
    /// table of their blobs, nodes and what their parents say of them share the budget. Without a
    /// medium there is no bound.
    pub(super) fn share(&self) -> u64 {
        match self.medium {
            Some(_) => self.memory_bytes / 4,
            None => u64::MAX,
        }
    }

    /// Tells what space may be needed, if this is known to be on a medium.
    pub(super) fn announce(&self, bytes: u64) {
        let (Some(medium), Some(Announce(tell))) = (&self.medium, &self.announce) else {
            return;
        };
        tell(&Need {
            place: medium.place().to_string(),
            bytes,
            free_bytes: medium.free_bytes(),
        });
    }
}

/// Runs work on working data: on a thread of its own if the data is on a medium.
///
/// # Errors
/// Those of the work, and [`WorkError::Ended`] if it panics.
pub(super) async fn run<T: Send + 'static>(
    is_spilled: bool,
    work: impl FnOnce() -> Result<T, WorkError> + Send + 'static,
) -> Result<T, WorkError> {
    match is_spilled {
        true => tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| WorkError::Ended)?,
        false => work(),
    }
}

#[cfg(test)]
mod tests;
