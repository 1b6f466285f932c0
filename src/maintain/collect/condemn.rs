//! Condemns packs: one replacement of the root takes the packs of a plan out of the live set
//! (docs/PROTOCOL.md, rule 8, step 2).
//!
//! Owns the check that precedes every attempt at the replacement, and storing the needed blobs of
//! the condemned packs again before it. The check marks from the root that is replaced, not from
//! the one that was read first. Packs that this root needs in addition leave the candidates. So do
//! the packs that an object in a remaining pack refers to.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexSources, PackLocation};
use bkfs_chunker::crypto::Class;
use bkfs_chunker::ingest::{Ingest, Mark};
use bkfs_chunker::pack::PackName;

use super::mark::{Marker, is_own};
use super::plan::CollectionPlan;
use crate::root::error::{ErrorKind, RootError};
use crate::root::finish::PackFinisher;
use crate::root::forget::rewrite;
use crate::root::handle::{RootHandle, Transition};
use crate::root::lists::put_shard;
use crate::root::refusal::Refusal;
use crate::root::snapshots::{PackEntry, TrashEntry};
use crate::root::state::{Condemned, Root, SessionId};

/// Condemned epochs that a root keeps apart at most.
const EPOCHS_MAX: usize = 64;

/// The result of condemning.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Packs that were condemned.
    pub packs: u64,
    /// Bytes of these packs.
    pub bytes: u64,
    /// Forgotten snapshots that cannot be brought back any more.
    pub expired: u64,
    /// Another collector was faster, and nothing was condemned here.
    pub gave_way: bool,
}

/// Carries a plan out. `epoch` is the epoch of the root that was marked.
///
/// Cancel safety: dropped before the replacement of the root is sent, it leaves only packs, index
/// objects and lists that no root names. Dropped later, it leaves the packs condemned or not.
///
/// # Errors
/// [`RootError::Damaged`] if something needed cannot be read, [`RootError::Rebuild`] if a pack that
/// the stored blobs rely on does not stay, [`RootError::Store`] or [`RootError::Content`] if the
/// store fails, and those of [`RootHandle::update`]. Nothing is condemned then, unless it is
/// [`RootError::OutcomeUnknown`].
pub async fn condemn(
    handle: &RootHandle,
    session: SessionId,
    ingest: &Ingest,
    marker: &mut Marker,
    plan: &CollectionPlan,
    epoch: u64,
) -> Result<Done, RootError> {
    let gave_way = || Done {
        gave_way: true,
        ..Done::default()
    };
    if handle.refresh().await?.root.epoch != epoch {
        return Ok(gave_way());
    }
    let mark = ingest.mark();
    let mut candidates = Candidates::of(plan, marker);
    let mut heeded = HashSet::new();
    let stored = store_again(handle, ingest, marker, plan, &mut candidates, &mut heeded).await;
    if let Err(error) = stored {
        // Another collector may have deleted a pack that was to be read.
        return match handle.refresh().await?.root.epoch == epoch {
            true => Err(error),
            false => Ok(gave_way()),
        };
    }
    let mut cas = CondemnCas {
        session,
        ingest,
        marker,
        epoch,
        candidates,
        heeded,
        packs: PackFinisher::since(mark),
        list: None,
        gave_way: false,
    };
    let made = handle.update(&mut cas).await;
    let was_late = cas.gave_way;
    cas.packs.settle(ingest, made.is_ok());
    let error = match made {
        Ok(applied) => return Ok(applied.output),
        Err(error) => error,
    };
    // Another collector may have deleted a pack that the last attempt was to read.
    let is_late =
        was_late || error.wants_newer_root() && handle.refresh().await?.root.epoch != epoch;
    match is_late {
        true => Ok(gave_way()),
        false => Err(error),
    }
}

/// Marks a candidate that has to stay: no count of needed blobs is equal to it.
const STAYS: u32 = u32::MAX;

/// The packs that are to go. Each listed one has the number of its blobs that were needed in the
/// plan, each unlisted one its size in bytes.
#[derive(Clone, Debug, Default)]
struct Candidates {
    listed: BTreeMap<PackName, u32>,
    unlisted: BTreeMap<PackName, u64>,
}

