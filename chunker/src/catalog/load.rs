//! What is loaded of the index that a root lists.
//!
//! Owns which index objects become tables, and for which of them groups of runs answer. A group
//! answers unless this process has all tables of its index objects at hand: these answer without a
//! request. Does not decide which index objects are current: the caller passes what the root says.

use std::collections::HashSet;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use super::loaded::Loaded;
use super::reference::{IndexRef, IndexSources, RunGroup};
use super::run_group::{KnownRuns, LoadedGroup};
use super::run_searcher::Reason;
use super::{Catalog, CatalogTables};
use crate::error::ContentError;
use crate::pack::PackName;

/// Maximum number of index objects that are loaded concurrently.
const LOADED_AT_ONCE: usize = 8;

/// The most blobs of a group for which tables at hand are used in place of its runs: their filters
/// take about 150 MB of memory.
const TABLED_BLOBS_MAX: u64 = 1 << 27;

impl CatalogTables {
    /// Returns true if this group is asked.
    pub(super) fn has_group(&self, group: &Arc<LoadedGroup>) -> bool {
        self.groups.iter().any(|other| Arc::ptr_eq(other, group))
    }
}

fn name_of(loaded: &Arc<Loaded>) -> PackName {
    loaded.reference().name
}

impl Catalog {
    /// Makes what is loaded match what a root says; see
    /// [`ContentStore::load_index`](crate::content_store::ContentStore::load_index).
    pub(crate) async fn load(
        &self,
        sources: &IndexSources,
        condemned: &HashSet<PackName>,
    ) -> Result<(), ContentError> {
        let _turn = self.loading.lock().await;
        let before = self.state();
        let mut list = sources.objects.clone();
        let mut groups = Vec::new();
        for group in &sources.groups {
            match self.is_tabled(&before, group).await {
                true => list.extend(&group.covers),
                false => groups.push(group),
            }
        }
        let groups = self.grouped(&before, &groups);
        Box::pin(self.load_filters(&groups)).await;
        let dropped = sources.groups.iter().flat_map(|group| group.dropped.iter());
        let gone: HashSet<PackName> = condemned.iter().chain(dropped).copied().collect();
        self.load_listed(&list, groups, &gone).await
    }

    /// Loads the tables of the index objects that a group answered for, in the place of the group. What
    /// else is loaded or committed meanwhile stays. One group is replaced at a time. Returns false, and
    /// reads nothing, if more would be read than may still be read for this reason.
    ///
    /// Cancel safety: dropped, it leaves the group in use.
    ///
    /// # Errors
    /// [`ContentError::Index`] if they cannot be read; [`ContentError::Store`] or
    /// [`ContentError::Stalled`] if the store fails. At once, if an attempt has failed just now.
    pub(super) async fn load_tables_of(
        &self,
        group: &Arc<LoadedGroup>,
        reason: Reason,
    ) -> Result<bool, ContentError> {
        let _turn = self.replacing.lock().await;
        if !self.state().has_group(group) {
            return Ok(true);
        }
        if let Some(error) = group.last_failure.recent() {
            return Err(error);
        }
        if let Reason::Unknown(id) = reason {
            let bytes = self.bytes_to_read(group.covers()).await;
            if !self.searcher.permits_unknown(bytes) {
                return Ok(false);
            }
            tracing::warn!(%id, "no run has it: index objects are read");
        }
        let fresh = match self.tables_of(group.covers(), reason).await {
            Ok(fresh) => fresh,
            Err(error) => return Err(error.of_index()),
        };
        let loaded = {
            let mut state = self.state.write();
            if !state.has_group(group) {
                return Ok(true);
            }
            let known: HashSet<PackName> = state.tables.iter().map(name_of).collect();
            let fresh = fresh
                .into_iter()
                .filter(|table| !known.contains(&name_of(table)));
            let tables = state.tables.iter().cloned().chain(fresh);
            let groups = state
                .groups
                .iter()
                .filter(|other| !Arc::ptr_eq(other, group));
            let loaded = Arc::new(CatalogTables {
                tables: tables.collect(),
                groups: groups.cloned().collect(),
                condemned: state.condemned.clone(),
            });
            *state = Arc::clone(&loaded);
            loaded
        };
        (self.searcher).forget_others(|run, pack| loaded.answers_for(run, pack));
        Ok(true)
    }

    /// Returns the decoded bytes of these index objects, without those that are loaded or at hand.
    async fn bytes_to_read(&self, list: &[IndexRef]) -> u64 {
        let before = self.state();
        let loaded: HashSet<PackName> = before.tables.iter().map(name_of).collect();
        let mut bytes = 0;
        for reference in list.iter().filter(|one| !loaded.contains(&one.name)) {
            if !self.is_on_disk(reference.name).await {
                bytes += reference.bytes;
            }
        }
        bytes
    }

