//! Collection: frees objects that no snapshot, volume or session needs, concurrently with writers
//! (docs/PROTOCOL.md, rule 8).
//!
//! Owns the order. The bucket is listed; the root is read, marked and judged (a plan that changes
//! nothing). Then the needed blobs of sparse packs are stored again, and one replacement of the
//! root condemns the packs that go. Packs that were condemned before, and that no session can need
//! any more, are deleted. Each step leaves a whole repository, so that another collector goes on
//! from the root if this one dies.
//!
//! | module | |
//! |---|---|
//! | [`marks`] | needed blobs, as bits (pure) |
//! | [`mark`] | marks what a root needs |
//! | [`expiry`] | when forgotten snapshots expire (pure) |
//! | [`leaves`] | marks many chunks at once (pure) |
//! | [`doubt`] | which packs are live while lists of condemned ones are lost (pure) |
//! | [`references`] | references that were read for marking and are not needed so far (pure) |
//! | [`plan`] | from marks to a plan (pure) |
//! | [`condemn`] | stores blobs again, and replaces the root |
//! | [`rebuilt`] | snapshots that were listed while the condemned packs were unknown |
//! | [`renew`] | condemns anew the packs that an unreadable list may have named |
//! | [`sweep`] | deletes |
//! | [`sightings`] | this machine's sightings of snapshots |
//! | `whole` | trees of which nothing is missing |
//! | [`share`] | the share that is gone, and whether deletion needs consent |
//! | [`locks`] | objects that the bucket keeps locked |

pub mod condemn;
pub mod doubt;
pub mod expiry;
pub mod leaves;
pub mod locks;
pub mod mark;
pub mod marks;
pub mod plan;
pub mod rebuilt;
pub mod references;
pub mod renew;
pub mod share;
pub mod sightings;
pub mod sweep;
#[cfg(test)]
mod tests;
pub(super) mod whole;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use bkfs_chunker::catalog::IndexSources;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Verifier, VerifierConfig};
use bkfs_store::lock::LockRule;
use bkfs_store::{PROBE_PREFIX, Store};
use jiff::{SignedDuration, Timestamp};

use self::condemn::{Done, condemn};
use self::expiry::Expiry;
use self::locks::{Extended, Locks, Waiting, rule_of, waiting};
use self::mark::{Marker, is_own};
use self::plan::{CollectionPlan, Effort, plan};
use self::share::{Became, Count, Found, LedgerFile};
use self::sightings::{Sightings, SightingsFile, Vanished};
use self::sweep::{Holding, Sweeper, delete, free_epochs, orphans};
use self::whole::Wholeness;
use super::layout::{NamedObject, place_of};
use super::workspace::Workspace;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::listing;
use crate::root::session::OpenSession;
use crate::root::state::{Condemned, Root};
use crate::root::view::RootView;

/// Options of a collection.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a forgotten snapshot can be restored, counted from the time when this machine first
    /// saw it forgotten.
    pub undelete_window: SignedDuration,
    /// How thoroughly it works.
    pub effort: Effort,
    /// Lock period of needed objects in days, if it differs from the repository's config.
    pub lock_days: Option<u32>,
    /// This machine's sightings; without them each collection sees everything for the first time.
    pub state_dir: Option<PathBuf>,
    /// Where working data may be.
    pub workspace: Workspace,
}

/// Plan of a collection, and its view of the repository.
pub struct Prospect {
    /// The plan for packs.
    pub plan: CollectionPlan,
    /// Forgotten snapshots that expire.
    pub expired: u64,
    /// Forgotten snapshots older than the window by their own date, which this machine has known as
    /// forgotten for less.
    pub dated_back: u64,
    /// Snapshots that have vanished from all lists, and are kept.
    pub vanished: Vec<Vanished>,
    /// Vanished snapshots of which objects are gone already.
    pub lost: Vec<Vanished>,
    /// Unneeded objects other than packs.
    pub orphans: BTreeMap<String, u64>,
    /// Packs that were condemned before and can be deleted now.
    pub free_packs: u64,
    /// Packs that were condemned before and are held back.
    pub held_packs: u64,
    /// Sessions that hold them back.
    pub holding: Vec<Holding>,
    /// Objects that the bucket keeps locked; `None` in a repository without locks.
    pub locks: Option<Locks>,
    /// The share of the held bytes that is gone.
    pub count: Count,
    /// Requests made so far.
    pub requests_made: u64,
    /// Estimate of the requests that follow.
    pub requests: u64,
    bucket: BTreeMap<String, u64>,
    view: Arc<RootView>,
    marker: Marker,
    expiring: Vec<Id>,
    memory: SightingsFile,
}

