//! A bucket that counts requests, and fails them as a script says.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bkfs_store::{MemoryStore, ObjectInfo, Operation, Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use parking_lot::Mutex;

/// The outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// The request is not carried out, and fails with this error.
    Fail(StoreErrorKind),
    /// The request is carried out, and fails with this error.
    ApplyAndFail(StoreErrorKind),
    /// The request is carried out after this time.
    Wait(Duration),
    /// The request is never answered.
    Hang,
    /// A range arrives with one flipped bit.
    Garble,
    /// A range arrives with one flipped bit in this byte.
    GarbleAt(usize),
}

type Script = Box<dyn FnMut(Operation, &str) -> Verdict + Send>;

#[derive(Default)]
pub(super) struct Bucket {
    inner: MemoryStore,
    script: Mutex<Option<Script>>,
    requests: Mutex<BTreeMap<(Operation, String), u64>>,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Bucket")
    }
}

impl Bucket {
    /// Sets the script that decides the outcome of every request.
    pub(super) fn script(&self, script: impl FnMut(Operation, &str) -> Verdict + Send + 'static) {
        *self.script.lock() = Some(Box::new(script));
    }

    /// Removes the script: every request succeeds.
    pub(super) fn behave(&self) {
        *self.script.lock() = None;
    }

    /// Returns the number of requests of one operation for keys whose directory begins with
    /// `prefix`.
    pub(super) fn requests(&self, operation: Operation, prefix: &str) -> u64 {
        let requests = self.requests.lock();
        let matching = requests
            .iter()
            .filter(|((asked, class), _)| *asked == operation && class.starts_with(prefix));
        matching.map(|(_, count)| count).sum()
    }

    pub(super) fn forget_requests(&self) {
        self.requests.lock().clear();
    }

    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        let listed = pollster_block(self.inner.list(prefix, None, usize::MAX));
        let listed = listed.expect("memory does not fail");
        listed.into_iter().map(|info| info.key).collect()
    }

    pub(super) fn count(&self, prefix: &str) -> usize {
        self.keys(prefix).len()
    }

    /// Overwrites an object, as a failing disk does.
    pub(super) fn overwrite(&self, key: &str, bytes: Bytes) {
        pollster_block(self.inner.put(key, vec![bytes])).expect("memory does not fail");
    }

    pub(super) fn bytes(&self, key: &str) -> Bytes {
        pollster_block(self.inner.get(key)).expect("is there").0
    }

    pub(super) fn remove(&self, key: &str) {
        pollster_block(self.inner.delete(key)).expect("memory does not fail");
    }

    async fn judge<T>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.judge_noting(operation, key, request, |_| {}).await
    }

    async fn judge_noting<T>(
        &self,
        operation: Operation,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
        note: impl Fn(Verdict),
    ) -> Result<T, StoreError> {
        let class = key.split('/').next().unwrap_or_default().to_owned() + "/";
        *self.requests.lock().entry((operation, class)).or_default() += 1;
        let verdict = match &mut *self.script.lock() {
            Some(script) => script(operation, key),
            None => Verdict::Pass,
        };
        note(verdict);
        let error = |kind| Err(StoreError::new(kind, operation, key, "as told"));
        match verdict {
            Verdict::Pass | Verdict::Garble | Verdict::GarbleAt(_) => request.await,
            Verdict::Fail(kind) => error(kind),
            Verdict::ApplyAndFail(kind) => {
                request.await?;
                error(kind)
            }
            Verdict::Wait(time) => {
                tokio::time::sleep(time).await;
                request.await
            }
            Verdict::Hang => std::future::pending().await,
        }
    }
}

/// Runs a future that never waits.
fn pollster_block<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the bucket in memory never waits"),
    }
}

#[async_trait]
impl bkfs_store::Layer for Bucket {
    fn below(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.judge(Operation::Get, key, self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let told = Mutex::new(Verdict::Pass);
        let request = async {
            let bytes = self.inner.get_range(key, range).await?;
            let mut bytes = bytes.to_vec();
            let place = match *told.lock() {
                Verdict::Garble => bytes.len() / 2,
                Verdict::GarbleAt(place) => place % bytes.len(),
                _ => return Ok(Bytes::from(bytes)),
            };
            bytes[place] ^= 1;
            Ok(Bytes::from(bytes))
        };
        self.judge_noting(Operation::GetRange, key, request, |verdict| {
            *told.lock() = verdict;
        })
        .await
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        self.judge(Operation::GetTail, key, self.inner.get_tail(key, bytes))
            .await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.judge(Operation::Head, key, self.inner.head(key)).await
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.judge(Operation::PutNew, key, self.inner.put_new(key, body))
            .await
    }

    fn describe(&self) -> String {
        "test:".to_owned()
    }
}
