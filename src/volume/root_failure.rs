//! What an error of the root means for a volume.
//!
//! Owns: the four cases that a volume distinguishes. Does not own: the errors themselves
//! (`root::error`), nor what is done in each case (`commit`, `landing`).

use crate::root::error::{ErrorKind, RootError};

/// A commit or a journal that the root did not take, by what the volume does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootFailure {
    /// The snapshot is refused, for example because of its name. The commit without it may succeed.
    #[error("{0}")]
    Refused(String),
    /// The change can be tried again.
    #[error("{0}")]
    Again(String),
    /// The outcome is unknown: look before repeating the change.
    #[error("{0}")]
    Unknown(String),
    /// This session can never change the volume again.
    #[error("{0}")]
    Lost(String),
}

impl From<RootError> for RootFailure {
    fn from(error: RootError) -> Self {
        let text = error.to_string();
        if error.ends_session() {
            return Self::Lost(text);
        }
        match error.kind() {
            // A damaged list of snapshots refuses only the snapshot. A damaged root refuses every
            // commit until it is repaired.
            ErrorKind::Refused | ErrorKind::Damaged => Self::Refused(text),
            ErrorKind::Fenced | ErrorKind::Held | ErrorKind::WrongPassword => Self::Lost(text),
            ErrorKind::OutcomeUnknown => Self::Unknown(text),
            // A bucket may be unavailable for a moment: one answer that it does not exist is not
            // final.
            ErrorKind::Rebuild | ErrorKind::Unavailable | ErrorKind::NoRepository => {
                Self::Again(text)
            }
        }
    }
}