/// Results of a collection.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Packs that were condemned.
    pub condemned: Done,
    /// Packs deleted.
    pub deleted_packs: u64,
    /// Their bytes, as far as they were listed.
    pub deleted_bytes: u64,
    /// Other objects deleted.
    pub deleted_orphans: u64,
    /// Sessions that hold back condemned packs that still exist.
    pub holding: Vec<Holding>,
    /// Packs that are held back.
    pub held_packs: u64,
    /// Packs that wait for the end of their locks.
    pub waiting: Waiting,
    /// Locks that were extended.
    pub extended: Extended,
}

impl Prospect {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let has_packs = !self.plan.is_empty() || self.free_packs > 0;
        let is_due = self.locks.as_ref().is_some_and(|locks| locks.is_due);
        !has_packs && self.expired == 0 && self.orphans.is_empty() && !is_due
    }

    /// Records what is needed, for a collection that has nothing to do.
    pub async fn remember(self) {
        self.count.remember().await;
    }

    /// Metadata packs that were read for marking.
    pub fn packs_read(&self) -> u64 {
        self.marker.packs_read
    }
}

/// Returns every key of the bucket with its size in bytes.
async fn list(store: &dyn Store) -> Result<BTreeMap<String, u64>, RootError> {
    Ok(listing::all(store, "").await?)
}

/// Returns the packs among the keys of the bucket, with their sizes in bytes.
fn packs(bucket: &BTreeMap<String, u64>) -> impl Iterator<Item = (PackName, u64)> {
    bucket
        .iter()
        .filter_map(|(key, bytes)| match place_of(key) {
            NamedObject::Named(Class::DataPack | Class::MetadataPack, name) => Some((name, *bytes)),
            _ => None,
        })
}

/// Reads the repository and plans. Changes nothing in the bucket.
///
/// # Errors
/// `Damaged` if a needed object is missing: nothing may be collected then. Store errors.
pub async fn prospect(
    repository: &Repository,
    options: &Options,
    now: Timestamp,
) -> Result<Prospect, RootError> {
    // The bucket is listed before the root is read. An object of the listing that is in no root
    // then belongs to a session that has left, or whose entry in the root has a floor.
    let handle = &repository.handle;
    let bucket = list(&**handle.store()).await?;
    let before = now
        .checked_sub(options.undelete_window)
        .unwrap_or(Timestamp::MIN);
    let mut marker = marker(repository, (before, now), options)?;
    let memory = SightingsFile::new(options.state_dir.as_deref(), handle.keyring().repository());
    let mut lost = Vec::new();
    let looked = handle.while_it_stands(async |view| {
        let root = &view.root;
        lost = look_for_vanished(root, &memory, &mut marker).await?;
        marker.mark(root).await?;
        let condemned = repository.lists.condemned(root).await?;
        let trash = repository.lists.trash_shards(&root.trash).await?;
        let epochs = free_epochs(handle, root, None).await?;
        Ok((view, condemned, trash, epochs))
    });
    let (view, condemned, trash, (free, holding)) = looked.await?;
    let root = &view.root;
    let held = marker.listed(root);
    let unlisted = packs(&bucket).filter(|(name, _)| {
        !held.contains(name) && !condemned.contains(name) && !is_own(root, name)
    });
    let live = |name: &PackName| marker.live.contains(name);
    let own = |name: &PackName| is_own(root, name);
    let plan = plan(&marker.marks, live, own, unlisted.collect(), options.effort);
    let count = count(&marker, &plan, (root, &condemned), &bucket, options).await;
    let (expiring, dated_back) = marker.expiry.of_trash(&trash);
    let expired = expiring.len() as u64;
    let packs_of = |condemned: &Condemned| u64::from(condemned.list.count);
    let rule = rule_of(repository.lock, options.lock_days).map(|rule| (rule, now));
    let locks = look_at_locks(repository, rule, (root, &free), &marker, &bucket).await?;
    let (asked, waiting, extensions) = locks.as_ref().map_or((0, 0, 0), Locks::requests);
    let free_packs: u64 = free
        .iter()
        .map(packs_of)
        .sum::<u64>()
        .saturating_sub(waiting);
    let all_packs: u64 = root.condemned.iter().map(packs_of).sum();
    let orphans = orphans(root, &bucket);
    let pages = bucket.len().div_ceil(listing::PAGE_KEYS) as u64;
    let requests = requests(&plan, expired, repository.content_store.config().pack_bytes);
    Ok(Prospect {
        requests_made: pages + 1 + root.index.len() as u64 + marker.packs_read + asked,
        requests: requests + 2 * free_packs + orphans.len() as u64 + extensions,
        plan,
        expired,
        dated_back,
        vanished: marker.vanished.clone(),
        lost,
        orphans,
        free_packs,
        held_packs: all_packs.saturating_sub(free_packs + waiting),
        holding,
        locks,
        count,
        bucket,
        view,
        marker,
        expiring,
        memory,
    })
}

