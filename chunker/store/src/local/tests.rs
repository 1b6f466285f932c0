//! Tests of what only a directory has: the `.bkfs` directory, leftovers, file modes, and files that
//! are not objects.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use super::*;

async fn open(directory: &Path) -> LocalStore {
    LocalStore::open(directory, &StoreOptions::default())
        .await
        .unwrap()
}

fn body(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

fn temporary_files(directory: &Path) -> usize {
    fs::read_dir(directory.join(".bkfs/tmp")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn an_absent_directory_is_no_bucket_unless_it_is_to_be_made() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("deep/er/bucket");
    let error = LocalStore::open(&path, &StoreOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoBucket);
    assert!(error.to_string().contains("deep/er/bucket"), "{error}");
    let options = StoreOptions {
        create_directory: true,
        ..StoreOptions::default()
    };
    for _ in 0..2 {
        LocalStore::open(&path, &options).await.unwrap();
    }
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "the bucket is its owner's alone");
    let file = home.path().join("file");
    fs::write(&file, "x").unwrap();
    for options in [options, StoreOptions::default()] {
        let error = LocalStore::open(&file, &options).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NoBucket, "{error}");
    }
}

#[tokio::test]
async fn objects_are_plain_files_for_their_owner_alone() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("data/0f/name", body("hello")).await.unwrap();
    store.put("root", body("r")).await.unwrap();
    let path = home.path().join("data/0f/name");
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&home.path().join("data")), 0o700);
    assert_eq!(temporary_files(home.path()), 0);
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
}

#[tokio::test]
async fn refused_writes_leave_nothing_behind() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    let version = store.put_new("a", body("1")).await.unwrap();
    store.replace("a", body("2"), &version).await.unwrap();
    for _ in 0..2 {
        store.put_new("a", body("3")).await.unwrap_err();
        store.replace("a", body("3"), &version).await.unwrap_err();
        let below = store.put_new("a/below", body("3")).await.unwrap_err();
        assert_eq!(below.kind(), StoreErrorKind::Invalid, "{below}");
    }
    assert_eq!(temporary_files(home.path()), 0);
}

#[tokio::test]
async fn leftovers_of_a_crash_are_unseen_and_removed_but_not_writes_in_progress() {
    let home = TempDir::new().unwrap();
    open(home.path())
        .await
        .put_new("a", body("1"))
        .await
        .unwrap();
    let temporary = home.path().join(".bkfs/tmp");
    fs::write(temporary.join("dead"), "rest of a crash").unwrap();
    let alive = fs::File::create(temporary.join("alive")).unwrap();
    flock(&alive, FlockOperation::LockExclusive).unwrap();
    let store = open(home.path()).await;
    let names: Vec<_> = fs::read_dir(&temporary)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["alive"]);
    let listed = store.list("", None, 100).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
}

/// On a network filesystem without locks, a cleaner may remove the file of a write in progress.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_loses_its_file_is_made_again() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("first", body("1")).await.unwrap();
    let temporary = home.path().join(".bkfs/tmp");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let thief = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut stolen = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && stolen < 3 {
                for entry in fs::read_dir(&temporary).unwrap() {
                    stolen += usize::from(fs::remove_file(entry.unwrap().path()).is_ok());
                }
            }
            stolen
        }
    });
    let mut number = 0;
    while !thief.is_finished() && number < 10_000 {
        store
            .put(&format!("many/{number}"), body("x"))
            .await
            .unwrap();
        assert_eq!(
            store.get(&format!("many/{number}")).await.unwrap().0,
            "x",
            "a write that was acknowledged is there"
        );
        number += 1;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(thief.join().unwrap() > 0, "nothing was stolen");
}

