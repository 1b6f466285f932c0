//! The resolver of a statically linked program.
//!
//! glibc's own resolver would load shared libraries of the machine's glibc into the program, which
//! fails or crashes where the version differs. This one reads /etc/hosts, then asks the DNS servers
//! of /etc/resolv.conf in their order. It knows no other source of nsswitch.conf(5). Both files are
//! read for each lookup, so that a mount sees their changes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::hosts::addresses_in;

const HOSTS: &str = "/etc/hosts";
const SETTINGS: &str = "/etc/resolv.conf";

/// The server where resolv.conf(5) names none.
const SERVER_DEFAULT: &str = "\nnameserver 127.0.0.1\n";

/// Why a name has no address. It has no source, so messages end with it.
#[derive(Debug, thiserror::Error)]
enum NameError {
    #[error("the name {0} is neither in {HOSTS} nor known to the DNS servers of {SETTINGS}")]
    Unknown(String),
    #[error("the DNS servers of {SETTINGS} do not tell the address of {name}: {reason}")]
    Silent { name: String, reason: String },
    #[error("{SETTINGS} cannot be used: {0}")]
    Settings(String),
}

/// The most servers that are asked, as in glibc.
const SERVERS_MAX: usize = 3;

/// Looks names up for an HTTP client.
#[derive(Debug)]
pub(super) struct Resolver {
    /// How long a name may take.
    limit: Duration,
    dns: Arc<Mutex<Option<Dns>>>,
}

impl Resolver {
    /// Returns a resolver for connections that may take so long. An unanswered question must end
    /// before its connection, which would not say why.
    pub(super) fn within(connect_timeout: Duration) -> Self {
        Self {
            limit: connect_timeout * 3 / 4,
            dns: Arc::default(),
        }
    }
}

/// A client for each DNS server, and the settings that they were made from.
#[derive(Debug)]
struct Dns {
    settings: Vec<u8>,
    servers: Vec<TokioResolver>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (dns, limit) = (Arc::clone(&self.dns), self.limit);
        Box::pin(async move {
            let found = addresses_of(name.as_str(), &dns, limit).await?;
            let addresses = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

async fn addresses_of(
    name: &str,
    dns: &Mutex<Option<Dns>>,
    limit: Duration,
) -> Result<Vec<IpAddr>, NameError> {
    let hosts = read(HOSTS).await;
    let found = addresses_in(&String::from_utf8_lossy(&hosts), name);
    if !found.is_empty() {
        return Ok(found);
    }
    let settings = read(SETTINGS).await;
    let servers = servers_of(settings, &mut dns.lock())?;
    ask(name, &servers, limit).await
}

/// Asks the servers one after the other. As in glibc, the next one is asked only if one does not
/// answer or fails: a name that the first of them does not know is unknown.
async fn ask(
    name: &str,
    servers: &[TokioResolver],
    limit: Duration,
) -> Result<Vec<IpAddr>, NameError> {
    let share = limit / servers.len().max(1) as u32;
    let mut reason = "it names none".to_owned();
    for server in servers {
        match tokio::time::timeout(share, server.lookup_ip(name)).await {
            Ok(Ok(found)) => return Ok(found.iter().collect()),
            Ok(Err(error)) if error.is_no_records_found() => {
                return Err(NameError::Unknown(name.to_owned()));
            }
            Ok(Err(error)) => reason = error.to_string(),
            Err(_) => reason = format!("no answer for {:.1} s", share.as_secs_f32()),
        }
    }
    Err(NameError::Silent {
        name: name.to_owned(),
        reason,
    })
}

/// Returns the contents of a file, or nothing if it cannot be read: both files may be absent.
async fn read(path: &str) -> Vec<u8> {
    tokio::fs::read(path).await.unwrap_or_default()
}

/// Returns the clients for these settings: the last ones, unless the settings changed.
fn servers_of(settings: Vec<u8>, dns: &mut Option<Dns>) -> Result<Vec<TokioResolver>, NameError> {
    if let Some(known) = dns.as_ref().filter(|known| known.settings == settings) {
        return Ok(known.servers.clone());
    }
    let servers = made_from(&settings).map_err(|error| NameError::Settings(error.to_string()))?;
    *dns = Some(Dns {
        settings,
        servers: servers.clone(),
    });
    Ok(servers)
}

/// Returns a client for each server. One for all of them would wait for the first server so long
/// that no time is left for the second.
fn made_from(settings: &[u8]) -> Result<Vec<TokioResolver>, NetError> {
    let (config, mut options) = match parse_resolv_conf(settings) {
        Ok(parsed) => parsed,
        Err(_) => parse_resolv_conf([settings, SERVER_DEFAULT.as_bytes()].concat())?,
    };
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    // An operator who adds a name to the servers need not start the mount again.
    options.negative_max_ttl = Some(Duration::ZERO);
    let servers = config.name_servers().iter().take(SERVERS_MAX);
    servers
        .map(|server| {
            let config = ResolverConfig::from_parts(
                config.domain().cloned(),
                config.search().to_vec(),
                vec![server.clone()],
            );
            let provider = TokioRuntimeProvider::default();
            let builder = TokioResolver::builder_with_config(config, provider);
            builder.with_options(options.clone()).build()
        })
        .collect()
}
