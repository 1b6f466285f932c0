//! Forgetting snapshots and bringing them back, without a mount.
//!
//! Owns the session of such a change. Does not own the change itself (`root::forget`), nor which
//! snapshots go (`retain`).

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::forget::ListChanger;
use crate::root::lists::DirectLists;
use crate::root::session::OpenSession;
use crate::root::snapshots::{SnapshotEntry, TrashEntry};

/// Moves snapshots of a volume to the trash. `command` says in the root who does it.
///
/// Cancel safety: dropped, it leaves the snapshots listed or forgotten, and a session in the root
/// that lasts as long as this process does.
///
/// # Errors
/// Those of [`ListChanger::forget`], and of opening a session.
pub async fn forget(
    repository: &Repository,
    command: &str,
    volume: &str,
    names: &[String],
) -> Result<(), RootError> {
    change(repository, command, async |changer: ListChanger<'_>| {
        changer.forget(volume, names, repository.now()).await
    })
    .await?;
    Ok(())
}

/// Brings the newest forgotten snapshot of a volume named `name` back. Returns its entry.
///
/// Cancel safety: that of [`forget`].
///
/// # Errors
/// Those of [`ListChanger::restore_forgotten`], and of opening a session.
pub async fn bring_back(
    repository: &Repository,
    command: &str,
    volume: &str,
    name: &str,
) -> Result<SnapshotEntry, RootError> {
    let restored = change(repository, command, async |changer: ListChanger<'_>| {
        changer.restore_forgotten(volume, name).await
    });
    Ok(restored.await?.output)
}

/// Returns the forgotten snapshots of a volume that can be brought back, those forgotten last first.
///
/// # Errors
/// Those of reading the root and its lists.
pub async fn forgotten(
    repository: &Repository,
    volume: &str,
) -> Result<Vec<TrashEntry>, RootError> {
    let (view, _) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let shards = repository.lists.known_trash(&view.root.trash).await?;
    let entries = shards.iter().flat_map(|shard| shard.iter());
    let ours = entries.filter(|entry| entry.snapshot.volume == volume);
    let mut forgotten: Vec<TrashEntry> = ours.cloned().collect();
    forgotten.sort_by_key(|entry| std::cmp::Reverse(entry.forgotten));
    Ok(forgotten)
}

/// Changes the lists, as a session of its own.
async fn change<T>(
    repository: &Repository,
    command: &str,
    work: impl AsyncFnOnce(ListChanger<'_>) -> Result<T, RootError>,
) -> Result<T, RootError> {
    let environment = &repository.environment;
    let holder = environment.holder(command);
    let session =
        OpenSession::open(&repository.handle, holder, None, &*environment.processes).await?;
    let writer = DirectLists::new(&repository.handle, session.id());
    let done = work(ListChanger {
        handle: &repository.handle,
        lists: &repository.lists,
        writer: &writer,
        session: session.id(),
    })
    .await;
    if let Err(error) = session.end().await {
        tracing::warn!(
            "could not remove the session of this command from the root: {error}; a later command \
             on this machine removes it"
        );
    }
    done
}
