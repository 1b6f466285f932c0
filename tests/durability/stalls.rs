//! A store that stalls for a while, and a spool. A file that is closed or fsynced meanwhile is
//! there after a crash, whatever call was given up on.

use std::path::PathBuf;
use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs_store::Operation;
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::entropy::SeededEntropy;
use bkfs_testing::fault::{Fault, Gate, Strike};
use proptest::prelude::*;

use crate::host::{Bucket, Host, noise};

/// The time in seconds from closing a file to having it on the disk of a machine whose store does
/// not answer: 0.5 s until a journal begins, and 2 s for the store.
const KEPT_AFTER: f64 = 3.0;

/// Sizes in bytes of a file that a journal carries itself, and of one that it does not.
const SMALL: usize = 200_000;
const LARGE: usize = 3 << 20;

/// Makes a file and closes it.
fn close(host: &Host, name: &str, data: &[u8]) {
    host.write(name, 0, data);
    host.volume().fsync_within();
}

/// Stalls the writes of these keys from now on, until the gate is opened.
fn stall(host: &Host, keys: &str) -> Gate {
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on_writes();
    host.faults.plan(held.keys(keys).always());
    gate
}

fn recover(host: &Host, gate: &Gate) {
    host.faults.heal();
    gate.open();
}

/// Crashes the host. Returns which of these files another machine does not find in the bucket.
fn missing(bucket: &Bucket, host: Host, names: &[&str]) -> Vec<String> {
    host.crash();
    let other = bucket.host();
    let names = names.iter().filter(|name| other.read(name).is_none());
    names.map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_fsync_after_two_stalls_has_what_was_closed_during_them() {
    let bucket = Bucket::new();
    let host = Host::spooling(&bucket, &SimulatedDisk::new());
    let gate = stall(&host, "journal/");
    close(&host, "a", b"a");
    host.wait(KEPT_AFTER);
    close(&host, "b", b"b");
    host.wait(KEPT_AFTER);
    assert!(host.faults.struck() > 0);
    recover(&host, &gate);
    host.fsync().expect("durable");
    let missing = missing(&bucket, host, &["a", "b"]);
    assert!(missing.is_empty(), "{missing:?} was fsynced and is gone");
}

#[test]
fn an_fsync_of_a_later_file_hides_no_earlier_one() {
    let bucket = Bucket::new();
    let host = Host::spooling(&bucket, &SimulatedDisk::new());
    let gate = stall(&host, "journal/");
    for name in ["a", "b"] {
        close(&host, name, name.as_bytes());
        host.wait(KEPT_AFTER);
    }
    recover(&host, &gate);
    host.write("c", 0, b"c".to_vec());
    host.fsync().expect("durable");
    let missing = missing(&bucket, host, &["a", "b", "c"]);
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn files_closed_while_the_whole_store_stands_still_are_in_the_next_fsync() {
    let bucket = Bucket::new();
    let host = Host::spooling(&bucket, &SimulatedDisk::new());
    let gate = stall(&host, "");
    let names: Vec<String> = (0..12).map(|number| format!("file {number}")).collect();
    for name in &names {
        close(&host, name, name.as_bytes());
        host.wait(0.75);
    }
    recover(&host, &gate);
    host.fsync().expect("durable");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let missing = missing(&bucket, host, &names);
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_closed_during_two_stalls_is_on_the_disk() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let _gate = stall(&host, "");
    for name in ["a", "b", "c"] {
        close(&host, name, &noise(3, 200_000));
        host.wait(KEPT_AFTER);
    }
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    let next = Host::spooling(&bucket, &disk);
    for name in ["a", "b", "c"] {
        assert!(next.read(name) == Some(noise(3, 200_000)), "{name}");
    }
}

/// Closes files while an fsync waits for the store, which stalls for these keys.
fn close_during_an_fsync(keys: &'static str) {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    host.write("before", 0, noise(1, LARGE));
    stall(&host, keys);
    let volume = host.volume();
    let waits = host.spawn(async move { volume.fsync().await });
    host.wait(0.05);
    close_two(&host);
    assert!(!waits.is_finished(), "it waits for the store: {keys}");
    three_are_on_the_disk(&bucket, host, &disk);
}

/// Closes two files, each with the time that an outage may add to a close.
fn close_two(host: &Host) {
    close(host, "meanwhile", &noise(2, SMALL));
    host.wait(10.0);
    close(host, "later", &noise(3, SMALL));
    host.wait(10.0);
}

/// Checks what is there after a power loss.
fn three_are_on_the_disk(bucket: &Bucket, host: Host, disk: &SimulatedDisk) {
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    let next = Host::spooling(bucket, disk);
    let written = [
        ("before", 1, LARGE),
        ("meanwhile", 2, SMALL),
        ("later", 3, SMALL),
    ];
    for (name, seed, bytes) in written {
        assert!(next.read(name) == Some(noise(seed, bytes)), "{name}");
    }
}

#[test]
fn what_is_closed_while_an_fsync_waits_for_the_store_is_on_the_disk() {
    for keys in ["", "journal/", "data/"] {
        close_during_an_fsync(keys);
    }
}

/// A journal has reached the bucket while the spool did not take it. An fsync for which the spool
/// is enough then puts it into the spool as well, and does not ask the store.
#[test]
fn an_fsync_for_which_the_spool_is_enough_keeps_what_the_spool_had_refused() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    let settings = Settings {
        fsync_local: true,
        ..Settings::default()
    };
    let host = Host::spooling_with(&bucket, &disk, settings);
    host.write("before", 0, noise(1, LARGE));
    disk.set_capacity(Some(0));
    host.volume().fsync_within();
    host.wait(4.0);
    disk.heal();
    let held = Strike::with(Fault::HoldBefore(Gate::new()));
    host.faults.plan(held.always());
    host.write("before", 0, noise(1, LARGE));
    let volume = host.volume();
    let acknowledged =
        host.run(async move { tokio::time::timeout(Duration::from_secs(2), volume.fsync()).await });
    acknowledged.expect("at once").expect("the spool has it");
    close_two(&host);
    three_are_on_the_disk(&bucket, host, &disk);
}

#[test]
fn what_is_closed_while_an_fsync_asks_the_store_has_the_next_journal() {
    let bucket = Bucket::new();
    let host = Host::spooling(&bucket, &SimulatedDisk::new());
    host.write("before", 0, noise(1, SMALL));
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on(Operation::Get);
    host.faults.plan(held.keys("root").always());
    let volume = host.volume();
    let waits = host.spawn(async move { volume.fsync().await });
    host.wait(0.5);
    assert!(host.faults.struck() > 0, "it asks whose the volume is");
    close(&host, "meanwhile", &noise(2, SMALL));
    host.wait(0.5);
    recover(&host, &gate);
    host.run(waits).expect("ran").expect("durable");
    host.wait(KEPT_AFTER);
    let missing = missing(&bucket, host, &["before", "meanwhile"]);
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_slow_store_that_takes_journals_is_not_silent() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    let gate = stall(&host, "journal/");
    for name in ["a", "b", "c"] {
        close(&host, name, name.as_bytes());
        host.wait(KEPT_AFTER);
    }
    // Three journals wait by now, and each takes most of the time that the store is waited for.
    host.faults.heal();
    let slow = Strike::with(Fault::Delay(Duration::from_millis(1500))).keys("journal/");
    host.faults.plan(slow.always());
    gate.open();
    close(&host, "d", b"d");
    host.wait(2.0);
    let journals = |disk: &SimulatedDisk| {
        let paths = disk.paths().into_iter();
        paths
            .filter(|path| path.to_string_lossy().contains("journal"))
            .count()
    };
    let before = journals(&disk);
    host.wait(1.5);
    assert!(
        journals(&disk) <= before,
        "nothing more is spooled: {before}"
    );
    host.wait(6.5);
    let missing = missing(&bucket, host, &["a", "b", "c", "d"]);
    assert!(missing.is_empty(), "{missing:?}");
}

/// All callers wait for the journal that waits for room in the spool.
#[test]
fn a_full_spool_holds_nothing_up_once_the_store_is_back() {
    let bucket = Bucket::new();
    let host = Host::spooling_at_most(&bucket, &SimulatedDisk::new(), 60_000);
    let gate = stall(&host, "journal/");
    for (name, length) in [("small", 100), ("large", 40_000), ("too much", 40_000)] {
        close(&host, name, &noise(4, length));
        host.wait(KEPT_AFTER);
    }
    recover(&host, &gate);
    let volume = host.volume();
    let took = host.run(async {
        let begin = tokio::time::Instant::now();
        volume.fsync().await.expect("durable");
        begin.elapsed()
    });
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    let missing = missing(&bucket, host, &["small", "large", "too much"]);
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns a host for whose fsync the spool is enough, of so many bytes.
fn local(bucket: &Bucket, disk: &SimulatedDisk, spool_bytes: u64) -> Host {
    let settings = Settings {
        fsync_local: true,
        ..Settings::default()
    };
    Host::try_spooling(bucket, disk, settings, "main", spool_bytes).expect("mounted")
}

/// Many small journals fill the spool while the store stands still. Then the store takes each of
/// them slowly, and a commit frees the spool sooner.
fn fill_with_journals(disk: &SimulatedDisk, spool_bytes: u64) {
    let bucket = Bucket::new();
    let host = local(&bucket, disk, spool_bytes);
    let gate = stall(&host, "");
    let volume = host.volume();
    let second = Duration::from_secs(1);
    let full = (0..1_000).find(|number| {
        host.write(&number.to_string(), 0, noise(*number, 700));
        host.run(async { tokio::time::timeout(second, volume.fsync()).await })
            .is_err()
    });
    let full = full.expect("the spool fills up");
    assert!(full > 50, "{full} journals");
    host.faults.heal();
    let slow = Strike::with(Fault::Delay(Duration::from_millis(700))).keys("journal/");
    host.faults.plan(slow.always());
    gate.open();
    let begin = host.run(async { tokio::time::Instant::now() });
    for number in 0..5 {
        host.write("after", number, vec![b'a']);
        host.fsync().expect("on this machine");
    }
    let took = host.run(async { begin.elapsed() });
    assert!(took < Duration::from_secs(15), "it took {took:?}");
}

#[test]
fn a_spool_full_of_journals_is_freed_by_a_commit() {
    fill_with_journals(&SimulatedDisk::new(), 200_000);
}

#[test]
fn a_spool_whose_disk_is_full_is_freed_by_a_commit() {
    let disk = SimulatedDisk::new();
    disk.set_capacity(Some(200_000));
    fill_with_journals(&disk, 256 << 20);
}

/// One journal never gets its answer. A commit frees the others.
#[test]
fn a_commit_frees_the_spool_of_what_waits_behind_a_journal_without_an_answer() {
    let bucket = Bucket::new();
    let host = local(&bucket, &SimulatedDisk::new(), 200_000);
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldBefore(gate.clone())).on_writes();
    host.faults.plan(held.keys("journal/"));
    let took = host.run(async { tokio::time::Instant::now() });
    for number in 0..400 {
        host.write(&number.to_string(), 0, noise(number, 700));
        host.fsync().expect("on this machine");
    }
    let took = host.run(async { took.elapsed() });
    assert!(host.faults.struck() > 0, "it has no answer");
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    // The answer is of that journal, whatever was freed behind it.
    gate.open();
    host.wait(5.0);
    let names: Vec<String> = (0..400).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let missing = missing(&bucket, host, &names);
    assert!(missing.is_empty(), "{missing:?}");
}

/// The spool is slow, and not full: no commit would help.
#[test]
fn a_spool_disk_that_hangs_makes_no_commits() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = local(&bucket, &disk, 256 << 20);
    let before = host.asked(Operation::Replace);
    let slow = Strike::with(Fault::Delay(Duration::from_millis(100))).keys("journal/");
    host.faults.plan(slow.always());
    disk.hold();
    for number in 0..10 {
        host.write("file", number, vec![b'a']);
        host.fsync().expect("in the bucket");
    }
    let commits = host.asked(Operation::Replace) - before;
    disk.let_go();
    assert!(commits <= 1, "{commits} commits");
}

