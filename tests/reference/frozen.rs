//! Two whole repositories, frozen as files, one sealed and one unsealed. Every later version of the
//! program must restore them.
//!
//! `BKFS_FREEZE_GOLDEN=1 cargo test -p bkfs-tests --test reference frozen` made them, and makes one
//! that is missing. It never overwrites one that exists.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bkfs_store::{LocalStore, Store, StoreOptions};

use crate::alphabet::{Mode, Op, World};
use crate::differences;
use crate::directory::Directory;
use crate::engine::Engine;
use crate::model::Model;

/// Returns the operations that made each of them. They never change, since the frozen repositories
/// were made by them.
fn operations() -> Vec<Op> {
    vec![
        Op::Mkdir(vec![0]),
        Op::Create(vec![0, 0]),
        Op::Write(vec![0, 0], 0, 100, 3),
        Op::Create(vec![0, 1]),
        Op::Write(vec![0, 1], 0, 16_384 * 5, 7),
        Op::Write(vec![0, 1], 16_384 * 9, 16_384, 8),
        Op::Create(vec![2]),
        Op::Write(vec![2], 1_000, 200_000, 9),
        Op::Sync,
        Op::Punch(vec![2], 50_000, 70_000),
        Op::Append(vec![2], 33_000, 10),
        Op::Link(vec![2], vec![0, 2]),
        Op::Symlink(vec![0, 3], b"../anywhere".to_vec()),
        Op::SetXattr(vec![2], 1, 300),
        Op::Chmod(vec![0, 0], 0o4751),
        Op::Reopen,
        Op::Copy(vec![0, 1], 16_384, vec![2], 8_192, 40_000),
        Op::Truncate(vec![0, 1], 100_001),
        Op::Mkdir(vec![1]),
        Op::Rename(vec![0, 0], vec![1, 3], Mode::Replace),
    ]
}

fn open(path: &FilePath) -> Arc<dyn Store> {
    let options = StoreOptions {
        create_directory: true,
        ..StoreOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime");
    Arc::new(
        runtime
            .block_on(LocalStore::open(path, &options))
            .expect("a directory"),
    )
}

fn check(name: &str, password: Option<&'static str>) {
    let frozen = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden/repository")
        .join(name);
    let freezes = std::env::var_os("BKFS_FREEZE_GOLDEN").is_some_and(|value| value == "1");
    if freezes && !frozen.exists() {
        let mut engine = Engine::new(open(&frozen), password);
        for op in operations() {
            engine.apply(&op).expect("every operation succeeds");
        }
        engine.snapshot("frozen");
        engine.finish();
    }
    assert!(frozen.join("root").exists(), "{name} is not frozen");
    let directory = tempfile::tempdir().expect("a directory");
    let target = directory.path().join("restored");
    // Opening only reads, so the frozen repository stays unchanged.
    Engine::existing(open(&frozen), password).restore("frozen", &target);
    let mut model = Model::default();
    for op in operations() {
        model.apply(&op).expect("every operation succeeds");
    }
    let (left, right) = (model.dump(), Directory::new(target, Box::new(|| ())).dump());
    assert!(left == right, "{}", differences(&left, &right));
}

#[test]
fn frozen_plain_repository_restores() {
    check("plain", None);
}

#[test]
fn frozen_sealed_repository_restores() {
    check("sealed", Some("the password of a frozen repository"));
}
