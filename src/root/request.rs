//! What a new session asks for, and what it knows.
//!
//! Owns these facts. Does not own how a session enters the root (`session`).

use super::state::{SessionId, SpoolId};

/// The volume that a session wants to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeRequest {
    /// The name of the volume, which is created if absent.
    pub name: String,
    /// Whether to take it over from any holder, alive or not.
    pub steal: bool,
    /// Whether to go on if journals with acknowledged operations are missing.
    pub accept_loss: bool,
}

/// Facts for a new session about the spools on its machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KnownSpools {
    /// The place of the new session's own spool, if it has one.
    pub own: Option<SpoolId>,
    /// Sessions whose spools here hold no acknowledged operation that is missing in the commits.
    pub empty: Vec<SessionId>,
    /// Sessions whose spools were uploaded. A session that takes their volume over from now on
    /// finds their contents in the bucket.
    pub brought: Vec<SessionId>,
}
