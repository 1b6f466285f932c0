//! Checks a repository: from the root down to every byte, in the bucket itself.
//!
//! Owns the order: keys, root, lists, index objects, data packs, metadata packs, heads, sessions,
//! orphans, affected files. Writes nothing to the bucket. It is also the oracle of the tests:
//! [`check`] takes a store and a keyring, and reports all damage.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_chunker::budget::MemoryBudget;
use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::{ContentStore, ContentStoreConfig};
use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::Verifier;
use bkfs_store::{Store, Version};

use super::blame::{Blame, Head};
use super::contents::{Learned, Walk};
use super::holdings::{self, Holdings};
use super::indexed::Indexed;
use super::journals::Unreplayable;
use super::judge::Damage;
use super::options::CheckOptions;
use super::orphans::count_orphans;
use super::recovery_bases;
use super::refused::Refusals;
use super::report::{Problem, ProblemKind, Report};
use super::runs::RunTallies;
use super::scan::{Listed, Scan};
use super::strays;
use super::trees::{Named, Trees};
use super::workspace::shelf::ShelvedPack;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::record::CommitRecord;
use crate::root::retry::random;
use crate::root::snapshots::SnapshotEntry;
use crate::root::state::{ROOT_KEY, Root};
use crate::volume::error::VolumeError;
use crate::volume::nodes::Nodes;

/// Frame cache of the content store that looks blobs up, in bytes: it reads only nodes, to trace
/// damage.
const CACHE_BYTES: u64 = 32 << 20;

/// Blobs in damaged places whose copies are looked for at the same time.
const BLOBS_JUDGED_AT_ONCE: usize = 1 << 20;

/// Rounds of a check; the root's replacement while an object was missing starts a new one (rule
/// 10).
const ROUNDS_MAX: u32 = 3;

/// Everything that a check learned; the input of a repair's plan.
pub struct Findings {
    /// Problems that were found.
    pub report: Report,
    /// The root's owner, if there is a readable root.
    pub handle: Option<RootHandle>,
    /// Contents of the lists.
    pub listed: Listed,
    /// Contents of the index.
    pub indexed: Indexed,
    /// Packs in the bucket that no index object lists; filled only if an index object or the root
    /// is lost.
    pub unlisted: Vec<ShelvedPack>,
    /// Sizes of all objects, as the bucket lists them.
    pub bucket: BTreeMap<String, u64>,
    /// Damage of packs.
    pub damage: Damage,
    /// Groups of runs that cannot be read, or contradict the index objects that they cover.
    pub lost_groups: Vec<u64>,
    /// Journals that block every takeover of their volume.
    pub unreplayable: Vec<Unreplayable>,
    /// References that were read in metadata.
    pub learned: Learned,
    /// Looks up and reads blobs of all walked packs; of packs with chunks alone only after
    /// [`Findings::load_chunks`], if their lists are not in memory.
    pub content_store: ContentStore,
    /// Why the root may be of a newer program, if it says so.
    pub newer_root: Option<String>,
    /// What stood in the place of a root that cannot be read, before the bucket was listed.
    pub lost_root: Option<Version>,
    /// Snapshots in any list of the bucket; filled only if the root or a list is lost.
    pub leftover_snapshots: Vec<SnapshotEntry>,
    /// The highest epoch in any heartbeat; filled in the same cases.
    pub leftover_epoch: u64,
    /// Keys of objects that no root names, that cannot be read, and without which lost objects are
    /// written anew; looked for as above.
    pub unread: Vec<String>,
    /// The newest generation that this machine remembers.
    pub known_generation: u64,
}

/// Checks the repository in `store`. The report names the damage; an error means that the check
/// failed.
///
/// # Errors
/// Store errors.
pub async fn check(
    store: Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
) -> Result<Report, RootError> {
    Ok(examine(store, keyring, options).await?.report)
}

/// Same, and returns everything that the check learned.
///
/// # Errors
/// Store errors.
pub async fn examine(
    store: Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
) -> Result<Findings, RootError> {
    examine_without(store, keyring, options, &HashSet::new()).await
}

