//! Store requests with their retries, concurrency limits and rate limits.
//!
//! Owns what happens after each kind of error of a read and of a create-only write, how many
//! requests run concurrently, and the counting of requests. Knows keys and bytes, not what they
//! mean.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bkfs_store::entropy::Entropy;
use bkfs_store::rate_limit::{ConcurrencyLimit, Meter, Rates};
use bkfs_store::urgency::{SharedUrgency, Urgency};
use bkfs_store::{Signs, Store, StoreError, StoreErrorKind, body_bytes};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::error::ContentError;
use crate::metrics::Counters;
use crate::progress::{Awake, Movement, StoreProgress};

/// The most attempts at a request that the store refuses, unless [`StoreClient::bear_refusals`] was
/// called.
const STUBBORN_ATTEMPTS: u32 = 3;

/// The most attempts at a read whose answers are malformed. They take about 10 s with their pauses:
/// a proxy or a store that answers such for a few seconds must not pass for a damaged object.
const MALFORMED_ATTEMPTS: u32 = 8;

/// A request to a silent store is sent once more after this fraction (one fifth) of the timeout,
/// while the first one still waits. An outage that ends within the timeout is then noticed within
/// it, whatever became of the requests that were sent meanwhile.
const REPEATED_IN_TIMEOUT: u32 = 5;

/// The upper limit of that time. A transfer that moves slowly is not repeated needlessly.
const REPEATED_AFTER_MAX: Duration = Duration::from_secs(60);

/// How many bytes of an object's end are compared to recognize it as our own. They contain the AEAD
/// tag of the footer, or of the only box, which depends on the fresh salt.
const COMPARED_BYTES: u64 = 64 << 10;

/// How many answers must say that an object is not ours before the link believes it.
const FOREIGN_ANSWERS: u32 = 3;

/// What depends on an object that is created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Need {
    /// Accepted data, which is never given up because of credentials and permissions: these are
    /// renewed.
    Data,
    /// Speed alone. A refusal of any kind ends the wait for it.
    Speed,
}

/// The client of the store that the whole content store shares.
#[derive(Debug)]
pub(crate) struct StoreClient {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) counters: Arc<Counters>,
    /// Progress of uploads.
    pub(crate) progress: StoreProgress,
    /// Progress of reads. It is separate, since a full bucket still answers all reads.
    reading: StoreProgress,
    timeout: Duration,
    /// Whether refusals are retried for as long as silence.
    bears_refusals: AtomicBool,
    /// Permits to repeat one request at a time, to find out whether a silent store answers again:
    /// one permit for uploads, and one for reads.
    scouts: [Semaphore; 2],
    uploads: ConcurrencyLimit,
    downloads: ConcurrencyLimit,
    upload_rate: Meter,
    download_rate: Meter,
}

