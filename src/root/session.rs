//! Sessions: how a writer enters the root, takes a volume, and leaves (protocol.md, rules 2 and 7).
//!
//! Owns registration, the judgement over a volume's holder, takeover, and the end of a session. Heartbeats are in [`super::heartbeat`], conditions in
//! [`super::transition`].
//!
//! A session enters the root and takes its volume in one compare-and-swap, before its first upload. If the volume is held, its holder is judged before:
//! on the same boot and pid namespace by whether its process is there, elsewhere by its heartbeat. The swap then names the one holder it was judged for, so
//! that nobody else loses the volume. A wrong judgement costs the victim its mount, never acknowledged data.

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::heartbeat::{Heartbeat, Watched, watch_holder};
use super::holder::{LocalVerdict, Processes};
use super::sent::Sent;
use super::state::{HolderInfo, Root, Session, SessionId, SessionState, SpoolId};
use super::transition::{Claim, Refusal};
use super::victims::{Known, Victim, accept_loss, require_whole, victims};
use async_trait::async_trait;

/// How many holders in a row are judged before a volume counts as held.
const JUDGEMENTS_MAX: u32 = 8;

/// Which volume a session wants to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeRequest {
    /// Its name; it is created if absent.
    pub name: String,
    /// Take it over from whoever holds it, alive or not.
    pub steal: bool,
    /// Go on without what was acknowledged and is in no journal any more.
    pub accept_loss: bool,
}

/// What whoever enters knows of the spools of its machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KnownSpools {
    /// Where the session's own lies, if it gets one.
    pub own: Option<SpoolId>,
    /// Sessions with spools here that hold nothing that was acknowledged and is in no commit.
    pub empty: Vec<SessionId>,
    /// Sessions whose spools were brought into the bucket: whoever takes their volume over from now
    /// on finds it there.
    pub brought: Vec<SessionId>,
}

/// A session that stands in the root, with its heartbeat.
#[derive(Debug)]
pub struct OpenSession {
    handle: RootHandle,
    id: SessionId,
    volume: Option<String>,
    heartbeat: Heartbeat,
    /// Who held the volume before and was taken over.
    taken_from: Option<HolderInfo>,
    victims: Vec<Victim>,
    /// Ended sessions that leave no ground.
    claimed: Vec<SessionId>,
}

impl OpenSession {
    /// Enters the root, as `holder`, and takes `volume` if one is wanted. What spools of this machine
    /// hold is not known: see [`Self::open_with`].
    ///
    /// # Errors
    /// A refusal of kind `Held` if the volume's holder lives; [`RootError::JournalsMissing`] if
    /// what was acknowledged is in no journal any more, and that is not accepted; `Damaged` if the
    /// journal of an ended session of the volume cannot be read; [`RootError::OutcomeUnknown`] if the session may stand in the root (it then counts as dead after a while).
    pub async fn open(
        handle: &RootHandle,
        holder: HolderInfo,
        volume: Option<VolumeRequest>,
        processes: &dyn Processes,
    ) -> Result<Self, RootError> {
        Self::open_with(handle, holder, volume, processes, KnownSpools::default()).await
    }

