//! Condemning anew what lists of condemned packs may have named that cannot be read.
//!
//! Owns one replacement of the root: the lists leave it, and a list at a new epoch names every pack
//! that one of them may have named. What is needed of those packs is stored again first.
//!
//! Which packs a lost list named is not known, but which it did not: what is needed lies in live
//! packs (protocol.md, rule 3), so a pack with the only copy of something needed is live; and a
//! session's own packs are never condemned. All others are condemned now. None of the packs of the
//! lost list comes back to life, so a deletion that is late, of a collector that has read the list,
//! stays harmless.
//!
//! Snapshots that have vanished from all lists, and those that only commit records tell of since
//! their list is lost too, are needed as well. But rule 3 does not hold for them: another collector
//! may have condemned what they need. So they prove no pack live, and what is gone of them stops
//! nothing. The same holds for snapshots that an earlier repair has listed from their records while
//! no renewal could be made: they bear a mark, which those lose that this one finds whole.
//!
//! A pack that cannot be read is relied on for nothing. Where only such packs hold something that
//! is needed, and none of them is known to be live, nothing is condemned.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexSources, PackLocation};
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::{Ingest, Mark};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Found, Verifier};
use futures::StreamExt;
use jiff::Timestamp;

use super::super::workspace::Workspace;
use super::doubt::Doubt;
use super::expiry::Expiry;
use super::mark::{Marker, WAY_OUT, is_own};
use super::rebuilt::{self, Head, Rebuilt};
use super::sightings::{Sightings, SightingsFile};
use super::{list, look_for_vanished};
use crate::root::error::{ErrorKind, RootError};
use crate::root::finish::PackFinisher;
use crate::root::handle::{RootHandle, Transition};
use crate::root::holder::SystemProcesses;
use crate::root::lists::{Lists, put_shard};
use crate::root::refusal::Refusal;
use crate::root::session::OpenSession;
use crate::root::snapshots::PackEntry;
use crate::root::state::{Condemned, HolderInfo, Root, SessionId};
use crate::root::view::RootView;

/// How often it begins anew, because the root moved on, without having found another pack that
/// cannot be read.
const ROUNDS_MAX: u32 = 8;

/// Packs that a message names.
const NAMED_MAX: usize = 8;

/// Packs asked for at the same time.
const HEADS_AT_ONCE: usize = 16;

/// Who condemns anew, and with what.
pub struct Renewal<'a> {
    /// The root.
    pub handle: &'a RootHandle,
    /// Its lists.
    pub lists: &'a Lists,
    /// Reads index objects and packs.
    pub verifier: Arc<Verifier>,
    /// Finds blobs, and stores again what is needed. Nothing else uses it.
    pub content_store: ContentStore,
    /// In whose name.
    pub holder: HolderInfo,
    /// What this machine has seen of snapshots: those that have vanished are needed too.
    pub memory: SightingsFile,
    /// What stands in for lists of snapshots that are lost too.
    pub rebuilt: Rebuilt,
    /// The time of day.
    pub now: Timestamp,
}

/// What a renewal came to.
#[derive(Debug, Default)]
pub struct Renewed {
    /// How many packs were condemned.
    pub packs: u64,
    /// Commits of snapshots known from their records that need nothing but what is live. None if
    /// another renewal was faster.
    pub whole: HashSet<Id>,
    /// The epoch of the root that was made.
    pub epoch: u64,
}

/// Packs that go, each with how many of its blobs are needed.
type Going = BTreeMap<PackName, u32>;

/// What came of one round.
enum Round {
    /// The root was replaced.
    Made(Renewed),
    /// Another round is needed; these packs cannot be read.
    Again(HashSet<PackName>),
}

