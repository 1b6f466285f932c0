//! A lost root while sessions are at work: those of a large root ask for fences, and not for the
//! root, and those of a small one may still read it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bkfs::maintain::repair::{execute, plan};
use bkfs::repository::open_in;
use bkfs::root::form::Form;
use bkfs::root::upgrade::make_large;
use bkfs_store::{MemoryStore, Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};

use crate::machine::{Machine, noise, opening};
use crate::password::Known;
use crate::repairs::mend;
use crate::world::{Fixture, PASSWORD, bucket, wait};

/// Returns a bucket whose root is a large one, without sessions.
fn large(fixture: &Fixture) -> Arc<MemoryStore> {
    let store = bucket(&fixture.objects);
    Machine::mount(store.clone(), fixture.password).finish();
    enlarge(store.clone(), fixture);
    store
}

/// Makes the root a large one, in which no session stands.
fn enlarge(store: Arc<MemoryStore>, fixture: &Fixture) {
    wait(async {
        let opened = open_in(store.clone(), opening(), &mut Known(fixture.password)).await;
        let repository = opened.expect("opens");
        let (environment, handle) = (&repository.environment, &repository.handle);
        let holder = environment.holder("bkfs upgrade");
        let made = make_large(handle, holder, &*environment.processes).await;
        assert!(made.expect("no session is left"));
        assert_eq!(handle.current().root.form, Form::Large);
    });
}

/// Writes a file, and waits until fsync has acknowledged it.
fn write(machine: &Machine, path: &str) -> Vec<u8> {
    let bytes = noise(path.len() as u64, 30_000);
    machine.write(path, 0, bytes.clone());
    machine.fsync();
    bytes
}

/// Plans a repair and makes it, or returns what it says.
fn repair(fixture: &Fixture, store: Arc<dyn Store>) -> Result<(), String> {
    wait(async {
        let options = fixture.options();
        let planned = plan(&store, &fixture.keyring, &options).await;
        let (findings, planned) = planned.expect("plans");
        let done = execute(&store, &fixture.keyring, &options, &findings, planned).await;
        done.map_err(|error| error.to_string())
    })
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
    assert!(machine.syncs(), "nothing has changed for it");
    machine.crash();
    let report = mend(&fixture, &there);
    assert!(report.is_clean(), "{report}");
    let machine = Machine::mount(store.clone(), None);
    assert!(machine.read("late") == late, "fsync acknowledged it");
    machine.finish();
}

/// Opens a gate when it is dropped, also by a panic.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A bucket whose root only a repair cannot read: another machine reads the bucket itself.
struct Misread {
    fixture: Fixture,
    store: Arc<MemoryStore>,
    /// What the repair reads of it.
    misread: Arc<FaultStore>,
}

impl Misread {
    fn of(fixture: Fixture, store: Arc<MemoryStore>) -> Self {
        let misread = Arc::new(FaultStore::new(store.clone()));
        let rotten = Strike::with(Fault::FlipBit(1 << 11)).on(Operation::Get);
        misread.plan(rotten.keys("root").always());
        Self {
            fixture,
            store,
            misread,
        }
    }

    fn small() -> Self {
        let fixture = Fixture::build(Some(PASSWORD));
        let store = bucket(&fixture.objects);
        Self::of(fixture, store)
    }

    fn large() -> Self {
        let fixture = Fixture::build(Some(PASSWORD));
        let store = large(&fixture);
        Self::of(fixture, store)
    }

    fn mount(&self) -> Machine {
        Machine::mount(self.store.clone(), Some(PASSWORD))
    }

    /// Returns the keys of all journals.
    fn journals(&self) -> Vec<String> {
        let listed = wait(self.store.list("journal/", None, 1000));
        let keys = listed.expect("listed").into_iter();
        keys.map(|info| info.key).collect()
    }

    /// Checks that a new mount has the file, which fsync had acknowledged.
    fn keeps(&self, path: &str, bytes: &[u8]) {
        let machine = self.mount();
        assert!(machine.read(path) == bytes, "fsync acknowledged it");
        machine.finish();
    }

    /// Repairs on another thread until `strike` holds it, does `meanwhile`, and lets it go on.
    /// Returns its refusal, if it did not end well.
    fn while_held(&self, strike: Strike, gate: &Gate, meanwhile: impl FnOnce()) -> Option<String> {
        let held = Arc::new(FaultStore::new(self.misread.clone()));
        held.plan(strike);
        std::thread::scope(|scope| {
            let there: Arc<dyn Store> = held.clone();
            let repairing = scope.spawn(|| repair(&self.fixture, there));
            while held.struck() == 0 {
                assert!(!repairing.is_finished(), "it sends that request");
                std::thread::sleep(Duration::from_millis(5));
            }
            let opens = Opens(gate);
            meanwhile();
            drop(opens);
            repairing.join().expect("no panic").err()
        })
    }
}

