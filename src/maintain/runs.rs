//! Groups of runs, compared with the index objects that they cover.
//!
//! Owns the comparison: of each run, the number of records and a sum of keyed hashes of them, as
//! the run has them and as the packs of the index objects list them. The records of packs are compared
//! in the same way. So the memory does not depend on the number of records. Nothing is lost with a run,
//! but readers would miss what it leaves out.

use std::collections::HashSet;

use bkfs_chunker::catalog::{OpenedRun, RunRecord, RunRef};
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::run::PackFrames;
use bkfs_chunker::verify::PackContents;
use futures::TryStreamExt;

use super::report::{Problem, ProblemKind, Report};
use super::scan::{Scan, as_problem, root_problem};
use crate::root::error::RootError;
use crate::root::lists::Lists;
use crate::root::run_group::RunGroup;
use crate::root::state::Root;

/// The number of entries, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Sum {
    count: u64,
    sum: u128,
}

/// What a run has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Tally {
    /// Of its records of blobs.
    blobs: Sum,
    /// Of its records of packs.
    packs: Sum,
}

/// The groups of a root, and what index objects say of their runs.
#[derive(Debug)]
pub struct RunTallies {
    key: [u8; 32],
    groups: Vec<GroupTally>,
}

#[derive(Debug)]
struct GroupTally {
    group: RunGroup,
    covers: HashSet<PackName>,
    /// Packs that were counted: several index objects may list one.
    known: HashSet<PackName>,
    /// For each run, in the order of the group's list.
    tallies: Vec<Tally>,
    /// Numbers of the runs of a class, in the order of their ranges.
    order: [Vec<usize>; 2],
}

impl RunTallies {
    /// Returns the tallies of a root before any of its index objects was read. `key` is random.
    pub fn new(root: Option<&Root>, key: [u8; 32]) -> Self {
        let groups = root.into_iter().flat_map(|root| root.complete_groups());
        let groups = groups.map(|group| {
            let order = [Class::DataPack, Class::MetadataPack].map(|class| {
                let runs = group.runs.iter().enumerate();
                let mut of_class: Vec<(Prefix, usize)> = runs
                    .filter(|(_, run)| run.class == class)
                    .map(|(number, run)| (run.first, number))
                    .collect();
                of_class.sort_unstable();
                of_class.into_iter().map(|(_, number)| number).collect()
            });
            GroupTally {
                covers: group.covers.iter().map(|name| name.0).collect(),
                known: HashSet::new(),
                tallies: vec![Tally::default(); group.runs.len()],
                order,
                group: group.clone(),
            }
        });
        Self {
            key,
            groups: groups.collect(),
        }
    }

    /// Counts the packs of an index object. None if it cannot be read: then nothing is known of the
    /// groups that cover it.
    pub fn count(&mut self, index: &PackName, packs: Option<&[PackContents]>) {
        let Some(packs) = packs else {
            self.groups.retain(|group| !group.covers.contains(index));
            return;
        };
        let key = self.key;
        for group in self
            .groups
            .iter_mut()
            .filter(|group| group.covers.contains(index))
        {
            for pack in packs {
                if group.known.insert(pack.name()) {
                    group.count(pack, &key);
                }
            }
        }
    }
}

impl GroupTally {
    fn count(&mut self, pack: &PackContents, key: &[u8; 32]) {
        let name = pack.name();
        for blob in pack.blobs() {
            let Some(number) = self.run_of(pack.class(), &blob.prefix) else {
                continue;
            };
            let place = (blob.frame, blob.slot);
            self.tallies[number].add_blob(key, (&blob.prefix, &name), place, blob.kind);
        }
        let place = PackFrames::place_of(&name);
        if let Some(number) = self.run_of(pack.class(), &place) {
            self.tallies[number].add_pack(key, &pack.frames());
        }
    }

    /// Returns the number of the run of a class whose range has the prefix.
    fn run_of(&self, class: Class, prefix: &Prefix) -> Option<usize> {
        let order = &self.order[usize::from(class == Class::MetadataPack)];
        let after = order.partition_point(|number| self.group.runs[*number].first <= *prefix);
        let number = *order.get(after.checked_sub(1)?)?;
        (*prefix <= self.group.runs[number].last).then_some(number)
    }
}

