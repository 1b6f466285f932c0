//! Look-ups by the runs of the loaded groups (docs/PROTOCOL.md, rules 12 and 13).
//!
//! Owns what is asked of the groups, and what happens when one cannot be read: the index objects
//! that it answers for are loaded in its place. Owns how long a writer waits for runs: not long,
//! since a blob that it does not find is only stored once more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::learned::{LearnedPack, candidates};
use super::loaded::Candidate;
use super::opened_run::Told;
use super::run_group::{FoundRecord, LoadedGroup};
use super::run_searcher::RunSearch;
use super::{Catalog, CatalogTables};
use crate::crypto::Class;
use crate::error::ContentError;
use crate::id::{Id, Prefix};
use crate::pack::PackName;

/// How long a writer waits for runs to tell of one blob. Then it stores the blob.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// Bits that a filter takes for each prefix, about.
const FILTER_BITS: u64 = 18;

/// The highest level that a writer samples from: one prefix in 4,096.
const SAMPLED_LEVEL_MAX: u8 = 12;

/// Returns true if the error says that a run cannot be used, and not that the store failed.
fn is_of_a_run(error: &ContentError) -> bool {
    match error {
        ContentError::Damaged { .. }
        | ContentError::Missing { .. }
        | ContentError::Unreadable { .. } => true,
        ContentError::Store(error) => error.is_of_one_object(),
        _ => false,
    }
}

/// A pack that runs lead to: it is live, and its copy of the blob is not known to be damaged.
type Lead = Option<PackName>;

impl CatalogTables {
    /// Returns true if a loaded group has this run, and an index object that the group answers for
    /// names this pack, which the run has named.
    pub(super) fn answers_for(&self, run: &PackName, pack: &PackName) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.has_run(run) && !group.has_dropped(pack))
    }
}

impl Catalog {
    /// Sets the memory for the filters by which a writer decides whether runs may have a blob.
    /// Takes effect with the next load.
    pub(crate) fn match_within(&self, filter_bytes: u64) {
        self.searcher.set_filter_bytes(filter_bytes);
    }

    /// Reads the filters of these groups, if a writer needs them. What cannot be read is not
    /// matched: the writer stores it again.
    pub(super) async fn load_filters(&self, groups: &[Arc<LoadedGroup>]) {
        let Some(bytes) = self.searcher.filter_bytes() else {
            return;
        };
        let level = sampled_level(groups, bytes);
        for group in groups {
            for (class, from) in [(Class::DataPack, level), (Class::MetadataPack, 0)] {
                if let Err(error) = group.load_filters(class, from).await {
                    tracing::warn!(%error, "what runs have is stored again");
                }
            }
        }
    }

    /// Returns what learned packs and filters in memory say of a blob that no table has: the pack of
    /// a live copy, or that the runs must be asked.
    pub(super) fn lead_now(&self, state: &CatalogTables, prefix: &Prefix) -> Asked {
        if state.groups.is_empty() {
            return Asked::Nothing;
        }
        if let Some(found) = self.learned_lead(state, prefix) {
            return Asked::Pack(found);
        }
        let told = state
            .groups
            .iter()
            .any(|group| group.tell(prefix) == Told::Maybe);
        match told && !self.searcher.is_unasked() {
            true => Asked::Runs,
            false => Asked::Nothing,
        }
    }

    fn learned_lead(&self, state: &CatalogTables, prefix: &Prefix) -> Lead {
        let learned = self.searcher.learned.find(prefix)?;
        let pack = learned.loaded.reference().name;
        let is_live = state.answers_for(&learned.run, &pack) && !state.condemned.contains(&pack);
        let places = learned.loaded.ask(|table| table.find(prefix)).ok()?;
        let is_good = |frame: u16| !self.is_damaged(pack, frame);
        (is_live && places.iter().any(|place| is_good(place.frame))).then_some(pack)
    }