/// Estimates the requests of a plan that lets this many snapshots expire, with packs of this many
/// bytes.
fn requests(plan: &CollectionPlan, expired: u64, pack_bytes: u64) -> u64 {
    if plan.is_empty() && expired == 0 {
        return 0;
    }
    let candidates = plan.candidates().len() as u64;
    let packs_written = plan.rewritten_bytes.div_ceil(pack_bytes.max(1));
    plan.rewritten.len() as u64 + packs_written + 8 + 2 * candidates
}

/// Returns the share of the needed objects that is gone, by this machine's memory.
async fn count(
    marker: &Marker,
    plan: &CollectionPlan,
    (root, condemned): (&Root, &HashSet<PackName>),
    bucket: &BTreeMap<String, u64>,
    options: &Options,
) -> Count {
    let (before, now) = (marker.expiry.before, marker.expiry.now);
    let repository = marker.content_store.keyring().repository();
    let file = LedgerFile::new(options.state_dir.as_deref(), repository);
    let there: BTreeMap<PackName, u64> = packs(bucket).collect();
    let needed = marker.marks.packs();
    let needed = needed.filter(|(name, pack)| {
        pack.reached > 0 && marker.live.contains(name) && !is_own(root, name)
    });
    let leaving = there.iter().filter(|(name, _)| condemned.contains(name));
    let found = Found {
        needed: needed
            .map(|(name, pack)| (*name, pack.needed_bytes()))
            .collect(),
        leaving_bytes: leaving
            .map(|(_, bytes)| *bytes)
            .fold(plan.condemned_bytes, u64::saturating_add)
            .saturating_sub(plan.rewritten_bytes),
    };
    let became = |name: &PackName| match found.needed.get(name) {
        Some(bytes) => Became::Live(*bytes),
        None if is_own(root, name) => Became::Live(u64::MAX),
        None if there.contains_key(name) => Became::Going,
        None => Became::Deleted,
    };
    let share = file.recall().await.judge(&found, became, before);
    Count {
        share,
        is_accepted: options.undelete_window <= SignedDuration::ZERO,
        found,
        moved: plan.rewritten.clone(),
        times: (now, before),
        file,
    }
}

/// Returns a marker that has seen nothing of the trash so far.
fn marker(
    repository: &Repository,
    (before, now): (Timestamp, Timestamp),
    options: &Options,
) -> Result<Marker, RootError> {
    let expiry = Expiry {
        before,
        now,
        seen: Sightings::default(),
    };
    let (content_store, lists) = (repository.content_store.clone(), repository.lists.clone());
    Ok(Marker::new(
        verifier(repository)?,
        content_store,
        lists,
        expiry,
        options.workspace.clone(),
    ))
}

