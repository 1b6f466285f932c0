//! When a change that has lost a race for the root is tried again.
//!
//! Owns the places in which the losers of one race wait. Does not own what is tried.
//!
//! A replacement fails if another one comes after the read of the root that it replaces. So tries
//! that begin one length of a try apart do not disturb each other. The losers of a race know the
//! live sessions of the root, and so an order, in which each waits for its place. All of `n` losers
//! are through after `n` lengths. A few losers among `n` live sessions would wait in vain, though.
//! So the places after the first lost race are few. They become more only if most of those before
//! the own one were taken.

use super::attempt::Attempt;
use super::retry::{PAUSES_IN_TIMEOUT, Pauses, RetryPolicy, random};
use super::state::{SessionId, SessionState};
use bkfs_store::entropy::Entropy;
use bkfs_store::{StoreError, StoreErrorKind};
use std::time::Duration;
use tokio::time::Instant;

/// How many places there are after the first lost race, and the factor by which they grow. Of
/// sessions that begin at once, this many are through after the second race. All are through after
/// the third if they are no more than the square.
const SPREAD: u64 = 16;

/// Places are taken by most if so many of them are, of [`SPREAD`].
const TAKEN: u64 = 12;

/// What [`SPREAD`] is for sessions that enter or leave, which wait for random places.
const SPREAD_OF_STRANGERS: u64 = 8;

/// The largest number of places.
const PLACES_MAX: u64 = 4096;

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(30);

/// The longest wait of sessions that the root to be made does not show. Those that leave have ten
/// seconds for an attempt, and no heartbeat any more.
const LONGEST_OF_STRANGERS: Duration = Duration::from_secs(5);

/// The longest wait after the first lost race, where there may be only two losers.
const LONGEST_FIRST: Duration = Duration::from_secs(2);

/// The races for the root that one change has lost.
#[derive(Debug)]
pub(super) struct Races {
    own: Option<SessionId>,
    /// The longest wait of the caller.
    patience: Duration,
    /// Chooses a place for a session that enters or leaves.
    lot: u64,
    /// The last place and the number of places, once a race was lost.
    place: Option<(u64, u64)>,
    /// The generation of the root on which the last race was lost.
    generation: u64,
    began: Instant,
    has_waited: bool,
}

impl Races {
    /// Returns those of a change that this session makes.
    pub(super) fn of(own: Option<SessionId>, policy: &RetryPolicy, entropy: &dyn Entropy) -> Self {
        Self {
            own,
            patience: policy.stall_timeout / PAUSES_IN_TIMEOUT,
            lot: u64::from_le_bytes(random(entropy)),
            place: None,
            generation: 0,
            began: Instant::now(),
            has_waited: false,
        }
    }

    /// Notes that a try begins.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.has_waited = false;
    }

    /// Ends a try whose first request had this answer. After a lost race it waits until the root is
    /// to be read for the next try.
    ///
    /// Cancel safety: dropped, it has waited for less.
    pub(super) async fn end(
        &mut self,
        attempt: &Attempt,
        error: &StoreError,
        pauses: &mut Pauses<'_>,
    ) {
        if error.kind() != StoreErrorKind::Conflict {
            return;
        }
        let place = self.place_after(attempt);
        let longest = match self.place.replace(place) {
            None => LONGEST_FIRST,
            Some(_) if self.shown(attempt).is_none() => LONGEST_OF_STRANGERS,
            Some(_) => LONGEST,
        };
        self.generation = attempt.base.generation;
        // The next try begins with a read, which takes about as long as the replacement.
        let length = self.began.elapsed() * 2;
        let wait = wait(place, length, longest.min(self.patience));
        tokio::time::sleep(wait).await;
        self.has_waited = true;
        // The store answers: what follows has all of the caller's patience.
        pauses.restart();
    }

    /// Pauses after a change that was superseded, unless it has waited for its place.
    pub(super) async fn pause(&self, pauses: &mut Pauses<'_>) {
        if !self.has_waited {
            pauses.sleep().await;
        }
    }

    /// Returns the session that makes the change, if the root to be made shows it.
    fn shown(&self, attempt: &Attempt) -> Option<SessionId> {
        let sessions = &attempt.next.root.sessions;
        self.own.filter(|own| sessions.contains_key(own))
    }

    /// Returns the place of this change after this attempt has lost, and the number of places.
    fn place_after(&self, attempt: &Attempt) -> (u64, u64) {
        let Some(own) = self.shown(attempt) else {
            let places = self.places(attempt.base.generation, SPREAD_OF_STRANGERS);
            return (self.lot % places, places);
        };
        let (mut before, mut live) = (0, 0);
        for (id, session) in &attempt.next.root.sessions {
            if session.state == SessionState::Live {
                live += 1;
                before += u64::from(*id < own);
            }
        }
        let live = live.max(1);
        let places = self.places(attempt.base.generation, SPREAD).min(live);
        (before * places / live, places)
    }

    /// Returns how many places there are after another race that was lost on this generation.
    fn places(&self, generation: u64, spread: u64) -> u64 {
        let Some((place, places)) = self.place else {
            return spread;
        };
        let taken = generation.saturating_sub(self.generation);
        match taken.saturating_mul(SPREAD) >= (place + 1) * TAKEN {
            true => places.saturating_mul(spread).min(PLACES_MAX),
            false => places,
        }
    }
}

/// Returns the wait for a place, of tries of this length. All places are reached within `longest`.
fn wait((place, places): (u64, u64), length: Duration, longest: Duration) -> Duration {
    let all = length.saturating_mul(places as u32).min(longest);
    all.mul_f64(place as f64 / places as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_length_apart_within_the_longest_wait() {
        let length = Duration::from_millis(40);
        for place in 0..64 {
            let waited = wait((place, 64), length, LONGEST);
            assert_eq!(waited.as_millis(), u128::from(place) * 40);
        }
        assert_eq!(wait((0, 1), length, LONGEST), Duration::ZERO);
        let half = wait((2048, 4096), Duration::from_secs(1), LONGEST);
        assert_eq!(half, LONGEST / 2);
    }
}
