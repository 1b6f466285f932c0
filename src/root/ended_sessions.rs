//! The journals of ended sessions: operations that a session acknowledged and no commit covers,
//! read by a new holder of the volume (docs/PROTOCOL.md, rule 7).
//!
//! Owns the search for these journals and their reading, where the acknowledged operations end, and
//! which of them are missing. Does neither write journals (`journal`) nor replay them.
//!
//! A list may omit objects; a read by name may not. So the search begins with a list, and then
//! reads journals by their numbers, in both directions, until two successive numbers are absent.
//!
//! A journal is sent after the store has taken the one before it, and deleted once a commit covers
//! it. So neither a writer nor a crash leaves an operation that is in no journal and in no commit
//! while a journal holds a later one: something else deleted it. Only the machine that sent the
//! journals knows what followed the last of them ([`super::sent`]).

use super::error::RootError;
use super::gap::Gap;
use super::handle::RootHandle;
use super::journal::prefix;
use super::listing::{JournalListing, journal_key, journal_number};
use super::patient_reads::PatientReads;
use super::sent::Sent;
use super::state::{Root, Session, SessionId};
use super::uncovered::{Known, UncoveredJournal};
use super::view::RootView;
use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::ingest::NamedPack;
use bkfs_store::{Operation, Store, StoreErrorKind};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of journals that a takeover reads concurrently. Their sizes bound it as well
/// ([`Known::read`]).
const READ_AT_ONCE: usize = 16;

/// The number of journals below and above a known one that are read by name, listed or not.
const REACH: u64 = 2;

/// The largest number of times that journals are read again while commits of their session keep
/// covering them.
pub(crate) const LOOKS_MAX: u32 = 16;

/// The key prefix below which journals that cannot be carried out are kept. No object class uses
/// it.
pub(crate) const SET_ASIDE: &str = "damaged/";

/// The journals of an ended session that no commit covers.
#[derive(Clone, Debug)]
pub struct EndedSession {
    /// The session.
    pub session: SessionId,
    /// Journals with uncovered operations, in order and without a gap.
    pub journals: Vec<UncoveredJournal>,
    /// The packs that these journals name and that no root listed when they were written.
    pub packs: Vec<NamedPack>,
    /// Keys of its journals that are replayed or covered.
    pub keys: Vec<String>,
    /// Keys of its journals behind a gap: operations before theirs are missing.
    pub behind: Vec<String>,
    /// The missing operations, if any.
    pub gap: Option<Gap>,
}

/// A session of a volume, and what is known about its journals without reading them.
pub(crate) struct Owner<'a> {
    id: SessionId,
    session: &'a Session,
    prefix: String,
    remembered: Option<Sent>,
}

impl<'a> Owner<'a> {
    /// Returns the owner for the session `id`, which is `session` in the root. The caller must
    /// recall `remembered`, this machine's note, before it reads any journal of the session.
    pub(crate) fn new(
        keyring: &Keyring,
        id: SessionId,
        session: &'a Session,
        remembered: Option<Sent>,
    ) -> Self {
        let volume = session.volume.as_deref().unwrap_or_default();
        Self {
            id,
            session,
            prefix: prefix(keyring, volume, id),
            remembered,
        }
    }

    /// Returns the key prefix of its journals.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of its journal with this number.
    pub(crate) fn key(&self, number: u64) -> String {
        journal_key(&self.prefix, number)
    }

    /// Returns the number of the first journal that, by the root, no commit contains in full.
    fn first(&self) -> u64 {
        self.session
            .covered_journal
            .unwrap_or(0)
            .min(u64::MAX - REACH)
            + 1
    }

