//! A collector that runs alongside the writers. It forgets snapshots, collects garbage, and can die
//! at any step; its clock is wrong by weeks.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Collected, Options, collect, prospect};
use bkfs::maintain::workspace::Workspace;
use bkfs::repository::Repository;
use bkfs::root::error::{ErrorKind, RootError};
use bkfs::root::forget::ListChanger;
use bkfs::root::lists::DirectLists;
use bkfs::root::session::OpenSession;
use jiff::SignedDuration;

use crate::mount::{Wish, open};
use crate::run::World;

/// The most by which a collector's clock is wrong, in seconds: 30 days.
const SKEW_S: u64 = 30 * 86_400;

/// Lowest number of a collector's host. Mounts run on hosts with lower numbers.
const HOSTS: u64 = 100;

/// Collects from time to time, until `done`.
pub async fn live(world: Rc<World>, number: u64, done: Rc<Cell<bool>>) {
    while !done.get() && !world.has_failed() {
        let pause = Duration::from_millis(world.draw(0..25_000));
        tokio::time::sleep(pause).await;
        if done.get() {
            return;
        }
        let steps = match world.chance(40) {
            true => world.draw(1..300),
            false => u64::MAX,
        };
        let store = world.machine(steps);
        let machine = store.power.machine;
        let mut wish = Wish::new("-", &world);
        // The collector has a host of its own. A process on a mount's host would take the mount for
        // dead, since it knows only its own process.
        wish.host = HOSTS + number;
        wish.skew_s = world.draw(0..2 * SKEW_S) as i64 - SKEW_S as i64;
        let said = tokio::select! {
            biased;
            said = once(&world, Arc::new(store.clone()), &wish) => said,
            () = store.power.death() => {
                world.shared.faults.count("crash");
                "crashed".to_owned()
            }
        };
        store.power.cut();
        world
            .shared
            .trace
            .note(format_args!("collector {number} on m{machine}: {said}"));
    }
}

/// Forgets some snapshots, perhaps, and collects. Returns the outcome in words.
async fn once(world: &Rc<World>, store: Arc<crate::store::SimStore>, wish: &Wish) -> String {
    let lies = world.shared.faults.lies();
    let refusals = world.shared.faults.refusals();
    let result = async {
        let repository = open(store, wish).await?;
        if world.chance(50) {
            forget(world, &repository).await?;
        }
        gather(&repository).await
    };
    match result.await {
        Ok(done) => {
            let mut counts = world.counts.borrow_mut();
            counts.collections += 1;
            counts.freed += done.deleted_packs;
            format!("{:?}, {} deleted", done.condemned, done.deleted_packs)
        }
        Err(error) => {
            let text = error.to_string();
            // The store may damage an answer to a collector, or be silent. Otherwise only another
            // collector can stop it, to which it gives way.
            let is_excused = match error.kind() {
                ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Refused => true,
                ErrorKind::Damaged => {
                    // If the store refuses a read of a list, the list counts as unreadable.
                    let is_unread = matches!(error, RootError::CondemnedUnknown { .. });
                    let is_refused = world.shared.faults.refusals() > refusals;
                    world.shared.faults.lies() > lies || (is_unread && is_refused)
                }
                _ => world.shared.faults.refusals() > refusals,
            };
            if !is_excused || text.contains("in no live pack") {
                world.fail(format!("a collector found {text}"));
            }
            text
        }
    }
}

/// Runs one collection.
///
/// # Errors
/// The error of [`prospect`] or [`collect`].
pub async fn gather(repository: &Repository) -> Result<Collected, RootError> {
    let options = Options {
        undelete_window: SignedDuration::ZERO,
        workspace: Workspace::IN_MEMORY,
        state_dir: None,
        lock_days: None,
        effort: Effort::default(),
    };
    // 90 days later than now: snapshots that were just forgotten have expired, by any machine's
    // clock.
    let now = repository.now() + SignedDuration::from_hours(24 * 90);
    let found = prospect(repository, &options, now).await?;
    match found.is_empty() {
        true => Ok(Collected::default()),
        false => collect(repository, found).await,
    }
}

async fn forget(world: &Rc<World>, repository: &Repository) -> Result<(), RootError> {
    let count = world.snapshots.borrow().len() as u64;
    if count == 0 {
        return Ok(());
    }
    let (volume, name) = {
        let mut snapshots = world.snapshots.borrow_mut();
        let snapshot = &mut snapshots[world.draw(0..count) as usize];
        if snapshot.most.is_none() {
            return Ok(());
        }
        // From now on it may exist or not.
        snapshot.most = None;
        (snapshot.volume.clone(), snapshot.name.clone())
    };
    let handle = &repository.handle;
    let machine = &repository.environment;
    let holder = machine.holder("forget");
    let session = OpenSession::open(handle, holder, None, &*machine.processes).await?;
    let writer = DirectLists::new(handle, session.id());
    let changer = ListChanger {
        handle,
        lists: &repository.lists,
        writer: &writer,
        session: session.id(),
    };
    let forgotten = changer.forget(&volume, &[name], repository.now()).await;
    session.end().await?;
    forgotten.map(drop)
}
