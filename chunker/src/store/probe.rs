//! The proof that a store's conditional writes are right, taken at init and at every mount.
//!
//! All that bkfs promises to several writers rests on create-only writes and on compare-and-swap. There are stores that ignore the
//! conditions, turn them around, or check them only now and then, so none is believed. Owns: the probe and the words for what was wrong.

use bytes::Bytes;
use futures::future::join_all;

use super::{Store, StoreError, StoreErrorKind, Version};
use crate::lock::Lock;

/// Below this the probe's objects lie; they are deleted at the end. What a crash leaves there means nothing.
pub const PROBE_PREFIX: &str = "probe/";

/// How many try the same write at once.
const CONTENDERS: usize = 4;

/// How often the probe is begun again because the outcome of a write is not known, or because a write may have been refused for its own success: servers and what lies before them repeat
/// requests, and answer to the second.
const ATTEMPTS_MAX: usize = 3;

/// A store that cannot be used, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The store does not do what it has to.
    #[error("{store} cannot hold a repository: {fault}")]
    Unfit {
        /// The store's URL.
        store: String,
        /// What it did wrong, in words for people.
        fault: String,
    },
    /// The store failed before that could be seen.
    #[error("the store could not be probed: {0}")]
    Store(#[from] StoreError),
}

/// What one attempt found.
enum Verdict {
    Unfit(String),
    /// The same, unless the store answered to a repetition that it made itself.
    Doubtful(String),
    Failed(StoreError),
}

impl From<StoreError> for Verdict {
    fn from(error: StoreError) -> Self {
        Verdict::Failed(error)
    }
}

impl From<&str> for Verdict {
    fn from(fault: &str) -> Self {
        Verdict::Unfit(fault.to_owned())
    }
}

/// Probes the store's conditional writes with objects named by `salt`, which no other probe, past or present, may have: letters, digits and hyphens.
pub async fn probe_conditional_writes(store: &dyn Store, salt: &str) -> Result<(), ProbeError> {
    let mut attempt = 1;
    loop {
        let keys = Keys::new(salt, attempt);
        let verdict = probe(store, &keys).await;
        let removed = keys.remove(store).await;
        match verdict {
            Ok(()) => return removed,
            Err(Verdict::Doubtful(_)) if attempt < ATTEMPTS_MAX => attempt += 1,
            Err(Verdict::Unfit(fault) | Verdict::Doubtful(fault)) => {
                return Err(ProbeError::Unfit {
                    store: store.describe(),
                    fault,
                });
            }
            // Whatever came of the write: under other names it can be tried again.
            Err(Verdict::Failed(error))
                if error.kind() == StoreErrorKind::OutcomeUnknown && attempt < ATTEMPTS_MAX =>
            {
                attempt += 1;
            }
            Err(Verdict::Failed(error)) => return Err(error.into()),
        }
    }
}

/// Probes whether the bucket keeps locks, with a small object named by `salt`, which is locked until the end of `lock` and then garbage. Stores that have no locks say so, or take the
/// request for one and keep none.
///
/// # Errors
/// `Unfit` if it keeps no locks, or may not be asked.
pub async fn probe_locks(store: &dyn Store, salt: &str, lock: &Lock) -> Result<(), ProbeError> {
    let key = format!("{PROBE_PREFIX}{salt}-locked");
    let unfit = |fault: String| ProbeError::Unfit {
        store: store.describe(),
        fault,
    };
    let refused = |error: StoreError, right: &str| match error.kind() {
        StoreErrorKind::Denied => unfit(format!("this key has no right to {right}: {error}")),
        StoreErrorKind::Invalid | StoreErrorKind::NotFound | StoreErrorKind::Other => {
            unfit(format!(
                "objects cannot be locked (it takes a bucket that was made with Object Lock): {error}"
            ))
        }
        _ => error.into(),
    };
    let put = store.put_locked(&key, body(&key, "locked"), lock).await;
    put.map_err(|error| refused(error, "lock objects (s3:PutObjectRetention)"))?;
    let kept = store.lock(&key).await;
    // In a versioned bucket this hides it, locked or not.
    if let Err(error) = store.delete(&key).await {
        tracing::debug!(%error, "an object of the probe stays");
    }
    match kept.map_err(|error| refused(error, "see locks (s3:GetObjectRetention)"))? {
        Some(kept) if kept.mode == lock.mode && kept.until >= lock.until => Ok(()),
        found => Err(unfit(format!(
            "an object was to be locked until {}, and is locked {}",
            lock.until,
            found.map_or("not at all".to_owned(), |found| format!(
                "until {} ({})",
                found.until, found.mode
            )),
        ))),
    }
}

/// The probe's objects.
struct Keys {
    present: String,
    absent: String,
    raced: String,
}

impl Keys {
    fn new(salt: &str, attempt: usize) -> Self {
        let key = |name: &str| format!("{PROBE_PREFIX}{salt}-{attempt}-{name}");
        Self {
            present: key("present"),
            absent: key("absent"),
            raced: key("raced"),
        }
    }

