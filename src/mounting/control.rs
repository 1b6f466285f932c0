//! Status of a mount, and the requests written to `.bkfs/control`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bkfs_store::Outage;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exposition::Exposition;
use crate::json_name::with_name;
use crate::mounting::advice::refusal;
use crate::mounting::hydrating::Hydrating;
use crate::mounting::placing::{Paths, Shown};
use crate::mounting::scrubbing::Scrubbing;
use crate::mounting::spooling::SpoolNews;
use crate::mounting::supervisor::MountSupervisor;
use crate::mounting::traces::Traces;
use crate::mounting::waiting::Waiting;
use crate::outage::fails_in;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::snapshots::{SnapshotEntry, check_new, check_words};
use crate::root::state::HolderInfo;
use crate::tree::item::Timestamp;
use crate::vfs::live::Current;
use crate::vfs::special::Control;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};
use crate::volume::unsaved::Unsaved;

/// How long changes wait, from the end of the commit, for an announced unmount.
const FREEZE: Duration = Duration::from_secs(10);

/// How long a question for a name waits for the list of snapshots. A store that is away must not
/// keep a backup from starting.
const NAME_WAIT: Duration = Duration::from_secs(5);

/// Files waiting to be stored that are listed by name; the others are counted.
const PENDING_FILES_MAX: usize = 1000;

/// How long `status` waits for the list of snapshots, if the memory does not have it.
const LIST_PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits if an outage is known. A full bucket still answers reads.
const LIST_PATIENCE_IN_OUTAGE: Duration = Duration::from_millis(300);

/// Answers requests to the control files of a mount.
pub struct MountControl {
    /// Path and source of the mount.
    pub repository: Arc<Repository>,
    /// The volume's name.
    pub volume_name: String,
    /// The present view of the mount.
    pub(super) current: Arc<Current>,
    /// Keeps the mount writable; `None` if it is read-only.
    pub(super) supervisor: Option<Arc<MountSupervisor>>,
    /// What the root of the mount shows.
    pub(super) shown: Shown,
    /// Trees that are brought into the cache.
    pub(super) hydrating: Hydrating,
    /// What is recorded and replayed.
    pub(super) traces: Traces,
    /// Background verification, if it was requested.
    pub(super) scrubbing: Option<Arc<Scrubbing>>,
    /// This process.
    pub holder: HolderInfo,
    /// When it was mounted, RFC 3339.
    pub since: String,
    /// File for the result of the mount.
    pub outcome: Option<PathBuf>,
    /// Unmounts announced so far: only the last one's freeze may end by itself.
    pub drains: Arc<AtomicU64>,
}

/// A request, as written to `.bkfs/control`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Make a snapshot.
    Snapshot(WantedSnapshot),
    /// Say whether a snapshot could have this name and these tags.
    Name(WantedSnapshot),
    /// Commit everything, and freeze the volume until the unmount.
    Drain {},
    /// The unmount failed.
    Resume {},
    /// The status, with the names of files that are not in the bucket.
    Status {},
    /// Drop the list of lost files, and continue from the last commit.
    Acknowledge {},
    /// Bring what lies below these paths into the cache, and keep it there.
    Hydrate(Paths),
    /// How far the task with this number is.
    Hydration(u64),
    /// Keep it no longer.
    Unpin(Paths),
    /// Read it without the store.
    Proof(Paths),
    /// How much was read first.
    Touches {},
    /// Store it as the trace of this name.
    Record(String),
    /// Fetch what the trace of this name tells.
    Replay(String),
    /// How far the replay with this number is.
    Replayed(u64),
}

/// What a snapshot is to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedSnapshot {
    name: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    /// Whether an older one of this name goes into the trash.
    #[serde(default)]
    replace: bool,
}

/// Returns the last drill of a snapshot.
fn drill_of(entry: &SnapshotEntry) -> Value {
    match &entry.drill {
        None => Value::Null,
        Some(drill) => json!({
            "time": drill.time.strftime(TIME_FORM).to_string(),
            "ok": drill.is_good,
        }),
    }
}

