//! Merging: makes groups of runs of index objects, and few large groups of many small ones
//! (docs/PROTOCOL.md, rule 12).
//!
//! Owns which group is made next, and the order of each step: the inputs are read, a run is written,
//! and then the root names it. A group is built slice by slice, each in a replacement of its own. So
//! a merge that was interrupted goes on where it stood, in whatever session. Nothing but speed
//! depends on a merge: if it fails, the index objects answer as before. No command merges yet.
//!
//! **Memory**: the packs of at most [`MergePolicy::most_blobs`] blobs, one run, and a few requests
//! to each run that is merged.

use std::collections::HashSet;

use async_trait::async_trait;
use bkfs_chunker::catalog::{IndexRef, OpenedRun, RunRef};
use bkfs_chunker::ingest::{Ingest, RunPlan};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, Verifier};

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, Transition};
use crate::root::lists::Lists;
use crate::root::refusal::Refusal;
use crate::root::run_group::{Building, IndexName, RunGroup, SLICES_MAX, Slice};
use crate::root::session::OpenSession;
use crate::root::state::{Root, SessionId};
use crate::root::transition::IndexChange;

/// Index objects of less than this share of [`MergePolicy::least_blobs`] are in no group.
const ABSORBED_SHARE: u64 = 16;

/// Decoded bytes of an index object that is made of smaller ones: half of what fits into one.
const JOINED_BYTES: u64 = 16 << 20;

/// When groups are made, and how large they are.
#[derive(Clone, Copy, Debug)]
pub struct MergePolicy {
    /// Index objects become a group once they list this many blobs. Below that, their download costs
    /// less than a group saves.
    pub least_blobs: u64,
    /// A group is made of index objects of at most this many blobs, or of one.
    pub most_blobs: u64,
    /// About how many records a run has. A record takes 20 bytes.
    pub run_records: u64,
    /// Groups of up to this many records are of the smallest size. The next size is `fan` times as
    /// large.
    pub small_records: u64,
    /// So many groups of one size become one.
    pub fan: usize,
}

impl Default for MergePolicy {
    fn default() -> Self {
        Self {
            least_blobs: 1 << 20,
            most_blobs: 4 << 20,
            run_records: 4 << 20,
            small_records: 8 << 20,
            fan: 4,
        }
    }
}

/// What a merge has done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Merged {
    /// Runs that were written.
    pub runs: u64,
    /// Their records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A step of a merge.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Step {
    /// Begin a group of these index objects.
    Begin(Building, Vec<IndexName>),
    /// Write these index objects into few large ones, and begin a group of those.
    Join(Vec<IndexRef>),
    /// Write the first of these slices of the group.
    Write(Box<RunGroup>, Slice),
}

impl MergePolicy {
    /// Returns the next step in a root, if there is one.
    fn next(&self, root: &Root) -> Option<Step> {
        if let Some(group) = root.building_group() {
            let slice = group.missing().into_iter().next()?;
            return Some(Step::Write(Box::new(group.clone()), slice));
        }
        match self.of_groups(root) {
            Some((building, covers)) => Some(Step::Begin(building, covers)),
            None => self.of_objects(root),
        }
    }

    /// Returns a group that is made of groups of one size.
    fn of_groups(&self, root: &Root) -> Option<(Building, Vec<IndexName>)> {
        let mut groups: Vec<&RunGroup> = root.complete_groups().collect();
        groups.sort_by_key(|group| (group.records(), group.begun));
        let size = |group: &RunGroup| {
            let times = group.records() / self.small_records.max(1);
            times.max(1).ilog(self.fan.max(2) as u64)
        };
        let alike = groups.chunk_by(|one, other| size(one) == size(other));
        let alike = alike.into_iter().find(|alike| alike.len() >= self.fan)?;
        let building = Building {
            slices: self.slices(alike.iter().map(|group| group.records()).sum()),
            from: alike.iter().map(|group| group.begun).collect(),
        };
        let covers = alike.iter().flat_map(|group| group.covers.iter().copied());
        Some((building, covers.collect()))
    }