#[tokio::test]
async fn a_removed_bucket_is_not_an_empty_one() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("bucket");
    fs::create_dir(&path).unwrap();
    let store = open(&path).await;
    let version = store.put_new("data/x", body("1")).await.unwrap();
    fs::remove_dir_all(&path).unwrap();
    let gone = StoreErrorKind::NoBucket;
    assert_eq!(store.get("data/x").await.unwrap_err().kind(), gone);
    assert_eq!(store.head("y").await.unwrap_err().kind(), gone);
    assert_eq!(store.list("", None, 10).await.unwrap_err().kind(), gone);
    assert_eq!(
        store.list("data/", None, 10).await.unwrap_err().kind(),
        gone
    );
    assert_eq!(
        store.put_new("b", body("1")).await.unwrap_err().kind(),
        gone
    );
    let replaced = store.replace("data/x", body("2"), &version).await;
    assert_eq!(replaced.unwrap_err().kind(), gone);
    assert_eq!(store.delete("data/x").await.unwrap_err().kind(), gone);
}

#[tokio::test]
async fn what_is_no_object_is_passed_over() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("real", body("1")).await.unwrap();
    symlink("/etc/passwd", home.path().join("link")).unwrap();
    symlink("..", home.path().join("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        home.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    fs::create_dir(home.path().join("directory")).unwrap();
    fs::write(home.path().join(".hidden"), "x").unwrap();
    let keys: Vec<String> = store
        .list("", None, 100)
        .await
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect();
    assert_eq!(keys, ["real"]);
    for key in ["link", "pipe", "directory", "loop"] {
        let error = store.get(key).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotFound, "{key}: {error}");
    }
}

#[tokio::test]
async fn a_damaged_object_is_not_read_past_its_end() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("a", body("12345678")).await.unwrap();
    let file = fs::File::options()
        .write(true)
        .open(home.path().join("a"))
        .unwrap();
    file.set_len(4).unwrap();
    let error = store.get_range("a", 2..6).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfRange);
    assert_eq!(store.get_tail("a", 8).await.unwrap().1, 4);
    // A sparse file of 1 TiB must not be read into memory.
    file.set_len(1 << 40).unwrap();
    let error = store.get("a").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn directories_of_finished_sessions_go_with_their_last_object() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    for key in ["journal/v/s/1", "journal/v/s/2", "data/0f/x"] {
        store.put_new(key, body("1")).await.unwrap();
    }
    store.delete("journal/v/s/1").await.unwrap();
    assert!(home.path().join("journal/v/s").exists());
    store.delete("journal/v/s/2").await.unwrap();
    assert!(!home.path().join("journal/v/s").exists());
    assert!(home.path().join("journal").exists());
    store.put_new("journal/v/s/3", body("1")).await.unwrap();
    assert_eq!(store.get("journal/v/s/3").await.unwrap().0, "1");
}

/// A lock file that is removed while its lock is held must not admit two holders.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_lock_file_is_made_again() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    let version = store.put("a", body("1")).await.unwrap();
    fs::remove_dir_all(home.path().join(".bkfs")).unwrap();
    let version = store.replace("a", body("2"), &version).await.unwrap();
    fs::remove_dir_all(home.path().join(".bkfs/locks")).unwrap();
    store.replace("a", body("3"), &version).await.unwrap();
}

/// Holders in other processes exclude as well. flock(2) belongs to an open file, so a second open
/// file stands for another process.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_elsewhere_is_waited_for() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    let version = store.put("a", body("1")).await.unwrap();
    let number = lock_number("a");
    let path = home.path().join(format!(".bkfs/locks/{number:02x}"));
    let held = fs::File::options().write(true).open(path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let other = open(home.path()).await;
    let waiting = tokio::spawn(async move { other.replace("a", body("2"), &version).await });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    assert_eq!(store.get("a").await.unwrap().0, "1");
    // Creation needs no lock.
    store.put_new("new", body("1")).await.unwrap();
    drop(held);
    waiting.await.unwrap().unwrap();
    assert_eq!(store.get("a").await.unwrap().0, "2");
}

#[tokio::test]
async fn versions_tell_states_apart_even_with_equal_content() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    if !store.has_exact_versions() {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        assert!(seen.insert(store.put("a", body("same")).await.unwrap()));
    }
}