impl Renewal<'_> {
    /// Puts the lists `lost` aside, and condemns what they may have named. Dropped, it leaves packs
    /// that nothing needs, and the root as it was or as it should be.
    ///
    /// # Errors
    /// `Damaged` if something is needed and cannot be read: that is to be mended first, since what
    /// lies below it is not known. Store errors.
    pub async fn renew(&self, lost: &[Condemned]) -> Result<Renewed, RootError> {
        let mut gone = self
            .handle
            .while_it_stands(async |view| self.missing(&view.root, lost).await)
            .await?;
        let mut rounds = 0;
        while rounds < ROUNDS_MAX {
            match self.work(lost, &gone).await? {
                Round::Made(renewed) => return Ok(renewed),
                Round::Again(found) if !found.is_empty() && found.is_subset(&gone) => {
                    return Err(unreadable(&found));
                }
                Round::Again(found) => {
                    rounds += u32::from(found.is_subset(&gone));
                    gone.extend(found);
                }
            }
        }
        Err(RootError::Contended {
            attempts: ROUNDS_MAX,
        })
    }

    /// One round in a session of its own. What an earlier one has stored stays out of the root: it
    /// was found closed in another root, with other packs that go.
    async fn work(&self, lost: &[Condemned], gone: &HashSet<PackName>) -> Result<Round, RootError> {
        let holder = self.holder.clone();
        let session = OpenSession::open(self.handle, holder, None, &SystemProcesses).await?;
        let ingest = Ingest::new(self.content_store.clone(), session.id().0);
        let round = self.round(&ingest, session.id(), lost, gone).await;
        if let Err(left) = session.end().await {
            tracing::warn!(error = %left, "the session of the repair stays in the root");
        }
        round
    }

    /// The same, begun anew if the root has moved on under it.
    async fn round(
        &self,
        ingest: &Ingest,
        session: SessionId,
        lost: &[Condemned],
        gone: &HashSet<PackName>,
    ) -> Result<Round, RootError> {
        let view = self.handle.refresh().await?;
        let stands = |lost: &&Condemned| view.root.condemned.contains(lost);
        let lost: Vec<Condemned> = lost.iter().filter(stands).copied().collect();
        if lost.is_empty() {
            // Another repair was faster.
            return Ok(Round::Made(Renewed::default()));
        }
        let mut doubt = Doubt::default();
        doubt.lost.extend(lost.iter().map(|lost| lost.list.name));
        let snapshots = self.rebuilt.lost.iter().map(|list| list.name);
        doubt.lost_snapshots.extend(snapshots);
        let heads = self.rebuilt.heads.iter();
        doubt.rebuilt.extend(heads.flat_map(Head::blobs));
        doubt.gone.clone_from(gone);
        let error = match self.attempt(ingest, session, &view, &lost, doubt).await {
            Ok(round) => return Ok(round),
            // Packs that something stored leans on have left, or may be damaged.
            Err(RootError::Rebuild { .. }) => return Ok(Round::Again(HashSet::new())),
            Err(error) => error,
        };
        self.handle.moved_on(&view, error).await?;
        Ok(Round::Again(HashSet::new()))
    }

    /// Packs of the index that are not in the bucket. A list of the bucket alone proves nothing.
    async fn missing(
        &self,
        root: &Root,
        lost: &[Condemned],
    ) -> Result<HashSet<PackName>, RootError> {
        let lost = lost.iter().map(|lost| lost.list.name).collect();
        let condemned = self.lists.condemned_but(root, &lost).await?;
        let mut packs = Vec::new();
        for index in &root.index {
            let held = self.verifier.index(*index).await?.into_iter();
            packs.extend(held.filter(|pack| !condemned.contains(&pack.name())));
        }
        let store = self.handle.store();
        let bucket = list(&**store).await?;
        packs.retain(|pack| !bucket.contains_key(&pack.key()));
        let heads = packs.iter().map(|pack| async move {
            match store.head(&pack.key()).await {
                Err(error) if error.is_not_found() => Ok(Some(pack.name())),
                Err(error) => Err(RootError::from(error)),
                Ok(_) => Ok(None),
            }
        });
        let mut heads =
            futures::stream::iter(heads.collect::<Vec<_>>()).buffer_unordered(HEADS_AT_ONCE);
        let mut missing = HashSet::new();
        while let Some(head) = heads.next().await {
            missing.extend(head?);
        }
        Ok(missing)
    }

    /// Returns a marker for which nothing expires, and that relies on no copy in `doubt`.
    fn marker(&self, doubt: Doubt) -> Marker {
        let expiry = Expiry {
            before: Timestamp::MIN,
            now: self.now,
            seen: Sightings::default(),
        };
        let (verifier, content_store) = (self.verifier.clone(), self.content_store.clone());
        let mut marker = Marker::new(
            verifier,
            content_store,
            self.lists.clone(),
            expiry,
            Workspace::default(),
        );
        marker.doubt = Some(doubt);
        marker
    }

    async fn attempt(
        &self,
        ingest: &Ingest,
        session: SessionId,
        view: &RootView,
        lost: &[Condemned],
        doubt: Doubt,
    ) -> Result<Round, RootError> {
        let root = &view.root;
        let mark = ingest.mark();
        let gone = doubt.gone.clone();
        let mut marker = self.marker(doubt);
        for lost in look_for_vanished(root, &self.memory, &mut marker).await? {
            let (volume, name) = (&lost.volume, &lost.name);
            tracing::warn!(
                "the snapshot {volume}/{name} has vanished from all lists, and a part of it is \
                 gone: it is not kept"
            );
        }
        let marked = marker.mark(root).await;
        let found = marker.doubt.iter().flat_map(|doubt| &doubt.gone);
        let found: HashSet<PackName> = found.copied().collect();
        let is_damaged = |error: &RootError| error.kind() == ErrorKind::Damaged;
        if found.len() > gone.len() && marked.as_ref().err().is_none_or(is_damaged) {
            return Ok(Round::Again(found));
        }
        marked?;
        let doubts = marker.doubt.iter();
        let undecided: HashSet<PackName> = doubts.flat_map(Doubt::undecided).collect();
        if !undecided.is_empty() {
            return Ok(Round::Again(undecided));
        }
        let whole = rebuilt::whole(&marker, root, &self.rebuilt.heads).await?;
        let going = going(&marker, root);
        let unreadable = self
            .store_again(ingest, &marker, root, &going, &gone)
            .await?;
        if !unreadable.is_empty() {
            return Ok(Round::Again(unreadable));
        }
        let mut cas = RenewCas {
            session,
            ingest,
            heeded: marker.quarantine().clone(),
            marker: &mut marker,
            epoch: root.epoch,
            lost,
            going,
            whole,
            packs: PackFinisher::since(mark),
            list: None,
            made: root.epoch,
            is_late: false,
        };
        let made = self.handle.update(&mut cas).await;
        cas.packs.settle(ingest, made.is_ok());
        match made {
            Ok(applied) => Ok(Round::Made(Renewed {
                epoch: cas.made,
                packs: applied.output,
                whole: cas.whole,
            })),
            Err(_) if cas.is_late => Ok(Round::Again(HashSet::new())),
            Err(error) => Err(error),
        }
    }

    /// Stores again what is needed of the packs that go, unless a pack that stays has it. Returns
    /// the packs of which not all of that can be read. Of those in `gone`, which is known of
    /// already, what the root does not need may be lost.
    async fn store_again(
        &self,
        ingest: &Ingest,
        marker: &Marker,
        root: &Root,
        going: &Going,
        gone: &HashSet<PackName>,
    ) -> Result<HashSet<PackName>, RootError> {
        let content_store = ingest.content_store();
        content_store.set_quarantine(marker.quarantine().clone());
        let mut leaving = marker.condemned(root).await?;
        leaving.extend(going.keys());
        // A copy that cannot be read is none.
        leaving.extend(gone);
        content_store
            .load_index(&IndexSources::of_objects(&root.index), &leaving)
            .await?;
        let mut unreadable = HashSet::new();
        for (name, needed) in going.iter().filter(|(_, needed)| **needed > 0) {
            let (Some(marks), firm) = (marker.marks.pack(name), marker.firm().pack(name)) else {
                continue;
            };
            let is_firm = |frame, slot| firm.is_some_and(|firm| firm.needs(frame, slot));
            let mut lost = match &marker.doubt {
                Some(doubt) => doubt.lost_elsewhere(name),
                None => HashSet::new(),
            };
            lost.retain(|(frame, slot)| is_firm(*frame, *slot));
            let mut blobs = Vec::new();
            let mut found_firm = lost.len() as u32;
            let mut visit = |found: Found| {
                let (frame, slot) = (found.frame, found.slot);
                found_firm += u32::from(is_firm(frame, slot) && !lost.contains(&(frame, slot)));
                if marks.needs(frame, slot) {
                    blobs.push((found.kind, found.bytes));
                }
            };
            match marker.contents(*name).await {
                Ok(contents) => drop(marker.verifier.walk(&contents, &mut visit).await?),
                // None of it can be read.
                Err(error) if error.kind() == ErrorKind::Damaged => {}
                Err(error) => return Err(error),
            }
            let is_enough = match gone.contains(name) {
                true => found_firm == firm.map_or(0, |firm| firm.reached),
                false => blobs.len() == *needed as usize,
            };
            if !is_enough {
                unreadable.insert(*name);
                continue;
            }
            for (kind, bytes) in blobs {
                ingest.store_blob(kind, bytes).await?;
            }
        }
        Ok(unreadable)
    }
}

