//! Merging: makes groups of runs of index objects, and few large groups of many small ones
//! (docs/PROTOCOL.md, rule 12).
//!
//! Owns the order of each step: the inputs are read, a run is written, and then the root names it. A
//! group is built slice by slice, each in a replacement of its own. So a merge that was interrupted
//! goes on where it stood, in whatever session. Nothing but speed depends on a merge: if it fails, the
//! index objects answer as before. Does not own which group is made next ([`policy`]).
//!
//! **Damage**: a group that is damaged leaves the root, and its index objects are merged anew. An
//! index object that cannot be read is left out of new groups. What is damaged is read twice before
//! that. A group with a run of a newer form stays as it is, and is merged into no other one.
//!
//! **Memory**: the packs of at most [`MergePolicy::most_blobs`] blobs, one run, and a few requests
//! to each run that is merged.

use std::collections::HashSet;
use std::time::Duration;

use bkfs_chunker::catalog::{IndexRef, OpenedRun, RunRef};
use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::ingest::{Ingest, RunPlan};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, Verifier};
use futures::{StreamExt, TryStreamExt};

use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::heartbeat::Base;
use crate::root::lists::Lists;
use crate::root::refusal::Refusal;
use crate::root::run_group::{Building, IndexName, RunGroup, Slice};
use crate::root::session::OpenSession;
use crate::root::state::{Root, SessionId};
use crate::root::transition::IndexChange;
use crate::root::view::RootView;

mod changes;
mod policy;
mod seen;

use changes::{AddRun, BeginGroup, DropGroups};
pub use policy::MergePolicy;
use policy::{Avoided, Step};
use seen::SeenGroups;

/// How often a merge goes on after groups left the root for an input that cannot be read.
const DAMAGES_MAX: u32 = 8;

/// How long a merge that was told to end waits for the end of its session.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// How many runs are opened concurrently before a group is begun.
const OPENED_AT_ONCE: usize = 8;

/// How many steps in a row may come to nothing, because the root changes faster than they end.
const FRUITLESS_MAX: u32 = 32;

/// Why a merge has ended before all was merged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stop {
    /// It has done as much as it may.
    Bound,
    /// It was told to end.
    Told,
    /// Groups of runs have left the root, and no other group answers for what they covered. What is
    /// merged further may be lost in the same way.
    GroupsGone,
    /// The root has no room for a further group.
    NoRoom,
    /// A newer program builds a group. There is one such group at a time.
    Newer,
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
    /// Why it ended before all was merged. `None` if nothing is left to merge.
    pub stop: Option<Stop>,
}

/// Merges until nothing is left to merge, or `goes_on` is false of what was done, in a session of its
/// own. It is asked before each step. Does nothing, and makes no request, if the newest known root
/// needs no merge.
///
/// It ends also if a group leaves the root that stood there at the begin or was made since, unless
/// that group was merged into another one. A program that does not know groups drops all of them with
/// each commit, and would make each step begin anew.
///
/// Cancel safety: dropped, it leaves a group that is being built, which the next merge goes on with,
/// and maybe its session in the root.
///
/// # Errors
/// - Those of [`OpenSession::open`] and of [`RootHandle::update`].
/// - [`RootError::Contended`] if the root changes faster than steps end.
/// - [`RootError::Content`] or [`RootError::Store`] if an index object or a run cannot be read or
///   written.
pub async fn merge_runs(
    repository: &Repository,
    verifier: &Verifier,
    policy: &MergePolicy,
    goes_on: &(dyn Fn(&Merged) -> bool + Sync),
    command: &str,
) -> Result<Merged, RootError> {
    let never = std::future::pending();
    merge_runs_until(repository, verifier, policy, goes_on, (command, never)).await
}

