//! Helpers that several test targets of this folder share.
//!
//! Owns helpers that know the whole filesystem. Fakes below the filesystem (stores, a disk,
//! randomness) are in `bkfs_testing`.

use async_trait::async_trait;
use bkfs::repository::Repository;
use bkfs::root::error::RootError;
use bkfs::root::handle::Transition;
use bkfs::root::session::OpenSession;
use bkfs::root::state::{Root, SessionId};
use bkfs::root::transition::ListChange;

/// Takes all snapshots out of the list, and puts none in the trash.
struct Strip(SessionId);

#[async_trait]
impl Transition for Strip {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let change = ListChange {
            removed: next.snapshots.clone(),
            added: Vec::new(),
        };
        Ok(next.change_snapshots(&change)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.snapshots.is_empty())
    }
}

/// Takes all snapshots out of a repository's list in a session of its own, and puts none in the
/// trash: no command removes them in this way.
///
/// # Panics
/// If the session does not begin or end, or the root cannot be replaced.
pub async fn strip(repository: &Repository) {
    let (handle, machine) = (&repository.handle, &repository.environment);
    let holder = machine.holder("strip");
    let session = OpenSession::open(handle, holder, None, &*machine.processes).await;
    let session = session.expect("entered");
    let stripped = handle.update(&mut Strip(session.id())).await;
    stripped.expect("stripped");
    session.end().await.expect("left");
}
