//! Sessions: how a writer enters the root, takes a volume, and leaves (docs/PROTOCOL.md, rules 2
//! and 7).
//!
//! Owns registration, the judgement about a volume's holder, and takeover. [`super::leaving`] ends
//! a session, [`super::heartbeat`] has the heartbeats, [`super::transition`] the conditions of each
//! change.
//!
//! A session enters the root and takes its volume in one compare-and-swap, before its first upload.
//! If the volume is held, its holder is judged first. On the same boot and pid namespace, the
//! judgement asks whether the holder's process exists; elsewhere it observes the heartbeat. The
//! compare-and-swap names the one holder that was judged, so no other session loses the volume. A
//! wrong judgement costs the holder its mount, and never acknowledged data.

use super::ended_sessions::{EndedSession, accept_loss, ended_sessions, require_whole};
use super::entering::{Entering, Purpose, draw_id};
use super::error::RootError;
use super::fence;
use super::gap::Gap;
use super::handle::{RootHandle, Transition};
use super::heartbeat::{Heartbeat, Watched, watch_holder};
use super::holder::{LocalVerdict, Processes};
use super::refusal::Refusal;
use super::request::{KnownSpools, VolumeRequest};
use super::state::{HolderInfo, Root, SessionId, SessionState};
use super::transition::Claim;
use super::uncovered::Known;
use async_trait::async_trait;

/// The number of successive holders that are judged before the volume counts as held.
const JUDGEMENTS_MAX: u32 = 8;

/// A session that is registered in the root, with its heartbeat.
#[derive(Debug)]
pub struct OpenSession {
    pub(super) handle: RootHandle,
    pub(super) id: SessionId,
    pub(super) volume: Option<String>,
    /// The process behind it.
    pub(super) holder: HolderInfo,
    pub(super) heartbeat: Heartbeat,
    /// The holder from which the volume was taken over.
    taken_from: Option<HolderInfo>,
    ended_sessions: Vec<EndedSession>,
    /// What is missing of ended sessions, and was accepted as lost.
    gaps: Vec<Gap>,
    /// Ended sessions that leave no recovery base.
    claimed: Vec<SessionId>,
    /// Sessions of the same mount from which it may have taken the volume.
    pub(super) former: Vec<SessionId>,
}

impl OpenSession {
    /// Enters the root as `holder`, and takes `volume` if one is requested. Assumes no knowledge of
    /// the spools on this machine: see [`Self::open_with`].
    ///
    /// Cancel safety: dropped, it may leave the new session in the root without a heartbeat, and
    /// its volume taken. On other machines the session counts as dead after
    /// [`DEAD_AFTER`](super::heartbeat::DEAD_AFTER), on this one once this process has ended.
    ///
    /// # Errors
    /// - [`RootError::Refused`] with [`Refusal::Held`] if the volume's holder is alive.
    /// - [`RootError::JournalsMissing`] if journals with acknowledged operations are missing, and
    ///   the request does not accept that.
    /// - [`RootError::Damaged`] or [`RootError::Unopenable`] if a journal of an ended session of
    ///   the volume cannot be read.
    /// - [`RootError::OutcomeUnknown`] if the session may be in the root. It then counts as dead
    ///   later, as after a drop.
    /// - The other errors of [`RootHandle::update`].
    pub async fn open(
        handle: &RootHandle,
        holder: HolderInfo,
        volume: Option<VolumeRequest>,
        processes: &dyn Processes,
    ) -> Result<Self, RootError> {
        Self::open_with(handle, holder, volume, processes, KnownSpools::default()).await
    }

