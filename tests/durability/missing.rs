//! Journals that a hostile or broken bucket has lost. A mount does not pass over operations that
//! fsync has acknowledged.

use std::path::Path;
use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::repair::{execute, plan};
use bkfs::maintain::report::ProblemKind;
use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::mounting::error::MountingError;
use bkfs::mounting::settings::Settings;
use bkfs::replicate::progress::CopyProgress;
use bkfs::replicate::{Pace, ReplicateError, Replication};
use bkfs::root::choice::KeyChoice;
use bkfs::root::error::RootError;
use bkfs::root::memory::FileMemory;
use bkfs::root::repository::open_keys;
use bkfs::volume::error::VolumeError;
use bkfs_chunker::crypto::Keyring;
use bkfs_store::Store;
use bytes::Bytes;

use crate::collecting::snapshot;
use crate::copying::open;
use crate::host::{Bucket, Host, Unsealed, runtime};

/// Returns a bucket whose last mount wrote `letters` to a file, with an fsync after each letter,
/// and is dead.
fn dead(state: &Path, letters: &str) -> Bucket {
    let bucket = Bucket::new();
    let host = mount(&bucket, state, false).expect("mounted");
    for (offset, letter) in letters.bytes().enumerate() {
        host.write("file", offset as u64, [letter]);
        host.fsync().expect("acknowledged");
    }
    host.crash();
    bucket
}

fn mount(bucket: &Bucket, state: &Path, accept_loss: bool) -> Result<Host, MountingError> {
    let settings = Settings {
        accept_loss,
        ..Settings::default()
    };
    Host::remembering(bucket, state, settings)
}

fn journals(bucket: &Bucket) -> Vec<String> {
    let listed = runtime().block_on(bucket.memory.list("journal/", None, 1000));
    listed
        .expect("listed")
        .into_iter()
        .map(|info| info.key)
        .collect()
}

fn delete(bucket: &Bucket, index: usize) {
    let key = journals(bucket).remove(index);
    runtime()
        .block_on(bucket.memory.delete(&key))
        .expect("deleted");
}

fn is_missing(mounted: Result<Host, MountingError>) -> String {
    match mounted {
        Err(MountingError::Root(error @ RootError::JournalsMissing { .. })) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the mount says healthy"),
    }
}

#[test]
fn a_mount_does_not_pass_over_the_newest_journal() {
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "abc");
    delete(&bucket, 2);
    for _ in 0..2 {
        is_missing(mount(&bucket, state.path(), false));
        assert_eq!(journals(&bucket).len(), 2, "nothing was deleted");
    }
    let host = mount(&bucket, state.path(), true).expect("accepted");
    assert_eq!(host.read("file").as_deref(), Some(&b"ab"[..]));
    host.write("file", 2, *b"C");
    host.fsync().expect("acknowledged");
    host.crash();
    let host = mount(&bucket, state.path(), false).expect("whole again");
    assert_eq!(host.read("file").as_deref(), Some(&b"abC"[..]));
    host.finish().expect("unmounted");
}

#[test]
fn journals_that_are_brought_back_are_carried_out() {
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "abc");
    let key = journals(&bucket).remove(1);
    let store = &bucket.memory;
    let (bytes, _) = runtime().block_on(store.get(&key)).expect("there");
    delete(&bucket, 1);
    is_missing(mount(&bucket, state.path(), false));
    let other = tempfile::tempdir().expect("a directory");
    is_missing(mount(&bucket, other.path(), false));
    let put = runtime().block_on(store.put_new(&key, vec![bytes]));
    put.expect("brought back");
    let host = mount(&bucket, state.path(), false).expect("whole");
    assert_eq!(host.read("file").as_deref(), Some(&b"abc"[..]));
    host.finish().expect("unmounted");
}