/// Same, as if the packs `left_out`, which no index object lists, were absent.
///
/// # Errors
/// Store errors.
pub async fn examine_without(
    store: Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    left_out: &HashSet<PackName>,
) -> Result<Findings, RootError> {
    // Tells persistent refusals from passing ones.
    let store: Arc<dyn Store> = Arc::new(Refusals::of(store));
    let mut round = 1;
    loop {
        let findings = once(&store, keyring, options, left_out).await?;
        let Some(handle) = &findings.handle else {
            return Ok(findings);
        };
        if round == ROUNDS_MAX || !findings.report.has(ProblemKind::Missing) {
            return Ok(findings);
        }
        let fresh = handle.refresh().await?;
        if findings.report.generation == Some(fresh.root.generation) {
            return Ok(findings);
        }
        round += 1;
    }
}

async fn once(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    left_out: &HashSet<PackName>,
) -> Result<Findings, RootError> {
    let verifier = Verifier::new(
        store.clone(),
        keyring.clone(),
        options.entropy.clone(),
        &options.verifier,
    )?;
    let scan = Scan {
        store,
        keyring,
        verifier: &verifier,
        options,
    };
    let mut findings = look(&scan, left_out).await?;
    let live = findings.live_packs();
    count(&live, options, &mut findings.report);
    findings.walk(&verifier, &live, (keyring, options)).await?;
    let root = findings.handle.as_ref().map(|handle| handle.current());
    if let Some(view) = root {
        findings.judge(&view.root, &scan).await?;
    }
    Ok(findings)
}

/// Checks everything but packs.
async fn look(scan: &Scan<'_>, left_out: &HashSet<PackName>) -> Result<Findings, RootError> {
    let options = scan.options;
    let mut report = Report::new(options.data.seed());
    // The root is read before the bucket is listed: objects that it names are there by then.
    let mut newer_root = None;
    let handle = scan.root(&mut report, &mut newer_root).await?;
    let root = handle.as_ref().map(|handle| handle.current().root.clone());
    let lost_root = match root {
        Some(_) => None,
        None => scan.lost_root().await?,
    };
    let content_store = open_content_store(scan.store, scan.keyring, options)?;
    let mut tallies = RunTallies::new(root.as_ref(), random(&*options.entropy));
    let (listed, mut indexed) = match &root {
        Some(root) => (
            scan.lists(root, &mut report).await?,
            scan.index(root, &mut tallies, &mut report).await?,
        ),
        None => (Listed::default(), Indexed::new(&options.workspace)),
    };
    let lost_groups = scan.runs(&content_store, tallies, &mut report).await?;
    let bucket = scan.list().await?;
    scan.keys(&bucket, root.as_ref(), &mut report).await?;
    let mut leftovers = Indexed::new(&options.workspace);
    let lost = root.is_none() || !listed.lost.is_empty();
    let mut unread = Vec::new();
    let (leftover_snapshots, leftover_epoch) = match lost {
        true => {
            let found = scan.leftovers(&bucket, &mut leftovers, &mut report, &mut unread);
            found.await?
        }
        false => Default::default(),
    };
    if root.is_none() {
        indexed = leftovers;
    }
    let condemned = &listed.condemned;
    let unlisted = match root.is_none() || !indexed.lost.is_empty() {
        true => {
            let packs = &indexed.packs;
            let known = |name: &PackName| {
                packs.contains_key(name) || condemned.contains(name) || left_out.contains(name)
            };
            let into = (&mut indexed.shelf, &mut report);
            scan.unlisted(&bucket, known, into, &mut unread).await?
        }
        false => Vec::new(),
    };
    Ok(Findings {
        report,
        handle,
        listed,
        indexed,
        unlisted,
        bucket,
        damage: Damage::default(),
        unreplayable: Vec::new(),
        learned: Learned::default(),
        lost_groups,
        content_store,
        newer_root,
        lost_root,
        leftover_snapshots,
        leftover_epoch,
        unread,
        known_generation: scan.known_mark().await.map_or(0, |mark| mark.generation),
    })
}

