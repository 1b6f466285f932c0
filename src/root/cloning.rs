//! The replacement of the root that makes a clone (docs/PROTOCOL.md, rule 14).
//!
//! Owns its order: the commit record of the clone is in the bucket before the root names it, and
//! the snapshot and the name are looked up in the root that is replaced, at each attempt. Does not
//! own the conditions ([`super::volumes`]), nor which snapshot is cloned.
//!
//! The record has no parent. So a root that is rebuilt from records has the clone as a volume of
//! its own, and a clone needs no record of its source, which may be forgotten.

use super::commit::follows;
use super::error::RootError;
use super::finish::PackFinisher;
use super::handle::Transition;
use super::lists::Lists;
use super::record::CommitRecord;
use super::refusal::Refusal;
use super::relied::check_relied_on;
use super::session::OpenSession;
use super::snapshots::SnapshotEntry;
use super::state::{Root, SessionId};
use super::uploads::Uploads;
use super::volumes::CloneChange;
use async_trait::async_trait;
use jiff::Timestamp;

/// Index objects in the root up to which a clone adds one, and absorbs none.
const INDEXES_MAX: usize = 64;

/// A clone to make.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    /// The snapshot.
    pub source: SnapshotEntry,
    /// The name of the new volume.
    pub name: String,
    /// The lowest inode number that the tree of the snapshot never used.
    pub next_inode: u64,
    /// The number of its first commit ([`first_number`](super::commit::first_number)).
    pub sequence: u64,
    /// The time on the host's clock.
    pub clock: Timestamp,
}

/// A clone that is in the root.
#[derive(Debug)]
pub struct MadeClone {
    /// The generation of the root that made it, or if that is unknown, of a later one.
    pub generation: u64,
    /// The session that holds it, if one was to.
    pub session: Option<OpenSession>,
}

/// Makes a clone in the name of `session`, which holds no volume. Unless `is_held`, the session
/// leaves the root in the same replacement. `uploads` stores for this session.
///
/// Cancel safety: dropped, it leaves a commit record that no root names, or the replacement sent
/// with an unknown outcome; and the session maybe in the root without a heartbeat.
///
/// # Errors
/// - [`RootError::NoSnapshot`] if the root that is replaced does not have the snapshot.
/// - [`RootError::Refused`] with [`Refusal::VolumeTaken`] or [`Refusal::BadName`] for the name, and
///   with [`Refusal::Fenced`] if the session was ended.
/// - [`RootError::OutcomeUnknown`] if the clone may be there.
/// - [`RootError::Content`] and the other errors of
///   [`RootHandle::update`](super::handle::RootHandle::update).
pub async fn make_clone<U: Uploads>(
    session: OpenSession,
    lists: &Lists,
    (uploads, mark): (&U, U::Mark),
    request: &CloneRequest,
    is_held: bool,
) -> Result<MadeClone, RootError> {
    let record = record_of(request, session.id()).encode();
    let record = match uploads.store_record(record).await {
        Ok(record) => record,
        Err(error) => {
            leave(session).await;
            return Err(error);
        }
    };
    let mut cas = CloneCas {
        change: CloneChange {
            session: session.id(),
            volume: request.name.clone(),
            commit: record,
            next_inode: request.next_inode,
            sequence: request.sequence,
            is_held,
        },
        source: &request.source,
        lists,
        uploads,
        packs: PackFinisher::since(mark),
    };
    let made = match is_held {
        true => {
            let held = session.hold_by(&request.name, &mut cas).await;
            held.map(|(session, applied)| (Some(session), applied))
        }
        false => session
            .end_by(&mut cas)
            .await
            .map(|applied| (None, applied)),
    };
    cas.packs.settle(uploads, made.is_ok());
    let (session, applied) = made?;
    Ok(MadeClone {
        generation: applied.generation,
        session,
    })
}

/// Ends a session that has changed nothing.
async fn leave(session: OpenSession) {
    if let Err(error) = session.end().await {
        tracing::warn!(%error, "a session without a change stays in the root");
    }
}

/// Returns the commit record of the clone.
fn record_of(request: &CloneRequest, session: SessionId) -> CommitRecord {
    CommitRecord {
        volume: request.name.clone(),
        session,
        sequence: request.sequence,
        parent: None,
        tree: request.source.tree,
        time: request.clock,
        covered: 0,
        next_inode: request.next_inode,
        inodes: request.source.files,
        bytes: request.source.bytes,
        snapshot: None,
        replayed: None,
        removes: false,
    }
}

struct CloneCas<'a, U: Uploads> {
    change: CloneChange,
    source: &'a SnapshotEntry,
    lists: &'a Lists,
    uploads: &'a U,
    packs: PackFinisher<U::Mark>,
}

#[async_trait]
impl<U: Uploads> Transition for CloneCas<'_, U> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.change.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let kept = self.lists.snapshots(next).await?;
        // Before anything is uploaded for a clone that this root refuses.
        next.clone().add_clone(&self.change, self.source, &kept)?;
        // To absorb other index objects would cost a round trip more.
        let absorbed = match next.index.len() > INDEXES_MAX {
            true => next.uncovered_index(),
            false => Vec::new(),
        };
        let index = self.packs.finish_for(self.uploads, &absorbed).await?;
        let finished = self.packs.finished().ok_or(Refusal::ListsChanged)?;
        let by = (self.change.session, &[][..]);
        check_relied_on(next, finished, by, self.lists, self.uploads).await?;
        next.raise_floor(self.change.session, finished.floor);
        next.add_clone(&self.change, self.source, &kept)?;
        Ok(next.change_index(&index)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let CloneChange {
            session,
            volume,
            commit,
            sequence,
            ..
        } = &self.change;
        if let Some(session) = root.sessions.get(session) {
            // It got the volume in this change, and a session that was to leave is still there.
            return Ok(session.volume.as_ref() == Some(volume));
        }
        // Either the change removed the session, or another session did and the change was refused.
        let commit = (*sequence, *commit);
        let is_made = match root.volumes.get(volume) {
            Some(entry) => follows(root, self.lists, self.uploads, entry, commit).await?,
            None => false,
        };
        match is_made {
            true => Ok(true),
            false => Err(RootError::OutcomeUnknown {
                reason: "another program has ended the session of this command".to_owned(),
            }),
        }
    }
}
