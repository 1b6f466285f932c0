//! Journals: operations that fsync acknowledged and that no commit contains yet (docs/PROTOCOL.md,
//! rule 6).
//!
//! Owns the object `journal/VOLUME/SESSION/N`, its numbers, and the order of an acknowledgement.
//! The object is created, the store answers, and only then does the session confirm that it has not
//! ended ([`fence`]). This module does not interpret the operations.
//!
//! Each session numbers its operations and its journal objects; each journal states which
//! operations it carries. The bytes of a number never change once they were sent: while the outcome
//! is unknown, the identical bytes are sent again, before any later journal. Other bytes under a
//! number of this session mean that another machine has its identity.
//!
//! The words, in every room:
//!
//! - *journal*: the object, in the bucket or in a spool; *entry*: its payload;
//! - *settled*: the entry has its number and its final bytes ([`JournalWriter`]);
//! - *kept*: the journal is in the spool; *sent*: a request for the bucket began;
//! - *landed*: the journal is in the bucket; *covered*: a commit holds its operations.
//!
//! A journal is never replaced to raise the base epoch (rule 4). What is condemned and still
//! referred to is stored again, and the base rises only once a commit has made the copy live
//! (`mounting::base`). The names of foreign packs in a journal are hints: a new holder that replays
//! the journal looks up each reference.

use super::error::RootError;
use super::fence;
use super::handle::RootHandle;
pub(crate) use super::journal_entry::prefix;
pub use super::journal_entry::{JournalEntry, JournalSummary};
use super::journal_put::create_own;
use super::retry::random;
use super::sent::{Notes, Sent};
use super::state::SessionId;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::{Class, Features};
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::Id;
use bkfs_chunker::spool::{Spool, SpoolError, Spooled};
use bkfs_store::StoreErrorKind;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The longest time that a caller waits for the disk to remove released journals from the spool.
const FORGET_WAITS: Duration = Duration::from_secs(1);

/// The largest number of journals in the bucket that are remembered while none can be deleted.
/// Collection deletes the others.
const THERE_MAX: usize = 65_536;

/// Number of bytes of unconfirmed journals in memory above which the root is read for them.
const UNCONFIRMED_BYTES_MAX: usize = 1 << 20;

/// Writes the journals of one session.
#[derive(Debug)]
pub struct JournalWriter {
    handle: RootHandle,
    session: SessionId,
    volume: String,
    prefix: String,
    base: u64,
    recovery_base: Option<Id>,
    /// Never held across an await.
    state: Mutex<Numbers>,
    /// Held while journals are sent, so that they are sent one after the other.
    landing: tokio::sync::Mutex<()>,
    /// Held while entries are spooled, so that none is spooled twice.
    keeping: tokio::sync::Mutex<()>,
    /// The spool, where entries survive a crash before they are in the bucket.
    spool: Option<Arc<Spool>>,
    /// Gets notice of answers of the store.
    content_store: Option<ContentStore>,
    /// True once the store has denied a deletion.
    keeps: AtomicBool,
    /// Records on this machine which journals the store took.
    notes: Option<Notes>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The number of journal objects whose bytes are fixed.
    sent: u64,
    /// The last operation in these objects.
    last: u64,
    /// Journals whose creation is not acknowledged yet, oldest first.
    pending: VecDeque<Pending>,
    /// Journals that are in the bucket, and in the spool or in memory. They are kept until a later
    /// request confirms that the session held the volume. They may have arrived too late for a new
    /// holder. Those in memory can still be spooled.
    unconfirmed: Vec<Pending>,
    /// Journals in the bucket: key, and last operation.
    there: VecDeque<(String, u64)>,
    /// The last operation that a commit covers.
    covered: u64,
    /// The number of journals, from the first, that the commit in progress covers.
    passed: u64,
    /// The last operation of each journal after these.
    lasts: VecDeque<u64>,
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    key: String,
    last: u64,
    body: Body,
}

impl Pending {
    /// Returns its bytes if only memory has them.
    fn in_memory(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Memory(bytes) => Some(bytes),
            Body::Spool(_) => None,
        }
    }

    fn with_bytes(&self) -> Option<(Self, Bytes)> {
        let bytes = self.in_memory()?.clone();
        Some((self.clone(), bytes))
    }
}

#[derive(Debug, Clone)]
enum Body {
    Memory(Bytes),
    Spool(Arc<Spooled>),
}

