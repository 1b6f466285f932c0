//! The final check of a run: the state of the bucket that empty machines find when everything works
//! again.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::{self, CheckOptions};
use bkfs_chunker::crypto::Keyring;
use bkfs_testing::entropy::SeededEntropy;

use crate::alphabet::{Dump, World as _};
use crate::collector;
use crate::history::{Shared as Past, differences};
use crate::mount::{Wish, mount, open};
use crate::run::World;

/// Time after which late writes have arrived.
const SETTLES: Duration = Duration::from_secs(900);

/// The prefix of the names of snapshots that were never the state of their volume.
const RECOVERED: &str = "recovered-";

/// Returns the content of one snapshot as an empty machine sees it.
async fn snapshot(world: &World, volume: &str, name: &str) -> Result<Dump, String> {
    let mut wish = Wish::new(volume, world);
    wish.read_only = true;
    wish.snapshot = Some(name.to_owned());
    let up = mount(Arc::new(world.machine(u64::MAX)), &wish)
        .await
        .map_err(|error| error.to_string())?;
    up.dump().await
}

/// Checks that a volume holds everything that was acknowledged of it.
///
/// # Errors
/// A text that says what was lost, or is wrong.
pub async fn volume(world: &Rc<World>, volume: &str, past: &Past) -> Result<(), String> {
    world.shared.faults.heal();
    tokio::time::sleep(SETTLES).await;
    let store = world.machine(u64::MAX);
    let mut wish = Wish::new(volume, world);
    wish.steal = true;
    let up = mount(Arc::new(store), &wish)
        .await
        .map_err(|error| format!("it can no longer be mounted: {error}"))?;
    let seen = up.dump().await?;
    let mut model = past
        .borrow_mut()
        .succeed(&seen, false)
        .map_err(|error| format!("in the end there is {error}"))?;
    up.assembled
        .finish()
        .await
        .map_err(|error| format!("the last unmount failed: {error}"))?;
    let mut wish = Wish::new(volume, world);
    wish.read_only = true;
    let reader = mount(Arc::new(world.machine(u64::MAX)), &wish)
        .await
        .map_err(|error| format!("it can no longer be read: {error}"))?;
    let read = reader.dump().await?;
    if read != seen {
        let difference = differences(&model.dump(), &read);
        return Err(format!(
            "a reader sees something else than its writer:\n{difference}"
        ));
    }
    snapshots(world, volume).await?;
    recovered(world, volume, &seen).await?;
    check(world, &reader.keyring).await
}

/// Collects in a world without faults until nothing more can be collected, and checks everything
/// once more.
///
/// # Errors
/// A text that says what was lost, or is wrong.
pub async fn collected(world: &Rc<World>, volumes: &[String]) -> Result<(), String> {
    world.shared.faults.heal();
    let mut keyring = None;
    for _ in 0..3 {
        let wish = Wish::new("-", world);
        let store = Arc::new(world.machine(u64::MAX));
        let repository = open(store, &wish)
            .await
            .map_err(|error| error.to_string())?;
        collector::gather(&repository)
            .await
            .map_err(|error| error.to_string())?;
        keyring = Some(repository.content_store.keyring().clone());
    }
    for volume in volumes {
        snapshots(world, volume).await?;
    }
    match keyring {
        Some(keyring) => check(world, &keyring).await,
        None => Ok(()),
    }
}

/// Checks that `bkfs check --read-data` finds nothing wrong.
async fn check(world: &World, keyring: &Keyring) -> Result<(), String> {
    let options = CheckOptions {
        entropy: Arc::new(SeededEntropy::new(world.order.seed)),
        ..CheckOptions::oracle()
    };
    let bucket = Arc::new(world.shared.bucket.clone());
    let report = maintain::check(bucket, keyring, &options)
        .await
        .map_err(|error| format!("check cannot be made: {error}"))?;
    match report.is_clean() {
        true => Ok(()),
        false => Err(format!("check finds {report}")),
    }
}