    /// Returns the journals of this session that no commit is known to cover, by number, as far as
    /// `read` finds them by number and key. It is called for `at_once` of them at a time.
    ///
    /// Reads the journals that the list `listed` shows, the first ones after the last covered one,
    /// the last one that this machine remembers, and those with numbers near a journal that was
    /// found. A live session sends its journals in order. So a journal that was absent is read
    /// again if a later one was found.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) async fn search<T, R>(
        &self,
        listed: impl IntoIterator<Item = &String>,
        at_once: usize,
        read: impl Fn(u64, String) -> R,
    ) -> Result<BTreeMap<u64, T>, RootError>
    where
        R: Future<Output = Result<Option<T>, RootError>>,
    {
        let first = self.first();
        let listed = listed
            .into_iter()
            .filter_map(|key| journal_number(&self.prefix, key));
        let remembered = self.remembered.map(|sent| sent.number);
        let likely = listed.chain(remembered).filter(|number| *number >= first);
        let mut wanted: BTreeSet<u64> = likely.chain(first..=first + REACH - 1).collect();
        let mut asked = BTreeSet::new();
        let (mut found, mut looked) = (BTreeMap::new(), 0);
        while !wanted.is_empty() {
            let round: Vec<u64> = std::mem::take(&mut wanted).into_iter().collect();
            asked.extend(round.iter().copied());
            let reads = round.into_iter().map(|number| {
                let read = read(number, self.key(number));
                async move { Ok::<_, RootError>((number, read.await?)) }
            });
            let mut reads = stream::iter(reads).buffered(at_once);
            while let Some((number, entry)) = reads.try_next().await? {
                let Some(entry) = entry else { continue };
                found.insert(number, entry);
                let (below, above) = (number.saturating_sub(REACH), number.saturating_add(REACH));
                let near = below.max(first)..=above;
                wanted.extend(near.filter(|number| !asked.contains(number)));
            }
            if wanted.is_empty() && found.len() > looked {
                looked = found.len();
                let last = found.last_key_value().map_or(0, |(number, _)| *number);
                let before = asked.range(..last).copied();
                wanted.extend(before.filter(|number| !found.contains_key(number)));
            }
        }
        Ok(found)
    }

    /// Returns the gap, if any. The journals lead without a gap to operation `after`, the last of
    /// them has the number `reached`, and those in `behind` (number and last operation) do not
    /// follow.
    pub(crate) fn gap(
        &self,
        after: u64,
        reached: Option<u64>,
        behind: &[(u64, u64)],
    ) -> Option<Gap> {
        let remembered = self.remembered.filter(|sent| sent.last > after);
        let lasts = behind.iter().map(|(_, last)| *last);
        let last = lasts.chain(remembered.map(|sent| sent.last)).max()?;
        let through = remembered.map(|sent| sent.number);
        let least = behind.first().map(|(number, _)| number.saturating_sub(1));
        let reached = reached.max(self.session.covered_journal);
        let mut next = match reached {
            Some(number) => number.saturating_add(1),
            None if self.session.covered == 0 => 1,
            // Roots of older programs do not name the last covered journal.
            None => least.or(through).unwrap_or(1),
        };
        let mut missing = Vec::new();
        for (number, _) in behind {
            if *number > next {
                missing.push(next..=*number - 1);
            }
            next = next.max(number.saturating_add(1));
        }
        missing.extend(
            through
                .filter(|number| *number >= next)
                .map(|number| next..=number),
        );
        if missing.is_empty() {
            missing.extend(least.or(through).map(|number| number..=number));
        }
        Some(Gap {
            session: self.id,
            volume: self.session.volume.clone().unwrap_or_default(),
            after,
            last,
            missing,
            prefix: self.prefix.clone(),
        })
    }

    /// Returns how far its journals lead without a gap.
    fn chain(&self, found: &BTreeMap<u64, UncoveredJournal>) -> Chain {
        let mut chain = Chain {
            after: self.session.covered,
            reached: None,
            behind: Vec::new(),
        };
        for (number, UncoveredJournal { summary, .. }) in found {
            let is_open = summary.last > chain.after;
            if is_open && (summary.first > chain.after + 1 || !chain.behind.is_empty()) {
                chain.behind.push((*number, summary.last));
                continue;
            }
            chain.after = chain.after.max(summary.last);
            chain.reached = Some(*number);
        }
        chain
    }

    /// Returns the gap in its journals, if any.
    fn gap_in(&self, found: &BTreeMap<u64, UncoveredJournal>) -> Option<Gap> {
        let chain = self.chain(found);
        self.gap(chain.after, chain.reached, &chain.behind)
    }

    /// Returns its journals up to the first missing operation. `done` are the keys of covered
    /// journals.
    fn ended_session(
        &self,
        mut found: BTreeMap<u64, UncoveredJournal>,
        done: Vec<String>,
        known: &Known,
    ) -> EndedSession {
        let Chain {
            after,
            reached,
            behind,
        } = self.chain(&found);
        let gap = self.gap(after, reached, &behind);
        let behind: BTreeSet<u64> = behind.into_iter().map(|(number, _)| number).collect();
        found.retain(|number, _| !behind.contains(number));
        let keys = found.keys().map(|number| self.key(*number));
        let keys = keys.chain(done).collect();
        let mut last = self.session.covered;
        found.retain(|_, UncoveredJournal { summary, .. }| {
            let is_open = summary.last > last;
            last = last.max(summary.last);
            is_open
        });
        let ends = found.first_key_value().zip(found.last_key_value());
        let numbers = ends.map(|((first, _), (last, _))| *first..=*last);
        EndedSession {
            session: self.id,
            packs: numbers.map_or_else(Vec::new, |numbers| known.packs(self.id, numbers)),
            journals: found.into_values().collect(),
            keys,
            behind: behind.iter().map(|number| self.key(*number)).collect(),
            gap,
        }
    }
}