/// Records the snapshots in the lists of `root`, and those that have vanished. Whole ones of these
/// are needed from now on; the rest is returned.
async fn look_for_vanished(
    root: &Root,
    memory: &SightingsFile,
    marker: &mut Marker,
) -> Result<Vec<Vanished>, RootError> {
    let (lists, content_store) = (&marker.lists, &marker.content_store);
    let kept = marker.readable(&root.snapshots);
    let kept = lists.snapshot_shards(&kept).await?;
    let kept = kept.iter().flat_map(|shard| shard.iter().cloned());
    let trash = lists.trash_shards(&marker.readable(&root.trash)).await?;
    let trash = trash.iter().flat_map(|shard| shard.iter().cloned());
    let (before, now) = (marker.expiry.before, marker.expiry.now);
    let noted = memory.note(kept.collect(), trash.collect(), now, before);
    let (seen, vanished) = noted.await;
    marker.expiry.seen = seen;
    let (mut whole, mut lost) = (Vec::new(), Vec::new());
    if !vanished.is_empty() {
        let mut leaving = marker.condemned(root).await?;
        leaving.extend(marker.doubt.iter().flat_map(|doubt| &doubt.gone));
        content_store
            .load_index(&IndexSources::of_objects(&root.index), &leaving)
            .await?;
    }
    let mut wholeness = Wholeness::new(content_store, |places| !places.is_empty());
    for gone in vanished {
        let is_whole = match gone.tree {
            Some(tree) => wholeness.of(tree).await?,
            None => true,
        };
        match is_whole {
            true => whole.push(gone),
            false => lost.push(gone),
        }
    }
    marker.vanished = whole;
    Ok(lost)
}

/// Returns which of these condemned packs wait for the end of their locks, and whether locks of
/// live packs are due for extension.
async fn look_at_locks(
    repository: &Repository,
    rule: Option<(LockRule, Timestamp)>,
    (root, free): (&Root, &[Condemned]),
    marker: &Marker,
    bucket: &BTreeMap<String, u64>,
) -> Result<Option<Locks>, RootError> {
    let Some((rule, now)) = rule else {
        return Ok(None);
    };
    let handle = &repository.handle;
    let keys = keys_of(repository, root, free, marker, bucket).await?;
    let there = keys.iter().filter_map(|key| Some((key, *bucket.get(key)?)));
    Ok(Some(Locks {
        rule,
        now,
        is_due: locks::is_due(handle, root, &marker.live, &marker.marks, (rule, now)).await?,
        waiting: waiting(&**handle.store(), there, now).await?,
        live: marker.live.len() as u64,
        asked: keys.len() as u64,
        progress: Arc::default(),
    }))
}

/// Returns the reader of a repository's objects, in the bucket and never in a cache.
///
/// # Errors
/// No threads can be started.
pub fn verifier(repository: &Repository) -> Result<Arc<Verifier>, RootError> {
    let content_store = &repository.content_store;
    let config = VerifierConfig {
        workers: content_store.config().workers,
        timeout_ms: content_store.config().timeout_ms,
        ..VerifierConfig::default()
    };
    let (store, keyring) = (
        content_store.store().clone(),
        content_store.keyring().clone(),
    );
    Ok(Arc::new(Verifier::new(
        store,
        keyring,
        content_store.entropy().clone(),
        &config,
    )?))
}

/// Executes a plan. Dropped, it leaves a whole repository, from which another collection goes on.
///
/// # Errors
/// [`RootError::TooMuch`] if a person must confirm first. Store errors: the plan was not executed,
/// or not all of it. The repository is whole all the same, and another collection goes on.
pub async fn collect(repository: &Repository, prospect: Prospect) -> Result<Collected, RootError> {
    if prospect.count.is_refused() {
        let share = &prospect.count.share;
        return Err(RootError::TooMuch {
            gone_bytes: share.gone_bytes(),
            held_bytes: share.held_bytes(),
        });
    }
    let environment = &repository.environment;
    let holder = environment.holder("bkfs gc");
    let session =
        OpenSession::open(&repository.handle, holder, None, &*environment.processes).await?;
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let collected = work(repository, &session, &ingest, prospect).await;
    if let Err(error) = session.end().await {
        tracing::warn!("the collector's session stays in the root: {error}");
    }
    collected
}

/// Asks the store whether this key may delete, before any change. A writer needs only a key that
/// can add and read, and such a key must not begin a collection that it cannot end.
///
/// # Errors
/// The store's answer.
pub async fn may_delete(handle: &RootHandle) -> Result<(), RootError> {
    let mut random = [0; 8];
    handle.entropy().fill(&mut random);
    let key = format!("{PROBE_PREFIX}delete-{:016x}", u64::from_le_bytes(random));
    Ok(handle.store().delete(&key).await?)
}

