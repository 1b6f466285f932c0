//! Directories that are put into a volume without a mount: all or nothing of them is shown,
//! whatever becomes of the machine, and what has not changed is not read again.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::put_tree::job::{Job, Options};
use bkfs::put_tree::report::Report;
use bkfs::put_tree::{Origin, open_named, put};
use bkfs::repository::open_in;
use bkfs::restore::selection::Selection;
use bkfs::tree::item::Attributes;
use bkfs::volume::error::VolumeError;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::state::Scope;
use bkfs::volume::view::View;
use bkfs::volume::{ROOT_INODE, Volume, mode};
use bkfs::walk;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::counting::CountingStore;
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};
use tempfile::TempDir;

use crate::copying::open;
use crate::host::{Bucket, Unsealed, new_file, noise, opening, runtime};

/// Time by which the puts of these tests begin later, so that files made just now are old enough to
/// be taken over.
const LATER_SECONDS: i64 = 60;

/// Files by their paths: type, number of names, and contents.
pub type Tree = BTreeMap<Vec<u8>, (u8, u32, Vec<u8>)>;

/// How a put is made.
#[derive(Default)]
pub struct How {
    /// The name of the directory in the volume.
    name: &'static str,
    exclude: Vec<std::ffi::OsString>,
    /// The files were made after the put had begun, by the clock.
    is_racy: bool,
    /// Commits again and again while the directories are put.
    commits: bool,
}

pub fn how(name: &'static str) -> How {
    How {
        name,
        ..How::default()
    }
}

/// Begins to build a tree apart in the volume `main`, by way of a store that may be silent for so
/// long.
pub async fn begun(store: Arc<dyn Store>, patience: Duration) -> Alone {
    let opened = open_in(store, opening(patience), &mut Unsealed).await;
    let alone = Alone::begin(AloneParts {
        repository: Arc::new(opened.expect("opened")),
        volume: "main".into(),
        command: "test".into(),
        memory_bytes: 256 << 20,
        steal: true,
        accept_loss: false,
        session: None,
    });
    let alone = alone.await.expect("begun");
    alone.volume().build_apart().await.expect("built apart");
    alone
}

/// Returns a directory that becomes `name` in the volume.
pub fn origin(source: &Path, name: &str) -> Origin {
    Origin {
        fd: open_named(source).expect("opened"),
        path: b"/source".to_vec(),
        names: vec![name.into()],
    }
}

/// Puts a directory into the volume `main`, and makes a snapshot.
async fn put_with(store: Arc<dyn Store>, source: &Path, how: &How) -> Arc<Report> {
    let alone = begun(store, Duration::from_secs(10)).await;
    let volume = alone.volume().clone();
    let report = Arc::new(Report::default());
    let options = Options {
        selection: Selection::new(&[], &how.exclude),
        ..Options::default()
    };
    let mut job = Job::new(volume.clone(), Arc::new(options), report.clone());
    job.started.seconds += match how.is_racy {
        true => -LATER_SECONDS,
        false => LATER_SECONDS,
    };
    let origin = origin(source, how.name);
    let commits = async {
        loop {
            tokio::time::sleep(Duration::from_millis(4)).await;
            // One that is killed is of no interest here.
            let _ = volume.commit().await;
        }
    };
    let (job, new) = (Arc::new(job), new_file());
    let done = tokio::select! {
        biased;
        () = commits, if how.commits => unreachable!("they go on"),
        done = put(&job, origin, &new) => done,
    };
    done.expect("stored");
    let made = volume.snapshot(SnapshotRequest::default()).await;
    made.expect("a snapshot");
    alone.finish().await.expect("ended");
    report
}

pub fn put_into(bucket: &Bucket, source: &Path, how: &How) -> Arc<Report> {
    runtime().block_on(put_with(bucket.memory.clone(), source, how))
}

