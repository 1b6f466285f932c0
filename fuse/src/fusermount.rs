//! Mounting without privileges, through the setuid helper fusermount3(1).
//!
//! Owns: the helper's protocol. The helper mounts, and sends the descriptor of the connection over
//! the socket whose number is in `_FUSE_COMMFD`.
//! Does not own: what is mounted, or when (session).

use std::ffi::OsString;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::MountError;

/// Names under which the helper is searched; the last one for old distributions.
const HELPERS: [&str; 4] = [
    "fusermount3",
    "/bin/fusermount3",
    "/usr/bin/fusermount3",
    "fusermount",
];

/// Mounts at `mount_point` with the helper's option string, and returns the connection.
pub(crate) fn mount(mount_point: &Path, options: &str) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::io("making a socket pair"))?;
    let arguments = ["-o".into(), options.into(), "--".into(), mount_point.into()];
    let mut child = spawn(&arguments, |command| {
        // The socket is the helper's standard input: descriptor 0.
        let theirs = theirs.try_clone()?;
        command
            .stdin(OwnedFd::from(theirs))
            .env("_FUSE_COMMFD", "0");
        Ok(())
    })?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let mut message = String::new();
    if let Some(stderr) = child.stderr.as_mut() {
        // A failed read only shortens the error message.
        let _ = stderr.read_to_string(&mut message);
    }
    let status = child
        .wait()
        .map_err(MountError::io("waiting for fusermount3"))?;
    match received {
        Ok(Some(descriptor)) if status.success() => Ok(descriptor),
        Err(error) if message.is_empty() => Err(MountError::io("receiving the descriptor")(error)),
        _ => Err(MountError::Helper(explanation(&message))),
    }
}

/// Unmounts; `lazy` detaches a mount that is still in use.
pub(crate) fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let mut arguments: Vec<OsString> = vec!["-u".into()];
    if lazy {
        arguments.push("-z".into());
    }
    arguments.push("--".into());
    arguments.push(mount_point.into());
    let child = spawn(&arguments, |command| {
        command.stdin(Stdio::null());
        Ok(())
    })?;
    let output = child
        .wait_with_output()
        .map_err(MountError::io("waiting for fusermount3"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = explanation(&String::from_utf8_lossy(&output.stderr));
    if message.contains("busy") {
        return Err(MountError::Busy(mount_point.to_owned()));
    }
    Err(MountError::Helper(message))
}

fn spawn(
    arguments: &[OsString],
    prepare: impl Fn(&mut Command) -> std::io::Result<()>,
) -> Result<std::process::Child, MountError> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        prepare(&mut command).map_err(MountError::io("preparing fusermount3"))?;
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(MountError::io("starting fusermount3")(error)),
        }
    }
    Err(MountError::NoHelper)
}

/// Returns the descriptor that arrives, or `None` if the socket is closed without one.
fn receive_descriptor(socket: &UnixStream) -> std::io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn explanation(stderr: &str) -> String {
    let message = stderr.trim();
    if message.is_empty() {
        "fusermount3 failed without a message".to_owned()
    } else {
        message.to_owned()
    }
}

/// Escapes a value for the helper's option string.
pub(crate) fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace(',', r"\,")
}