/// Other programs fill the disk. The spool holds nothing that a commit could free.
#[test]
fn a_disk_full_of_other_things_makes_no_commits() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = local(&bucket, &disk, 256 << 20);
    disk.set_capacity(Some(0));
    let before = host.asked(Operation::Replace);
    let slow = Strike::with(Fault::Delay(Duration::from_millis(100))).keys("journal/");
    host.faults.plan(slow.always());
    for number in 0..10 {
        host.write("file", number, vec![b'a']);
        host.fsync().expect("in the bucket");
    }
    let commits = host.asked(Operation::Replace) - before;
    assert!(commits <= 1, "{commits} commits");
}

/// The disk of the spool hangs while it takes a pack that is on its way to the bucket as well.
/// Returns the host whose fsync has returned then. The disk still hangs.
fn fsynced_by_the_bucket(bucket: &Bucket, disk: &SimulatedDisk) -> Host {
    let host = Host::spooling(bucket, disk);
    let gate = stall(&host, "data/");
    host.write("large", 0, noise(5, LARGE));
    let volume = host.volume();
    let waits = host.spawn(async move { volume.fsync().await });
    host.wait(0.5);
    disk.hold();
    host.wait(KEPT_AFTER);
    recover(&host, &gate);
    let answer = host.run(async { tokio::time::timeout(Duration::from_secs(30), waits).await });
    answer.expect("no wait").expect("ran").expect("durable");
    host
}

