//! Heartbeats: the object `sessions/ID` that says that a session lives and from which epoch on it needs packs.
//!
//! Owns the task that writes this session's heartbeat and notices when the session has lost its place in the root, and the watch over another
//! session's heartbeat. Time is this machine's monotonic clock only: what is compared are two readings of it on one machine, never of two.

use super::error::RootError;
use super::handle::RootHandle;
use super::state::{Root, SessionId};
use super::transition::Refusal;
use bkfs_chunker::seal::{Class, Features};
use minicbor::{Decode, Encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// Time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A heartbeat that stood still for this long on the observer's clock belongs to a dead session: three were missed.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Time between two looks at another session's heartbeat.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// The payload of `sessions/ID`.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Beat {
    /// Counts the heartbeats. Only a change of it means anything: values may arrive late.
    #[n(0)]
    pub counter: u64,
    /// The session's base epoch (rule 4): it needs nothing that was condemned at this epoch or before. Binds from the moment it is sent.
    #[n(1)]
    pub base: u64,
}

impl Beat {
    /// The payload.
    pub fn encode(self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// The inverse of [`Beat::encode`]; none for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        minicbor::decode(bytes).ok()
    }
}

/// What the heartbeat task knows of its session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Standing {
    /// The session is live, as far as is known.
    Live {
        /// When the store last acknowledged a heartbeat.
        last_beat: Option<Instant>,
    },
    /// The session has lost its volume or its place in the root: it can commit nothing more.
    Fenced(Refusal),
}

/// The base epoch of a session of this process, as its next heartbeat will say it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Base(Arc<BaseState>);

#[derive(Debug)]
struct BaseState {
    epoch: AtomicU64,
    raised: Notify,
}

impl Base {
    fn new(epoch: u64) -> Self {
        Self(Arc::new(BaseState {
            epoch: AtomicU64::new(epoch),
            raised: Notify::new(),
        }))
    }

    /// What it is now.
    pub fn get(&self) -> u64 {
        self.0.epoch.load(Ordering::SeqCst)
    }

    /// Step `BaseCheck` has found that every reference of the session that is in no root yet names what is live at a root of this epoch or a later one. Never goes back. A heartbeat
    /// says so soon.
    pub fn raise(&self, epoch: u64) {
        if self.0.epoch.fetch_max(epoch, Ordering::SeqCst) < epoch {
            self.0.raised.notify_one();
        }
    }
}

/// The heartbeat of one session of this process. It stops when this is dropped.
#[derive(Debug)]
pub struct Heartbeat {
    task: JoinHandle<()>,
    base: Base,
    standing: watch::Receiver<Standing>,
}

