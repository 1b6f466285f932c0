//! What sessions in the root own: heartbeats, and journals that must be carried out when their volume is taken over.
//!
//! Owns what is said of them, and which journals can never be carried out. Writes nothing.

use std::collections::BTreeMap;

use bkfs_chunker::error::DepotError;
use bkfs_chunker::seal::Class;

use super::layout::{self, place_of};
use super::report::{Problem, ProblemKind, Report};
use super::scan::{Scan, as_problem};
use crate::root::error::RootError;
use crate::root::heartbeat::Beat;
use crate::root::journal::JournalEntry;
use crate::root::state::{Root, Session, SessionId};

/// The journals of a session from the first on that cannot be carried out, which nobody can mount past.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unreplayable {
    /// The session.
    pub session: SessionId,
    /// Its volume.
    pub volume: String,
    /// The last operation before them.
    pub after: u64,
    /// Their keys, in order.
    pub keys: Vec<String>,
}

impl Scan<'_> {
    /// Heartbeats and journals of the sessions in the root.
    ///
    /// # Errors
    /// Store errors.
    pub async fn sessions(
        &self,
        root: &Root,
        bucket: &BTreeMap<String, u64>,
        report: &mut Report,
    ) -> Result<Vec<Unreplayable>, RootError> {
        for id in root.sessions.keys() {
            let key = id.key();
            match self.verifier.object(Class::Session, &key).await {
                Ok(payload) if Beat::decode(&payload).is_some() => {}
                Ok(_) => {
                    let what = "it is no heartbeat";
                    report.add(Problem::new(key, ProblemKind::Damaged, what));
                }
                // It has not beaten yet, or never will: that holds back deletion and hurts nobody.
                Err(DepotError::Missing { .. }) => report.counts.silent_sessions += 1,
                Err(error) => {
                    report.add(as_problem(error)?);
                }
            }
        }
        let mut broken = Vec::new();
        for (id, session) in &root.sessions {
            broken.extend(self.journals(*id, session, bucket, report).await?);
        }
        Ok(broken)
    }

    /// The journals of one session in the root, up to `covered` of which a commit has everything: what is above must be whole, or it cannot be replayed. The newest
    /// one that is gone cannot be missed: it might never have been written.
    async fn journals(
        &self,
        id: SessionId,
        session: &Session,
        bucket: &BTreeMap<String, u64>,
        report: &mut Report,
    ) -> Result<Option<Unreplayable>, RootError> {
        let covered = session.covered;
        let mut broken = Unreplayable {
            session: id,
            volume: session.volume.clone().unwrap_or_default(),
            after: covered,
            keys: Vec::new(),
        };
        let mut reached = covered;
        for key in bucket.keys() {
            let number = match place_of(key) {
                layout::Place::Journal {
                    session, number, ..
                } if session == id => number,
                _ => continue,
            };
            let payload = match self.verifier.object(Class::Journal, key).await {
                Ok(payload) => payload,
                // Whoever covered or replayed it has removed it since the bucket was listed.
                Err(DepotError::Missing { .. }) => continue,
                Err(error) => {
                    report.add(as_problem(error)?);
                    // What follows is judged as if it were there.
                    broken.begin(key, reached);
                    reached = u64::MAX;
                    continue;
                }
            };
            let entry = match JournalEntry::decode(&payload) {
                Ok(entry) => entry,
                Err(why) => {
                    report.add(Problem::new(key, ProblemKind::Inconsistent, why));
                    broken.begin(key, reached);
                    continue;
                }
            };
            if entry.last <= covered {
                continue;
            }
            broken.follow(key);
            let before = reached;
            if entry.first > reached.saturating_add(1) {
                let directory = key.rsplit_once('/').map_or("", |(directory, _)| directory);
                let missing = format!("{directory}/{:016x}", number.saturating_sub(1));
                let (first, wanted) = (entry.first, reached + 1);
                let what =
                    format!("operation {wanted} is in no journal, and {key} begins with {first}");
                report.add(Problem::new(missing, ProblemKind::Missing, what));
            }
            reached = reached.max(entry.last);
            if self.lacks_packs(key, &entry, bucket, report).await? {
                broken.begin(key, before);
            }
        }
        Ok((!broken.keys.is_empty()).then_some(broken))
    }

    /// Whether packs that the journal under `key` names are not there as it says; reports them. A writer at work may have sent both since the bucket was listed.
    async fn lacks_packs(
        &self,
        key: &str,
        entry: &JournalEntry,
        bucket: &BTreeMap<String, u64>,
        report: &mut Report,
    ) -> Result<bool, RootError> {
        let mut lacks = false;
        for pack in entry.packs().own {
            let pack_key = pack.key();
            if bucket.get(&pack_key) == Some(&pack.length) {
                continue;
            }
            let kind = match self.store.head(&pack_key).await {
                Ok(found) if found.size == pack.length => continue,
                Ok(_) => ProblemKind::Damaged,
                Err(error) if error.is_not_found() => ProblemKind::Missing,
                Err(error) => return Err(error.into()),
            };
            let what = format!("{key} needs it, with {} bytes", pack.length);
            report.add(Problem::new(pack_key, kind, what));
            lacks = true;
        }
        Ok(lacks)
    }
}

impl Unreplayable {
    /// The first one that cannot be carried out; later ones only follow.
    fn begin(&mut self, key: &str, reached: u64) {
        if self.keys.is_empty() {
            self.after = reached;
            self.keys.push(key.to_owned());
        } else {
            self.follow(key);
        }
    }

    fn follow(&mut self, key: &str) {
        if self.keys.last().is_some_and(|last| last != key) {
            self.keys.push(key.to_owned());
        }
    }

    /// What is lost with them, for people.
    pub fn lost(&self) -> String {
        format!(
            "what session {} acknowledged on volume {} after its operation {}",
            self.session, self.volume, self.after
        )
    }
}