impl JournalWriter {
    /// Returns a writer for `session`, which holds `volume` and has written no journal yet.
    pub fn new(handle: RootHandle, session: SessionId, volume: &str) -> Self {
        let root = &handle.current().root;
        let base = root
            .sessions
            .get(&session)
            .map_or(0, |session| session.registered_epoch);
        Self {
            prefix: prefix(handle.keyring(), volume, session),
            notes: handle.memory().sent().map(|sent| sent.notes(session)),
            handle,
            session,
            volume: volume.to_owned(),
            base,
            recovery_base: root.volumes.get(volume).and_then(|entry| entry.commit),
            state: Mutex::default(),
            landing: tokio::sync::Mutex::default(),
            keeping: tokio::sync::Mutex::default(),
            spool: None,
            content_store: None,
            keeps: AtomicBool::new(false),
        }
    }

    /// Returns this writer with the session's spool.
    pub fn with_spool(self, spool: Option<Arc<Spool>>) -> Self {
        Self { spool, ..self }
    }

    /// Returns this writer for a session that stores through `content_store`. Each journal that the
    /// store takes counts there as an answer of the store.
    pub fn reporting_to(self, content_store: &ContentStore) -> Self {
        Self {
            content_store: Some(content_store.clone()),
            ..self
        }
    }

    /// Returns whether an entry waits for room in the spool that a commit may make.
    pub fn waits_for_room(&self) -> bool {
        let next = self.first_waiting().or_else(|| self.first_arrived());
        let spool = self.spool.as_ref().filter(|spool| spool.usage().files > 0);
        let waits = spool.zip(next);
        waits.is_some_and(|(spool, (_, bytes))| spool.lacks_room(bytes.len() as u64))
    }

    /// Returns whether there is a spool that can keep entries.
    pub fn has_spool(&self) -> bool {
        self.spool.is_some()
    }

    /// Gives an entry its number and fixes its bytes. All later entries follow it. Does not await,
    /// so no caller can drop it half-way.
    ///
    /// # Errors
    /// [`RootError::Content`] with [`ContentError::Internal`] if operations are missing between
    /// this entry and the one before it, or the entry is empty. Acknowledged operations would
    /// otherwise be skipped.
    pub fn settle(&self, mut entry: JournalEntry) -> Result<(), RootError> {
        let mut state = self.state.lock();
        if entry.first > state.last + 1 || entry.last < entry.first {
            let gap = "a journal does not follow the one before it";
            return Err(ContentError::Internal(gap).into());
        }
        entry.base = self.base;
        entry.recovery_base = self.recovery_base;
        let key = format!("{}{:016x}", self.prefix, state.sent + 1);
        let keyring = self.handle.keyring();
        // An unsealed journal can be read anyway, so hiding its length is useless.
        let payload = match keyring.is_sealed() {
            true => entry.encode_padded(),
            false => entry.encode(),
        };
        let salt = random(&**self.handle.entropy());
        let body = keyring.seal_object(Class::Journal, &key, Features::NONE, salt, &payload);
        state.sent += 1;
        state.last = entry.last;
        state.lasts.push_back(entry.last);
        let number = state.sent;
        state.pending.push_back(Pending {
            number,
            key,
            last: entry.last,
            body: Body::Memory(body),
        });
        Ok(())
    }

    /// Returns the number of settled entries.
    pub fn settled(&self) -> u64 {
        self.state.lock().sent
    }

    /// Writes to the spool every settled entry that is not known to have reached the bucket in time.
    /// When this returns, they survive a power loss. They reach the bucket by
    /// [`JournalWriter::land`], or by the next mount on this machine.
    ///
    /// Cancel safety: dropped, it has spooled the oldest of the entries, or none. The next call
    /// continues with the rest.
    ///
    /// # Errors
    /// [`RootError::Content`] if there is no spool, the spool fails, or the spool stays full for
    /// the stall timeout of the retry policy.
    pub async fn keep(&self) -> Result<(), RootError> {
        let absent = || ContentError::Internal("there is no spool");
        let spool = self.spool.as_ref().ok_or_else(absent)?;
        let _turn = self.keeping.lock().await;
        // Those that are nowhere else do not wait for room for those that are in the bucket.
        if let Err(error) = self.put_arrived(spool).await {
            tracing::debug!(%error, "what is in the bucket is kept last");
        }
        // The state is not locked while waiting for the spool: the tasks that make room in the spool
        // need it. Entries that wait may arrive meanwhile.
        let next = || self.first_waiting().or_else(|| self.first_arrived());
        while let Some((pending, bytes)) = next() {
            let kept = self.put(spool, &pending.key, &bytes).await;
            let kept = kept.map_err(ContentError::from)?;
            self.note_kept(pending, kept).await;
        }
        Ok(())
    }

