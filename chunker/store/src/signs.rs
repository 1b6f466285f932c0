//! Health of the store, as all requests of a process together observe it.
//!
//! Owns the definition of trouble: what counts as trouble, since when it lasts, and its cause in
//! words for people and for programs. Decides nothing: each caller decides whether and how long it
//! waits.
//!
//! Trouble is recorded for each pair of operation and top-level directory, since a full bucket
//! still answers reads, and a permission may be missing for one directory. Silence is recorded for
//! the store as a whole: a store that moves any bytes, in either direction, is not silent. What the
//! kernel buffers of a new request is not moved by the store.
//!
//! The bytes of long transfers are recorded for each direction, for callers that wait for one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Operation, StoreError, StoreErrorKind};

/// Trouble is reported once it lasts this long. A single refused request is not reported.
pub const TOLD_AFTER: Duration = Duration::from_secs(3);

/// Trouble is over when it was not seen again for this long and no request of the same sort waits.
/// This is longer than any pause between attempts and than the heartbeat interval.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// The time within which the buffers of a near connection take the start of a body, whether or not
/// the store reads it. Those of a slow one take longer, so that silence is seen that much later.
pub(super) const BUFFERS_FILL_WITHIN: Duration = Duration::from_secs(1);

/// An answer that takes longer than this is long. Short ones, of the root for instance, say nothing
/// about those that are waited for: they end, and count then.
const LONG_AFTER: Duration = Duration::from_secs(1);

/// The observed health of a store. Clones are cheap and share the state.
#[derive(Clone, Debug, Default)]
pub struct Signs(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<SignState>,
    stirred: Notify,
    is_told: AtomicBool,
}

#[derive(Debug, Default)]
struct SignState {
    /// The number of requests that were begun so far.
    begun: u64,
    /// Requests that wait for an answer, oldest first.
    waiting: BTreeMap<u64, Asked>,
    /// The time when the store last took or sent any bytes, or answered.
    moved: Option<Instant>,
    /// The time when the store last took bytes of a long body.
    sent: Option<Instant>,
    /// The time when the store last sent bytes of a long answer.
    received: Option<Instant>,
    troubles: BTreeMap<Sort, Trouble>,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Asked {
    since: Instant,
    operation: Operation,
    key: String,
}

/// An operation, and the top-level directory of the bucket that it concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Sort(Operation, String);

impl Sort {
    fn of(operation: Operation, key: &str) -> Self {
        let operation = match operation {
            Operation::GetRange | Operation::GetTail | Operation::Head => Operation::Get,
            other => other,
        };
        let place = key.split('/').next().unwrap_or_default();
        Self(operation, place.to_owned())
    }
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    seen: Instant,
    error: StoreError,
}

/// An outage: a store that refuses requests or does not answer.
#[derive(Debug, Clone)]
pub struct Outage {
    /// The start of the outage.
    pub since: Instant,
    /// The error that the store answers with, or that it does not answer.
    pub error: StoreError,
    /// The number of requests that wait for an answer now.
    pub waiting: usize,
}

impl Outage {
    /// Returns the cause in one word, for programs.
    pub fn cause(&self) -> &'static str {
        cause_of(&self.error)
    }
}

impl Signs {
    /// Records that a request goes out.
    pub(super) fn begin(&self, operation: Operation, key: &str) -> Request {
        let mut state = self.0.state.lock();
        state.begun += 1;
        let number = state.begun;
        let asked = Asked {
            since: Instant::now(),
            operation,
            key: key.to_owned(),
        };
        state.waiting.insert(number, asked);
        drop(state);
        self.0.stirred.notify_one();
        Request {
            signs: self.clone(),
            number,
        }
    }

    /// Records that bytes of an answer arrived, for a backend. `first` is when the answer began.
    pub fn received(&self, first: Instant) {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        state.moved = Some(now);
        if now.saturating_duration_since(first) >= LONG_AFTER {
            state.received = Some(now);
        }
    }

    /// Records that bytes of a request's body were handed to the connection, for a backend. `first`
    /// is when the first byte of this body was. Bytes within [`BUFFERS_FILL_WITHIN`] of it are no
    /// sign of the store.
    pub fn sent(&self, first: Instant) {
        let now = Instant::now();
        if now.saturating_duration_since(first) >= BUFFERS_FILL_WITHIN {
            let mut state = self.0.state.lock();
            state.moved = Some(now);
            state.sent = Some(now);
        }
    }

