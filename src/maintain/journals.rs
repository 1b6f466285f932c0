//! Checks what sessions in the root own: heartbeats, and the journals that a new holder of their
//! volume must carry out.
//!
//! Owns the problems that are reported of them, and which journals can never be carried out. Writes
//! nothing. Does not own how journals are found, nor which are missing:
//! [`crate::root::ended_sessions`] decides both, as for a takeover.
//!
//! Sessions write journals, cover them by a commit, and delete them while the check reads them. A
//! list of the bucket takes many requests, and may show a journal and not the one before it. So
//! whatever looks wrong is read again, with a newer root and a newer list. That ends when nothing
//! is wrong, or when no commit covered anything during the reading.

use std::collections::BTreeMap;

use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;

use super::report::{Problem, ProblemKind, Report};
use super::scan::{Scan, as_problem};
use crate::root::ended_sessions::{LOOKS_MAX, Owner, SET_ASIDE};
use crate::root::error::RootError;
use crate::root::gap::Gap;
use crate::root::handle::RootHandle;
use crate::root::heartbeat::Beat;
use crate::root::journal::{JournalEntry, prefix};
use crate::root::sent::{Sent, SentJournals};
use crate::root::state::{Root, Session, SessionId};

/// The number of journals that are read at the same time, each in memory as a whole.
const READ_AT_ONCE: usize = 4;

/// The result of one reading of a session's journals.
#[derive(Debug, Default)]
struct Look {
    problems: Vec<Problem>,
    broken: Option<Unreplayable>,
}

/// The journals of a session, from the first that cannot be carried out. No mount can take the
/// volume past them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Unreplayable {
    /// The session.
    pub session: SessionId,
    /// Its volume.
    pub volume: String,
    /// The last operation before them.
    pub after: u64,
    /// Operations that were acknowledged and that no journal holds any more.
    pub gap: Option<Gap>,
    /// The keys of these journals, in order.
    pub keys: Vec<String>,
    /// Keys of journals that cannot be read and that commits cover completely. A mount may fail on
    /// them.
    pub covered: Vec<String>,
}

