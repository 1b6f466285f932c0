//! The trees that a mount brings into the cache (`bkfs hydrate`).
//!
//! Owns the one task that brings them, what is told of it, and which pins belong to which places.
//! Does not own the walk (`hydration`), nor how frames come (the chunker). The task ends with the
//! mount; what it has brought stays, and the next `bkfs hydrate` goes on from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::content_store::{ContentStore, PinProgress};
use bkfs_chunker::pins::{Pin, PinError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::exposition::Exposition;
use crate::hydration::collect::Collector;
use crate::hydration::place::{Place, Planted, describe, places_of};
use crate::hydration::proof::prove;
use crate::json_name::with_name;
use crate::volume::error::VolumeError;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It reads metadata, to know how much there is.
    Planning,
    /// It brings frames.
    Fetching,
    /// All is there.
    Done,
    /// It ended before that.
    Failed,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Phase::Planning => "planning",
            Phase::Fetching => "fetching",
            Phase::Done => "done",
            Phase::Failed => "failed",
        }
    }
}

/// What is known of a task.
struct Facts {
    phase: Phase,
    places: Vec<Planted>,
    /// The stored bytes of all frames; none before they are known.
    total_bytes: Option<u64>,
    /// When the first frame was asked for, and how long the frames took to come once they have.
    began: Option<Instant>,
    took_seconds: Option<f64>,
    failure: Option<HydrationError>,
}

/// A task, running or not.
struct Task {
    number: u64,
    facts: Arc<Mutex<Facts>>,
    progress: Arc<PinProgress>,
    handle: AbortOnDropHandle<()>,
}

/// Why a tree is not brought.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum HydrationError {
    /// The tree has no such path.
    #[error("{0}: no such file or directory")]
    NoSuchPlace(String),
    /// The tree cannot be read.
    #[error(transparent)]
    Volume(Arc<VolumeError>),
    /// It cannot be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Other places are brought now.
    #[error("this mount is bringing other data into the cache now")]
    Busy,
    /// Nothing at these places is pinned.
    #[error("nothing is pinned there")]
    NothingPinned,
}

impl From<VolumeError> for HydrationError {
    fn from(error: VolumeError) -> Self {
        HydrationError::Volume(Arc::new(error))
    }
}

impl HydrationError {
    /// Returns the answer to a request that failed.
    pub(super) fn json(&self, mount_point: &str) -> Value {
        let again = format!(
            "What is in the cache stays, and is not fetched again: repeat the command, or see \
             bkfs status {mount_point}."
        );
        let hint = match self {
            HydrationError::NoSuchPlace(_) => None,
            HydrationError::Volume(_) | HydrationError::Pin(PinError::Content(_)) => Some(again),
            HydrationError::Pin(PinError::NoCache) => {
                Some("Mount with -o cache_size=SIZE, and a cache_dir that can be used.".to_owned())
            }
            HydrationError::Pin(PinError::DoesNotFit { .. }) => Some(format!(
                "Name fewer PATHs, give something up (bkfs hydrate --unpin {mount_point}), or \
                 mount with a larger cache: -o cache_size=SIZE."
            )),
            HydrationError::Pin(PinError::DiskTooSmall { .. }) => Some(
                "Free room on that disk, name fewer PATHs, or mount with -o cache_dir=DIRECTORY \
                 on a larger one."
                    .to_owned(),
            ),
            HydrationError::Pin(PinError::Disk { .. }) => Some(format!("Mend the disk. {again}")),
            HydrationError::Pin(PinError::TooMany) => Some(format!(
                "bkfs hydrate --unpin {mount_point} PATH gives something up."
            )),
            HydrationError::Pin(PinError::Busy | PinError::Gone) | HydrationError::Busy => {
                Some(format!("bkfs status {mount_point} shows what is brought."))
            }
            HydrationError::NothingPinned => {
                Some(format!("bkfs status {mount_point} shows what is pinned."))
            }
        };
        let code = match self {
            HydrationError::Volume(error) if error.is_damage() => 13,
            HydrationError::Busy | HydrationError::Pin(PinError::Busy) => 11,
            _ => 1,
        };
        json!({ "error": self.to_string(), "code": code, "hint": hint })
    }
}