fn count(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Returns the files below a directory of the volume, as a new mount shows it.
pub fn shown(bucket: &Bucket, name: &str) -> Option<Tree> {
    let host = bucket.host();
    let inode = host.find(name);
    let tree = inode.map(|inode| host.run(files(&host.volume().view, inode)));
    host.finish().expect("unmounted");
    tree
}

async fn files(view: &View, inode: u64) -> Tree {
    let mut found = Tree::new();
    let mut way = vec![(inode, Vec::new())];
    while let Some((directory, path)) = way.pop() {
        for named in walk::names(view, directory).await.expect("read").names {
            let path = walk::join(&path, &named.name);
            let attributes = view.attributes(Scope::Live, named.inode).await;
            let attributes = attributes.expect("read");
            let contents = match mode::is_regular(attributes.mode) {
                true => view
                    .read(Scope::Live, named.inode, 0..attributes.size_bytes)
                    .await
                    .expect("read")
                    .concat(),
                false => Vec::new(),
            };
            if named.is_directory() {
                way.push((named.inode, path.clone()));
            }
            found.insert(path, (named.file_type, attributes.links, contents));
        }
    }
    found
}

/// Returns the same of a directory of this machine.
fn source(directory: &Path) -> Tree {
    let mut found = Tree::new();
    let mut way = vec![(directory.to_owned(), Vec::new())];
    while let Some((directory, path)) = way.pop() {
        for entry in std::fs::read_dir(directory).expect("read") {
            let entry = entry.expect("read");
            let path = walk::join(&path, entry.file_name().as_encoded_bytes());
            let metadata = entry.metadata().expect("read");
            let contents = match metadata.is_file() {
                true => std::fs::read(entry.path()).expect("read"),
                false => Vec::new(),
            };
            if metadata.is_dir() {
                way.push((entry.path(), path.clone()));
            }
            let kind = mode::kind(metadata.mode());
            found.insert(path, (kind, metadata.nlink() as u32, contents));
        }
    }
    found
}

/// The same without the numbers of links of directories.
fn comparable(mut tree: Tree) -> Tree {
    for (kind, links, _) in tree.values_mut() {
        if *kind == mode::kind(libc::S_IFDIR) {
            *links = 0;
        }
    }
    tree
}

pub fn require_equal(bucket: &Bucket, name: &str, directory: &Path) {
    let shown = comparable(shown(bucket, name).expect("it is there"));
    let wanted = comparable(source(directory));
    let paths = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(&shown), paths(&wanted));
    assert!(shown == wanted, "contents or links differ");
}

pub fn is_clean(bucket: &Bucket) {
    let report = runtime().block_on(async {
        let keyring = open(&bucket.memory).await.handle.keyring().clone();
        check(bucket.memory.clone(), &keyring, &CheckOptions::oracle()).await
    });
    let report = report.expect("checked");
    assert!(report.is_clean(), "{report}");
}

/// A directory with files of several kinds.
pub fn made() -> TempDir {
    let home = TempDir::new().expect("made");
    let at = |path: &str| home.path().join(path);
    std::fs::create_dir_all(at("a/b")).expect("made");
    std::fs::create_dir_all(at("empty")).expect("made");
    std::fs::write(at("small"), b"small").expect("made");
    std::fs::write(at("nothing"), b"").expect("made");
    std::fs::write(at("a/large"), noise(1, (9 << 20) + 77)).expect("made");
    std::fs::write(at("a/b/file"), noise(2, 70_000)).expect("made");
    std::fs::hard_link(at("small"), at("a/b/linked")).expect("made");
    std::os::unix::fs::symlink("nowhere", at("a/link")).expect("made");
    let sparse = std::fs::File::create(at("sparse")).expect("made");
    sparse.set_len(3 << 20).expect("made");
    std::os::unix::fs::FileExt::write_at(&sparse, b"data", 1 << 20).expect("made");
    home
}

/// Changes it: a file is new, one is other, some are gone, and a directory becomes a file.
fn changed(home: &TempDir) {
    let at = |path: &str| home.path().join(path);
    std::fs::write(at("new"), noise(3, 200_000)).expect("made");
    std::fs::write(at("a/b/file"), noise(4, 80_000)).expect("made");
    std::fs::remove_file(at("small")).expect("removed");
    std::fs::remove_dir(at("empty")).expect("removed");
    std::fs::write(at("empty"), b"a file now").expect("made");
    std::fs::remove_file(at("a/link")).expect("removed");
}

#[test]
fn a_directory_and_its_changes_are_shown_as_they_are() {
    let (bucket, home) = (Bucket::new(), made());
    let report = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(report.unread.lock().count(), 0);
    require_equal(&bucket, "tree", home.path());
    changed(&home);
    let report = put_into(&bucket, home.path(), &how("tree"));
    assert!(count(&report.unchanged) > 0, "nothing was taken over");
    assert_eq!(count(&report.removed), 2, "small and the link");
    require_equal(&bucket, "tree", home.path());
    // A directory goes with all that lies below it, several pages of names and other directories.
    let many = home.path().join("many");
    for directory in ["x", "y/z"] {
        std::fs::create_dir_all(many.join(directory)).expect("made");
    }
    for number in 0..1500 {
        std::fs::write(many.join(format!("x/{number}")), b"").expect("made");
        std::fs::create_dir(many.join(format!("y/{number}"))).expect("made");
    }
    put_into(&bucket, home.path(), &how("tree"));
    require_equal(&bucket, "tree", home.path());
    std::fs::remove_dir_all(&many).expect("removed");
    let report = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&report.removed), 3004);
    require_equal(&bucket, "tree", home.path());
    is_clean(&bucket);
}

