//! Finds operations that this machine sent and that no commit covers, once their session has left
//! the root.
//!
//! Owns the search. Each commit of a volume states how far it covers its own session, and the
//! sessions that it replayed. A session leaves the root uncovered if its journals were gone before
//! another machine took the volume over, which cannot notice that the newest ones are absent; or if
//! the root was lost.

use super::error::{ErrorKind, RootError};
use super::handle::RootHandle;
use super::record::CommitRecord;
use super::sent::Sent;
use super::state::{Root, SessionId};
use async_trait::async_trait;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Kind};
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Most records that are read, one for each commit. Older ones are not searched.
const RECORDS_MAX: u32 = 4096;

/// Operations that this machine sent and no commit covers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Uncarried {
    /// The session, which has left the root.
    pub session: SessionId,
    /// The last operation that the store acknowledged.
    pub sent: u64,
    /// The last one that a commit covers; 0 for none.
    pub covered: u64,
    /// The newest commit that replayed any of them; `None` if no commit did.
    pub after: Option<CarriedBy>,
}

/// A commit that replayed operations of a session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CarriedBy {
    /// Its volume.
    pub volume: String,
    /// When it was made.
    pub time: Timestamp,
}

impl CarriedBy {
    fn of(record: &CommitRecord) -> Self {
        Self {
            volume: record.volume.clone(),
            time: record.time,
        }
    }
}

impl fmt::Display for Uncarried {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (session, first, last) = (self.session, self.covered + 1, self.sent);
        write!(
            formatter,
            "the store took operations {first} to {last} of session {session} from this machine, \
             and the session has left the repository without them: they were acknowledged, and \
             are lost"
        )?;
        match &self.after {
            Some(CarriedBy { volume, time }) => write!(
                formatter,
                " (the last that was carried out is in the commit of volume {volume} at {time})"
            ),
            None => write!(formatter, " (no commit has anything of that session)"),
        }
    }
}

/// Source of commit records.
#[async_trait]
pub trait Records: Send + Sync {
    /// Returns the record of this id.
    ///
    /// # Errors
    /// An error of kind `Damaged` if the record cannot be had; store errors.
    async fn record(&self, id: Id) -> Result<Bytes, RootError>;
}

#[async_trait]
impl Records for ContentStore {
    async fn record(&self, id: Id) -> Result<Bytes, RootError> {
        Ok(self.read_blob(Kind::Commit, id).await?)
    }
}

/// Forgets this machine's notes about sessions that have left the root, as far as commits cover
/// what it sent. Returns the sessions that commits do not cover; their notes stay. A session whose
/// commits cannot be found is not reported. Dropped, it leaves the notes to the next call.
///
/// # Errors
/// Store errors.
pub async fn forget_carried(
    handle: &RootHandle,
    records: &dyn Records,
) -> Result<Vec<Uncarried>, RootError> {
    let Some(memory) = handle.memory().sent() else {
        return Ok(Vec::new());
    };
    let remembered = memory.sessions().await;
    if remembered.is_empty() {
        return Ok(Vec::new());
    }
    // A session enters the root before it sends anything.
    let root = &handle.refresh().await?.root;
    let (mut left, mut done) = (BTreeMap::new(), Vec::new());
    let has_left = |id: &SessionId| !root.sessions.contains_key(id);
    for id in remembered.into_iter().filter(has_left) {
        match memory.recall(id).await {
            Some(sent) => drop(left.insert(id, sent)),
            None => done.push(id),
        }
    }
    let found = Search::new(left).through(root, records).await?;
    done.extend(found.done);
    memory.forget(done).await;
    Ok(found.uncarried)
}

/// A search through the commits of all volumes, the newest first.
#[derive(Default)]
struct Search {
    /// Sessions of which no commit was found so far.
    left: BTreeMap<SessionId, Sent>,
    done: Vec<SessionId>,
    uncarried: Vec<Uncarried>,
}

impl Search {
    fn new(left: BTreeMap<SessionId, Sent>) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }

    async fn through(mut self, root: &Root, records: &dyn Records) -> Result<Self, RootError> {
        let tips = root.volumes.values().filter_map(|entry| entry.commit);
        let mut next: VecDeque<Id> = tips.collect();
        let (mut is_whole, mut looked) = (true, 0);
        while !self.left.is_empty()
            && let Some(id) = next.pop_front()
        {
            looked += 1;
            let record = match records.record(id).await {
                Ok(bytes) => CommitRecord::decode(&bytes).ok(),
                Err(error) if error.kind() == ErrorKind::Damaged => None,
                Err(error) => return Err(error),
            };
            let Some(record) = record.filter(|_| looked <= RECORDS_MAX) else {
                is_whole = false;
                continue;
            };
            for replayed in record.replayed.iter().flatten() {
                self.covers(replayed.session, replayed.last, Some(&record));
            }
            self.covers(record.session, record.covered, Some(&record));
            next.extend(record.parent);
        }
        if is_whole {
            let left: Vec<SessionId> = self.left.keys().copied().collect();
            left.into_iter().for_each(|id| self.covers(id, 0, None));
        }
        Ok(self)
    }

    /// Records the newest commit that covers any of a session, and how far it does.
    fn covers(&mut self, session: SessionId, covered: u64, record: Option<&CommitRecord>) {
        match self.left.remove(&session) {
            Some(sent) if sent.last > covered => self.uncarried.push(Uncarried {
                session,
                sent: sent.last,
                covered,
                after: record.map(CarriedBy::of),
            }),
            Some(_) => self.done.push(session),
            None => {}
        }
    }
}
