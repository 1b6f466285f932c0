//! Finds the recovery base of an ended session: the commit that the journals in its local spool
//! follow (docs/PROTOCOL.md, rule 7, "Recovery bases").
//!
//! Owns the reading of such journals, and the choice of the one tree to which their operations
//! apply. Owns neither spools nor the recovery itself.
//!
//! A new holder commits the journals that the ended session has in the bucket before it accepts any
//! operation of its own. So there are two possible trees. The first is the last one that the
//! session committed, if the spooled journals follow it without a gap. The second is the one of the
//! commit right after that, if its record says that it carried out the operations in between: the
//! journals that it does not contain follow it.

use std::future::Future;

use bkfs_chunker::id::Id;
use bytes::Bytes;

use super::error::RootError;
use super::handle::RootHandle;
use super::journal::{JournalEntry, prefix};
use super::record::CommitRecord;
use super::state::{Root, SessionId};
use super::uncovered::open;

/// The largest number of commits that are followed back: about a week of a volume that is written
/// all the time.
const RECORDS_FOLLOWED_MAX: u32 = 20_000;

/// A journal that is kept in the spool on the machine of a session.
#[derive(Clone, Debug)]
pub struct KeptJournal {
    /// The key that it has in the bucket.
    pub key: String,
    /// Its entry without the operations, of which the spool may hold more than there is memory.
    pub entry: JournalEntry,
    /// The start of the hash of its operations, in hexadecimal digits.
    pub digest: String,
}

impl KeptJournal {
    /// Number of hexadecimal digits of a digest.
    const DIGITS: usize = 16;

    /// Returns the journal with this key and entry.
    pub fn of(key: String, mut entry: JournalEntry) -> Self {
        let operations = std::mem::take(&mut entry.operations);
        let digest = blake3::hash(&operations).to_hex()[..Self::DIGITS].to_owned();
        Self { key, entry, digest }
    }
}

/// The journals that are kept in the spool on the machine of a session.
#[derive(Clone, Debug)]
pub struct KeptJournals {
    /// The session.
    pub session: SessionId,
    /// Its volume.
    pub volume: String,
    /// Its journals, by ascending number.
    pub journals: Vec<KeptJournal>,
}

/// The commit that a session's journals follow.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RecoveryBase {
    /// The id of its record; none before a volume's first commit.
    pub commit: Option<Id>,
    /// The root node of its tree.
    pub tree: Option<Id>,
    /// The lowest inode number that was never given out.
    pub next_inode: u64,
    /// The number of inodes in the tree.
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    pub bytes: u64,
}

/// The reasons why no commit is known that the journals follow.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryBaseError {
    /// No volume of the root has the key prefix of the journals.
    #[error("the root names no volume for the journals")]
    NoVolume,
    /// Journals that were in the bucket are missing in between, and no known commit carried them
    /// out.
    #[error("no commit that can be found has operations {from} to {to} of the session")]
    Gap {
        /// The first missing operation.
        from: u64,
        /// The last missing operation.
        to: u64,
    },
    /// The session's commit is not among the volume's last commits.
    #[error(
        "the commit that the journals follow is not among the last {followed} commits of the \
         volume"
    )]
    TooFar {
        /// The number of commits that were read.
        followed: u32,
    },
    /// The root, a commit record or a journal cannot be read.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl RootHandle {
    /// Opens a journal that is kept in a spool.
    ///
    /// # Errors
    /// [`RootError::Unopenable`] or [`RootError::Damaged`] if it is no journal of this repository.
    pub fn open_kept(&self, key: &str, object: &Bytes) -> Result<JournalEntry, RootError> {
        open(self, key, object)
    }

    /// Returns the journals of a session, which are given by ascending number, with their volume.
    /// Returns none if there are none.
    ///
    /// # Errors
    /// [`RecoveryBaseError::NoVolume`] if the root has no volume that they belong to.
    pub fn kept_journals(
        &self,
        session: SessionId,
        journals: Vec<KeptJournal>,
    ) -> Result<Option<KeptJournals>, RecoveryBaseError> {
        let Some(first) = journals.first() else {
            return Ok(None);
        };
        let is_of = |volume: &&String| {
            let prefix = prefix(self.keyring(), volume, session);
            first.key.starts_with(&prefix)
        };
        let view = self.current();
        let volume = view.root.volumes.keys().find(is_of);
        let volume = volume.ok_or(RecoveryBaseError::NoVolume)?.clone();
        Ok(Some(KeptJournals {
            session,
            volume,
            journals,
        }))
    }
}