    /// Writes to the spool the entries that arrived in the bucket from memory, and are not known to
    /// have arrived in time. Does not wait for room.
    ///
    /// Cancel safety: as of [`JournalWriter::keep`].
    ///
    /// # Errors
    /// [`RootError::Content`] if the spool fails or is full. Without a spool there are no such
    /// entries.
    pub async fn keep_arrived(&self) -> Result<(), RootError> {
        let Some(spool) = &self.spool else {
            return Ok(());
        };
        let _turn = self.keeping.lock().await;
        self.put_arrived(spool).await
    }

    async fn put_arrived(&self, spool: &Spool) -> Result<(), RootError> {
        while let Some((pending, bytes)) = self.first_arrived() {
            let kept = spool.put(&pending.key, &[bytes]).await;
            self.note_kept(pending, kept.map_err(ContentError::from)?)
                .await;
        }
        Ok(())
    }

    /// Records that the spool has an entry.
    async fn note_kept(&self, pending: Pending, kept: Arc<Spooled>) {
        let body = Body::Spool(kept);
        let needless = {
            let mut state = self.state.lock();
            let Numbers {
                pending: waiting,
                unconfirmed,
                ..
            } = &mut *state;
            let mut there = waiting.iter_mut().chain(unconfirmed.iter_mut());
            match there.find(|other| other.key == pending.key) {
                Some(there) => {
                    there.body = body;
                    None
                }
                // It was confirmed or covered meanwhile.
                None => Some(Pending { body, ..pending }),
            }
        };
        if needless.is_some() {
            self.release(needless);
            self.sweep().await;
        }
    }

    /// Returns the oldest entry that is not acknowledged and only in memory.
    fn first_waiting(&self) -> Option<(Pending, Bytes)> {
        let state = self.state.lock();
        state.pending.iter().find_map(Pending::with_bytes)
    }

    /// Returns the oldest entry that is in the bucket and in memory, and neither known to have
    /// arrived in time nor covered by a commit.
    fn first_arrived(&self) -> Option<(Pending, Bytes)> {
        let state = self.state.lock();
        let mut arrived = state.unconfirmed.iter();
        let is_open = |pending: &&Pending| pending.last > state.covered;
        arrived
            .by_ref()
            .filter(is_open)
            .find_map(Pending::with_bytes)
    }

    async fn put(
        &self,
        spool: &Spool,
        key: &str,
        bytes: &Bytes,
    ) -> Result<Arc<Spooled>, SpoolError> {
        let patience = self.handle.policy().stall_timeout;
        let mut end = None;
        loop {
            let full = match spool.put(key, std::slice::from_ref(bytes)).await {
                Err(error) if error.is_full() => error,
                other => return other,
            };
            let end = *end.get_or_insert_with(|| Instant::now() + patience);
            let room = spool.room_unless_failed(bytes.len() as u64);
            tokio::time::timeout_at(end, room)
                .await
                .map_err(|_| full)??;
        }
    }

    /// Returns whether a settled entry is neither in the spool nor known to be in the bucket.
    pub fn is_bare(&self) -> bool {
        let state = self.state.lock();
        let mut pending = state.pending.iter();
        pending.any(|pending| pending.in_memory().is_some())
    }

    /// Returns whether spooled entries are not in the bucket yet, or not known to have arrived in
    /// time.
    pub fn is_behind(&self) -> bool {
        let state = self.state.lock();
        let mut kept = state.pending.iter().chain(&state.unconfirmed);
        kept.any(|pending| pending.in_memory().is_none())
    }

    /// Checks by a request that is sent now, and so after every answer that counts, that what is in
    /// the bucket counts (step `FsyncGet`).
    ///
    /// Cancel safety: dropped, it has confirmed nothing.
    ///
    /// # Errors
    /// [`RootError::Refused`] with `Refusal::Fenced` if the session does not hold the volume; the
    /// errors of [`fence::require_none`].
    pub async fn confirm(&self) -> Result<(), RootError> {
        let arrived = {
            let state = self.state.lock();
            state.unconfirmed.iter().map(|pending| pending.number).max()
        };
        fence::require_none(&self.handle, self.session, &self.volume).await?;
        let mut state = self.state.lock();
        let is_in_time =
            |pending: &Pending| pending.in_memory().is_some() && Some(pending.number) <= arrived;
        state.unconfirmed.retain(|pending| !is_in_time(pending));
        Ok(())
    }

