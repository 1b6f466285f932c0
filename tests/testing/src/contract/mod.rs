//! The contract of a store, as test functions that run against any store.
//!
//! Owns the cases. Each case works below its own prefix, so that cases may run concurrently, and
//! again on the same bucket. A case panics with the fault that it found. Does not own the list of
//! stores and the start of their servers (`tests/contract`).

mod lists;
mod reads;
mod writes;

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

/// One case: its name, and the function that runs it.
pub type Case = (&'static str, fn(Subject) -> BoxFuture<'static, ()>);

macro_rules! cases {
    ($($room:ident :: $name:ident),* $(,)?) => {
        /// All cases.
        pub const CASES: &[Case] = &[
            $((
                stringify!($name),
                |subject| Box::pin(in_place(subject, stringify!($name), $room::$name))
            )),*
        ];
    };
}

cases![
    reads::writes_are_seen_at_once,
    reads::absent_objects_are_not_found,
    reads::ranges_are_exact,
    reads::tails_are_exact,
    reads::empty_objects_are_objects,
    reads::large_objects_in_many_parts,
    reads::unchanged_objects_are_not_sent_again,
    reads::readers_see_whole_objects,
    writes::creation_happens_once,
    writes::one_of_many_creators_wins,
    writes::put_writes_over_anything,
    writes::replacing_needs_the_version,
    writes::one_of_many_replacers_wins,
    writes::counting_loses_nothing,
    writes::old_versions_never_come_back,
    writes::versions_survive_reopening,
    writes::deletion_is_idempotent,
    writes::replacing_never_resurrects,
    writes::odd_keys_are_kept_apart,
    writes::bad_keys_are_refused,
    writes::the_probe_finds_it_fit,
    lists::lists_are_in_order,
    lists::pages_join_without_gaps,
    lists::prefixes_are_strings,
    lists::long_lists_are_complete,
];

/// A store under test, with the prefix of one case in its bucket.
struct Place {
    subject: Subject,
    store: Arc<dyn Store>,
    prefix: String,
}

impl Place {
    /// Returns a key below the case's prefix.
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn reopen(&self) -> Arc<dyn Store> {
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

async fn in_place<F>(subject: Subject, case: &'static str, run: F)
where
    F: AsyncFnOnce(&Place),
{
    let store = (subject.open)().await;
    let store: Arc<dyn Store> = Arc::new(Settled(store));
    // The prefix shares no directory with other cases. A gateway onto files removes empty
    // directories, and answers 409 to a request that creates an object below one at that moment
    // (versitygw).
    let prefix = format!("contract-{}-{case}/", subject.salt);
    let place = Place {
        subject,
        store,
        prefix,
    };
    run(&place).await;
    remove_all(&place).await;
}

/// Deletes the objects of a case.
async fn remove_all(place: &Place) {
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
fn content(seed: u64, size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    Bytes::from(bytes)
}

fn body(text: impl AsRef<[u8]>) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_ref())]
}

#[track_caller]
fn assert_kind<T: Debug>(result: Result<T, StoreError>, kind: StoreErrorKind, what: &str) {
    match result {
        Err(error) if error.kind() == kind => {}
        Err(error) => panic!("{what}: expected {kind:?}, got {:?}: {error}", error.kind()),
        Ok(value) => panic!("{what}: expected {kind:?}, got {value:?}"),
    }
}

#[cfg(test)]
mod tests {
    //! The suite on the stores that need no server. `tests/contract` runs it on all stores.

    use super::*;
    use bkfs_store::{LocalStore, MemoryStore, StoreOptions};

    async fn hold(subject: Subject) {
        for (name, case) in CASES {
            println!("{name}");
            case(subject.clone()).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_keeps_the_contract() {
        let store = MemoryStore::new();
        hold(Subject {
            open: Arc::new(move || {
                let store: Arc<dyn Store> = Arc::new(store.clone());
                Box::pin(async { store })
            }),
            exact_versions: true,
            orderly_deletion: true,
            rounds: 20,
            salt: "memory".to_owned(),
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_directory_keeps_the_contract() {
        let home = tempfile::TempDir::new().unwrap();
        let path = home.path().to_owned();
        let first = LocalStore::open(&path, &StoreOptions::default()).await;
        let exact_versions = first.unwrap().has_exact_versions();
        hold(Subject {
            open: Arc::new(move || {
                let path = path.clone();
                Box::pin(async move {
                    let store = LocalStore::open(&path, &StoreOptions::default()).await;
                    Arc::new(store.unwrap()) as Arc<dyn Store>
                })
            }),
            exact_versions,
            orderly_deletion: true,
            rounds: 5,
            salt: "local".to_owned(),
        })
        .await;
    }
}
