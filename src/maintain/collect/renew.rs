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

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::ingest::{Ingest, Mark};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::Class;
use bkfs_chunker::verify::Verifier;
use futures::StreamExt;
use jiff::Timestamp;

use super::mark::{Doubt, Expiry, Marker, is_own};
use super::sightings::{Sightings, SightingsFile};
use super::{list, look_for_vanished};
use crate::maintain::sealing::{IngestLists, Sealing};
use crate::root::error::{ErrorKind, RootError};
use crate::root::handle::{RootHandle, RootView, Transition};
use crate::root::lists::{Lists, put_shard};
use crate::root::snapshots::PackEntry;
use crate::root::state::{Condemned, Root, SessionId};
use crate::root::transition::Refusal;

/// How often it begins anew, because the root moved on or a pack turned out to be unreadable.
const ROUNDS_MAX: u32 = 8;

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
    /// Stores again what is needed. Nothing else stores by it.
    pub ingest: &'a Ingest,
    /// In whose name.
    pub session: SessionId,
    /// What this machine has seen of snapshots: those that have vanished are needed too.
    pub memory: SightingsFile,
    /// The time of day.
    pub now: Timestamp,
}

/// Packs that go, each with how many of its blobs are needed.
type Going = BTreeMap<PackName, u32>;

/// What came of one round.
enum Round {
    /// So many packs were condemned.
    Made(u64),
    /// Another round is needed; these packs cannot be read.
    Again(HashSet<PackName>),
}

impl Renewal<'_> {
    /// Puts the lists `lost` aside, and condemns what they may have named. Returns how many packs
    /// were condemned. Dropped, it leaves packs that nothing needs, and the root as it was or as it
    /// should be.
    ///
    /// # Errors
    /// `Damaged` if something is needed and cannot be read: that is to be mended first, since what
    /// lies below it is not known. Store errors.
    pub async fn renew(&self, lost: &[Condemned]) -> Result<u64, RootError> {
        let mark = self.ingest.mark();
        let mut gone = self
            .handle
            .while_it_stands(async |view| self.missing(&view.root, lost).await)
            .await?;
        for _ in 0..ROUNDS_MAX {
            let round = self.handle.while_it_stands(async |view| {
                let doubt = Doubt {
                    lost: lost.iter().map(|lost| lost.list.name).collect(),
                    gone: gone.clone(),
                    proven: HashSet::new(),
                };
                self.round(&view, lost, doubt, mark).await
            });
            match round.await? {
                Round::Made(packs) => return Ok(packs),
                Round::Again(found) if !found.is_empty() && found.is_subset(&gone) => {
                    let what = "something needed lies in packs that cannot be read";
                    return Err(RootError::damaged("the repository", what));
                }
                Round::Again(found) => gone.extend(found),
            }
        }
        Err(RootError::Contended {
            attempts: ROUNDS_MAX,
        })
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

    async fn round(
        &self,
        view: &RootView,
        lost: &[Condemned],
        doubt: Doubt,
        mark: Mark,
    ) -> Result<Round, RootError> {
        let root = &view.root;
        let expiry = Expiry {
            before: Timestamp::MIN,
            now: self.now,
            seen: Sightings::default(),
        };
        let (verifier, depot) = (self.verifier.clone(), self.ingest.depot().clone());
        let gone = doubt.gone.clone();
        let mut marker = Marker::new(verifier, depot, self.lists.clone(), expiry);
        marker.doubt = Some(doubt);
        look_for_vanished(root, &self.memory, &mut marker).await?;
        if let Err(error) = marker.mark(root).await {
            let found = marker.doubt.iter().flat_map(|doubt| &doubt.gone);
            let found: HashSet<PackName> = found.copied().collect();
            return match error.kind() == ErrorKind::Damaged && found.len() > gone.len() {
                true => Ok(Round::Again(found)),
                false => Err(error),
            };
        }
        let going = going(&marker, root);
        let unreadable = self.store_again(&marker, root, &going).await?;
        if !unreadable.is_empty() {
            return Ok(Round::Again(unreadable));
        }
        let mut cas = RenewCas {
            session: self.session,
            ingest: self.ingest,
            marker: &mut marker,
            epoch: root.epoch,
            lost,
            going,
            sealing: Sealing::since(mark, self.ingest),
            list: None,
            is_late: false,
        };
        let made = self.handle.update(&mut cas).await;
        cas.sealing.settle(made.is_ok());
        match made {
            Ok(applied) => Ok(Round::Made(applied.output)),
            Err(_) if cas.is_late => Ok(Round::Again(HashSet::new())),
            Err(error) => Err(error),
        }
    }

    /// Stores again what is needed of the packs that go, unless a pack that stays has it. Returns
    /// the packs of which not all of that can be read.
    async fn store_again(
        &self,
        marker: &Marker,
        root: &Root,
        going: &Going,
    ) -> Result<HashSet<PackName>, RootError> {
        let depot = self.ingest.depot();
        depot.set_quarantine(marker.quarantine().clone());
        let mut leaving = marker.condemned(root).await?;
        leaving.extend(going.keys());
        depot.load_index(&root.index, &leaving).await?;
        let mut unreadable = HashSet::new();
        for (name, needed) in going.iter().filter(|(_, needed)| **needed > 0) {
            let contents = match marker.contents(*name).await {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    unreadable.insert(*name);
                    continue;
                }
                contents => contents?,
            };
            let Some(marks) = marker.marks.pack(name) else {
                continue;
            };
            let mut blobs = Vec::new();
            let mut visit = |found: bkfs_chunker::verify::Found| {
                if marks.needs(found.frame, found.slot) {
                    blobs.push((found.kind, found.bytes));
                }
            };
            marker.verifier.walk(&contents, &mut visit).await?;
            if blobs.len() != *needed as usize {
                unreadable.insert(*name);
                continue;
            }
            for (kind, bytes) in blobs {
                self.ingest.store_blob(kind, bytes).await?;
            }
        }
        Ok(unreadable)
    }
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
    sealing: Sealing<'a>,
    /// The list of the attempt that was sent last.
    list: Option<PackName>,
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
        let Some(sealed) = self.sealing.sealed() else {
            return Ok(());
        };
        let stays = |pack: &PackName| {
            let is_own = pack.session == self.session.0 && is_own(next, pack);
            is_own || self.marker.live.contains(pack) && !self.going.contains_key(pack)
        };
        let relied = sealed.relied_on.iter().chain(&sealed.packs);
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
        let index = self.sealing.seal(next).await?;
        self.check_relied_on(next)?;
        next.change_index(&index)?;
        next.condemned.retain(|known| !self.lost.contains(known));
        let names: BTreeSet<PackName> = self.going.keys().copied().collect();
        let packs = names.len() as u64;
        if !names.is_empty() {
            let entries = names.into_iter().map(PackEntry).collect();
            let list = put_shard(&IngestLists(self.ingest), entries).await?;
            next.epoch += 1;
            let epoch = next.epoch;
            next.condemned.push(Condemned { epoch, list });
            self.list = Some(list.name);
        }
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
