//! Connections whose kernel buffer holds few bytes that have not gone out.
//!
//! Owns one socket option. Without it the kernel takes megabytes of a body at once, and no progress
//! is seen while they go out: on a slow link that is a minute, and looks like a silent store. The
//! option limits what waits to be sent, not what is on its way, so a fast and distant link stays
//! fast.
//!
//! `reqwest` gives no access to its sockets. So the socket of a new connection is looked for among
//! the descriptors of this process, by its two addresses. If it is not found, or the system forbids
//! the look, the connection is used as it is.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connection, HttpInfo};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::SockRef;
use tower_layer::Layer;
use tower_service::Service;

/// How many bytes may wait in a socket. The kernel asks for more when half of them have gone out,
/// which a link of 1 Gbit/s needs half a millisecond for.
const QUEUED_BYTES: u32 = 128 * 1024;

/// Makes all connections of a client such.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortQueue;

impl<S> Layer<S> for ShortQueue {
    type Service = ShortQueued<S>;

    fn layer(&self, connector: S) -> ShortQueued<S> {
        ShortQueued(connector)
    }
}

/// A connector that shortens the queue of each connection.
#[derive(Clone)]
pub(super) struct ShortQueued<S>(S);

impl<S, T> Service<T> for ShortQueued<S>
where
    S: Service<T>,
    S::Response: Connection + Send,
    S::Error: Send,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: T) -> Self::Future {
        let connecting = self.0.call(target);
        Box::pin(async move {
            let connection = connecting.await?;
            if let Err(error) = shorten(&connection) {
                tracing::debug!(%error, "the queue of a connection stays long");
            }
            Ok(connection)
        })
    }
}

/// Shortens the queue of a connection, which keeps its descriptor open meanwhile.
fn shorten(connection: &impl Connection) -> std::io::Result<()> {
    let mut extras = http::Extensions::new();
    connection.connected().get_extras(&mut extras);
    let Some(info) = extras.get::<HttpInfo>() else {
        return Err(Errno::NOTCONN.into());
    };
    let socket = socket_between(info.local_addr(), info.remote_addr())?;
    SockRef::from(&socket).set_tcp_notsent_lowat(QUEUED_BYTES)
}

/// Returns a duplicate of this process's socket between these addresses. No two sockets have the
/// same two, so it belongs to that connection.
fn socket_between(local: SocketAddr, remote: SocketAddr) -> std::io::Result<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse();
        let (true, Ok(number)) = (is_socket, number) else {
            continue;
        };
        // Another thread may have closed that one, and opened another.
        let Ok(socket) = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let ends = SockRef::from(&socket);
        let is_at = |end: std::io::Result<socket2::SockAddr>, address| {
            end.is_ok_and(|end| end.as_socket() == Some(address))
        };
        if is_at(ends.local_addr(), local) && is_at(ends.peer_addr(), remote) {
            return Ok(socket);
        }
    }
    Err(Errno::NOTSOCK.into())
}
