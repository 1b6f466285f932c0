//! A group of runs, as this process asks it.
//!
//! Owns which runs are asked for a blob or a pack, and when they are opened: a run that no look-up
//! needs costs no request. Does not decide what happens when a run cannot be read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use super::loaded::LastFailure;
use super::opened_run::{OpenedRun, RunRecord, RunStore, Told};
use super::reference::{IndexRef, RunGroup, RunRef};
use crate::crypto::Class;
use crate::error::ContentError;
use crate::id::Prefix;
use crate::pack::PackName;
use crate::run::PackFrames;

/// Runs that are opened or asked concurrently.
const RUNS_AT_ONCE: usize = 16;

/// A run that is opened when it is first asked.
#[derive(Debug)]
pub(super) struct LazyRun {
    reference: RunRef,
    store: RunStore,
    opened: OnceCell<OpenedRun>,
}

impl LazyRun {
    fn new(store: RunStore, reference: RunRef) -> Self {
        Self {
            reference,
            store,
            opened: OnceCell::new(),
        }
    }

    async fn open(&self) -> Result<&OpenedRun, ContentError> {
        let open = || OpenedRun::open(self.store.clone(), self.reference);
        self.opened.get_or_try_init(open).await
    }

    fn note_named(&self, pack: PackName) {
        let caches = &self.store.caches;
        caches.note_named(pack, self.reference.name);
    }
}

/// A record of a blob, and where it was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundRecord {
    pub(super) record: RunRecord,
    /// The class of the pack.
    pub(super) class: Class,
    /// The run that has the record.
    pub(super) run: PackName,
}

/// A group of runs that answers for index objects.
#[derive(Debug)]
pub(super) struct LoadedGroup {
    covers: Vec<IndexRef>,
    dropped: Arc<HashSet<PackName>>,
    /// The runs, as the root lists them.
    runs: Vec<Arc<LazyRun>>,
    /// The runs of each class of packs, in the order of their ranges.
    by_class: [Vec<Arc<LazyRun>>; 2],
    names: HashSet<PackName>,
    /// Of the attempts to read the index objects in the place of the runs.
    pub(super) last_failure: LastFailure,
}

/// Runs that this process knows, by name.
pub(super) type KnownRuns = HashMap<PackName, Arc<LazyRun>>;

impl LoadedGroup {
    /// Returns a group. Runs that are known stay open.
    pub(super) fn new(store: &RunStore, group: &RunGroup, known: &KnownRuns) -> Self {
        let runs = group.runs.iter().map(|run| match known.get(&run.name) {
            Some(known) if known.reference == *run => Arc::clone(known),
            _ => Arc::new(LazyRun::new(store.clone(), *run)),
        });
        let runs: Vec<Arc<LazyRun>> = runs.collect();
        let by_class = [Class::DataPack, Class::MetadataPack].map(|class| {
            let of_class = runs.iter().filter(|run| run.reference.class == class);
            let mut of_class: Vec<_> = of_class.cloned().collect();
            of_class.sort_by_key(|run| run.reference.first);
            of_class
        });
        Self {
            covers: group.covers.clone(),
            dropped: Arc::clone(&group.dropped),
            names: runs.iter().map(|run| run.reference.name).collect(),
            runs,
            by_class,
            last_failure: LastFailure::default(),
        }
    }

    /// Returns the index objects that the group answers for.
    pub(super) fn covers(&self) -> &[IndexRef] {
        &self.covers
    }

    /// Returns the decoded bytes of the index objects that the group answers for.
    pub(super) fn covered_bytes(&self) -> u64 {
        self.covers.iter().map(|covered| covered.bytes).sum()
    }