    /// Same as [`Self::open`], for a process that has examined the spools on this machine before.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_with(
        handle: &RootHandle,
        holder: HolderInfo,
        volume: Option<VolumeRequest>,
        processes: &dyn Processes,
        spools: KnownSpools,
    ) -> Result<Self, RootError> {
        let entering = Entering {
            spools,
            ..Entering::new(handle, holder, processes)
        };
        let Some(request) = volume else {
            return Self::without_volume(entering).await;
        };
        let entered = entering.enter_volume(&request).await?;
        Self::begin(entering, request, entered).await
    }

    /// Returns an id for a session that enters by [`Self::open_as`].
    pub fn draw_id(handle: &RootHandle) -> SessionId {
        draw_id(handle)
    }

    /// Same, with a volume, under an id that was drawn before. So the caller can end the session by
    /// [`Self::end_left`] whatever comes of this call.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_as(
        id: SessionId,
        handle: &RootHandle,
        holder: HolderInfo,
        request: VolumeRequest,
        processes: &dyn Processes,
        spools: KnownSpools,
    ) -> Result<Self, RootError> {
        let entering = Entering {
            id,
            spools,
            ..Entering::new(handle, holder, processes)
        };
        let entered = entering.enter_volume(&request).await?;
        Self::begin(entering, request, entered).await
    }

    /// Enters the root as `holder`, as [`Self::open`] without a volume. Tries the newest root known
    /// first, which saves a request.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_known(
        handle: &RootHandle,
        holder: HolderInfo,
        processes: &dyn Processes,
        spools: KnownSpools,
    ) -> Result<Self, RootError> {
        let entering = Entering {
            spools,
            ..Entering::new(handle, holder, processes)
        };
        let base = entering.enter_known().await?;
        Ok(Self::registered(
            handle,
            entering.id,
            None,
            entering.holder,
            base,
        ))
    }

    /// Enters the root as `holder` in the place of a dead maintenance session, which the same
    /// replacement removes (step `EndSessionCas`): a root that is full of sessions has no other
    /// place.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// [`RootError::Refused`] with [`Refusal::Held`] if the dead session has a volume: it ends when
    /// that volume is taken. Those of [`Self::open`].
    pub async fn open_in_place_of(
        handle: &RootHandle,
        holder: HolderInfo,
        dead: SessionId,
        processes: &dyn Processes,
    ) -> Result<Self, RootError> {
        Self::without_volume(Entering {
            purpose: Purpose::End(dead),
            ..Entering::new(handle, holder, processes)
        })
        .await
    }

    /// Enters the root as `holder` to give up recovery bases, also if it is full of sessions.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_to_give_up(
        handle: &RootHandle,
        holder: HolderInfo,
        processes: &dyn Processes,
    ) -> Result<Self, RootError> {
        Self::without_volume(Entering {
            purpose: Purpose::GiveUp,
            ..Entering::new(handle, holder, processes)
        })
        .await
    }

    /// Enters the root as `holder`, if `permits` returns no refusal of the root that is replaced.
    ///
    /// Cancel safety: as of [`Self::open`].
    ///
    /// # Errors
    /// The refusal; those of [`Self::open`].
    pub async fn open_if(
        handle: &RootHandle,
        holder: HolderInfo,
        permits: &(dyn Fn(&Root) -> Result<(), Refusal> + Sync),
        processes: &dyn Processes,
    ) -> Result<Self, RootError> {
        Self::without_volume(Entering {
            permits,
            ..Entering::new(handle, holder, processes)
        })
        .await
    }

    async fn without_volume(entering: Entering<'_>) -> Result<Self, RootError> {
        let base = entering.enter(None).await?;
        let Entering {
            handle, id, holder, ..
        } = entering;
        Ok(Self::registered(handle, id, None, holder, base))
    }

    /// Returns a session that `holder` has registered already, with this volume if it has one, at a
    /// base epoch. No ended session has left journals of the volume.
    pub(super) fn registered(
        handle: &RootHandle,
        id: SessionId,
        volume: Option<String>,
        holder: HolderInfo,
        base: u64,
    ) -> Self {
        Self {
            handle: handle.clone(),
            id,
            heartbeat: Heartbeat::start(handle.clone(), id, volume.clone(), holder.clone(), base),
            volume,
            holder,
            taken_from: None,
            ended_sessions: Vec::new(),
            gaps: Vec::new(),
            claimed: Vec::new(),
            former: Vec::new(),
        }
    }

    /// Lets a new session take the volume over from this one, which can store nothing more. The
    /// operations that this session acknowledged are then replayed. `accepts_loss` has the meaning
    /// of [`VolumeRequest::accept_loss`]. The id of the new session is added to `successors` before
    /// it enters the root: if this call or what follows it fails, that session may hold the volume,
    /// or be the only one of this mount in the root. The next call then succeeds it in the place of
    /// this session.
    ///
    /// Cancel safety: as of [`Self::open`]. This session may be ending in the root then.
    ///
    /// # Errors
    /// - [`RootError::Refused`] with [`Refusal::Held`] if another session took the volume over
    ///   meanwhile, and with [`Refusal::Fenced`] if that one has left again.
    /// - [`RootError::JournalsMissing`] as of [`Self::open`]. This session then still holds the
    ///   volume, unless the loss showed only after the takeover.
    /// - The other errors of [`Self::open`].
    pub async fn succeed(
        &self,
        successors: &mut Vec<SessionId>,
        holder: HolderInfo,
        processes: &dyn Processes,
        spools: KnownSpools,
        accepts_loss: bool,
    ) -> Result<Self, RootError> {
        let handle = &self.handle;
        let Some(volume) = self.volume.clone() else {
            return Self::open_with(handle, holder, None, processes, spools).await;
        };
        let entering = Entering {
            spools,
            ..Entering::new(handle, holder, processes)
        };
        // A successor whose entry had no answer may be made by that.
        let view = handle.settle().await?;
        let root = &view.root;
        let holder = root.volumes.get(&volume).and_then(|entry| entry.holder);
        let ours = [&[self.id], successors.as_slice()].concat();
        let last = ours.iter().rfind(|id| match holder {
            Some(holder) => **id == holder,
            None => root.sessions.contains_key(id),
        });
        let claim = Claim::Succeed(*last.unwrap_or(&self.id));
        let known = look_before(handle, &volume, accepts_loss).await?;
        successors.push(entering.id);
        let base = entering.enter(Some((&volume, claim))).await?;
        let request = VolumeRequest {
            name: volume,
            steal: false,
            accept_loss: accepts_loss,
        };
        let entered = Entered {
            base,
            taken_from: None,
            known,
            former: ours,
        };
        Self::begin(entering, request, entered).await
    }

    /// Starts the session that has just taken `volume`, and reads the journals of its ended
    /// sessions.
    async fn begin(
        entering: Entering<'_>,
        request: VolumeRequest,
        entered: Entered,
    ) -> Result<Self, RootError> {
        let Entering {
            handle,
            id,
            holder,
            spools,
            ..
        } = entering;
        let VolumeRequest {
            name: volume,
            accept_loss,
            ..
        } = request;
        let Entered {
            base,
            taken_from,
            known,
            former,
        } = entered;
        let of = Some(volume.clone());
        let heartbeat = Heartbeat::start(handle.clone(), id, of, holder.clone(), base);
        let mut session = Self {
            handle: handle.clone(),
            id,
            volume: Some(volume),
            holder,
            heartbeat,
            taken_from,
            ended_sessions: Vec::new(),
            gaps: Vec::new(),
            claimed: [spools.empty, spools.brought].concat(),
            former,
        };
        match session.find_ended_sessions(known, accept_loss).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // The ended sessions stay in the root for a later session that can replay them.
                if let Err(left) = session.end_unbegun().await {
                    tracing::warn!(error = %left,
                        "a session that could not begin stays in the root");
                }
                Err(error)
            }
        }
    }

    /// Returns its id, which is part of the names of its packs.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the volume that it writes.
    pub fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    /// Returns its heartbeat, which reports when the session is fenced.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Returns the holder that it took the volume from, if there was one.
    pub fn taken_from(&self) -> Option<&HolderInfo> {
        self.taken_from.as_ref()
    }

    /// Returns what ended sessions of the volume acknowledged and no commit covers, oldest session
    /// first. If there is any, it must be replayed and committed before this session accepts an
    /// operation: the root refuses a commit that leaves one of them out.
    pub fn ended_sessions(&self) -> &[EndedSession] {
        &self.ended_sessions
    }

    /// Returns what is missing of the ended sessions, and was accepted as lost.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns the ended sessions whose spools on this machine hold nothing that their journals in
    /// [`Self::ended_sessions`] do not. They leave no recovery base.
    pub fn claimed(&self) -> &[SessionId] {
        &self.claimed
    }

    /// Reads the journals of the ended sessions (step `TakeList`). If there is nothing to replay,
    /// removes these sessions from the root (`ReplayCommitCas`).
    async fn find_ended_sessions(&mut self, known: Known, accepts: bool) -> Result<(), RootError> {
        let Some(volume) = &self.volume else {
            return Ok(());
        };
        let announce = self.heartbeat.announce(&self.handle, self.id);
        fence::begin(&self.handle, self.id, volume, announce).await?;
        let root = &self.handle.current().root;
        let ended_sessions = ended_sessions(&self.handle, root, volume, known).await?;
        let gaps: Vec<_> = ended_sessions
            .iter()
            .filter_map(|ended_session| ended_session.gap.clone())
            .collect();
        if !gaps.is_empty() && !accepts {
            return Err(RootError::JournalsMissing { gaps });
        }
        for ended_session in &ended_sessions {
            accept_loss(&self.handle, ended_session).await?;
        }
        self.gaps = gaps;
        let mut journals = ended_sessions.iter().map(|ended| &ended.journals);
        if journals.any(|journals| !journals.is_empty()) {
            self.ended_sessions = ended_sessions;
            return Ok(());
        }
        self.remove(&ended_sessions).await?;
        self.handle.forget_journals(&ended_sessions).await;
        Ok(())
    }

    /// Removes the ended sessions from the root if they are still there (step `ReplayCommitCas`).
    /// The volume's tree must already contain all their operations.
    ///
    /// Cancel safety: dropped, it leaves the change unsent, or sent with an unknown outcome, which
    /// the handle settles before its next change.
    ///
    /// # Errors
    /// [`RootError::Refused`] with [`Refusal::Fenced`] if the volume was taken over meanwhile, or
    /// with [`Refusal::RecoveryBasesFull`]; the other errors of [`RootHandle::update`].
    pub async fn remove_ended_sessions(&self) -> Result<(), RootError> {
        self.remove(&self.ended_sessions).await
    }

    async fn remove(&self, ended_sessions: &[EndedSession]) -> Result<(), RootError> {
        let root = &self.handle.current().root;
        let ended = ended_sessions
            .iter()
            .map(|ended_session| ended_session.session);
        let ended: Vec<SessionId> = ended.filter(|id| root.sessions.contains_key(id)).collect();
        let (Some(volume), false) = (&self.volume, ended.is_empty()) else {
            return Ok(());
        };
        let mut transition = RemoveReplayed {
            id: self.id,
            volume,
            ended: &ended,
            claimed: &self.claimed,
        };
        self.handle.update(&mut transition).await?;
        Ok(())
    }
}