    /// Returns the step to a group that is made of index objects. The smallest ones are left to
    /// commits, which absorb them.
    fn of_objects(&self, root: &Root) -> Option<Step> {
        let mut left = root.uncovered_index();
        left.retain(|index| index.blobs >= self.least_blobs / ABSORBED_SHARE);
        if left.iter().map(|index| index.blobs).sum::<u64>() < self.least_blobs {
            return None;
        }
        left.sort_by_key(|index| std::cmp::Reverse(index.blobs));
        let (mut blobs, mut taken) = (0_u64, Vec::new());
        for index in left {
            if !taken.is_empty() && blobs + index.blobs > self.most_blobs {
                break;
            }
            blobs += index.blobs;
            taken.push(index);
        }
        let bytes: u64 = taken.iter().map(|index| index.bytes).sum();
        // What a group covers is never absorbed, so the root would keep each small one for ever.
        if taken.len() as u64 > 1 + bytes.div_ceil(JOINED_BYTES) {
            return Some(Step::Join(taken));
        }
        let building = Building {
            slices: self.slices(blobs),
            from: Vec::new(),
        };
        let covers = taken.iter().map(|index| IndexName(index.name));
        Some(Step::Begin(building, covers.collect()))
    }

    fn slices(&self, records: u64) -> u16 {
        let slices = records.div_ceil(self.run_records.max(1));
        slices.clamp(1, u64::from(SLICES_MAX)) as u16
    }
}

/// Merges until nothing is left to merge, in a session of its own. Does nothing, and makes no
/// request, if the newest known root needs no merge.
///
/// Cancel safety: dropped, it leaves a group that is being built, which the next merge goes on with,
/// and maybe its session in the root.
///
/// # Errors
/// - Those of [`OpenSession::open`] and of [`RootHandle::update`].
/// - [`RootError::Content`] or [`RootError::Store`] if an index object or a run cannot be read or
///   written.
pub async fn merge_runs(
    repository: &Repository,
    verifier: &Verifier,
    policy: &MergePolicy,
    command: &str,
) -> Result<Merged, RootError> {
    let handle = &repository.handle;
    if policy.next(&handle.current().root).is_none() {
        return Ok(Merged::default());
    }
    let environment = &repository.environment;
    let holder = environment.holder(command);
    let session = OpenSession::open(handle, holder, None, &*environment.processes).await?;
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let mut merger = Merger {
        handle,
        lists: &repository.lists,
        verifier,
        ingest: &ingest,
        session: session.id(),
        packs: None,
        merged: Merged::default(),
    };
    let done = merger.work(policy).await;
    let merged = merger.merged;
    if let Err(left) = session.end().await {
        tracing::warn!(error = %left, "the session of the merge stays in the root");
    }
    done.map(|()| merged)
}

struct Merger<'a> {
    handle: &'a RootHandle,
    lists: &'a Lists,
    verifier: &'a Verifier,
    ingest: &'a Ingest,
    session: SessionId,
    /// The packs of the index objects that a group is made of, and which these are.
    packs: Option<(Vec<IndexRef>, Vec<PackContents>)>,
    merged: Merged,
}

