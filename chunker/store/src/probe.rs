//! A test of a store's conditional writes, run at init and at every writable mount.
//!
//! The guarantees of bkfs to several writers rest on create-only writes and on compare-and-swap.
//! Some stores ignore the conditions, invert them, or check them only now and then, so bkfs trusts
//! none untested. A store that passes is not proven correct, since rare races pass too. A session
//! detects those only when it sees that its last commit no longer stands.
//!
//! Owns the probe and the text that describes a fault.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all, join3};

use crate::lock::Lock;
use crate::{Store, StoreError, StoreErrorKind, Version};

/// The prefix of the probe's objects. The probe deletes them at its end. Objects that a crash
/// leaves there have no meaning.
pub const PROBE_PREFIX: &str = "probe/";

/// The most attempts at one step of the probe, each under other names. A step starts again when the
/// outcome of a write is unknown, or when a write may have been refused because of its own success:
/// servers and proxies repeat requests, and answer to the second one. On a connection that loses
/// every fourth answer, fewer than one probe in a million is misled.
const ATTEMPTS_MAX: u32 = 20;

/// The most reads of one content. An answer that is damaged on its way is so once. What each read
/// shows is in the store.
const READS_MAX: u32 = 3;

/// The pause before a step starts again, multiplied by the number of the attempt.
const PAUSE: Duration = Duration::from_millis(10);

/// How many races the probe runs. A race shows whether checking a condition and writing are one
/// atomic step. No number of rounds proves that they are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Races {
    /// The number of rounds. Each round first creates an object of its own, and then replaces it.
    pub rounds: usize,
    /// How many requests try the same write concurrently, each over its own connection if the store
    /// uses connections.
    pub contenders: usize,
}

impl Races {
    /// A number of races that every mount can afford.
    pub const FEW: Races = Races {
        rounds: 1,
        contenders: 4,
    };

    /// The races for the creation of a repository, and for an occasional mount. A store that lets
    /// one losing write in thirty pass is detected by all but one probe in a thousand.
    pub const MANY: Races = Races {
        rounds: 8,
        contenders: 16,
    };
}

/// A store that cannot hold a repository, or could not be tested.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The store does not keep the contract.
    #[error("{store} cannot hold a repository: {fault}")]
    Unfit {
        /// The store's URL, without secrets.
        store: String,
        /// The fault, in words for people.
        fault: String,
    },
    /// A request failed before the probe had a result.
    #[error("the store could not be probed: {0}")]
    Store(#[from] StoreError),
}

/// Why one attempt did not pass.
enum Verdict {
    Unfit(String),
    /// As `Unfit`, unless the store answered to a repetition of the request that it made itself.
    Doubtful(String),
    /// As `Unfit`, unless the write was damaged on its way: each read gives bytes that no request
    /// wrote.
    Odd(String),
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

/// Tests the store's conditional writes and partial reads. The probe's objects carry `salt` in
/// their names. No other probe, past or present, may have the same salt; it consists of letters,
/// digits and hyphens.
///
/// If the future is dropped, small objects stay below [`PROBE_PREFIX`]; they have no meaning.
///
/// # Errors
/// [`ProbeError::Unfit`] names a fault that was seen in an exchange in which every answer arrived,
/// or that was seen again and again. [`ProbeError::Store`] if no exchange was complete, or if the probe's objects cannot be deleted
/// for another reason than a missing permission.
pub async fn probe_conditional_writes(
    store: &dyn Store,
    salt: &str,
    races: Races,
) -> Result<(), ProbeError> {
    // A mount waits for the result, and the store may be far away.
    let mut alone = Probe::new(store, format!("{salt}-alone"));
    let mut raced = Probe::new(store, format!("{salt}-raced"));
    let (single, many) = join(alone.clean(Step::Alone), raced.race(races)).await;
    let (removed, also) = join(alone.remove(), raced.remove()).await;
    match single.and(many) {
        Ok(()) => removed.and(also),
        Err(Verdict::Unfit(fault) | Verdict::Doubtful(fault) | Verdict::Odd(fault)) => {
            Err(ProbeError::Unfit {
                store: store.describe(),
                fault,
            })
        }
        Err(Verdict::Failed(error)) => Err(error.into()),
    }
}

/// Tests whether the bucket keeps locks. The test object carries `salt` in its name, is locked
/// until the end of `lock`, and is garbage afterwards. A store without locks either says so, or
/// accepts the request and keeps no lock.
///
/// # Errors
/// [`ProbeError::Unfit`] if the store keeps no lock, or if the credentials may not set or read
/// locks. [`ProbeError::Store`] if a request fails for another reason.
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
                "objects cannot be locked (it takes a bucket that was made with Object Lock): \
                 {error}"
            ))
        }
        StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::OutOfRange
        | StoreErrorKind::NoBucket
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::NoSpace => error.into(),
    };
    let put = store.put_locked(&key, body(&key, "locked"), lock).await;
    put.map_err(|error| refused(error, "lock objects (s3:PutObjectRetention)"))?;
    let kept = store.lock(&key).await;
    // In a versioned bucket a deletion hides the object, whether it is locked or not.
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

