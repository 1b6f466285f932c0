//! Whether one root descends from another, by its chain; and the older parts of that, which lie in
//! lists.
//!
//! Owns the judgement, when those parts are written, and how they are read. What a chain is and
//! says is in [`super::chain`].

use super::chain::{Chain, Descent, NonceEntry, OWN_LEAST, OWN_LIMIT, OWN_MAX, short};
use super::error::RootError;
use super::handle::RootHandle;
use super::lists::{DirectLists, Lists, put_shard};
use super::state::{ListRef, ROOT_BYTES_MAX, Root, RootMark, SessionId};
use bkfs_chunker::seal::{Class, Keyring};
use bkfs_chunker::store::Store;
use std::sync::{Arc, OnceLock};

/// How a root stands to one that was seen before.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Judgement {
    /// It is that root or descends from it, as far as can be told.
    Follows,
    /// It is older, or another root of the same generation.
    Older,
    /// It is newer, and another root stood in that one's place.
    Elsewhere,
    /// It was made by a repair after the chain had been lost.
    Rebuilt {
        /// The highest generation that the repair knew of.
        lost: u64,
    },
}

/// Judges `root` by `known`, which was seen before.
///
/// # Errors
/// The part of the chain that tells cannot be read.
pub async fn judge(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    root: &Root,
    known: RootMark,
) -> Result<Judgement, RootError> {
    let found = root.mark();
    if found == known {
        return Ok(Judgement::Follows);
    }
    if found.generation <= known.generation {
        return Ok(Judgement::Older);
    }
    let Some(chain) = &root.chain else {
        return Ok(Judgement::Follows);
    };
    let follows = match chain.descent(known) {
        Descent::Holds => true,
        Descent::Denied => false,
        Descent::Lost => {
            let lost = chain.lost.unwrap_or(0);
            return Ok(Judgement::Rebuilt { lost });
        }
        Descent::In(part, place) => {
            let lists = Lists::new(store.clone(), keyring.clone());
            let shards = lists.nonce_shards(&[part.list]).await;
            let shards = shards.map_err(|error| unreadable(part.list, error))?;
            let mut entries = shards.iter().flat_map(|shard| shard.iter());
            entries.nth(place).map(|entry| entry.0) == Some(short(&known.nonce))
        }
    };
    Ok(match follows {
        true => Judgement::Follows,
        false => Judgement::Elsewhere,
    })
}

/// A part of the chain that is not there must not look like a root that is not there.
fn unreadable(list: ListRef, error: RootError) -> RootError {
    match error {
        RootError::Store(error) if error.is_not_found() => RootError::damaged(
            &list.name.key(Class::List),
            "it is missing, and would tell whether this root descends from the one that this machine has seen (bkfs check --repair does without it; --accept-rollback goes on once)",
        ),
        other => other,
    }
}

/// As [`judge`], with what keeps a machine that has seen `known` from going on by itself as an
/// error.
///
/// # Errors
/// [`RootError::Rollback`], [`RootError::NotDescended`], [`RootError::Rebuilt`]; the part of the
/// chain that tells cannot be read.
pub async fn require_descent(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    root: &Root,
    known: RootMark,
) -> Result<(), RootError> {
    let found = root.mark();
    match judge(store, keyring, root, known).await? {
        Judgement::Follows => Ok(()),
        Judgement::Older => Err(RootError::Rollback { known, found }),
        Judgement::Elsewhere => Err(RootError::NotDescended { known, found }),
        Judgement::Rebuilt { lost } => Err(RootError::Rebuilt { known, lost }),
    }
}

/// Whether a process has met a root that a repair made while it ran. It takes such a root as it is,
/// since what that says of sessions and volumes tells what was lost; but it enters no new session in
/// it, and remembers nothing of it for this machine: that is for the user to accept.
#[derive(Debug, Default)]
pub(super) struct Rebuilds(OnceLock<(RootMark, u64)>);

