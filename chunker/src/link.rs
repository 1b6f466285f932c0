//! Requests to the store, made again when that may help.
//!
//! Owns what is done about each kind of error of a read and of a create-only write, how many requests run at once, and the counting of them.
//! Knows keys and bytes, not what they mean.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::entropy::Entropy;
use crate::error::DepotError;
use crate::metrics::Counters;
use crate::pace::{Meter, Rates, Turns};
use crate::progress::{Progress, pause};
use crate::store::{Store, StoreError, StoreErrorKind, body_bytes};

/// How often a request is made that fails with an error that is not known to pass.
const STUBBORN_ATTEMPTS: u32 = 3;

/// How much of an object's end is compared to know it for our own: the seal of the footer, or of the only box, is in it, and depends on the fresh salt.
const COMPARED_BYTES: u64 = 64 << 10;

/// The way to the store.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Progress,
    uploads: Turns,
    downloads: Turns,
    upload_rate: Meter,
    download_rate: Meter,
}

impl Link {
    /// With at most so many uploads and downloads at once.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        entropy: Arc<dyn Entropy>,
        (uploads, downloads): (usize, usize),
        timeout: Duration,
    ) -> Self {
        Self {
            store,
            entropy,
            counters: Arc::default(),
            progress: Progress::new(timeout),
            uploads: Turns::new(uploads),
            downloads: Turns::new(downloads),
            upload_rate: Meter::new(None),
            download_rate: Meter::new(None),
        }
    }

    /// The same, at most at these rates. Waiting for one of them is no silence of the store.
    pub(crate) fn at(self, rates: Rates) -> Self {
        self.count_turns();
        Self {
            upload_rate: Meter::new(rates.upload),
            download_rate: Meter::new(rates.download),
            ..self
        }
    }

    /// Reads a whole object.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, DepotError> {
        let read = || async { self.store.get(key).await.map(|(bytes, _)| bytes) };
        self.read(key, read).await
    }

    /// Reads exactly these bytes of an object.
    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<Bytes, DepotError> {
        let length = range.end - range.start;
        let read = || self.store.get_range(key, range.clone());
        let bytes = self.read(key, read).await?;
        if bytes.len() as u64 != length {
            return Err(DepotError::damaged(
                key,
                "the store gave another length than was asked for",
            ));
        }
        Ok(bytes)
    }

    async fn read<F, R>(&self, key: &str, request: F) -> Result<Bytes, DepotError>
    where
        F: Fn() -> R,
        R: Future<Output = Result<Bytes, StoreError>>,
    {
        let attempts = async {
            let mut attempt = 0;
            loop {
                attempt += 1;
                let turn = self.downloads.take().await;
                // Of an object that is read whole the length is known only afterwards.
                let waiting = || self.progress.note_waiting();
                self.download_rate.pass(0, waiting).await;
                self.counters.get_requests.one();
                let answer = request().await;
                drop(turn);
                match answer {
                    Ok(bytes) => {
                        self.progress.note();
                        self.downloads.succeeded();
                        self.download_rate.passed(bytes.len() as u64);
                        self.counters.bytes_fetched.add(bytes.len() as u64);
                        return Ok(bytes);
                    }
                    Err(error) => {
                        if error.kind() == StoreErrorKind::Throttled {
                            self.downloads.slow_down();
                        }
                        self.consider(key, error, attempt).await?
                    }
                }
            }
        };
        self.progress.watch(attempts).await?
    }

    /// Pauses before another attempt at reading, or says why there is none.
    async fn consider(&self, key: &str, error: StoreError, attempt: u32) -> Result<(), DepotError> {
        match error.kind() {
            StoreErrorKind::NotFound => {
                self.progress.note();
                return Err(DepotError::Missing {
                    object: key.to_owned(),
                });
            }
            StoreErrorKind::OutOfRange => {
                self.progress.note();
                return Err(DepotError::damaged(
                    key,
                    "it is shorter than its index says",
                ));
            }
            _ if error.is_transient() => self.progress.note_trouble(&Arc::new(error)),
            _ if attempt >= STUBBORN_ATTEMPTS => return Err(error.into()),
            _ => {}
        }
        self.counters.retries.one();
        tokio::time::sleep(pause(attempt, &*self.entropy)).await;
        Ok(())
    }

    /// Creates an object under a name that is never used for anything else, for as long as it takes: an error that may pass is tried again without end, since
    /// whoever waits for this has a patience of its own ([`Progress::watch`]). An object that is there already is ours if an earlier attempt was applied without our
    /// knowing, and that is verified.
    ///
    /// # Errors
    /// The store refuses for good.
    pub(crate) async fn create(&self, key: &str, body: &[Bytes]) -> Result<(), DepotError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let turn = self.uploads.take().await;
            let waiting = || self.progress.note_waiting();
            self.upload_rate.pass(body_bytes(body), waiting).await;
            self.counters.put_requests.one();
            let answer = self.store.put_new(key, body.to_vec()).await;
            drop(turn);
            let error = match answer {
                Ok(_) => {
                    self.uploads.succeeded();
                    self.count_turns();
                    break;
                }
                Err(error) => error,
            };
            match error.kind() {
                StoreErrorKind::Throttled => {
                    self.uploads.slow_down();
                    self.count_turns();
                }
                StoreErrorKind::AlreadyExists => {
                    if self.is_ours(key, body).await? {
                        break;
                    }
                    return Err(error.into());
                }
                StoreErrorKind::OutcomeUnknown => {}
                _ if error.is_transient() => {}
                // Credentials expire and are renewed, permissions are mended: accepted bytes are not dropped for that.
                StoreErrorKind::Denied => {}
                _ if attempt >= STUBBORN_ATTEMPTS => return Err(error.into()),
                _ => {}
            }
            self.progress.note_trouble(&Arc::new(error));
            self.counters.retries.one();
            tokio::time::sleep(pause(attempt, &*self.entropy)).await;
        }
        self.progress.note();
        self.counters.bytes_uploaded.add(body_bytes(body));
        Ok(())
    }

    fn count_turns(&self) {
        let turns = self.uploads.limit();
        self.counters.uploads_at_once.set(turns as u64);
    }

    /// Whether what lies under `key` is `body`: of that length, with that end. An object that went away meanwhile is not.
    async fn is_ours(&self, key: &str, body: &[Bytes]) -> Result<bool, DepotError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.counters.get_requests.one();
            match self.store.get_tail(key, COMPARED_BYTES).await {
                Ok((tail, size)) => {
                    return Ok(size == body_bytes(body) && ends_with(body, &tail));
                }
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) if !error.is_transient() && attempt >= STUBBORN_ATTEMPTS => {
                    return Err(error.into());
                }
                Err(error) => self.progress.note_trouble(&Arc::new(error)),
            }
            self.counters.retries.one();
            tokio::time::sleep(pause(attempt, &*self.entropy)).await;
        }
    }
}

