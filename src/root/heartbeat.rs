//! Heartbeats: the object `sessions/ID`, which shows that a session is alive and which base epoch
//! it has.
//!
//! Owns the task that writes this session's heartbeat and detects that the session has lost its
//! place in the root. Owns also the observation of another session's heartbeat. The only clock is
//! this machine's monotonic clock: two readings of it on one machine are compared, never readings
//! of two machines.

use super::error::RootError;
use super::fence;
use super::handle::RootHandle;
use super::padding;
use super::refusal::Refusal;
use super::retry::patiently;
use super::state::{HolderInfo, Root, SessionId};
use bkfs_chunker::crypto::{Class, Features};
use bkfs_store::{Operation, StoreError};
use futures::{StreamExt, TryStreamExt, stream};
use minicbor::{Decode, Encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// Time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A heartbeat that has not changed for this long on the observer's clock belongs to a dead
/// session: it has missed three.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);

/// A session that goes by a fence reads the root with one heartbeat in this many.
const ROOT_READ_ONE_IN: u64 = 6;

/// The largest number of heartbeats that are read concurrently.
const READ_AT_ONCE: usize = 64;

/// Time between two reads of another session's heartbeat.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// The payload of `sessions/ID`.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Beat {
    /// Counts the heartbeats. Only a change is evidence of life: values may arrive late, in any
    /// order.
    #[n(0)]
    pub counter: u64,
    /// The session's base epoch (rule 4): the session needs no pack that was condemned in this
    /// epoch or before. It binds from the moment that it is sent.
    #[n(1)]
    pub base: u64,
    /// The process behind the session, as the root says it. Each heartbeat has it, because each one
    /// replaces the whole object. `None` in those of early programs, and if it cannot be read: it
    /// must not cost the counter, which tells life.
    #[cbor(n(2), with = "readable", has_nil)]
    pub holder: Option<HolderInfo>,
}

/// A holder as far as this program knows its form.
mod readable {
    use super::HolderInfo;
    use minicbor::decode::Error;
    use minicbor::encode::{Error as EncodeError, Write};
    use minicbor::{Decoder, Encoder};

    pub fn encode<C, W: Write>(
        holder: &Option<HolderInfo>,
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        encoder.encode_with(holder, context)?.ok()
    }

    pub fn decode<C>(
        decoder: &mut Decoder<'_>,
        context: &mut C,
    ) -> Result<Option<HolderInfo>, Error> {
        let begin = decoder.position();
        if let Ok(holder) = decoder.decode_with(context) {
            return Ok(holder);
        }
        decoder.set_position(begin);
        decoder.skip()?;
        Ok(None)
    }

    pub fn nil() -> Option<Option<HolderInfo>> {
        Some(None)
    }

    pub fn is_nil(holder: &Option<HolderInfo>) -> bool {
        holder.is_none()
    }
}

impl Beat {
    /// Returns the payload in CBOR.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// Returns the payload of the object. In a sealed repository all of them have one length.
    pub fn payload(&self, is_sealed: bool) -> Vec<u8> {
        match is_sealed {
            true => padding::padded(self.encode()),
            false => self.encode(),
        }
    }

    /// Decodes the payload that [`Beat::encode`] or [`Beat::payload`] returns; none for any other
    /// bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        minicbor::decode(bytes).ok()
    }
}

/// State of a session, as its heartbeat task knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Standing {
    /// The session is live as far as is known.
    Live {
        /// When the store last acknowledged a heartbeat.
        last_beat: Option<Instant>,
    },
    /// The session has lost its volume or its place in the root, and can commit nothing more.
    Fenced(Refusal),
}

/// The base epoch of a session of this process, which the next heartbeat publishes. Cheap to clone.
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

    /// Returns the current base epoch.
    pub fn get(&self) -> u64 {
        self.0.epoch.load(Ordering::SeqCst)
    }

    /// Raises the base epoch after step `BaseCheck`: every reference of the session that is in no
    /// root yet names a pack that is live at a root of this epoch or later, or an own one. Ignores
    /// a lower epoch. A heartbeat publishes the new epoch soon.
    pub fn raise(&self, epoch: u64) {
        if self.0.epoch.fetch_max(epoch, Ordering::SeqCst) < epoch {
            self.0.raised.notify_one();
        }
    }
}