impl Heartbeat {
    /// Starts the heartbeat of `session`, which is registered in the root, with its first base epoch.
    pub fn start(
        handle: RootHandle,
        session: SessionId,
        volume: Option<String>,
        base: u64,
    ) -> Self {
        let (tell, standing) = watch::channel(Standing::Live { last_beat: None });
        let known = Base::new(base);
        let base = known.clone();
        let task = tokio::spawn(async move {
            let mut interval = tokio::time::interval(HEARTBEAT_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for counter in 1.. {
                tokio::select! {
                    _ = interval.tick() => {}
                    () = base.0.raised.notified() => {}
                }
                // Given up after an interval: what counts is that the next one is sent in time.
                match tokio::time::timeout(
                    HEARTBEAT_INTERVAL,
                    put_beat(
                        &handle,
                        session,
                        Beat {
                            counter,
                            base: base.get(),
                        },
                    ),
                )
                .await
                {
                    Ok(Ok(())) => tell.send_modify(|standing| {
                        *standing = Standing::Live {
                            last_beat: Some(Instant::now()),
                        }
                    }),
                    // What is wrong with the store is told by who watches it.
                    Ok(Err(error)) => tracing::debug!(%session, %error, "heartbeat failed"),
                    Err(_) => tracing::debug!(%session, "heartbeat was not acknowledged in time"),
                }
                let look = tokio::time::timeout(HEARTBEAT_INTERVAL, handle.refresh()).await;
                let standing = match look {
                    Ok(Ok(view)) => standing_in(&view.root, session, volume.as_deref()),
                    Ok(Err(
                        error @ (RootError::NotAtomic { .. } | RootError::NotDescended { .. }),
                    )) => {
                        tracing::error!(%session, %error, "what this session committed is lost to it");
                        Err(Refusal::Fenced { by: None })
                    }
                    Ok(Err(_)) | Err(_) => continue,
                };
                if let Err(refusal) = standing {
                    tracing::error!(%session, %refusal, "this session can no longer write");
                    tell.send_modify(|standing| *standing = Standing::Fenced(refusal));
                    return;
                }
            }
        });
        Self {
            task,
            base: known,
            standing,
        }
    }

    /// What is known of the session now, and every change of that.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// The session's base epoch.
    pub fn base(&self) -> Base {
        self.base.clone()
    }

    /// Stops, and returns when nothing more is sent.
    pub async fn stop(mut self) {
        self.task.abort();
        // An aborted task ends with an error that says so.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Step `BaseSend`.
async fn put_beat(handle: &RootHandle, session: SessionId, beat: Beat) -> Result<(), RootError> {
    let key = session.key();
    let mut salt = [0; 32];
    handle.entropy().fill(&mut salt);
    let object =
        handle
            .keyring()
            .seal_object(Class::Session, &key, Features::NONE, salt, &beat.encode());
    handle.store().put(&key, vec![object]).await?;
    Ok(())
}

/// Whether the session still has its place in `root`.
fn standing_in(root: &Root, session: SessionId, volume: Option<&str>) -> Result<(), Refusal> {
    match volume {
        Some(volume) => root.require_holder(session, volume).map(|_| ()),
        None => root.require_live(session).map(|_| ()),
    }
}

/// What came of watching another session.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Watched {
    /// Its heartbeat moved.
    Alive,
    /// Its heartbeat stood still for [`DEAD_AFTER`].
    Dead,
    /// It no longer holds the volume.
    Left,
}

/// Watches the heartbeat of `session`, which holds `volume` or, if that is none, only stands in the root, for as long as it takes to tell.
///
/// Stillness is counted from the answer to the first look to the sending of the last one, so that slow answers never shorten it. It is counted anew after a look
/// that failed, and after a gap between looks: what kept this observer from the store may have kept the holder from it too, and nobody is judged for that. A
/// heartbeat that is absent, or cannot be read, stands still like any other.
///
/// # Errors
/// When the root cannot be read.
pub async fn watch_holder(
    handle: &RootHandle,
    session: SessionId,
    volume: Option<&str>,
) -> Result<Watched, RootError> {
    // What was seen first and when, and when it was seen last.
    let mut still: Option<(Option<u64>, Instant, Instant)> = None;
    loop {
        let sent = Instant::now();
        let seen = look(handle, session).await;
        let answered = Instant::now();
        let unbroken = |last: Instant| sent.saturating_duration_since(last) <= HEARTBEAT_INTERVAL;
        still = match (seen, still) {
            (None, _) => None,
            (Some(seen), Some((before, _, _))) if before != seen => return Ok(Watched::Alive),
            (Some(seen), Some((_, since, last))) if unbroken(last) => {
                if sent.saturating_duration_since(since) >= DEAD_AFTER {
                    return Ok(Watched::Dead);
                }
                Some((seen, since, answered))
            }
            (Some(seen), _) => Some((seen, answered, answered)),
        };
        tokio::time::sleep(WATCH_INTERVAL).await;
        let view = handle.refresh().await?;
        if standing_in(&view.root, session, volume).is_err() {
            return Ok(Watched::Left);
        }
    }
}

/// The base epoch that a session has published; none if its heartbeat is absent or cannot be read, which blocks deletion (rule 4).
///
/// # Errors
/// The store does not tell.
pub async fn published_base(
    handle: &RootHandle,
    session: SessionId,
) -> Result<Option<u64>, RootError> {
    let key = session.key();
    let object = match handle.store().get(&key).await {
        Ok((object, _)) => object,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let payload = handle
        .keyring()
        .open_object(Class::Session, &key, &object)
        .ok();
    Ok(payload
        .and_then(|payload| Beat::decode(&payload))
        .map(|beat| beat.base))
}

/// The counter of a session's heartbeat as it stands in the bucket; none if it is absent or unreadable. Nothing at all if the store did not tell.
async fn look(handle: &RootHandle, session: SessionId) -> Option<Option<u64>> {
    let key = session.key();
    match tokio::time::timeout(handle.policy().request_timeout, handle.store().get(&key)).await {
        Ok(Ok((object, _))) => {
            let payload = handle
                .keyring()
                .open_object(Class::Session, &key, &object)
                .ok();
            Some(
                payload
                    .and_then(|payload| Beat::decode(&payload))
                    .map(|beat| beat.counter),
            )
        }
        Ok(Err(error)) if error.is_not_found() => Some(None),
        Ok(Err(error)) => {
            tracing::warn!(%session, %error, "cannot look at the heartbeat of another session");
            None
        }
        Err(_) => None,
    }
}
