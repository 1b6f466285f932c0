//! A volume that a command writes without a kernel.
//!
//! Owns only the order in which it starts and stops. Session, heartbeat, commits and fencing are
//! those of a mount (`writer`).

use std::path::Path;
use std::sync::Arc;

use crate::mounting::ending::Deadline;
use crate::mounting::error::MountingError;
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::writer::Writer;
use crate::mounting::writing::Writing;
use crate::repository::Repository;
use crate::root::heartbeat::Standing;
use crate::root::refusal::Refusal;
use crate::root::state::SessionId;
use crate::vfs::special::Owner;
use crate::volume::{Promise, Volume};

/// A path that covers no directory, so that no spool can lie below it.
const NO_MOUNT: &str = "/dev/null";

/// A writing session of a command.
pub struct Alone {
    repository: Arc<Repository>,
    /// The volume's name.
    name: String,
    volume: Arc<Volume>,
    writer: Writer,
}

/// Parameters of a command's session.
pub struct AloneParts {
    /// The repository.
    pub repository: Arc<Repository>,
    /// The volume's name; it is made if it is new.
    pub volume: String,
    /// The command's name, shown to others that find the volume held.
    pub command: String,
    /// Memory for everything, in bytes.
    pub memory_bytes: u64,
    /// Take the volume over from its holder.
    pub steal: bool,
    /// Accept that acknowledged operations are missing from the bucket.
    pub accept_loss: bool,
    /// The session's id, if the caller has drawn it to see the session out of the root.
    pub session: Option<SessionId>,
}

impl Alone {
    /// Enters the root, takes the volume, and replays the operations that an earlier mount of it
    /// had acknowledged. Dropped after the takeover, it leaves the session in the root.
    ///
    /// # Errors
    /// [`MountingError::Options`] if the volume is read-only; errors of spools, store and root, as
    /// of a mount.
    pub async fn begin(parts: AloneParts) -> Result<Alone, MountingError> {
        let repository = parts.repository;
        // Uploads read from their source, so that no data waits on a disk. Spools of mounts are
        // replayed.
        let spool = SpoolPlace::on_this_machine(&repository, 0, Path::new(NO_MOUNT))?;
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: repository.environment.clock.now(),
        };
        let holder = repository.environment.holder(&parts.command);
        let writing = Writing {
            repository: repository.clone(),
            volume: parts.volume.clone(),
            memory_bytes: parts.memory_bytes,
            spool,
            swap: None,
            is_local: false,
            promise: Promise::Durable,
            clone_of: None,
            session: parts.session,
            owner,
            holder,
        };
        // News of spools are in the log already.
        let (open, _) = writing.enter(parts.steal, parts.accept_loss).await?;
        let (live, writer) = writing.start(open, None, parts.accept_loss).await?;
        match live.volume {
            Some(volume) => Ok(Alone {
                repository,
                name: parts.volume,
                volume,
                writer,
            }),
            None => Err(MountingError::Options("the volume is read-only".into())),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Reads the root. Returns why the session can commit no more, if another session has taken the
    /// volume over.
    pub async fn fenced(&self) -> Option<Refusal> {
        let open = &self.writer.open;
        if let Standing::Fenced(refusal) = &*open.heartbeat().standing().borrow() {
            return Some(refusal.clone());
        }
        // A failed read proves nothing.
        let view = self.repository.handle.refresh().await.ok()?;
        let entry = view.root.volumes.get(&self.name)?;
        if entry.holder == Some(open.id()) {
            return None;
        }
        let session = entry.holder.and_then(|by| view.root.sessions.get(&by));
        Some(Refusal::Fenced {
            by: session.map(|session| Box::new(session.holder.clone())),
        })
    }

    /// Makes the last commit and ends the session.
    ///
    /// # Errors
    /// As [`Alone::finish_by`].
    pub async fn finish(self) -> Result<(), MountingError> {
        self.finish_by(&Deadline::default()).await
    }

    /// Does the same, and gives the last commit up at the deadline.
    ///
    /// # Errors
    /// [`MountingError::Volume`] if accepted data is not in the bucket; [`MountingError::Root`].
    pub async fn finish_by(self, deadline: &Deadline) -> Result<(), MountingError> {
        self.writer.finish(deadline).await
    }
}