fn count(packs: &[ShelvedPack], options: &CheckOptions, report: &mut Report) {
    report.counts.packs = packs.len() as u64;
    report.counts.blobs = packs.iter().map(ShelvedPack::blob_count).sum();
    report.counts.bytes = packs.iter().map(ShelvedPack::bytes).sum();
    let progress = &options.progress;
    progress.done_bytes.store(0, Ordering::Relaxed);
    progress
        .total_bytes
        .store(report.counts.bytes, Ordering::Relaxed);
}

/// Opens the content store that looks blobs up.
///
/// # Errors
/// Those of [`ContentStore::open`].
pub(super) fn open_content_store(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
) -> Result<ContentStore, ContentError> {
    let config = ContentStoreConfig {
        cache_dir: None,
        memory: MemoryBudget {
            cache_bytes: CACHE_BYTES,
            ..MemoryBudget::default()
        },
        downloads: options.verifier.downloads,
        workers: options.verifier.workers,
        timeout_ms: options.verifier.timeout_ms,
        ..ContentStoreConfig::default()
    };
    ContentStore::open(
        store.clone(),
        keyring.clone(),
        options.entropy.clone(),
        config,
    )
}

/// Whether the store did not answer, so that the error proves nothing about the object.
fn is_outage(error: &ContentError) -> bool {
    match error.cause() {
        ContentError::Store(error) => !error.is_of_one_object(),
        ContentError::Stalled { .. } => true,
        _ => false,
    }
}

/// Turns all damage that was noted since the last call into problems.
async fn judge_packs(
    damage: &mut Damage,
    report: &mut Report,
    quarantine: &HashSet<PackLocation>,
    holdings: &Holdings,
) -> Result<(), RootError> {
    loop {
        let (count, blobs) = damage.next(BLOBS_JUDGED_AT_ONCE);
        if count == 0 {
            return Ok(());
        }
        let copies = holdings.copies(blobs).await?;
        damage.judge(count, report, quarantine, |blob| copies.of(blob));
    }
}

/// A head that the root or a list names: object with the name, owner, tree, commit record, number.
type NamedHead = (String, String, Option<Id>, Option<Id>, Option<u64>);

impl Findings {
    /// Walks data packs before metadata packs, so that segments are judged by the chunks known to
    /// be lost.
    async fn walk(
        &mut self,
        verifier: &Verifier,
        packs: &[ShelvedPack],
        (keyring, options): (&Keyring, &CheckOptions),
    ) -> Result<(), RootError> {
        let (workspace, is_spilled) = (&options.workspace, self.indexed.shelf.has_spilled());
        if is_spilled {
            workspace.announce(packs.iter().map(ShelvedPack::notes_bytes).sum());
        }
        let holdings = Holdings::of(packs, &self.content_store, is_spilled, workspace).await?;
        let walk = Walk {
            verifier,
            holdings: &holdings,
            keyring,
            workspace,
            progress: &options.progress,
            bucket: &self.bucket,
            records: self.handle.is_none() || !self.listed.lost.is_empty(),
        };
        let (damage, report) = (&mut self.damage, &mut self.report);
        let quarantine = &self.listed.quarantine;
        walk.data(packs, options.data, damage, report).await?;
        judge_packs(damage, report, quarantine, &holdings).await?;
        let learned = walk.metadata(packs, damage, report).await?;
        judge_packs(damage, report, quarantine, &holdings).await?;
        // Packs that never were live are among these without a root or a part of the index: their
        // references prove nothing.
        if self.handle.is_some() && self.unlisted.is_empty() {
            learned.judge(damage, report);
        }
        self.learned = learned;
        Ok(())
    }

    /// Returns the packs to walk: listed ones that are not condemned, and those that the index
    /// lacks.
    fn live_packs(&self) -> Vec<ShelvedPack> {
        let condemned = &self.listed.condemned;
        let held = self.indexed.packs.values();
        let live = held.filter(|pack| !condemned.contains(&pack.name()));
        live.chain(&self.unlisted).cloned().collect()
    }

