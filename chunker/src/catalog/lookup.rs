//! Look-ups in all tables, and tables made anew that a look-up finds damaged.
//!
//! Owns what is asked of the index. No answer comes from a damaged table: the table is made anew
//! from the bucket, and the look-up begins again. That needs the store, so look-ups are
//! asynchronous, except those that may do without an answer and those of packs in memory.

use std::sync::Arc;

use super::by_runs::Asked;
use super::loaded::{Candidate, DamagedTable, Loaded, Location, name_of};
use super::{Catalog, CatalogTables, PackLocation};
use crate::error::ContentError;
use crate::id::{Id, Prefix};
use crate::index::{self, TableError};
use crate::pack::PackName;

impl Catalog {
    /// Returns a pack that new data may refer to for this blob: it is live, and this copy is not
    /// known to be damaged. Tables that are damaged and could not be made anew are not asked, so
    /// that the blob is stored again.
    ///
    /// # Errors
    /// [`Unsettled`] says what must be done before the answer is known.
    pub(crate) fn find_live_now(&self, id: &Id) -> Result<Option<PackName>, Unsettled> {
        let (state, prefix) = (self.state(), id.prefix());
        let sound = state.tables.iter().filter(|loaded| !loaded.is_given_up());
        if let Some(found) = self.live_in(&state, sound, &prefix)? {
            return Ok(Some(found));
        }
        match self.lead_now(&state, &prefix) {
            Asked::Nothing => Ok(None),
            Asked::Pack(found) => Ok(Some(found)),
            Asked::Runs => Err(Unsettled::Runs),
        }
    }

    /// Returns a pack that new data may refer to for this blob: it is live, and this copy is not
    /// known to be damaged.
    ///
    /// # Errors
    /// If a table is damaged and cannot be made anew, those of fetching its index object. If a run
    /// cannot be read, those of fetching the index objects that it answers for.
    /// [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    pub(crate) async fn find_live(&self, id: &Id) -> Result<Option<PackName>, ContentError> {
        let prefix = id.prefix();
        loop {
            let state = self.state();
            match self.live_in(&state, state.tables.iter(), &prefix) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(damaged) => {
                    self.mend(damaged).await?;
                    continue;
                }
            }
            match Box::pin(self.lead(&state, &state.groups, &prefix)).await {
                Ok(found) => return Ok(found),
                Err(unled) => self.give_up(unled).await?,
            }
        }
    }

    fn live_in<'a>(
        &self,
        state: &CatalogTables,
        mut tables: impl Iterator<Item = &'a Arc<Loaded>>,
        prefix: &Prefix,
    ) -> Result<Option<PackName>, DamagedTable> {
        let find = |loaded: &Arc<Loaded>| {
            loaded.ask(|table| {
                for found in table.find(prefix)? {
                    let name = name_of(table, found)?;
                    let is_good =
                        !state.condemned.contains(&name) && !self.is_damaged(name, found.frame);
                    if is_good {
                        return Ok(Some(name));
                    }
                }
                Ok(None)
            })
        };
        tables
            .find_map(|loaded| find(loaded).transpose())
            .transpose()
    }

    /// Returns true if a loaded index object lists this pack and it is not condemned.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(crate) async fn is_live(&self, pack: &PackName) -> Result<bool, ContentError> {
        Ok(self.is_listed(pack).await? && !self.is_condemned(pack))
    }

    /// Returns true if a loaded index object lists this pack, condemned or not.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(crate) async fn is_listed(&self, pack: &PackName) -> Result<bool, ContentError> {
        loop {
            let state = self.state();
            match state.holds(pack) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(damaged) => {
                    self.mend(damaged).await?;
                    continue;
                }
            }
            match Box::pin(self.is_named(&state, pack)).await {
                Ok(is_named) => return Ok(is_named),
                Err(unled) => self.give_up(unled).await?,
            }
        }
    }

    /// Returns all copies of a blob that tables have, the best first. Copies in condemned packs,
    /// which may be deleted at any time, and in damaged frames come last. Also returns what was loaded
    /// when the tables were asked.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(super) async fn locate(
        &self,
        id: &Id,
    ) -> Result<(Arc<CatalogTables>, Vec<Candidate>), ContentError> {
        let prefix = id.prefix();
        let look = |state: &Arc<CatalogTables>| {
            let mut found = state.copies(&prefix, |loaded, place| {
                let candidate = loaded.candidate(place)?;
                let Location { pack, frame, .. } = candidate.location;
                let is_poor = state.condemned.contains(&pack) || self.is_damaged(pack, frame);
                Ok((is_poor, candidate))
            })?;
            found.sort_by_key(|(is_poor, _)| *is_poor);
            let found = found.into_iter().map(|(_, candidate)| candidate).collect();
            Ok((Arc::clone(state), found))
        };
        self.answer(look).await
    }

    /// Returns the copies of a blob that pins have. A table of a pin that is damaged is not asked
    /// again.
    pub(crate) fn locate_pinned(&self, prefix: &Prefix) -> Vec<Candidate> {
        let tables = self.pinned.read().clone();
        match copies_in(tables.iter(), prefix, |loaded, place| {
            loaded.candidate(place)
        }) {
            Ok(found) => found,
            Err(damaged) => {
                let (loaded, error) = (damaged.loaded, damaged.error);
                let pin = loaded.reference().name;
                tracing::warn!(%pin, "a pin in the cache is damaged and not used: {error}");
                let mut pinned = self.pinned.write();
                pinned.retain(|other| !Arc::ptr_eq(other, &loaded));
                Vec::new()
            }
        }
    }

    /// Returns all copies of a blob, those in condemned packs and damaged frames included.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(crate) async fn places(&self, prefix: &Prefix) -> Result<Vec<PackLocation>, ContentError> {
        let slots = self.slots(prefix).await?.into_iter();
        let places = slots.map(|(pack, frame, _)| PackLocation {
            pack,
            frame: Some(frame),
        });
        Ok(places.collect())
    }

    /// As [`Catalog::places`], of tables that are in memory.
    pub(crate) fn places_in_memory(&self, prefix: &Prefix) -> Vec<PackLocation> {
        // A table in memory that this process has made is never damaged.
        let state = self.state();
        let tables = state.tables.iter().filter(|loaded| loaded.is_in_memory());
        let copies = copies_in(tables, prefix, place);
        copies.unwrap_or_default()
    }

    /// Returns all copies of a blob as (pack, frame, slot in the frame).
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(crate) async fn slots(
        &self,
        prefix: &Prefix,
    ) -> Result<Vec<(PackName, u16, u16)>, ContentError> {
        let slot = |loaded: &Arc<Loaded>, found: index::Location| {
            Ok((name_of(&loaded.table, found)?, found.frame, found.slot))
        };
        loop {
            let state = self.state();
            let mut found = match state.copies(prefix, slot) {
                Ok(found) => found,
                Err(damaged) => {
                    self.mend(damaged).await?;
                    continue;
                }
            };
            match Box::pin(self.records_of(&state, prefix)).await {
                Ok(records) => {
                    let records = records.into_iter().map(|found| found.record);
                    found.extend(records.map(|record| (record.pack, record.frame, record.slot)));
                    return Ok(found);
                }
                Err(unled) => self.give_up(unled).await?,
            }
        }
    }

    /// Returns what `look` finds. If it finds a damaged table, has that made anew, and looks again.
    async fn answer<T>(
        &self,
        look: impl Fn(&Arc<CatalogTables>) -> Result<T, DamagedTable>,
    ) -> Result<T, ContentError> {
        loop {
            match look(&self.state()) {
                Ok(found) => return Ok(found),
                Err(damaged) => self.mend(damaged).await?,
            }
        }
    }

    /// Makes a damaged table anew from the bucket, unless another caller has done that. A table that
    /// was made anew before stays in memory, so that a disk that spoils all files does not keep a
    /// look-up from ending.
    ///
    /// Takes memory of the budget for fetches, so no caller may hold a part of it. One table is made at
    /// a time.
    ///
    /// Cancel safety: dropped, it leaves the damaged table in use, and maybe a whole file.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`]: at once, if an attempt has failed just now. The table is given
    /// up then.
    pub(crate) async fn mend(&self, damaged: DamagedTable) -> Result<(), ContentError> {
        let _turn = self.loading.lock().await;
        let loaded = &damaged.loaded;
        if !(self.state().tables.iter()).any(|other| Arc::ptr_eq(other, loaded)) {
            return Ok(());
        }
        if loaded.is_in_memory() {
            let error = ContentError::Internal("a table in memory contradicts itself");
            loaded.note_failure(&error);
            return Err(error);
        }
        if let Some(error) = loaded.recent_failure() {
            return Err(error);
        }
        let reference = loaded.reference();
        tracing::warn!(index = %reference.name, "made again: {}", damaged.error);
        let fresh = match self.make_anew(reference).await {
            Ok(fresh) => fresh,
            Err(error) => {
                let error = error.of_index();
                tracing::warn!(index = %reference.name, "not made again: {error}");
                loaded.note_failure(&error);
                return Err(error);
            }
        };
        let mut state = self.state.write();
        let replaced = |other: &Arc<Loaded>| match Arc::ptr_eq(other, loaded) {
            true => Arc::clone(&fresh),
            false => Arc::clone(other),
        };
        *state = Arc::new(CatalogTables {
            tables: state.tables.iter().map(replaced).collect(),
            ..CatalogTables::clone(&state)
        });
        self.mended.lock().insert(reference.name);
        Ok(())
    }
}

