//! What a mount does with what an ended session acknowledged (protocol.md, rule 7), and with journals when it ends itself.
//!
//! Owns: the order of replay. Does not own: which sessions ended (`root::session`), their journals (`root::journal`), nor what replaying does to a volume
//! (`volume::replay`).

use std::sync::Arc;

use bkfs_chunker::depot::Depot;
use bkfs_chunker::ingest::NamedPack;

use crate::mounting::MountingError;
use crate::root::carried::forget_carried;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::journal::JournalWriter;
use crate::root::record::Replayed;
use crate::root::session::OpenSession;
use crate::volume::Volume;
use crate::volume::operations::Operations;
use crate::volume::rescue;

/// Carries out what the victims of `open` acknowledged, oldest session first, on a volume that nobody uses yet. Returns the sessions that the first
/// commit takes out of the root; it must be made before anything else is accepted.
pub async fn replay(volume: &Volume, open: &OpenSession) -> Result<Vec<Replayed>, MountingError> {
    take_packs(volume, open).await?;
    for victim in open.victims() {
        let mut journals = Vec::with_capacity(victim.entries.len());
        for entry in &victim.entries {
            let damaged = |reason| {
                let object = format!("journal of session {}", victim.session);
                RootError::damaged(&object, reason)
            };
            journals.push(Operations::decode(&entry.operations).map_err(damaged)?);
        }
        volume.replay(&journals).await?;
        if let Some(last) = victim.entries.last() {
            tracing::warn!(session = %victim.session, operations = journals.len(), last = last.last,
                "carried out what an earlier mount had acknowledged and not committed");
        }
    }
    let replayed = open.victims().iter().map(|victim| Replayed {
        session: victim.session,
        last: victim.entries.last().map_or(0, |entry| entry.last),
    });
    Ok(replayed.collect())
}

/// The packs that the victims' journals name become this session's, as far as rule 3 permits: what
/// collection has condemned since is stored again.
async fn take_packs(volume: &Volume, open: &OpenSession) -> Result<(), MountingError> {
    let entries = open.victims().iter().flat_map(|victim| &victim.entries);
    let mut own: Vec<NamedPack> = entries.flat_map(|entry| entry.packs().own).collect();
    own.sort_unstable_by_key(|pack| pack.name);
    own.dedup_by_key(|pack| pack.name);
    Ok(rescue::take(volume.ingest(), own).await?)
}

/// Step `ReplayCommitCas`: what was replayed becomes the volume's tree, and its sessions leave the root.
pub async fn commit_replayed(
    handle: &RootHandle,
    volume: &Volume,
    open: &OpenSession,
) -> Result<(), MountingError> {
    if open.victims().is_empty() {
        return Ok(());
    }
    volume.commit().await?;
    // Nothing was committed if what they acknowledged was there already.
    open.remove_victims().await?;
    handle.forget_journals(open.victims()).await;
    Ok(())
}

/// Ends a session after its last commit. One whose journals hold what no commit covers stays in the root: whoever takes the volume next replays it.
pub async fn end(
    open: OpenSession,
    journals: &Arc<JournalWriter>,
    is_committed: bool,
) -> Result<(), RootError> {
    if is_committed {
        // The spool first: what is left in it would be brought back as if no commit had it.
        journals.forget_kept(u64::MAX).await;
    } else if journals.is_needed() {
        tracing::warn!(
            "acknowledged changes are in no commit: the session stays in the root, and the next mount of the volume carries them out"
        );
        return Ok(());
    }
    open.end().await?;
    // Only now: a journal that is missing while its session stands in the root looks lost.
    if is_committed {
        journals.covered(u64::MAX).await;
    }
    Ok(())
}

/// Says what this machine sent and no commit covers, of sessions that have left the root; nothing
/// more of it once a mount `accepts_loss`. Dropped, it says that the next time.
pub async fn tell_uncarried(handle: RootHandle, depot: Depot, accepts_loss: bool) {
    let lost = match forget_carried(&handle, &depot).await {
        Ok(lost) => lost,
        Err(error) => {
            tracing::debug!(%error, "whether all that was sent is carried out is left to the next mount");
            return;
        }
    };
    for lost in &lost {
        match accepts_loss {
            true => tracing::error!("{lost}; that is accepted, and not said again"),
            false => tracing::error!(
                "{lost}; store again from its source what this machine wrote since, then give \
                 -o accept_loss to one mount, which ends this message"
            ),
        }
    }
    if let Some(sent) = handle.memory().sent().filter(|_| accepts_loss) {
        sent.forget(lost.into_iter().map(|lost| lost.session)).await;
    }
}