    /// Makes the content store look up the blobs of all walked packs, chunks included. Takes 30
    /// bytes of memory for each blob. Does nothing if it looks them up already.
    ///
    /// # Errors
    /// Those of [`holdings::load`].
    pub async fn load_chunks(&self) -> Result<(), RootError> {
        match self.indexed.shelf.has_spilled() {
            true => holdings::load(&self.live_packs(), &self.content_store, |_| true).await,
            false => Ok(()),
        }
    }

    /// Runs every check that needs a root.
    async fn judge(&mut self, root: &Root, scan: &Scan<'_>) -> Result<(), RootError> {
        self.heads(root).await?;
        self.trees(root).await?;
        let report = &mut self.report;
        if let Some(handle) = &self.handle {
            let sessions = scan.sessions(handle, root, &self.bucket, report);
            self.unreplayable = sessions.await?;
        }
        self.count_orphans(root);
        if self.indexed.lost.is_empty() {
            let (packs, condemned) = (&self.indexed.packs, &self.listed.condemned);
            let known = |name: &PackName| packs.contains_key(name) || condemned.contains(name);
            // A newer session may have stored objects of the listing.
            let now = match &self.handle {
                Some(handle) => Some(handle.refresh().await?),
                None => None,
            };
            let root = now.as_ref().map_or(root, |view| &view.root);
            self.report.strays = strays::find(scan.verifier, root, &self.bucket, known).await?;
        }
        self.blame(root).await
    }

    /// Checks that trees and commit records that the root and the lists name exist and agree.
    async fn heads(&mut self, root: &Root) -> Result<(), RootError> {
        let mut named: Vec<NamedHead> = Vec::new();
        for (volume, entry) in &root.volumes {
            let who = format!("volume {volume}");
            let sequence = Some(entry.sequence);
            if let Some(building) = entry.building {
                let who = format!("the copy into volume {volume} that broke off");
                named.push((ROOT_KEY.into(), who, Some(building), None, None));
            }
            named.push((ROOT_KEY.into(), who, entry.tree, entry.commit, sequence));
        }
        let kept = self.listed.snapshots.iter();
        for entry in kept.chain(self.listed.trash.iter().map(|entry| &entry.snapshot)) {
            let who = format!("snapshot {}/{}", entry.volume, entry.name);
            named.push(("lists/".into(), who, entry.tree, Some(entry.commit), None));
        }
        for recovery_base in root.recovery_bases() {
            for id in recovery_base.records() {
                let who = recovery_bases::name_of(recovery_base);
                let record = recovery_bases::record_of(&self.content_store, id).await?;
                if record.is_none() && self.is_unreadable(&id) {
                    let what = format!("the commit record {id} of {who} cannot be read");
                    self.unresolved(ROOT_KEY, what, id);
                }
                let tree = record.and_then(|record| record.tree);
                named.push((ROOT_KEY.into(), who, tree, Some(id), None));
            }
        }
        for (object, who, tree, commit, sequence) in named {
            if let Some(tree) = tree
                && self.content_store.places(&tree).await?.is_empty()
            {
                let what = format!("the tree {tree} of {who} is in no live pack");
                self.unresolved(&object, what, tree);
            }
            let Some(commit) = commit else { continue };
            if self.content_store.places(&commit).await?.is_empty() {
                let what = format!("the commit record {commit} of {who} is in no live pack");
                self.unresolved(&object, what, commit);
                continue;
            }
            let record = match self.content_store.read_blob(Kind::Commit, commit).await {
                Ok(bytes) => CommitRecord::decode(&bytes).ok(),
                Err(ContentError::Store(error)) if !error.is_of_one_object() => {
                    return Err(ContentError::Store(error).into());
                }
                Err(error @ ContentError::Stalled { .. }) => return Err(error.into()),
                // The damage of its pack is reported already.
                Err(_) => continue,
            };
            let agrees = record.is_some_and(|record| {
                record.tree == tree && sequence.is_none_or(|sequence| sequence == record.sequence)
            });
            if !agrees {
                let what = format!("the commit record of {who} says otherwise");
                self.report
                    .add(Problem::new(object, ProblemKind::Inconsistent, what));
            }
        }
        Ok(())
    }