    /// Returns when the store last took bytes of a body that takes longer than a second.
    ///
    /// They moved for a request that was alive then. A backend breaks off what moves too slowly, so
    /// one request does not move this on without end.
    pub fn sent_at(&self) -> Option<Instant> {
        self.0.state.lock().sent
    }

    /// Returns the same for bytes of answers.
    pub fn received_at(&self) -> Option<Instant> {
        self.0.state.lock().received
    }

    /// Records that the store refused a request, or was not reachable for it, and that the store
    /// layer sends it again itself.
    pub(super) fn refused(&self, error: &StoreError) {
        let now = Instant::now();
        self.0.state.lock().note(error, now, now);
        self.0.stirred.notify_one();
    }

    /// Returns whether the store refused such a request, or was not reachable for it, after `begin`:
    /// one with this operation, for a key in the same top-level directory. What was answered since
    /// is no refusal any more.
    pub fn was_refused_after(&self, operation: Operation, key: &str, begin: Instant) -> bool {
        let state = self.0.state.lock();
        let trouble = state.troubles.get(&Sort::of(operation, key));
        trouble.is_some_and(|trouble| trouble.seen > begin)
    }

    /// Returns the trouble that lasts, if any: the oldest.
    pub fn outage(&self) -> Option<Outage> {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        state.forget(now);
        let lasts = |since: &Instant| now.saturating_duration_since(*since) >= TOLD_AFTER;
        let troubles = state.troubles.values();
        let told = troubles
            .filter(|trouble| lasts(&trouble.since))
            .min_by_key(|trouble| trouble.since);
        let silent = state.silence().filter(|(since, _)| lasts(since));
        let (since, error) = match (told, silent) {
            (Some(told), Some((since, _))) => (told.since.min(since), told.error.clone()),
            (Some(told), None) => (told.since, told.error.clone()),
            (None, Some((since, asked))) => (since, unanswered(asked, now - since)),
            (None, None) => return None,
        };
        Some(Outage {
            since,
            error,
            waiting: state.waiting.len(),
        })
    }

    /// Declares that a reporter reads these signs and reports trouble. Other parts then stay quiet.
    pub fn tell(&self) {
        self.0.is_told.store(true, Ordering::Relaxed);
    }

    /// Returns whether such a reporter exists.
    pub(super) fn is_told(&self) -> bool {
        self.0.is_told.load(Ordering::Relaxed)
    }

    /// Waits until a request waits for an answer or there is trouble.
    pub async fn stirred(&self) {
        loop {
            let stirred = self.0.stirred.notified();
            {
                let state = self.0.state.lock();
                if !state.waiting.is_empty() || !state.troubles.is_empty() {
                    return;
                }
            }
            stirred.await;
        }
    }
}

impl SignState {
    fn note(&mut self, error: &StoreError, since: Instant, now: Instant) {
        let sort = Sort::of(error.operation(), error.key());
        let trouble = self.troubles.entry(sort).or_insert_with(|| Trouble {
            since,
            seen: now,
            error: error.clone(),
        });
        trouble.seen = now;
        trouble.error = error.clone();
    }

    /// Returns since when requests wait while nothing moves, and the oldest waiting request.
    fn silence(&self) -> Option<(Instant, &Asked)> {
        let oldest = self.waiting.values().next()?;
        let since = self
            .moved
            .map_or(oldest.since, |moved| moved.max(oldest.since));
        Some((since, oldest))
    }

    fn forget(&mut self, now: Instant) {
        let waiting = self.waiting.values();
        let asked: Vec<Sort> = waiting
            .map(|asked| Sort::of(asked.operation, &asked.key))
            .collect();
        self.troubles.retain(|sort, trouble| {
            let age = now.saturating_duration_since(trouble.seen);
            age < FORGOTTEN_AFTER || asked.contains(sort)
        });
    }
}

fn unanswered(asked: &Asked, silence: Duration) -> StoreError {
    let message = format!("no answer for {} s", silence.as_secs());
    StoreError::new(
        StoreErrorKind::Unreachable,
        asked.operation,
        &asked.key,
        message,
    )
}