/// A name whose flush failed is never acknowledged by a later answer, since a second flush shows
/// nothing.
#[tokio::test]
async fn a_name_whose_flush_failed_is_never_acknowledged() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("data/x/old", body("0")).await.unwrap();
    let version = store.put_new("root", body("1")).await.unwrap();
    let fail = || store.directory.syncer.faults.lock().push(Errno::IO);
    fail();
    for _ in 0..3 {
        let error = store.put_new("data/x/new", body("1")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown, "{error}");
    }
    fail();
    for _ in 0..2 {
        let error = store.replace("root", body("2"), &version).await;
        let kind = error.unwrap_err().kind();
        let expected = [StoreErrorKind::OutcomeUnknown, StoreErrorKind::Conflict];
        assert!(expected.contains(&kind), "{kind:?}");
        // A reader that checks the outcome must not take what it sees for what is on disk.
        store.get("root").await.unwrap_err();
        store.get_if_changed("root", &version).await.unwrap_err();
    }
    // Other directories and acknowledged packs are not affected.
    store.put_new("data/z", body("1")).await.unwrap();
    store.get_range("data/x/old", 0..1).await.unwrap();
}

/// A flush that was interrupted before it tried anything leaves the name open until the next flush.
#[tokio::test]
async fn a_name_that_is_not_flushed_yet_is_flushed_before_it_counts() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("data/x", body("1")).await.unwrap();
    let version = store.put_new("root", body("1")).await.unwrap();
    let faults = |count| *store.directory.syncer.faults.lock() = vec![Errno::INTR; count];
    let left = || store.directory.syncer.faults.lock().len();
    faults(2);
    for expected in [
        StoreErrorKind::OutcomeUnknown,
        StoreErrorKind::OutcomeUnknown,
        StoreErrorKind::AlreadyExists,
    ] {
        let error = store.put_new("data/new", body("1")).await.unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
    }
    faults(2);
    store
        .replace("root", body("2"), &version)
        .await
        .unwrap_err();
    store.get("root").await.unwrap_err();
    assert_eq!(store.get("root").await.unwrap().0, "2");
    faults(2);
    store.delete("root").await.unwrap_err();
    store.delete("root").await.unwrap_err();
    store.delete("root").await.unwrap();
    assert_eq!(left(), 0, "each was met");
}

/// Another process removes a directory, and its inode number is reused by another directory, or by
/// the next one of the same name. The new directory's name must be flushed before its contents
/// count.
#[tokio::test]
async fn a_directory_that_another_process_has_put_in_place_is_not_relied_on() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    let flushed = || std::mem::take(&mut *store.directory.syncer.log.lock());
    let parent = || "journal/v".to_owned();
    store.put_new("journal/v/s/1", body("1")).await.unwrap();
    assert!(flushed().contains(&parent()));
    store.put_new("journal/v/s/2", body("1")).await.unwrap();
    assert!(!flushed().contains(&parent()), "its name is on disk");

    let path = |name: &str| home.path().join("journal/v").join(name);
    fs::rename(path("s"), path("t")).unwrap();
    store.put_new("journal/v/t/3", body("1")).await.unwrap();
    assert!(
        flushed().contains(&parent()),
        "the same inode by another name"
    );

    let number = |name: &str| fs::metadata(path(name)).unwrap().ino();
    let before = number("t");
    for _ in 0..20 {
        fs::remove_dir_all(path("t")).unwrap();
        fs::create_dir(path("t")).unwrap();
        if number("t") == before {
            break;
        }
    }
    store.put_new("journal/v/t/4", body("1")).await.unwrap();
    assert!(
        flushed().contains(&parent()),
        "another directory of that name"
    );
}

/// A removed directory is not remembered.
#[tokio::test]
async fn a_directory_that_is_gone_is_not_remembered() {
    let home = TempDir::new().unwrap();
    let store = open(home.path()).await;
    store.put_new("journal/v/s/1", body("1")).await.unwrap();
    let known = || store.directory.syncer.is_anchored("journal/v/s");
    assert!(known());
    store.delete("journal/v/s/1").await.unwrap();
    assert!(!home.path().join("journal/v/s").exists());
    assert!(!known());
}
