//! The page of `bkfs serve`: snapshots of repositories in a browser, without a mount.
//!
//! Owns what a request is allowed to do, what it gets, and the HTTP around it. Changes a repository
//! or this machine only as the options of the server allow: a snapshot is forgotten or brought back
//! (`maintain::forgetting`), a file or directory is restored (`restore`).
//!
//! ```text
//!   server    connections: limits, time-outs, TLS, the end
//!   answer    from a request to an answer: guard, route, contents, markup
//!   guard     who may ask: names of the host, origins, tokens, cookies
//!   route     addresses of pages (pure)
//!   contents  reads what a page shows
//!   markup    pages as HTML (pure)
//!   download  bytes of a file or an archive on their way to a client
//!   changes   what forms change
//!   restores  restores to this machine, and how far they are
//!   forms     pages of changes as HTML (pure)
//!   refusal   why a request is refused
//!   response  bodies of answers
//!   headers   headers of all answers (pure)
//! ```

use std::sync::Arc;

use crate::page::contents::ContentsError;
use crate::page::guard::Guard;
use crate::page::restores::Restores;
use crate::repository::Repository;

pub mod answer;
pub mod changes;
pub mod contents;
pub mod download;
pub mod forms;
pub mod guard;
pub mod headers;
pub mod markup;
mod refusal;
mod response;
pub mod restores;
pub mod route;
pub mod server;

/// The state of a mount on this machine, as its daemon tells it.
#[derive(Debug, Clone)]
pub struct MountHealth {
    /// The mount point.
    pub mount_point: String,
    /// The volume; none if the daemon does not answer.
    pub volume: Option<String>,
    /// Whether the daemon answers and has lost nothing.
    pub is_healthy: bool,
    /// Bytes that are not in the bucket yet.
    pub waiting_bytes: u64,
    /// What an operator should know.
    pub remarks: Vec<String>,
}

/// Asks the mounts of a repository that this machine has. It may take seconds.
pub type Mounts = dyn Fn(&str) -> Vec<MountHealth> + Send + Sync;

/// What the server shows, and to whom.
pub struct Page {
    /// The repositories, in the order of the command line.
    pub repositories: Vec<Repository>,
    /// Who may ask.
    pub guard: Guard,
    /// Asks the mounts of this machine.
    pub mounts: Arc<Mounts>,
    /// Whether snapshots may be forgotten and brought back.
    pub may_forget: bool,
    /// Where it may restore to, and what it restores.
    pub restores: Restores,
}

impl Page {
    /// Returns the repository of a number in an address.
    ///
    /// # Errors
    /// [`ContentsError::Absent`].
    pub fn repository(&self, number: usize) -> Result<&Repository, ContentsError> {
        let repository = self.repositories.get(number);
        repository.ok_or(ContentsError::Absent { what: "repository" })
    }
}