/// Why nothing can be condemned anew: these packs.
fn unreadable(packs: &HashSet<PackName>) -> RootError {
    let names: BTreeSet<String> = packs.iter().map(PackName::to_string).collect();
    let shown: Vec<String> = names.iter().take(NAMED_MAX).cloned().collect();
    let more = match names.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} others"),
    };
    let what = format!(
        "something needed lies only in packs that cannot be read, and that may have been \
         condemned: {}{more}; {WAY_OUT}",
        shown.join(", ")
    );
    RootError::damaged("the repository", what)
}

/// All live packs that may stand in a lost list; and metadata packs of which a part is not needed,
/// since what that part refers to may go (rule 3).
fn going(marker: &Marker, root: &Root) -> Going {
    let Some(doubt) = &marker.doubt else {
        return Going::new();
    };
    let packs = marker.marks.packs();
    let live = packs.filter(|(name, _)| marker.live.contains(name) && !is_own(root, name));
    let goes = live.filter(|(name, pack)| {
        let is_closed = pack.class != Class::MetadataPack || pack.reached == pack.blobs;
        !doubt.proven.contains(name) || !is_closed
    });
    goes.map(|(name, pack)| (*name, pack.reached)).collect()
}

/// The replacement.
struct RenewCas<'a> {
    session: SessionId,
    ingest: &'a Ingest,
    marker: &'a mut Marker,
    epoch: u64,
    lost: &'a [Condemned],
    going: Going,
    /// Commits of snapshots that bear no mark from then on.
    whole: HashSet<Id>,
    /// Places that nothing stored again was matched with.
    heeded: HashSet<PackLocation>,
    packs: PackFinisher<Mark>,
    /// The list of the attempt that was sent last.
    list: Option<PackName>,
    /// The epoch of that attempt.
    made: u64,
    is_late: bool,
}