    /// Asks the runs for a blob, for a writer. Waits for at most [`ASKED_FOR`]. `None` if they have
    /// no live copy or do not answer: then the blob is stored once more.
    ///
    /// Cancel safety: it only reads.
    pub(crate) async fn ask_briefly(&self, id: &Id) -> Lead {
        if self.searcher.is_unasked() {
            return None;
        }
        let (state, prefix) = (self.state(), id.prefix());
        match tokio::time::timeout(ASKED_FOR, self.lead(&state, &prefix)).await {
            Ok(Ok(found)) => return found,
            Ok(Err(Unled::Group(group, error))) => self.note_given_up(&group, &error),
            Ok(Err(Unled::Failed(error))) => tracing::debug!(%error, "the runs do not answer"),
            Err(_) => tracing::debug!("the runs do not answer in time"),
        }
        self.searcher.pause_asking();
        None
    }

    /// Finds a live copy of a blob by the runs of `state`, and learns the footer of its pack.
    pub(super) async fn lead(
        &self,
        state: &Arc<CatalogTables>,
        prefix: &Prefix,
    ) -> Result<Lead, Unled> {
        if let Some(found) = self.learned_lead(state, prefix) {
            return Ok(Some(found));
        }
        for group in &state.groups {
            let found = group.find(prefix).await;
            for found in found.map_err(|error| Unled::of(group, error))? {
                let FoundRecord { record, class, run } = found;
                let is_good = !state.condemned.contains(&record.pack)
                    && !self.is_damaged(record.pack, record.frame);
                if !is_good {
                    continue;
                }
                // The record says that the pack has the blob. The footer is for its neighbours.
                if let Err(error) = self.learn((record.pack, class), run).await {
                    tracing::debug!(%error, "a footer is not learned");
                }
                return Ok(Some(record.pack));
            }
        }
        Ok(None)
    }

    async fn learn(
        &self,
        pack: (PackName, Class),
        run: PackName,
    ) -> Result<Arc<LearnedPack>, ContentError> {
        let is_loaded = || self.state().answers_for(&run, &pack.0);
        let searcher = &self.searcher;
        let learned = searcher
            .learned
            .learn(&searcher.store, pack, run, is_loaded);
        learned.await
    }

