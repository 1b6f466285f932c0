//! The store contract on every kind of store: memory, a directory, and the servers that
//! `tests/suites/contract.sh` starts.
//!
//! Owns the list of stores and their addresses in the environment (`tests/README.md`). The cases
//! are in `bkfs_testing::contract`. A server that does not run is skipped, unless
//! `BKFS_TEST_ALL_STORES=1` requires all of them.

mod gcs;

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use bkfs_store::{LocalStore, MemoryStore, Store, StoreOptions, open_store, parse_url};
use bkfs_testing::contract::{CASES, Opener, Subject};
use tempfile::TempDir;

/// A store that may be available.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Local,
    Minio,
    Versitygw,
    Azurite,
    FakeGcs,
}

macro_rules! contract {
    ($($kind:ident in $module:ident),*; $cases:tt) => {
        $(contract!(@module $kind $module $cases);)*

        #[test]
        fn every_case_is_run() {
            let run = contract!(@names $cases);
            let known: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
            assert_eq!(run, known);
        }
    };
    (@module $kind:ident $module:ident { $($case:ident),* $(,)? }) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::run(super::Kind::$kind, stringify!($case)).await;
                }
            )*
        }
    };
    (@names { $($case:ident),* $(,)? }) => {
        vec![$(stringify!($case)),*]
    };
}

contract! {
    Memory in memory, Local in local, Minio in minio, Versitygw in versitygw, Azurite in azurite,
    FakeGcs in fake_gcs;
    {
        writes_are_seen_at_once,
        absent_objects_are_not_found,
        ranges_are_exact,
        tails_are_exact,
        empty_objects_are_objects,
        large_objects_in_many_parts,
        unchanged_objects_are_not_sent_again,
        readers_see_whole_objects,
        creation_happens_once,
        one_of_many_creators_wins,
        put_writes_over_anything,
        replacing_needs_the_version,
        one_of_many_replacers_wins,
        counting_loses_nothing,
        old_versions_never_come_back,
        versions_survive_reopening,
        deletion_is_idempotent,
        replacing_never_resurrects,
        odd_keys_are_kept_apart,
        bad_keys_are_refused,
        the_probe_finds_it_fit,
        lists_are_in_order,
        pages_join_without_gaps,
        prefixes_are_strings,
        long_lists_are_complete,
    }
}

async fn run(kind: Kind, name: &str) {
    let home = TempDir::new().unwrap();
    let Some(subject) = subject(kind, home.path().to_owned()).await else {
        println!("{kind:?} is not there: passed over");
        return;
    };
    let case = CASES.iter().find(|(known, _)| *known == name);
    case.unwrap().1(subject).await;
}

async fn subject(kind: Kind, home: PathBuf) -> Option<Subject> {
    let (open, exact_versions) = match kind {
        Kind::Memory => {
            let store = MemoryStore::new();
            let open: Opener = Arc::new(move || {
                let store: Arc<dyn Store> = Arc::new(store.clone());
                Box::pin(async { store })
            });
            (open, true)
        }
        Kind::Local => {
            let store = LocalStore::open(&home, &StoreOptions::default()).await;
            let exact = store.unwrap().has_exact_versions();
            let url = format!("file://{}", home.display());
            (opener(url, StoreOptions::default()), exact)
        }
        Kind::Minio => (s3("BKFS_TEST_S3_MINIO")?, false),
        Kind::Versitygw => (s3("BKFS_TEST_S3_VERSITYGW")?, false),
        Kind::Azurite => (azurite()?, false),
        Kind::FakeGcs => (fake_gcs()?, true),
    };
    let full = env::var("BKFS_TEST_FULL").is_ok_and(|value| value == "1");
    Some(Subject {
        open,
        exact_versions,
        // versitygw compares, a deletion is applied, and it writes all the same. bkfs never deletes
        // an object that it replaces.
        orderly_deletion: !matches!(kind, Kind::Versitygw),
        rounds: if full { 1000 } else { 10 },
        salt: std::process::id().to_string(),
    })
}

fn opener(url: String, options: StoreOptions) -> Opener {
    let url = parse_url(&url).unwrap();
    Arc::new(move || {
        let (url, options) = (url.clone(), options.clone());
        Box::pin(async move { open_store(&url, &options).await.unwrap() })
    })
}

/// Returns an endpoint from the environment, or `None` if it is not set and not required.
fn endpoint(variable: &str) -> Option<String> {
    let endpoint = env::var(variable).ok().filter(|value| !value.is_empty());
    let all = env::var("BKFS_TEST_ALL_STORES").is_ok_and(|value| value == "1");
    assert!(
        endpoint.is_some() || !all,
        "{variable} is not set, and BKFS_TEST_ALL_STORES=1"
    );
    endpoint
}

fn need(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"))
}

fn options(endpoint: String, settings: &[(&str, String)]) -> StoreOptions {
    StoreOptions {
        endpoint: Some(endpoint),
        settings: settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        use_environment: false,
        ..StoreOptions::default()
    }
}

fn s3(variable: &str) -> Option<Opener> {
    let endpoint = endpoint(variable)?;
    let options = options(
        endpoint,
        &[
            ("AWS_ACCESS_KEY_ID", need("BKFS_TEST_ACCESS_KEY")),
            ("AWS_SECRET_ACCESS_KEY", need("BKFS_TEST_SECRET_KEY")),
            ("AWS_REGION", need("BKFS_TEST_REGION")),
        ],
    );
    let bucket = need("BKFS_TEST_BUCKET");
    Some(opener(format!("s3://{bucket}/a prefix/of two"), options))
}

fn azurite() -> Option<Opener> {
    let endpoint = endpoint("BKFS_TEST_AZURITE")?;
    let options = options(
        endpoint,
        &[
            (
                "AZURE_STORAGE_ACCOUNT_NAME",
                need("BKFS_TEST_AZURITE_ACCOUNT"),
            ),
            ("AZURE_STORAGE_ACCOUNT_KEY", need("BKFS_TEST_AZURITE_KEY")),
        ],
    );
    let container = need("BKFS_TEST_BUCKET");
    Some(opener(format!("az://{container}/prefix"), options))
}

fn fake_gcs() -> Option<Opener> {
    let endpoint = endpoint("BKFS_TEST_GCS")?;
    let endpoint = format!("http://{}", gcs::interpret(&endpoint));
    let account = r#"{"private_key": "none", "private_key_id": "none", "client_email": "none", "disable_oauth": true}"#;
    let options = options(
        endpoint,
        &[("GOOGLE_SERVICE_ACCOUNT_KEY", account.to_owned())],
    );
    let bucket = need("BKFS_TEST_BUCKET");
    Some(opener(format!("gs://{bucket}/prefix"), options))
}