/// How far the journals of a session lead without a gap.
struct Chain {
    /// The last operation.
    after: u64,
    /// The number of the last of these journals; none if there is none.
    reached: Option<u64>,
    /// Number and last operation of each journal behind a gap.
    behind: Vec<(u64, u64)>,
}

/// Reads the journals of all ended sessions of the volume, oldest session first (step `TakeList`).
/// Call this after the volume was taken. `known` are journals that were read before. Writes
/// nothing.
///
/// # Errors
/// - [`RootError::Damaged`] or [`RootError::Unopenable`] if a journal cannot be read. Its
///   operations were acknowledged, so it is not skipped.
/// - [`RootError::Store`] if the store fails.
pub(super) async fn ended_sessions(
    handle: &RootHandle,
    root: &Root,
    volume: &str,
    known: Known,
) -> Result<Vec<EndedSession>, RootError> {
    let mut ended_sessions = Vec::new();
    for id in root.ending_sessions(volume) {
        let Some(session) = root.sessions.get(&id) else {
            continue;
        };
        let owner = owner(handle, id, session).await;
        let (found, done) = find(handle, &owner, &known).await?;
        ended_sessions.push(owner.ended_session(found, done, &known));
    }
    Ok(ended_sessions)
}

/// Checks, before the volume is taken, that no acknowledged operation of its ended sessions and its
/// holder is missing. Returns the journals that it has read, for [`ended_sessions`]. Leaves
/// unreadable journals to [`ended_sessions`]. Writes nothing.
///
/// # Errors
/// [`RootError::JournalsMissing`] if operations are missing, and no commit of their session moved
/// on meanwhile; [`RootError::Store`] if the store fails; the errors of [`RootHandle::refresh`].
pub(super) async fn require_whole(handle: &RootHandle, volume: &str) -> Result<Known, RootError> {
    let mut view = handle.current();
    for _ in 0..LOOKS_MAX {
        let holder = view.root.volumes.get(volume).and_then(|entry| entry.holder);
        let mut ids = view.root.ending_sessions(volume);
        ids.extend(holder);
        let known = Known::default();
        let mut gaps = Vec::new();
        for id in ids {
            let Some(session) = view.root.sessions.get(&id) else {
                continue;
            };
            let owner = owner(handle, id, session).await;
            let (found, _) = match find(handle, &owner, &known).await {
                Err(RootError::Damaged { .. } | RootError::Unopenable { .. }) => continue,
                found => found?,
            };
            gaps.extend(owner.gap_in(&found));
            known.keep(found.into_values());
        }
        if gaps.is_empty() {
            return Ok(known);
        }
        // Meanwhile a commit may have covered them, and their session may have deleted them.
        let after = handle.refresh().await?;
        if gaps
            .iter()
            .all(|gap| is_unmoved(&view, &after, gap.session))
        {
            return Err(RootError::JournalsMissing { gaps });
        }
        view = after;
    }
    Ok(Known::default())
}

