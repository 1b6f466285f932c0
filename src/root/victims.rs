//! What sessions that ended have acknowledged and no commit covers: their journals, read for whoever takes the volume over (protocol.md, rule 7).
//!
//! Owns finding and reading them, and where what was acknowledged ends. Does not own writing them
//! (`journal`), nor replaying them.
//!
//! A list may leave objects out, a read of one by its name may not. So the list is where the search
//! begins, and journals are asked for by their numbers from there, both ways, until two in a row
//! are not there.

use super::error::RootError;
use super::handle::RootHandle;
use super::journal::{JournalEntry, prefix};
use super::retry;
use super::state::{Root, Session, SessionId};
use bkfs_chunker::seal::Class;
use bkfs_chunker::store::{Operation, Store, StoreError, StoreErrorKind};
use bytes::Bytes;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};

/// Objects listed in one request.
const PAGE: usize = 1000;

/// Journals read at the same time by whoever replays them.
const READ_AT_ONCE: usize = 16;

/// So many numbers next to a journal are asked for whatever a list says.
const REACH: u64 = 2;

/// Where journals are kept that cannot be carried out. No class of objects lies there.
pub(crate) const SET_ASIDE: &str = "damaged/";

/// What an ended session acknowledged and no commit covers, in order.
#[derive(Clone, Debug)]
pub struct Victim {
    /// The session.
    pub session: SessionId,
    /// Its uncovered operations, without a gap.
    pub entries: Vec<JournalEntry>,
    /// Its journal objects that are carried out or covered.
    pub keys: Vec<String>,
    /// Those behind a gap: what they say follows something that is missing.
    pub behind: Vec<String>,
}

/// Step `TakeList`: the journals of all ended sessions of the volume, oldest session first. To be
/// called after the volume was taken. Dropped, it may have set some aside that lie behind a gap;
/// the next call goes on.
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
        let found = find(
            handle,
            &prefix(handle.keyring(), volume, id),
            session.covered_journal,
        )
        .await?;
        let mut victim = uncovered(id, session, found.uncovered);
        victim.keys.extend(found.covered);
        set_aside_behind(handle, &victim).await?;
        victims.push(victim);
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
    Ok(retry::patiently(&policy, entropy, operation, key, request).await?)
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

/// The journals of a session.
struct Found {
    /// By number, with their keys.
    uncovered: BTreeMap<u64, (String, JournalEntry)>,
    /// Keys of those that a commit covers as a whole: they need not be readable.
    covered: Vec<String>,
}

/// The journals of a session below `prefix`: those that a list shows, those behind the last
/// `covered` one, and those whose numbers are near.
async fn find(handle: &RootHandle, prefix: &str, covered: Option<u64>) -> Result<Found, RootError> {
    let first = covered.unwrap_or(0).min(u64::MAX - REACH) + 1;
    let listed = list(handle, prefix).await?;
    let numbers = listed.iter().filter_map(|key| number(prefix, key));
    let (open, done): (Vec<u64>, Vec<u64>) = numbers.partition(|number| *number >= first);
    let near = first..=first + REACH - 1;
    let mut wanted: BTreeSet<u64> = open.into_iter().chain(near).collect();
    let mut asked = BTreeSet::new();
    let mut found = BTreeMap::new();
    while !wanted.is_empty() {
        let round: Vec<u64> = std::mem::take(&mut wanted).into_iter().collect();
        asked.extend(round.iter().copied());
        for numbers in round.chunks(READ_AT_ONCE) {
            let reads = numbers.iter().map(|number| read(handle, prefix, *number));
            for (number, entry) in numbers.iter().zip(join_all(reads).await) {
                let Some(entry) = entry? else { continue };
                found.insert(*number, entry);
                let near = number.saturating_sub(REACH).max(first)..=number.saturating_add(REACH);
                wanted.extend(near.filter(|number| !asked.contains(number)));
            }
        }
    }
    Ok(Found {
        uncovered: found,
        covered: done
            .into_iter()
            .map(|number| key_of(prefix, number))
            .collect(),
    })
}

fn key_of(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}")
}

/// The number of a journal; none for what is no journal.
fn number(prefix: &str, key: &str) -> Option<u64> {
    let number = u64::from_str_radix(key.strip_prefix(prefix)?, 16).ok()?;
    (key == key_of(prefix, number)).then_some(number)
}

/// A journal, if it is there.
async fn read(
    handle: &RootHandle,
    prefix: &str,
    number: u64,
) -> Result<Option<(String, JournalEntry)>, RootError> {
    let key = key_of(prefix, number);
    let object = patiently(handle, Operation::Get, &key, || handle.store().get(&key)).await;
    let object = match object {
        // Its writer deletes what a commit covers, and may do so late.
        Err(RootError::Store(error)) if error.is_not_found() => return Ok(None),
        object => object?.0,
    };
    let entry = open(handle, &key, &object)?;
    Ok(Some((key, entry)))
}

/// The operations of a session that follow what the root covers, up to the first that is missing.
fn uncovered(
    id: SessionId,
    session: &Session,
    found: BTreeMap<u64, (String, JournalEntry)>,
) -> Victim {
    let mut victim = Victim {
        session: id,
        entries: Vec::new(),
        keys: Vec::new(),
        behind: Vec::new(),
    };
    let mut last = session.covered;
    for (key, entry) in found.into_values() {
        if entry.last > last && (entry.first > last + 1 || !victim.behind.is_empty()) {
            if victim.behind.is_empty() {
                let (first, missing) = (entry.first, last + 1);
                tracing::error!(
                    "operation {missing} of session {id} was acknowledged and is in no journal: {key}, which begins with {first}, and all after it are not carried out, and set aside below {SET_ASIDE}"
                );
            }
            victim.behind.push(key);
            continue;
        }
        victim.keys.push(key);
        if entry.last > last {
            last = entry.last;
            victim.entries.push(entry);
        }
    }
    victim
}

/// Journals behind a gap are kept for people: the session leaves the root, and nothing else holds
/// them.
async fn set_aside_behind(handle: &RootHandle, victim: &Victim) -> Result<(), RootError> {
    if victim.behind.is_empty() {
        return Ok(());
    }
    match set_aside(&**handle.store(), &victim.behind).await {
        // The copies stand, which is what counts.
        Err(RootError::Store(error)) if error.operation() == Operation::Delete => Ok(()),
        result => result,
    }
}

/// Copies journals to where no mount looks, and removes them: the last one first, so that those
/// that are left over by a crash are still found to be broken.
///
/// # Errors
/// Store errors. Doing it again is safe.
pub(crate) async fn set_aside(store: &dyn Store, keys: &[String]) -> Result<(), RootError> {
    for key in keys.iter().rev() {
        let (bytes, _) = match store.get(key).await {
            Err(error) if error.is_not_found() => continue,
            found => found?,
        };
        let copy = format!("{SET_ASIDE}{key}");
        match store.put_new(&copy, vec![bytes]).await {
            Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {}
            put => drop(put?),
        }
    }
    for key in keys.iter().rev() {
        store.delete(key).await?;
    }
    Ok(())
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
