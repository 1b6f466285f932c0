//! Replays the operations that an ended session acknowledged (docs/PROTOCOL.md, rule 7), and
//! handles a mount's own journals at its end.
//!
//! Owns the order of replay. Does not own which sessions ended (`root::session`), their journals
//! (`root::journal`), nor the effect of replay on a volume (`volume::replay`).

use std::collections::VecDeque;
use std::sync::Arc;

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::ingest::NamedPack;
use tokio_util::task::AbortOnDropHandle;

use crate::mounting::error::MountingError;
use crate::root::carried::forget_carried;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::journal::JournalWriter;
use crate::root::record::Replayed;
use crate::root::session::OpenSession;
use crate::root::state::SessionId;
use crate::root::uncovered::UncoveredJournal;
use crate::volume::Volume;
use crate::volume::operations::Operations;
use crate::volume::rescue;

/// The most journals that are read ahead of the one that is carried out.
const AHEAD_MAX: usize = 16;

/// The most bytes of journals that are read ahead, unless the next one alone has more.
const AHEAD_BYTES: u64 = 16 << 20;

/// Replays the acknowledged operations of the ended sessions of `open`, oldest session first, on a
/// volume that has no users yet. Returns the sessions that the first commit takes out of the root.
/// That commit must be made before any other change is accepted. The memory holds at most about
/// 32 MiB of journals at a time, and one that is larger.
///
/// Cancel safety: dropped, it leaves the journals in the bucket for the next takeover. The volume
/// then must not be used.
///
/// # Errors
/// [`MountingError::Root`] for a journal that cannot be read or decoded; [`MountingError::Volume`]
/// if the operations cannot be replayed, or the packs not be read.
pub async fn replay(
    handle: &RootHandle,
    volume: &Volume,
    open: &OpenSession,
) -> Result<Vec<Replayed>, MountingError> {
    take_packs(volume, open).await?;
    let mut replay = volume.replay();
    for ended_session in open.ended_sessions() {
        let journals = &ended_session.journals;
        let mut ahead = ReadAhead::new(handle, open, journals);
        while let Some(operations) = ahead.next().await? {
            replay.carry_out(&operations).await?;
        }
        if let Some(last) = journals.last() {
            tracing::warn!(session = %ended_session.session, journals = journals.len(),
                last = last.summary.last,
                "carried out what an earlier mount had acknowledged and not committed");
        }
    }
    replay.finish().await?;
    let replayed = open.ended_sessions().iter().map(|ended_session| {
        let last = ended_session.journals.last();
        Replayed {
            session: ended_session.session,
            last: last.map_or(0, |journal| journal.summary.last),
        }
    });
    Ok(replayed.collect())
}

/// Journals of an ended session that are read while others are carried out. Each is read by a task:
/// a request that waited for the journals before it would time out. Dropped, it ends the reads.
struct ReadAhead<'a> {
    handle: &'a RootHandle,
    /// The session that holds the volume.
    session: SessionId,
    volume: &'a str,
    unread: &'a [UncoveredJournal],
    /// What is being read, with the length of its object.
    reading: VecDeque<(u64, Reading)>,
}

type Reading = AbortOnDropHandle<Result<Operations, RootError>>;

impl<'a> ReadAhead<'a> {
    fn new(handle: &'a RootHandle, open: &'a OpenSession, unread: &'a [UncoveredJournal]) -> Self {
        Self {
            handle,
            session: open.id(),
            volume: open.volume().unwrap_or_default(),
            unread,
            reading: VecDeque::new(),
        }
    }