#[test]
fn a_spool_disk_that_hangs_holds_no_pack_up_that_the_bucket_has() {
    let bucket = Bucket::new();
    let host = fsynced_by_the_bucket(&bucket, &SimulatedDisk::new());
    let missing = missing(&bucket, host, &["large"]);
    assert!(missing.is_empty(), "{missing:?}");
}

/// All is in the bucket, and the disk of the spool still hangs.
#[test]
fn a_spool_disk_that_hangs_holds_no_unmount_up() {
    let bucket = Bucket::new();
    let host = fsynced_by_the_bucket(&bucket, &SimulatedDisk::new());
    host.finish_within(60.0)
        .expect("in time")
        .expect("all is in the bucket");
    assert_eq!(bucket.host().read("large"), Some(noise(5, LARGE)));
}

#[derive(Debug, Clone)]
enum Step {
    /// Makes a file of this many bytes, and closes it.
    Close(usize),
    Wait(u16),
    /// Requests of a kind stall from now on.
    Stall(&'static str),
    Recover,
    /// An fsync that is waited for this many milliseconds.
    Fsync(u16),
    Commit(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let length =
        prop_oneof![8 => 1usize..3_000, 1 => 5_000usize..50_000, 1 => 1_000_000usize..1_500_000];
    let keys =
        prop_oneof![4 => Just("journal/"), 1 => Just("data/"), 1 => Just("meta/"), 2 => Just("")];
    prop_oneof![
        6 => length.prop_map(Step::Close),
        6 => (500u16..4_000).prop_map(Step::Wait),
        2 => keys.prop_map(Step::Stall),
        1 => Just(Step::Recover),
        2 => (1_000u16..9_000).prop_map(Step::Fsync),
        1 => (0u16..9_000).prop_map(Step::Commit),
    ]
}

/// The state of one run.
struct Run {
    host: Host,
    gate: Option<Gate>,
    /// The length of each file in bytes.
    closed: Vec<usize>,
    /// The number of these files that are in the bucket.
    durable: usize,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Close(length) => {
                let number = self.closed.len();
                close(
                    &self.host,
                    &number.to_string(),
                    &noise(number as u64, length),
                );
                self.closed.push(length);
            }
            Step::Wait(milliseconds) => self.host.wait(f64::from(milliseconds) / 1000.0),
            Step::Stall(keys) => {
                self.recover();
                self.gate = Some(stall(&self.host, keys));
            }
            Step::Recover => self.recover(),
            Step::Fsync(patience) => {
                let volume = self.host.volume();
                self.acknowledge(patience, async move { volume.fsync().await });
            }
            Step::Commit(patience) => {
                let volume = self.host.volume();
                self.acknowledge(patience, async move { volume.commit().await.map(|_| ()) });
            }
        }
    }