/// As [`merge_runs`], but ends also when it is told to: at any moment, in the middle of a step. The
/// next merge then goes on with the group that is being built.
///
/// # Errors
/// Those of [`merge_runs`].
pub async fn merge_runs_until(
    repository: &Repository,
    verifier: &Verifier,
    policy: &MergePolicy,
    goes_on: &(dyn Fn(&Merged) -> bool + Sync),
    (command, told): (&str, impl Future<Output = ()>),
) -> Result<Merged, RootError> {
    let handle = &repository.handle;
    if !policy.is_due(&handle.current().root) {
        return Ok(Merged::default());
    }
    let mut told = std::pin::pin!(told);
    let environment = &repository.environment;
    let holder = environment.holder(command);
    let opened = OpenSession::open(handle, holder, None, &*environment.processes);
    let session = tokio::select! {
        biased;
        opened = opened => opened?,
        () = &mut told => return Ok(Merged { stop: Some(Stop::Told), ..Merged::default() }),
    };
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let mut merger = Merger::new(repository, verifier, &ingest, &session);
    let done = tokio::select! {
        biased;
        done = merger.work(policy, goes_on) => done,
        () = &mut told => Ok(Some(Stop::Told)),
    };
    let merged = Merged {
        stop: *done.as_ref().unwrap_or(&None),
        ..merger.merged
    };
    // It was asked, and is not asked again.
    let is_told = merged.stop == Some(Stop::Told);
    let told = async {
        if !is_told {
            told.await;
        }
    };
    match end_by(session, told).await {
        Some(Ok(())) => {}
        Some(Err(RootError::Refused(Refusal::Fenced { .. }))) => {
            tracing::warn!("another program has ended the session of the merge");
        }
        Some(Err(left)) => {
            tracing::warn!(error = %left, "the session of the merge stays in the root");
        }
        None => tracing::warn!("the session of the merge stays in the root"),
    }
    done.map(|_| merged)
}

/// Ends a session. Returns `None` if that takes longer than [`LAST_WAIT`] after it was told to end.
async fn end_by(
    session: OpenSession,
    told: impl Future<Output = ()>,
) -> Option<Result<(), RootError>> {
    let mut end = std::pin::pin!(session.end());
    tokio::select! {
        biased;
        ended = &mut end => Some(ended),
        () = told => tokio::time::timeout(LAST_WAIT, end).await.ok(),
    }
}

struct Merger<'a> {
    handle: &'a RootHandle,
    lists: &'a Lists,
    verifier: &'a Verifier,
    ingest: &'a Ingest,
    session: SessionId,
    /// The base of the session. It is raised with each step, so that the session holds no deletion
    /// back for longer than that.
    base: Base,
    /// The packs of the index objects that a group is made of, and which these are.
    packs: Option<(Vec<IndexRef>, Vec<PackContents>)>,
    /// The groups of the newest root that this merge has seen or made.
    seen: SeenGroups,
    /// What could not be read.
    avoided: Avoided,
    /// How many times groups left the root since an input could not be read.
    damages: u32,
    merged: Merged,
}

/// What a step came to.
#[derive(Debug)]
enum Outcome {
    /// It was made.
    Made,
    /// What it was planned by has changed.
    Fruitless,
    /// The root has no room for the group that is being built.
    NoRoom,
}

impl<'a> Merger<'a> {
    fn new(
        repository: &'a Repository,
        verifier: &'a Verifier,
        ingest: &'a Ingest,
        session: &OpenSession,
    ) -> Self {
        Merger {
            handle: &repository.handle,
            lists: &repository.lists,
            verifier,
            ingest,
            session: session.id(),
            base: session.heartbeat().base(),
            packs: None,
            seen: SeenGroups::default(),
            avoided: Avoided::default(),
            damages: 0,
            merged: Merged::default(),
        }
    }
}

