//! The body of a request on its way to the server, and how long one attempt may take.
//!
//! Owns the limits of an attempt ([`Patience`]). Silence ends it, and so does a body below a least
//! rate. Otherwise a body takes as long as its link needs. Does not own what becomes of a request
//! whose attempt ended.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpRequestBody};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use super::contact::{Contact, QUIET};
use crate::signs::BUFFERS_FILL_WITHIN;

/// How many bytes of a body are handed on at once. hyper takes 16 such steps, and the next ones only
/// when all of them have gone out: progress is visible every 64 KiB.
const STEP_BYTES: usize = 4 * 1024;

/// How many bytes the sockets' buffers may hold after the last step (the usual maximum of
/// net.ipv4.tcp_wmem).
const SOCKET_BYTES: u64 = 4 * 1024 * 1024;

/// How many bytes the buffers hold on a slow link, with a short queue (`short_queue`), the steps
/// that hyper takes and what the peer has not read. Half of it was seen.
const BUFFERED_BYTES: u64 = 512 * 1024;

/// The slowest link that is waited for while the sockets' buffers drain, in bytes per second, unless
/// the body has shown how slow the link is.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 * 1024;

/// The least mean rate of an attempt, in bytes per second. It bounds an attempt at a pack of 16 MiB
/// to 2 h 20 min: a store that takes or sends a byte now and then is not waited for without end. The
/// slowest uplink of the last decades, 128 kbit/s, carries eight such bodies at once.
const LEAST_BYTES_PER_SECOND: u64 = 2 * 1024;

/// How long an attempt may make no progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The usual limit.
    pub stall: Duration,
    /// The most additional time while the sockets' buffers drain, if the rate of the link is not
    /// known.
    pub drain: Duration,
}

impl Patience {
    /// Returns the longest allowed silence of an attempt. Its body has `whole` bytes. All but `left`
    /// of them were handed to the connection, within `took`.
    fn silence(self, whole: u64, left: u64, took: Duration) -> Duration {
        if left > 0 {
            return self.stall;
        }
        let draining = Duration::from_secs(whole.min(SOCKET_BYTES) / SLOWEST_BYTES_PER_SECOND);
        // The buffers took their share at once, and the link needed this time for the others.
        let buffered = BUFFERED_BYTES.min(whole / 2);
        let millis = took.as_millis() as u64 * buffered / (whole - buffered).max(1);
        self.stall + draining.min(self.drain).max(Duration::from_millis(millis))
    }

    /// Returns what a pause between two steps counts. A longer one is silence, or this process stood
    /// still.
    pub(super) fn counted(self, pause: Duration) -> Duration {
        pause.min(self.stall)
    }

    /// Returns whether `bytes` that moved within `took` are too few.
    pub(super) fn is_too_slow(self, bytes: u64, took: Duration) -> bool {
        took > self.stall + Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND)
    }
}

/// The progress of a request's body.
#[derive(Debug)]
pub(super) struct BodyProgress {
    whole: u64,
    patience: Patience,
    contact: Arc<Contact>,
    state: Mutex<BodyState>,
}

#[derive(Clone, Copy, Debug)]
struct BodyState {
    /// The number of bytes that have not been handed to the connection.
    left: u64,
    /// When the first and the last of the others were.
    moved: Option<(Instant, Instant)>,
    /// The time between these two, as it counts.
    took: Duration,
}

impl BodyProgress {
    /// Returns the progress of a body of `whole` bytes.
    pub(super) fn new(whole: u64, patience: Patience, contact: &Arc<Contact>) -> Arc<Self> {
        Arc::new(Self {
            whole,
            patience,
            contact: Arc::clone(contact),
            state: Mutex::new(BodyState {
                left: whole,
                moved: None,
                took: Duration::ZERO,
            }),
        })
    }

    /// Returns whether the server may have the whole request.
    pub(super) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Returns when bytes last moved, if they moved for longer than buffers fill
    /// ([`BUFFERS_FILL_WITHIN`]).
    pub(super) fn moved(&self) -> Option<Instant> {
        let (first, last) = self.state.lock().moved?;
        (last - first >= BUFFERS_FILL_WITHIN).then_some(last)
    }