    /// Returns true if a group names the pack: it is listed in an index object that the group
    /// answers for.
    pub(super) async fn is_named(
        &self,
        state: &Arc<CatalogTables>,
        pack: &PackName,
    ) -> Result<bool, Unled> {
        for group in &state.groups {
            let names = group.names(pack).await;
            if names.map_err(|error| Unled::of(group, error))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns all records that the groups have of a blob.
    pub(super) async fn records_of(
        &self,
        state: &Arc<CatalogTables>,
        prefix: &Prefix,
    ) -> Result<Vec<FoundRecord>, Unled> {
        let mut all = Vec::new();
        for group in &state.groups {
            let found = group.find(prefix).await;
            all.extend(found.map_err(|error| Unled::of(group, error))?);
        }
        Ok(all)
    }

    /// Asks a group that cannot be read no more, and loads the tables of the index objects that it
    /// answers for. The caller then looks again, from the tables on.
    ///
    /// # Errors
    /// Why groups did not answer, if it was not one group, or if the index objects cannot be read
    /// either.
    pub(super) async fn give_up(&self, unled: Unled) -> Result<(), ContentError> {
        match unled {
            Unled::Failed(error) => Err(error),
            Unled::Group(group, error) => {
                self.note_given_up(&group, &error);
                self.load_tables_of(&group).await
            }
        }
    }

    fn note_given_up(&self, group: &LoadedGroup, error: &ContentError) {
        tracing::warn!(%error, "a group of runs is not asked any more");
        self.searcher.give_up(group.known().map(|(name, _)| name));
    }

    /// Returns the next copies of a blob that only runs lead to: those in a learned pack, or in one
    /// that the runs name and that is learned now. `None` if there is no further one. After an error
    /// there may be.
    ///
    /// # Errors
    /// - [`ContentError::Index`] if a footer is damaged, or if neither a run nor the index objects
    ///   that it answers for can be read: what they say stays unknown.
    /// - [`ContentError::Missing`] if a pack is gone.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    pub(crate) async fn next_by_runs(
        &self,
        id: &Id,
        search: &mut RunSearch,
    ) -> Result<Option<Vec<Candidate>>, ContentError> {
        let prefix = id.prefix();
        if self.state().groups.is_empty() && self.searcher.has_all() {
            return Ok(None);
        }
        if let Some(learned) = self.searcher.learned.find(&prefix)
            && search.tried.insert(learned.loaded.reference().name)
        {
            let found = candidates(&learned.loaded, &prefix)?;
            if !found.is_empty() {
                return Ok(Some(found));
            }
        }
        if search.packs.is_none() {
            // Asked once: what fails now says nothing of other copies.
            search.packs = Some(VecDeque::new());
            let records = loop {
                match self.records_of(&self.state(), &prefix).await {
                    Ok(records) => break records,
                    Err(unled) => self.give_up(unled).await?,
                }
            };
            let packs = records
                .iter()
                .map(|found| (found.record.pack, (found.class, found.run)));
            let packs: BTreeMap<PackName, (Class, PackName)> = packs.collect();
            let packs = packs
                .into_iter()
                .map(|(pack, (class, run))| (pack, class, run));
            search.packs = Some(packs.collect());
            // Tables that have come in the place of a group.
            let found = self.locate(id).await?.into_iter();
            let found = found.filter(|found| !search.tried.contains(&found.location.pack));
            let found: Vec<Candidate> = found.collect();
            if !found.is_empty() {
                search
                    .tried
                    .extend(found.iter().map(|found| found.location.pack));
                return Ok(Some(found));
            }
        }
        if search.tried.is_empty() && search.packs.as_ref().is_some_and(VecDeque::is_empty) {
            return self.next_by_objects(id, search).await;
        }
        while let Some((pack, class, run)) = search.packs.as_mut().and_then(VecDeque::pop_front) {
            if !search.tried.insert(pack) {
                continue;
            }
            let learned = self.learn((pack, class), run).await?;
            let found = candidates(&learned.loaded, &prefix)?;
            if found.is_empty() {
                let what = "it names a pack for a blob that the pack does not have";
                return Err(ContentError::damaged("an index run", what).of_index());
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Returns the copies of a blob that no table and no run has. The index objects that groups answer
    /// for are read before it counts as unknown: a run that lacks a record shows no damage.
    async fn next_by_objects(
        &self,
        id: &Id,
        search: &mut RunSearch,
    ) -> Result<Option<Vec<Candidate>>, ContentError> {
        for group in &self.state().groups {
            tracing::warn!(%id, "no run has it: the index objects are read");
            self.load_tables_of(group).await?;
        }
        let found = self.locate(id).await?;
        search
            .tried
            .extend(found.iter().map(|found| found.location.pack));
        Ok(Some(found).filter(|found| !found.is_empty()))
    }

    /// Forgets what was learned of a pack, which is gone.
    pub(crate) fn forget_learned(&self, pack: &PackName) {
        self.searcher.learned.forget(pack);
    }
}

/// What is known at once of a blob that no table has.
pub(super) enum Asked {
    /// No live copy is known.
    Nothing,
    /// A live copy is in this pack.
    Pack(PackName),
    /// The runs must be asked.
    Runs,
}

/// Why groups did not answer.
pub(super) enum Unled {
    /// This group cannot be read.
    Group(Arc<LoadedGroup>, ContentError),
    /// The store failed, which says nothing about a group.
    Failed(ContentError),
}

impl Unled {
    fn of(group: &Arc<LoadedGroup>, error: ContentError) -> Self {
        match is_of_a_run(&error) {
            true => Self::Group(Arc::clone(group), error),
            false => Self::Failed(error),
        }
    }
}

/// Returns the lowest level whose filters, with those of all higher ones, fit into `bytes`.
fn sampled_level(groups: &[Arc<LoadedGroup>], bytes: u64) -> u8 {
    let records: u64 = groups
        .iter()
        .map(|group| group.records(Class::DataPack))
        .sum();
    let fits = |level: &u8| (records >> level).saturating_mul(FILTER_BITS) / 8 <= bytes;
    (0..SAMPLED_LEVEL_MAX)
        .find(fits)
        .unwrap_or(SAMPLED_LEVEL_MAX)
}
