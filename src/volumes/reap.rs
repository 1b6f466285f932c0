//! Scratch clones that a crash has left.
//!
//! Owns which scratch clones are dead. The rules are those of a takeover: on its own machine the
//! process of a session decides, elsewhere its heartbeat. A wrong guess costs a scratch mount its
//! volume, of which nothing was promised.

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::heartbeat::{Watched, watch_holder};
use crate::root::holder::LocalVerdict;
use crate::root::removing::drop_scratch;
use crate::root::session::OpenSession;
use crate::root::state::{HolderInfo, Root, SessionId};
use crate::root::volumes::is_scratch;

/// Whether to watch the heartbeats of sessions on other machines, which takes half a minute.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Only sessions of this machine are judged.
    Here,
    /// Those of other machines, too.
    Everywhere,
}

/// Removes the scratch clones of dead sessions, and returns their names.
///
/// Cancel safety: dropped, it leaves the rest, and maybe a session of its own in the root, which
/// the next command on this machine removes.
///
/// # Errors
/// Those of reading the root, of watching a heartbeat, and of opening a session. A clone that a
/// session has taken meanwhile is no error.
pub async fn reap(
    repository: &Repository,
    command: &str,
    patience: Patience,
) -> Result<Vec<String>, RootError> {
    let here = repository.environment.holder(command);
    let mut reaped = Vec::new();
    for (volume, of) in scratch_clones(&repository.handle.current().root) {
        if let Some((session, holder)) = &of
            && !is_dead(repository, (&here, &volume), (*session, holder), patience).await?
        {
            continue;
        }
        let of = of.map(|(session, _)| session);
        match remove(repository, &here, &volume, of).await {
            Ok(()) => reaped.push(volume),
            Err(RootError::Refused(refusal)) => {
                tracing::debug!(volume, %refusal, "a scratch clone stays");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(reaped)
}

/// Removes a scratch clone whose holder `of` has ended.
///
/// Cancel safety: that of [`drop_scratch`].
///
/// # Errors
/// Those of [`drop_scratch`] and of opening a session.
pub async fn remove(
    repository: &Repository,
    here: &HolderInfo,
    volume: &str,
    of: Option<SessionId>,
) -> Result<(), RootError> {
    let processes = &*repository.environment.processes;
    let session = OpenSession::open(&repository.handle, here.clone(), None, processes).await?;
    drop_scratch(session, volume, of).await
}

/// Returns the scratch clones of a root with their holders.
fn scratch_clones(root: &Root) -> Vec<(String, Option<(SessionId, HolderInfo)>)> {
    let clones = root.volumes.iter().filter(|(name, _)| is_scratch(name));
    let held = clones.map(|(name, entry)| {
        let holder = entry.holder.and_then(|id| {
            let session = root.sessions.get(&id)?;
            Some((id, session.holder.clone()))
        });
        (name.clone(), holder)
    });
    held.collect()
}

async fn is_dead(
    repository: &Repository,
    (here, volume): (&HolderInfo, &str),
    (session, holder): (SessionId, &HolderInfo),
    patience: Patience,
) -> Result<bool, RootError> {
    match holder.judge_locally(here, &*repository.environment.processes) {
        LocalVerdict::Dead => Ok(true),
        LocalVerdict::Alive => Ok(false),
        LocalVerdict::Elsewhere if patience == Patience::Here => Ok(false),
        LocalVerdict::Elsewhere => {
            let watched = watch_holder(&repository.handle, session, Some(volume)).await?;
            Ok(watched == Watched::Dead)
        }
    }
}
