//! Options for opening a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Signs;

/// The longest time without progress before a request is cancelled, however long the caller waits.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The longest time that the sockets' buffers may take to drain if the rate of the link is not
/// known: 4 MiB (the usual maximum of net.ipv4.tcp_wmem) at 32 KiB/s.
const DRAIN_MAX: Duration = Duration::from_secs(128);

/// The longest time for making a connection.
const CONNECT_MAX: Duration = Duration::from_secs(6);

/// The shortest time without progress before a request is cancelled, because a busy store takes a
/// while to answer. A caller whose timeout is shorter than twice this gets half of its timeout.
const STALL_MIN: Duration = Duration::from_secs(4);

/// A callback that is told why a request waits, at most once every 60 s.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Returns a notice that calls `tell` with the cause.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(super) fn tell(&self, cause: &str) {
        (self.0)(cause);
    }
}

impl Default for Notice {
    /// Writes the cause to the log.
    fn default() -> Self {
        Self::new(|cause| tracing::warn!("waiting for the store: {cause}"))
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Notice")
    }
}

/// The settings of [`open_store`](super::open_store), in addition to the URL.
#[derive(Clone)]
pub struct StoreOptions {
    /// The server's address, such as `http://127.0.0.1:9000`, if it is not the cloud's own. It
    /// takes precedence over the environment.
    pub endpoint: Option<String>,
    /// The region of the bucket. It takes precedence over the environment.
    pub region: Option<String>,
    /// Further settings from a configuration file, by the names that the environment has for them,
    /// in any case (`AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_NAME`, `GOOGLE_SERVICE_ACCOUNT`,
    /// …). They take precedence over the environment, and may be secrets.
    pub settings: Vec<(String, String)>,
    /// Whether credentials and addresses are also read from the environment of the process.
    pub use_environment: bool,
    /// Whether an absent local directory is created.
    pub create_directory: bool,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long a request may make no progress in either direction before it is cancelled. A slow
    /// link may take as long as it needs, above a mean of 2 KiB/s for each request.
    pub stall_timeout: Duration,
    /// How long, in addition to `stall_timeout`, a sent body may stay in the sockets' buffers,
    /// where no progress is visible. A body that showed a slow link may stay there for longer.
    pub drain_timeout: Duration,
    /// How long one call sends its request again before it reports a transient error. The caller
    /// handles longer outages.
    pub retry_for: Duration,
    /// Whether to wait for a server that was never reached (its name is unknown, it refuses
    /// connections, its certificate is wrong) as for any other outage. Otherwise such a failure
    /// becomes an error within about 10 s.
    pub wait: bool,
    /// The callback that is told why a request waits.
    pub notice: Notice,
    /// How many requests a local directory serves concurrently, each on its own thread.
    pub local_threads: usize,
    /// The health record. The store reports to it the requests that it sends again itself, without
    /// the caller's knowledge.
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
    /// Returns these options for a caller that waits for `timeout` in total.
    ///
    /// A request without progress is cancelled after a quarter of `timeout` (at least 4 s, at most
    /// 60 s, never more than half of `timeout`), early enough to be sent again several times. A
    /// request that was sent during an outage may never be answered, and an outage shorter than
    /// `timeout` must be survived. With the time for draining, it is two thirds of `timeout` at
    /// most.
    pub fn within(self, timeout: Duration) -> Self {
        let share = (timeout / 4).max(STALL_MIN).min(timeout / 2);
        let stall = share.min(STALL_MAX);
        let drain = (timeout / 5 * 2).min((timeout / 3 * 2).saturating_sub(stall));
        Self {
            connect_timeout: share.min(CONNECT_MAX),
            stall_timeout: stall,
            drain_timeout: drain.min(DRAIN_MAX),
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
