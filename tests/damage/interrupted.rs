//! Repairs that are killed in the middle: the next repair ends as if the first had not been.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bkfs::maintain::repair::{execute, plan};
use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;
use bkfs_store::{Layer, MemoryStore, Store, StoreError, Version};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::doubted::{data_key, marked};
use crate::lists::condemned;
use crate::renewed::condemn_contents;
use crate::repairs::{mend, root_of};
use crate::world::{Fixture, Objects, SNAPSHOTS, bucket, objects, wait};

/// A store before which a process is killed when it replaces the root once too often.
#[derive(Debug)]
struct Killing {
    bucket: Arc<MemoryStore>,
    /// How many replacements of the root are still made.
    left: AtomicU64,
    is_killed: Notify,
}

#[async_trait]
impl Layer for Killing {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        version: &Version,
    ) -> Result<Version, StoreError> {
        let order = Ordering::Relaxed;
        let is_left = |left: u64| left.checked_sub(1);
        if key == "root" && self.left.fetch_update(order, order, is_left).is_err() {
            self.is_killed.notify_one();
            return std::future::pending().await;
        }
        self.bucket.replace(key, body, version).await
    }
}

/// Repairs as the command does, until the root was replaced this many times. Returns true if the
/// repair came to its end.
fn repair_until_killed(fixture: &Fixture, store: &Arc<MemoryStore>, replacements: u64) -> bool {
    let killing = Arc::new(Killing {
        bucket: store.clone(),
        left: AtomicU64::new(replacements),
        is_killed: Notify::new(),
    });
    let shared: Arc<dyn Store> = killing.clone();
    let options = fixture.options();
    wait(async {
        for _ in 0..3 {
            let planned = plan(&shared, &fixture.keyring, &options).await;
            let (findings, plan) = planned.expect("plans");
            if plan.is_empty() {
                break;
            }
            tokio::select! {
                done = execute(&shared, &fixture.keyring, &options, &findings, plan) => {
                    done.expect("is done");
                }
                () = killing.is_killed.notified() => return false,
            }
        }
        true
    })
}

/// A repository whose lists of snapshots are lost. The snapshot `gone` was collected: the data
/// packs that it alone needs are condemned, and deleted.
struct Collected {
    fixture: Fixture,
    objects: Objects,
    /// The condemned packs.
    condemned: BTreeSet<PackName>,
    /// The keys of the lists of these.
    lists: Vec<String>,
}

impl Collected {
    /// Returns a bucket with it, in which the lists of condemned packs are lost too.
    fn without_condemned(&self) -> Arc<MemoryStore> {
        let store = bucket(&self.objects);
        self.lose_condemned(&store);
        store
    }

    fn lose_condemned(&self, store: &MemoryStore) {
        for key in &self.lists {
            wait(store.delete(key)).expect("deleted");
        }
    }
}

fn with_a_collected_snapshot() -> Collected {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    condemn_contents(&store, "file", "gone", "kept");
    let root = root_of(&fixture, &store);
    let before = condemned(&fixture, &store, &root);
    for pack in &before {
        let _ = wait(store.delete(&data_key(pack)));
    }
    for list in root.snapshots.iter().chain(&root.trash) {
        wait(store.delete(&list.name.key(Class::List))).expect("deleted");
    }
    let of_packs = root.condemned.iter().map(|condemned| &condemned.list);
    Collected {
        objects: objects(&*store),
        fixture,
        condemned: before,
        lists: of_packs.map(|list| list.name.key(Class::List)).collect(),
    }
}

#[test]
fn a_snapshot_that_lacks_something_is_marked_wherever_the_repair_before_was_killed() {
    let it = with_a_collected_snapshot();
    let mut replacements = 0;
    loop {
        let store = it.without_condemned();
        let is_done = repair_until_killed(&it.fixture, &store, replacements);
        mend(&it.fixture, &(store.clone() as Arc<dyn Store>));
        let case = format!("killed after {replacements} replacements of the root");
        let after = condemned(&it.fixture, &store, &root_of(&it.fixture, &store));
        assert!(
            it.condemned.is_subset(&after),
            "{case}: some are live again"
        );
        let expected = BTreeSet::from(["gone".to_owned()]);
        assert_eq!(marked(&store), expected, "{case}");
        if is_done {
            break;
        }
        replacements += 1;
    }
    // A session and a change of its own for the quarantine and for each kind of lists.
    assert!(replacements > 6, "{replacements} replacements in all");
}

#[test]
fn a_snapshot_of_which_a_repair_of_a_lost_root_finds_less_than_all_is_marked() {
    let it = with_a_collected_snapshot();
    let store = bucket(&it.objects);
    wait(store.delete("root")).expect("deleted");
    mend(&it.fixture, &(store.clone() as Arc<dyn Store>));
    assert_eq!(marked(&store), BTreeSet::from(["gone".to_owned()]));
}

#[test]
fn what_a_repair_found_whole_before_another_condemned_anew_is_marked() {
    let it = with_a_collected_snapshot();
    let (fixture, store) = (&it.fixture, bucket(&it.objects));
    let shared: Arc<dyn Store> = store.clone();
    let options = fixture.options();
    let planned = wait(plan(&shared, &fixture.keyring, &options));
    let (findings, plan) = planned.expect("plans");
    // Another one enters, condemns anew, and is killed.
    it.lose_condemned(&store);
    let before = root_of(fixture, &store).epoch;
    let condemns = |replacements: &u64| {
        let copy = bucket(&objects(&*store));
        assert!(!repair_until_killed(fixture, &copy, *replacements));
        root_of(fixture, &copy).epoch > before
    };
    let replacements = (1..).find(condemns).expect("it condemns");
    repair_until_killed(fixture, &store, replacements);
    let done = wait(execute(
        &shared,
        &fixture.keyring,
        &options,
        &findings,
        plan,
    ));
    done.expect("is done");
    let kept = marked(&store);
    for name in SNAPSHOTS.iter().chain(&["kept"]) {
        assert!(kept.contains(*name), "{name} bears no mark: {kept:?}");
    }
}