impl RenewCas<'_> {
    /// The root has changed so that the plan does not hold any more.
    fn late<T>(&mut self) -> Result<T, RootError> {
        self.is_late = true;
        Err(Refusal::ListsChanged.into())
    }

    /// Rule 3: what was found instead of being stored again is live in this root, and stays.
    fn check_relied_on(&self, next: &Root) -> Result<(), RootError> {
        let Some(finished) = self.packs.finished() else {
            return Ok(());
        };
        // A copy in which damage was found meanwhile may be none.
        let found = self.marker.quarantine().difference(&self.heeded);
        let doubtful: HashSet<PackName> = found.map(|place| place.pack).collect();
        let stays = |pack: &PackName| {
            let is_own = pack.session == self.session.0 && is_own(next, pack);
            let is_kept = self.marker.live.contains(pack) && !self.going.contains_key(pack);
            let is_gone = self.marker.doubt.as_ref();
            let is_gone = is_gone.is_some_and(|doubt| doubt.gone.contains(pack));
            (is_own || is_kept) && !is_gone && !doubtful.contains(pack)
        };
        let relied = finished.relied_on.iter().chain(&finished.packs);
        let gone: Vec<PackName> = relied.filter(|pack| !stays(pack)).copied().collect();
        match gone.is_empty() {
            true => Ok(()),
            false => Err(RootError::Rebuild { packs: gone }),
        }
    }
}

#[async_trait]
impl Transition for RenewCas<'_> {
    type Output = u64;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<u64, RootError> {
        let stands = |lost: &Condemned| next.condemned.contains(lost);
        if next.epoch != self.epoch || !self.lost.iter().all(stands) {
            return self.late();
        }
        self.marker.mark(next).await?;
        if going(self.marker, next) != self.going {
            return self.late();
        }
        let index = self
            .packs
            .finish_for(self.ingest, &next.uncovered_index())
            .await?;
        self.check_relied_on(next)?;
        let whole = rebuilt::without_mark(self.marker, self.ingest, next, &self.whole);
        let (kept, trash) = whole.await?;
        next.change_index(&index)?;
        next.change_snapshots(&kept)?;
        next.change_trash(&trash)?;
        next.condemned.retain(|known| !self.lost.contains(known));
        let names: BTreeSet<PackName> = self.going.keys().copied().collect();
        let packs = names.len() as u64;
        if !names.is_empty() {
            let entries = names.into_iter().map(PackEntry).collect();
            let list = put_shard(self.ingest, entries).await?;
            next.epoch += 1;
            let epoch = next.epoch;
            next.condemned.push(Condemned { epoch, list });
            self.list = Some(list.name);
        }
        self.made = next.epoch;
        Ok(packs)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        let ours = |condemned: &Condemned| Some(condemned.list.name) == self.list;
        Ok(match self.list {
            Some(_) => root.condemned.iter().any(ours),
            None => !self.lost.iter().any(|lost| root.condemned.contains(lost)),
        })
    }
}
