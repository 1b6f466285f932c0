//! The whole contents of a run, or those of one range of prefixes, in order.
//!
//! Owns how far a scan reads ahead, and the order across blocks, which no block shows.

use std::future::ready;
use std::ops::RangeInclusive;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::{Held, OpenedRun, RunRecord, Wanted, joined};
use crate::error::ContentError;
use crate::id::Prefix;
use crate::pack::PackName;
use crate::run::{Fences, PackFrames, Record, Section};

/// Number of requests of a scan that are under way or wait to be taken. The records of one take up to
/// 8 MiB.
const READ_AHEAD: usize = 4;

/// Records of a run, in order, in batches.
pub type Records<'a> = BoxStream<'a, Result<Vec<RunRecord>, ContentError>>;

impl OpenedRun {
    /// Returns all records of a range of prefixes. Each byte is fetched once, and no block is kept.
    ///
    /// The stream ends with [`ContentError::Damaged`] if a part of the run does not open or the
    /// records are not in order, and with the errors of a read.
    ///
    /// The names of all packs of the run stay in memory as long as the stream.
    pub fn records(&self, range: RangeInclusive<Prefix>) -> Records<'_> {
        let scan = async move {
            let names = self.hold_names(0..self.directory.names_count()).await?;
            let requests = self.requests_of(range.clone()).await?;
            let records = self.numbered_records(range, requests);
            Ok::<_, ContentError>(
                records.and_then(move |records| ready(self.named(&names, records))),
            )
        };
        stream::once(scan).try_flatten().boxed()
    }

    /// Returns the records of a range in the blocks of these requests, with the numbers of their packs.
    fn numbered_records(
        &self,
        range: RangeInclusive<Prefix>,
        requests: Vec<Vec<Wanted>>,
    ) -> BoxStream<'_, Result<Vec<Record>, ContentError>> {
        let mut last: Option<Record> = None;
        stream::iter(requests.into_iter().map(Ok::<_, ContentError>))
            .map_ok(move |wanted| {
                let range = range.clone();
                async move { self.records_in(wanted, &range).await }
            })
            .try_buffered(READ_AHEAD)
            .and_then(move |records: Vec<Record>| {
                let follows = last.is_none_or(|last| records.first().is_none_or(|one| last < *one));
                last = records.last().copied().or(last);
                ready(match follows {
                    true => Ok(records),
                    false => Err(ContentError::damaged(
                        &self.key,
                        "its records are not in order",
                    )),
                })
            })
            .boxed()
    }

    /// Returns the records that the run has of packs, in the order of their places.
    ///
    /// The stream ends with the errors of [`OpenedRun::records`].
    pub fn pack_frames(&self) -> BoxStream<'_, Result<Vec<PackFrames>, ContentError>> {
        let sections = (0..self.directory.pack_frames_count()).map(Section::PackFrames);
        let parts = sections.filter_map(|section| Some((section, self.directory.range(section)?)));
        let requests = joined(parts.collect(), |(_, range)| range.clone());
        let mut last: Option<Prefix> = None;
        stream::iter(requests)
            .map(async |parts| {
                let sections = parts.into_iter().map(|(section, _)| section).collect();
                let read = self.read(sections, |directory, section, sealed, decoder| {
                    directory.open_pack_frames(section.index(), sealed, decoder)
                });
                let lists = read.await?;
                Ok(lists
                    .iter()
                    .flat_map(|list| list.packs())
                    .cloned()
                    .collect())
            })
            .buffered(READ_AHEAD)
            .and_then(move |packs: Vec<PackFrames>| {
                let mut fits = true;
                for pack in &packs {
                    let place = PackFrames::place_of(&pack.name);
                    fits &= last.is_none_or(|last| last < place)
                        && pack.class == self.directory.class()
                        && self.directory.prefixes().contains(&place);
                    last = Some(place);
                }
                ready(match fits {
                    true => Ok(packs),
                    false => Err(ContentError::damaged(
                        &self.key,
                        "its packs are not in order, or are those of another run",
                    )),
                })
            })
            .boxed()
    }

    /// Returns the names of all packs that the run names, in order.
    ///
    /// # Errors
    /// Those of [`OpenedRun::find`].
    pub async fn pack_names(&self) -> Result<Vec<PackName>, ContentError> {
        let parts = self.hold_names(0..self.directory.names_count()).await?;
        let names = parts.values().flat_map(|part| part.names());
        let names: Vec<PackName> = names.copied().collect();
        match names.is_sorted_by(|one, other| one < other) {
            true => Ok(names),
            false => Err(ContentError::damaged(
                &self.key,
                "its names are not in order",
            )),
        }
    }

    /// Returns the blocks that may have records of `range`, in order, by requests.
    async fn requests_of(
        &self,
        range: RangeInclusive<Prefix>,
    ) -> Result<Vec<Vec<Wanted>>, ContentError> {
        let first = self.directory.fences_of(range.start()).start;
        let end = self.directory.fences_of(range.end()).end;
        let fences = self.hold_fences(first..end).await?;
        let blocks = self.blocks_of(&fences, &range);
        Ok(joined(blocks, |wanted| wanted.bytes.clone()))
    }

    /// Returns all blocks of these fences that may have records of `range`, in order.
    fn blocks_of(&self, fences: &Held<Fences>, range: &RangeInclusive<Prefix>) -> Vec<Wanted> {
        let mut blocks = Vec::new();
        for (number, part) in fences {
            let first = part.blocks_of(range.start()).start;
            let end = part.blocks_of(range.end()).end;
            blocks.extend((first..end).filter_map(|block| self.block(*number, part, block)));
        }
        blocks
    }

    /// Returns the records of a range in blocks that lie side by side.
    async fn records_in(
        &self,
        wanted: Vec<Wanted>,
        range: &RangeInclusive<Prefix>,
    ) -> Result<Vec<Record>, ContentError> {
        let blocks = self.fetch_blocks(wanted).await?;
        let records: Vec<Record> = blocks
            .iter()
            .flat_map(|block| block.records())
            .copied()
            .collect();
        match records.is_sorted_by(|one, other| one < other) {
            true => Ok(records
                .into_iter()
                .filter(|record| range.contains(&record.prefix))
                .collect()),
            false => Err(ContentError::damaged(
                &self.key,
                "its records are not in order",
            )),
        }
    }
}
