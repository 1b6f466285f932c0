//! Look-ups by the runs of the loaded groups (docs/PROTOCOL.md, rules 12 and 13).
//!
//! Owns what is asked of the groups, and what happens when one cannot be read. If a run is gone, the
//! newest root is asked first: a collection may have deleted the run. Otherwise the index objects that
//! the group answers for are loaded in its place. Owns how long a writer waits for runs: not long,
//! since a blob that it does not find is only stored once more.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::learned::{LearnedPack, candidates};
use super::loaded::Candidate;
use super::opened_run::Told;
use super::run_group::{FoundRecord, LoadedGroup};
use super::run_searcher::Reason;
use super::{Catalog, CatalogTables};
use crate::crypto::Class;
use crate::error::ContentError;
use crate::id::{Id, Prefix};
use crate::pack::PackName;

/// How long a writer waits for runs to tell of one blob. Then it stores the blob.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// How long a root counts as the newest one for searches of unknown blobs. Otherwise each of many such
/// blobs would read it.
const RENEWAL_COUNTS_FOR: Duration = Duration::from_secs(1);

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

/// What a search for one blob has asked.
#[derive(Debug, Default)]
pub(crate) struct RunSearch {
    /// What was loaded when the tables were asked. Another search may have loaded tables since, in the
    /// place of a group.
    located: Option<Arc<CatalogTables>>,
    /// Packs whose copies were tried.
    tried: HashSet<PackName>,
    /// Packs that the runs name and that were not tried, with the run that named each. `None` before
    /// the runs were asked.
    packs: Option<VecDeque<(PackName, Class, PackName)>>,
    /// Whether the newest root was asked for the blob.
    is_renewed: bool,
    /// Whether nothing further can be asked.
    is_over: bool,
}

impl RunSearch {
    fn is_located_in(&self, state: &Arc<CatalogTables>) -> bool {
        (self.located.as_ref()).is_some_and(|located| Arc::ptr_eq(located, state))
    }

    /// Ends the search if this is an error: nothing is asked again that has failed.
    fn ending<T>(&mut self, outcome: Result<T, ContentError>) -> Result<T, ContentError> {
        self.is_over |= outcome.is_err();
        outcome
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
        let records = |class| groups.iter().map(|group| group.records(class)).sum();
        let records = [Class::DataPack, Class::MetadataPack].map(records);
        let [data, metadata] = sampled_levels(records, bytes);
        for group in groups {
            for (class, from) in [(Class::DataPack, data), (Class::MetadataPack, metadata)] {
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
        let told = self
            .asked_of(state)
            .any(|group| group.tell(prefix) == Told::Maybe);
        match told && !self.searcher.is_unasked() {
            true => Asked::Runs,
            false => Asked::Nothing,
        }
    }

    /// Returns the groups that a writer asks: those that could be read.
    fn asked_of<'a>(
        &'a self,
        state: &'a CatalogTables,
    ) -> impl Iterator<Item = &'a Arc<LoadedGroup>> {
        let groups = state.groups.iter();
        groups.filter(|group| !self.searcher.has_given_up(group.run_names()))
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
        let groups: Vec<Arc<LoadedGroup>> = self.asked_of(&state).cloned().collect();
        match tokio::time::timeout(ASKED_FOR, self.lead(&state, &groups, &prefix)).await {
            Ok(Ok(found)) => return found,
            Ok(Err(Unled::Group(group, error))) => self.note_given_up(&group, &error),
            Ok(Err(Unled::Failed(error))) => tracing::debug!(%error, "the runs do not answer"),
            Err(_) => tracing::debug!("the runs do not answer in time"),
        }
        self.searcher.pause_asking();
        None
    }

    /// Finds a live copy of a blob by these groups of `state`, and learns the footer of its pack.
    pub(super) async fn lead(
        &self,
        state: &Arc<CatalogTables>,
        groups: &[Arc<LoadedGroup>],
        prefix: &Prefix,
    ) -> Result<Lead, Unled> {
        if let Some(found) = self.learned_lead(state, prefix) {
            return Ok(Some(found));
        }
        for group in groups {
            Unled::just_now(group)?;
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
            Unled::just_now(group)?;
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
            Unled::just_now(group)?;
            let found = group.find(prefix).await;
            all.extend(found.map_err(|error| Unled::of(group, error))?);
        }
        Ok(all)
    }