    /// Returns the names of the runs.
    pub(super) fn run_names(&self) -> impl Iterator<Item = PackName> + '_ {
        self.runs.iter().map(|run| run.reference.name)
    }

    /// Returns true if this is what the root says of the group.
    pub(super) fn is_of(&self, group: &RunGroup) -> bool {
        let runs = self.runs.iter().map(|run| &run.reference);
        runs.eq(group.runs.iter()) && self.covers == group.covers && *self.dropped == *group.dropped
    }

    /// Returns the runs, to be known by the next groups.
    pub(super) fn known(&self) -> impl Iterator<Item = (PackName, Arc<LazyRun>)> + '_ {
        let named = |run: &Arc<LazyRun>| (run.reference.name, Arc::clone(run));
        self.runs.iter().map(named)
    }

    /// Returns true if the run is one of the group.
    pub(super) fn has_run(&self, run: &PackName) -> bool {
        self.names.contains(run)
    }

    /// Returns true if the pack is gone.
    pub(super) fn has_dropped(&self, pack: &PackName) -> bool {
        self.dropped.contains(pack)
    }

    /// Returns the number of records of the runs of a class.
    pub(super) fn records(&self, class: Class) -> u64 {
        let runs = self.runs.iter().map(|run| run.reference);
        let runs = runs.filter(|run| run.class == class);
        runs.map(|run| run.records).sum()
    }

    /// Returns what the filters in memory tell of a blob.
    pub(super) fn tell(&self, prefix: &Prefix) -> Told {
        let mut told = Told::Nothing;
        for run in self.runs_of(prefix) {
            match run.opened.get().map(|run| run.tell(prefix)) {
                Some(Told::Maybe) => return Told::Maybe,
                Some(Told::Nothing) => {}
                Some(Told::Unknown) | None => told = Told::Unknown,
            }
        }
        told
    }

    /// Returns the run of each class whose range has the prefix.
    fn runs_of(&self, prefix: &Prefix) -> impl Iterator<Item = &Arc<LazyRun>> {
        let prefix = *prefix;
        self.by_class.iter().filter_map(move |runs| {
            let after = runs.partition_point(|run| run.reference.first <= prefix);
            let run = runs.get(after.checked_sub(1)?)?;
            (prefix <= run.reference.last).then_some(run)
        })
    }

    /// Opens the runs of a class, and reads their filters from a level on.
    ///
    /// # Errors
    /// Those of [`OpenedRun::load_filters`].
    pub(super) async fn load_filters(&self, class: Class, from: u8) -> Result<(), ContentError> {
        let runs = self.runs.iter().filter(|run| run.reference.class == class);
        let loads = runs.map(|run| async move { run.open().await?.load_filters(from).await });
        futures::stream::iter(loads.collect::<Vec<_>>())
            .buffer_unordered(RUNS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Returns the records of a blob, without those of packs that are gone.
    ///
    /// # Errors
    /// Those of [`OpenedRun::find`].
    pub(super) async fn find(&self, prefix: &Prefix) -> Result<Vec<FoundRecord>, ContentError> {
        let looks = self.runs_of(prefix).map(|run| async move {
            let records = run.open().await?.find(&[*prefix]).await?;
            for record in &records {
                run.note_named(record.pack);
            }
            let RunRef { name, class, .. } = run.reference;
            let found = records.into_iter().map(move |record| FoundRecord {
                record,
                class,
                run: name,
            });
            Ok::<_, ContentError>(found.collect::<Vec<_>>())
        });
        let mut found = futures::future::try_join_all(looks).await?.concat();
        found.retain(|found| !self.dropped.contains(&found.record.pack));
        Ok(found)
    }

    /// Returns true if an index object that the group answers for names the pack.
    ///
    /// # Errors
    /// Those of [`OpenedRun::find`].
    pub(super) async fn names(&self, pack: &PackName) -> Result<bool, ContentError> {
        if self.dropped.contains(pack) {
            return Ok(false);
        }
        let known = (self.runs.first()).and_then(|run| run.store.caches.run_that_names(pack));
        if known.is_some_and(|run| self.has_run(&run)) {
            return Ok(true);
        }
        let place = PackFrames::place_of(pack);
        for run in self.runs_of(&place) {
            if run.open().await?.has_pack(pack).await? {
                run.note_named(*pack);
                return Ok(true);
            }
        }
        Ok(false)
    }
}
