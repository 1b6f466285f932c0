//! The end of a mount: by umount(8), or by a signal while the store stalls and processes wait.

use std::rc::Rc;
use std::time::Duration;

use bkfs::mounting::error::MountingError;

use crate::alphabet::Op;
use crate::manners::DRAIN;
use crate::run::World;
use crate::writer::{HANGS, Writer};

/// Part of the message of a mount that no longer waits for the store, after it has put all
/// remaining data on the disk.
const STAYS: &str = "the rest stays in the spool";

/// Time after `drain=` within which a mount ends (SEMANTICS.md, told-to-end).
const BEYOND: Duration = Duration::from_secs(10);

/// Percentage of the mounts that get a signal.
const TOLD_PERCENT: u64 = 25;

/// Percentage of these in which a process waits in fsync.
const WAITS_PERCENT: u64 = 40;

/// The parts of a writer that are needed after its mount ends.
struct Parts {
    world: Rc<World>,
    volume: String,
    /// Number of claims of the volume when it was mounted.
    claims: u64,
    /// Whether there is a spool with room for everything, on a disk that works.
    has_spool: bool,
}

impl Parts {
    fn fail(&self, error: String) {
        self.world.fail(format!("{}: {error}", self.volume));
    }

    fn note(&self, ended: &Result<(), MountingError>) {
        let said = match ended {
            Ok(()) => "well".to_owned(),
            Err(error) => error.to_string(),
        };
        let trace = &self.world.shared.trace;
        trace.note(format_args!("{} unmounted: {said}", self.volume));
    }

    /// Whether another process wants the volume.
    fn is_claimed(&self) -> bool {
        self.world.claims(&self.volume) > self.claims
    }
}

impl Writer {
    fn parts(&self) -> Parts {
        Parts {
            world: self.world.clone(),
            volume: self.volume.clone(),
            claims: self.claims,
            has_spool: self.past.borrow().has_good_spool(),
        }
    }

    /// Waits for the signal, which may never come.
    pub async fn told(&self) {
        if !self.world.chance(TOLD_PERCENT) {
            return std::future::pending().await;
        }
        tokio::time::sleep(Duration::from_millis(self.world.draw(0..70_000))).await;
    }

    /// Ends the mount by SIGTERM while the tool may be working. In time all data is in the bucket,
    /// or on the disk.
    pub async fn end_by_signal(self) {
        if self.is_falling.get() {
            return;
        }
        self.note(format_args!("told to end"));
        self.world.counts.borrow_mut().told += 1;
        let waits = self.world.chance(WAITS_PERCENT).then(|| {
            let client = self.up.client.clone();
            tokio::task::spawn_local(async move { client.apply(&Op::Sync).await })
        });
        let count = self.done_count();
        let was_taken = self.past.borrow().is_taken();
        if waits.is_some() {
            let pause = self.world.draw(0..5_000);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let drain = match self.world.draw(0..10) {
            0..5 => DRAIN,
            5..8 => Duration::from_millis(self.world.draw(0..20_000)),
            _ => Duration::ZERO,
        };
        self.promise();
        self.past.borrow_mut().failed();
        // The mount leaves the root by itself.
        self.is_ours.set(true);
        let volume = self.up.assembled.volume();
        let is_excused = |parts: &Parts| {
            let has_failed = volume.as_ref().is_none_or(|one| one.failure().is_some());
            has_failed || !parts.has_spool || parts.is_claimed()
        };
        let (parts, power) = (self.parts(), self.power.clone());
        let finish = self.up.assembled.finish_within(Some(drain));
        let Ok(ended) = tokio::time::timeout(drain + BEYOND, finish).await else {
            // A process that has died meanwhile, or before in a step of its disk, ends nothing.
            if power.is_dead() {
                return;
            }
            return parts.fail(format!("drain={drain:?} has passed, and it is still there"));
        };
        parts.note(&ended);
        let kept = match &ended {
            Ok(()) => self.past.borrow_mut().acknowledge(count),
            Err(error) if error.to_string().contains(STAYS) => {
                self.world.shared.faults.count("hurried");
                self.past.borrow_mut().keep(count);
                Ok(())
            }
            Err(error @ MountingError::Volume(_)) if !is_excused(&parts) && !power.is_dead() => {
                Err(format!("a signal has lost something: {error}"))
            }
            Err(_) => Ok(()),
        };
        if let Err(error) = kept {
            return parts.fail(error);
        }
        let Some(waits) = waits else { return };
        match tokio::time::timeout(Duration::from_secs(1), waits).await {
            Ok(Ok(Ok(_))) if !was_taken => {
                if let Err(error) = self.past.borrow_mut().sync(count) {
                    parts.fail(error);
                }
            }
            Ok(_) => {}
            Err(_) => parts.fail("who waits in fsync is not answered by the end".to_owned()),
        }
    }

    /// Counts what the passing of time has promised. While another mount claims the volume, it may
    /// have it in the root already, and close(2) does not ask for that.
    pub fn promise(&self) {
        let is_claimed = self.parts().is_claimed();
        self.past
            .borrow_mut()
            .promise(self.power.vitals(), is_claimed);
    }

    /// Ends the mount by umount(8). If this succeeds, all data is in the bucket.
    pub async fn unmount(self) {
        let count = self.done_count();
        self.promise();
        self.past.borrow_mut().failed();
        // The mount leaves the root by itself.
        self.is_ours.set(true);
        let parts = self.parts();
        let finish = self.up.assembled.finish();
        let Ok(ended) = tokio::time::timeout(HANGS, finish).await else {
            return parts.fail("an unmount hangs".to_owned());
        };
        parts.note(&ended);
        let mut past = self.past.borrow_mut();
        let acknowledged = match ended {
            Ok(()) => past.acknowledge(count),
            Err(error) if error.to_string().contains(STAYS) => {
                past.keep(count);
                Ok(())
            }
            Err(_) => Ok(()),
        };
        drop(past);
        if let Err(error) = acknowledged {
            parts.fail(error);
        }
    }
}
