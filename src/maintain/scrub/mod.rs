//! Scrubbing: reads and verifies all packs of a repository in the background, slowly, round after
//! round.
//!
//! Owns the round. Live packs are read whole from the bucket, in the order of their names and at a
//! rate, and verified. The position is remembered, so that a round goes on in the next mount.
//!
//! A damaged pack is read twice, and compared with the newest root: a pack that collection has
//! deleted meanwhile is no damage. Damage goes into quarantine, as with `check --repair`, so that
//! the next write of the same data stores it again. An index object that cannot be read is named,
//! and the packs of the others are verified all the same. `check` tells which files are touched.
//! Does not own what a mount shows of the scrubbing.
//!
//! **Memory**: the index entries of at most [`BATCH_PACKS`] packs (or of a million blobs, 21 bytes
//! each), one index object, and one pack. Between batches the index is read again, which counts
//! against the rate.

mod position;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, PackDamage, Verifier};
use bkfs_store::rate_limit::Meter;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::Clock;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::lists::Lists;
use crate::root::view::RootView;
pub use position::{Claim, Position, PositionFile};

/// Packs whose index entries are held at a time.
pub const BATCH_PACKS: usize = 512;

/// Blobs of these packs, at most, unless it is one pack.
const BATCH_BLOBS: usize = 1 << 20;

/// The pause after an error of the store.
const REST: Duration = Duration::from_secs(60);

/// The pause between the end of a round and the next one, in this mount or another. Reading the
/// same again at once gains nothing.
const BETWEEN_ROUNDS: SignedDuration = SignedDuration::from_hours(1);

/// The pause after which the traffic of others is read again, while they are busy.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// How long the traffic of others is watched before each pack.
const GLANCE: Duration = Duration::from_millis(100);

/// How often, at most, the traffic is watched for one pack. A mount that is always busy is scrubbed
/// all the same, only slower.
const BUSY_MAX: u32 = 27;

/// The mount that scrubbing runs in: it puts damage in quarantine, and has traffic that goes first.
#[async_trait::async_trait]
pub trait Surroundings: Send + Sync {
    /// Puts damaged places in quarantine that are not there yet. Returns false if it does not,
    /// because nothing may be written.
    ///
    /// # Errors
    /// The [`RootError`] that kept the places out of quarantine. The next round finds them again.
    async fn quarantine(&self, places: &[PackLocation]) -> Result<bool, RootError>;

    /// Returns the bytes that others have read and written so far. While the number grows, they go
    /// first.
    fn traffic_bytes(&self) -> u64;
}

/// The state of the scrubbing, for display.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The last pack of this round that was verified. None at the beginning of a round.
    pub position: Option<String>,
    /// Bytes verified in this round.
    pub round_bytes: u64,
    /// Bytes of all live packs when the index was last read; 0 until then.
    pub total_bytes: u64,
    /// Bytes verified since the mount.
    pub verified_bytes: u64,
    /// When the last full round ended (RFC 3339).
    pub last_round: Option<String>,
    /// Packs found damaged or missing in this round that were not in quarantine before, and index
    /// objects that cannot be read.
    pub damaged: u64,
    /// The same in the last full round.
    pub last_round_damaged: u64,
    /// Places in quarantine, those of other sessions included.
    pub quarantined: u64,
    /// What hinders the scrubbing, and what to do about it.
    pub error: Option<String>,
}

impl Facts {
    /// Returns when the last full round ended, in seconds since 1970; 0 for never.
    pub fn last_round_seconds(&self) -> u64 {
        let time = self.last_round.as_ref().and_then(|time| time.parse().ok());
        time.map_or(0, |time: Timestamp| {
            u64::try_from(time.as_second()).unwrap_or(0)
        })
    }
}

/// Verifies packs until it is dropped.
pub struct Scrubber {
    /// The root.
    pub handle: RootHandle,
    /// Its lists.
    pub lists: Lists,
    /// Reads packs.
    pub verifier: Verifier,
    /// Tells the time at which a round ended.
    pub clock: Arc<dyn Clock>,
    /// Keeps the position across mounts.
    pub memory: PositionFile,
    /// The mount.
    pub surroundings: Arc<dyn Surroundings>,
    /// The rate in bytes per second.
    pub rate: u64,
    /// The state that is displayed.
    pub facts: Arc<Mutex<Facts>>,
}

/// The packs that are verified next, in the order of their names.
#[derive(Default)]
struct Batch {
    packs: BTreeMap<PackName, PackContents>,
    blobs: usize,
    /// Bytes of all live packs.
    total_bytes: u64,
    /// Why index objects cannot be read, one text for each.
    broken: Vec<String>,
    /// Live packs with higher names were left out.
    is_partial: bool,
}