impl KeptJournals {
    /// Returns the commit that these journals follow, as of `root`, and drops the journals that a
    /// commit contains. Returns none if no journal is left. `read` reads commit records.
    ///
    /// Cancel safety: dropped, it leaves the journals as they were.
    ///
    /// # Errors
    /// - [`RecoveryBaseError::TooFar`] if the commit is not among the last 20,000, or the journals
    ///   name a commit that is not in the chain.
    /// - [`RecoveryBaseError::Gap`] if operations are missing before a journal and no commit
    ///   carried them out.
    /// - [`RecoveryBaseError::Root`] if `read` fails.
    pub async fn stand<F>(
        &mut self,
        root: &Root,
        read: impl Fn(Id) -> F,
    ) -> Result<Option<RecoveryBase>, RecoveryBaseError>
    where
        F: Future<Output = Result<CommitRecord, RootError>>,
    {
        let last = self.journals.last();
        let named = last.and_then(|journal| journal.entry.recovery_base);
        let entry = root.volumes.get(&self.volume);
        let mut next = match root.recovery_base_of(self.session) {
            // The recovery base names the commits, however many followed since.
            Some(kept) => kept.after.or(kept.record),
            None => entry.and_then(|entry| entry.commit),
        };
        let mut after: Option<(Id, CommitRecord)> = None;
        let mut last: Option<(Id, CommitRecord)> = None;
        for followed in 0.. {
            if followed == RECORDS_FOLLOWED_MAX {
                return Err(RecoveryBaseError::TooFar { followed });
            }
            let Some(id) = next else { break };
            let record = read(id).await?;
            if record.session == self.session || Some(id) == named {
                last = Some((id, record));
                break;
            }
            next = record.parent;
            after = Some((id, record));
        }
        if last.is_none() && named.is_some() {
            return Err(RecoveryBaseError::TooFar {
                followed: RECORDS_FOLLOWED_MAX,
            });
        }
        self.choose(last, after)
    }

    fn choose(
        &mut self,
        last: Option<(Id, CommitRecord)>,
        after: Option<(Id, CommitRecord)>,
    ) -> Result<Option<RecoveryBase>, RecoveryBaseError> {
        let own = last
            .as_ref()
            .filter(|(_, record)| record.session == self.session);
        let covered = own.map_or(0, |(_, record)| record.covered);
        self.journals.retain(|journal| journal.entry.last > covered);
        // The last operation of this session whose journal the commit after it carried out.
        let replayed = after
            .as_ref()
            .and_then(|(_, record)| record.replayed.as_ref());
        let mut replayed = replayed.into_iter().flatten();
        let ours = replayed.find(|replayed| replayed.session == self.session);
        let held = ours.map_or(0, |replayed| replayed.last);
        let is_held = |journal: &KeptJournal| journal.entry.last <= held;
        if self.journals.iter().all(is_held) {
            // They had arrived in time; only the answer was lost.
            self.journals.clear();
        }
        if self.journals.is_empty() {
            return Ok(None);
        }
        let chosen = match self.follow(covered) {
            Ok(()) => last,
            Err(_) if held > covered => {
                // Journals from before the gap may remain on a disk that failed to delete them.
                self.journals.retain(|journal| !is_held(journal));
                self.follow(held)?;
                after
            }
            Err(gap) => return Err(gap),
        };
        Ok(Some(
            chosen.map_or_else(RecoveryBase::default, RecoveryBase::of),
        ))
    }

    /// Checks that the journals continue without a gap after operation `reached`.
    fn follow(&self, mut reached: u64) -> Result<(), RecoveryBaseError> {
        for KeptJournal { entry, .. } in &self.journals {
            if entry.first > reached + 1 {
                return Err(RecoveryBaseError::Gap {
                    from: reached + 1,
                    to: entry.first - 1,
                });
            }
            reached = reached.max(entry.last);
        }
        Ok(())
    }
}