    /// Deletes them. One who may write but not delete leaves them; they mean nothing.
    async fn remove(&self, store: &dyn Store) -> Result<(), ProbeError> {
        for key in [&self.present, &self.absent, &self.raced] {
            match store.delete(key).await {
                Ok(()) => {}
                Err(error) if error.kind() == StoreErrorKind::Denied => {
                    tracing::debug!(%error, "an object of the probe stays");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

async fn probe(store: &dyn Store, keys: &Keys) -> Result<(), Verdict> {
    probe_creation(store, &keys.present).await?;
    let version = probe_replacement(store, &keys.present).await?;
    probe_absence(store, &keys.absent, &version).await?;
    probe_list(store, &keys.present).await?;
    probe_races(store, &keys.raced).await
}

/// An object's content: no two are equal, so that a version that is a hash of the content names one of them.
fn body(key: &str, name: &str) -> Vec<Bytes> {
    vec![Bytes::from(format!("bkfs probe {key} {name}"))]
}

async fn expect_content(
    store: &dyn Store,
    key: &str,
    name: &str,
    fault: &str,
) -> Result<Version, Verdict> {
    match store.get(key).await {
        Ok((bytes, version)) if bytes == body(key, name)[0] => Ok(version),
        Ok(_) => Err(fault.into()),
        Err(error) if error.is_not_found() => Err(
            "an object that was just written is not found: reads do not see earlier writes".into(),
        ),
        Err(error) => Err(error.into()),
    }
}

async fn probe_creation(store: &dyn Store, key: &str) -> Result<(), Verdict> {
    let created = match store.put_new(key, body(key, "first")).await {
        Ok(version) => version,
        Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {
            return Err(Verdict::Doubtful("a create-only write (If-None-Match: *) of a new object is refused as if it existed".into()));
        }
        Err(error) => return Err(error.into()),
    };
    match store.put_new(key, body(key, "second")).await {
        Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {
            return Err("a create-only write (If-None-Match: *) over an existing object succeeds: the condition is ignored".into());
        }
    }
    let read = expect_content(
        store,
        key,
        "first",
        "a create-only write that was refused has changed the object",
    )
    .await?;
    match read == created {
        true => Ok(()),
        false => {
            Err("a write and a read of the same object name different versions (ETags)".into())
        }
    }
}

async fn probe_replacement(store: &dyn Store, key: &str) -> Result<Version, Verdict> {
    let (_, first) = store.get(key).await?;
    let second = match store.replace(key, body(key, "second"), &first).await {
        Ok(version) => version,
        Err(error) if error.kind() == StoreErrorKind::Conflict => {
            return Err(Verdict::Doubtful(
                "a conditional write (If-Match) with the right version is refused".into(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    if first == second {
        return Err("two contents of an object have the same version (ETag)".into());
    }
    match store.replace(key, body(key, "third"), &first).await {
        Err(error) if error.kind() == StoreErrorKind::Conflict => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {
            return Err("a conditional write (If-Match) with an outdated version succeeds: the condition is ignored".into());
        }
    }
    let read = expect_content(
        store,
        key,
        "second",
        "after conditional writes the object holds something else than the one that succeeded",
    )
    .await?;
    match read == second {
        true => Ok(second),
        false => Err(
            "a conditional write and a read of the same object name different versions (ETags)"
                .into(),
        ),
    }
}

async fn probe_absence(store: &dyn Store, key: &str, version: &Version) -> Result<(), Verdict> {
    match store.replace(key, body(key, "only"), version).await {
        Err(error) if error.kind() == StoreErrorKind::Conflict => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {
            return Err("a conditional write (If-Match) of an object that does not exist succeeds: the condition is ignored".into());
        }
    }
    match store.get(key).await {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("a conditional write that was refused has created the object".into()),
    }
}

async fn probe_list(store: &dyn Store, key: &str) -> Result<(), Verdict> {
    let listed = store.list(key, None, 2).await?;
    match listed.iter().any(|object| object.key == key) {
        true => Ok(()),
        false => Err(
            "an object that was just written is not listed: lists do not see earlier writes".into(),
        ),
    }
}

/// Checking a condition and then writing is not one step everywhere.
async fn probe_races(store: &dyn Store, key: &str) -> Result<(), Verdict> {
    let created = join_all(
        (0..CONTENDERS).map(|number| store.put_new(key, body(key, &format!("creator {number}")))),
    );
    only_winner(
        created.await,
        StoreErrorKind::AlreadyExists,
        "create-only writes (If-None-Match: *)",
    )?;
    let (_, version) = store.get(key).await?;
    let replaced = join_all(
        (0..CONTENDERS)
            .map(|number| store.replace(key, body(key, &format!("replacer {number}")), &version)),
    );
    only_winner(
        replaced.await,
        StoreErrorKind::Conflict,
        "conditional writes (If-Match)",
    )
}

fn only_winner(
    results: Vec<Result<Version, StoreError>>,
    lost: StoreErrorKind,
    what: &str,
) -> Result<(), Verdict> {
    let mut winners = 0;
    for result in results {
        match result {
            Ok(_) => winners += 1,
            Err(error) if error.kind() == lost => {}
            Err(error) => return Err(error.into()),
        }
    }
    match winners {
        1 => Ok(()),
        0 => Err(Verdict::Doubtful(format!(
            "of {CONTENDERS} simultaneous {what} none succeeds"
        ))),
        _ => Err(Verdict::Unfit(format!(
            "of {CONTENDERS} simultaneous {what} {winners} succeed: they are not one step"
        ))),
    }
}

#[cfg(test)]
mod tests;