    /// The same for one that has looked at the spools of this machine, before.
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
            handle,
            id: draw_id(handle),
            holder,
            processes,
            spools,
        };
        let Some(request) = volume else {
            let base = entering.enter(None).await?;
            let heartbeat = Heartbeat::start(handle.clone(), entering.id, None, base);
            return Ok(Self {
                handle: handle.clone(),
                id: entering.id,
                volume: None,
                heartbeat,
                taken_from: None,
                victims: Vec::new(),
                claimed: Vec::new(),
            });
        };
        let entered = entering.enter_volume(&request).await?;
        Self::begin(entering, request, entered).await
    }

    /// A new session takes the volume over from this one, which can store nothing more; what this one
    /// acknowledged is replayed. `accepts_loss` is [`VolumeRequest::accept_loss`].
    ///
    /// # Errors
    /// A refusal of kind `Held` if another session took the volume over meanwhile, and of kind
    /// `Fenced` if that one has left again; otherwise those of [`Self::open`]. After
    /// [`RootError::JournalsMissing`] this session has the volume still.
    pub async fn succeed(
        &self,
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
            handle,
            id: draw_id(handle),
            holder,
            processes,
            spools,
        };
        handle.refresh().await?;
        let known = look_before(handle, &volume, accepts_loss).await?;
        let claim = Claim::Succeed(self.id);
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
        };
        Self::begin(entering, request, entered).await
    }

    /// Starts the session that has just taken `volume`, with what its predecessors left.
    async fn begin(
        entering: Entering<'_>,
        request: VolumeRequest,
        entered: Entered,
    ) -> Result<Self, RootError> {
        let Entering {
            handle, id, spools, ..
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
        } = entered;
        let heartbeat = Heartbeat::start(handle.clone(), id, Some(volume.clone()), base);
        let mut session = Self {
            handle: handle.clone(),
            id,
            volume: Some(volume),
            heartbeat,
            taken_from,
            victims: Vec::new(),
            claimed: [spools.empty, spools.brought].concat(),
        };
        match session.find_victims(known, accept_loss).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // The victims stay in the root, ending, for whoever can replay them.
                if let Err(left) = session.end().await {
                    tracing::warn!(error = %left, "a session that could not begin stays in the root");
                }
                Err(error)
            }
        }
    }

    /// Its id, which names its packs.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The volume it writes.
    pub fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    /// Its heartbeat, which tells when it was fenced.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Whom it took the volume from, if anybody held it.
    pub fn taken_from(&self) -> Option<&HolderInfo> {
        self.taken_from.as_ref()
    }

    /// Leaves the root, after the last commit: everything accepted must be covered. The volume becomes free.
    ///
    /// # Errors
    /// A refusal of kind `Fenced` if it was taken over before.
    pub async fn end(self) -> Result<(), RootError> {
        let Self {
            handle,
            id,
            heartbeat,
            ..
        } = self;
        heartbeat.stop().await;
        let mut end = End { id, covered: 0 };
        handle.update(&mut end).await?;
        if let Some(sent) = handle.memory().sent() {
            // What no commit covers is told by the next mount.
            let is_covered = |sent: Sent| sent.last <= end.covered;
            if sent.recall(id).await.is_none_or(is_covered) {
                sent.forget([id]).await;
            }
        }
        // Nobody looks at the heartbeat of a session that is in no root; one that stays (no permission, no answer) is garbage.
        if let Err(error) = handle.store().delete(&id.key()).await {
            tracing::debug!(session = %id, %error, "the heartbeat object of an ended session stays behind");
        }
        Ok(())
    }

    /// What ended sessions of the volume acknowledged and no commit covers, oldest session first. Empty, or to be replayed and committed before anything else is
    /// accepted: the root takes no commit that leaves one of them out.
    pub fn victims(&self) -> &[Victim] {
        &self.victims
    }

    /// Ended sessions of which the spools of this machine are known to hold nothing that is not among
    /// the victims' journals: they leave no ground.
    pub fn claimed(&self) -> &[SessionId] {
        &self.claimed
    }

    /// Steps `TakeList` and, if there is nothing to replay, `ReplayCommitCas`: ended sessions whose journals hold nothing uncovered leave the root.
    async fn find_victims(&mut self, known: Known, accepts: bool) -> Result<(), RootError> {
        let Some(volume) = &self.volume else {
            return Ok(());
        };
        let root = &self.handle.current().root;
        let victims = victims(&self.handle, root, volume, known).await?;
        let gaps: Vec<_> = victims
            .iter()
            .filter_map(|victim| victim.gap.clone())
            .collect();
        if !gaps.is_empty() && !accepts {
            return Err(RootError::JournalsMissing { gaps });
        }
        for victim in &victims {
            accept_loss(&self.handle, victim).await?;
        }
        if victims.iter().any(|victim| !victim.entries.is_empty()) {
            self.victims = victims;
            return Ok(());
        }
        self.remove(&victims).await?;
        self.handle.forget_journals(&victims).await;
        Ok(())
    }

    /// Step `ReplayCommitCas` for victims of whose operations none is missing in the volume's tree: those that are still in the root leave it.
    ///
    /// # Errors
    /// A refusal of kind `Fenced` if the volume was taken over meanwhile.
    pub async fn remove_victims(&self) -> Result<(), RootError> {
        self.remove(&self.victims).await
    }

    async fn remove(&self, victims: &[Victim]) -> Result<(), RootError> {
        let root = &self.handle.current().root;
        let ended = victims.iter().map(|victim| victim.session);
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

fn draw_id(handle: &RootHandle) -> SessionId {
    let mut id = [0; 8];
    handle.entropy().fill(&mut id);
    SessionId(u64::from_le_bytes(id))
}

/// A session that has taken its volume.
struct Entered {
    /// The first base epoch.
    base: u64,
    /// Who was taken over.
    taken_from: Option<HolderInfo>,
    /// Journals that were read before.
    known: Known,
}

/// A session on its way into the root.
struct Entering<'a> {
    handle: &'a RootHandle,
    id: SessionId,
    holder: HolderInfo,
    processes: &'a dyn Processes,
    spools: KnownSpools,
}

