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
use hickory_resolver::config::{LookupIpStrategy, ServerOrderingStrategy};
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

/// Looks names up for an HTTP client.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    dns: Arc<Mutex<Option<Dns>>>,
}

/// The client of the DNS servers, and the settings that it was made from.
#[derive(Debug)]
struct Dns {
    settings: Vec<u8>,
    resolver: TokioResolver,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let dns = Arc::clone(&self.dns);
        Box::pin(async move {
            let found = addresses_of(name.as_str(), &dns).await?;
            let addresses = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

async fn addresses_of(name: &str, dns: &Mutex<Option<Dns>>) -> Result<Vec<IpAddr>, NameError> {
    let hosts = read(HOSTS).await;
    let found = addresses_in(&String::from_utf8_lossy(&hosts), name);
    if !found.is_empty() {
        return Ok(found);
    }
    let settings = read(SETTINGS).await;
    let resolver = resolver_for(settings, &mut dns.lock())?;
    match resolver.lookup_ip(name).await {
        Ok(found) => Ok(found.iter().collect()),
        Err(error) if error.is_no_records_found() => Err(NameError::Unknown(name.to_owned())),
        Err(error) => Err(NameError::Silent {
            name: name.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// Returns the contents of a file, or nothing if it cannot be read: both files may be absent.
async fn read(path: &str) -> Vec<u8> {
    tokio::fs::read(path).await.unwrap_or_default()
}

/// Returns the client for these settings: the last one, unless the settings changed.
fn resolver_for(settings: Vec<u8>, dns: &mut Option<Dns>) -> Result<TokioResolver, NameError> {
    if let Some(known) = dns.as_ref().filter(|known| known.settings == settings) {
        return Ok(known.resolver.clone());
    }
    let resolver = made_from(&settings).map_err(|error| NameError::Settings(error.to_string()))?;
    *dns = Some(Dns {
        settings,
        resolver: resolver.clone(),
    });
    Ok(resolver)
}

fn made_from(settings: &[u8]) -> Result<TokioResolver, NetError> {
    let (config, mut options) = match parse_resolv_conf(settings) {
        Ok(parsed) => parsed,
        Err(_) => parse_resolv_conf([settings, SERVER_DEFAULT.as_bytes()].concat())?,
    };
    // As glibc does: the servers are asked in the order of the file, and a name that the first of
    // them does not know is unknown.
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    options.num_concurrent_reqs = 1;
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    // An operator who adds a name to the servers need not start the mount again.
    options.negative_max_ttl = Some(Duration::ZERO);
    let provider = TokioRuntimeProvider::default();
    let mut builder = TokioResolver::builder_with_config(config, provider);
    *builder.options_mut() = options;
    builder.build()
}