/// The result of entering the root with a volume.
struct Entered {
    /// The first base epoch of the session.
    base: u64,
    /// The holder that was taken over.
    taken_from: Option<HolderInfo>,
    /// Journals that were read before the takeover.
    known: Known,
    /// As of [`OpenSession`].
    former: Vec<SessionId>,
}

impl Entering<'_> {
    /// Enters the root with a volume. First judges the volume's holder, and checks that no journal
    /// is missing.
    async fn enter_volume(&self, request: &VolumeRequest) -> Result<Entered, RootError> {
        let mut last = None;
        for _ in 0..JUDGEMENTS_MAX {
            let judged = judge(self.handle, &self.holder, request, self.processes);
            let (claim, taken_from) = judged.await?;
            let known = look_before(self.handle, &request.name, request.accept_loss).await?;
            match self.enter(Some((&request.name, claim))).await {
                Ok(base) => {
                    return Ok(Entered {
                        base,
                        taken_from,
                        known,
                        former: Vec::new(),
                    });
                }
                Err(error @ RootError::Refused(Refusal::Held { .. })) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(RootError::Contended {
            attempts: JUDGEMENTS_MAX,
        }))
    }
}

/// Checks before a takeover that no journal of the volume is missing, unless the user accepts that.
/// Returns the journals that were read.
async fn look_before(
    handle: &RootHandle,
    volume: &str,
    accepts_loss: bool,
) -> Result<Known, RootError> {
    match accepts_loss {
        true => Ok(Known::default()),
        false => require_whole(handle, volume).await,
    }
}

