//! One run: a world of machines around one bucket, from one seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bkfs::repository::create_on;
use bkfs::root::upgrade::make_large;
use bkfs_store::MemoryStore;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use crate::alphabet::{Op, op};
use crate::bugs::Bug;
use crate::disk::{Host, Trouble};
use crate::faults::{Faults, Rates};
use crate::history::{Shared as Past, Snapshot};
use crate::manners::Manners;
use crate::mount::{Wish, machine, open};
use crate::store::{Power, Shared, SimStore};
use crate::trace::Trace;
use crate::{collector, verify, volume};

/// Number of faults that must strike in each run, or else the run fails.
pub const FAULTS_MIN: u64 = 20;

/// Percentage of the worlds in which mounts have a spool on the disk of their host.
const DISK_PERCENT: u32 = 80;

/// Percentage of the mounts with a spool that run with `fsync=local`.
const LOCAL_PERCENT: u64 = 40;

/// Percentage of the mounts with a spool whose disk fails or is full.
const TROUBLE_PERCENT: u64 = 25;

/// Percentage of the writes that are large, in worlds with large writes.
const LARGE_PERCENT: u64 = 20;

/// Size of the largest request, in bytes.
const REQUEST_BYTES: usize = 1 << 20;

/// Collectors that run alongside the writers, in worlds that have any.
const COLLECTORS: u64 = 2;

/// One of so many worlds with disks has collectors. In the others, everything that only a disk has
/// must be recovered. All worlds without disks have collectors.
const COLLECTED_DISKS: u64 = 2;

/// A run that takes longer than this on its own clock is stuck.
const STUCK: Duration = Duration::from_secs(48 * 3600);

/// A run that takes longer than this on the machine's clock is in an endless loop. Most runs take
/// less than 0.1 s.
const CIRCLES: Duration = Duration::from_secs(60);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The seed of all randomness.
    pub seed: u64,
    /// Whether to print the events.
    pub printed: bool,
    /// A mistake to plant.
    pub bug: Option<Bug>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Outcome {
    /// The error that was found, if any.
    pub failure: Option<String>,
    /// The hash of its trace.
    pub trace: String,
    /// Number of lines of its trace.
    pub lines: u64,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Operations, acknowledged snapshots, mounts and other counts.
    pub counts: Counts,
}

impl Outcome {
    /// Returns the outcome as a line, for another process.
    pub fn line(&self) -> String {
        let text = serde_json::to_string(self).expect("it has no odd keys");
        format!("{LINE}{text}")
    }

    /// Parses the line from the whole output of a process.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.split_once(LINE))?.1;
        serde_json::from_str(line).ok()
    }
}

/// The prefix of a line with an outcome.
const LINE: &str = "OUTCOME ";

/// Counts of the events in a run.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Counts {
    pub operations: u64,
    pub syncs: u64,
    pub snapshots: u64,
    pub mounts: u64,
    pub takeovers: u64,
    /// Snapshots made of data that only a disk had.
    pub recovered: u64,
    /// Spools that stayed and could not become a snapshot, since a collector had deleted objects
    /// that they refer to.
    pub stranded: u64,
    /// Collections that ended well, and packs that they deleted.
    pub collections: u64,
    pub freed: u64,
    /// Worlds with collectors.
    pub collected_worlds: u64,
    /// Successors that had to find data because a close(2), or the time since a change, had
    /// promised it.
    pub promises: u64,
    /// Mounts that were told to end.
    pub told: u64,
    /// Losses that were acknowledged, and uses of handles that were open on lost data.
    pub acknowledged: u64,
    pub broken: u64,
    /// Sessions that were ended by command.
    pub ended: u64,
}

/// The state that all actors of a run share.
pub struct World {
    pub order: Order,
    pub shared: Arc<Shared>,
    pub random: RefCell<StdRng>,
    runner: RefCell<TestRunner>,
    pub snapshots: RefCell<Vec<Snapshot>>,
    pub counts: RefCell<Counts>,
    /// The settings that all mounts of this world have in common.
    pub manners: Manners,
    /// How often each volume was asked for.
    pub claims: RefCell<BTreeMap<String, u64>>,
    /// Whether mounts have spools in this world.
    pub has_disks: bool,
    /// Whether collectors forget snapshots and collect in this world.
    pub has_collectors: bool,
    /// The disks of the hosts, by volume and host.
    pub hosts: RefCell<BTreeMap<(String, u64), Host>>,
    /// The history of every mount, by volume.
    pub pasts: RefCell<Vec<(String, Past)>>,
    machines: RefCell<u64>,
    /// The first error that was found.
    failure: RefCell<Option<String>>,
}