impl Candidates {
    fn of(plan: &CollectionPlan, marker: &Marker) -> Self {
        let reached = |name: &PackName| marker.marks.pack(name).map_or(0, |pack| pack.reached);
        let listed = plan.dead.union(&plan.rewritten);
        Self {
            listed: listed.map(|name| (*name, reached(name))).collect(),
            unlisted: plan.unlisted.clone(),
        }
    }

    fn names(&self) -> BTreeSet<PackName> {
        self.listed
            .keys()
            .chain(self.unlisted.keys())
            .copied()
            .collect()
    }
}

/// Stores again the needed blobs of packs that go, unless a pack that stays has them. A pack that
/// cannot be read whole stays.
async fn store_again(
    handle: &RootHandle,
    ingest: &Ingest,
    marker: &mut Marker,
    plan: &CollectionPlan,
    candidates: &mut Candidates,
    heeded: &mut HashSet<PackLocation>,
) -> Result<(), RootError> {
    // Blobs that are stored again are not matched with packs that go. Writers merge index objects,
    // and the merged ones are deleted once no root names them. The epoch does not tell of that, so
    // the loading is repeated while the root moves on.
    handle
        .while_it_stands(async |view| {
            // Nor are they matched with places that are known to be damaged.
            *heeded = marker.lists.quarantine(&view.root).await?;
            ingest.content_store().set_quarantine(heeded.clone());
            let mut leaving = marker.lists.condemned(&view.root).await?;
            leaving.extend(candidates.names());
            let index = &view.root.index;
            Ok(ingest
                .content_store()
                .load_index(&IndexSources::of_objects(index), &leaving)
                .await?)
        })
        .await?;
    for name in &plan.rewritten {
        let contents = match marker.contents(*name).await {
            Err(error) if error.kind() == ErrorKind::Damaged && is_damaged(marker, name) => {
                tracing::warn!(pack = %name, "not written anew, since it is damaged: {error}");
                candidates.listed.insert(*name, STAYS);
                continue;
            }
            contents => contents?,
        };
        let mut blobs = Vec::new();
        let marks = marker.marks.pack(name);
        let walked = marker
            .verifier
            .walk(&contents, &mut |found| {
                if marks.is_some_and(|marks| marks.needs(found.frame, found.slot)) {
                    blobs.push((found.kind, found.bytes));
                }
            })
            .await?;
        let needed = marks.map_or(0, |marks| marks.reached);
        if blobs.len() != needed as usize {
            let damage = walked.damage.first().map_or("", |damage| &damage.what);
            tracing::warn!(pack = %contents.key(),
                "not written anew, since it is damaged: {damage}");
            // `close_again` finds that it stays, and with it everything that it refers to.
            candidates.listed.insert(*name, STAYS);
            continue;
        }
        for (kind, bytes) in blobs {
            ingest.store_blob(kind, bytes).await?;
        }
    }
    Ok(())
}

fn is_damaged(marker: &Marker, name: &PackName) -> bool {
    marker.marks.pack(name).is_some_and(|pack| pack.is_damaged)
}

/// The replacement of the root: step `CondemnCas` of the model.
struct CondemnCas<'a> {
    session: SessionId,
    ingest: &'a Ingest,
    marker: &'a mut Marker,
    epoch: u64,
    candidates: Candidates,
    /// Places in quarantine when blobs were stored again. Nothing was matched with them.
    heeded: HashSet<PackLocation>,
    packs: PackFinisher<Mark>,
    /// The list of condemned packs in the last attempt.
    list: Option<PackName>,
    gave_way: bool,
}

#[async_trait]
impl Transition for CondemnCas<'_> {
    type Output = Done;

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<Done, RootError> {
        if next.epoch != self.epoch {
            // The marks are of the places before the other collector moved blobs.
            self.gave_way = true;
            return Err(Refusal::ListsChanged.into());
        }
        self.marker.mark(next).await?;
        self.close_again(next).await?;
        let index = self
            .packs
            .finish_for(self.ingest, &next.uncovered_index())
            .await?;
        self.check_relied_on(next)?;
        next.change_index(&index)?;
        let expired = self.empty_trash(next).await?;
        let names = self.candidates.names();
        let (packs, bytes) = (names.len() as u64, self.bytes());
        if !names.is_empty() {
            let entries: Vec<PackEntry> = self.with_oldest(next, names).await?;
            let list = put_shard(self.ingest, entries).await?;
            next.epoch += 1;
            let epoch = next.epoch;
            next.condemned.push(Condemned { epoch, list });
            self.list = Some(list.name);
        }
        Ok(Done {
            packs,
            bytes,
            expired,
            gave_way: false,
        })
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // The epoch is not forgotten before the session that condemned it has published a base of
        // at least that epoch. So a replacement that was made shows its list.
        let ours = |condemned: &Condemned| Some(condemned.list.name) == self.list;
        Ok(self.list.is_some() && root.condemned.iter().any(ours))
    }
}