#[test]
fn what_has_not_changed_is_not_read_again() {
    let (bucket, home) = (Bucket::new(), made());
    let first = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&first.unchanged), 0);
    let again = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&again.stored), 0);
    assert_eq!(count(&again.read.bytes), 0);
    assert_eq!(count(&again.unchanged), 7);
    require_equal(&bucket, "tree", home.path());
    // Under another path there is nothing to take over.
    let other = put_into(&bucket, home.path(), &how("other"));
    assert_eq!(count(&other.unchanged), 0);
    require_equal(&bucket, "other", home.path());
}

#[test]
fn files_that_changed_just_before_a_put_are_read_by_the_next() {
    let (bucket, home) = (Bucket::new(), made());
    let racy = How {
        is_racy: true,
        ..how("tree")
    };
    put_into(&bucket, home.path(), &racy);
    let again = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(
        count(&again.unchanged),
        0,
        "they might have changed once more"
    );
    let third = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&third.stored), 0);
}

#[test]
fn a_mount_that_changes_a_file_makes_the_next_put_read_it() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    std::fs::write(home.path().join("file"), b"right").expect("made");
    put_into(&bucket, home.path(), &how("tree"));
    let host = bucket.host();
    let directory = host.find("tree").expect("it is there");
    let file = host.run(walk::names(&host.volume().view, directory));
    let inode = file.expect("read").names[0].inode;
    let options = bkfs::volume::data::WriteOptions::default();
    let volume = host.volume();
    let written = host.run(volume.write(inode, 0, b"wrong"[..].into(), options));
    written.expect("written");
    // The size and the time of the last change of contents are those of the source.
    let before = std::fs::metadata(home.path().join("file")).expect("read");
    let modified = bkfs::tree::item::Timestamp {
        seconds: before.mtime(),
        nanoseconds: before.mtime_nsec() as u32,
    };
    let change = bkfs::volume::attributes::Change {
        modified: Some(modified),
        ..Default::default()
    };
    host.run(volume.set_attributes(inode, change)).expect("set");
    host.finish().expect("unmounted");
    put_into(&bucket, home.path(), &how("tree"));
    require_equal(&bucket, "tree", home.path());
}

#[test]
fn names_of_one_file_are_names_of_one_inode() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    let at = |path: &str| home.path().join(path);
    std::fs::create_dir(at("x")).expect("made");
    std::fs::write(at("a"), b"linked").expect("made");
    std::fs::hard_link(at("a"), at("x/b")).expect("made");
    std::fs::hard_link(at("a"), at("c")).expect("made");
    put_into(&bucket, home.path(), &how("tree"));
    let host = bucket.host();
    let inode = |name: &str| host.run(find(&host.volume(), &["tree", name]));
    let (a, c) = (inode("a"), inode("c"));
    assert_eq!(a.0, c.0);
    assert_eq!(a.1.links, 3);
    host.finish().expect("unmounted");
    // One name less in the volume, and the file at the source is the same.
    let less = How {
        exclude: vec!["c".into()],
        ..how("tree")
    };
    let report = put_into(&bucket, home.path(), &less);
    assert_eq!((count(&report.unchanged), count(&report.removed)), (2, 1));
    let host = bucket.host();
    let left = host.run(find(&host.volume(), &["tree", "a"]));
    assert_eq!(left.1.links, 2);
    assert_eq!(left.1.changed, a.1.changed, "the file has not changed");
    host.finish().expect("unmounted");
    let report = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&report.read.bytes), 0, "a name is no contents");
    require_equal(&bucket, "tree", home.path());
    is_clean(&bucket);
}

async fn find(volume: &Volume, path: &[&str]) -> (u64, Attributes) {
    let mut inode = ROOT_INODE;
    for name in path {
        let names = walk::names(&volume.view, inode).await.expect("read").names;
        let found = names.iter().find(|named| named.name == name.as_bytes());
        inode = found.expect("it is there").inode;
    }
    let attributes = volume.view.attributes(Scope::Live, inode).await;
    (inode, attributes.expect("read"))
}