    /// Returns whether every journal that went to the bucket from memory is in the spool too, covered
    /// by a commit, or known to have arrived while the session held the volume. Only for a writer
    /// with a spool.
    pub fn is_in_time(&self) -> bool {
        self.first_arrived().is_none()
    }

    /// Returns whether memory has no room for further journals that are not known to have arrived in
    /// time.
    pub fn is_overfull(&self) -> bool {
        self.unconfirmed_bytes() > UNCONFIRMED_BYTES_MAX
    }

    /// Returns the number of bytes of the unconfirmed journals in memory.
    fn unconfirmed_bytes(&self) -> usize {
        let state = self.state.lock();
        let in_memory = state.unconfirmed.iter().filter_map(Pending::in_memory);
        in_memory.map(Bytes::len).sum()
    }

    /// Returns the number of the last journal that a commit up to `operation` (inclusive) contains
    /// in full; zero if there is none. Operations must not decrease from call to call.
    pub fn number_covered(&self, operation: u64) -> u64 {
        let mut state = self.state.lock();
        let count = state.lasts.partition_point(|last| *last <= operation);
        state.lasts.drain(..count);
        state.passed += count as u64;
        state.passed
    }

    /// Records that a commit covers all operations up to `operation` (inclusive). Deletes their
    /// journals from spool and bucket, as far as the store permits.
    ///
    /// Cancel safety: dropped before the deletions in the bucket, it leaves everything to the next
    /// call. Dropped during these, it leaves the rest of the journals in the bucket to collection.
    pub async fn covered(&self, operation: u64) {
        let raise = |state: &mut Numbers| state.covered = state.covered.max(operation);
        raise(&mut self.state.lock());
        self.forget_kept(operation).await;
        let mut done: VecDeque<(String, u64)> = {
            let mut state = self.state.lock();
            let covered = state.covered;
            let count = state.there.partition_point(|(_, last)| *last <= covered);
            state.there.drain(..count).collect()
        };
        while let Some((key, last)) = done.pop_front() {
            if self.keeps.load(Ordering::Relaxed) {
                return;
            }
            let Err(error) = self.handle.store().delete(&key).await else {
                continue;
            };
            tracing::debug!(%key, %error, "a journal that is covered stays behind");
            if error.kind() == StoreErrorKind::Denied {
                // Collection finds them later.
                self.keeps.store(true, Ordering::Relaxed);
                return;
            }
            // The next commit tries again.
            done.push_front((key, last));
            let mut state = self.state.lock();
            done.append(&mut state.there);
            done.drain(..done.len().saturating_sub(THERE_MAX));
            state.there = done;
            return;
        }
    }

    /// Drops from the spool the entries up to `operation` (inclusive) that a commit covers: they
    /// need not go to the bucket. Their numbers stay used.
    ///
    /// Cancel safety: dropped, it leaves files of released entries to the next sweep of the spool.
    pub(crate) async fn forget_kept(&self, operation: u64) {
        // Another task that has the turn may be sending the first entry, which is answered first.
        let turn = self.landing.try_lock();
        self.release_kept(operation, usize::from(turn.is_err()));
        // Journals do not wait for a disk that is slow to remove these.
        drop(turn);
        self.sweep().await;
    }

    /// Releases the spooled and the unconfirmed entries up to `operation` (inclusive), except the
    /// first `sending` of those that are not acknowledged yet. Returns true if there were any.
    fn release_kept(&self, operation: u64, mut sending: usize) -> bool {
        let done: Vec<Pending> = {
            let mut state = self.state.lock();
            let mut is_done = |pending: &Pending| {
                let is_sent = sending > 0;
                sending = sending.saturating_sub(1);
                !is_sent && pending.last <= operation && pending.in_memory().is_none()
            };
            let (done, pending): (VecDeque<Pending>, VecDeque<Pending>) =
                std::mem::take(&mut state.pending)
                    .into_iter()
                    .partition(&mut is_done);
            state.pending = pending;
            let mut done = Vec::from(done);
            let is_covered = |pending: &mut Pending| pending.last <= operation;
            done.extend(state.unconfirmed.extract_if(.., is_covered));
            done
        };
        let is_any = !done.is_empty();
        self.release(done);
        is_any
    }

