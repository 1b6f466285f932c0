//! Decides from a root's chain whether it descends from another root, and moves the older parts of
//! the chain into lists.
//!
//! Owns that decision, the writing of the older parts, and how they are read. [`super::chain`]
//! defines the chain and its encoding.

use super::chain::{Chain, Descent, NonceEntry, OWN_LEAST, OWN_LIMIT, OWN_MAX, RootMark, short};
use super::error::RootError;
use super::lists::{DirectLists, Lists, put_shard};
use super::shard::ListRef;
use super::state::Root;
use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_store::Store;
use std::sync::{Arc, OnceLock};

/// How a root relates to a root that was seen before.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Judgement {
    /// It is that root or descends from it, or the chain has no evidence against it.
    Follows,
    /// It has a lower generation, or the same generation and another nonce.
    Older,
    /// It has a higher generation, and its chain holds another root in the place of that one.
    Elsewhere,
    /// A repair made it after the chain had been lost.
    Rebuilt {
        /// The highest generation that the repair knew of.
        lost: u64,
    },
}

/// Compares `root` with `known`, which was seen before. Reads at most one list; writes nothing.
///
/// # Errors
/// The part of the chain that decides cannot be read:
/// - [`RootError::Damaged`] if its list is missing, cannot be decoded, or has another number of
///   entries than the root says.
/// - [`RootError::Unopenable`] if its list does not open with the keys of the repository.
/// - [`RootError::Store`] for every other failure of the store.
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

/// Turns a missing list of the chain into [`RootError::Damaged`]: a plain store error of kind
/// `NotFound` would look like a missing root.
fn unreadable(list: ListRef, error: RootError) -> RootError {
    match error {
        RootError::Store(error) if error.is_not_found() => RootError::damaged(
            &list.name.key(Class::List),
            "it is missing, and would tell whether this root descends from the one that this \
             machine has seen (bkfs check --repair does without it; --accept-rollback goes on \
             once)",
        ),
        other => other,
    }
}

/// Same as [`judge`], but each result other than [`Judgement::Follows`] is an error, because a
/// machine that has seen `known` must not go on without the user's consent.
///
/// # Errors
/// [`RootError::Rollback`] if the root is older, [`RootError::NotDescended`] if it is newer and
/// does not descend from `known`, [`RootError::Rebuilt`] if a repair made it; and the errors of
/// [`judge`].
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

/// Records whether this process has read, while it ran, a root that a repair made.
///
/// The process accepts such a root, because its sessions and volumes show what was lost. But the
/// process registers no new session in it, and does not store it as the newest root that this
/// machine has seen: only the user may accept it.
#[derive(Debug, Default)]
pub(super) struct Rebuilds(OnceLock<(RootMark, u64)>);

impl Rebuilds {
    /// Accepts a judgement that a root was rebuilt, and records it.
    ///
    /// # Errors
    /// Every other error of `judged`.
    pub(super) fn bear(&self, judged: Result<(), RootError>) -> Result<(), RootError> {
        match judged {
            Err(error @ RootError::Rebuilt { known, lost }) => {
                self.0.get_or_init(|| {
                    tracing::error!(%error,
                        "the root was rebuilt while this process ran: nothing more is written by \
                         it");
                    (known, lost)
                });
                Ok(())
            }
            judged => judged,
        }
    }

    /// Returns whether the process has read a rebuilt root.
    pub(super) fn is_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// Refuses a new session.
    ///
    /// # Errors
    /// [`RootError::Rebuilt`] if the process has read a rebuilt root.
    pub(super) fn refuse(&self) -> Result<(), RootError> {
        match self.0.get() {
            Some(&(known, lost)) => Err(RootError::Rebuilt { known, lost }),
            None => Ok(()),
        }
    }
}

/// Checks that a root is not older than the generation that the user demands.
///
/// # Errors
/// [`RootError::Rollback`] if its generation is below `least`.
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

/// Bytes that a root keeps free for changes. Below this, the chain leaves the root except for its
/// newest [`OWN_LEAST`] nonces.
const ROOM_BYTES: usize = 12 * 1024;

/// Bytes below which a root cannot even register a session. Only below this, or beyond
/// [`OWN_LIMIT`] nonces, is a part of the chain given up.
const LEAST_ROOM_BYTES: usize = 2 * 1024;

/// Shortens the chain of `next`: the oldest nonces beyond the limit go into a list that `writer`
/// writes, for a session that is live in the root being replaced.
///
/// Without a writer, or if the list cannot be written within the request timeout, the chain stays
/// longer for now. If it then has more than [`OWN_LIMIT`] nonces, or the root is full, its oldest
/// part is given up.
///
/// Cancel safety: dropped before it returns, it leaves the chain of `next` unchanged, and maybe a
/// list in the bucket that no root names.
pub(super) async fn shorten(writer: Option<&DirectLists>, next: &mut Root) {
    let room = next.room().unwrap_or(0);
    let (is_crowded, is_full) = (room < ROOM_BYTES, room < LEAST_ROOM_BYTES);
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
    if let Some(writer) = writer {
        let patience = writer.request_timeout();
        match tokio::time::timeout(patience, write(writer, chain, keep)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(%error, "the chain of generations stays in the root"),
            Err(_) => tracing::warn!("the chain of generations stays in the root: no answer"),
        }
    }
    if chain.len() > OWN_LIMIT || is_full {
        chain.give_up(keep);
    }
}

/// Writes the nonces that leave the root into a list, after the entries of the last lists that it
/// joins.
async fn write(writer: &DirectLists, chain: &mut Chain, keep: usize) -> Result<(), RootError> {
    let moving = chain.oldest(keep);
    let mut joined = chain.parts_to_join(moving.len());
    let refs: Vec<_> = joined.iter().map(|part| part.list).collect();
    let lists = writer.loader();
    let mut entries: Vec<NonceEntry> = match lists.nonce_shards(&refs).await {
        Ok(shards) => shards.iter().flat_map(|shard| shard.to_vec()).collect(),
        // A list that cannot be read stays as it is, and is not joined.
        Err(_) => {
            joined.clear();
            Vec::new()
        }
    };
    entries.extend(moving);
    let list = put_shard(writer, entries).await?;
    chain.moved(keep, &joined, list);
    Ok(())
}
