//! What sessions in the root own: heartbeats, and journals that must be carried out when their volume is taken over.
//!
//! Owns what is said of them, and which journals can never be carried out. Writes nothing.
//!
//! Sessions are at work while this looks: they write journals, cover them by a commit, and delete them. A list of the bucket takes many requests, and may show a journal and not the one
//! before it. So what is wrong at first sight is looked at again, by a newer root and a newer list, until it is right or nothing was covered while it was looked at.

use std::collections::BTreeMap;

use bkfs_chunker::error::DepotError;
use bkfs_chunker::seal::Class;

use super::layout::{self, place_of};
use super::report::{Problem, ProblemKind, Report};
use super::scan::{Scan, as_problem};
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::heartbeat::Beat;
use crate::root::journal::{JournalEntry, prefix};
use crate::root::state::{Root, Session, SessionId};

/// How often journals are looked at again whose session goes on covering them.
const LOOKS_MAX: u32 = 16;

/// What is wrong with the journals of a session.
#[derive(Debug, Default)]
struct Look {
    problems: Vec<Problem>,
    broken: Option<Unreplayable>,
}

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
    /// Keys of journals that cannot be read, of which commits have everything. A mount may stumble
    /// over them.
    pub covered: Vec<String>,
}

impl Scan<'_> {
    /// Heartbeats and journals of the sessions in `root`.
    ///
    /// # Errors
    /// Store errors.
    pub async fn sessions(
        &self,
        handle: &RootHandle,
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
            let mut look = self.journals(*id, session, bucket).await?;
            if !look.problems.is_empty() {
                look = self.look_again(handle, *id, look).await?;
            }
            for problem in look.problems {
                report.add(problem);
            }
            broken.extend(look.broken);
        }
        Ok(broken)
    }

    /// What is still wrong with a session's journals when nothing is covered meanwhile; `last` is what was seen before.
    async fn look_again(
        &self,
        handle: &RootHandle,
        id: SessionId,
        mut last: Look,
    ) -> Result<Look, RootError> {
        for _ in 0..LOOKS_MAX {
            let view = handle.refresh().await?;
            let Some(session) = view.root.sessions.get(&id) else {
                // It ended, or somebody has carried them out.
                return Ok(Look::default());
            };
            let volume = session.volume.as_deref().unwrap_or_default();
            let bucket = self.list_below(&prefix(self.keyring, volume, id)).await?;
            last = self.journals(id, session, &bucket).await?;
            let after = handle.refresh().await?;
            let stands = after.root.sessions.get(&id);
            if last.problems.is_empty()
                || stands.map(|session| session.covered) == Some(session.covered)
            {
                break;
            }
        }
        Ok(last)
    }

    /// The journals of one session in the root, up to `covered` of which a commit has everything: what is above must be whole, or it cannot be replayed. The newest
    /// one that is gone cannot be missed: it might never have been written.
    async fn journals(
        &self,
        id: SessionId,
        session: &Session,
        bucket: &BTreeMap<String, u64>,
    ) -> Result<Look, RootError> {
        let covered = session.covered;
        let mut broken = Unreplayable {
            session: id,
            volume: session.volume.clone().unwrap_or_default(),
            after: covered,
            keys: Vec::new(),
            covered: Vec::new(),
        };
        let (mut problems, mut unreadable) = (Vec::new(), Vec::new());
        let mut reached = covered;
        for key in bucket.keys() {
            let number = match place_of(key) {
                layout::Place::Journal {
                    session, number, ..
                } if session == id => number,
                _ => continue,
            };
            if session.covered_journal.is_some_and(|last| number <= last) {
                continue;
            }
            let entry = match self.journal(key).await? {
                Some(Ok(entry)) => entry,
                Some(Err(problem)) => {
                    problems.push(problem);
                    unreadable.push(key.clone());
                    // What follows is judged as if it were there.
                    broken.begin(key, reached);
                    reached = u64::MAX;
                    continue;
                }
                None => continue,
            };
            if entry.first <= covered.saturating_add(1) {
                // Whatever is wrong with those before it, a commit covers them.
                broken.keys.clear();
                broken.covered.append(&mut unreadable);
                (broken.after, reached) = (covered, covered);
            }
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
                problems.push(Problem::new(missing, ProblemKind::Missing, what));
            }
            reached = reached.max(entry.last);
            let lacking = self.lacking_packs(key, &entry, bucket).await?;
            if !lacking.is_empty() {
                broken.begin(key, before);
                problems.extend(lacking);
            }
        }
        Ok(Look {
            problems,
            broken: (!broken.is_empty()).then_some(broken),
        })
    }

    /// The journal under `key`, or what is wrong with it. `None` if it is not there: its writer
    /// or a taker has removed it since the bucket was listed.
    async fn journal(&self, key: &str) -> Result<Option<Result<JournalEntry, Problem>>, RootError> {
        let senseless = |why: String| Problem::new(key, ProblemKind::Inconsistent, why);
        Ok(match self.verifier.object(Class::Journal, key).await {
            Ok(payload) => Some(JournalEntry::decode(&payload).map_err(senseless)),
            Err(DepotError::Missing { .. }) => None,
            Err(error) => Some(Err(as_problem(error)?)),
        })
    }

    /// Packs that the journal under `key` names and that are not there as it says. A writer at work may have sent both since the bucket was listed.
    async fn lacking_packs(
        &self,
        key: &str,
        entry: &JournalEntry,
        bucket: &BTreeMap<String, u64>,
    ) -> Result<Vec<Problem>, RootError> {
        let mut lacking = Vec::new();
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
            lacking.push(Problem::new(pack_key, kind, what));
        }
        Ok(lacking)
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.covered.is_empty()
    }

    /// What is lost with them, for people.
    pub fn lost(&self) -> String {
        format!(
            "what session {} acknowledged on volume {} after its operation {}",
            self.session, self.volume, self.after
        )
    }
}