impl MountControl {
    async fn carry_out(&self, request: Request) -> Result<Value, VolumeError> {
        let request = match request {
            Request::Hydrate(_) | Request::Hydration(_) => return Ok(self.hydrate(request).await),
            Request::Unpin(_) | Request::Proof(_) => return Ok(self.hydrate(request).await),
            Request::Touches {} | Request::Record(_) => return Ok(self.trace(request).await),
            Request::Replay(_) | Request::Replayed(_) => return Ok(self.trace(request).await),
            request => request,
        };
        let (Some(volume), Some(supervisor)) = (self.current.volume(), &self.supervisor) else {
            return match request {
                Request::Snapshot(_) | Request::Name(_) => Err(VolumeError::ReadOnly),
                Request::Status {} => Ok(self.told().await),
                _ => Ok(json!({ "generation": self.generation() })),
            };
        };
        match request {
            Request::Status {} => {
                let mut facts = self.told().await;
                let (pending, beyond) = match volume.failure() {
                    // Data that is not stored now is lost, and listed as lost.
                    Some(_) => Default::default(),
                    None => volume.unsaved(PENDING_FILES_MAX).await,
                };
                facts["pending_files"] = listed(&pending);
                facts["pending_beyond"] = json!(beyond);
                Ok(facts)
            }
            Request::Acknowledge {} => {
                let (lost, news) = supervisor.acknowledge().await.map_err(|error| {
                    VolumeError::Commit(format!("the mount cannot go on: {error}"))
                })?;
                let [recovered, stranded] = of_spools(&news);
                Ok(json!({
                    "lost_files": listed(&lost.files),
                    "lost_beyond": lost.beyond,
                    "recovered": recovered,
                    "stranded": stranded,
                    "generation": self.generation(),
                }))
            }
            Request::Snapshot(new) => self.snapshot(&volume, new).await,
            Request::Name(new) => self.check_name(new).await,
            Request::Drain {} => {
                let committed = drain(&volume, &self.drains).await?;
                Ok(json!({ "generation": committed.generation }))
            }
            Request::Resume {} => {
                self.drains.fetch_add(1, Ordering::SeqCst);
                volume.freeze(false);
                Ok(json!({}))
            }
            // Answered above.
            Request::Hydrate(_) | Request::Hydration(_) | Request::Unpin(_) | Request::Proof(_) => {
                Err(VolumeError::Invalid)
            }
            Request::Touches {} | Request::Record(_) => Err(VolumeError::Invalid),
            Request::Replay(_) | Request::Replayed(_) => Err(VolumeError::Invalid),
        }
    }

    /// Carries out a request about the cache. Its refusals have codes and hints of their own.
    async fn hydrate(&self, request: Request) -> Value {
        let (hydrating, shown) = (&self.hydrating, &self.shown);
        let done = async {
            match request {
                Request::Hydrate(paths) => hydrating.begin(shown.planted(&paths).await?),
                Request::Hydration(task) => hydrating.look(task),
                Request::Unpin(paths) => hydrating.unpin(&shown.places(&paths).await?).await,
                Request::Proof(paths) => hydrating.check(&shown.places(&paths).await?).await,
                _ => Ok(Value::Null),
            }
        };
        let done = done.await;
        done.unwrap_or_else(|error| error.json(&self.holder.mount_point))
    }

    /// Carries out a request about traces. Its refusals have codes and hints of their own.
    async fn trace(&self, request: Request) -> Value {
        let done = match request {
            Request::Touches {} => self.traces.touched(),
            Request::Record(name) => self.traces.record(&name).await,
            Request::Replay(name) => self.traces.begin(&name).await,
            Request::Replayed(number) => self.traces.look(number),
            _ => Ok(Value::Null),
        };
        done.unwrap_or_else(|error| error.json())
    }

