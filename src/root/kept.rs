//! Reads journals that lie in a spool and not yet in the bucket, before any of them is sent.
//!
//! Owns the decoding of one, how far commits cover a session, and requests for objects that a spool
//! lacks. Does not own spools, nor what is sent.

use bkfs_store::{Operation, StoreErrorKind};
use bytes::Bytes;

use super::error::RootError;
use super::handle::RootHandle;
use super::journal_entry::{JournalEntry, JournalSummary};
use super::retry;
use super::state::Session;
use super::uncovered::open;

/// How far commits cover a session.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Covered {
    /// The last covered operation.
    pub operation: u64,
    /// The number of the last covered journal, 0 if commits cover none; none if the root does not
    /// say.
    pub journal: Option<u64>,
}

impl Covered {
    /// Returns the values in the root.
    pub fn of(session: &Session) -> Self {
        Self {
            operation: session.covered,
            journal: session.covered_journal,
        }
    }
}

/// Returns the number of the journal with this key; `None` if the key is no journal's.
pub fn journal_number(key: &str) -> Option<u64> {
    let (_, number) = key.strip_prefix("journal/")?.rsplit_once('/')?;
    u64::from_str_radix(number, 16).ok()
}

impl RootHandle {
    /// Reads the journal `object`, whose key in the bucket is `key`.
    ///
    /// # Errors
    /// [`RootError::Unopenable`] or [`RootError::Damaged`] if it is no journal of this repository.
    pub fn read_kept(&self, key: &str, object: &Bytes) -> Result<JournalEntry, RootError> {
        open(self, key, object)
    }

    /// Returns the operations that the journal `key` of the bucket carries; `None` if it is absent or cannot be read.
    ///
    /// # Errors
    /// Store errors.
    pub async fn landed_journal(&self, key: &str) -> Result<Option<JournalSummary>, RootError> {
        let (policy, entropy) = (self.policy(), &**self.entropy());
        let asked = retry::patiently(&policy, entropy, Operation::Get, key, || {
            self.store().get(key)
        });
        match asked.await {
            Ok((bytes, _)) => Ok(self
                .read_kept(key, &bytes)
                .ok()
                .map(|entry| entry.summary())),
            Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the length of an object of the bucket in bytes; `None` if it is absent.
    ///
    /// # Errors
    /// Store errors.
    pub async fn length_of(&self, key: &str) -> Result<Option<u64>, RootError> {
        let (policy, entropy) = (self.policy(), &**self.entropy());
        let asked = retry::patiently(&policy, entropy, Operation::Head, key, || {
            self.store().head(key)
        });
        match asked.await {
            Ok(info) => Ok(Some(info.size)),
            Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
