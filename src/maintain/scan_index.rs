//! Reads the index objects that a root names, and describes packs that none of them lists.
//!
//! Owns how many of them are in memory at the same time, and the problem that each one reports.
//! Writes nothing.

use std::collections::BTreeMap;

use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use futures::StreamExt;

use super::indexed::Indexed;
use super::layout::{self, place_of};
use super::report::{Problem, ProblemKind, Report};
use super::runs::RunTallies;
use super::scan::{READS_AT_ONCE, Scan, as_problem};
use super::workspace::shelf::{Shelf, ShelvedPack};
use crate::root::error::RootError;
use crate::root::state::Root;

/// Decoded length of the index objects that are in memory at the same time, in bytes. A larger one
/// is read alone.
const INDEX_BYTES: u64 = 64 << 20;

impl Scan<'_> {
    /// Returns the contents of the root's index objects, and counts them for the groups of runs.
    /// Each one that is unreadable, or contradicts another, is a problem.
    ///
    /// # Errors
    /// Store errors.
    pub async fn index(
        &self,
        root: &Root,
        tallies: &mut RunTallies,
        report: &mut Report,
    ) -> Result<Indexed, RootError> {
        let mut indexed = Indexed::new(&self.options.workspace);
        let largest = root.index.iter().map(|reference| reference.bytes).max();
        let at_once = INDEX_BYTES / largest.unwrap_or(0).max(1);
        let mut reads = futures::stream::iter(root.index.iter())
            .map(|reference| async move { (*reference, self.verifier.index(*reference).await) })
            .buffered(at_once.clamp(1, READS_AT_ONCE as u64) as usize);
        while let Some((reference, read)) = reads.next().await {
            report.counts.indexes += 1;
            let packs = match read {
                Ok(packs) => packs,
                Err(error) => {
                    report.add(as_problem(error)?);
                    indexed.lost.push(reference);
                    tallies.count(&reference.name, None);
                    continue;
                }
            };
            tallies.count(&reference.name, Some(&packs));
            for pack in indexed.add(packs)? {
                let what = format!("it and another index object disagree about {pack}");
                let key = reference.name.key(Class::Index);
                report.add(Problem::new(key, ProblemKind::Inconsistent, what));
            }
        }
        Ok(indexed)
    }

    /// Describes packs in the bucket that are not among `known`. Runs only if a part of the index
    /// is lost: every such pack may be needed, so that an unreadable description is a problem. Adds
    /// the keys of these packs to `unread`. Puts what packs hold on `shelf`.
    ///
    /// # Errors
    /// Store errors.
    pub async fn unlisted(
        &self,
        bucket: &BTreeMap<String, u64>,
        known: impl Fn(&PackName) -> bool,
        (shelf, report): (&mut Shelf, &mut Report),
        unread: &mut Vec<String>,
    ) -> Result<Vec<ShelvedPack>, RootError> {
        let packs = bucket
            .iter()
            .filter_map(|(key, bytes)| match place_of(key) {
                layout::NamedObject::Named(
                    class @ (Class::DataPack | Class::MetadataPack),
                    name,
                ) => (!known(&name)).then_some((class, name, *bytes)),
                _ => None,
            });
        let reads = packs.map(|(class, name, bytes)| async move {
            let read = self.verifier.describe(name, class, bytes).await;
            (name.key(class), read)
        });
        let mut reads = futures::stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE);
        let mut found = Vec::new();
        while let Some((key, read)) = reads.next().await {
            match read {
                Ok(pack) => found.extend(shelf.put(vec![pack])?),
                Err(error) => {
                    unread.push(key);
                    let mut problem = as_problem(error)?;
                    problem.what += " (no index object that can be read lists it)";
                    report.add(problem);
                }
            }
        }
        Ok(found)
    }
}
