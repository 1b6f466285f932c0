//! The contract of a store, as test functions that run against any store.
//!
//! Owns the cases. Each case works below its own prefix, so that cases may run concurrently, and
//! again on the same bucket. A case panics with the fault that it found. Does not own the list of
//! stores and the start of their servers (`tests/contract`).

mod case;
mod lists;
mod reads;
mod writes;

use futures::future::BoxFuture;

use case::in_place;
pub use case::{Opener, Subject};

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

#[cfg(test)]
mod tests {
    //! The suite on the stores that need no server. `tests/contract` runs it on all stores.

    use std::sync::Arc;

    use bkfs_store::{LocalStore, MemoryStore, Store, StoreOptions};

    use super::*;

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