    /// Returns the operations of the next journal; none after the last one.
    async fn next(&mut self) -> Result<Option<Operations>, RootError> {
        self.begin_reads();
        let Some((_, reading)) = self.reading.pop_front() else {
            return Ok(None);
        };
        match reading.await {
            Ok(operations) => operations.map(Some),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }

    fn begin_reads(&mut self) {
        while let Some((journal, rest)) = self.unread.split_first() {
            let bytes: u64 = self.reading.iter().map(|(length, _)| length).sum();
            let is_room = bytes + journal.length <= AHEAD_BYTES || self.reading.is_empty();
            if !is_room || self.reading.len() >= AHEAD_MAX {
                return;
            }
            let (handle, volume) = (self.handle.clone(), self.volume.to_owned());
            let read = operations_of(handle, self.session, volume, journal.clone());
            let reading = AbortOnDropHandle::new(tokio::spawn(read));
            self.reading.push_back((journal.length, reading));
            self.unread = rest;
        }
    }
}

/// Reads the operations of a journal, for the session that holds the volume.
async fn operations_of(
    handle: RootHandle,
    session: SessionId,
    volume: String,
    journal: UncoveredJournal,
) -> Result<Operations, RootError> {
    let operations = handle.read_uncovered(&journal, session, &volume).await?;
    Operations::decode(&operations).map_err(|reason| RootError::damaged(&journal.key, reason))
}

/// Makes the packs in the ended sessions' journals this session's own, as far as rule 3 permits:
/// blobs of packs that a collection has condemned since are stored again.
async fn take_packs(volume: &Volume, open: &OpenSession) -> Result<(), MountingError> {
    let ended_sessions = open.ended_sessions().iter();
    let packs = ended_sessions.flat_map(|ended_session| &ended_session.packs);
    let mut own: Vec<NamedPack> = packs.copied().collect();
    own.sort_unstable_by_key(|pack| pack.name);
    own.dedup_by_key(|pack| pack.name);
    Ok(rescue::take(volume.ingest(), own).await?)
}

/// Step `ReplayCommitCas`: commits the replayed operations, and takes their sessions out of the
/// root. Dropped, it leaves the rest to the next takeover.
///
/// # Errors
/// [`MountingError::Volume`] if the commit fails; [`MountingError::Root`] if the sessions cannot be
/// removed.
pub async fn commit_replayed(
    handle: &RootHandle,
    volume: &Volume,
    open: &OpenSession,
) -> Result<(), MountingError> {
    if open.ended_sessions().is_empty() {
        return Ok(());
    }
    volume.commit().await?;
    // No commit was made if all their operations were covered already.
    open.remove_ended_sessions().await?;
    handle.forget_journals(open.ended_sessions()).await;
    Ok(())
}

/// Ends a session after its last commit. A session whose journals hold uncovered operations stays
/// in the root, so that the volume's next holder replays them. Dropped, it leaves the session in
/// the root, or journals that collection removes.
///
/// # Errors
/// Those of [`OpenSession::end`].
pub async fn end(
    open: OpenSession,
    journals: &Arc<JournalWriter>,
    is_committed: bool,
) -> Result<(), RootError> {
    if is_committed {
        // The spool first: objects left in it would be replayed as if no commit covered them.
        journals.forget_kept(u64::MAX).await;
    } else if journals.is_needed() {
        tracing::warn!(
            "acknowledged changes are in no commit: the session stays in the root, and the next \
             mount of the volume carries them out"
        );
        return Ok(());
    }
    open.end().await?;
    // Only now: while its session is in the root, a missing journal looks lost.
    if is_committed {
        journals.covered(u64::MAX).await;
    }
    Ok(())
}

/// Reports operations that this machine sent and no commit covers, of sessions that have left the
/// root. Forgets them once a mount `accepts_loss`. Dropped, it reports them the next time.
pub async fn tell_uncarried(handle: RootHandle, content_store: ContentStore, accepts_loss: bool) {
    let lost = match forget_carried(&handle, &content_store).await {
        Ok(lost) => lost,
        Err(error) => {
            tracing::debug!(%error,
                "whether all that was sent is carried out is left to the next mount");
            return;
        }
    };
    for lost in &lost {
        match accepts_loss {
            true => tracing::error!("{lost}; that is accepted, and not said again"),
            false => tracing::error!(
                "{lost}; store again from its source what this machine wrote since, then give \
                 -o accept_loss to one mount, which ends this message"
            ),
        }
    }
    if let Some(sent) = handle.memory().sent().filter(|_| accepts_loss) {
        sent.forget(lost.into_iter().map(|lost| lost.session)).await;
    }
}