/// The heartbeat of one session of this process. It stops when this value is dropped.
#[derive(Debug)]
pub struct Heartbeat {
    task: JoinHandle<()>,
    base: Base,
    holder: HolderInfo,
    standing: watch::Receiver<Standing>,
}

impl Heartbeat {
    /// Starts the heartbeat of `session`, which `holder` has registered in the root, at its first
    /// base epoch. With a `volume`, the session must also hold that volume to stay live.
    pub fn start(
        handle: RootHandle,
        session: SessionId,
        volume: Option<String>,
        holder: HolderInfo,
        base: u64,
    ) -> Self {
        let (tell, standing) = watch::channel(Standing::Live { last_beat: None });
        let known = Base::new(base);
        let base = known.clone();
        let holder = holder.cut();
        let of = holder.clone();
        let task = tokio::spawn(async move {
            let mut interval = tokio::time::interval(HEARTBEAT_INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for counter in 1.. {
                tokio::select! {
                    _ = interval.tick() => {}
                    () = base.0.raised.notified() => {}
                }
                // The request is given up after one interval, so that the next heartbeat is sent in
                // time.
                let beat = Beat {
                    counter,
                    base: base.get(),
                    holder: Some(holder.clone()),
                };
                let put = put_beat(&handle, session, &beat);
                match tokio::time::timeout(HEARTBEAT_INTERVAL, put).await {
                    Ok(Ok(())) => tell.send_modify(|standing| {
                        *standing = Standing::Live {
                            last_beat: Some(Instant::now()),
                        }
                    }),
                    // The store's own watch reports what is wrong with the store.
                    Ok(Err(error)) => tracing::debug!(%session, %error, "heartbeat failed"),
                    Err(_) => tracing::debug!(%session, "heartbeat was not acknowledged in time"),
                }
                let standing = require_standing(&handle, session, volume.as_deref(), counter);
                let refusal = match tokio::time::timeout(HEARTBEAT_INTERVAL, standing).await {
                    Ok(Err(RootError::Refused(refusal))) => refusal,
                    Ok(Err(
                        error @ (RootError::NotAtomic { .. } | RootError::NotDescended { .. }),
                    )) => {
                        tracing::error!(%session, %error,
                            "what this session committed is lost to it");
                        Refusal::Fenced { by: None }
                    }
                    Ok(Ok(()) | Err(_)) | Err(_) => continue,
                };
                tracing::error!(%session, %refusal, "this session can no longer write");
                tell.send_modify(|standing| *standing = Standing::Fenced(refusal));
                return;
            }
        });
        Self {
            task,
            base: known,
            holder: of,
            standing,
        }
    }

    /// Writes the session's object, apart from the task, until the store has answered.
    ///
    /// Cancel safety: dropped, it leaves the object written or not, or written later.
    ///
    /// # Errors
    /// [`RootError::Store`] if the store refuses it or does not answer in time.
    pub(super) async fn announce(
        &self,
        handle: &RootHandle,
        session: SessionId,
    ) -> Result<(), RootError> {
        let first = Beat {
            counter: 0,
            base: self.base.get(),
            holder: Some(self.holder.clone()),
        };
        let (policy, entropy) = (handle.policy(), handle.entropy());
        let put = || put_beat(handle, session, &first);
        patiently(&policy, &**entropy, Operation::Put, &session.key(), put).await?;
        Ok(())
    }

    /// Returns a receiver of the session's current standing and of every change.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Returns the session's base epoch.
    pub fn base(&self) -> Base {
        self.base.clone()
    }

    /// Stops the task, and returns when it sends nothing more.
    ///
    /// Cancel safety: dropped, it leaves the task aborted, as dropping the
    /// heartbeat does.
    pub async fn stop(mut self) {
        self.task.abort();
        // An aborted task ends with a join error, which is expected.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes one heartbeat (step `BaseSend`).
async fn put_beat(handle: &RootHandle, session: SessionId, beat: &Beat) -> Result<(), StoreError> {
    let key = session.key();
    let mut salt = [0; 32];
    handle.entropy().fill(&mut salt);
    let keyring = handle.keyring();
    let payload = beat.payload(keyring.is_sealed());
    let object = keyring.seal_object(Class::Session, &key, Features::NONE, salt, &payload);
    handle.store().put(&key, vec![object]).await?;
    Ok(())
}

/// Checks that the session still has its place. In a large root one with a volume reads the root
/// only with one heartbeat in [`ROOT_READ_ONE_IN`], and else asks for its fence.
async fn require_standing(
    handle: &RootHandle,
    session: SessionId,
    volume: Option<&str>,
    counter: u64,
) -> Result<(), RootError> {
    match volume {
        Some(volume) if !counter.is_multiple_of(ROOT_READ_ONE_IN) => {
            fence::require_none_now(handle, session, volume).await
        }
        _ => Ok(standing_in(&handle.refresh().await?.root, session, volume)?),
    }
}

/// Returns the refusal if the session has no place in `root`, or does not hold `volume`.
fn standing_in(root: &Root, session: SessionId, volume: Option<&str>) -> Result<(), Refusal> {
    match volume {
        Some(volume) => root.require_holder(session, volume).map(|_| ()),
        None => root.require_live(session).map(|_| ()),
    }
}

/// The result of observing another session.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Watched {
    /// Its heartbeat changed.
    Alive,
    /// Its heartbeat did not change for [`DEAD_AFTER`].
    Dead,
    /// It no longer holds the volume, or is no longer live in the root.
    Left,
}

/// Observes the heartbeat of `session` until the result is certain. The session holds `volume`, or
/// is only registered in the root if that is none.
///
/// The time without a change is measured from the answer to the first read until the last read is
/// sent, so slow answers never make the wait shorter. The measurement starts again after a failed
/// read, and after more than [`HEARTBEAT_INTERVAL`] between two reads. What kept this observer from
/// the store may have kept the holder from it, too, and is no evidence of death. An absent or
/// unreadable heartbeat counts as one that does not change.
///
/// Cancel safety: dropped, it leaves nothing behind, because it only reads.
///
/// # Errors
/// The errors of [`RootHandle::refresh`], if the root cannot be read.
pub async fn watch_holder(
    handle: &RootHandle,
    session: SessionId,
    volume: Option<&str>,
) -> Result<Watched, RootError> {
    // The first value seen, when its first answer arrived, and when its last answer arrived.
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

/// Returns the base epochs that sessions have published, in the same order; none for one whose
/// heartbeat is absent or cannot be read, which blocks deletion (rule 4).
///
/// # Errors
/// [`RootError::Store`] if a heartbeat cannot be fetched, except when it is absent.
pub async fn published_bases(
    handle: &RootHandle,
    sessions: impl IntoIterator<Item = SessionId>,
) -> Result<Vec<Option<u64>>, RootError> {
    let reads = sessions.into_iter().map(|session| async move {
        let beat = read_beat(handle, session).await?;
        Ok(beat.map(|beat| beat.base))
    });
    let reads = stream::iter(reads).buffered(READ_AT_ONCE);
    reads.try_collect().await
}

/// Returns what a session has published last; none if that is absent or cannot be read.
///
/// # Errors
/// The error of fetching it, except when it is absent.
pub(super) async fn read_beat(
    handle: &RootHandle,
    session: SessionId,
) -> Result<Option<Beat>, StoreError> {
    let key = session.key();
    let object = match handle.store().get(&key).await {
        Ok((object, _)) => object,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let payload = handle
        .keyring()
        .open_object(Class::Session, &key, &object)
        .ok();
    Ok(payload.and_then(|payload| Beat::decode(&payload)))
}

/// Returns the counter of a session's heartbeat in the bucket; `Some(None)` if it is absent or
/// unreadable. Returns `None` if the store did not answer in time, or with an error.
async fn look(handle: &RootHandle, session: SessionId) -> Option<Option<u64>> {
    let read = read_beat(handle, session);
    match tokio::time::timeout(handle.policy().request_timeout, read).await {
        Ok(Ok(beat)) => Some(beat.map(|beat| beat.counter)),
        Ok(Err(error)) => {
            tracing::warn!(%session, %error, "cannot look at the heartbeat of another session");
            None
        }
        Err(_) => None,
    }
}