    fn recover(&mut self) {
        if let Some(gate) = self.gate.take() {
            recover(&self.host, &gate);
        }
    }

    /// Waits for the call for `patience` milliseconds, and drops it after that.
    fn acknowledge<E>(&mut self, patience: u16, call: impl Future<Output = Result<(), E>>) {
        let count = self.closed.len();
        let patience = Duration::from_millis(patience.into());
        let answer = async { tokio::time::timeout(patience, call).await };
        if let Ok(Ok(())) = self.host.run(answer) {
            self.durable = count;
        }
    }
}

/// A commit covers the first journal, which was settled after the commit began: so the root does not
/// say that it is covered, and the journal never goes to the bucket. A power loss then brings back
/// the removed file of the last journal alone.
#[test]
fn the_last_journal_that_a_power_loss_brings_back_is_no_damage() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    let host = Host::spooling(&bucket, &disk);
    let mut run = Run {
        host,
        gate: None,
        closed: Vec::new(),
        durable: 0,
    };
    for step in [
        Step::Stall("meta/"),
        Step::Close((1 << 20) + 1),
        Step::Wait(501),
        Step::Close(1),
        Step::Commit(1936),
        Step::Wait(2257),
        Step::Close(1),
        Step::Wait(2806),
        Step::Recover,
        Step::Fsync(60_000),
    ] {
        run.step(&step);
    }
    assert_eq!(run.durable, 3);
    run.host.crash();
    disk.crash(&SeededEntropy::new(1));
    let is_journal = |path: &PathBuf| path.to_string_lossy().contains(".journal+");
    assert_eq!(
        disk.paths().iter().filter(|path| is_journal(path)).count(),
        1
    );
    let next = Host::spooling(&bucket, &disk);
    assert_eq!(beginning(&next, &run.closed), 3);
}