impl RecoveryBase {
    fn of((id, record): (Id, CommitRecord)) -> Self {
        Self {
            commit: Some(id),
            tree: record.tree,
            next_inode: record.next_inode,
            inodes: record.inodes,
            bytes: record.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::record::Replayed;
    use bkfs_chunker::ingest::Delivered;
    use std::collections::HashMap;

    const OURS: SessionId = SessionId(7);
    const NEW_HOLDER: SessionId = SessionId(8);

    fn id(number: u8) -> Id {
        Id([number; 32])
    }

    /// Returns a root and the records of a volume's commits, oldest first, each given by its
    /// session and its last covered operation. The new holder's commit with 0 carries out the
    /// journals of `OURS` up to operation 7. Record and tree of the n-th commit have the id
    /// `id(n)`, from 1.
    fn world(commits: &[(SessionId, u64)]) -> (Root, HashMap<Id, CommitRecord>) {
        let mut root = Root::new(bkfs_chunker::crypto::RepositoryId([1; 16]), [0; 16]);
        let mut records = HashMap::new();
        for (number, (session, covered)) in (1..).zip(commits) {
            let record = CommitRecord {
                volume: "main".to_owned(),
                session: *session,
                sequence: u64::from(number),
                parent: (number > 1).then(|| id(number - 1)),
                tree: Some(id(number)),
                time: jiff::Timestamp::UNIX_EPOCH,
                covered: *covered,
                next_inode: 64,
                inodes: 1,
                bytes: 0,
                snapshot: None,
                replayed: (*session == NEW_HOLDER && *covered == 0).then(|| {
                    vec![Replayed {
                        session: OURS,
                        last: 7,
                    }]
                }),
                removes: false,
                generation: None,
            };
            records.insert(id(number), record);
            let volume = root.volumes.entry("main".to_owned()).or_default();
            volume.commit = Some(id(number));
        }
        (root, records)
    }

    fn kept(recovery_base: Option<u8>, operations: &[(u64, u64)]) -> KeptJournals {
        let journal = |(first, last): &(u64, u64)| {
            let entry = JournalEntry {
                first: *first,
                recovery_base: recovery_base.map(id),
                ..JournalEntry::new(*last..=*last, Delivered::default(), Vec::new())
            };
            KeptJournal::of(String::new(), entry)
        };
        KeptJournals {
            session: OURS,
            volume: "main".to_owned(),
            journals: operations.iter().map(journal).collect(),
        }
    }

    /// Returns the number of the chosen commit (0 for none), and the first operation that is
    /// carried out on it.
    async fn stands(
        commits: &[(SessionId, u64)],
        mut kept: KeptJournals,
    ) -> Result<Option<(u8, u64)>, String> {
        let (root, records) = world(commits);
        let read = |id| std::future::ready(Ok(records[&id].clone()));
        let recovery_base = kept.stand(&root, read).await;
        let recovery_base = recovery_base.map_err(|error| error.to_string())?;
        let number = |recovery_base: RecoveryBase| recovery_base.commit.map_or(0, |id| id.0[0]);
        Ok(
            recovery_base
                .map(|recovery_base| (number(recovery_base), kept.journals[0].entry.first)),
        )
    }

    #[tokio::test]
    async fn journals_stand_on_their_sessions_last_commit() {
        let commits = [(OURS, 3), (OURS, 5), (NEW_HOLDER, 2), (NEW_HOLDER, 9)];
        let found = stands(&commits, kept(None, &[(4, 5), (6, 6), (7, 9)])).await;
        assert_eq!(found, Ok(Some((2, 6))));
        // A journal that a commit covers in part is carried out whole.
        assert_eq!(
            stands(&commits, kept(None, &[(4, 6)])).await,
            Ok(Some((2, 4)))
        );
    }

    #[tokio::test]
    async fn journals_that_the_new_holder_found_lie_in_its_first_commit() {
        let commits = [(OURS, 5), (NEW_HOLDER, 0), (NEW_HOLDER, 4)];
        let found = stands(&commits, kept(None, &[(8, 8), (9, 9)])).await;
        assert_eq!(found, Ok(Some((2, 8))));
        let too_few = stands(&commits, kept(None, &[(9, 9)])).await;
        assert!(too_few.unwrap_err().contains("operations 8 to 8"));
        for other in [&commits[..1], &[(OURS, 5), (NEW_HOLDER, 2)]] {
            let gap = stands(other, kept(None, &[(8, 8)])).await;
            assert!(gap.unwrap_err().contains("operations 6 to 7"));
        }
    }

    #[tokio::test]
    async fn a_journal_that_stayed_before_the_gap_hides_nothing() {
        let commits = [(OURS, 5), (NEW_HOLDER, 0), (NEW_HOLDER, 4)];
        let found = stands(&commits, kept(None, &[(6, 6), (8, 9)])).await;
        assert_eq!(found, Ok(Some((2, 8))));
        let beyond = stands(&commits, kept(None, &[(6, 6), (9, 9)])).await;
        assert!(beyond.unwrap_err().contains("operations 8 to 8"));
        let gap = stands(&[(OURS, 5), (NEW_HOLDER, 2)], kept(None, &[(6, 6), (8, 9)])).await;
        assert!(gap.unwrap_err().contains("operations 7 to 7"));
    }

    #[tokio::test]
    async fn a_session_without_a_commit_stands_where_it_began() {
        let commits = [(SessionId(1), 5), (NEW_HOLDER, 0), (NEW_HOLDER, 4)];
        let found = stands(&commits, kept(Some(1), &[(1, 1), (2, 8)])).await;
        assert_eq!(found, Ok(Some((1, 1))));
        assert_eq!(
            stands(&commits, kept(Some(1), &[(8, 8)])).await,
            Ok(Some((2, 8)))
        );
        assert_eq!(
            stands(&[(NEW_HOLDER, 4)], kept(None, &[(1, 1)])).await,
            Ok(Some((0, 1)))
        );
        // `id(9)` is not a commit of this volume.
        assert!(stands(&commits, kept(Some(9), &[(1, 1)])).await.is_err());
    }

    #[tokio::test]
    async fn what_is_committed_or_torn_is_not_carried_out() {
        let commits = [(OURS, 9), (NEW_HOLDER, 0)];
        assert_eq!(
            stands(&commits, kept(None, &[(8, 8), (9, 9)])).await,
            Ok(None)
        );
        let arrived = [(OURS, 5), (NEW_HOLDER, 0), (NEW_HOLDER, 4)];
        assert_eq!(
            stands(&arrived, kept(None, &[(6, 6), (7, 7)])).await,
            Ok(None)
        );
        let torn = stands(&commits, kept(None, &[(10, 10), (12, 12)])).await;
        assert!(torn.unwrap_err().contains("operations 11 to 11"));
    }
}
