//! Replacements of the root that a store acknowledges and then loses, or loses without an answer.

use super::support::*;
use super::witness::{Touch, enter, other_root, store_blindly, touch};
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, RootParts};
use crate::root::memory::VolatileMemory;
use crate::root::retry::RetryPolicy;
use async_trait::async_trait;
use bkfs_store::{Operation, Store, StoreError, StoreErrorKind, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A store in which another writer overwrites the next replacement of the root.
#[derive(Debug)]
struct Overtaken {
    inner: Arc<dyn Store>,
    by: parking_lot::Mutex<Option<bytes::Bytes>>,
    /// Whether that replacement is applied and acknowledged; otherwise it is lost without an
    /// answer.
    acknowledges: bool,
}

impl Overtaken {
    async fn new(acknowledges: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: memory().await,
            by: Default::default(),
            acknowledges,
        })
    }
}

#[async_trait]
impl bkfs_store::Layer for Overtaken {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<bytes::Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let by = self.by.lock().take();
        let Some(other) = by else {
            return self.inner.replace(key, body, expected).await;
        };
        let answer = match self.acknowledges {
            true => self.inner.replace(key, body, expected).await,
            false => {
                let unknown = StoreErrorKind::OutcomeUnknown;
                Err(StoreError::new(unknown, Operation::Replace, key, "silent"))
            }
        };
        self.inner.put(key, vec![other]).await?;
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_looks_whether_its_last_change_still_stands() {
    let overtaken = Overtaken::new(true).await;
    let handle = process(overtaken.clone(), 1).await;
    let session = enter(&handle, "main").await;
    *overtaken.by.lock() = Some(other_root(&handle.current()));
    let error = handle.update(&mut Touch(session.id())).await;
    let error = error.expect_err("it was acknowledged, and is gone");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
}

/// A store that acknowledges replacements and does not apply them.
#[derive(Debug)]
struct Forgetful {
    inner: Arc<dyn Store>,
    forgets: AtomicBool,
}

#[async_trait]
impl bkfs_store::Layer for Forgetful {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<bytes::Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        if self.forgets.load(Ordering::SeqCst) {
            return self.inner.put("elsewhere", body).await;
        }
        self.inner.replace(key, body, expected).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_the_store_did_not_keep_is_not_made() {
    let forgetful = Arc::new(Forgetful {
        inner: memory().await,
        forgets: AtomicBool::new(false),
    });
    let handle = process(forgetful.clone(), 1).await;
    let session = enter(&handle, "main").await;
    forgetful.forgets.store(true, Ordering::SeqCst);
    let error = handle.update(&mut Touch(session.id())).await;
    let error = error.expect_err("it was acknowledged, and is not there");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
    // The attempt is over: no later change sends it again.
    forgetful.forgets.store(false, Ordering::SeqCst);
    let before = forgetful.get("root").await.expect("there").0;
    handle.settle().await.expect_err("the root is older");
    let error = handle.update(&mut Touch(session.id())).await;
    error.expect_err("the root is older");
    let after = forgetful.get("root").await.expect("there").0;
    assert!(before == after, "what was not made is made");
}

/// Least time of the pauses between three reads: half of their bounds, which are 50, 100 and 200
/// ms.
const MS_175: std::time::Duration = std::time::Duration::from_millis(175);

/// Randomness that makes every pause as short as possible.
#[derive(Debug)]
struct Nothing(Arc<Seeded>, AtomicBool);

impl bkfs_store::entropy::Entropy for Nothing {
    fn fill(&self, bytes: &mut [u8]) {
        match bytes.len() == 4 && self.1.load(Ordering::SeqCst) {
            true => bytes.fill(0),
            false => self.0.fill(bytes),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn looks_at_an_older_root_pause_in_between() {
    let forgetful = Arc::new(Forgetful {
        inner: memory().await,
        forgets: AtomicBool::new(false),
    });
    let entropy = Arc::new(Nothing(Seeded::new(1), AtomicBool::new(false)));
    let parts = RootParts {
        store: forgetful.clone(),
        keyring: keyring(),
        entropy: entropy.clone(),
        memory: Arc::new(VolatileMemory::default()),
        policy: RetryPolicy::default(),
        accept_rollback: false,
    };
    let handle = RootHandle::open(parts, 0).await.expect("there");
    let session = enter(&handle, "main").await;
    forgetful.forgets.store(true, Ordering::SeqCst);
    entropy.1.store(true, Ordering::SeqCst);
    let begun = tokio::time::Instant::now();
    let error = handle.update(&mut Touch(session.id())).await;
    let error = error.expect_err("it was acknowledged, and is not there");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
    assert!(begun.elapsed() >= MS_175, "{:?}", begun.elapsed());
}

/// A change gets no answer, and the root that it was to replace is lost, though the store has
/// acknowledged that root.
#[tokio::test(start_paused = true)]
async fn a_change_over_a_lost_root_is_over() {
    let torn = Overtaken::new(false).await;
    let handle = process(torn.clone(), 1).await;
    let session = enter(&handle, "main").await;
    let base = handle.refresh().await.expect("read");
    touch(&handle, &session).await;
    let object = other_root(&base);
    *torn.by.lock() = Some(object.clone());
    for _ in 0..2 {
        let error = handle.update(&mut Touch(session.id())).await;
        let error = error.expect_err("its base is gone");
        assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
        let error = handle.settle().await.expect_err("its base is gone");
        assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
    }
    assert!(torn.get("root").await.expect("there").0 == object);
}

/// The answer to a replacement is late: meanwhile two other roots were written over it and read.
#[tokio::test(start_paused = true)]
async fn a_change_that_was_overtaken_before_its_answer_is_not_made() {
    let late = Arc::new(Late {
        inner: memory().await,
        gates: parking_lot::Mutex::default(),
    });
    let handle = process(late.clone(), 1).await;
    let session = enter(&handle, "main").await;
    let base = handle.refresh().await.expect("read");
    let (came, arrived) = tokio::sync::oneshot::channel();
    let (open, gate) = tokio::sync::oneshot::channel();
    *late.gates.lock() = Some((came, gate));
    let (own, id) = (handle.clone(), session.id());
    let change = tokio::spawn(async move { own.update(&mut Touch(id)).await.map(drop) });
    arrived.await.expect("sent");
    store_blindly(&*late.inner, &base).await;
    let other = process(late.inner.clone(), 2).await;
    other.refresh().await.expect("read");
    store_blindly(&*late.inner, &other.current()).await;
    handle.refresh().await.expect("it follows what it knew");
    open.send(()).expect("it waits");
    let error = change.await.expect("no panic").expect_err("it is gone");
    assert!(matches!(error, RootError::NotAtomic { .. }), "{error}");
}

type Gates = (
    tokio::sync::oneshot::Sender<()>,
    tokio::sync::oneshot::Receiver<()>,
);

/// A store that holds back the answer to the next replacement.
#[derive(Debug)]
struct Late {
    inner: Arc<dyn Store>,
    gates: parking_lot::Mutex<Option<Gates>>,
}

#[async_trait]
impl bkfs_store::Layer for Late {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<bytes::Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let version = self.inner.replace(key, body, expected).await?;
        let gates = self.gates.lock().take();
        if let Some((came, gate)) = gates {
            came.send(()).expect("waited for");
            gate.await.expect("opened");
        }
        Ok(version)
    }
}