/// What a mount was told to accept was known when it took the volume: a later loss is not.
#[test]
fn a_later_loss_is_not_accepted_by_the_option_of_the_mount() {
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "ab");
    delete(&bucket, 1);
    let host = mount(&bucket, state.path(), true).expect("accepted");
    assert_eq!(host.read("file").as_deref(), Some(&b"a"[..]));
    host.write("file", 1, *b"B");
    host.fsync().expect("acknowledged");
    let own = journals(&bucket).len() - 1;
    delete(&bucket, own);
    let volume = host.volume();
    volume.poison(VolumeError::Commit("a test".into()));
    let asked = Bytes::from_static(br#"{"acknowledge":{}}"#);
    let told = host.run(host.vfs().control().handle(asked));
    assert!(told.contains("are missing"), "{told}");
    assert!(host.volume().failure().is_some(), "it stays as it was");
    host.crash();
    is_missing(mount(&bucket, state.path(), false));
}

/// Stores a stream as `bkfs put` does, with the session that the command takes for that.
fn put(bucket: &Bucket, accept_loss: bool) -> Result<(), MountingError> {
    runtime().block_on(async {
        let parts = AloneParts {
            repository: Arc::new(open(&bucket.memory).await),
            volume: "main".into(),
            command: "bkfs put".into(),
            memory_bytes: 64 << 20,
            steal: true,
            accept_loss,
            session: None,
        };
        Alone::begin(parts).await?.finish().await
    })
}

fn copy(from: &Bucket, to: &Bucket, accept_loss: bool) -> Result<(), ReplicateError> {
    runtime().block_on(async {
        let from = open(&from.memory).await;
        let replication = Replication {
            from: &from,
            to: &Arc::new(open(&to.memory).await),
            volume: "main",
            names: &[],
            steal: true,
            accept_loss,
            anew: true,
            replaces: false,
            pace: Pace::every(1 << 20),
            progress: &CopyProgress::default(),
        };
        replication.run(&mut |_| ()).await
    })
}

#[test]
fn commands_that_take_a_volume_over_accept_a_loss_too() {
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "abc");
    delete(&bucket, 1);
    let refused = put(&bucket, false).expect_err("acknowledged");
    let is_missing = |error: &RootError| matches!(error, RootError::JournalsMissing { .. });
    assert!(
        matches!(&refused, MountingError::Root(error) if is_missing(error)),
        "{refused}"
    );
    put(&bucket, true).expect("accepted");
    let host = mount(&bucket, state.path(), false).expect("whole again");
    assert_eq!(host.read("file").as_deref(), Some(&b"a"[..]));
    host.finish().expect("unmounted");

    let source = Bucket::new();
    let host = source.host();
    host.write("copied", 0, *b"contents");
    snapshot(&host, "one");
    host.finish().expect("unmounted");
    // This is another machine's memory, since the first one knows another bucket by that name.
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "ab");
    delete(&bucket, 0);
    let refused = copy(&source, &bucket, false).expect_err("acknowledged");
    assert!(
        matches!(&refused, ReplicateError::Root(error) if is_missing(error)),
        "{refused}"
    );
    copy(&source, &bucket, true).expect("accepted");
    assert_eq!(bucket.count("damaged/journal/"), 1);
    let host = mount(&bucket, state.path(), false).expect("whole again");
    assert_eq!(host.read("copied").as_deref(), Some(&b"contents"[..]));
    host.finish().expect("unmounted");
}

fn looking(bucket: &Bucket, state: &Path) -> (Arc<dyn Store>, Keyring, CheckOptions) {
    let store: Arc<dyn Store> = bucket.memory.clone();
    let keys = runtime().block_on(open_keys(
        &*store,
        None,
        &KeyChoice::default(),
        &mut Unsealed,
    ));
    let (_, keyring) = keys.expect("unsealed");
    let memory = FileMemory::new(state, &keyring.repository().to_string());
    let options = CheckOptions {
        memory: Some(Arc::new(memory)),
        ..CheckOptions::default()
    };
    (store, keyring, options)
}