/// The task of a mount.
pub(super) struct Hydrating {
    content_store: ContentStore,
    task: Mutex<Option<Task>>,
    begun: AtomicU64,
}

impl Hydrating {
    pub(super) fn new(content_store: ContentStore) -> Hydrating {
        Hydrating {
            content_store,
            task: Mutex::new(None),
            begun: AtomicU64::new(0),
        }
    }

    /// Begins to bring places, and returns the number of the task. Begins no second task for
    /// places that are being brought.
    ///
    /// # Errors
    /// [`HydrationError::Busy`] if other places are being brought.
    pub(super) fn begin(&self, places: Vec<Planted>) -> Result<Value, HydrationError> {
        let mut task = self.task.lock();
        if let Some(task) = &*task
            && !task.handle.is_finished()
        {
            return match task.facts.lock().places == places {
                true => Ok(json!({ "task": task.number })),
                false => Err(HydrationError::Busy),
            };
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = Arc::new(Mutex::new(Facts {
            phase: Phase::Planning,
            places: places.clone(),
            total_bytes: None,
            began: None,
            took_seconds: None,
            failure: None,
        }));
        let progress = Arc::new(PinProgress::default());
        let (told, counted) = (facts.clone(), progress.clone());
        let content_store = self.content_store.clone();
        let handle = AbortOnDropHandle::new(tokio::spawn(async move {
            let ended = bring(&content_store, &places, &told, &counted).await;
            let mut facts = told.lock();
            facts.took_seconds = facts.began.map(|began| began.elapsed().as_secs_f64());
            facts.phase = match &ended {
                Ok(()) => Phase::Done,
                Err(_) => Phase::Failed,
            };
            if let Err(error) = &ended {
                tracing::warn!("not all is in the cache: {error}");
            }
            facts.failure = ended.err();
        }));
        *task = Some(Task {
            number,
            facts,
            progress,
            handle,
        });
        Ok(json!({ "task": number }))
    }

    /// Ends the task. What it has brought stays in the cache.
    pub(super) fn stop(&self) {
        *self.task.lock() = None;
    }

    /// Returns how far the task with this number is.
    ///
    /// # Errors
    /// That of the task, if it failed; [`PinError::Gone`] if it was given up.
    pub(super) fn look(&self, number: u64) -> Result<Value, HydrationError> {
        let task = self.task.lock();
        let task = task.as_ref().filter(|task| task.number == number);
        let task = task.ok_or(PinError::Gone)?;
        let failure = task.facts.lock().failure.clone();
        failure.map_or_else(|| Ok(task.json()), Err)
    }

    /// Gives up the pins whose places all lie in these. Returns their number, and the bytes of disk
    /// that are free.
    ///
    /// # Errors
    /// [`HydrationError::NothingPinned`] if there are none; otherwise as
    /// [`ContentStore::unpin`].
    pub(super) async fn unpin(&self, places: &[Place]) -> Result<Value, HydrationError> {
        let is_meant =
            |planted: &Planted| places.iter().any(|place| planted.place.is_within(place));
        let stopped = {
            let mut task = self.task.lock();
            let is_stopped = |task: &mut Task| task.facts.lock().places.iter().all(is_meant);
            task.take_if(is_stopped)
        };
        if let Some(task) = stopped {
            task.handle.abort();
            // It holds the lock of the pin until it has ended.
            let _ = task.handle.await;
        }
        let mut gone = Vec::new();
        let mut freed = 0;
        for pin in self.content_store.list_pins() {
            let pinned = places_of(&pin.facts().description);
            if pinned.is_empty() || !pinned.iter().all(is_meant) {
                continue;
            }
            freed += self.content_store.unpin(&pin).await?;
            gone.extend(pinned.iter().map(|planted| planted.place.json()));
        }
        match gone.is_empty() {
            true => Err(HydrationError::NothingPinned),
            false => Ok(json!({ "unpinned": gone, "freed_bytes": freed })),
        }
    }

    /// Reads everything that is pinned at places, in the trees that are pinned, without the store.
    ///
    /// # Errors
    /// [`HydrationError::NothingPinned`] if that is nothing; [`HydrationError::Pin`] if there is no
    /// cache.
    pub(super) async fn check(&self, places: &[Place]) -> Result<Value, HydrationError> {
        let pins = self.content_store.list_pins();
        let pinned = pins
            .iter()
            .flat_map(|pin| places_of(&pin.facts().description));
        let pinned: Vec<Planted> = pinned.collect();
        let mut meant = Vec::new();
        let mut absent = Vec::new();
        for place in places {
            let of_place = |planted: &Planted| match planted.tree() {
                Some(tree) if place.is_within(&planted.place) => {
                    Some(Planted::new(place.clone(), tree))
                }
                Some(_) if planted.place.is_within(place) => Some(planted.clone()),
                _ => None,
            };
            let found: Vec<Planted> = pinned.iter().filter_map(of_place).collect();
            if found.is_empty() {
                absent.push(place);
            }
            for planted in found {
                // Two pins may have it.
                if !meant.contains(&planted) {
                    meant.push(planted);
                }
            }
        }
        if meant.is_empty() {
            return Err(HydrationError::NothingPinned);
        }
        let offline = self.content_store.of_pins_alone()?;
        let proof = prove(&offline, &meant).await;
        let absent = absent.into_iter().map(|place| {
            let why = "nothing of it is pinned";
            with_name(json!({ "why": why }), "path", &place.path())
        });
        let absent: Vec<Value> = absent.collect();
        let unread = proof
            .unread
            .iter()
            .map(|(path, why)| with_name(json!({ "why": why }), "path", path));
        let places = meant.iter().map(|planted| planted.place.json());
        Ok(json!({
            "holds": proof.holds() && absent.is_empty(),
            "places": places.collect::<Vec<_>>(),
            "inodes": proof.inodes,
            "bytes": proof.bytes,
            "unread": absent.into_iter().chain(unread).collect::<Vec<_>>(),
            "unread_beyond": proof.unread_beyond,
            "refused_requests": proof.refused_requests,
        }))
    }

    /// Returns what a mount tells of its pins.
    pub(super) fn status(&self) -> Value {
        let pins = self.content_store.list_pins();
        let (pinned_bytes, cache_bytes) = self.content_store.pinned_bytes();
        let task = self.task.lock();
        json!({
            "task": task.as_ref().map(Task::told),
            "pins": pins.iter().map(|pin| pin_json(pin)).collect::<Vec<_>>(),
            "pinned_bytes": pinned_bytes,
            "cache_bytes": cache_bytes,
        })
    }

    /// Adds the metrics of the task.
    pub(super) fn expose(&self, text: &mut Exposition) {
        let (mut total, mut done, mut is_running) = (0, 0, false);
        if let Some(task) = &*self.task.lock() {
            total = task.facts.lock().total_bytes.unwrap_or(0);
            done = task.done_bytes();
            is_running = !task.handle.is_finished();
        }
        let help = "1 while a tree is brought into the cache, else 0.";
        text.gauge("hydration_running", help, u64::from(is_running));
        let help = "Stored bytes of the tree that is or was brought into the cache last.";
        text.gauge("hydration_total_bytes", help, total);
        let help = "The part of these bytes that is in the cache.";
        text.gauge("hydration_done_bytes", help, done);
        let pins = self.content_store.list_pins();
        let incomplete = pins.iter().filter(|pin| !pin.facts().is_complete).count();
        let help = "Pins of this machine that are not in the cache as a whole.";
        text.gauge("pins_incomplete", help, incomplete as u64);
    }
}

impl Task {
    fn done_bytes(&self) -> u64 {
        let PinProgress {
            found_bytes,
            fetched_bytes,
        } = self.progress.as_ref();
        found_bytes.load(Ordering::Relaxed) + fetched_bytes.load(Ordering::Relaxed)
    }

