//! The threads that read requests from the kernel.
//!
//! Owns: one fuser session per thread, each on its own clone of the connection's descriptor, and
//! that a thread which the library loses to a panic is replaced.
//! Does not own: the greeting, mounting, unmounting (session).
//!
//! Why not the library's own threads: fuser 0.18 decodes some requests before it calls the
//! filesystem, and panics over times near the far ends of 64 bits, which any user of the mount
//! may set. One request would end one event loop for good, and a few of them the mount. Here
//! such a loop is opened again. The request it died of is answered by the kernel (ECONNABORTED),
//! once the lost loop's descriptor closes.
//!
//! A fuser session insists on greeting its peer, and a connection is greeted once. So each
//! loop's session begins on one end of a socket pair, greets nobody, and then has its
//! descriptor replaced by one of the mount's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use tracing::{error, warn};

use crate::adapter::Adapter;
use crate::options::Ownership;
use crate::vfs::Vfs;

/// `FUSE_DEV_IOC_CLONE` of linux/fuse.h: `_IOR(229, 0, uint32_t)`.
const CLONE_DEVICE: libc::Ioctl = (2 << 30) | (4 << 16) | (229 << 8);

/// `FUSE_INIT` of linux/fuse.h.
const OPCODE_INIT: u32 = 26;

/// The protocol version the made-up greeting speaks; what it offers is nothing, and is not used.
const GREETING_VERSION: [u32; 2] = [7, 31];

/// What all loops of a mount share.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) ownership: Ownership,
    pub(crate) access: fuser::SessionACL,
    /// The connection, as it was mounted.
    pub(crate) connection: Arc<OwnedFd>,
}

/// One event loop, ready to run.
pub(crate) struct EventLoop {
    service: Service,
    session: fuser::Session<Adapter>,
}

impl EventLoop {
    /// # Errors
    /// As descriptors or memory run out.
    pub(crate) fn open(service: Service) -> io::Result<Self> {
        let session = open_session(&service)?;
        Ok(Self { service, session })
    }

    /// Serves requests until the mount is gone (unmounted, detached and no longer used, or aborted).
    ///
    /// # Errors
    /// What reading from the kernel failed with.
    pub(crate) fn run(self) -> io::Result<()> {
        let EventLoop {
            service,
            mut session,
        } = self;
        loop {
            match session.run() {
                Ok(()) => return Ok(()),
                // An error of the system, as opposed to one of the library's own.
                Err(error) if error.raw_os_error().is_some() => {
                    error!(%error, "an event loop cannot read from the kernel");
                    return Err(error);
                }
                Err(error) => {
                    warn!(%error, "an event loop was lost; opening another");
                    session = open_session(&service)?;
                }
            }
        }
    }
}

fn open_session(service: &Service) -> io::Result<fuser::Session<Adapter>> {
    let (ours, theirs) = UnixDatagram::pair()?;
    ours.send(&made_up_greeting())?;
    let adapter = Adapter::serving(service.vfs.clone(), service.ownership);
    let mut config = fuser::Config::default();
    config.n_threads = Some(1);
    let session = fuser::Session::from_fd(adapter, theirs.into(), service.access, config)?;
    replace(session.as_fd(), &clone_connection(&service.connection)?)?;
    Ok(session)
}

/// A FUSE_INIT request: `fuse_in_header` and `fuse_init_in`, with no capabilities.
fn made_up_greeting() -> Vec<u8> {
    const HEADER_BYTES: u32 = 40;
    const BODY_BYTES: u32 = 64;
    let mut request = Vec::new();
    request.extend_from_slice(&(HEADER_BYTES + BODY_BYTES).to_ne_bytes());
    request.extend_from_slice(&OPCODE_INIT.to_ne_bytes());
    request.extend_from_slice(&1_u64.to_ne_bytes());
    request.resize(HEADER_BYTES as usize, 0);
    for number in GREETING_VERSION {
        request.extend_from_slice(&number.to_ne_bytes());
    }
    request.resize((HEADER_BYTES + BODY_BYTES) as usize, 0);
    request
}

/// A descriptor of its own queue on the same connection; where /dev/fuse cannot be opened (it
/// was for fusermount3), another descriptor of the same queue does.
fn clone_connection(connection: &OwnedFd) -> io::Result<OwnedFd> {
    let device = match crate::session::open_device() {
        Ok(device) => device,
        Err(_) => return connection.try_clone(),
    };
    let source = connection.as_raw_fd();
    // SAFETY: the request reads one 32-bit number, the open descriptor `source`, which lives on the stack.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), CLONE_DEVICE, &raw const source) };
    if result == 0 {
        Ok(device)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes `target` another descriptor of what `source` refers to, closing what it was before.
fn replace(target: BorrowedFd<'_>, source: &OwnedFd) -> io::Result<()> {
    // SAFETY: both are open descriptors. `target`'s owner keeps owning its number; it holds
    // nothing else about the socket that the number referred to.
    let result = unsafe { libc::dup3(source.as_raw_fd(), target.as_raw_fd(), libc::O_CLOEXEC) };
    if result >= 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