async fn work(
    repository: &Repository,
    session: &OpenSession,
    ingest: &Ingest,
    prospect: Prospect,
) -> Result<Collected, RootError> {
    let handle = &repository.handle;
    let Prospect {
        plan,
        expired,
        orphans,
        locks,
        bucket,
        view,
        mut marker,
        expiring,
        memory,
        count,
        ..
    } = prospect;
    let mut collected = Collected::default();
    if !plan.is_empty() || expired > 0 {
        let epoch = view.root.epoch;
        collected.condemned =
            condemn(handle, session.id(), ingest, &mut marker, &plan, epoch).await?;
        if !collected.condemned.gave_way {
            memory.give_up(expiring).await;
        }
    }
    if !collected.condemned.gave_way {
        count.remember().await;
    }
    if let Some(locks) = locks.as_ref().filter(|locks| locks.is_due) {
        let (lists, verifier) = (&repository.lists, &marker.verifier);
        let by = (handle, session.id());
        collected.extended = locks::extend(lists, verifier, by, locks, bucket.keys()).await?;
    }
    handle
        .while_it_stands(async |view| {
            // The root names all that this session needed, or no session needs it any more.
            session.heartbeat().base().raise(view.root.epoch);
            let (free, holding) = free_epochs(handle, &view.root, Some(session.id())).await?;
            collected.holding = holding;
            if free.is_empty() {
                return Ok(());
            }
            let mut keys = keys_of(repository, &view.root, &free, &marker, &bucket).await?;
            if let Some(locks) = &locks {
                collected.waiting = still_waiting(handle, locks, &keys, &bucket).await?;
                keys.retain(|key| !is_among(&collected.waiting, key));
            }
            collected.deleted_bytes = keys.iter().filter_map(|key| bucket.get(key)).sum();
            let sweeper = Sweeper {
                handle,
                verifier: &marker.verifier,
                ingest,
                session: session.id(),
            };
            let kept = collected.waiting.keys().copied().collect();
            collected.deleted_packs = sweeper.sweep(&free, keys, kept).await?;
            Ok(())
        })
        .await?;
    collected.deleted_orphans = delete(&**handle.store(), orphans.into_keys()).await?;
    let left = handle.current();
    let left = left.root.condemned.iter();
    let left: u64 = left.map(|condemned| u64::from(condemned.list.count)).sum();
    collected.held_packs = left.saturating_sub(collected.waiting.len() as u64);
    Ok(collected)
}

/// Returns which of these condemned packs are still locked. Packs that the plan saw are not asked
/// for again.
async fn still_waiting(
    handle: &RootHandle,
    locks: &Locks,
    keys: &[String],
    bucket: &BTreeMap<String, u64>,
) -> Result<Waiting, RootError> {
    let unknown = keys.iter().filter(|key| !is_among(&locks.waiting, key));
    let there = unknown.filter_map(|key| Some((key, *bucket.get(key)?)));
    let mut waiting = waiting(&**handle.store(), there, locks.now).await?;
    let known = locks.waiting.iter().map(|(name, wait)| (*name, *wait));
    waiting.extend(known);
    Ok(waiting)
}

fn is_among(waiting: &Waiting, key: &str) -> bool {
    matches!(place_of(key), NamedObject::Named(_, name) if waiting.contains_key(&name))
}

/// Returns the keys under which the packs of these epochs may lie.
async fn keys_of(
    repository: &Repository,
    root: &Root,
    free: &[Condemned],
    marker: &Marker,
    bucket: &BTreeMap<String, u64>,
) -> Result<Vec<String>, RootError> {
    let refs: Vec<_> = free.iter().map(|condemned| condemned.list).collect();
    let shards = repository.lists.pack_shards(&refs).await?;
    let names: BTreeSet<PackName> = shards
        .iter()
        .flat_map(|shard| shard.iter())
        .map(|entry| entry.0)
        .collect();
    // A pack that is live in the root is never deleted, whatever a list says.
    let condemned = repository.lists.condemned(root).await?;
    let mut keys = Vec::new();
    for name in names.into_iter().filter(|name| condemned.contains(name)) {
        let classes = [Class::DataPack, Class::MetadataPack];
        let known = marker.marks.pack(&name).map(|pack| pack.class);
        let possible = classes
            .into_iter()
            .filter(|class| known.is_none_or(|known| known == *class));
        let possible = possible.map(|class| name.key(class));
        keys.extend(possible.filter(|key| known.is_some() || bucket.contains_key(key)));
    }
    Ok(keys)
}
