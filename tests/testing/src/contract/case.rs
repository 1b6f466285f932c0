//! One case of the contract: the store that it runs against, below a prefix of its own.
//!
//! Owns the prefix and its removal, writes whose outcome is unknown, and what the cases share to
//! make and to compare objects.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bkfs_store::{Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;
use futures::future::BoxFuture;

/// Opens another handle on the same bucket, as another mount or a restarted program would.
pub type Opener = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>;

/// A store under test.
#[derive(Clone)]
pub struct Subject {
    /// Opens a handle on the store.
    pub open: Opener,
    /// Whether no two states of an object ever have the same version, even with the same content.
    pub exact_versions: bool,
    /// Whether a deletion takes effect before or after a concurrent replacement of the same object,
    /// and never in between.
    pub orderly_deletion: bool,
    /// The number of rounds of each race case. Most rounds have 32 concurrent requests.
    pub rounds: usize,
    /// Tells this run's objects from those of other runs in the same bucket: letters, digits and
    /// hyphens.
    pub salt: String,
}

/// A store under test, with the prefix of one case in its bucket.
pub(super) struct CaseBucket {
    pub(super) subject: Subject,
    pub(super) store: Arc<dyn Store>,
    pub(super) prefix: String,
}

impl CaseBucket {
    /// Returns a key below the case's prefix.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) async fn reopen(&self) -> Arc<dyn Store> {
        Arc::new(Settled((self.subject.open)().await))
    }
}

/// How many times a write with an unknown outcome is sent before the last attempt, whose answer
/// counts.
const UNTOLD_MAX: usize = 10;

/// A store layer that does what the contract asks of every caller: it reads the object when an
/// outcome is unknown, and sends a write that was not applied again. A gateway onto files answers
/// 409 to any write that its filesystem refuses for a moment (versitygw,
/// `ExistingObjectIsDirectory`), and a busy machine makes that happen.
#[derive(Debug)]
struct Settled(Arc<dyn Store>);

#[async_trait]
impl bkfs_store::Layer for Settled {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        for _ in 0..UNTOLD_MAX {
            match self.0.put_new(key, body.clone()).await {
                Err(error) if error.kind() == StoreErrorKind::OutcomeUnknown => {}
                told => return told,
            }
            match self.0.get(key).await {
                Ok((found, version)) if found == body.concat() => return Ok(version),
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        self.0.put_new(key, body).await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        for _ in 0..UNTOLD_MAX {
            match self.0.replace(key, body.clone(), expected).await {
                Err(error) if error.kind() == StoreErrorKind::OutcomeUnknown => {}
                told => return told,
            }
            if let Ok((found, version)) = self.0.get(key).await
                && found == body.concat()
            {
                return Ok(version);
            }
        }
        self.0.replace(key, body, expected).await
    }
}

pub(super) async fn in_place<F>(subject: Subject, case: &'static str, run: F)
where
    F: AsyncFnOnce(&CaseBucket),
{
    let store = (subject.open)().await;
    let store: Arc<dyn Store> = Arc::new(Settled(store));
    // The prefix shares no directory with other cases. A gateway onto files removes empty
    // directories, and answers 409 to a request that creates an object below one at that moment
    // (versitygw).
    let prefix = format!("contract-{}-{case}/", subject.salt);
    let place = CaseBucket {
        subject,
        store,
        prefix,
    };
    run(&place).await;
    remove_all(&place).await;
}

/// Deletes the objects of a case.
async fn remove_all(place: &CaseBucket) {
    loop {
        let page = place.store.list(&place.prefix, None, 100).await;
        let page = page.expect("the rest of a case can be listed");
        for object in &page {
            let deleted = place.store.delete(&object.key).await;
            deleted.expect("the rest of a case can be deleted");
        }
        if page.len() < 100 {
            return;
        }
    }
}

/// Returns the content of a made-up object: `size` bytes that differ between seeds and positions.
pub(super) fn content(seed: u64, size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    Bytes::from(bytes)
}

pub(super) fn body(text: impl AsRef<[u8]>) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_ref())]
}

#[track_caller]
pub(super) fn assert_kind<T: Debug>(
    result: Result<T, StoreError>,
    kind: StoreErrorKind,
    what: &str,
) {
    match result {
        Err(error) if error.kind() == kind => {}
        Err(error) => panic!("{what}: expected {kind:?}, got {:?}: {error}", error.kind()),
        Ok(value) => panic!("{what}: expected {kind:?}, got {value:?}"),
    }
}
