//! What sessions that ended have acknowledged and no commit covers: their journals, read for whoever takes the volume over (protocol.md, rule 7).
//!
//! Owns listing and reading them, and where what was acknowledged ends. Does not own writing them (`journal`), nor replaying them.

use super::error::RootError;
use super::handle::RootHandle;
use super::journal::{JournalEntry, prefix};
use super::retry;
use super::state::{Root, Session, SessionId};
use bkfs_chunker::seal::Class;
use bkfs_chunker::store::{Operation, StoreError};
use bytes::Bytes;
use futures::future::join_all;

/// Objects listed in one request.
const PAGE: usize = 1000;

/// Journals read at the same time by whoever replays them.
const READ_AT_ONCE: usize = 16;

/// What an ended session acknowledged and no commit covers, in order.
#[derive(Clone, Debug)]
pub struct Victim {
    /// The session.
    pub session: SessionId,
    /// Its uncovered operations, without a gap.
    pub entries: Vec<JournalEntry>,
    /// All its journal objects.
    pub keys: Vec<String>,
}

/// Step `TakeList`: the journals of all ended sessions of the volume, oldest session first. To be called after the volume was taken.
///
/// # Errors
/// `Damaged` if a journal cannot be read: what it holds was acknowledged, so it is not passed over.
pub(super) async fn victims(
    handle: &RootHandle,
    root: &Root,
    volume: &str,
) -> Result<Vec<Victim>, RootError> {
    let mut victims = Vec::new();
    for id in root.ending_sessions(volume) {
        let Some(session) = root.sessions.get(&id) else {
            continue;
        };
        let keys = list(handle, &prefix(handle.keyring(), volume, id)).await?;
        victims.push(Victim {
            session: id,
            entries: uncovered(handle, session, &keys).await?,
            keys,
        });
    }
    Ok(victims)
}

/// Reads, again and again while the store does not answer.
async fn patiently<T, R>(
    handle: &RootHandle,
    operation: Operation,
    key: &str,
    request: impl Fn() -> R,
) -> Result<T, RootError>
where
    R: Future<Output = Result<T, StoreError>>,
{
    let (policy, entropy) = (handle.policy(), &**handle.entropy());
    Ok(retry::patiently(policy, entropy, operation, key, request).await?)
}

async fn list(handle: &RootHandle, prefix: &str) -> Result<Vec<String>, RootError> {
    let mut keys: Vec<String> = Vec::new();
    loop {
        let after = keys.last().map(String::as_str);
        let page = patiently(handle, Operation::List, prefix, || {
            handle.store().list(prefix, after, PAGE)
        });
        let page = page.await?;
        let is_last = page.len() < PAGE;
        keys.extend(page.into_iter().map(|object| object.key));
        if is_last {
            return Ok(keys);
        }
    }
}

/// The operations of a session that follow what the root covers. What lies behind a gap was never acknowledged.
async fn uncovered(
    handle: &RootHandle,
    session: &Session,
    keys: &[String],
) -> Result<Vec<JournalEntry>, RootError> {
    let mut entries = Vec::new();
    let mut last = session.covered;
    for keys in keys.chunks(READ_AT_ONCE) {
        let reads = keys.iter().map(|key| async move {
            patiently(handle, Operation::Get, key, || handle.store().get(key)).await
        });
        let objects = join_all(reads).await;
        for (key, object) in keys.iter().zip(objects) {
            let object = match object {
                // Its writer deletes what a commit covers, and may do so late.
                Err(RootError::Store(error)) if error.is_not_found() => continue,
                object => object?.0,
            };
            let entry = open(handle, key, &object)?;
            if entry.last <= last {
                continue;
            }
            if entry.first > last + 1 {
                tracing::warn!(%key, "operations before this journal were never acknowledged: it is not replayed");
                return Ok(entries);
            }
            last = entry.last;
            entries.push(entry);
        }
    }
    Ok(entries)
}

pub(super) fn open(
    handle: &RootHandle,
    key: &str,
    object: &Bytes,
) -> Result<JournalEntry, RootError> {
    let payload = handle
        .keyring()
        .open_object(Class::Journal, key, object)
        .map_err(|source| RootError::Unopenable {
            key: key.to_owned(),
            source,
        })?;
    JournalEntry::decode(&payload).map_err(|reason| RootError::damaged(key, reason))
}

impl RootHandle {
    /// Deletes journals of sessions that have left the root, as far as the store permits.
    pub async fn forget_journals(&self, victims: &[Victim]) {
        for key in victims.iter().flat_map(|victim| &victim.keys) {
            if let Err(error) = self.store().delete(key).await {
                tracing::debug!(%key, %error, "a journal that was replayed stays behind");
                return;
            }
        }
    }
}