impl Sum {
    fn add(&mut self, hash: blake3::Hash) {
        let (half, _) = hash
            .as_bytes()
            .split_first_chunk()
            .expect("a hash is longer");
        self.count += 1;
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(*half));
    }
}

impl Tally {
    fn add_blob(
        &mut self,
        key: &[u8; 32],
        (prefix, pack): (&Prefix, &PackName),
        (frame, slot): (u16, u16),
        kind: Kind,
    ) {
        let mut record = [0; 37];
        record[..16].copy_from_slice(&prefix.0);
        record[16..32].copy_from_slice(&pack.to_bytes());
        record[32..34].copy_from_slice(&frame.to_le_bytes());
        record[34..36].copy_from_slice(&slot.to_le_bytes());
        record[36] = kind as u8;
        self.blobs.add(blake3::keyed_hash(key, &record));
    }

    fn add_pack(&mut self, key: &[u8; 32], pack: &PackFrames) {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&pack.name.to_bytes());
        hasher.update(&[pack.class as u8]);
        hasher.update(&pack.length.to_le_bytes());
        hasher.update(&pack.header);
        for frame in &pack.frames {
            hasher.update(&frame.to_le_bytes());
        }
        self.packs.add(hasher.finalize());
    }
}

impl Scan<'_> {
    /// Reads all runs of the groups. Each one that is unreadable, or contradicts the index objects
    /// that were counted, is a problem. Returns the groups that have such a run.
    ///
    /// # Errors
    /// Store errors.
    pub async fn runs(
        &self,
        content_store: &ContentStore,
        tallies: RunTallies,
        report: &mut Report,
    ) -> Result<Vec<u64>, RootError> {
        let lists = Lists::new(self.store.clone(), self.keyring.clone());
        let mut lost = Vec::new();
        for group in &tallies.groups {
            let mut is_lost = false;
            let dropped = match lists.dropped(group.group.dropped).await {
                Ok(dropped) => dropped,
                Err(error) => {
                    report.add(root_problem(error)?);
                    lost.push(group.group.begun);
                    continue;
                }
            };
            for (run, expected) in group.group.runs.iter().zip(&group.tallies) {
                let read = read(content_store, *run, &dropped, &tallies.key).await;
                let problem = match read {
                    Ok(found) if found == *expected => continue,
                    Ok(_) => Problem::new(
                        run.name.key(Class::Run),
                        ProblemKind::Inconsistent,
                        "its records are not those of the index objects that it covers",
                    ),
                    Err(error) => as_problem(error)?,
                };
                report.add(problem);
                is_lost = true;
            }
            if is_lost {
                lost.push(group.group.begun);
            }
        }
        Ok(lost)
    }
}

/// Reads a run, all of its parts included.
async fn read(
    content_store: &ContentStore,
    run: RunRef,
    dropped: &HashSet<PackName>,
    key: &[u8; 32],
) -> Result<Tally, ContentError> {
    let opened = content_store.open_run(run).await?;
    opened.load_filters(0).await?;
    let names: HashSet<PackName> = opened.pack_names().await?.into_iter().collect();
    let mut tally = Tally::default();
    let mut frames = opened.pack_frames();
    while let Some(packs) = frames.try_next().await? {
        for pack in &packs {
            if !names.contains(&pack.name) {
                return Err(damaged(run, "it describes a pack that it does not name"));
            }
            if !dropped.contains(&pack.name) {
                tally.add_pack(key, pack);
            }
        }
    }
    let mut records = opened.records(run.prefixes());
    while let Some(batch) = records.try_next().await? {
        for record in batch {
            require_filtered(&opened, run, &record)?;
            if !dropped.contains(&record.pack) {
                let place = (record.frame, record.slot);
                tally.add_blob(key, (&record.prefix, &record.pack), place, record.kind);
            }
        }
    }
    Ok(tally)
}

/// Checks that the filters let a record through.
fn require_filtered(
    opened: &OpenedRun,
    run: RunRef,
    record: &RunRecord,
) -> Result<(), ContentError> {
    match opened.may_hold(&record.prefix) {
        true => Ok(()),
        false => Err(damaged(run, "a filter hides a record")),
    }
}

fn damaged(run: RunRef, what: &str) -> ContentError {
    ContentError::Damaged {
        object: run.name.key(Class::Run),
        what: what.to_owned(),
    }
}