    fn left(&self) -> u64 {
        self.state.lock().left
    }

    /// Records that bytes were handed to the connection.
    fn moves(&self, bytes: u64) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (first, last) = state.moved.unwrap_or((now, now));
        state.left -= bytes;
        state.took += self.patience.counted(now - last);
        state.moved = Some((first, now));
        drop(state);
        self.contact.sent(first);
    }
}

/// The reason for which an attempt is broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// Nothing moved for so long.
    Silent(Duration),
    /// So many bytes took so long.
    Slow(u64, Duration),
}

impl fmt::Display for GivenUp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(silence) => write!(formatter, "no progress for {} s", silence.as_secs()),
            Self::Slow(bytes, took) => {
                write!(
                    formatter,
                    "only {bytes} bytes went out in {} s",
                    took.as_secs()
                )
            }
        }
    }
}

/// Waits for an answer as long as the request makes progress. Calls `quiet` once when there was no
/// progress for [`QUIET`], or later while the buffers drain. Time in which this process stood still
/// does not count.
pub(super) async fn watched<T>(
    answer: impl Future<Output = T>,
    progress: &BodyProgress,
    quiet: impl Fn(),
) -> Result<T, GivenUp> {
    let mut answer = std::pin::pin!(answer);
    let patience = progress.patience;
    let mut awake = Instant::now();
    let mut said = None;
    loop {
        let state = *progress.state.lock();
        let moved = state.moved.map_or(awake, |(_, last)| last.max(awake));
        let silence = patience.silence(progress.whole, state.left, state.took);
        let sent = progress.whole - state.left;
        let now = Instant::now();
        if now >= moved + silence {
            return Err(GivenUp::Silent(silence));
        }
        if state.left > 0 && patience.is_too_slow(sent, state.took) {
            return Err(GivenUp::Slow(sent, state.took));
        }
        let heard = moved + (silence - patience.stall) + QUIET;
        if now >= heard && said != Some(moved) {
            said = Some(moved);
            quiet();
        }
        let end = moved + silence;
        let next = if now < heard { end.min(heard) } else { end };
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer),
            () = sleep_until(next) => {}
        }
        let now = Instant::now();
        // A look that comes so late shows that this process stood still, not the store.
        if now - next > STOOD_STILL + patience.stall / 2 {
            awake = now;
        }
    }
}

/// A wait that ends later than it should by this, and by half of the limit, shows that this process
/// stood still.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// A request body that counts the bytes taken from it.
pub(super) struct WatchedRequest {
    body: HttpRequestBody,
    step: Bytes,
    progress: Arc<BodyProgress>,
}

impl WatchedRequest {
    /// Returns a body that tells its progress.
    pub(super) fn new(body: HttpRequestBody, progress: &Arc<BodyProgress>) -> Self {
        Self {
            body,
            step: Bytes::new(),
            progress: Arc::clone(progress),
        }
    }
}