impl Rebuilds {
    /// Bears the judgement that a root was rebuilt, and takes note of it.
    pub(super) fn bear(&self, judged: Result<(), RootError>) -> Result<(), RootError> {
        match judged {
            Err(error @ RootError::Rebuilt { known, lost }) => {
                self.0.get_or_init(|| {
                    tracing::error!(%error, "the root was rebuilt while this process ran: nothing more is written by it");
                    (known, lost)
                });
                Ok(())
            }
            judged => judged,
        }
    }

    /// Whether one was met.
    pub(super) fn is_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// Refuses a new session.
    ///
    /// # Errors
    /// [`RootError::Rebuilt`] if one was met.
    pub(super) fn refuse(&self) -> Result<(), RootError> {
        match self.0.get() {
            Some(&(known, lost)) => Err(RootError::Rebuilt { known, lost }),
            None => Ok(()),
        }
    }
}

/// Checks that a root is not older than the user demands.
///
/// # Errors
/// [`RootError::Rollback`].
pub(super) fn require_generation(found: RootMark, least: u64) -> Result<(), RootError> {
    if found.generation >= least {
        return Ok(());
    }
    let known = RootMark {
        generation: least,
        ..found
    };
    Err(RootError::Rollback { known, found })
}

/// Room that a root keeps for changes: with less of it the chain leaves the root as far as it can.
const ROOM_BYTES: usize = 12 * 1024;

/// Room without which not even a session can register: only then, and beyond [`OWN_LIMIT`], is a
/// part of the chain given up.
const LEAST_ROOM_BYTES: usize = 2 * 1024;

/// Keeps the chain of `next` short: what is too long goes into a list of `session`, which is live
/// in the root being replaced. Without a session, or when the list cannot be written now, the chain
/// stays longer for a while; beyond [`OWN_LIMIT`] its oldest part is given up. A future that is
/// dropped leaves a list that no root names.
pub(super) async fn shorten(handle: &RootHandle, session: Option<SessionId>, next: &mut Root) {
    let bytes = next.encode().map_or(usize::MAX, |payload| payload.len());
    let has_room = |room: usize| bytes.saturating_add(room) <= ROOT_BYTES_MAX;
    let (is_crowded, is_full) = (!has_room(ROOM_BYTES), !has_room(LEAST_ROOM_BYTES));
    let Some(chain) = &mut next.chain else {
        return;
    };
    let (most, keep) = match is_crowded {
        true => (2 * OWN_LEAST, OWN_LEAST),
        false => (OWN_MAX, OWN_MAX / 2),
    };
    if chain.len() <= most {
        return;
    }
    if let Some(session) = session {
        let patience = handle.policy().request_timeout;
        match tokio::time::timeout(patience, write(handle, session, chain, keep)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(%error, "the chain of generations stays in the root"),
            Err(_) => tracing::warn!("the chain of generations stays in the root: no answer"),
        }
    }
    if chain.len() > OWN_LIMIT || is_full {
        chain.give_up(keep);
    }
}

/// Writes what leaves the root, with what lay in the lists that it joins.
async fn write(
    handle: &RootHandle,
    session: SessionId,
    chain: &mut Chain,
    keep: usize,
) -> Result<(), RootError> {
    let moving = chain.oldest(keep);
    let mut joined = chain.parts_to_join(moving.len());
    let refs: Vec<_> = joined.iter().map(|part| part.list).collect();
    let lists = Lists::new(handle.store().clone(), handle.keyring().clone());
    let mut entries: Vec<NonceEntry> = match lists.nonce_shards(&refs).await {
        Ok(shards) => shards.iter().flat_map(|shard| shard.to_vec()).collect(),
        // A list that cannot be read stays as it is.
        Err(_) => {
            joined.clear();
            Vec::new()
        }
    };
    entries.extend(moving);
    let writer = DirectLists::last(handle, session);
    let list = put_shard(&writer, entries).await?;
    chain.moved(keep, &joined, list);
    Ok(())
}