/// Decides from which holder the volume may be taken.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Held`] if its holder is alive; the errors of
/// [`RootHandle::refresh`].
async fn judge(
    handle: &RootHandle,
    here: &HolderInfo,
    request: &VolumeRequest,
    processes: &dyn Processes,
) -> Result<(Claim, Option<HolderInfo>), RootError> {
    let volume = &request.name;
    loop {
        let view = handle.refresh().await?;
        let Some(session) = view.root.volumes.get(volume).and_then(|entry| entry.holder) else {
            return Ok((Claim::Free, None));
        };
        let by = view
            .root
            .sessions
            .get(&session)
            .map(|session| session.holder.clone())
            .unwrap_or_default();
        if request.steal {
            return Ok((Claim::Steal, Some(by)));
        }
        let held = |by: HolderInfo| {
            RootError::Refused(Refusal::Held {
                volume: volume.clone(),
                session,
                by: Box::new(by),
            })
        };
        match by.judge_locally(here, processes) {
            LocalVerdict::Dead => return Ok((Claim::Dead(session), Some(by))),
            LocalVerdict::Alive => return Err(held(by)),
            LocalVerdict::Elsewhere => {}
        }
        tracing::info!(volume, holder = %by,
            "the volume is held from elsewhere; watching whether its holder lives");
        match watch_holder(handle, session, Some(volume)).await? {
            Watched::Alive => return Err(held(by)),
            Watched::Dead => return Ok((Claim::Dead(session), Some(by))),
            Watched::Left => {}
        }
    }
}

struct RemoveReplayed<'a> {
    id: SessionId,
    volume: &'a str,
    ended: &'a [SessionId],
    claimed: &'a [SessionId],
}

#[async_trait]
impl Transition for RemoveReplayed<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.id)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let Self {
            id,
            volume,
            ended,
            claimed,
        } = self;
        Ok(next.remove_replayed(*id, volume, ended, claimed)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let stands = |id: &SessionId| {
            root.sessions
                .get(id)
                .is_some_and(|session| session.state == SessionState::Ending)
        };
        Ok(!self.ended.iter().any(stands))
    }
}