    /// Asks a group that cannot be read no more, and loads the tables of the index objects that it
    /// answers for. If a run of it is gone, and the newest root does not have the group any more, loads
    /// that root in its place. The caller then looks again, from the tables on.
    ///
    /// # Errors
    /// Why groups did not answer, if it was not one group, or if the index objects cannot be read
    /// either.
    pub(super) async fn give_up(&self, unled: Unled) -> Result<(), ContentError> {
        match unled {
            Unled::Failed(error) => Err(error),
            Unled::Group(group, error) => {
                let is_gone = matches!(error, ContentError::Missing { .. });
                if is_gone && self.is_renewed_without(&group).await {
                    return Ok(());
                }
                self.note_given_up(&group, &error);
                let loaded = Box::pin(self.load_tables_of(&group, Reason::Listed)).await;
                if let Err(error) = &loaded {
                    group.last_failure.note(error);
                }
                loaded.map(drop)
            }
        }
    }

    /// Loads what the newest root says, if this group is still asked. Returns true if the group is not
    /// asked any more.
    async fn is_renewed_without(&self, group: &Arc<LoadedGroup>) -> bool {
        let mut renewed = self.renewing.lock().await;
        if let Some(newer) = self.newer.get().filter(|_| self.state().has_group(group)) {
            newer.load().await;
            *renewed = Some(Instant::now());
        }
        !self.state().has_group(group)
    }

    fn note_given_up(&self, group: &LoadedGroup, error: &ContentError) {
        tracing::warn!(%error, "a group of runs is not asked any more");
        self.searcher.give_up(group.run_names());
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
        while !search.is_over {
            let state = self.state();
            if !search.is_located_in(&state) {
                match self.locate_first(id, search).await? {
                    found if found.is_empty() => continue,
                    found => return Ok(Some(found)),
                }
            }
            if state.groups.is_empty() {
                break;
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
                match self.records_of(&state, &prefix).await {
                    Ok(records) => search.packs = Some(packs_of(&records)),
                    Err(unled) => {
                        let given_up = self.give_up(unled).await;
                        search.ending(given_up)?;
                        continue;
                    }
                }
            }
            let is_unknown = search.packs.as_ref().is_some_and(VecDeque::is_empty);
            if search.tried.is_empty() && is_unknown {
                let looked = self.look_beyond_runs(id, &state, search).await;
                search.ending(looked)?;
                continue;
            }
            return self.next_of_packs(&prefix, search).await;
        }
        Ok(None)
    }

    /// Returns the copies of a blob that tables have and that were not tried.
    ///
    /// # Errors
    /// Those of [`Catalog::locate`]. The search is over then.
    pub(crate) async fn locate_first(
        &self,
        id: &Id,
        search: &mut RunSearch,
    ) -> Result<Vec<Candidate>, ContentError> {
        let located = self.locate(id).await;
        let (state, mut found) = search.ending(located)?;
        found.retain(|found| !search.tried.contains(&found.location.pack));
        let packs = found.iter().map(|found| found.location.pack);
        search.tried.extend(packs);
        search.packs = None;
        search.located = Some(state);
        Ok(found)
    }