impl Entering<'_> {
    /// Enters with a volume; judges whoever holds it, and looks before whether what was acknowledged
    /// is there.
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

    /// Steps `RegisterCas` and `TakeCas`, in one swap, and `EndSessionCas` for what this machine's crashed commands left. Returns the session's first base epoch.
    async fn enter(&self, volume: Option<(&str, Claim)>) -> Result<u64, RootError> {
        let handle = self.handle;
        let mut transition = Enter {
            entering: self,
            volume,
        };
        Ok(handle.update(&mut transition).await?.output)
    }
}

/// Looks whether what was acknowledged is there, before the volume is taken. Returns the journals
/// that were read for that.
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

/// Over whom the volume may be taken.
///
/// # Errors
/// A refusal of kind `Held` if its holder lives.
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
        tracing::info!(volume, holder = %by, "the volume is held from elsewhere; watching whether its holder lives");
        match watch_holder(handle, session, Some(volume)).await? {
            Watched::Alive => return Err(held(by)),
            Watched::Dead => return Ok((Claim::Dead(session), Some(by))),
            Watched::Left => {}
        }
    }
}

struct Enter<'a, 'b> {
    entering: &'a Entering<'b>,
    volume: Option<(&'a str, Claim)>,
}

impl Enter<'_, '_> {
    /// Sessions of maintenance that ran on this machine and whose process is gone, with an earlier
    /// boot or by itself.
    fn dead_sessions(&self, root: &Root) -> Vec<SessionId> {
        let Entering {
            holder, processes, ..
        } = self.entering;
        let is_dead = |session: &Session| {
            session.volume.is_none()
                && session.judge_locally(holder, *processes) == LocalVerdict::Dead
        };
        let dead = root.sessions.iter().filter(|(_, session)| is_dead(session));
        dead.map(|(id, _)| *id).collect()
    }
}

#[async_trait]
impl Transition for Enter<'_, '_> {
    /// The epoch that the session is registered at.
    type Output = u64;

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<u64, RootError> {
        // First, since they may be what the root is full of.
        for dead in self.dead_sessions(next) {
            next.remove_dead(dead)?;
        }
        let Entering {
            id, holder, spools, ..
        } = self.entering;
        next.drop_grounds(&spools.empty);
        next.register(*id, holder.clone())?;
        next.note_spool(*id, spools.own);
        if let Some((volume, claim)) = self.volume {
            next.claim(*id, volume, claim)?;
        }
        Ok(next.epoch)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Session ids are drawn at random: nobody else registers this one.
        Ok(root.sessions.contains_key(&self.entering.id))
    }
}

struct End {
    id: SessionId,
    /// The last operation that a commit covers.
    covered: u64,
}

#[async_trait]
impl Transition for End {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.id)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let session = next.sessions.get(&self.id);
        self.covered = session.map_or(0, |session| session.covered);
        Ok(next.end(self.id)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Gone means ended, by this or by whoever took it over and replayed it; an ending one was taken over, and will be refused.
        Ok(!root.sessions.contains_key(&self.id))
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
