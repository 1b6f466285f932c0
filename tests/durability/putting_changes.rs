//! Puts of directories whose source changes, or cannot be read, while they are made.

use std::sync::Arc;
use std::time::Duration;

use bkfs::put_tree::job::{Job, Linked};
use bkfs::put_tree::put;
use bkfs::stream::StreamError;
use bkfs::volume::requests::SnapshotRequest;
use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;

use crate::host::{Bucket, new_file, runtime};
use crate::putting::{Tree, begun, how, is_clean, made, origin, put_into, require_equal, shown};

/// A name is listed long after the file under another name of it was stored. By then its inode
/// number may be that of another file.
#[test]
fn a_further_name_of_what_is_another_file_now_gets_its_own_contents() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    let at = |path: &str| home.path().join(path);
    for directory in ["x", "y"] {
        std::fs::create_dir(at(directory)).expect("made");
    }
    std::fs::write(at("x/a"), b"first").expect("made");
    std::fs::hard_link(at("x/a"), at("y/c")).expect("made");
    std::fs::hard_link(at("x/a"), at("y/d")).expect("made");
    let runtime = runtime();
    runtime.block_on(async {
        let alone = begun(bucket.memory.clone(), Duration::from_secs(10)).await;
        let job = Job::new(alone.volume().clone(), Arc::default(), Arc::default());
        let job = Arc::new(job);
        let done = put(&job, origin(&at("x"), "x"), &new_file()).await;
        done.expect("stored");
        // The same number, and another file: its size and its times differ.
        std::fs::write(at("y/c"), b"another file").expect("made");
        let done = put(&job, origin(&at("y"), "y"), &new_file()).await;
        done.expect("stored");
        let made = alone.volume().snapshot(SnapshotRequest::default()).await;
        made.expect("a snapshot");
        alone.finish().await.expect("ended");
    });
    runtime.shutdown_background();
    let contents = |tree: Tree| tree.into_values().map(|file| (file.1, file.2));
    let x = contents(shown(&bucket, "x").expect("it is there"));
    assert_eq!(x.collect::<Vec<_>>(), [(1, b"first".to_vec())]);
    let y = contents(shown(&bucket, "y").expect("it is there"));
    let wanted = (2, b"another file".to_vec());
    assert_eq!(y.collect::<Vec<_>>(), [wanted.clone(), wanted]);
    is_clean(&bucket);
}

/// A directory that cannot be listed is not one without files.
#[test]
fn a_directory_that_cannot_be_listed_keeps_what_the_volume_has_of_it() {
    let (bucket, home) = (Bucket::new(), made());
    put_into(&bucket, home.path(), &how("tree"));
    let runtime = runtime();
    runtime.block_on(async {
        let alone = begun(bucket.memory.clone(), Duration::from_secs(10)).await;
        let job = Job::new(alone.volume().clone(), Arc::default(), Arc::default());
        let mut origin = origin(home.path(), "tree");
        // It can be looked at, and not be listed.
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        origin.fd = rustix::fs::open(home.path(), flags, Mode::empty()).expect("opened");
        let error = put(&Arc::new(job), origin, &new_file()).await;
        assert!(matches!(error, Err(StreamError::Read(_))), "{error:?}");
        let made = alone.volume().snapshot(SnapshotRequest::default()).await;
        made.expect("a snapshot");
        alone.finish().await.expect("ended");
    });
    runtime.shutdown_background();
    require_equal(&bucket, "tree", home.path());
}

/// The first name of a file is gone, or leads elsewhere, when it is to be read. There are others.
#[test]
fn a_file_whose_first_name_is_not_read_is_stored_under_the_next() {
    let (bucket, home) = (Bucket::new(), TempDir::new().expect("made"));
    let at = |path: &str| home.path().join(path);
    std::fs::create_dir(at("below")).expect("made");
    std::fs::write(at("a"), b"contents").expect("made");
    std::fs::hard_link(at("a"), at("below/b")).expect("made");
    let runtime = runtime();
    runtime.block_on(async {
        let alone = begun(bucket.memory.clone(), Duration::from_secs(10)).await;
        let job = Job::new(alone.volume().clone(), Arc::default(), Arc::default());
        let facts = bkfs::put_tree::facts::Facts::from(&rustix::fs::stat(at("a")).expect("read"));
        let unread = Linked { facts, inode: None };
        job.links.lock().insert(facts.key(), unread);
        let job = Arc::new(job);
        let done = put(&job, origin(home.path(), "tree"), &new_file()).await;
        done.expect("stored");
        assert_eq!(job.report.unread.lock().count(), 0);
        let made = alone.volume().snapshot(SnapshotRequest::default()).await;
        made.expect("a snapshot");
        alone.finish().await.expect("ended");
    });
    runtime.shutdown_background();
    require_equal(&bucket, "tree", home.path());
}
