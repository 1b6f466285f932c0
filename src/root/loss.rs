//! Which errors of the root end a session.

use super::error::{ErrorKind, RootError};

impl RootError {
    /// Whether this session can never change its volume again.
    pub(crate) fn ends_session(&self) -> bool {
        match self {
            Self::Rollback { .. } | Self::NotDescended { .. } | Self::NotAtomic { .. } => true,
            other => match other.kind() {
                ErrorKind::Fenced | ErrorKind::Held | ErrorKind::WrongPassword => true,
                ErrorKind::Refused
                | ErrorKind::Damaged
                | ErrorKind::OutcomeUnknown
                | ErrorKind::Rebuild
                | ErrorKind::Unavailable
                | ErrorKind::NoRepository => false,
            },
        }
    }
}
