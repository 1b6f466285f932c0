//! The reference: one alphabet of operations, carried out by a model, by the engine unmounted, and
//! by real directories. All must agree.
//!
//! A failure that proptest has shrunk becomes a named test below.

mod alphabet;
mod client;
mod directory;
mod engine;
mod frozen;
mod model;
mod password;

use std::sync::Arc;

use alphabet::{Dump, Op, World, op};
use bkfs_store::MemoryStore;
use directory::Directory;
use engine::Engine;
use model::Model;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

/// Returns the number of cases of a comparison: few in every run, many with `BKFS_TEST_FULL=1`.
fn cases(quick: u32, full: u32) -> Config {
    let count = if std::env::var_os("BKFS_TEST_FULL").is_some_and(|full| full == "1") {
        full
    } else {
        quick
    };
    Config {
        cases: count,
        max_shrink_iters: 2_000,
        ..Config::default()
    }
}

fn differences(one: &Dump, other: &Dump) -> String {
    let paths: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let mut text = String::new();
    for path in paths {
        match (one.get(path), other.get(path)) {
            (a, b) if a == b => {}
            (Some(a), Some(b)) if a.contents != b.contents => {
                let at = a.contents.iter().zip(&b.contents).position(|(x, y)| x != y);
                let place = format!(
                    "{} and {} bytes, first difference at {at:?}",
                    a.contents.len(),
                    b.contents.len()
                );
                text += &format!("{}: {place}\n", path.escape_ascii());
            }
            (a, b) => text += &format!("{}: {a:?} and {b:?}\n", path.escape_ascii()),
        }
    }
    text
}

/// Lets two worlds carry out the same operations. Compares every answer, and the whole state in the
/// end.
fn compare(one: &mut dyn World, other: &mut dyn World, ops: &[Op]) -> Result<(), TestCaseError> {
    for (index, op) in ops.iter().enumerate() {
        let (left, right) = (one.apply(op), other.apply(op));
        let same = left == right;
        let shown =
            |answer: &alphabet::Answer| answer.as_ref().map(Vec::len).map_err(|errno| *errno);
        prop_assert!(
            same,
            "operation {index}, {op:?}: {:?} and {:?}",
            shown(&left),
            shown(&right)
        );
    }
    let (left, right) = (one.dump(), other.dump());
    prop_assert!(left == right, "{}", differences(&left, &right));
    Ok(())
}

fn check_engine(ops: &[Op]) -> Result<(), TestCaseError> {
    let mut engine = Engine::new(Arc::new(MemoryStore::new()), None);
    let mut model = Model::default();
    compare(&mut model, &mut engine, ops)?;
    // Compares once more, from the bucket alone.
    engine.reopen();
    let (left, right) = (model.dump(), engine.dump());
    prop_assert!(
        left == right,
        "after reopening: {}",
        differences(&left, &right)
    );
    Ok(())
}

fn check_directory(ops: &[Op]) -> Result<(), TestCaseError> {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("a directory");
    let mut directory = Directory::new(root, Box::new(|| ()));
    compare(&mut Model::default(), &mut directory, ops)
}

proptest! {
    #![proptest_config(cases(60, 3_000))]

    #[test]
    fn the_engine_behaves_like_the_model(ops in proptest::collection::vec(op(), 1..60)) {
        check_engine(&ops)?;
    }
}

proptest! {
    #![proptest_config(cases(60, 3_000))]

    /// The model is right: it agrees with the machine's own filesystem.
    #[test]
    fn the_model_behaves_like_a_directory(ops in proptest::collection::vec(op(), 1..60)) {
        check_directory(&ops)?;
    }
}

/// Found by the simulation. The copy never returned: nothing moved the content of a small file out
/// of the tree if the file had not changed since the last commit.
#[test]
fn regression_copy_into_a_small_file_of_an_earlier_commit() {
    let ops = [
        Op::Create(vec![0]),
        Op::Write(vec![0], 0, 100, 1),
        Op::Create(vec![1]),
        Op::Write(vec![1], 0, 200_000, 2),
        Op::Sync,
        Op::Copy(vec![1], 30_000, vec![0], 50, 40_000),
    ];
    check_engine(&ops).expect("they agree");
}

/// Found by comparing the model with a directory, whose second call copied what the first had
/// written behind the end.
#[test]
fn regression_copy_behind_the_end_of_the_same_file() {
    let ops = [
        Op::Create(vec![0]),
        Op::Write(vec![0], 0, 1318, 0),
        Op::Copy(vec![0], 0, vec![0], 1318, 16_384),
    ];
    check_engine(&ops).expect("they agree");
    check_directory(&ops).expect("they agree");
}

/// A real mount in a temporary directory, unmounted when this is dropped.
struct Mounted {
    program: std::ffi::OsString,
    directory: tempfile::TempDir,
}

impl Mounted {
    fn run(&self, arguments: &[&str]) {
        let mut command = std::process::Command::new(&self.program);
        command
            .current_dir(self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path());
        let status = command.args(arguments).status().expect("the program runs");
        assert!(status.success(), "bkfs {arguments:?}: {status}");
    }

    fn mount(&self) {
        self.run(&[
            "-q",
            "mount",
            "--init",
            "--no-encryption",
            "./bucket",
            "./mount",
            "-o",
            "cache_dir=cache",
        ]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let place = self.directory.path().join("mount");
        // Nothing stays mounted, even if the test has failed.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(place)
            .status();
    }
}

/// The same operations on a real mount, through the kernel, with remounts from the bucket. Needs
/// root and the program under test in `BKFS_BIN`.
#[test]
fn a_mount_behaves_like_the_model() {
    let Some(program) = std::env::var_os("BKFS_BIN") else {
        println!("BKFS_BIN is not set: passed over");
        return;
    };
    let mounted = std::rc::Rc::new(Mounted {
        program,
        directory: tempfile::tempdir().expect("a directory"),
    });
    mounted.mount();
    let count = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(cases(40, 1_000));
    let result = runner.run(&proptest::collection::vec(op(), 1..60), |ops| {
        count.set(count.get() + 1);
        let root = mounted
            .directory
            .path()
            .join(format!("mount/case-{}", count.get()));
        std::fs::create_dir(&root).expect("a directory");
        let again = mounted.clone();
        let reopen = move || {
            again.run(&["-q", "umount", "./mount"]);
            again.mount();
        };
        compare(
            &mut Model::default(),
            &mut Directory::new(root, Box::new(reopen)),
            &ops,
        )
    });
    mounted.run(&["-q", "umount", "./mount"]);
    result.expect("they agree");
}
