//! The traces of a mount: what it records, and the one that it replays.
//!
//! Owns the one task that replays, what is told of it, and when a clone replays by itself. Does not
//! own how a trace is stored (`recording`), nor how a replay fetches (`trace::replay`). A replay is
//! a hint: whatever happens to it, the mount goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::content_store::PrefetchCounts;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::exposition::Exposition;
use crate::mounting::departing::Departing;
use crate::mounting::error::MountingError;
use crate::mounting::recording::{RecordError, Recording, RecordingParts};
use crate::mounting::trace_store::TraceStoreError;
use crate::repository::Repository;
use crate::root::error::ErrorKind;
use crate::trace::format::Trace;
use crate::trace::replay::{Replay, ReplayCounts};
use crate::trace::stored::{NONE, Stored, StoredError, VOLUME, load};
use crate::trace::touches::Touches;
use crate::vfs::live::Current;
use crate::volume::state::Totals;
use crate::volume::view::View;

/// Why a request about traces is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum TracesError {
    /// Another trace is being replayed.
    #[error("this mount replays another trace now")]
    Busy,
    /// There is no such replay.
    #[error("the replay of this number is no longer the last one")]
    Gone,
    /// The replay ended early.
    #[error("the replay of the trace broke off: {0}")]
    BrokeOff(String),
    /// The trace cannot be read.
    #[error(transparent)]
    Stored(#[from] StoredError),
    /// No trace is stored.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl TracesError {
    /// Returns the answer to a request that failed.
    pub(super) fn json(&self) -> Value {
        let held = |error: &MountingError| match error {
            MountingError::Root(error) => {
                matches!(error.kind(), ErrorKind::Held | ErrorKind::Fenced)
            }
            _ => false,
        };
        let (code, hint) = match self {
            TracesError::Record(RecordError::Store(TraceStoreError::Session(error)))
                if held(error) =>
            {
                let hint = format!(
                    "Another session writes to the volume {VOLUME}. Run the command again when it \
                     has ended."
                );
                (11, Some(hint))
            }
            TracesError::Busy => (11, Some("bkfs status shows how far it is.".to_owned())),
            TracesError::Stored(StoredError::Absent { .. }) => {
                (1, Some("bkfs trace list lists the traces.".to_owned()))
            }
            TracesError::Stored(StoredError::NoTrace { .. }) => (13, None),
            TracesError::Record(RecordError::Store(TraceStoreError::Stored(
                StoredError::NoTrace { .. },
            ))) => (
                1,
                Some("Choose another name: that file is no trace.".to_owned()),
            ),
            _ => (1, None),
        };
        json!({ "error": self.to_string(), "code": code, "hint": hint })
    }
}

/// What is known of a replay.
#[derive(Default)]
struct Facts {
    /// The name of the trace; none until the newest one is known.
    name: Option<String>,
    /// The replay while it runs.
    replay: Option<Arc<Replay>>,
    /// What is left of it at its end.
    counts: Option<(ReplayCounts, PrefetchCounts)>,
    began: Option<Instant>,
    took_seconds: Option<f64>,
    is_over: bool,
    failure: Option<String>,
}

impl Facts {
    /// Notes the end of the replay, and gives back its memory.
    fn end(&mut self, ended: Result<(), String>) {
        self.took_seconds = self.began.map(|began| began.elapsed().as_secs_f64());
        self.counts = self.replay.take().map(|replay| replay.counts());
        self.is_over = true;
        self.failure = ended.err();
    }

    /// Returns how far it is; `None` before its trace is read.
    fn counts(&self) -> Option<(ReplayCounts, PrefetchCounts)> {
        let running = self.replay.as_ref().map(|replay| replay.counts());
        running.or(self.counts)
    }
}

/// A replay, running or not.
struct Task {
    number: u64,
    facts: Arc<Mutex<Facts>>,
    handle: AbortOnDropHandle<()>,
}

/// The traces of a mount.
pub(super) struct Traces {
    repository: Arc<Repository>,
    /// The volume of the snapshots that the traces are for.
    volume: String,
    current: Arc<Current>,
    /// What was read; none if the mount does not record.
    touches: Option<Arc<Touches>>,
    task: Mutex<Option<Task>>,
    begun: AtomicU64,
    recording: Recording,
}

