//! `bkfs serve URL…`
//!
//! Owns the options, the token and the certificate, and the questions to mounts. Does not own the
//! page (`page`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::cli::access::open;
use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output};
use crate::cli::password::secret_in;
use crate::cli::runtime::block_on_until_told;
use crate::cli::target::target;
use crate::page::answer::Answering;
use crate::page::guard::{Guard, TOKEN_CHARS_MIN, TokenGuard};
use crate::page::restores::{RestoreRoot, Restores};
use crate::page::server::{Address, Listening, serve};
use crate::page::{MountHealth, Page};
use crate::repository::Repository;
use crate::{places, private};

/// How to make a token.
const MAKE_TOKEN: &str = "Make one: (umask 077; openssl rand -hex 32 > FILE)";

/// Show repositories in a browser
///
/// The page shows volumes and snapshots, what is in them, versions of a file, and the mounts of this
/// machine. Files are downloaded as they are, and directories as tar archives. Nothing can be
/// changed, unless --allow-forget or --allow-restore says so. /metrics is for Prometheus.
///
/// Without --listen the page is on a Unix socket that this user alone may open. On TCP every request
/// needs the token of --token-file: browsers ask for it, and other clients send it as
/// "Authorization: Bearer TOKEN". The token opens everything that the repositories hold.
///
///   (umask 077; openssl rand -hex 32 > token)
///   bkfs serve s3://bucket/prefix --listen 127.0.0.1:8080 --token-file token
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Serve {
    /// The repositories, or mounts of them
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Listen here: ADDRESS:PORT, or the path of a Unix socket (default: bkfs/serve.sock in
    /// $XDG_RUNTIME_DIR, or /run/bkfs/serve.sock)
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<Address>,
    /// Read the token from the first line of this file, which others must not be able to read
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let the page forget snapshots, and bring them back
    #[arg(long)]
    allow_forget: bool,
    /// Let the page restore files and directories to new or existing ones below this directory; may
    /// be repeated. Set-id bits, devices, fifos, sockets, and extended attributes other than user.*
    /// are left out
    #[arg(long, value_name = "DIRECTORY")]
    allow_restore: Vec<PathBuf>,
    /// Answer to this name of the machine; may be repeated. Addresses and localhost need no option
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Speak TLS with the certificates of this file (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

fn address(text: &str) -> Result<Address, String> {
    match text.contains('/') {
        true => Ok(Address::Unix(PathBuf::from(
            text.strip_prefix("unix:").unwrap_or(text),
        ))),
        false => text.parse::<SocketAddr>().map(Address::Tcp).map_err(|_| {
            "give an address and a port, as 127.0.0.1:8080 or [::1]:8080, or a path".to_owned()
        }),
    }
}

/// Serves until a signal ends it.
///
/// # Errors
/// The [`Failure`] of a repository; exit code 2 if the options do not fit together, 1 if the socket,
/// the token or the certificate cannot be used.
pub fn run(command: Serve, global: &Global, output: &Output) -> Result<(), Failure> {
    let address = match &command.listen {
        Some(address) => address.clone(),
        None => Address::Unix(own_socket()?),
    };
    if command.tls_cert.is_some() && matches!(address, Address::Unix(_)) {
        let why = "--tls-cert and --tls-key are for TCP: a Unix socket stays on this machine";
        return Err(Failure::usage(why));
    }
    let tls = match (&command.tls_cert, &command.tls_key) {
        (Some(certificates), Some(key)) => Some(acceptor(certificates, key)?),
        _ => None,
    };
    let guard = guard(&command, &address)?;
    let restores = restores(&command)?;
    if let Address::Tcp(address) = &address
        && tls.is_none()
        && !address.ip().is_loopback()
    {
        output.warning(
            "the token and all files cross the network as they are: give --tls-cert and --tls-key, \
             or listen on 127.0.0.1 behind a proxy that speaks TLS",
        );
    }
    block_on_until_told(async {
        let mut repositories = Vec::new();
        for url in &command.urls {
            repositories.push(opened(url, global).await?);
        }
        let listening = Listening::at(&address, tls).await;
        let cannot = |error| Failure::new(format!("cannot listen at {}: {error}", of(&address)));
        let listening = listening.map_err(cannot)?;
        let url = listening.url().map_err(cannot)?;
        let page = Page {
            repositories,
            guard,
            mounts: Arc::new(mounts_of),
            may_forget: command.allow_forget,
            restores,
        };
        let no_signals = |error| Failure::new(format!("cannot watch for signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        output.result(&json!({ "url": url }), || format!("listening on {url}"))?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        serve(Arc::new(Answering::new(page)), listening, stop).await;
        Ok(())
    })
}

async fn opened(url: &str, global: &Global) -> Result<Repository, Failure> {
    let (url, global) = target(url, global)?;
    open(&url, &global).await
}

fn of(address: &Address) -> String {
    match address {
        Address::Unix(path) => path.display().to_string(),
        Address::Tcp(address) => address.to_string(),
    }
}

/// Returns the path of the socket of this user, whose directory is made.
fn own_socket() -> Result<PathBuf, Failure> {
    let none = "there is no directory for the socket: give --listen";
    let directory = places::runtime_dir().ok_or_else(|| Failure::usage(none))?;
    private::make_directory(&directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    Ok(directory.join("serve.sock"))
}

/// Opens the directories to which the page may restore.
fn restores(command: &Serve) -> Result<Restores, Failure> {
    let opened = command.allow_restore.iter().map(|path| {
        let failed = |error| Failure::new(format!("{}: {error}", path.display()));
        RestoreRoot::open(path).map_err(failed)
    });
    Ok(Restores::new(opened.collect::<Result<_, _>>()?))
}

fn guard(command: &Serve, address: &Address) -> Result<Guard, Failure> {
    let mut form_key = [0; 32];
    rand::fill(&mut form_key);
    let path = match (address, &command.token_file) {
        (Address::Unix(_), None) => return Ok(Guard::new(&command.host, None, form_key)),
        (Address::Unix(_), Some(_)) => {
            let why = "--token-file is for TCP: the permissions of the socket decide who may ask";
            return Err(Failure::usage(why));
        }
        (Address::Tcp(_), None) => {
            let why = "listening on TCP needs --token-file: every user of this machine can connect";
            return Err(Failure::usage(why).hint(MAKE_TOKEN));
        }
        (Address::Tcp(_), Some(path)) => path,
    };
    let token = secret_in("token file", path)?;
    if token.chars().count() < TOKEN_CHARS_MIN {
        let why = format!(
            "the token in {} has fewer than {TOKEN_CHARS_MIN} characters",
            path.display()
        );
        return Err(Failure::new(why).hint(MAKE_TOKEN));
    }
    let mut key = Zeroizing::new([0; 32]);
    rand::fill(key.as_mut_slice());
    Ok(Guard::new(
        &command.host,
        Some(TokenGuard::new(&token, *key)),
        form_key,
    ))
}

fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    let failed = |path: &Path, why: String| Failure::new(format!("{}: {why}", path.display()));
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(certificates, format!("no certificates in PEM: {error}")))?;
    let secret = PrivateKeyDer::from_pem_file(key);
    let secret = secret.map_err(|error| failed(key, format!("no key in PEM: {error}")))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| failed(certificates, error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Asks the mounts of a repository on this machine.
fn mounts_of(url: &str) -> Vec<MountHealth> {
    let mounts = bkfs_fuse::mounts().unwrap_or_default();
    let ours = mounts.iter().filter(|mount| mount.is_bkfs());
    ours.filter(|mount| mount.source.to_str() == Some(url))
        .map(|mount| {
            let client = MountClient::find(&mount.mount_point);
            let status = client.and_then(|client| client.status());
            health(mount.mount_point.display().to_string(), status)
        })
        .collect()
}

fn health(mount_point: String, status: Result<Value, Failure>) -> MountHealth {
    let status = match status {
        Ok(status) => status,
        Err(failure) => {
            return MountHealth {
                mount_point,
                volume: None,
                is_healthy: false,
                waiting_bytes: 0,
                remarks: vec![failure.message],
            };
        }
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut remarks: Vec<String> = text(&status["failure"]).into_iter().collect();
    if status["store"]["answers"] == false {
        let cause = status["store"]["error"].as_str().unwrap_or("no answer");
        remarks.push(format!("the store does not answer: {cause}"));
    }
    MountHealth {
        mount_point,
        volume: text(&status["volume"]),
        is_healthy: status["healthy"] == true && status["health"] == "healthy",
        waiting_bytes: status["waiting"]["bytes"].as_u64().unwrap_or(0),
        remarks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_path() {
        let unix = |path: &str| Ok(Address::Unix(path.into()));
        assert_eq!(address("/run/x.sock"), unix("/run/x.sock"));
        assert_eq!(address("unix:/run/x.sock"), unix("/run/x.sock"));
        assert_eq!(address("./x.sock"), unix("./x.sock"));
        assert!(matches!(address("[::1]:8080"), Ok(Address::Tcp(_))));
        for wrong in ["localhost", "8080", "localhost:8080", "127.0.0.1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_mount_that_does_not_answer_is_not_healthy() {
        let silent = health("/backup".into(), Err(Failure::new("it does not answer")));
        assert!(!silent.is_healthy && silent.remarks == ["it does not answer"]);
        let waiting = json!({
            "healthy": true, "health": "waiting", "volume": "main",
            "store": { "answers": false, "error": "connection refused" },
            "waiting": { "bytes": 7 }, "failure": null,
        });
        let waiting = health("/backup".into(), Ok(waiting));
        assert!(!waiting.is_healthy && waiting.waiting_bytes == 7);
        assert_eq!(waiting.remarks.len(), 1);
    }
}