    /// Returns the facts, and the newest snapshot as far as it is known without long waits.
    async fn told(&self) -> Value {
        let mut facts = self.facts();
        let view = self.repository.handle.current();
        let list = self.repository.lists.snapshots(&view.root);
        let patience = match self.repository.signs.outage() {
            Some(_) => LIST_PATIENCE_IN_OUTAGE,
            None => LIST_PATIENCE,
        };
        facts["last_snapshot"] = match tokio::time::timeout(patience, list).await {
            Ok(Ok(list)) => list
                .latest(&self.volume_name)
                .map_or(Value::Null, |latest| {
                    let time = latest.time.strftime(TIME_FORM).to_string();
                    json!({ "name": latest.name, "time": time, "drill": drill_of(latest) })
                }),
            // The store says in its own part why.
            _ => json!({}),
        };
        facts
    }

    async fn snapshot(&self, volume: &Volume, new: WantedSnapshot) -> Result<Value, VolumeError> {
        let request = SnapshotRequest {
            name: new.name,
            tags: new.tags,
            replaces: new.replace,
        };
        let made = volume.snapshot(request).await?;
        Ok(json!({
            "name": made.snapshot,
            "generation": made.generation,
            "replaced": made.has_replaced,
        }))
    }

    /// Refuses a name or tag that no snapshot could have now. While the list cannot be read, only
    /// the snapshot itself will tell.
    async fn check_name(&self, new: WantedSnapshot) -> Result<Value, VolumeError> {
        let WantedSnapshot { name, tags, .. } = new;
        let refused = |error: RootError| VolumeError::SnapshotName(error.to_string());
        check_words(name.as_deref(), &tags).map_err(refused)?;
        if new.replace {
            return Ok(json!({ "name": name, "checked": true }));
        }
        let list = tokio::time::timeout(NAME_WAIT, self.repository.snapshots()).await;
        let Ok(Ok(list)) = list else {
            return Ok(json!({ "name": name, "checked": false }));
        };
        check_new(&list, &self.volume_name, name.as_deref(), &tags).map_err(refused)?;
        Ok(json!({ "name": name, "checked": true }))
    }

    /// What was accepted and is not in the bucket yet.
    pub(super) fn waiting(&self) -> Waiting {
        let dirty = self.current.volume().map(|volume| volume.dirty());
        let metrics = self.repository.content_store.metrics();
        Waiting::of(dirty.unwrap_or_default(), &metrics)
    }

    /// Status of the store.
    fn store(&self, outage: Option<&Outage>) -> Value {
        let mut told =
            json!({ "answers": outage.is_none(), "waiting_bytes": self.waiting().bytes() });
        if let Some(outage) = outage {
            let now = self.repository.environment.clock.now();
            let lasts = outage.since.elapsed().as_secs();
            let since = Timestamp {
                seconds: now.seconds.saturating_sub_unsigned(lasts),
                ..now
            };
            let left = fails_in(outage, self.repository.timeout);
            told["since"] = json!(time_text(since));
            told["seconds"] = json!(lasts);
            told["cause"] = json!(outage.cause());
            told["error"] = json!(outage.error.to_string());
            told["waiting_requests"] = json!(outage.waiting);
            told["fails_in_seconds"] = json!(left.map_or(0, |left| left.as_secs()));
        }
        told
    }