impl World {
    fn new(order: Order) -> Rc<Self> {
        let mut random = StdRng::seed_from_u64(order.seed);
        let manners = Manners::draw(&mut random);
        let rates = match Rates::draw(&mut random) {
            _ if manners.is_calm => Rates::default(),
            rates => rates,
        };
        let shared = Arc::new(Shared {
            bucket: MemoryStore::new(),
            faults: Faults::new(order.seed, rates, manners),
            trace: Trace::new(order.printed),
        });
        shared
            .trace
            .note(format_args!("seed {} {manners:?} {rates:?}", order.seed));
        let bytes: [u8; 32] = random.random();
        let has_disks = random.random_range(0..100) < DISK_PERCENT;
        let generator = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        Rc::new(World {
            order,
            shared,
            random: RefCell::new(random),
            runner: RefCell::new(TestRunner::new_with_rng(Config::default(), generator)),
            snapshots: RefCell::default(),
            counts: RefCell::default(),
            manners,
            claims: RefCell::default(),
            has_disks,
            has_collectors: !has_disks || order.seed.is_multiple_of(COLLECTED_DISKS),
            hosts: RefCell::default(),
            pasts: RefCell::default(),
            machines: RefCell::new(0),
            failure: RefCell::new(None),
        })
    }

    /// Returns whether the root of this world is a large one, as in half of the worlds with
    /// collectors and of those without.
    fn has_large_root(&self) -> bool {
        (self.order.seed / COLLECTED_DISKS).is_multiple_of(2)
    }

    /// Returns a number in the range.
    pub fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.borrow_mut().random_range(range)
    }

    /// Returns how often a volume was asked for.
    pub fn claims(&self, volume: &str) -> u64 {
        self.claims.borrow().get(volume).copied().unwrap_or(0)
    }

    /// Returns true in `percent` of 100 cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.draw(0..100) < percent
    }

    /// Returns an operation for a writer, small enough to be one request.
    pub fn operation(&self) -> Op {
        let mut runner = self.runner.borrow_mut();
        let drawn = op()
            .new_tree(&mut runner)
            .expect("every operation can be drawn");
        let is_large = self.manners.is_large && self.chance(LARGE_PERCENT);
        let near = |offset: u64| offset % 300_000;
        let short = |length: usize| match is_large {
            true => length % REQUEST_BYTES + 1,
            false => length % 100_000 + 1,
        };
        match drawn.current() {
            Op::Write(path, offset, length, seed) => {
                Op::Write(path, near(offset), short(length), seed)
            }
            Op::Append(path, length, seed) => Op::Append(path, short(length), seed),
            Op::Truncate(path, size) => Op::Truncate(path, near(size)),
            Op::Punch(path, offset, length) => {
                Op::Punch(path, near(offset), short(length as usize) as u64)
            }
            Op::ZeroRange(path, offset, length) => {
                Op::ZeroRange(path, near(offset), short(length as usize) as u64)
            }
            // A page-aligned copy is one request; other copies may be several.
            Op::Copy(from, at, to, target, length) => Op::Copy(
                from,
                near(at),
                to,
                near(target),
                short(length as usize) as u64,
            ),
            Op::Reopen | Op::Commit | Op::Crash => Op::Sync,
            other => other,
        }
    }

    /// Returns a new machine, as its view of the bucket. It dies after `steps` steps of requests.
    pub fn machine(&self, steps: u64) -> SimStore {
        *self.machines.borrow_mut() += 1;
        SimStore {
            shared: self.shared.clone(),
            power: Power::new(*self.machines.borrow(), steps),
            bug: self.order.bug,
        }
    }

    /// Gives the mount that a process asks for the disk of its host, if this world has disks. The
    /// host may have lost its power since the last process there died. With `all_is_well`, the disk
    /// works.
    pub fn settle(&self, wish: &mut Wish, process: &SimStore, all_is_well: bool) {
        if !self.has_disks {
            return;
        }
        let mut hosts = self.hosts.borrow_mut();
        let host = hosts.entry((wish.volume.clone(), wish.host)).or_default();
        if host.is_deserted() && self.chance(50) {
            if !all_is_well {
                self.shared.faults.count("power");
            }
            host.lose_power(self.draw(0..u64::MAX));
        }
        let trouble = match self.chance(TROUBLE_PERCENT) && !all_is_well {
            true => self.trouble(),
            false => Trouble::None,
        };
        let machine = process.power.machine;
        wish.is_local = self.chance(LOCAL_PERCENT) && !wish.ends_session;
        self.shared.trace.note(format_args!(
            "m{machine} is on host {}, {trouble:?}, fsync=local {}",
            wish.host, wish.is_local
        ));
        let (disk, is_well) = host.start(process, trouble);
        (wish.disk, wish.is_disk_well) = (Some(disk), is_well);
    }

    fn trouble(&self) -> Trouble {
        match self.chance(30) {
            true => Trouble::Full(self.draw(0..200_000)),
            false => {
                let operations = Trouble::OPERATIONS;
                let which = self.draw(0..operations.len() as u64) as usize;
                Trouble::Fails(operations[which], self.draw(1..8))
            }
        }
    }

    /// Records an error.
    pub fn fail(&self, text: String) {
        self.shared.trace.note(format_args!("FAILED {text}"));
        self.failure.borrow_mut().get_or_insert(text);
    }

    /// Whether an error was recorded.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Lets some time pass, mostly little.
    pub async fn idle(&self) {
        let pause_ms = match self.draw(0..20) {
            0 => self.draw(0..40_000),
            1..6 => self.draw(0..1_500),
            _ => self.draw(0..20),
        };
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// Runs a world in the calling thread. Only the first run of a process equals the first run of
/// every other process.
pub fn run_here(order: Order) -> Outcome {
    crate::ambient::seed_this_thread(order.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let world = runtime.block_on(local.run_until(async {
        let world = World::new(order);
        let done = tokio::time::timeout(STUCK, live(&world)).await;
        if done.is_err() {
            world.fail("the run is stuck: something waits for ever".to_owned());
        }
        world
    }));
    let faults = world.shared.faults.struck();
    let faults = faults
        .into_iter()
        .map(|(kind, count)| (kind.to_owned(), count));
    let failure = world.failure.borrow_mut().take();
    Outcome {
        failure,
        trace: world.shared.trace.hash(),
        lines: world.shared.trace.lines(),
        faults: faults.collect(),
        counts: *world.counts.borrow(),
    }
}

/// Runs a world in a process of its own: the order in which tokio wakes tasks that wait for the
/// same event depends on how many runtimes the process has had. A panic is a failure too. So is a
/// run that does not end, as in an endless loop in which its own clock does not advance.
pub fn run(order: Order) -> Outcome {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "replay", "--nocapture"])
        .env("BKFS_SIM_SEED", order.seed.to_string())
        .env("BKFS_SIM_SILENT", "1")
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match order.bug {
        Some(bug) => command.env("BKFS_SIM_BUG", format!("{bug:?}")),
        None => command.env_remove("BKFS_SIM_BUG"),
    };
    let mut child = command.spawn().expect("it runs");
    let mut said = child.stdout.take().expect("is piped");
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        // Missing text is reported below.
        let _ = said.read_to_string(&mut text);
        let _ = done.send(text);
    });
    let text = outcome.recv_timeout(CIRCLES);
    // The process has ended already, unless it is in an endless loop.
    let _ = child.kill();
    let _ = child.wait();
    let failed = |text: String| Outcome {
        failure: Some(text),
        ..Outcome::default()
    };
    let Ok(text) = text else {
        return failed(format!("no end of it after {} s", CIRCLES.as_secs()));
    };
    Outcome::parse(&text).unwrap_or_else(|| {
        let mut panic = String::new();
        let mut stderr = child.stderr.take().expect("is piped");
        let _ = stderr.read_to_string(&mut panic);
        failed(format!("it panicked: {panic}"))
    })
}

