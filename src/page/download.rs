//! Bytes of a file or an archive on their way to a client.
//!
//! Owns the bound of what waits for a slow client, and that an incomplete download ends as a broken
//! one. Does not own the order of the bytes (`dump`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::dump::{DumpError, Sink, archive, file};
use crate::fault::Fault;
use crate::page::contents::Opened;
use crate::printable;

/// Parts that wait for the client.
const PARTS_WAITING: usize = 4;

/// How long a client may take none of them.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// The body of a download. Dropped, it ends the reads.
///
/// An empty part is the mark that all was read. A body that ends without it ends with an error.
pub struct Download {
    parts: mpsc::Receiver<Bytes>,
    /// The bytes that are left; none for an archive, whose length is not known.
    left: Option<u64>,
    _reads: AbortOnDropHandle<()>,
    _permit: OwnedSemaphorePermit,
}

impl Download {
    /// Starts to read a file, or with `is_archive` a directory.
    pub fn start(opened: Opened, is_archive: bool, permit: OwnedSemaphorePermit) -> Self {
        let (sender, parts) = mpsc::channel(PARTS_WAITING);
        let size = opened.entry.attributes.as_ref();
        let size = size.map(|attributes| attributes.size_bytes);
        let reads = tokio::spawn(read(
            opened,
            is_archive,
            Client {
                sender,
                left_out: 0,
            },
        ));
        Self {
            parts,
            left: size.filter(|_| !is_archive),
            _reads: AbortOnDropHandle::new(reads),
            _permit: permit,
        }
    }
}

async fn read(opened: Opened, is_archive: bool, mut client: Client) {
    let path = printable::name(&opened.entry.name);
    let (view, inode) = (&opened.view, opened.inode);
    let done = match is_archive {
        true => archive(view, inode, &mut client).await,
        false => file(view, inode, &path, &mut client).await,
    };
    let why = match done {
        Ok(_) if client.left_out == 0 => {
            // Without this mark the body is not whole.
            let _ = client.send(Bytes::new()).await;
            return;
        }
        Ok(_) => format!(
            "{} names that no file can have are left out",
            client.left_out
        ),
        // The client has gone, or takes nothing.
        Err(DumpError::Write(_)) => return,
        Err(error) => error.to_string(),
    };
    tracing::warn!("download of {path} is incomplete: {why}");
}

/// The end of the channel at which a dump puts its bytes.
struct Client {
    sender: mpsc::Sender<Bytes>,
    left_out: u64,
}

impl Client {
    /// Sends a part. An empty one is the mark that there are no more.
    async fn send(&self, part: Bytes) -> io::Result<()> {
        let sent = tokio::time::timeout(CLIENT_PATIENCE, self.sender.send(part)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[async_trait]
impl Sink for Client {
    async fn put(&mut self, bytes: Bytes) -> io::Result<()> {
        match bytes.is_empty() {
            true => Ok(()),
            false => self.send(bytes).await,
        }
    }

    fn leave_out(&mut self, path: &[u8], fault: &Fault) {
        tracing::warn!("left out of a download: {}: {fault}", printable::name(path));
        self.left_out += 1;
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let part = match ready!(self.parts.poll_recv(context)) {
            Some(part) if part.is_empty() => return Poll::Ready(None),
            Some(part) => part,
            // An error breaks the connection, so that the client knows.
            None => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
        };
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(part.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
