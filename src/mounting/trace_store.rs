//! Changes of the volume of traces, each in a session of its own.
//!
//! Owns the steps from a trace to its file, and the removal of one. A trace gets its name when it
//! is whole, in place of an older one.

use std::sync::Arc;

use bytes::Bytes;

use crate::mounting::alone::{Alone, AloneParts};
use crate::mounting::error::MountingError;
use crate::repository::Repository;
use crate::root::state::SessionId;
use crate::stream::{StreamError, VolumePath, deposit, keep};
use crate::trace::format::{MAGIC_OF_ALL, Trace, TraceError};
use crate::trace::place::resolve;
use crate::trace::stored::{StoredError, VOLUME, check_trace_name, no_trace, path_of};
use crate::tree::item::Item;
use crate::volume::error::VolumeError;
use crate::volume::namespace::NewInode;
use crate::volume::state::Scope;
use crate::volume::{ROOT_INODE, Volume};

/// Memory of the session, in bytes: the least that works.
const MEMORY_BYTES: u64 = 128 << 20;

/// Why the traces were not changed.
#[derive(Debug, thiserror::Error)]
pub enum TraceStoreError {
    /// The name, or there is no such trace.
    #[error(transparent)]
    Stored(#[from] StoredError),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] MountingError),
    /// The file could not be made.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

/// Stores a trace, in place of an older one of its name, by a session of this id, with `command` as
/// its holder. After success the trace is in the bucket, and the session is in the root no more.
/// Before, and after an error or if this is dropped, it may be there. It acknowledges nothing before
/// its commit, so that
/// [`OpenSession::end_left`](crate::root::session::OpenSession::end_left) may end it.
///
/// # Errors
/// [`TraceStoreError::Stored`] if the name is none that a trace can have, or that of another file;
/// [`TraceStoreError::Session`] if another session writes to the volume, or the store fails;
/// [`TraceStoreError::Stream`] if a file cannot have the path.
pub async fn save(
    repository: &Arc<Repository>,
    (volume, name): (&str, &str),
    trace: &Trace,
    (command, session): (&str, SessionId),
) -> Result<(), TraceStoreError> {
    check_trace_name(name)?;
    let bytes = Bytes::from(trace.encode());
    let alone = begin(repository, command, Some(session)).await?;
    let saved = async {
        require_trace(alone.volume(), volume, name).await?;
        let path = path_of(volume, name);
        Ok::<_, TraceStoreError>(write(alone.volume(), &path, bytes).await?)
    };
    let saved = saved.await;
    let finished = alone.finish().await;
    saved?;
    Ok(finished?)
}

/// Checks that a file of this name is a trace, of any version, or absent. The volume may have been a
/// user's own before.
///
/// # Errors
/// [`StoredError::NoTrace`] if it is something else; [`StoredError::Volume`] if it cannot be read.
async fn require_trace(traces: &Volume, volume: &str, name: &str) -> Result<(), StoredError> {
    let Some(found) = resolve(&traces.view, path_of(volume, name).as_bytes()).await? else {
        return Ok(());
    };
    let head = 0..found.size.min(MAGIC_OF_ALL.len() as u64);
    let head = match head.is_empty() {
        true => Vec::new(),
        false => traces
            .view
            .read(Scope::Live, found.inode, head)
            .await?
            .concat(),
    };
    match head == MAGIC_OF_ALL {
        true => Ok(()),
        false => Err(no_trace((volume, name), TraceError::NoTrace)),
    }
}

async fn write(volume: &Arc<Volume>, path: &str, bytes: Bytes) -> Result<(), StreamError> {
    let place = VolumePath::parse(path.as_bytes())?;
    place.check(volume).await?;
    let new = NewInode {
        mode: libc::S_IFREG | 0o644,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        device: 0,
        target: None,
        profile: 0,
    };
    let received = deposit(volume, &new, bytes).await?;
    keep(volume, &place, &new, received, volume.now()).await
}

/// Removes a trace. After success its name is gone from the bucket.
///
/// # Errors
/// [`TraceStoreError::Stored`] if there is none of the name; otherwise as [`save`].
pub async fn remove(
    repository: &Arc<Repository>,
    (volume, name): (&str, &str),
    command: &str,
) -> Result<(), TraceStoreError> {
    check_trace_name(name)?;
    let alone = begin(repository, command, None).await?;
    let removed = unlink(alone.volume(), volume, name).await;
    let finished = alone.finish().await;
    removed?;
    Ok(finished?)
}

async fn unlink(traces: &Arc<Volume>, volume: &str, name: &str) -> Result<(), StoredError> {
    let path = path_of(volume, name);
    let key = traces.name_key(ROOT_INODE, volume.as_bytes())?;
    let directory = traces.view.item(Scope::Live, &key).await?;
    let found = resolve(&traces.view, path.as_bytes()).await?;
    let (Some(Item::Name { inode, .. }), Some(_)) = (directory, found) else {
        return Err(StoredError::Absent {
            volume: volume.to_owned(),
            name: name.to_owned(),
        });
    };
    match traces.unlink(inode, name.as_bytes()).await {
        Err(VolumeError::NotFound) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn begin(
    repository: &Arc<Repository>,
    command: &str,
    session: Option<SessionId>,
) -> Result<Alone, MountingError> {
    let parts = AloneParts {
        repository: repository.clone(),
        volume: VOLUME.to_owned(),
        command: command.to_owned(),
        memory_bytes: MEMORY_BYTES,
        steal: false,
        accept_loss: false,
        session,
    };
    Alone::begin(parts).await
}