    /// Contents of `.bkfs/status`.
    fn facts(&self) -> Value {
        let volume = self.current.volume();
        let totals = self.current.view().totals();
        let dirty = volume
            .as_ref()
            .map(|volume| volume.dirty())
            .unwrap_or_default();
        let failure = volume.as_ref().and_then(|volume| volume.failure());
        let outage = self.repository.signs.outage();
        let health = match (&failure, &outage) {
            (Some(_), _) => "failed",
            (None, Some(_)) => "waiting",
            (None, None) => "healthy",
        };
        let losses = self
            .supervisor
            .as_ref()
            .map(|supervisor| supervisor.losses())
            .unwrap_or_default();
        let news = self.supervisor.as_ref().map(|supervisor| supervisor.news());
        let [recovered, stranded] = of_spools(&news.unwrap_or_default());
        json!({
            "repository": self.repository.url,
            "volume": self.volume_name,
            "mount_point": self.holder.mount_point,
            "mode": if volume.is_some() { "read-write" } else { "read-only" },
            "healthy": failure.is_none(),
            "health": health,
            "store": self.store(outage.as_ref()),
            "failure": failure.map(|failure| failure.to_string()),
            "losses": losses.count,
            "lost_files": listed(&losses.files),
            "lost_beyond": losses.beyond,
            "recovered": recovered,
            "stranded": stranded,
            "generation": self.generation(),
            "last_commit": volume.as_ref().and_then(|volume| volume.last_commit()).map(time_text),
            "inodes": totals.inodes,
            "bytes": totals.bytes,
            "dirty_bytes": dirty.bytes,
            "dirty_files": dirty.files,
            "waiting": self.waiting().json(),
            "swap": volume.as_ref().and_then(|volume| volume.swap()).map(|swap| json!({
                "used_bytes": swap.used_bytes(),
                "limit_bytes": swap.limit_bytes(),
                "has_failed": swap.has_failed(),
            })),
            "open_files": volume.as_ref().map_or(0, |volume| volume.usage().open_files()),
            "endpoint": self.repository.endpoint,
            "region": self.repository.region,
            "outcome": self.outcome,
            "pid": self.holder.pid,
            "pid_namespace": self.holder.pid_namespace,
            "host": self.holder.host,
            "since": self.since,
            "version": env!("CARGO_PKG_VERSION"),
            "scrub": self.scrubbing.as_ref().map(|scrubbing| scrubbing.status()),
            "hydration": self.hydrating.status(),
            "trace": self.traces.status(),
            "metrics": self.counters(),
        })
    }

    /// Returns the number of files that are listed as lost.
    fn lost(&self) -> u64 {
        let losses = self.supervisor.as_ref();
        let losses = losses.map(|supervisor| supervisor.losses());
        losses.map_or(0, |losses| (losses.files.len() + losses.beyond) as u64)
    }

    fn generation(&self) -> u64 {
        self.repository.handle.current().root.generation
    }

    /// Adds the metrics of a writable volume.
    fn expose(&self, volume: &Volume, text: &mut Exposition) {
        let (dirty, totals) = (volume.dirty(), volume.view.totals());
        text.gauge(
            "dirty_bytes",
            "Bytes of files, in memory or in the swap file, that were not cut into chunks yet.",
            dirty.bytes,
        );
        text.gauge("dirty_files", "Files that these belong to.", dirty.files);
        text.gauge(
            "waiting_bytes",
            "Bytes that were accepted and are not in the bucket yet.",
            self.waiting().bytes(),
        );
        let is_healthy = u64::from(volume.failure().is_none());
        text.gauge(
            "healthy",
            "1 if the mount takes writes, 0 if it failed.",
            is_healthy,
        );
        text.gauge(
            "lost_files",
            "Files with changes that were accepted and lost, until they are acknowledged.",
            self.lost(),
        );
        if let Some(committed) = volume.last_commit() {
            text.gauge(
                "last_commit_timestamp_seconds",
                "Unix time of the last commit of this mount.",
                committed.seconds as f64,
            );
        }
        text.gauge("inodes", "Inodes of the volume.", totals.inodes);
        text.gauge(
            "content_bytes",
            "Bytes of file contents in the volume, before deduplication.",
            totals.bytes,
        );
        text.holds(&volume.view.holds());
    }

    fn counters(&self) -> serde_json::Map<String, Value> {
        match serde_json::to_value(self.repository.content_store.metrics()) {
            Ok(Value::Object(counters)) => counters,
            _ => serde_json::Map::new(),
        }
    }
}