/// The repair lists journals before it replaces the root, so a session must not go on by one that
/// it can read.
#[test]
fn a_root_that_only_the_repair_cannot_read_confirms_nothing_meanwhile() {
    for is_large in [false, true] {
        let gate = Gate::new();
        let hold = Strike::with(Fault::HoldBefore(gate.clone()));
        // A session of a large root goes by its fence.
        let (world, hold) = match is_large {
            false => (
                Misread::small(),
                hold.on(Operation::PutNew).keys("fence/").always(),
            ),
            true => (
                Misread::large(),
                hold.on(Operation::Replace).keys("root").nth(2),
            ),
        };
        let machine = world.mount();
        let early = write(&machine, "early");
        let refused = world.while_held(hold, &gate, || {
            machine.write("late", 0, noise(4, 30_000));
            assert!(!machine.syncs(), "the new root will not know it");
        });
        assert_eq!(refused, None);
        machine.crash();
        world.keeps("early", &early);
    }
}

/// The plan does not know what a commit covers that was made since, and its journals are gone.
#[test]
fn a_root_that_was_committed_to_since_the_check_is_not_replaced() {
    let world = Misread::small();
    let machine = world.mount();
    let there: Arc<dyn Store> = world.misread.clone();
    let options = world.fixture.options();
    let planned = wait(plan(&there, &world.fixture.keyring, &options));
    let (findings, planned) = planned.expect("plans");
    let before = world.journals();
    let late = write(&machine, "late");
    machine.snapshot("late");
    // They are deleted after the commit, on a task of their own.
    let begun = Instant::now();
    while world.journals() != before {
        assert!(begun.elapsed() < Duration::from_secs(60), "they stay");
        std::thread::sleep(Duration::from_millis(5));
    }
    let keyring = &world.fixture.keyring;
    let done = wait(execute(&there, keyring, &options, &findings, planned));
    let refused = done.expect_err("it does not know that commit").to_string();
    assert!(refused.contains("has replaced it"), "{refused}");
    assert!(machine.syncs(), "nothing has changed for it");
    machine.finish();
    world.keeps("late", &late);
}

/// A mount of the root that another repair has made has nothing to do with the lost one.
#[test]
fn a_repair_leaves_the_sessions_of_another_repair_alone() {
    let world = Misread::large();
    let gate = Gate::new();
    let hold = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::List);
    let mut machine = None;
    let refused = world.while_held(hold.keys("sessions/"), &gate, || {
        repair(&world.fixture, world.store.clone()).expect("is done");
        enlarge(world.store.clone(), &world.fixture);
        let mounted = world.mount();
        write(&mounted, "new");
        machine = Some(mounted);
    });
    let refused = refused.expect("another root stands");
    assert!(refused.contains("run the check again"), "{refused}");
    let machine = machine.expect("it was mounted");
    write(&machine, "more");
    machine.finish();
}

/// The fence comes after a last look at the journals before it.
#[test]
fn a_repair_stops_if_a_mount_has_acknowledged_just_before_its_fence() {
    let world = Misread::large();
    let machine = world.mount();
    machine.snapshot("large");
    wait(world.store.delete("root")).expect("it was there");
    let gate = Gate::new();
    let hold = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::PutNew);
    let refused = world.while_held(hold.keys("fence/").always(), &gate, || {
        write(&machine, "late");
    });
    let refused = refused.expect("it does not know that journal");
    assert!(refused.contains("run the check again"), "{refused}");
    assert!(!machine.syncs(), "it has its fence");
    machine.crash();
    let report = mend(&world.fixture, &(world.store.clone() as Arc<dyn Store>));
    assert!(report.is_clean(), "{report}");
    world.keeps("late", &noise(4, 30_000));
}

#[test]
fn a_repair_that_stops_after_its_first_replacement_can_be_repeated() {
    let world = Misread::large();
    let machine = world.mount();
    let early = write(&machine, "early");
    let denied = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::PutNew);
    world.misread.plan(denied.keys("fence/").always());
    repair(&world.fixture, world.misread.clone()).expect_err("it cannot write fences");
    machine.crash();
    let report = mend(&world.fixture, &(world.store.clone() as Arc<dyn Store>));
    assert!(report.is_clean(), "{report}");
    world.keeps("early", &early);
}

/// The answer to the replacement is lost, and the request is sent twice.
#[test]
fn a_new_root_whose_answer_says_that_it_stands_already_is_made() {
    let world = Misread::small();
    world.misread.heal();
    wait(world.store.delete("root")).expect("it was there");
    let twice = Strike::with(Fault::FailAfter(StoreErrorKind::AlreadyExists));
    let twice = twice.on(Operation::PutNew).keys("root");
    world.misread.plan(twice);
    repair(&world.fixture, world.misread.clone()).expect("it stands");
    assert_eq!(world.misread.struck(), 1);
}