impl Scrubber {
    /// Verifies packs from the remembered position, without an end. Cancel safety: dropped at any
    /// moment, it leaves at most one verified pack to be verified again.
    pub async fn run(self) {
        self.facts.lock().rate = self.rate;
        let _claim = self.claim().await;
        let mut position = self.memory.recall().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "where the scrubbing was is not known: it begins anew");
            Position::default()
        });
        self.facts.lock().error = None;
        // The places in quarantine are shown at once, even if the next round is far off.
        if let Err(error) = self.quarantine(&self.handle.current()).await {
            self.hindered(format!("what is in quarantine is not known: {error}"));
        }
        let rate = Meter::new(Some(self.rate.max(1)));
        loop {
            self.show(&position);
            tokio::time::sleep(self.rest(&position)).await;
            match self.go_on(&mut position, &rate).await {
                Ok(true) => {}
                Ok(false) => self.end_round(&mut position).await,
                Err(error) => {
                    self.hindered(format!("it rests for a minute: {error}"));
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    /// Waits until no other mount of this machine scrubs the same repository. On a machine where
    /// that cannot be told, two mounts may scrub it.
    async fn claim(&self) -> Option<Claim> {
        loop {
            match self.memory.claim().await {
                Ok(Some(claim)) => return Some(claim),
                Ok(None) => {
                    let other = "another mount on this machine scrubs this repository";
                    self.hindered(other.to_owned());
                }
                Err(error) => {
                    tracing::warn!(%error, "whether another mount scrubs too is not known");
                    return None;
                }
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Shows what hinders the scrubbing, and logs a warning if it is new.
    fn hindered(&self, why: String) {
        let shown = self.facts.lock().error.replace(why.clone());
        if shown.as_ref() != Some(&why) {
            tracing::warn!("scrubbing: {why}");
        }
    }

    fn show(&self, position: &Position) {
        let mut facts = self.facts.lock();
        facts.position = position.after.map(|name| name.to_string());
        facts.round_bytes = position.bytes;
        facts.damaged = position.damaged;
        facts.last_round.clone_from(&position.last_round);
        facts.last_round_damaged = position.last_round_damaged;
    }

    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        Timestamp::new(now.seconds, now.nanoseconds as i32).unwrap_or_default()
    }

    /// Returns the pause before the next pack: none within a round. A last round that ended in the
    /// future, by a clock that was wrong, causes no pause.
    fn rest(&self, position: &Position) -> Duration {
        let last = position
            .last_round
            .as_ref()
            .filter(|_| position.after.is_none());
        let Some(last) = last.and_then(|last| last.parse::<Timestamp>().ok()) else {
            return Duration::ZERO;
        };
        let since = self.now().duration_since(last);
        match since.is_negative() {
            true => Duration::ZERO,
            false => Duration::try_from(BETWEEN_ROUNDS - since).unwrap_or_default(),
        }
    }

    async fn end_round(&self, position: &mut Position) {
        let now = self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        match position.damaged {
            0 => tracing::info!(bytes = position.bytes, "all packs were verified"),
            damaged => tracing::warn!(
                damaged,
                bytes = position.bytes,
                "all packs were read, and there is damage: bkfs check --read-data names the files"
            ),
        }
        *position = Position {
            last_round: Some(now),
            last_round_damaged: position.damaged,
            ..Position::default()
        };
        self.remember(position).await;
    }

    async fn remember(&self, position: &Position) {
        self.show(position);
        if let Err(error) = self.memory.remember(position).await {
            tracing::debug!(%error, "where the scrubbing is cannot be remembered");
        }
    }

    /// Returns the places that this root has in quarantine.
    async fn quarantine(&self, view: &RootView) -> Result<HashSet<PackLocation>, RootError> {
        let quarantine = self.lists.quarantine(&view.root).await?;
        self.facts.lock().quarantined = quarantine.len() as u64;
        Ok(quarantine)
    }

    /// Verifies the next packs on the newest root. Returns false if no packs follow. If a collector
    /// deleted something meanwhile, the next call goes on with its root.
    async fn go_on(&self, position: &mut Position, rate: &Meter) -> Result<bool, RootError> {
        let view = self.handle.refresh().await?;
        match self.batch(&view, position, rate).await {
            Err(error) => self.handle.moved_on(&view, error).await.map(|_| true),
            done => done,
        }
    }

    async fn batch(
        &self,
        view: &RootView,
        position: &mut Position,
        rate: &Meter,
    ) -> Result<bool, RootError> {
        let quarantine = self.quarantine(view).await?;
        let batch = self.next_packs(view, position.after, rate).await?;
        self.facts.lock().total_bytes = batch.total_bytes;
        match batch.broken.first() {
            Some(why) => self.hindered(format!("{why}: bkfs check --repair rebuilds it")),
            None => self.facts.lock().error = None,
        }
        for pack in batch.packs.values() {
            self.wait(rate).await;
            let found = self.verify(pack, rate).await?;
            position.after = Some(pack.name());
            position.bytes += pack.bytes();
            self.facts.lock().verified_bytes += pack.bytes();
            if !found.is_empty() {
                self.damaged(pack, &found, &quarantine, position).await;
            }
            self.remember(position).await;
        }
        if !batch.is_partial {
            position.damaged += batch.broken.len() as u64;
        }
        Ok(batch.is_partial)
    }

    /// Waits until the rate allows more and others are not busy.
    async fn wait(&self, rate: &Meter) {
        rate.pass(0, || ()).await;
        let mut before = self.surroundings.traffic_bytes();
        for _ in 0..BUSY_MAX {
            tokio::time::sleep(GLANCE).await;
            let now = self.surroundings.traffic_bytes();
            if now == before {
                return;
            }
            before = now;
            tokio::time::sleep(BUSY_INTERVAL).await;
        }
    }

    /// Returns the first live packs whose names are above `after`.
    async fn next_packs(
        &self,
        view: &RootView,
        after: Option<PackName>,
        rate: &Meter,
    ) -> Result<Batch, RootError> {
        let mut batch = Batch::default();
        let mut total_bytes = 0;
        let broken = self.live_packs(view, rate, |pack| {
            total_bytes += pack.bytes();
            if after.is_none_or(|after| pack.name() > after) {
                batch.add(pack);
            }
        });
        batch.broken = broken.await?;
        batch.total_bytes = total_bytes;
        Ok(batch)
    }

    /// Calls `each` with every live pack that this root names. Returns why index objects cannot be
    /// read that the newest root names too.
    async fn live_packs(
        &self,
        view: &RootView,
        rate: &Meter,
        mut each: impl FnMut(PackContents),
    ) -> Result<Vec<String>, RootError> {
        let condemned = self.lists.condemned(&view.root).await?;
        let mut broken = Vec::new();
        for index in &view.root.index {
            let read = self.verifier.index(*index).await;
            rate.passed(index.bytes);
            match read {
                Ok(packs) => packs
                    .into_iter()
                    .filter(|pack| !condemned.contains(&pack.name()))
                    .for_each(&mut each),
                Err(error) if error.is_of_the_store() => return Err(error.into()),
                Err(error) => match self.handle.refresh().await?.root.index.contains(index) {
                    true => broken.push(error.to_string()),
                    false => return Err(error.into()),
                },
            }
        }
        Ok(broken)
    }

    /// Returns the damage of a pack. A damaged pack is read a second time; the result is the second
    /// one, unless the pack is no longer live.
    async fn verify(
        &self,
        pack: &PackContents,
        rate: &Meter,
    ) -> Result<Vec<PackDamage>, RootError> {
        let walked = self.verifier.walk(pack, &mut |_| ()).await?;
        rate.passed(pack.bytes());
        if walked.damage.is_empty() {
            return Ok(Vec::new());
        }
        if !self.is_live(pack, rate).await? {
            return Ok(Vec::new());
        }
        let again = self.verifier.walk(pack, &mut |_| ()).await?;
        rate.passed(pack.bytes());
        match again.damage.is_empty() || self.is_live(pack, rate).await? {
            true => Ok(again.damage),
            false => Ok(Vec::new()),
        }
    }

    /// Returns true if the newest root still names the pack as live.
    async fn is_live(&self, pack: &PackContents, rate: &Meter) -> Result<bool, RootError> {
        let view = self.handle.refresh().await?;
        let mut is_there = false;
        let look = |held: PackContents| is_there |= held.name() == pack.name();
        self.live_packs(&view, rate, look).await?;
        Ok(is_there)
    }

    async fn damaged(
        &self,
        pack: &PackContents,
        found: &[PackDamage],
        quarantine: &HashSet<PackLocation>,
        position: &mut Position,
    ) {
        // What is in a refused pack is not known.
        let found: Vec<&PackDamage> = found.iter().filter(|damage| !damage.refused).collect();
        let is_missing = found.iter().any(|damage| damage.is_absence());
        let place = |frame| PackLocation {
            pack: pack.name(),
            frame,
        };
        let places = found
            .iter()
            .map(|damage| place(damage.frame.filter(|_| !is_missing)));
        let mut places: Vec<PackLocation> = places.collect();
        places.retain(|place| !quarantine.contains(place));
        let mut seen = HashSet::new();
        places.retain(|place| seen.insert(*place));
        if places.is_empty() || quarantine.contains(&place(None)) {
            return;
        }
        position.damaged += 1;
        tracing::warn!(
            pack = %pack.key(),
            places = places.len(),
            what = %found[0].what,
            "scrubbing found damage: bkfs check --read-data names the files that it touches"
        );
        match self.surroundings.quarantine(&places).await {
            Ok(true) => self.facts.lock().quarantined += places.len() as u64,
            Ok(false) => tracing::warn!(
                "a read-only mount puts nothing in quarantine: bkfs check --repair does that"
            ),
            Err(error) => {
                tracing::warn!(%error,
                    "it could not be put in quarantine: bkfs check --repair does that");
            }
        }
    }
}

impl Batch {
    fn add(&mut self, pack: PackContents) {
        self.blobs += pack.blob_count();
        if let Some(other) = self.packs.insert(pack.name(), pack) {
            self.blobs -= other.blob_count();
        }
        while self.packs.len() > BATCH_PACKS || (self.blobs > BATCH_BLOBS && self.packs.len() > 1) {
            let Some((_, last)) = self.packs.pop_last() else {
                break;
            };
            self.blobs -= last.blob_count();
            self.is_partial = true;
        }
    }
}
