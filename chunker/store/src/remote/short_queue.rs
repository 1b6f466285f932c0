//! Connections whose kernel buffer holds few bytes that have not gone out.
//!
//! Owns one socket option. Without it the kernel takes megabytes of a body at once, and no progress
//! is seen while they go out: on a slow link that is a minute, and looks like a silent store. The
//! option limits what waits to be sent, not what is on its way, so a fast and distant link stays
//! fast.
//!
//! `reqwest` gives no access to its sockets. So the socket of a new connection is looked for among
//! the descriptors of this process, by its two addresses. If it is not found, as without /proc, the
//! connection is used as it is.

use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connection, HttpInfo};
use rustix::io::Errno;
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
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse();
        let (true, Ok(number)) = (is_socket, number) else {
            continue;
        };
        // Another thread may have closed that one, and opened another. For a moment, its flock or
        // its connection then outlives its own descriptor. To close a duplicate of a file takes away
        // the record locks (fcntl) that this process has on it; it takes none.
        let Ok(socket) = duplicate(number) else {
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

/// Returns a duplicate of the descriptor that has this number now, whichever it is.
///
/// # Errors
/// `EBADF` if there is none; `EMFILE` if this process may have no more.
fn duplicate(number: RawFd) -> std::io::Result<OwnedFd> {
    // SAFETY: fcntl(F_DUPFD_CLOEXEC) reads and writes no memory of this process, and changes nothing
    // about the descriptor `number`, which need not be open. If it is closed, the call fails with
    // EBADF. If the number was reused, the call duplicates another descriptor of this process, which
    // the caller tells by its addresses and drops. That closes the duplicate only. A descriptor that
    // is returned is open, new, and known to no other code, so `OwnedFd` may own and close it.
    let duplicate = unsafe {
        match libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) {
            -1 => None,
            duplicate => Some(OwnedFd::from_raw_fd(duplicate)),
        }
    };
    duplicate.ok_or_else(std::io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::remote::RemoteStore;
    use crate::{Store, StoreOptions};

    #[tokio::test]
    async fn the_queue_of_a_connection_is_short_before_its_first_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let key = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        let options = StoreOptions {
            endpoint: Some(format!("http://{server}")),
            region: Some("us-east-1".to_owned()),
            settings: key.map(|name| (name.to_owned(), "x".to_owned())).into(),
            use_environment: false,
            ..StoreOptions::default()
        };
        let url = "s3://bucket".parse().unwrap();
        let store = RemoteStore::open(&url, &options).await.unwrap();
        let asked = async {
            let (mut taken, client) = listener.accept().await.unwrap();
            taken.read_u8().await.expect("a request begins");
            let socket = socket_between(client, server).expect("this process has its other end");
            SockRef::from(&socket).tcp_notsent_lowat().unwrap()
        };
        tokio::select! {
            answer = store.head("a") => panic!("answered: {answer:?}"),
            queued = asked => assert_eq!(queued, QUEUED_BYTES),
        }
    }

    #[test]
    fn a_duplicate_is_another_descriptor_and_nothing_else_has_one() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(server).unwrap();
        let local = client.local_addr().unwrap();
        let duplicate = socket_between(local, server).expect("it is open");
        let flags = rustix::io::fcntl_getfd(&duplicate).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{flags:?}");
        drop(duplicate);
        assert_eq!(client.local_addr().unwrap(), local, "it stays open");
        drop(client);
        // Connections of other tests look at all sockets, and may have a duplicate for a moment.
        let begin = std::time::Instant::now();
        while socket_between(local, server).is_ok() {
            let patience = std::time::Duration::from_secs(5);
            assert!(begin.elapsed() < patience, "a duplicate stays open");
        }
        let absent = super::duplicate(RawFd::MAX).expect_err("there is none");
        assert_eq!(absent.raw_os_error(), Some(libc::EBADF));
    }
}