/// Whether the concatenation of `body` ends with `tail`.
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
mod tests {
    use super::*;

    #[test]
    fn ends_are_compared_across_parts() {
        let body = [Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        for tail in ["", "e", "de", "cde", "abcde"] {
            assert!(ends_with(&body, tail.as_bytes()), "{tail}");
        }
        for tail in ["d", "xde", "xabcde", "abcd"] {
            assert!(!ends_with(&body, tail.as_bytes()), "{tail}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_go_by_at_their_rates_and_waiting_for_them_is_no_stall() {
        use crate::entropy::SeededEntropy;
        use crate::store::MemoryStore;
        let store = Arc::new(MemoryStore::new());
        let entropy = Arc::new(SeededEntropy::new(1));
        let rates = Rates {
            upload: Some(10),
            download: Some(100),
        };
        let link = Link::new(store, entropy, (4, 4), Duration::from_secs(2)).at(rates);
        let body = [Bytes::from_static(&[7; 100])];
        let begin = tokio::time::Instant::now();
        let keys = ["data/1", "data/2", "data/3"];
        let sent = keys.map(|key| link.progress.watch(link.create(key, &body)));
        for sent in futures::future::join_all(sent).await {
            sent.expect("no stall").expect("created");
        }
        assert_eq!(begin.elapsed().as_secs(), 20, "the first goes at once");
        let begin = tokio::time::Instant::now();
        for key in keys {
            assert_eq!(link.get(key).await.expect("there").len(), 100);
        }
        assert_eq!(begin.elapsed().as_secs(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_asks_for_patience_is_sent_less_at_once_until_it_takes_more() {
        use crate::entropy::SeededEntropy;
        use crate::store::fault::{Fault, FaultStore, Strike};
        use crate::store::{MemoryStore, Operation};
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
        let entropy = Arc::new(SeededEntropy::new(1));
        let link = Link::new(store.clone(), entropy, (8, 8), Duration::from_secs(60));
        let busy = Strike::with(Fault::FailBefore(StoreErrorKind::Throttled));
        store.plan(busy.on(Operation::PutNew).keys("data/busy").always());
        let body = [Bytes::from_static(b"bytes")];
        let refused = link.create("data/busy", &body);
        let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
        assert!(refused.is_err(), "it is tried for as long as it takes");
        assert_eq!(link.uploads.limit(), 1);
        store.heal();
        for number in 0..40 {
            let sent = link.create(&format!("data/{number}"), &body).await;
            sent.expect("created");
        }
        assert_eq!(link.uploads.limit(), 8);
    }

    #[tokio::test]
    async fn only_our_own_object_counts_as_written() {
        use crate::entropy::SeededEntropy;
        use crate::store::MemoryStore;
        let store = Arc::new(MemoryStore::new());
        let entropy = Arc::new(SeededEntropy::new(1));
        let link = Link::new(store, entropy, (1, 1), Duration::from_secs(10));
        let body = [Bytes::from_static(b"ours"), Bytes::from_static(b" alone")];
        for _ in 0..2 {
            link.create("data/x", &body).await.expect("is ours");
        }
        for other in [&b"ours alonE"[..], b"s alone", b"xours alone"] {
            let refused = link
                .create("data/x", &[Bytes::copy_from_slice(other)])
                .await;
            let Err(DepotError::Store(error)) = refused else {
                panic!("{other:?} is not what is there");
            };
            assert_eq!(error.kind(), StoreErrorKind::AlreadyExists);
        }
    }
}