impl Traces {
    /// Returns the traces for snapshots of `volume` in a mount that shows `current`.
    pub(super) fn new(
        repository: Arc<Repository>,
        volume: String,
        current: Arc<Current>,
        touches: Option<Arc<Touches>>,
    ) -> Traces {
        let recording = Recording::new(RecordingParts {
            repository: repository.clone(),
            volume: volume.clone(),
            tree: current.view().base(),
            touches: touches.clone(),
            departing: Departing::new(repository.handle.clone()),
        });
        Traces {
            recording,
            repository,
            volume,
            current,
            touches,
            task: Mutex::new(None),
            begun: AtomicU64::new(0),
        }
    }

    /// Begins the replay of the trace that the mount options choose: this one, or for a clone the
    /// newest. Reads it in the background, so that the mount waits for nothing.
    pub(super) fn begin_at_mount(&self, choice: Option<&str>) {
        if choice == Some(NONE) {
            return;
        }
        let name = choice.map(str::to_owned);
        // A repository without traces costs no request.
        let root = &self.repository.handle.current().root;
        if name.is_none() && (self.touches.is_none() || !root.volumes.contains_key(VOLUME)) {
            return;
        }
        let (repository, volume) = (self.repository.clone(), self.volume.clone());
        let chosen = chosen(repository, volume, name.clone());
        // It is the first replay, so none is under way.
        let _ = self.spawn(name, chosen);
    }

    /// Begins the replay of a trace, and returns its number. Begins no second one of the same.
    ///
    /// # Errors
    /// [`TracesError::Stored`] if it cannot be read; [`TracesError::Busy`].
    pub(super) async fn begin(&self, name: &str) -> Result<Value, TracesError> {
        let trace = load(&self.repository, &self.volume, name).await?;
        let named = name.to_owned();
        let number = self.spawn(Some(name.to_owned()), async { Ok(Some((named, trace))) })?;
        Ok(json!({ "task": number }))
    }