impl StoreClient {
    /// Returns a link with at most this many concurrent uploads and downloads. `timeout` is the
    /// longest time without progress.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        entropy: Arc<dyn Entropy>,
        (uploads, downloads): (usize, usize),
        timeout: Duration,
    ) -> Self {
        let progress = |last| {
            let signs = store.signs();
            StoreProgress::new(timeout, Movement { signs, last })
        };
        Self {
            progress: progress(Signs::sent_at),
            reading: progress(Signs::received_at),
            store,
            entropy,
            counters: Arc::default(),
            timeout,
            bears_refusals: AtomicBool::new(false),
            scouts: [const { Semaphore::const_new(1) }; 2],
            uploads: ConcurrencyLimit::new(uploads),
            downloads: ConcurrencyLimit::new(downloads),
            upload_rate: Meter::new(None),
            download_rate: Meter::new(None),
        }
    }

    /// Returns this link with these rate limits. The wait for a rate limit does not count as
    /// silence of the store.
    pub(crate) fn at(self, rates: Rates) -> Self {
        self.count_turns();
        Self {
            upload_rate: Meter::new(rates.upload),
            download_rate: Meter::new(rates.download),
            ..self
        }
    }

    /// Extends the retries of refusals to the whole timeout, as for silence, from now on. Accepted
    /// data is not dropped because of a cause that can be removed.
    pub(crate) fn bear_refusals(&self) {
        self.bears_refusals.store(true, Ordering::Relaxed);
    }

    fn bears_refusals(&self) -> bool {
        self.bears_refusals.load(Ordering::Relaxed)
    }

    /// Sends a request that does no harm when it is sent twice. While the store is silent, the
    /// request is sent once more, because the connection of the first one may be dead. It is not
    /// sent a third time while bytes move: a link that pauses is not dead. The first answer counts.
    /// The other request is dropped, and may still be applied.
    async fn answered<T, R>(
        &self,
        progress: &StoreProgress,
        scouts: &Semaphore,
        request: impl Fn() -> R,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, StoreError>>,
    {
        let after = (self.timeout / REPEATED_IN_TIMEOUT).min(REPEATED_AFTER_MAX);
        let begin = Instant::now();
        let again = async {
            progress.silent(after).await;
            // The semaphore is never closed.
            let _scout = scouts.acquire().await;
            loop {
                progress.still(begin, after).await;
                self.counters.retries.one();
                match tokio::time::timeout(after, request()).await {
                    // A refusal of this one says nothing about the first, which may be nearly
                    // complete.
                    Ok(Err(error)) if !settles(&error) => tokio::time::sleep(after).await,
                    Ok(answer) => return answer,
                    Err(_) => {}
                }
            }
        };
        tokio::select! {
            biased;
            answer = request() => answer,
            answer = again => answer,
        }
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`ContentError::Missing`] if the object is absent. [`ContentError::Store`] if the store
    /// refuses for good. [`ContentError::Stalled`] if the store made no progress, or this object
    /// could not be read, for the whole timeout.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, ContentError> {
        let read = || async { self.store.get(key).await.map(|(bytes, _)| bytes) };
        self.read(key, &SharedUrgency::new(Urgency::Now), read)
            .await
    }

    /// Lets reads begin whose urgency was raised.
    pub(crate) fn reconsider_reads(&self) {
        self.downloads.reconsider();
    }

    /// Reads exactly the bytes `range` of an object, whose end is exclusive.
    ///
    /// # Errors
    /// Those of [`StoreClient::get`], and [`ContentError::Damaged`] if the object is shorter or the
    /// store returns another length.
    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<Bytes, ContentError> {
        self.get_range_as(key, range, &SharedUrgency::new(Urgency::Now))
            .await
    }

    /// As [`StoreClient::get_range`], for a caller of this urgency.
    pub(crate) async fn get_range_as(
        &self,
        key: &str,
        range: Range<u64>,
        urgency: &SharedUrgency,
    ) -> Result<Bytes, ContentError> {
        let length = range.end - range.start;
        let read = || self.store.get_range(key, range.clone());
        let bytes = self.read(key, urgency, read).await?;
        if bytes.len() as u64 != length {
            return Err(ContentError::damaged(
                key,
                "the store gave another length than was asked for",
            ));
        }
        Ok(bytes)
    }

    /// Reads the last bytes of an object: `length` of them, or all if it has less. Returns them with
    /// the length of the object.
    ///
    /// # Errors
    /// Those of [`StoreClient::get`], and [`ContentError::Damaged`] if the store returns another
    /// length.
    pub(crate) async fn get_tail(
        &self,
        key: &str,
        length: u64,
    ) -> Result<(Bytes, u64), ContentError> {
        let whole = AtomicU64::new(0);
        let read = || async {
            let (tail, bytes) = self.store.get_tail(key, length).await?;
            whole.store(bytes, Ordering::Relaxed);
            Ok(tail)
        };
        let urgency = SharedUrgency::new(Urgency::Now);
        let tail = self.read(key, &urgency, read).await?;
        let whole = whole.into_inner();
        match tail.len() as u64 == length.min(whole) {
            true => Ok((tail, whole)),
            false => Err(ContentError::damaged(
                key,
                "the store gave another length than was asked for",
            )),
        }
    }

    async fn read<F, R>(
        &self,
        key: &str,
        urgency: &SharedUrgency,
        request: F,
    ) -> Result<Bytes, ContentError>
    where
        F: Fn() -> R,
        R: Future<Output = Result<Bytes, StoreError>>,
    {
        let attempts = async {
            let mut attempt = 0;
            // How long the store had the request, or refused it.
            let mut tried = Duration::ZERO;
            loop {
                attempt += 1;
                let turn = self.downloads.take_as(urgency).await;
                // The length of an object that is read whole is known only afterwards.
                let waiting = || self.reading.note_waiting();
                self.download_rate.pass(0, waiting).await;
                let begin = Instant::now();
                self.counters.get_requests.one();
                let answer = self
                    .answered(&self.reading, &self.scouts[1], &request)
                    .await;
                drop(turn);
                match answer {
                    Ok(bytes) => {
                        self.reading.note();
                        self.downloads.succeeded();
                        self.download_rate.passed(bytes.len() as u64);
                        self.counters.bytes_fetched.add(bytes.len() as u64);
                        return Ok(bytes);
                    }
                    Err(error) => {
                        if error.kind() == StoreErrorKind::Throttled {
                            self.downloads.slow_down();
                        }
                        let so_far = tried + begin.elapsed();
                        self.consider(key, error, (attempt, so_far)).await?;
                        tried += begin.elapsed();
                    }
                }
            }
        };
        self.reading.watch(attempts).await?
    }

    /// Waits before the next attempt at a read, or returns why there is none: the store refused it,
    /// or could not serve it for the whole timeout while it served others. `tried` is how long it
    /// was tried, without waits for other reads.
    async fn consider(
        &self,
        key: &str,
        error: StoreError,
        (attempt, tried): (u32, Duration),
    ) -> Result<(), ContentError> {
        match error.kind() {
            StoreErrorKind::NotFound => {
                self.reading.note();
                return Err(ContentError::Missing {
                    object: key.to_owned(),
                });
            }
            StoreErrorKind::OutOfRange => {
                self.reading.note();
                return Err(ContentError::damaged(
                    key,
                    "it is shorter than its index says",
                ));
            }
            _ if error.is_transient() || self.bears_refusals() => {
                let error = Arc::new(error);
                self.reading.note_trouble(&error);
                if tried >= self.timeout && error.kind() != StoreErrorKind::Throttled {
                    return Err(self.reading.stalled(Some(error)));
                }
            }
            StoreErrorKind::Invalid if attempt < MALFORMED_ATTEMPTS => {}
            StoreErrorKind::AlreadyExists
            | StoreErrorKind::Conflict
            | StoreErrorKind::NotModified
            | StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoServer
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Throttled
            | StoreErrorKind::OutcomeUnknown
            | StoreErrorKind::NoSpace
            | StoreErrorKind::Invalid
            | StoreErrorKind::Other => {
                if attempt >= STUBBORN_ATTEMPTS {
                    return Err(error.into());
                }
            }
        }
        self.counters.retries.one();
        self.progress.pause(attempt, &*self.entropy).await;
        Ok(())
    }

    /// Creates an object under a name that is never used for another object.
    ///
    /// An error that may pass is retried without end, since every caller limits its own wait
    /// ([`StoreProgress::watch`]). If the object already exists, an earlier attempt may have been
    /// applied unnoticed. Then its length and its end are compared with `body`.
    ///
    /// If the future is dropped, the object may be in the bucket, may appear later, or may never
    /// appear.
    ///
    /// # Errors
    /// [`ContentError::Store`] if another object has the name, or if the store refuses for good:
    /// for the whole timeout after [`StoreClient::bear_refusals`], otherwise in 3 attempts.
    pub(crate) async fn create(&self, key: &str, body: &[Bytes]) -> Result<(), ContentError> {
        let awake = Awake::default();
        let created = self.create_awake(key, body, (&awake, Need::Data));
        awake.watch(created).await
    }

    /// As [`StoreClient::create`], for an object that saves time and holds no data of its own. The
    /// store may refuse it for good in 3 attempts, by a lack of permissions as well.
    ///
    /// # Errors
    /// Those of [`StoreClient::create`].
    pub(crate) async fn create_for_speed(
        &self,
        key: &str,
        body: &[Bytes],
    ) -> Result<(), ContentError> {
        let awake = Awake::default();
        let created = self.create_awake(key, body, (&awake, Need::Speed));
        awake.watch(created).await
    }

    /// Does the work of [`StoreClient::create`]. `awake` knows how long this process stood still
    /// meanwhile: that time does not count as a part of a refusal.
    async fn create_awake(
        &self,
        key: &str,
        body: &[Bytes],
        (awake, need): (&Awake, Need),
    ) -> Result<(), ContentError> {
        let mut attempt = 0;
        let (mut stuck, mut refused) = (None, None);
        let _sending = self.progress.send();
        loop {
            attempt += 1;
            let turn = self.uploads.take().await;
            let waiting = || self.progress.note_waiting();
            self.upload_rate.pass(body_bytes(body), waiting).await;
            self.counters.put_requests.one();
            let sent = Instant::now();
            let put = || self.store.put_new(key, body.to_vec());
            let answer = self.answered(&self.progress, &self.scouts[0], put).await;
            drop(turn);
            let error = match answer {
                Ok(_) => {
                    self.uploads.succeeded();
                    self.count_turns();
                    break;
                }
                Err(error) => error,
            };
            let error = Arc::new(error);
            match error.kind() {
                StoreErrorKind::AlreadyExists => {
                    // From now: a request that took long may have created the object itself.
                    let stuck = stuck.get_or_insert_with(|| self.progress.stick(Instant::now()));
                    stuck.note(&error);
                    match self.is_ours(key, body, (awake, need)).await? {
                        Some(true) => break,
                        Some(false) => return Err(ContentError::Store(error)),
                        // Another attempt may still run, or the answer is not up to date. A name
                        // stands for one body, so the body is sent again.
                        None => {}
                    }
                }
                StoreErrorKind::Throttled => {
                    self.uploads.slow_down();
                    self.count_turns();
                    // The store takes others meanwhile, so this request succeeds in the end.
                    (stuck, refused) = (None, None);
                }
                kind => {
                    let stuck = stuck.get_or_insert_with(|| self.progress.stick(sent));
                    stuck.note(&error);
                    // Silence before a refusal does not count as a refusal.
                    if self.is_final(kind, need) {
                        let since = *refused.get_or_insert_with(|| awake.now());
                        if self.gives_up(need, attempt, awake.since(since)) {
                            return Err(ContentError::Store(error));
                        }
                    } else {
                        refused = None;
                    }
                }
            }
            self.progress.note_trouble(&error);
            self.counters.retries.one();
            self.progress.pause(attempt, &*self.entropy).await;
        }
        drop(stuck);
        self.progress.note();
        self.counters.bytes_uploaded.add(body_bytes(body));
        Ok(())
    }

    /// Returns whether a refusal is final: only a person can remove its cause. For data, a lack of
    /// permissions is not, and after [`StoreClient::bear_refusals`] a full store is not either, which
    /// is emptied.
    fn is_final(&self, kind: StoreErrorKind, need: Need) -> bool {
        match kind {
            StoreErrorKind::Unreachable
            | StoreErrorKind::Throttled
            | StoreErrorKind::OutcomeUnknown => false,
            StoreErrorKind::Denied => need == Need::Speed,
            StoreErrorKind::NoSpace => need == Need::Speed || !self.bears_refusals(),
            StoreErrorKind::NotFound
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::Conflict
            | StoreErrorKind::NotModified
            | StoreErrorKind::OutOfRange
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoServer
            | StoreErrorKind::Invalid
            | StoreErrorKind::Other => true,
        }
    }

    /// Returns whether to give up a request that the store has refused for good for so long.
    fn gives_up(&self, need: Need, attempt: u32, refused_for: Duration) -> bool {
        match self.bears_refusals() && need == Need::Data {
            true => refused_for >= self.timeout,
            false => attempt >= STUBBORN_ATTEMPTS,
        }
    }

    fn count_turns(&self) {
        let turns = self.uploads.limit();
        self.counters.uploads_at_once.set(turns as u64);
    }

    /// Returns whether the object under `key` is `body`: of the same length, with the same end.
    /// Returns `None` if there is no object. An answer may arrive damaged, so several answers must
    /// agree that the object is another one.
    async fn is_ours(
        &self,
        key: &str,
        body: &[Bytes],
        (awake, need): (&Awake, Need),
    ) -> Result<Option<bool>, ContentError> {
        let mut refused = None;
        let mut differing = 0;
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.counters.get_requests.one();
            match self.store.get_tail(key, COMPARED_BYTES).await {
                Ok((tail, size)) if size == body_bytes(body) && ends_with(body, &tail) => {
                    return Ok(Some(true));
                }
                Ok(_) if differing + 1 == FOREIGN_ANSWERS => return Ok(Some(false)),
                Ok(_) => differing += 1,
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => {
                    if self.is_final(error.kind(), need) {
                        let since = *refused.get_or_insert_with(|| awake.now());
                        if self.gives_up(need, attempt, awake.since(since)) {
                            return Err(error.into());
                        }
                    } else {
                        refused = None;
                    }
                    self.progress.note_trouble(&Arc::new(error));
                }
            }
            self.counters.retries.one();
            self.progress.pause(attempt, &*self.entropy).await;
        }
    }
}

/// Returns whether an error is the answer to every request of this kind: the object exists, or it
/// does not.
fn settles(error: &StoreError) -> bool {
    let kind = error.kind();
    kind == StoreErrorKind::AlreadyExists
        || kind == StoreErrorKind::OutOfRange
        || error.is_not_found()
}

/// Returns whether the concatenation of `body` ends with `tail`.
fn ends_with(body: &[Bytes], tail: &[u8]) -> bool {
    let mut rest = tail;
    for part in body.iter().rev() {
        let length = part.len().min(rest.len());
        let (before, end) = rest.split_at(rest.len() - length);
        if part[part.len() - length..] != *end {
            return false;
        }
        rest = before;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests;