    fn json(&self) -> Value {
        let facts = self.facts.lock();
        let fetched = self.progress.fetched_bytes.load(Ordering::Relaxed);
        let running = facts.began.map(|began| began.elapsed().as_secs_f64());
        let seconds = facts.took_seconds.or(running).unwrap_or(0.0);
        let rate = match seconds > 0.0 {
            true => (fetched as f64 / seconds) as u64,
            false => 0,
        };
        let left = facts
            .total_bytes
            .map(|total| total.saturating_sub(self.done_bytes()));
        let seconds_left = match facts.phase {
            Phase::Done => Some(0),
            Phase::Planning | Phase::Failed => None,
            Phase::Fetching => left.and_then(|left| left.checked_div(rate)),
        };
        let places = facts.places.iter().map(|planted| planted.place.json());
        json!({
            "phase": facts.phase.word(),
            "places": places.collect::<Vec<_>>(),
            "total_bytes": facts.total_bytes,
            "found_bytes": self.progress.found_bytes.load(Ordering::Relaxed),
            "fetched_bytes": fetched,
            "bytes_per_second": rate,
            "seconds": seconds as u64,
            "seconds_left": seconds_left,
        })
    }

    /// As [`Task::json`], with the failure.
    fn told(&self) -> Value {
        let mut told = self.json();
        let failure = self.facts.lock().failure.as_ref().map(ToString::to_string);
        told["error"] = json!(failure);
        told
    }
}

fn pin_json(pin: &Pin) -> Value {
    let facts = pin.facts();
    let places = places_of(&facts.description);
    json!({
        "places": places.iter().map(|planted| planted.place.json()).collect::<Vec<_>>(),
        "complete": facts.is_complete,
        "blobs": facts.blobs,
        "frames": facts.frames,
        "stored_bytes": facts.stored_bytes,
        "disk_bytes": facts.disk_bytes,
    })
}

/// Brings places: goes on with the pin of an earlier call, or plans a new one, which replaces pins
/// of the same places in other trees once it is whole.
async fn bring(
    content_store: &ContentStore,
    places: &[Planted],
    facts: &Mutex<Facts>,
    progress: &PinProgress,
) -> Result<(), HydrationError> {
    let pins = content_store.list_pins();
    let of = |pin: &Arc<Pin>| places_of(&pin.facts().description);
    let known = pins.iter().find(|pin| of(pin) == places).cloned();
    let pin = match known {
        Some(pin) => pin,
        None => {
            let mut collector = Collector::new(content_store);
            for planted in places {
                if !collector.add(planted).await? {
                    let path = planted.place.path();
                    let path = String::from_utf8_lossy(&path).into_owned();
                    return Err(HydrationError::NoSuchPlace(path));
                }
            }
            let plan = collector.finish().await?;
            content_store.pin(plan, describe(places).into()).await?
        }
    };
    {
        let mut facts = facts.lock();
        facts.total_bytes = Some(pin.facts().stored_bytes);
        facts.began = Some(Instant::now());
        facts.phase = Phase::Fetching;
    }
    content_store.bring(&pin, progress).await?;
    let is_replaced = |other: &&Arc<Pin>| {
        let (other, same) = (of(other), |pair: (&Planted, &Planted)| {
            pair.0.place == pair.1.place
        });
        other.len() == places.len() && other.iter().zip(places).all(same)
    };
    for other in pins
        .iter()
        .filter(|other| !other.is(&pin))
        .filter(is_replaced)
    {
        content_store.unpin(other).await?;
    }
    Ok(())
}