/// Returns the key of an object that belongs to the object under `key` and must never exist.
fn absent(key: &str) -> String {
    format!("{key}-absent")
}

/// A running probe, with names of its own.
struct Probe<'a> {
    store: &'a dyn Store,
    salt: String,
    /// The keys that it has used.
    keys: Vec<String>,
}

/// The tests of one attempt under one name.
#[derive(Clone, Copy)]
enum Step {
    /// Single requests. Those that write are sent one after another.
    Alone,
    /// This many concurrent requests.
    Raced(usize),
}

impl Step {
    async fn take(self, store: &dyn Store, key: &str) -> Result<(), Verdict> {
        if let Step::Raced(contenders) = self {
            return probe_races(store, key, contenders).await;
        }
        let first = probe_creation(store, key).await?;
        let version = probe_replacement(store, key, first).await?;
        let other = absent(key);
        let absence = probe_absence(store, &other, &version);
        let (absence, listed, parts) =
            join3(absence, probe_list(store, key), probe_parts(store, key)).await;
        absence.and(listed).and(parts)
    }
}

impl<'a> Probe<'a> {
    fn new(store: &'a dyn Store, salt: String) -> Self {
        Probe {
            store,
            salt,
            keys: Vec::new(),
        }
    }

    async fn race(&mut self, races: Races) -> Result<(), Verdict> {
        for _ in 0..races.rounds {
            self.clean(Step::Raced(races.contenders)).await?;
        }
        Ok(())
    }

    /// Runs a step under fresh names until every answer of an attempt arrived and none of them is
    /// doubtful. If no attempt is such, the result is what most attempts end with.
    async fn clean(&mut self, step: Step) -> Result<(), Verdict> {
        let (mut attempt, mut doubts, mut is_odd) = (0, 0, false);
        let mut lost = None;
        loop {
            attempt += 1;
            let key = format!("{PROBE_PREFIX}{}-{}", self.salt, self.keys.len());
            self.keys.extend([absent(&key), key.clone()]);
            match step.take(self.store, &key).await {
                // One write that is damaged on its way is no fault of the store. A second one is.
                Err(Verdict::Odd(_)) if !is_odd => is_odd = true,
                Err(Verdict::Doubtful(fault)) => {
                    doubts += 1;
                    if attempt >= ATTEMPTS_MAX {
                        let lost = lost.filter(|_| doubts < ATTEMPTS_MAX / 2);
                        return Err(lost.map_or(Verdict::Doubtful(fault), Verdict::Failed));
                    }
                }
                // The write may have been applied or not; under other names the step can start
                // again.
                Err(Verdict::Failed(error))
                    if error.kind() == StoreErrorKind::OutcomeUnknown && attempt < ATTEMPTS_MAX =>
                {
                    lost = Some(error);
                }
                settled => return settled,
            }
            tokio::time::sleep(PAUSE * attempt).await;
        }
    }

