//! What the log of a mount says of what it hides.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tracing_subscriber::util::SubscriberInitExt;

use crate::asked::walk_on;
use crate::forge::{DIRECTORY, Forger, Items};
use crate::forgeries::HOSTILE;

/// Lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_hidden_name_is_told_once_however_often_it_is_listed() {
    let home = TempDir::new().expect("a directory");
    let path = home.path().join("repository");
    let forger = Forger::begin(&path);
    let mut items = Items::new(&forger);
    items.file(&forger, bkfs::volume::ROOT_INODE, b"..", 100);
    // Two ways to one directory, which hides a name too.
    for name in [&b"one"[..], b"two"] {
        items.name(&forger, bkfs::volume::ROOT_INODE, name, 101, DIRECTORY);
    }
    items.directory(&forger, 101, b"below", 102);
    items.inode(101, crate::forge::attributes(DIRECTORY, 1));
    items.file(&forger, 102, b"a/b", 103);
    let tree = forger.tree(&items);
    forger.snapshot(HOSTILE, tree);
    forger.end();
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let told = subscriber.finish().set_default();
    // On this thread, which alone has this log.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let seen = walk_on(runtime.expect("a runtime"), &path, HOSTILE).expect("it is walked over");
    drop(told);
    assert_eq!(seen.again.len(), 1, "{seen:?}");
    let said = String::from_utf8(lines.0.lock().clone()).expect("text");
    let hidden: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("hidden"))
        .collect();
    assert_eq!(hidden.len(), 2, "{said}");
    assert!(hidden.iter().all(|line| line.contains("1 names")), "{said}");
}