impl CondemnCas<'_> {
    /// Removes from the candidates the packs that this root needs in addition, and the packs that a
    /// remaining pack refers to, until no more leave.
    async fn close_again(&mut self, next: &Root) -> Result<(), RootError> {
        let held: BTreeSet<PackName> = self.marker.listed(next);
        self.candidates
            .unlisted
            .retain(|name, _| !held.contains(name) && !is_own(next, name));
        loop {
            let marks = &self.marker.marks;
            let stays = |(name, known): (&PackName, &u32)| {
                let reached = marks.pack(name).map_or(u32::MAX, |pack| pack.reached);
                reached != *known || !self.marker.live.contains(name) || is_own(next, name)
            };
            let listed = self.candidates.listed.iter();
            let staying: Vec<PackName> = listed
                .filter(|entry| stays(*entry))
                .map(|(name, _)| *name)
                .collect();
            if staying.is_empty() {
                return Ok(());
            }
            for name in staying {
                self.candidates.listed.remove(&name);
                let pack = self.marker.marks.pack(&name);
                if pack.is_some_and(|pack| pack.class == Class::MetadataPack)
                    && self.marker.live.contains(&name)
                {
                    self.marker.marks.need_all(name);
                }
            }
            self.marker.follow().await?;
        }
    }

    /// Checks rule 3. A copy that was found instead of being stored again must be live in the root
    /// that is replaced, and must stay. What becomes live is the session's own.
    fn check_relied_on(&self, next: &Root) -> Result<(), RootError> {
        let Some(finished) = self.packs.finished() else {
            return Ok(());
        };
        // A copy in a place that was quarantined since then may be unreadable.
        let found = self.marker.quarantine().difference(&self.heeded);
        let doubtful: HashSet<PackName> = found.map(|place| place.pack).collect();
        let stays = |pack: &PackName| {
            let is_own = pack.session == self.session.0 && is_own(next, pack);
            let is_kept =
                self.marker.live.contains(pack) && !self.candidates.listed.contains_key(pack);
            (is_own || is_kept) && !doubtful.contains(pack)
        };
        let relied = finished.relied_on.iter().chain(&finished.packs);
        let gone: Vec<PackName> = relied.filter(|pack| !stays(pack)).copied().collect();
        match gone.is_empty() {
            true => Ok(()),
            false => Err(RootError::Rebuild { packs: gone }),
        }
    }

    /// Moves the packs of all condemned epochs to the new one if there are [`EPOCHS_MAX`] of them,
    /// as when a session holds very many back. So the root does not fill with epochs; the move only
    /// delays deletion.
    async fn with_oldest(
        &self,
        next: &mut Root,
        mut names: BTreeSet<PackName>,
    ) -> Result<Vec<PackEntry>, RootError> {
        if next.condemned.len() >= EPOCHS_MAX {
            names.extend(self.marker.lists.condemned(next).await?);
            next.condemned.clear();
        }
        Ok(names.into_iter().map(PackEntry).collect())
    }

    async fn empty_trash(&self, next: &mut Root) -> Result<u64, RootError> {
        let shards = self.marker.lists.trash_shards(&next.trash).await?;
        let expired = |entry: &TrashEntry| self.marker.expiry.has_come(entry);
        let count = shards
            .iter()
            .flat_map(|shard| shard.iter())
            .filter(|entry| expired(entry))
            .count();
        if count == 0 {
            return Ok(0);
        }
        let writer = self.ingest;
        let change = rewrite(writer, &next.trash, &shards, expired, Vec::new()).await?;
        next.change_trash(&change)?;
        Ok(count as u64)
    }

    fn bytes(&self) -> u64 {
        let marks = &self.marker.marks;
        let bytes = |name: &PackName| marks.pack(name).map_or(0, |pack| pack.bytes);
        let listed: u64 = self.candidates.listed.keys().map(bytes).sum();
        listed + self.candidates.unlisted.values().sum::<u64>()
    }
}