    /// Deletes the probe's objects. With credentials that may write but not delete they stay, and
    /// have no meaning.
    async fn remove(&self) -> Result<(), ProbeError> {
        let mut sent = Vec::new();
        for key in &self.keys {
            sent.push(self.store.delete(key));
        }
        for result in join_all(sent).await {
            match result {
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

/// Returns an object's content. No two contents are equal, so a version that hashes the content
/// names one of them. It says everything twice, so one that is cut short or has a flipped bit is no
/// other one.
fn body(key: &str, name: &str) -> Vec<Bytes> {
    let text = format!("bkfs probe {key} {name}");
    vec![Bytes::from(format!("{text}, {text}"))]
}

/// The names of the contents that single requests write.
const ALONE: [&str; 4] = ["first", "second", "third", "only"];

/// The names of the contents that raced requests write, before a number.
const RACED: [&str; 2] = ["creator", "replacer"];

/// Returns the key that a content was written under. None if no request of a probe wrote it.
fn key_of(content: &[u8]) -> Option<&str> {
    let (text, again) = std::str::from_utf8(content).ok()?.split_once(", ")?;
    let (key, name) = text.strip_prefix("bkfs probe ")?.split_once(' ')?;
    let is_raced = |(what, _)| RACED.contains(&what);
    let is_name = ALONE.contains(&name) || name.split_once(' ').is_some_and(is_raced);
    (text == again && is_name).then_some(key)
}

/// Reads an object of the probe: its content and version, or none if there is no object. A read
/// that gives bytes which no request wrote is repeated.
async fn read_content(store: &dyn Store, key: &str) -> Result<Option<(Bytes, Version)>, Verdict> {
    for _ in 0..READS_MAX {
        match store.get(key).await {
            Ok((bytes, version)) => match key_of(&bytes) {
                Some(written) if written == key => return Ok(Some((bytes, version))),
                Some(_) => return Err("a read gives the content of another object".into()),
                None => {}
            },
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Verdict::Odd(
        "each read of an object gives bytes that no request wrote".to_owned(),
    ))
}

async fn expect_content(
    store: &dyn Store,
    key: &str,
    name: &str,
    fault: &str,
) -> Result<Version, Verdict> {
    match read_content(store, key).await? {
        Some((bytes, version)) if bytes == body(key, name)[0] => Ok(version),
        Some(_) => Err(fault.into()),
        None => Err(
            "an object that was just written is not found: reads do not see earlier writes".into(),
        ),
    }
}

/// Returns the version of the object that it made.
async fn probe_creation(store: &dyn Store, key: &str) -> Result<Version, Verdict> {
    let created = match store.put_new(key, body(key, "first")).await {
        Ok(version) => version,
        Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {
            return Err(Verdict::Doubtful(
                "a create-only write (If-None-Match: *) of a new object is refused as if it \
                 existed"
                    .into(),
            ));
        }
        Err(error) => return Err(error.into()),
    };
    match store.put_new(key, body(key, "second")).await {
        Err(error) if error.kind() == StoreErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {
            return Err(
                "a create-only write (If-None-Match: *) over an existing object succeeds: the \
                 condition is ignored"
                    .into(),
            );
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
        true => Ok(read),
        false => {
            Err("a write and a read of the same object name different versions (ETags)".into())
        }
    }
}

async fn probe_replacement(
    store: &dyn Store,
    key: &str,
    first: Version,
) -> Result<Version, Verdict> {
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
            return Err(
                "a conditional write (If-Match) with an outdated version succeeds: the condition \
                 is ignored"
                    .into(),
            );
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
            return Err(
                "a conditional write (If-Match) of an object that does not exist succeeds: the \
                 condition is ignored"
                    .into(),
            );
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

/// Tests partial reads. Some stores support Range for one kind of request and not for another.
async fn probe_parts(store: &dyn Store, key: &str) -> Result<(), Verdict> {
    let whole = &body(key, "second")[0];
    let length = whole.len();
    let part = 5..length - 3;
    let refused = |error: StoreError| match error.kind() {
        StoreErrorKind::Invalid | StoreErrorKind::OutOfRange => Verdict::Unfit(format!(
            "a part of an object cannot be read (Range): {error}"
        )),
        StoreErrorKind::NotFound
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::Denied
        | StoreErrorKind::NoBucket
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::NoSpace
        | StoreErrorKind::Other => Verdict::Failed(error),
    };
    // More than a half, so that no other part has the same bytes.
    let tail_bytes = length / 2 + 5;
    for _ in 0..READS_MAX {
        let read = store.get_range(key, part.start as u64..part.end as u64);
        let (middle, tail) = join(read, store.get_tail(key, tail_bytes as u64)).await;
        let middle = middle.map_err(refused)?;
        let (tail, size) = tail.map_err(refused)?;
        if size != length as u64 {
            return Err("a read of the end of an object gives another length".into());
        }
        if middle == whole[part.clone()] && tail == whole[length - tail_bytes..] {
            return Ok(());
        }
    }
    Err(Verdict::Odd(
        "a read of a part of an object (Range) gives other bytes".to_owned(),
    ))
}

/// Tests concurrent writes. In some stores checking a condition and writing are not one atomic
/// step.
async fn probe_races(store: &dyn Store, key: &str, contenders: usize) -> Result<(), Verdict> {
    let bodies = |what: &str| -> Vec<_> {
        (0..contenders)
            .map(|number| body(key, &format!("{what} {number}")))
            .collect()
    };
    let [creator, replacer] = RACED;
    let creators = bodies(creator);
    let mut sent = Vec::new();
    for body in &creators {
        sent.push(store.put_new(key, body.clone()));
    }
    let created = join_all(sent).await;
    let (lost, what) = (
        StoreErrorKind::AlreadyExists,
        "create-only writes (If-None-Match: *)",
    );
    let winner = winner_of(created, lost, what)?;
    let version = stands(store, key, &creators, winner, what).await?;
    let replacers = bodies(replacer);
    let mut sent = Vec::new();
    for body in &replacers {
        sent.push(store.replace(key, body.clone(), &version));
    }
    let replaced = join_all(sent).await;
    let (lost, what) = (StoreErrorKind::Conflict, "conditional writes (If-Match)");
    let winner = winner_of(replaced, lost, what)?;
    stands(store, key, &replacers, winner, what).await?;
    Ok(())
}

/// Returns which of simultaneous writes succeeded. A lost answer is no evidence.
fn winner_of(
    results: Vec<Result<Version, StoreError>>,
    lost: StoreErrorKind,
    what: &str,
) -> Result<usize, Verdict> {
    let contenders = results.len();
    let (mut winners, mut unknown) = (Vec::new(), None);
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(_) => winners.push(number),
            Err(error) if error.kind() == lost || error.is_transient() => {}
            Err(error) if error.kind() == StoreErrorKind::OutcomeUnknown => unknown = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match (winners.as_slice(), unknown) {
        ([winner], _) => Ok(*winner),
        ([], Some(error)) => Err(error.into()),
        ([], None) => Err(Verdict::Doubtful(format!(
            "of {contenders} simultaneous {what} none succeeds"
        ))),
        (winners, _) => Err(Verdict::Unfit(format!(
            "of {contenders} simultaneous {what} {} succeed: they are not one step",
            winners.len()
        ))),
    }
}

/// Returns the version of the object, which has the content that the winner of a race wrote.
async fn stands(
    store: &dyn Store,
    key: &str,
    bodies: &[Vec<Bytes>],
    winner: usize,
    what: &str,
) -> Result<Version, Verdict> {
    let contenders = bodies.len();
    match read_content(store, key).await? {
        Some((bytes, version)) if bytes == bodies[winner][0] => Ok(version),
        _ => Err(Verdict::Unfit(format!(
            "of {contenders} simultaneous {what} one succeeds, and what it wrote does not stand: \
             they are not one step"
        ))),
    }
}

#[cfg(test)]
mod tests;