    /// Returns whether the bucket or the spool may hold operations that no commit covers. Then the
    /// session must stay in the root, so that a new holder replays it.
    pub fn is_needed(&self) -> bool {
        let state = self.state.lock();
        state.last > state.covered
    }

    /// Sends the first `until` settled entries, oldest first, until the store acknowledges each
    /// (step `JournalPut`). The packs that they name must be in the bucket. Spooled entries leave
    /// the spool once a later read of the root still shows the volume as held.
    ///
    /// Cancel safety: dropped, it leaves the entry of unknown outcome in its place, and the next
    /// call sends it again with the same bytes.
    ///
    /// # Errors
    /// - [`RootError::Refused`] with `Refusal::Fenced` if another machine writes under this
    ///   session's name, or the session does not hold the volume.
    /// - [`RootError::Store`] if the store does not acknowledge an entry. The entry may be in the
    ///   bucket, now or later, but counts for nothing yet.
    /// - [`RootError::Content`] if a spooled entry cannot be read back.
    /// - The errors of [`JournalWriter::confirm`].
    pub async fn land(&self, until: u64) -> Result<(), RootError> {
        let turn = self.landing.lock().await;
        let mut has_released = false;
        let landed = self.land_in_turn(until, &mut has_released).await;
        drop(turn);
        if has_released {
            self.sweep().await;
        }
        landed
    }

    async fn land_in_turn(&self, until: u64, has_released: &mut bool) -> Result<(), RootError> {
        loop {
            // A commit may be made while many entries are sent.
            let covered = self.state.lock().covered;
            *has_released |= self.release_kept(covered, 0);
            let next = self.state.lock().pending.front().cloned();
            let Some(pending) = next.filter(|pending| pending.number <= until) else {
                *has_released |= self.settle_kept().await?;
                return Ok(());
            };
            let bytes = match &pending.body {
                Body::Memory(bytes) => bytes.clone(),
                Body::Spool(spooled) => spooled.read().await.map_err(ContentError::from)?,
            };
            create_own(&self.handle, &pending.key, &bytes).await?;
            if let Some(content_store) = &self.content_store {
                content_store.note_answer();
            }
            // This happens before any caller is told, and before the spool releases the entry.
            if let Some(notes) = &self.notes {
                let (number, last) = (pending.number, pending.last);
                notes.note(Sent { number, last }).await;
            }
            let mut state = self.state.lock();
            let front = state.pending.pop_front();
            state.there.push_back((pending.key, pending.last));
            state.unconfirmed.extend(front.filter(|_| self.has_spool()));
        }
    }

    /// Releases in the spool the entries that have arrived in time, and returns true if there are
    /// any. Those in memory wait for another reason to read the root, unless they are many bytes.
    async fn settle_kept(&self) -> Result<bool, RootError> {
        let bytes = self.unconfirmed_bytes();
        let is_spooled = {
            let state = self.state.lock();
            let mut arrived = state.unconfirmed.iter();
            arrived.any(|pending| pending.in_memory().is_none())
        };
        if !is_spooled && bytes <= UNCONFIRMED_BYTES_MAX {
            return Ok(false);
        }
        match self.confirm().await {
            Err(error) if !error.ends_session() && bytes > UNCONFIRMED_BYTES_MAX => {
                // Memory is short of room; the spool may have some.
                let kept = match (self.keeping.try_lock(), &self.spool) {
                    (Ok(_turn), Some(spool)) => self.put_arrived(spool).await.is_ok(),
                    _ => false,
                };
                return match kept && !is_spooled {
                    true => Ok(false),
                    false => Err(error),
                };
            }
            confirmed => confirmed?,
        }
        let arrived = std::mem::take(&mut self.state.lock().unconfirmed);
        self.release(arrived);
        Ok(is_spooled)
    }

    /// Releases these entries in the spool.
    fn release(&self, done: impl IntoIterator<Item = Pending>) {
        let Some(spool) = &self.spool else { return };
        for pending in done {
            if let Body::Spool(spooled) = pending.body {
                spooled.uploaded();
                spool.release(&spooled);
            }
        }
    }

    /// Deletes the files of released entries. Does not wait for long for a disk that hangs: the next
    /// call goes on.
    async fn sweep(&self) {
        if let Some(spool) = &self.spool {
            let _ = tokio::time::timeout(FORGET_WAITS, spool.sweep()).await;
        }
    }
}
