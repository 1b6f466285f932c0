//! A change of the root, as [`super::handle`] makes it.
//!
//! Owns what a change must say of itself. Does not own when it is tried and sent.

use super::error::RootError;
use super::state::{Root, SessionId};
use async_trait::async_trait;

/// One change of the root, which is tried until it is made or refused.
#[async_trait]
pub trait Transition: Send {
    /// Result for the caller after the change was made.
    type Output: Send;

    /// Session that makes it, live in the root being replaced (rule 2 ‡). `None` only to register
    /// one, or where none may stand.
    fn session(&self) -> Option<SessionId>;

    /// Makes the change in `next`, a copy of the root being replaced with its new generation. Runs
    /// again for every root it is tried on; may upload objects that the new root names.
    ///
    /// # Errors
    /// [`RootError::Refused`] if the root does not admit the change; errors of reads and uploads.
    async fn apply(&mut self, next: &mut Root) -> Result<Self::Output, RootError>;

    /// Whether the change was made before `root`, any successor of an unanswered attempt's base.
    ///
    /// # Errors
    /// That of a list that this reads. It is then not known whether the change was made.
    async fn seen(&mut self, root: &Root) -> Result<bool, RootError>;
}

/// Proof that a change was made.
#[derive(Clone, Debug)]
pub struct Applied<T> {
    /// The generation of the root that made it.
    pub generation: u64,
    /// Output of the transition.
    pub output: T,
}
