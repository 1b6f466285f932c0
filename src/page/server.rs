//! Connections of browsers and other clients.
//!
//! Owns the limits of a connection, TLS, and the end of the server. Does not own what is answered
//! (`answer`).
//!
//! Each connection carries one request. One that sends no request, or takes no answer, ends by
//! itself, so that slow clients keep no others away for long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::Mode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::page::answer::Answering;

/// Connections at the same time. Others wait in the queue of the kernel.
const CONNECTIONS_MAX: usize = 256;

/// How long a client may take for its request, and for the handshake of TLS.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client may take no byte of its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long the end waits for answers on their way.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Connections that wait in the kernel.
const BACKLOG: u32 = 1024;

/// Pause after a connection could not be accepted, for instance because descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket, which its owner alone may connect to.
    Unix(PathBuf),
    /// An address and a port; port 0 is chosen by the kernel.
    Tcp(SocketAddr),
}

/// A socket that listens. Dropped, a Unix socket is removed.
pub enum Listening {
    /// A Unix socket and its path.
    Unix(UnixListener, SocketPath),
    /// A TCP socket, with TLS if there is a certificate.
    Tcp(TcpListener, Option<TlsAcceptor>),
}

/// The path of a Unix socket, which is removed with the value.
pub struct SocketPath {
    path: PathBuf,
    /// Device and inode.
    own: (u64, u64),
}

impl SocketPath {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            own: identity(path)?,
        })
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Another server may have put its own there.
        if identity(&self.path).is_ok_and(|there| there == self.own) {
            // A socket that stays is removed by the next server.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Listening {
    /// Listens at an address. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The I/O error of the socket; [`io::ErrorKind::AddrInUse`] if another server listens there.
    pub async fn at(address: &Address, tls: Option<TlsAcceptor>) -> io::Result<Listening> {
        match address {
            Address::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?, tls)),
            Address::Unix(path) => {
                remove_dead_socket(path).await?;
                let socket = UnixSocket::new_stream()?;
                // The socket in the directory gets the mode that the descriptor has (unix(7)).
                rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(0o600))?;
                socket.bind(path)?;
                let path = SocketPath::of(path)?;
                Ok(Self::Unix(socket.listen(BACKLOG)?, path))
            }
        }
    }

    /// Returns the URL that a browser opens, or the path of the socket.
    ///
    /// # Errors
    /// The I/O error of asking for the port.
    pub fn url(&self) -> io::Result<String> {
        Ok(match self {
            Self::Unix(_, path) => format!("unix:{}", path.path.display()),
            Self::Tcp(listener, tls) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                format!("{scheme}://{}/", listener.local_addr()?)
            }
        })
    }
}

/// Removes a socket at which no process listens.
async fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    // A server that has too much to do does not refuse.
    let answer = tokio::time::timeout(REQUEST_PATIENCE, UnixStream::connect(path)).await;
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let is_refused = answer.is_ok_and(|answer| answer.is_err_and(is_refused));
    match found.file_type().is_socket() && is_refused {
        true => std::fs::remove_file(path),
        false => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Serves until `stop` is ready, then ends the answers on their way, some after five seconds.
pub async fn serve(answering: Arc<Answering>, listening: Listening, stop: impl Future) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let permit = permits.clone().acquire_owned();
        let accepted = async {
            let permit = permit.await.map_err(io::Error::other)?;
            connection(&listening, &answering, permit).await
        };
        let accepted = tokio::select! {
            _ = &mut stop => break,
            accepted = accepted => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(connection) => drop(connections.spawn(connection)),
            Err(error) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listening);
    let all = async {
        answering.end().await;
        while connections.join_next().await.is_some() {}
    };
    if tokio::time::timeout(END_PATIENCE, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// Accepts a connection, and returns the task that serves it.
async fn connection(
    listening: &Listening,
    answering: &Arc<Answering>,
    permit: OwnedSemaphorePermit,
) -> io::Result<futures::future::BoxFuture<'static, ()>> {
    let answering = answering.clone();
    match listening {
        Listening::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            Ok(Box::pin(serve_one(answering, stream, permit)))
        }
        Listening::Tcp(listener, None) => {
            let (stream, _) = listener.accept().await?;
            Ok(Box::pin(serve_one(answering, stream, permit)))
        }
        Listening::Tcp(listener, Some(tls)) => {
            let (stream, _) = listener.accept().await?;
            let tls = tls.clone();
            Ok(Box::pin(async move {
                let shaken = tokio::time::timeout(REQUEST_PATIENCE, tls.accept(stream)).await;
                if let Ok(Ok(stream)) = shaken {
                    serve_one(answering, stream, permit).await;
                }
            }))
        }
    }
}

async fn serve_one<S>(answering: Arc<Answering>, stream: S, permit: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let _permit = permit;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(ANSWER_PATIENCE));
    let service = service_fn(|request| {
        let answering = answering.clone();
        async move { Ok::<_, Infallible>(answering.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_PATIENCE)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("a connection has ended early: {error}");
    }
}