impl Merger<'_> {
    /// Returns why it ended before all was merged.
    async fn work(
        &mut self,
        policy: &MergePolicy,
        goes_on: &(dyn Fn(&Merged) -> bool + Sync),
    ) -> Result<Option<Stop>, RootError> {
        let mut fruitless = 0;
        while fruitless <= FRUITLESS_MAX {
            // The one root that this step is planned by, works by and is judged by.
            let view = self.handle.current();
            self.seen.note(view.root.run_groups());
            if self.seen.is_any_lost() {
                return Ok(Some(Stop::GroupsGone));
            }
            let Some(step) = policy.next(&view.root, &self.avoided) else {
                let building = view.root.building_group();
                let is_newer = building.is_some_and(|of| self.avoided.groups.contains(&of.begun));
                return Ok(is_newer.then_some(Stop::Newer));
            };
            if !goes_on(&self.merged) {
                return Ok(Some(Stop::Bound));
            }
            // No reference is kept from one step to the next: the root names what was merged.
            self.base.raise(view.root.epoch);
            fruitless = match self.step(policy, &view, step).await? {
                Outcome::Made => 0,
                Outcome::Fruitless => fruitless + 1,
                Outcome::NoRoom => return Ok(Some(Stop::NoRoom)),
            };
        }
        Err(RootError::Contended {
            attempts: FRUITLESS_MAX,
        })
    }

    /// Carries out a step that was planned by a root. If the root has changed since, or if an input
    /// cannot be read, the next step is planned anew.
    async fn step(
        &mut self,
        policy: &MergePolicy,
        view: &RootView,
        step: Step,
    ) -> Result<Outcome, RootError> {
        let error = match self.carry_out(policy, &view.root, step).await {
            Ok(true) => return Ok(Outcome::Made),
            Ok(false) => return Ok(Outcome::NoRoom),
            Err(error) => error,
        };
        let input = input_of(&error).map(str::to_owned);
        // What was to be merged may have changed: the newer root says what is next.
        let is_changed = matches!(error, RootError::Refused(Refusal::ListsChanged));
        let now = match is_changed || error.wants_newer_root() || input.is_some() {
            true => self.handle.refresh().await?,
            false => return Err(error),
        };
        let is_named = |key: &String| names_object(&now.root, key);
        match input.filter(is_named) {
            Some(key) if self.damages < DAMAGES_MAX => {
                let building = view.root.building_group().map(|group| group.begun);
                let without = self.do_without(&now.root, building, &key, &error);
                if !without.await? {
                    self.damages += 1;
                }
                Ok(Outcome::Made)
            }
            None if now.root.mark() != view.root.mark() => Ok(Outcome::Fruitless),
            _ => Err(error),
        }
    }

    /// Returns false if the root has no room for the group that is being built.
    async fn carry_out(
        &mut self,
        policy: &MergePolicy,
        root: &Root,
        step: Step,
    ) -> Result<bool, RootError> {
        match step {
            // The sources are read before the root names the group: what cannot be read is in none.
            Step::Begin(building, covers) => {
                if building.from.is_empty() {
                    let objects = root.index.iter().filter(|index| {
                        let name = IndexName(index.name);
                        covers.contains(&name)
                    });
                    self.read_packs(objects.copied().collect()).await?;
                } else {
                    self.open_sources(root, &building).await?;
                }
                self.begin(IndexChange::default(), building, covers).await
            }
            Step::Join(objects) => self.join(policy, objects).await,
            Step::Write(group, slice) => self.write(root, &group, slice).await,
        }
    }

    /// Lets the next steps do without an input that cannot be read. A damaged group that has it
    /// leaves the root, and so does `building`, the group that was being built. If the input is of a
    /// form that only newer programs read, all groups stay: one of these programs builds the group.
    ///
    /// Returns true if no group left, and the input was not avoided before: so that this happens once
    /// for each input. Groups that are built anew can be damaged again and again.
    async fn do_without(
        &mut self,
        root: &Root,
        building: Option<u64>,
        key: &str,
        error: &RootError,
    ) -> Result<bool, RootError> {
        let name = PackName::from_key(key).ok().map(|(_, name)| name);
        let mut is_new = name.is_some_and(|name| self.avoided.index.insert(name));
        let has_it = |group: &&RunGroup| {
            let is_run = group.runs.iter().any(|run| Some(run.name) == name);
            is_run || group.dropped.is_some_and(|list| Some(list.name) == name)
        };
        let concerned = root.run_groups().iter();
        let is_building = |group: &RunGroup| !group.is_complete() && Some(group.begun) == building;
        let concerned = concerned.filter(|group| is_building(group) || has_it(group));
        let concerned: Vec<u64> = concerned.map(|group| group.begun).collect();
        if is_of_another_form(error) {
            tracing::warn!(%error, "what this program cannot read is not merged");
            for group in concerned {
                is_new |= self.avoided.groups.insert(group);
            }
            return Ok(is_new);
        }
        tracing::warn!(%error, "an index is merged anew");
        if concerned.is_empty() {
            return Ok(is_new);
        }
        let mut change = DropGroups {
            session: self.session,
            groups: concerned,
        };
        let made = self.handle.update(&mut change).await?.output;
        self.seen.forget(&change.groups);
        self.seen.note(&made.all);
        Ok(false)
    }

    /// Returns false if the root has no room for the group.
    async fn begin(
        &mut self,
        index: IndexChange,
        building: Building,
        covers: Vec<IndexName>,
    ) -> Result<bool, RootError> {
        let mut change = BeginGroup {
            session: self.session,
            index,
            building,
            covers,
            other: None,
        };
        let made = self.handle.update(&mut change).await?.output;
        let made = change.other.unwrap_or(made);
        self.seen.note(&made.all);
        Ok(made.have_room)
    }

    /// Writes index objects into few, and begins a group of these in the replacement that names
    /// them. Returns false if the root has no room for the group.
    async fn join(
        &mut self,
        policy: &MergePolicy,
        objects: Vec<IndexRef>,
    ) -> Result<bool, RootError> {
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
        let is_begun = self.begin(index, building, covers).await?;
        // They list the same packs.
        self.packs = known.map(|(_, packs)| (added, packs));
        Ok(is_begun)
    }

    /// Writes the run of a slice, and names it. The root names the group: what is forgotten after it
    /// enters the group's dropped list. Returns false if the root has no room for the group.
    async fn write(
        &mut self,
        root: &Root,
        group: &RunGroup,
        slice: Slice,
    ) -> Result<bool, RootError> {
        let sources = match &group.building {
            Some(building) => sources_of(root, building),
            None => Vec::new(),
        };
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
            true => self.read_packs(root.covered_by(group)).await?,
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
        let made = self.handle.update(&mut change).await?.output;
        self.seen.note(&made.all);
        self.merged.runs += 1;
        self.merged.records += run.records;
        self.merged.bytes += run.bytes;
        Ok(made.have_room)
    }

    /// Opens the runs of all sources once.
    async fn open_sources(&self, root: &Root, building: &Building) -> Result<(), RootError> {
        let content_store = self.ingest.content_store();
        for source in sources_of(root, building) {
            self.lists.dropped(source.dropped).await?;
            let opened = source.runs.iter().map(|run| async move {
                let opened = content_store.open_run(*run).await;
                opened.map(drop)
            });
            futures::stream::iter(opened.collect::<Vec<_>>())
                .buffer_unordered(OPENED_AT_ONCE)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    /// Returns the packs of an index object. What is damaged is read once more, since an answer may be
    /// damaged on its way.
    async fn packs_of(&self, index: IndexRef) -> Result<Vec<PackContents>, ContentError> {
        match self.verifier.index(index).await {
            Err(ContentError::Damaged { .. } | ContentError::Unreadable { .. }) => {
                self.verifier.index(index).await
            }
            listed => listed,
        }
    }

    /// Returns the packs of index objects, each once. Reads the index objects unless their packs
    /// are in memory.
    async fn read_packs(&mut self, objects: Vec<IndexRef>) -> Result<&[PackContents], RootError> {
        let is_known = (self.packs.as_ref()).is_some_and(|(known, _)| *known == objects);
        if !is_known {
            self.packs = None;
            let (mut packs, mut known) = (Vec::new(), HashSet::new());
            for index in &objects {
                let listed = self.packs_of(*index).await?;
                packs.extend(listed.into_iter().filter(|pack| known.insert(pack.name())));
            }
            self.packs = Some((objects, packs));
        }
        Ok(self.packs.as_ref().map_or(&[], |(_, packs)| packs))
    }
}

/// Returns the groups that a group is merged from.
fn sources_of<'a>(root: &'a Root, building: &Building) -> Vec<&'a RunGroup> {
    let groups = root.complete_groups();
    let sources = groups.filter(|group| building.from.contains(&group.begun));
    sources.collect()
}