impl Body for WatchedRequest {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.step.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.step = frame.into_data().unwrap_or_default();
                }
                other => return other,
            }
        }
        let length = self.step.len().min(STEP_BYTES);
        let step = self.step.split_to(length);
        self.progress.moves(length as u64);
        Poll::Ready(Some(Ok(Frame::data(step))))
    }

    fn is_end_stream(&self) -> bool {
        self.progress.is_complete()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.progress.left())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;

    const MIB: u64 = 1 << 20;

    /// Returns the patience of a caller that waits a minute.
    fn patience() -> Patience {
        let options = StoreOptions::default().within(Duration::from_secs(60));
        Patience {
            stall: options.stall_timeout,
            drain: options.drain_timeout,
        }
    }

    fn progress(whole: u64) -> Arc<BodyProgress> {
        let contact = Arc::new(Contact::new(&StoreOptions::default()));
        BodyProgress::new(whole, patience(), &contact)
    }

    /// Hands a body on at this rate, in steps of a second.
    async fn send(progress: &BodyProgress, bytes_per_second: u64) {
        while progress.left() > 0 {
            progress.moves(bytes_per_second.min(progress.left()));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns how the attempt ends whose body goes out at this rate and whose answer comes so many
    /// seconds after the last byte, if ever, and how many seconds it took.
    async fn attempt(whole: u64, rate: u64, answer: Option<u64>) -> (Result<(), GivenUp>, u64) {
        let progress = progress(whole);
        let begin = Instant::now();
        let request = async {
            send(&progress, rate).await;
            match answer {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                None => std::future::pending().await,
            }
        };
        let ended = watched(request, &progress, || {}).await;
        (ended, begin.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_takes_as_long_as_its_link_needs() {
        let (ended, took) = attempt(16 * MIB, 100_000, Some(14)).await;
        assert_eq!((ended, took), (Ok(()), 168 + 14));
        // What is in the buffers needs as long as the link shows.
        let (ended, took) = attempt(16 * MIB, 12_500, Some(55)).await;
        assert_eq!((ended, took), (Ok(()), 1343 + 55));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_answered_ends_however_it_went() {
        // All of it went out at once, so nothing shows a slow link.
        let (ended, took) = attempt(16 * MIB, 16 * MIB, None).await;
        assert!(matches!(ended, Err(GivenUp::Silent(_))), "{ended:?}");
        assert!((15..=40).contains(&took), "{took} s");
        let (ended, took) = attempt(16 * MIB, 100_000, None).await;
        assert!(matches!(ended, Err(GivenUp::Silent(_))), "{ended:?}");
        assert!((168 + 15..=168 + 40).contains(&took), "{took} s");
        let (ended, took) = attempt(16 * MIB, 12_500, None).await;
        assert!(matches!(ended, Err(GivenUp::Silent(_))), "{ended:?}");
        assert!((1343 + 55..=1343 + 60).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_the_buffers_take_do_not_move() {
        let progress = progress(16 * MIB);
        assert_eq!(progress.moved(), None);
        progress.moves(MIB);
        tokio::time::sleep(Duration::from_millis(500)).await;
        progress.moves(MIB);
        assert_eq!(progress.moved(), None);
        tokio::time::sleep(Duration::from_millis(500)).await;
        progress.moves(MIB);
        let last = Instant::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(progress.moved(), Some(last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_broken_off_after_the_usual_time() {
        let progress = progress(16 * MIB);
        let begin = Instant::now();
        let request = async {
            for _ in 0..100 {
                progress.moves(100_000);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            std::future::pending::<()>().await;
        };
        let ended = watched(request, &progress, || {}).await;
        assert_eq!(ended, Err(GivenUp::Silent(Duration::from_secs(15))));
        assert_eq!(begin.elapsed().as_secs(), 99 + 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_below_the_least_rate_is_broken_off() {
        let (ended, took) = attempt(MIB, LEAST_BYTES_PER_SECOND, Some(1)).await;
        assert_eq!((ended, took), (Ok(()), 512 + 1));
        let (ended, took) = attempt(16 * MIB, LEAST_BYTES_PER_SECOND / 2, Some(1)).await;
        assert!(matches!(ended, Err(GivenUp::Slow(..))), "{ended:?}");
        assert!((30..=60).contains(&took), "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_process_stood_still_ends_no_attempt() {
        let progress = progress(MIB);
        let begin = Instant::now();
        let request = async {
            send(&progress, 10_000).await;
        };
        let mut waits = std::pin::pin!(watched(request, &progress, || {}));
        assert!(futures::poll!(waits.as_mut()).is_pending());
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(waits.await, Ok(()));
        assert_eq!(begin.elapsed().as_secs(), 300 + 104);
        let progress = self::progress(MIB);
        let mut waits = std::pin::pin!(watched(std::future::pending::<()>(), &progress, || {}));
        assert!(futures::poll!(waits.as_mut()).is_pending());
        tokio::time::advance(Duration::from_secs(300)).await;
        let begin = Instant::now();
        waits.await.expect_err("nothing moves");
        assert_eq!(begin.elapsed().as_secs(), 15);
    }
}
