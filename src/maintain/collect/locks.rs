//! Object locks of the bucket (`--lock-days`): which condemned packs still wait for the end of
//! their lock, and the extension of the locks of live objects.
//!
//! Owns the requests for both, and their cost. A condemned pack is asked for its lock before every
//! attempt to delete it. That is one small request for each of them, and none for live packs.
//!
//! For live packs the root holds the time when the first of their locks may end. Each collection
//! asks a few of them whether that is so. When less than half of the days is left, the locks of all
//! live packs, of the config and of the key slots are set to end that many days from now, and the
//! new time goes into the root. No other lock is ever extended: those of condemned packs run out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, Verifier};
use bkfs_store::entropy::Entropy;
use bkfs_store::lock::{Lock, LockMode, LockRule};
use bkfs_store::{Store, StoreError, StoreErrorKind};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use super::marks::Marks;
use crate::locking::is_locked;
use crate::maintain::layout::{NamedObject, place_of};
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, Transition};
use crate::root::lists::Lists;
use crate::root::state::{Root, SessionId};

/// Requests about locks that run at the same time.
const REQUESTS_AT_ONCE: usize = 32;

/// Live packs whose locks are compared with the time in the root.
const SAMPLED: usize = 8;

/// Packs that cannot be deleted yet, each with its size in bytes and the end of its lock.
pub type Waiting = BTreeMap<PackName, (u64, Timestamp)>;

/// The state of the locks that a collection found.
#[derive(Clone, Debug)]
pub struct Locks {
    /// The rule by which it extends locks.
    pub rule: LockRule,
    /// The time that it uses, taken before the bucket was listed.
    pub now: Timestamp,
    /// Whether the locks of live objects are due to be extended.
    pub is_due: bool,
    /// Condemned packs that only their locks keep from being deleted.
    pub waiting: Waiting,
    /// Number of live packs.
    pub live: u64,
    /// Number of condemned packs that were asked for their locks.
    pub asked: u64,
    /// Bytes of live packs whose locks were extended so far, for a progress display.
    pub progress: Arc<AtomicU64>,
}

/// The result of an extension.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Extended {
    /// Number of objects whose locks now end no sooner than was asked for.
    pub objects: u64,
    /// Number of objects that are not in the bucket.
    pub missing: u64,
    /// The end of their locks. None if nothing was extended.
    pub until: Option<Timestamp>,
}

impl Locks {
    /// Returns the requests that were made, the packs that wait, and the requests that an extension
    /// takes.
    pub fn requests(&self) -> (u64, u64, u64) {
        let extensions = match self.is_due {
            true => self.live,
            false => 0,
        };
        (self.asked, self.waiting.len() as u64, extensions)
    }
}

impl Extended {
    fn add(&mut self, more: Extended) {
        self.objects += more.objects;
        self.missing += more.missing;
    }
}

/// Returns the repository's rule, with the collector's own `days` in place of the stated ones. The
/// collector's option comes from its command line, so no other writer can change it.
pub fn rule_of(stated: Option<LockRule>, days: Option<u32>) -> Option<LockRule> {
    match (stated, days) {
        (stated, None) => stated,
        (stated, Some(days)) => Some(LockRule {
            days,
            mode: stated.map_or(LockMode::Governance, |stated| stated.mode),
        }),
    }
}

/// Returns which of `keys`, given with sizes in bytes, a lock protects at `now`.
///
/// # Errors
/// [`RootError::Store`], also if the credentials may not read locks. Nothing may be deleted then.
pub async fn waiting<'a>(
    store: &dyn Store,
    keys: impl Iterator<Item = (&'a String, u64)>,
    now: Timestamp,
) -> Result<Waiting, RootError> {
    let asked = keys.map(|(key, bytes)| async move {
        let lock = match store.lock(key).await {
            Err(error) if error.is_not_found() => return Ok(None),
            lock => lock?,
        };
        let until = lock.map(|lock| lock.until).filter(|until| *until > now);
        let name = match place_of(key) {
            NamedObject::Named(_, name) => Some(name),
            _ => None,
        };
        Ok::<_, StoreError>(name.zip(until).map(|(name, until)| (name, (bytes, until))))
    });
    // Collected first: the compiler does not accept a stream of borrowing futures across threads.
    let asked: Vec<_> = asked.collect();
    let found: Vec<_> = futures::stream::iter(asked)
        .buffer_unordered(REQUESTS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().flatten().collect())
}

/// Returns true if the locks of the objects that are live in `root` are due to be extended, by the
/// time in the root or by the lock of one of a few packs.
///
/// # Errors
/// [`RootError::Store`] if a lock cannot be read.
pub async fn is_due(
    handle: &RootHandle,
    root: &Root,
    live: &HashSet<PackName>,
    marks: &Marks,
    (rule, now): (LockRule, Timestamp),
) -> Result<bool, RootError> {
    if rule.days == 0 {
        return Ok(false);
    }
    let recorded = root.locked_until_s.map(Timestamp::from_second);
    let Some(Ok(recorded)) = recorded else {
        return Ok(true);
    };
    if rule.is_due(recorded, now) {
        return Ok(true);
    }
    for name in sample(live, &**handle.entropy()) {
        let Some(pack) = marks.pack(&name) else {
            continue;
        };
        let until = match handle.store().lock(&name.key(pack.class)).await {
            Err(error) if error.is_not_found() => continue,
            lock => lock?.map(|lock| lock.until),
        };
        if until.is_none_or(|until| rule.is_due(until, now)) {
            tracing::warn!(pack = %name.key(pack.class),
                "its lock ends sooner than the root says: all are extended");
            return Ok(true);
        }
    }
    Ok(false)
}