#[test]
fn a_file_that_grows_for_ever_is_stored_once_and_named() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    let path = home.path().join("log");
    std::fs::write(&path, noise(5, 12 << 20)).expect("made");
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, grown) = (stop.clone(), path.clone());
    let writer = std::thread::spawn(move || {
        let mut file = std::fs::File::options().append(true).open(grown).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            std::io::Write::write_all(&mut file, b"line\n").unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    let report = put_into(&bucket, home.path(), &how("tree"));
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("ended");
    assert_eq!(report.changing.lock().count(), 1, "it is not named");
    assert_eq!(count(&report.stored), 1);
    let again = put_into(&bucket, home.path(), &how("tree"));
    assert_eq!(count(&again.stored), 1, "it is not read again");
    require_equal(&bucket, "tree", home.path());
}

/// The machine is gone at each request of a put. The volume shows what it showed before, or all of
/// the new state. The next put goes on.
#[test]
fn a_put_that_is_killed_shows_nothing_and_the_next_goes_on() {
    let (before, home) = (Bucket::new(), made());
    put_into(&before, home.path(), &how("tree"));
    let old = comparable(shown(&before, "tree").expect("it is there"));
    changed(&home);
    let new = comparable(source(home.path()));
    let (mut shown_old, mut shown_new, mut nth) = (0, 0, 0);
    loop {
        nth += 1;
        let bucket = before.copy();
        let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
        let strike = Strike::with(Fault::Hang).on_writes();
        faults.plan(strike.nth(nth).always());
        let runtime = runtime();
        let is_done = runtime.block_on(async {
            let killed = async {
                while faults.struck() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // What is on its way arrives.
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let how = How {
                commits: true,
                ..how("tree")
            };
            tokio::select! {
                biased;
                () = killed => false,
                _ = put_with(faults.clone(), home.path(), &how) => true,
            }
        });
        runtime.shutdown_background();
        match comparable(shown(&bucket, "tree").expect("it is there")) {
            tree if tree == old => shown_old += 1,
            tree if tree == new => shown_new += 1,
            tree => panic!("request {nth}: {:?}", tree.keys().collect::<Vec<_>>()),
        }
        if is_done {
            break;
        }
        is_clean(&bucket);
        put_into(&bucket, home.path(), &how("tree"));
        require_equal(&bucket, "tree", home.path());
        is_clean(&bucket);
    }
    assert!(
        shown_old > 5 && shown_new > 0,
        "{shown_old} {shown_new} of {nth}"
    );
}

/// What an interrupted put has stored is not sent again.
#[test]
fn the_put_after_an_interrupted_one_sends_little() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    for file in 0..8 {
        let name = home.path().join(format!("file{file}"));
        std::fs::write(name, noise(10 + file, 1 << 20)).expect("made");
    }
    let runtime = runtime();
    runtime.block_on(async {
        let alone = begun(bucket.memory.clone(), Duration::from_secs(10)).await;
        let report = Arc::new(Report::default());
        let job = Job::new(alone.volume().clone(), Arc::default(), report);
        let origin = origin(home.path(), "tree");
        let done = put(&Arc::new(job), origin, &new_file()).await;
        done.expect("stored");
        // Cancelled by a signal: no snapshot, and the end of the session keeps what is stored.
        alone.finish().await.expect("ended");
    });
    runtime.shutdown_background();
    assert_eq!(shown(&bucket.copy(), "tree"), None);
    let counted = Arc::new(CountingStore::new(bucket.memory.clone()));
    let before = bucket.bytes("data/");
    assert!(before > 8 << 20, "{before}");
    let how = how("tree");
    self::runtime().block_on(put_with(counted, home.path(), &how));
    let sent = bucket.bytes("data/") - before;
    assert!(sent < 1 << 20, "{sent} bytes were sent again");
    require_equal(&bucket, "tree", home.path());
}

/// The root holds the snapshot, and the put does not learn of it before the store is back. The end
/// of the session must not put the volume back behind its own snapshot.
#[test]
fn a_snapshot_whose_answer_was_lost_stays_what_the_volume_shows() {
    let (bucket, home) = (Bucket::new(), made());
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    let runtime = runtime();
    runtime.block_on(async {
        let alone = begun(faults.clone(), Duration::from_secs(1)).await;
        let volume = alone.volume().clone();
        let job = Job::new(volume.clone(), Arc::default(), Arc::default());
        let done = put(&Arc::new(job), origin(home.path(), "tree"), &new_file()).await;
        done.expect("stored");
        let gate = Gate::new();
        let root = |fault| Strike::with(fault).on(Operation::Replace).keys("root");
        let fails = || Fault::FailBefore(StoreErrorKind::Unreachable);
        faults.plan(root(Fault::HoldBefore(gate.clone())));
        faults.plan(root(Fault::FailAfter(StoreErrorKind::OutcomeUnknown)));
        faults.plan(root(fails()).nth(2).always());
        let asked = tokio::spawn(async move { volume.snapshot(SnapshotRequest::default()).await });
        while faults.struck() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let silent = Strike::with(fails()).on(Operation::Get).keys("root");
        faults.plan(silent.always());
        gate.open();
        let error = asked.await.expect("no panic").expect_err("unknown");
        assert!(matches!(error, VolumeError::OutcomeUnknown(_)), "{error}");
        faults.heal();
        alone.finish().await.expect("ended");
        let list = open(&bucket.memory).await.snapshots().await;
        assert_eq!(list.expect("read").iter().count(), 1, "it was made");
    });
    runtime.shutdown_background();
    require_equal(&bucket, "tree", home.path());
    is_clean(&bucket);
}