#[test]
fn a_check_names_what_is_missing_and_a_repair_gives_it_up() {
    for (index, aside) in [(2, 0), (1, 1)] {
        let state = tempfile::tempdir().expect("a directory");
        let bucket = dead(state.path(), "abc");
        let key = journals(&bucket).remove(index);
        let (store, keyring, options) = looking(&bucket, state.path());
        let look = || runtime().block_on(check(store.clone(), &keyring, &options));
        assert!(look().expect("checked").is_clean());
        delete(&bucket, index);
        let report = look().expect("checked");
        let problem = report.problems.first().expect("one");
        assert_eq!(
            (problem.kind, &problem.object),
            (ProblemKind::Missing, &key)
        );
        assert!(problem.what.contains("operations"), "{}", problem.what);
        let done = runtime().block_on(async {
            let (findings, plan) = plan(&store, &keyring, &options).await?;
            let said = plan.steps.join("\n");
            execute(&store, &keyring, &options, &findings, plan).await?;
            Ok::<_, RootError>(said)
        });
        let said = done.expect("repaired");
        assert!(said.contains("is lost"), "{said}");
        assert_eq!(bucket.count("damaged/journal/"), aside);
        assert!(look().expect("checked").is_clean());
        let host = mount(&bucket, state.path(), false).expect("given up");
        let left = &b"ab"[..index.min(2)];
        assert_eq!(host.read("file").as_deref(), Some(left));
        host.finish().expect("unmounted");
    }
}

/// A store may say for a while that a journal is not there.
#[test]
fn a_journal_that_is_there_again_is_not_given_up() {
    for index in [2, 1] {
        let state = tempfile::tempdir().expect("a directory");
        let bucket = dead(state.path(), "abc");
        let key = journals(&bucket).remove(index);
        let (bytes, _) = runtime().block_on(bucket.memory.get(&key)).expect("there");
        delete(&bucket, index);
        let (store, keyring, options) = looking(&bucket, state.path());
        let done = runtime().block_on(async {
            let (findings, plan) = plan(&store, &keyring, &options).await?;
            assert!(!plan.is_empty(), "nothing is planned");
            store.put_new(&key, vec![bytes]).await?;
            execute(&store, &keyring, &options, &findings, plan).await
        });
        let told = done.expect_err("it is there again").to_string();
        assert!(told.contains(&key), "{told}");
        assert_eq!(bucket.count("damaged/journal/"), 0);
        // This machine still knows what it sent.
        delete(&bucket, index);
        is_missing(mount(&bucket, state.path(), false));
    }
}

/// A check asks by name for journals that a list does not show.
#[test]
fn a_check_believes_no_list_about_journals() {
    let state = tempfile::tempdir().expect("a directory");
    let bucket = dead(state.path(), "abc");
    let (_, keyring, options) = looking(&bucket, state.path());
    let store: Arc<dyn Store> = Arc::new(Hiding(bucket.memory.clone()));
    let report = runtime().block_on(check(store, &keyring, &options));
    let report = report.expect("checked");
    assert!(report.is_clean(), "{report}");
}

/// A store whose lists leave all journals out.
#[derive(Debug)]
struct Hiding(Arc<dyn Store>);

#[async_trait::async_trait]
impl bkfs_store::Layer for Hiding {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<bkfs_store::ObjectInfo>, bkfs_store::StoreError> {
        let mut listed = self.0.list(prefix, after, limit).await?;
        listed.retain(|object| !object.key.starts_with("journal/"));
        Ok(listed)
    }
}

/// The root is lost, and with it everything that it said of a session whose journals are lost too.
/// The machine that sent them knows of them.
#[test]
fn a_repair_of_a_lost_root_names_journals_that_this_machine_sent() {
    for deleted in [3, 1] {
        let state = tempfile::tempdir().expect("a directory");
        let bucket = dead(state.path(), "abc");
        for _ in 0..deleted {
            delete(&bucket, 3 - deleted);
        }
        let (store, keyring, options) = looking(&bucket, state.path());
        let said = runtime().block_on(async {
            store.delete("root").await?;
            let (findings, plan) = plan(&store, &keyring, &options).await?;
            let said = plan.steps.join("\n");
            execute(&store, &keyring, &options, &findings, plan).await?;
            Ok::<_, RootError>(said)
        });
        let said = said.expect("repaired");
        if deleted == 3 {
            assert!(
                said.contains("are in no journal and in no commit"),
                "{said}"
            );
        }
        let told = is_missing(mount(&bucket, state.path(), false));
        assert!(told.contains("operations"), "{told}");
        let host = mount(&bucket, state.path(), true).expect("accepted");
        let left = (deleted == 1).then_some(&b"ab"[..]);
        assert_eq!(host.read("file").as_deref(), left);
        host.finish().expect("unmounted");
    }
}
