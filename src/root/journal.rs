//! Journals: operations that were acknowledged by fsync and are in no commit yet (protocol.md, rule 6).
//!
//! Owns the object `journal/VOLUME/SESSION/N`, its numbers, and the order of an acknowledgement: the object is created, its creation is answered, and only then
//! is the root read to see whether the volume is still ours. Does not know what the operations mean.
//!
//! Operations are numbered per session, and so are journal objects; each says which operations it carries. A number's bytes never change once they were
//! sent: while the outcome is unknown the identical bytes are sent again, before any later journal. Other bytes under a number of ours mean that another machine
//! has this session's identity.
//!
//! A journal is never replaced for the sake of a higher base epoch (rule 4): what is condemned beneath it is stored again, and the base rises only once a commit has made that live
//! (`mounting::base`). Names of packs that were relied on are hints: whoever replays looks each reference up.

use super::error::RootError;
use super::handle::RootHandle;
use super::padding;
use super::retry::{Pauses, bounded, random};
use super::sent::{Notes, Sent};
use super::state::SessionId;
use super::transition::Refusal;
use super::wire;
use bkfs_chunker::depot::Depot;
use bkfs_chunker::error::DepotError;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::{Class, Features, Keyring};
use bkfs_chunker::spool::{Spool, SpoolError, Spooled};
use bkfs_chunker::store::{Operation, StoreErrorKind};
use bytes::Bytes;
use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a commit waits for a journal under way before it lets go of what the spool keeps of others.
const FORGET_WAITS: Duration = Duration::from_secs(1);

/// How many answers must say that a journal under a number of ours is another one's before that is
/// believed.
const FOREIGN_ANSWERS: u32 = 3;

/// How many journals in the bucket are remembered while none can be deleted; whoever collects garbage finds the others.
const THERE_MAX: usize = 65_536;

/// The payload of a journal object.
#[derive(Clone, Debug, Default, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct JournalEntry {
    /// The first operation that it carries.
    #[n(0)]
    pub first: u64,
    /// The last one.
    #[n(1)]
    pub last: u64,
    /// The session's base epoch: information only.
    #[n(2)]
    pub base: u64,
    /// Packs of the session that no root listed when it was sent.
    #[n(3)]
    pub(super) own: Vec<OwnPack>,
    /// Other packs that the operations refer to.
    #[cbor(n(4), with = "wire::names")]
    pub(super) relied_on: Vec<PackName>,
    /// What was done, as the volume encodes it.
    #[cbor(n(5), with = "minicbor::bytes")]
    pub operations: Vec<u8>,
    /// The record of the commit that the session found when it took the volume, if there was one.
    #[cbor(n(6), with = "wire::id_option", has_nil)]
    pub ground: Option<Id>,
}

#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub(super) struct OwnPack {
    #[cbor(n(0), with = "wire::name")]
    name: PackName,
    #[n(1)]
    is_metadata: bool,
    #[n(2)]
    length: u64,
}

impl JournalEntry {
    /// These operations of its session, whose packs are `packs` and whose bytes are `operations`.
    pub fn new(carried: RangeInclusive<u64>, packs: Delivered, operations: Vec<u8>) -> Self {
        let own = packs.own.into_iter().map(|pack| OwnPack {
            name: pack.name,
            is_metadata: pack.is_metadata,
            length: pack.length,
        });
        Self {
            first: *carried.start(),
            last: *carried.end(),
            base: 0,
            own: own.collect(),
            relied_on: packs.relied_on,
            operations,
            ground: None,
        }
    }

    /// The packs named.
    pub fn packs(&self) -> Delivered {
        let own = self.own.iter().map(|pack| NamedPack {
            name: pack.name,
            is_metadata: pack.is_metadata,
            length: pack.length,
        });
        Delivered {
            own: own.collect(),
            relied_on: self.relied_on.clone(),
        }
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// The same with zeroes behind it, so that the length of its object in the bucket is one of few.
    pub fn encode_padded(&self) -> Vec<u8> {
        padding::padded(self.encode())
    }

    /// The inverse of [`JournalEntry::encode`] and [`JournalEntry::encode_padded`].
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let entry: Self = minicbor::decode(bytes).map_err(|error| error.to_string())?;
        match entry.first {
            0 => Err("operations are counted from 1".to_owned()),
            first if first > entry.last => Err("it carries no operation".to_owned()),
            _ => Ok(entry),
        }
    }
}