/// What must be done before it is known whether a live pack has a blob.
#[derive(Debug)]
pub(crate) enum Unsettled {
    /// This table must be made anew: [`Catalog::mend`].
    Table(DamagedTable),
    /// The runs must be asked: [`Catalog::ask_briefly`].
    Runs,
}

impl From<DamagedTable> for Unsettled {
    fn from(damaged: DamagedTable) -> Self {
        Self::Table(damaged)
    }
}

impl CatalogTables {
    pub(super) fn holds(&self, pack: &PackName) -> Result<bool, DamagedTable> {
        for loaded in &self.tables {
            if loaded.ask(|table| table.number_of(pack))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns what `take` makes of each copy of a blob.
    fn copies<T>(
        &self,
        prefix: &Prefix,
        take: impl FnMut(&Arc<Loaded>, index::Location) -> Result<T, TableError>,
    ) -> Result<Vec<T>, DamagedTable> {
        copies_in(self.tables.iter(), prefix, take)
    }
}

fn copies_in<'a, T>(
    tables: impl Iterator<Item = &'a Arc<Loaded>>,
    prefix: &Prefix,
    mut take: impl FnMut(&Arc<Loaded>, index::Location) -> Result<T, TableError>,
) -> Result<Vec<T>, DamagedTable> {
    let mut copies = Vec::new();
    for loaded in tables {
        for found in loaded.ask(|table| table.find(prefix))? {
            copies.push(loaded.ask(|_| take(loaded, found))?);
        }
    }
    Ok(copies)
}

fn place(loaded: &Arc<Loaded>, found: index::Location) -> Result<PackLocation, TableError> {
    Ok(PackLocation {
        pack: name_of(&loaded.table, found)?,
        frame: Some(found.frame),
    })
}