/// A request that waits for its answer. Dropping it without an answer says that no caller waits any
/// more. If the store was silent for the request's whole life, and that was at least
/// [`TOLD_AFTER`], the drop records trouble.
#[derive(Debug)]
pub(super) struct Request {
    signs: Signs,
    number: u64,
}

impl Request {
    /// Records the answer.
    pub(super) fn end<T>(self, answer: &Result<T, StoreError>) {
        let now = Instant::now();
        let mut state = self.signs.0.state.lock();
        let Some(asked) = state.waiting.remove(&self.number) else {
            return;
        };
        match answer {
            Err(error) if !is_well(error.kind()) => {
                if error.kind() != StoreErrorKind::Unreachable {
                    state.moved = Some(now);
                }
                state.note(error, asked.since, now);
            }
            _ => {
                state.moved = Some(now);
                state
                    .troubles
                    .remove(&Sort::of(asked.operation, &asked.key));
            }
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.signs.0.state.lock();
        let Some(asked) = state.waiting.remove(&self.number) else {
            return;
        };
        let silence = now.saturating_duration_since(asked.since);
        let was_silent = state.moved.is_none_or(|moved| moved <= asked.since);
        if was_silent && silence >= TOLD_AFTER {
            state.note(&unanswered(&asked, silence), asked.since, now);
        }
    }
}

/// Returns whether an error is a regular answer of a healthy store.
fn is_well(kind: StoreErrorKind) -> bool {
    match kind {
        StoreErrorKind::NotFound
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::OutOfRange => true,
        StoreErrorKind::Denied
        | StoreErrorKind::NoBucket
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::NoSpace
        | StoreErrorKind::Invalid
        | StoreErrorKind::Other => false,
    }
}

/// Returns one word for why a request failed.
fn cause_of(error: &StoreError) -> &'static str {
    match error.kind() {
        StoreErrorKind::NoSpace => "full",
        StoreErrorKind::Denied => "denied",
        StoreErrorKind::NoBucket => "no-bucket",
        StoreErrorKind::Throttled => "busy",
        StoreErrorKind::Unreachable | StoreErrorKind::OutcomeUnknown => {
            cause_in(error.message()).unwrap_or("unreachable")
        }
        StoreErrorKind::NotFound
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::OutOfRange
        | StoreErrorKind::NoServer
        | StoreErrorKind::Invalid
        | StoreErrorKind::Other => cause_in(error.message()).unwrap_or("error"),
    }
}