/// Where the journals of a session lie.
pub(crate) fn prefix(keyring: &Keyring, volume: &str, session: SessionId) -> String {
    let volume = keyring.name_hash(volume.as_bytes());
    format!("journal/{volume:016x}/{session}/")
}

/// Writes the journals of one session.
#[derive(Debug)]
pub struct JournalWriter {
    handle: RootHandle,
    session: SessionId,
    volume: String,
    prefix: String,
    base: u64,
    ground: Option<Id>,
    /// Never held across a wait.
    state: Mutex<Numbers>,
    /// Journals are sent one after the other.
    landing: tokio::sync::Mutex<()>,
    /// Where they survive before they are in the bucket.
    spool: Option<Arc<Spool>>,
    /// Who is told that the store answers.
    depot: Option<Depot>,
    /// The store does not let us delete.
    keeps: AtomicBool,
    /// Where this machine remembers what the store took.
    notes: Option<Notes>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// Journal objects whose bytes are fixed.
    sent: u64,
    /// The last operation in one of them.
    last: u64,
    /// Those whose creation is not answered yet, oldest first.
    pending: VecDeque<Pending>,
    /// Those that are in the bucket and in the spool: they stay there until the root shows that the volume was ours after they had arrived. Else they arrived too late
    /// for whoever took it over.
    unconfirmed: Vec<Pending>,
    /// How many have arrived in the bucket that only memory had, and how many of those had when the root was last found to show the volume as ours.
    bare: u64,
    bare_in_time: u64,
    /// Those that are in the bucket: key, and last operation.
    there: VecDeque<(String, u64)>,
    /// The last operation that a commit covers.
    covered: u64,
    /// So many journals, the first ones, are known to be covered once the commit under way is.
    passed: u64,
    /// The last operation of each later one.
    lasts: VecDeque<u64>,
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    key: String,
    last: u64,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Memory(Bytes),
    Spool(Arc<Spooled>),
}

