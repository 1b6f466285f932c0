//! What journals say that lie in a spool and not yet in the bucket, before anything of them is sent.
//!
//! Owns reading one, which of them a session's commits cover, and asking the bucket for what a spool
//! does not have. Does not own spools, nor what is sent.

use bkfs_chunker::ingest::NamedPack;
use bkfs_chunker::store::{Operation, StoreErrorKind};
use bytes::Bytes;

use super::error::RootError;
use super::handle::RootHandle;
use super::retry;
use super::state::Session;
use super::victims::open;

/// What is needed to carry a journal out, but for its operations.
#[derive(Clone, Debug)]
pub struct KeptJournal {
    /// The first operation that it carries.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Packs that it names and that no root listed when it was written.
    pub packs: Vec<NamedPack>,
}

/// Which operations and journals of a session commits cover.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Covered {
    /// The last operation.
    pub operation: u64,
    /// The number of the last journal; 0 if the root does not say.
    pub journal: u64,
}

impl Covered {
    /// As the root has it.
    pub fn of(session: &Session) -> Self {
        Self {
            operation: session.covered,
            journal: session.covered_journal.unwrap_or(0),
        }
    }
}

/// The number of a journal with this key; none for what is no journal.
pub fn journal_number(key: &str) -> Option<u64> {
    let (_, number) = key.strip_prefix("journal/")?.rsplit_once('/')?;
    u64::from_str_radix(number, 16).ok()
}

impl RootHandle {
    /// Reads the journal `object`, whose key in the bucket is `key`.
    ///
    /// # Errors
    /// `Unopenable`, `Damaged`: it is no journal.
    pub fn read_kept(&self, key: &str, object: &Bytes) -> Result<KeptJournal, RootError> {
        let entry = open(self, key, object)?;
        Ok(KeptJournal {
            first: entry.first,
            last: entry.last,
            packs: entry.packs().own,
        })
    }

    /// Returns whether the bucket has the journal `key`, and it can be read.
    ///
    /// # Errors
    /// Store errors.
    pub async fn has_journal(&self, key: &str) -> Result<bool, RootError> {
        let (policy, entropy) = (self.policy(), &**self.entropy());
        let asked = retry::patiently(&policy, entropy, Operation::Get, key, || {
            self.store().get(key)
        });
        match asked.await {
            Ok((bytes, _)) => Ok(open(self, key, &bytes).is_ok()),
            Err(error) if error.kind() == StoreErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The length of an object of the bucket; none if it is not there.
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
