//! The lock of a volume's state, and how long it is held.
//!
//! Owns: the measurement. Does not own: the state, nor what is done under the lock.
//!
//! Every operation of a mount takes this lock, so the longest hold is the longest time for which
//! one operation delays another. A small file takes the lock thirty times, and the clock costs as
//! much as a short hold. So one hold in [`ONE_IN`] is measured, or each where the log of this module
//! has the level `debug`.

use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::volume::capturing::LiveState;
use crate::volume::state::VolumeState;

/// The upper limits of the classes of holds, in microseconds. A last class has no limit.
pub const HOLD_LIMITS_US: [u64; 9] = [10, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 250_000];

/// One hold in this many is measured. A prime, since what a tool does to each of its files repeats.
const ONE_IN: u32 = 17;

/// A measured hold that is at least this long is logged, at the level `debug`.
const LOGGED: Duration = Duration::from_millis(5);

/// The holds that were measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds {
    /// The number of holds up to each limit of [`HOLD_LIMITS_US`], not counting those up to the
    /// limit before it; then the number of longer holds.
    pub counts: [u64; HOLD_LIMITS_US.len() + 1],
    /// Their sum.
    pub total: Duration,
    /// The longest hold.
    pub longest: Duration,
}

impl Holds {
    fn add(&mut self, hold: Duration) {
        let us = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
        let class = HOLD_LIMITS_US.partition_point(|limit_us| *limit_us < us);
        self.counts[class] += 1;
        self.total += hold;
        self.longest = self.longest.max(hold);
    }
}

#[derive(Debug)]
struct Measured {
    state: LiveState,
    holds: Holds,
    /// One hold in so many is measured.
    one_in: u32,
    /// The number of holds before the next that is measured.
    before: u32,
}

impl Measured {
    /// Counts a hold that begins, and returns whether it is measured.
    fn is_due(&mut self) -> bool {
        let is_due = self.before == 0;
        self.before = if is_due { self.one_in } else { self.before } - 1;
        is_due
    }
}

/// A volume's state under its lock.
#[derive(Debug)]
pub struct StateLock(Mutex<Measured>);

impl StateLock {
    /// Returns the lock of `state`.
    pub fn new(state: VolumeState) -> Self {
        Self(Mutex::new(Measured {
            state: LiveState::new(state),
            holds: Holds::default(),
            one_in: match tracing::enabled!(tracing::Level::DEBUG) {
                true => 1,
                false => ONE_IN,
            },
            before: 0,
        }))
    }

    /// Waits for the lock, and takes it.
    #[track_caller]
    pub fn lock(&self) -> StateGuard<'_> {
        StateGuard::measuring(self.0.lock())
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<StateGuard<'_>> {
        let measured = self.0.try_lock()?;
        Some(StateGuard::measuring(measured))
    }

    /// Returns the holds that were measured so far.
    pub fn holds(&self) -> Holds {
        self.0.lock().holds.clone()
    }
}

/// The state, as long as its lock is held.
#[derive(Debug)]
pub struct StateGuard<'a> {
    measured: MutexGuard<'a, Measured>,
    // After the lock: a long hold is logged when the state is unlocked. None if it is not measured.
    hold: Option<Hold>,
}

/// A hold: since when, by which code, and for how long if it was long.
#[derive(Debug)]
struct Hold {
    since: Instant,
    holder: &'static Location<'static>,
    long: Option<Duration>,
}

impl Hold {
    /// Returns a hold by this code that begins now.
    fn by(holder: &'static Location<'static>) -> Self {
        Self {
            since: Instant::now(),
            holder,
            long: None,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(hold) = self.long {
            tracing::debug!(?hold, holder = %self.holder, "the state was locked for long");
        }
    }
}

impl<'a> StateGuard<'a> {
    #[track_caller]
    fn measuring(mut measured: MutexGuard<'a, Measured>) -> Self {
        let hold = measured.is_due().then(|| Hold::by(Location::caller()));
        Self { measured, hold }
    }

    /// Lets the thread that has waited longest have the lock, if there is one, and takes it again.
    #[track_caller]
    pub fn give_way(&mut self) {
        self.count();
        // It is logged when the state is unlocked.
        let long = self.hold.as_mut().and_then(|hold| hold.long.take());
        MutexGuard::bump(&mut self.measured);
        let is_due = self.measured.is_due();
        self.hold = is_due.then(|| Hold::by(Location::caller()));
        if let Some(hold) = &mut self.hold {
            hold.long = long;
        }
    }

    fn count(&mut self) {
        let Some(hold) = &mut self.hold else {
            return;
        };
        let length = hold.since.elapsed();
        self.measured.holds.add(length);
        if length >= LOGGED {
            hold.long = hold.long.max(Some(length));
        }
    }
}

impl Deref for StateGuard<'_> {
    type Target = LiveState;

    fn deref(&self) -> &LiveState {
        &self.measured.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut LiveState {
        &mut self.measured.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use bkfs_chunker::id::Id;

    use super::*;
    use crate::volume::state::Totals;

    #[test]
    fn holds_are_counted_by_their_length() {
        let mut holds = Holds::default();
        for us in [0, 10, 11, 1_000, 1_001, 250_000, 250_001, 90_000_000] {
            holds.add(Duration::from_micros(us));
        }
        assert_eq!(holds.counts, [2, 1, 0, 0, 1, 1, 0, 0, 1, 2]);
        assert_eq!(holds.longest, Duration::from_secs(90));
        assert_eq!(holds.total, Duration::from_micros(90_502_023));
    }

    #[test]
    fn a_hold_is_counted_when_it_ends() {
        let lock = StateLock::new(VolumeState::new(Id([0; 32]), Totals::default()));
        let pause = Duration::from_millis(2);
        {
            let mut state = lock.lock();
            assert!(lock.try_lock().is_none());
            std::thread::sleep(pause);
            state.operation = 7;
        }
        let holds = lock.holds();
        assert_eq!(holds.counts.iter().sum::<u64>(), 1);
        assert!(holds.longest >= pause, "{holds:?}");
        assert_eq!(holds.total, holds.longest);
        assert_eq!(lock.try_lock().map(|state| state.operation), Some(7));
    }

    #[test]
    fn one_hold_in_seventeen_is_measured() {
        let lock = StateLock::new(VolumeState::new(Id([0; 32]), Totals::default()));
        for holds in 1..=35_u64 {
            match holds % 2 {
                0 => drop(lock.lock()),
                _ => drop(lock.try_lock()),
            }
            let measured = lock.holds().counts.iter().sum::<u64>();
            assert_eq!(measured, holds.div_ceil(17), "after {holds}");
        }
    }
}
