//! Why a request is refused, as a page.
//!
//! Owns which status stands for which error.

use http::StatusCode;
use maud::Markup;

use crate::page::changes::NotChanged;
use crate::page::contents::{self, ContentsError};
use crate::page::guard::Denial;
use crate::page::markup;
use crate::page::restores::NotBegun;
use crate::root::error::RootError;

/// An answer that says why something is not shown.
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// The title of its page.
    pub title: &'static str,
    /// What the page says.
    pub contents: Markup,
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            title: "Refused",
            contents: markup::denied(denial),
        }
    }
}

impl From<ContentsError> for Refusal {
    fn from(error: ContentsError) -> Self {
        let (status, title) = match &error {
            ContentsError::Absent { .. } => (StatusCode::NOT_FOUND, "Not found"),
            error if contents::is_passing(error) => {
                (StatusCode::SERVICE_UNAVAILABLE, "The store does not answer")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "It cannot be read"),
        };
        if status.is_server_error() {
            tracing::warn!("a page cannot be shown: {error}");
        }
        Self {
            status,
            title,
            contents: markup::message(&error.to_string()),
        }
    }
}

impl From<NotChanged> for Refusal {
    fn from(error: NotChanged) -> Self {
        let (status, title) = match error {
            NotChanged::Contents(error) => return error.into(),
            NotChanged::Lists(RootError::NoSnapshot { .. }) => (StatusCode::NOT_FOUND, "Not found"),
            NotChanged::Lists(RootError::NameTaken { .. }) => {
                (StatusCode::CONFLICT, "The name is taken")
            }
            NotChanged::Lists(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "It may not have been changed: look before you repeat it",
            ),
            NotChanged::Busy => (StatusCode::SERVICE_UNAVAILABLE, "Busy"),
            NotChanged::NotAllowed { .. } => (StatusCode::FORBIDDEN, "Refused"),
            NotChanged::NotBegun(NotBegun::Busy) => (StatusCode::SERVICE_UNAVAILABLE, "Busy"),
            NotChanged::NotBegun(_) | NotChanged::Field { .. } => {
                (StatusCode::BAD_REQUEST, "It cannot be done")
            }
            NotChanged::Lost => (StatusCode::INTERNAL_SERVER_ERROR, "It has failed"),
        };
        let contents = markup::message(&error.to_string());
        Self {
            status,
            title,
            contents,
        }
    }
}
