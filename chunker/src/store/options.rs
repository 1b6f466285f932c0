//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Signs;

/// The longest that a request may make no progress, however patient the caller is.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The longest that what lies in the sockets' buffers may take to drain: 4 MiB (net.ipv4.tcp_wmem's
/// usual maximum) at 32 KiB/s.
const DRAIN_MAX: Duration = Duration::from_secs(128);

/// The longest that a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(6);

/// The shortest time without progress after which a request is broken off, unless the caller has
/// not twice as long: a busy store takes a while.
const STALL_MIN: Duration = Duration::from_secs(4);

/// Who is told why a request waits: at most every half minute.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Tells by calling this with the cause.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(super) fn tell(&self, cause: &str) {
        (self.0)(cause);
    }
}

impl Default for Notice {
    /// Tells the log.
    fn default() -> Self {
        Self::new(|cause| tracing::warn!("waiting for the store: {cause}"))
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Notice")
    }
}

/// What [`open_store`](super::open_store) needs to know beside the URL.
#[derive(Clone)]
pub struct StoreOptions {
    /// The server's address, as `http://127.0.0.1:9000`, if it is not the cloud's own. Wins over the environment.
    pub endpoint: Option<String>,
    /// The region of the bucket. Wins over the environment.
    pub region: Option<String>,
    /// Further settings, by the names that the environment has for them (`AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_NAME`,
    /// `GOOGLE_SERVICE_ACCOUNT`, …; in any case), from a configuration file. They win over the environment, and may be secrets.
    pub settings: Vec<(String, String)>,
    /// Whether credentials and addresses are read from the environment of the process too.
    pub use_environment: bool,
    /// Whether a local directory that is absent is made.
    pub create_directory: bool,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a request may make no progress in either direction before it is broken off. Never the total: a slow link may take its time.
    pub stall_timeout: Duration,
    /// How long a sent body may lie in the sockets' buffers, in which no progress is seen, beyond
    /// `stall_timeout`.
    pub drain_timeout: Duration,
    /// How long one call tries again before it reports a transient error. Longer outages are the caller's matter.
    pub retry_for: Duration,
    /// Whether a server that was never reached (its name is unknown, it refuses connections, its
    /// certificate is wrong) is waited for like any other outage. Otherwise that is an error
    /// within ten seconds.
    pub wait: bool,
    /// Who is told why a request waits.
    pub notice: Notice,
    /// How many requests a local directory works on at once, each on a thread of its own.
    pub local_threads: usize,
    /// Where it is noted what becomes of requests that are sent again below those who asked for
    /// them.
    pub signs: Signs,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            settings: Vec::new(),
            use_environment: true,
            create_directory: false,
            connect_timeout: CONNECT_MAX,
            stall_timeout: STALL_MAX,
            drain_timeout: DRAIN_MAX,
            retry_for: Duration::from_secs(30),
            wait: false,
            notice: Notice::default(),
            local_threads: 32,
            signs: Signs::default(),
        }
    }
}

impl StoreOptions {
    /// The same for a caller who waits for `timeout` in all. A request that makes no progress is
    /// broken off early enough to be sent again several times: what was sent into a silence
    /// may never be answered, and an outage shorter than the timeout must be survived.
    pub fn within(self, timeout: Duration) -> Self {
        let share = (timeout / 4).max(STALL_MIN).min(timeout / 2);
        Self {
            connect_timeout: share.min(CONNECT_MAX),
            stall_timeout: share.min(STALL_MAX),
            drain_timeout: (timeout.saturating_sub(STALL_MAX) / 2).min(DRAIN_MAX),
            retry_for: timeout,
            ..self
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self
            .settings
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        formatter
            .debug_struct("StoreOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("settings", &names)
            .field("use_environment", &self.use_environment)
            .field("create_directory", &self.create_directory)
            .finish_non_exhaustive()
    }
}
