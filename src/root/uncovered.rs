//! The journals of ended sessions that were read: what is kept of each, and their operations.
//!
//! Owns how often a journal is read, and the memory that journals take meanwhile. Does not own which
//! journals are looked for ([`super::ended_sessions`]).

use super::error::RootError;
use super::handle::RootHandle;
use super::journal_entry::{JournalEntry, JournalSummary};
use super::patient_reads::PatientReads;
use super::retry::Pauses;
use super::state::SessionId;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::NamedPack;
use bkfs_chunker::pack::PackName;
use bkfs_store::Store;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The most bytes of operations that are kept from the search until they are carried out. Most
/// takeovers find less, and read nothing twice.
const KEPT_BYTES: usize = 16 << 20;

/// The most bytes of journals that a search reads at the same time, in units of [`UNIT`].
const READ_UNITS: u32 = 32;

/// What the size of a journal is counted in while it is read.
const UNIT: u64 = 1 << 20;

/// What a journal counts that no list shows.
const UNLISTED_UNITS: u32 = 8;

/// How often a journal is read that cannot be opened, or that differs from what was read before: an
/// answer may arrive damaged.
const READS_MAX: u32 = 3;

/// A journal that was read. Its operations may be read again when they are carried out
/// ([`RootHandle::read_uncovered`]): those of all journals of a session may exceed the memory.
#[derive(Clone, Debug)]
pub struct UncoveredJournal {
    /// The key of its object.
    pub key: String,
    /// The operations that it carries, by number.
    pub summary: JournalSummary,
    /// The length of its object in bytes.
    pub length: u64,
    /// The hash of its object.
    digest: blake3::Hash,
    /// Its operations, if [`KEPT_BYTES`] permits, until they are carried out.
    operations: Arc<Mutex<Option<Vec<u8>>>>,
}

/// What a search has read of journals. The contents under a key never change.
#[derive(Debug)]
pub(super) struct Known {
    inner: Mutex<Inner>,
    reading: Semaphore,
}

#[derive(Debug)]
struct Inner {
    /// By key.
    journals: BTreeMap<String, UncoveredJournal>,
    /// The packs that the journals of each session name, without those of other sessions. Successive
    /// journals name mostly the same packs, so that one list for each would grow with the square.
    packs: BTreeMap<(SessionId, PackName), Named>,
    /// The bytes of operations that may still be kept.
    free: usize,
}

/// A pack, and the numbers of the first and the last journal that name it.
#[derive(Clone, Copy, Debug)]
struct Named {
    pack: NamedPack,
    first: u64,
    last: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self::keeping(KEPT_BYTES)
    }
}

impl Known {
    /// Returns an empty memory that keeps this many bytes of operations.
    fn keeping(free: usize) -> Self {
        let inner = Inner {
            journals: BTreeMap::new(),
            packs: BTreeMap::new(),
            free,
        };
        Self {
            inner: Mutex::new(inner),
            reading: Semaphore::new(READ_UNITS as usize),
        }
    }

    /// Keeps journals that were read, for a second search.
    pub(super) fn keep(&self, journals: impl IntoIterator<Item = UncoveredJournal>) {
        let journals = journals.into_iter();
        let journals = journals.map(|journal| (journal.key.clone(), journal));
        self.inner.lock().journals.extend(journals);
    }

    /// Returns the packs that the journals of a session with these numbers name.
    pub(super) fn packs(&self, id: SessionId, numbers: RangeInclusive<u64>) -> Vec<NamedPack> {
        let inner = self.inner.lock();
        let of_session = inner
            .packs
            .iter()
            .filter(|((session, _), _)| *session == id);
        let named = of_session
            .map(|(_, named)| named)
            .filter(|named| named.first <= *numbers.end() && named.last >= *numbers.start());
        named.map(|named| named.pack).collect()
    }