/// Snapshots that were made of spools, and spools that were not brought.
fn of_spools(news: &SpoolNews) -> [Value; 2] {
    let made = news.recovered.iter();
    let made = made.map(|made| json!({ "volume": made.volume, "snapshot": made.snapshot }));
    let left = news.stranded.iter();
    let left = left.map(|left| json!({ "path": left.path, "bytes": left.bytes, "why": left.why }));
    [made.collect(), left.collect()]
}

fn listed(files: &[Unsaved]) -> Value {
    let file = |file: &Unsaved| {
        let told = json!({ "inode": file.inode, "bytes": file.bytes });
        let path = file.exact.as_deref().unwrap_or(file.path.as_bytes());
        with_name(told, "path", path)
    };
    files.iter().map(file).collect()
}

/// How moments are written: RFC 3339, UTC.
const TIME_FORM: &str = "%Y-%m-%dT%H:%M:%SZ";

/// RFC 3339, UTC.
pub fn time_text(time: Timestamp) -> String {
    let shown = jiff::Timestamp::new(time.seconds, time.nanoseconds as i32);
    shown.map_or_else(
        |_| time.seconds.to_string(),
        |time| time.strftime(TIME_FORM).to_string(),
    )
}

/// Ends the freeze of an announced unmount, unless another one was announced since.
struct Freeze {
    volume: Arc<Volume>,
    drains: Arc<AtomicU64>,
    number: u64,
}

impl Freeze {
    fn begin(volume: &Arc<Volume>, drains: &Arc<AtomicU64>) -> Freeze {
        let number = drains.fetch_add(1, Ordering::SeqCst) + 1;
        volume.freeze(true);
        Freeze {
            volume: volume.clone(),
            drains: drains.clone(),
            number,
        }
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if self.drains.load(Ordering::SeqCst) == self.number {
            self.volume.freeze(false);
        }
    }
}

/// Commits everything. Freezes the volume from before the commit until [`FREEZE`] after it, however
/// long the commit takes: the unmount finds exactly the committed state.
async fn drain(
    volume: &Arc<Volume>,
    drains: &Arc<AtomicU64>,
) -> Result<CommitOutcome, VolumeError> {
    let freeze = Freeze::begin(volume, drains);
    let committed = volume.commit().await?;
    tokio::spawn(async move {
        tokio::time::sleep(FREEZE).await;
        drop(freeze);
    });
    Ok(committed)
}

#[async_trait]
impl Control for MountControl {
    fn status(&self) -> String {
        self.facts().to_string() + "\n"
    }

    fn metrics(&self) -> String {
        let mut text = Exposition::default();
        let measures = self.repository.content_store.metrics().measures();
        measures.iter().for_each(|measure| text.measure(measure));
        text.gauge(
            "generation",
            "Generation of the root that this mount knows.",
            self.generation(),
        );
        let outage = self.repository.signs.outage();
        let lasts = outage.map_or(0, |outage| outage.since.elapsed().as_secs());
        text.gauge(
            "store_outage_seconds",
            "How long the store has not answered as needed; 0 while it does.",
            lasts,
        );
        self.hydrating.expose(&mut text);
        self.traces.expose(&mut text);
        if let Some(scrubbing) = &self.scrubbing {
            scrubbing.expose(&mut text);
        }
        if let Some(volume) = self.current.volume() {
            self.expose(&volume, &mut text);
        }
        let labels = [
            ("repository", self.repository.url.clone()),
            ("volume", self.volume_name.clone()),
        ];
        text.into_text(&labels)
    }

    async fn handle(&self, request: Bytes) -> String {
        let answer = match serde_json::from_slice::<Request>(&request) {
            Ok(request) => self.carry_out(request).await,
            Err(error) => {
                return json!({ "error": format!("not understood: {error}"), "code": 2 })
                    .to_string();
            }
        };
        match answer {
            Ok(value) => value.to_string(),
            Err(error) => {
                let outage = self.repository.signs.outage();
                let cause = outage.as_ref().map(Outage::cause);
                refusal(&error, &self.holder.mount_point, cause).to_string()
            }
        }
    }
}
