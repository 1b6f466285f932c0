//! How a store is opened.

use std::fmt;
use std::time::Duration;

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
    /// How long one call tries again before it reports a transient error. Longer outages are the caller's matter.
    pub retry_for: Duration,
    /// How many requests a local directory works on at once, each on a thread of its own.
    pub local_threads: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            settings: Vec::new(),
            use_environment: true,
            create_directory: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            retry_for: Duration::from_secs(30),
            local_threads: 32,
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