/// Makes the root a large one, before any machine mounts.
async fn upgrade(world: &World, wish: &Wish) {
    let opened = open(Arc::new(world.shared.bucket.clone()), wish).await;
    let repository = opened.expect("a repository");
    let (environment, handle) = (&repository.environment, &repository.handle);
    let holder = environment.holder("bkfs upgrade");
    let made = make_large(handle, holder, &*environment.processes).await;
    assert!(made.expect("no session is in the way"));
}

/// Runs the whole life of a world.
async fn live(world: &Rc<World>) {
    let wish = Wish::new("-", world);
    let machine = machine(&wish);
    create_on(&machine, Arc::new(world.shared.bucket.clone()), None)
        .await
        .expect("a repository");
    if world.has_large_root() {
        upgrade(world, &wish).await;
    }
    let count = world.draw(1..4);
    let names: Vec<String> = (0..count)
        .map(|number| format!("volume-{number}"))
        .collect();
    let lives = names.iter().map(|name| volume::live(world, name));
    let done = Rc::new(Cell::new(false));
    let count = match world.has_collectors {
        true => COLLECTORS,
        false => 0,
    };
    world.counts.borrow_mut().collected_worlds = u64::from(world.has_collectors);
    let collectors: Vec<_> = (0..count)
        .map(|number| {
            tokio::task::spawn_local(collector::live(world.clone(), number, done.clone()))
        })
        .collect();
    let pasts = futures::future::join_all(lives).await;
    done.set(true);
    for collector in collectors {
        // A collector that is busy either works to its end, or its machine dies with the others.
        if world.chance(50) {
            collector.abort();
        }
        if collector.await.is_err_and(|error| error.is_panic()) {
            return world.fail("a collector panicked".to_owned());
        }
    }
    for (name, past) in names.iter().zip(&pasts) {
        if world.has_failed() {
            return;
        }
        if let Err(error) = verify::volume(world, name, past).await {
            world.fail(format!("{name}: {error}"));
        }
    }
    if !world.has_failed()
        && world.has_collectors
        && let Err(error) = verify::collected(world, &names).await
    {
        world.fail(format!("after a last collection: {error}"));
    }
    let total = world.shared.faults.total();
    if total < FAULTS_MIN && !world.has_failed() {
        world.fail(format!(
            "only {total} faults struck: the run proves too little"
        ));
    }
}