    async fn is_on_disk(&self, name: PackName) -> bool {
        match &self.files {
            Some(files) => files.holds(name).await,
            None => false,
        }
    }

    /// Returns the tables of index objects. Those that are loaded are not loaded again.
    async fn tables_of(
        &self,
        list: &[IndexRef],
        reason: Reason,
    ) -> Result<Vec<Arc<Loaded>>, ContentError> {
        let before = self.state();
        let loads = list.iter().map(|reference| {
            let mut tables = before.tables.iter();
            let known = tables.find(|loaded| loaded.reference().name == reference.name);
            let known = known.cloned();
            async move {
                match known {
                    Some(known) => Ok(known),
                    None => self.load_one(*reference, reason).await,
                }
            }
        });
        futures::stream::iter(loads.collect::<Vec<_>>())
            .buffered(LOADED_AT_ONCE)
            .try_collect()
            .await
    }

    /// Returns true if the index objects of a group are used by their tables.
    async fn is_tabled(&self, before: &CatalogTables, group: &RunGroup) -> bool {
        let runs = group.runs.iter().map(|run| run.name);
        let is_given_up = self.searcher.has_given_up(runs);
        let blobs: u64 = group.covers.iter().map(|covered| covered.blobs).sum();
        if blobs > TABLED_BLOBS_MAX && !is_given_up {
            return false;
        }
        let mut tables = before.tables.iter().map(|loaded| loaded.reference().name);
        let loaded: HashSet<PackName> = tables.by_ref().collect();
        for covered in &group.covers {
            if !loaded.contains(&covered.name) && !self.is_on_disk(covered.name).await {
                return false;
            }
        }
        true
    }

    /// Returns the groups as this process asks them. Those that are loaded stay as they are.
    fn grouped(&self, before: &CatalogTables, groups: &[&RunGroup]) -> Vec<Arc<LoadedGroup>> {
        let known: KnownRuns = before
            .groups
            .iter()
            .flat_map(|group| group.known())
            .collect();
        let grouped = groups.iter().map(|group| {
            let loaded = before.groups.iter().find(|loaded| loaded.is_of(group));
            match loaded {
                Some(loaded) => Arc::clone(loaded),
                None => Arc::new(LoadedGroup::new(&self.searcher.store, group, &known)),
            }
        });
        grouped.collect()
    }

    /// Loads the tables of exactly these index objects, and uses exactly these groups.
    async fn load_listed(
        &self,
        list: &[IndexRef],
        groups: Vec<Arc<LoadedGroup>>,
        condemned: &HashSet<PackName>,
    ) -> Result<(), ContentError> {
        let before = self.state();
        let staged = self.staged();
        let known = |name: PackName| {
            let mut all = before.tables.iter().chain(&staged);
            all.find(|loaded| loaded.reference().name == name && !loaded.is_given_up())
        };
        let missing = list
            .iter()
            .filter(|reference| known(reference.name).is_none());
        let loads = missing.map(|reference| self.load_one(*reference, Reason::Listed));
        let fresh: Vec<Arc<Loaded>> = futures::stream::iter(loads.collect::<Vec<_>>())
            .buffered(LOADED_AT_ONCE)
            .try_collect()
            .await?;
        let listed: HashSet<PackName> = list.iter().map(|reference| reference.name).collect();
        let same_groups = before.groups.len() == groups.len()
            && (before.groups.iter().zip(&groups)).all(|(one, other)| Arc::ptr_eq(one, other));
        let is_same = before.tables.len() == list.len()
            && (before.tables.iter()).all(|loaded| listed.contains(&loaded.reference().name));
        let is_new = !fresh.is_empty() || !is_same || !same_groups;
        if !is_new && condemned.is_subset(&before.condemned) {
            return Ok(());
        }
        let mut fresh = fresh.into_iter();
        let tables = list
            .iter()
            .filter_map(|reference| known(reference.name).cloned().or_else(|| fresh.next()));
        let ever = before.condemned.union(condemned).copied();
        let loaded = Arc::new(CatalogTables {
            tables: tables.collect(),
            groups,
            condemned: ever.collect(),
        });
        *self.state.write() = Arc::clone(&loaded);
        if !same_groups {
            (self.searcher).forget_others(|run, pack| loaded.answers_for(run, pack));
        }
        if is_new && let Some(files) = &self.files {
            let staged = staged.iter().map(|loaded| loaded.reference().name);
            let names = list.iter().map(|reference| reference.name).chain(staged);
            files.keep_only(names.collect()).await;
        }
        Ok(())
    }
}
