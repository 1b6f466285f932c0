//! Locks of the bucket (`--lock-days`): what of the condemned still waits for the end of its lock, and the extension of the locks of what is needed.
//!
//! Owns both questions to the store and their price. A condemned pack is asked for its lock before every attempt to delete it: one small request for each of those, and none for live ones. For these
//! the root remembers when the first of their locks may end, and a few of them are asked each time whether that is so; when less than half of the days is left, the locks of all
//! live packs, of the config and of the key slots are set to end that many days from now, and the root is told. Nothing else is ever extended: what is condemned runs out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::lock::{Lock, LockMode, LockRule};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::store::{Store, StoreError, StoreErrorKind};
use bkfs_chunker::verify::{PackContents, Verifier};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use super::marks::Marks;
use crate::locking::is_locked;
use crate::maintain::layout::{Place, place_of};
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, Transition};
use crate::root::lists::Lists;
use crate::root::state::{Root, SessionId};

/// Requests about locks at the same time.
const REQUESTS_AT_ONCE: usize = 32;

/// Live packs that are asked whether their locks are as the root has it.
const SAMPLED: usize = 8;

/// Packs that cannot be deleted yet, each with its length in bytes and the end of its lock.
pub type Waiting = BTreeMap<PackName, (u64, Timestamp)>;

/// What a collection knows of locks.
#[derive(Clone, Debug)]
pub struct Locks {
    /// The rule by which it extends.
    pub rule: LockRule,
    /// The time that it goes by: from before the bucket was listed.
    pub now: Timestamp,
    /// Whether the locks of what is live are to be extended.
    pub is_due: bool,
    /// Condemned packs that could be deleted but for their locks.
    pub waiting: Waiting,
    /// Live packs.
    pub live: u64,
    /// Condemned packs that were asked for their locks.
    pub asked: u64,
    /// Bytes of live packs whose locks were extended so far: for whoever watches.
    pub progress: Arc<AtomicU64>,
}

/// What an extension did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Extended {
    /// Objects whose locks end no sooner than asked for now.
    pub objects: u64,
    /// Objects that are not there.
    pub missing: u64,
    /// The end of their locks; none if nothing was extended.
    pub until: Option<Timestamp>,
}

impl Locks {
    /// Requests that were made, packs that wait, and requests that an extension takes.
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

/// The rule of a repository, if `days` do not overrule it: those are the collector's own word, which nobody else can change.
pub fn rule_of(stated: Option<LockRule>, days: Option<u32>) -> Option<LockRule> {
    match (stated, days) {
        (stated, None) => stated,
        (stated, Some(days)) => Some(LockRule {
            days,
            mode: stated.map_or(LockMode::Governance, |stated| stated.mode),
        }),
    }
}

/// Which of `keys` a lock protects at `now`.
///
/// # Errors
/// Store errors, also that this key may not see locks: then nothing may be deleted.
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
            Place::Named(_, name) => Some(name),
            _ => None,
        };
        Ok::<_, StoreError>(name.zip(until).map(|(name, until)| (name, (bytes, until))))
    });
    // Collected first: a stream of borrowing futures is not accepted across threads otherwise.
    let asked: Vec<_> = asked.collect();
    let found: Vec<_> = futures::stream::iter(asked)
        .buffer_unordered(REQUESTS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().flatten().collect())
}

/// Whether the locks of what is live in `root` are to be extended: the root says so, or one of a few packs.
///
/// # Errors
/// Store errors.
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
            tracing::warn!(pack = %name.key(pack.class), "its lock ends sooner than the root says: all are extended");
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

/// Extends the locks of all packs that are live in `root`, and of the config and the key slots among `others`, and tells the root.
///
/// # Errors
/// An object was not locked, or index objects cannot be read: then the root is not told, and the next collection begins again.
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
    let others = others.filter(|key| is_locked(key) && !matches!(place_of(key), Place::Named(..)));
    let others = others.map(|key| (key.clone(), 0)).collect();
    extended.add(extend_all(store, &lock, others, &locks.progress).await?);
    let mut done = HashSet::new();
    // Index objects that another collector has merged are gone.
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

/// Extends the locks of what the index objects of a root hold, and it has not condemned; but for `done`, to which they are added.
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

/// False if there is no such object.
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
    // So a store answers too if its lock ends later already, as it was set by a rule of more days.
    match store.lock(key).await {
        Ok(Some(found)) if found.until >= lock.until => Ok(true),
        _ => Err(error),
    }
}

/// Tells the root until when all that is live is locked.
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