/// Returns true if the run may have records of the slice.
fn meets(run: &RunRef, slice: &Slice) -> bool {
    run.class == slice.class
        && run.first <= *slice.prefixes.end()
        && *slice.prefixes.start() <= run.last
}

/// Returns true if the root names the index object, run or list of this key.
fn names_object(root: &Root, key: &str) -> bool {
    let Ok((class, name)) = PackName::from_key(key) else {
        return false;
    };
    match class {
        Class::Index => root.index.iter().any(|index| index.name == name),
        Class::Run => root.run_names().any(|run| run == name),
        _ => {
            let mut groups = root.run_groups().iter();
            groups.any(|group| group.dropped.is_some_and(|list| list.name == name))
        }
    }
}

/// Returns true if the error says that the object is whole, and that another program reads it.
fn is_of_another_form(error: &RootError) -> bool {
    match error {
        RootError::Content(error) => match error.cause() {
            ContentError::Unreadable { source, .. } => source.is_of_another_form(),
            _ => false,
        },
        RootError::Unopenable { source, .. } => source.is_of_another_form(),
        _ => false,
    }
}

/// Returns the key of the object that cannot be read, if the error says that of one.
fn input_of(error: &RootError) -> Option<&str> {
    match error {
        RootError::Content(error) => match error.cause() {
            ContentError::Damaged { object, .. }
            | ContentError::Missing { object, .. }
            | ContentError::Unreadable { object, .. } => Some(object),
            _ => None,
        },
        RootError::Store(error) => error.is_not_found().then(|| error.key()),
        RootError::Damaged { key, .. } | RootError::Unopenable { key, .. } => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