impl Scan<'_> {
    /// Checks the heartbeats and journals of the sessions in `root`, and adds problems to `report`.
    /// Returns the journals that cannot be carried out.
    ///
    /// # Errors
    /// [`RootError::Store`] or [`RootError::Content`] if the store cannot be read, and those of
    /// [`RootHandle::refresh`].
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
                // The session has sent no heartbeat yet, or never will. That holds back deletion
                // and harms nothing else.
                Err(ContentError::Missing { .. }) => report.counts.silent_sessions += 1,
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

    /// Reads the journals of a session again, at most [`LOOKS_MAX`] times, until nothing is wrong
    /// or no commit covered any of them during the reading. `last` is the result before.
    async fn look_again(
        &self,
        handle: &RootHandle,
        id: SessionId,
        mut last: Look,
    ) -> Result<Look, RootError> {
        for _ in 0..LOOKS_MAX {
            let view = handle.refresh().await?;
            let Some(session) = view.root.sessions.get(&id) else {
                // The session has ended, or another one has carried out its journals.
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

    /// Judges journals once more that could not be carried out. Returns the key of one that is not
    /// what it was, or of one that was missing before them and is not; none if all is as it was.
    ///
    /// # Errors
    /// Those of [`Scan::sessions`].
    pub(super) async fn judged_otherwise(
        &self,
        handle: &RootHandle,
        broken: &Unreplayable,
    ) -> Result<Option<String>, RootError> {
        let view = handle.refresh().await?;
        let Some(session) = view.root.sessions.get(&broken.session) else {
            return Ok(broken.other_than(&Unreplayable::default()));
        };
        let (id, volume) = (broken.session, &broken.volume);
        let bucket = self.list_below(&prefix(self.keyring, volume, id)).await?;
        let look = self.journals(id, session, &bucket).await?;
        Ok(broken.other_than(&look.broken.unwrap_or_default()))
    }

    /// Returns this machine's memory of the journals that it sent.
    fn sent(&self) -> Option<&SentJournals> {
        self.options.memory.as_ref()?.sent()
    }

    /// Judges the journals of one session in the root. Those that no commit covers completely must
    /// be whole, or they cannot be carried out. Only the machine that sent the newest ones can tell
    /// that they are gone.
    async fn journals(
        &self,
        id: SessionId,
        session: &Session,
        bucket: &BTreeMap<String, u64>,
    ) -> Result<Look, RootError> {
        if session.volume.is_none() {
            return Ok(Look::default());
        }
        let remembered = match self.sent() {
            Some(sent) => sent.recall(id).await,
            None => None,
        };
        let owner = Owner::new(self.keyring, id, session, remembered);
        let listed = bucket.range(owner.prefix().to_owned()..);
        let listed = listed.map(|(key, _)| key);
        let listed = listed.take_while(|key| key.starts_with(owner.prefix()));
        let read = |_, key: String| async move { self.journal(&key).await };
        let found = owner.search(listed, READ_AT_ONCE, read).await?;
        let mut judged = Judged::new(&owner, id, session);
        for (number, entry) in found {
            let key = owner.key(number);
            let entry = match entry {
                Ok(entry) => entry,
                Err(problem) => {
                    judged.is_unreadable(&key, problem);
                    continue;
                }
            };
            let before = judged.reached;
            if judged.follows(number, &key, &entry) {
                let lacking = self.lacking_packs(&key, &entry, bucket).await?;
                // A refused pack may be whole: the journal is not given up because of it.
                let is_lost = |problem: &Problem| problem.kind != ProblemKind::Refused;
                if lacking.iter().any(is_lost) {
                    judged.broken.begin(&key, before);
                }
                judged.problems.extend(lacking);
            }
        }
        Ok(judged.done())
    }

    /// Returns the journal under `key` without its operations, or what is wrong with it. Returns
    /// `None` if it is not there: its writer or a new holder has deleted it since the bucket was
    /// listed.
    async fn journal(&self, key: &str) -> Result<Option<Result<JournalEntry, Problem>>, RootError> {
        let senseless = |why: String| Problem::new(key, ProblemKind::Inconsistent, why);
        Ok(match self.verifier.object(Class::Journal, key).await {
            Ok(payload) => Some(match JournalEntry::decode(&payload) {
                Ok(mut entry) => {
                    entry.operations = Vec::new();
                    Ok(entry)
                }
                Err(why) => Err(senseless(why)),
            }),
            Err(ContentError::Missing { .. }) => None,
            Err(error) => Some(Err(as_problem(error)?)),
        })
    }

    /// Returns problems for the packs that the journal under `key` names and that are missing, are
    /// refused, or have another length. A writer at work may have sent both since the bucket was listed, so the
    /// store is asked for each pack that the list does not show.
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
                Err(error) if error.is_of_one_object() => ProblemKind::Refused,
                Err(error) => return Err(error.into()),
            };
            let what = format!("{key} needs it, with {} bytes", pack.length);
            lacking.push(Problem::new(pack_key, kind, what));
        }
        Ok(lacking)
    }
}

/// The judgement over the journals of a session, one after the other.
struct Judged<'a> {
    owner: &'a Owner<'a>,
    covered: u64,
    problems: Vec<Problem>,
    broken: Unreplayable,
    unreadable: Vec<String>,
    /// The last operation that is reached; `u64::MAX` if that is unknown, behind an unreadable
    /// journal.
    reached: u64,
    /// The number of the last journal before anything is missing.
    last: Option<u64>,
    /// Numbers and last operations of the journals behind what is missing.
    behind: Vec<(u64, u64)>,
}

impl<'a> Judged<'a> {
    fn new(owner: &'a Owner<'a>, id: SessionId, session: &Session) -> Self {
        let covered = session.covered;
        Self {
            owner,
            covered,
            problems: Vec::new(),
            broken: Unreplayable {
                session: id,
                volume: session.volume.clone().unwrap_or_default(),
                after: covered,
                gap: None,
                keys: Vec::new(),
                covered: Vec::new(),
            },
            unreadable: Vec::new(),
            reached: covered,
            last: None,
            behind: Vec::new(),
        }
    }