    /// Checks that all trees have the form that an honest writer makes.
    async fn trees(&mut self, root: &Root) -> Result<(), RootError> {
        let nodes = Nodes::new(self.content_store.clone());
        let mut trees = Trees::new(&nodes);
        let mut seen = HashSet::new();
        for named in self.named_trees(root) {
            if !seen.insert(named.tree) {
                continue;
            }
            match trees.judge(&named, &mut self.report).await {
                Ok(()) => {}
                Err(VolumeError::ContentStore(error)) if is_outage(&error) => {
                    return Err(error.as_ref().clone().into());
                }
                // Damage is reported at its pack; other faults show after its repair.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns the trees of kept and forgotten snapshots and of volumes, grouped by volume.
    fn named_trees(&self, root: &Root) -> Vec<Named> {
        let kept = self.listed.snapshots.iter();
        let all = kept.chain(self.listed.trash.iter().map(|entry| &entry.snapshot));
        let mut entries: Vec<_> = all.collect();
        entries.sort_by_key(|entry| (&entry.volume, entry.time));
        let snapshots = entries.into_iter().filter_map(|entry| {
            let name = format!("{}/{}", entry.volume, entry.name);
            entry.tree.map(|tree| ("snapshot", name, tree))
        });
        let volumes = root.volumes.iter();
        let volumes =
            volumes.filter_map(|(name, entry)| Some(("volume", name.clone(), entry.tree?)));
        let named = |(kind, name, tree)| Named {
            who: format!("{kind} {name}"),
            name,
            tree,
        };
        snapshots.chain(volumes).map(named).collect()
    }

    /// Returns true if a commit record has places and the store refuses none of them: what it refuses
    /// is reported already, and may be whole.
    fn is_unreadable(&self, id: &Id) -> bool {
        let places = self.content_store.places_in_memory(&id.prefix());
        let mut keys = places
            .iter()
            .map(|place| place.pack.key(Class::MetadataPack));
        !places.is_empty() && !keys.any(|key| self.damage.is_refused(&key))
    }

    fn unresolved(&mut self, object: &str, what: String, id: Id) {
        let problem = Problem::new(object, ProblemKind::Unresolved, what);
        self.damage.want(id.prefix());
        let number = self.report.add(problem);
        self.damage.lose(id.prefix(), number);
    }

    fn count_orphans(&mut self, root: &Root) {
        let lost_index = !self.indexed.lost.is_empty();
        if lost_index {
            // Without a part of the index, orphan packs cannot be told from listed ones.
            for pack in &self.unlisted {
                self.indexed
                    .packs
                    .entry(pack.name())
                    .or_insert_with(|| pack.clone());
            }
        }
        count_orphans(
            root,
            &self.indexed.packs,
            &self.listed.condemned,
            &self.bucket,
            &mut self.report,
        );
        if lost_index {
            for pack in &self.unlisted {
                self.indexed.packs.remove(&pack.name());
            }
        }
    }

    /// Finds the snapshots and files that the losses affect.
    async fn blame(&mut self, root: &Root) -> Result<(), RootError> {
        if !self.damage.has_lost() {
            return Ok(());
        }
        let snapshots = self.listed.snapshots.iter().filter_map(|entry| {
            let name = format!("{}/{}", entry.volume, entry.name);
            entry.tree.map(|tree| Head { name, tree })
        });
        let volumes = root.volumes.iter().filter_map(|(name, entry)| {
            let name = name.clone();
            entry.tree.map(|tree| Head { name, tree })
        });
        let mut heads: Vec<Head> = snapshots.chain(volumes).collect();
        for recovery_base in root.recovery_bases() {
            for id in recovery_base.records() {
                let name = recovery_bases::name_of(recovery_base);
                let record = recovery_bases::record_of(&self.content_store, id).await?;
                let tree = record.and_then(|record| record.tree);
                heads.extend(tree.map(|tree| Head { name, tree }));
            }
        }
        Blame::new(&self.content_store, &self.damage)
            .name(&heads, &mut self.report)
            .await
    }
}