fn sample(live: &HashSet<PackName>, entropy: &dyn Entropy) -> BTreeSet<PackName> {
    let mut places = BTreeSet::new();
    for _ in 0..SAMPLED.min(live.len()) {
        let mut random = [0; 8];
        entropy.fill(&mut random);
        places.insert((u64::from_le_bytes(random) % live.len() as u64) as usize);
    }
    let chosen = live.iter().enumerate();
    chosen
        .filter(|(place, _)| places.contains(place))
        .map(|(_, name)| *name)
        .collect()
}

/// Extends the locks of all packs that are live in the root, and of the config and the key slots
/// among `others`. Then records the new end in the root, unless an object is missing.
///
/// Cancel safety: dropped before the root is replaced, it leaves some locks extended, and the next
/// collection begins again.
///
/// # Errors
/// [`RootError::Store`] if an object was not locked, [`RootError::Content`] if an index object
/// cannot be read, [`RootError::CondemnedUnknown`] if a list of condemned packs cannot, and those
/// of [`RootHandle::update`]. The root is not told then, unless it is
/// [`RootError::OutcomeUnknown`], and the next collection begins again.
pub async fn extend(
    lists: &Lists,
    verifier: &Verifier,
    (handle, session): (&RootHandle, SessionId),
    locks: &Locks,
    others: impl Iterator<Item = &String>,
) -> Result<Extended, RootError> {
    let lock = locks.rule.lock_from(locks.now);
    let store = handle.store();
    let mut extended = Extended {
        until: Some(lock.until),
        ..Extended::default()
    };
    let others =
        others.filter(|key| is_locked(key) && !matches!(place_of(key), NamedObject::Named(..)));
    let others = others.map(|key| (key.clone(), 0)).collect();
    extended.add(extend_all(store, &lock, others, &locks.progress).await?);
    let mut done = HashSet::new();
    // Index objects that another collector has merged are gone. The work goes on with the newer
    // root.
    let packs = handle.while_it_stands(async |view| {
        let live = (lists, verifier, &view.root);
        extend_packs(live, store, (&lock, locks), &mut done).await
    });
    extended.add(packs.await?);
    if extended.missing > 0 {
        tracing::warn!(
            missing = extended.missing,
            "objects that are needed are not there: bkfs check names them"
        );
        return Ok(extended);
    }
    let mut told = LockedUntil {
        session,
        until_s: lock.until.as_second(),
    };
    handle.update(&mut told).await?;
    Ok(extended)
}

/// Extends the locks of the packs that the index objects of a root hold, but for condemned ones and
/// those in `done`. Adds all of them to `done`.
async fn extend_packs(
    (lists, verifier, root): (&Lists, &Verifier, &Root),
    store: &Arc<dyn Store>,
    (lock, locks): (&Lock, &Locks),
    done: &mut HashSet<PackName>,
) -> Result<Extended, RootError> {
    let condemned = lists.condemned(root).await?;
    let mut extended = Extended::default();
    for index in &root.index {
        let packs = verifier.index(*index).await?;
        let live = packs
            .iter()
            .filter(|pack| !condemned.contains(&pack.name()) && !done.contains(&pack.name()));
        let keys = live.map(|pack| (pack.key(), pack.bytes())).collect();
        extended.add(extend_all(store, lock, keys, &locks.progress).await?);
        done.extend(packs.iter().map(PackContents::name));
    }
    Ok(extended)
}

async fn extend_all(
    store: &Arc<dyn Store>,
    lock: &Lock,
    keys: Vec<(String, u64)>,
    progress: &AtomicU64,
) -> Result<Extended, RootError> {
    let mut answers = futures::stream::iter(keys)
        .map(|(key, bytes)| {
            let (store, lock) = (Arc::clone(store), *lock);
            async move { Ok::<_, StoreError>((extend_one(&*store, &key, &lock).await?, bytes)) }
        })
        .buffer_unordered(REQUESTS_AT_ONCE);
    let mut extended = Extended::default();
    while let Some((is_there, bytes)) = answers.try_next().await? {
        match is_there {
            true => extended.objects += 1,
            false => extended.missing += 1,
        }
        progress.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(extended)
}

/// Extends the lock of one object. Returns false if there is no such object.
async fn extend_one(store: &dyn Store, key: &str, lock: &Lock) -> Result<bool, StoreError> {
    let error = match store.extend_lock(key, lock).await {
        Ok(()) => return Ok(true),
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => error,
    };
    if !matches!(
        error.kind(),
        StoreErrorKind::Denied | StoreErrorKind::Invalid
    ) {
        return Err(error);
    }
    // A store also answers so if the lock ends later already, set by a rule of more days.
    match store.lock(key).await {
        Ok(Some(found)) if found.until >= lock.until => Ok(true),
        _ => Err(error),
    }
}

/// The replacement that records in the root until when everything live is locked.
struct LockedUntil {
    session: SessionId,
    until_s: i64,
}

#[async_trait]
impl Transition for LockedUntil {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.locked_until_s = Some(self.until_s);
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.locked_until_s == Some(self.until_s))
    }
}