    fn is_unreadable(&mut self, key: &str, problem: Problem) {
        self.problems.push(problem);
        self.unreadable.push(key.to_owned());
        // Later journals are judged as if this one were there.
        self.broken.begin(key, self.reached);
        self.reached = u64::MAX;
    }

    /// Judges the next journal that can be read. Returns false if a commit covers all of it.
    fn follows(&mut self, number: u64, key: &str, entry: &JournalEntry) -> bool {
        if entry.first <= self.covered.saturating_add(1) {
            // A commit covers the journals before this one, whatever is wrong with them.
            self.broken.keys.clear();
            self.broken.covered.append(&mut self.unreadable);
            (self.broken.after, self.reached) = (self.covered, self.covered);
            self.behind.clear();
        }
        if entry.last <= self.covered {
            self.last = Some(number);
            return false;
        }
        self.broken.follow(key);
        if !self.behind.is_empty() || entry.first > self.reached.saturating_add(1) {
            self.broken.begin(key, self.reached);
            self.behind.push((number, entry.last));
            return true;
        }
        self.reached = self.reached.max(entry.last);
        self.last = Some(number);
        true
    }

    fn done(mut self) -> Look {
        if self.reached < u64::MAX {
            self.broken.gap = self.owner.gap(self.reached, self.last, &self.behind);
        }
        if let Some(gap) = &self.broken.gap {
            if self.broken.keys.is_empty() {
                self.broken.after = gap.after;
            }
            let what = gap.to_string();
            self.problems
                .push(Problem::new(gap.key(), ProblemKind::Missing, what));
        }
        Look {
            problems: self.problems,
            broken: (!self.broken.is_empty()).then_some(self.broken),
        }
    }
}

impl Unreplayable {
    /// Records the first journal that cannot be carried out. Later ones are only appended.
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

    /// Returns the key of a journal that is no longer what it was, by a later judgement over the
    /// same session. Journals that came after them since then change nothing.
    fn other_than(&self, now: &Self) -> Option<String> {
        if let Some(gap) = &self.gap
            && now.gap.as_ref().map(|gap| gap.after) != Some(gap.after)
        {
            return Some(gap.key());
        }
        let mut keys = self.keys.iter();
        if let Some(key) = keys.find(|key| !now.keys.contains(key)) {
            return Some(key.clone());
        }
        let first = self.keys.first();
        if let Some(key) = first.filter(|_| self.after != now.after) {
            return Some(key.clone());
        }
        let mut covered = self.covered.iter();
        covered.find(|key| !now.covered.contains(key)).cloned()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.covered.is_empty() && self.gap.is_none()
    }

    /// Returns what a repair does about them, in sentences.
    pub fn steps(&self) -> Vec<String> {
        let mut steps = Vec::new();
        let lost = self.lost();
        match self.keys.len() {
            0 if self.gap.is_some() => steps.push(format!(
                "give up journals that are missing from the bucket: {lost} is lost, and the \
                 volume can be mounted again"
            )),
            0 => {}
            count => steps.push(format!(
                "set {count} journals aside that cannot be carried out, below {SET_ASIDE}: {lost} \
                 is lost, and the volume can be mounted again"
            )),
        }
        if !self.covered.is_empty() {
            steps.push(format!(
                "set {} journals aside that cannot be read, below {SET_ASIDE}: commits have all \
                 that they say",
                self.covered.len()
            ));
        }
        steps
    }

    /// Returns what this machine remembers of the session once a repair has given up the journals
    /// that cannot be carried out.
    pub fn given_up(&self) -> Option<(SessionId, Sent)> {
        let sent = Sent {
            number: 0,
            last: self.after,
        };
        let gives_up = !self.keys.is_empty() || self.gap.is_some();
        gives_up.then_some((self.session, sent))
    }

    /// Returns a phrase that names the operations that are lost with them.
    pub fn lost(&self) -> String {
        let last = match &self.gap {
            Some(gap) => format!(", up to {},", gap.last),
            None => String::new(),
        };
        format!(
            "what session {} acknowledged on volume {} after its operation {}{last}",
            self.session, self.volume, self.after
        )
    }
}