    fn spawn(
        &self,
        name: Option<String>,
        chosen: impl Future<Output = Result<Option<(String, Trace)>, StoredError>> + Send + 'static,
    ) -> Result<u64, TracesError> {
        let mut task = self.task.lock();
        if let Some(task) = task.as_ref().filter(|task| !task.handle.is_finished()) {
            return match task.facts.lock().name == name {
                true => Ok(task.number),
                false => Err(TracesError::Busy),
            };
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = Arc::new(Mutex::new(Facts {
            name,
            ..Facts::default()
        }));
        let (told, touches) = (facts.clone(), self.touches.clone());
        let (repository, current) = (self.repository.clone(), self.current.clone());
        let handle = AbortOnDropHandle::new(tokio::spawn(async move {
            let run = async {
                let Some((name, trace)) = chosen.await.map_err(|error| error.to_string())? else {
                    return Ok(());
                };
                tracing::info!(name, ranges = trace.touches.len(), "a trace is replayed");
                let content_store = &repository.content_store;
                let nodes = Arc::new(repository.nodes.reading_by(content_store.ahead()));
                let view = View::frozen(nodes, current.view().base(), Totals::default());
                let replay = Arc::new(Replay::new(view, trace, content_store.prefetch_list()));
                {
                    let mut facts = told.lock();
                    facts.name = Some(name);
                    facts.replay = Some(replay.clone());
                    facts.began = Some(Instant::now());
                }
                let ran = replay.run(touches.as_deref()).await;
                ran.map_err(|error| error.to_string())
            };
            let ended: Result<(), String> = run.await;
            if let Err(error) = &ended {
                tracing::warn!("no trace is replayed, or not all of it: {error}");
            }
            told.lock().end(ended);
        }));
        *task = Some(Task {
            number,
            facts,
            handle,
        });
        Ok(number)
    }

    /// Returns how far the replay with this number is.
    ///
    /// # Errors
    /// [`TracesError::BrokeOff`], [`TracesError::Gone`].
    pub(super) fn look(&self, number: u64) -> Result<Value, TracesError> {
        let task = self.task.lock();
        let task = task.as_ref().filter(|task| task.number == number);
        let task = task.ok_or(TracesError::Gone)?;
        let failure = task.facts.lock().failure.clone();
        match failure {
            Some(error) => Err(TracesError::BrokeOff(error)),
            None => Ok(task.json()),
        }
    }

    /// Returns how much was touched.
    ///
    /// # Errors
    /// [`RecordError::NotRecording`].
    pub(super) fn touched(&self) -> Result<Value, TracesError> {
        match self.touches_json() {
            Value::Null => Err(RecordError::NotRecording.into()),
            told => Ok(told),
        }
    }

    /// Stores what was touched first as a trace.
    ///
    /// # Errors
    /// [`TracesError::Record`].
    pub(super) async fn record(&self, name: &str) -> Result<Value, TracesError> {
        Ok(self.recording.record(name).await?)
    }

    /// Ends the replay. What it has fetched stays in the cache.
    pub(super) fn stop(&self) {
        *self.task.lock() = None;
    }

    /// What the mount records.
    pub(super) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns what a mount tells of its traces.
    pub(super) fn status(&self) -> Value {
        let task = self.task.lock();
        json!({
            "volume": self.volume,
            "touches": self.touches_json(),
            "replay": task.as_ref().map(Task::json),
        })
    }

    fn touches_json(&self) -> Value {
        let Some(touches) = &self.touches else {
            return Value::Null;
        };
        let counts = touches.counts();
        json!({
            "ranges": counts.ranges,
            "first_touches": counts.first_touches,
            "hits": counts.hits,
            "full": counts.is_full,
            "quiet_ms": counts.quiet_ms,
        })
    }

    /// Adds the metrics of the replay.
    pub(super) fn expose(&self, text: &mut Exposition) {
        let (mut total, mut done, mut fetched, mut is_running) = (0, 0, 0, false);
        if let Some(task) = &*self.task.lock() {
            if let Some((counts, frames)) = task.facts.lock().counts() {
                (total, done) = (counts.total_bytes, counts.done_bytes);
                fetched = frames.fetched_bytes;
            }
            is_running = !task.handle.is_finished();
        }
        let help = "1 while a trace is replayed, else 0.";
        text.gauge("trace_replay_running", help, u64::from(is_running));
        let help = "Bytes of files that the trace names that is or was replayed last.";
        text.gauge("trace_replay_total_bytes", help, total);
        let help = "The part of these bytes that the replay is done with.";
        text.gauge("trace_replay_done_bytes", help, done);
        let help = "Stored bytes that the replay has fetched.";
        text.gauge("trace_replay_fetched_bytes", help, fetched);
        let counts = self.touches.as_ref().map(|touches| touches.counts());
        let (first, hits) = counts.map_or((0, 0), |counts| (counts.first_touches, counts.hits));
        let help = "Places of 16 KiB of a clone that were read for the first time.";
        text.gauge("trace_first_touches", help, first);
        let help = "Those of them that a replay had asked for before.";
        text.gauge("trace_hits", help, hits);
    }
}

/// Returns the trace that the mount options choose; `None` if there is none for the volume.
async fn chosen(
    repository: Arc<Repository>,
    volume: String,
    name: Option<String>,
) -> Result<Option<(String, Trace)>, StoredError> {
    if let Some(name) = name {
        let trace = load(&repository, &volume, &name).await?;
        return Ok(Some((name, trace)));
    }
    let Some(stored) = Stored::open(&repository).await? else {
        return Ok(None);
    };
    let newest = stored.list(Some(&volume)).await?.into_iter().next();
    match newest {
        Some(newest) => {
            let trace = stored.read(&volume, &newest.name).await?;
            Ok(Some((newest.name, trace)))
        }
        None => Ok(None),
    }
}

impl Task {
    fn json(&self) -> Value {
        let facts = self.facts.lock();
        if facts.is_over && facts.counts.is_none() && facts.failure.is_none() {
            // There is no trace for the volume.
            return Value::Null;
        }
        let (counts, frames) = facts.counts().unwrap_or_default();
        let running = facts.began.map(|began| began.elapsed().as_secs_f64());
        let seconds = facts.took_seconds.or(running).unwrap_or(0.0);
        let rate = |bytes: u64| match seconds > 0.0 {
            true => (bytes as f64 / seconds) as u64,
            false => 0,
        };
        let phase = match (facts.is_over, &facts.failure, &facts.replay) {
            (true, Some(_), _) => "failed",
            (true, None, _) => "done",
            (false, _, None) => "reading",
            (false, _, Some(_)) => "fetching",
        };
        let left = counts.total_bytes.saturating_sub(counts.done_bytes);
        let seconds_left = match phase {
            "done" => Some(0),
            "fetching" => left.checked_div(rate(counts.done_bytes)),
            _ => None,
        };
        json!({
            "name": facts.name,
            "phase": phase,
            "total_bytes": counts.total_bytes,
            "done_bytes": counts.done_bytes,
            "found_bytes": frames.found_bytes,
            "fetched_bytes": frames.fetched_bytes,
            "failed_frames": frames.failed_frames,
            "absent_files": counts.absent_files,
            "full": counts.is_full,
            "bytes_per_second": rate(frames.fetched_bytes),
            "seconds": seconds as u64,
            "seconds_left": seconds_left,
            "error": facts.failure,
        })
    }
}
