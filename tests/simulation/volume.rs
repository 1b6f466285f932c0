//! The life of one volume: mounts that write, make snapshots, crash, are taken over and come back,
//! and the comparison after each.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::alphabet::{Dump, Op};
use crate::bugs::Bug;
use crate::history::{Home, Lineage, Shared as Past, Snapshot};
use crate::model::Model;
use crate::mount::{Mount, Wish, mount};
use crate::run::{FAULTS_MIN, World};
use crate::store::{Power, SimStore};
use crate::writer;

/// Least number of mounts of a volume.
const MOUNTS_MIN: u64 = 3;

/// Most mounts of a volume, even if few faults struck.
const MOUNTS_MAX: u64 = 40;

/// Number of attempts at a mount while faults strike.
const ATTEMPTS: u32 = 12;

/// Percentage of the attempts in which `bkfs session end` takes the volume over.
const ENDS_PERCENT: u64 = 8;

/// Number of operations of the last journal, for [`Bug::JournalReplayedTwice`].
const REPLAYED_TWICE: usize = 6;

/// A mount that was left to itself: dead, or alive and about to lose its volume.
struct Predecessor {
    past: Past,
    power: Arc<Power>,
    task: Option<JoinHandle<()>>,
}

impl Predecessor {
    /// Cuts the machine off and stops its task.
    fn bury(&mut self) {
        self.power.cut();
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// A mount that came up.
struct Arrival {
    process: SimStore,
    up: Mount,
    /// The whole tree that it shows.
    seen: Dump,
    /// Its host, if that has a disk.
    home: Option<Home>,
    /// Whether it is on the host of its predecessor, which is dead, and no mount on another host
    /// was tried in between.
    is_home: bool,
    /// Whether it is `bkfs session end`.
    ends_session: bool,
}

impl Wish {
    /// Returns the parameters of a writable mount.
    pub fn new(volume: &str, world: &World) -> Self {
        let mut random = world.random.borrow_mut();
        use rand::RngExt as _;
        Wish {
            volume: volume.to_owned(),
            steal: false,
            snapshot: None,
            read_only: false,
            host: random.random_range(0..3),
            process: random.random_range(2..1_000_000),
            skew_s: random.random_range(-100_000..100_000),
            seed: random.random(),
            disk: None,
            is_disk_well: Rc::new(Cell::new(true)),
            is_local: false,
            ends_session: false,
            manners: world.manners,
        }
    }
}

impl Wish {
    /// Returns the host of the mount, if the mount keeps data there.
    fn home(&self) -> Option<Home> {
        (self.disk.is_some() && !self.ends_session).then_some(Home {
            host: self.host,
            is_local: self.is_local,
            is_disk_well: self.is_disk_well.clone(),
            has_large_spool: self.manners.has_large_spool(),
        })
    }
}

/// Runs all mounts of a volume, one after another. Returns the history of the last one, for the
/// final check.
pub async fn live(world: &Rc<World>, volume: &str) -> Past {
    let mut before = Predecessor {
        past: Lineage::new(Model::default()),
        power: Power::new(0, u64::MAX),
        task: None,
    };
    before.power.cut();
    for number in 0..MOUNTS_MAX {
        if world.has_failed() {
            break;
        }
        if number >= MOUNTS_MIN && world.shared.faults.total() >= FAULTS_MIN {
            break;
        }
        match one_mount(world, volume, &mut before).await {
            Ok(next) => before = next,
            Err(error) => {
                world.fail(format!("{volume}: {error}"));
                break;
            }
        }
    }
    // A mount that is alive goes on with its work for a while, and then dies.
    if let Some(task) = before.task.as_mut() {
        let _ = tokio::time::timeout(Duration::from_secs(20), task).await;
    }
    before.bury();
    before.past
}

/// Mounts, compares the state, and lets a writer work. Returns when the mount has ended or is about
/// to be taken over.
async fn one_mount(
    world: &Rc<World>,
    volume: &str,
    before: &mut Predecessor,
) -> Result<Predecessor, String> {
    let Arrival {
        process: store,
        up,
        seen,
        home,
        is_home,
        ends_session,
    } = come_up(world, volume, before).await?;
    let recovers = world.order.bug == Some(Bug::RecoversByItself);
    let base = match recovers {
        true => before.past.borrow().now().clone(),
        false => before
            .past
            .borrow_mut()
            .succeed(&seen, is_home)
            .map_err(|error| format!("a new mount found {error}"))?,
    };
    if world.order.bug == Some(Bug::JournalReplayedTwice) {
        let journal = before.past.borrow().tail(REPLAYED_TWICE);
        for op in &journal {
            // The answers of a replay go nowhere.
            let _ = up.client.apply(op).await;
        }
    }
    if before.task.is_some() {
        world.counts.borrow_mut().takeovers += 1;
        world.shared.faults.count("taken over");
    }
    leave(world, before);
    world.counts.borrow_mut().mounts += 1;
    let machine = store.power.machine;
    let past = Lineage::on(base, home);
    let of = (volume.to_owned(), past.clone());
    world.pasts.borrow_mut().push(of);
    world
        .shared
        .trace
        .note(format_args!("m{machine} mounted {volume}"));
    if ends_session {
        world.counts.borrow_mut().ended += 1;
        let finish = up.assembled.finish();
        tokio::select! {
            biased;
            ended = tokio::time::timeout(writer::HANGS, finish) => {
                ended.map_err(|_| "a session is being ended for ever".to_owned())?.ok();
            }
            () = store.power.death() => world.shared.faults.count("crash"),
        }
        store.power.cut();
        return Ok(Predecessor {
            past,
            power: store.power,
            task: None,
        });
    }
    let power = store.power.clone();
    let work = writer::work(world.clone(), volume.to_owned(), up, past.clone(), power);
    let mut task = tokio::task::spawn_local(work);
    let stolen_after = world.chance(25).then(|| world.draw(0..8_000));
    let patience = Duration::from_millis(stolen_after.unwrap_or(u64::MAX >> 20));
    tokio::select! {
        biased;
        done = &mut task => done.map_err(|error| panicked(&error))?,
        () = store.power.death() => {
            world.shared.faults.count("crash");
            world.shared.trace.note(format_args!("m{machine} crashed"));
            task.abort();
        }
        () = tokio::time::sleep(patience) => {
            // The mount goes on while another one takes its volume.
            return Ok(Predecessor { past, power: store.power, task: Some(task) });
        }
    }
    store.power.cut();
    Ok(Predecessor {
        past,
        power: store.power,
        task: None,
    })
}

fn panicked(error: &tokio::task::JoinError) -> String {
    format!("a writer panicked: {error}")
}

/// Leaves a mount that was taken over: it goes on for a while, then its machine is turned off.
fn leave(world: &World, before: &mut Predecessor) {
    let mut gone = Predecessor {
        past: before.past.clone(),
        power: before.power.clone(),
        task: before.task.take(),
    };
    let pause = Duration::from_millis(world.draw(0..60_000));
    tokio::task::spawn_local(async move {
        if let Some(task) = gone.task.as_mut() {
            let _ = tokio::time::timeout(pause, task).await;
        }
        gone.bury();
    });
}

/// Mounts the volume, on any machine and after several attempts if needed.
async fn come_up(world: &Rc<World>, volume: &str, before: &Predecessor) -> Result<Arrival, String> {
    if before
        .past
        .borrow_mut()
        .promise(before.power.vitals(), false)
    {
        world.counts.borrow_mut().promises += 1;
    }
    let mut last = String::new();
    let mut is_home = before.task.is_none();
    let home = before.past.borrow().host();
    for attempt in 0..ATTEMPTS {
        let last_chance = attempt >= ATTEMPTS - 2;
        if attempt == ATTEMPTS - 1 {
            // By now the former holder is dead, and other processes can see this.
            tokio::time::sleep(Duration::from_secs(300)).await;
        }
        let _rest = last_chance.then(|| world.shared.faults.rest());
        let steps = match world.chance(60) && !last_chance {
            true => world.draw(1..600),
            false => u64::MAX,
        };
        let store = world.machine(steps);
        let mut wish = Wish::new(volume, world);
        wish.steal = before.task.is_some() || last_chance || world.chance(30);
        wish.ends_session = world.chance(ENDS_PERCENT) && !last_chance;
        *world
            .claims
            .borrow_mut()
            .entry(volume.to_owned())
            .or_default() += 1;
        is_home &= home == Some(wish.host);
        world.settle(&mut wish, &store, last_chance);
        let machine = store.power.machine;
        let up = async {
            let up = mount(Arc::new(store.clone()), &wish)
                .await
                .map_err(|error| error.to_string())?;
            let seen = up.dump().await?;
            Ok::<_, String>((up, seen))
        };
        tokio::select! {
            biased;
            up = up => match up {
                Ok((up, seen)) => {
                    return Ok(Arrival {
                        process: store,
                        up,
                        seen,
                        home: wish.home(),
                        is_home,
                        ends_session: wish.ends_session,
                    });
                }
                Err(error) => last = error,
            },
            () = store.power.death() => {
                world.shared.faults.count("crash");
                last = "its machine died".to_owned();
            }
        }
        world
            .shared
            .trace
            .note(format_args!("m{machine} did not come up: {last}"));
        store.power.cut();
        tokio::time::sleep(Duration::from_millis(world.draw(0..5_000))).await;
    }
    Err(format!("no mount comes up any more: {last}"))
}

/// Whether an operation only reads or syncs.
pub fn is_question(op: &Op) -> bool {
    matches!(op, Op::Read(..) | Op::Sync)
}

/// Records that a snapshot is asked for: it may exist from now on.
pub fn note_snapshot(world: &World, volume: &str, name: &str, past: &Past, least: usize) -> usize {
    let mut snapshots = world.snapshots.borrow_mut();
    snapshots.push(Snapshot {
        volume: volume.to_owned(),
        name: name.to_owned(),
        lineage: past.clone(),
        least,
        most: None,
    });
    snapshots.len() - 1
}
