//! Restoring what can be read of a tree with a node that is missing.

use bkfs::tree::key;
use bkfs::volume::ROOT_INODE;
use bkfs_chunker::id::Kind;
use tempfile::TempDir;

use crate::commands::{Ran, bkfs};
use crate::forge::{Forger, HONEST, Items, child};
use crate::forgeries::HOSTILE;

/// The directory whose names are in the missing node. No other key lies behind them.
const UNREAD: u64 = 300;

/// Makes a repository with a directory `unread`, and a file in a directory `read`.
fn repository() -> TempDir {
    let home = TempDir::new().expect("a directory");
    let forger = Forger::begin(&home.path().join("repository"));
    let mut items = Items::new(&forger);
    items.directory(&forger, ROOT_INODE, b"read", 200);
    items.file(&forger, 200, b"wanted", 201);
    items.directory(&forger, ROOT_INODE, b"unread", UNREAD);
    let entries = items.entries();
    let first = entries[0].0.clone();
    let there = child(forger.node(0, &entries), entries.len() as u64);
    // No node has this name.
    let missing = child(forger.blob(Kind::Chunk, b"no node".to_vec()), 1);
    let behind = key::names_from(UNREAD, 0).start.as_bytes().to_vec();
    let tree = forger.node(1, &[(first, there), (behind, missing)]);
    forger.snapshot(HOSTILE, tree);
    forger.end();
    home
}

fn restore(home: &TempDir, arguments: &[&str]) -> Ran {
    let path = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let (repository, target) = (path("repository"), path("target"));
    let mut all = vec!["restore", &repository, HOSTILE, &target];
    all.extend(arguments);
    bkfs(&home.path().join("machine"), &all)
}

#[test]
fn what_a_pattern_names_is_restored_though_another_directory_cannot_be_read() {
    let home = repository();
    let ran = restore(&home, &["--include", "wanted"]);
    let file = std::fs::read(home.path().join("target/read/wanted"));
    assert_eq!(file.ok().as_deref(), Some(HONEST), "{}", ran.says());
    // What is below may match too.
    let says = String::from_utf8_lossy(&ran.error).into_owned();
    assert_eq!(
        (ran.code, says.contains("target/unread: ")),
        (13, true),
        "{says}"
    );
}

#[test]
fn a_rehearsal_names_what_cannot_be_read() {
    let home = repository();
    for arguments in [&["-n"][..], &["-n", "--include", "wanted"]] {
        let ran = restore(&home, arguments);
        let says = String::from_utf8_lossy(&ran.error).into_owned();
        assert_eq!(
            (ran.code, says.contains("restored: /unread: ")),
            (13, true),
            "{says}"
        );
        assert!(!home.path().join("target").exists());
    }
}

#[test]
fn damage_of_what_is_excluded_does_not_count() {
    let home = repository();
    let ran = restore(&home, &["--exclude", "unread"]);
    assert_eq!(ran.code, 0, "{}", ran.says());
}
