//! Look-ups of many blobs at once, in the order of prefixes.
//!
//! Owns how they are divided among the threads: by tables. One pass over a table answers for all
//! blobs, where single look-ups would read a block for each.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};

use super::Catalog;
use super::files::TableBytes;
use super::loaded::DamagedTable;
use crate::error::ContentError;
use crate::id::Prefix;
use crate::index::{PackNumber, Table, TableError};
use crate::pack::PackName;

/// A copy of a blob, as an index object lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedCopy {
    /// The position of the pack in [`ListedCopies::packs`].
    pub pack: u32,
    /// The number of the frame in the pack.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The position of the blob among those that were asked for.
    pub asked: u32,
}

/// Copies of blobs, as one index object lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedCopies {
    /// The packs of the index object.
    pub packs: Vec<PackName>,
    /// The copies, sorted: those in one pack follow each other.
    pub copies: Vec<ListedCopy>,
}

impl Catalog {
    /// Returns all copies of blobs, those in condemned packs and damaged frames included, by index
    /// object. `asked` is sorted, has each prefix once, and has fewer than 2³² of them.
    ///
    /// # Errors
    /// Those of [`Catalog::find_live`].
    pub(crate) async fn copies_of(
        &self,
        asked: &Arc<[Prefix]>,
    ) -> Result<Vec<ListedCopies>, ContentError> {
        loop {
            match self.copies_of_now(asked).await? {
                Ok(found) => return Ok(found),
                Err(damaged) => self.mend(damaged).await?,
            }
        }
    }

    async fn copies_of_now(
        &self,
        asked: &Arc<[Prefix]>,
    ) -> Result<Result<Vec<ListedCopies>, DamagedTable>, ContentError> {
        let state = self.state();
        let looks = state.tables.iter().map(|loaded| {
            let (loaded, asked) = (Arc::clone(loaded), Arc::clone(asked));
            self.workers
                .run(move |_| loaded.ask(|table| copies_in(table, &asked)))
        });
        let threads = self.workers.threads();
        let looks = futures::stream::iter(looks.collect::<Vec<_>>()).buffered(threads);
        let found: Vec<_> = looks.try_collect().await?;
        Ok(found.into_iter().collect())
    }
}

fn copies_in(table: &Table<TableBytes>, asked: &[Prefix]) -> Result<ListedCopies, TableError> {
    let mut copies = Vec::new();
    table.find_all(asked, &mut |asked, found| {
        copies.push(ListedCopy {
            pack: found.pack.0,
            frame: found.frame,
            slot: found.slot,
            asked: asked as u32,
        });
    })?;
    let mut packs = Vec::new();
    for number in 0..table.pack_count() {
        let name = table.pack_name(PackNumber(number))?;
        packs.push(name.ok_or(TableError::Inconsistent("a pack has no name"))?);
    }
    copies.sort_unstable();
    match copies.last() {
        Some(last) if last.pack as usize >= packs.len() => {
            Err(TableError::Inconsistent("a blob in a pack of no name"))
        }
        _ => Ok(ListedCopies { packs, copies }),
    }
}