impl JournalWriter {
    /// For `session`, which holds `volume` and has written no journal yet.
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
            ground: root.volumes.get(volume).and_then(|entry| entry.commit),
            state: Mutex::default(),
            landing: tokio::sync::Mutex::default(),
            spool: None,
            depot: None,
            keeps: AtomicBool::new(false),
        }
    }

    /// The same, with the session's spool.
    pub fn with_spool(self, spool: Option<Arc<Spool>>) -> Self {
        Self { spool, ..self }
    }

    /// The same, for a session that writes by way of `depot`: a store that takes journals is not
    /// silent.
    pub fn reporting_to(self, depot: &Depot) -> Self {
        let depot = Some(depot.clone());
        Self { depot, ..self }
    }

    /// Whether there is a spool, so that entries can be kept.
    pub fn has_spool(&self) -> bool {
        self.spool.is_some()
    }

    /// Gives an entry its number, and fixes its bytes for good: it goes before every later one.
    /// Waits for nothing, so no caller can give up in between.
    ///
    /// # Errors
    /// `Depot` (internal) if operations lie between it and the entry before: then acknowledged ones
    /// would be passed over.
    pub fn settle(&self, mut entry: JournalEntry) -> Result<(), RootError> {
        let mut state = self.state.lock();
        if entry.first > state.last + 1 || entry.last < entry.first {
            let gap = "a journal does not follow the one before it";
            return Err(DepotError::Internal(gap).into());
        }
        entry.base = self.base;
        entry.ground = self.ground;
        let key = format!("{}{:016x}", self.prefix, state.sent + 1);
        let keyring = self.handle.keyring();
        // Who reads an unsealed one needs no length.
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

    /// How many entries were settled.
    pub fn settled(&self) -> u64 {
        self.state.lock().sent
    }

    /// Keeps in the spool what is settled and not answered: when this returns, it survives the loss
    /// of power. It goes to the bucket with [`JournalWriter::land`], or with what the next mount on
    /// this machine finds. Dropped, it has kept the oldest of it or nothing; the next call begins
    /// again with what is left.
    ///
    /// # Errors
    /// The spool refuses, or stays full for as long as the store may make no progress.
    pub async fn keep(&self) -> Result<(), RootError> {
        let absent = || DepotError::Internal("there is no spool");
        let spool = self.spool.as_ref().ok_or_else(absent)?;
        // The lock is not held while the spool is waited for: what makes room in it needs the lock.
        while let Some((pending, bytes)) = self.first_in_memory() {
            let kept = self.put(spool, &pending.key, &bytes).await;
            let body = Body::Spool(kept.map_err(DepotError::from)?);
            let mut state = self.state.lock();
            let mut there = state.pending.iter_mut();
            match there.find(|other| other.key == pending.key) {
                Some(waiting) => waiting.body = body,
                // It has arrived meanwhile, which nobody may count on yet.
                None => state.unconfirmed.push(Pending { body, ..pending }),
            }
        }
        Ok(())
    }

    /// The first journal that is not answered and in memory alone.
    fn first_in_memory(&self) -> Option<(Pending, Bytes)> {
        let state = self.state.lock();
        state
            .pending
            .iter()
            .find_map(|pending| match &pending.body {
                Body::Memory(bytes) => Some((pending.clone(), bytes.clone())),
                Body::Spool(_) => None,
            })
    }

    async fn put(
        &self,
        spool: &Spool,
        key: &str,
        bytes: &Bytes,
    ) -> Result<Arc<Spooled>, SpoolError> {
        loop {
            let full = match spool.put(key, std::slice::from_ref(bytes)).await {
                Err(error @ SpoolError::Full { .. }) => error,
                other => return other,
            };
            let room = spool.room(bytes.len() as u64);
            let patience = self.handle.policy().stall_timeout;
            tokio::time::timeout(patience, room)
                .await
                .map_err(|_| full)?;
        }
    }

    /// Whether an entry is settled that is neither known to be in the bucket nor in the spool.
    pub fn is_bare(&self) -> bool {
        self.first_in_memory().is_some()
    }

    /// Whether entries that were kept are not in the bucket yet, or not known to be in time.
    pub fn is_behind(&self) -> bool {
        let state = self.state.lock();
        if !state.unconfirmed.is_empty() {
            return true;
        }
        let mut pending = state.pending.iter();
        pending.any(|pending| matches!(pending.body, Body::Spool(_)))
    }

    /// Step `FsyncGet`: reads the root by a request that is sent now, and thus after every answer
    /// that counts, and checks that the volume is still ours. Dropped, it has confirmed nothing.
    ///
    /// # Errors
    /// A refusal of kind `Fenced` if it is not; store errors.
    pub async fn confirm(&self) -> Result<(), RootError> {
        let bare = self.state.lock().bare;
        let view = self.handle.refresh().await?;
        view.root.require_holder(self.session, &self.volume)?;
        let mut state = self.state.lock();
        state.bare_in_time = state.bare_in_time.max(bare);
        Ok(())
    }

    /// Whether all that arrived in the bucket, and that the spool does not have, is known to have arrived while the volume was ours.
    pub fn is_in_time(&self) -> bool {
        let state = self.state.lock();
        state.bare_in_time == state.bare
    }

    /// The number of the last journal of which a commit up to this operation holds everything; zero
    /// if there is none.
    pub fn number_covered(&self, operation: u64) -> u64 {
        let mut state = self.state.lock();
        let count = state.lasts.partition_point(|last| *last <= operation);
        state.lasts.drain(..count);
        state.passed += count as u64;
        state.passed
    }

    /// A commit covers all operations up to this one: their journals are garbage, and are deleted as far as the store permits.
    pub async fn covered(&self, operation: u64) {
        self.forget_kept(operation).await;
        let mut done: VecDeque<(String, u64)> = {
            let mut state = self.state.lock();
            state.covered = state.covered.max(operation);
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
                // Whoever collects garbage finds them again.
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

    /// What was kept here and is covered by a commit need not go to the bucket. Its numbers are used up.
    pub(crate) async fn forget_kept(&self, operation: u64) {
        // The one that is being sent now is answered first, or goes the next time.
        let turn = tokio::time::timeout(FORGET_WAITS, self.landing.lock());
        let Ok(_turn) = turn.await else {
            return;
        };
        let done: Vec<Pending> = {
            let mut state = self.state.lock();
            let is_done = |pending: &Pending| {
                pending.last <= operation && matches!(pending.body, Body::Spool(_))
            };
            let (done, pending): (VecDeque<Pending>, VecDeque<Pending>) =
                std::mem::take(&mut state.pending)
                    .into_iter()
                    .partition(is_done);
            state.pending = pending;
            let mut done = Vec::from(done);
            done.extend(state.unconfirmed.extract_if(.., |pending| is_done(pending)));
            done
        };
        self.release(done).await;
    }

    /// Whether operations may be in the bucket, or in the spool, that no commit covers: then the session must stay in the root for whoever replays it.
    pub fn is_needed(&self) -> bool {
        let state = self.state.lock();
        state.last > state.covered
    }

    /// Step `JournalPut`: sends the first `until` entries that were settled until their creation is
    /// answered, oldest first. The packs that they name must be in the bucket. What the spool kept
    /// is let go when the root, read after that, still shows the volume as ours. Dropped, it leaves
    /// an entry of unknown fate where it was, to be sent again with the same bytes.
    ///
    /// # Errors
    /// A refusal of kind `Fenced` if another machine writes under this session's name; store errors
    /// as they come: then entries may be in the bucket, now or later, but count for nothing yet.
    /// Those of [`JournalWriter::confirm`]; `Spool` if what was kept cannot be read back.
    pub async fn land(&self, until: u64) -> Result<(), RootError> {
        let _turn = self.landing.lock().await;
        loop {
            let next = self.state.lock().pending.front().cloned();
            let Some(pending) = next.filter(|pending| pending.number <= until) else {
                return self.settle_kept().await;
            };
            let bytes = match &pending.body {
                Body::Memory(bytes) => bytes.clone(),
                Body::Spool(spooled) => spooled.read().await.map_err(DepotError::from)?,
            };
            self.create(&pending.key, &bytes).await?;
            if let Some(depot) = &self.depot {
                depot.note_answer();
            }
            // Before anybody is told, and before the spool lets go of it.
            if let Some(notes) = &self.notes {
                let (number, last) = (pending.number, pending.last);
                notes.note(Sent { number, last }).await;
            }
            let mut state = self.state.lock();
            let front = state.pending.pop_front();
            state.there.push_back((pending.key, pending.last));
            let is_bare = |pending: &Pending| matches!(pending.body, Body::Memory(_));
            state.bare += u64::from(front.as_ref().is_some_and(is_bare));
            let is_kept = |pending: &Pending| matches!(pending.body, Body::Spool(_));
            state.unconfirmed.extend(front.filter(is_kept));
        }
    }

    /// Lets go of what has arrived in time.
    async fn settle_kept(&self) -> Result<(), RootError> {
        if self.state.lock().unconfirmed.is_empty() {
            return Ok(());
        }
        self.confirm().await?;
        let arrived = std::mem::take(&mut self.state.lock().unconfirmed);
        self.release(arrived).await;
        Ok(())
    }

    /// The spool need not keep these any more.
    async fn release(&self, done: impl IntoIterator<Item = Pending>) {
        let Some(spool) = &self.spool else { return };
        for pending in done {
            if let Body::Spool(spooled) = pending.body {
                spooled.uploaded();
                spool.release(&spooled);
            }
        }
        spool.sweep().await;
    }

    async fn create(&self, key: &str, body: &Bytes) -> Result<(), RootError> {
        let policy = self.handle.policy();
        let store = self.handle.store();
        let mut pauses = Pauses::new(&policy, &**self.handle.entropy());
        let mut differing = 0;
        loop {
            let created = store.put_new(key, vec![body.clone()]);
            let patience = pauses.policy_for(body.len());
            let error = match bounded(&patience, Operation::PutNew, key, created).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if error.kind() == StoreErrorKind::AlreadyExists {
                match bounded(&patience, Operation::Get, key, store.get(key)).await {
                    Ok((there, _)) if there == *body => return Ok(()),
                    // An answer may arrive damaged, so several must agree.
                    Ok(_) if differing + 1 == FOREIGN_ANSWERS => {
                        return Err(Refusal::Fenced { by: None }.into());
                    }
                    Ok(_) => differing += 1,
                    Err(error) if policy.bears(&error) || error.is_not_found() => {}
                    Err(error) => return Err(error.into()),
                }
            } else if !policy.bears(&error) {
                return Err(error.into());
            }
            pauses.pause(&error).await.map_err(|_| error)?;
        }
    }
}