    /// Reads the journal `number` of a session; none if it is absent. A list of the bucket may say
    /// the length of its object.
    ///
    /// Cancel safety: dropped, it changes nothing.
    ///
    /// # Errors
    /// - [`RootError::Damaged`] or [`RootError::Unopenable`] if it cannot be read, also when it is
    ///   read again;
    /// - [`RootError::Store`] if the store fails.
    pub(super) async fn read(
        &self,
        handle: &RootHandle,
        (id, number): (SessionId, u64),
        key: String,
        length: Option<u64>,
    ) -> Result<Option<UncoveredJournal>, RootError> {
        if let Some(journal) = self.inner.lock().journals.remove(&key) {
            return Ok(Some(journal));
        }
        let units = length.map_or(UNLISTED_UNITS, |length| {
            u32::try_from(length / UNIT + 1).unwrap_or(READ_UNITS)
        });
        let _reading = self.reading.acquire_many(units.min(READ_UNITS)).await;
        let opened = |object: &Bytes| open(handle, &key, object);
        let Some((object, entry)) = get(handle, &key, opened).await? else {
            return Ok(None);
        };
        let mut inner = self.inner.lock();
        for pack in entry.packs().own {
            let named = inner.packs.entry((id, pack.name)).or_insert(Named {
                pack,
                first: number,
                last: number,
            });
            named.first = named.first.min(number);
            named.last = named.last.max(number);
        }
        let summary = entry.summary();
        let left = inner.free.checked_sub(entry.operations.len());
        inner.free = left.unwrap_or(inner.free);
        Ok(Some(UncoveredJournal {
            key,
            summary,
            length: object.len() as u64,
            digest: blake3::hash(&object),
            operations: Arc::new(Mutex::new(left.map(|_| entry.operations))),
        }))
    }
}

/// Reads the journal under `key` until `accept` takes its object, up to [`READS_MAX`] times. Returns
/// what the last answer was otherwise; none if there is no such object.
async fn get<T>(
    handle: &RootHandle,
    key: &str,
    accept: impl Fn(&Bytes) -> Result<T, RootError>,
) -> Result<Option<(Bytes, T)>, RootError> {
    let policy = handle.policy();
    let mut pauses = Pauses::new(&policy, &**handle.entropy());
    let mut reads = 0;
    loop {
        let object = match PatientReads::of(handle).get(key).await {
            // The writer deletes journals that a commit covers, and may do so late.
            Err(error) if error.is_not_found() => return Ok(None),
            object => object?.0,
        };
        reads += 1;
        match accept(&object) {
            Ok(accepted) => return Ok(Some((object, accepted))),
            Err(error) if reads >= READS_MAX => return Err(error),
            // What stands between may give the same answer for a moment.
            Err(_) => pauses.sleep_half().await,
        }
    }
}

/// Opens a journal object.
///
/// # Errors
/// [`RootError::Unopenable`] or [`RootError::Damaged`] if it is unreadable.
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
    /// Returns the encoded operations of a journal of an ended session of `volume`, and reads the
    /// journal again if they were not kept. `session` holds the volume.
    ///
    /// Cancel safety: dropped, it changes nothing that a repetition does not read again.
    ///
    /// # Errors
    /// [`RootError::Refused`] if the journal is gone or is another one because another session holds
    /// the volume now; otherwise [`RootError::Damaged`] if it is another one than before, also when
    /// it is read again, or gone all the same; [`RootError::Store`] if the store fails; the errors
    /// of [`RootHandle::refresh`].
    pub async fn read_uncovered(
        &self,
        journal: &UncoveredJournal,
        session: SessionId,
        volume: &str,
    ) -> Result<Vec<u8>, RootError> {
        if let Some(operations) = journal.operations.lock().take() {
            return Ok(operations);
        }
        let key = &journal.key;
        let other = || RootError::damaged(key, "it is not the journal that was there before");
        let same = |object: &Bytes| match blake3::hash(object) == journal.digest {
            true => open(self, key, object),
            false => Err(other()),
        };
        let error = match get(self, key, same).await {
            Ok(Some((_, entry))) => return Ok(entry.operations),
            Ok(None) => RootError::damaged(key, "it is gone since it was read before"),
            Err(error @ RootError::Damaged { .. }) => error,
            Err(error) => return Err(error),
        };
        // A session that takes the volume over carries the journals out, and deletes them.
        let now = self.refresh().await?;
        now.root.require_holder(session, volume)?;
        Err(error)
    }
}

#[cfg(test)]
impl UncoveredJournal {
    /// Returns the journal without the operations that were kept.
    pub(super) fn forgetful(&self) -> Self {
        Self {
            operations: Arc::default(),
            ..self.clone()
        }
    }
}
