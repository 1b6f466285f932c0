//! A lost root that was a large one: sessions that are at work meanwhile ask for fences, and not
//! for the root.

use std::sync::Arc;

use bkfs::maintain::repair::{execute, plan};
use bkfs::repository::open_in;
use bkfs::root::form::Form;
use bkfs::root::upgrade::make_large;
use bkfs_store::{MemoryStore, Store};

use crate::machine::{Machine, noise, opening};
use crate::password::Known;
use crate::repairs::mend;
use crate::world::{Fixture, PASSWORD, bucket, wait};

/// Returns a bucket whose root is a large one, without sessions.
fn large(fixture: &Fixture) -> Arc<MemoryStore> {
    let store = bucket(&fixture.objects);
    Machine::mount(store.clone(), fixture.password).finish();
    wait(async {
        let opened = open_in(store.clone(), opening(), &mut Known(fixture.password)).await;
        let repository = opened.expect("opens");
        let (environment, handle) = (&repository.environment, &repository.handle);
        let holder = environment.holder("bkfs upgrade");
        let made = make_large(handle, holder, &*environment.processes).await;
        assert!(made.expect("no session is left"));
        assert_eq!(handle.current().root.form, Form::Large);
    });
    store
}

/// Writes a file, and waits until fsync has acknowledged it.
fn write(machine: &Machine, path: &str) -> Vec<u8> {
    let bytes = noise(path.len() as u64, 30_000);
    machine.write(path, 0, bytes.clone());
    machine.fsync();
    bytes
}

/// Fsync asks for no root, so it acknowledges while there is none.
#[test]
fn what_is_acknowledged_without_a_root_is_not_lost() {
    for password in [None, Some(PASSWORD)] {
        let fixture = Fixture::build(password);
        let store = large(&fixture);
        let machine = Machine::mount(store.clone(), password);
        let first = write(&machine, "first");
        machine.snapshot("large");
        wait(store.delete("root")).expect("it was there");
        let second = write(&machine, "second");
        let report = mend(&fixture, &(store.clone() as Arc<dyn Store>));
        assert!(report.is_clean(), "{report}");
        assert!(!machine.syncs(), "the new root does not know it");
        machine.crash();
        let machine = Machine::mount(store.clone(), password);
        assert!(machine.read("first") == first);
        assert!(machine.read("second") == second, "fsync acknowledged it");
        machine.finish();
    }
}

/// The plan of a repair does not know what is acknowledged after it was made.
#[test]
fn a_repair_stops_if_a_mount_without_journals_has_acknowledged_meanwhile() {
    let fixture = Fixture::build(None);
    let store = large(&fixture);
    let machine = Machine::mount(store.clone(), None);
    machine.snapshot("large");
    wait(store.delete("root")).expect("it was there");
    let there: Arc<dyn Store> = store.clone();
    let options = fixture.options();
    let planned = wait(plan(&there, &fixture.keyring, &options));
    let (findings, planned) = planned.expect("plans");
    let late = write(&machine, "late");
    let done = wait(execute(
        &there,
        &fixture.keyring,
        &options,
        &findings,
        planned,
    ));
    let refused = done.expect_err("it does not know that journal");
    assert!(
        refused.to_string().contains("run the check again"),
        "{refused}"
    );
    assert!(!machine.syncs(), "it has its fence");
    machine.crash();
    let report = mend(&fixture, &there);
    assert!(report.is_clean(), "{report}");
    let machine = Machine::mount(store.clone(), None);
    assert!(machine.read("late") == late, "fsync acknowledged it");
    machine.finish();
}