    /// Returns the copies of a blob in the next pack that the runs name.
    async fn next_of_packs(
        &self,
        prefix: &Prefix,
        search: &mut RunSearch,
    ) -> Result<Option<Vec<Candidate>>, ContentError> {
        while let Some((pack, class, run)) = search.packs.as_mut().and_then(VecDeque::pop_front) {
            if !search.tried.insert(pack) {
                continue;
            }
            let learned = self.learn((pack, class), run).await?;
            let found = candidates(&learned.loaded, prefix)?;
            if found.is_empty() {
                let what = "it names a pack for a blob that the pack does not have";
                return Err(ContentError::damaged("an index run", what).of_index());
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Looks for a blob that no table and no run has. The newest root may know it. A run that lacks a
    /// record shows no damage, so the index objects of one group then come in its place. Groups of more
    /// index objects than may be read for this are believed.
    async fn look_beyond_runs(
        &self,
        id: &Id,
        state: &Arc<CatalogTables>,
        search: &mut RunSearch,
    ) -> Result<(), ContentError> {
        if !std::mem::replace(&mut search.is_renewed, true)
            && let Some(newer) = self.newer.get()
        {
            let mut renewed = self.renewing.lock().await;
            if renewed.is_none_or(|at| at.elapsed() > RENEWAL_COUNTS_FOR) {
                newer.load().await;
                *renewed = Some(Instant::now());
            }
            return Ok(());
        }
        let smallest = state
            .groups
            .iter()
            .min_by_key(|group| group.covered_bytes());
        let is_loaded = match smallest {
            Some(group) => {
                let loaded = Box::pin(self.load_tables_of(group, Reason::Unknown(*id))).await;
                if let Err(error) = &loaded {
                    group.last_failure.note(error);
                }
                loaded?
            }
            None => false,
        };
        search.is_over |= !is_loaded;
        Ok(())
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
    /// Fails if neither the runs nor the index objects of the group could be read just now.
    fn just_now(group: &LoadedGroup) -> Result<(), Self> {
        match group.last_failure.recent() {
            Some(error) => Err(Self::Failed(error)),
            None => Ok(()),
        }
    }

    fn of(group: &Arc<LoadedGroup>, error: ContentError) -> Self {
        match is_of_a_run(&error) {
            true => Self::Group(Arc::clone(group), error),
            false => Self::Failed(error),
        }
    }
}

/// Returns the packs that records name, each once.
fn packs_of(records: &[FoundRecord]) -> VecDeque<(PackName, Class, PackName)> {
    let packs = records
        .iter()
        .map(|found| (found.record.pack, (found.class, found.run)));
    let packs: BTreeMap<PackName, (Class, PackName)> = packs.collect();
    let packs = packs.into_iter();
    packs
        .map(|(pack, (class, run))| (pack, class, run))
        .collect()
}

/// Returns the lowest levels whose filters, with those of all higher ones, fit into `bytes`, for so
/// many records of data and metadata packs. Those of metadata get a quarter of the bytes, and more if
/// the others leave it.
fn sampled_levels(records: [u64; 2], bytes: u64) -> [u8; 2] {
    let takes = |records: u64, level: u8| (records >> level).saturating_mul(FILTER_BITS) / 8;
    let sampled = |records: u64, bytes: u64| {
        (0..SAMPLED_LEVEL_MAX)
            .find(|level| takes(records, *level) <= bytes)
            .unwrap_or(SAMPLED_LEVEL_MAX)
    };
    let [data, metadata] = records;
    let of_metadata = bytes.saturating_sub(takes(data, 0)).max(bytes / 4);
    let from = sampled(metadata, of_metadata);
    [
        sampled(data, bytes.saturating_sub(takes(metadata, from))),
        from,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_both_classes_stay_within_the_memory() {
        for bytes in [1 << 20, 64 << 20, 1 << 30] {
            for data in [0, 1_000, 10_000_000, 1_000_000_000] {
                for metadata in [0, 1_000, 10_000_000, 1_000_000_000] {
                    let levels = sampled_levels([data, metadata], bytes);
                    let kept = (data >> levels[0]) + (metadata >> levels[1]);
                    let is_least = levels.contains(&SAMPLED_LEVEL_MAX);
                    let taken = kept * FILTER_BITS / 8;
                    assert!(taken <= bytes || is_least, "{taken} of {bytes}: {levels:?}");
                }
            }
        }
        assert_eq!(sampled_levels([100_000, 100_000], 1 << 20), [0, 0]);
        assert_eq!(
            sampled_levels([0, 400_000], 1 << 20),
            [0, 0],
            "nothing is kept free"
        );
    }
}