impl Merger<'_> {
    async fn work(&mut self, policy: &MergePolicy) -> Result<(), RootError> {
        while let Some(step) = policy.next(&self.handle.current().root) {
            let before = self.handle.current().root.mark();
            let done = match step {
                Step::Begin(building, covers) => {
                    self.begin(IndexChange::default(), building, covers).await
                }
                Step::Join(objects) => self.join(policy, objects).await,
                Step::Write(group, slice) => self.write(&group, slice).await,
            };
            match done {
                Ok(()) => {}
                // What was to be merged has changed: the newer root says what is next.
                Err(RootError::Refused(Refusal::ListsChanged)) => {
                    let now = self.handle.refresh().await?;
                    if now.root.mark() == before {
                        return Err(Refusal::ListsChanged.into());
                    }
                }
                Err(error) if error.wants_newer_root() => {
                    let now = self.handle.refresh().await?;
                    if now.root.mark() == before {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            if self.handle.current().root.run_groups().is_empty() {
                tracing::warn!("the root has no room for groups of runs");
                return Ok(());
            }
        }
        Ok(())
    }

    async fn begin(
        &self,
        index: IndexChange,
        building: Building,
        covers: Vec<IndexName>,
    ) -> Result<(), RootError> {
        let mut change = BeginGroup {
            session: self.session,
            index,
            building,
            covers,
        };
        self.handle.update(&mut change).await.map(|_| ())
    }

    /// Writes index objects into few, and begins a group of these in the replacement that names
    /// them.
    async fn join(
        &mut self,
        policy: &MergePolicy,
        objects: Vec<IndexRef>,
    ) -> Result<(), RootError> {
        let ingest = self.ingest;
        let added = ingest
            .put_index(self.read_packs(objects.clone()).await?)
            .await?;
        let building = Building {
            slices: policy.slices(added.iter().map(|index| index.blobs).sum()),
            from: Vec::new(),
        };
        let covers = added.iter().map(|index| IndexName(index.name)).collect();
        let known = self.packs.take();
        let index = IndexChange {
            absorbed: objects,
            added: added.clone(),
        };
        self.begin(index, building, covers).await?;
        // They list the same packs.
        self.packs = known.map(|(_, packs)| (added, packs));
        Ok(())
    }

    /// Writes the run of a slice, and names it.
    async fn write(&mut self, group: &RunGroup, slice: Slice) -> Result<(), RootError> {
        // A root that names the group: what is forgotten after it enters the group's dropped list.
        let view = self.handle.current();
        let stands = |other: &&RunGroup| other.begun == group.begun && !other.is_complete();
        let group = view.root.building_group().filter(stands);
        let group = group.ok_or(Refusal::ListsChanged)?;
        let from = group.building.iter().flat_map(|building| &building.from);
        let from: HashSet<u64> = from.copied().collect();
        let sources = view.root.complete_groups();
        let sources: Vec<&RunGroup> = sources
            .filter(|group| from.contains(&group.begun))
            .collect();
        let mut gone: HashSet<PackName> = HashSet::new();
        for source in sources.iter().copied().chain([group]) {
            gone.extend(self.lists.dropped(source.dropped).await?.iter());
        }
        let content_store = self.ingest.content_store();
        let mut runs: Vec<OpenedRun> = Vec::new();
        for run in sources.iter().flat_map(|source| &source.runs) {
            if meets(run, &slice) {
                runs.push(content_store.open_run(*run).await?);
            }
        }
        let ingest = self.ingest;
        let packs = match sources.is_empty() {
            true => self.read_packs(view.root.covered_by(group)).await?,
            false => &[],
        };
        let plan = RunPlan {
            class: slice.class,
            prefixes: slice.prefixes,
            packs,
            runs: &runs,
            gone: &gone,
        };
        let run = ingest.put_run(plan).await?;
        let mut change = AddRun {
            session: self.session,
            begun: group.begun,
            run,
        };
        self.handle.update(&mut change).await?;
        self.merged.runs += 1;
        self.merged.records += run.records;
        self.merged.bytes += run.bytes;
        Ok(())
    }

    /// Returns the packs of index objects, each once. Reads the index objects unless their packs
    /// are in memory.
    async fn read_packs(&mut self, objects: Vec<IndexRef>) -> Result<&[PackContents], RootError> {
        let is_known = (self.packs.as_ref()).is_some_and(|(known, _)| *known == objects);
        if !is_known {
            self.packs = None;
            let (mut packs, mut known) = (Vec::new(), HashSet::new());
            for index in &objects {
                let listed = self.verifier.index(*index).await?;
                packs.extend(listed.into_iter().filter(|pack| known.insert(pack.name())));
            }
            self.packs = Some((objects, packs));
        }
        Ok(self.packs.as_ref().map_or(&[], |(_, packs)| packs))
    }
}

/// Returns true if the run may have records of the slice.
fn meets(run: &RunRef, slice: &Slice) -> bool {
    run.class == slice.class
        && run.first <= *slice.prefixes.end()
        && *slice.prefixes.start() <= run.last
}

/// Begins a group, maybe of index objects that it puts in the place of others.
struct BeginGroup {
    session: SessionId,
    index: IndexChange,
    building: Building,
    covers: Vec<IndexName>,
}

#[async_trait]
impl Transition for BeginGroup {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.change_index(&self.index)?;
        Ok(next.begin_group(self.building.clone(), self.covers.clone())?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        // Another merge may have begun the same: it does not matter which.
        let is_it = |group: &RunGroup| {
            group.covers == self.covers && group.building.as_ref() == Some(&self.building)
        };
        Ok(root.building_group().is_some_and(is_it))
    }
}

/// Names a run, which is in the bucket.
struct AddRun {
    session: SessionId,
    begun: u64,
    run: RunRef,
}

#[async_trait]
impl Transition for AddRun {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        Ok(next.add_run(self.begun, self.run)?)
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.run_names().any(|name| name == self.run.name))
    }
}

#[cfg(test)]
mod tests;