/// Returns the number of files that are there, in the order in which they were closed.
fn beginning(host: &Host, closed: &[usize]) -> usize {
    let is_whole = |(number, length): (usize, &usize)| {
        host.read(&number.to_string()) == Some(noise(number as u64, *length))
    };
    let whole: Vec<bool> = closed.iter().enumerate().map(is_whole).collect();
    let count = whole.iter().take_while(|is_whole| **is_whole).count();
    assert!(
        !whole[count..].contains(&true),
        "a later file without an earlier one: {whole:?}"
    );
    count
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever stalls, and whatever call is given up on: after a crash a beginning of all files is
    /// there, and at least those that were fsynced.
    #[test]
    fn stalls_lose_nothing_that_was_promised(
        steps in proptest::collection::vec(step(), 1..30),
        with_disk: bool,
        asks_at_the_end: bool
    ) {
        let bucket = Bucket::new();
        let disk = SimulatedDisk::new();
        let host = Host::spooling(&bucket, &disk);
        let mut run = Run { host, gate: None, closed: Vec::new(), durable: 0 };
        for step in &steps {
            run.step(step);
        }
        if asks_at_the_end {
            run.step(&Step::Recover);
            run.step(&Step::Fsync(60_000));
        }
        run.host.crash();
        disk.crash(&SeededEntropy::new(1));
        let next = match with_disk {
            true => Host::spooling(&bucket, &disk),
            false => bucket.host(),
        };
        let found = beginning(&next, &run.closed);
        prop_assert!(found >= run.durable, "{found} of {} fsynced files", run.durable);
    }
}