/// Checks that operations which only the disks of hosts had acknowledged became snapshots when
/// mounts came back there, and that the volume is unchanged. In a world with collectors, a spool
/// may refer to objects that are gone. The spool then stays, and the mount reports it.
async fn recovered(world: &Rc<World>, volume: &str, live: &Dump) -> Result<(), String> {
    if !world.has_disks {
        return Ok(());
    }
    let mut stranded = 0;
    for host in 0..3 {
        let store = world.machine(u64::MAX);
        let mut wish = Wish::new(volume, world);
        (wish.host, wish.steal) = (host, true);
        world.settle(&mut wish, &store, true);
        let up = mount(Arc::new(store), &wish)
            .await
            .map_err(|error| format!("host {host} cannot mount it any more: {error}"))?;
        if up.dump().await? != *live {
            return Err(format!("a mount on host {host} has changed the volume"));
        }
        for spool in up.assembled.spool_news().stranded {
            if !world.has_collectors || !tells_of_something_gone(&spool.why) {
                return Err(format!("host {host} leaves a spool: {}", spool.why));
            }
            stranded += 1;
        }
        let finished = up.assembled.finish().await;
        finished.map_err(|error| format!("the unmount on host {host} failed: {error}"))?;
    }
    let mut wish = Wish::new(volume, world);
    wish.read_only = true;
    let reader = mount(Arc::new(world.machine(u64::MAX)), &wish)
        .await
        .map_err(|error| error.to_string())?;
    let list = reader.repository.snapshots().await;
    let list = list.map_err(|error| error.to_string())?;
    if let Some(latest) = list.latest(volume)
        && latest.name.starts_with(RECOVERED)
    {
        return Err(format!("{} counts as the latest snapshot", latest.name));
    }
    let mut found = Vec::new();
    for entry in list.of_volume(volume) {
        if entry.name.starts_with(RECOVERED) {
            found.push(snapshot(world, volume, &entry.name).await?);
        }
    }
    let mut owed = 0;
    for (number, (of, past)) in world.pasts.borrow().iter().enumerate() {
        let past = past.borrow();
        if of == volume && past.is_owed() && !found.iter().any(|seen| past.is_paid_by(seen)) {
            // Each spool belongs to one mount.
            owed += 1;
            if owed > stranded {
                return Err(format!(
                    "mount {number} of the run acknowledged what neither its successor nor any of {} recovered snapshots has",
                    found.len()
                ));
            }
        }
    }
    let mut counts = world.counts.borrow_mut();
    counts.recovered += found.len() as u64;
    counts.stranded += stranded;
    Ok(())
}

/// Whether `why` has the words of
/// [`ContentError::Missing`](bkfs_chunker::error::ContentError::Missing) or `Unknown`. These are
/// the errors for a blob that a collection deleted because nothing needed it.
fn tells_of_something_gone(why: &str) -> bool {
    let words = ["no pack of this index holds", "is missing from the bucket"];
    words.iter().any(|words| why.contains(words))
}

/// Reads every snapshot of a volume back.
async fn snapshots(world: &Rc<World>, volume: &str) -> Result<(), String> {
    let count = world.snapshots.borrow().len();
    for number in 0..count {
        let (name, past, least, most) = {
            let all = world.snapshots.borrow();
            let asked = &all[number];
            if asked.volume != volume {
                continue;
            }
            (
                asked.name.clone(),
                asked.lineage.clone(),
                asked.least,
                asked.most,
            )
        };
        match (snapshot(world, volume, &name).await, most) {
            (Ok(seen), most) => {
                let most = most.unwrap_or(usize::MAX);
                let past = past.borrow();
                if past.find(&seen, least, most).is_none() {
                    return Err(format!("{name} holds {}", past.explain(&seen, least, most)));
                }
            }
            (Err(error), Some(_)) => {
                return Err(format!(
                    "{name} was acknowledged, and cannot be read: {error}"
                ));
            }
            // The snapshot was refused, or its outcome is unknown: it may exist or not.
            (Err(error), None) if error.contains("no snapshot") => {}
            (Err(error), None) => return Err(format!("{name} cannot be read: {error}")),
        }
    }
    Ok(())
}