/// Returns one word for why a connection failed, if the text tells: only the text does.
fn cause_in(text: &str) -> Option<&'static str> {
    let causes: [(&str, &[&str]); 5] = [
        (
            "dns",
            &["dns error", "resolving DNS", "lookup address", "resolve"],
        ),
        ("tls", &["certificate", "TLS", "tls handshake"]),
        ("refused", &["onnection refused"]),
        ("http", &[" answered "]),
        ("silence", &["no answer", "no progress", "timed out"]),
    ];
    let is_told = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let mut told = causes.iter().filter(|(_, words)| is_told(words));
    told.next().map(|(cause, _)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: StoreErrorKind, operation: Operation, key: &str) -> StoreError {
        StoreError::new(kind, operation, key, "store answered 507")
    }

    async fn wait(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    /// Records one answer to a request that begins and ends now.
    fn answered(signs: &Signs, operation: Operation, key: &str, kind: Option<StoreErrorKind>) {
        let answer = match kind {
            None => Ok(()),
            Some(kind) => Err(failure(kind, operation, key)),
        };
        signs.begin(operation, key).end(&answer);
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasts_is_told_until_the_same_is_answered_well() {
        let signs = Signs::default();
        let put = |kind| answered(&signs, Operation::PutNew, "data/1", kind);
        put(Some(StoreErrorKind::NoSpace));
        assert!(signs.outage().is_none(), "one refusal is no outage");
        wait(4).await;
        // All other requests are answered well meanwhile.
        answered(&signs, Operation::Get, "data/1", None);
        answered(&signs, Operation::PutNew, "journal/1", None);
        answered(&signs, Operation::Delete, "data/0", None);
        put(Some(StoreErrorKind::NoSpace));
        let outage = signs.outage().expect("it lasts");
        assert_eq!(
            (outage.cause(), outage.since.elapsed().as_secs()),
            ("full", 4)
        );
        assert_eq!(outage.waiting, 0);
        put(None);
        assert!(signs.outage().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_no_sign_from_anything() {
        let signs = Signs::default();
        let old = signs.begin(Operation::PutNew, "data/1");
        for _ in 0..10 {
            wait(2).await;
            signs.received(Instant::now());
        }
        assert!(signs.outage().is_none(), "slow, but alive");
        let first = Instant::now();
        for _ in 0..10 {
            wait(2).await;
            signs.sent(first);
        }
        assert!(signs.outage().is_none(), "it takes a long body");
        wait(4).await;
        let outage = signs.outage().expect("silent");
        assert_eq!(
            (
                outage.cause(),
                outage.since.elapsed().as_secs(),
                outage.waiting
            ),
            ("silence", 4, 1)
        );
        old.end(&Ok(()));
        assert!(signs.outage().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_bytes_of_a_new_request_end_no_silence() {
        let signs = Signs::default();
        let _old = signs.begin(Operation::PutNew, "data/1");
        for seconds in 1..20 {
            let _new = signs.begin(Operation::PutNew, "data/2");
            signs.sent(Instant::now());
            wait(1).await;
            let told = signs
                .outage()
                .map(|outage| outage.since.elapsed().as_secs());
            assert_eq!(told, (seconds >= 3).then_some(seconds));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_leaves_what_it_saw() {
        let signs = Signs::default();
        drop(signs.begin(Operation::Get, "root"));
        wait(10).await;
        assert!(signs.outage().is_none(), "it had not waited");
        let given_up = signs.begin(Operation::Get, "root");
        wait(5).await;
        drop(given_up);
        wait(1).await;
        let outage = signs.outage().expect("it had no answer");
        assert_eq!(
            (outage.cause(), outage.since.elapsed().as_secs()),
            ("silence", 6)
        );
        wait(15).await;
        assert!(signs.outage().is_none(), "no request is left");
    }

    #[tokio::test(start_paused = true)]
    async fn who_watches_sleeps_while_all_is_well() {
        let signs = Signs::default();
        let woken = tokio::time::timeout(Duration::from_secs(1), signs.stirred());
        woken.await.expect_err("nothing was asked");
        let asked = signs.begin(Operation::Get, "root");
        signs.stirred().await;
        asked.end(&Ok(()));
        let woken = tokio::time::timeout(Duration::from_secs(1), signs.stirred());
        woken.await.expect_err("all is answered");
    }

    #[test]
    fn causes_are_one_word() {
        use StoreErrorKind as Kind;
        let cases = [
            (
                Kind::Unreachable,
                "s3.example does not answer: dns error: failed to lookup address information: \
                 Name or service not known",
                "dns",
            ),
            (
                Kind::Unreachable,
                "s3.example does not answer: error resolving DNS: the name s3.example is neither \
                 in /etc/hosts nor known to the DNS servers of /etc/resolv.conf",
                "dns",
            ),
            (
                Kind::Unreachable,
                "127.0.0.1:9 does not answer: tcp connect error: Connection refused (os error 111)",
                "refused",
            ),
            (
                Kind::Other,
                "s3.example cannot prove who it is: invalid peer certificate: UnknownIssuer",
                "tls",
            ),
            (
                Kind::Unreachable,
                "s3.example does not answer: no progress for 60 s",
                "silence",
            ),
            (
                Kind::Unreachable,
                "s3.example does not answer: connection reset",
                "unreachable",
            ),
            (Kind::OutcomeUnknown, "s3.example answered 502", "http"),
            (
                Kind::Invalid,
                "s3.example answered 400 EntityTooLarge",
                "http",
            ),
            (
                Kind::Throttled,
                "the store asks for patience: s3.example answered 503",
                "busy",
            ),
            (
                Kind::NoSpace,
                "the store is full: s3.example answered 507",
                "full",
            ),
            (
                Kind::Denied,
                "no permission: s3.example answered 403",
                "denied",
            ),
            (Kind::NoBucket, "there is no such bucket", "no-bucket"),
        ];
        for (kind, message, expected) in cases {
            let error = StoreError::new(kind, Operation::Put, "sessions/1", message);
            assert_eq!(cause_of(&error), expected, "{message}");
        }
    }
}