/// Returns whether the session made no commit between two roots.
fn is_unmoved(before: &RootView, after: &RootView, id: SessionId) -> bool {
    let covered = |view: &RootView| view.root.sessions.get(&id).map(|session| session.covered);
    covered(after).is_some() && covered(before) == covered(after)
}

async fn owner<'a>(handle: &RootHandle, id: SessionId, session: &'a Session) -> Owner<'a> {
    let remembered = match handle.memory().sent() {
        Some(sent) => sent.recall(id).await,
        None => None,
    };
    Owner::new(handle.keyring(), id, session, remembered)
}

/// Returns the journals of a session that no commit is known to cover, by number, and the keys of
/// covered ones, which need not be readable.
async fn find(
    handle: &RootHandle,
    owner: &Owner<'_>,
    known: &Known,
) -> Result<(BTreeMap<u64, UncoveredJournal>, Vec<String>), RootError> {
    let store = PatientReads::of(handle);
    let listed = JournalListing::read(&store, owner.prefix(), owner.first()).await?;
    let read = |number, key: String| {
        let length = listed.uncovered.get(&key).copied();
        known.read(handle, (owner.id, number), key, length)
    };
    let found = owner
        .search(listed.uncovered.keys(), READ_AT_ONCE, read)
        .await?;
    Ok((found, listed.covered))
}

/// Accepts the loss of the missing operations: moves the journals behind the gap below `damaged/`,
/// and lowers this machine's note about the session.
///
/// Cancel safety: dropped, it has moved some of them; repeating the call is safe.
///
/// # Errors
/// [`RootError::Store`] if the store fails, except for failed deletions of journals that were
/// copied.
pub(super) async fn accept_loss(
    handle: &RootHandle,
    ended_session: &EndedSession,
) -> Result<(), RootError> {
    let Some(gap) = &ended_session.gap else {
        return Ok(());
    };
    tracing::error!(
        "{gap}; that is accepted: the volume goes on without them, and {} journals behind them \
         are set aside below {SET_ASIDE}",
        ended_session.behind.len()
    );
    set_aside_behind(handle, ended_session).await?;
    if let Some(sent) = handle.memory().sent() {
        sent.lower(gap.session, gap.before()).await;
    }
    Ok(())
}

/// Moves journals behind a gap below `damaged/`, because the session leaves the root and nothing
/// else keeps them.
async fn set_aside_behind(
    handle: &RootHandle,
    ended_session: &EndedSession,
) -> Result<(), RootError> {
    if ended_session.behind.is_empty() {
        return Ok(());
    }
    match set_aside(&**handle.store(), &ended_session.behind).await {
        // All copies are stored, which is enough.
        Err(RootError::Store(error)) if error.operation() == Operation::Delete => Ok(()),
        result => result,
    }
}

/// Copies journals to keys that no mount reads, and deletes the originals, the last one first: then
/// the rest that a crash leaves still shows the gap.
///
/// Cancel safety: dropped, it has copied or deleted some of them; repeating the call is safe.
///
/// # Errors
/// [`RootError::Store`] if the store fails; repeating the call is safe.
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

impl RootHandle {
    /// Deletes journals of sessions that have left the root, as far as the store permits, and this
    /// machine's notes about these sessions.
    ///
    /// Cancel safety: dropped, it leaves the rest of the journals to collection.
    pub async fn forget_journals(&self, ended_sessions: &[EndedSession]) {
        if let Some(sent) = self.memory().sent() {
            sent.forget(
                ended_sessions
                    .iter()
                    .map(|ended_session| ended_session.session),
            )
            .await;
        }
        for key in ended_sessions
            .iter()
            .flat_map(|ended_session| &ended_session.keys)
        {
            if let Err(error) = self.store().delete(key).await {
                tracing::debug!(%key, %error, "a journal that was replayed stays behind");
                return;
            }
        }
    }
}
